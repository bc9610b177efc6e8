"""What does a private run need that lives inside somebody else's trainer? Noise, key, loop, and a way to go on.

A trainer decides when to step, save and resume. :class:`Run` is what it carries: the noise for the steps that are
planned, the secret key in a file of its own until the end, the :class:`~tacit.sgd.loop.Loop` that clips and releases,
and a state of plain values for the trainer's checkpoint. Draws and noise are functions of (key, step), so a run that
was killed and resumed makes the releases it would have made. Where anything that decides the gradients has changed, or
the key is gone, the resumed run has a new key.

With a ledger all planned steps are charged when the run begins. Resumed with its key it goes on under that charge; with
a new key the steps that are left are charged anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from tacit import accounting as acc
from tacit.accounting.errors import PrivacyWarning
from tacit.ledger import Ledger, LedgerError, OperatorView
from tacit.noise.keys import Key
from tacit.sgd.checkpoint import CheckpointError, key_folder
from tacit.sgd.draws import PrivateBatches
from tacit.sgd.loop import Loop
from tacit.sgd.plan import Plan, make_plan
from tacit.sgd.prepaid import Prepaid, check_charged, check_terms, planned
from tacit.sgd.sampling import Poisson

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


class Run:
    """One private run inside a trainer; give ``noise_multiplier`` or ``target_epsilon``.

    ``ledger`` and ``dataset`` (its name there) say where all planned steps are charged when the run begins.
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
    ) -> None:
        check_terms(ledger, dataset, Poisson.adjacency)
        self.ledger, self.dataset, self.purpose = ledger, dataset, purpose
        self.paid: Prepaid | None = None
        if (noise_multiplier is None) == (target_epsilon is None):
            raise ValueError("give noise_multiplier= or target_epsilon=, one of the two: each decides the other")
        if not 0 < target_delta < 1:
            raise ValueError(f"target_delta must lie strictly between 0 and 1, not {target_delta!r}")
        self.noise_multiplier, self.target_epsilon, self.delta = noise_multiplier, target_epsilon, target_delta
        self.max_grad_norm = float(max_grad_norm)
        self.key_file = Path(key_file) if key_file is not None else None
        self.batches: PrivateBatches | None = None
        self.loop: Loop | None = None
        self.key: Key | None = None
        self.saved: dict[str, Any] | None = None
        self._handle: Any = None
        self._stamp = ""
        self._same_noise = False

    # -- beginning --------------------------------------------------------------------------------------------------

    def stamp(self, model: nn.Module, dataset: Any, collate: Any = None, **told: Any) -> str:
        """A short name of all that decides the gradients: with any of it changed, old noise must not be used again.

        Records that are read or put together at random (augmentation, masked tokens) are others in a resumed run, so
        the stamp of such data fits no other run.
        """
        assert self.batches is not None
        with torch.random.fork_rng(devices=[]):
            contents, at_random = _contents(dataset), _at_random(dataset, collate)
        whole = {
            **told,
            "sampler": self.batches.sampler.to_dict(),
            "parts": self.batches.parts,
            "clip": self.max_grad_norm,
            "noise": self.noise_multiplier,
            "parameters": [[n, list(p.shape)] for n, p in model.named_parameters() if p.requires_grad],
            "data": [getattr(dataset, "_fingerprint", None), contents],
            "random": os.urandom(16).hex() if at_random else "",
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
        self.batches._key = key.derive("sampler " + stamp)

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
        why = ""
        if saved["stamp"] != self._stamp:
            changed = "data, batch size, model, loss, noise, length or learning rate"
            why = f"this is not the run that was saved: {changed} changed, or records are read at random"
        elif not place.exists():
            why = f"the key of the saved run is gone from {place}"
        if why:
            warnings.warn(
                f"{why}. It goes on with a new key; steps that the earlier life took after the checkpoint are not "
                "counted, so nothing of them may have been seen by others",
                PrivacyWarning,
                stacklevel=2,
            )
            return None
        key = Key.load(place)
        if key.fingerprint() != saved["key"]:
            raise CheckpointError(f"{place} is the key of another run")
        return key

    def begin(self, model: nn.Module, optimizer: Optimizer, steps: int, **options: Any) -> Loop:
        """Choose the noise for ``steps`` steps, and stand at the model's border."""
        assert self.batches is not None
        assert self.key is not None
        elements = sum(p.numel() for p in model.parameters() if p.requires_grad)
        plan = self._plan(int(steps), elements)
        self._pay(plan)
        key = self.key.derive(self._stamp)
        loop = self.loop = Loop(
            model,
            optimizer,
            self.batches,
            noise_multiplier=plan.noise[0],
            clip_norm=self.max_grad_norm,
            key=key,
            **options,
        )
        loop.paid = self.paid
        if self.saved is not None:
            loop.spent.releases = [(float(a), int(b), int(c)) for a, b, c in self.saved["releases"]]
            loop.steps = self.batches.next = len(loop.spent)
        self._handle = optimizer.register_step_pre_hook(self._before)
        return loop

    def _plan(self, steps: int, elements: int) -> Plan:
        """All ``steps`` steps, with the noise that was given, that the saved run had, or that the target asks for."""
        assert self.batches is not None
        sampler, noise = self.batches.sampler, self.noise_multiplier
        if noise is None and self.saved is not None:
            noise = float(self.saved["noise_multiplier"])
        if noise is not None:
            # Without a ledger nobody asks for the price of the plan.
            return planned(sampler, steps, float(noise), self.delta, elements if self.ledger is not None else 0)
        return make_plan(
            sampler,
            steps=steps,
            epsilon=self.target_epsilon,
            noise_multiplier=None,
            clip_norm=1.0,
            delta=self.delta,
            adjacency=sampler.adjacency,
            elements=elements,
        )

    def _pay(self, plan: Plan) -> None:
        """Charge the steps that are to come, in the first process; where that is refused, all of them stop."""
        assert self.batches is not None
        assert self.key is not None
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
                if not self._same_noise:
                    self.key.destroy()  # nothing was made with it
        if world > 1:
            dist.broadcast_object_list(refused, 0)
        if refused[0] is not None:
            raise refused[0]

    def _charged(self, ledger: Ledger, dataset: str, plan: Plan) -> Prepaid:
        done = 0
        if self.saved is not None:
            entry = check_charged(self.saved.get("ledger"), ledger, dataset)
            if self._same_noise:
                paid = Prepaid(ledger, dataset, plan, purpose=self.purpose)
                paid.take_up(entry)
                return paid
            # Other noise than what was paid for: the rest of that charge may have been used after the checkpoint.
            done = sum(int(times) for _, _, times in self.saved["releases"])
            if done >= plan.steps:
                paid = Prepaid(ledger, dataset, plan)
                paid.adopt({**entry, "left": 0})
                return paid
        rest = plan if not done else planned(plan.sampler, plan.steps - done, plan.noise[0], plan.delta, plan.elements)
        paid = Prepaid(ledger, dataset, rest, purpose=self.purpose)
        paid.begin()
        return paid

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        value = closure() if closure is not None else None
        assert self.loop is not None
        if not self.loop.finished():
            raise RuntimeError("the optimizer was stepped before all pieces of the batch were seen")
        self.loop.release()
        return ((optimizer, lambda: value), {}) if closure is not None else None

    # -- saving and ending ------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds: never the key, only where it lies."""
        if self.loop is None or self.key is None or self.key.destroyed:
            return dict(self.saved or {})
        return {
            "releases": [list(r) for r in self.loop.spent.releases],
            "noise_multiplier": self.loop.noise_multiplier,
            "key": self.key.fingerprint(),
            "key_file": self.key._path,
            "stamp": self._stamp,
            "ledger": self.paid.entry() if self.paid is not None else None,
        }

    def resume(self, state: Mapping[str, Any] | None, steps: int) -> None:
        """Take over a checkpoint's state, after ``steps`` steps."""
        if steps and not state:
            raise CheckpointError("this checkpoint was not written by a private run: what was spent on it is not known")
        self.saved = dict(state) if steps and state else None
        if self.saved is not None and sum(times for _, _, times in self.saved["releases"]) != steps:
            raise CheckpointError(f"the checkpoint says {steps} steps were taken, and not as many were charged")

    def leave(self) -> None:
        """Leave model and optimizer alone; the key stays for a resumed run."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        if self.loop is not None:
            self.loop.watch.close()

    def end(self) -> None:
        """The run is complete: nobody needs the key any more."""
        self.leave()
        if self.paid is not None:
            self.paid.confirm()
        if self.key is not None:
            self.key.destroy()

    # -- what was spent ---------------------------------------------------------------------------------------------

    def bound(self, delta: float | None = None) -> acc.Bound:
        """The interval that ε lies in so far."""
        if self.loop is None:
            raise RuntimeError("the run has not begun")
        return self.loop.spent.price(self.delta if delta is None else delta)

    def diagnostics(self) -> OperatorView:
        """Clipped fraction and norms of the last step: for the operator, not covered by the guarantee."""
        return self.loop.diagnostics() if self.loop is not None else OperatorView(step=0, records=0)
