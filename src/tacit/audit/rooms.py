"""Do the other rooms keep their promises? Checks of tables, teachers' votes and private selection.

As in :mod:`tacit.audit.battery`: each check compares what is released with what it should be, by computations of its
own, and prices with closed forms or integrals that know nothing of tacit.accounting.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from tacit import accounting as acc
from tacit.audit import bounds, statistics
from tacit.audit.findings import Finding, holds
from tacit.ledger import Ledger

Floats = npt.NDArray[np.float64]
#: Rounding that a price may have.
SLACK = 1e-6


def _ledger() -> Ledger:
    ledger = Ledger()
    ledger.register("people", epsilon=1000.0, delta=1e-2)
    return ledger


# -- votes -------------------------------------------------------------------------------------------------------------


def votes_are_as_priced(seed: int) -> list[Finding]:
    """How often the check passes and the smaller side wins, against the stated noise; the price against its formula."""
    from tacit.pate import ConfidentGNMax, LNMax

    threshold, check, vote, high, low, many = 120.0, 30.0, 20.0, 110, 90, 6000
    teachers = ConfidentGNMax(threshold=threshold, check_noise=check, vote_noise=vote, classes=2)
    answers = teachers.answer([[high, low]] * many, queries=many, teachers=high + low)
    passed, won = int(answers.answered.sum()), int((answers.labels[answers.answered] == 0).sum())
    found = [
        Finding(
            "votes: check noise",
            statistics.frequency_p_value(passed, many, float(special.ndtr((high - threshold) / check))),
            f"{passed} of {many} queries passed the check",
        ),
        Finding(
            "votes: vote noise",
            statistics.frequency_p_value(won, passed, float(special.ndtr((high - low) / (math.sqrt(2) * vote)))),
            f"the larger side won {won} of {passed}",
        ),
    ]
    few, ledger = 40, _ledger()
    mu = math.sqrt(few / check**2 + few * 2 / vote**2)
    exact = bounds.gaussian_epsilon(mu, 1e-5)
    priced = teachers.answer([[high, low]] * few, queries=few, teachers=high + low, ledger=ledger, dataset="people")
    claimed = priced.privacy.claim
    found.append(
        holds(
            "votes: price",
            claimed >= exact * (1 - SLACK),
            f"claimed ε = {claimed:.4f} for {few} queries, closed form {exact:.4f}",
        )
    )
    charged = _spent(ledger, 1e-5)
    found.append(holds("votes: charged", charged >= exact * (1 - SLACK), f"charged {charged:.4f} of {exact:.4f}"))
    scale = 15.0
    laplace = LNMax(scale=scale, classes=2)
    right = int((laplace.answer([[high, low]] * many, queries=many, teachers=high + low).labels == 0).sum())
    gap = (high - low) / scale
    expected = 1 - math.exp(-gap) * (2 + gap) / 4  # the difference of two Laplace numbers
    pure = laplace.answer([[high, low]], queries=1, teachers=high + low).privacy.at(1e-9).upper
    return [
        *found,
        Finding("votes: Laplace", statistics.frequency_p_value(right, many, expected), f"right {right} of {many}"),
        holds(
            "votes: Laplace price", pure >= 2 / scale * (1 - 1e-3), f"claimed {pure:.4f} a query, pure {2 / scale:.4f}"
        ),
    ]


def _spent(ledger: Ledger, delta: float) -> float:
    """The ε of all that was charged, at δ."""
    total: acc.Mechanism = acc.nothing("record")
    for record in ledger.history("people"):
        mechanism = getattr(record, "mechanism", None)
        if mechanism is not None:
            total = total + mechanism
    return acc.epsilon(total, delta).upper if total.parts() else 0.0


# -- selection ---------------------------------------------------------------------------------------------------------


def selected_delta(noise: float, runs: float, epsilon: float) -> float:
    """δ(ε) of the best of a geometric number of N(0, σ²) against N(1, σ²), the score being the value itself.

    With P[K = k] = p(1 - p)^(k-1) the selected value has density p·f / (1 - (1 - p)F)².
    """
    grid = np.linspace(-9 * noise, 9 * noise + 1, 200_001)
    p = 1 / runs

    def density(centre: float) -> Floats:
        z = (grid - centre) / noise
        return np.asarray(p * stats.norm.pdf(z) / noise / (1 - (1 - p) * special.ndtr(z)) ** 2)

    zero, one = density(0.0), density(1.0)
    return max(
        float(np.trapezoid(np.maximum(a - math.exp(epsilon) * b, 0.0), grid)) for a, b in ((zero, one), (one, zero))
    )


def selection_is_charged(seed: int) -> list[Finding]:
    """The claim of a private search against the law of what it selects; the noise and sensitivity of scores."""
    from tacit.tuning import PrivateSearch, Score, bounded_loss, correct_count

    runs, epsilon, delta = 10.0, 1.0, 1e-3
    ledger = _ledger()
    rng = np.random.default_rng(seed)
    score = Score(lambda model: 1e6 * model, noise=20.0)
    search = PrivateSearch(
        {"candidate": [0]},
        lambda candidate, noise: float(noise * rng.standard_normal()),
        score,
        mechanism=lambda candidate, noise: acc.Gaussian(noise),
        epsilon=epsilon,
        delta=delta,
        runs=runs,
        ledger=ledger,
        dataset="people",
        progress=False,
    )
    noise = search.noise
    assert noise is not None
    true = selected_delta(noise, runs, search.privacy.upper)
    search.run()
    charged = _spent(ledger, delta)
    drawn = Score(lambda model: 3.0, sensitivity=2.0, noise=5.0)
    left = [(drawn(None) - 3.0) / 10.0 for _ in range(1000)]
    ids, right = np.append(np.arange(5), [5] * 30), np.ones(35)  # five people, and one with thirty records
    counts = [correct_count(right[:n], right[:n], predict=lambda _, x: x, groups=ids[:n]) for n in (5, 35)]
    losses = [bounded_loss(lambda _, n=n: right[:n], groups=ids[:n]) for n in (5, 35)]  # type: ignore[misc]
    moved = max(abs(many.exact(None) - few.exact(None)) / few.sensitivity for few, many in (counts, losses))
    return [
        holds(
            "selection: price", true <= delta * (1 + 1e-3), f"claimed δ = {delta:g} at ε = {epsilon:g}, true {true:.2g}"
        ),
        holds(
            "selection: charged",
            charged >= epsilon * 0.98,
            f"the ledger holds ε = {charged:.4f} for a search of {epsilon}",
        ),
        holds("selection: one person's score", moved <= 1.0, f"thirty records of one person move it by {moved:g}"),
        Finding("selection: score noise", statistics.variance_p_value(left), "noise of a score, 1,000 draws"),
    ]


# -- tables ------------------------------------------------------------------------------------------------------------


def rows_are_encoded_alone(seed: int) -> list[Finding]:
    """What becomes of a row does not depend on the other rows: an outlier within the bounds changes no other row."""
    from tacit.linear_model import LinearRegression
    from tacit.schema import Numeric, Schema, Unit

    rng = np.random.default_rng(seed)
    x, y = rng.uniform(-2, 2, (40, 3)), rng.uniform(-1, 1, 40)
    more, longer = np.vstack([x, np.full((1, 3), 10.0)]), np.append(y, 5.0)
    names = ("a", "b", "c")
    schema = Schema(tuple(Numeric(n, lower=-10.0, upper=10.0) for n in names), Unit("record"))
    encoded = [schema.encode({n: t[::-1, i] for i, n in enumerate(names)})[0] for t in (x, more)]  # the new row first
    moved = float(np.abs(encoded[0].features - encoded[1].features[1:]).max())
    crossed = int(np.count_nonzero(encoded[0].public_rows(0.5) != encoded[1].public_rows(0.5)[1:]))
    model = LinearRegression(bounds=(-10.0, 10.0), target_bounds=(-5.0, 5.0))
    rows: list[Any] = [model._task(a, b, None, None).source for a, b in ((x, y), (more, longer))]
    features = float(np.abs(rows[0].x - rows[1].x[:40]).max())
    target = float(np.abs(rows[0].y - rows[1].y[:40]).max())
    largest = max(float(np.abs(r.x).max()) for r in rows)
    return [
        holds("rows alone (schema)", moved == 0.0, f"an added row moved others by {moved:.3g}"),
        holds("rows alone (public side)", crossed == 0, f"an added row moved {crossed} others to another side"),
        holds("rows alone (features)", features == 0.0, f"an added row moved others by {features:.3g}"),
        holds("rows alone (target)", target == 0.0, f"an added row moved other targets by {target:.3g}"),
        holds("rows bounded", largest <= 1.0, f"the largest scaled value is {largest:.4g}"),
    ]


def _worst_pair(width: int, scales: tuple[float, float], *, replace: bool, rng: np.random.Generator) -> float:
    """The largest (L1 of the triangle) / scale + (L1 of -2b) / scale that a search over corner rows finds."""
    count = 3000
    one = rng.choice([-1.0, 1.0], (count, width))
    two = rng.choice([-1.0, 1.0], (count, width))
    one[:, 0] = two[:, 0] = 1.0
    y = rng.choice([-1.0, 1.0], (2, count))
    one[0], y[0, 0] = 1.0, 1.0
    if not replace:
        two, y[1] = np.zeros_like(two), 0.0
    i, j = np.triu_indices(width)
    quadratic = np.abs(one[:, i] * one[:, j] - two[:, i] * two[:, j]).sum(1)
    linear = 2 * np.abs(y[0][:, None] * one - y[1][:, None] * two).sum(1)
    return float((quadratic / scales[0] + linear / scales[1]).max())


def table_noise_is_right(seed: int) -> list[Finding]:
    """The functional mechanism and noisy second moments: sensitivities by search, noise by its size."""
    from tacit.linear_model import LinearRegression, functional, releases
    from tacit.linear_model.sensitivity import Shape

    rng = np.random.default_rng(seed)
    d, epsilon = 5, 0.7
    x, y = rng.uniform(-1, 1, (50, d)), rng.uniform(-1, 1, 50)
    source: Any = LinearRegression(bounds=(-1.0, 1.0), target_bounds=(-1.0, 1.0))._task(x, y, None, None).source
    gram, vector = source.x.T @ source.x, source.x.T @ source.y
    found, i = [], np.triu_indices(d + 1)
    for adjacency in ("add-remove", "replace-one"):
        plan = functional.plan(Shape(scalars=d), d + 1, epsilon, adjacency)
        worst = _worst_pair(d + 1, plan.scales, replace=adjacency == "replace-one", rng=rng)
        text = f"one row costs {worst:.4f} of ε = {epsilon} ({adjacency})"
        found.append(holds(f"functional: sensitivity ({adjacency})", worst <= epsilon * (1 + SLACK), text))
        left = []
        for _ in range(40):
            noisy, linear = plan.release(source)
            left += [np.abs(noisy - gram)[i] / plan.scales[0], 2 * np.abs(linear - vector) / plan.scales[1]]
        sizes = np.concatenate(left)
        total = float(sizes.sum())
        p = min(1.0, 2 * min(stats.gamma.cdf(total, len(sizes)), stats.gamma.sf(total, len(sizes))))
        found.append(
            Finding(f"functional: noise ({adjacency})", float(p), f"mean size {sizes.mean():.4f} of the stated scale")
        )
    return [*found, *_moments(rng, releases, Shape)]


def _moments(rng: np.random.Generator, releases: Any, shape: Any) -> list[Finding]:
    d, multiplier, target = 5, 1.7, 1.0
    matrix = releases.GaussianMatrix(shape(scalars=d), d + 2, target)
    row = np.ones(d + 2)
    moved = float(np.linalg.norm(np.outer(row, row)))
    left = []
    i = np.triu_indices(d + 2, 1)
    scale = moved * multiplier  # what the price assumes: multiplier times the largest move
    for _ in range(60):
        noisy = matrix.release(np.zeros((d + 2, d + 2)), multiplier)
        left += [np.diag(noisy) / scale, math.sqrt(2) * noisy[i] / scale]
    values = np.concatenate(left)
    return [
        holds(
            "moments: sensitivity",
            matrix.sensitivity >= moved * (1 - SLACK),
            f"stated {matrix.sensitivity:.4f}, a row of ones moves {moved:.4f}",
        ),
        Finding(
            "moments: noise",
            statistics.variance_p_value(values),
            f"standard deviation {values.std():.4f} of what the largest move needs",
        ),
    ]


def table_fits_are_charged(seed: int) -> list[Finding]:
    """A fit of a table, and of a copy of its estimator, is charged for what it claims; cross-validation is not free."""
    from sklearn.base import clone

    from tacit.linear_model import FunctionalLinearRegression, LinearRegression

    rng = np.random.default_rng(seed)
    x, y = rng.uniform(-1, 1, (200, 2)), rng.uniform(-1, 1, 200)
    found = []
    for kind in (LinearRegression, FunctionalLinearRegression):
        ledger = _ledger()
        settings: dict[str, Any] = {"bounds": (-1, 1), "target_bounds": (-1, 1), "ledger": ledger, "dataset": "people"}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = clone(kind(epsilon=0.5, **settings)).fit(x, y)
        charges, spent = ledger.budget("people").charges, _spent(ledger, 1e-6)
        claimed = made.privacy_.upper
        found.append(
            holds(
                f"table charged ({kind.__name__})",
                charges == 1 and spent >= 0.95 * min(claimed, 0.5),
                f"{charges} charges, ε = {spent:.4f} for a claim of {claimed:.4f}",
            )
        )
    return found


def rooms() -> dict[str, Any]:
    """Every check of this file by name."""
    return {
        "votes": votes_are_as_priced,
        "selection": selection_is_charged,
        "rows alone": rows_are_encoded_alone,
        "table noise": table_noise_is_right,
        "table charges": table_fits_are_charged,
    }
