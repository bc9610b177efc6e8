"""How does a run survive being killed, without repeating noise and without forgetting what it spent?

A checkpoint holds the state between two steps. Together with the secret key, kept in a file of its own elsewhere, it
determines the rest of the run bit by bit: batches and noise are functions of (key, step). So a run that is killed and
resumed makes the releases it would have made, and nothing is charged twice. Everything that would break this, other
data, another plan, other code (:mod:`tacit.sgd.training.identity`), is a *fork*: new key, new charge.

The file is written beside the old one, flushed to disk and renamed over it. A keyed tag binds it to its key.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tacit import accounting as acc
from tacit.accounting.errors import PrivacyWarning
from tacit.ledger import Charge, ChargeError, Ledger, LedgerTampered
from tacit.noise.keys import Key
from tacit.sgd.sharding.shards import class_of
from tacit.sgd.training.pace import Program
from tacit.sgd.training.plan import Plan

MAGIC = b"tacit checkpoint 1\n"
TAG = 32


class CheckpointError(RuntimeError):
    """A checkpoint that must not be continued from; ``changed`` names what is not as it was, where that is why."""

    def __init__(self, message: str, changed: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.changed = tuple(changed)


class ForkWarning(PrivacyWarning):
    """What goes on from a checkpoint is another run; ``changed`` names what is not as it was."""

    def __init__(self, message: str, changed: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.changed = tuple(changed)


@dataclasses.dataclass
class RunState:
    """What changes while a run goes on, beside model, optimizer and schedule: what is saved, and restored on resume.

    ``step`` counts the steps that were made. ``begun`` says whether a batch may have been drawn, ``ended`` why the run
    ended and whether somebody looked at results to decide. ``ledger_entry`` is data set, number and head of the charge
    (an empty head: about to be made). ``average`` are averaged weights, ``key_file`` is where the secret key lies,
    ``program`` is what runs the next step.
    """

    clip_norm: float
    physical_batch: int
    program: Program
    average: dict[str, Tensor] | None = None
    key_file: str | os.PathLike[str] | None = None
    step: int = 0
    begun: bool = False
    ended: tuple[str, bool] | None = None
    ledger_entry: dict[str, str] | None = None

    def plain(self) -> dict[str, Any]:
        """Plain values for a checkpoint; the average is saved with the model."""
        return {
            "prepared": not self.begun,
            "step": self.step,
            "clip_norm": self.clip_norm,
            "physical_batch": self.physical_batch,
            "program": self.program,
            "key_file": str(self.key_file) if self.key_file is not None else None,
            "ledger": self.ledger_entry,
            "ended": list(self.ended) if self.ended is not None else None,
        }


def secret(key: Key, purpose: str) -> bytes:
    """32 bytes for a keyed hash."""
    return key.stream(purpose, 0, 0).tobytes()


def write(path: Path, state: dict[str, Any], key: Key) -> None:
    """Write ``state`` so that at any moment either the old file or the new one is there, whole."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    body = buffer.getvalue()
    tag = hashlib.blake2b(body, key=secret(key, "checkpoint"), digest_size=TAG).digest()
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.new")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(MAGIC + tag)
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name must survive a power cut as well
    finally:
        os.close(folder)


def read(path: Path) -> tuple[dict[str, Any], bytes, bytes]:
    """The state in a checkpoint, its body and its tag. Only tensors and plain values are unpickled."""
    content = path.read_bytes()
    if not content.startswith(MAGIC) or len(content) < len(MAGIC) + TAG:
        raise CheckpointError(f"{path} is not a checkpoint of tacit")
    tag, body = content[len(MAGIC) : len(MAGIC) + TAG], content[len(MAGIC) + TAG :]
    try:
        state = torch.load(io.BytesIO(body), weights_only=True, map_location="cpu")
    except Exception as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error
    return state, body, tag


def check_tag(path: Path, body: bytes, tag: bytes, key: Key) -> None:
    """Refuse a checkpoint that was changed, or that belongs to another key."""
    wanted = hashlib.blake2b(body, key=secret(key, "checkpoint"), digest_size=TAG).digest()
    if not hmac.compare_digest(tag, wanted):
        raise CheckpointError(f"{path} was changed after it was written, or belongs to another key")


