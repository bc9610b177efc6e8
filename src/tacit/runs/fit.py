"""How does a table become a private regression, with a card and a report? The work of ``tacit fit`` and ``predict``.

A fit takes seconds, so it does not go on where it was killed: what was charged stays charged, and the run is started
again. A fit that was decided is published as every run is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit import accounting as acc
from tacit.ledger import BudgetExceeded, Ledger, OperatorView
from tacit.ledger.release import Charged, Public, public
from tacit.noise import add_laplace
from tacit.report import Evaluation, Run, Statement, describe_fit
from tacit.report.files import write_whole
from tacit.runs import publish
from tacit.runs.folder import resolved, taken_back
from tacit.runs.journal import Journal
from tacit.runs.progress import Reporter
from tacit.runs.read import read_table
from tacit.runs.settings import SettingsError, check_tuning, written
from tacit.schema import Numeric, Schema, SchemaError

FIT, MODEL = "fit.toml", "model.json"
#: Shares of answers are rounded down to a multiple of 1/GRID, so that their sum is exact.
GRID = 2**20
QUANTILE = 1.959964

Floats = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class FitSettings:
    """Everything that decides a fit. The fields are the options of ``tacit fit``."""

    data: str
    schema: str
    epsilon: float
    delta: float = 1e-6
    target: str | None = None
    without: tuple[str, ...] = ()
    method: str = "auto"
    max_rows: int = 1
    #: The part of ε for the accuracy on the rows of the fit; 0 releases none.
    accuracy: float = 0.05
    ledger: str | None = dataclasses.field(default=None, repr=False)  # may hold a password
    dataset: str | None = None
    tuning: str = "not stated"
    purpose: str = "private regression"
    trust_model: str = "not stated"
    release: str = "not stated"
    contact: str = "not stated"
    uncovered: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if not (isinstance(self.epsilon, float) and 0 < self.epsilon < math.inf):
            raise SettingsError(f"epsilon: a number above 0, not {self.epsilon!r}")
        if not 0 <= self.delta < 1:
            raise SettingsError(f"delta: a number from 0 to below 1, not {self.delta!r}")
        if not 0 <= self.accuracy < 1:
            raise SettingsError(f"accuracy: the part of ε for it, from 0 to below 1, not {self.accuracy!r}")
        check_tuning({"tuning": self.tuning})
        if (self.ledger is None) != (self.dataset is None):
            raise SettingsError("ledger: give ledger and dataset together: the ledger, and the data's name in it")
        if self.ledger is not None and "://" not in self.ledger and not Path(self.ledger).exists():
            raise SettingsError(
                f"ledger: there is no {self.ledger}; create it with: tacit ledger init {self.ledger} {self.dataset} "
                "--epsilon … --delta … --unit …. See: tacit explain not-registered"
            )

    def to_toml(self) -> str:
        """TOML text that may be published: of the ledger's address no secret is in it."""
        from tacit.schema.toml import toml_value

        there = resolved(dataclasses.asdict(self), ("data", "schema", "ledger"))
        shown = dataclasses.asdict(self) | there | {"ledger": written(there.get("ledger", self.ledger))}
        return "".join(f"{name} = {toml_value(value)}\n" for name, value in shown.items() if value is not None)


@dataclasses.dataclass(frozen=True, eq=False)
class FitRun:
    """One regression fitted as the settings say."""

    settings: FitSettings
    config = FIT
    keyed = False

    @property
    def ledger(self) -> str | None:
        """The ledger that is charged."""
        return self.settings.ledger

    @property
    def stem(self) -> str:
        """The data's name."""
        return Path(self.settings.data).stem

    def files(self) -> dict[str, str]:
        """The settings."""
        return {FIT: self.settings.to_toml()}

    def check(self, journal: Journal) -> None:
        """A fit that was interrupted is started again."""
        if not journal.decided:
            raise SettingsError(
                f"{journal.folder} was interrupted before its release was decided, and a fit does not go on: what was "
                "charged stays charged. Start it again under another name"
            )

    def read(self) -> tuple[Any, Schema]:
        """The table and its schema, with the target that was chosen."""
        schema = Schema.from_toml(self.settings.schema)
        if self.settings.target is not None or self.settings.without:
            schema = schema.predicting(self.settings.target, self.settings.without)
        if schema.target is None:
            raise SchemaError(
                "the schema marks no column as the target (target = true) and none is named (--target): there is "
                "nothing to predict"
            )
        return read_table(Path(self.settings.data), schema), schema

    def make(self, journal: Journal, data: tuple[Any, Schema], progress: Reporter) -> list[OperatorView]:
        """Fit, say how good it is if that is paid for, decide."""
        table, schema = data
        ledger = None if self.settings.ledger is None else Ledger(self.settings.ledger)
        before = _charges(ledger, self.settings.dataset)
        with taken_back(journal, lambda _: _charges(ledger, self.settings.dataset) != before):
            part = self.settings.accuracy
            fitted = estimator(self.settings, schema, self.settings.epsilon * (1 - part), ledger)
            fitted.read_from = Path(self.settings.data)  # the rows come by way of a schema; the file is registered
            fitted.fit(table)
            run = _described(self.settings, journal.folder.name, schema, fitted)
            if part:
                try:
                    run = _with_accuracy(run, fitted, table, schema, self.settings.epsilon * part)
                except BudgetExceeded as error:
                    progress.note(f"no accuracy is released: {error}")
            return release(self.settings, journal, fitted, run)


