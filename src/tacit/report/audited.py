"""What did an attack on the run achieve, next to what the run claims? The audit's part of the report.

Everything here comes from the card's entry ``checks.audit``, which :meth:`tacit.audit.Audit.to_dict` makes from made-up
records, and from scores that released weights give. Attacks with real records, and canaries scored by the noise of a
run on private data, are an operator view and do not come this way.
"""

from __future__ import annotations

import html
import math
from typing import Any

from tacit.ledger import Release
from tacit.report import plots
from tacit.report.elements import figure, table, value
from tacit.report.plots import Axis, Line
from tacit.report.words import number, rounded

PATH = "checks.audit"
ADVICE = (
    "A lower bound says what this attack achieved, not what another could achieve. A low one is no evidence of safety: "
    "compare it with the most that this attack could have certified."
)


def section(card: Release) -> str:
    """The section of the report, or nothing where there was no audit."""
    found = card["checks"]["audit"]
    if "kind" not in found:
        return ""
    parts = [
        '<h2>Audit</h2><section class="sheet" style="margin-bottom:18px">',
        f"<p>{value(card, PATH, lambda a: str(a['sentence']))}</p>",
        _claims(found),
        _figures(found),
        _findings(found),
        _powers(found),
        f'<p class="muted" style="margin:14px 0 0">{ADVICE}</p></section>',
    ]
    return "".join(parts) + _curve(found) + _histogram(found)


def _claims(found: dict[str, Any]) -> str:
    if not found.get("claims"):
        return ""
    names = ("name", "result", "how", "detail")
    rows = [[html.escape(str(claim[name])) for name in names] for claim in found["claims"]]
    heads = [("claim", ""), ("result", ""), ("how it was checked", ""), ("what was seen", "")]
    return f'<div data-from="{PATH}">' + table(heads, rows) + "</div>"


def _powers(found: dict[str, Any]) -> str:
    if not found.get("powers"):
        return ""
    rows = [
        [html.escape(power["lie"]), f"{math.floor(power['probability'] * 100) / 100:.2f}", html.escape(power["by"])]
        for power in found["powers"]
    ]
    heads = [("a run with", ""), ("would have been found with probability", "n"), ("by", "")]
    return f'<div data-from="{PATH}">' + table(heads, rows) + "</div>"


def _figures(found: dict[str, Any]) -> str:
    if "figures" not in found:
        return ""
    rows = [
        ["claimed", number(rounded(found["claimed"])) if not isinstance(found["claimed"], str) else "∞", "upper bound"]
    ]
    for name, bound in found["figures"].items():
        estimate = name in found["estimates"]
        what = (
            "estimate: a certificate only for independent repeats of an unsampled Gaussian"
            if estimate
            else f"lower bound, confidence {found['confidence']:.4g}"
            + (" (that of the Gaussian trade-off curve that is refuted)" if name == "f-DP one-run" else "")
        )
        rows.append([html.escape(name), number(bound), what])
    rows.append(["within reach", number(found["best"]), "what the attack would have certified if it were never wrong"])
    return f'<div data-from="{PATH}">' + table([("", ""), ("ε", "n"), ("what it is", "")], rows) + "</div>"


def _findings(found: dict[str, Any]) -> str:
    if not found.get("findings"):
        return ""
    share = found["significance"] / len(found["findings"])
    rows = [
        [
            ("passes: " if f["p_value"] >= share else "<b>fails:</b> ") + html.escape(f["check"]),
            html.escape(f["detail"]),
            html.escape(f["best"]),
        ]
        for f in found["findings"]
    ]
    heads = [("check", ""), ("what was seen", ""), ("smallest fault it would detect", "")]
    return f'<div data-from="{PATH}">' + table(heads, rows) + "</div>"


def _curve(found: dict[str, Any]) -> str:
    curve = found.get("roc")
    if not curve:
        return ""
    false, true = curve["false_positive"], curve["true_positive"]
    positive = [f for f in false if f > 0]
    low = 10.0 ** max(-5, math.floor(math.log10(min(positive)))) if positive else 1e-3
    grid = [low * (1 / low) ** (i / 60) for i in range(61)]
    points = [(max(f, low), max(t, low)) for f, t in zip(false, true, strict=True)]
    lines = [
        Line(grid, grid, "second"),
        Line([p[0] for p in points], [p[1] for p in points], "line"),
    ]
    claimed = found["claimed"]
    if not isinstance(claimed, str) and math.isfinite(claimed):
        allowed = [
            min(
                1.0, math.exp(min(claimed, 700)) * f + found["delta"], 1 - math.exp(-claimed) * (1 - f - found["delta"])
            )
            for f in grid
        ]
        lines.insert(1, Line(grid, allowed, "second"))
    low_area, high_area = curve["interval"]
    words = f"Area under the curve {curve['area']:.3f}, 95% interval {low_area:.3f} to {high_area:.3f}."
    drawing = plots.chart(
        "roc",
        "ROC of the attack on canaries",
        words,
        Axis("canaries accused although they were out", low, 1.0, log=True),
        Axis("canaries found", low, 1.0, log=True),
        lines,
    )
    caption = (
        "How well the attack separates canaries that were in the data from those that were not. Dashed: blind guessing "
        f"(below) and the most that the claim allows (above). {words}"
    )
    return figure(PATH, drawing, caption)


def _histogram(found: dict[str, Any]) -> str:
    counts = found.get("histogram")
    if not counts:
        return ""
    edges = counts["edges"]

    def steps(heights: list[float]) -> tuple[list[float], list[float]]:
        x, y = [edges[0]], [0.0]
        for left, right, height in zip(edges, edges[1:], heights, strict=False):
            x += [left, right]
            y += [height, height]
        return [*x, edges[-1]], [*y, 0.0]

    top = max([*counts["members"], *counts["others"], 1]) * 1.12
    out, inside = steps(counts["others"]), steps(counts["members"])
    drawing = plots.chart(
        "scores",
        "Scores of canaries",
        "Scores of the canaries that were in the data, and of those that were not.",
        Axis("score", edges[0], edges[-1]),
        Axis("canaries", 0, top),
        [Line(*out, "second", "out"), Line(*inside, "line", "in")],
    )
    caption = "Scores of the canaries: solid, those that took part; dashed, those that did not."
    return figure(PATH, drawing, caption)
