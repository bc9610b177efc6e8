"""How do many ranks keep one checkpoint, and how does another number of ranks read it?

A checkpoint of many ranks is a folder. ``run`` in it is a small file like that of one process
(:mod:`tacit.sgd.training.checkpoint`): plan, step, the ledger's entry, and a keyed digest of every other file. The
tensors (weights, optimizer state, average) lie in a folder of their own, written by ``torch.distributed.checkpoint``,
each rank its pieces. ``run`` names that folder, and is replaced when the new one is whole: at any moment a checkpoint
is there, the old one or the new one.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tacit.noise.keys import Key
from tacit.sgd.sharding.ranks import Ranks
from tacit.sgd.training import checkpoint as checkpoints
from tacit.sgd.training.checkpoint import CheckpointError

RUN = "run"
BLOCK = 1 << 24


def manifest(path: Path) -> Path:
    """The small file of a checkpoint: the checkpoint itself, or ``run`` in its folder."""
    return path / RUN if path.is_dir() else path


# -- trees of tensors, flat ------------------------------------------------------------------------------------------


def flat(model: nn.Module, optimizer: torch.optim.Optimizer, average: dict[str, Tensor] | None) -> tuple[Any, Any]:
    """All tensors by name, and the plain values that stand beside them."""
    tensors: dict[str, Tensor] = {}
    extra: dict[str, Any] = {}
    for name, value in model.state_dict().items():
        if isinstance(value, Tensor):
            tensors[f"model/{name}"] = value
        else:
            extra[name] = value
    names = parameter_names(model, optimizer)
    found = optimizer.state_dict()
    beside: dict[str, dict[str, Any]] = {}
    for index, state in found["state"].items():
        for key, value in state.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer/{names[index]}/{key}"] = value
            else:
                beside.setdefault(names[index], {})[key] = value
    for name, value in (average or {}).items():
        tensors[f"average/{name}"] = value
    return tensors, {"extra": extra, "optimizer": {"groups": found["param_groups"], "beside": beside}}


def parameter_names(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """The names of the optimizer's parameters, in the order in which its state numbers them."""
    known = {id(p): n for n, p in model.named_parameters()}
    return [known[id(p)] for group in optimizer.param_groups for p in group["params"]]


def restore(
    tensors: dict[str, Tensor],
    plain: dict[str, Any],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
) -> dict[str, Tensor]:
    """Put what was read into model and optimizer; returns the average."""
    parts: dict[str, dict[str, Tensor]] = {"model": {}, "optimizer": {}, "average": {}}
    for name, value in tensors.items():
        kind, _, rest = name.partition("/")
        parts[kind][rest] = value
    model.load_state_dict({**parts["model"], **plain["extra"]})
    names = parameter_names(model, optimizer)
    where = {name: index for index, name in enumerate(names)}
    states: dict[int, dict[str, Any]] = {where[n]: dict(v) for n, v in plain["optimizer"]["beside"].items()}
    for name, value in parts["optimizer"].items():
        parameter, _, key = name.rpartition("/")
        states.setdefault(where[parameter], {})[key] = value
    optimizer.load_state_dict({"state": states, "param_groups": plain["optimizer"]["groups"]})
    return parts["average"]


# -- writing ---------------------------------------------------------------------------------------------------------


def write(path: Path, state: dict[str, Any], tensors: dict[str, Tensor], key: Key, ranks: Ranks) -> None:
    """Write a checkpoint, all ranks together; the old one is whole until the new one is."""
    from torch.distributed.checkpoint.state_dict_saver import save

    def room() -> str:
        path.mkdir(parents=True, exist_ok=True)
        step = state["step"]
        name = next(n for k in itertools.count() if not (path / (n := f"step-{step:08d}-{k}")).exists())
        (path / name).mkdir()
        return name

    name = ranks.first(room)
    with _quiet():
        save(dict(tensors), checkpoint_id=str(path / name), no_dist=not ranks.active)
    digests = ranks.first(lambda: sorted(f.name for f in (path / name).iterdir()))
    own = {file: _digest(path / name / file, key) for file in digests[ranks.rank :: ranks.world]}
    told: dict[str, str] = {}
    for part in ranks.all(own):
        told |= part

    def finish() -> None:
        checkpoints.write(path / RUN, state | {"folder": name, "files": told}, key)
        for old in path.glob("step-*"):
            if old.name != name:
                shutil.rmtree(old)

    ranks.first(finish)


def _digest(file: Path, key: Key) -> str:
    found = hashlib.blake2b(key=checkpoints.secret(key, "checkpoint"), digest_size=32)
    with file.open("rb") as stream:
        while block := stream.read(BLOCK):
            found.update(block)
    return found.hexdigest()


# -- reading ---------------------------------------------------------------------------------------------------------


def read(
    path: Path,
    state: dict[str, Any],
    templates: dict[str, Tensor],
    parameters: dict[str, Tensor],
    ranks: Ranks,
    *,
    weights_only: bool = False,
) -> dict[str, Tensor]:
    """The tensors of a checkpoint, each rank its pieces. ``templates`` say how model and average are spread."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    folder = path / state["folder"]
    found = FileSystemReader(str(folder)).read_metadata().state_dict_metadata
    wanted = {name: value for name, value in templates.items() if not name.startswith("optimizer/")}
    missing = sorted(name for name in wanted if name not in found)
    if missing:
        raise CheckpointError(f"{path} has no {missing[0]!r}: it belongs to another model")
    for name, told in found.items():
        if weights_only or not name.startswith("optimizer/"):
            continue
        parameter = parameters[name.partition("/")[2].rpartition("/")[0]]
        assert isinstance(told, TensorStorageMetadata)  # as every one of templates is a tensor
        if tuple(told.size) == tuple(parameter.shape):
            wanted[name] = torch.zeros_like(parameter, dtype=told.properties.dtype, requires_grad=False)
        else:
            wanted[name] = torch.zeros(told.size, dtype=told.properties.dtype)
    wanted = {name: value.detach() for name, value in wanted.items()}
    with _quiet():
        load(wanted, checkpoint_id=str(folder), no_dist=not ranks.active)
    return wanted


def verify(path: Path, state: dict[str, Any], key: Key, ranks: Ranks) -> None:
    """Refuse a checkpoint of which a file was changed, or is gone; each rank reads its share of the files."""
    folder, wrong = path / state["folder"], []
    for file in sorted(state["files"])[ranks.rank :: ranks.world]:
        there = (folder / file).is_file()
        if not there or not hmac.compare_digest(_digest(folder / file, key), state["files"][file]):
            wrong.append(file)
    bad = sorted(itertools.chain.from_iterable(ranks.all(wrong)))
    if bad:
        raise CheckpointError(f"{folder / bad[0]} was changed after it was written, or is gone")


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the remarks of torch about its own internals."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"torch\..*")
        yield
