"""Do additive models keep their promises? What one person moves in each release, against what is claimed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl

from tacit.additive import AdditiveClassifier, AdditiveRegressor
from tacit.audit.findings import Finding, holds
from tacit.ledger import BudgetExceeded
from tacit.schema import Boolean, Categorical, Numeric, Schema, Unit
from tacit.selftest.scene import Scene, charged, ledger_of, refused
from tacit.selftest.scenes.tables import ADJACENCIES, DELTA, FAR, cost_of_neighbours

ROWS = 300
SCHEMA = Schema(
    (Numeric("a", -1, 1), Numeric("b", 0, 10, fill=5), Categorical("c", ["x", "y", "rare"]), Boolean("d")),
    Unit("record"),
)
#: Rows that an adversary might add: beyond the bounds, in a rare category, missing.
EXTREMES: tuple[tuple[dict[str, Any], float], ...] = (
    ({"a": FAR, "b": -FAR, "c": "rare", "d": True}, FAR),
    ({"a": -FAR, "b": FAR, "c": "unheard of", "d": False}, -FAR),
    ({"a": None, "b": None, "c": None, "d": None}, FAR),
    ({"a": 0.0, "b": 10.0, "c": "rare", "d": None}, -FAR),
    ({"a": FAR, "b": FAR, "c": "x", "d": True}, FAR),
)


def _table(seed: int, *more: int, classes: int = 0) -> tuple[Any, ...]:
    rng = np.random.default_rng(seed)
    columns: dict[str, list[Any]] = {
        "a": rng.uniform(-1, 1, ROWS).tolist(),
        "b": rng.uniform(0, 10, ROWS).tolist(),
        "c": rng.choice(["x", "y"], ROWS).tolist(),
        "d": (rng.uniform(size=ROWS) < 0.5).tolist(),
    }
    y = rng.uniform(-1, 1, ROWS).tolist()
    for number in more:
        row, target = EXTREMES[number]
        for name, value in row.items():
            columns[name].append(value)
        y.append(target)
    return columns, np.digitize(y, np.linspace(-1, 1, classes + 1)[1:-1]) if classes else np.array(y)


def _pairs(seed: int, adjacency: str, classes: int = 0) -> list[tuple[Any, Any]]:
    longer = [_table(seed, number, classes=classes) for number in range(len(EXTREMES))]
    if adjacency == "add-remove":
        return [(one, _table(seed, classes=classes)) for one in longer]
    return [(one, longer[0]) for one in longer[1:]]


def _regression(**more: Any) -> Callable[[str], Any]:
    return lambda adjacency: AdditiveRegressor(
        0.8, DELTA, bounds=SCHEMA, target_bounds=(-1, 1), adjacency=adjacency, **more
    )


def curves_are_bounded(seed: int) -> list[Finding]:
    """With private edges and public ones, with pairs, and for two and three classes."""
    found: list[Finding] = []
    for name, make in (
        ("curves", _regression()),
        ("pairs of columns", _regression(pairs=list(itertools.combinations("abcd", 2)))),
        ("public edges", _regression(edges={"a": [-0.5, 0.5], "b": [5.0]})),
    ):
        for adjacency in ADJACENCIES:
            found += cost_of_neighbours(name, make, adjacency, _pairs(seed, adjacency))
    for classes in (2, 3):
        labels = list(range(classes))
        found += cost_of_neighbours(
            f"curves of {classes} classes",
            lambda a, labels=labels: AdditiveClassifier(0.8, DELTA, bounds=SCHEMA, classes=labels, adjacency=a),  # type: ignore[misc]
            "add-remove",
            _pairs(seed, "add-remove", classes),
        )
    return found


def people_and_charges(seed: int) -> list[Finding]:
    """All rows of a person together, weights, the charge, and what is refused."""
    columns, y = _table(seed)
    more, longer = _table(seed, 0, 1, 2)
    owners, weights = np.minimum(np.arange(len(longer)), ROWS), np.r_[np.full(ROWS, 0.5), 90.0, 90.0, 90.0]
    pairs = [((more, longer, {"groups": owners}), (columns, y, {"groups": owners[:ROWS]}))]
    found = cost_of_neighbours("people", _regression(max_rows=3), "add-remove", pairs)
    pairs = [
        (
            (more, longer, {"groups": owners, "sample_weight": weights}),
            (columns, y, {"groups": owners[:ROWS], "sample_weight": weights[:ROWS]}),
        )
    ]
    found += cost_of_neighbours("weights", _regression(max_rows=3, max_weight=2.0), "add-remove", pairs)
    ledger = ledger_of(1.0, DELTA)
    fitted = AdditiveRegressor(0.8, DELTA, bounds=SCHEMA, target_bounds=(-1, 1), ledger=ledger)
    fitted.fit(pl.DataFrame(columns), y)
    paid = charged(ledger, DELTA)
    found.append(holds("curves: charge", abs(paid - fitted.privacy_.upper) < 1e-6, f"ε = {paid} was charged"))
    x = np.random.default_rng(seed).uniform(-1, 1, (ROWS, 2))
    plain = AdditiveRegressor(0.8, DELTA, bounds=(-1, 1), target_bounds=(-1, 1)).fit(x, x[:, 0])
    low, high = plain.curves_["x0"].band()

    def fit(**more: Any) -> Callable[[], Any]:
        return lambda: AdditiveRegressor(**({"bounds": (-1, 1), "target_bounds": (-1, 1)} | more)).fit(x, x[:, 0])

    return [
        *found,
        holds("curves: bands", bool((low <= high).all()), "lower ends below upper ends"),
        holds("curves: names", plain.get_feature_names_out().tolist() == ["x0", "x1"], "one for each column"),
        holds("curves: predictions", bool(np.isfinite(fitted.predict(columns)).all()), "predictions are numbers"),
        refused(
            "curves: refusals",
            {
                "no noise": (fit(delta=0), ValueError),
                "a length of 0": (fit(coef_norm=0), ValueError),
                "edges that are no mapping": (fit(edges=[1]), ValueError),
                "edges of no column": (fit(edges={"z": [0.0]}), ValueError),
                "edges beyond the bounds": (fit(edges={"x0": [7.0]}), ValueError),
                "half a pair": (fit(pairs=[("x0",)]), ValueError),
                "a pair of no column": (fit(pairs=[("x0", "z")]), ValueError),
                "a file": (lambda: AdditiveRegressor(bounds={"a": (0, 1)}).fit("people.csv", "a"), ValueError),
                "more than is left": (fit(ledger=ledger, epsilon=0.8), BudgetExceeded),
            },
        ),
    ]


SCENES = (
    Scene("curves: neighbours", "additive", curves_are_bounded),
    Scene("curves: people and charges", "additive", people_and_charges),
)
