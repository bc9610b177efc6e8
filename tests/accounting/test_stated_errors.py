"""Losses made of others keep all mass, and every stated error covers as many runs, terms and roundings as there are."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from tacit import accounting as acc
from tacit.accounting import lattice, losses, passes, poisson, selection_bounds
from tacit.accounting.contour import best_abscissa, log_mgf_real
from tacit.accounting.crossing import LargestLoss
from tacit.accounting.derived import DrawnLoss, GivenFinite, SampledLoss, law_below
from tacit.accounting.levels import STANDING, Between
from tacit.accounting.losses import ACCURACY, ROUND, AtomsLoss, GaussianLoss, LaplaceLoss, Loss
from tacit.accounting.mixture import MixtureLoss

#: Two answers, one of which shows everything with probability 0.1, and one that the other law gives and this one never.
REVEALING = AtomsLoss([-0.5, 0.7], [0.4, 0.5], infinity=0.1, symmetric=False)
SEEN = AtomsLoss([-0.2, 0.6], [0.5, 0.5], symmetric=False)
NORMAL = GaussianLoss(0.8)

MADE = {
    "drawn": DrawnLoss([(REVEALING, 0.3), (SEEN, 0.7)]),
    "drawn of two that reveal": DrawnLoss(
        [(REVEALING, 0.4), (AtomsLoss([0.1], [0.8], infinity=0.2, symmetric=False), 0.6)]
    ),
    "sampled, removed": SampledLoss(REVEALING, 0.25, "remove"),
    "sampled, added": SampledLoss(REVEALING, 0.25, "add"),
    "sampled, added, beside what is never seen": SampledLoss(
        AtomsLoss([0.5, 1.0], [0.5, 0.5], symmetric=False), 0.25, "add"
    ),
    "sampled, removed, of a profile whose smallest losses are lost to rounding": SampledLoss(
        law_below(lambda x: NORMAL.profile(x)[0], 16.0), 0.25, "remove"
    ),
    "given that it is finite": GivenFinite(SampledLoss(REVEALING, 0.25, "remove")),
    "noise given that it is finite": GivenFinite(
        SampledLoss(DrawnLoss([(LaplaceLoss(1.0), 0.8), (AtomsLoss([], [], infinity=1.0), 0.2)]), 0.25, "remove")
    ),
}


def masses(loss: Loss) -> tuple[float, float]:
    """What P and Q give to all finite losses."""
    p, q = loss.cells(np.linspace(-4.0, 4.0, 33))
    values, mass = loss.atoms()
    return float(p.sum() + mass.sum()), float(q.sum() + (mass * np.exp(-values)).sum())


@pytest.mark.parametrize("loss", MADE.values(), ids=MADE)
def test_a_loss_made_of_others_has_all_its_mass(loss: Loss) -> None:
    p, q = masses(loss)
    assert p + loss.infinity == pytest.approx(1.0, rel=1e-12)
    if not isinstance(loss, GivenFinite):
        assert q + loss.unseen() == pytest.approx(1.0, rel=1e-12)


def test_a_draw_reveals_what_its_members_reveal_on_average() -> None:
    one, two = AtomsLoss([0.1], [0.8], infinity=0.2, symmetric=False), REVEALING
    drawn = DrawnLoss([(one, 0.4), (two, 0.6)])
    assert drawn.infinity == pytest.approx(0.4 * 0.2 + 0.6 * 0.1)
    assert drawn.unseen() == pytest.approx(0.4 * one.unseen() + 0.6 * two.unseen())
    assert min(one.unseen(), two.unseen()) > 0


def test_the_tilted_spread_of_a_draw_is_the_second_derivative_of_its_moments() -> None:
    drawn, h = DrawnLoss([(GaussianLoss(0.5), 0.5), (GaussianLoss(1.5), 0.5)]), 1e-3
    below, at, above = (drawn.tilted(c) for c in (1.0 - h, 1.0, 1.0 + h))
    assert at[2] == pytest.approx((above[0] - below[0]) / (2 * h), rel=1e-5)
    assert at[3] == pytest.approx((above[0] - 2 * at[0] + below[0]) / h**2, rel=1e-4)


# -- errors add up ----


def test_the_error_of_many_runs_is_that_of_each() -> None:
    one = log_mgf_real([(NORMAL, 1)], 2.0)
    many = log_mgf_real([(NORMAL, 1000)], 2.0)
    assert many == pytest.approx((1000 * one[0], 1000 * one[1]))
    assert one[1] > 0
    largest = LargestLoss.of([(AtomsLoss([-0.5, 0.5], [0.4, 0.6]), 1000)])
    assert largest is not None
    assert largest.error >= 1000 * ACCURACY


def test_the_spread_of_many_runs_is_that_of_their_sum() -> None:
    at = best_abscissa([(NORMAL, 9)], epsilon=3.0)
    assert at.spread == pytest.approx(3 * NORMAL.mu, rel=1e-6)


@pytest.fixture(scope="module")
def curve() -> lattice.LatticeCurve:
    one, two = AtomsLoss([-0.5, 0.5], [0.4, 0.6]), AtomsLoss([-0.25, 0.25], [0.45, 0.55])
    parts = [(one, 30), (two, 50)]
    return lattice.LatticeCurve(parts, best_abscissa(parts, epsilon=9.0), math.log(1e-6), 1 << 12, 64.0, parts)


def test_a_lattice_misplaces_as_many_atoms_as_there_are_runs(curve: lattice.LatticeCurve) -> None:
    assert curve.misplaced >= lattice.MISPLACED * curve.step * (30 + 50)


def test_the_rounding_that_a_lattice_states_covers_its_logarithms(curve: lattice.LatticeCurve) -> None:
    for law in (curve.upper, curve.of_p, curve.of_q):
        assert law.log_m_error >= ROUND * abs(law.log_m)
        for epsilon in (0.0, 6.0):
            _, grow, _ = law._off(epsilon)
            # M(c) and cε are rounded apart from each other, and so is their difference
            assert grow >= 4 * ROUND * (abs(law.log_m - law.c * epsilon) + law.c * abs(epsilon))


def test_what_goes_to_the_upper_edge_of_a_cell_is_part_of_the_cell() -> None:
    p, q = np.array([0.1, 0.1, 0.1, 1e-9]), np.array([0.0, 0.1, 0.2, 1e-9])
    up = lattice._to_upper_edge(p, q, np.zeros(4), 0.01)
    assert (up >= 0).all()
    assert (up <= p).all()


def between(log_delta: float) -> tuple[Between, Loss]:
    """Passes, which have no moments, beside a step whose large losses are rare."""
    beside = acc.BallsInBins(acc.Gaussian(1.5), 3).pair("add-remove", "remove")
    rare = acc.PoissonSampled(acc.Gaussian(0.3), 1e-4).pair("add-remove", "remove")
    assert beside is not None
    assert rare is not None
    return Between([(beside, 10), (rare, 1)], log_delta=log_delta), beside


def test_what_a_fine_lattice_leaves_out_is_left_out_at_every_run() -> None:
    found, beside = between(-8.0)
    tail = math.exp(-8.0 - 18.0) / 11
    low, high = lattice.span(beside, tail)
    step = lattice.choose_step([(beside, 10)], max(high - low, 1e-12) / STANDING)
    above = lattice.dominating(beside, step, tail).above
    assert found.left_out >= 10 * above > 0


def test_an_interval_between_two_laws_has_two_ends() -> None:
    found, _ = between(-8.0)
    run = acc.BallsInBins(acc.Gaussian(1.5), 3) * 10 + acc.PoissonSampled(acc.Gaussian(0.3), 1e-4)
    for epsilon in (2.0, 6.0):
        low, high = found.interval(epsilon)
        assert 0 <= low < high
        assert low <= acc.delta(run, epsilon).upper


# -- finite laws ----


def test_a_loss_on_an_edge_is_counted_on_the_safe_side() -> None:
    edges, one = np.array([0.5]), np.ones(1)
    for above, place in ((True, 1), (False, 0)):
        pair = passes.FinitePair(np.array([0.5]), one, one * math.exp(-0.5), above=above)
        assert pair.cells(edges)[0][place] == 1.0


@pytest.mark.parametrize("turns", [0.01, 1.0, 300.0])
@pytest.mark.parametrize("start", [0, 700])
def test_sums_by_transforms_are_the_sums_within_what_is_stated(turns: float, start: int) -> None:
    rng = np.random.default_rng(3)
    values = np.r_[rng.uniform(-1, 1, 2000), rng.normal(size=2000), np.full(3000, 0.125)]  # many in one place
    weights = rng.random((2, len(values)))
    weights /= weights.sum(axis=1, keepdims=True)
    t = turns * 2 * math.pi / 1400 * np.arange(start, start + 701)
    found, stated = losses.turned(t, values, weights)
    assert stated > 0, "made by tables"
    for k in (0, 1, 350, 699, 700):
        angles = np.longdouble(t[k]) * values
        for row, sums in zip(weights, found, strict=True):
            truth = complex(math.fsum(row * np.cos(angles)), math.fsum(row * np.sin(angles)))
            assert abs(sums[k] - truth) <= stated + ROUND * 8 * t[k] * float(row @ np.abs(values)), (k, start)


def test_a_sum_of_laws_states_a_rounding_for_every_product() -> None:
    count = 2000
    mass = np.full(count, 1 / count)
    law = passes._Law(1, -count // 2, mass, None, (0.0, 0.0), 0.0)
    added = passes._add(law, law, 1e-3, 1, above=True)
    assert added.error >= 2 * count * ROUND


def test_cells_of_laplace_noise_are_differences_of_its_distribution() -> None:
    edges = np.array([-3.0, -0.5, 0.0, 0.25, 2.0])
    ends = np.concatenate([[0.0], stats.laplace.cdf(edges), [1.0]])
    assert poisson._laplace_cells(edges) == pytest.approx(np.diff(ends), rel=1e-12)


def test_discrete_laplace_noise_has_mass_one_and_falls_by_its_scale() -> None:
    for scale in (0.5, 3.0):
        for far, group, shift in ((1, 9, 0.0), (2, 3, -3.0), (1, 2, 2.0)):
            law = poisson._whole_number_law(acc.DiscreteLaplace(scale), far, group, shift)
            room, moved = far * group, round(shift) * far
            k = np.arange(-1500, 1501)
            masses = math.tanh(0.5 / scale) * np.exp(-np.abs(k - moved) / scale)
            assert law.sum() == pytest.approx(1.0, rel=1e-12)
            # between the furthest shifts every number by itself, and all that lie beyond together
            assert law[1:-1] == pytest.approx(masses[np.abs(k) < room], rel=1e-12)
            assert law[0] == pytest.approx(masses[k <= -room].sum(), rel=1e-12)
            assert law[-1] == pytest.approx(masses[k >= room].sum(), rel=1e-12)


def test_a_lattice_of_epsilon_covers_what_is_asked() -> None:
    for low, high in ((0.0, 1.0), (-0.3, 0.77), (0.1, 5.0)):
        points = selection_bounds._lattice(low, high, 50)
        assert points[0] <= low
        assert points[-1] >= high


# -- quadratures of mixtures ----


@pytest.mark.parametrize("shift", [1.0, -1.0])
@pytest.mark.parametrize("c", [1.0, 20.0])
def test_layers_lie_below_the_density_of_the_tilted_loss(shift: float, c: float) -> None:
    # For one shift the loss is normal, also tilted, with the same spread: no layer may be higher than its peak.
    law = MixtureLoss(1.0, {shift: 1.0}, {0.0: 1.0}) if shift > 0 else MixtureLoss(1.0, {0.0: 1.0}, {-shift: 1.0})
    mass, width = law._layers(c)
    assert mass.sum() <= 1
    assert float((mass / width)[width > 0].max()) <= 1 / math.sqrt(2 * math.pi)
    for t in (0.5, 1.0, 2.0, 4.0):
        assert law.decay(c)(t) >= -0.5 * t * t - 1e-9


def test_moments_of_a_mixture_are_those_of_its_density() -> None:
    law = MixtureLoss(0.7, {0.0: 0.8, 1.0: 0.2}, {0.0: 1.0})
    x = np.linspace(-14.0, 16.0, 400_001)
    step = x[1] - x[0]
    p = 0.8 * stats.norm.pdf(x, 0, 1) + 0.2 * stats.norm.pdf(x, 1 / 0.7, 1)
    q = stats.norm.pdf(x, 0, 1)
    for c in (0.5, 2.0):
        for t in (0.0, 0.7, 3.0):
            true = np.log((p * np.exp((c + 1j * t) * np.log(p / q))).sum() * step)
            value, error = law.log_mgf(c, np.array([t]))
            assert abs(np.exp(value[0] - true) - 1) <= error[0] + 1e-9
