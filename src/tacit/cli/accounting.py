"""``tacit epsilon`` and ``tacit calibrate``: what does a training run cost, and which noise meets a target?"""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli.common import EXIT_USAGE, fail

if TYPE_CHECKING:
    from collections.abc import Callable

    from tacit import accounting as acc

SAMPLERS = ("poisson", "truncated", "fixed", "shuffled", "balls-in-bins")

Noise = Annotated[float | None, typer.Option(help="Noise multiplier: standard deviation divided by the clip norm.")]
Rate = Annotated[
    float | None, typer.Option(help="Probability that a record is in a batch, or give --batch and --examples.")
]
Batch = Annotated[int | None, typer.Option(help="Expected batch size (fixed sampler: exact batch size).")]
Examples = Annotated[int | None, typer.Option(help="Number of records, which is treated as public.")]
Steps = Annotated[int | None, typer.Option(help="Number of steps, or give --epochs.")]
Epochs = Annotated[float | None, typer.Option(help="Passes over the data; the number of steps is rounded up.")]
Delta = Annotated[float | None, typer.Option(help="The δ of (ε, δ), such as 1e-5.")]
Adjacency = Annotated[str, typer.Option(help="add-remove, replace-one or zero-out.")]
Group = Annotated[int, typer.Option(help="How many records one person may have. They are protected together.")]
Unit = Annotated[str, typer.Option(help="The unit that one record stands for: record, person, visit, …")]
Sampler = Annotated[str, typer.Option(help=f"How batches are drawn: {', '.join(SAMPLERS)}.")]
MaxBatch = Annotated[int | None, typer.Option(help="The largest batch of the truncated sampler.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print machine-readable JSON.")]
Samplers = Annotated[
    bool,
    typer.Option("--samplers", help="What the same run would cost with every sampler, under every adjacency."),
]
Risks = Annotated[
    bool, typer.Option("--risk", help="What any attack could find out: true positive rates, advantage and odds.")
]
Plot = Annotated[Path | None, typer.Option(help="Draw ε against steps for each accountant (.svg, .png, .pdf).")]

EPSILON_EPILOG = """
[bold]Examples[/bold]

    $ tacit epsilon --noise 1.1 --batch 256 --examples 60000 --epochs 15 --delta 1e-5

    $ tacit epsilon --noise 2 --rate 0.01 --steps 10000 --delta 1e-6 --adjacency replace-one

    $ tacit epsilon --noise 1.1 --batch 256 --examples 60000 --epochs 15 --delta 1e-5 --group 4 --plot epsilon.svg

[bold]Which sampler?[/bold]

    $ tacit epsilon --noise 1.1 --batch 256 --examples 60000 --epochs 15 --delta 1e-5 --samplers

The noise and the number of steps stay; only how batches are drawn changes.

- poisson and balls-in-bins are cheap: an attacker does not know in which batch a record was.

- balls-in-bins has passes: each record comes once in each of them.

- fixed: a drawn record displaces another, which costs more.

- shuffled: no amplified price is known. (≥ x) is what is revealed at least.

Claim only the price of the sampler that draws your batches.
"""
CALIBRATE_EPILOG = """
Finds the one parameter that you leave out: the noise or, with --noise, the number of steps, the rate or δ.

[bold]Examples[/bold]

    $ tacit calibrate --epsilon 3 --batch 256 --examples 60000 --epochs 15 --delta 1e-5

    $ tacit calibrate --epsilon 3 --noise 1.1 --rate 0.01 --delta 1e-5          the number of steps

    $ tacit calibrate --epsilon 3 --noise 1.1 --rate 0.01 --steps 5000          the smallest δ
"""


