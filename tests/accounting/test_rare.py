"""Runs in which a record rarely takes part, δ near 1, and memory that does not grow with the question."""

from __future__ import annotations

import subprocess
import sys

import mpmath as mp
import numpy as np
import pytest

from tacit import accounting as acc
from tacit.accounting import levels
from tacit.accounting import poisson as poisson_sampling
from tacit.accounting.levels import Levels
from tacit.accounting.over_levels import Block
from tacit.accounting.pricing import Reader
from tests.accounting import truth
from tests.accounting.catalogue import poisson


def _loss(rate: float, noise: float, adjacency: str = "add-remove", group: int = 1):  # type: ignore[no-untyped-def]
    return acc.PoissonSampled(acc.Gaussian(noise), rate).pair(adjacency, "remove", group)


@pytest.mark.parametrize(
    ("rate", "noise", "epsilon", "adjacency", "group"),
    [
        (1e-4, 0.6, 0.5, "add-remove", 1),
        (4e-4, 0.83, 0.43, "replace-one", 1),
        (1.8e-4, 0.96, 0.44, "replace-one", 1),
        (1e-5, 0.5, 1.0, "add-remove", 3),
        (9e-5, 0.79, 2.0, "add-remove", 1),
    ],
)
def test_levels_of_one_step_contain_its_exact_delta(
    rate: float, noise: float, epsilon: float, adjacency: str, group: int
) -> None:
    loss = _loss(rate, noise, adjacency, group)
    exact, error = loss.profile(epsilon)
    low, high = Levels([(loss, 1)], epsilon=epsilon).interval(epsilon)
    assert low <= exact + error
    assert exact - error <= high
    assert high - low < 1e-4 * exact


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "noise", "epsilon"), [(9.2e-5, 0.52, 0.72), (1e-3, 0.6, 0.3)])
def test_levels_of_two_steps_contain_the_integral_over_the_first(rate: float, noise: float, epsilon: float) -> None:
    exact = float(truth.two_steps(rate, noise, epsilon, "remove", 22))
    low, high = Levels([(_loss(rate, noise), 2)], epsilon=epsilon).interval(epsilon)
    assert low * (1 - 1e-12) <= exact <= high * (1 + 1e-12)
    assert high - low < 1e-5 * exact


def test_both_moments_of_a_band_are_as_exact_as_is_said() -> None:
    """Of a band that is far rarer than what lies below it, only its own moment has fewer digits."""
    loss = _loss(3e-6, 0.6747)
    cut, low, c = 10.7, 8.88, 10.18
    band = loss.cut_at(cut, 40.0 / loss.loss_at(cut))
    (log_a, off_a, a), (log_b, off_b, b) = band.band_line(low, c, np.array([0.0, 1.0]))
    assert abs(a[0] - 1) <= off_a  # a line begins at its moment: no part of it is left out
    assert abs(b[0] - 1) <= off_b
    log_moments, off = band.band(low, np.array([c]))[:2], band.band(low, np.array([c]))[2:]
    assert off_a < 1e-11 < off_b < 1e-5
    shift, rate = 1 / mp.mpf(0.6747), mp.mpf(3e-6)

    def moment(kept) -> mp.mpf:  # type: ignore[no-untyped-def]
        def integrand(x: mp.mpf) -> mp.mpf:
            return kept(x) * mp.npdf(x) * (1 - rate + rate * mp.exp(shift * x - shift**2 / 2)) ** (c + 1)

        return mp.quad(integrand, [-12, -6, -2, 0, 2, 4, 6, 7, 8, *(mp.mpf(x) / 8 for x in range(66, 92)), 12])

    with mp.workdps(30):
        below = moment(lambda x: mp.ncdf((low - x) / band.soft))
        inside = moment(lambda x: mp.ncdf((cut - x) / band.soft) - mp.ncdf((low - x) / band.soft))
        assert abs(mp.log(below) - log_a) <= off_a
        assert abs(mp.log(inside) - log_b) <= off_b
        for exact, log, error in zip((below, inside), log_moments, off, strict=True):
            assert abs(mp.log(exact) - log[0]) <= error[0]


def test_a_logarithm_that_loses_its_digits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrong version: numpy's own log1p of complex numbers, which put δ outside its interval by three in 10,000."""
    loss, epsilon = _loss(1.8e-4, 0.963, "replace-one"), 0.4358
    monkeypatch.setattr(levels, "_log1p", np.log1p)
    exact, _ = loss.profile(epsilon)
    low, high = Levels([(loss, 1)], epsilon=epsilon).interval(epsilon)
    assert not low <= exact <= high


