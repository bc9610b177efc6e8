"""How far is a run, and what came of it? From the files of its folder that may be shown."""

from __future__ import annotations

import html
import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tacit.ledger import Release
from tacit.report import CardError, make_page, officer, read_card
from tacit.report.elements import entry, shown, table
from tacit.report.words import number, rounded, size
from tacit.runs.progress import PROGRESS
from tacit.studio.fields import FieldError, kept
from tacit.studio.state import Studio

#: Seconds without news after which a run is said to be silent.
SILENT = 120.0
#: The most bytes of a card that is read.
LARGEST = 1 << 26


def runs(studio: Studio) -> dict[str, Path]:
    """The folders of runs by name, the newest first."""
    if not studio.runs.is_dir():
        return {}
    found = [
        path
        for path in studio.runs.iterdir()
        if path.is_dir()
        and not path.name.startswith(".")
        and ((path / "privacy.json").is_file() or (path / "private").is_dir())
    ]
    return {path.name: path for path in sorted(found, key=lambda path: -path.stat().st_mtime)}


def folder(studio: Studio, name: str) -> Path:
    """The folder of one run, of those there are: no other path can be asked for."""
    found = runs(studio).get(name)
    if found is None:
        raise FieldError(f"There is no run {name[:80]!r} in {studio.runs}")
    return found


