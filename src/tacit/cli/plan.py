"""``tacit plan``: what would a run cost in noise, time and memory, before a single record is read?

Everything here comes from public numbers: the data's size and schema, the model, and the settings. Time and memory are
measured on random inputs of the right shape.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli.common import EXIT_USAGE, fail

if TYPE_CHECKING:
    from tacit.schema import Schema

EPILOG = """
No record is read. Time and memory are measured on random inputs of the data's public shape.

[bold]Examples[/bold]

    $ tacit plan labsup --epsilon 1 --delta 1e-6 --epochs 20 --batch 1024

    $ tacit plan --schema clinic.toml --examples 20000 --epsilon 3 --delta 1e-6 --epochs 30 --batch 512 --model mlp
"""
#: Steps that are timed, after one to warm up.
TIMED = 3


@dataclasses.dataclass(frozen=True)
class Case:
    """A run in public numbers: N records, expected batch, steps, ε, δ."""

    examples: int
    batch: int
    steps: int
    epsilon: float
    delta: float
    adjacency: str = "add-remove"
    unit: str = "record"

    @property
    def rate(self) -> float:
        """The chance that a record is in a batch."""
        return self.batch / self.examples

    def noise(self) -> float:
        """The noise multiplier that keeps ε."""
        from tacit import accounting as acc

        def family(noise: float) -> acc.Mechanism:
            return acc.PoissonSampled(acc.Gaussian(noise, unit=self.unit), self.rate) * self.steps

        return acc.calibrate(family, epsilon=self.epsilon, delta=self.delta, adjacency=self.adjacency)

    def spread(self, noise: float, parameters: int) -> float:
        """Length of the noise in the mean gradient over the whole run, in clip norms: σ √d / (B √T).

        A step's own noise is √T times this. What a run can learn is limited by it: it falls with 1/ε and 1/N, and with
        a larger batch until batches are so large that sampling gains nothing more.
        """
        return noise * math.sqrt(parameters) / (self.batch * math.sqrt(self.steps))


def plan(
    data: Annotated[str | None, typer.Argument(help="A known data set: its public size and schema are used.")] = None,
    schema: Annotated[Path | None, typer.Option(help="Or the public schema of a table (TOML).")] = None,
    examples: Annotated[int | None, typer.Option(help="The public number of records.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="The ε to keep.")] = None,
    delta: Annotated[float | None, typer.Option(help="The δ of (ε, δ), such as 1e-6.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the data.")] = None,
    steps: Annotated[int | None, typer.Option(help="Or the number of steps.")] = None,
    batch: Annotated[int, typer.Option(help="Expected batch size.")] = 256,
    model: Annotated[str, typer.Option(help="linear, mlp, cnn, or module:factory of your own.")] = "mlp",
    adjacency: Annotated[str, typer.Option(help="add-remove, replace-one or zero-out.")] = "add-remove",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Noise, ε under each accountant, time and memory of a run, and the change that would help most."""
    from tacit import accounting as acc

    public, rows = _public(data, schema, examples)
    if epsilon is None or not 0 < epsilon < math.inf:
        fail("give --epsilon, a number above 0", EXIT_USAGE)
    if delta is None or not 0 < delta < 1:
        fail("give --delta between 0 and 1, such as 1e-6", EXIT_USAGE)
    if (epochs is None) == (steps is None):
        fail("give --epochs or --steps, one of the two", EXIT_USAGE)
    if not 1 <= batch <= rows:
        fail(f"--batch lies between 1 and the {rows} records, not {batch}", EXIT_USAGE)
    count = steps if steps is not None else math.ceil(float(epochs or 0) * math.ceil(rows / batch))
    if count < 1:
        fail("a run has at least one step", EXIT_USAGE)
    case = Case(rows, batch, count, epsilon, delta, adjacency, public.unit.name)
    try:
        told = describe(case, public, model)
    except acc.AccountingError as error:
        fail(str(error))
    if as_json:
        typer.echo(json.dumps(told, indent=2, ensure_ascii=False))
    else:
        _tell(told)


