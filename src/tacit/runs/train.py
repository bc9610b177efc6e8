"""How does a training run go from records to a release? The work of ``tacit train`` and :func:`tacit.run`.

A run lives in a folder: ``config.toml``, ``model.pt``, ``privacy.json`` and ``report.html`` may be published;
``private/`` (checkpoint, operator log, canaries) is for its owner alone. The key of an unfinished run lies elsewhere.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import signal
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tacit import accounting as acc
from tacit.ledger import Ledger, OperatorLog, OperatorView
from tacit.report import PublicSource, Statement, columns_of, describe
from tacit.report.files import write_whole
from tacit.runs import publish
from tacit.runs.doctor import VITALS
from tacit.runs.evaluate import evaluate, public_sources
from tacit.runs.folder import as_it_was, resolved, taken_back
from tacit.runs.journal import Journal
from tacit.runs.models import ModelRefused, build, loss_for
from tacit.runs.progress import PROGRESS, Interrupted, Kept, Reporter, Told
from tacit.runs.read import TableRecords, Tables, read
from tacit.runs.settings import CONFIG, IN_MEMORY, SCHEMA, Settings, SettingsError
from tacit.sgd import NotCompiled, PrivacyWarning, Training
from tacit.sgd.correlation import noise_kind
from tacit.sgd.training.canaries import AuditedTraining
from tacit.sgd.training.vitals import Vitals

#: Edges of the norm histogram, in clip norms; 1 is one of them.
EDGES = [float(e) for e in np.round(np.logspace(-2, 2, 33), 12)]
LOGGED = 200
#: Steps between two checkpoints where nothing else is set.
CHECKPOINT_EVERY = 50
#: Numbers of canaries that are suggested.
ENOUGH = (100, 200, 300, 500, 1000, 2000, 5000, 10_000, 20_000)


@dataclasses.dataclass(frozen=True, eq=False)
class TrainRun:
    """One model trained as the settings say, on data in files or on those ``given`` from memory."""

    settings: Settings
    given: Tables = dataclasses.field(default_factory=Tables)
    config = CONFIG
    keyed = False

    @property
    def ledger(self) -> str | None:
        """The ledger that is charged."""
        return self.settings.ledger

    @property
    def stem(self) -> str:
        """The data's name."""
        if self.settings.data == IN_MEMORY and self.given.schema is not None:
            return self.given.schema.name or "table"
        return Path(self.settings.data).stem

    def files(self) -> dict[str, str]:
        """The settings, with paths that hold elsewhere, and the schema where it is in no file."""
        in_files = [name for name in ("data", "schema", "evaluate") if getattr(self.given, name) is None]
        # The rate is written down, so that it stays what it was where a later version has another default.
        settings = dataclasses.replace(absolute(self.settings, (*in_files, "ledger")), learning_rate=self.settings.rate)
        found = {CONFIG: settings.to_toml()}
        return found if self.given.schema is None else found | {SCHEMA: self.given.schema.to_toml()}

    def check(self, journal: Journal) -> None:
        """A run with canaries is not resumed before it is decided."""
        if self.settings.audit_canaries is not None and (journal.ended or not journal.decided):
            raise SettingsError(f"{journal.folder}: {again(journal.folder)}")

    def read(self) -> TableRecords:
        """The records, after a look at the device."""
        check_device(self.settings.device)
        return read(self.settings, self.given)

    def make(self, journal: Journal, data: TableRecords, progress: Reporter) -> list[OperatorView]:
        """Train, evaluate, decide."""
        training: Training | None = None

        def spent(_: Exception) -> bool:
            return training is not None and (training.charge is not None or training.state.begun)

        with taken_back(journal, spent):
            training = start(self.settings, journal.private, data, progress)
            if self.settings.compile and not progress.quiet and not training.done:
                progress.note("the first steps compile the model's step, which takes seconds to a minute")
            drive(training, journal.private, progress)
            return release(self.settings, journal, data, training)


def absolute(settings: Settings, names: tuple[str, ...] = ("data", "schema", "evaluate", "ledger")) -> Settings:
    """The settings with paths that hold wherever the run is resumed from."""
    there: dict[str, Any] = resolved(dataclasses.asdict(settings), names)
    return dataclasses.replace(settings, **there)


def again(run: Path) -> str:
    """What can be done with a run that held canaries and is not to be resumed."""
    if (run / "privacy.json").exists():
        return f"the run has ended; see what its canaries prove with: tacit audit {run}"
    return (
        "a run with canaries is not resumed, because their scores are not saved along the way; what was charged stays "
        f"charged. Start again with: tacit train --config {run / CONFIG}"
    )


def go_on(run: Path, *, canaries: bool) -> str:
    """How a run that has not ended is brought to an end."""
    return again(run) if canaries else f"continue with: tacit train --resume {run}"


