"""``tacit tune``: hyper-parameters chosen privately, one charge, one model, and a card that says so."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import os
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli.common import EXIT_BUDGET, EXIT_USAGE, brought_out, fail, resumable

if TYPE_CHECKING:
    from tacit.runs.journal import Journal
    from tacit.runs.settings import Settings
    from tacit.runs.train import Prepared
    from tacit.tuning import PrivateSearch, SearchResult

#: What a candidate may set.
TUNABLE = ("learning_rate", "clip_norm", "batch", "epochs", "steps", "momentum", "optimizer", "model")
#: The keys of [search] with their usual values.
SEARCH: dict[str, Any] = {
    "method": "geometric",
    "runs": None,
    "eta": 1.0,
    "threshold": None,
    "choice_epsilon": None,
    "score_noise": 20.0,
    "validation_every": 10,
    "workers": 1,
    "backend": "local",
    "num_cpus": 1,
    "num_gpus": 0,
}

EPILOG = """
The file holds what [bold]tacit train[/bold] takes, with epsilon and delta as the budget of the whole search, and two
tables: \\[space], what to choose from, and \\[search], how. Nothing about the runs that are not selected is shown or
kept, not even their number; while it runs you see the time. After Ctrl-C, a kill, a crash or a full disk, at whatever
moment, --resume goes on: the same model, the same claim, one charge. A search that has ended is left as it is.

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
    score_noise = 20        # on the number of right answers
    validation_every = 10   # one row in ten, by secret coins, for the score
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
    resume: Annotated[Path | None, typer.Option(help="The folder of a search to go on with.")] = None,
    ledger: Annotated[str | None, typer.Option(help="The ledger that is charged: a file or postgresql://…")] = None,
    dataset: Annotated[str | None, typer.Option(help="The data's name in the ledger.")] = None,
    backend: Annotated[str | None, typer.Option(help="Where candidates run: local or ray.", show_default=False)] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Show price and noise; train nothing.")] = False,
    name: Annotated[str | None, typer.Option(help="The run's name. Default: the data's name and a number.")] = None,
    runs: Annotated[Path, typer.Option(help="Where runs live.")] = Path("runs"),
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No clock.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Choose hyper-parameters privately: one total budget, one charge, one model."""
    from tacit.runs.settings import SettingsError, again

    try:
        if (config is None) == (resume is None):
            raise SettingsError("name a configuration file, or a folder with --resume; see tacit tune --help")
        if resume is not None:
            if not (resume / "config.toml").exists():
                raise SettingsError(f"{resume} is not the folder of a run: it has no config.toml")
            chosen, space, search = read(resume / "config.toml")
            chosen = dataclasses.replace(chosen, ledger=again(chosen.ledger, ledger))
        else:
            assert config is not None
            chosen, space, search = read(config, {"ledger": ledger, "dataset": dataset})
        if backend is not None:
            search["backend"] = backend
    except SettingsError as error:
        fail(str(error), EXIT_USAGE)
    told = run(chosen, space, search, runs, name, resume, quiet=quiet or as_json, plan=plan)
    if as_json:
        typer.echo(json.dumps(told, indent=2, ensure_ascii=False))
    else:
        show(told)


def read(path: Path, given: dict[str, Any] | None = None) -> tuple[Settings, dict[str, Any], dict[str, Any]]:
    """The settings of a run, the space and how it is searched, from one file; mistakes are named by their key."""
    from tacit.runs import settings as reading

    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise reading.SettingsError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise reading.SettingsError(f"{path} is not valid TOML: {error}") from None
    space, search = found.pop("space", None), found.pop("search", {})
    if not isinstance(space, dict) or not space:
        raise reading.SettingsError(f"{path}: [space] says what to choose from, such as learning_rate = [0.1, 1.0]")
    if not isinstance(search, dict):
        raise reading.SettingsError(f"{path}: [search] is a table")
    for key in space:
        if key not in TUNABLE:
            raise reading.SettingsError(f"{path}: [space] {key}: what can be chosen is {', '.join(TUNABLE)}")
    for key in search:
        if key not in SEARCH:
            raise reading.SettingsError(f"{path}: [search] {key}: the keys are {', '.join(SEARCH)}")
    reading.check_keys(found, str(path))
    found |= {key: value for key, value in (given or {}).items() if value is not None}
    if "epsilon" not in found:
        raise reading.SettingsError(f"{path}: epsilon: the budget of the whole search; the noise follows from it")
    if "tuning" in found:
        raise reading.SettingsError(f"{path}: tuning: a search is charged, and its card says so; leave this out")
    if "audit_canaries" in found:
        raise reading.SettingsError(
            f"{path}: audit_canaries: a search plants none; leave this out, and plant them in a run of its own: tacit "
            "train --audit-canaries"
        )
    first = {key: values[0] for key, values in space.items() if isinstance(values, list) and values}
    settings = reading.make({**found, **first, "tuning": "charged"}, str(path))
    return settings, space, SEARCH | search


def _space(space: dict[str, Any], settings: Settings) -> Any:
    """Lists as they are, tables with low and high as distributions; every candidate of a grid is checked now."""
    from tacit.runs.settings import SettingsError
    from tacit.tuning import LogUniform, Space, Uniform

    made: dict[str, Any] = {}
    for key, values in space.items():
        if isinstance(values, dict):
            if not {"low", "high"} <= set(values) <= {"low", "high", "log"}:
                raise SettingsError(f"[space] {key}: a range has low, high and, optionally, log = true")
            kind = LogUniform if values.get("log", False) else Uniform
            made[key] = kind(float(values["low"]), float(values["high"]))
        else:
            made[key] = values
    found = Space(made)
    for candidate in found.candidates or (found.draw(),):
        _with(settings, candidate)
    return found


def _with(settings: Settings, candidate: dict[str, Any]) -> Settings:
    """The settings of one candidate; epochs and steps take each other's place."""
    changes = dict(candidate)
    if "epochs" in changes:
        changes["steps"] = None
    elif "steps" in changes:
        changes["epochs"] = None
    return dataclasses.replace(settings, **changes)


