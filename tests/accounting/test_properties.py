"""Inequalities that hold for all parameters, and other people's certified bounds."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit import accounting as acc
from tests.accounting.catalogue import poisson

rates = st.floats(-4, 0).map(lambda x: 10.0**x)
noises = st.floats(math.log(0.6), math.log(20.0)).map(math.exp)
steps = st.floats(0, 5).map(lambda x: round(10.0**x))
deltas = st.floats(-12, -2).map(lambda x: 10.0**x)
adjacencies = st.sampled_from(acc.ADJACENCIES)
few = settings(max_examples=15)


def _no_more(less: acc.Bound, more: acc.Bound) -> None:
    """The truth of the first is at most that of the second."""
    assert less.lower <= more.upper
    assert less.upper <= more.upper + less.width + more.width


@few
@given(rates, noises, steps, deltas, adjacencies, st.floats(1.0, 3.0))
def test_epsilon_is_monotone_in_every_parameter(
    rate: float, noise: float, count: int, delta: float, adjacency: str, factor: float
) -> None:
    def price(q: float = rate, s: float = noise, t: int = count, d: float = delta) -> acc.Bound:
        return acc.epsilon(poisson(q, s, t), d, adjacency=adjacency)

    base = price()
    assert base.lower <= base.upper
    if rate >= 1e-3 or noise >= 1.5 or rate * count >= 30:  # elsewhere docs/explanation/lattice-bounds.md says how wide
        assert base.width <= 1e-4 * base.upper + 1e-5
    _no_more(price(s=noise * factor), base)
    _no_more(base, price(t=math.ceil(count * factor)))
    _no_more(base, price(q=min(1.0, rate * factor)))
    _no_more(price(d=min(0.5, delta * factor)), base)


@few
@given(rates, noises, steps, deltas, st.floats(0.5, 50.0))
def test_more_releases_never_cost_less_and_order_does_not_matter(
    rate: float, noise: float, count: int, delta: float, scale: float
) -> None:
    run, release = poisson(rate, noise, count), acc.Laplace(scale)
    together = acc.epsilon(run + release, delta)
    _no_more(acc.epsilon(run, delta), together)
    turned = acc.epsilon(release + run, delta)
    assert turned.lower <= together.upper
    assert together.lower <= turned.upper
    # basic composition with a pure mechanism
    assert together.lower <= acc.epsilon(run, delta).upper + 1 / scale


@few
@given(noises, steps, deltas)
def test_no_sampling_meets_the_closed_form_of_one_gaussian(noise: float, count: int, delta: float) -> None:
    many = acc.epsilon(acc.Gaussian(noise) * count, delta)
    one = acc.epsilon(acc.GDP(math.sqrt(count) / noise), delta)
    assert many.lower <= one.upper
    assert one.lower <= many.upper


@settings(max_examples=6)
@given(rates, noises, steps, deltas, st.integers(2, 6))
def test_a_larger_group_costs_more(rate: float, noise: float, count: int, delta: float, group: int) -> None:
    run = poisson(rate, noise, count)
    _no_more(acc.epsilon(run, delta, group=group - 1), acc.epsilon(run, delta, group=group))


@few
@given(rates, noises, steps, deltas, adjacencies)
def test_every_other_bound_lies_above_the_truth(
    rate: float, noise: float, count: int, delta: float, adjacency: str
) -> None:
    table = acc.compare(poisson(rate, noise, count), delta, adjacency=adjacency)
    for price in table.prices.values():
        assert price.approximation or price.epsilon >= table["certified"].lower
    assert table["rdp"].epsilon <= table["moments"].epsilon * (1 + 1e-9)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    st.floats(-6, 0).map(lambda x: 10.0**x),
    st.floats(math.log(0.2), math.log(100.0)).map(math.exp),
    st.floats(0, 7).map(lambda x: round(10.0**x)),
    st.floats(-15, -2).map(lambda x: 10.0**x),
    adjacencies,
)
def test_the_interval_is_narrow_but_for_few_participations(
    rate: float, noise: float, count: int, delta: float, adjacency: str
) -> None:
    bound = acc.epsilon(poisson(rate, noise, count), delta, adjacency=adjacency)
    if rate >= 1e-3 or noise >= 1.5 or rate * count >= 30:
        assert bound.width <= 1e-4 * bound.upper + 1e-5
    else:
        # few participations at small rates: docs/explanation/lattice-bounds.md says where intervals are wide
        assert bound.width <= 0.6 * bound.upper + 1e-5


@pytest.mark.parametrize(
    ("rate", "noise", "count", "delta"),
    [
        (0.01, 1.0, 500, 1e-5),
        (0.05, 2.0, 300, 1e-6),
        (0.3, 4.0, 100, 1e-4),
        (1.0, 8.0, 200, 1e-5),
        (0.002, 0.7, 400, 1e-4),
    ],
)
def test_the_interval_meets_the_bracket_of_an_fft_accountant(
    rate: float, noise: float, count: int, delta: float
) -> None:
    """At these δ the rounding of an untilted FFT is harmless, so both of its ends are sound."""
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")

    def theirs(pessimistic: bool) -> float:
        one = pld.from_gaussian_mechanism(
            noise,
            pessimistic_estimate=pessimistic,
            value_discretization_interval=1e-3,
            sampling_prob=rate,
            use_connect_dots=pessimistic,
        )
        return float(one.self_compose(count).get_epsilon_for_delta(delta))

    bound = acc.epsilon(poisson(rate, noise, count), delta)
    assert theirs(pessimistic=False) <= bound.upper
    assert bound.lower <= theirs(pessimistic=True)


@pytest.mark.parametrize(("scale", "rate", "count"), [(1.0, 1.0, 20), (0.5, 0.1, 100), (2.0, 0.02, 200)])
def test_laplace_meets_the_bracket_of_an_fft_accountant(scale: float, rate: float, count: int) -> None:
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")

    def theirs(pessimistic: bool) -> float:
        one = pld.from_laplace_mechanism(
            scale,
            pessimistic_estimate=pessimistic,
            value_discretization_interval=1e-3,
            sampling_prob=rate,
            use_connect_dots=pessimistic,
        )
        return float(one.self_compose(count).get_epsilon_for_delta(1e-5))

    bound = acc.epsilon(acc.PoissonSampled(acc.Laplace(scale), rate) * count, 1e-5)
    assert theirs(pessimistic=False) <= bound.upper
    assert bound.lower <= theirs(pessimistic=True)
    assert bound.width <= 1e-4 * bound.upper + 1e-5


@pytest.mark.parametrize("group", [1, 2])
def test_much_noise_on_whole_numbers_costs_no_more_than_less_of_it(group: int) -> None:
    """Beyond sigma = 20,000 the price comes from Rényi bounds. Sampled, it was 3.08."""

    def price(sigma: float) -> float:
        run = acc.PoissonSampled(acc.DiscreteGaussian(sigma), 0.29) * 12
        return acc.epsilon(run, 1e-12, adjacency="replace-one", group=group).upper

    assert price(343_196.0) < min(price(300.0), 1e-3)


@pytest.mark.parametrize(("sigma", "times"), [(300.0, 10**5), (1000.0, 10**4)])
def test_many_counts_with_much_noise_cost_what_normal_noise_costs(sigma: float, times: int) -> None:
    """Atoms that no lattice carries left only the sum of the largest losses: ε was said to lie in [0, 384]."""
    whole = acc.epsilon(acc.DiscreteGaussian(sigma) * times, 1e-6)
    normal = acc.epsilon(acc.Gaussian(sigma) * times, 1e-6)
    assert whole.lower <= normal.lower <= normal.upper <= whole.upper * (1 + 1e-9)
    assert whole.width <= 1e-3 * normal.upper


@pytest.mark.parametrize("adjacency", acc.ADJACENCIES)
def test_a_batch_that_may_be_cut_costs_no_more_than_one_without_amplification(adjacency: str) -> None:
    """A group of three displaces three others at most. The price was infinite wherever a cut was likelier than δ."""
    cut = acc.TruncatedPoissonSampled(acc.Gaussian(50.0), 0.9, 1000, 905)
    moved = {"add-remove": 6, "replace-one": 6, "zero-out": 3}[adjacency]
    whole = acc.epsilon(acc.Gaussian(50.0) * 20, 1e-9, group=moved)
    price = acc.epsilon(cut * 20, 1e-9, adjacency=adjacency, group=3)
    assert price.upper <= whole.upper * (1 + 1e-9)
    at = acc.delta(cut * 20, 3.0, adjacency=adjacency, group=3)
    assert at.upper <= acc.delta(acc.Gaussian(50.0) * 20, 3.0, group=moved).upper * (1 + 1e-9)
    assert at.lower <= at.upper


def test_tails_of_many_atoms_are_those_of_their_sums() -> None:
    """They are kept for all ε at once where there are thousands of them."""
    import numpy as np

    from tacit.accounting.losses import AtomsLoss

    rng = np.random.default_rng(0)
    values, p = rng.normal(0.0, 40.0, 5000), rng.dirichlet(np.ones(5000))
    p[values > 100] *= 1e-250
    many, few = AtomsLoss(values, p, spacing=1.0), AtomsLoss(values, p, spacing=1.0)
    few.__dict__["_tails"] = None
    for x in (-200.0, -30.0, 0.0, 55.5, 120.0, 140.0, 1000.0):
        assert many.beyond(x) == pytest.approx(few.beyond(x), rel=1e-12, abs=1e-11)