def estimator(settings: FitSettings, schema: Schema, epsilon: float, ledger: Ledger | None) -> Any:
    """The regression for the schema's target: of numbers, or of classes."""
    from tacit.linear_model import LinearRegression, LogisticRegression

    kind: Any = LinearRegression if isinstance(schema.target, Numeric) else LogisticRegression
    return kind(
        epsilon,
        settings.delta,
        bounds=schema,
        method=settings.method,
        max_rows=settings.max_rows if schema.unit.column is not None else None,
        ledger=ledger,
        dataset=settings.dataset,
    )


def _charges(ledger: Ledger | None, dataset: str | None) -> int:
    return 0 if ledger is None or dataset is None else ledger.budget(dataset, exact=False).charges


def _described(settings: FitSettings, name: str, schema: Schema, fitted: Any) -> Run:
    chosen = [f"target chosen: {settings.target}"] if settings.target is not None else []
    chosen += [f"left out: {', '.join(settings.without)}"] if settings.without else []
    stated = schema.description or schema.name
    return describe_fit(
        fitted,
        name,
        purpose=settings.purpose,
        data=schema.name or Path(settings.data).stem,
        schema=f"{stated} ({'; '.join(chosen)})".strip() if chosen else stated,
        tuning=settings.tuning,
        statement=Statement(settings.trust_model, settings.release, settings.contact),
        uncovered=settings.uncovered,
        public_sources=(),
        pretrained=(),
    )


def _with_accuracy(run: Run, fitted: Any, table: Any, schema: Schema, epsilon: float) -> Run:
    """The run with the accuracy on its own rows, or the mean absolute error, released for ``epsilon``.

    Guarantee: the model was released before, so it is a constant here. Each unit has one number e in [0, 1], the mean
    over its rows; released are Σe and Σ(1 - e) with Laplace noise. One unit more or less moves both together by 1 in
    L1; replacing one moves them by 2.
    """
    scale = (2.0 if run.adjacency == "replace-one" else 1.0) / epsilon * (1 + 1e-12)
    mechanism = acc.Laplace(scale, unit=run.unit)
    shares = _by_unit(_answers(fitted, table, schema), table, schema)
    paid: Any = contextlib.nullcontext()
    if run.ledger is not None and run.dataset is not None:
        read = None if run.charge is None else run.ledger.record(run.dataset, run.charge).data
        paid = run.ledger.charge(
            run.dataset, mechanism, delta=0.0, purpose="accuracy of the fit on its own rows", data=read
        )
    with paid as charge:
        good, bad = (float(n) for n in add_laplace(sums(shares), scale))
    total = max(good + bad, 1.0)
    share = min(max(good / total, 0.0), 1.0)
    noise = scale**2 * 2 * ((1 - share) ** 2 + share**2) / total**2
    half = QUANTILE * math.sqrt(noise + share * (1 - share) / total)
    metric, unit = "accuracy", 1.0
    if isinstance(schema.target, Numeric):
        metric, unit, share = "mean absolute error", 2 * schema.target.half_width, 1 - share
    low, high = max(share - half, 0.0) * unit, min(share + half, 1.0) * unit
    ends = f"{low:.1%} to {high:.1%}" if metric == "accuracy" else f"{low:,.4g} to {high:,.4g}"
    covered = "covered by the stated guarantee: released with Laplace noise"
    value: Charged | Public = (
        public(share * unit, covered) if charge is None else Charged(share * unit, charge.dataset, charge.number)
    )
    note = f"on the rows of the fit, for ε = {epsilon:.3g} of the whole; 95% interval {ends}, noise and sample"
    return dataclasses.replace(
        run,
        mechanism=run.mechanism + mechanism,
        epsilon=None,
        covered=(*run.covered, f"the {metric} on the rows of the fit"),
        evaluations=(Evaluation(metric, value, note=note),),
    )