def parted(prepared: Prepared, every: int, key: bytes) -> tuple[tuple[Any, Any, Any], tuple[Any, Any, Any]]:
    """Rows with their owners, to train on and to score on, apart by a coin for every unit of privacy.

    The coins are secret and independent of each other and of the data, so that a record more or fewer changes nothing
    about the others; rows taken by their position would not have that property.
    """
    import numpy as np
    import torch

    owner = np.unique(prepared.owners, return_inverse=True)[1]
    generator = np.random.Generator(np.random.Philox(key=int.from_bytes(key, "big")))
    held = (generator.random(int(owner.max()) + 1) < 1 / every)[owner]
    train, score = (
        (prepared.x[side], prepared.y[side], owner[side.numpy()]) for side in map(torch.from_numpy, (~held, held))
    )
    return train, score


def make_search(
    settings: Settings, space: dict[str, Any], search: dict[str, Any], prepared: Prepared, folder: Path, key: bytes
) -> PrivateSearch:
    """The search over training runs of the command line."""
    import numpy as np
    import torch

    from tacit.cluster import Ray
    from tacit.runs import train as job
    from tacit.runs.models import build
    from tacit.runs.settings import SettingsError
    from tacit.sgd import Training
    from tacit.tuning import PrivateSearch, bounded_loss, correct_count

    every = search["validation_every"]
    if isinstance(every, bool) or not isinstance(every, int) or every < 2:
        raise SettingsError(f"[search] validation_every: a whole number, 2 or more, not {every!r}")
    (x, y, owners), (score_x, score_y, scored) = parted(prepared, every, key)
    whole = len(np.unique(prepared.owners))
    # How the coins fell is private: the size that is used is the expected one.
    size = settings.size or max(1, round(whole * (1 - 1 / every)))
    unit, classes = prepared.schema.unit.name, bool(prepared.schema.classes)

    def train(candidate: dict[str, Any], noise: float) -> Training:
        chosen = _with(settings, candidate)
        model = build(chosen.model, x.shape[1], prepared.outputs, prepared.shape).to(chosen.device)
        if chosen.optimizer == "sgd":
            optimizer: torch.optim.Optimizer = torch.optim.SGD(
                model.parameters(), lr=chosen.learning_rate, momentum=chosen.momentum
            )
        else:
            optimizer = torch.optim.Adam(model.parameters(), lr=chosen.learning_rate)
        return Training(
            model,
            optimizer,
            job.loss_for(prepared),
            (x, y),
            batch_size=chosen.batch,
            epochs=chosen.epochs,
            steps=chosen.steps,
            noise_multiplier=noise,
            delta=chosen.delta,
            clip_norm=chosen.clip_norm,
            sampler=chosen.sampler,
            adjacency=chosen.adjacency,
            size=size,
            unit=owners,
            per_unit=chosen.per_unit,
            unit_name=unit,
        )

    def answers(model: Any, inputs: Any) -> Any:
        return job.predict(model, inputs, prepared.schema).numpy().astype(score_y.numpy().dtype)

    noise = search["score_noise"]
    if classes:
        score = correct_count(score_x, score_y.numpy(), noise=noise, predict=answers, groups=scored, unit=unit)
    else:
        # Both lie in [-1, 1] on the encoded scale, so that a quarter of the squared error lies in [0, 1].
        def losses(model: Any) -> Any:
            return (job.predict(model, score_x, prepared.schema) - score_y).double().square().numpy() / 4

        score = bounded_loss(losses, noise=noise, groups=scored, unit=unit)
    where = search["backend"]
    if where == "ray":
        where = Ray(num_cpus=search["num_cpus"], num_gpus=search["num_gpus"])
    threshold = search["threshold"]
    if threshold is not None:  # given as accuracy (or minus the mean loss) on the expected number of rows
        threshold = float(threshold) * (settings.size or whole) / every
    first = train({}, 1.0) if settings.adjacency is None else None
    return PrivateSearch(
        _space(space, settings),
        train,
        score,
        method=search["method"],
        epsilon=settings.epsilon,  # type: ignore[arg-type]
        delta=settings.delta,  # type: ignore[arg-type]
        runs=search["runs"],
        eta=search["eta"],
        threshold=threshold,
        choice_epsilon=search["choice_epsilon"],
        adjacency=settings.adjacency or (first.plan.adjacency if first is not None else "add-remove"),
        ledger=job.open_ledger(settings, prepared),
        dataset=settings.dataset,
        purpose=settings.purpose if settings.purpose != "private training" else "private tuning",
        workers=search["workers"],
        backend=where,
        scratch=folder / "private" / "search",
    )


