"""What would I get? The error that each ε leaves, simulated on made-up rows of a public schema; no record is read."""

from __future__ import annotations

import functools
import html
import math
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from tacit import accounting as acc
from tacit.linear_model import LinearRegression, LogisticRegression
from tacit.report.elements import table
from tacit.schema import Boolean, Categorical, Numeric, Schema, SchemaError
from tacit.studio.fields import FieldError, NumberField

EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
FIELDS = (
    NumberField("rows", "Rows", "20000", 100, 1e9, whole=True, help="a public number, or a guess"),
    NumberField("delta", "δ", "1e-6", 1e-15, 0.01),
)
#: Rows that are made up for a regression; with more rows its error is smaller than shown.
MOST = 20_000
#: Fits whose errors are averaged.
FITS = 3
EXAMPLE = """name = "survey"

[unit]
name = "person"

[columns.age]
kind = "numeric"
lower = 18
upper = 95

[columns.region]
kind = "categorical"
categories = ["north", "south", "east", "west"]

[columns.income]
kind = "numeric"
lower = 0
upper = 100000
target = true
"""


def read_schema(values: Mapping[str, Any]) -> Schema:
    """The schema that was typed."""
    text = str(values.get("schema") or EXAMPLE)
    if len(text) > 100_000:
        raise FieldError("Schema: at most 100,000 characters")
    try:
        return Schema.parse_toml(text)
    except SchemaError as error:
        raise FieldError(f"Schema: {error}") from None


@functools.lru_cache(256)
def _noise(epsilon: float, delta: float, replace: float) -> float:
    """The noise that keeps ε when one unit is replaced by another, in units of what one adds."""
    return acc.calibrate(
        lambda noise: acc.Gaussian(noise, replace=replace), epsilon=epsilon, delta=delta, adjacency="replace-one"
    )


def statistics(values: Mapping[str, Any]) -> dict[str, Any]:
    """The error of a mean and of a histogram of each column, if all of ε is spent on that one release."""
    schema, count, delta = read_schema(values), int(FIELDS[0].read(values)), FIELDS[1].read(values)
    generator, rows, told = np.random.default_rng(0), [], {}
    for column in schema.columns:
        if isinstance(column, Numeric) and not column.shape:
            what, unit = "mean", column.half_width / count
            noises = [_noise(e, delta, 2.0) * unit for e in EPSILONS]
            shown = [_off(float(np.abs(generator.normal(0, s, 4000)).mean())) for s in noises]
        elif isinstance(column, Categorical | Boolean):
            what = "histogram"
            noises = [_noise(e, delta, math.sqrt(2.0)) for e in EPSILONS]
            found = [float(np.abs(generator.normal(0, s, (4000, len(column.labels)))).mean()) for s in noises]
            shown = [f"± {f:,.3g} rows<br><small>{min(100 * f / count, 100):.2g}%</small>" for f in found]
        else:
            continue
        told[column.name] = noises
        rows.append([f'<span translate="no">{html.escape(column.name)}</span>', what, *shown])
    heads = [("column", ""), ("release", ""), *((f"ε = {e:g}", "n") for e in EPSILONS)]
    note = (
        '<p class="muted">The mean distance between a noisy release and the exact one (Gaussian noise; neighbours '
        "differ in one replaced row; the number of rows is public), if all of ε is spent on this one release. A "
        "histogram's error is that of one cell.</p>"
    )
    return {"html": table(heads, rows) + note, "noise": told}


def _off(error: float) -> str:
    return f"± {_digits(error)}"


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def regression(values: Mapping[str, Any]) -> dict[str, Any]:
    """How good a regression of the target would be at each ε, on rows that are made up."""
    schema, count, delta = read_schema(values), int(FIELDS[0].read(values)), FIELDS[1].read(values)
    target = schema.target
    if not isinstance(target, Numeric | Boolean) or (isinstance(target, Numeric) and target.shape):
        return {"html": "<p>For a regression the schema needs a target: a number, or yes and no.</p>"}
    return {"html": _fitted(schema.to_toml(), min(count, MOST), count, delta)}


