"""What does a person see of a run? ``report.html``: one file, offline, on screen and on paper.

The page is computed from the privacy card alone, and the card is a release: nothing that is neither charged nor
public can reach it. Every value on the page is in an element that names the entry of the card it comes from
(``data-from``); everything else is fixed text of this file.
"""

from __future__ import annotations

import html
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tacit.ledger import PrivateValueError, Release
from tacit.ledger.release import json_values
from tacit.report import audited, officer, plots, words
from tacit.report.card import sources
from tacit.report.elements import entry, figure, listed, numbers, opening, shown, table, value
from tacit.report.files import write_whole
from tacit.report.plots import Axis, Line
from tacit.report.texts import translated
from tacit.report.words import number, rounded

FOOT = """
<footer><p>Written by tacit from the privacy card <code>privacy.json</code>. Every value on this page was charged to a
ledger or is public; the last table says which. The card follows the JSON schema <code>privacy.schema.json</code> and
the checklists of NIST SP&nbsp;800-226 and of Ponomareva et al., <i>How to DP-fy ML</i>.</p></footer>
</main>
</body>
</html>
"""
#: What stands in the card's table in place of a long list.
LONG = 400


def make_page(card: Release, language: str = "en") -> str:
    """The report of a card, as one HTML page that works offline.

    Guarantee:
        The page shows only what the card holds: values that were charged or are public. It costs nothing more.

    Args:
        card: The privacy card, from :func:`make_card` or :func:`read_card`.
        language: ``"en"`` (default) or ``"de"``. What people wrote stays as they wrote it.

    Returns:
        The HTML text.

    Raises:
        ValueError: If there is no such language.
        PrivateValueError: If ``card`` is not a release.

    Example:
        >>> from tacit import accounting as acc
        >>> from tacit.report import Run, make_card
        >>> page = make_page(make_card(Run("count", acc.Laplace(10.0), delta=1e-9)))
        >>> "Whether or not the data of any one record were used" in page
        True
    """
    if not isinstance(card, Release):
        raise PrivateValueError(f"a report is made from a Release, not from {type(card).__name__}")
    body = [_header(card), headline(card), officer.columns(card), officer.released(card), officer.much(card)]
    body += [_facts(card), _curves(card), _accuracy(card), audited.section(card), _coverage(card)]
    body += [officer.retention(card), officer.questions(card), _card(card)]
    page = opening(f"Privacy report: {card['run']['name']}") + "\n".join(body) + FOOT
    return translated(page, language)


def write_page(card: Release, path: str | os.PathLike[str], language: str = "en") -> Path:
    """Write the report of a card to a file, completely or not at all.

    Args:
        card: The privacy card.
        path: The file to write, usually ``report.html``. An existing file is replaced.
        language: ``"en"`` (default) or ``"de"``.

    Returns:
        The path of the file.

    Example:
        >>> import pathlib, tempfile
        >>> from tacit import accounting as acc
        >>> from tacit.report import Run, make_card
        >>> card = make_card(Run("count", acc.Laplace(10.0), delta=1e-9))
        >>> write_page(card, pathlib.Path(tempfile.mkdtemp(), "report.html")).name
        'report.html'
    """
    return write_whole(path, make_page(card, language))


# -- the sections ------------------------------------------------------------------------------------------------------


def _header(card: Release) -> str:
    return (
        f"<header><h1>Privacy report: {value(card, 'run.name')}</h1>"
        f"<p>{value(card, 'run.purpose')} · {value(card, 'data.name')} · {value(card, 'card.created', _day)} · "
        f"{value(card, 'card.library')}</p></header>"
    )


def _day(time: Any) -> str:
    return str(time)[:10]


def headline(card: Release) -> str:
    """The guarantee: ε with its terms, to quote, to check, and against an attacker."""
    return (
        '<section class="sheet headline" id="guarantee" aria-label="The guarantee"><div class="epsilon">'
        f"ε = {value(card, 'guarantee.epsilon.claimed')}"
        f"<small>at δ = {value(card, 'guarantee.delta')}</small>"
        f"<small>{value(card, 'guarantee.neighbours')}</small></div><div>"
        f'<span class="tag">In one sentence</span><p class="quote">{value(card, "guarantee.claim")}</p>'
        f'<span class="tag">Against an attacker</span><p>{value(card, "guarantee.attacker")}</p>'
        f"{officer.lawyer(card)}"
        f'<span class="tag">For an engineer</span><p style="margin:0">{value(card, "guarantee.formula")}</p>'
        "</div></section>"
    )