@dataclasses.dataclass(frozen=True)
class _Run:
    """A training run as described on the command line: how one step and how many make a mechanism."""

    sampler: str
    given_rate: float | None
    batch: int | None
    examples: int | None
    given_steps: int | None
    epochs: float | None
    max_batch: int | None
    unit: str

    def __post_init__(self) -> None:
        self._check_numbers()
        if self.batch is not None and self.examples is not None and self.batch > self.examples:
            fail(f"a batch of {self.batch} cannot be drawn from {self.examples} records", EXIT_USAGE)
        if self.given_rate is not None and self.batch is not None:
            fail("give either --rate or --batch and --examples", EXIT_USAGE)
        if self.given_steps is not None and self.epochs is not None:
            fail("give either --steps or --epochs", EXIT_USAGE)
        if self.sampler not in SAMPLERS:
            fail(f"unknown sampler {self.sampler!r}; choose one of {', '.join(SAMPLERS)}", EXIT_USAGE)
        if self.sampler != "poisson" and (self.batch is None or self.examples is None):
            fail(f"the {self.sampler} sampler needs --batch and --examples", EXIT_USAGE)
        if self.sampler == "truncated" and self.max_batch is None:
            fail("the truncated sampler needs --max-batch", EXIT_USAGE)

    def _check_numbers(self) -> None:
        for name in ("batch", "examples", "max_batch"):
            value = getattr(self, name)
            if value is not None and value < 1:
                fail(f"--{name.replace('_', '-')} is a whole number, 1 or more, not {value}", EXIT_USAGE)
        if self.given_rate is not None and not 0 <= self.given_rate <= 1:
            fail(f"--rate must be in [0, 1], not {self.given_rate:g}", EXIT_USAGE)
        if self.epochs is not None and not (math.isfinite(self.epochs) and self.epochs >= 0):
            fail(f"--epochs is a number, 0 or more, not {self.epochs:g}", EXIT_USAGE)
        if self.given_steps is not None and self.given_steps < 0:
            fail(f"--steps is a whole number, 0 or more, not {self.given_steps}", EXIT_USAGE)

    @property
    def rate(self) -> float | None:
        """The chance that a record is in a batch, where it is known."""
        return self.given_rate if self.batch is None or self.examples is None else self.batch / self.examples

    @property
    def steps(self) -> int | None:
        """The number of steps, rounded up from epochs; None where neither was given."""
        if self.given_steps is not None:
            return self.given_steps
        if self.epochs is None:
            return None
        if not self.rate:
            fail("--epochs needs --batch and --examples, or --rate", EXIT_USAGE)
        if self.batch is not None and self.examples is not None:
            return math.ceil(self.epochs * self.examples / self.batch)
        return math.ceil(self.epochs / self.rate)

    @property
    def passes(self) -> bool:
        """Whether the sampler is described by the pass rather than by the step."""
        return self.sampler in ("shuffled", "balls-in-bins")

    def step(self, noise: float, rate: float | None = None) -> acc.Mechanism:
        """One step, or for samplers that go through the data in passes, one pass."""
        from tacit import accounting as acc

        release = acc.Gaussian(noise, unit=self.unit)
        if self.sampler == "shuffled":
            assert self.examples is not None
            assert self.batch is not None
            return acc.Shuffled(release, math.ceil(self.examples / self.batch))
        if self.sampler == "poisson":
            chosen = self.rate if rate is None else rate
            if chosen is None:
                fail("give --rate, or --batch and --examples", EXIT_USAGE)
            return acc.PoissonSampled(release, chosen)
        assert self.batch is not None
        assert self.examples is not None
        if self.sampler == "balls-in-bins":
            return acc.BallsInBins(release, math.ceil(self.examples / self.batch))
        if self.sampler == "fixed":
            return acc.FixedSizeSampled(release, self.batch, self.examples)
        assert self.max_batch is not None
        return acc.TruncatedPoissonSampled(release, self.batch / self.examples, self.examples, self.max_batch)

    def times(self, steps: int | None = None) -> int:
        """How often :meth:`step` runs."""
        count = self.steps if steps is None else steps
        if count is None:
            fail("give --steps or --epochs", EXIT_USAGE)
        if not self.passes:
            return count
        assert self.batch is not None
        assert self.examples is not None
        return math.ceil(count / math.ceil(self.examples / self.batch))


