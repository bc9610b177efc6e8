"""``tacit pate``: labels for public rows by teachers' noisy votes, a student, and a page to show."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli.common import EXIT_ERROR, EXIT_USAGE, fail

if TYPE_CHECKING:
    from tacit.cluster import Ray
    from tacit.pate import Aggregator, Answers, VoteCounts

#: Exit codes beside those of every command, documented in docs/cli.md.
EXIT_BUDGET = 3
MODELS = ("logistic", "forest", "boosting")

EPILOG = """
Teachers are trained on disjoint people of the private table; public rows are labelled by their noisy votes; a student
learns from the answers. A run lives in its folder: labels.csv, student.joblib, privacy.json and report.html may be
published; private/ (the votes, the operator's page) may not.

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
"""


def _option(help_text: str, *names: str) -> Any:
    return typer.Option(*names, help=help_text, show_default=False)


def pate(
    source: Annotated[
        str, typer.Argument(help="A private table, a known data set, or votes (.npz).", show_default=False)
    ],
    vote_noise: Annotated[float, _option("Standard deviation of the noise on every count of votes.")],
    public: Annotated[str | None, _option("Public rows to label: a table, or a split of a known set.")] = None,
    schema: Annotated[str | None, _option("The public schema of a table (TOML).")] = None,
    teachers: Annotated[int, typer.Option(help="How many teachers.")] = 100,
    model: Annotated[str, typer.Option(help="Teachers and student: logistic, forest or boosting.")] = "boosting",
    threshold: Annotated[float | None, _option("Answer only where the noisy largest count reaches this.")] = None,
    check_noise: Annotated[float | None, _option("Standard deviation of the check's noise.")] = None,
    queries: Annotated[int | None, _option("How many public rows to ask about: fixed in advance.")] = None,
    answers: Annotated[int | None, _option("With --queries: at most so many answers.")] = None,
    epsilon: Annotated[float | None, _option("Or ask until this ε, by the data-independent cost.")] = None,
    delta: Annotated[float, typer.Option(help="The δ of (ε, δ).")] = 1e-5,
    sanitise: Annotated[bool, typer.Option("--sanitise", help="Also release a data-dependent ε; it costs.")] = False,
    ledger: Annotated[str | None, _option("The ledger that is charged: a file or postgresql://…")] = None,
    dataset: Annotated[str | None, _option("The data's name in the ledger.")] = None,
    data_dir: Annotated[str | None, _option("The folder of the known data sets.")] = None,
    name: Annotated[str | None, _option("The run's name. Default: the data's name and a number.")] = None,
    runs: Annotated[Path, typer.Option(help="Where runs live.")] = Path("runs"),
    jobs: Annotated[int, typer.Option(help="Processes that train teachers.")] = 1,
    backend: Annotated[str, typer.Option(help="Where teachers train: local or ray.")] = "local",
    cpus: Annotated[float, typer.Option(help="With --backend ray: CPUs of one teacher.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Label public rows by teachers' noisy votes; account three ways; train a student."""
    from tacit.accounting import AccountingError
    from tacit.cli.job import DataError, new_folder
    from tacit.cluster import BACKENDS, ClusterError, Ray
    from tacit.datasets import DatasetError
    from tacit.ledger import BudgetExceeded, LedgerError
    from tacit.schema import SchemaError

    folder, unsanitised = None, None
    aggregator_of = _aggregator(threshold, check_noise, vote_noise)
    if (queries is None) == (epsilon is None):
        fail("give --queries (fixed in advance) or --epsilon (a filter), one of the two", EXIT_USAGE)
    if (ledger is None) != (dataset is None):
        fail("give --ledger and --dataset together: the ledger, and the data's name in it", EXIT_USAGE)
    if model not in MODELS:
        fail(f"--model is one of {', '.join(MODELS)}, not {model!r}", EXIT_USAGE)
    if backend not in BACKENDS:
        fail(f"--backend is one of {', '.join(BACKENDS)}, not {backend!r}", EXIT_USAGE)
    if backend == "ray" and jobs != 1:
        fail("--jobs is for --backend local; the cluster's size says how many teachers train at once", EXIT_USAGE)
    try:
        where = Ray(num_cpus=cpus) if backend == "ray" else backend
        if source.endswith(".npz"):
            from tacit.pate import VoteCounts

            votes = VoteCounts.load(source)
        else:
            with contextlib.redirect_stdout(sys.stderr):  # Ray tells of lost workers on standard output
                votes = _teach(source, public, schema, teachers, model, data_dir, jobs, where)
        asked: dict[str, Any] = {"queries": queries, "answers": answers, "epsilon": epsilon, "delta": delta}
        if ledger is not None:
            from tacit.ledger import Ledger

            asked |= {"ledger": Ledger(ledger), "dataset": dataset, "purpose": f"labels by the votes on {source}"}
        folder = new_folder(runs, name, source)  # before anything is charged: a name that is taken costs nothing
        found = aggregator_of(votes.classes).answer(votes, **asked)
        if sanitise:
            try:
                found.privacy.sanitise()
            except (LedgerError, ValueError) as error:  # the labels are drawn and paid for: they are not thrown away
                unsanitised = error
        told = _publish(found, votes, source, folder, model)
    except BudgetExceeded as error:
        _remove_empty(folder)
        fail(str(error), EXIT_BUDGET)
    except (
        AccountingError,
        ClusterError,
        DataError,
        DatasetError,
        LedgerError,
        SchemaError,
        ModuleNotFoundError,
        ValueError,
        OSError,
    ) as error:
        _remove_empty(folder)
        fail(str(error))
    if as_json:
        typer.echo(json.dumps(told, indent=2, ensure_ascii=False))
    else:
        _show(told)
    if unsanitised is not None:
        fail(
            f"the labels are released, but no sanitised ε: {unsanitised}",
            EXIT_BUDGET if isinstance(unsanitised, BudgetExceeded) else EXIT_ERROR,
        )


def _remove_empty(folder: Path | None) -> None:
    """Take back the folder of a run that released nothing, so that its name is free again."""
    if folder is not None and not any(path.is_file() for path in folder.rglob("*")):
        (folder / "private").rmdir()
        folder.rmdir()


def _aggregator(threshold: float | None, check_noise: float | None, vote_noise: float) -> Any:
    """What makes the aggregator once the number of classes is known."""
    from tacit.pate import ConfidentGNMax, GNMax

    if (threshold is None) != (check_noise is None):
        fail("give --threshold and --check-noise together, or neither: then every query is answered", EXIT_USAGE)

    def make(classes: int) -> Aggregator:
        if threshold is None or check_noise is None:
            return GNMax(vote_noise=vote_noise, classes=classes)
        return ConfidentGNMax(threshold=threshold, check_noise=check_noise, vote_noise=vote_noise, classes=classes)

    return make


def _teach(
    source: str,
    public: str | None,
    schema_file: str | None,
    count: int,
    model: str,
    data_dir: str | None,
    jobs: int,
    backend: str | Ray,
) -> VoteCounts:
    """Train teachers on the private rows and let them vote on the public ones."""
    import numpy as np
    import polars as pl

    from tacit import datasets
    from tacit.cli.job import DataError, read_table
    from tacit.pate import Teachers
    from tacit.pate.partition import contents
    from tacit.schema import Schema

    if public is None:
        raise DataError("--public: name the rows to be labelled, a table or a split of the known data set")
    known = source in datasets.CATALOG and not Path(source).exists()
    if Path(public).exists() and Path(source).exists() and Path(public).samefile(source):
        raise DataError(f"--public: {public} is the private table itself; its rows would enter the student uncovered")
    if known:
        data = datasets.load(source, data_dir)
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
        _model(model),
        (x, y),
        n=count,
        # Without a column of ids the schema says that every row is another one; equal rows count as one.
        unit=encoded.units if encoded.units is not None else contents(x, y),
        unit_name=schema.unit.name,
        classes=len(schema.classes),
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


def _publish(answers: Answers, votes: VoteCounts, source: str, folder: Path, model: str) -> dict[str, Any]:
    """Write what may be published, and in private/ what may not."""
    import importlib

    from tacit.ledger import OperatorLog
    from tacit.report import make_card, write_card
    from tacit.report import votes as showing

    lines = ["query,label"] + [f"{i},{'' if label < 0 else label}" for i, label in enumerate(answers.labels.tolist())]
    (folder / "labels.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    told: dict[str, Any] = {"run": str(folder), "labels": str(folder / "labels.csv")}
    card = make_card(showing.describe_answers(answers, folder.name, data=Path(source).name))
    told["card"] = str(write_card(card, folder / "privacy.json"))
    told["report"] = str(showing.write_votes_page(card, folder / "report.html"))
    private = folder / "private"
    view = showing.votes_view(answers)
    OperatorLog(private / "operator.jsonl").write(view)
    told["operator"] = str(showing.write_votes_operator_page(card, [view], private / "operator.html"))
    if not source.endswith(".npz"):
        votes.save(private / "votes.npz")
    if votes.x is not None and int(answers.answered.sum()):  # last: what is released has its card by now
        importlib.import_module("joblib").dump(answers.fit(_model(model)), folder / "student.joblib")
        told["student"] = str(folder / "student.joblib")
    bound = answers.privacy.data_independent
    told |= {
        "asked": answers.privacy.asked,
        "answered": answers.privacy.answered,
        "epsilon": card["guarantee"]["epsilon"]["claimed"],
        "delta": bound.given,
        "neighbours": bound.terms,
        "claim": card["guarantee"]["claim"],
        "sanitised": None if answers.privacy.sanitised is None else answers.privacy.sanitised.epsilon,
    }
    return told


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