def _facts(card: Release) -> str:
    pairs = [
        ("Protected unit", "guarantee.unit"),
        ("Method", "run.method"),
        ("Mechanism", "mechanism.words"),
        ("Sampler", "mechanism.sampler"),
        ("Steps planned", "mechanism.steps_planned"),
        ("Steps executed", "mechanism.steps_executed"),
        ("What the price counts", "mechanism.basis"),
        ("Noise generator", "mechanism.noise_generator"),
        ("Accountant", "accountant.method"),
        ("Audit", "checks.audit"),
        ("Trust model, as stated", "statement.trust_model"),
        ("Release, as stated", "statement.release"),
        ("Under other neighbours", "guarantee.other_adjacencies"),
    ]
    special: dict[str, Callable[[Any], str]] = {
        "checks.audit": lambda audit: str(audit["verdict"]),
        "guarantee.other_adjacencies": lambda found: _others(found, entry(card, "guarantee.unit")),
    }
    if entry(card, "mechanism.steps_planned") is None:  # the method has no steps
        pairs = [(name, path) for name, path in pairs if "steps" not in path]
    special["mechanism.words"] = lambda _: officer.mechanism(card)
    cells = "".join(
        f"<div><dt>{name}</dt><dd>{value(card, path, special.get(path, shown))}</dd></div>" for name, path in pairs
    )
    return f'<h2 id="glance">At a glance</h2><section class="sheet"><dl class="facts">{cells}</dl></section>'


def _others(found: Any, unit: str) -> str:
    terms = {"add-remove": "add/remove", "replace-one": "replace", "zero-out": "zero out"}
    told = [f"{terms.get(o['adjacency'], o['adjacency'])} one {unit}: ε ≤ {shown(rounded(o['upper']))}" for o in found]
    return "; ".join(told) or "none stated"


def _curves(card: Release) -> str:
    found = "".join(draw(card) for draw in (over_steps, _profile, _tradeoff))
    if not found:
        return "<h2>The guarantee in full</h2><p>No curve is shown, because no finite ε is claimed.</p>"
    return f"<h2>The guarantee in full</h2>{found}"


def over_steps(card: Release) -> str:
    """What the run has cost after each step, where it has steps."""
    path = "guarantee.over_steps"
    curve = entry(card, path)
    if curve is None:
        return ""
    steps, upper = curve["steps"], curve["upper"]
    top = max(upper) * 1.12
    delta = shown(entry(card, "guarantee.delta"))
    first, last = number(rounded(upper[0])), number(rounded(upper[-1]))
    told = f"ε at δ = {delta} grows from {first} after step {steps[0]} to {last} after step {steps[-1]}."
    drawing = plots.chart(
        "steps",
        "ε against steps",
        told,
        Axis("steps", 0, steps[-1]),
        Axis(f"ε at δ = {delta}", 0, top),
        [Line(steps, upper)],
        area=Line(steps, upper),
        mark=(steps[-1], upper[-1], f"ε = {last} at the end of the plan"),
    )
    caption = "What the run has cost after each step (certified upper bound). It depends on the plan, not on the data."
    return figure(path, drawing, caption, numbers(curve, "steps", ("steps", "ε at least", "ε at most"), path))


def _profile(card: Release) -> str:
    path = "guarantee.profile"
    curve = entry(card, path)
    if curve is None:
        return ""
    points = [(e, d) for e, d in zip(curve["epsilon"], curve["upper"], strict=True) if d > 1e-13]
    if len(points) < 2:
        return ""
    epsilon, delta = [p[0] for p in points], [p[1] for p in points]
    at, claimed = entry(card, "guarantee.delta"), entry(card, "guarantee.epsilon.claimed")
    low = 10.0 ** min(-3, math.floor(math.log10(min(delta))))
    inside = at >= low and claimed <= epsilon[-1]
    first, last = number(rounded(delta[0])), number(rounded(delta[-1]))
    told = f"δ falls from {first} at ε = 0 to {last} at ε = {number(rounded(epsilon[-1]))}."
    drawing = plots.chart(
        "profile",
        "Privacy profile",
        told,
        Axis("ε", 0, epsilon[-1]),
        Axis("δ", low, 1.0, log=True),
        [Line(epsilon, delta)],
        area=Line(epsilon, delta),
        mark=(claimed, at, f"ε = {number(claimed)}, δ = {number(at)}") if inside else None,
    )
    caption = (
        "All pairs (ε, δ) that hold at the same time. The claim is one point of the curve; a smaller ε holds with a "
        "larger δ."
    )
    return figure(path, drawing, caption, numbers(curve, "epsilon", ("ε", "δ at least", "δ at most"), path))


