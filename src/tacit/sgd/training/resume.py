"""How does a run begin, pause, go on after it was killed, and end? Its key, its charge and its checkpoints.

:class:`Resumable` is the half of :class:`~tacit.sgd.training.training.Training` that outlives a process. Where several
ranks train together, rank 0 alone charges the ledger, keeps the key in a file and reads what was saved; the others are
told, and what is refused to one is refused to all.
"""

from __future__ import annotations

import dataclasses
import functools
import uuid
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tacit import accounting as acc
from tacit.ledger import Charge, Ledger
from tacit.ledger.fingerprint import former_fingerprint
from tacit.noise.keys import Key
from tacit.noise.process import OneProcess
from tacit.sgd.clip import compiled_by, uses_to_trace
from tacit.sgd.gradients.engine import Engine
from tacit.sgd.gradients.randomness import random_state, set_random_state
from tacit.sgd.sharding import checkpoints as sharded
from tacit.sgd.sharding.ranks import Ranks
from tacit.sgd.sharding.shards import ShardedParameters
from tacit.sgd.training import checkpoint as checkpoints
from tacit.sgd.training import identity
from tacit.sgd.training.arriving import FirstRows
from tacit.sgd.training.checkpoint import CheckpointError, ForkWarning, RunState
from tacit.sgd.training.config import RunSettings
from tacit.sgd.training.data import Records, Units
from tacit.sgd.training.kept import KeptRows
from tacit.sgd.training.owned import StoredUnits
from tacit.sgd.training.pace import COMPILE, Pace, Program
from tacit.sgd.training.plan import Plan
from tacit.sgd.training.prefetch import BackgroundDraw


@dataclasses.dataclass(frozen=True)
class RunKeys:
    """The secret key of a run, and those that are derived from it: for noise, units, records of a unit, probes."""

    root: Key
    noise: Key
    sampler: Key
    members: Key
    probes: Key

    @classmethod
    def of(cls, root: Key) -> RunKeys:
        """All keys of a run from one."""
        return cls(root, root.derive("noise"), root.derive("sampler"), root.derive("members"), root.derive("probes"))