def epsilon(
    noise: Noise = None,
    rate: Rate = None,
    batch: Batch = None,
    examples: Examples = None,
    steps: Steps = None,
    epochs: Epochs = None,
    delta: Delta = None,
    adjacency: Adjacency = "add-remove",
    group: Group = 1,
    unit: Unit = "record",
    sampler: Sampler = "poisson",
    max_batch: MaxBatch = None,
    samplers: Samplers = False,
    risk: Risks = False,
    as_json: AsJson = False,
    plot: Plot = None,
) -> None:
    """Compute the certified ε of a training run, next to what other accountants say."""
    run = _Run(sampler, rate, batch, examples, steps, epochs, max_batch, unit)
    if noise is None:
        fail("give --noise (or let tacit calibrate find it)", EXIT_USAGE)
    if delta is None:
        fail("give --delta, such as 1e-5", EXIT_USAGE)
    from tacit import accounting as acc

    try:
        if samplers:
            _tell_samplers(run, noise, delta, group, as_json=as_json)
            return
        step, times = run.step(noise), run.times()
        told = _price(step, times, delta, adjacency, group)
        if risk:
            told["risk"] = acc.risk(told["mechanism"], adjacency=adjacency, group=group)
        if plot is not None:
            _draw(plot, step, times, delta, adjacency, group, passes=run.passes)
    except acc.AccountingError as error:
        fail(str(error), EXIT_USAGE)
    _tell(told, plot, as_json=as_json)


def calibrate(
    epsilon: Annotated[float, typer.Option(help="The target ε.")],
    noise: Noise = None,
    rate: Rate = None,
    batch: Batch = None,
    examples: Examples = None,
    steps: Steps = None,
    epochs: Epochs = None,
    delta: Delta = None,
    adjacency: Adjacency = "add-remove",
    group: Group = 1,
    unit: Unit = "record",
    sampler: Sampler = "poisson",
    max_batch: MaxBatch = None,
    as_json: AsJson = False,
    plot: Plot = None,
) -> None:
    """Find the noise (or steps, rate, δ) that meets a target ε and never exceeds it."""
    run = _Run(sampler, rate, batch, examples, steps, epochs, max_batch, unit)
    from tacit import accounting as acc

    if not 0 < epsilon < math.inf:
        fail(f"--epsilon must be a finite number above 0, not {epsilon:g}", EXIT_USAGE)
    missing = [
        name
        for name, given in (
            ("noise", noise is not None),
            ("rate", run.rate is not None),
            ("steps", run.given_steps is not None or run.epochs is not None),
            ("delta", delta is not None),
        )
        if not given
    ]
    if len(missing) != 1:
        what = "leave one out" if not missing else f"only one of {', '.join(missing)} can be found: give the others"
        fail(f"calibration finds one of noise, rate, steps and delta; {what}", EXIT_USAGE)
    terms: dict[str, Any] = {"epsilon": epsilon, "adjacency": adjacency, "group": group}
    try:
        found = _solve(run, missing[0], noise, delta, terms)
    except acc.AccountingError as error:
        fail(str(error), EXIT_USAGE if "out of reach" not in str(error) else 1)
    step, times, delta = found["step"], found["times"], found["delta"]
    told = _price(step, times, delta, adjacency, group)
    told["calibrated"] = {"parameter": missing[0], "value": found["value"], "target_epsilon": epsilon}
    if (
        missing[0] == "noise"
        and batch
        and examples
        and sampler == "poisson"
        and adjacency != "replace-one"
        and group == 1
    ):
        told["bands"] = acc.choose_bands(examples, batch, times, epsilon=epsilon, delta=delta, adjacency=adjacency)[0]
    if plot is not None:
        _draw(plot, step, times, delta, adjacency, group, passes=run.passes)
    _tell(told, plot, as_json=as_json)


