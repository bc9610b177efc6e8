"""What does the functional mechanism give on two censuses: as published, and what does each of our changes bring?

Laplace noise on the coefficients of the quadratic loss of scaled income; pure ε, replacing one record. As published
(Zhang et al. 2012, with a budget for each order of coefficients): Δ₁ = 2(d+1)² and Δ₂ = 4(d+1), where d counts the
columns after one-hot encoding; ε₁/ε₂ = Δ₁/Δ₂, so that the larger budget goes to the more sensitive part; noise on every
entry of the matrix; the noisy loss is minimised as it is. :data:`STEPS` leads from there to
:class:`tacit.linear_model.FunctionalLinearRegression`, one change at a time. Beside both: the default estimator
:class:`tacit.linear_model.LinearRegression` at (ε, δ), and least squares without privacy.

The source's tables have 370,000 and 190,000 rows; we have 295,243 and 350,696 people of other surveys. The two ends of
the ladder are also measured with the source's number of rows: fewer people of the Brazilian table, and people of the US
table drawn with replacement.

``python -m benchmarks regression`` measures with the same :class:`Split`.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.table import Facts, Row, Table, markdown, mean_sd

ABOUT = "functional mechanism on the censuses acs2018 and brazil2010: with a split budget, each change to it, and ours"
FACTS = Facts(
    paper="split-budget form that courses teach, after Zhang et al. 2012 (who have one ε and a repair)",
    same="Δ₁ = 2(d+1)², Δ₂ = 4(d+1), d counts one-hot columns, ε₁/ε₂ = Δ₁/Δ₂, no repair: the rows 'published'",
    differs="ACS 2018 and Brazil 2010 stand in for the source's US and Brazil tables; both numbers of rows are shown",
    published="curves of loss against ε, no single figure",
    ours=(
        (
            "acs2018 at ε = 1, median loss with the split budget",
            {"method": "published", "people": 295_243, "epsilon": 1.0},
            "loss",
        ),
        ("ours", {"method": "functional", "people": 295_243, "epsilon": 1.0}, "loss"),
        ("not private", {"method": "not private", "data": "acs2018"}, "loss"),
    ),
    page="functional",
    short="26 s on two quiet cores",
    full="12 minutes on two busy cores, 3 seeds",
)
SEEDS = 3
DELTA = 1e-6  # of LinearRegression; the functional mechanism needs none
EPSILONS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
LARGE = (100.0, 1000.0, 10_000.0)  # where the literal mechanism begins to work
BEST_EPSILONS = (0.1, 0.5, 1.0, 10.0)  # ten seconds a fit
AT = 0.2  # the ε that is divided: at larger ones every division is good
SHARES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
RULES = ("equal", "sensitivity", "variance")
FILES = {"acs2018": "acs_us2018_holdout_295243.parquet", "brazil2010": "brazil2010_350696.parquet"}
#: How many rows the source's tables have.
SOURCE_ROWS = {"acs2018": 370_000, "brazil2010": 190_000}


@dataclasses.dataclass(frozen=True)
class Step:
    """One way to run the mechanism. ``count``: what a sensitivity counts, every ``"columns"`` of the encoded table or
    the entries that one ``"row"`` can have (of a one-hot block only one is not 0). ``triangle``: noise on the upper
    triangle alone, with its exact sensitivity, rather than on every entry of the matrix.
    """

    words: str
    count: str = "columns"
    triangle: bool = False
    split: str = "sensitivity"
    repair: str = "none"


#: From the mechanism as published to ours, then two steps that leave something out.
STEPS = {
    "published": Step("split budget, no repair"),
    "trimmed": Step("+ ridge and trimmed eigenvalues", repair="ridge+trim"),
    "shrunk": Step("+ shrinking instead (our repair)", repair="shrink"),
    "counted": Step("+ d counts what one row can fill", "row", repair="shrink"),
    "triangle": Step("+ upper triangle, exact constants", "row", True, repair="shrink"),
    "functional": Step("+ ε divided by variance: ours", "row", True, "variance", "shrink"),
    "unrepaired": Step("ours without the repair", "row", True, "variance"),
}
ENDS = ("published", "functional")

Floats = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
    """A table cut in two: the exact sums of the training rows, taken once for all fits, and the test rows.

    ``features`` are the public bounds, ``x`` and ``y`` are scaled by them and on the grid of the exact sums.
    """

    shape: Any
    exact: Floats
    design: Floats
    y: Floats
    mean: float

    @classmethod
    def of(cls, x: Floats, y: Floats, features: Any, train: Any, test: Any) -> Split:
        """Take the sums of the rows ``train``."""
        from tacit.linear_model import releases
        from tacit.linear_model.rows import make_rows

        rows = make_rows(x[train], y[train], features, intercept=True)
        design = np.column_stack([np.ones(len(test)), x[test]])
        return cls(rows.shape, releases.moments(rows, target=True), design, y[test], float(y[train].mean()))

    @property
    def width(self) -> int:
        """How many coefficients there are."""
        return int(self.design.shape[1])

    def loss(self, theta: Floats | float) -> float:
        """Mean squared error on the test rows, of coefficients or of a constant."""
        predicted = self.design @ theta if isinstance(theta, np.ndarray) else theta
        return float(((predicted - self.y) ** 2).mean())

    def plain(self) -> float:
        """Test loss of least squares without privacy."""
        size = self.width
        best = np.linalg.lstsq(self.exact[:size, :size], self.exact[:size, size], rcond=1e-10)[0]
        return self.loss(np.asarray(best, np.float64))

    def share(self, epsilon: float, split: Any) -> float:
        """ε1/ε under a rule."""
        return float(self._plan(epsilon, split).epsilons[0] / epsilon)

    def functional(self, epsilon: float, split: Any = "variance", *, repair: str = "shrink") -> float:
        """Test loss of one private fit: what the plan would release of these sums, solved.

        Every call is a new draw of noise and would be a release of its own; only its loss is looked at.
        """
        from tacit.linear_model import releases
        from tacit.linear_model.solve import solve

        plan, size = self._plan(epsilon, split), self.width
        gram = releases.upper_laplace(self.exact[:size, :size], plan.scales[0])
        vector = releases.vector_laplace(-2 * self.exact[:size, size], plan.scales[1]) / -2
        return self.loss(solve(gram, vector, plan.noises, intercept=True, repair=repair).theta)

    def textbook(self, count: str) -> tuple[float, float]:
        """Δ₁ = 2(d+1)² and Δ₂ = 4(d+1), where d + 1 counts columns, or the entries that one row can have."""
        size = self.width if count == "columns" else self.shape.size
        return 2.0 * size**2, 4.0 * size

    def step(self, epsilon: float, step: Step) -> float:
        """Test loss of one private fit by one of the :data:`STEPS`."""
        from tacit.linear_model import releases
        from tacit.linear_model.solve import Noise, solve

        if step.triangle:
            return self.functional(epsilon, step.split, repair=step.repair)
        size, sizes = self.width, self.textbook(step.count)
        scale = releases.laplace_scale(sum(sizes), epsilon)  # Δ₁/ε₁ = Δ₂/ε₂ = (Δ₁ + Δ₂)/ε where ε₁/ε₂ = Δ₁/Δ₂
        noisy = releases.vector_laplace(self.exact[:size, :size].ravel(), scale).reshape(size, size)
        vector = releases.vector_laplace(-2 * self.exact[:size, size], scale) / -2
        noises = Noise(scale, scale / 2**0.5)  # beside the diagonal two draws are averaged
        return self.loss(solve((noisy + noisy.T) / 2, vector, noises, intercept=True, repair=step.repair).theta)

    def _plan(self, epsilon: float, split: Any) -> Any:
        from tacit.linear_model import functional

        return functional.plan(self.shape, self.width, epsilon, "replace-one", split=split)


def encoded(schema: Any, frame: Any) -> tuple[Floats, Floats, Any]:
    """A table as its schema scales it, on the grid of the exact sums, and the public bounds."""
    from tacit.linear_model.bounds import features_of
    from tacit.linear_model.moments import to_grid

    both, _ = schema.encode(frame)
    return to_grid(np.asarray(both.features)), to_grid(np.asarray(both.target)), features_of(schema, 0, None)


def run(table: Table) -> None:
    """Rows for each census, seed, method and ε."""
    from tacit import datasets

    if table.tiny:  # the income of families, from a table that needs no download
        people = datasets.labsup()
        given: Any = people.schema.columns
        columns = (dataclasses.replace(column, target=column.name == "nonmomi") for column in given)
        _census(table, "labsup", dataclasses.replace(people.schema, columns=tuple(columns)), people.train.head(1500))
        return
    for name, file in FILES.items():
        table.path("tables", file)
        people = datasets.load(name, table.data, download=False)
        _census(table, name, people.schema, people.train)


def _census(table: Table, name: str, schema: Any, frame: Any) -> None:
    x, y, features = encoded(schema, frame)
    count = len(y)
    for seed in range(table.seeds):
        order = np.random.default_rng(seed).permutation(count)
        train, test = order[: int(0.8 * count)], order[int(0.8 * count) :]
        split = functools.cache(functools.partial(Split.of, x, y, features, train, test))  # only for a missing row
        for key, measure in _measures(table, split, schema, frame, train, test):
            table.row(measure, data=name, seed=seed, people=count, **key)
        if name in SOURCE_ROWS:
            size = int(0.8 * SOURCE_ROWS[name])
            theirs = train[:size] if size <= len(train) else np.random.default_rng([seed, size]).choice(train, size)
            split = functools.cache(functools.partial(Split.of, x, y, features, theirs, test))
            for key, measure in _steps(split, {name: STEPS[name] for name in ENDS}, table.pick((1.0,), (), EPSILONS)):
                table.row(measure, data=name, seed=seed, people=SOURCE_ROWS[name], **key)


Measures = Iterator[tuple[dict[str, Any], Callable[[], dict[str, Any]]]]


def _steps(split: Callable[[], Split], steps: dict[str, Step], epsilons: tuple[float, ...]) -> Measures:
    """One fit for each step and ε."""

    def measure(epsilon: float, step: Step) -> dict[str, Any]:
        found: dict[str, Any] = {"loss": split().step(epsilon, step)}
        if step.triangle:
            return found | {"share": split().share(epsilon, step.split)}
        one, two = split().textbook(step.count)
        return found | {"share": one / (one + two), "sensitivities": [one, two]}

    for method, step in steps.items():
        for epsilon in epsilons:
            yield {"method": method, "epsilon": epsilon}, functools.partial(measure, epsilon, step)


def _measures(table: Table, split: Callable[[], Split], schema: Any, frame: Any, train: Any, test: Any) -> Measures:
    """Each fit of one split: its key, and the function that measures its row."""

    def functional(epsilon: float, part: Any) -> dict[str, Any]:
        return {"loss": split().functional(epsilon, part), "share": split().share(epsilon, part)}

    def best(epsilon: float, method: str = "gradient-descent") -> dict[str, Any]:
        from tacit.linear_model import LinearRegression

        private = LinearRegression(epsilon, DELTA, bounds=schema, method=method, adjacency="replace-one")
        fitted = private.fit(frame[train])
        low, high = schema.target.lower, schema.target.upper
        scaled = (fitted.predict(frame[test]) - (low + high) / 2) / ((high - low) / 2)
        return {"loss": float(((scaled - split().y) ** 2).mean())}

    yield {"method": "not private"}, lambda: {"loss": split().plain()}
    yield {"method": "mean alone"}, lambda: {"loss": split().loss(split().mean)}
    yield from _steps(split, STEPS, table.pick((1.0,), EPSILONS[1::2], EPSILONS))
    yield from _steps(split, {"published": STEPS["published"]}, table.pick((), LARGE[1:], LARGE))
    for part in table.pick((0.5, *RULES), RULES, (*SHARES, *RULES)):
        yield {"method": "divided", "epsilon": AT, "split": part}, functools.partial(functional, AT, part)
    for epsilon in table.pick((1.0,), (1.0,), BEST_EPSILONS):
        yield {"method": "LinearRegression", "epsilon": epsilon}, functools.partial(best, epsilon)
    yield {"method": "AdaSSP", "epsilon": 1.0}, functools.partial(best, 1.0, "adassp")


def _losses(rows: list[Row], data: str, method: str, **key: Any) -> list[float]:
    wanted = {"data": data, "method": method, **key}
    return [row["loss"] for row in rows if all(row.get(name) == value for name, value in wanted.items())]


def _mean(rows: list[Row], data: str, method: str, **key: Any) -> tuple[float, float]:
    return mean_sd(_losses(rows, data, method, **key))


def _middle(rows: list[Row], data: str, method: str, **key: Any) -> float:
    """The median over seeds: a fit without repair can be off by any factor, and a mean would show the worst alone."""
    return statistics.median(_losses(rows, data, method, **key))


def _epsilons(rows: list[Row], data: str, method: str, **key: Any) -> list[float]:
    wanted = {"data": data, "method": method, **key}
    return sorted({row["epsilon"] for row in rows if all(row.get(name) == value for name, value in wanted.items())})


def _parts(rows: list[Row], data: str) -> dict[Any, float]:
    """Each division that was tried, and its ε1/ε."""
    return {row["split"]: row["share"] for row in rows if row["data"] == data and row["method"] == "divided"}


def _tables(rows: list[Row]) -> list[tuple[str, int]]:
    """Each census with each number of rows, ours first."""
    return list(dict.fromkeys((row["data"], row["people"]) for row in rows))


def _cells(rows: list[Row], data: str, method: str, count: int) -> Row:
    epsilons = _epsilons(rows, data, method, people=count)
    return {f"ε = {e:g}": _middle(rows, data, method, people=count, epsilon=e) for e in epsilons}


def _first_table(rows: list[Row]) -> list[Row]:
    """The median test loss of every step against ε."""
    found: list[Row] = []
    for data, count in _tables(rows):
        for method, words in [(n, step.words) for n, step in STEPS.items()] + [
            ("LinearRegression",) * 2,
            ("AdaSSP", "AdaSSP (Wang 2018)"),
        ]:
            cells = _cells(rows, data, method, count)
            if cells:
                found.append({"census": data, "rows": f"{count:,}", "median test loss": words, **cells})
        for method in ("not private", "mean alone"):
            if _losses(rows, data, method, people=count):
                value = _middle(rows, data, method, people=count)
                epsilons = _epsilons(rows, data, "functional", people=count)
                line: Row = {"census": data, "rows": f"{count:,}", "median test loss": method}
                found.append(line | {f"ε = {e:g}": value for e in epsilons})
    return found


def summary(rows: list[Row]) -> str:
    """Three tables: test loss against ε, the sensitivities as published, and the division of one ε."""
    first = _first_table(rows)
    counted: list[Row] = []
    divided: list[Row] = []
    for data in dict.fromkeys(row["data"] for row in rows):
        for method in ("published", "counted"):
            for one, two in {tuple(r["sensitivities"]) for r in rows if (r["data"], r["method"]) == (data, method)}:
                line: Row = {"census": data, "d + 1 counts": STEPS[method].count, "d + 1": two / 4}
                counted.append(line | {"Δ₁": f"{one:,.0f}", "Δ₂": f"{two:,.0f}", "ε₁/ε": one / (one + two)})
        for part, share in sorted(_parts(rows, data).items(), key=lambda item: item[1]):
            loss, deviation = _mean(rows, data, "divided", split=part)
            rule = part if isinstance(part, str) else ""
            divided.append({"census": data, "ε": AT, "rule": rule, "ε1/ε": share, "test loss": loss, "sd": deviation})
    epsilons = sorted({name for row in first for name in row if name[0] == "ε"}, key=lambda name: float(name[4:]))
    texts = [markdown(first, ["census", "rows", "median test loss", *epsilons])]
    return "\n\n".join([*texts, *(markdown(part, list(part[0])) for part in (counted, divided) if part)])


def plot(rows: list[Row], folder: Path) -> None:
    """For each census: ours and the literal one against ε; the steps between them; the division of one ε."""
    from matplotlib.figure import Figure

    censuses = list(dict.fromkeys(row["data"] for row in rows))
    figure = Figure(figsize=(14, 4.1 * len(censuses)), layout="constrained")
    for (left, middle, right), data in zip(figure.subplots(len(censuses), 3, squeeze=False), censuses, strict=True):
        _against(left, rows, data)
        _ladder(middle, rows, data)
        _division(right, rows, data)
        for axes in (left, middle, right):
            axes.axhline(_mean(rows, data, "not private")[0], ls="--", color="black", lw=1, label="not private")
            axes.grid(True, alpha=0.2)
            axes.legend(fontsize=7.5)
    figure.savefig(folder / "functional.png", dpi=110)


def _against(axes: Any, rows: list[Row], data: str) -> None:
    """Median loss of both ends against ε, with our rows and with the source's number of rows."""
    ours = next(count for name, count in _tables(rows) if name == data)
    for count in [count for name, count in _tables(rows) if name == data]:
        for method, words, colour in (("published", "split budget", "C3"), ("functional", "ours, pure ε", "C0")):
            epsilons = _epsilons(rows, data, method, people=count)
            losses = [_middle(rows, data, method, people=count, epsilon=e) for e in epsilons]
            style = "o-" if count == ours else "x:"
            axes.plot(epsilons, losses, style, color=colour, label=f"{words}, {count:,} rows")
    epsilons = _epsilons(rows, data, "LinearRegression")
    losses = [_middle(rows, data, "LinearRegression", epsilon=e) for e in epsilons]
    axes.plot(epsilons, losses, "s-", color="C2", label=f"LinearRegression, δ = {DELTA:g}")
    axes.axhline(_mean(rows, data, "mean alone")[0], ls=":", color="gray", label="mean of income alone")
    axes.set(xscale="log", yscale="log", xlabel="ε, replace one record", ylabel="median test loss of scaled income")
    axes.set_title(data)


