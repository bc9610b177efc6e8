"""Selection among a random number of runs: the published bound, and what must follow from it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from tacit import accounting as acc
from tacit.accounting import selection
from tacit.accounting.renyi import RenyiCurve

# Gaussian base of sensitivity 1: σ, η, E[K], δ, γ; ε of one run; of the selection by theorem 2, the privacy profile and
# the trade-off function. Computed outside this project, to six digits.
TABLE = [
    (5.0, 1.0, 10, 1e-6, 0.1, 0.834118, 1.813467, 1.580884, 1.291763),
    (5.0, 0.0, 10, 1e-6, 0.026918, 0.834118, 1.512850, 1.374113, 1.207568),
    (5.0, 0.5, 10, 1e-6, 0.0625, 0.834118, 1.671527, 1.488314, 1.254338),
    (2.0, 1.0, 20, 1e-5, 0.05, 1.993091, 4.688216, 4.157165, 3.474490),
    (10.0, 1.0, 30, 1e-6, 0.033333, 0.396857, 1.012293, 0.903404, 0.730365),
]


@pytest.mark.parametrize(("sigma", "eta", "runs", "delta", "gamma", "untuned", "renyi", "profile", "tradeoff"), TABLE)
def test_every_bound_has_its_published_value(
    sigma: float,
    eta: float,
    runs: int,
    delta: float,
    gamma: float,
    untuned: float,
    renyi: float,
    profile: float,
    tradeoff: float,
) -> None:
    base = acc.Gaussian(sigma)
    selected = acc.Selected.of(base, runs, distribution="negative-binomial", eta=eta)
    assert selected.gamma == pytest.approx(gamma, abs=1.01e-6)
    assert selected.runs == pytest.approx(runs, rel=1e-12)
    assert acc.epsilon(base, delta).upper == pytest.approx(untuned, abs=1.01e-6)
    prices = selected.prices(delta)
    assert prices["renyi"] == pytest.approx(renyi, abs=1.01e-6)
    assert prices["profile"] == pytest.approx(profile, abs=1.01e-6)
    assert prices["tradeoff"] == pytest.approx(tradeoff, abs=1.01e-6)
    price = acc.epsilon(selected, delta)
    assert price.upper == pytest.approx(min(prices.values()), rel=1e-6)
    assert untuned - 1e-5 <= price.lower <= price.upper < tradeoff  # the joint bound is tighter still


@pytest.mark.parametrize(
    ("sigma", "eta", "runs", "order", "value"),
    [(5, 1, 10, 8, 1.307327138), (5, 0, 10, 8, 1.006710227), (2, 1, 20, 4, 3.696324255), (1, 0.5, 10, 3, 5.433522614)],
)
def test_theorem_two_before_any_conversion(sigma: float, eta: float, runs: int, order: float, value: float) -> None:
    selected = acc.Selected.of(acc.Gaussian(float(sigma)), runs, distribution="negative-binomial", eta=eta)
    assert float(acc.renyi(selected, [order])[0]) == pytest.approx(value, abs=1e-9)
    # and the closed form for zero-concentrated DP
    rho, log = 1 / (2 * sigma**2), math.log(1 / selected.gamma)
    closed = rho * order + (1 + eta) * (2 * math.sqrt(rho * log) - rho) + math.log(runs) / (order - 1)
    assert value == pytest.approx(closed, abs=1e-9)


def _theorem_six(selected: acc.Selected, order: float) -> float:
    """The Rényi bound for a Poisson number of runs with δ' from Rényi divergences alone, as first published."""
    curve = RenyiCurve(selected.mechanism)
    c = np.array([order - 1])
    grid = np.exp(np.linspace(math.log(1e-1), math.log(1e4), 20_000))
    kappa = -grid * np.log1p(1 / grid) - np.log1p(grid)  # of the improved conversion
    log_delta = float(np.min(curve.moments(grid).max(axis=0) + kappa - np.log1p(1 / c) * grid))
    extra = selected.mean * math.exp(min(log_delta, 0.0)) + math.log(selected.mean) / float(c[0])
    return max(0.0, float(curve.moments(c).max() / c[0]) + extra)


