"""How does one line become a private model and a page to show? The work behind ``tacit train``.

A run lives in a folder: ``config.toml``, ``model.pt``, ``privacy.json`` and ``report.html`` may be published;
``private/`` (checkpoint, operator log, canaries) is for its owner alone. The key of an unfinished run lies elsewhere.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import math
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tacit.ledger import EvaluationData, Ledger, OperatorLog, OperatorView, Release
from tacit.ledger.release import Charged, Public, public
from tacit.report import Evaluation, PublicSource, Statement, describe, make_card, write_card, write_page
from tacit.report.files import write_whole
from tacit.runs.journal import Journal
from tacit.runs.models import ModelError, build
from tacit.runs.progress import Live
from tacit.runs.settings import Settings, SettingsError
from tacit.schema import Boolean, Categorical, Numeric, Schema, SchemaError
from tacit.schema.encoding import PUBLIC_KEY
from tacit.sgd import NotCompiled, PrivacyWarning, Training
from tacit.sgd.training.canaries import AuditedTraining

#: Edges of the norm histogram, in clip norms; 1 is one of them.
EDGES = [float(e) for e in np.round(np.logspace(-2, 2, 33), 12)]
#: Folds of the cross-fitted reference on public rows.
FOLDS = 5
#: Passes of the reference over its rows.
PASSES = 30
LOGGED = 200
#: Steps between two checkpoints where nothing else is set.
CHECKPOINT_EVERY = 50
#: Numbers of canaries that are suggested.
ENOUGH = (100, 200, 300, 500, 1000, 2000, 5000, 10_000, 20_000)
#: Coins and scores of canaries, in the private part of a run's folder.
CANARIES = "canaries.npz"


class DataError(ValueError):
    """Data that cannot be read or trained on; the message shows no value of them."""


class Interrupted(Exception):
    """The operator stopped the run; it can be resumed."""


@dataclasses.dataclass(frozen=True, eq=False)
class Prepared:
    """A table as tensors: the private rows, and rows to evaluate on."""

    schema: Schema
    x: Tensor
    y: Tensor
    units: NDArray[Any] | None
    test: tuple[Tensor, Tensor] | None
    file: Path | None
    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the pictures, where the one feature column holds pictures."""
        features = self.schema.features
        return features[0].shape if len(features) == 1 and isinstance(features[0], Numeric) else ()

    @property
    def owners(self) -> NDArray[Any]:
        """Whose row each private row is; a schema without a column of ids says that each is another's."""
        return self.units if self.units is not None else np.arange(len(self.x))

    @property
    def assumed(self) -> tuple[str, ...]:
        """What the schema says about rows and units, and nothing can check."""
        unit = self.schema.unit.name
        if self.units is not None or unit == "record":
            return ()
        return (f"Every row is another {unit}: the schema says so by naming no column of ids. It was not checked.",)

    @property
    def outputs(self) -> int:
        """Outputs of a model: one for each class, or one number."""
        return len(self.schema.classes) or 1


# -- data --------------------------------------------------------------------------------------------------------------


def read_table(path: Path, schema: Schema | None = None, texts: bool = False) -> Any:
    """A CSV or Parquet file as a polars frame. Messages show nothing of what is in it.

    A CSV file does not say what its columns are. With a ``schema`` its numeric columns are read as numbers and all
    others as text, with ``texts`` all of them; types that are guessed from the rows would let one row decide how all
    the others are read.
    """
    import polars as pl

    if not path.exists():
        raise DataError(f"there is no file {path}, and no known data set of that name (tacit data list)")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty")
    try:
        if path.suffix.lower() in (".parquet", ".pq"):
            frame = pl.read_parquet(path)
        elif path.suffix.lower() == ".csv":
            frame = pl.read_csv(path, infer_schema_length=None, infer_schema=schema is None and not texts)
        else:
            raise DataError(f"{path}: a table is a .csv or .parquet file")
    except (pl.exceptions.PolarsError, OSError, UnicodeDecodeError):
        raise DataError(f"{path} cannot be read as a {path.suffix.lstrip('.')} file") from None
    if frame.height == 0:
        raise DataError(f"{path} has no rows")
    return frame if schema is None or path.suffix.lower() != ".csv" else _with_numbers(frame, schema)