def check_device(name: str) -> None:
    """Refuse a device that is not there before anything is read, written or charged."""
    try:
        torch.zeros(1, device=name).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise SettingsError(f"device: {name!r} cannot be used here: {str(error).splitlines()[0]}") from None


def open_ledger(settings: Settings, records: TableRecords) -> Ledger | None:
    """The ledger that is charged, after checking that these are the data that were registered."""
    if settings.ledger is None or settings.dataset is None:
        return None
    if "://" not in settings.ledger and not Path(settings.ledger).exists():
        raise SettingsError(
            f"ledger: there is no {settings.ledger}; create it with: tacit ledger init {settings.ledger} "
            f"{settings.dataset} --epsilon … --delta … --unit {records.schema.unit.name}. "
            "See: tacit explain not-registered"
        )
    ledger = Ledger(settings.ledger)
    if records.source is not None:
        ledger.recognise(settings.dataset, records.source)
    return ledger if settings.plan is None else ledger.with_plan(settings.plan)


def start(settings: Settings, private: Path, records: TableRecords, progress: Reporter) -> Training:
    """The training run, new or resumed in the ``private`` part of its folder, charged at its first step."""
    model = build(settings.model, records.form).to(settings.device)
    _check_room(model, settings)
    _keep_buffers(model, private / "buffers.pt")
    recording = warnings.catch_warnings(record=True, action="always", category=PrivacyWarning)
    with recording as caught, as_it_was(private.parent):
        kind: Any = Training
        own: dict[str, Any] = {
            "checkpoint": private / "checkpoint.pt",
            "checkpoint_every": settings.checkpoint_every or CHECKPOINT_EVERY,
            "compile": "auto" if settings.compile is None else settings.compile,
        }
        if settings.audit_canaries is not None:
            kind, own = AuditedTraining, {"canaries": settings.audit_canaries}
        training: Training = kind(
            model,
            optimizer_for(settings, model),
            loss_for(records.schema),
            (records.x, records.y),
            batch_size=settings.batch,
            epochs=settings.epochs,
            steps=settings.steps,
            epsilon=settings.epsilon,
            noise_multiplier=settings.noise,
            delta=settings.delta,
            clip_norm=settings.clip_norm,
            sampler=settings.sampler,
            noise=noise_kind(settings.correlated),
            adjacency=settings.adjacency,
            # Canaries take slots beside the records, of which size is the number.
            size=None if settings.size is None else settings.size + (settings.audit_canaries or 0),
            unit=records.schema.unit.name,
            groups=records.owners,
            max_rows=settings.max_rows,
            draw=settings.draw,
            ledger=open_ledger(settings, records),
            source=records.source,
            dataset=settings.dataset,
            purpose=settings.purpose,
            **own,
        )
    for warning in caught:
        progress.note(f"warning: {warning.message}")
    if isinstance(training, AuditedTraining) and (weak := _too_few(training)):
        progress.note(f"warning: {weak}")
    return training


def foreseen(settings: Settings) -> acc.Mechanism:
    """What a run with these settings will charge, before it: nothing is trained, written or charged."""
    alone = dataclasses.replace(settings, ledger=None, dataset=None, plan=None)
    with tempfile.TemporaryDirectory() as folder:
        return start(alone, Path(folder), TrainRun(alone).read(), Told(quiet=True)).plan.mechanism


