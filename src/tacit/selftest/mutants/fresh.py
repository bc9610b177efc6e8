"""Which mistakes did nobody look for? Faults that were written without a look at the scenes, and that these missed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from tacit import accounting as acc
from tacit.selftest.mutants.base import mutant, replaced


@mutant("an order of a filter comes back", "accounting", room="accounting", scenes=("prices: filters",))
def order_comes_back() -> Iterator[None]:
    """What an order cannot pay is not added to its sum: a later, smaller release finds it open."""

    def spend(self: Any, mechanism: Any) -> None:
        after = self.spent + self._cost(mechanism)
        if not np.any(after <= self.budget):
            raise acc.FilterExceeded("nothing is left")
        self.spent = np.where(after <= self.budget, after, self.spent)

    with replaced(acc.RenyiFilter, "spend", spend):
        yield


@mutant("the ledger's filter is chosen anew", "accounting", room="ledger", scenes=("ledger: in any order",))
def filter_chosen_anew() -> Iterator[None]:
    """Each charge chooses between the sum and the Rényi orders, so what one of them refuses the other grants."""
    from tacit.ledger.rules import RenyiRule, TightRule

    def add(self: Any, totals: Any, price: Any) -> Any:
        after = totals.plus(price)
        return dataclasses.replace(after, mode="renyi" if RenyiRule.within(self, after) else "sum")

    with replaced(TightRule, "add", add):
        yield


@mutant("old failures keep their price", "accounting", room="ledger", scenes=("ledger: in any order",))
def old_failures() -> Iterator[None]:
    """A raised ε makes failures that were granted before dearer, and nobody counts them again."""
    from tacit.ledger.rules import RenyiRule

    with replaced(RenyiRule, "failure_limit", property(lambda self: self.failure_share * self.delta)):
        yield


@mutant("groups are drawn at each step", "sampling", scenes=("kinds: corr",))
def groups_at_each_step() -> Iterator[None]:
    """With correlated noise a record waits for the turn of its group, which is another one at each step."""
    from tacit.noise.sampling import taking_part
    from tacit.sgd.training import sampling

    def draw(self: Any, key: Any, step: int, units: int) -> Any:
        drawn = taking_part(key, step, units, self.rate)
        groups = sampling.bins_of(key.derive("groups"), step, units, self.groups)
        return np.asarray(drawn[groups[drawn] == step % self.groups])

    with replaced(sampling.CyclicPoisson, "draw", draw):
        yield


@mutant("the newest part of correlated noise is too small", "noise", scenes=("kinds: corr",))
def newest_too_small() -> Iterator[None]:
    """What a step adds of its own is multiplied where it should be divided."""
    from tacit.sgd import release

    add = release._add_normal

    def smaller(sums: Any, key: Any, step: int, scale: float, shards: Any) -> None:
        add(sums, key, step, 1 / scale if scale > 1 else scale, shards)

    with replaced(release, "_add_normal", smaller):
        yield


@mutant("a card's other adjacency has the price of its claim", "accounting", room="report", scenes=("report: cards",))
def other_adjacency() -> Iterator[None]:
    """Beside the claim stands what a replaced record would cost, priced as an added one."""
    from tacit.report import card

    def stated(run: Any, adjacency: str) -> dict[str, Any]:
        bound = acc.epsilon(run.mechanism, run.delta, adjacency=run.adjacency)
        return {"adjacency": adjacency, "lower": bound.lower, "upper": bound.upper}

    with replaced(card, "_stated", stated):
        yield


@mutant("a search is priced by how its coins fell", "sampling", room="runs", scenes=("runs: coins",))
def priced_by_coins() -> Iterator[None]:
    """The rate is that of the rows that were left to train on, whose number nobody may know."""
    from tacit.runs import search
    from tacit.sgd import Training

    parted = search.parted

    def told(records: Any, every: int, key: bytes) -> Any:
        parts = parted(records, every, key)
        told.count = len(parts[0][0])  # type: ignore[attr-defined]
        return parts

    def counted(*args: Any, **more: Any) -> Any:
        return Training(*args, **(more | {"size": max(told.count, more["batch_size"])}))  # type: ignore[attr-defined]

    with replaced(search, "parted", told), replaced(search, "Training", counted):
        yield


@mutant("every row counts in the accuracy of a fit", "sensitivity", room="runs", scenes=("runs: fits",))
def accuracy_by_rows() -> Iterator[None]:
    """A person with many rows moves the accuracy that is released beside a fit by all of them."""
    from tacit.runs import fit

    with replaced(fit, "_by_unit", lambda answers, table, schema: np.asarray(answers, dtype=float)):
        yield


@mutant("metrics on private rows are logged", "accounting", room="integrations", scenes=("Trainer: charges",))
def private_metrics_logged() -> Iterator[None]:
    """A Trainer that evaluates on the rows that it learns from tells its loggers."""
    from tacit.integrations.transformers import PrivateMixin

    with replaced(PrivateMixin, "_public", lambda self, logs: dict(logs)):
        yield


@mutant("a resumed run has other masks", "noise", room="integrations", scenes=("Lightning: res",), needs=("lightning",))
def other_masks() -> Iterator[None]:
    """Dropout goes on with new masks and the old noise: the difference of two releases has none."""
    from tacit.integrations.lightning import PrivateTraining

    with replaced(PrivateTraining, "on_train_batch_start", lambda self, *args: None):
        yield
