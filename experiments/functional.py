"""What does the functional mechanism give on two censuses, and how should its ε be divided?

Pure ε on the coefficients of the quadratic loss of scaled income: test loss against ε, and against the share ε1/ε of
the quadratic part, next to the best estimator of the house (:class:`tacit.linear_model.LinearRegression`, (ε, δ)) and
least squares without privacy. All are for replacing one record. ``python -m benchmarks regression`` measures with the
same :class:`Split`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.table import Row, Table, markdown, mean_sd

ABOUT = "functional mechanism on the censuses acs2018 and brazil2010: loss against ε and against the split of ε"
SEEDS = 5
DELTA = 1e-6  # of LinearRegression; the functional mechanism needs none
EPSILONS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
BEST_EPSILONS = (0.1, 0.5, 1.0, 10.0)  # ten seconds a fit
AT = 0.2  # the ε that is divided: at larger ones every division is good
SHARES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
RULES = ("equal", "sensitivity", "variance")
FILES = {"acs2018": "acs_us2018_holdout_295243.parquet", "brazil2010": "brazil2010_350696.parquet"}

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

    def functional(self, epsilon: float, split: Any = "variance") -> float:
        """Test loss of one private fit: what the plan would release of these sums, solved.

        Every call is a new draw of noise and would be a release of its own; only its loss is looked at.
        """
        from tacit.linear_model import releases
        from tacit.linear_model.solve import solve

        plan, size = self._plan(epsilon, split), self.width
        gram = releases.upper_laplace(self.exact[:size, :size], plan.scales[0])
        vector = releases.vector_laplace(-2 * self.exact[:size, size], plan.scales[1]) / -2
        return self.loss(solve(gram, vector, plan.noises, intercept=True).theta)

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
    for seed in range(table.seeds):
        order = np.random.default_rng(seed).permutation(len(y))
        train, test = order[: int(0.8 * len(y))], order[int(0.8 * len(y)) :]
        split = functools.cache(functools.partial(Split.of, x, y, features, train, test))  # only for a missing row
        for key, measure in _measures(split, schema, frame, train, test, table.tiny):
            table.row(measure, data=name, seed=seed, **key)


def _measures(
    split: Callable[[], Split], schema: Any, frame: Any, train: Any, test: Any, small: bool
) -> Iterator[tuple[dict[str, Any], Callable[[], dict[str, float]]]]:
    """Each fit of one split: its key, and the function that measures its row."""

    def functional(epsilon: float, part: Any = "variance") -> dict[str, float]:
        return {"loss": split().functional(epsilon, part), "share": split().share(epsilon, part)}

    def best(epsilon: float) -> dict[str, float]:
        from tacit.linear_model import LinearRegression

        fitted = LinearRegression(epsilon, DELTA, bounds=schema, adjacency="replace-one").fit(frame[train])
        low, high = schema.target.lower, schema.target.upper
        scaled = (fitted.predict(frame[test]) - (low + high) / 2) / ((high - low) / 2)
        return {"loss": float(((scaled - split().y) ** 2).mean())}

    yield {"method": "not private"}, lambda: {"loss": split().plain()}
    yield {"method": "mean alone"}, lambda: {"loss": split().loss(split().mean)}
    for epsilon in (1.0,) if small else EPSILONS:
        yield {"method": "functional", "epsilon": epsilon}, functools.partial(functional, epsilon)
    for part in (0.5, *RULES) if small else (*SHARES, *RULES):
        yield {"method": "divided", "epsilon": AT, "split": part}, functools.partial(functional, AT, part)
    for epsilon in (1.0,) if small else BEST_EPSILONS:
        yield {"method": "LinearRegression", "epsilon": epsilon}, functools.partial(best, epsilon)


def _mean(rows: list[Row], data: str, method: str, **key: Any) -> tuple[float, float]:
    wanted = {"data": data, "method": method, **key}
    return mean_sd([row["loss"] for row in rows if all(row.get(name) == value for name, value in wanted.items())])


def _epsilons(rows: list[Row], data: str, method: str) -> list[float]:
    return sorted({row["epsilon"] for row in rows if row["data"] == data and row["method"] == method})


def _parts(rows: list[Row], data: str) -> dict[Any, float]:
    """Each division that was tried, and its ε1/ε."""
    return {row["split"]: row["share"] for row in rows if row["data"] == data and row["method"] == "divided"}


def summary(rows: list[Row]) -> str:
    """Two tables: mean test loss against ε, and against the division of one ε."""
    against: list[Row] = []
    divided: list[Row] = []
    for data in dict.fromkeys(row["data"] for row in rows):
        for method in ("functional", "LinearRegression"):
            cells = {f"ε = {e:g}": _mean(rows, data, method, epsilon=e)[0] for e in _epsilons(rows, data, method)}
            against.append({"census": data, "test loss": method, **cells})
        for method in ("not private", "mean alone"):
            value = _mean(rows, data, method)[0]
            against.append(
                {"census": data, "test loss": method}
                | {f"ε = {e:g}": value for e in _epsilons(rows, data, "functional")}
            )
        for part, share in sorted(_parts(rows, data).items(), key=lambda item: item[1]):
            loss, deviation = _mean(rows, data, "divided", split=part)
            rule = part if isinstance(part, str) else ""
            divided.append({"census": data, "ε": AT, "rule": rule, "ε1/ε": share, "test loss": loss, "sd": deviation})
    columns = list(dict.fromkeys(name for row in against for name in row))
    return markdown(against, columns) + "\n\n" + markdown(divided, list(divided[0]))


def plot(rows: list[Row], folder: Path) -> None:
    """For each census: loss against ε, and against the division of one ε."""
    from matplotlib.figure import Figure

    censuses = list(dict.fromkeys(row["data"] for row in rows))
    figure = Figure(figsize=(9, 3.3 * len(censuses)), layout="constrained")
    for (left, right), data in zip(figure.subplots(len(censuses), 2, squeeze=False), censuses, strict=True):
        for method, label in (
            ("functional", "functional mechanism, pure ε"),
            ("LinearRegression", f"LinearRegression, δ = {DELTA:g}"),
        ):
            epsilons = _epsilons(rows, data, method)
            found = [_mean(rows, data, method, epsilon=e) for e in epsilons]
            left.errorbar(epsilons, [m for m, _ in found], [s for _, s in found], marker="o", capsize=3, label=label)
        left.axhline(_mean(rows, data, "mean alone")[0], ls=":", color="gray", label="mean of income alone")
        left.set(xscale="log", xlabel="ε, replace one record", ylabel="test loss of scaled income", title=data)
        parts = _parts(rows, data)
        shares = sorted(part for part in parts if not isinstance(part, str))
        found = [_mean(rows, data, "divided", split=part) for part in shares]
        right.errorbar(shares, [m for m, _ in found], [s for _, s in found], marker="o", capsize=3, label="by hand")
        for rule, mark in zip(RULES, "s^D", strict=True):
            loss = _mean(rows, data, "divided", split=rule)[0]
            right.plot([parts[rule]], [loss], mark, markersize=9, ls="", label=f"{rule} split")
        right.set(xlabel="ε1/ε, the share of the quadratic part", ylabel="test loss", title=f"{data}, ε = {AT:g}")
        for axes in (left, right):
            axes.axhline(_mean(rows, data, "not private")[0], ls="--", color="black", lw=1, label="not private")
            axes.grid(True, alpha=0.2)
            axes.legend(fontsize=8)
    figure.savefig(folder / "functional.png", dpi=110)