def _tradeoff(card: Release) -> str:
    path = "guarantee.tradeoff"
    curve = entry(card, path)
    if curve is None:
        return ""
    secret = words.secret(entry(card, "guarantee.adjacency"))
    drawing = plots.chart(
        "tradeoff",
        "Trade-off curve",
        entry(card, "guarantee.attacker"),
        Axis(secret.axes[0], 0, 1, percent=True),
        Axis(secret.axes[1], 0, 1, percent=True),
        [
            Line([0, 0.75, 1], [1, 0.25, 0], "second", "blind guessing"),
            Line(curve["alpha"], curve["lower"]),
        ],
        area=Line(curve["alpha"], curve["lower"]),
    )
    caption = (
        f"The best that any test of whether one {value(card, 'guarantee.unit')} {secret.tested} can do: no test has "
        "error rates in the shaded region. The closer the curve is to the dashed line, the less the release reveals "
        "about anyone."
    )
    heads = ("false alarms", "missed, at least", "missed, at most")
    return figure(path, drawing, caption, numbers(curve, "alpha", heads, path))


def _accuracy(card: Release) -> str:
    results = card["evaluation"]
    if not len(results):
        return (
            '<h2 id="accuracy">Accuracy</h2><p>Nothing was evaluated on public data, and no evaluation was charged.</p>'
        )
    whole = [key for key in results if not results[key]["group"]]
    parts = [key for key in results if results[key]["group"]]
    rows = []
    for key in whole:
        path = f"evaluation.{key}"
        found = results[key]["value"]
        bar = ""
        if isinstance(found, float) and 0 <= found <= 1:
            kind = "meter" if results[key]["model"] == "private" else "meter other"
            bar = f'<span class="{kind}" data-from="{path}.value"><i style="width:{100 * found:.1f}%"></i></span>'
        note = f'<br><span class="muted">{value(card, path + ".note")}</span>' if results[key]["note"] else ""
        rows.append(
            [
                value(card, f"{path}.model") + note + bar,
                value(card, f"{path}.metric"),
                officer.measured(card, key),
                value(card, f"{path}.rows", _rows),
            ]
        )
    body = table([("model", ""), ("metric", ""), ("value", "n"), ("rows", "n")], rows)
    text = f'<h2 id="accuracy">Accuracy</h2><section class="sheet">{body}'
    if parts:
        text += "<h3>By subgroup</h3>" + _groups(card, parts)
    why = card["evaluation"][whole[0] if whole else parts[0]].source("value")
    return text + f'<p class="muted" style="margin:14px 0 0">Why these may be shown: {html.escape(why)}.</p></section>'


def _rows(found: Any) -> str:
    return "–" if found is None else f"{found:,}"


def _with_note(card: Release, path: str) -> str:
    note = f'<br><span class="muted">{value(card, path + ".note")}</span>' if entry(card, f"{path}.note") else ""
    return officer.measured(card, path.rpartition(".")[2]) + note


def _groups(card: Release, keys: list[str]) -> str:
    """One row a subgroup, one column a model."""
    results = card["evaluation"]
    models = list(dict.fromkeys(results[key]["model"] for key in keys))
    groups = list(dict.fromkeys(results[key]["group"] for key in keys))
    place = {(results[key]["group"], results[key]["model"]): f"evaluation.{key}" for key in keys}
    rows = []
    for group in groups:
        first = next(place[group, model] for model in models if (group, model) in place)
        cells = [_with_note(card, place[group, model]) if (group, model) in place else "" for model in models]
        rows.append([value(card, f"{first}.group"), *cells, value(card, f"{first}.rows", _rows)])
    named = [(value(card, f"{next(p for (_, m), p in place.items() if m == model)}.model"), "n") for model in models]
    return table([("subgroup", ""), *named, ("rows", "n")], rows)


