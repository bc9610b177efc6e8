"""Balls in bins, batches of a fixed or a largest size, and shuffled passes, against truths computed in another way."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import norm

from tacit import accounting as acc
from tacit.accounting import even_sums, passes
from tacit.accounting.batches import BlankedLoss, DisplacedLoss
from tacit.accounting.passes import PassLoss
from tacit.accounting.pricing import delta_of_orders

#: δ, σ, bins, passes, and the interval of a prototype whose rounding was not bounded.
TABLE = [
    (1e-5, 1.0, 10, 1, 2.18876, 2.18900),
    (1e-5, 1.0, 100, 1, 0.62088, 0.62106),
    (1e-5, 1.0, 1000, 1, 0.13880, 0.13893),
    (1e-5, 0.5, 1000, 1, 3.13389, 3.13514),
    (1e-5, 1.0, 10, 10, 6.11646, 6.11745),
    (1e-5, 1.0, 100, 10, 1.70115, 1.70198),
    (1e-5, 1.1, 235, 15, 1.09191, 1.09268),
    (1e-6, 0.8, 1000, 10, 0.91627, 0.91736),
    (1e-5, 0.6, 500, 20, 4.21267, 4.21540),
    (1e-5, 5.0, 50, 200, 1.57196, 1.57229),
]
QUICK = {(10, 1), (10, 10)}


@pytest.mark.parametrize(
    "row", [pytest.param(row, marks=() if row[2:4] in QUICK else pytest.mark.slow) for row in TABLE], ids=str
)
def test_the_price_of_passes_is_certified_on_both_ends(row: Any) -> None:
    delta, sigma, bins, times, low, high = row
    price = acc.epsilon(acc.BallsInBins(acc.Gaussian(sigma), bins) * times, delta)
    assert price.tight
    assert price.lower <= high
    assert price.upper >= low
    assert price.width <= 1e-3 * max(1.0, price.upper)
    assert price.upper < acc.epsilon(acc.PoissonSampled(acc.Gaussian(sigma), 1 / bins) * (bins * times), delta).lower


@pytest.mark.parametrize(
    ("sigma", "bins", "times", "epsilon", "removed", "added"),
    [(1.0, 10, 1, 0.5, (0.02679, 0.00014), (0.01903, 0.0001)), (0.7, 20, 3, 1.0, (0.0911, 0.0003), (0.0615, 0.0002))],
)
def test_both_directions_agree_with_a_simulation(sigma, bins, times, epsilon, removed, added) -> None:
    """The values are of 400,000 draws, computed once elsewhere; six standard deviations."""
    _, *ends = delta_of_orders(acc.BallsInBins(acc.Gaussian(sigma), bins) * times, epsilon)
    for (low, high), (value, deviation) in zip(ends, (removed, added), strict=True):
        assert low - 6 * deviation <= value <= high + 6 * deviation
        assert high - low < 2e-3 * high


def two_bins(sigma: float, epsilon: float) -> tuple[float, float]:
    """E(R - e^ε)₊ and E(1 - e^ε R)₊ for R the mean of two: the formula of Black and Scholes in one of them, quadrature
    in the other."""
    z = np.linspace(-12.0, 14.0 + 1 / sigma, 400_001)
    weight = norm.pdf(z) * (z[1] - z[0])
    x = np.exp(z / sigma - 0.5 / sigma**2)

    def call(strike):
        safe = np.maximum(strike, 1e-300)
        d = (-np.log(safe) + 0.5 / sigma**2) * sigma
        return np.where(strike > 0, ndtr(d) - strike * ndtr(d - 1 / sigma), 1 - strike)

    removed = 0.5 * float(weight @ call(2 * math.exp(epsilon) - x))
    strike = 2 * math.exp(-epsilon) - x
    added = 0.5 * math.exp(epsilon) * float(weight @ np.where(strike > 0, call(strike) - 1 + strike, 0.0))
    return removed, added


@pytest.mark.parametrize("sigma", [0.4, 1.0, 6.0])
@pytest.mark.parametrize("epsilon", [0.05, 0.7, 2.0])
def test_two_bins_have_the_delta_of_a_formula(sigma: float, epsilon: float) -> None:
    exact = two_bins(sigma, epsilon)
    for mixture_is_p, wanted in zip((True, False), exact, strict=True):
        if wanted < 1e-12:
            continue
        above, below = PassLoss(sigma, 2, mixture_is_p=mixture_is_p).ends(500, 1e-20)
        low, high = below.hockey_stick(epsilon)[0], above.hockey_stick(epsilon)[1]
        assert low * (1 - 1e-9) <= wanted <= high * (1 + 1e-9)
        assert high - low < 2e-2 * high


# -- the sums themselves: laws on a few points, all outcomes enumerated ----


def summed(law: passes._Law, terms: int, step: float, finer: int, *, above: bool) -> tuple[passes._Law, float]:
    """The mean of as many copies, by halves, as :mod:`tacit.accounting.passes` adds them."""
    laws = {1: law}

    def of(m: int) -> passes._Law:
        if m not in laws:
            laws[m] = passes._add(of(m // 2), of(m - m // 2), step, 1, above)
        return laws[m]

    last = passes._add(of(terms // 2), of(terms - terms // 2), step, finer, above)
    return last, step / finer


def enumerated(points: np.ndarray, mass: np.ndarray, terms: int) -> tuple[np.ndarray, np.ndarray]:
    values, weights = [], []
    for chosen in itertools.product(range(len(points)), repeat=terms):
        values.append(points[list(chosen)].mean())
        weights.append(mass[list(chosen)].prod())
    return np.array(values), np.array(weights)


def calls(values: np.ndarray, weights: np.ndarray, strikes: np.ndarray) -> np.ndarray:
    """E(R - k)₊ and E(k - R)₊ for every k."""
    away = values[None, :] - strikes[:, None]
    return np.concatenate([np.maximum(away, 0.0) @ weights, np.maximum(-away, 0.0) @ weights])


def ends_of_sum(seed: int, terms: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """E(R - k)₊ and E(k - R)₊ for many k: from below, exactly, and from above."""
    rng = np.random.default_rng(seed)
    step, finer = float(rng.uniform(0.02, 0.4)), int(rng.integers(1, 4))
    first, width = int(rng.integers(-30, 10)), int(rng.integers(3, 40))
    places = np.sort(rng.choice(width, size=3, replace=False))
    mass = np.zeros(width)
    mass[places] = rng.dirichlet([1, 1, 1])
    points = np.exp(step * (first + np.arange(width)))
    values, weights = enumerated(points[places], mass[places], terms)
    strikes = np.linspace(values.min() * 0.9, values.max() * 1.05, 60)
    exact = calls(values, weights, strikes)
    up, grid = summed(passes._Law(1, first, mass, None, (0.0, 0.0), 0.0), terms, step, finer, above=True)
    high = calls(np.exp(up.points(grid)), up.mass, strikes)
    down, _ = summed(passes._Law(1, first, mass, mass * points, (0.0, 0.0), 0.0), terms, step, finer, above=False)
    keep = down.mass > 0
    low = calls(down.moment[keep] / down.mass[keep], down.mass[keep], strikes)
    return low, exact, high


@pytest.mark.parametrize("terms", [2, 3, 5])
@pytest.mark.parametrize("seed", range(4))
def test_sums_are_bounded_in_convex_order(seed: int, terms: int) -> None:
    low, exact, high = ends_of_sum(seed, terms)
    assert (low <= exact * (1 + 1e-9) + 1e-13).all()
    assert (exact <= high * (1 + 1e-9) + 1e-13).all()


def test_a_grid_that_rounds_down_or_loses_the_mean_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = passes._Splits

    class Down(real):  # everything to the grid point below
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.up, self.down, self.far = np.zeros_like(self.up), np.ones_like(self.down), len(self.up)

    class Even(real):  # half to either side, whatever the mean
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.up, self.down, self.far = np.full_like(self.up, 0.5), np.full_like(self.down, 0.5), len(self.up)

    for wrong in (Down, Even):
        monkeypatch.setattr(passes, "_Splits", wrong)
        assert any((exact > high * (1 + 1e-6)).any() for _, exact, high in (ends_of_sum(s, 5) for s in range(4))), wrong


def test_a_lower_law_that_is_not_made_of_means_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The upper law claimed as the lower one."""
    found = [ends_of_sum(seed, 3) for seed in range(4)]
    assert any((high > exact * (1 + 1e-6)).any() for _, exact, high in found)


