"""What does it cost? The accountant's answers about one run, as pieces of a page."""

from __future__ import annotations

import dataclasses
import functools
import html
import math
import shlex
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tacit import accounting as acc
from tacit.accounting.samplers import BATCHES, sampler_runs
from tacit.report import plots, words
from tacit.report.elements import table
from tacit.report.plots import Axis, Line
from tacit.report.words import number, rounded
from tacit.studio.fields import ChoiceField, FieldError, NumberField, TextField

FIELDS = (
    NumberField("noise", "Noise multiplier", "1.1", 0.1, 100, help="standard deviation of the noise in clip norms"),
    NumberField("batch", "Batch size", "256", 1, 1e7, whole=True),
    NumberField("records", "Records", "60000", 1, 1e10, whole=True, help="a public number, or a guess"),
    NumberField("epochs", "Epochs", "15", 0.01, 1e4),
    NumberField("delta", "δ", "1e-5", 1e-15, 0.1),
    ChoiceField("sampler", "Sampler", tuple(BATCHES)),
    ChoiceField("adjacency", "Neighbours", ("add-remove", "zero-out", "replace-one")),
    TextField("unit", "Unit", "record"),
    NumberField(
        "group", "Units together", "1", 1, 100, whole=True, help="protected as one, such as the records of a person"
    ),
)
#: More steps than this are priced too, but no page waits for them while a slider moves.
MOST_STEPS = 20_000_000
#: Step counts in the drawing.
COUNTS = 24
#: How wide a price may be while a slider moves, and how wide as a share of the ε that is on the screen. It is certified
#: too; the page asks for the narrow one afterwards.
ROUGH, ROUGH_SHARE = 0.05, 0.1


#: What the accountants do, in words.
WAYS = {
    "basic": "the ε of every step, added up",
    "advanced": "the theorem of advanced composition",
    "moments": "the moments accountant of 2016",
    "rdp": "Rényi orders",
    "gdp": "a central limit theorem",
    "certified": "bounded from both sides; the one that counts",
}


@dataclasses.dataclass(frozen=True)
class Planned:
    """A run in public numbers, as somebody asks about it."""

    noise: float
    batch: int
    records: int
    epochs: float
    delta: float
    sampler: str
    adjacency: str
    unit: str
    group: int

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Planned:
        """From the fields of a form."""
        found: dict[str, Any] = {field.name: field.read(values) for field in FIELDS}
        found |= {name: int(found[name]) for name in ("batch", "records", "group")}
        made = cls(**found)
        if made.batch > made.records:
            raise FieldError(f"Batch size: {made.batch:,} cannot be drawn from {made.records:,} records", "batch")
        if made.steps > MOST_STEPS:
            message = f"Epochs: {made.steps:,} steps are more than a page can show; use tacit epsilon"
            raise FieldError(message, "epochs")
        return made

    @property
    def steps(self) -> int:
        """The number of steps, rounded up."""
        return math.ceil(self.epochs * self.records / self.batch)

    @functools.cached_property
    def mechanism(self) -> acc.Mechanism:
        """What would run."""
        step = acc.Gaussian(self.noise, unit=self.unit)
        return sampler_runs(step, batch=self.batch, examples=self.records, steps=self.steps)[self.sampler]

    @property
    def max_batch(self) -> int | None:
        """The largest batch of the truncated sampler."""
        part = self.mechanism.parts()[0][0]
        return part.max_batch if isinstance(part, acc.TruncatedPoissonSampled) else None


def no_price(plan: Planned) -> FieldError:
    """What is wrong where a sampler has no price between such neighbours."""
    return FieldError(f"Neighbours: {plan.sampler} has no price under {plan.adjacency}; choose another", "adjacency")


def _of_a_run(
    answer: Callable[[Planned, Mapping[str, Any]], dict[str, Any]],
) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """A question about the run that a form describes."""

    @functools.wraps(answer)
    def asked(values: Mapping[str, Any]) -> dict[str, Any]:
        plan = Planned.read(values)
        try:
            return answer(plan, values)
        except acc.AdjacencyError:
            raise no_price(plan) from None

    return asked


@functools.lru_cache(1024)
def priced(plan: Planned, tolerance: float | None = None) -> acc.Bound:
    """The certified price of a run."""
    return acc.epsilon(plan.mechanism, plan.delta, adjacency=plan.adjacency, group=plan.group, tolerance=tolerance)