def _ladder(axes: Any, rows: list[Row], data: str) -> None:
    """Every step, where losses are near the useful ones."""
    ours = next(count for name, count in _tables(rows) if name == data)
    constant = _mean(rows, data, "mean alone")[0]
    for number, (method, step) in enumerate(STEPS.items()):
        epsilons = [e for e in _epsilons(rows, data, method, people=ours) if e <= EPSILONS[-1]]
        losses = [_middle(rows, data, method, people=ours, epsilon=e) for e in epsilons]
        axes.plot(epsilons, losses, "osv^DP*"[number] + "-", color=f"C{number}", ms=5, label=step.words)
    axes.axhline(constant, ls=":", color="gray", label="mean of income alone")
    plain = _mean(rows, data, "not private")[0]
    axes.set(xscale="log", ylim=(plain - 0.08 * (constant - plain), constant + 1.2 * (constant - plain)))
    axes.set(xlabel="ε, replace one record", ylabel="median test loss", title=f"{data}, one change at a time")


def _division(axes: Any, rows: list[Row], data: str) -> None:
    parts = _parts(rows, data)
    shares = sorted(part for part in parts if not isinstance(part, str))
    if shares:
        found = [_mean(rows, data, "divided", split=part) for part in shares]
        axes.errorbar(shares, [m for m, _ in found], [s for _, s in found], marker="o", capsize=3, label="by hand")
    for rule, mark in zip(RULES, "s^D", strict=True):
        if rule in parts:
            loss = _mean(rows, data, "divided", split=rule)[0]
            axes.plot([parts[rule]], [loss], mark, markersize=9, ls="", label=f"{rule} split")
    axes.set(xlabel="ε1/ε, the share of the quadratic part", ylabel="mean test loss", title=f"{data}, ε = {AT:g}")
