"""``tacit audit`` and ``tacit selftest``: does this run keep its promise, and would a broken tacit be caught?"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli.common import EXIT_USAGE, fail

if TYPE_CHECKING:
    from rich.console import Console

    from tacit.audit import Audit
    from tacit.audit.attacks import Membership
    from tacit.ledger import Release
    from tacit.runs.settings import Settings

#: Exit code where an audit refutes the claim, or a mutant is not caught; documented in docs/audit.md.
EXIT_FAILED = 4

AUDIT_EPILOG = """
The implementation is checked on made-up records of the run's shape: clipping, noise, sampling, price. No private
record is read. With --canaries the run is repeated on made-up records with canaries, each in by a fair coin, and
attacked; what they prove enters card and report. Canaries that the run itself held (tacit train --audit-canaries, or
fit(audit_canaries=...) saved as private/canaries.npz) are always read; what they prove beside private records goes to
the operator's own terminal and log only, because it holds the noise of the run.
The verdict is pass, fail (exit code 4) or underpowered, and always says the best bound that was within reach.

[bold]Examples[/bold]

    $ tacit audit runs/labsup-1

    $ tacit train labsup --epsilon 4 --delta 1e-6 --epochs 20 --audit-canaries 200 --name mine && tacit audit runs/mine

    $ tacit audit runs/mnist-1 --canaries 1000

    $ tacit audit runs/labsup-1 --members
"""

SELFTEST_EPILOG = """
Every mutant is a small patch that makes tacit wrong in one way that has been seen in real libraries. Each must be
caught by a check, and tacit as it is must pass them all, at a family-wise significance of 1e-4. It takes some minutes.

[bold]Examples[/bold]

    $ tacit selftest

    $ tacit selftest noise "soft prompt"

    $ tacit selftest --json > selftest.json
"""


# -- audit -------------------------------------------------------------------------------------------------------------


def audit(
    run: Annotated[Path, typer.Argument(help="The folder of a run that has ended.", show_default=False)],
    canaries: Annotated[
        int | None, typer.Option(help="Repeat the run on made-up records with so many canaries.", show_default=False)
    ] = None,
    members: Annotated[
        bool, typer.Option("--members", help="Attack with the private rows too: for the operator's log only.")
    ] = False,
    confidence: Annotated[float, typer.Option(help="Confidence of the lower bound.")] = 0.95,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Attack a run; show a lower bound next to the claim; write both into card and report."""
    from tacit.accounting import AccountingError
    from tacit.datasets import DatasetError
    from tacit.ledger import OperatorLog, PrivateValueError
    from tacit.report import CardError, read_card, write_card, write_page
    from tacit.runs import settings as reading
    from tacit.runs.models import ModelError
    from tacit.schema import SchemaError

    if not (run / "config.toml").exists():
        fail(f"{run} is not the folder of a run: it has no config.toml", EXIT_USAGE)
    if not (run / "privacy.json").exists():
        fail(f"{run} has no privacy.json: the run has not ended; {_go_on(run)}")
    if not 0 < confidence < 1:
        fail(f"--confidence lies between 0 and 1, not {confidence:g}", EXIT_USAGE)
    try:
        chosen = reading.make(reading.read(run / "config.toml"), str(run / "config.toml"))
        card = read_card(run / "privacy.json")
        found, own = _audit_run(run, chosen, card, canaries, 1 - confidence)
        shown = _with_audit(card, found)
        write_card(shown, run / "privacy.json")
        write_page(shown, run / "report.html")
        told: list[Audit | Membership] = []
        if own is not None:
            told.append(own)
        if members:
            told.append(_attack_members(run, chosen, card))
        log = OperatorLog(run / "private" / "operator.jsonl")
        for one in told:
            log.write(one.view())
    except (
        reading.SettingsError,
        CardError,
        ModelError,
        SchemaError,
        DatasetError,
        AccountingError,
        PrivateValueError,
        ValueError,
    ) as error:
        fail(str(error))
    if as_json:
        from tacit.ledger.release import json_values

        typer.echo(json.dumps(json_values(found.to_dict()), indent=2, ensure_ascii=False))
    else:
        _show(found)
        typer.echo(f"card    {run / 'privacy.json'}\nreport  {run / 'report.html'}")
    if told:
        _tell_operator(told, run / "private" / "operator.jsonl")
    if found.verdict == "fail" or (own is not None and own.verdict == "fail"):
        raise typer.Exit(EXIT_FAILED)


