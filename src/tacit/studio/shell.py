"""What is on each page before anything is asked? Its form, and the places where answers go."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from tacit.ledger.tokens import Token
from tacit.report.texts import languages, translated
from tacit.studio import books, cost, expected
from tacit.studio.fields import ChoiceField, kept
from tacit.studio.state import Studio

#: The pages by address.
PAGES = {
    "cost": "What does it cost?",
    "expected": "What would I get?",
    "ledger": "Ledger",
    "runs": "Runs",
    "schema": "Schema",
}
HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/static/report.css">
<link rel="stylesheet" href="/static/studio.css">
<script src="/static/studio.js" defer></script>
<title>{title} · tacit studio</title>
</head>
<body data-later="The studio does not answer.">
<a class="skip" href="#main">Skip to the content</a>
"""


def answer(ask: str, label: str, *, wait: int = 0, every: int = 0, busy: str = "", rough: bool = False) -> str:
    """A place where the answer to a question goes, asked again when a field changes; with ``rough`` while it does."""
    again = (f' data-every="{every}"' if every else "") + (" data-rough" if rough else "")
    return (
        f'<section class="answer" data-ask="{ask}" data-wait="{wait}"{again} aria-label="{html.escape(label)}" '
        f'aria-live="polite"><p class="muted">{busy or "…"}</p></section>'
    )


def page(studio: Studio, who: Token, name: str, values: Mapping[str, Any], language: str) -> str:
    """A whole page, in a language."""
    title = PAGES[name]
    language_kept = kept({"lang": language})
    links = "".join(
        f'<a href="/{at}{language_kept}"{" aria-current=page" if at == name else ""}>{text}</a>'
        for at, text in PAGES.items()
    )
    others = "".join(
        f'<a class="lang" hreflang="{one}" lang="{one}" translate="no" href="?lang={one}" data-lang="{one}"'
        f"{' aria-current=true' if one == language else ''}>{one.upper()}</a>"
        for one in languages()
    )
    body = {"cost": _cost, "expected": _expected, "ledger": _ledger, "runs": _runs, "schema": _schema}[name]
    text = (
        HEAD.format(title=html.escape(title))
        + f'<header class="top"><b class="brand" translate="no">tacit studio</b><nav aria-label="Pages">{links}</nav>'
        f'<nav aria-label="Language">{others}</nav></header><main id="main" tabindex="-1"><h1>{html.escape(title)}</h1>'
        f"{body(studio, who, values)}</main></body></html>"
    )
    return translated(text, language)


def _cost(studio: Studio, who: Token, values: Mapping[str, Any]) -> str:
    fields = "".join(field.draw(values) for field in cost.FIELDS)
    return (
        '<p class="muted">Move a slider or type a number. No record is read. The address of this page keeps what you '
        "chose: send it to somebody who has a studio.</p>"
        f'<div class="two"><form class="sheet live" aria-label="The run">{fields}</form><div class="results">'
        f'<div class="sheet headline-one">{answer("cost/price", "The price", rough=True)}</div>'
        f"<h2>What can an attacker find out?</h2>"
        f'<div class="sheet">{answer("cost/attack", "Attack", wait=350)}</div>'
        f"<h2>ε over the steps, and error rates</h2>{answer('cost/curves', 'Curves', wait=350)}"
        f'<h2>Every sampler</h2><div class="sheet">{answer("cost/samplers", "Every sampler", wait=700)}</div>'
        f'<h2>Every accountant</h2><div class="sheet">{answer("cost/accountants", "Every accountant", wait=700)}</div>'
        "</div></div>"
    )


def _expected(studio: Studio, who: Token, values: Mapping[str, Any]) -> str:
    fields = "".join(field.draw(values) for field in (*expected.FIELDS, *expected.TRAINING, expected.MODEL))
    schema = html.escape(str(values.get("schema") or expected.EXAMPLE))
    return (
        '<p class="muted">Choose ε before it is spent. Everything here is simulated on made-up rows, from a public '
        "schema "
        'and public numbers.</p><form class="sheet live">'
        f'<div class="grid">{fields}</div><div class="field long"><label for="schema">Schema (TOML)</label>'
        f'<textarea id="schema" name="schema" rows="16" spellcheck="false" '
        f'translate="no">{schema}</textarea></div></form>'
        f'<h2>Means and histograms</h2><div class="sheet">{answer("expected/statistics", "Means", wait=400)}</div>'
        "<h2>Regression</h2>"
        f'<div class="sheet">{answer("expected/regression", "Regression", wait=800, busy="Fits are simulated …")}</div>'
        "<h2>Training</h2>"
        '<div class="sheet"><button type="button" data-click="expected/training" '
        'data-into="trained" data-busy="Models are trained on made-up rows; this takes some seconds …">Train on '
        'made-up rows</button><div id="trained" aria-live="polite"></div></div>'
    )