def run(
    settings: Settings,
    space: dict[str, Any],
    search: dict[str, Any],
    runs: Path,
    name: str | None = None,
    resume: Path | None = None,
    quiet: bool = False,
    plan: bool = False,
) -> dict[str, Any]:
    """Do the work; leave with a message and an exit code where it cannot be done."""
    from tacit.accounting import AccountingError
    from tacit.cluster import ClusterError
    from tacit.datasets import DatasetError
    from tacit.ledger import BudgetExceeded, LedgerError
    from tacit.runs import train as job
    from tacit.runs.journal import Journal, NameTaken
    from tacit.runs.settings import SettingsError
    from tacit.schema import SchemaError
    from tacit.sgd import ClippingError

    journal: Journal | None = None
    with resumable("tune", lambda: journal.folder if journal else None), contextlib.ExitStack() as stack:
        try:
            job.check_device(settings.device)  # here too with a cluster: the price is of a model that is made here
            if resume is not None:
                journal = stack.enter_context(Journal.open(resume, "config.toml"))
            if journal is None or not journal.decided:
                prepared = job.prepare(settings)
                if plan:
                    return _planned(make_search(settings, space, search, prepared, Path("."), os.urandom(16)))
                if journal is None:
                    text = _to_toml(settings, space, search)
                    stem = Path(settings.data).stem
                    journal = stack.enter_context(Journal.begin(runs, name, stem, {"config.toml": text}, keyed=True))
                made = make_search(settings, space, search, prepared, journal.folder, journal.secret("rows")[:16])
                made.progress = False if quiet else None
                with contextlib.redirect_stdout(sys.stderr):  # Ray tells of lost workers on standard output
                    found = made.select()
                release(settings, journal, prepared, made, found)
            return brought_out(journal)
        except BudgetExceeded as error:
            if journal is not None and resume is None:  # nothing was charged
                journal.discard()
            fail(str(error), EXIT_BUDGET)
        except (SettingsError, NameTaken) as error:
            _remove_unused(journal, resume)
            fail(str(error), EXIT_USAGE)
        except (
            SchemaError,
            DatasetError,
            LedgerError,
            ClippingError,
            AccountingError,
            ClusterError,
            ModuleNotFoundError,
            ValueError,
        ) as error:
            _remove_unused(journal, resume)
            fail(str(error))


def _planned(made: PrivateSearch) -> dict[str, Any]:
    privacy = made.privacy
    return {
        "epsilon": privacy.upper,
        "delta": privacy.delta,
        "neighbours": privacy.interval.terms,
        "basis": privacy.details["method"],
        "noise": [made.noise_of(c) for c in made.space.candidates] if made.space.candidates else made.noise,
    }


def _to_toml(settings: Settings, space: dict[str, Any], search: dict[str, Any]) -> str:
    """The configuration with absolute paths, in a form that :func:`read` takes back."""
    from tacit.schema.toml import toml_value

    absolute: dict[str, Any] = {
        k: str(Path(v).resolve())
        for k in ("data", "schema", "evaluate", "ledger")
        if (v := getattr(settings, k)) and "://" not in v and Path(v).exists()
    }
    text = dataclasses.replace(settings, **absolute).to_toml()
    left_out = ("tuning", *space)
    lines = [line for line in text.splitlines() if line.partition(" = ")[0] not in left_out]
    lines += ["", "[space]"]
    for key, values in space.items():
        if isinstance(values, dict):
            inner = ", ".join(f"{k} = {toml_value(v)}" for k, v in values.items())
            lines.append(f"{key} = {{ {inner} }}")
        else:
            lines.append(f"{key} = {toml_value(values)}")
    lines += ["", "[search]", *(f"{key} = {toml_value(value)}" for key, value in search.items() if value is not None)]
    return "\n".join(lines) + "\n"