def _audit_run(
    run: Path, chosen: Settings, card: Release, canaries: int | None, significance: float
) -> tuple[Audit, Audit | None]:
    """The implementation audit, with what canaries prove where that may be published; and what may not."""
    import dataclasses

    from tacit.audit import audit_implementation

    own = _own_canaries(run, chosen, significance)
    if own is not None and not own.operator_only and canaries is not None:
        raise ValueError("this run planted canaries whose result may be published: leave out --canaries")
    model, loss, data, unit = _stand_in(chosen)
    size = int(card["mechanism"]["parameters"]["sampler"]["size"])
    settings = _training_settings(chosen, size) | {"unit_name": unit, "unit": range(len(data[0]))}
    with _spinner("the implementation") as tell:
        found = audit_implementation(model, loss, data, tell=tell, **settings)
    attacked: Audit | None = None
    if own is not None and not own.operator_only:
        attacked, own = own, None
    elif canaries is not None:
        attacked = _repeat(model, loss, data, canaries, chosen.learning_rate, settings, significance)
    if attacked is not None:
        found = dataclasses.replace(
            found,
            kind=f"{found.kind}, {attacked.kind}",
            evidence=attacked.evidence,
            scores=attacked.scores,
            member=attacked.member,
        )
    return found, own


def _own_canaries(run: Path, chosen: Settings, significance: float) -> Audit | None:
    """What the canaries prove that the run itself held, where they were kept."""
    from tacit.audit import audit_run
    from tacit.runs.train import CANARIES
    from tacit.sgd.training.canaries import Planted

    kept = run / "private" / CANARIES
    if kept.exists():
        return audit_run(Planted.load(kept), significance)
    if chosen.audit_canaries is not None:
        typer.echo(f"tacit: the run held {chosen.audit_canaries:,} canaries, but {kept} is gone", err=True)
    return None


