"""The certified interval contains the truth, computed independently in arbitrary precision."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from scipy.special import log_ndtr

from tacit import accounting as acc
from tacit.accounting import contour, crossing, lattice, mixture

from . import truth

rates = st.floats(math.log(1e-6), 0).map(math.exp)
noises = st.floats(math.log(0.2), math.log(100)).map(math.exp)
deltas = st.floats(math.log(1e-15), math.log(0.05)).map(math.exp)
counts = st.floats(0, math.log(1e7)).map(lambda x: int(math.exp(x)))


def brackets(low: float, true: object, high: float) -> bool:
    return mp.mpf(low) <= true <= mp.mpf(high)


@settings(max_examples=60, deadline=None)
@given(sigma=st.floats(-1.5, 6).map(math.exp), steps=counts, delta=deltas)
@example(sigma=20.0, steps=500, delta=1e-5)
def test_unsampled_gaussian_meets_its_closed_form(sigma: float, steps: int, delta: float) -> None:
    mu = math.sqrt(steps) / sigma
    bound = acc.epsilon(acc.Gaussian(sigma) * steps, delta)

    def log_delta(epsilon: float) -> float:
        a = log_ndtr(mu / 2 - epsilon / mu)
        b = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
        return a + math.log(-math.expm1(min(b - a, -1e-300)))

    assume(mu < 1e4)
    slack = 1e-9
    if bound.upper > 0:
        assert log_delta(bound.upper * (1 + 1e-12)) <= math.log(delta) + slack
    if bound.lower > 0:
        assert log_delta(bound.lower * (1 - 1e-12)) >= math.log(delta) - slack
    assert bound.width <= 1e-4 * bound.upper + 1e-5


@settings(max_examples=40, deadline=None)
@given(q=rates, sigma=noises, epsilon=st.floats(-6, 3).map(math.exp))
def test_one_sampled_step_meets_its_closed_form(q: float, sigma: float, epsilon: float) -> None:
    with mp.workdps(40):
        exact = max(truth.one_step(mp.mpf(q), mp.mpf(sigma), mp.mpf(epsilon), d) for d in ("remove", "add"))
    assume(exact > 1e-250)
    bound = acc.delta(acc.PoissonSampled(acc.Gaussian(sigma), q), epsilon)
    assert brackets(bound.lower, exact, bound.upper)
    assert bound.width <= 1e-6 * bound.upper + 1e-300


@settings(max_examples=60, deadline=None)
@given(each=st.floats(-5, 1).map(math.exp), times=st.integers(1, 300), delta=deltas)
@example(each=0.3, times=8, delta=1e-7)
@example(each=2.0, times=20, delta=1e-5)
def test_pure_dp_meets_the_binomial_law(each: float, times: int, delta: float) -> None:
    """Randomised response, summed term by term: the worst case of pure DP."""
    bound = acc.epsilon(acc.PureDP(each) * times, delta)

    def exact(epsilon: float) -> float:
        yes = 1 / (1 + math.exp(-each))
        total = 0.0
        for k in range(times + 1):
            loss = each * (2 * k - times)
            if loss > epsilon:
                log_p = math.lgamma(times + 1) - math.lgamma(k + 1) - math.lgamma(times - k + 1)
                log_p += k * math.log(yes) + (times - k) * math.log1p(-yes)
                total += math.exp(log_p) * -math.expm1(epsilon - loss)
        return total

    assert exact(bound.upper) <= delta * (1 + 1e-9)
    if bound.lower > 0:
        assert exact(bound.lower) >= delta * (1 - 1e-9)
    assert bound.width <= 1e-4 * bound.upper + 1e-5


TWO = [(0.01, 1.0, 0.2), (0.3, 0.7, 1.0), (0.001, 0.5, 0.5), (0.5, 3.0, 0.3), (1e-4, 0.3, 3.0), (0.9, 1.5, 2.0)]


@pytest.mark.parametrize(
    ("q", "sigma", "epsilon"), [pytest.param(*one, marks=[pytest.mark.slow] if one[0] > 0.1 else []) for one in TWO]
)
def test_two_steps_meet_a_numerical_integral(q: float, sigma: float, epsilon: float) -> None:
    exact = max(truth.two_steps(q, sigma, epsilon, d) for d in ("remove", "add"))
    bound = acc.delta(acc.PoissonSampled(acc.Gaussian(sigma), q) * 2, epsilon)
    assert brackets(bound.lower, exact, bound.upper), (bound, exact)


MANY = [(256 / 60000, 1.1, 3515, 1e-5), (0.01, 2.0, 72824, 1e-5), (0.5, 10.0, 1000, 1e-5), (0.01, 8.0, 5370, 1e-12)]


@pytest.mark.slow
@pytest.mark.parametrize(("q", "sigma", "steps", "delta"), MANY)
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_many_steps_meet_the_inversion_integral_in_forty_digits(
    q: float, sigma: float, steps: int, delta: float, direction: str
) -> None:
    part = acc.PoissonSampled(acc.Gaussian(sigma), q)
    loss = part.pair("add-remove", direction)
    assert loss is not None
    low, high = crossing.Crossing(
        contour.contour_for([(loss, steps)], log_delta=math.log(delta)), (0.0, 0.0), 0.0, delta
    ).interval()
    assert truth.many_steps(q, sigma, steps, low, direction) >= mp.mpf(delta) * (1 - mp.mpf("1e-15"))
    assert truth.many_steps(q, sigma, steps, high, direction) <= mp.mpf(delta) * (1 + mp.mpf("1e-15"))
    assert high - low <= 1e-6


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(q=rates, sigma=noises, epsilon=st.floats(-5, 2.5).map(math.exp))
def test_two_steps_hold_over_all_parameters(q: float, sigma: float, epsilon: float) -> None:
    q = min(q, 0.999)
    exact = max(truth.two_steps(q, sigma, epsilon, d) for d in ("remove", "add"))
    assume(exact > 1e-30)
    bound = acc.delta(acc.PoissonSampled(acc.Gaussian(sigma), q) * 2, epsilon)
    assert brackets(bound.lower, exact, bound.upper), (bound, exact)


@settings(max_examples=30, deadline=None)
@given(q=st.floats(-7, -0.5).map(math.exp), sigma=st.floats(-0.5, 2).map(math.exp), steps=counts, delta=deltas)
def test_the_lattice_contains_what_the_contour_finds(q: float, sigma: float, steps: int, delta: float) -> None:
    """Two methods with different proofs and different code agree, for the dominating and the dominated law."""
    loss = acc.PoissonSampled(acc.Gaussian(sigma), q).pair("add-remove", "remove")
    assert loss is not None
    try:
        fine = contour.contour_for([(loss, steps)], log_delta=math.log(delta))
    except (contour.Unsuitable, OverflowError):
        assume(False)
    low, high = crossing.Crossing(fine, (0.0, 0.0), 0.0, delta).interval()
    assume(high < 100)
    refinement = lattice.Refinement([(loss, steps)], log_delta=math.log(delta), epsilon=None)
    curve = refinement.curve(1 << 14)
    lattice_low, lattice_high = crossing.Crossing(curve, (0.0, 0.0), 0.0, delta).interval()
    assert lattice_low <= high
    assert low <= lattice_high


@settings(max_examples=25, deadline=None)
@given(q=rates, sigma=noises, steps=counts, delta=deltas, adjacency=st.sampled_from(["add-remove", "replace-one"]))
@example(q=1.261722094086844e-06, sigma=1.3188380987558117, steps=9844216, delta=3.4592e-12, adjacency="add-remove")
@example(q=1.0, sigma=0.2, steps=10**7, delta=1e-15, adjacency="replace-one")
def test_any_run_has_a_finite_interval(q: float, sigma: float, steps: int, delta: float, adjacency: str) -> None:
    bound = acc.epsilon(acc.PoissonSampled(acc.Gaussian(sigma), q) * steps, delta, adjacency=adjacency)
    assert 0 <= bound.lower <= bound.upper < math.inf
    plain = acc.epsilon(acc.Gaussian(sigma) * steps, delta, adjacency=adjacency)
    assert bound.lower <= plain.upper, "sampling never costs more"


@pytest.mark.parametrize("rate", [1e-9, 1e-5, 0.3, 1 - 1e-9])
@pytest.mark.parametrize("shifts", [[0.0, 0.01], [-0.01, 0.0], [0.0, 1.5], [0.0, 0.02, 0.04], [0.0, 2.0, 4.0]])
def test_the_loss_of_a_sampled_step_keeps_its_digits_where_it_is_next_to_nothing(
    rate: float, shifts: list[float]
) -> None:
    # millions of steps, tilted by thousands, multiply what is lost here
    groups = len(shifts) - 1
    with mp.workdps(40):
        q = mp.mpf(rate)
        exact = [mp.binomial(groups, j) * q**j * (1 - q) ** (groups - j) for j in range(groups + 1)]
    if shifts[-1] == 0:
        exact.reverse()
    x = np.linspace(-9.0, 9.0, 25)
    found = mixture._log_mixture(x, np.array(shifts), np.array([float(w) for w in exact]))
    with mp.workdps(40):
        for at, value in zip(x, found, strict=True):
            powers = [mp.mpf(s) * mp.mpf(at) - mp.mpf(s) ** 2 / 2 for s in shifts]
            terms = [w * mp.exp(v) for w, v in zip(exact, powers, strict=True)]
            truth = mp.log1p(mp.fsum(w * mp.expm1(v) for w, v in zip(exact, powers, strict=True)))
            sway = mp.fsum(t * (abs(s * at) + s * s / 2) for t, s in zip(terms, shifts, strict=True)) / mp.fsum(terms)
            assert abs(value - truth) <= 6 * 2.0**-53 * (abs(truth) + sway)
