"""Who may change a budget or add data, and what stays of it? Every change is an entry, by a role, with a reason.

A change never takes anything back: what was spent stays spent, and nothing moves from one group of people to another.
"""

from __future__ import annotations

import dataclasses
import getpass
import math
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from tacit import accounting as acc
from tacit.ledger.book import time_after
from tacit.ledger.errors import AccessDenied, ChargeError, DatasetExists, FingerprintMismatch, TermsError
from tacit.ledger.fingerprint import FORMER, PREFIX
from tacit.ledger.state import PERIODS, State, changed, periods, remade, scheduled
from tacit.ledger.store import Already, Ends
from tacit.ledger.terms import check_number, check_text, is_number

if TYPE_CHECKING:
    from tacit.ledger.charge import Charge
    from tacit.ledger.core import Ledger
    from tacit.ledger.views import DatasetTerms


class Changes:
    """The part of :class:`tacit.ledger.Ledger` that changes budgets and data."""

    def raise_budget(self: Ledger, dataset: str, *, epsilon: float, delta: float, because: str) -> None:  # type: ignore[misc]
        """Raise the budget. The guarantee is from now on that of the larger one, for all charges, past and future.

        Guarantee:
            Everything charged is (``epsilon``, ``delta``)-DP, if the raise did not depend on results. If it did, the
            guarantee is that of the largest budget to which the owner could have been moved.

        Args:
            dataset: The name of the data set.
            epsilon: The new ε of the whole budget, not less than the old one.
            delta: The new δ of the whole budget, not less than the old one.
            because: The public reason.

        Raises:
            TermsError: If the budget would be smaller.
            AccessDenied: If this role may not raise budgets.
        """

        def check(state: State, time: str) -> Mapping[str, Any]:
            terms = self.dataset(dataset)
            now = remade(
                terms.rule, state.epsilon or terms.epsilon, terms.delta if state.delta is None else state.delta
            )
            numbers = is_number(epsilon) and is_number(delta)
            if not (numbers and now.epsilon <= epsilon < math.inf and now.delta <= delta < 1):
                raise TermsError(
                    f"a budget is only raised: from ε={now.epsilon:g}, δ={now.delta:g} to at least as much, not to "
                    f"ε={epsilon!r}, δ={delta!r}"
                )
            if not remade(terms.rule, float(epsilon), float(delta)).within(state.totals) and now.within(state.totals):
                raise TermsError(
                    f"at ε={float(epsilon):g} nothing more would be granted: what may fail with a small probability "
                    "(cut batches, (ε, δ)-mechanisms) is charged there already, and each failure costs 1 + e^ε. Raise "
                    "ε by less, or δ with it"
                )
            return {"kind": "raise", "epsilon": float(epsilon), "delta": float(delta)}

        _change(self, dataset, check, because, ("owner",))

    def split_budget(self: Ledger, dataset: str, shares: Mapping[str, float], *, because: str) -> None:  # type: ignore[misc]
        """Give teams their shares of the budget. Each team may spend its own only; the rest is for those without one.

        Args:
            dataset: The name of the data set.
            shares: The part of the budget of each team, from 0 to 1, together at most 1.
            because: The public reason.

        Raises:
            TermsError: If the shares are no shares.
            AccessDenied: If this role may not split budgets.
        """
        if not isinstance(shares, Mapping):
            raise TermsError(f"shares are the part of the budget of each team, by its name, not {shares!r}")
        given = {check_text("a team", team): share for team, share in shares.items()}
        fine = all(team and is_number(share) and 0 <= share <= 1 for team, share in given.items())
        if not fine or len(given) > 50 or sum(given.values()) > 1 + 1e-12:
            raise TermsError("shares are numbers from 0 to 1, together at most 1, for at most 50 teams")
        change = {"kind": "split", "shares": {team: float(share) for team, share in given.items()}}
        _change(self, dataset, lambda state, time: change, because, ("owner",))

    def freeze(self: Ledger, dataset: str, *, because: str) -> None:  # type: ignore[misc]
        """Grant nothing more until :meth:`thaw`.

        Args:
            dataset: The name of the data set.
            because: The public reason, which every refusal shows.

        Raises:
            AccessDenied: If this role may not freeze budgets.
        """
        _change(self, dataset, lambda state, time: {"kind": "freeze"}, because, ("owner", "auditor"))

    def thaw(self: Ledger, dataset: str, *, because: str) -> None:  # type: ignore[misc]
        """End a freeze.

        Args:
            dataset: The name of the data set.
            because: The public reason.

        Raises:
            AccessDenied: If this role may not thaw budgets.
        """
        _change(self, dataset, lambda state, time: {"kind": "thaw"}, because, ("owner",))

    def transfer(self, dataset: str, to: str) -> NoReturn:
        """Refuse: what is left for some people cannot be spent on others, who were promised something else.

        Args:
            dataset: The name of the data set.
            to: The name of another one.

        Raises:
            TermsError: Always.
        """
        raise TermsError(
            f"a budget is a promise to the people in {dataset!r}: it cannot be moved to {to!r}, whose people have "
            "their own. Raise that budget instead, if its owner says so"
        )

    def accept(self: Ledger, dataset: str, data: Any, *, because: str, version: int | None = None) -> str:  # type: ignore[misc]
        """Register the same people in another form, on the owner's word: a derived table, another selection of columns.

        Charges on it count in the same budget.

        Args:
            dataset: The name of the data set.
            data: The data in their other form, or a fingerprint.
            because: The public reason.
            version: The version of growing data that these are. None means the newest.

        Returns:
            The fingerprint that is accepted from now on.

        Raises:
            AccessDenied: If this role may not add data.
            TermsError: If there is no such version.
        """
        return _add_data(self, dataset, "data", data, because, version)

    def new_version(self: Ledger, dataset: str, data: Any, *, because: str) -> int:  # type: ignore[misc]
        """Register the next version of growing data: the same people, some gone, some new.

        Guarantee:
            Without a ``window`` everybody pays for every charge on any version, so the budget goes on. With one, people
            pay for the versions that they are in, if these lie within as many consecutive ones as were registered.

        Args:
            dataset: The name of the data set.
            data: The new version, or its fingerprint.
            because: The public reason.

        Returns:
            The number of the version.

        Raises:
            AccessDenied: If this role may not add data.
        """
        _add_data(self, dataset, "version", data, because)
        return self.budget(dataset, exact=False).version

    def plan(  # type: ignore[misc]
        self: Ledger,
        dataset: str,
        mechanism: acc.Mechanism,
        *,
        every: Literal["day", "week", "month", "quarter", "year"],
        times: int,
        delta: float | None = None,
        purpose: str = "",
    ) -> Charge:
        """Price and reserve a schedule in advance, such as retraining each month, as one charge.

        All runs are fixed now, so they are priced together, which is less than the sum of their prices.

        Args:
            dataset: The name of the data set.
            mechanism: What one run does.
            every: How often.
            times: How many runs.
            delta: The whole schedule's part of the data set's δ. None takes the registered share.
            purpose: Why, for everybody to read.

        Returns:
            The charge of the whole schedule. Each run takes its part with :meth:`draw`.

        Raises:
            BudgetExceeded: If the schedule does not fit.
            TermsError: If ``every`` or ``times`` is no schedule, or people leave the data (``window``): those who come
                later would not have paid.

        Example:
            >>> from tacit.ledger import Ledger
            >>> ledger = Ledger()
            >>> _ = ledger.register("people", epsilon=3.0, delta=1e-5)
            >>> year = ledger.plan("people", acc.Gaussian(20.0), every="month", times=12, purpose="monthly mean")
            >>> run = ledger.draw("people", year.number, purpose="January")
            >>> ledger.budget("people").charges
            1
        """
        schedule = check_schedule(self.dataset(dataset), mechanism, every, times)
        return self._charge(dataset, mechanism * times, delta=delta, purpose=purpose, schedule=schedule)

    def draw(  # type: ignore[misc]
        self: Ledger,
        dataset: str,
        plan: str,
        *,
        purpose: str = "",
        data: str | None = None,
        number: str | None = None,
        mechanism: acc.Mechanism | None = None,
    ) -> Charge:
        """Take the next run of a schedule that was reserved with :meth:`plan`. It is paid for, so nothing is charged.

        Args:
            dataset: The name of the data set.
            plan: The number of the schedule's charge.
            purpose: Why, for everybody to read.
            data: The fingerprint of the data that are read, as :meth:`recognise` returned it.
            number: For work that survives a crash: a random number of your own, as in :meth:`charge`.
            mechanism: What is about to run, which must be what was reserved. None trusts the caller.

        Returns:
            The charge of this run, of price 0.

        Raises:
            ChargeError: If there is no such schedule, its runs are made, or the next one is not due.
            FingerprintMismatch: If ``data`` are not registered under this name.
        """
        return _draw(self, dataset, plan, check_text("a purpose", purpose), data, check_number(number), mechanism)