def _public(data: str | None, schema: Path | None, examples: int | None) -> tuple[Schema, int]:
    """The public schema and size; the data themselves are not opened."""
    from tacit import datasets
    from tacit.schema import Schema, SchemaError

    if data is not None and schema is not None:
        fail("give a known data set or --schema, one of the two", EXIT_USAGE)
    try:
        if data is not None:
            known = datasets.entry(data)
            found = datasets.schema(data)
            size = examples or known.rows.get("train", known.total)
        elif schema is not None:
            found = Schema.from_toml(schema)
            if examples is None:
                fail("give --examples, the public number of records", EXIT_USAGE)
            size = examples
        else:
            fail("name a known data set (tacit data list), or give --schema and --examples", EXIT_USAGE)
    except (datasets.DatasetError, SchemaError) as error:
        fail(str(error))
    if size < 1:
        fail(f"--examples is a whole number, 1 or more, not {size}", EXIT_USAGE)
    if found.target is None:
        fail("the schema marks no column as the target (target = true): there is nothing to predict")
    return found, size


def describe(case: Case, schema: Schema, model: str) -> dict[str, Any]:
    """Everything the plan says, as plain values."""
    from tacit import accounting as acc
    from tacit.runs.models import ModelError

    noise = case.noise()
    mechanism = acc.PoissonSampled(acc.Gaussian(noise, unit=case.unit), case.rate) * case.steps
    bound = acc.epsilon(mechanism, case.delta, adjacency=case.adjacency)
    table = acc.compare(mechanism, case.delta, adjacency=case.adjacency)
    try:
        measured = _measure(case, schema, model, noise)
    except ModelError as error:
        fail(str(error), EXIT_USAGE)
    parameters = measured["parameters"]
    spread = case.spread(noise, parameters)
    return {
        "examples": case.examples,
        "batch": case.batch,
        "rate": case.rate,
        "steps": case.steps,
        "noise": noise,
        "epsilon": bound.to_dict(),
        "terms": bound.terms,
        "accountants": {
            way: table.refused[way] if way in table.refused else table[way].to_dict()["epsilon"] for way in table
        },
        "noise_of_a_step": spread * math.sqrt(case.steps),
        "noise_of_the_run": spread,
        "changes": _changes(case, spread, parameters, (len(schema.feature_names) + 1) * (len(schema.classes) or 1)),
        "model": model,
        **measured,
    }