def _solve(run: _Run, missing: str, noise: float | None, delta: float | None, terms: dict[str, Any]) -> dict[str, Any]:
    """The value of what is missing, with the run it completes."""
    from tacit import accounting as acc

    family: Callable[[Any], acc.Mechanism]
    if missing == "noise":
        assert delta is not None
        times = run.times()
        if times == 0:
            raise acc.AccountingError("a run of 0 steps costs ε = 0 with any noise; give --steps or --epochs above 0")

        def family(noise: float) -> acc.Mechanism:
            return run.step(noise) * times

        value = acc.calibrate(family, delta=delta, **terms)
        return {"value": value, "step": run.step(value), "times": times, "delta": delta}
    assert noise is not None
    if missing == "steps":
        assert delta is not None
        times = acc.calibrate_steps(run.step(noise), delta=delta, **terms)
        return {"value": times, "step": run.step(noise), "times": times, "delta": delta}
    times = run.times()
    if missing == "rate":
        assert delta is not None

        def family(rate: float) -> acc.Mechanism:
            return run.step(noise, rate) * times

        value = acc.calibrate_rate(family, delta=delta, **terms)
        return {"value": value, "step": run.step(noise, value), "times": times, "delta": delta}
    step = run.step(noise)
    value = acc.calibrate_delta(step * times, **terms)
    return {"value": value, "step": step, "times": times, "delta": value}


def _price(step: acc.Mechanism, times: int, delta: float, adjacency: str, group: int) -> dict[str, Any]:
    from tacit import accounting as acc

    mechanism = step * times
    bound = acc.epsilon(mechanism, delta, adjacency=adjacency, group=group)
    return {"mechanism": mechanism, "bound": bound, "sentence": sentence(bound), "times": times}


def _tell_samplers(run: _Run, noise: float, delta: float, group: int, *, as_json: bool) -> None:
    """The same noise, batch and number of steps with every sampler."""
    from tacit import accounting as acc

    if run.batch is None or run.examples is None:
        fail("--samplers needs --batch and --examples", EXIT_USAGE)
    if run.steps is None:
        fail("give --steps or --epochs", EXIT_USAGE)
    table = acc.compare_samplers(
        acc.Gaussian(noise, unit=run.unit),
        batch=run.batch,
        examples=run.examples,
        steps=run.steps,
        delta=delta,
        max_batch=run.max_batch,
        group=group,
    )
    typer.echo(json.dumps(table.to_dict(), indent=2, ensure_ascii=False) if as_json else repr(table))


def _compare(told: dict[str, Any]) -> acc.Comparison:
    from tacit import accounting as acc

    bound = told["bound"]
    return acc.compare(told["mechanism"], bound.given, adjacency=bound.adjacency, group=bound.group)


def sentence(bound: acc.Bound) -> str:
    """The guarantee in plain language, with its adjacency and unit."""
    who = f"any one {bound.unit}" if bound.group == 1 else f"any {bound.group} {bound.unit}s together"
    if math.isinf(bound.upper) and bound.given == 0:
        return "No pure guarantee holds: at δ = 0 no finite ε covers this noise. Ask at a δ above 0."
    if math.isinf(bound.upper):
        return f"No protection is claimed: what is released may reveal {who} for certain."
    terms = {
        "add-remove": f"With or without {who}",
        "replace-one": f"Whichever values {who} had",
        "zero-out": f"With the contribution of {who} counted or blanked",
    }[bound.adjacency]
    rounded = math.ceil(bound.upper * 1000) / 1000  # up, so that what is said still holds
    factor = f"e^{rounded:g} = {math.exp(rounded):.4g}" if rounded < 700 else f"e^{rounded:g}"
    slack = f", give or take a probability of {bound.given:g}" if bound.given else ""
    return (
        f"{terms}, whatever is concluded from what this run releases is at most {factor} times as likely{slack}. "
        f"Stated for: {bound.terms}."
    )