def _ledger(studio: Studio, who: Token, values: Mapping[str, Any]) -> str:
    names = books.names(studio, who)
    own = studio.tokens is not None or not studio.address.startswith(("http://", "https://"))
    head = (
        f'<p class="muted">You are <span translate="no">{html.escape(who.name)}</span>, in the role: '
        f"<span>{html.escape(who.role)}</span>.</p>"
        if own
        else "<p class='muted'>What you may do is decided by the service of the ledger: "
        f"<code>{html.escape(studio.address)}</code></p>"
    ) + (f'<div class="sheet">{answer("ledger/overview", "Data sets", every=5000)}</div>')
    if not names:
        return head
    fields = "".join(f.draw(values) for f in cost.FIELDS if f.name not in ("adjacency", "unit", "delta", "group"))
    return (
        f'{head}<form class="sheet live"><div class="grid">'
        f"{ChoiceField('dataset', 'Data set', names).draw(values, still=True)}{fields}</div></form>"
        "<h2>What would this run leave?</h2>"
        f'<div class="sheet">{answer("ledger/planned", "The planned run", wait=200)}</div>'
        '<h2>Verify</h2><div class="sheet"><button type="button" data-click="ledger/verify" '
        'data-into="verified">Verify '
        'the chain</button><div id="verified" aria-live="polite"></div></div>'
        f'<h2>Charges</h2><div class="sheet">{answer("ledger/history", "Charges", wait=200)}</div>'
    )


def _runs(studio: Studio, who: Token, values: Mapping[str, Any]) -> str:
    if (name := values.get("run")) is not None:
        shown = html.escape(str(name))
        return (
            f'<p><a href="/runs{kept(values)}">All runs</a></p><h2 translate="no">{shown}</h2><form class="live">'
            f'<input type="hidden" name="run" value="{shown}"></form>'
            f'<div class="sheet">{answer("runs/one", "The run", every=1000)}</div>'
        )
    return (
        '<p class="muted">From the files of each run that may be shown. Diagnostics of the data stay with the operator.'
        f'</p><form class="sheet live">{answer("runs/listed", "Runs", every=2000)}</form>'
        f'<h2>Side by side</h2><div class="sheet">{answer("runs/compared", "Side by side", wait=100)}</div>'
    )


COLUMN = (
    '<fieldset class="column"><legend>Column</legend><div class="grid">'
    '<label>Name<input name="name[]" autocomplete="off"></label>'
    '<label>Kind<select name="kind[]"><option value="numeric">number</option><option value="categorical">categories'
    '</option><option value="boolean">yes or no</option></select></label>'
    '<label class="of-number">Lower bound<input name="lower[]" inputmode="decimal" autocomplete="off"></label>'
    '<label class="of-number">Upper bound<input name="upper[]" inputmode="decimal" autocomplete="off"></label>'
    '<label class="of-labels">Categories, with commas<input name="categories[]" autocomplete="off"></label>'
    '<label>In place of missing values<input name="missing[]" autocomplete="off"></label>'
    '<label>To be predicted<select name="target[]"><option value="no">no</option><option '
    'value="yes">yes</option></select>'
    '</label><label>Why these bounds or categories<input name="why[]" autocomplete="off"></label></div>'
    '<button type="button" data-remove>Remove this column</button></fieldset>'
)


def _schema(studio: Studio, who: Token, values: Mapping[str, Any]) -> str:
    return (
        '<p class="muted">Bounds and categories come from a code book or from knowledge, never from the rows: a bound '
        'that was read off the data gives a person away.</p><form class="sheet live" id="schema-form"><div '
        'class="grid">'
        '<label>Name of the data<input name="schema_name" autocomplete="off"></label>'
        '<label>Unit: whom does the guarantee protect?<input name="unit" value="person" autocomplete="off"></label>'
        '<label>Column of ids, if somebody has several rows<input name="ids" autocomplete="off"></label>'
        '<label>Most rows of one unit that take part<input name="max_rows" value="1" inputmode="numeric" '
        'autocomplete="off"></label>'
        '<label>File<input name="file" value="data.csv" autocomplete="off"></label></div>'
        f'<div id="columns">{COLUMN}</div><p><button type="button" data-add>Add a column</button></p></form>'
        f'<h2>The schema</h2><div class="sheet">{answer("schema/toml", "The schema", wait=200)}</div>'
    )


def door(message: str, language: str) -> str:
    """What somebody without a token sees."""
    place = f"/enter{kept({'lang': language})}"
    text = (
        HEAD.format(title="Sign in").replace('<script src="/static/studio.js" defer></script>\n', "")
        + '<main id="main"><h1>tacit studio</h1><p>Open the address that <code>tacit studio</code> printed, or '
        "give its "
        f'token.</p>{message}<form class="sheet" method="post" action="{place}"><div class="field long"><label '
        f'for="token">Token'
        '</label><input id="token" name="token" type="password" autocomplete="off"></div><p><button>Enter</button></p>'
        "</form></main></body></html>"
    )
    return translated(text, language)


def onward(place: str) -> str:
    """A page that goes to another by itself."""
    place = html.escape(place)
    return (
        f'<!DOCTYPE html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={place}">'
        f'<title>tacit studio</title><p><a href="{place}">tacit studio</a></p>'
    )


def address(base: str, secret: str) -> str:
    """The address that lets its reader in."""
    return f"{base}/?token={quote(secret, safe='')}"
