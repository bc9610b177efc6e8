"""Correlated noise: its sensitivity, its error and what is chosen for a run, by trying and by published values."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.linalg import toeplitz

from tacit import accounting as acc
from tacit.accounting import choose_bands
from tacit.accounting.correlated import Correlation, Workload, best_banded
from tacit.noise import Key, normal
from tacit.sgd import Banded, BandedInverse
from tacit.sgd.release import EarlierNoise
from tacit.sgd.training.optimizers import workload_of


def matrix(correlation: Correlation, steps: int) -> np.ndarray:
    return toeplitz(correlation.column(steps), np.zeros(steps))


def most_moved(correlation: Correlation, steps: int, participations: int, apart: int) -> float:
    """The largest squared norm over all patterns of participation, every gradient in one direction or its opposite."""
    columns = matrix(correlation, steps)
    worst = 0.0
    for count in range(1, participations + 1):
        for pattern in itertools.combinations(range(steps), count):
            if all(b - a >= apart for a, b in itertools.pairwise(pattern)):
                for signs in itertools.product((1.0, -1.0), repeat=count - 1):
                    moved = columns[:, pattern] @ np.array([1.0, *signs])
                    worst = max(worst, float(moved @ moved))
    return worst


@pytest.mark.parametrize(
    ("correlation", "exact"),
    [
        (Correlation((0.8, 0.6)), True),
        (BandedInverse(bands=3).correlation(9), True),
        (BandedInverse(coefficients=(1.0, -0.9)).correlation(9), True),
        (Correlation((1.0, 0.4, 0.3, 0.2)), True),
        (Correlation((0.5, 0.8, 0.1)), False),
        (Correlation((1.0, -0.5, 0.25)), False),
        (Correlation((1.0, 0.0, 0.9)), False),
    ],
)
@pytest.mark.parametrize(("participations", "apart"), [(1, 1), (2, 2), (3, 3), (3, 1), (2, 4)])
def test_no_pattern_of_participation_moves_more_than_is_priced(correlation, exact, participations, apart):
    """All patterns are tried. A falling minorant, or the column without its signs, would understate some of these."""
    worst = most_moved(correlation, 9, participations, apart)
    stated = correlation.squared_sensitivity(9, participations, apart)
    assert worst <= stated
    if exact:
        assert stated == pytest.approx(worst, rel=1e-9)


def test_columns_that_do_not_overlap_add_up_as_squares():
    pair = Correlation((0.8, 0.6))
    assert pair.squared_sensitivity(100, 7, 2) == pytest.approx(7.0)
    assert pair.squared_sensitivity(100, 2, 1) > 2.5


def test_what_the_search_finds_has_columns_that_are_not_longer_than_one():
    for bands, momentum in ((2, 0.0), (7, 0.0), (16, 0.9), (64, 0.0)):
        found = best_banded(bands, 300, Workload(momentum))
        assert 0.999 < math.sqrt(math.fsum(c * c for c in found.coefficients)) <= 1


@pytest.mark.parametrize(
    ("size", "batch", "steps", "delta", "published"),
    [
        (50_000, 500, 2_000, 1e-5, (0.957, 0.863, 0.706, 0.553, 0.431)),
        (60_000, 1_024, 1_170, 1e-5, (0.984, 0.921, 0.793, 0.638, 0.498)),
        (50_000, 4_096, 500, 1e-5, (1.0, 1.0, 0.980, 0.917, 0.800)),
        (1_000_000, 1_000, 2_000, 1e-6, (0.428, 0.351, 0.315, 0.294, 0.266)),
    ],
)
def test_the_predicted_error_is_that_of_the_table_or_less(size, batch, steps, delta, published):
    """Errors next to DP-SGD at equal ε, computed once by another program: at ε = 1, 2, 4, 8 and 16."""
    for epsilon, error in zip((1, 2, 4, 8, 16), published, strict=True):
        best = choose_bands(size, batch, steps, epsilon=epsilon, delta=delta, adjacency="add-remove")[0]
        assert best.error <= 1.01 * error


def test_the_noise_multipliers_are_those_of_the_table():
    """Of DP-SGD and of the number of bands that the other program chose, in the table's first row."""
    known = {1: (1.8428, 3.481, 4), 2: (1.1493, 2.708, 8), 4: (0.8225, 2.153, 16), 8: (0.6433, 1.736, 32)}
    for epsilon, (plain, banded, bands) in known.items():
        found = choose_bands(50_000, 500, 2_000, epsilon=epsilon, delta=1e-5, adjacency="add-remove")
        noise = {choice.bands: choice.noise_multiplier for choice in found}
        assert noise[1] == pytest.approx(plain, rel=2e-4)
        assert noise[bands] == pytest.approx(banded, rel=1e-3)