def optimizer_for(settings: Settings, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer that the settings name."""
    kinds = {name.lower(): kind for name, kind in vars(torch.optim).items() if isinstance(kind, type)}
    own = {"momentum": settings.momentum} if settings.optimizer == "sgd" else {}
    made: torch.optim.Optimizer = kinds[settings.optimizer](model.parameters(), lr=settings.rate, **own)
    return made


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
    best = best_one_run(count, claim.delta, claimed=claim.upper)
    if best > claim.upper or not math.isfinite(claim.upper):
        return ""
    room = sum(p.numel() for p in training.parameters.values())
    more = (n for n in ENOUGH if count < n <= room and best_one_run(n, claim.delta, claimed=claim.upper) > claim.upper)
    enough = next(more, None)
    told = f"{enough:,} could do it" if enough is not None else "a larger model has room for more of them"
    return (
        f"{count:,} canaries prove at most ε ≥ {math.floor(best * 100) / 100:.2f} with confidence 0.95: a claim of "
        f"ε = {claim.upper:.4g} cannot be refuted with them; {told}"
    )


def _buffers(model: nn.Module) -> dict[str, Tensor]:
    """What a model's state holds beside its parameters."""
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    found = {name: value for name, value in model.state_dict().items() if name not in names}
    if not all(isinstance(value, Tensor) for value in found.values()):
        raise ModelRefused(
            "the model has extra state that is not a tensor, which might hold data: keep its state in buffers"
        )
    return {name: value.detach().cpu().clone() for name, value in found.items()}


def _keep_buffers(model: nn.Module, path: Path) -> None:
    """Buffers as they are before any record was seen. These are published, whatever a forward pass writes into them."""
    if not path.exists():
        buffer = io.BytesIO()
        torch.save(_buffers(model), buffer)
        write_whole(path, buffer.getvalue())
    else:
        model.load_state_dict(torch.load(path, weights_only=True), strict=False)


def drive(training: Training, private: Path, progress: Reporter) -> None:
    """Run the steps that are left; raise :class:`Interrupted` after Ctrl-C, with the checkpoint written.

    A run with canaries has no checkpoint, and is over then.
    """
    log = OperatorLog(private / "operator.jsonl")
    live, kept = progress.follow(training), Kept(training, private / PROGRESS)
    every = max(1, training.plan.steps // LOGGED)
    vitals = Vitals(training, private / VITALS)
    with _interrupts() as asked, _told_in_a_line(progress):
        try:
            for batch in training:
                training.step(batch)
                kept.update()
                last = training.done
                if live.terminal or last or training.steps_executed % every == 0:
                    seen = training.diagnostics().reveal()
                    live.update(seen, vitals.ratio)
                    if last or training.steps_executed % every == 0:
                        log.write(OperatorView(**seen, signal_to_noise=vitals.ratio, **_norms(training)))
                if asked and not last:
                    if not isinstance(training, AuditedTraining):
                        training.save()
                    how = go_on(private.parent, canaries=isinstance(training, AuditedTraining))
                    raise Interrupted(f"stopped between two steps; {how}")
        finally:
            live.close()
            vitals.remove()


@contextlib.contextmanager
def _told_in_a_line(progress: Reporter) -> Iterator[None]:
    """Why a step is not compiled is told as the command tells things; other warnings as they always are."""
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def tell(message: Warning | str, category: type[Warning], *place: Any) -> None:
            if issubclass(category, NotCompiled):
                progress.note(str(message))
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


def _norms(training: Training) -> dict[str, Any]:
    """A histogram of the last batch's gradient norms over the clip norm: operator's side only."""
    norms = [part[1] for part in training.last_batch]
    if not norms:
        return {}
    shares = torch.cat(norms).double().cpu().numpy() / training.clip_norm
    counts, _ = np.histogram(np.clip(shares, EDGES[0], EDGES[-1]), EDGES)
    return {"norm_edges": EDGES, "norm_counts": counts.tolist()}


def release(settings: Settings, journal: Journal, records: TableRecords, training: Training) -> list[OperatorView]:
    """Model, card and report of a run whose steps are done, decided; what only the operator may see is returned."""
    stage = journal.stage()
    if isinstance(training, AuditedTraining):
        training.planted().save(journal.private / publish.CANARIES)
    training.model.load_state_dict(torch.load(journal.private / "buffers.pt", weights_only=True), strict=False)
    weights = publish.save_weights(stage / "model.pt", training.model.state_dict())
    results, views = evaluate(settings, records, training.model)
    sources = public_sources(settings, records)
    if settings.audit_canaries is not None:
        sources += (_canaries(settings.audit_canaries, records.schema.unit.name),)
    run = describe(
        training,
        journal.folder.name,
        data=records.name,
        schema=schema_words(settings, records),
        columns=columns_of(records.schema),
        tuning=settings.tuning,
        tuning_note=settings.tuning_note,
        uncovered=settings.uncovered,
        public_sources=sources,
        assumed=records.assumed,
        pretrained=None if ":" in settings.model else (),
        evaluations=tuple(results),
        statement=Statement(settings.trust_model, settings.release, settings.contact),
    )
    run = dataclasses.replace(run, model_file=publish.vouched(weights, run.dataset, run.charge))
    card = publish.stage(journal, run, views)
    planted = {"canaries": settings.audit_canaries} if settings.audit_canaries is not None else {}
    journal.decide(publish.summary(card) | planted | {"files": publish.SHOWN | {"model": "model.pt"}})
    return views


def schema_words(settings: Settings, records: TableRecords) -> str:
    """The schema for the card, with the choice of target and features where the settings made one."""
    found = records.schema.description or records.schema.name
    chosen = [f"target chosen: {settings.target}"] if settings.target is not None else []
    if settings.without:
        chosen.append(f"left out: {', '.join(settings.without)}")
    return f"{found} ({'; '.join(chosen)})".strip() if chosen else found


def _canaries(count: int, unit: str) -> PublicSource:
    """What the card says of canaries: their number, which was chosen before the data were seen."""
    return PublicSource(
        f"{count:,} gradient canaries",
        "records of nobody, planted beside the data so that the run can be attacked",
        "no",
        f"Each was included with probability 1/2, as the record of a {unit} would be. What they prove depends on the "
        "noise of the run and stays with the operator.",
    )