def check_schedule(terms: DatasetTerms, mechanism: acc.Mechanism, every: str, times: int) -> dict[str, Any]:
    """What the entry of a schedule says: how often, how many runs, and what one run does."""
    if every not in PERIODS or isinstance(times, bool) or not isinstance(times, int) or times < 1:
        raise TermsError(f"a schedule has every (one of {', '.join(PERIODS)}) and a positive number of times")
    if terms.window is not None:
        raise TermsError(
            f"people come to {terms.name!r} and leave it (window={terms.window}): whoever comes later would not pay "
            "for a schedule that is reserved now. Charge each run on its version"
        )
    return {"every": every, "times": times, "mechanism": mechanism.to_dict()}


def _role(ledger: Ledger) -> dict[str, str]:
    """Who acts: the bearer of a token, or whoever holds the file or the database, which is all rights there are."""
    return ledger._by or {"role": "owner", "name": check_text("a name", getpass.getuser())}


def _allow(ledger: Ledger, roles: tuple[str, ...], what: str) -> dict[str, Any]:
    by = _role(ledger)
    if by["role"] not in roles:
        raise AccessDenied(f"{by['name']} is {by['role']} here; {what} is for the {' or the '.join(roles)}")
    return {"by": by}


def _change(
    ledger: Ledger,
    dataset: str,
    check: Callable[[State, str], Mapping[str, Any]],
    because: str,
    roles: tuple[str, ...],
) -> None:

    who, reason = _allow(ledger, roles, "changing a budget this way"), check_text("a reason", because)
    if not reason:
        raise TermsError("say why the budget changes: because=, for everybody to read")

    def decide(ends: Ends) -> dict[str, Any]:
        state, when = ledger._state(ends), time_after(ends.last)
        change = {**check(state, when["time"]), "because": reason}
        return {"kind": "budget", "change": change, **when, **changed(state, change).to_dict(), **who}

    ledger._append(dataset, decide)