def _sources_list(card: Release, path: str, absent: str) -> str:
    found = entry(card, path)
    if found is None:
        return "<p>Not stated.</p>"
    if not found:
        return f"<p>{absent}</p>"
    items = [
        f"<li><span>{html.escape(s['name'])}</span> (<span>{html.escape(s['use'])}</span>). "
        f"<span>Can it contain people whom the guarantee protects?</span> <b>{s['may_overlap']}</b>"
        f"{'<br><span class=muted>' + html.escape(s['note']) + '</span>' if s['note'] else ''}</li>"
        for s in found
    ]
    return f'<ul data-from="{path}">{"".join(items)}</ul>'


def _coverage(card: Release) -> str:
    records = value(card, "accesses.records_public")
    if entry(card, "accesses.records") is not None:
        records += f" ({value(card, 'accesses.records')})"
    if entry(card, "ledger") is None:
        ledger = "<p>This run was not charged to a ledger, so no record limits what else was released.</p>"
    else:
        ledger = (
            f"<p>Charged to {value(card, 'ledger.dataset')} "
            f"(budget {value(card, 'ledger.budget', officer.allowed)}; "
            f"spent so far {value(card, 'ledger.spent', officer.pair)}, "
            f"charges: {value(card, 'ledger.charges')}). The head of its chain fixes the whole history:</p>"
            f"<pre>{value(card, 'ledger.head')}</pre>"
        )
    note = f" {value(card, 'accesses.tuning_note')}" if entry(card, "accesses.tuning_note") else ""
    tuned = "accesses.tuning_words" if "tuning_words" in card["accesses"] else "accesses.tuning"  # older cards
    return (
        '<h2 id="covers">What the number covers</h2><section class="sheet">'
        f"<h3 style='margin-top:0'>Covered</h3>{listed(card, 'accesses.covered', 'Nothing is stated.')}"
        f"<h3>Released, but not covered</h3>{listed(card, 'accesses.uncovered', 'Nothing, as stated by the user.')}"
        f"<h3>Hyper-parameter tuning</h3><p>{value(card, tuned)}.{note}</p>"
        f"<h3>Number of records treated as public?</h3><p>{records}</p>"
        f"<h3>Public data used</h3>{_sources_list(card, 'accesses.public_data', 'None.')}"
        f"<h3>Pre-trained models used</h3>{_sources_list(card, 'accesses.pretrained', 'None.')}"
        f"<h3>Self-checks passed</h3>{listed(card, 'checks.self_checks', 'None is recorded.')}"
        f"<h3>What the accountant assumes</h3>{listed(card, 'accountant.assumptions', 'Nothing.')}"
        f"<h3>Outside the guarantee</h3>{listed(card, 'accesses.limits', 'Nothing.')}"
        f"<h3>Ledger</h3>{ledger}</section>" + _comparison(card)
    )


def _comparison(card: Release) -> str:
    found = entry(card, "accountant.comparison")
    if not found:
        return ""
    rows = [
        [
            html.escape(r["accountant"]),
            "" if r["epsilon"] is None else shown(rounded(r["epsilon"], up=not r["kind"].startswith("approx"))),
            # what a program says about it has no place here
            "not applicable to this mechanism" if r["epsilon"] is None else html.escape(r["kind"]),
        ]
        for r in found
    ]
    body = table([("accountant", ""), ("ε", "n"), ("what it is", "")], rows)
    return (
        f'<h2>What other accountants would say</h2><section class="sheet" data-from="accountant.comparison">{body}'
        "</section>"
    )


def _card(card: Release) -> str:
    rows = []
    for path, why in sources(card).items():
        found = officer.mechanism(card) if path == "mechanism.words" else entry(card, path)
        found = json_values(found)  # as the card holds it, so that the page can be made again from its file
        text = json.dumps(found, ensure_ascii=False, default=str) if isinstance(found, dict | list) else shown(found)
        still = ' translate="no"'
        if isinstance(found, dict | list) and len(text) > LONG:
            text, still = f"{len(found)} entries; see privacy.json", ""
        elif isinstance(found, float):
            text = repr(found) if math.isfinite(found) else shown(found)
        rows.append(
            [
                f"<code>{html.escape(path)}</code>",
                f'<span data-from="{html.escape(path)}"{still}>{html.escape(text)}</span>',
                html.escape(why),
            ]
        )
    body = table([("entry", ""), ("value", ""), ("why it may be published", "")], rows, "card")
    return f'<h2>The privacy card</h2><section class="sheet">{body}</section>'