def key_folder() -> Path:
    """Where keys are kept unless the user says otherwise: apart from checkpoints, for this user only."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    folder = Path(state) / "tacit" / "keys"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def check_entry(path: Path, state: dict[str, Any], ledger: Ledger | None, dataset: str | None) -> acc.Mechanism | None:
    """The ledger's entry for the run of a checkpoint, verified; what it was charged for, or None without a ledger."""
    entry = state["ledger"]
    if entry is None:
        if ledger is not None:
            raise CheckpointError(
                f"{path} belongs to a run that was not charged to a ledger: leave out ledger=, or start another run"
            )
        return None
    if ledger is None or dataset is None:
        raise CheckpointError(f"{path} belongs to a run charged on {entry['dataset']!r}: pass ledger= and dataset=")
    if entry["dataset"] != dataset:
        raise CheckpointError(f"{path} belongs to a run charged on {entry['dataset']!r}, not {dataset!r}")
    if state.get("prepared") and not entry["head"]:  # written before the charge, which is made when the run begins
        return None
    try:
        record = ledger.record(dataset, entry["charge"])
    except ChargeError:
        raise CheckpointError(
            f"the ledger has no charge {entry['charge']} on {dataset!r}, which {path} was made under: open the ledger "
            "that the run was charged to"
        ) from None
    except LedgerTampered as error:
        raise CheckpointError(f"the ledger's record of {dataset!r} was altered: {error}") from None
    if state.get("prepared") and record.confirmed:
        raise CheckpointError(
            f"charge {entry['charge']} is used up, but {path} says that nothing was drawn: it is refused"
        )
    if entry["head"] not in record.hashes:
        raise CheckpointError(
            f"the ledger's record of {dataset!r} was altered: it does not hold the entry {entry['head']} that {path} "
            "was made under"
        )
    if record.mechanism != acc.from_dict(state["mechanism"]):
        raise CheckpointError(f"charge {entry['charge']} is for another mechanism than the run of {path}")
    return record.mechanism


def take_up(state: dict[str, Any], ledger: Ledger | None) -> Charge | None:
    """The charge of a resumed run, reserved and not yet confirmed."""
    entry = state["ledger"]
    if entry is None or ledger is None or not entry["head"]:
        return None
    record = ledger.record(entry["dataset"], entry["charge"])
    return None if record.confirmed else ledger.resume(entry["dataset"], entry["charge"])


def differences(state: dict[str, Any], plan: Plan, configuration: dict[str, Any]) -> list[str]:
    """What is not as it was, in words."""
    found = []
    old, new = state["plan"], plan.to_dict()
    changed = sorted(name for name in new if name != "earlier" and old.get(name) != new[name])
    if changed:
        found.append(f"the plan ({', '.join(changed)})")
    before = state["configuration"]
    found += [name for name in {**before, **configuration} if before.get(name) != configuration.get(name)]
    return found


def configuration(
    model: nn.Module,
    parameters: dict[str, Tensor],
    loss: Any,
    optimizer: torch.optim.Optimizer,
    scheduler: Any,
    ema: float | None,
) -> dict[str, Any]:
    """What all ranks must have alike, in words; what computes behind the names is for ``identity``."""
    groups = [{k: repr(v) for k, v in g.items() if k not in ("params", "lr")} for g in optimizer.param_groups]
    rates = [float(g.get("initial_lr", g["lr"])) for g in optimizer.param_groups]
    name = repr(loss) if isinstance(loss, nn.Module) else getattr(loss, "__qualname__", type(loss).__name__)
    return {
        "the model's parameters": {n: list(p.shape) for n, p in parameters.items()},
        "the model": class_of(model).__qualname__,
        "the loss": name,
        "the optimizer": [type(optimizer).__qualname__, groups, rates],
        "the schedule": type(scheduler).__qualname__ if scheduler is not None else None,
        "the average": ema,
    }