def test_masses_and_means_are_kept_and_what_is_left_out_is_counted() -> None:
    for sigma, bins in ((0.3, 7), (1.0, 64), (20.0, 1000)):
        above, below = PassLoss(sigma, bins, mixture_is_p=True).ends(500, 1e-20)
        for pair in (above, below):
            assert pair.p.sum() == pytest.approx(1, abs=1e-7)
            assert pair.q.sum() == pytest.approx(1, abs=1e-7)
        assert 0 < above.infinity <= 1e-20
        assert above.p.sum() >= 1 - 1e-12
        assert below.p.sum() <= 1 + 1e-12


def test_two_passes_cost_more_than_one_and_fewer_bins_than_more() -> None:
    step = acc.Gaussian(1.5)
    prices = [
        acc.epsilon(acc.BallsInBins(step, bins) * times, 1e-5) for bins, times in ((8, 1), (8, 2), (4, 2), (1, 2))
    ]
    assert all(one.upper < other.lower for one, other in itertools.pairwise(prices))
    assert prices[-1] == acc.epsilon(step * 2, 1e-5)


def test_balls_in_bins_compose_with_other_mechanisms_and_are_written_down() -> None:
    run = acc.BallsInBins(acc.Gaussian(2.0), 6) * 2 + acc.Laplace(20.0)
    alone = acc.epsilon(acc.BallsInBins(acc.Gaussian(2.0), 6) * 2, 1e-5)
    price = acc.epsilon(run, 1e-5)
    assert alone.upper < price.lower < price.upper < alone.upper + 0.05
    assert acc.from_dict(run.to_dict()) == run