@functools.lru_cache(32)
def _fitted(text: str, rows: int, asked: int, delta: float) -> str:
    schema = Schema.parse_toml(text)
    target = schema.target
    assert isinstance(target, Numeric | Boolean)
    found: dict[float, list[float]] = {e: [] for e in EPSILONS}
    bounds: list[tuple[float, float]] = []
    for seed in range(FITS):
        generator = np.random.default_rng(seed)
        table_, encoded = _made_up(schema, 2 * rows, generator)
        weights = generator.normal(0, 1, encoded.shape[1])
        signal = encoded @ weights
        signal /= max(float(np.abs(signal).max()), 1e-9)
        if isinstance(target, Numeric):
            scaled = np.clip(0.6 * signal + generator.normal(0, 0.2, len(signal)), -1, 1)
            y: Any = target.lower + (scaled + 1) * target.half_width
        else:
            y = generator.uniform(size=len(signal)) < 1 / (1 + np.exp(-6 * signal))
        train = {name: column[:rows] for name, column in table_.items()}
        test = {name: column[rows:] for name, column in table_.items()}
        kind: Any = LinearRegression if isinstance(target, Numeric) else LogisticRegression
        for epsilon in EPSILONS:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of made-up rows nothing is claimed
                made = kind(epsilon, delta, bounds=schema).fit(train | {target.name: y[:rows]}, None)
            said = made.predict(test)
            if isinstance(target, Numeric):
                found[epsilon].append(float(np.sqrt(np.mean((said - y[rows:]) ** 2))))
            else:
                found[epsilon].append(float(np.mean((said == made.classes_[1]) == y[rows:])))
        if isinstance(target, Numeric):
            best = float(np.sqrt(np.mean((target.lower + (0.6 * signal + 1) * target.half_width - y) ** 2)))
            bounds.append((best, float(np.std(y))))
        else:
            bounds.append((float(np.mean((signal > 0) == y)), float(max(np.mean(y), 1 - np.mean(y)))))
    means = [_shown(target, float(np.mean(found[e]))) for e in EPSILONS]
    truth, plain = (_shown(target, float(np.mean([b[i] for b in bounds]))) for i in (0, 1))
    metric = "root mean squared error" if isinstance(target, Numeric) else "accuracy"
    heads = [
        ("target", ""),
        ("metric", ""),
        *((f"ε = {e:g}", "n") for e in EPSILONS),
        ("the truth", "n"),
        ("no features", "n"),
    ]
    body = table(heads, [[f'<span translate="no">{html.escape(target.name)}</span>', metric, *means, truth, plain]])
    capped = f"<p>Simulated with {rows:,} rows; with {asked:,} the error is smaller.</p>" if asked > rows else ""
    note = (
        f'<p class="muted">The mean of {FITS} fits on made-up rows of this schema with a known truth, measured on '
        f"fresh "
        "rows. Your data will differ; how much ε changes will not differ much.</p>"
    )
    return body + capped + note


def _shown(target: Numeric | Boolean, value: float) -> str:
    return _digits(value) if isinstance(target, Numeric) else f"{value:.1%}"


def _made_up(schema: Schema, rows: int, generator: np.random.Generator) -> tuple[dict[str, Any], Any]:
    """Rows that are uniform within the public bounds, and their encoding."""
    found: dict[str, Any] = {}
    for column in schema.features:
        if isinstance(column, Numeric) and not column.shape:
            found[column.name] = generator.uniform(column.lower, column.upper, rows)
        elif isinstance(column, Boolean):
            found[column.name] = generator.choice(list(column.labels), rows)
        elif isinstance(column, Categorical):
            found[column.name] = generator.choice(list(column.categories), rows)
        else:
            raise FieldError(f"Schema: column {column.name!r} cannot be made up: use numbers and categories")
    if schema.unit.column is not None:
        raise FieldError("Schema: simulate with one row for each unit: leave [unit] column out")
    encoded, _ = schema.encode(found, target=False)
    return found, np.asarray(encoded.features, dtype=float)
