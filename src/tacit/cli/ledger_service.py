"""``tacit ledger`` for those who keep it: the service, tokens, keys, anchors, changes of budgets and data."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from tacit.cli.common import EXIT_BUDGET, EXIT_USAGE, exits, fail, option
from tacit.cli.ledger import Name, SomeName, Where, open_ledger

if TYPE_CHECKING:
    from tacit import accounting as acc

Because = Annotated[str, option("Why, for everybody to read.")]
KeyFile = Annotated[Path | None, option("The ledger's key (tacit ledger key). Default: $TACIT_LEDGER_KEY.", "--key")]

SERVE_EPILOG = """
Give --tls-cert and --tls-key, or put the service behind a proxy that does TLS; without either it listens on this
machine only. Stop it with Ctrl-C.

[bold]Examples[/bold]

    $ tacit ledger token add tokens.json ana --role analyst

    $ tacit ledger serve people.db --tokens tokens.json --key ledger.key --anchor heads.jsonl

    $ TACIT_LEDGER_TOKEN=tacit_… tacit ledger budget http://127.0.0.1:8750 people
"""
PLAN_EPILOG = """
All runs are fixed in advance and priced together. Each run takes its part: tacit train --plan, or ledger.with_plan.

[bold]Examples[/bold]

    $ tacit ledger plan people.db people --every month --times 12 --noise 1.1 --rate 0.01 --steps 500 --unit person

    $ tacit ledger plan people.db people --every month --times 12 --like run.toml --reserve
"""
EXAMPLES = """
[bold]Examples[/bold]

    $ tacit ledger {}