def test_a_band_that_is_left_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrong version: runs whose largest loss lies in one of the bands do not count."""
    loss, epsilon = _loss(1e-4, 0.6), 0.5
    exact, _ = loss.profile(epsilon)
    curve = Levels([(loss, 1)], epsilon=epsilon)
    curve.bands.pop()
    assert curve.interval(epsilon)[1] < exact


@pytest.mark.parametrize(
    ("run", "delta", "low", "high"),
    [
        (poisson(1e-4, 0.6, 2000), 1e-6, 0.2744115, 0.3302824),
        (poisson(1e-4, 0.6, 2000) + acc.Laplace(10.0), 1e-6, 0.3149953, 0.3801430),
        (poisson(1e-5, 0.6, 100), 1e-8, 0.02944199, 0.02948257),
        # a band that is far rarer than the cluster, much noise beside little of it, and a sample of whole numbers
        (poisson(3e-6, 0.6747, 208_830) + poisson(2.4e-6, 6.774, 99), 7e-13, 0.18509, 0.19039),
        (poisson(1e-5, 0.7451, 5) + poisson(1e-5, 23.77, 154_983) + poisson(4e-5, 23.5, 92_770), 9e-14, 0.0450, 0.1891),
        (
            poisson(4e-5, 11.464, 1_119_268) + acc.PoissonSampled(acc.DiscreteGaussian(9.28), 0.2186),
            4.27e-8,
            0.1231,
            0.1242,
        ),
    ],
)
def test_rare_participation_is_narrow_and_inside_what_the_lattice_said(
    run: acc.Mechanism, delta: float, low: float, high: float
) -> None:
    bound = acc.epsilon(run, delta)
    assert low <= bound.lower
    assert bound.upper <= high
    assert bound.width <= 1e-4 * bound.upper


def test_a_root_is_found_from_where_the_sum_of_a_cluster_has_no_number() -> None:
    run = acc.PureDP(1.60238 - 5.35669373e-07) + poisson(
        7.74853e-05 * (1 + 1.30400005e-06), 2.05323 + 3.61595055e-07, 12
    )
    assert 1.60238 < acc.epsilon(run, 3.0120746022969916e-12, adjacency="replace-one").upper < 1.61


def test_the_curve_over_few_participations_has_every_count() -> None:
    """It had 20 counts of 2,000, and between them an interval of up to 0.041."""
    step = acc.PoissonSampled(acc.Gaussian(0.6), 1e-4)
    _check_curve(step, acc.epsilon_over_steps(step, 2000, 1e-6), [1, 2, 3, 17, 80, 81, 399, 400, 1203, 1999])


def test_so_has_that_of_a_group_where_runs_without_a_large_loss_weigh_too() -> None:
    step = acc.PoissonSampled(acc.Gaussian(0.9), 1e-4)
    _check_curve(step, acc.epsilon_over_steps(step, 1500, 1e-6, group=3), [1, 40, 299, 1100])


def _check_curve(step: acc.Mechanism, curve: acc.StepCurve, some: list[int]) -> None:
    assert curve.steps.tolist() == list(range(1, int(curve.steps[-1]) + 1))
    assert (curve.upper - curve.lower <= 1e-4 * curve.upper + 1e-5).all()
    for steps in some:
        alone, here = acc.epsilon(step * steps, curve.delta, group=curve.group), curve.at(steps)
        assert here.lower <= alone.upper
        assert alone.lower <= here.upper


@pytest.mark.parametrize(
    ("rate", "noise", "adjacency", "delta"),
    [(1e-4, 0.6, "add-remove", 1e-6), (1e-5, 0.7, "add-remove", 1e-8), (4e-4, 0.83, "replace-one", 1e-7)],
)
def test_the_first_of_a_block_of_counts_contains_its_exact_price(
    rate: float, noise: float, adjacency: str, delta: float
) -> None:
    """And the wrong version, in which one of the levels does not count."""
    step = acc.PoissonSampled(acc.Gaussian(noise), rate)
    loss = step.pair(adjacency, "remove")
    block = Block([(loss, 1)], 1, 4, delta, acc.epsilon(step * 4, delta, adjacency=adjacency).upper)
    low, high = block.bounds(np.arange(1.0, 5.0))
    one, error = loss.profile(float(high[0]))
    assert one - error <= delta
    one, error = loss.profile(float(low[0]))
    assert one + error >= delta
    assert (high - low <= 1e-4 * high + 1e-5).all()
    ends = np.cumsum([0, *(len(line.z) for line in block.lines)])
    terms = block.kernel * np.exp(block.power / 4 - block.z * high[0]) * (block.whole + np.expm1(block.inside / 4))
    largest = int(np.argmax(np.add.reduceat(terms.real, ends[:-1])))
    block.kernel[ends[largest] : ends[largest + 1]] = 0.0
    wrong = float(block._certified(np.ones(1), 0.9 * high[:1], 1.0)[1][0])
    assert loss.profile(wrong)[0] > 1.05 * delta


def test_a_run_of_counts_has_the_sums_that_each_has_alone() -> None:
    """Each count's terms are made of those of the one before; the last of a run would show what is lost on the way."""
    step = acc.PoissonSampled(acc.Gaussian(0.6), 1e-4)
    block = Block([(step.pair("add-remove", "remove"), 1)], 400, 2000, 1e-6, acc.epsilon(step * 2000, 1e-6).upper)
    counts = np.arange(1744.0, 2000.0)
    at = 0.31 + 5e-5 * (counts - counts[0])
    together = block._sums(counts, at, 5e-5, 1e-5)
    alone = block._sums(counts[-1:], at[-1:], 0.0, 1e-5)
    np.testing.assert_allclose(together[:, -1:], alone, rtol=1e-10)
    np.testing.assert_allclose(alone[1], block._sums(counts[-1:], at[-1:] - 1e-5, 0.0, 0.0)[0], rtol=1e-11)