def test_what_no_theorem_covers_is_priced_as_if_the_batch_were_known() -> None:
    step = acc.Gaussian(2.0)
    bins = acc.BallsInBins(step, 6)
    assert (
        acc.epsilon(bins, 1e-5, adjacency="replace-one").upper == acc.epsilon(step, 1e-5, adjacency="replace-one").upper
    )
    assert acc.epsilon(bins, 1e-5, group=3).upper == acc.epsilon(step, 1e-5, group=3).upper
    assert not acc.epsilon(bins, 1e-5, group=3).tight
    tiny = acc.epsilon(acc.BallsInBins(acc.Gaussian(0.01), 6), 1e-5)
    assert tiny.upper == acc.epsilon(acc.Gaussian(0.01), 1e-5).upper


@pytest.mark.parametrize("sigma", [1e-3, 0.1, 1e3])
@pytest.mark.parametrize("bins", [2, 10**6])
def test_extreme_noise_and_many_bins_have_a_price(sigma: float, bins: int) -> None:
    price = acc.epsilon(acc.BallsInBins(acc.Gaussian(sigma), bins), 1e-6, tolerance=0.1)
    assert 0 <= price.lower <= price.upper <= acc.epsilon(acc.Gaussian(sigma), 1e-6).upper * (1 + 1e-6)


# -- the same law by FFT ----


def even(sigma: float, bins: int, *, mixture_is_p: bool) -> tuple[passes.FinitePair, passes.FinitePair]:
    passes._even_pairs.cache_clear()
    even_sums.even_laws.cache_clear()
    found = passes._even_pairs(sigma, bins, 1e-12, 0, mixture_is_p)
    assert found is not None
    return found[:2]


def misses_the_formula(sigma: float, epsilon: float) -> bool:
    """Whether what is said of two bins contradicts the formula."""
    wrong = False
    for mixture_is_p, wanted in zip((True, False), two_bins(sigma, epsilon), strict=True):
        above, below = even(sigma, 2, mixture_is_p=mixture_is_p)
        low, high = below.hockey_stick(epsilon)[0], above.hockey_stick(epsilon)[1]
        wrong = wrong or not low * (1 - 1e-9) <= wanted + 1e-12 or not wanted <= high * (1 + 1e-9)
    return wrong