def _answers(fitted: Any, table: Any, schema: Schema) -> Floats:
    """How good each row is predicted, from 0 to 1: right or wrong, or one less the error as a part of the bounds."""
    target = schema.target
    assert target is not None
    encoded, _ = schema.encode(table)
    predicted = fitted.predict(table)
    if isinstance(target, Numeric):
        scaled = np.clip((predicted - target.middle) / target.half_width, -1.0, 1.0)
        return np.asarray(1.0 - np.abs(scaled - encoded.target) / 2)
    places = {label: i for i, label in enumerate(fitted.classes_.tolist())}
    return np.array([places[one] for one in predicted.tolist()]) == encoded.target  # type: ignore[no-any-return]


def _by_unit(answers: Floats, table: Any, schema: Schema) -> Floats:
    """The mean of each unit's rows."""
    if schema.unit.column is None:
        return np.asarray(answers, dtype=np.float64)
    from tacit.accounting.base import owner_numbers

    owners = owner_numbers(np.asarray(table[schema.unit.column].to_list()), len(answers))
    return np.asarray(np.bincount(owners, answers) / np.bincount(owners))


def sums(shares: Floats) -> Floats:
    """Σe and Σ(1 - e), exact, each e cut to a grid in [0, 1]."""
    cut = np.floor(np.clip(shares, 0.0, 1.0) * GRID)
    return np.array([cut.sum(), (GRID - cut).sum()]) / GRID


def release(settings: FitSettings, journal: Journal, fitted: Any, run: Run) -> list[OperatorView]:
    """Model, card and report, decided."""
    from tacit.linear_model import to_json

    content = to_json(fitted)
    stage = journal.stage()
    write_whole(stage / MODEL, content)
    vouched = publish.vouched(content.encode(), run.dataset, run.charge, "the released coefficients")
    card = publish.stage(journal, dataclasses.replace(run, model_file=vouched))
    rows, why = coefficients(fitted)
    told = publish.summary(card) | {"coefficients": rows, "no_intervals": why, "method": run.method}
    if hasattr(fitted, "prediction_noise_"):
        told["noise"] = fitted.noise_in_words_
    journal.decide(told | {"files": publish.SHOWN | {"model": MODEL}})
    return []


def coefficients(fitted: Any) -> tuple[list[dict[str, Any]], str]:
    """Each coefficient with its 95% interval or none, the constant first, and why there are no intervals at all.

    Of several classes none is listed.
    """
    names = ["(constant)", *(str(name) for name in fitted.get_feature_names_out())]
    values = np.r_[np.ravel(fitted.intercept_), np.ravel(fitted.coef_)]
    ends, why = np.full((len(names), 2), np.inf), ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what the noise hides is said beside each coefficient
            ends = fitted.confidence_interval(0.95, intercept=True)
    except ValueError as error:
        why = str(error)
    if len(values) != len(names):
        return [], why
    return [
        {"name": name, "value": float(value), **{key: float(end) if math.isfinite(end) else None for key, end in pair}}
        for name, value, pair in zip(
            names, values, (zip(("low", "high"), row, strict=True) for row in ends), strict=True
        )
    ], why


def predict(model: Path, data: Path) -> Iterator[dict[str, Any]]:
    """The predictions of a model file, or of the folder of a fit, for each row of a table: the answer, and for classes
    their probabilities. No code of the file is run.
    """
    from tacit.linear_model import from_json

    file = model / MODEL if model.is_dir() else model
    try:
        fitted = from_json(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{file} is no model file") from None
    schema = fitted.features_.schema
    if schema is None:
        raise SettingsError(f"{file} was fitted without a schema: read it with tacit.linear_model.from_json")
    table = read_table(data, Schema(schema.features, schema.unit))  # whatever stands where the answer will be
    answers = fitted.predict(table).tolist()
    chances = fitted.predict_proba(table).tolist() if hasattr(fitted, "predict_proba") else [()] * len(answers)
    labels = schema.classes
    for answer, row in zip(answers, chances, strict=True):
        shown = labels[int(answer)] if isinstance(answer, bool) else answer
        yield {"prediction": shown} | {f"p({label})": p for label, p in zip(labels, row, strict=False)}