def test_a_poisson_number_of_runs_by_profile_and_by_renyi_alone() -> None:
    selected = acc.Selected.of(acc.Gaussian(5.0), 10, distribution="poisson")
    prices = selected.prices(1e-6)
    assert prices["renyi"] == pytest.approx(1.612816, abs=1e-6)
    orders = np.linspace(21.0, 22.0, 101)
    divergences = np.array([_theorem_six(selected, float(order)) for order in orders])
    converted = divergences + np.log1p(-1 / orders) - (math.log(1e-6) + np.log(orders)) / (orders - 1)
    assert converted.min() == pytest.approx(1.980126, abs=1.01e-6)
    assert acc.epsilon(selected, 1e-6).upper <= min(prices.values()) * (1 + 1e-6) < 1.612


def test_selection_over_private_training_by_renyi() -> None:
    """DP-SGD with q = 0.01, σ = 1.1, 1,000 steps at δ = 1e-6."""
    base = acc.PoissonSampled(acc.Gaussian(1.1), 0.01) * 1000
    assert selection.renyi_price(base, 1e-6) == pytest.approx(1.976739, abs=1e-6)
    for law, value in (("geometric", 3.692602), ("logarithmic", 3.178674)):
        selected = acc.Selected.of(base, 10, distribution=law)
        assert selection.renyi_price(selected, 1e-6) == pytest.approx(value, abs=1e-6)
        assert acc.epsilon(selected, 1e-6).upper < 0.8 * value


def test_pure_candidates_cost_three_times_or_by_a_threshold_twice() -> None:
    """Liu & Talwar 2019: 3ε for returning the best, 2ε for the first above a threshold; (2+η)ε in general."""
    for runs in (1e3, 1e7):
        for law, factor in (("geometric", 3), ("threshold", 2), ("logarithmic", 2)):
            selected = acc.Selected.of(acc.PureDP(0.2), runs, distribution=law)
            price = acc.epsilon(selected, 1e-15).upper
            assert price <= factor * 0.2 * (1 + 1e-6), law
            assert price > (factor - 0.1) * 0.2 or runs < 1e6, law  # with many runs the factor is needed


def test_approximate_candidates_pay_their_failure_for_every_run() -> None:
    """(ε, δ) candidates under random stopping: 3ε (threshold: 2ε) at δ/γ, where the failures are small."""
    base = acc.ApproxDP(0.3, 1e-9)
    for law, factor in (("geometric", 3), ("threshold", 2)):
        selected = acc.Selected.of(base, 100, distribution=law)
        assert acc.epsilon(selected, 1.001e-7).upper <= factor * 0.3 * (1 + 1e-9)
        assert math.isinf(acc.epsilon(selected, 0.5e-9).upper)


# -- against laws that are known exactly ----


def exact_delta(p: np.ndarray, q: np.ndarray, selected: acc.Selected, epsilon: float) -> float:
    """δ(ε) of the selected result, of outcomes in ascending order of score with probabilities p and q."""

    def law(mass: np.ndarray) -> np.ndarray:
        if selected.distribution == "threshold":  # the upper half of the scores passes
            passing = np.arange(len(mass)) >= len(mass) // 2
            weight = np.where(passing, mass, 0.0)
            weight = np.append(weight, selected.gamma * mass[~passing].sum())
            return weight / (selected.gamma + (1 - selected.gamma) * mass[passing].sum())
        below = np.concatenate([[0.0], np.cumsum(mass)])
        below[-1] = 1.0
        if selected.distribution == "poisson":
            reached = np.exp(selected.mean * (below - 1))
            return np.append(np.diff(reached), math.exp(-selected.mean))
        x = 1 - (1 - selected.gamma) * below
        if selected.eta == 0:
            reached = np.log(x) / math.log(selected.gamma)
        else:
            reached = np.expm1(-selected.eta * np.log(x)) / math.expm1(-selected.eta * math.log(selected.gamma))
        return np.diff(reached)

    return float(np.maximum(law(p) - math.exp(epsilon) * law(q), 0).sum())