@pytest.mark.parametrize("sigma", [1.0, 1.5, 6.0])
@pytest.mark.parametrize("epsilon", [0.05, 0.7, 2.0, 4.0])
def test_even_sums_of_two_bins_have_the_delta_of_a_formula(sigma: float, epsilon: float) -> None:
    assert not misses_the_formula(sigma, epsilon)
    if sigma < 6 or epsilon < 0.5:
        wanted = two_bins(sigma, epsilon)[0]
        above, below = even(sigma, 2, mixture_is_p=True)
        assert above.hockey_stick(epsilon)[1] < wanted * 1.01 + 1e-11
        assert below.hockey_stick(epsilon)[0] > wanted * 0.98 - 1e-11


def contradiction(seed: int) -> bool:
    """Whether sums on an even grid and those on a geometric one contradict each other, for random noise and bins."""
    rng = np.random.default_rng(seed)
    sigma, bins = float(np.exp(rng.uniform(math.log(0.65), math.log(12)))), int(np.exp(rng.uniform(2.1, 5.5)))
    largest = 3.0 / sigma / math.sqrt(bins)
    for mixture_is_p in (True, False):
        one = even(sigma, bins, mixture_is_p=mixture_is_p)
        other = PassLoss(sigma, bins, mixture_is_p=mixture_is_p).ends(1000, 1e-20)
        for epsilon in (0.0, 0.2 * largest, largest, 3 * largest):
            (_, high), (low, _) = one[0].hockey_stick(epsilon), one[1].hockey_stick(epsilon)
            (_, other_high), (other_low, _) = other[0].hockey_stick(epsilon), other[1].hockey_stick(epsilon)
            if low > other_high or other_low > high:
                return True
            if other_low > 1e-7 and epsilon > 0 and high - low > other_high - other_low:
                return True  # it is there because it is narrower
    return False


@pytest.mark.parametrize("seed", range(8))
def test_even_sums_agree_with_those_on_a_geometric_grid(seed: int) -> None:
    assert not contradiction(seed)


def test_even_sums_that_are_wrong_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = even_sums._cells

    def down(*args: Any) -> Any:  # everything to the lower end of its cell
        cells = real(*args)
        return dataclasses.replace(cells, down=cells.q, up=np.zeros_like(cells.up))

    def large_ones_forgotten(*args: Any) -> Any:
        cells = real(*args)
        kept = np.arange(len(cells.q)) < cells.large
        return dataclasses.replace(cells, down=cells.down * kept, up=cells.up * kept)

    def record_forgotten(*args: Any) -> Any:  # from below: a large term that is the record's, twice
        cells = real(*args)
        more = np.where(np.arange(len(cells.q)) < cells.large, 1.0, 1.2)
        return dataclasses.replace(cells, p=cells.p * more)

    for wrong in (down, large_ones_forgotten, record_forgotten):
        monkeypatch.setattr(even_sums, "_cells", wrong)
        assert any(misses_the_formula(1.0, epsilon) for epsilon in (0.05, 0.7, 2.0, 4.0)), wrong
    monkeypatch.setattr(even_sums, "_cells", real)
    monkeypatch.setattr(even_sums, "_several", lambda *args: (0.0, 0.0))  # two large ones cost nothing, at any size
    assert even_sums._cells(1.0, 2, 1e-12, 0).large < real(1.0, 2, 1e-12, 0).edges[-1]
    assert any(misses_the_formula(1.0, epsilon) for epsilon in (0.05, 0.7, 2.0))


def test_the_rounding_of_transforms_is_bounded() -> None:
    """A sum of thirty terms by FFT against the same by convolution, where no terms are large; and a bound that is too
    small for it is noticed."""
    rng = np.random.default_rng(0)
    places = np.arange(60)
    mass = rng.dirichlet(np.full(60, 0.3))
    exact = np.ones(1, dtype=np.longdouble)
    for _ in range(30):
        exact = np.convolve(exact, mass.astype(np.longdouble))
    exact = np.append(exact, np.zeros(4096 - len(exact)))
    found, noise = even_sums._composed(even_sums._Transform(places, mass, 4096, 30), 30, 0)
    off = float(np.abs(found - exact).max())
    assert 0 < off <= noise < 1e-13
    beside, noise = even_sums._composed(
        even_sums._Transform(places, mass, 4096, 30), 29, 100, even_sums._Transform(places, mass, 4096, 30)
    )
    assert float(np.abs(np.roll(beside, 100) - exact).max()) <= noise


