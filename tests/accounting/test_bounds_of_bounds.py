"""Bounds on quadratures and rounding, next to what they bound."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tacit import accounting as acc
from tacit.accounting import lattice, mixture
from tacit.accounting.contour import best_abscissa
from tacit.accounting.losses import ROUND, Array, AtomsLoss, GaussianLoss
from tacit.accounting.mixture import MixtureLoss
from tacit.accounting.over_steps import _Line


def _ratio(z: Array, shifts: Array, weights: Array) -> Array:
    """The density of a mixture of shifted normal laws over that of the normal law, at complex numbers."""
    return np.asarray(sum(w * np.exp(s * z - s * s / 2) for s, w in zip(shifts, weights, strict=True)))


@pytest.mark.parametrize(
    "law", [MixtureLoss(0.7, {0.0: 0.8, 1.0: 0.2}, {0.0: 1.0}), MixtureLoss(0.4, {0.0: 1.0}, {0.0: 0.9, 1.0: 0.1})]
)
@pytest.mark.parametrize("c", [0.5, 3.0])
def test_the_excess_bounds_how_much_the_integrand_grows_off_the_real_line(law: MixtureLoss, c: float) -> None:
    x = np.linspace(-25.0, 35.0, 20_001)
    p, q = (_ratio(x, s, w) for s, w in ((law.p_shift, law.p_weight), (law.q_shift, law.q_weight)))
    on = np.logaddexp.reduce(-x * x / 2 + (c + 1) * np.log(p) - c * np.log(q))
    for t in (1.0, 5.0):
        for height in (0.05, 0.3, 0.8):
            z = x + 1j * height
            p, q = (_ratio(z, s, w) for s, w in ((law.p_shift, law.p_weight), (law.q_shift, law.q_weight)))
            turned = t * np.abs(np.angle(p)) + t * np.abs(np.angle(q))
            off = np.logaddexp.reduce(-x * x / 2 + (c + 1) * np.log(np.abs(p)) - c * np.log(np.abs(q)) + turned)
            assert law._excess(c, t, height, 40.0) >= off - on


def test_what_is_peeled_into_layers_lies_below_the_density(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Array, Array]] = []
    real = mixture._peel
    monkeypatch.setattr(mixture, "_peel", lambda d, length: seen.append((d.copy(), length)) or real(d, length))
    # One shift: the loss is normal of spread 1, also tilted. Cells on which a density of at least d is claimed
    # together are no longer than the interval on which the normal density is d.
    for c in (0.1, 1.0, 5.0):
        seen.clear()
        MixtureLoss(1.0, {0.0: 1.0}, {1.0: 1.0})._layers(c)
        density, length = seen[0]
        claimed = density > 0
        for d in density[claimed]:
            widest = 2 * math.sqrt(max(0.0, -2 * math.log(d * math.sqrt(2 * math.pi))))
            assert length[density >= d].sum() <= widest * (1 + 1e-9)


def test_the_rounding_of_a_composition_covers_every_law_and_every_logarithm() -> None:
    parts = [(AtomsLoss([-0.5, 0.5], [0.4, 0.6]), 30), (AtomsLoss([-0.25, 0.25], [0.45, 0.55]), 50)]
    at = best_abscissa(parts, epsilon=9.0)
    curve = lattice.LatticeCurve(parts, at, math.log(1e-6), 1 << 12, 64.0, parts)
    for law in (curve.upper, curve.of_p, curve.of_q):
        assert law.log_m_error >= sum(times * one.tilted(law.c)[1] for one, times in parts)
        for epsilon in (0.0, 9.0, 12.0):
            grow = law._off(epsilon)[1]
            logs = abs(law.log_m - law.c * epsilon) + law.c * abs(epsilon)
            assert grow >= law.log_m_error + 4 * ROUND * logs


def test_the_rounding_of_a_logarithm_counts_for_every_run() -> None:
    law = lattice.dominating(AtomsLoss([-0.5, 0.5], [0.4, 0.6]), 1 / 64, 1e-20)
    once, often = (lattice._Composed([(law, times)], 2.0, 1 / 64, 1 << 12, 0.0, None) for times in (1, 30))
    assert 0 < 30 * once.log_m_error <= often.log_m_error * (1 + 1e-9)


def test_the_upper_end_after_many_steps_holds_the_rounding_of_every_node() -> None:
    line = _Line([(GaussianLoss(0.05), 1)], 50, 100, 1e-6)
    rows, epsilon = np.array([50.0, 100.0]), np.array([1.0, 1.5])
    _, high = line.interval(rows, epsilon)
    top, size, real = line._terms(rows, epsilon)
    # each term is e^{nK(z) - zε}/(z(z+1)): the error of K counts n times, K, zε and the logarithm are rounded, and
    # the terms are added up
    each = rows[:, None] * (line.k_error + 8 * ROUND * np.abs(line.k)) + 8 * ROUND * np.abs(epsilon[:, None] * line.z)
    each = each + ROUND * (16 + 8 * np.abs(line.log_kernel) + len(line.z))
    assert (high >= np.exp(top) * (real.sum(axis=1) + (size * each).sum(axis=1)) * (1 - 1e-15)).all()


def test_what_cutting_costs_is_summed_over_kinds_of_steps() -> None:
    one = acc.TruncatedPoissonSampled(acc.Laplace(2.0), 0.3, examples=40, max_batch=18)
    two = acc.TruncatedPoissonSampled(acc.Laplace(3.0), 0.3, examples=40, max_batch=19)
    far = 1.0  # above every loss of both: only what cutting costs is left
    alone = [acc.delta(step, far).upper for step in (one, two)]
    assert min(alone) > 0.01
    assert acc.delta(one + two, far).upper >= sum(alone) * (1 - 1e-9)


@pytest.mark.parametrize("noise", [0.5, 5.0])
def test_all_batches_of_a_pass_together_show_less_than_the_one_that_changed(noise: float) -> None:
    step = acc.BallsInBins(acc.Gaussian(noise, replace=0.5), 4)
    floor, pair = (ask("replace-one", "remove") for ask in (step.floor, step.pair))
    wide = acc.Gaussian(2 * noise, replace=0.5).pair("replace-one", "remove")
    assert floor is not None
    assert pair is not None
    assert wide is not None
    for x in (0.0, 0.05, 0.3):
        assert floor.profile(x)[0] <= pair.profile(x)[0] * (1 + 1e-9)
        assert floor.profile(x) == pytest.approx(wide.profile(x))