def progress(path: Path) -> dict[str, Any] | None:
    """What a run that goes on last said; None if it said nothing."""
    try:
        found = json.loads((path / "private" / PROGRESS).read_text(encoding="utf-8"))
        numbers = {name: float(found[name]) for name in ("step", "steps", "seconds", "steps_here", "time")}
        epsilon = None if found["epsilon"] is None else float(found["epsilon"])
        if not all(map(math.isfinite, (*numbers.values(), epsilon or 0.0))):
            return None
        return numbers | {"epsilon": epsilon, "terms": str(found["terms"]), "program": str(found["program"])}
    except (OSError, ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return None


def card_of(path: Path) -> Release | None:
    """The card of a run that has ended; None before."""
    file = path / "privacy.json"
    if not file.is_file():
        return None
    if file.stat().st_size > LARGEST:
        raise CardError(f"{file} is too large to be a card")
    return read_card(file)


def listed(studio: Studio, values: Mapping[str, Any]) -> dict[str, Any]:
    """All runs in a line each."""
    rows, states = [], {}
    for name, path in runs(studio).items():
        state, text = _line(path)
        states[name] = state
        box = f'<input type="checkbox" name="compare[]" value="{html.escape(name)}" aria-label="{html.escape(name)}">'
        page = f"/runs/{html.escape(_quoted(name))}{kept(values)}"
        link = f'<a href="{page}" translate="no">{html.escape(name)}</a>'
        rows.append([box, link, state, text])
    if not rows:
        return {"html": f"<p>There is no run in <code>{html.escape(str(studio.runs))}</code>.</p>", "runs": {}}
    return {"html": table([("compare", ""), ("run", ""), ("state", ""), ("how far", "")], rows), "runs": states}


def _quoted(name: str) -> str:
    from urllib.parse import quote

    return quote(name, safe="")


def _line(path: Path) -> tuple[str, str]:
    try:
        card = card_of(path)
    except CardError as error:
        return "unreadable", html.escape(str(error))
    if card is not None:
        claimed, delta = entry(card, "guarantee.epsilon.claimed"), entry(card, "guarantee.delta")
        return "ended", f"ε = {shown(claimed)}, δ = {number(delta)}"
    told = progress(path)
    if told is None:
        return "begun", ""
    return "running" if time.time() - told["time"] < SILENT else "silent", _bar(told)


def _meter(told: dict[str, Any]) -> str:
    steps = max(int(told["steps"]), 1)
    return f'<progress max="{steps}" value="{int(told["step"])}" aria-label="steps done"></progress>'


def _bar(told: dict[str, Any]) -> str:
    spent = "∞" if told["epsilon"] is None else number(rounded(told["epsilon"], 3))
    return f"{_meter(told)} step {int(told['step']):,} of {max(int(told['steps']), 1):,} · ε so far = {spent}"


def one(studio: Studio, values: Mapping[str, Any]) -> dict[str, Any]:
    """One run: live while it goes on, its results once it has ended."""
    name = str(values.get("run") or "")
    path = folder(studio, name)
    card = card_of(path)
    if card is not None:
        link = f"/runs/{html.escape(_quoted(name))}/report?lang={html.escape(str(values.get('lang') or 'en'))}"
        text = (
            f'<p role="status"><b>This run has ended.</b> <a href="{link}" target="_blank" rel="noopener">Open the '
            f"report</a></p>{_compared([(name, card)])}{officer.columns(card)}"
        )
        return {"html": text, "state": "ended", "epsilon": entry(card, "guarantee.epsilon.claimed")}
    told = progress(path)
    if told is None:
        return {"html": '<p role="status">The run has begun and said nothing yet.</p>', "state": "begun"}
    step, steps, here = told["step"], told["steps"], told["steps_here"]
    quiet = time.time() - told["time"]
    left = told["seconds"] / here * (steps - step) if here else None
    facts = [
        ("Steps", f"{int(step):,} of {int(steps):,}"),
        ("ε so far", "∞" if told["epsilon"] is None else number(rounded(told["epsilon"]))),
        ("Neighbours", html.escape(told["terms"])),
        ("Program", html.escape(told["program"])),
        ("Time left, about", "–" if left is None else f"{math.floor(left / 60)}:{math.floor(left % 60):02d}"),
    ]
    cells = "".join(f"<div><dt>{name}</dt><dd>{said}</dd></div>" for name, said in facts)
    silent = (
        f'<p class="warn" role="alert">No news for {int(quiet)} s. If it has stopped, continue it with: '
        f"<code>tacit train --resume {html.escape(str(path))}</code></p>"
        if quiet > SILENT
        else ""
    )
    text = f'{_meter(told)}<dl class="facts">{cells}</dl>{silent}'
    return {"html": text, "state": "running", "step": int(step), "epsilon": told["epsilon"]}


def compared(studio: Studio, values: Mapping[str, Any]) -> dict[str, Any]:
    """Two runs that have ended, side by side."""
    given = values.get("compare[]", [])
    if not isinstance(given, list):
        raise FieldError("The question cannot be understood.")
    chosen = [str(name) for name in given][:4]
    if len(chosen) < 2:
        return {"html": "<p>Tick two runs that have ended to see them side by side.</p>"}
    cards = [(name, card_of(folder(studio, name))) for name in chosen]
    ended = [(name, card) for name, card in cards if card is not None]
    return {"html": _compared(ended) if ended else "<p>None of these has ended.</p>"}


def _compared(cards: list[tuple[str, Release]]) -> str:
    facts: list[tuple[str, str]] = [
        ("δ", "guarantee.delta"),
        ("Neighbours", "guarantee.neighbours"),
        ("Method", "run.method"),
        ("Purpose", "run.purpose"),
        ("Sampler", "mechanism.sampler"),
        ("Steps", "mechanism.steps_executed"),
        ("Tuning", "accesses.tuning_words"),
    ]
    rows = [["ε", *(f"<b>{shown(entry(card, 'guarantee.epsilon.claimed'))}</b>" for _, card in cards)]]
    for label, path in facts:
        rows.append([label, *(_fact(card, path) for _, card in cards)])
    rows.append(["Mechanism", *(html.escape(officer.mechanism(card)) for _, card in cards)])
    results = [_results(card) for _, card in cards]
    for metric in dict.fromkeys(name for found in results for name in found):
        rows.append([f"<span>{html.escape(metric)}</span>", *(found.get(metric, "–") for found in results)])
    heads = [("what", ""), *((f'<span translate="no">{html.escape(name)}</span>', "") for name, _ in cards)]
    return table(heads, rows, "compare")


def _fact(card: Release, path: str) -> str:
    return html.escape(shown(entry(card, path)).removeprefix("tuning: ")) if officer.has(card, path) else "–"


def _results(card: Release) -> dict[str, str]:
    found = card["evaluation"]
    whole = [found[key] for key in found if not found[key]["group"] and found[key]["model"] in ("private", "release")]
    return {str(one["metric"]): size(one["value"]) if isinstance(one["value"], float) else shown(one["value"])
            for one in whole}  # fmt: skip


def report(studio: Studio, name: str, language: str) -> str:
    """The report of a run that has ended, made from its card."""
    card = card_of(folder(studio, name))
    if card is None:
        raise FieldError(f"The run {name[:80]!r} has not ended")
    return make_page(card, language)