def _remove_unused(journal: Journal | None, resume: Path | None) -> None:
    """Take away the folder of a search that never began."""
    if journal is not None and resume is None and not (journal.private / "search" / "state").exists():
        journal.discard()


def release(settings: Settings, journal: Journal, prepared: Prepared, made: PrivateSearch, found: SearchResult) -> None:
    """Model, card and report of the selected run, decided; where nothing was selected, card and report alone."""
    import torch

    from tacit.ledger.release import Charged, Public, public
    from tacit.report import Run, Statement, make_card, write_card, write_page
    from tacit.report.files import write_whole
    from tacit.runs import train as job
    from tacit.runs.models import build

    stage = journal.stage()
    results: tuple[Any, ...] = ()
    model_file: Charged | Public | None = None
    basis = "nothing was selected, as the law of the runs allows"
    noises = sorted(set(made._noises))
    parameters: dict[str, Any] = {
        "candidates": repr(made.space),
        "runs_on_average": made.runs,
        "noise_multiplier": noises[0] if len(noises) == 1 else noises,
        "score_noise": made.score.noise,
    }
    if found.best is not None:
        chosen = _with(settings, found.best)
        # A fresh model with the trained weights: buffers that a forward pass may have written stay behind.
        fresh = build(chosen.model, prepared.x.shape[1], prepared.outputs, prepared.shape)
        weights = {name: value.detach().cpu() for name, value in found.model.named_parameters()}
        fresh.load_state_dict(weights, strict=False)
        buffer = io.BytesIO()
        torch.save(fresh.state_dict(), buffer)
        write_whole(stage / "model.pt", buffer.getvalue())
        name = hashlib.sha256(buffer.getvalue()).hexdigest()
        if found.charge is not None:
            model_file = Charged(name, found.charge.dataset, found.charge.number)
        else:
            model_file = public(name, "hash of the released weights, which the stated guarantee covers")
        evaluated, _ = job.evaluate(chosen, prepared, fresh) if settings.public_because else ([], [])
        results = tuple(evaluated)
        listed = ", ".join(f"{key} = {value}" for key, value in found.best.items())
        basis = f"selected, and covered by the guarantee: {listed}"
    fields, counted = found.for_card(), settings.size is None
    if counted and fields["adjacency"] == "add-remove":  # as for a training run: the number of records is on the card
        fields |= {"adjacency": "zero-out", "epsilon": None}
    described = Run(
        journal.folder.name,
        fields.pop("mechanism"),
        **fields,
        purpose=made.purpose,
        parameters=parameters,
        basis=basis,
        sampler=f"{settings.sampler}, in every run",
        generator="training: ChaCha12, keyed; "
        + ("score: exact, from ChaCha12 under a secret of each run; " if made.cluster is not None else "score, ")
        + "number of runs and choice: exact, from the operating system",
        uncovered=settings.uncovered,
        records_public=counted,
        public_sources=job.public_sources(settings, prepared),
        assumed=prepared.assumed,
        pretrained=None if ":" in settings.model else (),
        data=prepared.name,
        schema=prepared.schema.description or prepared.schema.name,
        ledger=made.ledger,
        dataset=made.dataset,
        charge=found.charge.number if found.charge is not None else None,
        model_file=model_file,
        evaluations=results,
        statement=Statement(settings.trust_model, settings.release, settings.contact),
    )
    card = make_card(described)
    write_card(card, stage / "privacy.json")
    write_page(card, stage / "report.html")
    files = {"card": "privacy.json", "report": "report.html"} | ({} if found.best is None else {"model": "model.pt"})
    told = {"tuning": card["accesses"]["tuning_words"], "best": found.best, "score": found.score, "model": None}
    journal.decide(job.summary(card) | told | {"files": files}, scratch=["search"])


def show(told: dict[str, Any]) -> None:
    """What a person reads at the end."""
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
        typer.echo("nothing was selected, as the law of the runs allows; the charge stands")
    else:
        typer.echo("selected: " + ", ".join(f"{key} = {value}" for key, value in told["best"].items()))
    for result in told["results"]:
        of = f" ({result['group']})" if result["group"] else ""
        value = result["value"]
        shown = f"{value:.1%}" if result["metric"] == "accuracy" else f"{value:,.4g}"
        typer.echo(f"  {result['metric']} of {result['model']}{of}: {shown} on {result['rows']:,} public rows")
    if told["model"] is not None:
        typer.echo(f"model   {told['model']}")
    typer.echo(f"card    {told['card']}\nreport  {told['report']}")


def register(app: typer.Typer) -> None:
    """Add ``tacit tune`` to the application."""
    app.command("tune", epilog=EPILOG)(tune)
