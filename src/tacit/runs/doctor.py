"""Why is my private model bad, and what should I change first? The work of ``tacit doctor``.

Two sources: what is public (:class:`~tacit.sgd.training.vitals.Facts`) and what was estimated from noisy gradients
(:class:`~tacit.sgd.training.vitals.Look`). Both are free, and the diagnosis may be published. Exact norms of the
operator's log are used if they are asked for, and then the diagnosis is the operator's.

Each cause has a score: the logarithm of the factor by which something is off. The largest one above ``THRESHOLD`` is
named first. The reference values below were chosen on the tasks of ``benchmarks/doctor.py`` that are called *made on*;
docs/results/doctor.md has the results on others.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit import accounting as acc
from tacit.runs.settings import RATES
from tacit.sgd.training.vitals import Facts, Look, Vitals, read_vitals
from tacit.tuning import batch_for, learning_rate_for

#: What a run keeps of its noisy gradients, in the private part of its folder.
VITALS = "vitals.jsonl"
#: A factor of three from where it should be is worth a sentence.
THRESHOLD = math.log(3)
#: A mean gradient at the start is about a third of the clip norm long, where most gradients are clipped.
USUAL_SIGNAL, FAINT = 0.3, 0.1
#: The noise in a step may be this long, in clip norms; longer, and a step goes mostly nowhere.
USUAL_NOISE = 0.15
USUAL_STEPS = 100
#: Signal at the end, and share of steps that go too far, of a run that does well.
END, OVERSHOOT = 0.05, 0.1
#: How far weights travel, for gradients clipped at 1, where noise limits a run: 30 to 200 do about equally well.
DISTANCE = 75.0
#: Signs of a learning rate that is too large count by themselves beyond this logarithm.
CLEAR = 2.2
#: Clip norms below this are small for any model whose inputs are scaled.
SMALL_CLIP = 0.1

CAUSES = {
    "learning rate too large": "the learning rate is too large",
    "learning rate too small": "the learning rate is too small",
    "clip norm too large": "the clip norm is too large",
    "clip norm too small": "the clip norm is too small",
    "batch too small": "the batch is too small",
    "too many steps": "the run has too many steps",
    "model too large": "the model is too large for these records and this ε",
}


class DoctorError(ValueError):
    """A run that cannot be diagnosed; the message says why."""


@dataclasses.dataclass(frozen=True)
class Remark:
    """One thing that is off: what, by which factor, what shows it, what to change, and what that should give."""

    cause: str
    factor: float
    evidence: str
    change: str
    gain: str

    def __str__(self) -> str:
        return f"{CAUSES[self.cause]}.\n   seen: {self.evidence}\n   change: {self.change}\n   gain: {self.gain}"


@dataclasses.dataclass(frozen=True)
class Lever:
    """Something that would make the noise smaller: what, and the noise of a step afterwards over that of now."""

    change: str
    noise: float


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """What was found. ``findings`` has the most important one first; it is empty where the run does well.

    ``covered`` is false where exact values of private data were looked at: then it is for the operator only.
    """

    facts: Facts
    numbers: Mapping[str, float | None]
    findings: tuple[Remark, ...]
    levers: tuple[Lever, ...]
    covered: bool = True

    @property
    def healthy(self) -> bool:
        """Whether nothing stands out."""
        return not self.findings

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return dataclasses.asdict(self) | {"healthy": self.healthy}

    def __str__(self) -> str:
        f, n = self.facts, self.numbers
        lines = [
            f"{f.steps:,} steps of {f.batch_size:,} of {f.records:,} records, {f.parameters:,} weights, clip norm "
            f"{f.clip_norm:g}, {f.optimizer} at {f.learning_rate:g}; ε = {f.epsilon:.4g} at δ = {f.delta:g}",
            f"noise in a step: {n['noise']:.2g} clip norms; signal: {n['signal_first']:.2g} at first, "
            f"{n['signal_last']:.2g} at the end",
        ]
        if n["distance"] is not None:
            lines.append(
                f"distance travelled: {n['distance']:.3g}, {n['straight']:.2g} times what noise alone would do"
                if n["straight"] is not None
                else f"distance travelled: {n['distance']:.3g}"
            )
        lines.append("")
        if self.healthy:
            lines.append("Nothing stands out: these settings are near what the rules would choose.")
        lines += [f"{i}. {finding}" for i, finding in enumerate(self.findings, 1)]
        lines += ["", "What would make the noise of a step smaller, at the same ε unless it says otherwise:"]
        lines += [f"   {lever.change}: {lever.noise:.2f} times the noise" for lever in self.levers]
        lines += ["", _source(self.covered)]
        return "\n".join(lines)


def _source(covered: bool) -> str:
    if covered:
        return "From public numbers and noisy gradients only: the guarantee of the run covers all of this."
    return "PRIVATE: from exact norms of single gradients too. The guarantee does not cover this: do not publish it."


def doctor(run: Vitals | str | os.PathLike[str], *, operator: bool = False) -> Diagnosis:
    """Say why a private training run did badly, what to change first, and what that should give.

    Guarantee:
        Without ``operator`` the diagnosis is computed from noisy gradients, weights and public numbers, which the
        guarantee of the run covers: it costs nothing and may be published.

    Args:
        run: The folder of a run of ``tacit train`` or :func:`tacit.run`, or the :class:`tacit.sgd.Vitals` that watched
            a :class:`tacit.sgd.Training`.
        operator: Whether to look at exact gradient norms in the operator's log of a folder too. The diagnosis is then
            for the operator only. Default: ``False``.

    Returns:
        The diagnosis; print it.

    Raises:
        tacit.runs.doctor.DoctorError: If the run kept nothing of itself, made no steps, or has no noise.

    Example:
        >>> import torch
        >>> from tacit.sgd import Training, Vitals
        >>> x = torch.rand(1000, 3, generator=torch.Generator().manual_seed(0)) * 2 - 1
        >>> model, loss = torch.nn.Linear(3, 2), torch.nn.CrossEntropyLoss(reduction="none")
        >>> training = Training(model, torch.optim.SGD(model.parameters(), lr=1e-3), loss, (x, (x[:, 0] > 0).long()),
        ...                     batch_size=500, steps=40, epsilon=3.0, delta=1e-5)
        >>> vitals = Vitals(training)
        >>> for batch in training:
        ...     training.step(batch)
        >>> doctor(vitals).findings[0].cause
        'learning rate too small'
    """
    if isinstance(run, Vitals):
        return diagnose(run.facts, run.looks)
    private = Path(run) / "private"
    if not (private / VITALS).exists():
        raise DoctorError(
            f"{run} has no {VITALS} in its private folder: it is no run of tacit train, or one of a version before 0.3"
        )
    facts, looks = read_vitals(private / VITALS)
    norm = _median_norm(private / "operator.jsonl") if operator else None
    return diagnose(facts, looks, median_norm=norm)


def _median_norm(path: Path) -> float | None:
    """The median gradient norm of the first logged step."""
    if not path.exists():
        return None
    for line in path.read_text(encoding="utf-8").splitlines():
        if (found := json.loads(line).get("median_norm")) is not None:
            return float(found)
    return None


def diagnose(facts: Facts, looks: Sequence[Look], *, median_norm: float | None = None) -> Diagnosis:
    """The diagnosis of a run from its facts and looks; with a ``median_norm``, which is private, for the operator."""
    if len(looks) < 5:
        raise DoctorError("the run made too few steps to say anything")
    if not math.isfinite(facts.epsilon) or facts.noise_multiplier == 0:
        raise DoctorError("the run has no noise, so nothing here applies to it")
    signs = _Signs.of(facts, looks)
    noise = _Noise(facts)
    long, short = _clip_large(facts, signs, median_norm), _clip_small(facts, signs, median_norm)
    found = [
        long,
        short,
        # A clip norm a hundred times too large makes steps too long as well, and one too small makes them too short.
        _rate_large(facts, signs, max(1.0, long.factor) if long is not None else 1.0),
        _rate_small(facts, signs) if short is None else None,
        _batch(facts, noise),
        _steps(facts, noise),
        _model(facts, noise),
    ]
    findings = sorted((f for f in found if f is not None and f.factor >= 3), key=lambda f: -f.factor)
    levers = sorted(noise.levers(), key=lambda lever: lever.noise)
    return Diagnosis(facts, signs.numbers(), tuple(findings), tuple(levers), covered=median_norm is None)


# -- what the looks show -----------------------------------------------------------------------------------------------


def _length(squares: npt.NDArray[np.float64]) -> float:
    return math.sqrt(max(0.0, float(squares.mean())))


@dataclasses.dataclass(frozen=True)
class _Signs:
    """What a run's looks add up to. Lengths are in clip norms."""

    noise: float
    first: float
    most: float
    last: float
    #: the most that the signal at the start can be, given the noise
    faint: float
    #: cosine of the clipped mean gradient with the step that led to it, early and late: above 0, steps go too far
    past_early: float
    past_late: float
    #: how much of the gradient a step keeps, early: 1 where steps hardly matter
    kept: float
    distance: float | None
    straight: float | None

    @classmethod
    def of(cls, facts: Facts, looks: Sequence[Look]) -> _Signs:
        signal = np.array([k.signal / k.clip_norm**2 for k in looks])
        noise = np.array([k.noise / k.clip_norm**2 for k in looks])
        unsure = noise * math.sqrt(2 / facts.parameters)  # standard deviation of the squared signal
        width = max(3, len(looks) // 20)
        means = np.convolve(signal, np.ones(width) / width, "valid")
        most = math.sqrt(max(0.0, means.max()))
        faint = min(
            math.sqrt(max(0.0, signal[0]) + 2 * unsure[0]),
            math.sqrt(max(0.0, means.max()) + 2 * unsure.mean() / math.sqrt(width)),
        )
        pairs = [k for k in looks if k.slope is not None]
        early, late = pairs[: max(3, len(pairs) // 4)], pairs[len(pairs) // 2 :]
        gain = facts.learning_rate / (1 - facts.momentum)
        aimless = gain * facts.clip_norm * math.sqrt(float(noise.mean()) * facts.steps)
        distance = looks[-1].distance
        plain = facts.optimizer == "SGD" and distance is not None and aimless > 0
        return cls(
            math.sqrt(float(noise.mean())),
            _length(signal[:3]),
            most,
            _length(signal[-max(3, len(looks) // 5) :]),
            faint,
            _past(early, facts),
            _past(late, facts),
            _kept(early, facts),
            distance,
            distance / aimless if plain and distance is not None else None,
        )

    @property
    def cold(self) -> bool:
        """Whether the loss falls along every step and the gradient hardly changes: the run could go faster."""
        return self.past_early < -OVERSHOOT and self.kept > 0.7 and self.past_late < OVERSHOOT

    @property
    def falling(self) -> bool:
        """Whether the loss still falls late in the run."""
        return self.past_late < -OVERSHOOT

    def numbers(self) -> dict[str, float | None]:
        """What is shown."""
        return {
            "noise": self.noise,
            "signal_first": self.first,
            "signal_most": self.most,
            "signal_last": self.last,
            "too_far_early": self.past_early,
            "too_far_late": self.past_late,
            "kept": self.kept,
            "distance": self.distance,
            "straight": self.straight,
        }


def _least(looks: Sequence[Look], facts: Facts) -> float:
    """The sum of squared signals over looks, or what of it noise would hide."""
    hidden = sum(k.noise for k in looks) / math.sqrt(max(1, len(looks))) * math.sqrt(2 / facts.parameters)
    return max(sum(k.signal for k in looks), hidden, 1e-300)


def _past(looks: Sequence[Look], facts: Facts) -> float:
    """The cosine of gradients and the steps that led to them."""
    moved = sum(k.moved or 0.0 for k in looks)
    if not looks or moved == 0:
        return 0.0
    return sum(k.slope or 0.0 for k in looks) / math.sqrt(_least(looks, facts) * moved)


def _kept(looks: Sequence[Look], facts: Facts) -> float:
    return sum(k.turn or 0.0 for k in looks) / _least(looks, facts) if looks else 0.0


# -- what public numbers say -------------------------------------------------------------------------------------------


class _Noise:
    """The noise in a step's mean, σ/B, with other settings at the same ε, over that of now."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.now = self._of()

    def _of(
        self, *, batch: int | None = None, steps: int | None = None, records: int | None = None, more: float = 1.0
    ) -> float:
        """σ/B under Poisson sampling, calibrated."""
        f = self.facts
        records = records or f.records
        batch, steps = min(batch or f.batch_size, records), steps or f.steps
        noise = acc.calibrate(
            lambda z: acc.PoissonSampled(acc.Gaussian(z), batch / records) * steps,
            epsilon=more * f.epsilon,
            delta=f.delta,
            adjacency=f.adjacency,
        )
        return noise / batch

    def with_batch(self, batch: int) -> float:
        return self._of(batch=batch) / self.now

    def with_steps(self, steps: int) -> float:
        return self._of(steps=steps) / self.now

    def levers(self) -> list[Lever]:
        """What would make the noise smaller, and by how much."""
        f = self.facts
        found = [
            Lever(
                "twice the records, in batches twice as large",
                self._of(records=2 * f.records, batch=2 * f.batch_size) / self.now,
            ),
            Lever(f"ε = {2 * f.epsilon:.3g}", self._of(more=2.0) / self.now),
            Lever("a quarter of the weights (a smaller model, frozen layers, features from public data)", 0.5),
        ]
        if 4 * f.batch_size <= f.records:
            found.append(Lever(f"batches of {4 * f.batch_size:,}", self.with_batch(4 * f.batch_size)))
        if f.steps >= 20:
            found.append(Lever(f"{f.steps // 4:,} steps", self.with_steps(f.steps // 4)))
        return found


# -- the causes --------------------------------------------------------------------------------------------------------


def _clip_large(facts: Facts, signs: _Signs, median_norm: float | None) -> Remark | None:
    """No gradient comes near the clip norm, and the noise is made for gradients of that length."""
    if median_norm is not None:
        factor = facts.clip_norm / (3 * max(median_norm, 1e-30))
        seen = f"half of the gradients were shorter than {median_norm:.2g} at the first logged step"
    elif signs.faint < FAINT:
        factor = USUAL_SIGNAL / signs.faint
        seen = (
            f"the mean gradient was never longer than {signs.faint:.2g} clip norms; usual at the start is about "
            f"{USUAL_SIGNAL:g}"
        )
    else:
        return None
    return Remark(
        "clip norm too large",
        factor,
        seen,
        f"divide the clip norm by {_round(factor):g} or more (to {_round(facts.clip_norm / factor):g})",
        f"{1 / factor:.2g} times the noise in a step",
    )


def _clip_small(facts: Facts, signs: _Signs, median_norm: float | None) -> Remark | None:
    """Every gradient is cut to almost nothing, so that steps are tiny: for SGD the same as a tiny learning rate."""
    ratio = SMALL_CLIP / facts.clip_norm if median_norm is None else median_norm / (20 * facts.clip_norm)
    if not signs.cold or ratio <= 1:
        return None
    target = 1.0 if median_norm is None else median_norm
    factor = target / facts.clip_norm
    return Remark(
        "clip norm too small",
        factor,
        f"the loss falls along every step, and a clip norm of {facts.clip_norm:.2g} makes steps short: the weights "
        f"moved {_moved(signs)}",
        f"a clip norm of about {_round(target):g}; or multiply the learning rate by {_round(factor):g}, which is the "
        "same for SGD where gradients are clipped",
        "the same signal and noise in steps that are long enough, and less bias",
    )


def _usual_rate(facts: Facts) -> float:
    """The learning rate that the scale rule gives, or the optimizer's usual one."""
    if facts.optimizer != "SGD":
        return RATES.get(facts.optimizer.lower(), facts.learning_rate)
    return learning_rate_for(
        steps=facts.steps,
        batch_size=facts.batch_size,
        noise_multiplier=facts.noise_multiplier,
        parameters=facts.parameters,
        clip_norm=min(facts.clip_norm, 2.0),
        momentum=facts.momentum,
        distance=DISTANCE,
    )


def _rate_large(facts: Facts, signs: _Signs, explained: float) -> Remark | None:
    """Steps go past the lowest point, and the gradient does not get shorter."""
    if signs.past_late <= 0 or signs.last <= END:
        return None
    seen = max(0.0, math.log(signs.last / END * signs.past_late / OVERSHOOT))
    ruled = math.log(facts.learning_rate / _usual_rate(facts))
    # The rule is made for classes: signs that are clear enough stand by themselves.
    factor = math.exp(max((seen + ruled) / 2, seen - CLEAR)) / explained
    by = max(factor, math.exp(ruled) / explained)
    return Remark(
        "learning rate too large",
        factor,
        f"steps end where the loss rises again (cosine {signs.past_late:.2f} late in the run), and the mean gradient "
        f"is still {signs.last:.2g} clip norms long at the end",
        f"divide the learning rate by about {_round(by):g} (to {_round(facts.learning_rate / by):g})",
        f"weights that wander {1 / math.sqrt(by):.2g} times as far from the best ones",
    )


def _rate_small(facts: Facts, signs: _Signs) -> Remark | None:
    """The loss falls along every step, and still does at the end."""
    if not (signs.cold and signs.falling):
        return None
    straight = signs.straight if signs.straight is not None else 10.0
    factor = max(3.0, straight)
    return Remark(
        "learning rate too small",
        factor,
        f"the loss falls along every step (cosine {signs.past_early:.2f} early, {signs.past_late:.2f} late), the "
        f"gradient hardly turns, and the weights moved {_moved(signs)}",
        f"multiply the learning rate by about {_round(factor):g} (to {_round(facts.learning_rate * factor):g})",
        f"as far as {factor:.2g} times as many steps would lead, at no cost",
    )


def _batch(facts: Facts, noise: _Noise) -> Remark | None:
    wanted = batch_for(facts.records, facts.steps, facts.epsilon, facts.delta)
    if wanted <= facts.batch_size:
        return None
    change = noise.with_batch(wanted)
    return Remark(
        "batch too small",
        1 / change,
        f"the noise in a step is σ/B = {noise.now:.2g} with batches of {facts.batch_size:,}, and larger batches have "
        "less at the same ε and steps",
        f"batches of {wanted:,}",
        f"{change:.2f} times the noise in a step, at {wanted / facts.batch_size:.0f} times the time",
    )


def _steps(facts: Facts, noise: _Noise) -> Remark | None:
    """More steps than needed, each with more noise. Where the noise is small anyway, they do no harm."""
    if facts.steps <= USUAL_STEPS or facts.noise_length < USUAL_NOISE:
        return None
    change = noise.with_steps(USUAL_STEPS)
    return Remark(
        "too many steps",
        facts.steps / USUAL_STEPS,
        f"{facts.steps:,} steps share the budget, and the noise in each is {facts.noise_length:.2g} clip norms long",
        f"about {USUAL_STEPS} steps",
        f"{change:.2f} times the noise in a step, in {USUAL_STEPS / facts.steps:.2g} of the time",
    )


def _model(facts: Facts, noise: _Noise) -> Remark | None:
    """The noise of all weights together is long, and neither batch nor steps explain it."""
    least = noise.with_batch(facts.records)
    steps = min(1.0, math.sqrt(USUAL_STEPS / facts.steps))
    factor = facts.noise_length * min(1.0, least) * steps / USUAL_NOISE
    if factor <= 1:
        return None
    fits = max(1, int(facts.parameters / factor**2))
    return Remark(
        "model too large",
        factor,
        f"the noise in a step is {facts.noise_length:.2g} clip norms long, and no signal is longer than 1: "
        f"{facts.parameters:,} weights each get their own",
        f"train about {_round(fits):,.0f} weights: a smaller model, frozen layers, or features from public data",
        f"{1 / factor:.2g} times the noise in a step",
    )


def _moved(signs: _Signs) -> str:
    if signs.straight is None:
        return f"{signs.distance:.3g}" if signs.distance is not None else "little"
    return f"{signs.distance:.3g}, {signs.straight:.2g} times as far as noise alone"


def _round(value: float) -> float:
    """One digit, as advice has it."""
    if value <= 0:
        return value
    digits = -math.floor(math.log10(value))
    return round(value, digits)
