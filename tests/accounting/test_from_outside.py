"""What a stranger asks of the accountant: numbers out of numpy, extreme runs, lower ends that are lower, units kept."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit import accounting as acc
from tacit.accounting.derived import SampledLoss
from tacit.accounting.losses import LaplaceLoss
from tacit.accounting.poisson import Accumulated
from tests.accounting.catalogue import poisson


@pytest.mark.parametrize(
    "build",
    [
        lambda: acc.Gaussian(True),
        lambda: acc.PoissonSampled(acc.Gaussian(1.0), True),
        lambda: acc.ApproxDP(1.0, "1e-5"),
        lambda: acc.ApproxDP(1.0, True),
        lambda: acc.DiscreteGaussian(2.0, sensitivity=math.nan),  # type: ignore[arg-type]
        lambda: acc.DiscreteGaussian(2.0, sensitivity=math.inf),  # type: ignore[arg-type]
        lambda: acc.DiscreteGaussian(2.0, sensitivity=1.5),  # type: ignore[arg-type]
        lambda: acc.DiscreteGaussian(2.0, replace=2.5),  # type: ignore[arg-type]
        lambda: acc.FixedSizeSampled(acc.Gaussian(1.0), 2.5, 10),  # type: ignore[arg-type]
        lambda: acc.TruncatedPoissonSampled(acc.Gaussian(1.0), 0.1, 100, 12.5),  # type: ignore[arg-type]
        lambda: acc.BallsInBins(acc.Gaussian(1.0), "4"),  # type: ignore[arg-type]
        lambda: acc.Selected(acc.Gaussian(1.0), gamma="0.1"),  # type: ignore[arg-type]
        lambda: acc.Either(acc.Gaussian(1.0), acc.Gaussian(2.0), share="half"),  # type: ignore[arg-type]
        lambda: acc.Gaussian(1.0, unit=""),
        lambda: acc.Gaussian(1.0, unit=None),  # type: ignore[arg-type]
        lambda: acc.Gaussian(1.0) * 10**400,
        lambda: acc.delta(acc.Gaussian(1.0), True),
        lambda: acc.epsilon(acc.Gaussian(1.0), 1e-5, tolerance="fine"),  # type: ignore[arg-type]
        lambda: acc.calibrate(acc.Gaussian, epsilon=True, delta=1e-5),
    ],
)
def test_what_is_no_number_of_the_right_kind_is_refused(build: Callable[[], object]) -> None:
    with pytest.raises(acc.AccountingError):
        build()


def test_numbers_out_of_numpy_are_the_numbers_they_are() -> None:
    """They used to stay numpy's: no JSON, so no ledger entry, and another repr."""
    step = acc.PoissonSampled(acc.Gaussian(np.float32(2.0)), np.float64(0.25), unit="record") * np.int64(3)
    assert step == acc.PoissonSampled(acc.Gaussian(2.0), 0.25) * 3
    assert acc.from_dict(json.loads(json.dumps(step.to_dict()))) == step
    assert repr(acc.Gaussian(np.int64(2))) == "Gaussian(2)"
    for target in (np.float32(1.0), np.int64(1)):
        assert acc.calibrate(acc.Gaussian, epsilon=target, delta=1e-5) == acc.calibrate(
            acc.Gaussian, epsilon=1.0, delta=1e-5
        )
    assert Accumulated(acc.PoissonSampled(acc.Gaussian(2.0), 0.25), np.int64(2)).draws == 2
    assert json.dumps(acc.epsilon(acc.Gaussian(2.0), np.float32(1e-5), group=np.int64(3)).to_dict())
    curve = acc.epsilon_over_steps(acc.Gaussian(20.0), np.int64(5), np.float32(1e-5), group=np.int64(2))
    assert json.dumps(curve.to_dict())


@given(st.floats(0.125, 4.0, width=32))
@settings(max_examples=20, deadline=None)
def test_a_delta_for_a_float32_holds_in_float64(epsilon: float) -> None:
    """The price used to be rounded to float32 before it was compared with the target."""
    mechanism = acc.Gaussian(1.5)
    found = acc.calibrate_delta(mechanism, epsilon=np.float32(epsilon))
    assert found == acc.calibrate_delta(mechanism, epsilon=epsilon)