# -- δ near 1 ----


def _response_delta(epsilon: float, times: int, at: float) -> float:
    """δ of randomised response ``times`` times, in forty digits."""
    with mp.workdps(40):
        yes = 1 / (1 + mp.exp(-epsilon))
        total = mp.mpf(0)
        for k in range(times + 1):
            loss = epsilon * (2 * k - times)
            if loss > at:
                total += mp.binomial(times, k) * yes**k * (1 - yes) ** (times - k) * (1 - mp.exp(at - loss))
        return float(total)


@pytest.mark.parametrize(("epsilon", "times", "at"), [(1.0, 50, 1.0), (0.3, 400, 2.0), (2.0, 30, 0.0)])
def test_delta_near_one_has_an_answer(epsilon: float, times: int, at: float) -> None:
    bound = acc.delta(acc.PureDP(epsilon) * times, at)
    exact = _response_delta(epsilon, times, at)
    assert bound.lower <= exact * (1 + 1e-12)
    assert exact <= bound.upper * (1 + 1e-12)
    assert bound.width <= 1e-4


def test_thirty_laplace_releases_have_a_total_variation() -> None:
    bound = acc.delta(acc.Laplace(1.0) * 30, 0.0)
    assert 0.98 < bound.lower <= bound.upper < 0.984
    assert bound.width <= 2e-4


CALLS = """
acc.delta(acc.PureDP(1.0) * 50, 1.0)
acc.profile(acc.Laplace(0.5) * 30, [0.0, 10.0, 40.0])
acc.epsilon(acc.Selected(acc.PureDP(1.0) * 40), 1e-6)
acc.delta(acc.PureDP(1.0) * 10**6, 100.0)
acc.delta(acc.ApproxDP(1.0, 1e-3) * 30 + acc.PureDP(0.37) * 11, 0.1)
sampled = acc.PoissonSampled(acc.Laplace(1.0), 0.01)
acc.epsilon(sampled * 1000, 1e-5, tolerance=1e-13)  # the finest lattice there is
acc.epsilon(acc.PoissonSampled(acc.Gaussian(0.3), 1e-5) * 3000 + sampled * 100, 1e-9, tolerance=1e-13)
acc.epsilon(acc.DiscreteGaussian(3000.0) * 10**6 + acc.DiscreteLaplace(7.0), 1e-6, tolerance=1e-12)
acc.epsilon(acc.FixedSizeSampled(acc.Gaussian(1.1), 256, 60000) * 3515, 1e-5, adjacency="zero-out", tolerance=1e-12)
cut = acc.TruncatedPoissonSampled(acc.Gaussian(1.084), 3.87e-4, examples=5165, max_batch=7)
acc.epsilon(cut * 148, 2e-4, adjacency="replace-one")
acc.epsilon(acc.PoissonSampled(acc.Laplace(3.0), 0.01) * 10**6 + acc.DiscreteGaussian(20000.0) * 5, 1e-9)
acc.epsilon(sum((acc.DiscreteGaussian(20000.0 - i) * 2 for i in range(8)), acc.nothing()), 1e-9)
acc.epsilon(acc.PoissonSampled(acc.DiscreteGaussian(20000.0), 0.01) * 100, 1e-9, group=20)
acc.epsilon(acc.PoissonSampled(acc.DiscreteLaplace(1e7), 0.01) * 100, 1e-9, adjacency="replace-one")
acc.epsilon(acc.PoissonSampled(acc.DiscreteGaussian(20000.0, sensitivity=10**7), 0.01) * 100, 1e-6, group=2)
many = sum((acc.PoissonSampled(acc.DiscreteGaussian(20000.0 - i), 0.01) * 10 for i in range(6)), acc.nothing())
acc.epsilon(many, 1e-6)
"""
PEAK = """
import resource
import tacit.accounting as acc
import scipy.special, numpy.fft
start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
{calls}
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start) / 1024)
"""


