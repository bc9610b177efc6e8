"""``tacit train``: one line, a private model, and a page to show."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli.common import EXIT_BUDGET, EXIT_INTERRUPTED, EXIT_USAGE, brought_out, fail, resumable

if TYPE_CHECKING:
    from tacit.runs.journal import Journal
    from tacit.runs.settings import Settings
    from tacit.sgd import Training

EPILOG = """
A run lives in its folder: config.toml, model.pt, privacy.json and report.html may be published; private/ may not.
Ctrl-C ends it between two steps. After that, a kill, a crash or a full disk, at whatever moment, --resume goes on:
the same model, the same claim, one charge. A run that has ended is left as it is.
With --audit-canaries N, records of nobody are planted beside the data, each in by a fair coin.
tacit audit then proves a lower bound on ε from them; the more there are, the higher it can be.
Each needs a parameter of its own, they cost a little accuracy, and such a run is not resumed.

[bold]Examples[/bold]

    $ tacit train labsup --epsilon 1 --delta 1e-6 --epochs 20 --batch 1024 --model linear

    $ tacit train clinic.csv --schema clinic.toml --epsilon 3 --delta 1e-6 --epochs 30 --ledger my.db --dataset clinic

    $ tacit train labsup --epsilon 4 --delta 1e-6 --epochs 20 --batch 1024 --audit-canaries 200

    $ tacit train --config run.toml

    $ tacit train --resume runs/labsup-1
"""

Text = Annotated[str | None, typer.Option(show_default=False)]


def _option(help_text: str, *names: str) -> Any:
    return typer.Option(*names, help=help_text, show_default=False)


def train(
    data: Annotated[
        str | None, typer.Argument(help="A .csv or .parquet file, or a known data set.", show_default=False)
    ] = None,
    config: Annotated[Path | None, _option("Settings in a TOML file; options on the line win.")] = None,
    resume: Annotated[Path | None, _option("The folder of a run to go on with.")] = None,
    schema: Annotated[str | None, _option("The public schema of a table (TOML).")] = None,
    model: Annotated[str | None, _option("linear, mlp, cnn, or module:factory of your own.")] = None,
    epsilon: Annotated[float | None, _option("The ε to keep.")] = None,
    noise: Annotated[float | None, _option("Or the noise multiplier.")] = None,
    delta: Annotated[float | None, _option("The δ of (ε, δ), such as 1e-6.")] = None,
    epochs: Annotated[int | None, _option("Passes over the data.")] = None,
    steps: Annotated[int | None, _option("Or the number of steps.")] = None,
    batch: Annotated[int | None, _option("Expected batch size.")] = None,
    learning_rate: Annotated[float | None, _option("Learning rate.", "--learning-rate", "--lr")] = None,
    optimizer: Annotated[str | None, _option("sgd or adam.")] = None,
    momentum: Annotated[float | None, _option("Momentum of sgd.")] = None,
    clip_norm: Annotated[float | None, _option("Where gradients are clipped.")] = None,
    sampler: Annotated[str | None, _option("poisson, truncated, fixed, shuffle, chunks or balls-in-bins.")] = None,
    size: Annotated[int | None, _option("A public number of records in place of the true one.")] = None,
    per_unit: Annotated[int | None, _option("Records of one unit that a step may use.")] = None,
    ledger: Annotated[str | None, _option("The ledger that is charged: a file or postgresql://…")] = None,
    dataset: Annotated[str | None, _option("The data's name in the ledger.")] = None,
    evaluate: Annotated[str | None, _option("A file, or a split of a known set, to evaluate on.")] = None,
    public_share: Annotated[
        float | None,
        _option("Declare about this share of the rows public, each by a hash of itself; evaluate on these."),
    ] = None,
    public_every: Annotated[str | None, typer.Option(hidden=True)] = None,
    public_because: Annotated[str | None, _option("Why the evaluation rows protect nobody.")] = None,
    by: Annotated[list[str] | None, _option("A column to show results by; repeatable.")] = None,
    reference: Annotated[bool | None, _option("A non-private reference from public rows.", "--reference")] = None,
    tuning: Annotated[str | None, _option("none, charged, on public data only, or not charged.")] = None,
    audit_canaries: Annotated[
        int | None, _option("Plant so many canaries, from which tacit audit RUN proves a lower bound on ε.")
    ] = None,
    purpose: Annotated[str | None, _option("What the run is for; public.")] = None,
    trust_model: Annotated[str | None, _option("For the card: who is trusted with the data.")] = None,
    release: Annotated[str | None, _option("For the card: what is released, to whom.")] = None,
    data_dir: Annotated[str | None, _option("The folder of the known data sets.")] = None,
    device: Annotated[str | None, _option("cpu or cuda.")] = None,
    compile: Annotated[
        bool | None, _option("Compile the step: a while at the start, faster steps after it.", "--compile")
    ] = None,
    name: Annotated[str | None, _option("The run's name. Default: the data's name and a number.")] = None,
    runs: Annotated[Path, typer.Option(help="Where runs live.")] = Path("runs"),
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No live line.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Train a model with a guarantee; write the privacy card and the report."""
    given = {
        key: value
        for key, value in locals().items()
        if key not in ("config", "resume", "name", "runs", "quiet", "as_json") and value not in (None, [])
    }
    from tacit.runs import settings as reading

    try:
        if resume is not None:
            if given.keys() - {"ledger"} or config is not None:
                raise reading.SettingsError("--resume takes the settings of the run; no others can be given")
            if not (resume / "config.toml").exists():
                raise reading.SettingsError(f"{resume} is not the folder of a run: it has no config.toml")
            base = reading.read(resume / "config.toml")
            base["ledger"] = reading.again(base.get("ledger"), ledger)
            chosen = reading.make(base, str(resume / "config.toml"))
        else:
            reading.check_keys(given)
            base = reading.read(config) if config is not None else {}
            chosen = reading.make(base | given, str(config) if config is not None else "")
    except reading.SettingsError as error:
        fail(str(error), EXIT_USAGE)
    told = run(chosen, runs, name, resume, quiet=quiet or as_json)
    if as_json:
        typer.echo(json.dumps(told, indent=2, ensure_ascii=False))
    else:
        show(told)


