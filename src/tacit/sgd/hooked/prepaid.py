"""Who pays for a loop that somebody else wrote, and when? A charge in the ledger, before the first step.

A loop is open-ended; a charge is not. :class:`Prepaid` holds the plan of a run (how many steps, at least how much
noise), charges all of it when the first step is about to be released, and refuses a step that the charge does not
cover: one too many, one with less noise, one that adds up several draws.

A run that goes on after a checkpoint has two ways. With the key of the run (:meth:`Prepaid.take_up`) it makes the very
releases that were paid for. With new noise (:meth:`Prepaid.go_on`) it may use what its charge has left only if nobody
else did: the first step after a checkpoint is noted in the ledger, so that a checkpoint whose run went on is
recognised, and the steps from there are charged anew.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from tacit import accounting as acc
from tacit.accounting.correlated import INDEPENDENT, Correlation
from tacit.accounting.errors import PrivacyWarning
from tacit.ledger import BudgetExceeded, Charge, ChargeError, FingerprintMismatch, Ledger, TermsError
from tacit.ledger.fingerprint import fingerprint_of_items
from tacit.noise.process import OneProcess
from tacit.sgd.hooked.draws import Spent
from tacit.sgd.training.checkpoint import CheckpointError, check_entry
from tacit.sgd.training.plan import Plan, make_plan
from tacit.sgd.training.sampling import Poisson, RandomBins, Sampler

#: How messages name a checkpoint whose place only its trainer knows.
CHECKPOINT = Path("the checkpoint")


class Prepaid(OneProcess):
    """Pays for the releases of a :class:`~tacit.sgd.hooked.loop.Loop` before they are made.

    Guarantee: every release that :meth:`take` allows is part of a mechanism that the ledger has recorded for
    ``dataset``. A step with more noise than the plan's is covered, because noise can be added to what was paid for.

    >>> from tacit.sgd.training.sampling import Poisson
    >>> ledger = Ledger()
    >>> _ = ledger.register("people", epsilon=3.0, delta=1e-5)
    >>> paid = Prepaid(ledger, "people", Plan(Poisson(1000, 10), (1.0,) * 2, (1.0,) * 2, delta=1e-6))
    >>> paid.take(1.0)
    >>> ledger.budget("people").charges, paid.left
    (1, 1)
    """

    def __init__(self, ledger: Ledger, dataset: str, plan: Plan, *, purpose: str = "", data: Any = None) -> None:
        check_terms(ledger, dataset, plan.sampler.adjacency, plan.unit)
        self.ledger, self.dataset, self.plan = ledger, dataset, plan
        #: The fingerprint of the data, or the data that it is taken of.
        self.data = data if isinstance(data, str | None) else recognised(ledger, dataset, data)
        self.purpose = purpose or f"private training, {plan.steps:,} steps"
        self.length, self.noise = plan.steps, min(plan.noise)
        self.charge: Charge | None = None
        #: what the charge still covers: steps, or passes over the data where those are what is priced
        self.left = 0
        self._taken = 0
        self._met: set[int] = set()
        self._entry: dict[str, Any] | None = None
        self._saved = False

    # -- paying -----------------------------------------------------------------------------------------------------

    def quote(self) -> None:
        """Refuse now what :meth:`begin` would refuse."""
        self.ledger.quote(self.dataset, self.plan.mechanism, delta=self.plan.delta)

    def refuse_early(self) -> None:
        """:meth:`quote` before the run begins, unless the same step was charged before.

        Then the run may go on from a checkpoint, under a charge that is already in the budget, and it is the first step
        that is refused.
        """
        own = {part for part, _ in self.plan.mechanism.parts() if not isinstance(part, acc.ApproxDP)}
        try:
            self.quote()
        except BudgetExceeded:
            before = [record.mechanism.parts() for record in self.ledger.history(self.dataset) if record.readable]
            if not any(part in own for parts in before for part, _ in parts):
                raise

    def begin(self) -> None:
        """Charge the whole plan, unless that is done."""
        self.check_process()
        if self._entry is not None:
            return
        plan = self.plan
        self.charge = self.ledger.charge(
            self.dataset, plan.mechanism, delta=plan.delta, purpose=self.purpose, data=self.data
        )
        self.left = _priced_units(plan.sampler, plan.steps)
        self._entry = {
            "dataset": self.dataset,
            "charge": self.charge.number,
            "head": self.charge.head,
            "mechanism": plan.mechanism.to_dict(),
            "run": [plan.sampler.to_dict(), self.length, plan.elements],
            "noise": self.noise,
        }

    def take(self, noise: float, draws: int = 1, passes: Collection[int] = ()) -> None:
        """One release is about to be made: charge the plan if it is the first, and refuse what is not covered."""
        poisson = isinstance(self.plan.sampler, Poisson)
        if noise < self.noise:
            raise ChargeError(
                f"this step has noise multiplier {noise:g}, and what is charged to {self.dataset!r} has at least "
                f"{self.noise:g}: begin with the least noise of the schedule"
            )
        if draws > 1 and isinstance(self.plan.sampler, Poisson | RandomBins):
            raise ChargeError(
                f"this step adds up {draws} draws, and {self.dataset!r} is charged for one draw a step: take a larger "
                "batch_size and BatchMemoryManager, which splits one draw into pieces"
            )
        self.begin()
        needed = 1 if poisson else len(set(passes) - self._met)
        if needed > self.left:
            raise ChargeError(
                f"the {self.length:,} steps that were charged to {self.dataset!r} are made; another one is not paid "
                "for. To go on, make the model private again: that is a new charge"
            )
        if self._saved and self.charge is not None:
            # Whoever loads the checkpoint that was saved sees that its run went on.
            self.charge = self.ledger.resume(self.dataset, self.charge.number)
            self._saved = False
        self.left -= needed
        self._met |= set(passes)
        self._taken += 1

    def released(self) -> None:
        """A release was made: with the last one the charge is confirmed."""
        if self._taken >= self.plan.steps or (self.left == 0 and isinstance(self.plan.sampler, Poisson)):
            self.confirm()

    def confirm(self) -> None:
        """Record that what was paid for has been released."""
        if self.charge is not None and not self.charge.confirmed:
            self.charge.confirm()

    # -- checkpoints ------------------------------------------------------------------------------------------------

    def entry(self) -> dict[str, Any] | None:
        """For the checkpoint of a run that keeps its key: which charge, and what it still covers."""
        return None if self._entry is None else {**self._entry, "left": self.left, "met": sorted(self._met)}

    def saved(self) -> dict[str, Any] | None:
        """For the checkpoint of a run that will go on with new noise."""
        found = self.entry()
        if found is not None:
            self._saved = True
            found["notes"] = self.ledger.mentions(self.dataset, found["charge"])
        return found

    def take_up(self, entry: Mapping[str, Any] | None) -> None:
        """Go on under the charge of a checkpoint, with its key: the same releases, so nothing is charged again."""
        entry = check_charged(entry, self.ledger, self.dataset)
        self.adopt(entry)
        self._met = set(entry.get("met", ()))
        if not self._confirmed(entry["charge"]):
            self.charge = self.ledger.resume(self.dataset, entry["charge"])

    def go_on(self, entry: Mapping[str, Any] | None) -> None:
        """Go on from a checkpoint with new noise: under its charge where nobody used the rest of it, else anew."""
        if entry is None or self._entry is not None:
            return  # its own earlier state, or a run that has paid for itself: what was taken stays taken
        entry = check_charged(entry, self.ledger, self.dataset)
        plan = self.plan
        if list(entry["run"]) != [plan.sampler.to_dict(), self.length, plan.elements] or entry["noise"] > self.noise:
            self._say("this is another run than the one of the checkpoint (length, batch size, noise, data or model)")
            self.quote()
            return
        number, left = entry["charge"], int(entry["left"])
        if left == 0:
            self.adopt(entry)
            return
        if not self._confirmed(number) and self.ledger.mentions(self.dataset, number) == entry["notes"]:
            charge = self.ledger.resume(self.dataset, number)
            # Looked at again: of two that load the checkpoint at the same time at most one goes on under its charge.
            if self.ledger.mentions(self.dataset, number) == entry["notes"] + 1:
                self.adopt(entry)
                self.charge = charge
                return
        self._say("the run of this checkpoint went on after it was saved, or was loaded before; its charge stays spent")
        each = 1 if isinstance(plan.sampler, Poisson) else plan.sampler.pass_length
        self.noise = float(entry["noise"])
        self.plan = planned(plan.sampler, left * each, self.noise, plan.delta, plan.elements, plan.unit)
        self.quote()

    def adopt(self, entry: Mapping[str, Any]) -> None:
        """Count on from an entry, without a word to the ledger."""
        self._entry = {k: v for k, v in entry.items() if k not in ("left", "met", "notes")}
        self.left = int(entry["left"])
        self.noise = float(entry["noise"])

    def _say(self, why: str) -> None:
        warnings.warn(f"{why}. The steps from here are charged anew", PrivacyWarning, stacklevel=4)

    def _confirmed(self, number: str) -> bool:
        return self.ledger.record(self.dataset, number).confirmed


class Asked:
    """The ε that a loop was asked to keep, and the plan that keeps it; says so when the loop goes beyond the plan.

    A loop is open-ended and may set its noise: what it then costs is stated, and is more than what was asked for.
    """

    def __init__(self, epsilon: float, plan: Plan) -> None:
        self.epsilon, self.plan = epsilon, plan
        self.taken = 0
        self._met: set[int] = set()
        self._said = False

    def take(self, noise: float, draws: int, passes: Collection[int]) -> None:
        """One release is about to be made."""
        plan = self.plan
        self.taken += 1
        self._met |= set(passes)
        more = self.taken > plan.steps
        if isinstance(plan.sampler, Poisson | RandomBins):
            more = more or draws > 1
        if not isinstance(plan.sampler, Poisson):
            more = more or len(self._met) > _priced_units(plan.sampler, plan.steps)
        if not self._said and (more or noise < min(plan.noise)):
            self._said = True
            warnings.warn(
                f"target_epsilon={self.epsilon:g} was asked for {plan.steps:,} steps of one draw each with noise "
                f"multiplier {min(plan.noise):g}; this step goes beyond that (the {self.taken:,}th, {draws} draws, "
                f"noise multiplier {noise:g}). The target is not kept from here on: get_epsilon states what was spent",
                PrivacyWarning,
                stacklevel=2,
            )

    def rest(self, done: int) -> Spent:
        """The steps that the plan has left after ``done`` of them."""
        plan, left = self.plan, max(0, self.plan.steps - done)
        found = Spent(plan.sampler, plan.elements, plan.unit)
        if left:
            found.add(min(plan.noise), times=left, passes=range(math.ceil(left / plan.sampler.pass_length)))
        return found


def planned(
    sampler: Sampler,
    steps: int,
    noise: float,
    delta: float,
    elements: int,
    unit: str = "record",
    correlation: Correlation = INDEPENDENT,
) -> Plan:
    """The plan of a run whose noise is given."""
    return make_plan(
        sampler,
        steps=steps,
        epsilon=None,
        noise_multiplier=noise,
        clip_norm=1.0,
        delta=delta,
        adjacency=sampler.adjacency,
        elements=elements,
        unit=unit,
        correlation=correlation,
    )


def check_terms(ledger: Ledger | None, dataset: str | None, adjacency: str, unit: str = "record") -> None:
    """Refuse a ledger whose terms are not those of a loop: unit, adjacency, public size."""
    if (ledger is None) != (dataset is None):
        raise ValueError("give ledger= and dataset= together: the ledger, and the name the data are registered under")
    if ledger is None or dataset is None:
        return
    terms = ledger.dataset(dataset)
    if terms.unit != unit:
        raise TermsError(
            f"{dataset!r} is registered for one {terms.unit}, and this loop protects one {unit}: give groups=, one id "
            f"for each record, with unit={terms.unit!r}. See: tacit explain unit-without-groups"
        )
    if terms.adjacency != adjacency:
        raise TermsError(f"{dataset!r} is registered for {terms.adjacency}, and this loop is priced for {adjacency}")
    if not terms.size_public:
        raise TermsError(
            f"the number of {unit}s in {dataset!r} is private, and the sampling rate of this loop is made of it: use "
            "tacit.sgd.Training with size=, a number chosen without looking at it"
        )


def recognised(ledger: Ledger | None, dataset: str | None, data: Any) -> str | None:
    """The fingerprint of what a loop reads, after comparing it with the one that is registered."""
    if ledger is None or dataset is None:
        return None
    tensors = getattr(data, "tensors", None)
    if tensors is not None:
        return ledger.recognise(dataset, ledger.fingerprint(tuple(tensors)))
    try:
        found = fingerprint_of_items(data, ledger.secret())
    except TypeError:
        found = None
    if found is None and ledger.dataset(dataset).fingerprint is not None:
        raise FingerprintMismatch(
            f"{dataset!r} is registered with a fingerprint, and this data set has none, because its items are drawn "
            "anew each time or hold something else than arrays, numbers and texts. See: tacit explain fingerprint"
        )
    return None if found is None else ledger.recognise(dataset, found)


def check_charged(entry: Mapping[str, Any] | None, ledger: Ledger | None, dataset: str | None) -> dict[str, Any]:
    """The ledger's entry in a checkpoint, verified against the ledger."""
    if entry is None:
        raise CheckpointError("the run of this checkpoint was not charged to a ledger: what it spent is in none")
    state = {"ledger": dict(entry), "mechanism": entry["mechanism"]}
    check_entry(CHECKPOINT, state, ledger, dataset)
    return dict(entry)


def _priced_units(sampler: Sampler, steps: int) -> int:
    return steps if isinstance(sampler, Poisson) else math.ceil(steps / sampler.pass_length)


__all__ = ["Asked", "Prepaid", "check_charged", "check_terms", "planned", "recognised"]
