"""What would I get? The error that each ε leaves, simulated on made-up rows of a public schema; no record is read."""

from __future__ import annotations

import dataclasses
import functools
import html
import math
import tempfile
import threading
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from tacit import accounting as acc
from tacit.linear_model import LinearRegression, LogisticRegression
from tacit.report.elements import table
from tacit.schema import Boolean, Categorical, Numeric, Schema, SchemaError
from tacit.studio.fields import ChoiceField, FieldError, NumberField

EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
FIELDS = (
    NumberField("rows", "Rows", "20000", 100, 1e9, whole=True, help="a public number, or a guess"),
    NumberField("delta", "δ", "1e-6", 1e-15, 0.01),
    NumberField("epsilon", "ε", "1", 0.01, 100, help="a column of its own below"),
)
TRAINING = (
    NumberField("epochs", "Epochs of training", "5", 0.1, 100),
    NumberField("batch", "Batch size of training", "1000", 1, 1e6, whole=True),
)
MODEL = ChoiceField("model", "Model that is trained", ("linear", "mlp"))
#: Rows that are made up; with more rows the error is smaller than shown.
MOST = 20_000
#: Steps of a training run that a page waits for.
MOST_STEPS = 400
#: Training takes seconds of every core: one at a time.
_ONE_AT_A_TIME = threading.Lock()
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


def _epsilons(values: Mapping[str, Any]) -> tuple[float, ...]:
    """Round values of ε, and the one that was chosen."""
    return tuple(sorted({*EPSILONS, FIELDS[2].read(values)}))


@functools.lru_cache(256)
def _noise(epsilon: float, delta: float, replace: float) -> float:
    """The noise that keeps ε when one unit is replaced by another, in units of what one adds."""
    return acc.calibrate(
        lambda noise: acc.Gaussian(noise, replace=replace), epsilon=epsilon, delta=delta, adjacency="replace-one"
    )


def statistics(values: Mapping[str, Any]) -> dict[str, Any]:
    """The error of a mean and of a histogram of each column, if all of ε is spent on that one release."""
    schema, count, delta = read_schema(values), int(FIELDS[0].read(values)), FIELDS[1].read(values)
    generator, rows, told, epsilons = np.random.default_rng(0), [], {}, _epsilons(values)
    for column in schema.columns:
        if isinstance(column, Numeric) and not column.shape:
            what, unit = "mean", column.half_width / count
            noises = [_noise(e, delta, 2.0) * unit for e in epsilons]
            shown = [_off(float(np.abs(generator.normal(0, s, 4000)).mean())) for s in noises]
        elif isinstance(column, Categorical | Boolean):
            what = "histogram"
            noises = [_noise(e, delta, math.sqrt(2.0)) for e in epsilons]
            found = [float(np.abs(generator.normal(0, s, (4000, len(column.labels)))).mean()) for s in noises]
            shown = [f"± {f:,.3g} rows<br><small>{min(100 * f / count, 100):.2g}%</small>" for f in found]
        else:
            continue
        told[column.name] = noises
        rows.append([f'<span translate="no">{html.escape(column.name)}</span>', what, *shown])
    heads = [("column", ""), ("release", ""), *((f"ε = {e:g}", "n") for e in epsilons)]
    note = (
        '<p class="muted">The mean distance between a noisy release and the exact one (Gaussian noise; neighbours '
        "differ in one replaced row; the number of rows is public), if all of ε is spent on this one release. A "
        "mean's error is in the unit of its column, a histogram's that of one cell.</p>"
    )
    return {"html": table(heads, rows) + note, "noise": told}


def _off(error: float) -> str:
    return f"± {_digits(error)}"


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def regression(values: Mapping[str, Any]) -> dict[str, Any]:
    """How good a regression of the target would be at each ε, on rows that are made up."""
    schema, count, delta = read_schema(values), int(FIELDS[0].read(values)), FIELDS[1].read(values)
    if (told := _without_target(schema)) is not None:
        return told
    return {"html": _fitted(schema.to_toml(), min(count, MOST), delta, _epsilons(values)) + _capped(count)}


def training(values: Mapping[str, Any]) -> dict[str, Any]:
    """How good a trained model would be at each ε: ``tacit.run`` on rows that are made up."""
    schema, count, delta = read_schema(values), int(FIELDS[0].read(values)), FIELDS[1].read(values)
    epochs, batch = (field.read(values) for field in TRAINING)
    model = MODEL.read(values)
    if (told := _without_target(schema)) is not None:
        return told
    rows = min(count, MOST)
    if batch > rows:
        raise FieldError(f"Batch size: {int(batch):,} cannot be drawn from {rows:,} rows", "batch")
    if (steps := math.ceil(epochs * rows / batch)) > MOST_STEPS:
        raise FieldError(f"Epochs: {steps:,} steps are more than are simulated here; at most {MOST_STEPS:,}")
    with _ONE_AT_A_TIME:
        text = _trained(schema.to_toml(), rows, delta, steps, int(batch), model, _epsilons(values))
    return {"html": text + _capped(count)}


def _without_target(schema: Schema) -> dict[str, Any] | None:
    target = schema.target
    if not isinstance(target, Numeric | Boolean) or (isinstance(target, Numeric) and target.shape):
        return {"html": "<p>For this the schema needs a target: a number, or yes and no.</p>"}
    return None