def _with_numbers(frame: Any, schema: Schema) -> Any:
    """The numeric columns of a table of texts as numbers, each value by itself."""
    import polars as pl

    for column in schema.columns:
        if not isinstance(column, Numeric) or column.name not in frame.columns:
            continue
        text = frame[column.name].str.strip_chars().str.to_lowercase()
        words = text.replace_strict({"true": 1.0, "false": 0.0, "nan": float("nan")}, default=None)
        numbers = text.cast(pl.Float64, strict=False).fill_null(words.cast(pl.Float64))
        if (numbers.is_null() & text.is_not_null() & (text != "")).any():
            raise SchemaError(f"column {column.name!r} holds text that is no number; convert the column first")
        frame = frame.with_columns(numbers.alias(column.name))
    return frame


def prepare(settings: Settings) -> Prepared:
    """Read, encode by the public schema, and part the rows that are declared public from the private ones."""
    from tacit import datasets

    path = Path(settings.data)
    known = settings.data in datasets.CATALOG and not path.exists()
    test = None
    if known:
        dataset = datasets.load(settings.data, settings.data_dir)
        schema, file = dataset.schema, dataset.files[0] if len(dataset.files) == 1 else None
        encoded, _ = dataset.encode(dtype=np.float32)
        if settings.evaluate is not None and settings.evaluate in dataset.splits:
            test, _ = dataset.encode(settings.evaluate, dtype=np.float32)
    else:
        if settings.schema is None:
            raise SettingsError(
                "schema: a table of your own needs a schema file: public bounds, categories, target and unit"
            )
        schema, file = Schema.from_toml(settings.schema), path
        encoded, _ = schema.encode(read_table(path, schema), dtype=np.float32)
    if schema.target is None:
        raise SchemaError("the schema marks no column as the target (target = true): there is nothing to predict")
    if settings.evaluate is not None and test is None:
        test, _ = schema.encode(read_table(Path(settings.evaluate), schema), dtype=np.float32)
    x, y = torch.from_numpy(encoded.features), _target(encoded.target)
    units, pair = encoded.units, None
    if settings.public_share is not None:
        public_side = encoded.public_rows(settings.public_share)
        if public_side.all() or not public_side.any():
            raise SettingsError(f"public_share: {settings.public_share:g} leaves no row on one of the two sides")
        units = None if units is None else units[~public_side]
        chosen = torch.from_numpy(public_side)
        x, y, pair = x[~chosen], y[~chosen], (x[chosen], y[chosen])
    elif test is not None:
        pair = torch.from_numpy(test.features), _target(test.target)
    _check_groups(schema, settings.by)
    return Prepared(schema, x, y, units, pair, file, schema.name or path.stem)


def check_device(name: str) -> None:
    """Refuse a device that is not there before anything is read, written or charged."""
    try:
        torch.zeros(1, device=name).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise SettingsError(f"device: {name!r} cannot be used here: {str(error).splitlines()[0]}") from None


def _target(values: Any) -> Tensor:
    array = np.asarray(values)
    return torch.from_numpy(array.astype(np.int64) if array.dtype.kind in "iub" else array.astype(np.float32))


def _check_groups(schema: Schema, by: tuple[str, ...]) -> None:
    for name in by:
        column = next((c for c in schema.features if c.name == name), None)
        if not isinstance(column, Boolean | Categorical):
            fit = [c.name for c in schema.features if isinstance(c, Boolean | Categorical)]
            raise SettingsError(f"by: {name!r} is no feature with categories; there are {', '.join(fit) or 'none'}")


# -- the run -----------------------------------------------------------------------------------------------------------


def squared_error(model: nn.Module, batch: Any) -> Tensor:
    """The loss of each record where the target is a number."""
    x, y = batch
    error: Tensor = model(x).squeeze(1) - y
    return error**2


def loss_for(prepared: Prepared) -> Any:
    """Cross entropy for classes, squared error for a number."""
    return nn.CrossEntropyLoss(reduction="none") if prepared.schema.classes else squared_error