def _peak(calls: str) -> float:
    """How many MB a process needs for some prices, beyond what it takes to start."""
    done = subprocess.run([sys.executable, "-c", PEAK.format(calls=calls)], capture_output=True, text=True, check=True)
    return float(done.stdout)


@pytest.mark.slow
def test_memory_is_bounded_whatever_is_asked() -> None:
    assert _peak(CALLS) < 256


def test_memory_does_not_grow_with_the_scale_of_discrete_noise() -> None:
    """Every outcome within 700 scales was listed: 104 GiB for this one."""
    sampled = "acc.PoissonSampled(acc.DiscreteLaplace(1e7), 0.01) * 100"
    assert _peak(f'acc.epsilon({sampled}, 1e-9, adjacency="replace-one")') < 100


def test_many_laws_of_discrete_noise_are_not_held_at_once() -> None:
    """Each has a quarter of a million outcomes."""
    run = acc.DiscreteGaussian(4000.0) + acc.DiscreteGaussian(3999.0) * 2 + acc.DiscreteGaussian(3998.0)
    kept = [part.pair("add-remove", "remove") for part, _ in run.parts()]
    assert all(not any(isinstance(x, np.ndarray) for x in vars(loss).values()) for loss in kept)
    price, continuous = acc.epsilon(run, 1e-6), acc.epsilon(acc.Gaussian(2000.0), 1e-6)
    assert price.lower == pytest.approx(continuous.upper, rel=1e-3)
    assert price.width < 1e-4 * price.upper


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_a_group_with_many_outcomes_costs_no_less_than_with_all_of_them(
    adjacency: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a group's outcomes would be too many, laws of fewer outcomes that dominate them take their place."""
    run = acc.PoissonSampled(acc.DiscreteGaussian(12.3), 0.05) * 40
    exact = acc.epsilon(run, 1e-6, adjacency=adjacency, group=3)
    poisson_sampling._sampled_pair.cache_clear()
    monkeypatch.setattr(poisson_sampling, "MOST_OUTCOMES", 2400)
    monkeypatch.setattr(poisson_sampling, "MOST_SEEN", 200)
    fewer = acc.epsilon(run, 1e-6, adjacency=adjacency, group=3)
    poisson_sampling._sampled_pair.cache_clear()
    assert exact.upper * (1 - 1e-6) <= fewer.upper <= 1.02 * exact.upper
    assert 0.9 * exact.lower <= fewer.lower <= exact.lower * (1 + 1e-6)


@pytest.mark.parametrize(
    "run",
    [
        acc.PoissonSampled(acc.Gaussian(1.1), 0.01) * 1000,
        acc.PoissonSampled(acc.Gaussian(0.6), 1e-4) * 2000,
        acc.DiscreteGaussian(3.0) * 4 + acc.Laplace(4.0),
    ],
    ids=repr,
)
def test_what_a_curve_is_asked_first_does_not_change_what_it_says(run: acc.Mechanism) -> None:
    """Draws and selections read δ at many ε; which curve answers was once decided by what had been asked before."""
    at = [0.0, 0.05, 0.21, 0.33, 0.5, 0.52, 1.4]
    forwards, backwards = Reader(run, "add-remove", 1), Reader(run, "add-remove", 1)
    assert [forwards.upper(x) for x in at] == [backwards.upper(x) for x in reversed(at)][::-1]


def test_few_uses_of_much_discrete_noise_cost_what_they_are_worth() -> None:
    """A lattice of all its atoms was refused, and ε was said to lie in [0, 0.0096]."""
    price = acc.epsilon(acc.DiscreteGaussian(20000.0) * 5, 1e-9)
    continuous = acc.epsilon(acc.Gaussian(20000.0) * 5, 1e-9)
    assert price.lower <= continuous.upper <= price.upper * (1 + 1e-6)
    assert price.width < 1e-4 * continuous.upper
