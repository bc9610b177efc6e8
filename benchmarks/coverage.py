"""Do the 95% intervals of private regressions cover? Twelve tables, every method that states intervals.

    python -m benchmarks coverage [--fits 1000] [--only NAME;…] [--methods NAME,…] [--out FILE]

ε = 1, δ = 1e-6 (0 for the functional mechanism), 5,000 rows unless a table says otherwise. Each fit has a new table.
The truth is what the same fit without noise has on the population: exact where the table is made of a line, else from a
plain fit to two million rows. An interval may be refused, for one coefficient or for all; ``stated`` is the share that
was not, and the coverage is that of the stated ones. Results are appended to a file of JSON lines.
"""

from __future__ import annotations

import argparse
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
from scipy.stats import binom

from tacit.linear_model import LinearRegression, LogisticRegression

Floats = npt.NDArray[np.float64]
Table = tuple[Floats, Floats]
Make = Callable[[np.random.Generator, int], Table]

LINEAR = ("auto", "sufficient-statistics", "adassp", "functional")
LOGISTIC = ("auto", "objective-perturbation")
#: Rows of the plain fit that stands for the population.
POPULATION = 2_000_000


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
    ("two classes", even_classes, 5000, LOGISTIC),
    ("two classes, bent log-odds", bent_odds, 5000, LOGISTIC),
    ("a class of 1.2%, 50,000 rows", rare_class, 50_000, LOGISTIC),
)


@functools.cache
def truth(name: str) -> tuple[float, ...]:
    """The coefficients of a plain fit to the population."""
    from sklearn.linear_model import LinearRegression as Line
    from sklearn.linear_model import LogisticRegression as Logit

    _, make, _, methods = next(table for table in TABLES if table[0] == name)
    x, y = make(np.random.default_rng(20_000), POPULATION)
    if methods == LINEAR:
        return tuple(Line().fit(x, np.clip(y, -1, 1)).coef_)
    return tuple(Logit(C=1e9).fit(x, y.astype(int)).coef_[0])


def measure(name: str, method: str, fits: int) -> dict[str, Any]:
    """Coverage of the stated intervals, how many were stated, and their median width."""
    _, make, rows, methods = next(table for table in TABLES if table[0] == name)
    right, linear = np.array(truth(name)), methods == LINEAR
    hits = stated = 0
    widths: list[float] = []
    began = time.process_time()
    for seed in range(fits):
        x, y = make(np.random.default_rng(seed), rows)
        model: Any
        if linear:
            delta = 0.0 if method == "functional" else 1e-6
            model = LinearRegression(1.0, delta, bounds=(-1, 1), target_bounds=(-1, 1), method=method)
        else:
            model = LogisticRegression(1.0, bounds=(-1, 1), method=method)
        model.fit(x, y if linear else y.astype(int))
        try:
            interval = model.confidence_interval(0.95)
        except ValueError:
            continue
        finite = np.isfinite(interval[:, 0])
        hits += int(((interval[:, 0] <= right) & (right <= interval[:, 1]) & finite).sum())
        stated += int(finite.sum())
        widths += np.diff(interval)[finite, 0].tolist()
    return {
        "table": name,
        "method": method,
        "fits": fits,
        "stated": stated / (3 * fits),
        "coverage": hits / stated if stated else None,
        "width": float(np.median(widths)) if widths else None,
        "seconds": round(time.process_time() - began, 1),
        "below": bool(stated and hits < binom.ppf(1e-3, stated, 0.93)),
    }


def main(argv: Sequence[str]) -> int:
    """Run the tables; 1 if a coverage is below 93% by more than chance."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks coverage", description=__doc__)
    parser.add_argument("--fits", type=int, default=1000)
    parser.add_argument("--only", default="", help="names of tables, separated by semicolons")
    parser.add_argument("--methods", default="", help="methods, separated by commas")
    parser.add_argument("--out", type=Path, default=Path("runs/coverage.jsonl"))
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    wanted = [one for one in options.only.split(";") if one]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    good = True
    for name, _, _, methods in TABLES:
        if wanted and name not in wanted:
            continue
        for method in methods:
            if options.methods and method not in options.methods.split(","):
                continue
            found = measure(name, method, options.fits)
            with options.out.open("a") as file:
                file.write(json.dumps(found) + "\n")
            shown = "refused" if found["coverage"] is None else f"{100 * found['coverage']:.1f}%"
            print(f"{name:<32} {method:<24} stated {100 * found['stated']:5.1f}%  coverage {shown}", flush=True)
            good &= not found["below"]
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
