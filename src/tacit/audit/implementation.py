"""Does the pipeline do what it says, on this model? The implementation audit: seconds, and no private record needed.

Each check compares what a run releases with what it should, and gives a :class:`~tacit.audit.findings.Finding`:

- *sensitivity*: the clipped sum of neighbouring data sets, without noise, differs by no more than the clip norm;
- *sum*: it is the sum of clipped per-example gradients, as plain backward passes give them;
- *noise*: the rest is Gaussian, of the stated size, and nothing of it is used twice;
- *steps*: every step of the plan is released and priced, empty batches included;
- *sampling*: records take part as the price assumes;
- *price*: the privacy loss, simulated, is no larger than claimed.

Both the sum and the noise have to be looked at: noise that is a tenth too small shows in no attack on one direction,
and a batch that is clipped as a whole shows in no test of the noise.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from tacit import accounting as acc
from tacit.audit import bounds, statistics
from tacit.audit.findings import FAMILY_WISE, Finding, holds
from tacit.audit.pipeline import Floats, Pipeline, chosen, has_floats, joined, scaled
from tacit.sgd.training.data import Records

#: Noise numbers that the variance test pools: enough to see noise that is 3% too small.
NOISE_NUMBERS = 40_000
#: Records of a batch whose neighbours are looked at.
BASE = 8
#: Relative error that rounding in float32 may make.
ROUNDING = 2e-3


# -- sensitivity -------------------------------------------------------------------------------------------------------


def released_sum(pipeline: Pipeline, data: Records, clip_norm: float, size: int, **more: Any) -> Floats:
    """The sum that one step over all of ``data`` releases, without noise, where ``size`` records are announced."""
    training = pipeline.build(
        data,
        batch_size=size,
        size=size,
        steps=1,
        epochs=None,
        epsilon=None,
        noise_multiplier=0.0,
        clip_norm=clip_norm,
        sampler="poisson",
        adaptive=None,
        noise_schedule=None,
        **({"delta": 1e-5} | more),
    )
    return pipeline.watch(training).steps[0].released


def probes(source: Records, row: int) -> list[tuple[str, Records]]:
    """Records that an adversary might add: ordinary ones, long ones, reversed ones, ones that overflow."""
    found = [(f"record {i}", chosen(source, [i])) for i in range(min(len(source), 12))]
    if has_floats(source):
        for factor in (1e3, -1e3, -1.0, 1e-3, 1e25):
            found.append((f"record {row} times {factor:g}", scaled(source, row, factor)))
    return found


def check_sensitivity(pipeline: Pipeline, gradients: Floats | None = None) -> Finding:
    """Neighbouring data sets, without noise: the released sums differ by at most the clip norm."""
    raw = pipeline.gradients() if gradients is None else gradients
    norms = np.linalg.norm(raw, axis=1)
    clip = float(min(clip_norm_of(pipeline), np.median(norms[norms > 0]) / 2 if (norms > 0).any() else 1.0))
    longest = int(np.argmax(norms))
    count = len(pipeline.records)
    rest = [i for i in range(count) if i != longest][: BASE - 1]
    bases = {"different records": [longest, *rest], "copies of one record": [longest] * BASE, "one record": [longest]}
    worst, where = 0.0, ""
    for label, rows in bases.items():
        base = chosen(pipeline.records, rows)
        before = released_sum(pipeline, base, clip, len(rows) + 1)
        for name, probe in probes(pipeline.records, longest):
            after = released_sum(pipeline, joined(base, probe), clip, len(rows) + 1)
            moved = float(np.linalg.norm(after - before)) if np.isfinite(after).all() else math.inf
            if moved > worst:
                worst, where = moved, f"{name} added to {label}"
    allowed = pipeline.sensitivity(clip)
    detail = f"one record moved the sum by {worst / allowed:.4f} clip norms ({where})"
    return holds("sensitivity", worst <= allowed * (1 + ROUNDING), detail, f"more than {1 + ROUNDING:g} clip norms")


def check_sum(pipeline: Pipeline, gradients: Floats | None = None) -> Finding:
    """The released sum, without noise, is the sum of clipped per-example gradients."""
    raw = pipeline.gradients() if gradients is None else gradients
    clip = clip_norm_of(pipeline)
    rows = list(range(min(BASE, len(raw))))
    released = released_sum(pipeline, chosen(pipeline.records, rows), clip, len(rows))
    true = pipeline.clipped(raw[rows], clip).sum(0)
    scale = pipeline.sensitivity(clip)
    away = float(np.linalg.norm(released - true)) / scale
    detail = f"the released sum is {away:.2g} clip norms from the sum of {len(rows)} clipped gradients"
    return holds("sum", bool(away <= ROUNDING * len(rows)), detail, f"a difference of {ROUNDING * len(rows):g}")


def clip_norm_of(pipeline: Pipeline) -> float:
    clip = pipeline.settings.get("clip_norm", 1.0)
    if callable(clip):
        return float(clip(0))
    return float(clip[0] if isinstance(clip, list | tuple) else clip)


# -- noise -------------------------------------------------------------------------------------------------------------


def steps_needed(pipeline: Pipeline, numbers: int = NOISE_NUMBERS) -> int:
    """Steps after which enough noise numbers were seen."""
    return int(min(max(math.ceil(numbers / pipeline.size), 8), 2000))


def check_noise(residuals: list[Floats], significance: float = FAMILY_WISE / 20) -> list[Finding]:
    """Whether what is left beside the sums is fresh Gaussian noise of the stated size."""
    flat = np.concatenate(residuals)
    deviation = float(np.sqrt(np.mean(flat**2))) if np.isfinite(flat).all() else math.nan
    deficit = statistics.smallest_noise_deficit(len(flat), significance)
    seen = f"standard deviation {deviation:.4f} of what is stated, over {len(flat):,} numbers"
    return [
        Finding(
            "noise variance",
            statistics.variance_p_value(flat),
            seen,
            f"noise {deficit:.1%} too small",
            deficit <= 0.1,
        ),
        Finding(
            "noise used once",
            statistics.repetition_p_value(flat),
            "largest correlation of the noise with itself, over all distances",
            "any part of a stream that is used again",
        ),
        Finding("noise shape", _smallest(statistics.shape_p_value(flat), statistics.mean_p_value(flat)), seen),
    ]


def _smallest(*p_values: float) -> float:
    return min(1.0, len(p_values) * min(p_values))


def check_fresh_keys(one: Floats, other: Floats) -> Finding:
    """Two runs that were given no key: their noise has nothing in common."""
    size = min(len(one), len(other))
    a, b = one[:size], other[:size]
    correlation = float((a * b).sum() / math.sqrt(max((a * a).sum() * (b * b).sum(), 1e-300)))
    p = float(stats.beta.sf(min(1.0, correlation**2), 0.5, (size - 1) / 2))  # the law of a cosine
    return Finding("fresh keys", p, f"correlation {correlation:.4f} between the noise of two runs")


# -- sampling and price ------------------------------------------------------------------------------------------------


def priced(mechanism: acc.Mechanism, kind: type) -> list[tuple[Any, int]]:
    """The parts of a mechanism of one kind, with how often each is priced."""
    return [(part, times) for part, times in mechanism.parts() if isinstance(part, kind)]


def check_sampling(masks: npt.NDArray[np.bool_], mechanism: acc.Mechanism, passes: int = 1) -> list[Finding]:
    """Whether records took part (``masks``: steps × records) as the priced mechanism assumes."""
    steps, count = masks.shape
    poisson = priced(mechanism, acc.PoissonSampled) + priced(mechanism, acc.TruncatedPoissonSampled)
    if poisson:
        rate = float(poisson[0][0].rate)
        hits = int(masks.sum())
        # Batches that are cut differ from those that are not only where one is cut.
        cut = sum(
            steps * float(stats.binom.sf(part.max_batch, part.examples, rate))
            for part, _ in priced(mechanism, acc.TruncatedPoissonSampled)[:1]
        )
        found = [
            Finding(
                "sampling rate",
                statistics.frequency_p_value(hits, masks.size, rate),
                f"records took part with frequency {hits / masks.size:.5f}, priced at {rate:.5f}",
            ),
            Finding(
                "batch sizes",
                statistics.dispersion_p_value(masks.sum(1), count, rate),
                f"batch sizes scatter by {masks.sum(1).std():.2f}; Poisson sampling has "
                f"{math.sqrt(count * rate * (1 - rate)):.2f}",
            ),
            Finding(
                "participation",
                statistics.dispersion_p_value(masks.sum(0), steps, rate),
                f"participations of a record scatter by {masks.sum(0).std():.2f}; independent steps have "
                f"{math.sqrt(steps * rate * (1 - rate)):.2f}",
            ),
            Finding(
                "independent choices",
                statistics.coincidence_p_value(masks, rate),
                "how often two choices were made together, over all distances",
            ),
        ]
        return [dataclasses.replace(one, p_value=min(1.0, one.p_value + cut)) for one in found]
    fixed = priced(mechanism, acc.FixedSizeSampled)
    if fixed:
        size = fixed[0][0].batch
        right = bool((masks.sum(1) == size).all())
        return [holds("batch sizes", right, f"{size} records in every batch")]
    whole = masks[: (steps // passes) * passes].reshape(-1, passes, count)
    found = [holds("participation", bool((whole.sum(1) <= 1).all()), "no record takes part twice in a pass")]
    if priced(mechanism, acc.BallsInBins) and len(whole):
        where, pairs = whole.argmax(1), (len(whole) - 1) * count
        again = int((where[1:] == where[:-1]).sum())
        found += [
            Finding("batch sizes", statistics.bins_p_value(whole.sum(2)), "how much the bins of a pass differ"),
            Finding(
                "independent choices",
                statistics.frequency_p_value(again, pairs, 1 / passes) if pairs else 1.0,
                f"{again:,} of {pairs:,} times a record is in the bin of the pass before",
            ),
        ]
    return found


def check_price(
    claimed: float,
    delta: float,
    rate: float,
    noise: float | Sequence[float],
    steps: int,
    rng: np.random.Generator,
    draws: int = 100_000,
) -> Finding:
    """Whether the claimed ε holds for what was run, by simulating its privacy loss at δ (which must not be tiny)."""
    if not math.isfinite(claimed):
        return holds("price", True, "nothing is claimed")
    noises = [noise] * steps if isinstance(noise, int | float) else list(noise)
    if rate >= 1:
        exact = bounds.gaussian_epsilon(math.sqrt(sum(z**-2 for z in noises)), delta)
        return holds("price", claimed >= exact * (1 - 1e-6), f"claimed ε = {claimed:.4f}, closed form {exact:.4f}")
    return price_finding(claimed, delta, *statistics.simulated_delta(rate, noises, claimed, draws, rng))


def price_finding(claimed: float, delta: float, found: float, error: float) -> Finding:
    """What a simulated δ, with its standard error, says about a claimed ε."""
    p = float(special.ndtr(-(found - delta) / max(error, 1e-12)))
    detail = f"claimed ε = {claimed:.4f} at δ = {delta:g}; simulated δ = {found:.4f} ± {error:.4f}"
    return Finding("price", min(1.0, 2 * p), detail, f"a δ that is {4.5 * error / delta:.0%} too small")
