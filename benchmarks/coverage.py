"""Do the 95% intervals of private regressions cover? Tables that are unkind, every method that states intervals.

    python -m benchmarks coverage [--fits 1000] [--only NAME;…] [--methods NAME,…] [--epsilon 1] [--exact] [--out FILE]

δ = 1e-6 (0 for the functional mechanism), 5,000 rows unless a table says otherwise. Each fit has a new table. The truth
is what the same fit without noise has on the population: a plain fit to two million rows, with the same penalty or
weights where the method has some. An interval may be refused, for one coefficient or for all; ``stated`` is the share
that was not. The coverage is that of the stated ones, of all coefficients together and of the worst. Pieces of fits are
appended to a file of JSON lines as they end, and a second call goes on after the last one. The noise is numpy's, which
has the law of tacit's own to 20 bits and takes a tenth of the time; ``--exact`` takes tacit's.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import json
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy.stats import binom

from tacit.linear_model import (
    FunctionalLinearRegression,
    LinearRegression,
    LogisticRegression,
    Ridge,
    objective,
    releases,
)

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Table = tuple[Floats, Floats]
Make = Callable[[np.random.Generator, int], Table]

LINEAR = ("auto", "sufficient-statistics", "adassp", "functional", "Functional", "file", "ridge")
LOGISTIC = ("auto", "objective-perturbation", "balanced", "file")
#: The penalty of a ridge for each row: where features are even in [-1, 1], it shrinks coefficients by 6%.
PENALTY = 0.02
#: Rows of the plain fit that stands for the population.
POPULATION = 2_000_000
#: Fits between two writes.
PIECE = 100


def _features(rng: np.random.Generator, rows: int) -> Floats:
    return rng.uniform(-1, 1, (rows, 3))


def symmetric(rng: np.random.Generator, rows: int) -> Table:
    """Normal errors of one variance."""
    x = _features(rng, rows)
    return x, x @ [0.3, 0.1, 0.0] + 0.1 * rng.normal(size=rows)


def rare_outcome(rng: np.random.Generator, rows: int) -> Table:
    """A target of two values, 15% of them the upper one."""
    x = _features(rng, rows)
    return x, 2.0 * (rng.random(rows) < 0.15 + 0.12 * x[:, 0]) - 1


def collinear(rng: np.random.Generator, rows: int) -> Table:
    """Two columns with a correlation of .999."""
    x = _features(rng, rows)
    x[:, 1] = np.clip(x[:, 0] + 0.026 * rng.normal(size=rows), -1, 1)
    return x, x @ [0.3, 0.2, -0.1] + 0.1 * rng.normal(size=rows)


def rare_category(rng: np.random.Generator, rows: int) -> Table:
    """A column that is 1 in half a percent of the rows."""
    x = _features(rng, rows)
    x[:, 2] = rng.random(rows) < 0.005
    return x, x @ [0.3, 0.2, 0.1] + 0.1 * rng.normal(size=rows)


def heavy_tails(rng: np.random.Generator, rows: int) -> Table:
    """Errors of Student's t with two degrees of freedom, cut at the bounds."""
    x = _features(rng, rows)
    return x, x @ [0.3, 0.1, 0.0] + 0.1 * rng.standard_t(2, size=rows)


def uneven(rng: np.random.Generator, rows: int) -> Table:
    """Errors that grow with the cube of a feature."""
    x = _features(rng, rows)
    return x, 0.3 * x[:, 0] + np.abs(x[:, 0]) ** 3 * rng.uniform(-0.7, 0.7, rows)


def clipped(rng: np.random.Generator, rows: int) -> Table:
    """A skewed target, a third of which lies beyond its bounds."""
    x = _features(rng, rows)
    return x, x @ [0.4, 0.2, 0.0] + rng.exponential(1.0, rows) - 0.2


def skewed_features(rng: np.random.Generator, rows: int) -> Table:
    """Features near the lower ends of their bounds, as incomes are; a quadratic effect that the line leaves out."""
    x = np.clip(rng.exponential(0.25, (rows, 3)), 0, 2) - 1
    return x, 0.3 * x[:, 0] + 0.2 * x[:, 0] ** 2 + 0.1 * rng.normal(size=rows)


def tenth(rng: np.random.Generator, rows: int) -> Table:
    """Features that fill a tenth of their bounds."""
    x = _features(rng, rows) / 10
    return x, x @ [1.0, 2.0, 0.0] + 0.1 * rng.normal(size=rows)