def open_ledger(settings: Settings, prepared: Prepared) -> Ledger | None:
    """The ledger that is charged, after checking that these are the data that were registered."""
    if settings.ledger is None or settings.dataset is None:
        return None
    if "://" not in settings.ledger and not Path(settings.ledger).exists():
        raise SettingsError(
            f"ledger: there is no {settings.ledger}; make one with: tacit ledger init {settings.ledger} "
            f"{settings.dataset} --epsilon … --delta … --unit {prepared.schema.unit.name}"
        )
    ledger = Ledger(settings.ledger)
    if ledger.dataset(settings.dataset).fingerprint is not None and prepared.file is not None:
        ledger.check_data(settings.dataset, prepared.file)
    return ledger


def start(settings: Settings, folder: Path, prepared: Prepared, warn: Callable[[str], None]) -> Training:
    """The training run, new or resumed, charged at its first step."""
    model = build(settings.model, prepared.x.shape[1], prepared.outputs, prepared.shape).to(settings.device)
    _check_room(model, settings)
    _keep_buffers(model, folder / "private" / "buffers.pt")
    if settings.optimizer == "sgd":
        optimizer: torch.optim.Optimizer = torch.optim.SGD(
            model.parameters(), lr=settings.learning_rate, momentum=settings.momentum
        )
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate)
    private = folder / "private"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", PrivacyWarning)
        # A resumed run must be the same run: new noise on other data would be another charge.
        warnings.filterwarnings("error", message=".*this is a fork", category=PrivacyWarning)
        kind: Any = Training
        own: dict[str, Any] = {
            "checkpoint": private / "checkpoint.pt",
            "checkpoint_every": settings.checkpoint_every or CHECKPOINT_EVERY,
            "compile": settings.compile,
        }
        if settings.audit_canaries is not None:
            kind, own = AuditedTraining, {"canaries": settings.audit_canaries}
        training: Training = kind(
            model,
            optimizer,
            loss_for(prepared),
            (prepared.x, prepared.y),
            batch_size=settings.batch,
            epochs=settings.epochs,
            steps=settings.steps,
            epsilon=settings.epsilon,
            noise_multiplier=settings.noise,
            delta=settings.delta,
            clip_norm=settings.clip_norm,
            sampler=settings.sampler,
            adjacency=settings.adjacency,
            # Canaries take slots beside the records, of which size is the number.
            size=None if settings.size is None else settings.size + (settings.audit_canaries or 0),
            unit=prepared.owners,
            per_unit=settings.per_unit,
            unit_name=prepared.schema.unit.name,
            ledger=open_ledger(settings, prepared),
            dataset=settings.dataset,
            purpose=settings.purpose,
            **own,
        )
    for warning in caught:
        warn(str(warning.message))
    if isinstance(training, AuditedTraining) and (weak := _too_few(training)):
        warn(weak)
    return training


def _check_room(model: nn.Module, settings: Settings) -> None:
    """Refuse more canaries than the model has room for."""
    room = sum(p.numel() for p in model.parameters() if p.requires_grad)
    if settings.audit_canaries is not None and settings.audit_canaries > room:
        raise SettingsError(
            f"audit_canaries: each canary needs a parameter of its own, and model {settings.model!r} has {room:,}: "
            f"plant {room:,} or fewer, not {settings.audit_canaries:,}, or train a larger model"
        )


def _too_few(training: AuditedTraining) -> str:
    """Where even an attacker who is never wrong would not refute the claim: how many canaries would do."""
    from tacit.audit.evidence import best_one_run

    count, claim = training.canaries.count, training.privacy
    best = best_one_run(count, claim.delta)
    if best > claim.upper or not math.isfinite(claim.upper):
        return ""
    room = sum(p.numel() for p in training.parameters.values())
    more = (n for n in ENOUGH if count < n <= room and best_one_run(n, claim.delta) > claim.upper)
    enough = next(more, None)
    told = f"{enough:,} could do it" if enough is not None else "a larger model has room for more of them"
    return (
        f"{count:,} canaries prove at most ε ≥ {math.floor(best * 100) / 100:.2f} with confidence 0.95: a claim of "
        f"ε = {claim.upper:.4g} cannot be refuted by them; {told}"
    )


