"""What is spent and left? The ledger's own answers, to those whose role may ask."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Mapping
from typing import Any

from tacit import accounting as acc
from tacit.ledger import Advice, BudgetExceeded, Ledger, LedgerError
from tacit.ledger.service import CHARGE, READ
from tacit.ledger.tokens import Token, require
from tacit.report import words
from tacit.report.elements import shown, table
from tacit.report.words import number, rounded
from tacit.studio.cost import Planned, no_price
from tacit.studio.fields import alert
from tacit.studio.state import Studio

#: The rules by which charges add up, in words.
RULES = {"tight": "Rényi or sums", "renyi": "Rényi orders", "sum": "sums"}

#: What "left" is, which is not what was allowed less what is spent.
LEFT = (
    '<p class="muted">The budget is what all charges together may cost. Left is an ε of one more charge that '
    "surely fits, as if its δ were 0; the δ beside it is what is left for failures. Under a rule with Rényi orders it "
    "is not the budget less what is spent, and noise with a δ may cost more than what is left and still fit.</p>"
)


def names(studio: Studio, who: Token) -> list[str]:
    """The data sets that somebody may see."""
    if studio.ledger is None:
        return []
    return [name for name in studio.ledger.datasets() if not who.datasets or name in who.datasets]


def _opened(studio: Studio, who: Token, action: str, roles: tuple[str, ...], dataset: str) -> Ledger:
    if studio.ledger is None:
        raise LedgerError("no ledger was given: tacit studio --ledger people.db")
    require(who, action, roles, dataset)
    return studio.ledger if studio.tokens is None else studio.ledger.acting(who.by)


def overview(studio: Studio, who: Token, values: Mapping[str, Any]) -> dict[str, Any]:
    """Every data set with its budget, what is spent and what is left."""
    if studio.ledger is None:
        return {"html": "<p>No ledger was given. Start with: <code>tacit studio --ledger people.db</code></p>"}
    rows = []
    for name in names(studio, who):
        found = _opened(studio, who, "budget", READ, name).budget(name, exact=False)
        used = min(max(found.used, 0.0), 1.0)
        told = 'aria-label="share of the budget that is used"'
        meter = f'<meter min="0" max="1" value="{used:.4f}" {told}></meter> {used:.1%}'
        state = f"frozen: {html.escape(found.frozen)}" if found.frozen else "open"
        rows.append(
            [
                f'<b translate="no">{html.escape(name)}</b><br><small>{html.escape(found.dataset.words)}</small>',
                f"ε = {shown(found.epsilon)}<br><small>δ = {number(found.delta)}</small>",
                f"ε = {shown(rounded(found.spent_epsilon))}<br><small>δ = {number(rounded(found.spent_delta))}</small>",
                f"ε = {shown(rounded(max(found.left_epsilon, 0.0), up=False))}<br>"
                f"<small>δ = {number(rounded(max(found.left_delta, 0.0), up=False))}</small>",
                meter,
                f"{found.charges}<br><small>unconfirmed: {found.unconfirmed}</small>",
                f"<span>{RULES.get(found.dataset.rule.name, html.escape(found.dataset.rule.name))}</span>"
                f"<br><small>{state}</small>",
            ]
        )
    heads = [
        ("data set", ""),
        ("budget", "w"),
        ("spent", "w"),
        ("left", "w"),
        ("used", ""),
        ("charges", ""),
        ("rule", "w"),
    ]
    return {"html": table(heads, rows) + LEFT if rows else "<p>There is no data set that you may see.</p>"}


def history(studio: Studio, who: Token, values: Mapping[str, Any]) -> dict[str, Any]:
    """The charges of one data set, the newest first."""
    dataset = str(values.get("dataset") or "")
    if not dataset:
        return {"html": ""}
    ledger = _opened(studio, who, "history", READ, dataset)
    records = ledger.history(dataset)[-200:][::-1]
    rows = [
        [
            f"{html.escape(one.time[:10])}<br><small>{html.escape(one.time[11:16])} UTC</small>",
            f'<span translate="no">{html.escape(one.purpose)}</span>',
            html.escape(words.mechanism(one.mechanism) if one.readable else one.words),
            shown(rounded(one.price.epsilon)),
            number(one.price.delta),
            "confirmed" if one.confirmed else "reserved",
            f'<span translate="no">{html.escape(" ".join(one.by.values()))}</span>',
        ]
        for one in records
    ]
    heads = [("time", "w"), ("purpose", ""), ("mechanism", ""), ("ε", "n"), ("δ", "n"), ("state", ""), ("by", "")]
    if not any(one.by for one in records):  # a ledger without a service knows no names
        heads, rows = heads[:-1], [row[:-1] for row in rows]
    head = f"<p>Head of the chain: <code>{html.escape(ledger.head(dataset))}</code></p>"
    return {"html": (table(heads, rows) if rows else "<p>Nothing was charged yet.</p>") + head}


def planned(studio: Studio, who: Token, values: Mapping[str, Any]) -> dict[str, Any]:
    """Whether a planned run would be granted, and what it would leave. Nothing is recorded."""
    dataset = str(values.get("dataset") or "")
    if not dataset:
        return {"html": ""}
    ledger = _opened(studio, who, "quote", CHARGE, dataset)
    terms = ledger.dataset(dataset)
    plan = dataclasses.replace(Planned.read(dict(values) | {"adjacency": terms.adjacency}), unit=terms.unit)
    try:
        price = ledger.quote(dataset, plan.mechanism)
        before, after = ledger.budget(dataset, exact=False), ledger.foresee(dataset, plan.mechanism)
    except acc.AdjacencyError:
        raise no_price(plan) from None
    except BudgetExceeded as error:
        said = _refused(error.advice) if error.advice is not None else alert(f"Would be refused: {error}")
        return {"html": said, "granted": False}
    rows = [
        # with so many digits that a small run is seen to leave less
        [what, *(f"ε = {shown(rounded(max(one.left_epsilon, 0.0), 6, up=False))}", f"{min(one.used, 1.0):.3%}")]
        for what, one in (("now", before), ("after this run", after))
    ]
    text = (
        f'<p role="status">Would be granted. It costs ε = <b>{shown(rounded(price.epsilon))}</b> at '
        f"δ = {number(price.delta)}.</p>"
        + table([("state", ""), ("left", "n"), ("used", "n")], rows)
        + LEFT
        + '<p class="muted">Nothing is charged here: the run charges itself.</p>'
    )
    return {"html": text, "granted": True, "epsilon": price.epsilon, "left": after.left_epsilon}


def _refused(advice: Advice | None) -> str:
    """Why a run does not fit, and what would."""
    lines = ["Would be refused: it does not fit into the budget."]
    if advice is not None:  # a service may not have computed it
        asked = number(rounded(advice.asked_epsilon)), number(rounded(advice.asked_delta))
        lines.append("It costs ε = {} at δ = {} by itself.".format(*asked))
        if advice.repeats:
            lines.append(f"Of its {advice.asked_repeats:,} steps, {advice.repeats:,} would still fit with this noise.")
        if advice.noise is not None:
            lines.append(f"With a noise multiplier of {number(rounded(advice.noise, 3))} the whole run would fit.")
    return '<div class="warn" role="alert">' + "".join(f"<p>{html.escape(line)}</p>" for line in lines) + "</div>"


def verify(studio: Studio, who: Token, values: Mapping[str, Any]) -> dict[str, Any]:
    """Check the chain, the sums and the rule of one data set, or of all that somebody may see."""
    dataset = str(values.get("dataset") or "")
    chosen = [dataset] if dataset else names(studio, who)
    problems: list[str] = []
    entries = 0
    for name in chosen:
        found = _opened(studio, who, "entries", READ, name).verify(name)
        problems += found.problems
        entries += found.entries
    if problems:
        listed = "".join(f"<li>{html.escape(problem)}</li>" for problem in problems)
        return {
            "html": f'<div class="warn" role="alert"><p>Problems were found.</p><ul>{listed}</ul></div>',
            "ok": False,
        }
    return {"html": f'<p role="status">✓ Verified: {entries:,} entries, no problem.</p>', "ok": True}