def _outcome(rng: np.random.Generator, odds: Floats) -> Floats:
    return np.asarray((rng.random(len(odds)) < 1 / (1 + np.exp(-odds))).astype(np.float64))


def loud_category(rng: np.random.Generator, rows: int) -> Table:
    """A category of 5%, in which errors are ten times as large."""
    x = _features(rng, rows)
    x[:, 2] = rng.random(rows) < 0.05
    return x, x @ [0.3, 0.1, 0.1] + np.where(x[:, 2] > 0, 0.3, 0.03) * rng.normal(size=rows)


def spikes(rng: np.random.Generator, rows: int) -> Table:
    """A feature of Student's t with two degrees of freedom, and errors that grow with it."""
    x = _features(rng, rows)
    x[:, 0] = np.clip(0.15 * rng.standard_t(2, rows), -1, 1)
    return x, x @ [0.3, 0.1, 0.1] + (0.02 + 0.5 * np.abs(x[:, 0])) * rng.normal(size=rows)


def left_out(rng: np.random.Generator, rows: int) -> Table:
    """A slope that is other in 8% of the rows, which the line leaves out."""
    x = _features(rng, rows)
    x[:, 2] = rng.random(rows) < 0.08
    return x, np.where(x[:, 2] > 0, x[:, 0], -0.1 * x[:, 0]) + 0.02 * rng.normal(size=rows)


def law_school(rng: np.random.Generator, rows: int) -> Table:
    """5% fail the bar exam: a score, grades near the top of their scale, and a tier of six, which go together."""
    ability = rng.normal(size=rows)
    score = np.clip(37 + 4 * ability + 4 * rng.normal(size=rows), 11, 48)
    grades = np.clip(3.2 + 0.15 * ability + 0.4 * rng.normal(size=rows), 0, 4)
    tier = np.clip(np.round(3.7 + 0.8 * ability + rng.normal(size=rows)), 1, 6)
    passed = rng.random(rows) < 1 / (1 + np.exp(-(3.3 + 0.12 * (score - 37) + 0.5 * (grades - 3.2))))
    return np.column_stack([score / 24 - 1, grades / 2 - 1, (tier - 3.5) / 2.5]), 2.0 * passed - 1


def at_the_ends(rng: np.random.Generator, rows: int) -> Table:
    """Errors only where a feature is near an end of its bounds, in a tenth of the rows."""
    x = _features(rng, rows)
    return x, np.where(np.abs(x[:, 0]) > 0.9, rng.choice([-1.0, 1.0], rows), 0.0)


def even_classes(rng: np.random.Generator, rows: int) -> Table:
    """Two classes of about the same size."""
    x = _features(rng, rows)
    return x, _outcome(rng, x @ [1.0, 0.5, 0.0])


def rare_class(rng: np.random.Generator, rows: int) -> Table:
    """1.2% in the second class."""
    x = _features(rng, rows)
    return x, _outcome(rng, x @ [2.0, 0.0, 0.0] - 5.0)


def bent_odds(rng: np.random.Generator, rows: int) -> Table:
    """Log-odds with a square and a product that the line leaves out."""
    x = _features(rng, rows)
    return x, _outcome(rng, x @ [1.5, 0.5, 0.0] + 1.5 * x[:, 0] ** 2 + x[:, 0] * x[:, 1] - 1)


def class_by_collinear(rng: np.random.Generator, rows: int) -> Table:
    """Two columns with a correlation of .999."""
    x, _ = collinear(rng, rows)
    return x, _outcome(rng, x @ [1.0, 0.5, -0.5])


def class_by_category(rng: np.random.Generator, rows: int) -> Table:
    """A column that is 1 in half a percent of the rows."""
    x, _ = rare_category(rng, rows)
    return x, _outcome(rng, x @ [1.0, 0.5, 1.0])


def class_by_tenth(rng: np.random.Generator, rows: int) -> Table:
    """Features that fill a tenth of their bounds."""
    x, _ = tenth(rng, rows)
    return x, _outcome(rng, x @ [10.0, 5.0, 0.0])


def class_by_spikes(rng: np.random.Generator, rows: int) -> Table:
    """A feature with heavy tails, and 3% of labels turned around."""
    x, _ = spikes(rng, rows)
    y = _outcome(rng, x @ [3.0, 0.5, 0.0])
    return x, np.abs(y - (rng.random(rows) < 0.03))


def apart(rng: np.random.Generator, rows: int) -> Table:
    """Classes that a line separates but for one row in a hundred."""
    x = _features(rng, rows)
    return x, ((x[:, 0] > 0) ^ (rng.random(rows) < 0.01)).astype(np.float64)