@pytest.mark.parametrize("made", [acc.Selected, lambda m, unit: acc.Either(m, m, unit=unit)])
def test_what_protects_a_record_cannot_be_relabelled_as_protecting_a_person(made: Callable[..., object]) -> None:
    with pytest.raises(acc.UnitError, match="record"):
        made(acc.Gaussian(1.0), unit="person")
    assert made(acc.Gaussian(1.0, unit="person"), unit="person").unit == "person"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("mechanism", "at_least"),
    [
        (acc.Selected(acc.ApproxDP(1.0, 1e-5)), 1e-5),
        (acc.Selected(acc.Gaussian(0.0)), 1.0),
        (acc.Selected(acc.Gaussian(0.0)) + acc.Gaussian(1.0), 1.0),
        (acc.Either(acc.ApproxDP(1.0, 0.3), acc.Gaussian(1.0)) * 2, 1 - 0.85**2),
    ],
)
def test_failures_inside_a_selection_count_at_an_infinite_epsilon(mechanism: acc.Mechanism, at_least: float) -> None:
    """δ(∞) is the chance that all is revealed; it was 0 for everything without a pair of its own."""
    assert at_least * (1 - 1e-12) <= acc.delta(mechanism, math.inf).upper <= 1


def test_delta_is_a_probability_where_batches_are_cut() -> None:
    cut = acc.TruncatedPoissonSampled(acc.Laplace(1.0), 0.1, 100, 12)
    assert acc.delta(cut, math.inf).upper == 1.0


def test_a_blank_moves_a_fixed_size_sample_by_one_only() -> None:
    """Where every record is drawn nothing is sampled: the price is that of the mechanism itself."""
    whole = acc.FixedSizeSampled(acc.Gaussian(1.0), 1000, 1000)
    plain = acc.epsilon(acc.Gaussian(1.0), 1e-5, adjacency="zero-out")
    assert acc.epsilon(whole, 1e-5, adjacency="zero-out") == plain
    nearly = acc.epsilon(acc.FixedSizeSampled(acc.Gaussian(1.0), 999, 1000), 1e-5, adjacency="zero-out")
    assert 0.999 * plain.lower < nearly.lower <= nearly.upper <= plain.upper
    assert not nearly.tight


def test_the_lower_end_knows_how_far_apart_two_records_can_lie() -> None:
    """Votes of two people are √2 apart: a sampled release reveals no more than the whole one."""
    votes = acc.Gaussian(1.0, replace=math.sqrt(2))
    whole = acc.epsilon(votes, 1e-5, adjacency="replace-one")
    sampled = acc.epsilon(acc.PoissonSampled(votes, 0.9999), 1e-5, adjacency="replace-one")
    assert 0.99 * whole.lower < sampled.lower <= whole.upper
    assert not sampled.tight


def test_a_first_lattice_that_is_far_too_coarse_is_not_the_last() -> None:
    """The loss of a step is about q e^x: ten million of them have a standard deviation of 1e-6. It was 560,050."""
    assert acc.epsilon(poisson(1e-9, 3.0, 10**7), 1e-5).upper < 1e-5


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_sampled_laplace_noise_has_no_mass_beyond_its_smallest_and_largest_loss(direction: str) -> None:
    """Rounding left 1e-17 there; no lattice reaches that far out, and δ of a composition was in [0, 1]."""
    loss = SampledLoss(LaplaceLoss(1 / 8.219200993263463), 0.14342486613558342, direction)
    for masses in loss.cells(np.array([-5.0, 5.0])):
        assert masses[0] == masses[2] == 0


@pytest.mark.parametrize("delta", [1e-6, 1e-12])
def test_a_tiny_target_is_met_and_met_closely(delta: float) -> None:
    """Newton's method left for negative ε and the interval was twice too wide; calibration then never ended."""
    noise = acc.calibrate(acc.Gaussian, epsilon=1e-6, delta=delta)
    found = acc.epsilon(acc.Gaussian(noise), delta)
    assert 0.999e-6 < found.lower <= found.upper <= 1e-6