def version_read(terms: DatasetTerms, state: State, ends: Ends, data: str | None, version: int | None) -> int | None:
    """The version that a charge reads: the one its data were registered as, whatever the caller says.

    Where people come and go (``window``), those of the version that was read pay. A charge that does not say which one
    is refused there, once there are several.
    """
    if version is not None and (isinstance(version, bool) or not isinstance(version, int)):
        raise TermsError(f"a version is a whole number, not {version!r}")
    known = None
    if data is not None:
        if not isinstance(data, str) or not data.startswith((PREFIX, FORMER)):
            raise TermsError("data is a fingerprint, as ledger.recognise or ledger.fingerprint returns it")
        found = ends.find(f"data:{data}")
        if not found and terms.fingerprint is not None:
            raise FingerprintMismatch(f"a charge on {terms.name!r} names data that are not registered under this name")
        known = _version_of(found[0].read()) if found else None
    if known is not None and version not in (None, known):
        raise FingerprintMismatch(f"these data are version {known} of {terms.name!r}, not version {version}")
    on = version if known is None else known
    if on is None and terms.window is not None and state.version > 1:
        raise TermsError(
            f"there are {state.version} versions of {terms.name!r}, each with its own people: say which one is read, "
            "by its data (data=ledger.recognise(…)) or by its number (version=)"
        )
    return on if state.version > 1 or version is not None else None