LAWS = st.one_of(
    st.tuples(
        st.just("negative-binomial"), st.integers(-80, 300).map(lambda n: n / 100), st.floats(0.01, 0.9), st.just(1.0)
    ),
    st.tuples(st.just("poisson"), st.just(1.0), st.just(0.5), st.floats(0.2, 40.0)),
    st.tuples(st.just("threshold"), st.just(1.0), st.floats(0.01, 0.9), st.just(1.0)),
)


@settings(max_examples=25, deadline=None)
@given(
    law=LAWS, mu=st.floats(0.05, 2.0), total=st.floats(0.0, 5.0), order=st.sampled_from(["up", "down", "odd", "random"])
)
def test_the_exact_law_of_a_toy_never_exceeds_the_bound(
    law: tuple[str, float, float, float], mu: float, total: float, order: str
) -> None:
    """The toy: a Gaussian release cut into 400 cells, each with a rank; its selected law is known in closed form."""
    distribution, eta, gamma, mean = law
    edges = np.concatenate([[-np.inf], np.linspace(-7, 7 + mu, 399), [np.inf]])
    p, q = np.diff(norm.cdf(edges, mu)), np.diff(norm.cdf(edges))
    n = np.arange(400)
    ranks = {"up": n, "down": n[::-1], "odd": np.argsort(n % 2, kind="stable")}
    rank = ranks.get(order, np.random.default_rng(int(mu * 1e6)).permutation(400))
    selected = acc.Selected(acc.GDP(mu), distribution, eta, gamma, mean)
    bound = acc.delta(selected, total)
    for one, two in ((p[rank], q[rank]), (q[rank], p[rank])):
        assert exact_delta(one, two, selected, total) <= bound.upper * (1 + 1e-9) + 1e-13  # rounding of the law
    if bound.upper < 0.5:  # δ back to ε: the two questions agree
        assert acc.epsilon(selected, max(bound.upper * 1.3, 1e-250)).upper <= total + 0.05 * (1 + total)


def test_the_bound_is_not_far_from_what_the_toy_attains() -> None:
    selected = acc.Selected(acc.GDP(0.2), eta=1.0, gamma=0.1)
    edges = np.concatenate([[-np.inf], np.linspace(-8, 8, 4001), [np.inf]])
    p, q = np.diff(norm.cdf(edges, 0.2)), np.diff(norm.cdf(edges))
    claimed = acc.epsilon(selected, 1e-6).upper
    attained = max(e for e in np.linspace(0, 2, 401) if exact_delta(p, q, selected, float(e)) >= 1e-6)
    assert 0.7 * claimed < attained <= claimed


def test_a_selection_composes_and_calibrates() -> None:
    """Total ε = 1 → base noise → priced back: at most 1 and within 1e-3 of it."""

    def family(noise: float) -> acc.Mechanism:
        return acc.Selected.of(acc.Gaussian(noise) + acc.Laplace(40.0), 10)

    noise = acc.calibrate(family, epsilon=1.0, delta=1e-6)
    assert 1 - 1e-3 <= acc.epsilon(family(noise), 1e-6).upper <= 1
    both = family(noise) + acc.Gaussian(5.0)
    assert 1 < acc.epsilon(both, 1e-6).upper < 0.99 * acc.accountants.rdp(both, 1e-6).epsilon


def test_the_bound_is_the_published_one_for_a_gaussian_base() -> None:
    """ε(λ) = λ/(2σ²), η = 1, γ = 0.1: the best second order by hand, on a fine grid."""
    sigma, gamma = 4.0, 0.1
    selected = acc.Selected(acc.Gaussian(sigma), eta=1.0, gamma=gamma)
    for order in (2.0, 8.0, 40.0):
        rho = 1 / (2 * sigma**2)
        seconds = np.linspace(1.01, 400, 400_000)
        best = np.min(2 * ((1 - 1 / seconds) * rho * seconds + math.log(1 / gamma) / seconds))
        expected = rho * order + best + math.log(1 / gamma) / (order - 1)
        (found,) = acc.renyi(selected, [order])
        assert found == pytest.approx(expected, rel=2e-3)
        assert found >= expected * (1 - 1e-9)  # any second order is valid, the best is not exceeded by much


