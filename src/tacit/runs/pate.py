"""How do teachers' noisy votes become labels, a student and a page to show? The work of ``tacit pate``."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tacit import datasets
from tacit.cluster import Ray
from tacit.ledger import BudgetExceeded, Ledger, LedgerError, OperatorView
from tacit.noise import Key
from tacit.pate import Aggregator, Answers, ConfidentGNMax, GNMax, Teachers, VoteCounts
from tacit.pate.partition import contents
from tacit.report import PublicSource, columns_of
from tacit.report import votes as showing
from tacit.report.files import write_whole
from tacit.runs import publish
from tacit.runs import votes as drawing
from tacit.runs.folder import resolved, taken_back
from tacit.runs.journal import Journal
from tacit.runs.progress import Reporter
from tacit.runs.read import DataError, is_known, read_table
from tacit.runs.settings import again, check_tuning, settings_file, written
from tacit.schema import Encoded, Schema

MODELS = ("logistic", "forest", "boosting")
#: What is taken where nothing else is said.
USUAL: dict[str, Any] = {"teachers": 100, "model": "boosting", "delta": 1e-5, "sanitise": False}
#: The settings of a run, in its folder.
CONFIG = "pate.config.json"


@dataclasses.dataclass(frozen=True, eq=False)
class VotesRun:
    """Labels by votes, as ``given``; teachers train in ``jobs`` processes, or where ``backend`` says."""

    given: dict[str, Any]
    jobs: int = 1
    backend: str | Ray = "local"
    config = CONFIG
    keyed = True

    @classmethod
    def saved(cls, folder: Path, ledger: str | None = None) -> VotesRun:
        """The run of a folder, with its ``ledger`` where that is given again."""
        found = json.loads(settings_file(folder, CONFIG).read_text(encoding="utf-8"))
        ledger = again(found.get("ledger"), ledger)
        return cls(found | ({"ledger": ledger} if ledger is not None else {}))

    @property
    def ledger(self) -> str | None:
        """The ledger that is charged."""
        return self.given.get("ledger")

    @property
    def stem(self) -> str:
        """The data's name."""
        return Path(self.given["source"]).stem

    def files(self) -> dict[str, str]:
        """The settings with paths that hold elsewhere, and without the ledger's password."""
        given = self.given | ({"ledger": written(self.given["ledger"])} if "ledger" in self.given else {})
        there = resolved(self.given, ("source", "public", "schema", "ledger", "data_dir"))
        return {CONFIG: json.dumps(given | there, indent=2, ensure_ascii=False) + "\n"}

    def check(self, journal: Journal) -> None:
        """Every run can go on."""

    def read(self) -> None:
        """No row yet: who teaches which rows is drawn from the secret of the run."""
        check_tuning(self.given)

    def make(self, journal: Journal, data: None, progress: Reporter) -> list[OperatorView]:
        """Votes, one charge, noisy answers; then the release is decided."""
        with taken_back(journal, lambda _: journal.decided or self._paid(journal)):
            _answer(journal, USUAL | self.given, self.jobs, self.backend)
        return []

    def _paid(self, journal: Journal) -> bool:
        """Whether the answers were, or may have been, charged."""
        if "ledger" not in self.given or not (journal.private / drawing.VOTES).exists():
            return False
        try:
            number = drawing.charge_number(journal, "answers")
            return Ledger(self.given["ledger"]).mentions(self.given["dataset"], number) > 0
        except LedgerError:  # a ledger that does not answer may hold the charge
            return True


def _aggregator(given: dict[str, Any], classes: int) -> Aggregator:
    settings = {key: given[key] for key in ("threshold", "check_noise", "vote_noise") if key in given}
    return (ConfidentGNMax if "threshold" in given else GNMax)(classes=classes, **settings)


def _answer(journal: Journal, given: dict[str, Any], jobs: int, backend: str | Ray) -> None:
    """Votes, one charge, noisy answers, and the sanitised ε where it is asked for; then the release is decided."""
    source = given["source"]
    asked: dict[str, Any] = {key: given.get(key) for key in ("queries", "answers", "epsilon", "delta")}
    if "ledger" in given:
        asked |= {"ledger": Ledger(given["ledger"]), "dataset": given["dataset"]}
        asked["purpose"] = f"labels by the votes on {Path(source).name}"
        # now: teachers that nobody can pay for, or that would learn from other data, are not trained
        asked["ledger"].dataset(given["dataset"])
        asked["data"] = asked["ledger"].recognise(given["dataset"], _learned(given))

    def count() -> VoteCounts:
        if source.endswith(".npz"):
            return VoteCounts.load(source)
        with contextlib.redirect_stdout(sys.stderr):  # Ray tells of lost workers on standard output
            return _teach(given, jobs, backend, Key(journal.secret("teachers")))

    votes = drawing.kept(journal, count)
    found = drawing.answered(journal, _aggregator(given, votes.classes), votes, **asked)
    unsanitised: dict[str, Any] = {}
    if given["sanitise"]:
        try:
            drawing.sanitise(journal, found)
        except (LedgerError, ValueError) as error:  # the labels are drawn and paid for: they are not thrown away
            unsanitised = {"unsanitised": [str(error), 3 if isinstance(error, BudgetExceeded) else 1]}  # an exit code
    _release(journal, found, votes, given, unsanitised)


