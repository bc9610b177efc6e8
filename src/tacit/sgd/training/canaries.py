"""How is a run made so that it can be attacked afterwards? With canaries: records of nobody, each included with
probability ½.

:class:`Canaries` says which; :class:`AuditedTraining` plants them beside the data and keeps what an attacker who sees
every step can compute; :mod:`tacit.audit` turns that into a lower bound on ε.

A *gradient canary* is a gradient along a coordinate of its own, as long as clipping allows: the worst possible record.
Its score is the likelihood ratio of what the noisy sums hold in its direction, less what the real records put there,
which the attacker of the definition knows. An *input canary* is a record that the user gives; its score is how much its
loss fell.

A run with gradient canaries also keeps a *record*: the noise that each step put on the canaries' directions, and which
canary slots the sampler drew. The noise can then be tested against the claim number by number, and the draws against
the claimed sampler, which scores alone cannot do.

Guarantee: canaries are records like any other. They take slots beside the data, so the number of records grows by
theirs, and the stated ε holds for each of them and for each real record. Scores of input canaries are computed from
released weights and may be released. Scores of gradient canaries reveal the run's own noise and coins: with the weights
they would give the exact sums, so they are for the operator only (:func:`tacit.audit.audit_run`). The record is that
noise itself.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import zipfile
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tacit.accounting.base import owner_numbers
from tacit.accounting.correlated import INDEPENDENT, Correlation
from tacit.noise.keys import Key
from tacit.noise.sampling import bernoulli_mask
from tacit.sgd.gradients.batches import Loss, row_losses
from tacit.sgd.torch_compat import pytree
from tacit.sgd.training.config import RunSettings, TrainingKeywords, Value, shows_keywords
from tacit.sgd.training.data import Batch, Records, Table, ids_of, records
from tacit.sgd.training.sampling import CyclicPoisson
from tacit.sgd.training.training import Training

if TYPE_CHECKING:
    from tacit.sgd.gradients.bounds import Clipping

#: The most noise numbers that a run keeps; with more canaries than fit, those of the first ones are kept.
KEPT = 1_000_000


@dataclasses.dataclass(frozen=True, eq=False)
class Canaries:
    """``count`` gradient canaries, or the records in ``inputs`` as canaries.

    >>> Canaries(1000).kind
    'gradient'
    >>> Canaries.of((torch.randn(50, 3), torch.randint(2, (50,)))).count
    50
    """

    count: int
    inputs: Records | None = None

    def __post_init__(self) -> None:
        if isinstance(self.count, bool) or not isinstance(self.count, int | np.integer) or self.count < 2:
            raise ValueError(f"audit_canaries is a whole number, 2 or more, not {self.count!r}")

    @property
    def kind(self) -> str:
        """``gradient`` or ``input``."""
        return "gradient" if self.inputs is None else "input"

    @staticmethod
    def of(wanted: Any) -> Canaries:
        """Canaries from a number, or from records to plant."""
        if isinstance(wanted, Canaries):
            return wanted
        if isinstance(wanted, int | np.integer):
            return Canaries(int(wanted))
        rows = records(wanted)
        return Canaries(len(rows), rows)


@dataclasses.dataclass(eq=False)
class Planted:
    """What an audited run leaves: which canaries were in, their scores, what was claimed, and the record.

    The record is what the tests of :mod:`tacit.audit.record` need; it is None in files of older versions, and parts of
    it are None for input canaries. ``mechanism`` is the plan's mechanism as JSON, ``noise`` the multiplier that each
    step is priced at, and ``scale`` that of the gradient's own noise. ``residuals`` (steps × canaries) is the noise of
    each step in a canary's direction, in stated standard deviations; correlated noise is seen through C, where it is
    independent. ``drawn`` (steps × canaries, packed bits) says which slots the sampler chose, whatever their coin; a
    pass has ``per_pass`` steps. ``places`` and ``weights`` are where the canaries point, and the final weights there.
    ``rounded`` says whether gradients had fewer bits than float32, ``size`` how many slots the sampler has.
    """

    kind: str
    member: npt.NDArray[np.bool_]
    scores: npt.NDArray[np.float64]
    epsilon: float
    delta: float
    adjacency: str
    unit: str
    steps: int
    mechanism: str | None = None
    noise: npt.NDArray[np.float64] | None = None
    scale: npt.NDArray[np.float64] | None = None
    residuals: npt.NDArray[np.float32] | None = None
    drawn: npt.NDArray[np.uint8] | None = None
    per_pass: int | None = None
    places: npt.NDArray[np.int64] | None = None
    weights: npt.NDArray[np.float64] | None = None
    rounded: bool = False
    size: int | None = None

    @property
    def choices(self) -> npt.NDArray[np.bool_] | None:
        """Which canary slots the sampler drew: steps × canaries."""
        return None if self.drawn is None else np.unpackbits(self.drawn, axis=1, count=len(self.member)).astype(bool)

    def save(self, path: str | Path) -> Path:
        """Write it as one ``.npz`` file that only its owner can read: it may hold the noise of the run.

        The file holds 32 random bytes as well, so that its hash, which a ledger may keep, confirms no guess about the
        noise: without them, somebody who knows all records but one could try both data sets against the hash.
        """
        target = Path(path)
        if not hasattr(os, "fchmod"):
            raise OSError(errno.ENOTSUP, "this system cannot keep canaries from other users: use Linux or macOS")
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o600)
            given = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
            plain: dict[str, Any] = {name: np.asarray(value) for name, value in given.items() if value is not None}
            np.savez(file, salt=np.frombuffer(os.urandom(32), dtype=np.uint8), **plain)
        return target

    @classmethod
    def load(cls, path: str | Path) -> Planted:
        """Read such a file."""
        try:
            with np.load(path, allow_pickle=False) as found:
                older = {f.name for f in dataclasses.fields(cls) if f.default is not dataclasses.MISSING}
                plain = {
                    f.name: found[f.name] for f in dataclasses.fields(cls) if f.name in found or f.name not in older
                }
            read = cls(**{name: value if value.ndim else value.item() for name, value in plain.items()})
            read._check()
        except (OSError, ValueError, KeyError, TypeError, EOFError, MemoryError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path} does not hold the canaries of a run: {error}") from None
        return read

    def _check(self) -> None:
        """Refuse what no run leaves: other shapes or kinds, or scores that are not finite."""
        count, steps = len(self.member), int(self.steps)
        shapes = {
            "member": ("b", (count,)),
            "scores": ("f", (count,)),
            "noise": ("f", (steps,)),
            "scale": ("f", (steps,)),
            "drawn": ("u", (steps, -(-count // 8))),
            "places": ("i", (count,)),
            "weights": ("f", (count,)),
        }
        for name, (kind, shape) in shapes.items():
            value = np.asarray(getattr(self, name))
            if getattr(self, name) is not None and (value.dtype.kind != kind or value.shape != shape):
                raise ValueError(f"{name} is {value.dtype} of shape {value.shape}, not {shape}")
        z = np.asarray(self.residuals)
        if self.residuals is not None and (
            z.ndim != 2 or z.dtype.kind != "f" or len(z) != steps or not 1 <= z.shape[1] <= count
        ):
            raise ValueError("residuals are one row of numbers for each step, at most one for each canary")
        if self.kind not in ("gradient", "input") or not np.isfinite(self.scores).all():
            raise ValueError("the scores are not those of gradient or input canaries")
        if self.per_pass is not None and self.per_pass < 1:
            raise ValueError("a pass has one step or more")


class Through:
    """A sequence multiplied by C, one row a step: seen so, correlated noise is independent again.

    >>> through = Through(Correlation((0.8, 0.6)))
    >>> through(np.ones(1)), through(np.zeros(1)), through(np.zeros(1))
    (array([0.8]), array([0.6]), array([0.]))
    """

    def __init__(self, correlation: Correlation) -> None:
        self.first, *self.rest = correlation.coefficients
        self.inverse = correlation.inverse
        self.past: deque[npt.NDArray[np.float64]] = deque(maxlen=len(self.rest))

    def __call__(self, row: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """The row of this step, seen through C."""
        earlier = sum((c * one for c, one in zip(self.rest, self.past, strict=False)), start=np.zeros_like(row))
        found = (row - earlier) / self.first if self.inverse else self.first * row + earlier
        self.past.appendleft(found if self.inverse else row)
        return found


class _Slots(Records):
    """Records with slots for canaries behind them."""

    def __init__(self, real: Records, canaries: Canaries) -> None:
        self.real, self.canaries = real, canaries
        self.tree = self.items = self._survey = None
        self.scan = real.scan
        self.rows = len(real) + canaries.count
        self.take(np.array([0, len(real)], dtype=np.int64))  # canaries that do not look like the data are refused now

    def take(self, index: npt.NDArray[np.int64] | Tensor) -> Any:
        index = np.asarray(index)
        own = self.canaries.inputs
        if own is None or not bool((index >= len(self.real)).any()):
            return self.real.take(np.minimum(index, len(self.real) - 1))
        real = self.real.take(np.minimum(index, len(self.real) - 1))
        planted = own.take(np.maximum(index - len(self.real), 0))
        chosen = torch.from_numpy(index >= len(self.real))

        def mixed(a: Tensor, b: Tensor) -> Tensor:
            if a.shape[1:] != b.shape[1:] or a.is_floating_point() != b.is_floating_point():
                raise ValueError(
                    f"canaries must look like the data: {tuple(b.shape[1:])} of {b.dtype} beside {tuple(a.shape[1:])} "
                    f"of {a.dtype}"
                )
            where = chosen.to(a.device).view(-1, *[1] * (a.dim() - 1))
            return torch.where(where, b.to(a.device, a.dtype), a)

        return pytree.tree_map(mixed, real, planted)

    def check_finite(self) -> None:
        self.real.check_finite()
        if self.canaries.inputs is not None:
            self.canaries.inputs.check_finite()

    def labels(self) -> Tensor | None:
        found, own = self.real.labels(), self.canaries.inputs.labels() if self.canaries.inputs is not None else None
        return found if found is None or own is None else torch.cat([found.flatten().cpu(), own.flatten().cpu()])

    def fingerprint(self, secret: bytes) -> str:
        return self.real.fingerprint(secret)


class AuditedTraining(Training):
    """A private training run with canaries; everything else is that of :class:`Training`.

    A canary that is not included keeps an empty slot, so that the sampler tells nothing about it.
    """

    @shows_keywords
    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Loss,
        data: Any,
        *values: Value,
        canaries: Any,
        scheduler: Any = None,
        ema: float | None = None,
        **keywords: Unpack[TrainingKeywords],
    ) -> None:
        self.canaries = Canaries.of(canaries)
        settings = RunSettings.of(values, keywords)
        if settings.persistence.checkpoint is not None:
            raise ValueError("a run with canaries cannot be resumed (its scores are not saved): leave out checkpoint")
        if settings.execution.compile not in ("auto", False):
            raise ValueError("a run with canaries looks into every step, and cannot be compiled: leave out compile")
        settings = dataclasses.replace(settings, execution=dataclasses.replace(settings.execution, compile=False))
        first = next(p for p in model.parameters() if p.requires_grad)
        if settings.sampling.draw == "rows":
            raise ValueError("a run with canaries draws units, and draw='rows' draws rows: leave out one of the two")
        if settings.sampling.groups is not None:
            if self.canaries.kind == "input":
                raise ValueError("input canaries are single records: with groups= give a number, for gradient canaries")
            known = owner_numbers(ids_of(settings.sampling.groups, data))
            everyone = np.concatenate([known, known.max() + 1 + np.arange(self.canaries.count)])
            settings = dataclasses.replace(settings, sampling=dataclasses.replace(settings.sampling, groups=everyone))
        real = data.records if isinstance(data, Table) else records(data, first.dtype)
        if real.arriving:
            raise ValueError("a run with canaries looks at rows again, and those of a stream come once")
        self._real = len(real)
        self._found = np.zeros(self.canaries.count)
        self._present: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self._drawn: dict[int, npt.NDArray[np.uint8]] = {}  # by step: a loop may ask for a batch twice
        self._residuals: list[npt.NDArray[np.float32]] = []
        slots = _Slots(real, self.canaries)
        super().__init__(model, optimizer, loss, slots, *settings.values, scheduler=scheduler, ema=ema)
        if self.ranks.world > 1 or self.shards is not None:
            raise ValueError("a run with canaries must be a single process: give distributed=False")
        if self.plan.correlation.inverse and self.plan.steps > self.plan.sampler.steps_per_epoch:
            raise ValueError(
                "the price of BandedInverse() over several passes has no passes in it that canaries could be compared "
                "with: use noise=Banded(), one pass, or no canaries"
            )
        if self.canaries.kind == "gradient":
            self._place_directions()
            self._hook = optimizer.register_step_pre_hook(self._look)
        else:
            self._before = self._losses()

    # -- planting ------------------------------------------------------------------------------------------------------

    def _use(self, key: Key) -> None:
        super()._use(key)
        with key.derive("canaries") as coins:
            self.member = bernoulli_mask(coins, 0, self.canaries.count, 0.5)
            sizes = [p.numel() for p in self.parameters.values()]
            if self.canaries.kind == "gradient" and sum(sizes) < self.canaries.count:
                raise ValueError(
                    f"each gradient canary needs a parameter of its own: at most {sum(sizes)} of them in this model"
                )
            seed = int.from_bytes(coins.stream("directions", 0, 0).tobytes()[:8], "little")
        self._places = np.random.default_rng(seed).choice(sum(sizes), self.canaries.count, replace=False)

    def _place_directions(self) -> None:
        """Where in each parameter which canaries point."""
        self._directions: dict[str, tuple[Tensor, Tensor]] = {}
        start = 0
        for name, p in self.parameters.items():
            here = np.flatnonzero((self._places >= start) & (self._places < start + p.numel()))
            where = torch.from_numpy(self._places[here] - start).to(p.device)
            self._directions[name] = torch.from_numpy(here).to(p.device), where
            start += p.numel()
        #: What steps show through C: of noise alone, of canaries, and of canaries if all of them were in.
        self._through = tuple(Through(self.plan.correlation) for _ in range(3))
        self._shown: deque[npt.NDArray[np.float64]] = deque()
        self._judged = 0
        self._group = np.zeros(self.canaries.count, dtype=np.int64)
        if isinstance(self.plan.sampler, CyclicPoisson):
            assert self.keys is not None
            units = len(self.units or self.records)
            groups = self.plan.sampler.groups_of(self.keys.sampler, units)
            self._group = groups[units - self.canaries.count :].astype(np.int64)

    def draw(self, step: int) -> Batch:
        batch = super().draw(step)
        first = batch.rows if batch.rows.ndim == 1 else batch.rows[:, 0]
        slot = first - self._real
        chosen = slot >= 0
        present = chosen.copy()
        present[chosen] = self.member[slot[chosen]]
        self._present = slot[present]
        row = np.zeros(self.canaries.count, dtype=bool)
        row[slot[chosen]] = True
        self._drawn[step] = np.packbits(row)
        keep = ~chosen if self.canaries.kind == "gradient" else ~chosen | present
        weights = batch.weights if batch.weights is None else batch.weights[keep]
        return Batch(step, batch.rows[keep], weights, self.records, self.device)

    def clipped_sums(self, batch: Batch, clipping: Clipping) -> tuple[dict[str, Tensor], Tensor | float]:
        sums, inside = super().clipped_sums(batch, clipping)
        if self.canaries.kind == "gradient":
            bounds = {n: c for members, c in zip(clipping.groups, clipping.bounds, strict=True) for n in members}
            there = torch.zeros(self.canaries.count, dtype=torch.float64, device=self.device)
            there[torch.from_numpy(self._present).to(self.device)] = 1.0
            self._without: dict[str, Tensor] = {}
            self._there, self._lengths = there, bounds
            # From the bounds themselves: noise for a sensitivity that is stated too small shows in the record.
            self._sensitivity = float(np.sqrt(sum(bound**2 for bound in clipping.bounds)))
            for name, total in sums.items():
                which, where = self._directions[name]
                flat = total.view(-1)
                self._without[name] = flat[where].double()
                flat[where] += (there[which] * bounds[name]).to(flat.dtype)
        return sums, inside

    def _look(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """What the noisy sum of this step says about each canary, less what real records put there."""
        noise = self.plan.gradient_noise[self.steps_executed] * self._sensitivity
        alone, lengths = np.zeros(self.canaries.count), np.ones(self.canaries.count)
        for name, p in self.parameters.items():
            which, where = self._directions[name]
            if p.grad is None or not len(which):
                continue
            seen = p.grad.detach().reshape(-1)[where].double() * self.plan.sampler.divisor - self._without[name]
            here = which.cpu().numpy()
            alone[here] = (seen - self._there[which] * self._lengths[name]).cpu().numpy()
            lengths[here] = self._lengths[name]
        z, present = self._through[0](alone), self._through[1](self._there.cpu().numpy())
        kept = (z / (noise or self._sensitivity)).astype(np.float32)
        self._residuals.append(kept[: max(1, KEPT // self.plan.steps)])
        self._weigh(z / lengths + present, noise / lengths)

    def _weigh(self, seen: npt.NDArray[np.float64], spread: npt.NDArray[np.float64]) -> None:
        """Add to the scores what a step shows through C, in clip norms: the best test there is, step by step."""
        correlation, step = self.plan.correlation, self.steps_executed
        if self.plan.kind != "gaussian" or not spread.all():
            self._found += seen
        elif correlation != INDEPENDENT and self.plan.sampler.name == "chunks":  # everybody's steps are known
            drawn = np.unpackbits(self._drawn[step], count=self.canaries.count).astype(np.float64)
            there = self._through[2](drawn)
            self._found += (2 * seen * there - there**2) / (2 * spread**2)
        else:
            self._spread = spread
            self._shown.append(seen)
            if len(self._shown) == correlation.bands:
                self._judge()

    def _judge(self) -> None:
        """(1 - q) N(0, s) + q N(s, s) against N(0, s): whether canaries took part in the oldest step that is kept, seen
        along its column of C, of squared length s in deviations of the noise."""
        sampler, (*rows,) = self.plan.sampler, self._shown
        column = np.array(self.plan.correlation.coefficients[: len(rows)])
        along, length = column @ np.array(rows), float(column @ column)
        rate = sampler.rate if isinstance(sampler, CyclicPoisson) else min(1.0, sampler.divisor / sampler.size)
        ratio = np.minimum((2 * along - length) / (2 * self._spread**2), 500.0)
        groups = sampler.groups if isinstance(sampler, CyclicPoisson) else 1
        self._found += np.where(self._group == self._judged % groups, np.log1p(rate * np.expm1(ratio)), 0.0)
        self._shown.popleft()
        self._judged += 1

    def _losses(self) -> npt.NDArray[np.float64]:
        """The loss of every input canary with the weights as they are."""
        rows = self.canaries.inputs
        assert rows is not None
        was_training = self.model.training
        self.model.eval()
        found = []
        try:
            with torch.no_grad():
                for start in range(0, len(rows), 1024):
                    index = np.arange(start, min(start + 1024, len(rows)), dtype=np.int64)
                    batch = pytree.tree_map_only(Tensor, lambda t: t.to(self.device), rows.take(index))
                    found.append(row_losses(self.model, self.loss, batch).double().cpu().numpy())
        finally:
            self.model.train(was_training)
        return np.concatenate(found)

    def planted(self) -> Planted:
        """Coins, scores and claim, for :func:`tacit.audit.audit_run`; after the last step."""
        if not self.done:
            raise RuntimeError("canaries can be read after the last step only: finish the run first")
        if self.canaries.kind == "gradient":
            self._hook.remove()
            while self._shown:
                self._judge()
            scores = self._found
        else:
            scores = self._before - self._losses()
        claim = self.privacy
        return Planted(
            self.canaries.kind,
            self.member,
            np.nan_to_num(scores, nan=0.0),
            claim.upper,
            claim.delta,
            claim.adjacency,
            claim.unit,
            self.steps_executed,
            **self._record(),
        )

    def _record(self) -> dict[str, Any]:
        """What was kept along the way, and what it is to be compared with."""
        drawn = np.stack([self._drawn[step] for step in range(self.steps_executed)])
        found: dict[str, Any] = {
            "mechanism": json.dumps(self.plan.mechanism.to_dict()),
            "drawn": drawn,
            "per_pass": self.plan.sampler.pass_length,
            "size": self.plan.sampler.size,
        }
        if self.canaries.kind == "gradient" and self.plan.kind == "gaussian":
            flat = torch.cat([p.detach().reshape(-1).double().cpu() for p in self.parameters.values()]).numpy()
            found |= {
                "noise": np.array(self.plan.noise[: self.steps_executed]),
                "scale": np.array(self.plan.gradient_noise[: self.steps_executed]),
                "residuals": np.stack(self._residuals),
                "places": self._places,
                "weights": flat[self._places],
                "rounded": any(p.dtype not in (torch.float32, torch.float64) for p in self.parameters.values()),
            }
        return found