def test_pure_dp_triples_under_geometric_stopping() -> None:
    """For a pure ε base the bound tends to (2 + η)ε (Papernot & Steinke 2022, corollary 3)."""
    bound = acc.epsilon(acc.Selected(acc.PureDP(0.1), eta=1.0, gamma=0.5), 1e-300)
    assert 0.1 < bound.upper <= 0.3 + 0.01
    assert not bound.tight


@pytest.mark.parametrize("eta", [-0.5, 0.0, 1.0, 2.0])
def test_expected_runs_are_the_law_s_own_mean(eta: float) -> None:
    gamma = 0.2
    k = np.arange(1, 4000)
    if eta == 0:
        mass = (1 - gamma) ** k / (k * math.log(1 / gamma))
    else:
        mass = np.cumprod((k - 1 + eta) / k) * (1 - gamma) ** k / (gamma**-eta - 1)
    assert mass.sum() == pytest.approx(1)
    assert acc.Selected(acc.Gaussian(1.0), eta=eta, gamma=gamma).runs == pytest.approx(float((k * mass).sum()))


@pytest.mark.parametrize("distribution", ["negative-binomial", "poisson"])
def test_selection_costs_more_than_one_run_and_composes(distribution: str) -> None:
    base = acc.PoissonSampled(acc.Gaussian(2.0), 0.01) * 500
    selected = acc.Selected(base, distribution=distribution)
    one = acc.epsilon(base, 1e-6).upper
    assert one < acc.epsilon(selected, 1e-6).upper < acc.epsilon(selected * 2, 1e-6).upper
    assert acc.from_dict(selected.to_dict()) == selected
    assert (selected + acc.Gaussian(5.0)).unit == "record"


def test_a_draw_from_a_grid_costs_the_mean_of_its_members() -> None:
    members = [acc.Gaussian(1.0), acc.PoissonSampled(acc.Gaussian(1.0), 0.1) * 10, acc.Laplace(2.0)]
    mixture = acc.one_of([*members, members[0]])
    expected = sum(w * acc.delta(m, 1.0).upper for m, w in zip(members, (0.5, 0.25, 0.25), strict=True))
    assert acc.delta(mixture, 1.0).upper == pytest.approx(expected, rel=1e-9)
    found = acc.epsilon(mixture, 1e-3).upper
    assert acc.delta(mixture, found).upper <= 1e-3 * (1 + 1e-9)
    assert acc.delta(mixture, found - 1e-3).upper > 1e-3
    assert acc.from_dict(mixture.to_dict()) == mixture
    divergence = float(acc.renyi(mixture, [2.0])[0])
    mean = sum(w * math.exp(acc.renyi(m, [2.0])[0]) for m, w in zip(members, (0.5, 0.25, 0.25), strict=True))
    assert divergence == pytest.approx(math.log(mean), rel=1e-9)
    assert acc.one_of([members[0]]) == members[0]


def test_wrong_parameters_are_named() -> None:
    for wrong in ({"eta": -1.0}, {"gamma": 1.0}, {"mean": 0.0}, {"distribution": "uniform"}):
        with pytest.raises(acc.AccountingError):
            acc.Selected(acc.Gaussian(1.0), **wrong)


@pytest.mark.parametrize("mean", [0.05, 0.3, 1.0, 4.0])
def test_a_poisson_number_of_runs_that_is_often_zero_pays_for_the_runs_there_are(mean: float) -> None:
    """With a score that is the same for all, what is released is one run with probability 1 - e^-mean, or nothing."""
    orders, nothing = np.array([1.5, 2.0, 3.0, 5.0, 10.0]), math.exp(-mean)
    for sigma in (1.0, 3.0):
        true = np.log(nothing + (1 - nothing) * np.exp((orders - 1) * orders / (2 * sigma**2))) / (orders - 1)
        claimed = acc.renyi(acc.Selected.of(acc.Gaussian(sigma), mean, distribution="poisson"), orders)
        assert (claimed >= true - 1e-12).all()
