"""The parameter that meets a target: never above it, and hardly below."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit import accounting as acc
from tests.accounting.catalogue import poisson

B = 256 / 60000


def _met(family: Callable[[float], acc.Mechanism], value: float, epsilon: float, delta: float, **terms: object) -> None:
    spent = acc.epsilon(family(value), delta, **terms).upper
    assert epsilon - 1e-4 <= spent <= epsilon


def test_the_noise_of_a_known_run() -> None:
    noise = acc.calibrate(lambda noise: poisson(B, noise, 3515), epsilon=3.0, delta=1e-5)
    assert noise == pytest.approx(0.728197, abs=2e-6)


@pytest.mark.parametrize("epsilon", [0.01, 0.3, 1.0, 8.0, 50.0])
@pytest.mark.parametrize("terms", [{}, {"adjacency": "replace-one"}, {"group": 3}], ids=str)
def test_noise_meets_the_target_from_below(epsilon: float, terms: dict[str, object]) -> None:
    def family(noise: float) -> acc.Mechanism:
        return poisson(0.01, noise, 1000)

    _met(family, acc.calibrate(family, epsilon=epsilon, delta=1e-6, **terms), epsilon, 1e-6, **terms)


@settings(max_examples=15)
@given(
    st.floats(-3, 0).map(lambda x: 10.0**x),
    st.integers(1, 10_000),
    st.floats(math.log(0.6), math.log(20.0)).map(math.exp),
    st.floats(-9, -3).map(lambda x: 10.0**x),
)
def test_noise_meets_any_target(rate: float, steps: int, noise: float, delta: float) -> None:
    def family(noise: float) -> acc.Mechanism:
        return poisson(rate, noise, steps)

    epsilon = acc.epsilon(family(noise), delta).upper
    if epsilon > 1e-3:
        _met(family, acc.calibrate(family, epsilon=epsilon, delta=delta), epsilon, delta)


@pytest.mark.parametrize(
    "family",
    [
        lambda noise: acc.Gaussian(noise) * 100,
        lambda scale: acc.Laplace(scale) * 10,
        lambda scale: acc.PoissonSampled(acc.Laplace(scale), 0.1) * 30,
        lambda sigma: acc.DiscreteGaussian(sigma) * 10,
        lambda noise: acc.FixedSizeSampled(acc.Gaussian(noise), 256, 60000) * 500,
        lambda noise: acc.TruncatedPoissonSampled(acc.Gaussian(noise), B, 60000, 400) * 500,
        lambda noise: acc.BallsInBins(acc.Gaussian(noise), 10) * 3,
        lambda noise: acc.Votes(noise) * 50,
        lambda rho: acc.ZCDP(rho),
        lambda mu: acc.GDP(mu),
        lambda each: acc.PureDP(each) * 20,
        lambda each: acc.ExponentialMechanism(each) * 20,
        lambda noise: acc.Gaussian(noise) + acc.Laplace(2.0),
    ],
)
def test_every_kind_of_family_is_met_whichever_way_it_runs(family: Callable[[float], acc.Mechanism]) -> None:
    _met(family, acc.calibrate(family, epsilon=1.2, delta=1e-5), 1.2, 1e-5)


def test_the_number_of_steps_is_the_largest_that_fits() -> None:
    step = acc.PoissonSampled(acc.Gaussian(2.0), 0.01)
    for steps in (
        acc.calibrate_steps(step, epsilon=2.0, delta=1e-5),
        acc.calibrate(lambda steps: step * steps, epsilon=2.0, delta=1e-5),
    ):
        assert acc.epsilon(step * int(steps), 1e-5).upper <= 2.0 < acc.epsilon(step * (int(steps) + 1), 1e-5).upper


def test_the_rate_is_the_largest_that_fits() -> None:
    def family(rate: float) -> acc.Mechanism:
        return poisson(rate, 1.0, 1000)

    _met(family, acc.calibrate_rate(family, epsilon=2.0, delta=1e-6), 2.0, 1e-6)
    _met(family, acc.calibrate(family, epsilon=2.0, delta=1e-6), 2.0, 1e-6)
    assert acc.calibrate_rate(lambda rate: poisson(rate, 50.0, 10), epsilon=20.0, delta=1e-6) == 1.0


def test_delta_is_the_smallest_that_fits() -> None:
    run = poisson(B, 1.1, 3515)
    delta = acc.calibrate(run, epsilon=1.2)
    assert acc.epsilon(run, delta).upper <= 1.2 < acc.epsilon(run, delta * 0.999).upper
    assert acc.calibrate_delta(run, epsilon=1.2) == delta


def test_a_bracket_limits_the_search() -> None:
    def family(noise: float) -> acc.Mechanism:
        return acc.Gaussian(noise)

    _met(family, acc.calibrate(family, epsilon=1.0, delta=1e-5, bracket=(1.0, 10.0)), 1.0, 1e-5)
    with pytest.raises(acc.AccountingError, match="out of reach"):
        acc.calibrate(family, epsilon=1.0, delta=1e-5, bracket=(0.1, 1.0))
    with pytest.raises(acc.AccountingError, match="bracket"):
        acc.calibrate(family, epsilon=1.0, delta=1e-5, bracket=(1.0, 0.1))


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: acc.calibrate(lambda noise: acc.Gaussian(noise) + acc.Laplace(1.0), epsilon=0.5, delta=1e-5), "reach"),
        (
            lambda: acc.calibrate(lambda noise: acc.Gaussian(noise) + acc.ApproxDP(1, 0.1), epsilon=3, delta=1e-5),
            "reach",
        ),
        (lambda: acc.calibrate_steps(acc.Gaussian(1.0), epsilon=0.1, delta=1e-5), "out of reach"),
        (lambda: acc.calibrate(lambda noise: acc.PureDP(0.1), epsilon=0.5, delta=1e-5), "does not depend"),
        (lambda: acc.calibrate(acc.Gaussian, epsilon=0.0, delta=1e-5), "above 0"),
        (lambda: acc.calibrate(acc.Gaussian, epsilon=math.inf, delta=1e-5), "infinite"),
        (lambda: acc.calibrate(acc.Gaussian, epsilon=math.nan, delta=1e-5), "above 0"),
        (lambda: acc.calibrate(acc.Gaussian, epsilon=1.0), "delta"),
        (lambda: acc.calibrate(acc.Gaussian, epsilon=1.0, delta=2.0), "δ"),
        (lambda: acc.calibrate(lambda noise: noise, epsilon=1.0, delta=1e-5), "mechanism"),
        (lambda: acc.calibrate_delta(acc.Gaussian(0.0), epsilon=1.0), "no δ"),
    ],
)
def test_a_target_that_cannot_be_met_says_so(ask: Callable[[], float], words: str) -> None:
    with pytest.raises(acc.AccountingError, match=words):
        ask()


def test_a_handful_of_prices_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    from tacit.accounting import calibration

    asked = []
    price = calibration.epsilon_of
    monkeypatch.setattr(calibration, "epsilon_of", lambda *a, **k: asked.append(1) or price(*a, **k))
    acc.calibrate(lambda noise: poisson(B, noise, 3515), epsilon=3.0, delta=1e-5)
    assert len(asked) <= 10
