"""Do fits of tables keep their promises? What one person moves, in units of the noise, against what is claimed.

Every fit is run on neighbouring tables with the same noisy outcomes (:mod:`tacit.selftest.tap`). The exact values then
say what the neighbour costs, and whatever is released beside the noise shows as a difference in the coefficients.
"""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit import accounting as acc
from tacit.audit import bounds
from tacit.audit.findings import Finding, holds
from tacit.ledger import BudgetExceeded
from tacit.ledger.surroundings import SearchRefused
from tacit.linear_model import (
    FunctionalLinearRegression,
    FunctionalLogisticRegression,
    LinearRegression,
    LogisticRegression,
    Ridge,
    SchemaEncoder,
)
from tacit.linear_model.objective import Slope, either, perturb
from tacit.schema import Boolean, Categorical, Numeric, Schema, SchemaError, Unit
from tacit.selftest import tap
from tacit.selftest.scene import Scene, charged, ledger_of, refused

Floats = npt.NDArray[np.float64]
DELTA = 1e-3
#: What rounding may add to a cost.
SLACK = 1e-6
#: Values far beyond every bound.
FAR = 1e6
WIDTH, ROWS = 3, 390

#: Rows that an adversary might add: features and target, far beyond the bounds of ±1.
EXTREMES = (
    ([FAR] * WIDTH, FAR),
    ([-FAR] * WIDTH, FAR),
    ([FAR, -FAR, FAR], -FAR),
    ([0.0] * WIDTH, -FAR),
    ([FAR, 0.0, 0.0], 0.0),
)

Table = tuple[Any, ...]
Make = Callable[[str], Any]


def _base(seed: int, *, classes: int = 0) -> tuple[Floats, npt.NDArray[Any]]:
    rng = np.random.default_rng(seed)
    # So many that estimates stand out of the noise: what is decided by them is then seen.
    x = rng.uniform(-1, 1, (ROWS, WIDTH))
    return x, (rng.integers(0, classes, ROWS) if classes else rng.uniform(-1, 1, ROWS))


def _with(base: tuple[Floats, Any], row: tuple[list[float], float], classes: int = 0) -> tuple[Floats, Any]:
    target = (int(row[1] > 0) if classes == 2 else classes - 1) if classes else row[1]
    return np.vstack([base[0], [row[0]]]), np.append(base[1], target)


def _neighbours(seed: int, adjacency: str, classes: int = 0) -> list[tuple[Table, Table]]:
    base = _base(seed, classes=classes)
    longer = [_with(base, row, classes) for row in EXTREMES]
    if classes == 2:
        longer.append((longer[0][0], np.append(base[1], 0)))
    if adjacency == "add-remove":
        return [(base, one) for one in longer]
    return [(one, other) for i, one in enumerate(longer) for other in longer[:i]][:6]


def _released(model: Any) -> list[Floats]:
    names = ("coef_", "intercept_", "covariance_")
    found = [np.asarray(getattr(model, name), dtype=np.float64) for name in names if hasattr(model, name)]
    found += [curve.value for curve in getattr(model, "curves_", {}).values()]
    return [np.nan_to_num(one, nan=-1e300) for one in found]  # where there is no interval, on both sides there is none


def _fit(make: Make, adjacency: str, table: Table) -> Callable[[], Any]:
    def work() -> Any:
        x, y, *more = table
        return make(adjacency).fit(x, y, **(more[0] if more else {}))

    return work


def _other_people(table: Table, adjacency: str) -> Table | None:
    """A table of the same form that is no neighbour: with the same noisy values its fit must be the same fit.

    A third of the rows where their number is private, else the first row in place of each.
    """
    x, y, *more = table
    if not isinstance(x, np.ndarray | dict) or isinstance(y, str | None.__class__):
        return None
    rows = np.arange(0, len(y), 3) if adjacency == "add-remove" else np.zeros(len(y), dtype=int)

    def taken(values: Any) -> Any:
        return [values[row] for row in rows] if isinstance(values, list) else np.asarray(values)[rows]

    some = {name: taken(values) for name, values in x.items()} if isinstance(x, dict) else taken(x)
    return (some, taken(y), *({name: taken(values) for name, values in one.items()} for one in more))