"""


@contextlib.contextmanager
def _told() -> Iterator[None]:
    from tacit.ledger import BudgetExceeded, LedgerError

    try:
        yield
    except BudgetExceeded as error:
        fail(str(error), EXIT_BUDGET)
    except LedgerError as error:
        fail(str(error))


def serve(
    where: Where,
    tokens: Annotated[Path, option("The file of tokens (tacit ledger token).")],
    key: KeyFile = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.")] = 8750,
    anchor: Annotated[Path | None, option("A file or git repository on other media for the heads.")] = None,
    anchor_every: Annotated[float, typer.Option(help="Seconds between two writes to the anchor.")] = 60.0,
    rate: Annotated[float, typer.Option(help="Requests a second for each token.")] = 200.0,
    log: Annotated[Path | None, option("A file for one line a request. Default: standard error.")] = None,
    tls_cert: Annotated[Path | None, option("The certificate, for https.")] = None,
    tls_key: Annotated[Path | None, option("The certificate's key.")] = None,
    behind_proxy: Annotated[bool, typer.Option("--behind-proxy", help="A proxy in front does TLS.")] = False,
) -> None:
    """Serve a ledger over HTTP, with tokens and roles."""
    from tacit.ledger import Ledger
    from tacit.ledger.core import KEY
    from tacit.ledger.service import Service, listen
    from tacit.ledger.signing import HEADS, check_anchor, heads_of
    from tacit.ledger.signing import anchor as write
    from tacit.ledger.tokens import Tokens

    if tls_cert is None and not behind_proxy and host not in ("127.0.0.1", "localhost", "::1"):
        fail("tokens would travel in clear: give --tls-cert and --tls-key, or --behind-proxy", EXIT_USAGE)
    with _told():
        known = Tokens(tokens)
        if not known.all():
            fail(f"{tokens} holds no token: make one with tacit ledger token add {tokens} NAME --role owner")
        ledger = Ledger(where, key=key)
        signer = key or os.environ.get(KEY)
        for given, missing in ((signer, "--key: heads are not signed"), (anchor, "--anchor: a rollback goes unseen")):
            if not given:
                typer.echo(f"tacit: warning: without {missing}", err=True)
        if anchor is not None:
            if (anchor / HEADS if anchor.is_dir() else anchor).exists():
                check_anchor(ledger, anchor)
            write(heads_of(ledger), anchor)  # an anchor that cannot be written is found now
        with contextlib.ExitStack() as stack:
            out: Any = sys.stderr if log is None else stack.enter_context(_opened(log))
            service = Service(ledger, known, rate=rate, log=out)
            listen(
                service,
                host,
                port,
                certificate=(tls_cert, tls_key),
                anchor=(anchor, anchor_every),
                behind_proxy=behind_proxy,
                ready=typer.echo,
            )


def _opened(log: Path) -> TextIO:
    """The log of requests, which tells who did what: a new one is for its owner only."""
    try:
        return open(os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600), "a", encoding="utf-8")
    except OSError as error:
        fail(f"cannot write the log {log}: {error.strerror}")


def token_add(
    tokens: Annotated[Path, typer.Argument(help="The file of tokens.", show_default=False)],
    name: Annotated[str, typer.Argument(help="Whose token it is.", show_default=False)],
    role: Annotated[str, option("owner, analyst or auditor.")],
    team: Annotated[str, typer.Option(help="The team whose share its charges spend.")] = "",
    dataset: Annotated[list[str] | None, option("A data set it is for. May be repeated. Default: all.")] = None,
    days: Annotated[float | None, option("After how many days it ends.")] = None,
) -> None:
    """Make a token and print it, once."""
    from tacit.ledger.tokens import Tokens

    with _told():
        typer.echo(Tokens(tokens).add(name, role, team=team, datasets=tuple(dataset or ()), days=days))


def token_list(tokens: Annotated[Path, typer.Argument(help="The file of tokens.", show_default=False)]) -> None:
    """List the tokens: whose they are, and what for."""
    from tacit.ledger.tokens import Tokens

    with _told():
        for token in Tokens(tokens).all():
            rest = (token.team or "-", ",".join(token.datasets) or "all", token.expires or "never")
            typer.echo("\t".join((token.name, token.role, *rest)))


def token_revoke(
    tokens: Annotated[Path, typer.Argument(help="The file of tokens.", show_default=False)],
    name: Annotated[str, typer.Argument(help="Whose token it is.", show_default=False)],
) -> None:
    """End a token now, also in a service that is running."""
    from tacit.ledger.tokens import Tokens

    with _told():
        Tokens(tokens).revoke(name)


def key(path: Annotated[Path, typer.Argument(help="The new file.", show_default=False)]) -> None:
    """Make a key that signs heads, and print its public part for those who verify."""
    from tacit.ledger.signing import SigningKey

    with _told():
        typer.echo(SigningKey.make(path).public)


def sign(where: Where, name: SomeName = None, key: KeyFile = None) -> None:
    """Check a ledger that is older than its key, and sign its heads once."""
    ledger = open_ledger(where, key=key)
    with _told():
        for one in [name] if name else ledger.datasets():
            typer.echo(f"{one}: signed head {ledger.sign(one)}")


def anchor(
    where: Where, place: Annotated[Path, typer.Argument(help="A file or git repository.", show_default=False)]
) -> None:
    """Write the heads to a file or a git repository on other media."""
    from tacit.ledger.signing import anchor as write
    from tacit.ledger.signing import heads_of

    ledger = open_ledger(where)
    with _told():
        typer.echo(f"{write(heads_of(ledger), place)} new heads in {place}")


def raise_budget(
    where: Where,
    name: Name,
    epsilon: Annotated[float, option("The new ε of the whole budget.")],
    delta: Annotated[float, option("The new δ of the whole budget.")],
    because: Because,
    key: KeyFile = None,
) -> None:
    """Raise a budget."""
    with _told():
        open_ledger(where, key=key).raise_budget(name, epsilon=epsilon, delta=delta, because=because)


def split(
    where: Where,
    name: Name,
    team: Annotated[list[str], option("A team and its share, such as health=0.5. May be repeated.")],
    because: Because,
    key: KeyFile = None,
) -> None:
    """Split a budget among teams."""
    try:
        shares = {who: float(share) for who, _, share in (one.rpartition("=") for one in team)}
    except ValueError:
        fail("a team and its share look like health=0.5", EXIT_USAGE)
    with _told():
        open_ledger(where, key=key).split_budget(name, shares, because=because)


def freeze(where: Where, name: Name, because: Because, key: KeyFile = None) -> None:
    """Grant nothing more until the budget is thawed."""
    with _told():
        open_ledger(where, key=key).freeze(name, because=because)


def thaw(where: Where, name: Name, because: Because, key: KeyFile = None) -> None:
    """End a freeze."""
    with _told():
        open_ledger(where, key=key).thaw(name, because=because)


def data(
    where: Where,
    name: Name,
    file: Annotated[Path, typer.Argument(help="The data.", exists=True, show_default=False)],
    because: Because,
    new_version: Annotated[
        bool, typer.Option("--new-version", help="The next version of growing data, not another form of the same.")
    ] = False,
    form_of: Annotated[int | None, option("The version that it is another form of. Default: the newest.")] = None,
    key: KeyFile = None,
) -> None:
    """Say that data belong to a name: the same people in another form, or a new version."""
    ledger = open_ledger(where, key=key)
    with _told():
        if new_version:
            typer.echo(f"{name}: version {ledger.new_version(name, file, because=because)}")
        else:
            typer.echo(f"{name}: {ledger.accept(name, file, because=because, version=form_of)}")


def plan(
    where: Where,
    name: Name,
    every: Annotated[str, option("day, week, month, quarter or year.")],
    times: Annotated[int, option("How many runs.")],
    noise: Annotated[float | None, option("The noise multiplier of each run.")] = None,
    like: Annotated[
        Path | None, option("Instead, the folder of a run, or settings as for tacit train --config: runs like it.")
    ] = None,
    rate: Annotated[float, typer.Option(help="The sampling rate of each step.")] = 1.0,
    steps: Annotated[int, typer.Option(help="The steps of each run.")] = 1,
    unit: Annotated[str, typer.Option(help="The unit of privacy.")] = "record",
    delta: Annotated[float | None, option("The schedule's part of δ. Default: the registered share.")] = None,
    purpose: Annotated[str, typer.Option(help="Why, for everybody to read.")] = "scheduled runs",
    reserve: Annotated[
        bool, typer.Option("--reserve", help="Charge the schedule; otherwise it is only priced.")
    ] = False,
    key: KeyFile = None,
) -> None:
    """Price a schedule of runs in advance, and reserve it."""
    from tacit import accounting as acc

    if (noise is None) == (like is None):
        fail("give --noise or --like, one of the two", EXIT_USAGE)
    if noise is None:
        assert like is not None
        run = _did(like)
    else:
        step: acc.Mechanism = acc.Gaussian(noise, unit=unit)
        run = (acc.PoissonSampled(step, rate) if rate < 1 else step) * steps
    ledger = open_ledger(where, key=key)
    with _told():
        one, whole = ledger.quote(name, run, delta=delta), ledger.quote(name, run * times, delta=delta)
        typer.echo(
            f"one run: ε={one.epsilon:.6g}; {times} runs, one a {every}: ε={whole.epsilon:.6g} at δ={whole.delta:g}"
        )
        if reserve:
            made = ledger.plan(name, run, every=every, times=times, delta=delta, purpose=purpose)  # type: ignore[arg-type]
            typer.echo(f"reserved as {made.number}")


def _did(like: Path) -> acc.Mechanism:
    """The mechanism on the card of a run, or that of a run with the settings in a file."""
    from tacit import accounting as acc
    from tacit.report import CardError, read_card

    if like.is_file():
        from tacit.runs.progress import Told
        from tacit.runs.settings import make, read
        from tacit.runs.train import foreseen

        with exits("ledger plan", Told(quiet=True)):
            return foreseen(make(read(like), str(like)))
    if not (like / "privacy.json").exists():
        fail(f"--like: {like} has no privacy.json: it is not the folder of a run that has ended")
    try:
        return acc.from_dict(read_card(like / "privacy.json")["mechanism"]["description"])
    except (CardError, acc.AccountingError, LookupError) as error:
        fail(f"--like: the card in {like} does not say what ran: {error}")


def keys(
    destroy: Annotated[list[str] | None, option("A key to destroy. May be repeated.")] = None,
    older_than: Annotated[float | None, option("Destroy the keys that are older than so many days.")] = None,
    runs: Annotated[Path, typer.Option(help="The folder that holds all runs.")] = Path("runs"),
) -> None:
    """List the keys of runs that have not ended, or destroy them: those runs cannot go on afterwards."""
    from tacit.runs.journal import JournalError
    from tacit.runs.keys import destroy_key, kept_keys

    there = kept_keys(runs)
    names = set(destroy or ())
    unknown = names - {one.name for one in there}
    if unknown:
        fail(f"there is no key {sorted(unknown)[0]!r}")
    for one in there:
        gone = one.name in names or (older_than is not None and one.days > older_than)
        if gone:
            try:
                destroy_key(one)
            except JournalError as error:
                fail(str(error))
        typer.echo(f"{one.name}\t{one.days:.1f} days\t{'destroyed' if gone else one.path}")


def register(app: typer.Typer) -> None:
    """Add the commands to ``tacit ledger``."""
    group: Any = next(one.typer_instance for one in app.registered_groups if one.name == "ledger")
    tokens = typer.Typer(no_args_is_help=True, help="Tokens of a service: who may do what.")
    tokens.command("add", epilog=EXAMPLES.format("token add tokens.json ana --role analyst"))(token_add)
    tokens.command("list", epilog=EXAMPLES.format("token list tokens.json"))(token_list)
    tokens.command("revoke", epilog=EXAMPLES.format("token revoke tokens.json ana"))(token_revoke)
    group.add_typer(tokens, name="token")
    group.command("serve", epilog=SERVE_EPILOG)(serve)
    group.command("key", epilog=EXAMPLES.format("key ledger.key"))(key)
    group.command("sign", epilog=EXAMPLES.format("sign people.db --key ledger.key"))(sign)
    group.command("anchor", epilog=EXAMPLES.format("anchor people.db /mnt/other/heads.jsonl"))(anchor)
    because = "--because 'decided on 3 March'"
    group.command("raise", epilog=EXAMPLES.format(f"raise people.db people --epsilon 5 --delta 1e-6 {because}"))(
        raise_budget
    )
    group.command("split", epilog=EXAMPLES.format(f"split people.db people --team health=0.5 {because}"))(split)
    group.command("freeze", epilog=EXAMPLES.format(f"freeze people.db people {because}"))(freeze)
    group.command("thaw", epilog=EXAMPLES.format(f"thaw people.db people {because}"))(thaw)
    group.command("data", epilog=EXAMPLES.format(f"data people.db people april.csv --new-version {because}"))(data)
    group.command("plan", epilog=PLAN_EPILOG)(plan)
    group.command("keys", epilog=EXAMPLES.format("keys --older-than 30"))(keys)
