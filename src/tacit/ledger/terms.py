"""Which terms may a data set have, and which mechanisms may be charged to it? Refused before anything is recorded."""

from __future__ import annotations

import dataclasses
import fractions
import json
import math
import numbers
import re
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from tacit import accounting as acc
from tacit.accounting.base import is_built_in
from tacit.ledger import entries
from tacit.ledger.errors import TermsError
from tacit.ledger.rules import Price, price_of
from tacit.ledger.state import PERIODS
from tacit.ledger.views import DatasetTerms


def check_terms(
    name: str, unit: str, adjacency: str, epsilon: float, delta: float, charges: int, *, size_public: bool
) -> dict[str, Any]:
    """The terms of a registration as plain values; refuses those that contradict each other."""
    check_name(name)
    if not isinstance(unit, str) or not check_text("a unit", unit):
        raise TermsError("name the unit of privacy: 'record', 'person', 'household', …")
    if adjacency not in acc.ADJACENCIES:
        raise TermsError(f"unknown adjacency {adjacency!r}; choose one of {', '.join(acc.ADJACENCIES)}")
    if not isinstance(size_public, bool):
        raise TermsError("size_public is True or False")
    if not size_public and adjacency != "add-remove":
        raise TermsError(f"under {adjacency!r} neighbours have the same size, so it is public: size_public=True")
    if not is_number(epsilon) or not 0 < epsilon < math.inf:
        raise TermsError(f"the budget's ε is a positive number, not {epsilon!r}")
    if not is_number(delta) or not 0 <= delta < 1:
        raise TermsError(f"the budget's δ lies in [0, 1), not {delta!r}")
    if isinstance(charges, bool) or not isinstance(charges, numbers.Integral) or charges < 1:
        raise TermsError(f"charges is a positive whole number, not {charges!r}")
    return {
        "unit": unit,
        "adjacency": adjacency,
        "size_public": size_public,
        "epsilon": float(epsilon),
        "delta": float(delta),
        "charge_delta": share_of(float(delta), int(charges)),
    }


def check_name(name: object) -> str:
    """The name of a data set: a short printable text."""
    if not isinstance(name, str) or not name or name != name.strip() or len(name) > 200 or not name.isprintable():
        _refuse(f"a data set's name is a short printable text, not {str(name)[:80]!r}")
    return name


def check_text(what: str, text: object) -> str:
    """A text that people will read in a terminal, a report or a spreadsheet: no control characters, not too long."""
    plain = str(text)
    if not plain.isprintable() or len(plain) > 1000:
        _refuse(f"{what} is a printable text of one line and at most 1,000 characters, not {plain[:80]!r}")
    return plain


def check_number(number: str | None) -> str:
    """The number of a charge that a caller chose: letters, digits, dots and dashes; empty where there is none."""
    if number is not None and not (isinstance(number, str) and re.fullmatch(r"[0-9A-Za-z._-]{1,100}", number)):
        _refuse(f"the number of a charge is up to 100 letters and digits, not {str(number)[:80]!r}")
    return number or ""


def check_growth(renewal: Mapping[str, Any] | None, window: int | None, now: str) -> dict[str, Any]:
    """The rules for later, fixed at registration: how the budget grows, and how long people stay in the data."""
    found: dict[str, Any] = {}
    if renewal is not None:
        known = {"every": "year", "epsilon": 0.0, "delta": 0.0, "times": 0}
        given = {**known, **renewal}
        if set(given) != set(known) or given["every"] not in PERIODS:
            _refuse(f"renewal has every (one of {', '.join(PERIODS)}), epsilon, delta and times, not {dict(renewal)!r}")
        if not (is_number(given["epsilon"]) and 0 < given["epsilon"] < math.inf and given["times"] in range(1, 1001)):
            _refuse("a renewal adds a positive ε, a whole number of times from 1 to 1000")
        if not (is_number(given["delta"]) and 0 <= given["delta"] < 1):
            _refuse("a renewal adds a δ in [0, 1)")
        found["renewal"] = given | {"epsilon": float(given["epsilon"]), "delta": float(given["delta"]), "since": now}
    if window is not None:
        if isinstance(window, bool) or not isinstance(window, int) or not 1 <= window <= 100:
            _refuse(
                "window is the number of consecutive versions within which one person is, never returning, from 1 to "
                f"100, not {window!r}"
            )
        found["window"] = window
    return found