def _tell(told: dict[str, Any], plot: Path | None, *, as_json: bool) -> None:
    found = told.get("calibrated")
    if as_json:
        plain: dict[str, Any] = {
            "mechanism": told["mechanism"].to_dict(),
            "times": told["times"],
            "epsilon": told["bound"].to_dict(),
            "comparison": _compare(told).to_dict(),
            "sentence": told["sentence"],
        }
        if "risk" in told:
            plain["risk"] = told["risk"].to_dict()
        if found:
            plain["calibrated"] = found
        if "bands" in told:
            plain["bands"] = dataclasses.asdict(told["bands"])
        if plot is not None:
            plain["plot"] = str(plot)
        typer.echo(json.dumps(plain, indent=2, ensure_ascii=False))
        return
    if found:
        value = found["value"]
        shown = f"{value:,}" if isinstance(value, int) else f"{value:.10g}"
        typer.echo(f"{found['parameter']} = {shown} meets ε = {found['target_epsilon']:g}")
    typer.echo(repr(told["bound"]))
    typer.echo(f"for {told['mechanism']!r}\n")
    typer.echo(repr(_compare(told)))  # after the certified price, which is there first
    typer.echo(f"\n{told['sentence']}")
    if "bands" in told and told["bands"].bands > 1:
        best = told["bands"]
        typer.echo(
            f"\nAt the same ε, noise=Banded() of {best.bands} bands (noise multiplier {best.noise_multiplier:.4g}) "
            f"is predicted to leave {best.error:.3f} times that noise in the weights."
        )
    if "risk" in told:
        typer.echo(f"\n{told['risk']!r}")
    if plot is not None:
        typer.echo(f"\n{plot}")


def _draw(
    path: Path, step: acc.Mechanism, times: int, delta: float, adjacency: str, group: int, *, passes: bool
) -> None:
    """ε against the number of steps for every accountant that applies."""
    from tacit import accounting as acc

    if times < 1:
        raise acc.AccountingError("there is nothing to draw for a run of 0 steps")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    curve = acc.epsilon_over_steps(step, times, delta, points=200, adjacency=adjacency, group=group)
    counts = sorted({max(1, round(times ** (i / 23))) for i in range(24)})
    figure, axes = plt.subplots(figsize=(7.2, 4.4), layout="constrained")
    colors = {"basic": "#b0b0b0", "advanced": "#8c8c8c", "moments": "#c98a2b", "rdp": "#4477aa", "gdp": "#aa4477"}
    ends: list[tuple[float, str, str]] = []
    for name, color in colors.items():
        accountant = acc.accountants.ACCOUNTANTS[name]
        try:
            values = [accountant(step * n, delta, adjacency=adjacency, group=group).epsilon for n in counts]
        except acc.NotApplicable:
            continue
        label = "gdp (approximation)" if name == "gdp" else name
        axes.plot(counts, values, color=color, lw=1.6, ls="--" if name == "gdp" else "-")
        ends.append((values[-1], label, color))
    axes.plot(curve.steps, curve.upper, color="black", lw=2.4)
    ends.append((float(curve.upper[-1]), "certified", "black"))
    axes.set_xscale("log")
    axes.set_yscale("log")
    finite = [value for value, _, _ in ends if 0 < value < math.inf]
    if not finite:
        raise acc.AccountingError("ε is infinite or 0 for every accountant: there is nothing to draw")
    axes.set_ylim(top=max(finite) * 1.6)
    for height, (value, label, color) in zip(_spread([e[0] for e in sorted(ends)], axes), sorted(ends), strict=True):
        if 0 < value < math.inf:
            axes.annotate(
                f" {label} {value:.4g}", (times, height), color=color, va="center", fontsize=9, annotation_clip=False
            )
    axes.set_xlabel("passes over the data" if passes else "steps")
    axes.set_ylabel(f"ε at δ = {delta:g}")
    terms = acc.epsilon(acc.nothing(step.unit), delta, adjacency=adjacency, group=group).terms
    axes.set_title(f"{step!r}\n{terms}", fontsize=9, loc="left")
    axes.grid(True, which="major", color="#e6e6e6", lw=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _spread(values: list[float], axes: Any) -> list[float]:
    """Heights for labels at the end of each line, apart enough to be read (ascending, on a logarithmic axis)."""
    low, high = (math.log(max(v, 1e-300)) for v in axes.get_ylim())
    gap = 0.052 * (high - low)
    places: list[float] = []
    for value in values:
        wanted = math.log(value) if 0 < value < math.inf else low
        places.append(max(wanted, places[-1] + gap) if places else wanted)
    return [math.exp(place) for place in places]


def register(app: typer.Typer) -> None:
    """Add ``tacit epsilon`` and ``tacit calibrate`` to the application."""
    app.command("epsilon", epilog=EPSILON_EPILOG)(epsilon)
    app.command("calibrate", epilog=CALIBRATE_EPILOG)(calibrate)