def _version_of(entry: Mapping[str, Any]) -> int:
    """The version of the data that an entry registers."""
    newest = entry.get("state", {}).get("version", 1)
    return int(entry.get("version", newest))


def _add_data(ledger: Ledger, dataset: str, kind: str, data: Any, because: str, version: int | None = None) -> str:
    who, reason = _allow(ledger, ("owner",), "adding data"), check_text("a reason", because)
    if not reason:
        raise TermsError("say which data these are: because=, for everybody to read")
    found = ledger._named(data)
    others = [name for name in ledger._store.owners(f"data:{found}") if name != dataset]
    if others:
        raise DatasetExists(
            f"these data are registered already, as {', '.join(map(repr, others))}: they spend that budget"
        )

    def decide(ends: Ends) -> dict[str, Any]:
        state = ledger._state(ends)
        if there := ends.find(f"data:{found}"):
            raise Already(there[0])
        after = dataclasses.replace(state, version=state.version + 1) if kind == "version" else state
        if version is not None and not (is_number(version) and version in range(1, state.version + 1)):
            raise TermsError(f"{dataset!r} has versions 1 to {state.version}, not {version!r}")
        return {
            "kind": kind,
            "fingerprint": found,
            **({} if version is None else {"version": int(version)}),
            "because": reason,
            **time_after(ends.last),
            **after.to_dict(),
            **who,
        }

    ledger._append(dataset, decide)
    return found


def _draw(
    ledger: Ledger,
    dataset: str,
    plan: str,
    purpose: str,
    data: str | None,
    number: str,
    mechanism: acc.Mechanism | None,
) -> Charge:
    def decide(ends: Ends) -> dict[str, Any]:
        state, when = ledger._state(ends), time_after(ends.last)
        if number and (made := ends.find(f"charge:{number}")):
            if made[0].read().get("plan") != plan:
                raise ChargeError(f"charge {number} on {dataset!r} was for something else; this needs its own number")
            return ledger._take_up(ends, made, mechanism or ledger._record(dataset, number, made).mechanism)
        found = ends.find(f"charge:{plan}")
        ledger._own(ledger._record(dataset, plan, found))
        whole = found[0].read()
        if "schedule" not in whole:
            raise ChargeError(f"charge {plan} is no schedule: ledger.plan reserves one")
        every, times, one = (whole["schedule"][name] for name in ("every", "times", "mechanism"))
        if mechanism is not None and mechanism.to_dict() != one:
            raise ChargeError(
                f"the schedule {plan} on {dataset!r} is for {acc.from_dict(one)!r}, not for {mechanism!r}: "
                "what is not reserved needs its own charge"
            )
        done = times - state.plans.get(plan, 0)
        on = version_read(ledger.dataset(dataset), state, ends, data, None)
        if state.frozen:
            raise ChargeError(f"the budget of {dataset!r} is frozen: {state.frozen}")
        if done >= times:
            raise ChargeError(f"all {times} runs of the schedule {plan} are made: another one needs its own charge")
        if periods(whole["time"], when["time"], every) < done:
            raise ChargeError(f"run {done + 1} of the schedule {plan} is not due before its {every} begins")
        return {
            "kind": "draw",
            "charge": number or uuid.uuid4().hex,
            "plan": plan,
            "mechanism": one,
            "purpose": purpose,
            "price": {"epsilon": 0.0, "delta": 0.0},
            "data": data,
            **({} if on is None else {"version": on}),
            **when,
            **scheduled(state, plan, state.plans[plan] - 1).to_dict(),
            **ledger._who(),
        }

    return ledger._granted(dataset, ledger._append(dataset, decide))