def _changes(case: Case, spread: float, parameters: int, linear: int) -> list[dict[str, Any]]:
    """What other choices would do to the noise of the run, the best first.

    A smaller model is one of them as long as it is no smaller than the linear one, which has ``linear`` parameters.
    """
    passes = case.steps / math.ceil(case.examples / case.batch)

    def length(batch: int, examples: int, epochs: float) -> int:
        return max(1, math.ceil(epochs * math.ceil(examples / batch)))

    larger = min(4 * case.batch, case.examples)
    options = {
        f"a batch of {larger:,} for as many epochs": (
            dataclasses.replace(case, batch=larger, steps=length(larger, case.examples, passes)),
            parameters,
            "no privacy; time for larger batches",
        ),
        f"{2 * passes:g} epochs": (
            dataclasses.replace(case, steps=2 * case.steps),
            parameters,
            "no privacy; twice the time",
        ),
        f"ε = {2 * case.epsilon:g}": (
            dataclasses.replace(case, epsilon=2 * case.epsilon),
            parameters,
            "privacy: twice the ε",
        ),
        f"{2 * case.examples:,} records": (
            dataclasses.replace(case, examples=2 * case.examples, steps=length(case.batch, 2 * case.examples, passes)),
            parameters,
            "twice the data",
        ),
    }
    if parameters // 4 >= linear:
        smaller = "a quarter of the parameters"
        options[smaller] = (case, parameters // 4, "what the smaller model cannot express")
    rows = []
    for name, (other, count, price) in options.items():
        if other == case and count == parameters:
            continue
        after = other.spread(other.noise(), count)
        rows.append({"change": name, "noise_of_the_run": after, "times": after / spread, "costs": price})
    return sorted(rows, key=lambda row: row["times"])


def _measure(case: Case, schema: Schema, model: str, noise: float) -> dict[str, Any]:
    """Time of a step and memory, on random inputs of the data's public shape."""
    import torch
    from torch import nn

    from tacit.runs.models import build
    from tacit.runs.train import squared_error
    from tacit.schema import Numeric
    from tacit.sgd import Training

    inputs, outputs = len(schema.feature_names), len(schema.classes) or 1
    first = schema.features[0]
    shape = first.shape if len(schema.features) == 1 and isinstance(first, Numeric) else ()
    made = build(model, inputs, outputs, shape)
    rows = min(case.examples, 2 * case.batch)
    x = torch.rand(rows, inputs) * 2 - 1
    y = torch.randint(outputs, (rows,)) if schema.classes else torch.rand(rows)
    kept = 0

    def note(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal kept
        kept += tensor.numel() * tensor.element_size()
        return tensor

    training = Training(
        made,
        torch.optim.SGD(made.parameters(), lr=0.0, momentum=0.9),
        nn.CrossEntropyLoss(reduction="none") if schema.classes else squared_error,
        (x, y),
        batch_size=min(case.batch, rows),
        steps=TIMED + 1,
        noise_multiplier=noise,
        delta=min(case.delta, 0.1 / rows),
    )
    times = []
    for batch in training:
        began = time.perf_counter()
        training.step(batch)
        times.append(time.perf_counter() - began)
    piece = min(training.physical_batch, rows)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        made(x[:piece]).sum()
    parameters = sum(p.numel() for p in made.parameters())
    # Weights, their clipped sum, the gradient, momentum: four copies; activations and their gradients for a piece.
    memory = 4 * 4 * parameters + 2 * kept + 4 * case.examples * (inputs + 1)
    step = min(times[1:])
    return {"parameters": parameters, "seconds_a_step": step, "seconds": step * case.steps, "bytes": memory}


def _tell(told: dict[str, Any]) -> None:
    bound = told["epsilon"]
    typer.echo(
        f"noise multiplier {told['noise']:.4f}, {told['steps']:,} steps, batches of {told['batch']:,} on average"
    )
    typer.echo(f"  keeps ε = {bound['upper']:.6f} at δ = {bound['given']:g}, {told['terms']} (certified upper bound)\n")
    typer.echo("ε of this run by other accountants:")
    for way, value in told["accountants"].items():
        shown = f"{value:.4f}" if isinstance(value, float) else f"- ({value})"
        typer.echo(f"  {way:<10} {shown}")
    typer.echo(
        f"\nmodel {told['model']}: {told['parameters']:,} parameters; about {_duration(told['seconds'])} on this "
        f"machine ({told['seconds_a_step'] * 1000:.1f} ms a step), {told['bytes'] / 2**20:,.0f} MiB\n"
    )
    typer.echo(
        f"noise of a step {told['noise_of_a_step']:.3g}, of the run's mean gradient {told['noise_of_the_run']:.3g}"
    )
    typer.echo("(in clip norms: at 1 the noise is as long as the longest gradient). What would change the second:")
    for row in told["changes"]:
        typer.echo(f"  {row['change']:<40} x {row['times']:.2f}   costs: {row['costs']}")
    free = [row for row in told["changes"] if row["costs"].startswith("no privacy") and row["times"] < 0.97]
    if free:
        best = free[0]
        typer.echo(f"\nhelps most without costing privacy: {best['change']} (noise x {best['times']:.2f})")
    else:
        best = told["changes"][0]
        typer.echo(
            f"\nno larger batch or longer run would lower the noise; what helps most is {best['change']} "
            f"(noise x {best['times']:.2f})"
        )


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 1 else "1 s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def register(app: typer.Typer) -> None:
    """Add ``tacit plan`` to the application."""
    app.command("plan", epilog=EPILOG)(plan)