def test_a_family_that_jumps_over_the_target_is_calibrated_to_the_edge() -> None:
    noise = acc.calibrate(lambda noise: acc.PureDP(1.0 if noise < 7.3 else 0.5), epsilon=0.7, delta=1e-9)
    assert 7.3 <= noise < 7.3 * (1 + 1e-9)


@pytest.mark.parametrize(
    ("mechanism", "truth"),
    [
        (acc.PureDP(1e4), 1e4),
        (acc.Laplace(1 / 800), 800.0),
        (acc.PureDP(800.0) * 3, 2400.0),
        (acc.ApproxDP(1000.0, 1e-7), 1000.0),
        (acc.ExponentialMechanism(2000.0), 2000.0),
        (acc.PoissonSampled(acc.Laplace(1 / 800), 0.01), 800 + math.log(0.01)),
        (acc.PureDP(800.0) + acc.Gaussian(1.0), 800 + 4.886554),
    ],
)
def test_a_guarantee_that_protects_next_to_nothing_is_finite_all_the_same(
    mechanism: acc.Mechanism, truth: float
) -> None:
    """Beyond e^700 the price was said to be infinite, at both ends."""
    found = acc.epsilon(mechanism, 1e-6)
    assert found.lower <= truth
    assert found.upper == pytest.approx(truth, rel=1e-5)


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1.0, 5.0])
def test_bounded_range_costs_as_much_as_its_worst_two_outcomes(epsilon: float) -> None:
    # the loss {t, t - ε} whose higher value has the Q-mass p; far below any δ the worst of them has a tiny p
    p = np.exp(np.linspace(-45.0, -1e-9, 40_001))
    loss = -np.log(p + (1 - p) * math.exp(-epsilon))
    for delta in (1e-6, 1e-9, 1e-13):
        claimed = acc.epsilon(acc.ExponentialMechanism(epsilon), delta).upper
        attained = p * np.exp(loss) * np.maximum(-np.expm1(claimed - loss), 0.0)
        assert attained.max() <= delta * (1 + 1e-3)


@pytest.mark.parametrize("terms", [{"adjacency": "replace-one"}, {"group": 2}])
def test_next_to_no_laplace_noise_on_a_sample_has_a_price(terms: dict[str, Any]) -> None:
    step = acc.PoissonSampled(acc.Laplace(0.001), 0.1)
    assert acc.epsilon(step, 1e-5, **terms).upper == pytest.approx(2 * (1000 + math.log(0.1)), rel=1e-4)
    none = acc.PoissonSampled(acc.Laplace(0.0), 0.1)
    assert acc.renyi(none, [2.0], **terms).tolist() == [math.inf]
    assert math.isinf(acc.compare(none, 1e-5, **terms)["rdp"].epsilon)


def test_a_pass_over_chunks_pays_for_batches_that_are_cut() -> None:
    cut = acc.TruncatedPoissonSampled(acc.Laplace(3.0), 0.05, 1_000, 90)
    terms: dict[str, Any] = {"adjacency": "replace-one"}
    assert cut.extra_delta() > 0
    assert acc.delta(acc.Shuffled(cut) * 3, 0.5, **terms).upper == acc.delta(cut * 3, 0.5, **terms).upper


def test_a_discrete_gaussian_on_large_sums_is_priced_at_once() -> None:
    # incomes up to 100,000: hundreds of millions of outcomes, and next to no difference from the continuous Gaussian
    for sigma, sensitivity in ((5e6, 100_000), (60_000.0, 1), (1e12, 10**12)):
        price = acc.epsilon(acc.DiscreteGaussian(sigma, sensitivity=sensitivity) * 10, 1e-6)
        smooth = acc.epsilon(acc.Gaussian(sigma / sensitivity) * 10, 1e-6)
        assert not price.tight
        assert smooth.lower <= price.upper <= 1.2 * smooth.upper + 1e-3
