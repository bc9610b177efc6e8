"""Does choosing keep its promises? Private selection, the exponential mechanism and scores, from outside."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from tacit import accounting as acc
from tacit.audit import statistics
from tacit.audit.findings import Finding, holds
from tacit.selftest.scene import Scene, charged, ledger_of

Floats = npt.NDArray[np.float64]


def selected_delta(noise: float, runs: float, epsilon: float) -> float:
    """δ(ε) of the best of a geometric number of N(0, σ²) against N(1, σ²), the score being the value itself.

    With P[K = k] = p(1 - p)^(k-1) the selected value has density p·f / (1 - (1 - p)F)².
    """
    grid = np.linspace(-9 * noise, 9 * noise + 1, 200_001)
    p = 1 / runs

    def density(centre: float) -> Floats:
        z = (grid - centre) / noise
        return np.asarray(p * stats.norm.pdf(z) / noise / (1 - (1 - p) * special.ndtr(z)) ** 2)

    zero, one = density(0.0), density(1.0)
    return max(
        float(np.trapezoid(np.maximum(a - math.exp(epsilon) * b, 0.0), grid)) for a, b in ((zero, one), (one, zero))
    )


def selection_is_charged(seed: int) -> list[Finding]:
    """The claim of a private search against the law of what it selects; the noise and sensitivity of scores."""
    from tacit.tuning import PrivateSearch, Score, bounded_loss, correct_count

    runs, epsilon, delta = 10.0, 1.0, 1e-3
    ledger = ledger_of()
    rng = np.random.default_rng(seed)
    score = Score(lambda model: 1e6 * model, noise=20.0)
    search = PrivateSearch(
        {"candidate": [0]},
        lambda candidate, noise: float(noise * rng.standard_normal()),
        score,
        mechanism=lambda candidate, noise: acc.Gaussian(noise),
        epsilon=epsilon,
        delta=delta,
        runs=runs,
        ledger=ledger,
        dataset="people",
        progress=False,
    )
    noise = search.noise
    assert noise is not None
    true = selected_delta(noise, runs, search.privacy.upper)
    search.run()
    spent = charged(ledger, delta)
    drawn = Score(lambda model: 3.0, sensitivity=2.0, noise=5.0)
    left = [(drawn(None) - 3.0) / 10.0 for _ in range(1000)]
    ids, right = np.append(np.arange(5), [5] * 30), np.ones(35)  # five people, and one with thirty records
    counts = [correct_count(right[:n], right[:n], predict=lambda _, x: x, groups=ids[:n]) for n in (5, 35)]
    losses = [bounded_loss(lambda _, n=n: right[:n], groups=ids[:n]) for n in (5, 35)]  # type: ignore[misc]
    moved = max(abs(many.exact(None) - few.exact(None)) / few.sensitivity for few, many in (counts, losses))
    return [
        holds(
            "selection: price", true <= delta * (1 + 1e-3), f"claimed δ = {delta:g} at ε = {epsilon:g}, true {true:.2g}"
        ),
        holds(
            "selection: charged",
            spent >= epsilon * 0.98,
            f"the ledger holds ε = {spent:.4f} for a search of {epsilon}",
        ),
        holds("selection: one person's score", moved <= 1.0, f"thirty records of one person move it by {moved:g}"),
        Finding("selection: score noise", statistics.variance_p_value(left), "noise of a score, 1,000 draws"),
    ]


SCENES = (Scene("selection", "tuning", selection_is_charged),)