def test_a_price_does_not_depend_on_what_was_asked_before() -> None:
    loss = PassLoss(1.0, 20, mixture_is_p=True)
    fine = [loss.between(step, 1e-14)[0].profile(0.5) for step in (1e-5, 1e-2, 1e-5)]
    assert fine[0] == fine[2]
    run = acc.BallsInBins(acc.Gaussian(0.9), 40) * 4
    first = acc.epsilon(run, 1e-5), acc.epsilon(run, 1e-9), acc.delta(run, 0.7)
    for function in (passes._even_pairs, even_sums.even_laws, passes._pair, passes._sum):
        function.cache_clear()
    again = acc.delta(run, 0.7), acc.epsilon(run, 1e-9), acc.epsilon(run, 1e-5)
    assert first == again[::-1]


# -- batches of a fixed or a largest size ----


@pytest.mark.slow
def test_a_blank_in_a_batch_of_fixed_size_has_a_narrow_price() -> None:
    run = acc.FixedSizeSampled(acc.Gaussian(1.1), 256, 60000) * 3515
    price = acc.epsilon(run, 1e-5, adjacency="zero-out")
    assert 6.28 < price.lower < price.upper < 6.58
    assert price.upper < acc.epsilon(run, 1e-5).lower


@pytest.mark.parametrize("seed", range(6))
def test_no_direction_of_the_others_is_worse_than_the_one_that_is_priced(seed: int) -> None:
    """In two dimensions, with the record and another anywhere in the unit disc: δ by integration over the plane."""
    rng = np.random.default_rng(seed)
    sigma, rate = float(rng.uniform(0.6, 2.0)), float(rng.uniform(0.02, 0.6))
    axis = np.linspace(-1 - 6 * sigma, 1 + 6 * sigma, 241)
    cell = (axis[1] - axis[0]) ** 2

    def density(at: tuple[float, float]) -> np.ndarray:
        return np.outer(norm.pdf(axis, at[0], sigma), norm.pdf(axis, at[1], sigma)) * cell

    def disc() -> tuple[float, float]:
        angle, radius = rng.uniform(0, 2 * math.pi), math.sqrt(rng.uniform(0, 1))
        return radius * math.cos(angle), radius * math.sin(angle)

    blank, worst = density((0.0, 0.0)), {True: BlankedLoss(sigma, rate, 2.0, removing=True)}
    worst[False] = BlankedLoss(sigma, rate, 2.0, removing=False)
    for record, other in [((1.0, 0.0), (-1.0, 0.0)), ((1.0, 0.0), (1.0, 0.0)), *((disc(), disc()) for _ in range(6))]:
        rest = (1 - rate) * density(other)
        there, gone = rest + rate * density(record), rest + rate * blank
        for removing, (p, q) in ((True, (there, gone)), (False, (gone, there))):
            for epsilon in (0.0, 0.02, 0.2, 0.8):
                delta = float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum())
                assert delta <= sum(worst[removing].profile(epsilon)) + 5e-5  # the grid of the plane


def test_the_worst_direction_is_attained() -> None:
    sigma, rate = 1.1, 0.05
    x = np.linspace(-9, 12, 200001) * sigma
    width = x[1] - x[0]
    rest = (1 - rate) * norm.pdf(x, 0, sigma)
    p, q = rest + rate * norm.pdf(x, 2, sigma), rest + rate * norm.pdf(x, 1, sigma)
    for epsilon in (0.01, 0.1, 0.5):
        exact = float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum() * width)
        assert DisplacedLoss(sigma, rate, 2.0).profile(epsilon)[0] == pytest.approx(exact, rel=1e-5)
        assert BlankedLoss(sigma, rate, 2.0, removing=True).profile(epsilon)[0] == pytest.approx(exact, rel=1e-5)


#: Records, expected and largest batch, noise, steps, and ε at δ = 1e-5 of dp-accounting 0.6.
CUT = [
    (60000, 256, 320, 1.1, 3515, 1.1656),
    (60000, 256, 300, 1.1, 3515, 2.3963),
    (60000, 256, 384, 1.1, 3515, 1.1376),
    (50000, 4096, 4352, 3.0, 500, 2.6402),
    (1000, 10, 16, 1.0, 128, 3.9336),
]