def _learned(given: dict[str, Any]) -> Any:
    """What the teachers learn from, for its fingerprint: a file, or the rows where there are several files or none."""
    source = given["source"]
    files = datasets.load(source, given.get("data_dir")).files if is_known(source) else [Path(source)]
    if len(files) == 1:
        return files[0] if files[0].exists() else None
    _, rows, _ = _rows(given)
    return np.asarray(rows.features), np.asarray(rows.target)


def _teach(given: dict[str, Any], jobs: int, backend: str | Ray, key: Key) -> VoteCounts:
    """Train teachers on the private rows and let them vote on the public ones."""
    schema, rows, asked = _rows(given)
    x, y = np.asarray(rows.features), np.asarray(rows.target).astype(np.int64)
    trained = Teachers(
        _model(given["model"]),
        (x, y),
        n=given["teachers"],
        # Without a column of ids the schema says that every row is another one; equal rows count as one.
        groups=rows.units if rows.units is not None else contents(x, y),
        unit=schema.unit.name,
        classes=len(schema.classes),
        key=key,
        backend=backend,
    )
    return trained.fit(n_jobs=jobs).vote(np.asarray(asked.features))


def _used(given: dict[str, Any]) -> dict[str, Any]:
    """The data, the columns and the public rows, for the card; of votes from a file nothing is known."""
    source, public = given["source"], given.get("public")
    if source.endswith(".npz"):
        return {}
    known = datasets.load(source, given.get("data_dir")) if is_known(source) else None
    schema = known.schema if known is not None else Schema.from_toml(given["schema"])
    where = f"{source}: {public}" if known is not None and public in known.splits else Path(str(public)).name
    asked = PublicSource(where, "the queries that are labelled, and what the student learns from")
    return {
        "data": schema.name or Path(source).name,
        "schema": schema.description or schema.name,
        "columns": columns_of(schema),
        "public_sources": (asked,),
        "pretrained": (),
    }


def _rows(given: dict[str, Any]) -> tuple[Schema, Encoded, Encoded]:
    """The schema, the private rows and the public ones that are asked about."""
    import polars as pl

    source, public, schema_file = given["source"], given.get("public"), given.get("schema")
    if public is None:
        raise DataError("--public: name the rows to be labelled, a table or a split of the known data set")
    known = is_known(source)
    if Path(public).exists() and Path(source).exists() and Path(public).samefile(source):
        raise DataError(
            f"--public: {public} is the private table itself, and the student would learn its rows without protection. "
            "See: tacit explain public-is-private"
        )
    if known:
        data = datasets.load(source, given.get("data_dir"))
        if public not in data.splits and not Path(public).exists():
            raise DataError(f"--public: {public} is neither a file nor a split of {source} ({', '.join(data.splits)})")
        if public in data.splits and data[public] is data.train:
            raise DataError(f"--public: the teachers learn from the split {public!r} of {source}; name another one")
        schema = data.schema
        rows, _ = data.encode()
    else:
        if schema_file is None:
            raise DataError("--schema: a table of your own needs a schema file: public bounds, categories and target")
        schema = Schema.from_toml(schema_file)
        rows, _ = schema.encode(read_table(Path(source), schema))
    target = schema.target
    if target is None or not schema.classes:
        raise DataError("votes are about classes: the schema must mark a categorical or boolean column as the target")
    if known and public in data.splits:
        asked, _ = data.encode(public)
    else:
        frame = read_table(Path(public), schema)
        if target.name not in frame.columns:  # public rows need no label: any class stands in for it
            frame = frame.with_columns(pl.lit(schema.classes[0]).alias(target.name))
        asked, _ = schema.encode(frame)
    return schema, rows, asked


def _model(name: str) -> Any:
    """The estimators that can be named; a program passes its own to tacit.pate.Teachers."""
    from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression

    if name == "logistic":
        return LogisticRegression(max_iter=1000)
    if name == "forest":
        return RandomForestClassifier(50, min_samples_leaf=2, max_features=0.3)
    return GradientBoostingClassifier(n_estimators=40, max_depth=2, subsample=0.8, max_features=0.3)


def _release(
    journal: Journal, answers: Answers, votes: VoteCounts, given: dict[str, Any], unsanitised: dict[str, Any]
) -> None:
    """Labels, student, card and report, decided; in private/ what may not be published."""
    stage, source = journal.stage(), Path(given["source"]).name
    lines = ["query,label"] + [f"{i},{'' if label < 0 else label}" for i, label in enumerate(answers.labels.tolist())]
    write_whole(stage / "labels.csv", "\n".join(lines) + "\n")
    files = {"labels": "labels.csv", **publish.SHOWN, "operator": "private/operator.html"}
    said = {"data": source, "generator": drawing.GENERATOR} | _used(given) | publish.stated(given)
    described = showing.describe_answers(answers, journal.folder.name, **said)
    view = showing.votes_view(answers)
    card = publish.stage(journal, described, [view], showing.write_votes_page)
    showing.write_votes_operator_page(card, [view], journal.private / "operator.html")
    if votes.x is not None and int(answers.answered.sum()):
        with drawing.student(journal):
            importlib.import_module("joblib").dump(answers.fit(_model(given["model"])), stage / "student.joblib")
        files["student"] = "student.joblib"
    told = publish.summary(card) | {
        "asked": len(answers),
        "answered": int(answers.answered.sum()),
        "sanitised": None if answers.accounts.sanitised is None else answers.accounts.sanitised.epsilon,
    }
    own = [drawing.VOTES] if source.endswith(".npz") else []  # their owner has them already
    journal.decide(told | unsanitised | {"files": files}, scratch=[drawing.QUERIES, *own])