def test_a_run_of_jax_privacys_tests_costs_what_they_say():
    step = acc.PoissonSampled(acc.Gaussian(3.0), 0.1)
    assert acc.epsilon(step * 512, 1e-6, adjacency="add-remove").upper == pytest.approx(3.77, abs=0.005)


def test_bands_are_chosen_as_jax_privacy_chooses_them():
    assert choose_bands(1000, 100, 100, epsilon=20, delta=1e-6)[0].bands == 10
    assert choose_bands(1000, 100, 100, epsilon=0.1, delta=1e-6)[0].bands == 1


def test_as_many_bands_as_batches_cost_what_the_matrix_mechanism_costs():
    """b = N/B: every member of a group takes part, and the price is that of plain Gaussian noise for each round."""
    found = choose_bands(1000, 100, 100, epsilon=20, delta=1e-6, adjacency="zero-out")[0]
    plain = acc.calibrate(lambda z: acc.Gaussian(z) * 10, epsilon=20, delta=1e-6, adjacency="zero-out")
    assert found.noise_multiplier == pytest.approx(plain, rel=1e-6)


def test_the_error_is_that_of_the_noise_in_the_weights():
    """Against the matrices themselves: momentum and decay too."""
    steps, workload = 40, Workload(momentum=0.5, decay=0.1, rates=(0.4, 0.3, 0.1))
    for correlation in (best_banded(4, steps, workload), BandedInverse(bands=5).correlation(steps)):
        weights = workload.moved(steps).T @ np.linalg.inv(matrix(correlation, steps))
        assert correlation.error(steps, workload) == pytest.approx(math.sqrt((weights**2).sum() / steps))
        assert correlation.growth(steps) == pytest.approx((np.linalg.inv(matrix(correlation, steps)) ** 2).sum(1))


@pytest.mark.parametrize("nesterov", [False, True])
def test_the_workload_is_what_the_optimizer_and_its_schedule_make_of_gradients(nesterov):
    """Each gradient alone, given to torch itself; the caller's schedule does not move."""
    steps, found = 12, []
    for hit in range(steps):
        weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
        optimizer = torch.optim.SGD([weight], lr=0.5, momentum=0.8, weight_decay=0.2, nesterov=nesterov)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        workload = workload_of(optimizer, scheduler, steps)
        assert scheduler.last_epoch == 0
        for step in range(steps):
            weight.grad = torch.full_like(weight, float(step == hit))
            optimizer.step()
            scheduler.step()
            found.append(-float(weight.detach()))
    assert workload.moved(steps) == pytest.approx(np.array(found).reshape(steps, steps), abs=1e-12)


def test_a_search_for_the_schedule_beats_one_for_sums():
    workload = Workload(rates=tuple(np.linspace(1.0, 0.0, 200)))
    assert best_banded(16, 200, workload).error(200, workload) < 0.997 * best_banded(16, 200).error(200, workload)


def test_a_search_for_the_workload_beats_one_for_sums():
    workload = Workload(momentum=0.95)
    assert best_banded(8, 200, workload).error(200, workload) < 0.97 * best_banded(8, 200).error(200, workload)