@pytest.mark.parametrize(
    "row", [pytest.param(row, marks=() if row[0] < 60000 else pytest.mark.slow) for row in CUT], ids=str
)
def test_batches_that_are_cut_cost_no_more_than_elsewhere(row: Any) -> None:
    records, batch, largest, sigma, steps, other = row
    run = acc.TruncatedPoissonSampled(acc.Gaussian(sigma), batch / records, records, largest) * steps
    price = acc.epsilon(run, 1e-5, adjacency="zero-out")
    assert price.upper <= other
    assert 0 < price.lower < math.inf
    assert acc.epsilon(run, 1e-5).upper < 1.1 * other


def test_the_rate_in_a_full_batch_is_that_of_an_enumeration() -> None:
    cut = acc.TruncatedPoissonSampled(acc.Gaussian(1.0), 0.3, 12, 4)
    m = np.arange(12)
    law = np.array([math.comb(11, int(k)) * 0.3**k * 0.7 ** (11 - k) for k in m])
    full = m >= 4
    assert cut._overflow("zero-out") == pytest.approx(law[full].sum(), rel=1e-8)
    assert cut._rate_if_full() == pytest.approx((law[full] * 0.3 * 4 / (m[full] + 1)).sum() / law[full].sum(), rel=1e-8)


# -- shuffled passes ----


def test_shuffled_passes_show_what_they_reveal_at_least_and_claim_no_amplification() -> None:
    step = acc.Gaussian(1.0)
    price = acc.epsilon(acc.Shuffled(step, bins=10), 1e-5, adjacency="zero-out")
    assert price.upper == acc.epsilon(step, 1e-5).upper
    assert not price.tight
    # where all others pull against the record a pass reveals nearly as much as if its order were known
    assert 0.98 * price.upper < price.lower
    assert acc.epsilon(acc.Shuffled(step), 1e-5, adjacency="zero-out").lower == 0
    assert price.lower > acc.epsilon(acc.BallsInBins(step, 10), 1e-5).upper
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(2, 200_000, 10))
    noise[0, :, 0] += 2
    noise[1, :, 0] += 1
    first, second = noise.max(axis=2)
    shown = passes.largest_of_batches(1.0, 10).hockey_stick(1.0)[0]
    attack = max(float((first > c).mean() - math.e * (second > c).mean()) for c in np.linspace(1, 5, 41))
    assert shown == pytest.approx(attack, abs=6 * math.sqrt(4e-6))


def test_a_very_small_delta_is_priced_with_a_longer_tail() -> None:
    """At δ = 1e-30 the first law left out more than δ, and the price was that without amplification."""
    price = acc.epsilon(acc.BallsInBins(acc.Gaussian(1.0), 10), 1e-30)
    assert price.width < 1e-3 * price.upper
    assert price.upper < 0.85 * acc.epsilon(acc.Gaussian(1.0), 1e-30).upper


def test_a_tail_is_a_probability() -> None:
    """Beside batches that are often cut, Chernoff's bound on δ is above 1, and the tail made of it was too."""
    assert passes._tail(50.0) == 1e-20
    cut = acc.TruncatedPoissonSampled(acc.Gaussian(0.86757), 0.0133587, 11, 5)
    run = (
        cut * 3 + acc.PoissonSampled(acc.PureDP(0.152517), 0.0123597) * 2 + acc.BallsInBins(acc.Gaussian(7.585), 2) * 3
    )
    assert 0 < acc.delta(run, 0.0).lower <= acc.delta(run, 0.0).upper < 1


@pytest.mark.parametrize("size", [16, 4096])
def test_roots_of_unity_are_those_of_the_circle(size: int) -> None:
    angle = 8 * np.arctan(np.longdouble(1)) * np.arange(size).astype(np.longdouble) / size
    found = even_sums._roots(size)
    assert len(found) == size
    assert float(np.abs(found - (np.cos(angle) - 1j * np.sin(angle))).max()) < 16 * even_sums.FINEST


def test_a_delta_too_small_for_any_curve_is_still_small() -> None:
    """δ was said to be at most 1 where it is below 1e-250, and where the same run without bins has 7.5e-10."""
    run = acc.BallsInBins(acc.Gaussian(26.6356), 146) * 50 + acc.PoissonSampled(acc.PureDP(0.816543), 0.000566255) * 97
    assert acc.delta(run, 1.5).upper < 1e-200
