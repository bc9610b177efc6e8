"""``tacit pate``: how do teachers' noisy votes label public rows, with a student and a report to show?"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from tacit.cli.common import EXIT_ERROR, EXIT_USAGE, UNCOVERED, exits, fail, option

EPILOG = """
Teachers are trained on disjoint people of the private table; public rows are labelled by their noisy votes; a student
learns from the answers. A run has its own folder: labels.csv, student.joblib, privacy.json and report.html may be
published; private/ (the votes, the operator's page) may not. After Ctrl-C, a kill, a crash or a full disk, --resume
continues the run: the same answers, the same claim, one charge. A run that has ended is not changed.

[bold]Examples[/bold]

Teachers on a known data set, its test split as the public rows:

    $ tacit pate adult --public test --teachers 250 --queries 1500 --threshold 300 --check-noise 200 --vote-noise 40

Your own table, charged to a ledger, stopping at an ε:

    $ tacit pate clinic.csv --schema clinic.toml --public survey.csv --teachers 100 --vote-noise 20 --epsilon 2
      --ledger my.db --dataset clinic

Many teachers on a Ray cluster (the one that RAY_ADDRESS names, or this machine), two CPUs each:

    $ tacit pate adult --public test --teachers 1000 --vote-noise 40 --queries 1500 --backend ray --cpus 2

Votes that were counted elsewhere, and a sanitised data-dependent ε that may be published:

    $ tacit pate votes.npz --queries 640 --threshold 200 --check-noise 150 --vote-noise 40 --sanitise

    $ tacit pate --resume runs/adult-1
"""


def pate(
    source: Annotated[
        str | None, typer.Argument(help="A private table, a known data set, or votes (.npz).", show_default=False)
    ] = None,
    vote_noise: Annotated[float | None, option("Standard deviation of the noise on every count of votes.")] = None,
    public: Annotated[str | None, option("Public rows to label: a table, or a split of a known set.")] = None,
    schema: Annotated[str | None, option("The public schema of a table (TOML).")] = None,
    teachers: Annotated[int | None, option("How many teachers. Default: 100.")] = None,
    model: Annotated[
        str | None, option("Teachers and student: logistic, forest or boosting. Default: boosting.")
    ] = None,
    threshold: Annotated[float | None, option("Answer a query only if its largest noisy count reaches this.")] = None,
    check_noise: Annotated[float | None, option("Standard deviation of the noise on that check.")] = None,
    queries: Annotated[int | None, option("How many public rows to ask about, fixed in advance.")] = None,
    answers: Annotated[int | None, option("With --queries: the most answers to give.")] = None,
    epsilon: Annotated[
        float | None, option("Ask until this data-independent ε is reached, instead of --queries.")
    ] = None,
    delta: Annotated[float | None, option("The δ of (ε, δ). Default: 1e-05.")] = None,
    sanitise: Annotated[
        bool | None, option("Also release a data-dependent ε, which costs budget.", "--sanitise")
    ] = None,
    ledger: Annotated[str | None, option("The ledger to charge: a file, postgresql://… or https://…")] = None,
    dataset: Annotated[str | None, option("The data's name in the ledger.")] = None,
    data_dir: Annotated[str | None, option("The folder of the known data sets.")] = None,
    purpose: Annotated[str | None, option("What the run is for. This is public.")] = None,
    tuning: Annotated[str | None, option("For the card: how settings were chosen.")] = None,
    trust_model: Annotated[str | None, option("For the card: who is trusted with the data.")] = None,
    release: Annotated[str | None, option("For the card: what is released, to whom.")] = None,
    contact: Annotated[str | None, option("For the card: whom to ask.")] = None,
    uncovered: Annotated[list[str] | None, option(UNCOVERED)] = None,
    name: Annotated[str | None, option("The run's name. Default: the data's name and a number.")] = None,
    resume: Annotated[Path | None, option("The folder of a run to continue.")] = None,
    runs: Annotated[Path, typer.Option(help="The folder that holds all runs.")] = Path("runs"),
    jobs: Annotated[int, typer.Option(help="How many processes train teachers.")] = 1,
    backend: Annotated[str, typer.Option(help="Where teachers train: local or ray.")] = "local",
    cpus: Annotated[float, typer.Option(help="With --backend ray: CPUs for each teacher.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print machine-readable JSON.")] = False,
) -> None:
    """Label public rows by teachers' noisy votes, account for them in three ways, and train a student."""
    here = ("name", "resume", "runs", "jobs", "backend", "cpus", "as_json")
    given = {key: value for key, value in locals().items() if key not in (*here, "here") and value not in (None, [])}
    from tacit.cluster import BACKENDS, Ray
    from tacit.runs.progress import Told

    if backend not in BACKENDS:
        fail(f"--backend is one of {', '.join(BACKENDS)}, not {backend!r}", EXIT_USAGE)
    if backend == "ray" and jobs != 1:
        fail("--jobs is for --backend local; on a cluster its size decides how many teachers train at once", EXIT_USAGE)
    if resume is not None and (given.keys() - {"ledger"} or name is not None):
        fail("--resume takes the settings of the run: give no others, except --ledger with its password", EXIT_USAGE)
    if resume is None:
        _check(given)
    progress = Told()
    with exits("pate", progress, usage=EXIT_ERROR):
        from tacit.runs.folder import RunFolder, carry_out
        from tacit.runs.pate import VotesRun

        work = VotesRun(given) if resume is None else VotesRun.saved(resume, ledger)
        work = dataclasses.replace(work, jobs=jobs, backend=Ray(num_cpus=cpus) if backend == "ray" else backend)
        told = carry_out(work, RunFolder(runs, name, resume), progress).told
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
            "name a private table, a known data set or votes (.npz), and give --vote-noise; or give --resume",
            EXIT_USAGE,
        )
    if ("queries" in given) == ("epsilon" in given):
        fail("give --queries (fixed in advance) or --epsilon (a filter), one of the two", EXIT_USAGE)
    if ("ledger" in given) != ("dataset" in given):
        fail("give --ledger and --dataset together: the ledger, and the data's name in it", EXIT_USAGE)
    if ("threshold" in given) != ("check_noise" in given):
        fail("give --threshold and --check-noise together, or neither: then every query is answered", EXIT_USAGE)
    from tacit.runs.pate import MODELS

    if given.get("model", MODELS[0]) not in MODELS:
        fail(f"--model is one of {', '.join(MODELS)}, not {given['model']!r}", EXIT_USAGE)


def _show(told: dict[str, Any]) -> None:
    shown = told["epsilon"]
    typer.echo(f"{told['answered']} of {told['asked']} queries answered")
    text = shown if isinstance(shown, str) else f"{shown:.10g}"
    typer.echo(f"ε = {text} at δ = {told['delta']:g}, {told['neighbours']} (whatever the votes were)")
    typer.echo(told["claim"])
    if told["sanitised"] is None:
        typer.echo(
            "data-dependent ε: may not be published; it is on the operator's page (--sanitise releases a noisy one)"
        )
    else:
        typer.echo(f"data-dependent ε, sanitised: about {told['sanitised']:.4g} (an estimate, not a bound)")
    for key in ("labels", "student", "card", "report"):
        if key in told:
            typer.echo(f"{key:<8}{told[key]}")
    typer.echo(f"private {told['operator']} (not covered by the guarantee)")


def register(app: typer.Typer) -> None:
    """Add ``tacit pate`` to the application."""
    app.command("pate", epilog=EPILOG)(pate)