class Resumable(OneProcess):
    """Key, charge and checkpoints of a run.

    Guarantee: the plan is charged once, before the first batch is drawn, by one rank. A run that was killed makes the
    releases it would have made, because batches and noise are functions of (key, step); so nothing is charged twice. On
    another number of ranks, sums are rounded in another order: what was computed after the last checkpoint and is made
    again must then not have left the machines before. It belongs to the process that made it: a fork of it, and a copy,
    are refused.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: Any
    parameters: dict[str, Tensor]
    records: Records
    units: Units | KeptRows | FirstRows | None
    device: torch.device
    plan: Plan
    ranks: Ranks
    shards: ShardedParameters | None
    settings: RunSettings
    state: RunState
    ledger: Ledger | None
    dataset: str | None
    data_name: str | None
    #: None before the run takes part, and once it has ended
    keys: RunKeys | None = None
    charge: Charge | None = None
    _configuration: dict[str, Any]
    _parts: identity.Parts
    _background: BackgroundDraw
    _retired: Key | None = None
    #: what makes the program of a step, and what chooses another while that is open
    compiled: Callable[..., Any] | None = None
    _pace: Pace | None = None
    _fixed_until: int = 0

    def _use(self, key: Key) -> None:
        self.keys = RunKeys.of(key)

    @functools.cached_property
    def checkpoint(self) -> Path | None:
        """The path where the run is saved; None without one."""
        path = self.settings.persistence.checkpoint
        return Path(path) if path is not None else None

    @property
    def charge_number(self) -> str | None:
        """The number of the run's charge in the ledger; None without one."""
        return (self.state.ledger_entry or {}).get("charge")

    @property
    def _own_key(self) -> bool:
        """Whether the key was made here, and is kept and wiped here."""
        return self.settings.persistence.key is None

    # -- beginning ---------------------------------------------------------------------------------------------------

    def _take_part(self, key: Key | None) -> None:
        """Resume, fork or begin: afterwards every rank has the same key, and is known to have the same data."""
        key = self.ranks.key(key)
        path = self.checkpoint
        if path is not None and self.ranks.first(path.exists):
            self._continue(path, key)
        if self.keys is None and self.state.ended is None:
            self._use(self.ranks.send_key(key or (Key.generate() if self.ranks.rank == 0 else None)))
        if self.ranks.world > 1 and self.keys is not None:
            from tacit import __version__

            self.ranks.same(
                version_of_torch=torch.__version__.partition("+")[0],
                version_of_tacit=__version__,
                plan=self.plan.digest(),
                configuration=repr(self._configuration),
                code=repr(self._parts),
                data_set=self._data_name,
                step=self.state.step,
            )

    def begin(self) -> None:
        """Before the first batch is drawn: charge the ledger, save the key, write the first checkpoint.

        A checkpoint marked as prepared, with the number that the charge will have, stands before the charge is made and
        before the key is saved: killed there, the next attempt knows that nothing was drawn, takes up the charge if it
        was made, and makes another key. (A fork that is killed between its charge and its first checkpoint is charged
        again: too much is counted, never too little.)
        """
        self.check_process()
        if self.state.begun:
            return
        assert self.keys is not None
        root, state, kept = self.keys.root, self.state, self.checkpoint is not None and self._own_key
        self.ranks.first(lambda: root.claim(self, trusted=self._own_key))
        self.ranks.first(self._room_for_the_key)
        if kept:
            name = f"{root.fingerprint()}.key"
            state.key_file = state.key_file or self.ranks.first(lambda: str(checkpoints.key_folder() / name))
        if self.ledger is not None and self.dataset is not None:
            self._pay_once(self.ledger, self.dataset)
        if self._retired is not None:
            self._retired.destroy()  # of the run this one forked from, whose checkpoint is overwritten now
        if kept and state.key_file is not None:
            place = state.key_file
            self._write()
            self.ranks.first(lambda: root.save(place))
        state.begun = True
        if self.checkpoint is not None:
            self.save()

    def _pay_once(self, ledger: Ledger, dataset: str) -> None:
        """Charge the plan, unless the checkpoint that was taken up says that it is charged."""
        entry = self.state.ledger_entry
        if entry is not None and entry["head"]:
            return
        number = entry["charge"] if entry is not None else self.ranks.first(lambda: uuid.uuid4().hex)
        if self.checkpoint is not None and self.plan.earlier is None:  # a fork's would overwrite a run that can go on
            self.state.ledger_entry = {"dataset": dataset, "charge": number, "head": ""}
            self._write()
        self.state.ledger_entry = self.ranks.first(lambda: self._pay(ledger, dataset, number))

    def _room_for_the_key(self) -> None:
        """Refuse a key file that is another run's, before anything is charged."""
        place = self.state.key_file
        if self.checkpoint is None or not self._own_key or place is None or not Path(place).exists():
            return
        if self._retired is None or Key.load(place).fingerprint() != self._retired.fingerprint():
            raise CheckpointError(f"{place} holds the key of another run: choose another key_file")

    def _pay(self, ledger: Ledger, dataset: str, number: str) -> dict[str, str]:
        purpose = self.settings.charging.purpose
        charge = ledger.charge(
            dataset, self.plan.mechanism, delta=self.plan.delta, purpose=purpose, number=number, data=self.data_name
        )
        if charge.confirmed:
            raise CheckpointError(
                f"charge {number} is used up, but nothing was drawn yet: {self.checkpoint} is refused"
            )
        self.charge = charge
        return {"dataset": dataset, "charge": charge.number, "head": charge.head}

    # -- writing -----------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write the checkpoint: the state between two steps, without the key. All ranks call it together.

        Raises:
            ValueError: If no ``checkpoint`` path was given.
            RuntimeError: If the run has ended: its last checkpoint is written already.
        """
        if self.checkpoint is None:
            raise ValueError("the run has no place to be saved: give Training a path, checkpoint=")
        if self.keys is None:
            raise RuntimeError("the run has ended, and its last checkpoint is already written")
        self.begin()
        self._write()

    def _write(self) -> None:
        path, keys = self.checkpoint, self.keys
        assert path is not None
        assert keys is not None
        key = keys.root
        if self.shards is not None:
            self.shards.rest()  # somebody may have looked at results since the last step
        state = {
            **self.state.plain(),
            "plan": self.plan.to_dict(),
            "mechanism": self.plan.mechanism.to_dict(),
            "configuration": self._configuration,
            "identity": self._computes(key),
            "scheduler": self.scheduler.state_dict() if self.scheduler is not None else None,
            "ranks": self.ranks.world,
            "random": self.ranks.all(random_state(self.device)),
            "data": self._data_name,
            "key": key.fingerprint(),
        }
        if self._in_folder:
            tensors, plain = sharded.flat(self.model, self.optimizer, self.state.average)
            sharded.write(path, state | {"plain": plain}, tensors, key, self.ranks)
            return
        state |= {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": self.state.average,
        }
        self.ranks.first(lambda: checkpoints.write(path, state, key))

    @functools.cached_property
    def _in_folder(self) -> bool:
        """Whether the checkpoint is a folder that ranks write together: as it is, or as these ranks begin it."""
        path = self.checkpoint
        assert path is not None
        return self.ranks.first(lambda: path.is_dir() if path.exists() else self.ranks.active)

    @functools.cached_property
    def _data_name(self) -> str:
        assert self.keys is not None
        return self._name_of_data(self.keys.root)

    def _name_of_data(self, key: Key) -> str:
        secret = checkpoints.secret(key, "data")
        found = self.records.fingerprint(secret)
        if self.units is None:
            return found
        if isinstance(self.units, KeptRows):
            return former_fingerprint([found, *self.units.choice], secret)
        who = [self.units.digest] if isinstance(self.units, StoredUnits) else [self.units.order, self.units.starts]
        return former_fingerprint([found, *who], secret)

    def _computes(self, key: Key) -> dict[str, list[str | None]]:
        return identity.keyed(self._parts, checkpoints.secret(key, "identity"))

    # -- going on ----------------------------------------------------------------------------------------------------

    def _continue(self, path: Path, given: Key | None) -> None:
        """Resume the run of the checkpoint, or fork from it."""
        found: list[Key] = []
        state, changed, charged, kept = self.ranks.first(lambda: self._examine(path, given, found))
        if _nothing_drawn(state, changed):
            if not changed:
                if given is not None:
                    given.claim(self, trusted=True)
                self.restore(state)
                self.charge, self.state.ledger_entry = self._take_up(state), state["ledger"]
            return
        key = self.ranks.send_key(found[0] if found else None) if kept else None
        finished = state["ended"] is not None or state["step"] >= state["plan"]["steps"]
        if key is not None:
            changed = self._compared(path, state, changed, key)
        elif not finished:
            changed.append("the key, which is gone")
        if changed:
            self._fork(path, state, changed, charged, key)
            return
        if key is not None:
            key.claim(self, trusted=True)
            self._use(key)
            self.state.key_file = state["key_file"]
        self.restore(state)
        self.state.begun, self.state.ledger_entry = True, state["ledger"]
        self.charge = self._take_up(state)
        if finished:  # killed after the last step: end what was left open
            ended = state["ended"]
            self.state.ended = (ended[0], ended[1]) if ended is not None else ("the plan was used up", True)
            self._close()

    def _examine(
        self, path: Path, given: Key | None, found: list[Key]
    ) -> tuple[dict[str, Any], list[str], acc.Mechanism | None, bool]:
        """On rank 0: the state, what changed in words, what was charged, and whether its key, put into ``found``, is
        there."""
        state, body, tag = checkpoints.read(sharded.manifest(path))
        charged = checkpoints.check_entry(path, state, self.ledger, self.dataset)
        changed = checkpoints.differences(state, self.plan, self._configuration)
        # Other programs round otherwise: their sums must not share the noise of steps that were made before.
        if self.settings.execution.compile != "auto" and state.get("program", self.state.program) != self.state.program:
            changed.append("how the step is computed (compile)")
        if state["key_file"] is not None:
            Key.sweep(state["key_file"])
        if _nothing_drawn(state, changed):
            self._discard_key(state)
            return state, changed, charged, False
        key = given or self._saved_key(state)
        if key is not None and key.fingerprint() != state["key"]:
            raise CheckpointError(f"{path} belongs to another key")
        if key is not None:
            checkpoints.check_tag(path, body, tag, key)
            found.append(key)
        return state, changed, charged, key is not None

    def _saved_key(self, state: dict[str, Any]) -> Key | None:
        """The key of the run where it was left, or where it was moved to with the run."""
        left, moved_to = state["key_file"], self.state.key_file
        if left is None:
            return None
        if Path(left).exists():
            return Key.load(left)
        if moved_to and Path(moved_to).exists():
            moved = Key.load(moved_to)
            if moved.fingerprint() == state["key"]:
                state["key_file"] = str(moved_to)
                return moved
        return None

    def _compared(self, path: Path, state: dict[str, Any], changed: list[str], key: Key) -> list[str]:
        """What is not as it was, with the data and the code, which are compared by the key."""
        if "folder" in state:
            sharded.verify(path, state, key, self.ranks)
        if self.ranks.any(self._name_of_data(key) != state["data"]):
            changed = [*changed, "the data"]
        told = identity.differences(state.get("identity"), self._computes(key))
        if self.ranks.any(bool(told)):
            # The same in more words; names alone are compared where nothing was drawn yet.
            changed = [name for name in changed if name not in self._parts]
            changed += told or ["what another rank computes"]
        return changed

    def _take_up(self, state: dict[str, Any]) -> Charge | None:
        """The charge of the run, in the hands of the rank that made it."""
        charges: list[Charge | None] = [None]

        def take() -> None:
            charges[0] = checkpoints.take_up(state, self.ledger)

        self.ranks.first(take)
        return charges[0]

    def _discard_key(self, state: dict[str, Any]) -> None:
        """Of an attempt that was killed before it drew anything: its key is replaced, unless it was given."""
        left = Path(state["key_file"]) if state["key_file"] is not None else None
        if left is not None and left.exists():
            key = Key.load(left)
            if key.fingerprint() != state["key"]:
                raise CheckpointError(f"{left} holds the key of another run: choose another key_file")
            key.destroy()

    def _fork(
        self, path: Path, state: dict[str, Any], changed: list[str], charged: acc.Mechanism | None, key: Key | None
    ) -> None:
        """Continue from the weights of another run, with a new key and a new charge."""
        what = f"{path} cannot be resumed: {', '.join(changed)} changed"
        if charged is None:
            raise CheckpointError(
                f"{what}. To continue from its weights is a fork, a new run on weights that already have a price, and "
                "needs a ledger. Undo the change, give ledger= and dataset=, or remove the checkpoint and start again. "
                "See: tacit explain resume-differs",
                changed,
            )
        if not self._own_key:
            raise CheckpointError(f"{what}. A fork needs a new key: leave key= out", changed)
        if charged.unit != self.plan.unit or self.plan.adjacency not in charged.adjacencies():
            raise CheckpointError(
                f"{what}. The two runs have different units or adjacencies, and do not compose: remove the checkpoint "
                "and start again. See: tacit explain resume-differs",
                changed,
            )
        told = (
            f"{what}. This run is a fork: it continues from the weights with a new key and a new charge, and its "
            "privacy is stated for both runs together. See: tacit explain resume-differs"
        )
        warnings.warn(ForkWarning(told, changed), stacklevel=6)
        earlier = charged if state["plan"]["earlier"] is None else charged + acc.from_dict(state["plan"]["earlier"])
        self.plan = dataclasses.replace(self.plan, earlier=earlier)
        if "folder" in state:
            tensors, _ = sharded.flat(self.model, self.optimizer, None)
            weights = {n: t for n, t in tensors.items() if n.startswith("model/")}
            read = sharded.read(path, state, weights, {}, self.ranks, weights_only=True)
            self.model.load_state_dict({n.partition("/")[2]: t for n, t in read.items()} | state["plain"]["extra"])
        else:
            self.model.load_state_dict(state["model"])
        if self._own_key:
            self._retired = key  # until the new charge is granted, the other run can still be resumed

    def restore(self, state: dict[str, Any]) -> None:
        """Set model, optimizer, schedule and the run's state to what a checkpoint holds.

        Args:
            state: The content of the checkpoint.
        """
        if "folder" in state:
            assert self.checkpoint is not None
            tensors, _ = sharded.flat(self.model, self.optimizer, self.state.average)
            everything: dict[str, Tensor] = dict(self.model.named_parameters())
            read = sharded.read(self.checkpoint, state, tensors, everything, self.ranks)
            average = sharded.restore(read, state["plain"], self.model, self.optimizer)
        else:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            average = state["average"]
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        if self.state.average is not None:
            self.state.average = {n: t.to(self.device) for n, t in average.items()}
        self.state.step, self.state.clip_norm = state["step"], state["clip_norm"]
        self.state.program = state.get("program", self.state.program)
        if state["plan"]["earlier"] is not None:
            self.plan = dataclasses.replace(self.plan, earlier=acc.from_dict(state["plan"]["earlier"]))
        if state.get("ranks", 1) == self.ranks.world:  # a checkpoint of one process alone need not say so
            self.state.physical_batch = state["physical_batch"]
            random = state["random"]
            mine = random[self.ranks.rank] if isinstance(random, list) else random
            set_random_state(mine, self.device)

    # -- which program -----------------------------------------------------------------------------------------------

    @property
    def program(self) -> Program:
        """What runs the next step: ``"uncompiled"``, ``"traced"`` or ``"compiled"``."""
        return self.state.program

    def _set_pace(self) -> None:
        """Run the program that a checkpoint names, or begin; and choose others later, if nobody said which."""
        execution, target = self.settings.execution, self.settings.target
        asked = execution.compile != "auto"
        self.compiled = compiled_by(COMPILE[self.program], asked=asked)
        possible = self.shards is None and target.mechanism == "gaussian" and execution.method == "operations"
        if not asked and possible and self._own_key:
            self._pace = Pace(gpu=self.device.type == "cuda", program=self.program)
            # Steps behind the checkpoint may have been made before, with this program: they are made so again. There
            # are none from the next checkpoint on, or it would have been there.
            every = self.settings.persistence.checkpoint_every
            self._fixed_until = (self.state.step // every + 1) * every if self.state.begun else 0

    def _changes_program(self, pace: Pace, seconds: float) -> bool:
        """Whether the next step has another program, because that pays. All ranks do what rank 0 finds out.

        Guarantee: the checkpoint that is then written comes before the first step of the new program, so a resumed run
        repeats each step with the program that made it. Two programs would give two sums, and the difference of the two
        releases, which have one noise, would have none.
        """
        pace.took(seconds)
        step = self.state.step
        if step < self._fixed_until:
            return False

        def choose() -> tuple[Program, bool]:
            uses = uses_to_trace(Engine.of(self.model))
            # what can only run as it is has nothing to gain: as if it were over
            left = 0 if uses is None else self.plan.steps - step
            return pace.choose(left, uses or 0), pace.settled

        program, settled = self.ranks.first(choose) if self.ranks.active else choose()
        if settled:
            self._pace = None
        if program == self.state.program:
            return False
        self.state.program, self.compiled = program, compiled_by(COMPILE[program], asked=False)
        return True

    # -- ending ------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """End the run: save it, confirm its charge, destroy its key."""
        self.check_process()
        if self.checkpoint is not None:
            self.save()
        self._close()

    def _close(self) -> None:
        self.ranks.first(self._confirm)
        keys, self.keys = self.keys, None
        if keys is not None:
            self._background.stop()
            for derived in (keys.noise, keys.sampler, keys.members):
                derived.destroy()
            if self._own_key:
                keys.root.destroy()

    def _confirm(self) -> None:
        if self.charge is not None and not self.charge.confirmed:
            self.charge.confirm()


def _nothing_drawn(state: dict[str, Any], changed: list[str]) -> bool:
    """Whether the attempt that wrote this was killed before it drew anything."""
    return bool(state["prepared"] and not (changed and state["plan"]["earlier"] is not None))
