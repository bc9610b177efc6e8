"""What would a run cost in noise, time and memory, before a single record is read? The work of ``tacit plan``.

Everything here comes from public numbers: the data's size and schema, the model, and the settings. Time and memory are
measured on random inputs of the right shape.
"""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any

import torch

from tacit import accounting as acc
from tacit.runs.models import build, loss_for
from tacit.runs.read import Form
from tacit.schema import Schema
from tacit.sgd import Training

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

        def family(noise: float) -> acc.Mechanism:
            return acc.PoissonSampled(acc.Gaussian(noise, unit=self.unit), self.rate) * self.steps

        return acc.calibrate(family, epsilon=self.epsilon, delta=self.delta, adjacency=self.adjacency)

    def spread(self, noise: float, parameters: int) -> float:
        """Length of the noise in the mean gradient over the whole run, in clip norms: σ √d / (B √T).

        A step's own noise is √T times this. What a run can learn is limited by it: it falls with 1/ε and 1/N, and with
        a larger batch until batches are so large that sampling gains nothing more.
        """
        return noise * math.sqrt(parameters) / (self.batch * math.sqrt(self.steps))


def describe(case: Case, schema: Schema, model: str) -> dict[str, Any]:
    """Everything the plan says, as plain values."""
    noise = case.noise()
    mechanism = acc.PoissonSampled(acc.Gaussian(noise, unit=case.unit), case.rate) * case.steps
    bound = acc.epsilon(mechanism, case.delta, adjacency=case.adjacency)
    table = acc.compare(mechanism, case.delta, adjacency=case.adjacency)
    measured = _measure(case, schema, model, noise)
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
    if case.adjacency != "replace-one":
        rows += _correlated(case, spread)
    return sorted(rows, key=lambda row: row["times"])


def _correlated(case: Case, spread: float) -> list[dict[str, Any]]:
    """What noise that takes back noise of earlier steps is predicted to do, where that helps."""
    best = acc.choose_bands(
        case.examples, case.batch, case.steps, epsilon=case.epsilon, delta=case.delta, adjacency=case.adjacency
    )[0]
    if best.bands == 1:
        return []
    name, costs = f"--noise banded ({best.bands} bands)", f"no privacy; memory for {best.bands - 1} more gradients"
    return [{"change": name, "noise_of_the_run": spread * best.error, "times": best.error, "costs": costs}]


def _measure(case: Case, schema: Schema, model: str, noise: float) -> dict[str, Any]:
    """Time of a step and memory, on random inputs of the data's public shape."""
    form = Form.of(schema)
    made = build(model, form)
    rows = min(case.examples, 2 * case.batch)
    x = torch.rand(rows, form.inputs) * 2 - 1
    y = torch.randint(form.outputs, (rows,)) if schema.classes else torch.rand(rows)
    kept = 0

    def note(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal kept
        kept += tensor.numel() * tensor.element_size()
        return tensor

    training = Training(
        made,
        torch.optim.SGD(made.parameters(), lr=0.0, momentum=0.9),
        loss_for(schema),
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
    memory = 4 * 4 * parameters + 2 * kept + 4 * case.examples * (form.inputs + 1)
    step = min(times[1:])
    return {"parameters": parameters, "seconds_a_step": step, "seconds": step * case.steps, "bytes": memory}
