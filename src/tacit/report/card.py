"""What does a run guarantee, in a form that people and programs can read? The privacy card.

The card is a :class:`tacit.ledger.Release`: every value in it is charged to a ledger or public, and says which. It
answers what NIST SP 800-226 asks of a claim of differential privacy, and what Ponomareva et al. ("How to DP-fy ML",
2023, section 5.3) recommend to report. As JSON it follows ``privacy.schema.json`` and carries the source of every
value. So a card that is read back is a release again, or is refused.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tacit import __version__
from tacit import accounting as acc
from tacit.ledger import ChargeError, ChargeRecord, Release, public
from tacit.ledger.release import Charged, Public, json_values
from tacit.report import check, words
from tacit.report.files import write_whole
from tacit.report.run import NOT_STATED, Run

CHOSEN = "chosen before the data were seen"
PRICE = "price of the mechanism, computed without the data"
STATED = "stated by the user"
BOUNDS = "bounds and categories as they were given, not computed by tacit from these rows"
#: What is assumed of a run that samples.
DRAWN = "Batches are drawn as the sampler above says; the sampler that ran is the object that was priced."
#: What is added to the reason of a value that follows from the number of records too.
COUNTED = "; it also follows from the number of records, which is public: these neighbours have it in common"
LEDGER = "entry of the ledger: how the data were used, not what they contain"
#: What a card says before an audit.
NOT_AUDITED = public({"verdict": "not audited"}, "result of the audit")
#: δ at which the card states ε beside its own.
DELTAS = tuple(10.0**-k for k in range(3, 11))
#: Step counts at which ε is shown.
COUNTS = 40
#: Points of the privacy profile.
POINTS = 33


class CardError(ValueError):
    """A file is not a privacy card, or holds a value that is neither charged nor public."""


def make_card(run: Run) -> Release:
    """The privacy card of a run.

    Guarantee:
        It is a release: every value is charged to a ledger or public, and says which. Making it costs nothing.

    Args:
        run: What ran, as :func:`describe` or :func:`describe_fit` states it, or as you state it yourself.

    Returns:
        The card, a :class:`tacit.ledger.Release`.

    Raises:
        CardError: If the run names a charge that its ledger does not have.

    Example:
        >>> card = make_card(Run("count", acc.Laplace(10.0, unit="person"), delta=1e-9))
        >>> card["guarantee"]["unit"], card["checks"]["audit"]["verdict"], card["ledger"]
        ('person', 'not audited', None)
    """
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return Release(
        {
            "card": _all(
                {"format": "tacit privacy card", "version": 1, "created": now, "library": f"tacit {__version__}"},
                "about the card itself",
            ),
            "run": _all({"name": run.name, "purpose": run.purpose, "method": run.method}, CHOSEN)
            | {"model": run.model_file or public(None, "no model file was named")},
            "guarantee": _guarantee(run),
            "mechanism": _mechanism(run),
            "accountant": _accountant(run),
            "accesses": _accesses(run),
            "checks": Release(
                {
                    "self_checks": public(list(run.self_checks), "the run would have stopped if a check had failed"),
                    "audit": public(dict(run.audit), "result of the audit") if run.audit else NOT_AUDITED,
                }
            ),
            "ledger": _ledger(run),
            "data": _data(run),
            "released": run.released or public(None, "no coefficients are listed"),
            "evaluation": Release({str(i): _evaluation(e) for i, e in enumerate(run.evaluations)}),
            "statement": _all(dataclasses.asdict(run.statement), STATED),
        }
    )


def _all(values: Mapping[str, Any], because: str) -> Release:
    return Release({key: public(value, because) for key, value in values.items()})


# -- the sections ----------------------------------------------------------------------------------------------------


def _guarantee(run: Run) -> Release:
    bound = run.price()
    finite = math.isfinite(bound.upper)
    profile = _profile(run) if finite else None
    tradeoff = profile.tradeoff() if profile is not None else None
    counted: dict[str, Any] = {"counted": bool(run.records_public), "drawn": run.parameters.get("draw", "units")}
    hidden = {run.adjacency} | ({"add-remove"} if run.records_public else set())
    others = [a for a in run.mechanism.adjacencies() if a not in hidden]
    deltas = sorted({*DELTAS, run.delta} - {0.0}, reverse=True)
    values = {
        "claim": words.claim(bound, **counted),
        "formula": words.formula(bound, **counted),
        "attacker": words.attacker(tradeoff),
        "delta": run.delta,
        "adjacency": run.adjacency,
        "neighbours": words.neighbours(bound, **counted),
        "unit": run.unit,
        "setting": "central: whoever runs the training sees the data; the guarantee covers what is released",
        "other_adjacencies": [_stated(run, a) for a in others] if run.delta > 0 else [],
        "epsilon_of_delta": [
            {"delta": d, **_ends(acc.epsilon(run.mechanism, d, adjacency=run.adjacency))} for d in deltas
        ],
        "profile": profile and _curve("epsilon", profile.epsilon, profile.lower, profile.upper),
        "tradeoff": tradeoff and _curve("alpha", tradeoff.alpha, tradeoff.lower, tradeoff.upper),
        "over_steps": _over_steps(run) if finite else None,
    }
    epsilon = {"lower": bound.lower, "upper": bound.upper, "claimed": words.rounded(bound.upper)}
    why = _why(run, PRICE)
    return _all(values, why) | {"epsilon": _all(epsilon | {"tight": bound.tight}, why)}


def _profile(run: Run) -> acc.Profile:
    """The profile to a hundredth of δ, which is more than a drawing shows and far quicker than to a ten-thousandth."""
    return acc.profile(run.mechanism, points=POINTS, adjacency=run.adjacency, accuracy=0.01)


def _stated(run: Run, adjacency: str) -> dict[str, Any]:
    return {"adjacency": adjacency, **_ends(acc.epsilon(run.mechanism, run.delta, adjacency=adjacency))}


def _ends(bound: acc.Bound) -> dict[str, Any]:
    return {"lower": bound.lower, "upper": bound.upper}


def _curve(name: str, grid: Any, lower: Any, upper: Any) -> dict[str, Any]:
    return {name: np.asarray(grid).tolist(), "lower": np.asarray(lower).tolist(), "upper": np.asarray(upper).tolist()}


def _over_steps(run: Run) -> dict[str, Any] | None:
    """ε after some of the steps, where the run has steps."""
    last, after = run.steps_planned, run.after
    if after is None:
        steps = [(part, times) for part, times in run.mechanism.parts() if times > 1]
        if len(steps) != 1 or len(run.mechanism.parts()) != 1 or run.delta == 0:
            return None
        part, last = steps[0]

        def after(count: int) -> acc.Bound:
            return acc.epsilon(part * count, run.delta, adjacency=run.adjacency)

    if last is None or last < 2:
        return None
    counts = sorted({max(1, round(c)) for c in np.linspace(0, last, COUNTS + 1)})
    bounds = [after(count) for count in counts]
    if not all(math.isfinite(b.upper) for b in bounds):
        return None
    lower = np.maximum.accumulate([b.lower for b in bounds])  # more steps never cost less
    return _curve("steps", counts, lower, [b.upper for b in bounds])


def _why(run: Run, because: str) -> str:
    """Why a value may leave; where the number of records was counted, with that."""
    return because + COUNTED if run.records_public else because


def _mechanism(run: Run) -> Release:
    chosen = _why(run, CHOSEN)
    return Release(
        {
            "words": public(repr(run.mechanism), chosen),
            "description": public(run.mechanism.to_dict(), chosen),
            "parameters": public(dict(run.parameters), chosen),
            "sampler": public(run.sampler, chosen),
            "steps_planned": public(run.steps_planned, chosen),
            "steps_executed": public(run.steps_executed, "how far the run went; the ledger holds the plan"),
            "basis": public(run.basis, "how the run ended, in the operator's words"),
            "noise_generator": public(run.generator, "how the library draws noise"),
        }
    )


#: What is assumed of the noise, by what draws it.
RANDOMNESS = {
    "ChaCha": "Without its key, the noise cannot be told from true randomness. Nothing else limits the attacker's "
    "computing.",
    "operating system": "The operating system's random numbers cannot be told from true ones. Nothing else limits the "
    "attacker's computing.",
}
PLAIN_NOISE = "The noise cannot be told from true randomness. Nothing else limits the attacker's computing."


def _accountant(run: Run) -> Release:
    assumptions = [
        "The attacker sees everything that is listed as covered, and knows every other record.",
        *([] if run.sampler.startswith("none") else [DRAWN]),
        *([text for mark, text in RANDOMNESS.items() if mark in run.generator] or [PLAIN_NOISE]),
        *run.assumed,
    ]
    return _all(
        {
            "name": "tacit.accounting",
            "version": __version__,
            "method": "exact composition of privacy loss, with certified bounds on every numerical error",
            "assumptions": assumptions,
            "comparison": _comparison(run),
        },
        _why(run, PRICE),
    )


def _comparison(run: Run) -> list[dict[str, Any]]:
    if run.delta == 0:
        return []
    table = acc.compare(run.mechanism, run.delta, adjacency=run.adjacency)
    rows: list[dict[str, Any]] = []
    for way in table:
        if way in table.refused:
            rows.append({"accountant": way, "epsilon": None, "kind": f"not applicable: {table.refused[way]}"})
            continue
        price = table[way]
        kind = "approximation, can be too low" if price.approximation else "upper bound"
        rows.append({"accountant": way, "epsilon": price.epsilon, "kind": kind})
    return rows


def _accesses(run: Run) -> Release:
    limits = [
        "How the data were collected, stored and guarded, and who could read them before this run.",
        "Side channels of the machine that ran it: run time, memory, power.",
        f"Conclusions about one {run.unit} that hold just as well without that {run.unit}'s data.",
    ]
    if run.unit == "record":
        limits.append("A person with several records: the protected unit is one record.")
    if run.public_sources:
        limits.append("People in the public data: the guarantee covers the private data only.")

    def listed(found: Any) -> Any:
        return None if found is None else [dataclasses.asdict(source) for source in found]

    return _all(
        {
            "covered": list(run.covered),
            "uncovered": None if run.uncovered is None else list(run.uncovered),
            "tuning": run.tuning,
            "tuning_words": words.tuning(run.tuning),
            "tuning_note": run.tuning_note,
            "records_public": run.records_public,
            "public_data": listed(run.public_sources),
            "pretrained": listed(run.pretrained),
        },
        STATED,
    ) | {
        "records": public(run.records, "these neighbours have it in common" if run.records_public else STATED),
        "limits": public(limits, "true of every guarantee of this kind"),
    }


def _ledger(run: Run) -> Release | Public:
    if run.ledger is None or run.dataset is None:
        return public(None, "the run was not charged to a ledger")
    budget = run.ledger.budget(run.dataset, exact=False)
    record = _record(run)
    terms = budget.dataset
    return _all(
        {
            "dataset": run.dataset,
            "head": budget.head,
            "charge": run.charge,
            "confirmed": None if record is None else record.confirmed,
            "budget": {"epsilon": budget.epsilon, "delta": budget.delta, "rule": terms.rule.name},
            "spent": {"epsilon": budget.spent_epsilon, "delta": budget.spent_delta},
            "charges": budget.charges,
        },
        LEDGER,
    )


def _record(run: Run) -> ChargeRecord | None:
    """The charge of the run, looked up in its ledger."""
    if run.ledger is None or run.dataset is None or run.charge is None:
        return None
    try:
        return run.ledger.record(run.dataset, run.charge)
    except ChargeError:
        raise CardError(
            f"the ledger has no charge {run.charge} on {run.dataset!r}: give the ledger that the run was charged to"
        ) from None


def _data(run: Run) -> Release:
    # That of the data that were read, as the charge states it; the registered one may be of others.
    record = _record(run)
    keyed = run.fingerprint or (None if record is None else record.data)
    return Release(
        {
            "name": public(run.data, STATED),
            "schema": public(run.schema or NOT_STATED, "the name in the schema, not computed from the rows"),
            "columns": public(None if run.columns is None else [dict(c) for c in run.columns], BOUNDS),
            "fingerprint": public(keyed, "keyed with a secret of the ledger: tells an outsider nothing"),
        }
    )


def _evaluation(result: Any) -> Release:
    named = {"metric": result.metric, "model": result.model, "group": result.group, "rows": result.rows}
    return _all({**named, "note": result.note}, "what was measured, in words") | {"value": result.value}


# -- to and from JSON --------------------------------------------------------------------------------------------------


def sources(card: Release, path: str = "") -> dict[str, str]:
    """Why each value of a card may be published.

    Args:
        card: The card, or any other release.
        path: A prefix for the names, for a release inside another; empty at the top.

    Returns:
        The source of each value, by the names that lead to it with dots between them.

    Example:
        >>> sources(Release({"a": Release({"b": public(1, "a constant")})}))
        {'a.b': 'public: a constant'}
    """
    found: dict[str, str] = {}
    for key in card:
        place = f"{path}.{key}" if path else key
        value = card[key]
        found |= sources(value, place) if isinstance(value, Release) else {place: card.source(key)}
    return found


def to_json(card: Release) -> str:
    """The card as JSON text that follows the published schema.

    Args:
        card: The privacy card.

    Returns:
        The text, with the source of every value under ``sources``.

    Raises:
        CardError: If the release is not a card of this form.

    Example:
        >>> json.loads(to_json(make_card(Run("count", acc.Laplace(10.0), delta=1e-9))))["sources"]["guarantee.delta"]
        'public: price of the mechanism, computed without the data'
    """
    plain: dict[str, Any] = json_values(card.to_dict())
    plain["evaluation"] = list(plain["evaluation"].values())
    plain["sources"] = sources(card)
    found = check.problems(plain)
    if found:
        raise CardError("this card does not follow its schema: " + "; ".join(found))
    return json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def unaudited(card: Release) -> Release:
    """The card as it was published, before any audit wrote its verdict into it.

    Its text (:func:`to_json`) is what a ledger's entry holds the hash of, so an audited card still has its release.

    Args:
        card: The privacy card.

    Returns:
        The card with ``checks.audit`` as a new card has it.

    Example:
        >>> card = make_card(Run("count", acc.Laplace(10.0), delta=1e-9))
        >>> seen = card | {"checks": card["checks"] | {"audit": public({"verdict": "pass"}, "an audit")}}
        >>> to_json(unaudited(seen)) == to_json(card)
        True
    """
    return card | Release({"checks": card["checks"] | Release({"audit": NOT_AUDITED})})


def write_card(card: Release, path: str | os.PathLike[str]) -> Path:
    """Write the card as JSON, completely or not at all.

    Args:
        card: The privacy card.
        path: The file to write, usually ``privacy.json``. An existing file is replaced.

    Returns:
        The path of the file.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "privacy.json")
        >>> written = write_card(make_card(Run("count", acc.Laplace(10.0), delta=1e-9)), path)
        >>> read_card(written)["run"]["name"]
        'count'
    """
    return write_whole(path, to_json(card))


def read_card(path: str | os.PathLike[str]) -> Release:
    """Read a ``privacy.json`` back as a release.

    Args:
        path: The file that :func:`write_card` wrote.

    Returns:
        The card, every value with its source.

    Raises:
        CardError: If the file cannot be read, does not follow the schema, has an unknown key, or has a value without
            a source.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "privacy.json")
        >>> _ = path.write_text("{}")
        >>> read_card(path)
        Traceback (most recent call last):
        tacit.report.card.CardError: ... is not a privacy card: ...
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        document = json.loads(text, parse_constant=_no_number, object_pairs_hook=_each_once)
    except OSError as error:
        raise CardError(f"cannot read the card {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise CardError(f"{path} is not JSON: {error}") from None
    found = check.problems(document)
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise CardError(f"{path} is not a privacy card: {found[0]}{more}")
    why = document.pop("sources")
    document["evaluation"] = {str(i): entry for i, entry in enumerate(document["evaluation"])}
    try:
        return _release(document, why, "")
    except CardError as error:
        raise CardError(f"{path}: {error}") from None


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is no number")


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A mapping; a name that stands twice is refused, because one reader takes its first value and another its last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands in it twice")
    return found


def _release(values: dict[str, Any], why: dict[str, str], path: str) -> Release:
    found: dict[str, Charged | Public | Release] = {}
    for key, value in values.items():
        place = f"{path}.{key}" if path else key
        if place in why:
            found[key] = _marked(value, why[place])
        elif isinstance(value, dict):
            found[key] = _release(value, why, place)
        else:
            raise CardError(f"{place} has no source: it is neither charged nor public")
    return Release(found)


def _marked(value: Any, source: str) -> Charged | Public:
    paid = re.fullmatch(r"charged to (.+) \(charge (.+)\)", source)
    if paid:
        return Charged(value, paid[1], paid[2])
    return public(value, source.removeprefix("public: "))
