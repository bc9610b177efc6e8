"""What are the pages built of? Values that name the card's entry they come from, tables, figures and marks."""

from __future__ import annotations

import html
import importlib.resources
from collections.abc import Callable, Iterable
from typing import Any

from tacit.ledger import Release
from tacit.report.words import number, rounded

#: What stands beside every diagnostic on the operator's pages.
NOT_COVERED = "not covered by the guarantee"
HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<main>
"""


def opening(title: str) -> str:
    """The head of a page with its style sheet."""
    style = (importlib.resources.files("tacit.report") / "style.css").read_text(encoding="utf-8")
    return HEAD.format(title=html.escape(title), style=style)


def entry(card: Release, path: str) -> Any:
    """The value at a path of keys with dots between them."""
    value: Any = card
    for part in path.split("."):
        value = value[part]
    return value


def shown(value: Any) -> str:
    """A value as people read it."""
    if value is None:
        return "not stated"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return number(value)
    return "∞" if value == "inf" else str(value)


def value(card: Release, path: str, show: Callable[[Any], str] = shown, tag: str = "span") -> str:
    """One value of the card as an element that says where it comes from."""
    return f'<{tag} data-from="{html.escape(path)}">{html.escape(show(entry(card, path)))}</{tag}>'


def listed(card: Release, path: str, absent: str) -> str:
    """An entry of several texts as a list."""
    found = entry(card, path)
    if found is None:
        return "<p>Not stated.</p>"
    if not found:
        return f"<p>{absent}</p>"
    return f'<ul data-from="{path}">' + "".join(f"<li>{html.escape(item)}</li>" for item in found) + "</ul>"


def table(heads: Iterable[tuple[str, str]], rows: Iterable[Iterable[str]], kind: str = "") -> str:
    """A table; each head comes with the class of its column."""
    columns = list(heads)
    top = "".join(f'<th class="{c}" scope="col">{h}</th>' for h, c in columns)
    body = "".join(
        "<tr>" + "".join(f'<td class="{c}">{cell}</td>' for cell, (_, c) in zip(row, columns, strict=True)) + "</tr>"
        for row in rows
    )
    # what scrolls sideways can be scrolled with keys too
    whole = f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="scroll" tabindex="0"><table class="{kind}">{whole}</table></div>'


def numbers(curve: dict[str, Any], name: str, heads: tuple[str, str, str], path: str) -> str:
    """A few points of a curve in numbers: what the drawing shows, for those who do not see it."""
    count = len(curve[name])
    chosen = sorted({round(i * (count - 1) / 6) for i in range(7)})
    # Outward, so that what is read holds.
    rows = [
        [
            number(curve[name][i] if name == "steps" else rounded(curve[name][i])),
            number(rounded(curve["lower"][i], up=False)),
            number(rounded(curve["upper"][i])),
        ]
        for i in chosen
    ]
    shown = table([(head, "n") for head in heads], rows)
    return f'<details data-from="{path}"><summary>The same in numbers</summary>{shown}</details>'


def figure(path: str, drawing: str, caption: str, details: str = "") -> str:
    """A drawing of one entry of the card, with what there is to say about it."""
    return (
        f'<figure class="sheet"><div data-from="{path}">{drawing}</div><figcaption>{caption}</figcaption>'
        f"{details}</figure>"
    )


def marked(drawing: str, title: str) -> str:
    """A drawing of private values, marked as such."""
    mark = f'<span class="mark-warn">{NOT_COVERED}</span>'
    return f'<figure class="sheet"><h3 style="margin-top:0">{title} · {mark}</h3>{drawing}</figure>'