def command(plan: Planned) -> str:
    """The command that gives the same price."""
    said = f"tacit epsilon --noise {_exact(plan.noise)} --batch {plan.batch} --examples {plan.records}"
    said += f" --epochs {_exact(plan.epochs)} --delta {_exact(plan.delta)}"
    said += f" --adjacency {plan.adjacency} --sampler {plan.sampler}"
    said += f" --max-batch {plan.max_batch}" if plan.max_batch is not None else ""
    said += f" --group {plan.group}" if plan.group != 1 else ""
    return said + (f" --unit {shlex.quote(plan.unit)}" if plan.unit != "record" else "")


def _exact(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def python(plan: Planned) -> str:
    """The program that gives the same price."""
    unit = f", unit={plan.unit!r}" if plan.unit != "record" else ""
    part, times = plan.mechanism.parts()[0]
    step = f"acc.Gaussian({plan.noise!r}{unit})"
    made = {
        "poisson": f"acc.PoissonSampled({step}, {plan.batch} / {plan.records})",
        "truncated": f"acc.TruncatedPoissonSampled({step}, {plan.batch} / {plan.records}, {plan.records}, "
        f"{plan.max_batch})",
        "fixed": f"acc.FixedSizeSampled({step}, {plan.batch}, {plan.records})",
        "balls-in-bins": f"acc.BallsInBins({step}, {getattr(part, 'bins', 1)})",
        "shuffled": f"acc.Shuffled({step}, {getattr(part, 'bins', 1)})",
    }[plan.sampler]
    group = f", group={plan.group}" if plan.group != 1 else ""
    return (
        "from tacit import accounting as acc\n\n"
        f"run = {made} * {times}\n"
        f"print(acc.epsilon(run, delta={plan.delta!r}, adjacency={plan.adjacency!r}{group}))"
    )


def _width(rough: Any) -> float | None:
    """How wide a price may be: ``rough`` is the ε that is on the screen while a slider moves.

    >>> _width(None), _width(True), _width("0.5"), _width("200"), _width("inf")
    (None, 0.1, 0.05, 20.0, 100.0)
    """
    if not rough:
        return None
    try:
        shown = min(float(rough), 1000.0)
    except (TypeError, ValueError):
        return ROUGH
    return max(ROUGH, float(f"{ROUGH_SHARE * shown:.1g}"))  # a nan is no width


@_of_a_run
def price(plan: Planned, values: Mapping[str, Any]) -> dict[str, Any]:
    """ε with its terms, the claim in a sentence, and how to ask for it elsewhere."""
    bound = priced(plan, _width(values.get("rough")))
    shown = number(rounded(bound.upper))
    text = (
        f'<div class="epsilon">ε = <output data-price="{bound.upper:.3g}" id="epsilon">{shown}</output>'
        f"<small>at δ = {number(plan.delta)}</small>"
        f"<small>{html.escape(bound.terms)}</small></div>"
        f'<div class="said"><p class="quote">{html.escape(words.claim(bound))}</p>'
        f"<p>Certified: ε is at least <b>{number(rounded(bound.lower, 6, up=False))}</b> and at most "
        f"<b>{number(rounded(bound.upper, 6))}</b>.</p>"
        f'<p class="muted">{html.escape(words.mechanism(plan.mechanism))}</p>'
        f"<details><summary>The same as a command and in Python</summary><pre>{html.escape(command(plan))}</pre>"
        f"<pre>{html.escape(python(plan))}</pre></details></div>"
    )
    return {"html": text, "epsilon": bound.to_dict(), "steps": plan.steps}


@_of_a_run
def attack(plan: Planned, _: Mapping[str, Any]) -> dict[str, Any]:
    """What any attack can find out, in words."""
    found = acc.risk(plan.mechanism, fpr=[0.01], prior=0.1, adjacency=plan.adjacency, group=plan.group)
    said, unit = words.secret(plan.adjacency), html.escape(plan.unit)
    text = (
        f"<p>{said.guessed.format(unit=unit)} "
        f"<b>{_percent(found.accuracy)}</b> of cases. A coin is right in 50%.</p>"
        f"<p>{said.accused[0]} <b>{_percent(float(found.tpr_upper[0]))}</b> {said.accused[1]}</p>"
        f"<p>{said.believed.format(unit=unit)} "
        f"<b>{_percent(found.posterior)}</b> afterwards, except with a probability of {found.chance:g}.</p>"
    )
    return {"html": text, "risk": found.to_dict()}


def _percent(share: float) -> str:
    return f"{math.ceil(share * 1000 * (1 - 1e-12)) / 10:g}%"


@_of_a_run
def curves(plan: Planned, _: Mapping[str, Any]) -> dict[str, Any]:
    """ε over the steps, and the trade-off curve."""
    bound = priced(plan)
    if not math.isfinite(bound.upper):
        return {"html": "<p>No curve is shown, because no finite ε is claimed.</p>"}
    times = plan.mechanism.parts()[0][1]
    counts = sorted({max(1, round(times * c * c)) for c in np.linspace(0, 1, COUNTS)})
    prices = [_after(plan, count) for count in counts]
    per = plan.steps / times
    steps = [min(plan.steps, round(count * per)) for count in counts]
    drawn = ""
    if len(counts) > 1:
        line = Line(steps, prices)
        drawn = _figure(
            plots.chart(
                "steps",
                "ε against steps",
                f"ε grows to {number(rounded(prices[-1]))} after {plan.steps:,} steps.",
                Axis("steps", 0, steps[-1]),
                Axis(f"ε at δ = {number(plan.delta)}", 0, max(prices) * 1.12),
                [line],
                area=line,
                mark=(steps[-1], prices[-1], f"ε = {number(rounded(prices[-1]))}"),
            ),
            "What the run has cost after each step (certified upper bound).",
        )
    curve = acc.tradeoff(plan.mechanism, points=49, adjacency=plan.adjacency, group=plan.group)
    alpha, lower = curve.alpha.tolist(), curve.lower.tolist()
    drawn += _figure(
        plots.chart(
            "tradeoff",
            "Trade-off curve",
            words.attacker(curve),
            Axis(words.secret(plan.adjacency).axes[0], 0, 1, percent=True),
            Axis(words.secret(plan.adjacency).axes[1], 0, 1, percent=True),
            [Line([0, 0.75, 1], [1, 0.25, 0], "second", "blind guessing"), Line(alpha, lower)],
            area=Line(alpha, lower),
        ),
        "No test has error rates in the shaded region.",
    )
    return {"html": drawn}


@functools.lru_cache(4096)
def _after(plan: Planned, count: int) -> float:
    part, _ = plan.mechanism.parts()[0]
    return acc.epsilon(part * count, plan.delta, adjacency=plan.adjacency, group=plan.group).upper


def _figure(drawing: str, caption: str) -> str:
    return f'<figure class="sheet">{drawing}<figcaption>{caption}</figcaption></figure>'


def samplers(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same run with every sampler, under every adjacency."""
    plan = Planned.read(values)
    step = acc.Gaussian(plan.noise, unit=plan.unit)
    shape = {"batch": plan.batch, "examples": plan.records, "steps": plan.steps}
    found = acc.compare_samplers(step, **shape, delta=plan.delta, group=plan.group)
    rows = []
    for name in found.mechanisms:
        cells = [_cell(found.prices.get((name, adjacency))) for adjacency in ("add-remove", "zero-out", "replace-one")]
        mark = "b" if name == plan.sampler else "span"
        rows.append([f'<{mark} translate="no">{name}</{mark}>', *cells, html.escape(BATCHES[name])])
    heads = [("sampler", ""), ("add-remove", "n"), ("zero-out", "n"), ("replace-one", "n"), ("batches", "")]
    note = '<p class="muted">Claim only the price of the sampler that draws your batches.</p>'
    return {"html": table(heads, rows) + note}


def _cell(bound: acc.Bound | None) -> str:
    if bound is None:
        return "–"
    if bound.tight or not math.isfinite(bound.upper):
        return number(rounded(bound.upper, 3))
    return f"{number(rounded(bound.upper, 3))}<br><small>≥ {number(rounded(bound.lower, 3, up=False))}</small>"


@_of_a_run
def accountants(plan: Planned, _: Mapping[str, Any]) -> dict[str, Any]:
    """What every accountant says about the run."""
    found = acc.compare(plan.mechanism, plan.delta, adjacency=plan.adjacency, group=plan.group)
    rows = []
    for way in found:
        mark = "b" if way == "certified" else "span"
        name = f"<{mark}>{way}</{mark}><br><small>{WAYS.get(way, '')}</small>"
        if way in found.refused:
            rows.append([name, "–", "not applicable to this mechanism"])
            continue
        one = found[way]
        kind = "approximation, can be too low" if one.approximation else "upper bound"
        rows.append([name, number(rounded(one.epsilon, 3, up=not one.approximation)), kind])
    return {"html": table([("accountant", ""), ("ε", "n"), ("what it is", "")], rows)}