def _buffers(model: nn.Module) -> dict[str, Tensor]:
    """What a model's state holds beside its parameters."""
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    found = {name: value for name, value in model.state_dict().items() if name not in names}
    if not all(isinstance(value, Tensor) for value in found.values()):
        raise ModelError("the model has extra state that is no tensor: it cannot be told whether that holds data")
    return {name: value.detach().cpu().clone() for name, value in found.items()}


def _keep_buffers(model: nn.Module, path: Path) -> None:
    """Buffers as they are before any record was seen. These are published, whatever a forward pass writes into them."""
    if not path.exists():
        buffer = io.BytesIO()
        torch.save(_buffers(model), buffer)
        write_whole(path, buffer.getvalue())
    else:
        model.load_state_dict(torch.load(path, weights_only=True), strict=False)


def drive(training: Training, folder: Path, quiet: bool) -> None:
    """Run the steps that are left; raise :class:`Interrupted` after Ctrl-C, with the checkpoint written.

    A run with canaries has no checkpoint, and is over then.
    """
    log = OperatorLog(folder / "private" / "operator.jsonl")
    live = Live(training, quiet)
    every = max(1, training.plan.steps // LOGGED)
    ratio = _Ratio(training)
    with _interrupts() as asked, _told_in_a_line():
        try:
            for batch in training:
                training.step(batch)
                last = training.done
                if live.terminal or last or training.steps_executed % every == 0:
                    seen = training.diagnostics().reveal()
                    live.update(seen, ratio.value)
                    if last or training.steps_executed % every == 0:
                        log.write(OperatorView(**seen, signal_to_noise=ratio.value, **_norms(training)))
                if asked and not last:
                    if not isinstance(training, AuditedTraining):
                        training.save()
                    raise Interrupted
        finally:
            live.close()
            ratio.remove()


@contextlib.contextmanager
def _told_in_a_line() -> Iterator[None]:
    """Why a step is not compiled is told as the command tells things; other warnings as they always are."""
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def tell(message: Warning | str, category: type[Warning], *place: Any) -> None:
            if issubclass(category, NotCompiled):
                sys.stderr.write(f"tacit: {message}\n")
            else:
                usual(message, category, *place)

        warnings.showwarning = tell  # type: ignore[assignment]
        yield


@contextlib.contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Ctrl-C once ends the run between two steps; twice ends it at once (the last checkpoint holds)."""
    asked: list[int] = []

    def note(number: int, frame: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    try:
        before = signal.signal(signal.SIGINT, note)
    except ValueError:  # not the main thread: whoever owns the process handles its signals
        yield asked
        return
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


class _Ratio:
    """Signal over noise of the last noisy gradient, from the noisy gradient alone: it is covered by the guarantee."""

    def __init__(self, training: Training) -> None:
        self.training, self.value = training, None
        self.size = sum(p.numel() for p in training.parameters.values())
        self.handle = training.optimizer.register_step_pre_hook(self._look)

    value: float | None

    def _look(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        training = self.training
        step = training.steps_executed
        noise = training.plan.noise_at(step) * training.clip_norm / training.plan.sampler.divisor
        if noise == 0:
            return
        total = sum(float(p.grad.square().sum()) for p in training.parameters.values() if p.grad is not None)
        expected = noise**2 * self.size
        self.value = max(0.0, total / expected - 1) ** 0.5

    def remove(self) -> None:
        self.handle.remove()


def _norms(training: Training) -> dict[str, Any]:
    """A histogram of the last batch's gradient norms over the clip norm: operator's side only."""
    norms = [part[1] for part in training._last]
    if not norms:
        return {}
    shares = torch.cat(norms).double().cpu().numpy() / training.clip_norm
    counts, _ = np.histogram(np.clip(shares, EDGES[0], EDGES[-1]), EDGES)
    return {"norm_edges": EDGES, "norm_counts": counts.tolist()}


# -- what it is worth --------------------------------------------------------------------------------------------------


def predict(model: nn.Module, x: Tensor, schema: Schema) -> Tensor:
    """Class numbers, or the target on its encoded scale."""
    device = next(model.parameters()).device
    model.eval()
    with torch.no_grad():
        out = torch.cat([model(part.to(device)).cpu() for part in x.split(4096)])
    model.train()
    return out.argmax(1).float() if schema.classes else out.squeeze(1)


def _metric(predicted: Tensor, y: Tensor, schema: Schema) -> float:
    if schema.classes:
        return float((predicted == y).double().mean())
    assert isinstance(schema.target, Numeric)
    return float((predicted - y).double().square().mean().sqrt()) * schema.target.half_width


def _fit_plainly(settings: Settings, prepared: Prepared, x: Tensor, y: Tensor) -> nn.Module:
    """The same model without clipping and noise, on rows that are public."""
    model = build(settings.model, x.shape[1], prepared.outputs, prepared.shape)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, PASSES)
    for _ in range(PASSES):
        for index in torch.randperm(len(x)).split(256):
            optimizer.zero_grad()
            if prepared.schema.classes:
                loss = nn.functional.cross_entropy(model(x[index]), y[index])
            else:
                loss = squared_error(model, (x[index], y[index])).mean()
            loss.backward()
            optimizer.step()
        schedule.step()
    return model


def _reference(settings: Settings, prepared: Prepared) -> tuple[Tensor, Tensor]:
    """Predictions for every public row by a model, and by the commonest answer, of the other public rows."""
    assert prepared.test is not None
    x, y = prepared.test
    fold = torch.arange(len(x)) % FOLDS
    found, common = torch.zeros(len(x)), torch.zeros(len(x))
    for k in range(FOLDS):
        inside, outside = fold == k, fold != k
        model = _fit_plainly(settings, prepared, x[outside], y[outside])
        found[inside] = predict(model, x[inside], prepared.schema)
        other = y[outside]
        common[inside] = float(other.mode().values) if prepared.schema.classes else float(other.mean())
    return found, common


def _groups(prepared: Prepared, by: tuple[str, ...]) -> Iterator[tuple[str, Tensor]]:
    """The public rows of each subgroup, from the encoded features."""
    assert prepared.test is not None
    x, place = prepared.test[0], 0
    for column in prepared.schema.features:
        block = x[:, place : place + column.width]
        place += column.width
        if column.name not in by:
            continue
        if isinstance(column, Boolean):
            for label, sign in zip(column.labels, (-1, 1), strict=True):
                yield f"{column.name} = {label}", block[:, 0] == sign
        elif isinstance(column, Categorical):
            for i, label in enumerate(column.labels):
                yield f"{column.name} = {label}", block[:, i] == 1


def evaluate(settings: Settings, prepared: Prepared, model: nn.Module) -> tuple[list[Evaluation], list[OperatorView]]:
    """What may be shown, and what only the operator may see."""
    if prepared.test is None:
        return [], []
    x, y = prepared.test
    metric = "accuracy" if prepared.schema.classes else "root mean squared error"
    if not settings.public_because:
        dataset = settings.dataset or prepared.name
        value = _metric(predict(model, x, prepared.schema), y, prepared.schema)
        view = EvaluationData.private((x, y), dataset=dataset).metric(metric.replace(" ", "_"), value)
        assert isinstance(view, OperatorView)
        return [], [view]
    data = EvaluationData.declared_public((x, y), because=settings.public_because)
    answers = {"private": (predict(model, x, prepared.schema), "")}
    if settings.reference:
        plain, common = _reference(settings, prepared)
        note = f"without noise, trained on the other {FOLDS - 1} of {FOLDS} parts of the public rows"
        answers["non-private reference"] = plain, note
        answers["majority" if prepared.schema.classes else "mean"] = common, "the commonest answer of the public rows"
    everyone = torch.ones(len(y), dtype=torch.bool)
    found = []
    for group, rows in [("", everyone), *_groups(prepared, settings.by)]:
        if not bool(rows.any()):
            continue
        for name, (predicted, note) in answers.items():
            result = data.metric(metric, _metric(predicted[rows], y[rows], prepared.schema))
            found.append(Evaluation(metric, result, name, group, int(rows.sum()), "" if group else note))
    return found, []


def release(settings: Settings, journal: Journal, prepared: Prepared, training: Training) -> list[OperatorView]:
    """Model, card and report of a run whose steps are done, decided; what only the operator may see is returned."""
    stage = journal.stage()
    if isinstance(training, AuditedTraining):
        training.planted().save(journal.private / CANARIES)
    training.model.load_state_dict(torch.load(journal.private / "buffers.pt", weights_only=True), strict=False)
    buffer = io.BytesIO()
    torch.save({name: t.detach().cpu() for name, t in training.model.state_dict().items()}, buffer)
    write_whole(stage / "model.pt", buffer.getvalue())
    name = hashlib.sha256(buffer.getvalue()).hexdigest()
    results, views = evaluate(settings, prepared, training.model)
    sources = public_sources(settings, prepared)
    if settings.audit_canaries is not None:
        sources += (_canaries(settings.audit_canaries, prepared.schema.unit.name),)
    run = describe(
        training,
        journal.folder.name,
        data=prepared.name,
        schema=prepared.schema.description or prepared.schema.name,
        tuning=settings.tuning,
        tuning_note=settings.tuning_note,
        uncovered=settings.uncovered,
        public_sources=sources,
        assumed=prepared.assumed,
        pretrained=None if ":" in settings.model else (),
        evaluations=tuple(results),
        model_file=_vouched(name, training),
        statement=Statement(settings.trust_model, settings.release, settings.contact),
    )
    card = make_card(run)
    write_card(card, stage / "privacy.json")
    write_page(card, stage / "report.html")
    log = OperatorLog(journal.private / "operator.jsonl")
    for view in views:
        log.write(view)
    planted = {"canaries": settings.audit_canaries} if settings.audit_canaries is not None else {}
    journal.decide(
        summary(card) | planted | {"files": {"card": "privacy.json", "report": "report.html", "model": "model.pt"}}
    )
    return views


def summary(card: Release) -> dict[str, Any]:
    """What a card claims and shows, in plain values."""
    guarantee, results = card["guarantee"], card["evaluation"]
    return {
        "epsilon": guarantee["epsilon"]["claimed"],
        "delta": guarantee["delta"],
        "neighbours": guarantee["neighbours"],
        "claim": guarantee["claim"],
        "results": [results[key].to_dict() for key in results],
    }


def public_sources(settings: Settings, prepared: Prepared) -> tuple[PublicSource, ...]:
    """The rows that results are stated for, and what is known of whether the protected are among them."""
    if prepared.test is None or not settings.public_because:
        return ()
    if settings.public_share is None:
        return (PublicSource(str(settings.evaluate), "evaluation", "unknown", settings.public_because),)
    unit, named = prepared.schema.unit.name, prepared.units is not None
    by = f"the id of its {unit}" if named else "what it holds"
    note = (
        f"{settings.public_because.rstrip('.')}. The promise covers the rows on the private side only. On which side a "
        f"row is depends on {by} alone: adding or removing one {unit} leaves the other side as it was. A row replaced "
        "by one of the other side changes both, which a price for replacing one does not cover."
    )
    if not named and unit != "record":
        note += f" Without ids a {unit} with two different rows may be on both sides."
    return (
        PublicSource(
            f"{prepared.name}: a share of {settings.public_share:g}, each row by a hash of {by} under the public key "
            f"{PUBLIC_KEY!r}",
            "evaluation",
            "no" if named or unit == "record" else "unknown",
            note,
        ),
    )


def _canaries(count: int, unit: str) -> PublicSource:
    """What the card says of canaries: their number, which was chosen before the data were seen."""
    return PublicSource(
        f"{count:,} gradient canaries",
        "records of nobody, planted beside the data so that the run can be attacked",
        "no",
        f"Each took part by a fair coin, as the record of a {unit} would. What they prove holds the noise of the run "
        "and stays with the operator.",
    )


def _vouched(name: str, training: Training) -> Charged | Public:
    """The hash of the weights, which the mechanism released."""
    charge = training.charge.number if training.charge is not None else (training._entry or {}).get("charge")
    if training.dataset is not None and charge is not None:
        return Charged(name, training.dataset, charge)
    return public(name, "hash of the released weights, which the stated guarantee covers")


__all__ = ["DataError", "Interrupted", "ModelError", "drive", "prepare", "release", "start"]
