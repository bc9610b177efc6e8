"""``tacit prompt``: how do I adapt a language model to private text from the command line?"""

from __future__ import annotations

import functools
import inspect
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from tacit.cli.common import EXIT_USAGE, UNCOVERED, again, exits, fail, option

if TYPE_CHECKING:
    from tacit.runs.progress import Told

TUNE_EPILOG = """
DATA is a .csv or .parquet file with the columns text and label, or a known data set (sst2, trec, …); with --task
generate only text is read, and the model learns to continue what comes before {text}. A run has its own folder:
adapter/, privacy.json and report.html may be published; private/ may not. After Ctrl-C, a kill, a crash or a full
disk, --resume continues the run: the same adapter, the same claim, one charge.

[bold]Examples[/bold]

    $ tacit data get smollm2

    $ tacit prompt tune sst2 --epsilon 8 --delta 1e-5 --method lora --steps 150 --batch 1024
      --template 'Review: {text}\\nSentiment:' --evaluate test --public-because 'published benchmark'

    $ tacit prompt tune notes.csv --model ./my-llm --template '{text}\\nUrgent:' --words 0=no,1=yes --method soft
      --epsilon 3 --delta 1e-6 --ledger my.db --dataset notes

    $ tacit prompt tune notes.csv --task generate --template 'Note: {text}' --epsilon 8 --delta 1e-6

    $ tacit prompt tune --resume runs/sst2-1
"""
PATE_EPILOG = """
Teachers are prompts with disjoint private demonstrations; they vote on public texts, and the noisy labels make a
student prompt. Only answers of the model are needed: --endpoint asks one over HTTP (whoever runs it sees the
demonstrations). After Ctrl-C, a kill, a crash, a full disk or a lost endpoint, --resume continues the run: votes are
kept, the answers are the same, and they are charged once.

[bold]Examples[/bold]

    $ tacit prompt pate sst2 --public sst2:validation --delta 1e-6 --evaluate sst2:test
      --public-because 'published benchmark'

    $ tacit prompt pate notes.csv --public forum.csv --endpoint http://localhost:8000/v1 --endpoint-model llama
      --template '{text}\\nUrgent:' --words 0=no,1=yes --teachers 100 --delta 1e-6

    $ tacit prompt pate sst2 --public sst2:validation --members 1 --delta 1e-6   # one prompt, as text to paste

    $ tacit prompt pate --resume runs/notes-1
"""
EVAL_EPILOG = """
[bold]Examples[/bold]

    $ tacit prompt eval runs/sst2-1 sst2:test

    $ tacit prompt eval prompt.json reviews.csv --endpoint http://localhost:8000/v1 --endpoint-model llama

    $ tacit prompt eval zero-shot sst2:test --template 'Review: {text}\\nSentiment:'
"""


Data = Annotated[str | None, typer.Argument(help="Private labelled texts: a file or a known set.", show_default=False)]
Runs = Annotated[Path, typer.Option(help="The folder that holds all runs.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print machine-readable JSON.")]
PLACE = ("resume", "name")
HIDDEN = (*PLACE, "runs", "as_json")

#: Options that several commands have: how the model is asked, over HTTP, and what belongs to every run.
ASKING: dict[str, Any] = {
    "model": Annotated[str | None, option("smollm2, a folder, or a name on the hub. Default: smollm2.")],
    "template": Annotated[str | None, option("Text with {text} in it; \\n is a new line.")],
    "instruction": Annotated[str | None, option("Text that comes once, before everything else.")],
    "words": Annotated[str | None, option("The word of each class: class=word,class=word. A known set has its own.")],
    "first_token": Annotated[
        bool, typer.Option("--first-token", help="Tell words of several tokens apart by their first token.")
    ],
    "data_dir": Annotated[str | None, option("The folder of the known data sets.")],
    "device": Annotated[str | None, option("cpu or cuda.")],
}
HTTP: dict[str, Any] = {
    "endpoint": Annotated[str | None, option("Ask a model over HTTP: http://…/v1")],
    "endpoint_model": Annotated[str | None, option("The model's name at the endpoint.")],
    "chat": Annotated[bool, typer.Option("--chat", help="Use the chat protocol of the endpoint.")],
}
RUN: dict[str, Any] = {
    "delta": Annotated[float | None, option("The δ of (ε, δ), such as 1e-6.")],
    "ledger": Annotated[str | None, option("The ledger to charge: a file, postgresql://… or https://…")],
    "dataset": Annotated[str | None, option("The data's name in the ledger.")],
    "unit": Annotated[str | None, option("Whom to protect, such as person, with --unit-column. Default: record.")],
    "unit_column": Annotated[str | None, option("The column with the id of each text's owner.")],
    "evaluate": Annotated[str | None, option("Texts to evaluate on: a file, a known set, or set:split.")],
    "public_because": Annotated[str | None, option("Why the evaluation texts need no protection.")],
    "purpose": Annotated[str | None, option("What the run is for. This is public.")],
    "tuning": Annotated[str | None, option("For the card: how settings were chosen.")],
    "trust_model": Annotated[str | None, option("For the card: who is trusted with the data.")],
    "release": Annotated[str | None, option("For the card: what is released, to whom.")],
    "contact": Annotated[str | None, option("For the card: whom to ask.")],
    "uncovered": Annotated[list[str] | None, option(UNCOVERED)],
    "name": Annotated[str | None, option("The run's name. Default: the data's name and a number.")],
    "resume": Annotated[Path | None, option("The folder of a run to continue.")],
}


