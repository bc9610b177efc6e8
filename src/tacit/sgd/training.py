"""How do I train my model privately, in my own loop? Sampler, clipping, noise, step, and a guarantee of what ran.

    training = tacit.sgd.Training(model, optimizer, loss, data, batch_size=1024, epochs=20, epsilon=3.0, delta=1e-5)
    for batch in training:
        training.step(batch)
    training.privacy

The plan is fixed, priced and charged before the first step; batches and noise are functions of a secret key
and the step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tacit import accounting as acc
from tacit.accounting.errors import PrivacyWarning
from tacit.ledger import Charge, Ledger, OperatorView
from tacit.ledger.fingerprint import fingerprint
from tacit.noise.keys import Key
from tacit.noise.tensor import add_normal_many_, normal
from tacit.sgd import checkpoint as checkpoints
from tacit.sgd import laplace, validation
from tacit.sgd.augment import Augment, repeat, views_of
from tacit.sgd.batches import Loss
from tacit.sgd.bounds import Clipping
from tacit.sgd.checkpoint import CheckpointError
from tacit.sgd.clip import Check, clipped_grad
from tacit.sgd.data import Batch, Physical, Table, records, units_of, weighted
from tacit.sgd.plan import AdaptiveClipping, Plan, Privacy, Schedule, make_plan
from tacit.sgd.sampling import Sampler, make_sampler

#: Most units of a physical batch on a CPU, where larger ones gain nothing.
CPU_BATCH = 2048
#: The noise of the adaptive clip norm's count; an integer cannot be the name of a parameter.
COUNT = 0


class Training:
    """A private training run of ``model``, which stays the same object.

    ``data`` are tensors, arrays, a map-style ``Dataset`` or a :func:`tacit.sgd.table`. ``loss(model, batch)`` gives one
    loss per record, or is a criterion with ``reduction="none"``. Give ``epsilon`` or ``noise_multiplier``, ``epochs``
    or ``steps``. ``size`` is a public number of records (or units) in place of the true one.

    ``unit`` holds one id per record (an array, or the name of a table's column): units are sampled, each gives at most
    ``per_unit`` records a step, whose gradients are averaged and then clipped once. ``unit_name`` is the word for it.

    ``clip_norm`` and ``noise_schedule`` may be functions of the step or lists, fixed in advance. ``adaptive`` lets the
    clip norm follow a quantile. ``mechanism="laplace"`` clips in L1 norm and gives pure ε (small models).
    ``augment`` makes a random view of one example; ``views`` of them are averaged before clipping, at no further cost.
    ``ema`` is the decay of an average of the weights, :attr:`average`. ``compile=True`` compiles the step where it can.

    With ``checkpoint`` the run is saved there every ``checkpoint_every`` steps and resumed where the file exists; the
    key is kept in ``key_file`` (default: the user's state folder) until the end. ``ledger`` and ``dataset`` say where
    the plan is charged before the first step.

    Guarantee: everything that can be computed from the sequence of weights is (ε, δ)-DP as :attr:`privacy` states, for
    the stated adjacency and unit. Each noisy sum has L2 sensitivity ``clip_norm`` for adding or removing one unit, and
    noise of standard deviation noise multiplier times that; it is divided by the expected batch size, a constant.

    >>> x, y = torch.randn(100, 3), torch.randint(2, (100,))
    >>> model = torch.nn.Linear(3, 2)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> training = Training(model, optimizer, torch.nn.CrossEntropyLoss(reduction="none"), (x, y),
    ...                     batch_size=20, epochs=2, epsilon=3.0, delta=1e-5)
    >>> for batch in training:
    ...     training.step(batch)
    >>> training.privacy
    ε in [2.99..., 2.99...] at δ=1e-05, add/remove one record, 10 steps (as planned), Poisson sampling at rate 0.2, ...
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Loss,
        data: Any,
        *,
        batch_size: int,
        epochs: int | None = None,
        steps: int | None = None,
        epsilon: float | None = None,
        noise_multiplier: Schedule | None = None,
        delta: float | None = None,
        clip_norm: Schedule = 1.0,
        clipping: str | Mapping[str, float] = "flat",
        sampler: str | Sampler = "poisson",
        max_batch: int | None = None,
        size: int | None = None,
        adjacency: str | None = None,
        unit: Any = None,
        per_unit: int = 1,
        unit_name: str | None = None,
        noise_schedule: Schedule = 1.0,
        adaptive: AdaptiveClipping | None = None,
        mechanism: str = "gaussian",
        scheduler: Any = None,
        ema: float | None = None,
        physical_batch: int | None = None,
        augment: Augment | None = None,
        views: int = 1,
        ledger: Ledger | None = None,
        dataset: str | None = None,
        purpose: str = "private training",
        key: Key | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: int = 100,
        key_file: str | os.PathLike[str] | None = None,
        check: Check = "first",
        compile: bool = False,
    ) -> None:
        delta = validation.check_target(epsilon, noise_multiplier, delta, mechanism)
        self.model, self.optimizer, self.loss = model, optimizer, loss
        self.parameters = validation.check_parameters(model, optimizer)
        first = next(iter(self.parameters.values()))
        self.device = first.device
        rows = data.records if isinstance(data, Table) else records(data, first.dtype)
        self.records = rows
        rows.check_finite()
        validation.check_labels(model, loss, rows, self.device)
        self.units = units_of(unit, data, len(rows))
        if self.units is None and per_unit != 1:
            raise ValueError("per_unit needs unit=: which records belong together")
        if per_unit < 1:
            raise ValueError(f"per_unit is a positive whole number, not {per_unit!r}")
        count = len(self.units) if self.units is not None else len(rows)
        if isinstance(sampler, str):
            sampler = make_sampler(sampler, count if size is None else size, batch_size, max_batch)
        elif (sampler.batch_size, sampler.size) != (batch_size, count if size is None else size):
            raise ValueError(f"batch_size and size are not those of {sampler}")
        sampler.check(count)
        unit_name = unit_name or ("record" if self.units is None else "person")
        adjacency = validation.check_ledger(ledger, dataset, adjacency, unit_name, size) or sampler.adjacency
        if adaptive is not None:
            if (
                clipping not in ("flat", "automatic")
                or mechanism != "gaussian"
                or not isinstance(clip_norm, int | float)
            ):
                raise ValueError("adaptive clipping starts from one clip norm, with Gaussian noise and flat clipping")
            if adaptive.count_noise == 0:
                adaptive = AdaptiveClipping(adaptive.quantile, adaptive.rate, batch_size / 20)
        if mechanism == "laplace" and clipping != "flat":
            raise ValueError("Laplace noise clips the whole gradient in L1 norm: clipping='flat'")
        self._clipping = clipping
        self.plan: Plan = make_plan(
            sampler,
            steps=validation.check_length(steps, epochs, sampler),
            epsilon=epsilon,
            noise_multiplier=noise_multiplier,
            noise_schedule=noise_schedule,
            clip_norm=clip_norm,
            delta=delta,
            adjacency=adjacency,
            elements=sum(p.numel() for p in self.parameters.values()) + (adaptive is not None),
            adaptive=adaptive,
            unit=unit_name,
            clipping=clipping if isinstance(clipping, str) else json.dumps(dict(clipping), sort_keys=True),
            kind=mechanism,
            records_per_unit=per_unit,
            size_given=size is not None,
        )
        self.clip_norm = self.plan.clip[0]
        self._clip_at(0)  # a mapping of patterns that does not fit the model is refused now
        validation.warn_about(self.plan, count, level=3)
        if ema is not None and not 0 <= ema < 1:
            raise ValueError(f"ema is a decay between 0 and 1, not {ema}")
        if physical_batch is not None and physical_batch < 1:
            raise ValueError(f"physical_batch is a positive whole number, not {physical_batch}")
        if checkpoint_every < 1:
            raise ValueError(f"checkpoint_every is a positive whole number, not {checkpoint_every}")
        self.physical_batch = physical_batch or self.plan.sampler.usual_physical(
            CPU_BATCH if self.device.type == "cpu" else None
        )
        self._halves = physical_batch is None
        self.scheduler, self._ema, self._check, self._compile = scheduler, ema, check, compile
        # One object for the whole run: a compiled step holds for the loss it was made with.
        if views < 1 or (views > 1 and augment is None):
            raise ValueError("views is how many random views augment= makes of each example: a positive whole number")
        self._augment, self._views = augment, views
        self._unit_loss = weighted(loss) if self.units is not None else loss
        self.ledger, self.dataset, self.purpose = ledger, dataset, purpose
        self._average = {n: p.detach().clone() for n, p in self.parameters.items()} if ema is not None else None
        self.steps_executed = 0
        self.charge: Charge | None = None
        self._ended: tuple[str, bool] | None = None
        self._handed: Batch | None = None
        self._broken = False
        self._last: list[tuple[Tensor, Tensor, Tensor]] = []
        self._own_key = key is None
        self._checkpoint = Path(checkpoint) if checkpoint is not None else None
        self._every, self._key_file = checkpoint_every, key_file
        self._key: Key | None = None
        self._begun = False
        self._retired: Key | None = None
        # Now, because schedules change the optimizer as they go.
        self._settings = checkpoints.configuration(model, self.parameters, loss, optimizer, scheduler, ema)
        if augment is not None:
            self._settings["the augmentation"] = [getattr(augment, "__qualname__", type(augment).__name__), views]
        if self._checkpoint is not None and self._checkpoint.exists():
            self._continue(key)
        if self._key is None and self._ended is None:
            self._use(key or Key.generate())
        fresh = not self._begun and self._ended is None and self.charge is None
        if ledger is not None and dataset is not None and fresh:
            ledger.quote(dataset, self.plan.mechanism, delta=self.plan.delta)  # refuse now what would be refused later

    # -- the loop ----------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Batch]:
        """The batches that are left, each of which has to be given to :meth:`step` before the next is drawn."""
        self._handed = None  # who left a loop with a batch in hand gets the same batch again
        while not self.done:
            self._begin()
            assert self._key is not None
            batch = self._handed = self._draw(self.steps_executed)
            yield batch
            if self._handed is batch:
                raise RuntimeError(
                    f"the batch of step {batch.step} was not given to training.step: it cannot be left out, because "
                    "the guarantee counts every step of the plan"
                )

    def __len__(self) -> int:
        return self.plan.steps - self.steps_executed

    @property
    def done(self) -> bool:
        """Whether the plan is used up, or the run was stopped."""
        return self._ended is not None or self.steps_executed >= self.plan.steps

    def step(self, batch: Batch) -> None:
        """Clip, sum, add noise, divide by the expected batch size, and let the optimizer step.

        An empty batch is a step like any other: noise alone.
        """
        if self.done:
            raise RuntimeError(
                f"the plan's {self.plan.steps} steps are used up, or the run was stopped: nothing is left"
            )
        if self._broken:
            raise RuntimeError("an earlier step was interrupted while weights changed: resume from the checkpoint")
        if batch is not self._handed or batch.step != self.steps_executed:
            raise RuntimeError(
                "training.step takes the batch that the loop handed out last; this is another, or was used before"
            )
        clipping = self._clip_at(batch.step)
        sums, inside = self._sums(batch, clipping)
        self._broken = True
        self._release(sums, inside, clipping, batch.step)
        self._handed = None
        self.steps_executed += 1
        self._broken = False
        if self.steps_executed >= self.plan.steps:
            self._finish()
        elif self._checkpoint is not None and self.steps_executed % self._every == 0:
            self.save()

    def stop(self, reason: str, *, looked_at_results: bool = True) -> None:
        """End the run before the plan does.

        Unless it is declared that nobody looked at results to decide (a time limit, a machine that was needed), the run
        goes on claiming its planned ε: a stopping time that depends on what was seen is itself a release. What the
        ledger was charged stays charged.
        """
        if self.done:
            raise RuntimeError("the run has ended already")
        self._ended = (str(reason), bool(looked_at_results))
        self._finish()

    # -- what ran ----------------------------------------------------------------------------------------------------

    @property
    def privacy(self) -> Privacy:
        """The guarantee: that of the plan, or of the executed steps where the stop did not look at results."""
        steps, basis = None, "as planned"
        if self._ended is not None and self.steps_executed < self.plan.steps:
            reason, looked = self._ended
            steps = None if looked else self.steps_executed
            basis = f"stopped: {reason}; " + ("the plan is claimed" if looked else "without looking at results")
        elif self.steps_executed < self.plan.steps:
            basis = "the plan is claimed"
        plan = self.plan
        return Privacy(
            plan.price(steps),
            plan.delta,
            plan.adjacency,
            plan.unit,
            plan.steps,
            self.steps_executed,
            plan.sampler.words,
            basis if plan.earlier is None else f"{basis}; with the run it was forked from",
            "size given in advance" if plan.size_given else f"number of {plan.unit}s treated as public",
            plan.generator,
            plan.records_per_unit,
        )

    @property
    def average(self) -> dict[str, Tensor]:
        """The exponential average of the trainable weights (``ema=``)."""
        if self._average is None:
            raise ValueError("give ema=, as in ema=0.999, to keep an average of the weights")
        return dict(self._average)

    @contextlib.contextmanager
    def averaged(self) -> Iterator[nn.Module]:
        """The model with its average weights, for the length of a ``with`` block."""
        kept = {n: p.detach().clone() for n, p in self.parameters.items()}
        try:
            _copy(self.parameters, self.average)
            yield self.model
        finally:
            _copy(self.parameters, kept)

    def diagnostics(self) -> OperatorView:
        """Loss, clipped fraction and size of the last batch: for the operator, not covered by the guarantee."""
        if not self._last:
            return OperatorView(step=self.steps_executed, records=0)
        losses, norms, mask = (torch.cat([part[i] for part in self._last]) for i in range(3))
        losses, norms = losses[mask], norms[mask]
        bound = self._clip_at(max(self.steps_executed - 1, 0)).sensitivity
        return OperatorView(
            step=self.steps_executed,
            records=len(losses),
            loss=float(losses.mean()),
            median_norm=float(norms.median()),
            clipped_fraction=float((norms > bound).float().mean()),
        )

    # -- one step ----------------------------------------------------------------------------------------------------

    def _draw(self, step: int) -> Batch:
        units = len(self.units) if self.units is not None else len(self.records)
        chosen = self.plan.sampler.draw(self._sampler_key, step, units)
        if self.units is None:
            return Batch(step, chosen, None, self.records, self.device)
        rows, weights = self.units.choose(chosen, self.plan.records_per_unit, self._member_key, step)
        return Batch(step, rows, weights, self.records, self.device)

    def _clip_at(self, step: int) -> Clipping:
        bound = self.clip_norm if self.plan.adaptive else self.plan.clip[step]
        return Clipping.of(self._clipping, bound, list(self.parameters))

    def _sums(self, batch: Batch, clipping: Clipping) -> tuple[dict[str, Tensor], Tensor]:
        """Clipped sums over all physical batches, and the centred count of norms inside the bound."""
        while True:
            random = checkpoints.random_state(self.device) if self._halves else None
            exact = self.plan.kind == "laplace"
            sums: dict[str, Tensor] = {}
            inside = torch.zeros(())
            self._last = []
            try:
                for piece in batch.pieces(self.physical_batch):
                    inside = inside + self._add(piece, sums, clipping)
                for n, p in self.parameters.items():
                    if n not in sums:  # an empty batch
                        sums[n] = torch.zeros_like(p, dtype=torch.float64 if exact else _wide(p))
                return sums, inside
            except torch.OutOfMemoryError:
                if not self._halves or self.physical_batch == 1:
                    raise
            # Out here the error, and with it all that the failed pass held, is gone. The sums begin again with smaller
            # pieces: the same result but for rounding.
            self._last = []
            gc.collect()
            torch.cuda.empty_cache()
            self.physical_batch = (self.physical_batch + 1) // 2
            assert random is not None
            checkpoints.set_random_state(random, self.device)

    def _add(self, piece: Physical, sums: dict[str, Tensor], clipping: Clipping) -> Tensor:
        batch, loss = piece.data, self.loss
        if piece.weights is not None:
            batch, loss = (piece.data, piece.weights), self._unit_loss
        views = self.plan.records_per_unit
        if self._augment is not None:
            data = views_of(piece.data, self._augment, self._views)
            batch = data if piece.weights is None else (data, repeat(piece.weights, self._views))
            views *= self._views
        bound = clipping.sensitivity  # by layer: the whole clip norm, which is divided among the layers anew
        if self.plan.kind == "laplace":
            found, norms, losses = laplace.clipped_l1(self.model, loss, batch, bound, piece.mask, views)
        else:
            result = clipped_grad(
                self.model,
                loss,
                batch,
                bound,
                clipping=self._clipping,  # type: ignore[arg-type]
                mask=piece.mask,
                views=views,
                check=self._check,
                compile=self._compile,
            )
            if result.sensitivity > clipping.sensitivity:
                raise RuntimeError("clipping states a larger sensitivity than the plan: training must not go on")
            found, norms, losses = result.sums, result.norms, result.losses
        if sums:
            torch._foreach_add_(list(sums.values()), [found[name] for name in sums])
        else:
            sums.update(found)
        norms = norms if norms.dim() == 1 else norms.square().sum(1).sqrt()
        self._last.append((losses, norms, piece.mask))
        if self.plan.adaptive is None:
            return torch.zeros(())  # nobody counts
        return (((norms <= bound).float() - 0.5) * piece.mask).sum().cpu()

    def _release(self, sums: dict[str, Tensor], inside: Tensor, clipping: Clipping, step: int) -> None:
        """Noise on the sums, and the step of the optimizer. From here on everything is covered by the guarantee."""
        divisor = self.plan.sampler.divisor
        noise = self.plan.noise_at(step)
        scale = noise * clipping.sensitivity
        if scale > 0:
            if self.plan.kind == "laplace":
                laplace.add_noise_(sums, self._noise_key, step, scale)
            else:
                add_normal_many_(list(sums.values()), self._noise_key, step, list(sums), scale)
        torch._foreach_div_(list(sums.values()), divisor)
        for name, p in self.parameters.items():
            p.grad = sums[name].to(p.dtype)
        if hasattr(self.optimizer, "noise_variance"):
            variance = 2 * (scale / divisor) ** 2 if self.plan.kind == "laplace" else (scale / divisor) ** 2
            self.optimizer.noise_variance = variance
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.scheduler is not None:
            self.scheduler.step()
        if self._average is not None and self._ema is not None:
            with torch.no_grad():
                for name, p in self.parameters.items():
                    self._average[name].lerp_(p.detach(), 1 - self._ema)
        if self.plan.adaptive is not None:
            self._adapt(inside, step, divisor)

    def _adapt(self, inside: Tensor, step: int, divisor: float) -> None:
        """The next clip norm, from the noisy count (sensitivity ½ for adding or removing one unit)."""
        adaptive = self.plan.adaptive
        assert adaptive is not None
        noise = float(normal(self._noise_key, step, COUNT, 1)) * adaptive.count_noise if self.plan.noise[step] else 0.0
        fraction = (float(inside) + noise) / divisor + 0.5
        factor = torch.exp(torch.tensor(-adaptive.rate * (fraction - adaptive.quantile), dtype=torch.float64))
        # Bounds that no data depend on keep the clip norm a usable number.
        self.clip_norm = min(max(self.clip_norm * float(factor), 1e-6 * self.plan.clip[0]), 1e6 * self.plan.clip[0])

    # -- keys, ledger, checkpoints -----------------------------------------------------------------------------------

    def _use(self, key: Key) -> None:
        self._key = key
        self._noise_key, self._sampler_key = key.derive("noise"), key.derive("sampler")
        self._member_key = key.derive("members")

    def _begin(self) -> None:
        """Before the first batch is drawn: charge the ledger, save the key, write the first checkpoint.

        A checkpoint marked as prepared stands before the key is saved: killed there, the next attempt knows that
        nothing was drawn, takes up the charge and makes another key. Killed between the charge and that, it charges
        again: too much is counted, never too little.
        """
        if self._begun:
            return
        assert self._key is not None
        if self.ledger is not None and self.dataset is not None and self.charge is None:
            self.charge = self.ledger.charge(
                self.dataset, self.plan.mechanism, delta=self.plan.delta, purpose=self.purpose
            )
            self._entry = {"dataset": self.dataset, "charge": self.charge.number, "head": self.charge.head}
        if self._retired is not None:
            self._retired.destroy()  # of the run this one forked from, whose checkpoint is overwritten now
        if self._checkpoint is not None and self._own_key:
            self._key_file = self._key_file or checkpoints.key_folder() / f"{self._key.fingerprint()}.key"
            self._write(prepared=True)
            self._key.save(self._key_file)
        self._begun = True
        if self._checkpoint is not None:
            self.save()

    _entry: dict[str, str] | None = None

    def save(self) -> None:
        """Write the checkpoint: the state between two steps, without the key."""
        if self._checkpoint is None:
            raise ValueError("give checkpoint=, a path")
        if self._key is None:
            raise RuntimeError("the run has ended; its last checkpoint is written")
        self._begin()
        self._write()

    def _write(self, prepared: bool = False) -> None:
        assert self._checkpoint is not None
        assert self._key is not None
        state = {
            "prepared": prepared,
            "plan": self.plan.to_dict(),
            "mechanism": self.plan.mechanism.to_dict(),
            "configuration": self._settings,
            "step": self.steps_executed,
            "clip_norm": self.clip_norm,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict() if self.scheduler is not None else None,
            "average": self._average,
            "physical_batch": self.physical_batch,
            "random": checkpoints.random_state(self.device),
            "data": self._data_name(),
            "key": self._key.fingerprint(),
            "key_file": str(self._key_file) if self._key_file is not None else None,
            "ledger": self._entry,
            "ended": list(self._ended) if self._ended is not None else None,
        }
        checkpoints.write(self._checkpoint, state, self._key)

    def _data_name(self) -> str:
        if not hasattr(self, "_fingerprint"):
            assert self._key is not None
            self._fingerprint = self._name_of_data(self._key)
        return self._fingerprint

    def _name_of_data(self, key: Key) -> str:
        secret = checkpoints.secret(key, "data")
        found = self.records.fingerprint(secret)
        return found if self.units is None else fingerprint([found, self.units.order, self.units.starts], secret)

    def _continue(self, key: Key | None) -> None:
        """Resume the run of the checkpoint, or fork from it."""
        path = self._checkpoint
        assert path is not None
        state, body, tag = checkpoints.read(path)
        charged = checkpoints.check_entry(path, state, self.ledger, self.dataset)
        changed = checkpoints.differences(state, self.plan, self._settings)
        if state["key_file"] is not None:
            Key.sweep(state["key_file"])
        if state["prepared"] and not (changed and state["plan"]["earlier"] is not None):
            self._prepare(state, changed)
            return
        finished = state["ended"] is not None or state["step"] >= state["plan"]["steps"]
        if key is None and state["key_file"] is not None and Path(state["key_file"]).exists():
            key = Key.load(state["key_file"])
        if key is not None and key.fingerprint() != state["key"]:
            raise CheckpointError(f"{path} belongs to another key")
        if key is not None:
            checkpoints.check_tag(path, body, tag, key)
            if self._name_of_data(key) != state["data"]:
                changed.append("the data")
        elif not finished:
            changed.append("the key, which is gone")
        if changed:
            self._fork(path, state, changed, charged, key)
            return
        if key is not None:
            self._use(key)
            self._key_file = state["key_file"]
        self._load(state)
        self._begun, self._entry = True, state["ledger"]
        self.charge = checkpoints.take_up(state, self.ledger)
        if finished:  # killed after the last step: end what was left open
            self._ended = tuple(state["ended"]) if state["ended"] is not None else ("the plan was used up", True)
            self._close()

    def _prepare(self, state: dict[str, Any], changed: list[str]) -> None:
        """Begin where an attempt was killed before it drew anything: its key is replaced, its charge taken up."""
        left = Path(state["key_file"])
        if left.exists():
            key = Key.load(left)
            if key.fingerprint() != state["key"]:
                raise CheckpointError(f"{left} is the key of another run: choose another key_file")
            key.destroy()
        if not changed:
            self._load(state)
            self.charge, self._entry = checkpoints.take_up(state, self.ledger), state["ledger"]

    def _fork(
        self, path: Path, state: dict[str, Any], changed: list[str], charged: acc.Mechanism | None, key: Key | None
    ) -> None:
        """Go on from the weights of another run, with a new key and a charge of its own."""
        what = f"{path} does not continue: {', '.join(changed)} changed"
        if charged is None:
            raise CheckpointError(
                f"{what}. A fork is a new run on weights that have cost something already, and needs a ledger to be "
                "charged to; or remove the checkpoint and begin anew"
            )
        if charged.unit != self.plan.unit or self.plan.adjacency not in charged.adjacencies():
            raise CheckpointError(f"{what}, and the two runs protect different things: they do not compose")
        warnings.warn(
            f"{what}: this is a fork, with a new key and a new charge; privacy is stated for both runs together",
            PrivacyWarning,
            stacklevel=5,
        )
        earlier = charged if state["plan"]["earlier"] is None else charged + acc.from_dict(state["plan"]["earlier"])
        self.plan = dataclasses.replace(self.plan, earlier=earlier)
        self.model.load_state_dict(state["model"])
        if self._own_key:
            self._retired = key  # until the new charge is granted, the other run can still be resumed

    def _load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        if self._average is not None:
            self._average = {n: t.to(self.device) for n, t in state["average"].items()}
        self.steps_executed, self.clip_norm = state["step"], state["clip_norm"]
        self.physical_batch = state["physical_batch"]
        if state["plan"]["earlier"] is not None:
            self.plan = dataclasses.replace(self.plan, earlier=acc.from_dict(state["plan"]["earlier"]))
        checkpoints.set_random_state(state["random"], self.device)

    def _finish(self) -> None:
        if self._checkpoint is not None:
            self.save()
        self._close()

    def _close(self) -> None:
        if self.charge is not None and not self.charge.confirmed:
            self.charge.confirm()
        if self._key is not None:
            for derived in (self._noise_key, self._sampler_key, self._member_key):
                derived.destroy()
            if self._own_key:
                self._key.destroy()
            self._key = None

    def __repr__(self) -> str:
        return f"<Training: {self.steps_executed:,} of {self.plan.steps:,} steps, {self.plan.sampler.words}>"


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _copy(parameters: dict[str, Tensor], values: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, p in parameters.items():
            p.copy_(values[name])
