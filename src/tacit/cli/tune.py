"""``tacit tune``: how are hyper-parameters chosen privately, with one charge, one model and one card?"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from tacit.cli.common import exits, show_results

EPILOG = """
The file holds what [bold]tacit train[/bold] takes, with epsilon and delta as the budget of the whole search, and two
tables: \\[space], what to choose from, and \\[search], how. Nothing about the runs that are not selected is shown or
kept, not even their number; while it runs you see only the time. After Ctrl-C, a kill, a crash or a full disk,
--resume continues it: the same model, the same claim, one charge. A search that has ended is not changed.

[bold]Example[/bold] (config.toml)

    data = "labsup"
    model = "linear"
    epsilon = 3.0
    delta = 1e-6
    epochs = 20
    batch = 1024

    \\[space]
    learning_rate = [0.1, 0.5, 2.0, 8.0]
    clip_norm = [0.1, 1.0]

    \\[search]
    method = "geometric"    # or logarithmic, poisson, threshold, exponential …
    runs = 8                # on average
    score_noise = 20        # on the number of correct answers
    validation_every = 10   # one row in ten, drawn in secret, for the score
    # backend = "ray"       # on a cluster; with num_cpus and num_gpus of one run

    $ tacit tune config.toml

    $ tacit tune config.toml --ledger my.db --dataset people

    $ tacit tune config.toml --backend ray

    $ tacit tune --resume runs/labsup-1
"""


def tune(
    config: Annotated[
        Path | None, typer.Argument(help="Settings, \\[space] and \\[search] in TOML.", show_default=False)
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="The folder of a search to continue.")] = None,
    ledger: Annotated[
        str | None, typer.Option(help="The ledger to charge: a file, postgresql://… or https://…")
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="The data's name in the ledger.")] = None,
    backend: Annotated[str | None, typer.Option(help="Where candidates run: local or ray.", show_default=False)] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Show the price and the noise, and train nothing.")] = False,
    name: Annotated[str | None, typer.Option(help="The run's name. Default: the data's name and a number.")] = None,
    runs: Annotated[Path, typer.Option(help="The folder that holds all runs.")] = Path("runs"),
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print machine-readable JSON.")] = False,
) -> None:
    """Choose hyper-parameters privately: one total budget, one charge, one model."""
    from tacit.runs import search
    from tacit.runs.folder import RunFolder, carry_out
    from tacit.runs.progress import Told
    from tacit.runs.settings import CONFIG, SettingsError, again, settings_file

    progress = Told(quiet=quiet or as_json)
    with exits("tune", progress):
        if (config is None) == (resume is None):
            raise SettingsError("name a configuration file, or a folder with --resume; see tacit tune --help")
        if resume is not None:
            work = search.read(settings_file(resume, CONFIG))
            chosen = dataclasses.replace(work.settings, ledger=again(work.settings.ledger, ledger))
            work = dataclasses.replace(work, settings=chosen)
        else:
            assert config is not None
            work = search.read(config, {"ledger": ledger, "dataset": dataset})
        if backend is not None:
            work.search["backend"] = backend
        told = work.planned() if plan else carry_out(work, RunFolder(runs, name, resume), progress).told
    if as_json:
        typer.echo(json.dumps(told, indent=2, ensure_ascii=False))
    else:
        show(told)


def show(told: dict[str, Any]) -> None:
    """Print the result for people."""
    typer.echo(f"ε = {told['epsilon']:.10g} at δ = {told['delta']:g}, {told['neighbours']}")
    if "basis" in told:
        noises = told["noise"]
        listed = sorted(set(noises)) if isinstance(noises, list) else [noises]
        typer.echo(told["basis"])
        typer.echo(f"noise multiplier of a run: {', '.join(f'{z:.6g}' for z in listed)}")
        return
    typer.echo(told["claim"])
    typer.echo(told["tuning"])
    if told["best"] is None:
        typer.echo("nothing was selected, which can happen with this number of runs; the charge stands")
    else:
        typer.echo("selected: " + ", ".join(f"{key} = {value}" for key, value in told["best"].items()))
    show_results(told["results"])
    if told["model"] is not None:
        typer.echo(f"model   {told['model']}")
    typer.echo(f"card    {told['card']}\nreport  {told['report']}")


def register(app: typer.Typer) -> None:
    """Add ``tacit tune`` to the application."""
    app.command("tune", epilog=EPILOG)(tune)
