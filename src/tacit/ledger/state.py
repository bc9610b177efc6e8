"""What do the entries so far add up to? One value, which every entry carries, so that the newest one is enough.

A charge is granted on the newest entry and the registration alone, however long the history is. ``verify`` replays the
history with the same function and compares what each entry carries.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tacit.ledger.rules import Price, RenyiRule, Rule, Totals, make_rule

if TYPE_CHECKING:
    from tacit.ledger.views import DatasetTerms

#: The lengths of time that a renewal or a schedule may name, in days.
PERIODS = {"day": 1, "week": 7, "month": 30, "quarter": 91, "year": 365}


@dataclasses.dataclass(frozen=True)
class State:
    """The sums, counts and budget of a data set after some entry.

    ``totals`` are the sums that the budget is compared with. Where versions of the data go out of use (``window``),
    ``cohorts`` holds the sums of the people who came with each version, and ``totals`` those of the people who have
    spent most.
    """

    totals: Totals = dataclasses.field(default_factory=Totals)
    charges: int = 0
    confirmed: int = 0
    #: The budget, where it was raised since the registration.
    epsilon: float | None = None
    delta: float | None = None
    #: Why nothing is granted; empty where it is.
    frozen: str = ""
    #: The share of the budget of each team, and what each has spent.
    shares: Mapping[str, float] = dataclasses.field(default_factory=dict)
    spent: Mapping[str, Totals] = dataclasses.field(default_factory=dict)
    #: The newest version of the data.
    version: int = 1
    cohorts: Mapping[int, Totals] = dataclasses.field(default_factory=dict)
    #: How many runs of each schedule are left.
    plans: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for an entry: ``totals``, and ``state`` with what is not as at the start."""
        plain: dict[str, Any] = {"charges": self.charges, "confirmed": self.confirmed}
        plain |= {name: getattr(self, name) for name in ("epsilon", "delta") if getattr(self, name) is not None}
        plain |= {"frozen": self.frozen} if self.frozen else {}
        plain |= {"shares": dict(self.shares)} if self.shares else {}
        plain |= {"spent": {team: t.to_dict() for team, t in self.spent.items()}} if self.spent else {}
        plain |= {"version": self.version} if self.version > 1 else {}
        plain |= {"cohorts": {str(c): t.to_dict() for c, t in self.cohorts.items()}} if self.cohorts else {}
        plain |= {"plans": dict(self.plans)} if self.plans else {}
        return {"totals": self.totals.to_dict(), "state": plain}

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any]) -> State:
        """Read what :meth:`to_dict` wrote into an entry; KeyError for an entry of form 1."""
        plain = dict(entry["state"])
        plain["spent"] = {team: Totals.from_dict(t) for team, t in plain.get("spent", {}).items()}
        plain["cohorts"] = {int(c): Totals.from_dict(t) for c, t in plain.get("cohorts", {}).items()}
        return cls(Totals.from_dict(entry["totals"]), **plain)


def rule_at(terms: DatasetTerms, state: State, time: str) -> Rule:
    """The registered rule for the budget of that time: as registered or raised, and renewed as often as was fixed."""
    epsilon = terms.epsilon if state.epsilon is None else state.epsilon
    delta = terms.delta if state.delta is None else state.delta
    renewal = terms.renewal
    if renewal is None and (epsilon, delta) == (terms.epsilon, terms.delta):
        return terms.rule
    if renewal is not None:
        times = min(periods(renewal["since"], time, renewal["every"]), renewal["times"])
        epsilon, delta = epsilon + times * renewal["epsilon"], min(delta + times * renewal["delta"], 1 - 1e-9)
    return remade(terms.rule, epsilon, delta)


def remade(rule: Rule, epsilon: float, delta: float) -> Rule:
    """The same rule with the same orders for another budget."""
    plain = rule.to_dict()
    orders = tuple(plain["orders"]) if "orders" in plain else None
    share = {"failure_share": plain["failure_share"]} if "failure_share" in plain else {}
    made = make_rule(plain["rule"], epsilon, delta, orders, **share)
    # charges are priced under the rule as it was registered
    return dataclasses.replace(made, priced_at=rule.epsilon) if isinstance(made, RenyiRule) else made