def cost_of_neighbours(name: str, make: Make, adjacency: str, pairs: list[tuple[Table, Table]]) -> list[Finding]:
    """What the worst of some neighbours costs against the claim, and whether anything is released beside the noise."""
    worst, beside, sizes, claim, draws = 0.0, 0.0, True, math.inf, 0
    try:
        for one, other in pairs:
            first, heard = tap.listen(_fit(make, adjacency, one))
            second, again = tap.listen(_fit(make, adjacency, other), heard)
            sizes &= tap.same_scales(heard, again)
            draws = len(heard)
            for a, b in zip(_released(first), _released(second), strict=True):
                beside = max(beside, float(np.abs(a - b).max(initial=0.0)))
            claim = first.privacy_.upper
            mu, pure = tap.gaussian_cost(heard, again), tap.laplace_cost(heard, again)
            cost = pure + (bounds.gaussian_epsilon(mu, DELTA) if mu else 0.0)
            worst = max(worst, cost)
            if (others := _other_people(one, adjacency)) is not None and one is pairs[0][0]:
                third, also = tap.listen(_fit(make, adjacency, others), heard)
                sizes &= tap.same_scales(heard, also)
                for a, b in zip(_released(first), _released(third), strict=True):
                    beside = max(beside, float(np.abs(a - b).max(initial=0.0)))
    except tap.PathDiffers as error:
        return [holds(f"{name}: everything under noise ({adjacency})", False, str(error))]
    text = f"one neighbour costs {worst:.5f} along {draws} noisy values, claimed {claim:.5f}"
    return [
        holds(f"{name}: cost ({adjacency})", 0 < worst <= claim * (1 + SLACK), text),
        holds(
            f"{name}: everything under noise ({adjacency})",
            draws > 0 and beside == 0.0 and sizes,
            f"with the same noisy values the coefficients of other people differ by {beside:.3g}",
        ),
    ]


def _regression(method: str, **more: Any) -> Make:
    return lambda adjacency: LinearRegression(
        0.8, DELTA, bounds=(-1, 1), target_bounds=(-1, 1), method=method, adjacency=adjacency, **more
    )


def _functional(**more: Any) -> Make:
    return lambda adjacency: FunctionalLinearRegression(
        0.8, bounds=(-1, 1), target_bounds=(-1, 1), adjacency=adjacency, **more
    )


def _logit(**more: Any) -> Make:
    return lambda adjacency: LogisticRegression(0.8, DELTA, bounds=(-1, 1), adjacency=adjacency, **more)


ADJACENCIES = ("add-remove", "replace-one")


def regressions_are_bounded(seed: int) -> list[Finding]:
    """Every method of linear regression, under each adjacency."""
    found = []
    cases: list[tuple[str, Make]] = [
        ("the default, few rows", _regression("auto")),
        (
            "the default, little noise",
            lambda a: LinearRegression(60.0, DELTA, bounds=(-1, 1), target_bounds=(-1, 1), adjacency=a),
        ),
        ("gradient descent", _regression("gradient-descent")),
        ("AdaSSP", _regression("adassp")),
        ("second moments", _regression("sufficient-statistics", coef_norm=3.0)),
        ("functional mechanism", _functional()),
        (
            "functional mechanism, pure ε",
            lambda a: LinearRegression(0.8, 0, bounds=(-1, 1), target_bounds=(-1, 1), adjacency=a),
        ),
    ]
    for name, make in cases:
        for adjacency in ADJACENCIES:
            found += cost_of_neighbours(name, make, adjacency, _neighbours(seed, adjacency))
    return found