def again(folder: Path) -> str:
    """What can be done with a run that held canaries and is not to be resumed."""
    if (folder / "privacy.json").exists():
        return f"the run has ended; see what its canaries prove with: tacit audit {folder}"
    return (
        "a run with canaries is not resumed, because their scores are not saved on the way; what was charged stays "
        f"charged. Begin again with: tacit train --config {folder / 'config.toml'}"
    )


def run(
    chosen: Settings, runs: Path, name: str | None = None, resume: Path | None = None, quiet: bool = False
) -> dict[str, Any]:
    """Do the work; leave with a message and an exit code where it cannot be done."""
    from tacit.accounting import AccountingError
    from tacit.datasets import DatasetError
    from tacit.ledger import BudgetExceeded, LedgerError
    from tacit.runs import train as job
    from tacit.runs.journal import Journal, NameTaken
    from tacit.runs.settings import SettingsError
    from tacit.schema import SchemaError
    from tacit.sgd import CheckpointError, ClippingError, PrivacyWarning

    journal: Journal | None = None
    training: Training | None = None
    views: list[Any] = []
    with resumable("train", lambda: journal.folder if journal else None), contextlib.ExitStack() as stack:
        try:
            job.check_device(chosen.device)
            if resume is not None:
                journal = stack.enter_context(Journal.open(resume, "config.toml"))
                if chosen.audit_canaries is not None and (journal.ended or not journal.decided):
                    raise SettingsError(f"{resume}: {again(resume)}")
            if journal is None or not journal.decided:
                prepared = job.prepare(chosen)
                if journal is None:
                    names = ("data", "schema", "evaluate", "ledger")
                    there = {k: v for k in names if (v := getattr(chosen, k)) and "://" not in v and Path(v).exists()}
                    absolute: dict[str, Any] = {k: str(Path(v).resolve()) for k, v in there.items()}
                    text = dataclasses.replace(chosen, **absolute).to_toml()
                    journal = stack.enter_context(
                        Journal.begin(runs, name, Path(chosen.data).stem, {"config.toml": text})
                    )
                warn = functools.partial(typer.echo, err=True)
                training = job.start(chosen, journal.folder, prepared, lambda text: warn(f"tacit: warning: {text}"))
                if chosen.compile and not quiet and not training.done:
                    warn("tacit: the first steps compile the model's step, which takes seconds to a minute")
                job.drive(training, journal.folder, quiet)
                views = job.release(chosen, journal, prepared, training)
            told = brought_out(journal)
        except job.Interrupted:
            assert journal is not None
            folder = journal.folder
            how = f"go on with: tacit train --resume {folder}" if chosen.audit_canaries is None else again(folder)
            typer.echo(f"tacit: stopped between two steps; {how}", err=True)
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except BudgetExceeded as error:
            _remove_unused(journal, resume, training)
            fail(str(error), EXIT_BUDGET)
        except (SettingsError, NameTaken) as error:
            _remove_unused(journal, resume, training)
            fail(str(error), EXIT_USAGE)
        except PrivacyWarning as error:
            fail(f"{error}. A run is resumed as it was, or not at all")
        except (
            SchemaError,
            DatasetError,
            LedgerError,
            CheckpointError,
            ClippingError,
            AccountingError,
            ValueError,
        ) as error:
            _remove_unused(journal, resume, training)
            fail(str(error))
    for view in views:
        if sys.stderr.isatty() and not quiet:  # the operator's own screen; anything else may be read by others
            typer.echo(repr(view), err=True)
        else:
            log = journal.private / "operator.jsonl"
            typer.echo(f"tacit: the evaluation on private rows is in {log}", err=True)
    return told


def _remove_unused(journal: Journal | None, resume: Path | None, training: Training | None) -> None:
    """Take away the folder of a run that never began: nothing was charged."""
    if journal is None or resume is not None:
        return
    if training is None or (training.charge is None and not training._begun):
        journal.discard()


def show(told: dict[str, Any]) -> None:
    """What a person reads at the end."""
    typer.echo(f"ε = {_number(told['epsilon'])} at δ = {told['delta']:g}, {told['neighbours']}")
    typer.echo(told["claim"])
    for result in told["results"]:
        of = f" ({result['group']})" if result["group"] else ""
        value = result["value"]
        shown = f"{value:.1%}" if result["metric"] == "accuracy" else f"{value:,.4g}"
        typer.echo(f"  {result['metric']} of {result['model']}{of}: {shown} on {result['rows']:,} public rows")
    typer.echo(f"model   {told['model']}\ncard    {told['card']}\nreport  {told['report']}")
    if "canaries" in told:
        typer.echo(f"{told['canaries']:,} canaries took part by fair coins; what they prove: tacit audit {told['run']}")


def _number(value: float | str) -> str:
    return f"{value:.10g}" if isinstance(value, float) else "∞"


def register(app: typer.Typer) -> None:
    """Add ``tacit train`` to the application."""
    app.command("train", epilog=EPILOG)(train)