def periods(since: str, until: str, every: str) -> int:
    """How many whole periods lie between two times.

    >>> periods("2026-01-01T00:00:00+00:00", "2028-01-01T00:00:00+00:00", "year")
    2
    """
    gone = datetime.datetime.fromisoformat(until) - datetime.datetime.fromisoformat(since)
    return max(0, gone // datetime.timedelta(days=PERIODS[every]))


def charged(terms: DatasetTerms, state: State, price: Price, time: str, team: str, version: int | None) -> State | str:
    """The state after a charge, or why it is refused: ``"frozen"``, ``"team"``, ``"version"`` or ``"budget"``."""
    rule = rule_at(terms, state, time)
    if state.frozen:
        return "frozen"
    on = state.version if version is None else version
    if not 1 <= on <= state.version:
        return "version"
    cohorts = dict(state.cohorts)
    if terms.window is None:
        totals = rule.add(state.totals, price)
    else:
        # The people of a version came with it or with one of the window before it; they pay for what is made of it.
        # Whoever came with version c is in none after c + window - 1: somebody who returns would pay twice.
        live = range(max(1, on - terms.window + 1), on + 1)
        if live[0] < state.version - 2 * terms.window:
            return "version"
        cohorts |= {c: rule.add(cohorts.get(c, Totals()), price) for c in live}
        totals = cohorts[live[0]]
        if not all(rule.within(cohorts[c]) for c in live):
            return "budget"
        cohorts = {c: t for c, t in cohorts.items() if c >= state.version - 3 * terms.window}
    if not rule.within(totals):
        return "budget"
    spent = dict(state.spent)
    if state.shares:
        spent[team] = rule.add(spent.get(team, Totals()), price)
        share = state.shares.get(team, max(0.0, 1.0 - sum(state.shares.values())) if not team else 0.0)
        if not rule.within_share(spent[team], share):
            return "team"
    return dataclasses.replace(state, totals=totals, charges=state.charges + 1, spent=spent, cohorts=cohorts)


def after(terms: DatasetTerms, state: State, entry: Mapping[str, Any], confirmed: set[str]) -> State | str:
    """The state after any entry, replayed; a text says why no ledger would have written it."""
    kind = entry["kind"]
    if kind == "reserve":
        price = Price.from_dict(entry["price"])
        team = entry.get("by", {}).get("team", "")
        found = charged(terms, state, price, entry["time"], team, entry.get("version"))
        if isinstance(found, str):
            return "was granted although it exceeds the budget"
        return found if "schedule" not in entry else scheduled(found, entry["charge"], entry["schedule"]["times"])
    if kind == "draw":
        left = state.plans.get(entry["plan"], 0)
        return scheduled(state, entry["plan"], left - 1) if left else "is a run of a schedule that has none left"
    if kind == "confirm":
        new = entry["charge"] not in confirmed
        confirmed.add(entry["charge"])
        return dataclasses.replace(state, confirmed=state.confirmed + new)
    if kind == "budget":
        return changed(state, entry["change"])
    if kind == "version":
        return dataclasses.replace(state, version=state.version + 1)
    return state


def scheduled(state: State, plan: str, left: int) -> State:
    """The state with so many runs of a schedule left."""
    others = {number: runs for number, runs in state.plans.items() if number != plan}
    return dataclasses.replace(state, plans=others | ({plan: left} if left else {}))


def changed(state: State, change: Mapping[str, Any]) -> State:
    """The state after a change of the budget: ``raise``, ``split``, ``freeze`` or ``thaw``."""
    kind = change["kind"]
    if kind == "raise":
        return dataclasses.replace(state, epsilon=change["epsilon"], delta=change["delta"])
    if kind == "split":
        return dataclasses.replace(state, shares=dict(change["shares"]))
    return dataclasses.replace(state, frozen=change["because"] if kind == "freeze" else "")
