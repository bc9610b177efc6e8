"""How do I train my model privately, step by step? Sampling, clipping, noise, and a guarantee for what ran.

    training = tacit.sgd.Training(model, optimizer, loss, data, batch_size=1024, epochs=20, epsilon=3.0, delta=1e-5)
    for batch in training:
        training.step(batch)
    training.privacy

The plan is fixed, priced and charged before the first step. Batches and noise follow from a secret key and the step.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from tacit import accounting as acc
from tacit.ledger import OperatorView
from tacit.noise import process
from tacit.noise.keys import Key
from tacit.sgd import release
from tacit.sgd.errors import ProbeFailed
from tacit.sgd.gradients import laplace, probe
from tacit.sgd.gradients.batches import Loss
from tacit.sgd.gradients.bounds import ClippedGradients, Clipping
from tacit.sgd.gradients.contributions import wide
from tacit.sgd.gradients.engine import Engine, Request
from tacit.sgd.gradients.randomness import random_state, set_random_state
from tacit.sgd.sharding.ranks import Ranks, wanted
from tacit.sgd.sharding.shards import ShardedParameters, sharding_of
from tacit.sgd.torch_compat import foreach_add_, foreach_lerp_
from tacit.sgd.training import checkpoint as checkpoints
from tacit.sgd.training import identity, validation
from tacit.sgd.training.augment import repeat, views_of
from tacit.sgd.training.checkpoint import RunState
from tacit.sgd.training.config import RunSettings, TrainingKeywords, Value, describes_keywords, shows_keywords
from tacit.sgd.training.data import Batch, Physical, Table, records, weighted
from tacit.sgd.training.kept import members_of, neighbours
from tacit.sgd.training.pace import program_of
from tacit.sgd.training.plan import Plan, correlated, make_plan, size_in_words
from tacit.sgd.training.prefetch import BackgroundDraw
from tacit.sgd.training.probes import COMPILED_ON_GPU, EVERY, SPREAD, Probes
from tacit.sgd.training.resume import Resumable
from tacit.sgd.training.sampling import Sampler, run_length

#: Most units of a physical batch on a CPU, where larger ones gain nothing.
CPU_BATCH = 2048
#: Records on a GPU of which a batch is drawn in a few microseconds.
FEW = 1 << 15


@describes_keywords
class Training(Resumable):
    """A private training run. The model stays the same object.

    Iterate over it, and give each batch to :meth:`step`. Settings are plain keywords, or values that group them:
    :class:`PrivacyTarget` (how private), :class:`Sampling` (who takes part, how long), :class:`GradientClipping`,
    :class:`Execution` (how it is computed), :class:`Persistence` (checkpoints and keys) and :class:`Charging` (the
    ledger).

    If ``torch.distributed`` is initialised, all its ranks are one run, started with the same data and settings. Each
    takes its share of every batch, the clipped sums are added up, the noise is that of one process, and rank 0 charges
    the ledger.

    Guarantee:
        Everything that can be computed from the sequence of weights is (ε, δ)-DP, as :attr:`privacy` states for its
        adjacency and unit. Adding or removing one unit changes each clipped sum by at most ``clip_norm`` in L2 norm.
        The noise has standard deviation noise multiplier times that, and the sum is divided by the expected batch size,
        a constant.

    Args:
        model: The model to train, unmodified. Its trainable parameters must be those of the optimizer.
        optimizer: Any optimizer of ``torch.optim`` but LBFGS and SparseAdam, or a :class:`DPAdam`.
        loss: A function ``loss(model, batch)`` that returns one value per record, or a criterion with
            ``reduction="none"``.
        data: The private records: tensors, arrays, pandas or polars frames as ``(features, target)``, dicts of these, a
            map-style ``Dataset``, or a :func:`tacit.sgd.table`.
        *values: Values that group keywords, such as a :class:`Sampling`, in any order and at most one of each kind.
        scheduler: A torch learning-rate scheduler, stepped after every step. Default: none.
        ema: The decay (at least 0, below 1) of an average of the weights, :attr:`average`. Default: no average.

    Raises:
        ValueError: If a setting is out of range, the data are empty or not finite, labels do not fit the model, or the
            optimizer would update parameters without noise.
        TypeError: If a keyword does not exist or is given twice, or the data cannot be read.
        CheckpointError: If there is a checkpoint that must not be continued.

    Example:
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

    @shows_keywords
    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Loss,
        data: Any,
        *values: Value,
        scheduler: Any = None,
        ema: float | None = None,
        **keywords: Unpack[TrainingKeywords],
    ) -> None:
        self.settings = settings = RunSettings.of(values, keywords)
        ema = None if ema is None else float(ema)
        if ema is not None and not 0 <= ema < 1:
            raise ValueError(f"ema is a decay between 0 and 1, not {ema}")
        self.model, self.optimizer, self.loss = model, optimizer, loss
        self.scheduler, self.ema = scheduler, ema
        self.parameters = validation.check_parameters(model, optimizer)
        self._find_ranks()
        self._read(data)
        self.plan = self._planned()
        self.clipping = settings.clipping.clipping
        self.clip_at(0)  # a mapping of patterns that does not fit the model is refused now
        validation.warn_about(self.plan, len(self.units or self.records), level=3)
        # Looked up once: a step asks for nothing but numbers.
        self.divisor, self.loss_of_units = self.plan.sampler.divisor, weighted(loss) if self.units is not None else loss
        self._earlier = release.EarlierNoise.of(self.plan.correlation, self.plan.steps)
        self._handed: Batch | None = None
        self._broken = False
        self._drawn_early: Batch | None = None
        self._background = BackgroundDraw()
        self._early: tuple[dict[str, Tensor], dict[str, Tensor]] | None = None
        self.probes = self._probed()
        self._stopped: ProbeFailed | None = None
        self._probe: tuple[int, int, int] | None = None
        #: Losses, norms, clipped ones and real ones of each piece of the last batch. They have no noise.
        self.last_batch: list[tuple[Tensor, ...]] = []
        self._name_computation()
        whole = [*model.parameters(), *model.buffers()]
        self.ranks.begin_alike(t for t in whole if self.shards is None or not self.shards.holds(t))
        self._take_part(settings.persistence.key)
        self._set_pace()
        self._quote()
        if self.ranks.active and self.ranks.rank == 0:
            sys.stderr.write(f"tacit: {self.layout}: one draw, one noise, one charge for all\n")

    def _find_ranks(self) -> None:
        """Where the model lies, and which processes train it together."""
        execution, mechanism = self.settings.execution, self.settings.target.mechanism
        self.shards: ShardedParameters | None = sharding_of(self.model)
        self.device = next(iter(self.parameters.values())).device
        active = wanted(self.model, distributed=execution.distributed)
        parallel = () if self.shards is None else self.shards.tensor
        self.ranks = Ranks(active=active, tensor=parallel, device=self.device)
        validation.check_ranks(self.ranks, self.shards, mechanism, execution.compile)
        validation.check_method(execution.method, mechanism, self.shards)

    def _probed(self) -> Probes | None:
        """How often one example is compared with itself alone; what is public decides."""
        execution = self.settings.execution
        if execution.check == "never" or self.shards is not None or self.plan.kind == "laplace":
            return None
        fast = execution.compile is not False and self.device.type == "cuda"
        return Probes(COMPILED_ON_GPU if fast else EVERY, self.divisor)

    def _read(self, data: Any) -> None:
        """The records, and which of them belong to one unit."""
        first = next(iter(self.parameters.values()))
        self.records = data.records if isinstance(data, Table) else records(data, first.dtype)
        self.records.check_finite()
        validation.check_labels(self.model, self.loss, self.records, self.device)
        if self.shards is not None:
            self.shards.rest()
        self.units = members_of(self.settings.sampling, data, self.records)

    def _planned(self) -> Plan:
        """The plan, of which everything is public; and the state of a run that has not begun."""
        target, sampling, clipping = self.settings.target, self.settings.sampling, self.settings.clipping
        charging = self.settings.charging
        self.ledger, self.dataset = charging.ledger, charging.dataset
        assert sampling.unit is not None
        assert target.delta is not None
        sampler = sampling.sampler_of(len(self.units or self.records))
        unit, size, ask = sampling.unit, sampling.size, validation.check_ledger
        # the ledger is where rank 0 is
        found = self.ranks.first(lambda: ask(self.ledger, self.dataset, target.adjacency, unit, size))
        #: The fingerprint of the data under the ledger's secret; None without a ledger.
        known = validation.recognised
        self.data_name = self.ranks.first(lambda: known(self.ledger, self.dataset, self.records, charging.source))
        kind, steps = clipping.clipping, run_length(sampling.steps, sampling.epochs, sampler)
        adjacency = neighbours(self.units, found, sampler.adjacency)
        optimizer, scheduler = self.optimizer, self.scheduler
        sampler, correlation = correlated(target.noise, sampler, steps, adjacency, target, optimizer, scheduler)
        plan = make_plan(
            sampler,
            steps=steps,
            epsilon=target.epsilon,
            noise_multiplier=target.noise_multiplier,
            noise_schedule=target.noise_schedule,
            clip_norm=clipping.clip_norm,
            delta=target.delta,
            adjacency=adjacency,
            correlation=correlation,
            elements=sum(p.numel() * (1 + p.is_complex()) for p in self.parameters.values())
            + (clipping.adaptive is not None),
            adaptive=clipping.adaptive,
            unit=unit,
            clipping=kind if isinstance(kind, str) else json.dumps(dict(kind), sort_keys=True, default=float),
            kind=target.mechanism,
            **sampling.caps,
            size_given=size is not None,
        )
        usual = sampler.usual_physical(CPU_BATCH if self.device.type == "cpu" else None, self.ranks.data_ranks)
        self.state = RunState(
            clip_norm=plan.clip[0],
            physical_batch=self.settings.execution.physical_batch or usual,
            program=program_of(self.settings.execution.compile),
            average={n: p.detach().clone() for n, p in self.parameters.items()} if self.ema is not None else None,
            key_file=self.settings.persistence.key_file,
        )
        self._clip: tuple[float, Clipping] | None = None
        return plan

    def _name_computation(self) -> None:
        """What a checkpoint is compared with; now, because schedules change the optimizer as they go."""
        model, loss, optimizer, scheduler = self.model, self.loss, self.optimizer, self.scheduler
        augment, views = self.settings.execution.augment, self.settings.execution.views
        self._configuration = checkpoints.configuration(model, self.parameters, loss, optimizer, scheduler, self.ema)
        told: dict[str, Any] = {}
        if augment is not None:
            self._configuration["the augmentation"] = [getattr(augment, "__qualname__", type(augment).__name__), views]
            told["the augmentation"] = (augment, views)
        if self.records.items is not None:
            told["the data set"] = self.records.named_by
        self._parts = {}
        if self.checkpoint is not None:
            self._parts = identity.parts_of(model, loss, optimizer, scheduler, **told)
            validation.warn_unnamed(self._parts, level=4)

    def _quote(self) -> None:
        """Refuse now what the ledger would refuse later."""
        ledger, dataset = self.ledger, self.dataset
        fresh = not self.state.begun and self.state.ended is None and self.state.ledger_entry is None
        if ledger is not None and dataset is not None and fresh:
            self.ranks.first(lambda: ledger.quote(dataset, self.plan.mechanism, delta=self.plan.delta) and None)

    @property
    def steps_executed(self) -> int:
        """How many steps were made."""
        return self.state.step

    @property
    def clip_norm(self) -> float:
        """The current clip norm if it is adaptive; otherwise that of the first step."""
        return self.state.clip_norm

    @property
    def physical_batch(self) -> int:
        """How many units run at a time."""
        return self.state.physical_batch

    # -- the loop ----------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Batch]:
        """The batches that are left. Give each to :meth:`step` before you take the next."""
        self._handed = None  # a loop that was left with a batch in hand gets the same batch again
        while not self.done:
            self.begin()
            batch = self._handed = self.draw(self.steps_executed)
            yield batch
            if self._handed is batch:
                raise RuntimeError(
                    f"the batch of step {batch.step} was not given to training.step. No batch can be left out: the "
                    "guarantee is stated for every step of the plan"
                )

    def __len__(self) -> int:
        return self.plan.steps - self.steps_executed

    @property
    def done(self) -> bool:
        """Whether all steps of the plan were made, or the run was stopped."""
        return self.state.ended is not None or self.state.step >= len(self.plan.noise)

    def step(self, batch: Batch) -> None:
        """Clip, sum, add noise, divide by the expected batch size, and let the optimizer step.

        An empty batch is a step like any other, of noise alone.

        Args:
            batch: The batch that the loop handed out last.

        Raises:
            RuntimeError: If the run is over, the batch is another or was used before, or an earlier step was
                interrupted while weights changed.
        """
        # Asked at every step, so without a call in the usual case: is this the process that made the run?
        if self._process != (os.getpid(), process.forks):
            self.check_process()
        if self.done:
            raise RuntimeError(
                f"the run is over: its {self.plan.steps} steps were made, or it was stopped. Make a new Training, "
                "which is priced and charged again"
            )
        if self._broken:
            raise RuntimeError(
                "an earlier step was interrupted while it changed the weights: make the Training again, which resumes "
                "from its checkpoint"
            )
        if batch is not self._handed or batch.step != self.steps_executed:
            raise RuntimeError(
                "training.step takes the batch that the loop handed out last: this is another one, or was used before"
            )
        if self._stopped is not None:  # a run that a probe stopped stays stopped
            raise self._stopped
        began = time.perf_counter()
        clipping = self.clip_at(batch.step)
        sums, inside = self.clipped_sums(batch, clipping)
        if self.ranks.active:
            inside = self.add_up(sums, inside)
        self._broken = True
        self._release(sums, inside, batch.step)
        self.count_step()
        self._broken = False
        if self.done:
            self.finish()
            return
        changed = self._pace is not None and self._changes_program(self._pace, time.perf_counter() - began)
        due = self.state.step % self.settings.persistence.checkpoint_every == 0
        if self.checkpoint is not None and (due or changed):
            self.save()

    def count_step(self) -> None:
        """Count the batch in hand as used."""
        self._handed = None
        self.state.step += 1

    def stop(self, reason: str, *, looked_at_results: bool = True) -> None:
        """End the run before its plan does.

        A stopping time that depends on what was seen is itself a release, so the run claims its planned ε, unless
        nobody looked at results to decide. The charge in the ledger stays as it is.

        Args:
            reason: Why the run was stopped, in words; it stands in :attr:`privacy`.
            looked_at_results: Whether the decision used anything that the run computed. ``False`` (a time limit, a
                machine that was needed) states the ε of the executed steps. Default: ``True``.

        Raises:
            RuntimeError: If the run has ended already.
        """
        if self.done:
            raise RuntimeError("the run has already ended")
        self.state.ended = (str(reason), bool(looked_at_results))
        self.finish()

    @property
    def layout(self) -> str:
        """Which ranks train and how the model is spread over them, for the card; empty for a single process."""
        return self.ranks.words + (f", {self.shards.words}" if self.shards is not None else "")

    # -- what ran ----------------------------------------------------------------------------------------------------

    @property
    def privacy(self) -> acc.Privacy:
        """The guarantee of the plan; of the executed steps, if the run was stopped without looking at results."""
        steps, basis = None, "as planned"
        if self.state.ended is not None and self.steps_executed < self.plan.steps:
            reason, looked = self.state.ended
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
            "size": size_in_words(self.settings.sampling.drawn, given=plan.size_given),
            "noise": plan.generator,
            "max_rows": rows if (rows := max(plan.records_per_unit, plan.kept)) > 1 else None,
            "probes": self.probes.words(self.steps_executed) if self.probes else SPREAD if self.shards else None,
        }
        return acc.Privacy(plan.stated.price(steps), plan.spent(steps), details)

    @property
    def average(self) -> dict[str, Tensor]:
        """The exponential average of the trainable weights, if ``ema`` was given.

        Raises:
            ValueError: If it was not.
        """
        if self.state.average is None:
            raise ValueError("no average of the weights was kept: give Training a decay, such as ema=0.999")
        return dict(self.state.average)

    @contextlib.contextmanager
    def averaged(self) -> Iterator[nn.Module]:
        """Give the model its average weights within a ``with`` block."""
        kept = {n: p.detach().clone() for n, p in self.parameters.items()}
        try:
            _copy(self.parameters, self.average)
            yield self.model
        finally:
            _copy(self.parameters, kept)

    def diagnostics(self) -> OperatorView:
        """Loss, clipped fraction and size of the last batch, or of this rank's share of it.

        It is for the operator: the guarantee does not cover it.
        """
        if not self.last_batch:
            return OperatorView(step=self.steps_executed, records=0)
        losses, norms, clipped, mask = (torch.cat([part[i] for part in self.last_batch]) for i in range(4))
        return release.diagnostics(self.steps_executed, norms[mask], clipped[mask], losses[mask])

    # -- one step ----------------------------------------------------------------------------------------------------

    def draw(self, step: int) -> Batch:
        """Draw the batch of a step.

        Args:
            step: The number of the step, from 0.

        Returns:
            The batch, a function of the secret key and the step alone. It is private.
        """
        early, self._drawn_early = self._drawn_early, None
        return early if early is not None and early.step == step else self._draw_now(step)

    def _draw_next_early(self) -> None:
        """Draw the next step's batch while a GPU works on this one."""
        step = self.state.step + 1
        if step < self.plan.steps:
            self._drawn_early = self._draw_now(step)
            self._drawn_early.prepare(self.physical_batch)

    def _draw_now(self, step: int) -> Batch:
        assert self.keys is not None
        of = (self.plan.sampler, self.keys.sampler, self.keys.members)
        # A CPU waits for a disk alone, and what takes less time than waking another thread is done here.
        quick = self.records.on_gpu and self.units is None and len(self.records) < FEW
        if not self.records.stored and (self.device.type != "cuda" or quick):
            return self._make_batch(*of, step)
        return self._background.take(self._make_batch, of, step, last=step + 1 >= self.plan.steps)

    def _make_batch(self, sampler: Sampler, key: Key, members: Key, step: int) -> Batch:
        """The batch of a step; on a GPU, and from disk, another thread makes it."""
        rows = sampler.draw(key, step, len(self.units or self.records))
        weights = None
        if self.units is not None:
            rows, weights = self.units.choose(rows, self.plan.records_per_unit, members, step)
        self.records.begin(rows)
        # Ranks that gather parameters from one another run equally often; what they lack is filled up and masked.
        places = -(-len(rows) // self.ranks.data_ranks) if self.shards is not None else 0
        share = self.ranks.share
        own = None if weights is None else share(weights)
        batch = Batch(step, share(rows), own, self.records, self.device, places, rows[:1])
        batch.begin(self.physical_batch)
        return batch

    def clip_at(self, step: int) -> Clipping:
        """The bounds of a step.

        Args:
            step: The number of the step, from 0.

        Returns:
            How gradients are clipped at that step; with an adaptive clip norm, at the current one.
        """
        bound = self.state.clip_norm if self.plan.adaptive else self.plan.clip[step]
        if self._clip is None or self._clip[0] != bound:
            self._clip = bound, Clipping.of(self.clipping, bound, list(self.parameters))
        return self._clip[1]

    def clipped_sums(self, batch: Batch, clipping: Clipping) -> tuple[dict[str, Tensor], Tensor | float]:
        """Add up the clipped gradients of a batch, without noise.

        Args:
            batch: The batch of the step.
            clipping: The bounds of the step.

        Returns:
            The clipped sums over all physical batches, by parameter, and the centred count of norms inside the bound.
            They have no noise yet: do not release them.
        """
        halves = self.settings.execution.physical_batch is None and self.shards is None
        while True:
            random = random_state(self.device) if halves else None
            sums: dict[str, Tensor] = {}
            inside: Tensor | float = 0.0
            self.last_batch, self._early = [], None
            physical = self.state.physical_batch
            alone = batch.is_one_piece(physical)
            compared = self._example_of(batch, physical)
            try:
                for number, piece in enumerate(batch.pieces(physical)):
                    self._probe = compared if compared is not None and compared[0] == number else None
                    inside = inside + self.add_piece(piece, sums, clipping, alone=alone)
                return sums or self._zeros(), inside
            except torch.OutOfMemoryError:
                if not halves or physical == 1:
                    raise
            # Out here the error, and with it all that the failed pass held, is gone. The sums begin again with smaller
            # pieces: the same result but for rounding.
            self.last_batch = []
            gc.collect()
            torch.cuda.empty_cache()
            self.state.physical_batch = (physical + 1) // 2
            assert random is not None
            set_random_state(random, self.device)

    def _example_of(self, batch: Batch, physical: int) -> tuple[int, int, int] | None:
        """Which piece of the batch is probed, a number that says which example of it, and the step; None where none."""
        assert self.keys is not None
        drawn = self.probes.at(self.keys.probes, batch.step) if self.probes is not None and len(batch) else None
        return None if drawn is None else (drawn[0] % -(-len(batch) // physical), drawn[1], batch.step)

    def _compare(self, request: Request, found: ClippedGradients, before: dict[str, Tensor]) -> None:
        """Stop the run if an example of this piece is not what it is by itself."""
        assert self._probe is not None
        real = (torch.arange(request.examples) if request.mask is None else request.mask.cpu().nonzero()).flatten()
        if not len(real):
            return
        example, step = int(real[self._probe[1] % len(real)]), self._probe[2]
        wrong = probe.of_step(Engine.of(self.model), request, found, example, before)
        if wrong is not None:
            self._early = None
            self._stopped = ProbeFailed(probe.failed(step, wrong))
            raise self._stopped

    def _zeros(self) -> dict[str, Tensor]:
        """The sums of an empty batch."""
        exact = self.plan.kind == "laplace"
        found = {}
        for n, p in self.parameters.items():
            shape = p.shape if self.shards is None else self.shards.shape(n)
            found[n] = torch.zeros(shape, dtype=torch.float64 if exact else wide(p.dtype), device=p.device)
        return found

    def add_up(self, sums: dict[str, Tensor], inside: Tensor | float) -> Tensor | float:
        """Add up the sums of all ranks, in place. Every rank takes part, even one without records.

        Args:
            sums: The clipped sums of this rank.
            inside: The count of this rank, for an adaptive clip norm.

        Returns:
            The count over all ranks.
        """
        whole = [s for n, s in sums.items() if self.shards is None or not self.shards.reduced(n)]
        if self.plan.adaptive is not None:
            inside = torch.as_tensor(inside, dtype=torch.float32, device=self.device)
            whole.append(inside)
        self.ranks.add_(whole)
        return inside

    def add_piece(self, piece: Physical, sums: dict[str, Tensor], clipping: Clipping, *, alone: bool) -> Tensor | float:
        """Add the clipped gradients of one physical batch to the sums.

        Guarantee:
            A unit is in one piece, and changes the sums by at most ``clipping.sensitivity`` in L2 norm.

        Args:
            piece: The physical batch.
            sums: The sums so far, changed in place.
            clipping: The bounds of the step.
            alone: Whether the piece is the whole batch.

        Returns:
            The centred count of norms inside the bound, for an adaptive clip norm; otherwise 0.

        Raises:
            RuntimeError: If clipping states a larger sensitivity than the plan.
        """
        batch, loss, views = self._rows_of(piece)
        bound = clipping.sensitivity
        if self.plan.kind == "laplace":
            found, norms, losses = laplace.clipped_l1(self.model, loss, batch, bound, piece.mask, views)
        else:
            execution = self.settings.execution

            def while_it_runs(some: dict[str, Tensor]) -> None:
                # A GPU finds the noise waiting when it has the sums. Should they not hold (the batch runs uncompiled
                # then), nobody has seen them, and the sums that do hold get the noise of this step.
                if alone and not self.ranks.active and self.shards is None:
                    self._early = some, self._noisy(some, self.state.step)
                self._draw_next_early()

            request = Request(
                loss,
                batch,
                clipping,
                mask=piece.mask,
                views=views,
                check=execution.check,
                method=execution.method,
                compiled=self.compiled,
                reuse_memory=alone,
                while_it_runs=while_it_runs,
            )
            before = random_state(self.device, outside=True) if self._probe is not None else {}
            result = Engine.of(self.model).still(self.parameters).clipped_sums(request)
            if self._probe is not None:
                self._compare(request, result, before)
            if result.sensitivity > bound:
                raise RuntimeError("clipping states a larger sensitivity than the plan: training must not go on")
            found, norms, losses = result.sums, result.norms, result.losses
        if self._early is not None and self._early[0] is not found:
            self._early = None
        if sums:
            foreach_add_(list(sums.values()), [found[name] for name in sums])
        else:
            sums.update(found)
        norms = norms if norms.dim() == 1 else norms.square().sum(1).sqrt()
        self.last_batch.append((losses, norms, norms > bound, piece.mask))
        if self.plan.adaptive is None:
            return 0.0  # nobody counts
        return release.count_inside(norms, bound, piece.mask).cpu()

    def _rows_of(self, piece: Physical) -> tuple[Any, Loss, int]:
        """What the model is given for a piece, the loss of its rows, and how many rows a unit has."""
        execution, views = self.settings.execution, 1 if self.units is None else self.plan.records_per_unit
        data, weights = piece.data, piece.weights
        if execution.augment is not None:
            data = views_of(data, execution.augment, execution.views)
            weights = None if weights is None else repeat(weights, execution.views)
            views *= execution.views
        return (data, self.loss, views) if weights is None else ((data, weights), self.loss_of_units, views)

    def noise_at(self, step: int) -> release.ReleaseNoise:
        """The noise of a step, which is public.

        Args:
            step: The number of the step, from 0; with an adaptive clip norm, the current step.

        Returns:
            Its scale on the sum, and what the sum is divided by.
        """
        scale = self.plan.gradient_noise[step] * self.clip_at(step).sensitivity
        growth = 1.0 if self._earlier is None else self._earlier.growth[step]
        return release.ReleaseNoise(scale, self.divisor, self.plan.kind, growth)

    def _noisy(self, sums: dict[str, Tensor], step: int) -> dict[str, Tensor]:
        assert self.keys is not None
        noise = self.noise_at(step)
        return release.noisy_gradients(sums, self.parameters, self.keys.noise, step, noise, self.shards, self._earlier)

    def _release(self, sums: dict[str, Tensor], inside: Tensor | float, step: int) -> None:
        """Add noise to the sums and let the optimizer step. The guarantee covers everything from here on."""
        early, self._early = self._early, None
        gradients = early[1] if early is not None else self._noisy(sums, step)
        release.hand_over(gradients, self.parameters, self.optimizer, self.noise_at(step))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.scheduler is not None:
            self.scheduler.step()
        if self.state.average is not None:
            self._average_weights(self.state.average)
        if self.plan.adaptive is not None:
            assert self.keys is not None
            self.state.clip_norm, _ = release.adapted(
                self.plan.adaptive,
                self.state.clip_norm,
                inside,
                self.keys.noise,
                step,
                divisor=self.divisor,
                within=release.clip_range(self.plan.clip[0]),
                noisy=self.plan.noise[step] > 0,
            )

    def _average_weights(self, average: dict[str, Tensor]) -> None:
        assert self.ema is not None
        with torch.no_grad():
            now = [self.parameters[name].detach() for name in average]
            if self.shards is None:
                foreach_lerp_(list(average.values()), now, 1 - self.ema)
            else:
                for mean, weight in zip(average.values(), now, strict=True):
                    mean.lerp_(weight, 1 - self.ema)

    def __repr__(self) -> str:
        return f"<Training: {self.steps_executed:,} of {self.plan.steps:,} steps, {self.plan.sampler.words}>"


def _copy(parameters: dict[str, Tensor], values: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, p in parameters.items():
            p.copy_(values[name])