def variants_are_bounded(seed: int) -> list[Finding]:
    """Without a constant, with a ridge, with published sensitivities, and with other ways to divide ε."""
    found: list[Finding] = []
    cases: list[tuple[str, Make]] = [
        ("no constant, descent", _regression("gradient-descent", fit_intercept=False)),
        ("no constant, AdaSSP", _regression("adassp", fit_intercept=False)),
        ("no constant, moments", _regression("sufficient-statistics", fit_intercept=False)),
        ("ridge", lambda a: Ridge(2.0, 0.8, DELTA, bounds=(-1, 1), target_bounds=(-1, 1), adjacency=a)),
        ("textbook", _functional(sensitivity="textbook", split="equal", repair="ridge")),
        ("split by sensitivity", _functional(split="sensitivity", repair="trim", fit_intercept=False)),
        ("split in parts", _functional(split=0.3, repair="ridge+trim")),
        ("split in two", _functional(split=(0.5, 0.3), repair="positive")),
    ]
    for name, make in cases:
        adjacency = ADJACENCIES[len(found) // 2 % 2]
        found += cost_of_neighbours(name, make, adjacency, _neighbours(seed, adjacency)[:4])
    return found


def classifiers_are_bounded(seed: int) -> list[Finding]:
    """Logistic regression by descent and by the functional mechanism, two classes and three."""
    found = []
    for adjacency in ADJACENCIES:
        pairs = _neighbours(seed, adjacency, 2)
        found += cost_of_neighbours("logit, descent", _logit(), adjacency, pairs)
        found += cost_of_neighbours(
            "logit, short rows",
            lambda a: LogisticRegression(0.8, DELTA, row_norm=1.0, method="gradient-descent", adjacency=a),
            adjacency,
            pairs[:3],
        )
        found += cost_of_neighbours(
            "logit, functional",
            lambda a: FunctionalLogisticRegression(0.8, bounds=(-1, 1), adjacency=a),
            adjacency,
            pairs,
        )
        found += cost_of_neighbours(
            "softmax, descent", _logit(classes=[0, 1, 2], alpha=0.5), adjacency, _neighbours(seed, adjacency, 3)[:4]
        )
    return found


def people_are_bounded(seed: int) -> list[Finding]:
    """A person with many rows counts with ``max_rows`` of them, a row with a huge weight as one of the largest."""
    x, y = _base(seed)
    ids, new = np.arange(len(x)), len(x)  # who is added has no row in the table: which of theirs count is drawn
    owned = {"groups": np.append(ids, [new] * 6)}
    more = np.vstack([x, np.full((6, WIDTH), FAR)]), np.append(y, np.full(6, FAR)), owned
    other = np.vstack([x, np.full((6, WIDTH), -FAR)]), np.append(y, np.full(6, FAR)), owned
    fewer = np.vstack([x, np.zeros((1, WIDTH))]), np.append(y, -FAR), {"groups": np.append(ids, [new])}
    plain = x, y, {"groups": ids}
    heavy = np.append(np.ones(len(x)), FAR)
    weighed = [(*_with((x, y), row), {"sample_weight": heavy}) for row in EXTREMES[:2]]
    unweighed = x, y, {"sample_weight": heavy[:-1]}
    found = []
    for name, make in (
        ("people, descent", _regression("gradient-descent", max_rows=3)),
        ("people, AdaSSP", _regression("adassp", max_rows=3)),
        ("people, moments", _regression("sufficient-statistics", max_rows=3)),
        ("people, functional", _functional(max_rows=3)),
    ):
        found += cost_of_neighbours(name, make, "add-remove", [(plain, more)])
        found += cost_of_neighbours(name, make, "replace-one", [(more, other), (more, fewer)])
    for name, make in (
        ("weights, descent", _regression("gradient-descent", max_weight=2.0)),
        ("weights, moments", _regression("sufficient-statistics", max_weight=2.0)),
    ):
        found += cost_of_neighbours(name, make, "add-remove", [(unweighed, one) for one in weighed])
        found += cost_of_neighbours(name, make, "replace-one", [(weighed[0], weighed[1])])
    labels = (y > 0).astype(int)
    found += cost_of_neighbours(
        "weights, logit",
        _logit(max_weight=2.0),
        "add-remove",
        [((x, labels, unweighed[2]), (weighed[0][0], np.append(labels, 0), weighed[0][2]))],
    )
    return found


def objective_perturbation_is_priced(seed: int) -> list[Finding]:
    """The noise and the ridge that were used, worked out from the released minimiser, against the published bound."""
    delta, found = 1e-2, []
    base, labels = _base(seed, classes=2)
    # Rows are cut to a grid of 2^-20 before they are used: beside the minimiser that difference would be seen.
    x = np.column_stack([np.ones(len(base)), np.trunc(base * 2.0**20) * 2.0**-20])
    length = math.sqrt(WIDTH + 1)  # the longest row
    for adjacency in ADJACENCIES:
        slots = 2 if adjacency == "replace-one" else 1
        for pure in (False, True):
            name = f"objective perturbation ({adjacency}{', pure' if pure else ''})"
            model, draws = tap.listen(
                lambda pure=pure, adjacency=adjacency: LogisticRegression(  # type: ignore[misc]
                    1.0,
                    0.0 if pure else delta,
                    bounds=(-1, 1),
                    method="objective-perturbation",
                    adjacency=adjacency,
                ).fit(base, labels)
            )
            noise, hiding = (draws[0], draws[-1]) if pure else (draws[1], draws[2])  # the classes are counted first
            theta, direction = hiding.value.ravel(), noise.outcome.ravel()
            gradient = x.T @ (1 / (1 + np.exp(-x @ theta)) - labels)
            # The gradient of the loss, of the ridge and of the noise together are nothing at the minimiser.
            (ridge, size), *_ = np.linalg.lstsq(np.column_stack([theta, direction]), -gradient, rcond=None)
            left = float(np.linalg.norm(gradient + ridge * theta + size * direction))
            jacobian = math.log1p((WIDTH + 1) / 4 / ridge)
            if pure:
                rate = float(np.abs(draws[1].outcome).sum()) / (size * float(np.linalg.norm(direction)))
                need = jacobian + rate * slots * length
            else:
                mu = slots * length / (size * noise.scale)
                need = jacobian + bounds.gaussian_epsilon(mu, delta / 2**slots)
            text = f"ridge {ridge:.4g}: ε = {need:.4f} of a claim of {model.privacy_.upper:.4f}"
            found.append(holds(f"{name}: price", bool(ridge > 0 and need <= model.privacy_.upper * (1 + SLACK)), text))
            hidden = hiding.scale * ridge / (2 * max(left, 1e-300))
            found.append(
                holds(
                    f"{name}: minimiser",
                    bool(left < 2e-6 and hidden > 100),
                    f"a gradient of {left:.2g} is left, {hidden:.3g} times smaller than the noise that hides it",
                )
            )
    return [*found, *_jacobians()]


def _jacobians() -> list[Finding]:
    """Rows of one person that point apart: what each adds to the determinant of the Jacobian multiplies.

    And the longest gradient that a row can have: a model that is sure of another class.
    """
    low = []
    for classes, slots in itertools.product((2, 3, 5), (1, 2)):
        errors = np.array([1.0]) if classes == 2 else np.eye(classes)[1] - np.eye(classes)[0]
        longest = slots * math.sqrt(5.0) * float(np.linalg.norm(errors))
        if not (reach := Slope(5.0, classes, slots=slots).reach) >= longest * (1 - 1e-9):
            low.append(f"{classes} classes, {slots} rows that come or go: {reach:.4f} of {longest:.4f}")
    for classes, rows, ridge in itertools.product((2, 4), (1, 3), (0.3, 2.0)):
        length = 5.0  # squared
        each = np.array([[0.25]]) if classes == 2 else (np.eye(classes) - 1 / classes) / classes
        one = np.linalg.slogdet(np.eye(len(each)) + length * each / ridge)[1]
        stated = Slope(length, classes, slots=1, rows=rows).jacobian(ridge)
        if not stated >= rows * one * (1 - 1e-9):
            low.append(f"{classes} classes, {rows} rows: {stated:.4f} of {rows * one:.4f}")
    made, told = perturb(Slope(5.0), 1.0, DELTA, "add-remove", "record"), []
    for mu, epsilon in itertools.product((0.1, 0.3, 1.0, 3.0), (0.0, 0.5, 1.0, 2.0)):
        # Which of two releases is made may depend on the data: each must be paid for.
        stated = acc.delta(either(made, mu, 1.0, "add-remove", "record"), epsilon).upper
        needs = max(acc.delta(made.mechanism, epsilon).upper, bounds.gaussian_delta(mu, epsilon))
        told += [] if stated >= needs * (1 - SLACK) else [f"μ = {mu} at ε = {epsilon}: {stated:.3g} of {needs:.3g}"]
    low += told
    return [holds("objective perturbation: slopes", not low, "; ".join(low) or "no less than what one row can do")]


def streams_are_bounded(seed: int) -> list[Finding]:
    """A file read in pieces costs and gives what the table in memory does."""
    import polars

    found = []
    names = [f"x{i}" for i in range(WIDTH)]
    with tempfile.TemporaryDirectory() as folder:

        def on_disk(table: Table, number: int, kind: str) -> Table:
            columns = {n: table[0][:, i] for i, n in enumerate(names)} | {"y": table[1]}
            frame, path = polars.DataFrame(columns), Path(folder) / f"{number}.{kind}"
            write: dict[str, Callable[[Path], object]] = {
                "csv": frame.write_csv,
                "parquet": frame.write_parquet,
                "arrow": frame.write_ipc,
            }
            write[kind](path)
            return (path if kind != "arrow" else polars.scan_ipc(path)), "y"

        tables = [_base(seed), _with(_base(seed), EXTREMES[0]), _with(_base(seed), EXTREMES[2])]
        for name, kind, make in (
            ("a file, moments", "csv", _regression("auto")),
            ("a file, descent", "parquet", _regression("gradient-descent")),
            ("a lazy frame, functional", "arrow", _functional()),
        ):
            files = [on_disk(table, i, kind) for i, table in enumerate(tables)]
            found += cost_of_neighbours(name, make, "add-remove", [(files[0], files[1]), (files[0], files[2])])
            found += cost_of_neighbours(name, make, "replace-one", [(files[1], files[2])])
        made = _regression("sufficient-statistics")
        once = tap.listen(lambda: made("add-remove").fit(*on_disk(tables[0], 7, "csv")), silent=True)[1]
        memory = tap.listen(lambda: made("add-remove").fit(*tables[0]), silent=True)[1]
        odd = Path(folder) / "odd.xyz"
        odd.write_text("x")
        path = on_disk(tables[0], 8, "csv")[0]
        wrong = refused(
            "tables: files",
            {
                "an unknown format": (lambda: _regression("auto")("add-remove").fit(odd, "y"), ValueError),
                "groups of a file": (
                    lambda: _regression("auto")("add-remove").fit(path, "y", groups=[1]),
                    ValueError,
                ),
                "no such column": (lambda: _regression("auto")("add-remove").fit(path, "z"), ValueError),
                "no target": (lambda: _regression("auto")("add-remove").fit(path), ValueError),
                "class weights of a file": (
                    lambda: _logit(class_weight={0: 1, 1: 2})("add-remove").fit(path, "y"),
                    ValueError,
                ),
            },
        )
    # The moments behind the noise; a table that can be read again has one release more, and so other noise.
    both = list(zip(once, memory, strict=False))
    away = max((float(np.abs(one.value - two.value).max()) for one, two in both), default=math.inf)
    return [*found, wrong, holds("a file is the table", away < 1e-9, f"sums differ by {away:.2g}")]


def schemas_bound_tables(seed: int) -> list[Finding]:
    """With a schema: categories, truth values and people's ids; rows and targets beyond the bounds are clipped."""
    rng = np.random.default_rng(seed)
    columns = (Numeric("age", 0, 100), Categorical("job", ["a", "b"]), Boolean("member"))
    wage = Schema((*columns, Numeric("wage", -1, 1, target=True)), Unit("record"))
    owned = Schema((*columns, Numeric("wage", -1, 1, target=True)), Unit("person", "id"))
    hired = Schema((*columns, Boolean("hired", target=True)), Unit("record"))
    count = 12

    def table(age: list[Any], job: list[Any], member: list[Any], wage: list[float]) -> dict[str, Any]:
        return {
            "age": [*plain["age"], *age],
            "job": [*plain["job"], *job],
            "member": [*plain["member"], *member],
            "wage": [*plain["wage"], *wage],
            "hired": [w > 0 for w in [*plain["wage"], *wage]],
            "id": [*range(count), *[99] * len(age)],
        }

    plain: dict[str, Any] = {
        "age": rng.uniform(0, 100, count).tolist(),
        "job": rng.choice(["a", "b"], count).tolist(),
        "member": rng.choice([True, False], count).tolist(),
        "wage": rng.uniform(-1, 1, count).tolist(),
    }
    base = table([], [], [], [])
    more = [table([FAR], [job], [member], [y]) for job, member, y in (("a", True, FAR), ("zz", False, -FAR))]
    many = table([FAR] * 5, ["a"] * 5, [True] * 5, [FAR] * 5)

    def fitted(schema: Schema, kind: Any = LinearRegression, **extra: Any) -> Make:
        return lambda adjacency: kind(0.8, DELTA, bounds=schema, adjacency=adjacency, **extra)

    found = cost_of_neighbours(
        "schema, descent", fitted(wage), "add-remove", [((base, None), (one, None)) for one in more]
    )
    found += cost_of_neighbours(
        "schema, moments",
        fitted(wage, method="sufficient-statistics"),
        "replace-one",
        [((more[0], None), (more[1], None))],
    )
    found += cost_of_neighbours(
        "schema, people", fitted(owned, max_rows=2), "add-remove", [((base, None), (many, None))]
    )
    found += cost_of_neighbours(
        "schema, logit", fitted(hired, LogisticRegression), "add-remove", [((base, None), (one, None)) for one in more]
    )
    encoder = SchemaEncoder(wage).fit()
    alone = float(np.abs(encoder.transform(more[0])[:count] - encoder.transform(base)).max())
    largest = float(np.abs(encoder.transform(more[0])).max())
    model = fitted(wage)("add-remove").fit(base)
    inside = model.predict(more[0])[-1] == model.predict(table([100], ["a"], [True], [0]))[-1]
    return [
        *found,
        holds("encoder: rows alone", alone == 0.0 and largest <= 1.0, f"moved by {alone:.3g}, largest {largest:.3g}"),
        holds("predictions are clipped", bool(inside), "a row beyond the bounds is predicted as one on them"),
        holds(
            "names of coefficients",
            list(encoder.get_feature_names_out()) == list(model.get_feature_names_out()),
            "one name for each coefficient",
        ),
    ]


def fits_are_charged(seed: int) -> list[Finding]:
    """A fit of a table, and of a copy of its estimator, is charged for what it claims, and nothing fits for free."""
    from sklearn.base import clone
    from sklearn.model_selection import cross_val_score

    x, y = _base(seed)
    labels = (y > 0).astype(int)
    found = []
    cases: tuple[tuple[Any, Any, dict[str, Any]], ...] = (
        (LinearRegression, y, {"target_bounds": (-1, 1)}),
        (LinearRegression, y, {"target_bounds": (-1, 1), "method": "adassp"}),
        (FunctionalLinearRegression, y, {"target_bounds": (-1, 1)}),
        (LogisticRegression, labels, {"method": "objective-perturbation"}),
        (LogisticRegression, labels, {"method": "dp-sgd"}),
    )
    for kind, target, more in cases:
        ledger = ledger_of()
        made = clone(kind(epsilon=0.5, bounds=(-1, 1), ledger=ledger, dataset="people", **more)).fit(x, target)
        charges, spent = ledger.budget("people").charges, charged(ledger, 1e-6)
        claimed = made.privacy_.upper
        found.append(
            holds(
                f"table charged ({kind.__name__} {more.get('method', '')})",
                charges == 1 and spent >= 0.95 * min(claimed, 0.5) and claimed <= 0.5 * (1 + SLACK),
                f"{charges} charges, ε = {spent:.4f} for a claim of {claimed:.4f}",
            )
        )
    poor, several = ledger_of(0.1, 1e-6), ledger_of()
    several.register("others", epsilon=1000.0, delta=1e-2)

    def search() -> None:
        cross_val_score(LinearRegression(bounds=(-1, 1), target_bounds=(-1, 1)), x, y, cv=2, error_score="raise")

    def fit(kind: Any = LinearRegression, x: Any = x, y: Any = y, fit: Any = None, **more: Any) -> Callable[[], object]:
        usual: dict[str, Any] = {"bounds": (-1, 1)} | ({"target_bounds": (-1, 1)} if "Linear" in kind.__name__ else {})
        return lambda: kind(**(usual | more)).fit(x, y, **(fit or {}))

    nan = np.where(np.arange(len(x))[:, None] == 3, np.nan, x)
    cases_refused: dict[str, tuple[Callable[[], object], Any]] = {
        "a search without a ledger": (search, SearchRefused),
        "data of several that are not named": (fit(ledger=several), ValueError),
        "no bounds": (fit(bounds=None), ValueError),
        "no bounds of the target": (fit(target_bounds=None), ValueError),
        "bounds in reverse": (fit(bounds=(1, -1)), ValueError),
        "bounds of another width": (fit(bounds=[(0, 1)] * 5), ValueError),
        "bounds without an end": (fit(bounds=(0, math.inf)), ValueError),
        "bounds that are one": (fit(bounds=(1, 1)), ValueError),
        "bounds by unknown names": (fit(bounds={"a": (0, 1)}), ValueError),
        "bounds that are words": (fit(bounds="wide"), ValueError),
        "missing values": (fit(x=nan), ValueError),
        "a missing target": (fit(y=np.where(np.arange(len(y)) == 2, np.nan, y)), ValueError),
        "targets of two dimensions": (fit(y=np.zeros((len(y), 2))), ValueError),
        "an infinite ε": (fit(epsilon=math.inf), ValueError),
        "no ε": (fit(epsilon=0), ValueError),
        "δ of 1": (fit(delta=1.0), ValueError),
        "no δ for Gaussian noise": (fit(method="adassp", delta=0), ValueError),
        "an unknown method": (fit(method="magic"), ValueError),
        "an unknown adjacency": (fit(adjacency="near"), ValueError),
        "a guess of 0": (fit(coef_norm=0), ValueError),
        "weights without a maximum": (fit(fit={"sample_weight": np.ones(len(x))}), ValueError),
        "weights below 0": (fit(max_weight=1.0, fit={"sample_weight": -np.ones(len(x))}), ValueError),
        "weights of another length": (fit(max_weight=1.0, fit={"sample_weight": np.ones(3)}), ValueError),
        "groups without a maximum": (fit(fit={"groups": np.arange(len(x))}), ValueError),
        "a maximum without groups": (fit(max_rows=2), ValueError),
        "half a row": (fit(max_rows=0.5, fit={"groups": np.arange(len(x))}), ValueError),
        "people without ids": (fit(unit="person"), ValueError),
        "a data set without a ledger": (fit(dataset="people"), ValueError),
        "a ledger that is none": (fit(ledger="here"), TypeError),
        "a unit that the ledger does not know": (
            fit(ledger=poor, unit="person", max_rows=1, fit={"groups": np.arange(len(x))}),
            ValueError,
        ),
        "more than is left": (fit(ledger=poor, epsilon=5.0), BudgetExceeded),
        "one class": (fit(LogisticRegression, y=np.full(len(x), 3)), ValueError),
        "a class that is not declared": (fit(LogisticRegression, y=labels + 5, classes=[0, 1]), ValueError),
        "a class twice": (fit(LogisticRegression, y=labels, classes=[1, 1]), ValueError),
        "a ridge below 0": (fit(LogisticRegression, y=labels, alpha=-1), ValueError),
        "no noise for a method": (fit(LogisticRegression, y=labels, delta=0, method="dp-sgd"), ValueError),
        "DP-SGD with groups": (
            fit(LogisticRegression, y=labels, method="dp-sgd", max_rows=2, fit={"groups": np.arange(len(x))}),
            ValueError,
        ),
        "DP-SGD with a ridge": (fit(LogisticRegression, y=labels, method="dp-sgd", alpha=1.0), ValueError),
        "a repair that is none": (fit(FunctionalLinearRegression, repair="glue"), ValueError),
        "a split above ε": (fit(FunctionalLinearRegression, split=(1.0, 1.0)), ValueError),
        "a split that is none": (fit(FunctionalLinearRegression, split="all"), ValueError),
        "a fraction above 1": (fit(FunctionalLinearRegression, split=1.5), ValueError),
        "sensitivities that are none": (fit(FunctionalLinearRegression, sensitivity="small"), ValueError),
        "Ray for a table in memory": (fit(backend="ray"), Exception),
        "constants beyond the bounds": (fit(fill=7.0), ValueError),
        "an encoder without a schema": (lambda: SchemaEncoder("no").fit(), TypeError),  # type: ignore[arg-type]
        "a schema without the column": (
            lambda: LinearRegression(bounds=Schema((Numeric("a", 0, 1),), Unit("record")), target_bounds=(0, 1)).fit(
                {"b": [1.0]}, [0.5]
            ),
            SchemaError,
        ),
    }
    untouched = poor.budget("people").spent_epsilon
    filled = fit(x=nan, fill=0.0)()
    dropped = np.isfinite(filled.coef_).all()  # type: ignore[attr-defined]
    return [
        *found,
        refused("tables: refusals", cases_refused),
        holds("refused fits cost nothing", untouched == 0.0, f"ε = {untouched} was charged for what was refused"),
        holds("missing values are filled", bool(dropped), "a public constant stands for them"),
    ]


def answers_are_processing(seed: int) -> list[Finding]:
    """Predictions, probabilities and intervals follow from what was released."""
    x, y = _base(seed)
    line = LinearRegression(bounds=[(-1, 1)] * WIDTH, target_bounds=(-1, 1), unit="person", max_rows=1).fit(
        x, y, groups=np.arange(len(x))
    )
    by_hand = line.intercept_ + np.clip(x, -1, 1) @ line.coef_
    away = float(np.abs(line.predict(x) - by_hand).max() / max(1.0, float(np.abs(by_hand).max())))
    intervals = line.confidence_interval(0.9, intercept=True)
    three = LogisticRegression(bounds=(-1, 1), classes=["a", "b", "c"]).fit(x, np.array(["a", "b"] * (len(x) // 2)))
    two = LogisticRegression(bounds=(-1, 1), fit_intercept=False).fit(x, y > 0)
    sums = [float(np.abs(model.predict_proba(x).sum(1) - 1).max()) for model in (two, three)]
    logs = [float(np.abs(np.exp(model.predict_log_proba(x)) - model.predict_proba(x)).max()) for model in (two, three)]
    soft = LogisticRegression(0.5, 0, bounds=(-1, 1), classes=[0, 1, 2]).fit(x, np.arange(len(x)) % 3)
    return [
        holds("predictions", away < 1e-4, f"predictions differ by {away:.2g} from the released line"),
        holds("intervals", bool((intervals[:, 0] <= intervals[:, 1]).all()), "lower ends below upper ends"),
        holds("probabilities", max(*sums, *logs) < 1e-9, "they add up to 1"),
        holds("classes", set(three.predict(x)) <= {"a", "b", "c"} and set(soft.predict(x)) <= {0, 1, 2}, "as declared"),
        refused("intervals: refusals", {"a level of 1": (lambda: line.confidence_interval(1.0), ValueError)}),
    ]


SCENES = (
    Scene("table: regressions", "linear_model", regressions_are_bounded),
    Scene("table: variants", "linear_model", variants_are_bounded, long=True),
    Scene("table: classifiers", "linear_model", classifiers_are_bounded, long=True),
    Scene("table: people", "linear_model", people_are_bounded, long=True),
    Scene("table: objective perturbation", "linear_model", objective_perturbation_is_priced),
    Scene("table: files", "linear_model", streams_are_bounded),
    Scene("table: schema", "linear_model", schemas_bound_tables),
    Scene("table: charges", "linear_model", fits_are_charged, long=True),
    Scene("table: answers", "linear_model", answers_are_processing),
)