def _sharing(*groups: dict[str, Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The command with the options of these groups too, which it gets by its ``**given``."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command, eval_str=True).parameters.values())[:-1]
        shared = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=False if get_args(kind)[0] is bool else None,
                annotation=kind,
            )
            for group in groups
            for name, kind in group.items()
        ]
        both = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + shared

        @functools.wraps(command)
        def complete(**given: Any) -> None:
            command(**given)

        del complete.__wrapped__
        complete.__signature__ = inspect.Signature(both)  # type: ignore[attr-defined]
        complete.__annotations__ = {p.name: p.annotation for p in both}
        return complete

    return decorate


def _given(values: dict[str, Any]) -> dict[str, Any]:
    """What the user said: neither what was left out nor what concerns only this call."""
    every = {**values, **values.pop("given", {})}
    return {
        k: v for k, v in every.items() if k not in (*HIDDEN, "given") and v is not None and v is not False and v != []
    }


@_sharing(ASKING, RUN)
def tune(
    data: Data = None,
    task: Annotated[str | None, option("classify, or generate: continue texts. Default: classify.")] = None,
    method: Annotated[str | None, option("soft, prefix or lora. Default: lora.")] = None,
    epsilon: Annotated[float | None, option("The ε to stay within.")] = None,
    noise: Annotated[float | None, option("Or the noise multiplier.")] = None,
    epochs: Annotated[int | None, option("Passes over the data.")] = None,
    steps: Annotated[int | None, option("Or the number of steps.")] = None,
    batch: Annotated[int | None, option("Expected batch size.")] = None,
    learning_rate: Annotated[float | None, option("Learning rate of Adam.", "--learning-rate", "--lr")] = None,
    clip_norm: Annotated[float | None, option("Where gradients are clipped. Default: 0.1.")] = None,
    rank: Annotated[int | None, option("LoRA's rank. Default: 4.")] = None,
    virtual_tokens: Annotated[int | None, option("Length of a soft prompt or prefix.")] = None,
    start: Annotated[str | None, option("Public text that a soft prompt or prefix starts as.")] = None,
    max_rows: Annotated[int | None, option("Most texts of one owner in a step (run: --draw rows).")] = None,
    draw: Annotated[str | None, option("Draw units (default), or rows, which may have several owners.")] = None,
    checkpoint_every: Annotated[int | None, option("Steps between checkpoints. Default: 20.")] = None,
    runs: Runs = Path("runs"),
    as_json: AsJson = False,
    **given: Any,
) -> None:
    """Train a soft prompt, a prefix or LoRA on private texts with DP-SGD."""
    _run("tune", _given(locals()), {"runs": runs} | {k: given[k] for k in PLACE}, as_json=as_json)


