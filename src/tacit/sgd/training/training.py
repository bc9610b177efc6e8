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
import gc
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tacit import accounting as acc
from tacit.accounting.base import unit_of
from tacit.ledger import Charge, Ledger, OperatorView
from tacit.noise.keys import Key
from tacit.noise.tensor import add_normal_many_, normal
from tacit.sgd.clip import Check, Compile, Method, clipped_grad
from tacit.sgd.gradients import laplace
from tacit.sgd.gradients.batches import Loss
from tacit.sgd.gradients.bounds import Clipping
from tacit.sgd.sharding.ranks import Ranks, wanted
from tacit.sgd.sharding.shards import Spread, add_noise_, spread_of
from tacit.sgd.torch_compat import foreach_add_, foreach_copy_, foreach_div_, foreach_lerp_
from tacit.sgd.training import checkpoint as checkpoints
from tacit.sgd.training import identity, validation
from tacit.sgd.training.augment import Augment, repeat, views_of
from tacit.sgd.training.data import Batch, Physical, Table, records, units_of, weighted
from tacit.sgd.training.plan import AdaptiveClipping, Plan, Schedule, make_plan
from tacit.sgd.training.prefetch import Ahead
from tacit.sgd.training.resume import Resumable
from tacit.sgd.training.sampling import Sampler, make_sampler

#: Most units of a physical batch on a CPU, where larger ones gain nothing.
CPU_BATCH = 2048
#: Records on a GPU of which a batch is drawn in a few microseconds.
FEW = 1 << 15
#: The noise of the adaptive clip norm's count; an integer cannot be the name of a parameter.
COUNT = 0


