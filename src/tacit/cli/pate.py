"""``tacit pate``: labels for public rows by teachers' noisy votes, a student, and a page to show."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli.common import EXIT_BUDGET, EXIT_ERROR, EXIT_USAGE, brought_out, fail, resumable

if TYPE_CHECKING:
    from tacit.cluster import Ray
    from tacit.noise import Key
    from tacit.pate import Aggregator, Answers, VoteCounts
    from tacit.runs.journal import Journal

MODELS = ("logistic", "forest", "boosting")
#: What is taken where nothing else is said.
USUAL: dict[str, Any] = {"teachers": 100, "model": "boosting", "delta": 1e-5, "sanitise": False}
#: The settings of a run, in its folder.
CONFIG = "pate.config.json"

EPILOG = """
Teachers are trained on disjoint people of the private table; public rows are labelled by their noisy votes; a student
learns from the answers. A run lives in its folder: labels.csv, student.joblib, privacy.json and report.html may be
published; private/ (the votes, the operator's page) may not. After Ctrl-C, a kill, a crash or a full disk, at whatever
moment, --resume goes on: the same answers, the same claim, one charge. A run that has ended is left as it is.

[bold]Examples[/bold]

Teachers on a known data set, its test split as the public rows:

    $ tacit pate adult --public test --teachers 250 --queries 1500 --threshold 300 --check-noise 200 --vote-noise 40

A table of your own, charged to a ledger, stopping at an ε:

    $ tacit pate clinic.csv --schema clinic.toml --public survey.csv --teachers 100 --vote-noise 20 --epsilon 2
      --ledger my.db --dataset clinic

Many teachers on a Ray cluster (the one RAY_ADDRESS names, or one of this machine), two CPUs each:

    $ tacit pate adult --public test --teachers 1000 --vote-noise 40 --queries 1500 --backend ray --cpus 2

Votes that were counted elsewhere, and a sanitised data-dependent ε that may be published:

    $ tacit pate votes.npz --queries 640 --threshold 200 --check-noise 150 --vote-noise 40 --sanitise

    $ tacit pate --resume runs/adult-1
"""


def _option(help_text: str, *names: str) -> Any:
    return typer.Option(*names, help=help_text, show_default=False)


def pate(
    source: Annotated[
        str | None, typer.Argument(help="A private table, a known data set, or votes (.npz).", show_default=False)
    ] = None,
    vote_noise: Annotated[float | None, _option("Standard deviation of the noise on every count of votes.")] = None,
    public: Annotated[str | None, _option("Public rows to label: a table, or a split of a known set.")] = None,
    schema: Annotated[str | None, _option("The public schema of a table (TOML).")] = None,
    teachers: Annotated[int | None, _option("How many teachers. Default: 100.")] = None,
    model: Annotated[
        str | None, _option("Teachers and student: logistic, forest or boosting. Default: boosting.")
    ] = None,
    threshold: Annotated[float | None, _option("Answer only where the noisy largest count reaches this.")] = None,
    check_noise: Annotated[float | None, _option("Standard deviation of the check's noise.")] = None,
    queries: Annotated[int | None, _option("How many public rows to ask about: fixed in advance.")] = None,
    answers: Annotated[int | None, _option("With --queries: at most so many answers.")] = None,
    epsilon: Annotated[float | None, _option("Or ask until this ε, by the data-independent cost.")] = None,
    delta: Annotated[float | None, _option("The δ of (ε, δ). Default: 1e-05.")] = None,
    sanitise: Annotated[bool | None, _option("Also release a data-dependent ε; it costs.", "--sanitise")] = None,
    ledger: Annotated[str | None, _option("The ledger that is charged: a file or postgresql://…")] = None,
    dataset: Annotated[str | None, _option("The data's name in the ledger.")] = None,
    data_dir: Annotated[str | None, _option("The folder of the known data sets.")] = None,
    name: Annotated[str | None, _option("The run's name. Default: the data's name and a number.")] = None,
    resume: Annotated[Path | None, _option("The folder of a run to go on with.")] = None,
    runs: Annotated[Path, typer.Option(help="Where runs live.")] = Path("runs"),
    jobs: Annotated[int, typer.Option(help="Processes that train teachers.")] = 1,
    backend: Annotated[str, typer.Option(help="Where teachers train: local or ray.")] = "local",
    cpus: Annotated[float, typer.Option(help="With --backend ray: CPUs of one teacher.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Label public rows by teachers' noisy votes; account three ways; train a student."""
    here = ("name", "resume", "runs", "jobs", "backend", "cpus", "as_json")
    given = {key: value for key, value in locals().items() if key not in (*here, "here") and value is not None}
    from tacit.cluster import BACKENDS

    if backend not in BACKENDS:
        fail(f"--backend is one of {', '.join(BACKENDS)}, not {backend!r}", EXIT_USAGE)
    if backend == "ray" and jobs != 1:
        fail("--jobs is for --backend local; the cluster's size says how many teachers train at once", EXIT_USAGE)
    if resume is not None and (given.keys() - {"ledger"} or name is not None):
        fail("--resume takes the settings of the run; no others can be given", EXIT_USAGE)
    if resume is None:
        _check(given)
    told = run(given, runs, name, resume, jobs=jobs, backend=backend, cpus=cpus)
    unsanitised = told.pop("unsanitised", None)
    if as_json:
        typer.echo(json.dumps(told, indent=2, ensure_ascii=False))
    else:
        _show(told)
    if unsanitised is not None:
        text, code = unsanitised
        fail(f"the labels are released, but no sanitised ε: {text}", code)


def _check(given: dict[str, Any]) -> None:
    """Refuse settings that cannot be meant before anything is read, written or charged."""
    if "source" not in given or "vote_noise" not in given:
        fail(
            "name a private table, a known data set or votes (.npz), and --vote-noise; or a run with --resume",
            EXIT_USAGE,
        )
    if ("queries" in given) == ("epsilon" in given):
        fail("give --queries (fixed in advance) or --epsilon (a filter), one of the two", EXIT_USAGE)
    if ("ledger" in given) != ("dataset" in given):
        fail("give --ledger and --dataset together: the ledger, and the data's name in it", EXIT_USAGE)
    if ("threshold" in given) != ("check_noise" in given):
        fail("give --threshold and --check-noise together, or neither: then every query is answered", EXIT_USAGE)
    if given.get("model", MODELS[0]) not in MODELS:
        fail(f"--model is one of {', '.join(MODELS)}, not {given['model']!r}", EXIT_USAGE)


def run(
    given: dict[str, Any],
    runs: Path,
    name: str | None,
    resume: Path | None,
    *,
    jobs: int = 1,
    backend: str = "local",
    cpus: float = 1,
) -> dict[str, Any]:
    """Do the work; leave with a message and an exit code where it cannot be done."""
    from tacit.accounting import AccountingError
    from tacit.cluster import ClusterError, Ray
    from tacit.datasets import DatasetError
    from tacit.ledger import BudgetExceeded, LedgerError
    from tacit.runs.journal import Journal, JournalError, NameTaken
    from tacit.runs.settings import again
    from tacit.runs.train import DataError
    from tacit.schema import SchemaError

    journal: Journal | None = None
    with resumable("pate", lambda: journal.folder if journal else None), contextlib.ExitStack() as stack:
        try:
            if resume is not None:
                journal = stack.enter_context(Journal.open(resume, CONFIG))
                saved = json.loads((resume / CONFIG).read_text(encoding="utf-8"))
                ledger = again(saved.get("ledger"), given.get("ledger"))
                given = saved | ({"ledger": ledger} if ledger is not None else {})
            else:
                text = json.dumps(_absolute(given), indent=2, ensure_ascii=False) + "\n"
                stem = Path(given["source"]).stem
                journal = stack.enter_context(Journal.begin(runs, name, stem, {CONFIG: text}, keyed=True))
            if not journal.decided:
                where = Ray(num_cpus=cpus) if backend == "ray" else backend
                _answer(journal, USUAL | given, jobs, where)
            return brought_out(journal)
        except (BudgetExceeded, NameTaken) as error:
            _remove_unused(journal, resume, given)
            fail(str(error), EXIT_BUDGET if isinstance(error, BudgetExceeded) else EXIT_ERROR)
        except (
            AccountingError,
            ClusterError,
            DataError,
            DatasetError,
            JournalError,
            LedgerError,
            SchemaError,
            ModuleNotFoundError,
            ValueError,
        ) as error:
            _remove_unused(journal, resume, given)
            fail(str(error))


def _absolute(given: dict[str, Any]) -> dict[str, Any]:
    """The settings with paths that hold wherever the run is resumed from, and without the ledger's password."""
    from tacit.runs.settings import written

    paths = {key: given[key] for key in ("source", "public", "schema", "ledger", "data_dir") if key in given}
    there = {key: str(Path(v).resolve()) for key, v in paths.items() if "://" not in v and Path(v).exists()}
    return given | ({"ledger": written(given["ledger"])} if "ledger" in given else {}) | there


def _remove_unused(journal: Journal | None, resume: Path | None, given: dict[str, Any]) -> None:
    """Take back the folder of a run that charged and released nothing, so that its name is free again."""
    from tacit.ledger import Ledger, LedgerError
    from tacit.runs.votes import VOTES, charge_number

    if journal is None or resume is not None or journal.decided:
        return
    paid = "ledger" in given and (journal.private / VOTES).exists()
    if paid:
        with contextlib.suppress(LedgerError):  # a ledger that does not answer may hold the charge
            number = charge_number(journal, "answers")
            paid = any(record.charge == number for record in Ledger(given["ledger"]).history(given["dataset"]))
    if not paid:
        journal.discard()


def _aggregator(given: dict[str, Any], classes: int) -> Aggregator:
    from tacit.pate import ConfidentGNMax, GNMax

    settings = {key: given[key] for key in ("threshold", "check_noise", "vote_noise") if key in given}
    return (ConfidentGNMax if "threshold" in given else GNMax)(classes=classes, **settings)


def _answer(journal: Journal, given: dict[str, Any], jobs: int, where: str | Ray) -> None:
    """Votes, one charge, noisy answers; then the release is decided."""
    from tacit.ledger import BudgetExceeded, Ledger, LedgerError
    from tacit.noise import Key
    from tacit.pate import VoteCounts
    from tacit.runs import votes as drawing

    source = given["source"]
    asked: dict[str, Any] = {key: given.get(key) for key in ("queries", "answers", "epsilon", "delta")}
    if "ledger" in given:
        asked |= {"ledger": Ledger(given["ledger"]), "dataset": given["dataset"]}
        asked["purpose"] = f"labels by the votes on {Path(source).name}"
        asked["ledger"].dataset(given["dataset"])  # now: teachers that nobody can pay for are not trained

    def count() -> VoteCounts:
        if source.endswith(".npz"):
            return VoteCounts.load(source)
        with contextlib.redirect_stdout(sys.stderr):  # Ray tells of lost workers on standard output
            return _teach(given, jobs, where, Key(journal.secret("teachers")))

    votes = drawing.kept(journal, count)
    found = drawing.answered(journal, _aggregator(given, votes.classes), votes, **asked)
    unsanitised = None
    if given["sanitise"]:
        try:
            drawing.sanitise(journal, found)
        except (LedgerError, ValueError) as error:  # the labels are drawn and paid for: they are not thrown away
            unsanitised = [str(error), EXIT_BUDGET if isinstance(error, BudgetExceeded) else EXIT_ERROR]
    _release(journal, found, votes, given, unsanitised)


def _teach(given: dict[str, Any], jobs: int, backend: str | Ray, key: Key) -> VoteCounts:
    """Train teachers on the private rows and let them vote on the public ones."""
    import numpy as np
    import polars as pl

    from tacit import datasets
    from tacit.pate import Teachers
    from tacit.pate.partition import contents
    from tacit.runs.train import DataError, read_table
    from tacit.schema import Schema

    source, public, schema_file = given["source"], given.get("public"), given.get("schema")
    if public is None:
        raise DataError("--public: name the rows to be labelled, a table or a split of the known data set")
    known = source in datasets.CATALOG and not Path(source).exists()
    if Path(public).exists() and Path(source).exists() and Path(public).samefile(source):
        raise DataError(f"--public: {public} is the private table itself; its rows would enter the student uncovered")
    if known:
        data = datasets.load(source, given.get("data_dir"))
        if public not in data.splits and not Path(public).exists():
            raise DataError(f"--public: {public} is neither a file nor a split of {source} ({', '.join(data.splits)})")
        if public in data.splits and data[public] is data.train:
            raise DataError(f"--public: the teachers learn from the split {public!r} of {source}; name another one")
        schema = data.schema
        encoded, _ = data.encode()
    else:
        if schema_file is None:
            raise DataError("--schema: a table of your own needs a schema file: public bounds, categories and target")
        schema = Schema.from_toml(schema_file)
        encoded, _ = schema.encode(read_table(Path(source), schema))
    target = schema.target
    if target is None or not schema.classes:
        raise DataError("votes are about classes: the schema must mark a categorical or boolean column as the target")
    if known and public in data.splits:
        rows, _ = data.encode(public)
    else:
        frame = read_table(Path(public), schema)
        if target.name not in frame.columns:  # public rows need no label: any class stands in for it
            frame = frame.with_columns(pl.lit(schema.classes[0]).alias(target.name))
        rows, _ = schema.encode(frame)
    x, y = np.asarray(encoded.features), np.asarray(encoded.target).astype(np.int64)
    trained = Teachers(
        _model(given["model"]),
        (x, y),
        n=given["teachers"],
        # Without a column of ids the schema says that every row is another one; equal rows count as one.
        groups=encoded.units if encoded.units is not None else contents(x, y),
        unit=schema.unit.name,
        classes=len(schema.classes),
        key=key,
        backend=backend,
    )
    return trained.fit(n_jobs=jobs).vote(np.asarray(rows.features))


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
    journal: Journal, answers: Answers, votes: VoteCounts, given: dict[str, Any], unsanitised: list[Any] | None
) -> None:
    """Labels, student, card and report, decided; in private/ what may not be published."""
    import importlib

    from tacit.ledger import OperatorLog
    from tacit.report import make_card, write_card
    from tacit.report import votes as showing
    from tacit.report.files import write_whole
    from tacit.runs import votes as drawing
    from tacit.runs.train import summary

    stage, source = journal.stage(), Path(given["source"]).name
    lines = ["query,label"] + [f"{i},{'' if label < 0 else label}" for i, label in enumerate(answers.labels.tolist())]
    write_whole(stage / "labels.csv", "\n".join(lines) + "\n")
    files = {
        "labels": "labels.csv",
        "card": "privacy.json",
        "report": "report.html",
        "operator": "private/operator.html",
    }
    described = showing.describe_answers(answers, journal.folder.name, data=source, generator=drawing.GENERATOR)
    card = make_card(described)
    write_card(card, stage / "privacy.json")
    showing.write_votes_page(card, stage / "report.html")
    view = showing.votes_view(answers)
    OperatorLog(journal.private / "operator.jsonl").write(view)
    showing.write_votes_operator_page(card, [view], journal.private / "operator.html")
    if votes.x is not None and int(answers.answered.sum()):
        with drawing.student(journal):
            importlib.import_module("joblib").dump(answers.fit(_model(given["model"])), stage / "student.joblib")
        files["student"] = "student.joblib"
    told = summary(card) | {
        "asked": len(answers),
        "answered": int(answers.answered.sum()),
        "sanitised": None if answers.accounts.sanitised is None else answers.accounts.sanitised.epsilon,
    }
    if unsanitised is not None:
        told["unsanitised"] = unsanitised
    own = [drawing.VOTES] if source.endswith(".npz") else []  # their owner has them already
    journal.decide(told | {"files": files}, scratch=[drawing.QUERIES, *own])


def _show(told: dict[str, Any]) -> None:
    shown = told["epsilon"]
    typer.echo(f"{told['answered']} of {told['asked']} queries answered")
    text = shown if isinstance(shown, str) else f"{shown:.10g}"
    typer.echo(f"ε = {text} at δ = {told['delta']:g}, {told['neighbours']} (whatever the votes were)")
    typer.echo(told["claim"])
    if told["sanitised"] is None:
        typer.echo("data-dependent ε: not publishable; on the operator's page (--sanitise releases one, with noise)")
    else:
        typer.echo(f"data-dependent ε, sanitised: about {told['sanitised']:.4g} (an estimate, not a bound)")
    for key in ("labels", "student", "card", "report"):
        if key in told:
            typer.echo(f"{key:<8}{told[key]}")
    typer.echo(f"private {told['operator']} (not covered by the guarantee)")


def register(app: typer.Typer) -> None:
    """Add ``tacit pate`` to the application."""
    app.command("pate", epilog=EPILOG)(pate)
