"""``tacit train``: how do I train a private model, with a report to show, in one line?"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from tacit.cli.common import UNCOVERED, exits, number, option, show_results

EPILOG = """
A run has its own folder: config.toml, model.pt, privacy.json and report.html may be published; private/ may not.
Ctrl-C stops it between two steps. After that, or after a kill, a crash or a full disk, --resume continues it:
the same model, the same claim, one charge. A run that has ended is not changed.
With --audit-canaries N, made-up records are planted beside the data, each included with probability 1/2.
tacit audit then proves a lower bound on ε from them; more canaries allow a higher bound.
Each canary needs a parameter of the model, they cost a little accuracy, and such a run cannot be resumed.
Ids of people are the schema's unit column. Texts adapt a language model: tacit prompt tune FILE --unit-column person.

[bold]Examples[/bold]

    $ tacit train labsup --epsilon 1 --delta 1e-6 --epochs 20 --batch 1024 --model linear

    $ tacit train pums_fulton --target employed --without income --epsilon 1 --delta 1e-6 --epochs 20 --batch 1024

    $ tacit train clinic.csv --schema clinic.toml --epsilon 3 --delta 1e-6 --epochs 30 --ledger my.db --dataset clinic

    $ tacit train labsup --epsilon 4 --delta 1e-6 --epochs 20 --batch 1024 --audit-canaries 200

    $ tacit train --config run.toml

    $ tacit train --resume runs/labsup-1