def is_number(value: object) -> bool:
    """Whether a value is a real number that is not NaN."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and not math.isnan(value)


def share_of(delta: float, charges: int) -> float:
    """The largest float of which ``charges`` add up to at most ``delta``."""
    share = delta / charges
    while share > 0 and float(fractions.Fraction(share) * charges) > delta:
        share = math.nextafter(share, 0.0)
    return share


def check_mechanism(terms: DatasetTerms, mechanism: acc.Mechanism) -> None:
    """Refuse a mechanism that does not fit the terms."""
    if not isinstance(mechanism, acc.Mechanism):
        _refuse(f"a charge is a mechanism of tacit.accounting, not {mechanism!r}")
    check_readable(mechanism)
    if mechanism.unit != terms.unit:
        _refuse(
            f"{mechanism!r} protects one {mechanism.unit}, but {terms.name!r} is registered for one {terms.unit}; "
            f"state the mechanism for that unit (unit={terms.unit!r})"
        )
    if terms.adjacency not in mechanism.adjacencies():
        stated = " and ".join(mechanism.adjacencies()) or "no adjacency"
        _refuse(
            f"{mechanism!r} states its guarantee under {stated}, but {terms.name!r} is registered for {terms.adjacency}"
        )
    if not terms.size_public:
        for part in _inside(mechanism):
            if hasattr(part, "examples"):
                _refuse(
                    f"{part!r} contains the number of records, which is private for {terms.name!r}; use PoissonSampled "
                    "with a rate that was chosen without it"
                )


def check_readable(mechanism: acc.Mechanism) -> None:
    """Refuse what another process could not read back: an entry is there for everybody who shares the ledger."""
    own = next((type(m) for m in (mechanism, *_inside(mechanism)) if not is_built_in(type(m))), None)
    if own is not None:
        _refuse(
            f"{own.__name__} (of {own.__module__}) is a mechanism of your own, which nobody else who opens the ledger "
            "could read or price. Charge what you can prove of it: acc.GDP(mu), acc.ZCDP(rho), "
            "acc.ApproxDP(epsilon, delta) or acc.PureDP(epsilon)"
        )
    try:
        written = entries.canonical(mechanism.to_dict())
        same = entries.canonical(acc.from_dict(json.loads(written)).to_dict()) == written
    except (acc.AccountingError, TypeError, ValueError):
        same = False
    if not same:
        _refuse(f"{mechanism!r} does not read back as it is written: give its parameters as plain numbers and texts")


def priced(terms: DatasetTerms, mechanism: acc.Mechanism, delta: float | None) -> Price:
    """The price of a charge, after the checks that take no look at the record."""
    check_mechanism(terms, mechanism)
    if delta is not None and not (is_number(delta) and 0 <= delta < 1):
        raise TermsError(f"a charge's δ lies in [0, 1), not {delta!r}")
    share = terms.charge_delta if delta is None else float(delta)
    price = price_of(terms.rule, mechanism, share, terms.adjacency)
    if share == 0 and math.isinf(price.epsilon) and terms.rule.name != "renyi":
        raise TermsError(f"{mechanism!r} has no pure guarantee: state the charge's part of δ, as in delta=1e-7")
    if terms.rule.name == "renyi" and all(math.isinf(x) for x in price.renyi):
        raise TermsError(
            f"{mechanism!r} has no finite Rényi divergence at the orders of {terms.name!r}: its rule never grants it; "
            "use a mechanism without a failure probability (rule='sum' would grant it; terms are never changed)"
        )
    return price


def _inside(mechanism: acc.Mechanism) -> Iterator[acc.Mechanism]:
    """Every mechanism that this one is made of: composed, sampled, selected or drawn."""
    for part, _ in mechanism.parts():
        yield part
        for field in dataclasses.fields(part):
            inner = getattr(part, field.name)
            if isinstance(inner, acc.Mechanism):
                yield from _inside(inner)


def _refuse(message: str) -> NoReturn:
    raise TermsError(message)
