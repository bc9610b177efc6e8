"""The published bounds, to eight digits, against numbers computed with the reference code of the 2018 paper."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tacit import accounting as acc
from tacit.pate import ConfidentGNMax, GNMax, bounds
from tacit.pate.smooth import SmoothnessError, VoteSensitivity, smooth_sensitivity

ORDERS = [2, 8, 20, 32, 64]
CLEAR = [250] + [0] * 9
USUAL = [220, 20, 5, 5] + [0] * 6
SPLIT = [150, 60, 40] + [0] * 7

GNMAX = [
    (CLEAR, 40.0, -10.01922829, [1.527357263e-5, 2.05891333e-5, 5.321317752e-5, 2.034549876e-4, 1.093369227e-2]),
    (USUAL, 40.0, -7.339107138, [1.884574517e-4, 2.413734835e-4, 5.108903274e-4, 1.462765907e-3, 2.366030763e-2]),
    (SPLIT, 40.0, -2.209498785, [0.00125, 0.005, 0.0125, 0.02, 0.04]),
    ([190, 10], 20.0, -23.04291548, [1.211407545e-10, 4.576699366e-10, 4.965485387e-8, 9.943319359e-6, 0.116779936]),
]


def eight_digits(value: float) -> object:
    return pytest.approx(value, rel=5e-9)


@pytest.mark.parametrize(("votes", "sigma", "log_q", "divergences"), GNMAX)
def test_theorem_6_gives_the_reference_numbers(votes, sigma, log_q, divergences):
    found = bounds.log_q([votes], sigma)
    assert found[0] == eight_digits(log_q)
    assert bounds.theorem6(found, sigma, ORDERS)[0].tolist() == [eight_digits(v) for v in divergences]
    # integer orders once overflowed to negative divergences elsewhere
    assert bounds.theorem6(found, sigma, np.array(ORDERS, dtype=np.int8)).tolist() == (
        bounds.theorem6(found, sigma, ORDERS).tolist()
    )


def test_the_threshold_check_gives_the_reference_numbers():
    passed, _ = bounds.log_check([60], 300.0, 50.0)
    assert passed[0] == eight_digits(-14.04702889)
    expected = [1.774364183e-7, 2.135686661e-7, 3.608965904e-7, 7.515602086e-7, 1.021206827e-5]
    assert bounds.check_bound([60], 300.0, 50.0, ORDERS)[0].tolist() == [eight_digits(v) for v in expected]
    assert bounds.log_check([220], 200.0, 150.0)[0][0] == eight_digits(-0.5923337774)
    plain = [a / (2 * 150.0**2) for a in ORDERS]
    assert bounds.check_bound([220], 200.0, 150.0, ORDERS)[0].tolist() == [eight_digits(v) for v in plain]


def test_laplace_votes_give_the_reference_numbers():
    assert bounds.log_q_laplace([USUAL], 20.0)[0] == eight_digits(-7.420921251)
    expected = [1.259061226e-4, 1.495825347e-4, 2.41574297e-4, 4.689176103e-4, 4.518949278e-3]
    assert bounds.laplace_bound([USUAL], 20.0, ORDERS)[0].tolist() == [eight_digits(v) for v in expected]
    split = bounds.laplace_bound([[126, 124]], 20.0, [2.0, 64.0])[0]
    assert split.tolist() == pytest.approx([0.5 * 0.1**2 * 2, 0.1])  # q too large: the pure bound


def test_smooth_sensitivity_gives_the_reference_numbers():
    part = VoteSensitivity(sigma=40.0, classes=10, order=20.0, teachers=250)
    assert (part.log_q0, part.log_q1) == (eight_digits(-3.156873049), eight_digits(-3.260312837))
    local = part.at_distance([USUAL])
    expected = [6.367958319e-5, 6.81766433e-5, 8.946512829e-5, 2.364109095e-4, 8.181986343e-4]
    assert [local[d] for d in (0, 1, 5, 20, 50)] == [eight_digits(v) for v in expected]
    assert smooth_sensitivity(local, 0.02) == eight_digits(3.220160893e-4)


def test_the_release_of_a_sanitised_price_costs_what_the_worst_three_data_sets_cost():
    def cost(alpha: float, beta: float, sigma: float) -> float:
        return float(acc.renyi(acc.SmoothRelease(beta, sigma), [alpha])[0])

    def on_the_path(alpha: float, beta: float, sigma: float) -> float:
        """D_α from the second to the first of three data sets in a row with F = 0, 1, 1 + e^β, by integration."""
        local = [1.0, math.exp(beta), math.exp(beta)]
        smooth = [max(math.exp(-beta * abs(i - j)) * local[j] for j in range(3)) for i in range(3)]
        wide, narrow = smooth[1] * sigma, smooth[0] * sigma
        x = np.linspace(-60 * sigma, 60 * sigma, 400_001)
        p = -0.5 * ((x - 1) / wide) ** 2 - math.log(wide)
        q = -0.5 * (x / narrow) ** 2 - math.log(narrow)
        log_sum = np.logaddexp.reduce(alpha * p + (1 - alpha) * q) + math.log(x[1] - x[0]) - 0.5 * math.log(2 * math.pi)
        return float(log_sum) / (alpha - 1)

    assert cost(20.0, 0.02, 30.0) == eight_digits(0.068773154)
    assert cost(20.0, 0.02, 5.0) == pytest.approx(1.800, abs=5e-4)
    published = 20 * math.exp(0.04) / 25 + (0.4 - 0.5 * math.log(1 - 0.8)) / 19
    assert published == pytest.approx(0.896, abs=5e-4)  # the 2018 formula: less than half of the truth here
    for alpha, beta, sigma in ((20.0, 0.02, 30.0), (20.0, 0.02, 5.0), (4.0, 0.05, 3.0)):
        assert cost(alpha, beta, sigma) == pytest.approx(on_the_path(alpha, beta, sigma), rel=1e-6)
    assert math.isinf(cost(30.0, 0.02, 30.0))  # α(1 - e^{-2β}) above 1: no finite divergence
    assert cost(20.0, 0.02, 30.0) < 0.08653538917  # at σ = 30 the published formula is above the truth


def test_where_the_conditions_of_smoothness_fail_nothing_is_released():
    with pytest.raises(SmoothnessError):
        VoteSensitivity(sigma=2.0, classes=10, order=20.0, teachers=250)
    with pytest.raises(SmoothnessError):
        VoteSensitivity(sigma=40.0, classes=1, order=20.0, teachers=250)


def test_a_sanitised_price_is_published_at_an_order_whose_sensitivity_is_known() -> None:
    """The order that suits the data-independent price is 43.9 here, where the conditions of smoothness do not hold."""
    votes = np.tile([220, 20, 5, 5, 0, 0, 0, 0, 0, 0], (20, 1))
    found = GNMax(vote_noise=40.0, classes=10).answer(votes, queries=20, teachers=250).accounts.sanitise()
    assert 20 < found.order < 43
    with pytest.raises(SmoothnessError):  # what is asked for by name is not replaced
        GNMax(vote_noise=40.0, classes=10).answer(votes, queries=20, teachers=250).accounts.sanitise(order=43.9)


@pytest.mark.parametrize("wrong", ["40", True, None, math.nan, math.inf])
def test_noise_and_threshold_are_numbers(wrong: object) -> None:
    with pytest.raises(ValueError, match="number"):
        GNMax(vote_noise=wrong, classes=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="threshold must be a finite number"):
        ConfidentGNMax(threshold=wrong, check_noise=1.0, vote_noise=1.0, classes=3)  # type: ignore[arg-type]