def _repeat(
    model: Any, loss: Any, data: Any, canaries: int, rate: float, settings: dict[str, Any], significance: float
) -> Audit:
    """The run again on made-up records with canaries, and what these prove."""
    import torch

    from tacit.audit import audit_run
    from tacit.sgd import fit

    most = sum(p.numel() for p in model.parameters() if p.requires_grad)
    if canaries > most:
        typer.echo(f"tacit: this model has room for {most} gradient canaries, not {canaries}", err=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    # As many made-up records as are worth their time: rate and divisor are those of the announced size.
    done = fit(model, optimizer, loss, data, audit_canaries=min(canaries, most), **settings)
    return audit_run(done, significance, made_up=True)


def _go_on(run: Path) -> str:
    """How a run that has not ended is brought to an end."""
    from tacit.cli.train import again
    from tacit.runs import settings as reading

    with contextlib.suppress(reading.SettingsError):
        if reading.read(run / "config.toml").get("audit_canaries") is not None:
            return again(run)
    return f"go on with: tacit train --resume {run}"


#: Made-up records that stand for the data of a run.
MADE_UP = 512


def _stand_in(chosen: Settings) -> tuple[Any, Any, Any, str]:
    """The run's model and loss, and made-up records of the shape that the public schema says; whom it protects."""
    import torch

    from tacit import datasets
    from tacit.runs.models import build
    from tacit.runs.train import Prepared, loss_for
    from tacit.schema import Schema

    known = chosen.data in datasets.CATALOG and not Path(chosen.data).exists()
    if not known and chosen.schema is None:
        raise ValueError("the run names no schema, from which the shape of a record could be known")
    schema = datasets.schema(chosen.data) if known else Schema.from_toml(str(chosen.schema))
    width = sum(column.width for column in schema.features)
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(MADE_UP, width, generator=generator) * 2 - 1
    outputs = len(schema.classes) or 1
    if schema.classes:
        y = torch.randint(outputs, (MADE_UP,), generator=generator)
    else:
        y = torch.rand(MADE_UP, generator=generator) * 2 - 1
    prepared = Prepared(schema, x, y, None, None, None, schema.name or chosen.data)
    return build(chosen.model, width, outputs, prepared.shape), loss_for(prepared), (x, y), schema.unit.name


def _training_settings(chosen: Settings, size: int) -> dict[str, Any]:
    """What of the run's settings decides its mechanism."""
    found: dict[str, Any] = {
        "batch_size": chosen.batch,
        "delta": chosen.delta,
        "clip_norm": chosen.clip_norm,
        "sampler": chosen.sampler,
        "size": size,
    }
    if chosen.epsilon is not None:
        found["epsilon"] = chosen.epsilon
    else:
        found["noise_multiplier"] = chosen.noise
    if chosen.epochs is not None:
        found["epochs"] = chosen.epochs
    else:
        found["steps"] = chosen.steps
    if chosen.adjacency is not None:
        found["adjacency"] = chosen.adjacency
    return found


def _with_audit(card: Release, found: Audit) -> Release:
    """The card with the audit in place of what it said before."""
    from tacit.ledger import Release, public

    because = "computed on made-up records and canaries, which belong to nobody"
    checks = card["checks"] | Release({"audit": public(found.to_dict(), because)})
    return card | Release({"checks": checks})


def _attack_members(run: Path, chosen: Settings, card: Release) -> Membership:
    """Loss-threshold attack with private rows against rows that the model never saw: for the operator's log."""
    import torch

    from tacit.audit import membership
    from tacit.runs import train as job
    from tacit.runs.models import build

    prepared = job.prepare(chosen)
    if prepared.test is None or not prepared.schema.classes:
        raise ValueError("--members needs rows that the model never saw (--evaluate, --public-share) and classes")
    model = build(chosen.model, prepared.x.shape[1], prepared.outputs, prepared.shape)
    model.load_state_dict(torch.load(run / "model.pt", weights_only=True))
    model.eval()
    x = torch.cat([prepared.x, prepared.test[0]])
    y = torch.cat([prepared.y, prepared.test[1]])
    with torch.no_grad():
        given = torch.cat([torch.softmax(model(part), 1) for part in x.split(4096)])
    right = given[torch.arange(len(y)), y].double().numpy()
    member = torch.arange(len(y)) < len(prepared.y)
    epsilon = card["guarantee"]["epsilon"]["upper"]
    claimed = float(epsilon) if not isinstance(epsilon, str) else None
    return membership(right, member.numpy(), epsilon=claimed, delta=card["guarantee"]["delta"])["loss threshold"]


def _tell_operator(told: list[Audit | Membership], log: Path) -> None:
    """On the screen, where that is the operator's own; else where it is to be found."""
    from rich.console import Console

    from tacit.audit import Audit

    if not sys.stderr.isatty():
        typer.echo(f"tacit: what is for the operator only is in {log}", err=True)
        return
    for one in told:
        if not isinstance(one, Audit):
            typer.echo(repr(one), err=True)
            continue
        assert one.evidence is not None
        count = one.evidence.details["canaries"]
        typer.echo(f"\nOPERATOR VIEW, not to be published: what the {count:,} canaries of this run prove", err=True)
        _show(one, Console(stderr=True))
    typer.echo(f"log     {log}", err=True)


def _show(found: Audit, console: Console | None = None) -> None:
    """What a person reads."""
    from rich.console import Console
    from rich.table import Table

    console = console or Console()
    if found.findings:
        table = Table("check", "p-value", "what was seen", "smallest fault it would see", box=None)
        share = found.significance / len(found.findings)
        for finding in found.findings:
            mark = "[green]passes[/]" if finding.passes(share) else "[red]FAILS[/]"
            table.add_row(f"{mark} {finding.check}", f"{finding.p_value:.2g}", finding.detail, finding.best)
        console.print(table)
    if found.evidence is not None:
        table = Table("lower bound on ε", "value", "", box=None)
        for name, value in found.evidence.figures.items():
            note = "estimate: a certificate only for independent repeats of an unsampled Gaussian"
            table.add_row(name, f"{value:.3f}", note if name in found.evidence.estimates else "")
        console.print(table)
    typer.echo(found.sentence, err=console.stderr)


@contextlib.contextmanager
def _spinner(what: str) -> Iterator[Callable[[str], None]]:
    """What is being looked at, on a terminal."""
    if not sys.stderr.isatty():
        yield lambda name: None
        return
    from rich.console import Console

    with Console(stderr=True).status(f"{what} …") as status:
        yield lambda name: status.update(f"{what}: {name} …")


# -- selftest ----------------------------------------------------------------------------------------------------------


def selftest(
    names: Annotated[list[str] | None, typer.Argument(help="Parts of names of mutants.", show_default=False)] = None,
    seed: Annotated[int, typer.Option(help="Seed of the made-up data; noise is always fresh.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Break tacit in many ways and see that each is caught, and that tacit as it is passes."""
    from rich.console import Console
    from rich.table import Table

    from tacit.audit import selftest as run_selftest

    outcomes = []
    try:
        with _spinner("selftest") as tell:
            outcomes = list(run_selftest(seed, tuple(names) if names else None, tell))
    except ValueError as error:
        fail(str(error), EXIT_USAGE)
    good = sum(o.good for o in outcomes)
    if as_json:
        typer.echo(json.dumps([o.to_dict() for o in outcomes], indent=2, ensure_ascii=False))
    else:
        table = Table("", "mutant", "family", "caught by", "seconds", box=None)
        for o in outcomes:
            mark = "[green]ok[/]" if o.good else "[red]NO[/]"
            later = " (written after the checks)" if o.later else ""
            said = o.caught_by or ("passes every check" if o.good else "not caught")
            table.add_row(mark, o.name + later, o.family, said, f"{o.seconds:.1f}")
        Console().print(table)
        mutants = [o for o in outcomes if o.family]
        passes = "passes" if outcomes[0].good else "FAILS"
        typer.echo(f"{sum(o.caught for o in mutants)} of {len(mutants)} mutants caught; tacit as it is {passes}")
        for o in outcomes:
            if not o.good:
                typer.echo(f"{o.name}: {o.detail or 'no check spoke up'}")
    if good < len(outcomes):
        raise typer.Exit(EXIT_FAILED)


def register(app: typer.Typer) -> None:
    """Add ``tacit audit`` and ``tacit selftest`` to the application."""
    app.command("audit", epilog=AUDIT_EPILOG)(audit)
    app.command("selftest", epilog=SELFTEST_EPILOG)(selftest)