def _capped(asked: int) -> str:
    return f"<p>Simulated with {MOST:,} rows; with {asked:,} the error is smaller.</p>" if asked > MOST else ""


@dataclasses.dataclass(frozen=True)
class _World:
    """Made-up rows with a known truth: those to learn from, fresh ones to measure on, and what the best could do."""

    train: dict[str, Any]
    test: dict[str, Any]
    truth: float
    plain: float

    @classmethod
    def make(cls, schema: Schema, rows: int, seed: int) -> _World:
        """A linear truth with noise, in the units of the target."""
        target, generator = schema.target, np.random.default_rng(seed)
        table_, encoded = _made_up(schema, 2 * rows, generator)
        signal = encoded @ generator.normal(0, 1, encoded.shape[1])
        signal /= max(float(np.abs(signal).max()), 1e-9)
        if isinstance(target, Numeric):
            scaled = np.clip(0.5 * signal + generator.normal(0, 0.15, len(signal)), -1, 1)
            y: Any = target.lower + (scaled + 1) * target.half_width
            best = target.lower + (0.5 * signal + 1) * target.half_width
            truth, plain = _rmse(best, y), float(np.std(y))
        else:
            assert isinstance(target, Boolean)
            yes = generator.uniform(size=len(signal)) < 1 / (1 + np.exp(-6 * signal))
            y = np.where(yes, target.true, target.false)
            truth, plain = float(np.mean((signal > 0) == yes)), float(max(np.mean(yes), 1 - np.mean(yes)))
        table_[target.name] = y
        train, test = ({name: column[part] for name, column in table_.items()} for part in (np.s_[:rows], np.s_[rows:]))
        return cls(train, test, truth, plain)

    def error(self, target: Numeric | Boolean, said: Any) -> float:
        """The error or the accuracy of some answers on the fresh rows."""
        y = self.test[target.name]
        return _rmse(said, y) if isinstance(target, Numeric) else float(np.mean(np.asarray(said) == y))


def _rmse(said: Any, y: Any) -> float:
    return float(np.sqrt(np.mean((np.asarray(said) - y) ** 2)))


@functools.lru_cache(32)
def _fitted(text: str, rows: int, delta: float, epsilons: tuple[float, ...]) -> str:
    schema = Schema.parse_toml(text)
    target = schema.target
    assert isinstance(target, Numeric | Boolean)
    kind: Any = LinearRegression if isinstance(target, Numeric) else LogisticRegression
    worlds = [_World.make(schema, rows, seed) for seed in range(FITS)]
    found: dict[float, list[float]] = {e: [] for e in epsilons}
    for world in worlds:
        for epsilon in epsilons:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of made-up rows nothing is claimed
                made = kind(epsilon, delta, bounds=schema).fit(world.train, None)
            said = made.predict(world.test)
            if isinstance(target, Boolean):
                said = np.where(said == made.classes_[1], target.true, target.false)
            found[epsilon].append(world.error(target, said))
    means = {e: float(np.mean(errors)) for e, errors in found.items()}
    note = (
        f'<p class="muted">The mean of {FITS} fits on made-up rows of this schema with a known truth, measured on '
        "fresh rows. Your data will differ.</p>"
    )
    return _compared(target, means, worlds) + note


@functools.lru_cache(32)
def _trained(
    text: str, rows: int, delta: float, steps: int, batch: int, model: str, epsilons: tuple[float, ...]
) -> str:
    from tacit.runs.program import run  # torch is there where models are trained

    schema = Schema.parse_toml(text)
    target = schema.target
    assert isinstance(target, Numeric | Boolean)
    world, found = _World.make(schema, rows, 0), {}
    for epsilon in epsilons:
        with tempfile.TemporaryDirectory(prefix="tacit-studio-") as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of made-up rows nothing is claimed
            told = run(
                world.train, schema=schema, epsilon=epsilon, delta=delta, steps=steps, batch=batch, model=model,
                evaluate=world.test, public_because="the rows are made up", runs=folder, name="made-up", quiet=True,
                compile=False,
            )  # fmt: skip
            results = told.card["evaluation"]
        found[epsilon] = next(
            float(results[key]["value"])
            for key in results
            if results[key]["model"] == "private" and results[key]["metric"] == _metric(target)
        )
    note = (
        f'<p class="muted">One training run at each ε on made-up rows of this schema with a known truth: {steps:,} '
        f"steps, measured on fresh rows. A second run differs a little. Your data will differ.</p>"
    )
    return _compared(target, found, [world]) + note


def _metric(target: Numeric | Boolean) -> str:
    return "root mean squared error" if isinstance(target, Numeric) else "accuracy"


def _compared(target: Numeric | Boolean, found: Mapping[float, float], worlds: list[_World]) -> str:
    """What each ε reaches, beside what the truth itself and an answer without features reach."""
    ends = (float(np.mean([world.truth for world in worlds])), float(np.mean([world.plain for world in worlds])))
    heads = [("target", ""), ("metric", ""), *((f"ε = {e:g}", "n") for e in found)]
    heads += [("the truth", "n"), ("no features", "n")]
    cells = [_shown(target, value) for value in (*found.values(), *ends)]
    return table(heads, [[f'<span translate="no">{html.escape(target.name)}</span>', _metric(target), *cells]])


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