@_sharing(HTTP, ASKING, RUN)
def pate(
    data: Data = None,
    public: Annotated[str | None, option("Public texts to ask about: a file, a known set, or set:split.")] = None,
    teachers: Annotated[int | None, option("How many teachers. Default: 200.")] = None,
    shots: Annotated[int | None, option("Demonstrations of each class a teacher shows. Default: 1.")] = None,
    calibration: Annotated[str | None, option("none, contextual or batch. Default: batch.")] = None,
    queries: Annotated[int | None, option("How many public texts are asked about. Default: 150.")] = None,
    answers: Annotated[int | None, option("How many of them are answered at most. Default: 110.")] = None,
    threshold: Annotated[float | None, option("Votes from which an answer is given. Default: 0.55 of them.")] = None,
    check_noise: Annotated[float | None, option("Noise of that check. Default: 0.45 of the teachers.")] = None,
    vote_noise: Annotated[float | None, option("Noise on the votes. Default: 0.39 of the teachers.")] = None,
    student_shots: Annotated[str | None, option("Shots of the student, such as 1,2,4.")] = None,
    candidates: Annotated[int | None, option("Student prompts that are tried. Default: 64.")] = None,
    members: Annotated[int | None, option("How many of them answer together. Default: 8.")] = None,
    runs: Runs = Path("runs"),
    as_json: AsJson = False,
    **given: Any,
) -> None:
    """Build a prompt from the noisy votes of privately prompted teachers."""
    _run("pate", _given(locals()), {"runs": runs} | {k: given[k] for k in PLACE}, as_json=as_json)


@_sharing(HTTP, ASKING)
def evaluate_prompt(
    prompt: Annotated[str, typer.Argument(help="A run's folder, an adapter's, a prompt.json, or zero-shot.")],
    data: Annotated[str, typer.Argument(help="Labelled texts: a file, a known set, or set:split.")],
    limit: Annotated[int | None, option("The first so many texts only.")] = None,
    as_json: AsJson = False,
    **given: Any,
) -> None:
    """Count the right answers of a prompt or an adapter on public labelled texts (or take the perplexity of texts)."""
    settings = {k: v for k, v in _given(locals()).items() if k != "prompt"}
    from tacit.runs.progress import Told

    with _exits("eval", Told()):
        from tacit.runs.prompt import Fluency, evaluate

        found = evaluate(prompt, settings)
    metric = "perplexity" if isinstance(found, Fluency) else "accuracy"
    if as_json:
        low, high = found.interval
        typer.echo(json.dumps({metric: found.value, "low": low, "high": high, "rows": found.total}))
    else:
        typer.echo(f"{metric} {found}")


def _run(kind: str, given: dict[str, Any], place: dict[str, Any], *, as_json: bool) -> None:
    from tacit.runs.progress import Told

    progress, resume = Told(), place["resume"]
    if resume is not None and (given.keys() - {"ledger"} or place["name"] is not None):
        fail("--resume takes the settings of the run; no others can be given", EXIT_USAGE)
    with _exits(kind, progress):
        from tacit.runs.folder import RunFolder, carry_out
        from tacit.runs.prompt import PromptRun

        work = PromptRun(kind, given) if resume is None else PromptRun.saved(kind, resume, given.get("ledger"))
        if "data" not in work.given:
            fail("say which private texts: a .csv or .parquet file with the columns text and label, or a known set")
        done = carry_out(work, RunFolder(**place), progress)
    told = done.told
    files: dict[str, str] = {what: told.pop(what) for what in ("adapter", "prompt", "card", "report") if what in told}
    if as_json:
        shown = {key: told[key] for key in ("epsilon", "delta", "neighbours", "results")} | {"files": files}
        typer.echo(json.dumps(shown, indent=2, ensure_ascii=False))
    else:
        _show(told, files, done.views)


@contextmanager
def _exits(kind: str, progress: Told) -> Iterator[None]:
    """As every run; where an endpoint did not answer, the run can go on."""
    from tacit.prompts import EndpointError

    command = f"prompt {kind}"
    with exits(command, progress):
        try:
            yield
        except EndpointError as error:
            fail(f"{error}; continue with: {again(command, progress)}" if progress.folder else str(error))


def _show(told: dict[str, Any], files: dict[str, str], views: list[Any]) -> None:
    typer.echo(f"ε = {told['epsilon']:.6g} at δ = {told['delta']:g}, {told['neighbours']}")
    for line in told["lines"]:
        typer.echo(line)
    for view in views if sys.stderr.isatty() else ():
        typer.echo(repr(view), err=True)
    for what, path in files.items():
        typer.echo(f"{what:<8}{path}")


def register(app: typer.Typer) -> None:
    """Add ``tacit prompt`` to the application."""
    group = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode="rich",
        help="Adapt a language model to private text: tune it, let teachers vote, evaluate.",
    )
    group.command("tune", epilog=TUNE_EPILOG)(tune)
    group.command("pate", epilog=PATE_EPILOG)(pate)
    group.command("eval", epilog=EVAL_EPILOG)(evaluate_prompt)
    app.add_typer(group, name="prompt")