"""


def train(
    data: Annotated[
        str | None,
        typer.Argument(
            help="A table (.csv, .parquet), or a known data set. Texts: tacit prompt tune.", show_default=False
        ),
    ] = None,
    config: Annotated[Path | None, option("A TOML file of settings. Options on the command line override it.")] = None,
    resume: Annotated[Path | None, option("The folder of a run to continue.")] = None,
    schema: Annotated[str | None, option("The public schema of a table (TOML).")] = None,
    target: Annotated[
        str | None,
        option("The column to predict; overrides the schema's target, which then becomes a feature."),
    ] = None,
    without: Annotated[list[str] | None, option("Leave this column out. May be repeated.")] = None,
    model: Annotated[str | None, option("linear, mlp, cnn, or your own module:factory.")] = None,
    epsilon: Annotated[float | None, option("The ε to stay within.")] = None,
    noise: Annotated[
        str | None,
        option(
            "The noise multiplier, instead of --epsilon; or, beside --epsilon, banded: a step takes back noise of "
            "earlier ones (also banded:8 for 8 bands, and banded-inverse with --sampler chunks)."
        ),
    ] = None,
    delta: Annotated[float | None, option("The δ of (ε, δ), such as 1e-6.")] = None,
    epochs: Annotated[int | None, option("Passes over the data.")] = None,
    steps: Annotated[int | None, option("The number of steps, instead of --epochs.")] = None,
    batch: Annotated[int | None, option("Expected batch size.")] = None,
    learning_rate: Annotated[
        float | None, option("Learning rate; default: the optimizer's own.", "--learning-rate", "--lr")
    ] = None,
    optimizer: Annotated[
        str | None, option("Any of torch.optim (sgd, adam, …) except lbfgs, sparseadam and muon.")
    ] = None,
    momentum: Annotated[float | None, option("Momentum of sgd.")] = None,
    clip_norm: Annotated[float | None, option("The norm to which each gradient is clipped.")] = None,
    sampler: Annotated[
        str | None, option("How batches are drawn: poisson, truncated, fixed, shuffle, chunks or balls-in-bins.")
    ] = None,
    size: Annotated[int | None, option("A public number of units to use instead of the true one.")] = None,
    max_rows: Annotated[int | None, option("How many rows of one unit a step (or run: --draw rows) may use.")] = None,
    draw: Annotated[str | None, option("Draw units (default), or rows, which may have several owners.")] = None,
    ledger: Annotated[str | None, option("The ledger to charge: a file, postgresql://… or https://…")] = None,
    dataset: Annotated[str | None, option("The data's name in the ledger.")] = None,
    plan: Annotated[str | None, option("The schedule that pays: its next run (tacit ledger plan).")] = None,
    evaluate: Annotated[str | None, option("A file, or a split of a known set, to evaluate on.")] = None,
    public_share: Annotated[
        float | None,
        option("Hold out roughly this share of the units as public, chosen by a hash, and evaluate on it."),
    ] = None,
    public_every: Annotated[str | None, typer.Option(hidden=True)] = None,
    public_because: Annotated[str | None, option("Why the evaluation rows need no protection.")] = None,
    public_overlap: Annotated[
        str | None, option("For the card: whether the protected people may be in those rows too (yes, no, unknown).")
    ] = None,
    by: Annotated[list[str] | None, option("Also show results by this column. May be repeated.")] = None,
    reference: Annotated[
        bool | None, option("Also train a non-private reference on the public rows.", "--reference")
    ] = None,
    tuning: Annotated[
        str | None, option("For the card: how settings were tuned (none, charged, on public data only, not charged).")
    ] = None,
    audit_canaries: Annotated[
        int | None, option("Plant this many canaries, from which tacit audit RUN proves a lower bound on ε.")
    ] = None,
    purpose: Annotated[str | None, option("What the run is for. This is public.")] = None,
    trust_model: Annotated[str | None, option("For the card: who is trusted with the data.")] = None,
    release: Annotated[str | None, option("For the card: what is released, to whom.")] = None,
    contact: Annotated[str | None, option("For the card: whom to ask.")] = None,
    uncovered: Annotated[list[str] | None, option(UNCOVERED)] = None,
    data_dir: Annotated[str | None, option("The folder of the known data sets.")] = None,
    device: Annotated[str | None, option("cpu or cuda.")] = None,
    compile: Annotated[
        bool | None,
        option("Compile the step at the start, or never. Default: when it pays.", "--compile/--no-compile"),
    ] = None,
    name: Annotated[str | None, option("The run's name. Default: the data's name and a number.")] = None,
    runs: Annotated[Path, typer.Option(help="The folder that holds all runs.")] = Path("runs"),
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print machine-readable JSON.")] = False,
) -> None:
    """Train a model with a privacy guarantee, and write its privacy card and report."""
    given = {
        key: value
        for key, value in locals().items()
        if key not in ("config", "resume", "name", "runs", "quiet", "as_json") and value not in (None, [])
    }
    from tacit.runs import settings as reading
    from tacit.runs.progress import Told

    if noise is not None:
        try:
            given["noise"] = float(noise)
        except ValueError:
            given["correlated"] = given.pop("noise")

    progress = Told(quiet=quiet or as_json)
    with exits("train", progress):
        if resume is not None:
            if given.keys() - {"ledger"} or config is not None:
                raise reading.SettingsError(
                    "--resume takes the settings of the run: give no others, except --ledger with its password"
                )
            chosen = reading.saved(resume, ledger)
        else:
            reading.check_keys(given)
            base = reading.read(config) if config is not None else {}
            chosen = reading.make(base | given, str(config) if config is not None else "")
        from tacit.runs.folder import RunFolder, carry_out
        from tacit.runs.train import TrainRun

        done = carry_out(TrainRun(chosen), RunFolder(runs, name, resume), progress)
    for view in done.views:
        if sys.stderr.isatty() and not progress.quiet:  # the operator's own screen; anything else may be read by others
            typer.echo(repr(view), err=True)
        else:
            log = done.folder / "private" / "operator.jsonl"
            typer.echo(f"tacit: the evaluation on private rows is in {log}", err=True)
    if as_json:
        typer.echo(json.dumps(done.told, indent=2, ensure_ascii=False))
    else:
        show(done.told)
        if not done.told["results"] and not done.views:
            typer.echo("not evaluated: no rows are public; see --public-share and --evaluate in tacit train --help")


def show(told: dict[str, Any]) -> None:
    """Print the result for people."""
    typer.echo(f"ε = {number(told['epsilon'])} at δ = {told['delta']:g}, {told['neighbours']}")
    typer.echo(told["claim"])
    show_results(told["results"])
    typer.echo(f"model   {told['model']}\ncard    {told['card']}\nreport  {told['report']}")
    if "canaries" in told:
        typer.echo(f"{told['canaries']:,} canaries were planted; what they prove: tacit audit {told['run']}")


def register(app: typer.Typer) -> None:
    """Add ``tacit train`` to the application."""
    app.command("train", epilog=EPILOG)(train)
