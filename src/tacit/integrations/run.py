"""What does a private run inside somebody else's trainer need? Noise, a key, the loop, and a way to resume.

The trainer decides when to step, save and resume. :class:`PrivateRun` holds the noise for the planned steps, the secret
key (in a file of its own until the end), the :class:`~tacit.sgd.hooked.loop.Loop` that clips and releases, and a state
of plain values for the trainer's checkpoint. Draws and noise are functions of key and step, so a run that was killed
and resumed makes the releases it would have made. If anything that decides the gradients has changed, or the key is
gone, the resumed run gets a new key, and the plan of the first run stays claimed.

With a ledger all planned steps are charged when the run begins. A run resumed with its key continues under that charge;
with a new key the remaining steps are charged anew.

The plan is claimed from the first step on, because a trainer may stop for any reason, and most reasons are results. A
trainer that trains again makes another run, and all runs of one object are claimed together.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from tacit import accounting as acc
from tacit.accounting.base import unit_of
from tacit.accounting.correlated import INDEPENDENT, Correlation
from tacit.accounting.errors import PrivacyWarning
from tacit.ledger import Ledger, LedgerError, OperatorView
from tacit.noise.keys import Key
from tacit.opacus.accountants import IAccountant, create_accountant
from tacit.sgd.correlation import Banded
from tacit.sgd.hooked.draws import PrivateBatches, Spent
from tacit.sgd.hooked.loop import Loop
from tacit.sgd.hooked.owners import GIVE, Owners
from tacit.sgd.hooked.prepaid import Prepaid, check_charged, check_terms, planned, recognised
from tacit.sgd.release import EarlierNoise
from tacit.sgd.training import checkpoint, identity
from tacit.sgd.training.checkpoint import CheckpointError, key_folder
from tacit.sgd.training.config import PrivacyTarget
from tacit.sgd.training.plan import Plan, correlated, generator_of, make_plan
from tacit.sgd.training.sampling import CyclicPoisson, Poisson

#: Records that are put together twice, to see whether that is done at random.
LOOKED_AT = 32


def _digest(value: Any) -> str:
    """A short name of a record, of all of it: the text of a long tensor shows its ends alone."""
    found = hashlib.blake2b(digest_size=16)

    def add(part: Any) -> None:
        found.update(type(part).__name__.encode())
        if isinstance(part, Tensor):
            found.update(f"{part.dtype} {tuple(part.shape)}".encode())
            plain = part.detach().cpu()
            if plain.layout is not torch.strided:
                found.update(repr(plain).encode())
            else:
                found.update(plain.contiguous().reshape(-1).view(torch.uint8).numpy().data)
        elif isinstance(part, np.ndarray) and part.dtype != object:
            found.update(f"{part.dtype} {part.shape}".encode() + np.ascontiguousarray(part).tobytes())
        elif hasattr(part, "__array_interface__") and not isinstance(part, np.generic | np.ndarray):
            add(np.asarray(part))  # a picture, whose text holds its place in memory
        elif isinstance(part, Mapping):
            for key in part:
                found.update(repr(key).encode())
                add(part[key])
        elif isinstance(part, list | tuple):
            found.update(str(len(part)).encode())
            for item in part:
                add(item)
        else:
            found.update(repr(part).encode())

    add(value)
    return found.hexdigest()


def _contents(dataset: Any) -> str:
    """A short name of all records where they lie in memory, else of three of them."""
    whole = dataset if isinstance(dataset, list | tuple) else getattr(dataset, "tensors", None)
    if whole is None:
        whole = [dataset[k] for k in (0, len(dataset) // 2, len(dataset) - 1)]
    return _digest(whole)


def _at_random(dataset: Any, collate: Any) -> bool:
    """Whether the same records come out different when they are read and put together again."""
    chosen = range(min(len(dataset), LOOKED_AT))
    seen = []
    for _ in range(2):
        records = [dataset[k] for k in chosen]
        seen.append(_digest([_digest(records), records if collate is None else collate(records)]))
    return seen[0] != seen[1]


class PrivateRun:
    """The private runs inside a trainer; give ``noise_multiplier`` or ``target_epsilon``.

    ``ledger`` and ``dataset`` (its name there) say where all planned steps are charged when a run begins. ``unit`` is
    a record; with ``groups``, one id for each record or the name of a column of the data set, it is their owner, of
    whom a batch has one record at most.

    Guarantee: everything computed from the weights of all runs together is (``privacy.claim``, δ)-DP for
    zeroing out one record, whatever made a run stop. Each release is that of :class:`~tacit.sgd.hooked.loop.Loop`.
    """

    def __init__(
        self,
        *,
        noise_multiplier: float | None,
        target_epsilon: float | None,
        target_delta: float,
        max_grad_norm: float,
        key_file: str | os.PathLike[str] | None = None,
        ledger: Ledger | None = None,
        dataset: str | None = None,
        purpose: str = "",
        unit: str | None = None,
        groups: Any = None,
        noise: Banded | None = None,
    ) -> None:
        if noise is not None and not isinstance(noise, Banded):
            raise TypeError(f"noise must be a tacit.sgd.Banded(), for batches that are sampled, not {noise!r}")
        self.noise = noise
        #: How the noise of steps hangs together, from the beginning of a run.
        self.correlation = INDEPENDENT
        self.unit, self.groups = unit_of(unit, owned=groups is not None, ids=GIVE), groups
        check_terms(ledger, dataset, Poisson.adjacency, self.unit)
        self.ledger, self.dataset, self.purpose = ledger, dataset, purpose
        #: The fingerprint of the records under the ledger's secret.
        self._read: str | None = None
        self.paid: Prepaid | None = None
        if (noise_multiplier is None) == (target_epsilon is None):
            raise ValueError("give noise_multiplier= or target_epsilon=, one of the two")
        if not 0 < target_delta < 1:
            raise ValueError(f"target_delta must lie strictly between 0 and 1, not {target_delta!r}")
        self.noise_multiplier, self.target_epsilon, self.delta = noise_multiplier, target_epsilon, target_delta
        self.max_grad_norm = float(max_grad_norm)
        self.key_file = Path(key_file) if key_file is not None else None
        self.batches: PrivateBatches | None = None
        self.loop: Loop | None = None
        self.key: Key | None = None
        self.saved: dict[str, Any] | None = None
        #: what was released in all runs; a run goes by the name of its key
        self.accountant: IAccountant = create_accountant("prv")
        self._planned: Spent | None = None
        self._stopped: tuple[str, bool] | None = None
        self._ended = self._checkpointed = False
        self._key_place: tuple[str, str | None] = ("", None)
        self._handle: Any = None
        self._stamp = ""
        self._parts: identity.Parts = {}
        self._marks: dict[str, Any] = {}
        self._same_noise = False

    # -- beginning --------------------------------------------------------------------------------------------------

    def draw_from(
        self, dataset: Any, expected: int, *, parts: int, share: tuple[int, int] = (0, 1), named: Any = None
    ) -> PrivateBatches:
        """The batches of the run, of ``expected`` units; ``named`` is the data set whose column ``groups`` may name."""
        owners = Owners.of(self.groups, self.unit, dataset if named is None else named)
        sampler = Poisson(owners.size, min(expected, owners.size))
        self.batches = PrivateBatches(sampler, None, owners.size, parts=parts, share=share, owners=owners)
        return self.batches

    def stamp(
        self,
        model: nn.Module,
        dataset: Any,
        collate: Any = None,
        *,
        loss: Any = None,
        optimizer: Optimizer | None = None,
        schedule: Any = None,
        **told: Any,
    ) -> str:
        """A short name of all that decides the gradients: with any of it changed, old noise must not be used again.

        Records that are read or put together at random (augmentation, masked tokens) are others in a resumed run, so
        the stamp of such data fits no other run. Nor does that of code that cannot be named
        (:mod:`tacit.sgd.training.identity`).
        """
        assert self.batches is not None
        if self.batches.share[0] == 0:
            self._read = recognised(self.ledger, self.dataset, dataset)
        inner = getattr(collate, "collate", collate)
        code = inner if isinstance(inner, FunctionType) else type(inner)
        others = {"the collate function": code, "the data set": type(dataset)}
        self._parts = identity.parts_of(model, loss, optimizer, schedule, moved=True, **others)
        unnamed = any(name is None for _, name in self._parts.values())
        with torch.random.fork_rng(devices=[]):
            contents, at_random = _contents(dataset), _at_random(dataset, collate)
        whole = {
            **told,
            "sampler": self.batches.sampler.to_dict(),
            "parts": self.batches.parts,
            "clip": self.max_grad_norm,
            "noise": self.noise_multiplier,
            **({} if self.noise is None else {"correlated": dataclasses.asdict(self.noise)}),
            "parameters": [[n, list(p.shape)] for n, p in model.named_parameters() if p.requires_grad],
            "data": [getattr(dataset, "_fingerprint", None), contents],
            **({"owners": owned} if (owned := self.batches.owners and self.batches.owners.digest) else {}),
            "code": {part: name.hex() for part, (_, name) in self._parts.items() if name is not None},
            "random": os.urandom(16).hex() if at_random or unnamed else "",
        }
        return hashlib.blake2b(json.dumps(whole, sort_keys=True, default=str).encode(), digest_size=16).hexdigest()

    def take_key(self, stamp: str, secret: bytes | None = None) -> None:
        """The key of the run that is resumed, or a new one; ``secret`` is one that several processes share."""
        assert self.batches is not None
        self._stamp = stamp
        key = None
        if secret is not None:
            key = Key(secret)
        elif self.saved is not None:
            key = self._old_key(self.saved)
        self._same_noise = key is not None
        if key is None:
            key = Key.generate()
            self._keep(key)
        self.key = key
        self._key_place = (key.fingerprint(), key.path)
        self._marks = self._marked(key)
        self.batches.key = key.derive("sampler " + stamp)

    def _keep(self, key: Key) -> None:
        """Write a new key where it was asked for, or beside the one of an earlier life, which may be resumed yet."""
        place = self.key_file or key_folder() / f"run-{key.fingerprint()}.key"
        if place.exists() and self.saved is not None:
            place = place.with_name(f"{place.stem}-{key.fingerprint()}{place.suffix}")
        try:
            key.save(place)
        except FileExistsError:
            raise CheckpointError(
                f"{place} holds the key of a run that has not ended: resume that run, or name another key_file="
            ) from None

    def _old_key(self, saved: Mapping[str, Any]) -> Key | None:
        place = Path(saved["key_file"])
        key = Key.load(place) if place.exists() else None
        why = ""
        if key is None:
            why = f"the key of the saved run is no longer at {place}"
        elif key.fingerprint() != saved["key"]:
            raise CheckpointError(f"{place} is the key of another run")
        elif saved["stamp"] != (now := self._marked(key))["stamp"]:
            parts = identity.differences(saved.get("computes"), now["computes"])
            changed = ", ".join(parts) or "data, batch size, noise, length or settings"
            why = f"this is not the run that was saved: {changed} changed, or records are read at random"
        if why:
            warnings.warn(
                f"{why}. Training continues with a new key. The first run may have continued after the checkpoint, so "
                "its plan stays claimed, besides the steps that are made now",
                PrivacyWarning,
                stacklevel=2,
            )
            return None
        return key

    def _marked(self, key: Key) -> dict[str, Any]:
        """Stamp and code as a checkpoint keeps them: keyed, so that no guess of the records can be tried on them."""
        stamp = key.stream("stamp", 0, self._stamp).tobytes().hex()
        return {"stamp": stamp, "computes": identity.keyed(self._parts, checkpoint.secret(key, "identity"))}

    def begin(
        self, model: nn.Module, optimizer: Optimizer, steps: int, *, schedule: Any = None, **options: Any
    ) -> Loop:
        """Choose the noise for ``steps`` steps, and stand at the model's border."""
        assert self.batches is not None
        assert self.key is not None
        self._correlate(int(steps), optimizer, schedule)
        elements = sum(p.numel() for p in model.parameters() if p.requires_grad)
        name = self._key_place[0]
        if self._planned is not None and self._planned.name != name and not self._given_up:
            self.accountant.follow(self._planned)  # an earlier run of this object, which claims its plan
        self._planned, self._stopped, self._ended, self._checkpointed = None, None, False, False
        try:
            plan = self._plan(int(steps), elements)
            loop = Loop(
                model,
                optimizer,
                self.batches,
                noise_multiplier=plan.noise[0],
                clip_norm=self.max_grad_norm,
                key=self.key.derive(self._stamp),
                earlier=EarlierNoise.of(self.correlation, plan.steps),
                **options,
            )
            try:
                loop.spent.name = name
                self._go_on(loop)
                planned = self._steps_of_this_key(loop, plan)
                self._say_if_above_target(planned)
                self._pay(plan)
            except BaseException:
                loop.close()
                raise
        except BaseException:
            if not self._same_noise:
                self.key.destroy()  # nothing was made with it
            raise
        self.loop, self._planned = loop, planned
        self.accountant.follow(loop.spent)
        loop.paid = self.paid
        self._handle = optimizer.register_step_pre_hook(self._before)
        return loop

    def _correlate(self, steps: int, optimizer: Optimizer, schedule: Any) -> None:
        """Who takes turns, and which noise is taken back: as in the saved run, or chosen by public numbers."""
        assert self.batches is not None
        self.correlation = INDEPENDENT
        if self.noise is None:
            return
        sampler = self.batches.sampler
        target = PrivacyTarget(epsilon=self.target_epsilon, noise_multiplier=self.noise_multiplier, delta=self.delta)
        if self.saved is not None and self.saved.get("correlation") is not None:
            found = self.saved["correlation"]
            self.correlation = Correlation(tuple(found["coefficients"]), bool(found["inverse"]))
            if found["groups"] > 1:
                sampler = CyclicPoisson(sampler.size, sampler.batch_size, int(found["groups"]))
        else:
            chosen = correlated(self.noise, sampler, steps, sampler.adjacency, target, optimizer, schedule)
            sampler, self.correlation = chosen
        self.batches.sampler = sampler

    def _passes(self, begin: int, end: int) -> range:
        """The rounds, or passes, that these steps are part of."""
        assert self.batches is not None
        each = self.batches.sampler.pass_length
        return range(begin // each, -(-end // each) if end > begin else begin // each)

    def _go_on(self, loop: Loop) -> None:
        """Count on from the checkpoint, where there is one."""
        assert self.batches is not None
        if self.saved is None:
            return
        self.accountant.load_state_dict(self.saved["accountant"])
        loop.steps = self.batches.next = int(self.saved["steps"])
        if self._same_noise and self.saved["steps_with_key"]:
            times = int(self.saved["steps_with_key"])
            loop.spent.add(loop.noise_multiplier, times=times, passes=self._passes(loop.steps - times, loop.steps))

    def _steps_of_this_key(self, loop: Loop, plan: Plan) -> Spent:
        """All steps that are planned with this key; those that were made with another are counted as they were."""
        found = Spent(plan.sampler, loop.spent.elements, plan.unit)
        found.name = loop.spent.name
        begin = loop.steps - len(loop.spent)
        if plan.steps > begin:
            passes = self._passes(begin, plan.steps)
            found.add(loop.noise_multiplier, times=plan.steps - begin, passes=passes)
        return found

    def _say_if_above_target(self, planned: Spent) -> None:
        if self.target_epsilon is None or not len(self.accountant):
            return
        total = self._claimed(planned).get_epsilon(self.delta)
        if total > self.target_epsilon * (1 + 1e-6):
            warnings.warn(
                f"privacy was spent already through this object: with the steps planned now ε will be "
                f"{total:.4g}, above target_epsilon={self.target_epsilon:g}, which is for one run",
                PrivacyWarning,
                stacklevel=4,
            )

    def _plan(self, steps: int, elements: int) -> Plan:
        """All ``steps`` steps, with the noise that was given, that the saved run had, or that the target asks for."""
        assert self.batches is not None
        sampler, noise = self.batches.sampler, self.noise_multiplier
        if noise is None and self.saved is not None:
            noise = float(self.saved["noise_multiplier"])
        if noise is not None:
            # Without a ledger nobody asks for the price of the plan.
            counted = elements if self.ledger is not None else 0
            return planned(sampler, steps, float(noise), self.delta, counted, self.unit, self.correlation)
        return make_plan(
            sampler,
            steps=steps,
            epsilon=self.target_epsilon,
            noise_multiplier=None,
            clip_norm=1.0,
            delta=self.delta,
            adjacency=sampler.adjacency,
            elements=elements,
            unit=self.unit,
            correlation=self.correlation,
        )

    def _pay(self, plan: Plan) -> None:
        """Charge the steps that are to come, in the first process; where that is refused, all of them stop."""
        assert self.batches is not None
        self.paid = None
        if self.ledger is None or self.dataset is None:
            if self.saved is not None and self.saved.get("ledger"):
                check_charged(self.saved["ledger"], None, None)
            return
        rank, world = self.batches.share
        refused: list[Exception | None] = [None]
        if rank == 0:
            try:
                self.paid = self._charged(self.ledger, self.dataset, plan)
            except (LedgerError, CheckpointError) as error:
                refused = [error]
        if world > 1:
            dist.broadcast_object_list(refused, 0)
        if refused[0] is not None:
            raise refused[0]

    def _charged(self, ledger: Ledger, dataset: str, plan: Plan) -> Prepaid:
        done = 0
        if self.saved is not None:
            entry = check_charged(self.saved.get("ledger"), ledger, dataset)
            if self._same_noise:
                paid = Prepaid(ledger, dataset, plan, purpose=self.purpose, data=self._read)
                paid.take_up(entry)
                return paid
            # Other noise than what was paid for: the rest of that charge may have been used after the checkpoint.
            done = int(self.saved["steps"])
            if done >= plan.steps:
                paid = Prepaid(ledger, dataset, plan)
                paid.adopt({**entry, "left": 0})
                return paid
        rest = plan
        if done:  # a round that was begun is begun again, for other noise
            each = plan.sampler.pass_length if isinstance(plan.sampler, CyclicPoisson) else 1
            left = plan.steps - done // each * each
            rest = planned(plan.sampler, left, plan.noise[0], plan.delta, plan.elements, plan.unit, plan.correlation)
        paid = Prepaid(ledger, dataset, rest, purpose=self.purpose, data=self._read)
        paid.begin()
        return paid

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        value = closure() if closure is not None else None
        assert self.loop is not None
        if not self.loop.finished():
            raise RuntimeError(
                "the optimizer was stepped before all pieces of the batch were seen: step once, after the last piece. "
                "See: tacit explain private-steps"
            )
        self.loop.release()
        return ((optimizer, lambda: value), {}) if closure is not None else None

    # -- saving and ending ------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds: never the key, only where it lies."""
        if self.loop is None:
            return dict(self.saved or {})
        self._checkpointed = True
        return {
            "steps": self.loop.steps,
            "steps_with_key": len(self.loop.spent),
            "accountant": self._claimed(self._planned).state_dict(),
            "noise_multiplier": self.loop.noise_multiplier,
            "correlation": self._hangs_together(),
            "key": self._key_place[0],
            "key_file": self._key_place[1],
            **self._marks,
            "ledger": self.paid.entry() if self.paid is not None else None,
        }

    def _hangs_together(self) -> dict[str, Any] | None:
        """How the noise hangs together, for a checkpoint: the schedule that it was chosen for may have moved on."""
        assert self.batches is not None
        if self.noise is None:
            return None
        return {**dataclasses.asdict(self.correlation), "groups": getattr(self.batches.sampler, "groups", 1)}

    def resume(self, state: Mapping[str, Any] | None, steps: int) -> None:
        """Take over a checkpoint's state, after ``steps`` steps; without one, that of the run that just ended."""
        if steps and not state and self.loop is not None and self.loop.steps == steps:
            state = self.state()
        if steps and not (state and "accountant" in state):
            raise CheckpointError("this checkpoint was not written by a private run, so what was spent is unknown")
        self.saved = dict(state) if steps and state else None
        if self.saved is not None and self.saved["steps"] != steps:
            raise CheckpointError(f"the private state in this checkpoint is not that of step {steps}: use another one")

    def leave(self) -> None:
        """Leave model and optimizer alone; the key stays for a resumed run."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        if self.loop is not None:
            self.loop.close()

    def interrupted(self, *, to_be_saved: bool = False) -> None:
        """The run broke off: key and charge wait for it to be resumed, where a checkpoint holds it, and else end."""
        self.leave()
        if self._checkpointed or self._same_noise or to_be_saved or self.key is None or self.key.destroyed:
            return
        self._close()

    def end(self) -> None:
        """The trainer has ended the run: nobody needs the key any more, and what was paid for is released.

        Where steps are left the plan stays claimed, unless :meth:`stop` declares that nobody looked at results.
        """
        self.leave()
        if self.loop is None or self._ended:
            return
        self._ended = True
        if self._unfinished and self._stopped is None:
            assert self._planned is not None
            warnings.warn(
                f"training ended after {len(self.loop.spent):,} of {len(self._planned):,} planned steps. The ε of the "
                "whole plan is claimed, because a stop decided by results reveals something about them. If results had "
                "no part in it, say so: stop(reason, looked_at_results=False)",
                PrivacyWarning,
                stacklevel=3,
            )
        self._close()

    def _close(self) -> None:
        if self.paid is not None and self.loop is not None and len(self.loop.spent):
            self.paid.confirm()
        if self.key is not None:
            self.key.destroy()

    @property
    def _unfinished(self) -> bool:
        return self.loop is not None and self._planned is not None and len(self.loop.spent) < len(self._planned)

    @property
    def _given_up(self) -> bool:
        return self._stopped is not None and not self._stopped[1]

    def stop(self, reason: str, *, looked_at_results: bool = True) -> None:
        """Say why a run ended before its plan.

        The planned ε stays claimed unless results had no part in the decision (a time limit, a machine that was
        needed). The charge in a ledger stays either way.

        Args:
            reason: A public note, stated with the guarantee.
            looked_at_results: Whether results had a part in the decision.

        Raises:
            RuntimeError: If the run has not begun.
        """
        if self.loop is None:
            raise RuntimeError("the run has not begun: call train() or fit() first")
        self._stopped = (str(reason), bool(looked_at_results))

    # -- what was spent ---------------------------------------------------------------------------------------------

    @property
    def basis(self) -> str:
        """What :attr:`privacy` is the price of, in words."""
        if not self._unfinished:
            return "as planned"
        if self._stopped is None:
            return "the plan is claimed"
        reason, looked = self._stopped
        return f"stopped: {reason}; " + ("the plan is claimed" if looked else "without looking at results")

    def _claimed(self, planned: Spent | None) -> IAccountant:
        """Everything that was released, and the rest of the plan unless that was given up without a look."""
        whole = create_accountant("prv")
        whole.load_state_dict(self.accountant.state_dict())
        if planned is not None and not self._given_up:
            whole.follow(planned)
        return whole

    @property
    def privacy(self) -> acc.Privacy:
        """The guarantee of all runs of this object; plans are claimed, unless :meth:`stop` says why."""
        return self.priced(self.delta)

    def priced(self, delta: float) -> acc.Privacy:
        """:attr:`privacy` at another δ."""
        if self.loop is None:
            raise RuntimeError("the run has not begun: call train() or fit() first")
        whole = self._claimed(self._planned).privacy(delta)
        assert self.batches is not None
        return whole.with_details(
            steps_planned=whole.details["steps_executed"],
            steps_executed=len(self.accountant),
            basis=self.basis,
            sampler=self.batches.sampler.words,
            max_rows=self.batches.max_rows,
            noise=generator_of("gaussian", self.correlation),
        )

    def diagnostics(self) -> OperatorView:
        """Clipped fraction and norms of the last step: for the operator, not covered by the guarantee."""
        return self.loop.diagnostics() if self.loop is not None else OperatorView(step=0, records=0)