class Training(Resumable):
    """A private training run of ``model``, which stays the same object.

    ``data`` are tensors, arrays, a map-style ``Dataset`` or a :func:`tacit.sgd.table`. ``loss(model, batch)`` gives one
    loss per record, or is a criterion with ``reduction="none"``. Give ``epsilon`` or ``noise_multiplier``, ``epochs``
    or ``steps``. ``size`` is a public number of records (or units) in place of the true one.

    ``unit`` holds one id per record (an array, or the name of a table's column): units are sampled, each gives at most
    ``per_unit`` records a step, whose gradients are averaged and then clipped once. ``unit_name`` is the word for it;
    a word without ids is refused, because it would protect one record and say more.

    ``clip_norm`` and ``noise_schedule`` may be functions of the step or lists, fixed in advance. ``adaptive`` lets the
    clip norm follow a quantile. ``mechanism="laplace"`` clips in L1 norm and gives pure ε (small models).
    ``augment`` makes a random view of one example; ``views`` of them are averaged before clipping, at no further cost.
    ``ema`` is the decay of an average of the weights, :attr:`average`. ``compile=True`` compiles the step where it can,
    ``compile="traced"`` traces it only, which takes seconds.
    ``method="examples"`` is for models that clipping refuses: one backward pass for each example.

    With ``checkpoint`` the run is saved there every ``checkpoint_every`` steps and resumed where the file exists; the
    key is kept in ``key_file`` (default: the user's state folder) until the end. ``ledger`` and ``dataset`` say where
    the plan is charged before the first step.

    Where ``torch.distributed`` is initialised, all its ranks are one run, started with the same data and settings
    (``distributed=False``: this process trains alone). Each takes its share of every draw; clipped sums are added up;
    the noise is that of one process, drawn by each rank for the piece of the model it holds; rank 0 charges the ledger.

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
    ε in [2.99..., 2.99...] at δ=1e-05, zero out one record; steps planned: 10; steps executed: 10; ...
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
        method: Method = "operations",
        compile: Compile = False,
        distributed: bool | None = None,
    ) -> None:
        delta = validation.check_target(epsilon, noise_multiplier, delta, mechanism)
        self.model, self.optimizer, self.loss = model, optimizer, loss
        self.spread: Spread | None = spread_of(model)
        self.parameters = validation.check_parameters(model, optimizer)
        first = next(iter(self.parameters.values()))
        self.device = first.device
        active = wanted(model, distributed)
        self.ranks = Ranks(active, self.spread.tensor if self.spread is not None else (), self.device)
        validation.check_ranks(self.ranks, self.spread, mechanism, compile)
        rows = data.records if isinstance(data, Table) else records(data, first.dtype)
        self.records = rows
        rows.check_finite()
        validation.check_labels(model, loss, rows, self.device)
        if self.spread is not None:
            self.spread.rest()
        self.units = units_of(unit, data, len(rows))
        if unit is None and per_unit != 1:
            raise ValueError("per_unit needs unit=: which records belong together")
        if per_unit < 1:
            raise ValueError(f"per_unit is a positive whole number, not {per_unit!r}")
        count = len(self.units) if self.units is not None else len(rows)
        if isinstance(sampler, str):
            sampler = make_sampler(sampler, count if size is None else size, batch_size, max_batch)
        elif (sampler.batch_size, sampler.size) != (batch_size, count if size is None else size):
            raise ValueError(f"batch_size and size are not those of {sampler}")
        sampler.check(count)
        unit_name = unit_of(unit_name, unit is not None, "Pass unit=, one id for each record, with unit_name=")
        asked, name = adjacency, unit_name  # the ledger is where rank 0 is
        found = self.ranks.first(lambda: validation.check_ledger(ledger, dataset, asked, name, size))
        adjacency = found or sampler.adjacency
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
            CPU_BATCH if self.device.type == "cpu" else None, self.ranks.data_ranks
        )
        self._halves = physical_batch is None and self.spread is None
        self.scheduler, self._ema, self._check, self._compile = scheduler, ema, check, compile
        self._method = validation.check_method(method, mechanism, self.spread)
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
        self._alone = False
        self._ahead: Batch | None = None
        self._draws = Ahead()
        self._early: tuple[dict[str, Tensor], dict[str, Tensor]] | None = None
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
        self._parts = {}
        if self._checkpoint is not None:
            told: dict[str, Any] = {"the augmentation": (augment, views)} if augment is not None else {}
            if rows.items is not None:
                told["the data set"] = type(rows.items)
            self._parts = identity.parts_of(model, loss, optimizer, scheduler, **told)
            validation.warn_unnamed(self._parts)
        whole = [*model.parameters(), *model.buffers()]
        self.ranks.begin_alike(t for t in whole if self.spread is None or not self.spread.holds(t))
        self._take_part(key)
        fresh = not self._begun and self._ended is None and self._entry is None
        if ledger is not None and dataset is not None and fresh:
            # Refuse now what would be refused later.
            self.ranks.first(lambda: ledger.quote(dataset, self.plan.mechanism, delta=self.plan.delta) and None)
        if self.ranks.active and self.ranks.rank == 0:
            sys.stderr.write(f"tacit: {self.layout}: one draw, one noise, one charge for all\n")

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
        self.check_process()
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
        inside = self._add_up(sums, inside)
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

    @property
    def layout(self) -> str:
        """Which ranks train and how the model lies on them, for the card; empty for one process alone."""
        return self.ranks.words + (f", {self.spread.words}" if self.spread is not None else "")

    # -- what ran ----------------------------------------------------------------------------------------------------

    @property
    def privacy(self) -> acc.Privacy:
        """The guarantee: that of the plan, or of the executed steps where the stop did not look at results."""
        steps, basis = None, "as planned"
        if self._ended is not None and self.steps_executed < self.plan.steps:
            reason, looked = self._ended
            steps = None if looked else self.steps_executed
            basis = f"stopped: {reason}; " + ("the plan is claimed" if looked else "without looking at results")
        elif self.steps_executed < self.plan.steps:
            basis = "the plan is claimed"
        plan = self.plan
        details = {
            "steps_planned": plan.steps,
            "steps_executed": self.steps_executed,
            "basis": basis if plan.earlier is None else f"{basis}; with the run it was forked from",
            "sampler": plan.sampler.words,
            "size": "given in advance" if plan.size_given else f"number of {plan.unit}s treated as public",
            "noise": plan.generator,
            "max_rows": plan.records_per_unit if plan.records_per_unit > 1 else None,
        }
        return acc.Privacy(plan.stated.price(steps), plan.spent(steps), details)

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
        """Loss, clipped fraction and size of the last batch (of this rank's share of it): for the operator, not covered
        by the guarantee."""
        if not self._last:
            return OperatorView(step=self.steps_executed, records=0)
        losses, norms, mask = (torch.cat([part[i] for part in self._last]) for i in range(3))
        losses, norms = losses[mask], norms[mask]
        if not len(losses):
            return OperatorView(step=self.steps_executed, records=0)
        bound = self._clip_at(max(self.steps_executed - 1, 0)).sensitivity
        return OperatorView(
            step=self.steps_executed,
            records=len(losses),
            loss=float(losses.mean()),
            median_norm=float(norms.median()),
            clipped_fraction=float((norms > bound).float().mean()),
        )

    # -- one step ----------------------------------------------------------------------------------------------------

    def _look_ahead(self) -> None:
        """Draw the next batch, a function of key and step alone, while a GPU works on this one."""
        step = self.steps_executed + 1
        if step < self.plan.steps:
            self._ahead = self._drawn(step)
            self._ahead.prepare(self.physical_batch)

    def _draw(self, step: int) -> Batch:
        ahead, self._ahead = self._ahead, None
        return ahead if ahead is not None and ahead.step == step else self._drawn(step)

    def _drawn(self, step: int) -> Batch:
        of = (self.plan.sampler, self._sampler_key, self._member_key)
        # A CPU has nothing to wait for, and what takes less time than waking another thread is done here.
        quick = self.records.on_gpu and self.units is None and len(self.records) < FEW
        if self.device.type != "cuda" or quick:
            return self._made(*of, step)
        return self._draws.take(self._made, of, step, step + 1 >= self.plan.steps)

    def _made(self, sampler: Sampler, key: Key, members: Key, step: int) -> Batch:
        """The batch of a step, a function of keys and step alone; on a GPU another thread makes it."""
        rows = sampler.draw(key, step, len(self.units) if self.units is not None else len(self.records))
        weights = None
        if self.units is not None:
            rows, weights = self.units.choose(rows, self.plan.records_per_unit, members, step)
        # Ranks that gather parameters from one another run equally often; what they lack is filled up and masked.
        places = -(-len(rows) // self.ranks.data_ranks) if self.spread is not None else 0
        share = self.ranks.share
        own = None if weights is None else share(weights)
        batch = Batch(step, share(rows), own, self.records, self.device, places, rows[:1])
        batch.begin(self.physical_batch)
        return batch

    def _clip_at(self, step: int) -> Clipping:
        bound = self.clip_norm if self.plan.adaptive else self.plan.clip[step]
        return Clipping.of(self._clipping, bound, list(self.parameters))

    def _sums(self, batch: Batch, clipping: Clipping) -> tuple[dict[str, Tensor], Tensor | float]:
        """Clipped sums over all physical batches, and the centred count of norms inside the bound."""
        while True:
            random = checkpoints.random_state(self.device) if self._halves else None
            exact = self.plan.kind == "laplace"
            sums: dict[str, Tensor] = {}
            inside: Tensor | float = 0.0
            self._last, self._early = [], None
            self._alone = batch.is_one_piece(self.physical_batch)
            try:
                for piece in batch.pieces(self.physical_batch):
                    inside = inside + self._add(piece, sums, clipping)
                for n, p in self.parameters.items():
                    if n not in sums:  # an empty batch
                        shape = p.shape if self.spread is None else self.spread.shape(n)
                        sums[n] = torch.zeros(shape, dtype=torch.float64 if exact else _wide(p), device=p.device)
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

    def _add_up(self, sums: dict[str, Tensor], inside: Tensor | float) -> Tensor | float:
        """The sums over all ranks, in place; every rank takes part, also one that has no records."""
        if not self.ranks.active:
            return inside
        whole = [s for n, s in sums.items() if self.spread is None or not self.spread.reduced(n)]
        if self.plan.adaptive is not None:
            inside = torch.as_tensor(inside, dtype=torch.float32, device=self.device)
            whole.append(inside)
        self.ranks.add_(whole)
        return inside

    def _add(self, piece: Physical, sums: dict[str, Tensor], clipping: Clipping) -> Tensor | float:
        batch, loss = piece.data, self.loss
        if piece.weights is not None:
            batch, loss = (piece.data, piece.weights), self._unit_loss
        views = self.plan.records_per_unit
        if self._augment is not None:
            data = views_of(piece.data, self._augment, self._views)
            batch = data if piece.weights is None else (data, repeat(piece.weights, self._views))
            views *= self._views
        bound = clipping.sensitivity  # by layer: the whole clip norm, which is divided among the layers anew

        def meanwhile(some: dict[str, Tensor]) -> None:
            # A GPU finds the noise waiting when it has the sums. Should they not hold (the batch runs uncompiled
            # then), nobody has seen them, and the sums that do hold get the noise of this step.
            if self._alone and not self.ranks.active and self.spread is None:
                self._early = some, self._noisy(some, clipping, self.steps_executed)
            self._look_ahead()

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
                method=self._method,
                compile=self._compile,
                lend=self._alone,
                meanwhile=meanwhile,
            )
            if result.sensitivity > clipping.sensitivity:
                raise RuntimeError("clipping states a larger sensitivity than the plan: training must not go on")
            found, norms, losses = result.sums, result.norms, result.losses
        if self._early is not None and self._early[0] is not found:
            self._early = None
        if sums:
            foreach_add_(list(sums.values()), [found[name] for name in sums])
        else:
            sums.update(found)
        norms = norms if norms.dim() == 1 else norms.square().sum(1).sqrt()
        self._last.append((losses, norms, piece.mask))
        if self.plan.adaptive is None:
            return 0.0  # nobody counts
        return (((norms <= bound).float() - 0.5) * piece.mask).sum().cpu()

    def _noisy(self, sums: dict[str, Tensor], clipping: Clipping, step: int) -> dict[str, Tensor]:
        """Gradients for the optimizer: the sums with noise, divided by the expected batch size, in the types of the
        parameters. The sums are used up: they hold these gradients, or what nobody may see.

        Guarantee: the Gaussian (Laplace) mechanism on sums of sensitivity ``clipping.sensitivity`` with the noise of
        the plan at this step; the rest is post-processing.
        """
        scale, divisor = self.plan.noise_at(step) * clipping.sensitivity, self.plan.sampler.divisor
        values = list(sums.values())
        found = {name: _in_type(sums[name], p.dtype) for name, p in self.parameters.items()}
        cast = [name for name in found if found[name] is not sums[name]]
        if scale > 0 and self.plan.kind != "laplace" and self.spread is None:
            targets = [found[name] for name in sums]
            add_normal_many_(values, self._noise_key, step, list(sums), scale, divisor=divisor, into=targets)
            return found
        if scale > 0 and self.spread is not None:
            add_noise_(self.spread, sums, self._noise_key, step, scale)
        elif scale > 0:
            laplace.add_noise_(sums, self._noise_key, step, scale)
        foreach_div_(values, divisor)
        if cast:
            foreach_copy_([found[name] for name in cast], [sums[name] for name in cast])
        return found if self.spread is None else {n: self.spread.gradient(n, g) for n, g in found.items()}

    def _release(self, sums: dict[str, Tensor], inside: Tensor | float, clipping: Clipping, step: int) -> None:
        """Noise on the sums, and the step of the optimizer. From here on everything is covered by the guarantee."""
        divisor = self.plan.sampler.divisor
        scale = self.plan.noise_at(step) * clipping.sensitivity
        early, self._early = self._early, None
        gradients = early[1] if early is not None else self._noisy(sums, clipping, step)
        for name, p in self.parameters.items():
            p.grad = gradients[name]
        if hasattr(self.optimizer, "noise_variance"):
            variance = 2 * (scale / divisor) ** 2 if self.plan.kind == "laplace" else (scale / divisor) ** 2
            self.optimizer.noise_variance = variance
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.scheduler is not None:
            self.scheduler.step()
        if self._average is not None and self._ema is not None:
            with torch.no_grad():
                now = [self.parameters[name].detach() for name in self._average]
                if self.spread is None:
                    foreach_lerp_(list(self._average.values()), now, 1 - self._ema)
                else:
                    for average, weight in zip(self._average.values(), now, strict=True):
                        average.lerp_(weight, 1 - self._ema)
        if self.plan.adaptive is not None:
            self._adapt(inside, step, divisor)

    def _adapt(self, inside: Tensor | float, step: int, divisor: float) -> None:
        """The next clip norm, from the noisy count (sensitivity ½ for adding or removing one unit)."""
        adaptive = self.plan.adaptive
        assert adaptive is not None
        noise = float(normal(self._noise_key, step, COUNT, 1)) * adaptive.count_noise if self.plan.noise[step] else 0.0
        fraction = (float(inside) + noise) / divisor + 0.5
        factor = torch.exp(torch.tensor(-adaptive.rate * (fraction - adaptive.quantile), dtype=torch.float64))
        # Bounds that no data depend on keep the clip norm a usable number.
        self.clip_norm = min(max(self.clip_norm * float(factor), 1e-6 * self.plan.clip[0]), 1e6 * self.plan.clip[0])

    def __repr__(self) -> str:
        return f"<Training: {self.steps_executed:,} of {self.plan.steps:,} steps, {self.plan.sampler.words}>"


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _in_type(value: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor itself, or, where it has another type, room for it in this one."""
    return value if value.dtype == dtype else torch.empty_like(value, dtype=dtype)


def _copy(parameters: dict[str, Tensor], values: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, p in parameters.items():
            p.copy_(values[name])