@pytest.mark.parametrize("noise", [Banded(bands=4), BandedInverse(bands=3), Banded(coefficients=(3.0, 1.0, -0.5))])
def test_the_noise_has_the_covariance_that_is_priced(noise):
    """C⁻¹C⁻ᵀ, over 40,000 numbers: six standard deviations of each entry."""
    steps, count = 8, 40_000
    correlation, key = noise.correlation(steps), Key(bytes(range(32)))
    one, rows = EarlierNoise(correlation), []
    for step in range(steps):
        sums = {"weight": torch.zeros(count, dtype=torch.float64)}
        one.add_(sums, key, step, 1.0, None)
        rows.append(sums["weight"].numpy())
    inverse = np.linalg.inv(matrix(correlation, steps))
    wanted = inverse @ inverse.T
    found = np.array(rows) @ np.array(rows).T / count
    spread = np.sqrt((np.outer(np.diag(wanted), np.diag(wanted)) + wanted**2) / count)
    assert (np.abs(found - wanted) < 6 * spread).all()


@pytest.mark.parametrize("noise", [Banded(bands=3), BandedInverse(bands=3)])
def test_noise_is_a_function_of_key_and_step_alone(noise):
    """Step by step, from the middle (as a resumed run asks), and twice: the same bits."""
    correlation, key = noise.correlation(10), Key(bytes(range(32)))

    def at(one: EarlierNoise, step: int) -> torch.Tensor:
        sums = {"a": torch.zeros(5), "b": torch.zeros(2, 3)}
        one.add_(sums, key, step, 2.0, None)
        return torch.cat([s.flatten() for s in sums.values()])

    walked = EarlierNoise(correlation)
    in_order = [at(walked, step) for step in range(10)]
    assert torch.equal(at(walked, 9), in_order[9])
    resumed = EarlierNoise(correlation)
    assert torch.equal(at(resumed, 6), in_order[6])
    assert torch.equal(at(resumed, 7), in_order[7])


def test_seen_through_the_matrix_the_noise_is_that_of_the_key():
    correlation, key = Banded(bands=3).correlation(6), Key(bytes(range(32)))
    one, x = EarlierNoise(correlation), []
    for step in range(6):
        sums = {"w": torch.zeros(50, dtype=torch.float64)}
        one.add_(sums, key, step, 1.0, None)
        x.append(sums["w"].numpy())
    z = np.array([normal(key, step, "w", 50).numpy() for step in range(6)])
    assert matrix(correlation, 6) @ np.array(x) == pytest.approx(z, abs=1e-6)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Banded(bands=0),
        lambda: Banded(bands=True),
        lambda: Banded(bands=129),
        lambda: Banded(bands=3, coefficients=(1.0, 0.5)),
        lambda: Banded(coefficients=(0.0, 1.0)),
        lambda: Banded(coefficients=(1.0, math.nan)),
        lambda: BandedInverse(bands=2.5),
        lambda: BandedInverse(bands=3, coefficients=(1.0, -0.5)),
        lambda: Workload(momentum=1.0),
    ],
)
def test_what_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValueError, match=r"bands|coefficients|momentum"):
        wrong()


def test_groups_and_replacements_have_no_price():
    step = acc.CyclicPoissonSampled(acc.Gaussian(1.0), 0.1, 4)
    with pytest.raises(acc.AccountingError, match="neighbouring steps"):
        acc.epsilon(step * 3, 1e-5, group=2)
    with pytest.raises(acc.AdjacencyError, match="there or not"):
        acc.epsilon(step * 3, 1e-5, adjacency="replace-one")
    plain = acc.PoissonSampled(acc.Gaussian(1.0), 0.1)
    assert acc.epsilon(step * 3, 1e-5).upper == acc.epsilon(plain * 3, 1e-5).upper
    assert acc.from_dict((step * 3).to_dict()) == step * 3