def law_school_class(rng: np.random.Generator, rows: int) -> Table:
    """The bar exam as two classes."""
    x, y = law_school(rng, rows)
    return x, (y > 0).astype(np.float64)


#: Name, table, rows, methods.
TABLES: tuple[tuple[str, Make, int, tuple[str, ...]], ...] = (
    ("symmetric errors", symmetric, 5000, LINEAR),
    ("symmetric errors, 1,000 rows", symmetric, 1000, LINEAR),
    ("binary target, 15% ones", rare_outcome, 5000, LINEAR),
    ("collinear, r = .999", collinear, 5000, LINEAR),
    ("a category of .5%", rare_category, 5000, LINEAR),
    ("heavy tails", heavy_tails, 5000, LINEAR),
    ("heteroskedastic", uneven, 5000, LINEAR),
    ("clipped target", clipped, 5000, LINEAR),
    ("skewed features, bent line", skewed_features, 5000, LINEAR),
    ("features fill a tenth", tenth, 5000, LINEAR),
    ("errors by category", loud_category, 5000, LINEAR),
    ("heavy-tailed feature, uneven", spikes, 5000, LINEAR),
    ("interaction left out", left_out, 5000, LINEAR),
    ("law school", law_school, 20_000, LINEAR),
    ("errors at the ends, 1,000 rows", at_the_ends, 1000, LINEAR),
    ("symmetric errors, 300 rows", symmetric, 300, LINEAR),
    ("two classes", even_classes, 5000, LOGISTIC),
    ("two classes, bent log-odds", bent_odds, 5000, LOGISTIC),
    ("a class of 1.2%, 50,000 rows", rare_class, 50_000, LOGISTIC),
    ("classes, collinear, r = .999", class_by_collinear, 5000, LOGISTIC),
    ("classes, a category of .5%", class_by_category, 5000, LOGISTIC),
    ("classes, features fill a tenth", class_by_tenth, 5000, LOGISTIC),
    ("classes, heavy-tailed feature", class_by_spikes, 5000, LOGISTIC),
    ("classes almost separated", apart, 5000, LOGISTIC),
    ("classes, law school", law_school_class, 20_000, LOGISTIC),
    ("two classes, 300 rows", even_classes, 300, LOGISTIC),
)


@functools.cache
def _population(name: str) -> Table:
    _, make, _, _ = next(table for table in TABLES if table[0] == name)
    return make(np.random.default_rng(20_000), POPULATION)


@functools.cache
def truth(name: str, changed: str = "") -> tuple[float, ...]:
    """The coefficients of a plain fit to the population; ``changed`` is "ridge", "balanced" or nothing."""
    from sklearn.linear_model import LogisticRegression as Logit
    from sklearn.linear_model import Ridge as Line

    x, y = _population(name)
    if next(table for table in TABLES if table[0] == name)[3] == LINEAR:
        alpha = PENALTY * POPULATION if changed == "ridge" else 0.0
        return tuple(Line(alpha=alpha).fit(x, np.clip(y, -1, 1)).coef_)
    weight = "balanced" if changed == "balanced" else None
    return tuple(Logit(C=1e9, class_weight=weight).fit(x, y.astype(int)).coef_[0])


def take_cheap_noise() -> None:
    """Draw the noise of every release from numpy's generator: for measuring only, not for protecting anything."""
    rng = np.random.default_rng()

    def gaussian(values: Any, scale: float, **_: Any) -> Floats:
        return np.asarray(values + rng.normal(0.0, scale, np.shape(values)))

    def laplace(values: Any, scale: float, **_: Any) -> Floats:
        return np.asarray(values + rng.laplace(0.0, scale, np.shape(values)))

    for module in (releases, objective):
        module.add_gaussian, module.add_laplace = gaussian, laplace


def _model(method: str, epsilon: float, rows: int, linear: bool) -> Any:
    """The estimator, with its defaults but for the method."""
    if not linear:
        weight = "balanced" if method == "balanced" else None
        kind = "auto" if method in ("balanced", "file") else method
        return LogisticRegression(epsilon, bounds=(-1, 1), method=kind, class_weight=weight)
    if method == "Functional":
        return FunctionalLinearRegression(epsilon, bounds=(-1, 1), target_bounds=(-1, 1))
    public: dict[str, Any] = {"epsilon": epsilon, "bounds": (-1, 1), "target_bounds": (-1, 1)}
    if method == "ridge":
        return Ridge(PENALTY * rows, **public)
    kind = "auto" if method == "file" else method
    return LinearRegression(delta=0.0 if method == "functional" else 1e-6, method=kind, **public)


