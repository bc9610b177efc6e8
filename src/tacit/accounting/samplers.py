"""What would the same run cost if its batches were drawn in another way?

The same noise, batch and number of steps, priced for each sampler and each adjacency. Only what is drawn may be
priced: the table says what a sampler would cost if it drew the batches, not what a run may claim.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from tacit.accounting.base import ADJACENCIES, Mechanism, check_whole
from tacit.accounting.bound import Bound
from tacit.accounting.errors import AccountingError, AdjacencyError
from tacit.accounting.mechanisms import Gaussian
from tacit.accounting.poisson import PoissonSampled
from tacit.accounting.pricing import epsilon
from tacit.accounting.sampling import BallsInBins, FixedSizeSampled, Shuffled, TruncatedPoissonSampled

#: What each sampler's batches are like.
BATCHES = {
    "poisson": "each record in each step by chance; batches differ in size",
    "balls-in-bins": "each record once a pass, in a random batch; batches differ in size",
    "truncated": "as poisson, batches cut at max_batch",
    "fixed": "batches of one size, without replacement",
    "shuffled": "each record once a pass, batches of one size; no amplified price is known",
}


@dataclasses.dataclass(frozen=True, eq=False)
class SamplerPrices:
    """The price of one run with every sampler, under every adjacency; made by :func:`compare_samplers`.

    Args:
        mechanisms: What ran with each sampler, by name.
        prices: The prices by (sampler, adjacency).
        refused: Why there is none, by (sampler, adjacency).
        delta: The δ of the guarantee.
        steps: The number of steps; samplers with passes are priced for each pass that was begun.
        passes: The number of passes.
        unit: Whom the guarantee protects.
        group: How many units are protected together.

    Example:
        >>> from tacit.accounting import Gaussian, compare_samplers
        >>> table = compare_samplers(Gaussian(1.0), batch=10, examples=100, steps=10, delta=1e-5)
        >>> table.prices["balls-in-bins", "zero-out"].upper < table.prices["poisson", "zero-out"].upper
        True
    """

    mechanisms: dict[str, Mechanism]
    prices: dict[tuple[str, str], Bound]
    refused: dict[tuple[str, str], str]
    delta: float
    steps: int
    passes: int
    unit: str
    group: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        rows = []
        for name, mechanism in self.mechanisms.items():
            found = {a: self.prices[name, a].to_dict() for a in ADJACENCIES if (name, a) in self.prices}
            why = {a: self.refused[name, a] for a in ADJACENCIES if (name, a) in self.refused}
            row = {"sampler": name, "batches": BATCHES[name], "mechanism": mechanism.to_dict()}
            rows.append({**row, "epsilon": found, "refused": why})
        terms = {"delta": self.delta, "unit": self.unit, "group": self.group}
        return {**terms, "steps": self.steps, "passes": self.passes, "samplers": rows}

    def __repr__(self) -> str:
        who = f"one {self.unit}" if self.group == 1 else f"{self.group} {self.unit}s together"
        rows: list[tuple[str, ...]] = [("sampler", "add or remove", "zero out", "replace", "batches")]
        for name in self.mechanisms:
            cells = [self._shown(name, adjacency) for adjacency in ("add-remove", "zero-out", "replace-one")]
            rows.append((name, *cells, BATCHES[name]))
        wide = [max(len(row[i]) for row in rows) for i in range(4)]
        lines = [
            "  ".join([f"{row[0]:<{wide[0]}}", *(f"{row[i]:<{wide[i]}}" for i in (1, 2, 3)), row[4]]).rstrip()
            for row in rows
        ]
        run = f"{self.steps:,} steps ({self.passes:,} {'pass' if self.passes == 1 else 'passes'})"
        title = f"ε at δ={self.delta:g} of {run} for {who}, by how batches are drawn"
        return "\n".join([title, *lines])

    def _shown(self, name: str, adjacency: str) -> str:
        price = self.prices.get((name, adjacency))
        if price is None:
            return "-"
        if math.isinf(price.upper):
            return "inf"
        upper = f"{math.ceil(price.upper * 1000) / 1000:.3f}"
        return upper if price.tight else f"{upper} (≥ {math.floor(price.lower * 1000) / 1000:.3f})"


def compare_samplers(
    mechanism: Gaussian,
    *,
    batch: int,
    examples: int,
    steps: int,
    delta: float,
    max_batch: int | None = None,
    group: int = 1,
) -> SamplerPrices:
    """The ε of the same run with every sampler, under every adjacency.

    Args:
        mechanism: The Gaussian noise of each step.
        batch: The expected batch size; for fixed and shuffled batches the exact one.
        examples: The number of records. It is public.
        steps: The number of steps. Samplers with passes are priced for each pass that these begin.
        delta: The δ of the guarantee.
        max_batch: The largest batch of the truncated sampler. None (default): six standard deviations above ``batch``.
        group: How many units one neighbour changes together (default 1).

    Returns:
        The prices, with the reason where there is none. An interval whose ends belong to different pairs is shown with
        both of them: what may be claimed, and what is revealed at least.

    Raises:
        AccountingError: If the batch is larger than the data, or a number is out of range.

    Example:
        >>> from tacit import accounting as acc
        >>> table = acc.compare_samplers(acc.Gaussian(2.0), batch=50, examples=200, steps=4, delta=1e-5)
        >>> print("\\n".join(repr(table).splitlines()[:3]))
        ε at δ=1e-05 of 4 steps (1 pass) for one record, by how batches are drawn
        sampler ...
        poisson        1.366            1.366            2.074 ...
    """
    check_whole("group", group)
    runs = sampler_runs(mechanism, batch=batch, examples=examples, steps=steps, max_batch=max_batch)
    passes = math.ceil(steps / math.ceil(examples / batch))
    prices: dict[tuple[str, str], Bound] = {}
    refused: dict[tuple[str, str], str] = {}
    for name, run in runs.items():
        for adjacency in ADJACENCIES:
            try:
                prices[name, adjacency] = epsilon(run, delta, adjacency=adjacency, group=group)
            except AdjacencyError as error:
                refused[name, adjacency] = str(error)
            except AccountingError as error:
                if group == 1:
                    raise
                refused[name, adjacency] = str(error)
    return SamplerPrices(runs, prices, refused, float(delta), steps, passes, mechanism.unit, int(group))


def sampler_runs(
    mechanism: Gaussian, *, batch: int, examples: int, steps: int, max_batch: int | None = None
) -> dict[str, Mechanism]:
    """What runs with each sampler, by its name; the parameters are those of :func:`compare_samplers`."""
    for name, value in (("batch", batch), ("examples", examples)):
        check_whole(name, value)
    check_whole("steps", steps, 0)
    if batch > examples:
        raise AccountingError(f"a batch of {batch} cannot be drawn from {examples} records")
    if not isinstance(mechanism, Gaussian):
        raise AccountingError(f"samplers are compared for Gaussian noise, not {mechanism!r}")
    bins, rate = math.ceil(examples / batch), batch / examples
    passes = math.ceil(steps / bins)
    largest = max_batch if max_batch is not None else min(math.ceil(batch + 6 * math.sqrt(batch)), examples)
    return {
        "poisson": PoissonSampled(mechanism, rate) * steps,
        "balls-in-bins": BallsInBins(mechanism, bins) * passes,
        "truncated": TruncatedPoissonSampled(mechanism, rate, examples, largest) * steps,
        "fixed": FixedSizeSampled(mechanism, batch, examples) * steps,
        "shuffled": Shuffled(mechanism, bins) * passes,
    }
