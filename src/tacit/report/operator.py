"""What may the operator look at beside the report? Diagnostics of a run that are **not covered by the guarantee**.

Loss, clipped fraction and gradient norms are computed from private data without noise. They come as
:class:`tacit.ledger.OperatorView` and have their own page, where each one is marked. Only the owner can read the file.
"""

from __future__ import annotations

import html
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tacit.ledger import OperatorView, PrivateValueError, Release
from tacit.ledger.release import MARK
from tacit.report import plots
from tacit.report.elements import NOT_COVERED, marked, opening
from tacit.report.files import write_whole
from tacit.report.page import headline
from tacit.report.plots import Axis, Line
from tacit.report.words import number

#: What is drawn against the step, with its title.
DRAWN = {
    "loss": "Loss on the batch",
    "clipped_fraction": "Clipped fraction of the batch",
    "median_norm": "Median gradient norm",
}


def read_log(path: str | os.PathLike[str]) -> list[OperatorView]:
    """The views of an operator log, in order."""
    found = []
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise PrivateValueError(f"cannot read the operator log {path}: {error.strerror}") from None
    for i, line in enumerate(text.splitlines(), 1):
        try:
            entry = json.loads(line)
        except ValueError:
            raise PrivateValueError(f"{path}, line {i}: not an entry of an operator log") from None
        found.append(OperatorView(**{k: v for k, v in entry.items() if k not in ("time", "note")}))
    return found


def make_operator_page(card: Release, views: Sequence[OperatorView]) -> str:
    """The operator's page: the guarantee, then each diagnostic with its mark.

    >>> from tacit import accounting as acc
    >>> from tacit.report import Run, make_card
    >>> views = [OperatorView(step=1, loss=0.7), OperatorView(step=2, loss=0.6)]
    >>> "not covered by the guarantee" in make_operator_page(make_card(Run("r", acc.PureDP(1.0), delta=1e-6)), views)
    True
    """
    for view in views:
        if not isinstance(view, OperatorView):
            raise PrivateValueError(f"the operator's page takes operator views, not {type(view).__name__}")
    entries = [view.reveal() for view in views]
    figures = [_against_steps(entries, name, title) for name, title in DRAWN.items()]
    figures += [_histogram(entries), _last(entries)]
    shown = [figure for figure in figures if figure] or ["<p>The operator log is empty.</p>"]
    name = card["run"]["name"]
    return (
        opening(f"Operator's view: {name}")
        + f"<header><h1>Operator's view: {html.escape(name)}</h1></header>"
        + f'<div class="warn"><b>Private: {html.escape(MARK)}.</b> Everything below the guarantee was computed '
        "from private data without noise. Do not publish, send or print it for others; what may be shown is in "
        "<code>report.html</code>.</div>"
        + headline(card)
        + "<h2>Diagnostics</h2>"
        + "".join(shown)
        + "</main></body></html>\n"
    )


def write_operator_page(card: Release, views: Sequence[OperatorView], path: str | os.PathLike[str]) -> Path:
    """Write the operator's page so that only its owner can read it."""
    return write_whole(path, make_operator_page(card, views), 0o600)  # in place of an older file: others may read that


def _against_steps(entries: list[dict[str, Any]], name: str, title: str) -> str:
    points = [(e["step"], e[name]) for e in entries if isinstance(e.get(name), int | float) and "step" in e]
    if len(points) < 2:
        return ""
    x, y = [float(p[0]) for p in points], [float(p[1]) for p in points]
    share = name == "clipped_fraction"
    drawing = plots.chart(
        name,
        f"{title} ({NOT_COVERED})",
        f"From {number(y[0])} to {number(y[-1])}.",
        Axis("steps", 0, max(x)),
        Axis(title, 0, 1 if share else (max(y) * 1.1 or 1.0), percent=share),
        [Line(x, y)],
    )
    return marked(drawing, title)


def _histogram(entries: list[dict[str, Any]]) -> str:
    """Gradient norms of the last logged batches, relative to the clip norm."""
    kept = [e for e in entries if e.get("norm_counts")][-20:]
    if not kept:
        return ""
    edges = kept[-1]["norm_edges"]
    counts = [sum(e["norm_counts"][i] for e in kept if e["norm_edges"] == edges) for i in range(len(edges) - 1)]
    if not sum(counts):
        return ""
    bars = [(edges[i], edges[i + 1], float(c)) for i, c in enumerate(counts)]
    above = sum(c for (left, _, c) in bars if left >= 1 - 1e-9)
    drawing = plots.chart(
        "norms",
        f"Gradient norms ({NOT_COVERED})",
        f"{above / sum(counts):.0%} of the gradients are longer than the clip norm.",
        Axis("gradient norm over clip norm", edges[0], edges[-1], log=True),
        Axis("examples", 0, max(counts) * 1.1),
        [],
        bars=bars,
        upright=(1.0, "clip norm"),
    )
    return marked(drawing, "Gradient norms with the clip norm")


def _last(entries: list[dict[str, Any]]) -> str:
    """The newest value of everything that is not drawn."""
    newest: dict[str, Any] = {}
    for entry in entries:
        newest |= entry
    rows = "".join(
        f'<tr><td>{html.escape(str(k))}</td><td>{html.escape(str(v))}</td><td class="mark-warn">{NOT_COVERED}</td></tr>'
        for k, v in newest.items()
        if k not in ("step", "norm_edges", "norm_counts")
    )
    if not rows:
        return ""
    return f'<h3>Newest entries</h3><section class="sheet"><table><tbody>{rows}</tbody></table></section>'