def measure(name: str, method: str, epsilon: float, first: int, fits: int) -> dict[str, Any]:
    """How many intervals of each coefficient were stated and how many cover, from the fit ``first`` on."""
    _, make, rows, methods = next(table for table in TABLES if table[0] == name)
    linear = methods == LINEAR
    right = np.array(truth(name, method if method in ("ridge", "balanced") else ""))
    hits, stated = np.zeros((2, 3), dtype=int)
    began = time.process_time()
    for seed in range(first, first + fits):
        x, y = make(np.random.default_rng(seed), rows)
        model = _model(method, epsilon, rows, linear)
        y = y if linear else y.astype(int)
        if method == "file":
            frame = pl.from_numpy(x, ["a", "b", "c"]).with_columns(pl.Series("y", y))
            model.fit(frame.lazy(), "y")
        else:
            model.fit(x, y)
        try:
            interval = model.confidence_interval(0.95)
        except ValueError:
            continue
        finite = np.isfinite(interval[:, 0])
        hits += (interval[:, 0] <= right) & (right <= interval[:, 1]) & finite
        stated += finite
    return {
        "table": name,
        "method": method,
        "epsilon": epsilon,
        "fits": fits,
        "hits": hits.tolist(),
        "stated": stated.tolist(),
        "seconds": round(time.process_time() - began, 1),
    }


@dataclasses.dataclass
class Cell:
    """What the pieces of one table, method and ε add up to."""

    fits: int = 0
    hits: Counts = dataclasses.field(default_factory=lambda: np.zeros(3, dtype=int))
    stated: Counts = dataclasses.field(default_factory=lambda: np.zeros(3, dtype=int))

    def add(self, piece: dict[str, Any]) -> None:
        """Count one piece."""
        self.fits += piece["fits"]
        self.hits = self.hits + piece["hits"]
        self.stated = self.stated + piece["stated"]

    @property
    def below(self) -> bool:
        """Whether a coefficient, or all together, are covered below 93% by more than chance (once in a thousand)."""
        counts = [*zip(self.hits, self.stated, strict=True), (self.hits.sum(), self.stated.sum())]
        return any(stated and hits < binom.ppf(1e-3, stated, 0.93) for hits, stated in counts)

    def __str__(self) -> str:
        if not self.stated.any():
            return f"{self.fits:5d} fits  refused"
        often = self.stated >= max(20, self.fits // 50)
        worst = (self.hits[often] / self.stated[often]).min(initial=1.0)
        return (
            f"{self.fits:5d} fits  stated {self.stated.sum() / (3 * self.fits):6.1%}  "
            f"coverage {self.hits.sum() / self.stated.sum():.1%}  worst {worst:.1%}"
        )


def _cells(file: Path) -> dict[tuple[str, str, float], Cell]:
    found: dict[tuple[str, str, float], Cell] = collections.defaultdict(Cell)
    for line in file.read_text().splitlines() if file.exists() else ():
        piece = json.loads(line)
        found[piece["table"], piece["method"], piece["epsilon"]].add(piece)
    return found


def main(argv: Sequence[str]) -> int:
    """Run the tables; 1 if a coverage is below 93% by more than chance."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks coverage", description=__doc__)
    parser.add_argument("--fits", type=int, default=1000)
    parser.add_argument("--only", default="", help="names of tables, separated by semicolons")
    parser.add_argument("--methods", default="", help="methods, separated by commas")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after about so many")
    parser.add_argument("--exact", action="store_true", help="tacit's own noise")
    parser.add_argument("--out", type=Path, default=Path("runs/coverage.jsonl"))
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    if not options.exact:
        take_cheap_noise()
    wanted = [one for one in options.only.split(";") if one]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    cells, end, good = _cells(options.out), time.monotonic() + options.seconds, True
    for name, _, _, methods in TABLES:
        _population.cache_clear()
        for method in methods:
            if (wanted and name not in wanted) or (options.methods and method not in options.methods.split(",")):
                continue
            cell = cells[name, method, options.epsilon]
            while cell.fits < options.fits and time.monotonic() < end:
                piece = measure(name, method, options.epsilon, cell.fits, min(PIECE, options.fits - cell.fits))
                with options.out.open("a") as file:
                    file.write(json.dumps(piece) + "\n")
                cell.add(piece)
            if cell.fits:
                print(f"{name:<32} {method:<24} {cell}{'  BELOW' if cell.below else ''}", flush=True)
            good &= not cell.below
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
