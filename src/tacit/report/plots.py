"""How are curves drawn so that one file shows them anywhere: on screen in light and dark, on paper, read aloud?

Plain SVG text, no library: colours come from the page's style sheet, every drawing carries a title and a description
in words, and the text in it is text.
"""

from __future__ import annotations

import dataclasses
import html
import itertools
import math
from collections.abc import Sequence

WIDTH, HEIGHT = 620.0, 330.0
LEFT, RIGHT, TOP, BOTTOM = 76.0, 18.0, 16.0, 46.0


@dataclasses.dataclass(frozen=True)
class Axis:
    """One axis: its range, its label, and whether it is logarithmic."""

    label: str
    low: float
    high: float
    log: bool = False
    percent: bool = False

    def place(self, value: float) -> float:
        """Where a value lies, from 0 to 1."""
        if self.log:
            low, high = math.log10(self.low), math.log10(self.high)
            return (math.log10(max(value, self.low)) - low) / (high - low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Round values to mark.

        >>> Axis("steps", 0, 500).ticks()
        [0.0, 100.0, 200.0, 300.0, 400.0, 500.0]
        """
        if self.log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            stride = max(1, math.ceil((last - first) / 6))
            return [10.0**k for k in range(last, first - 1, -stride)][::-1]
        raw = (self.high - self.low) / 5
        size = 10.0 ** math.floor(math.log10(raw))
        step = next(size * m for m in (1, 2, 2.5, 5, 10) if size * m >= raw * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        return [
            round(step * k, 12)
            for k in itertools.takewhile(lambda k: step * k <= self.high * (1 + 1e-9), itertools.count(first))
        ]

    def name(self, value: float) -> str:
        """How a tick is written."""
        if self.percent:
            return f"{value:.0%}"
        if self.log:
            power = round(math.log10(value))
            return f"{value:g}" if -3 <= power <= 3 else f"1e{power}"
        return f"{value:,.10g}"


@dataclasses.dataclass(frozen=True)
class Line:
    """One line of a drawing; ``kind`` is its class in the style sheet."""

    x: Sequence[float]
    y: Sequence[float]
    kind: str = "line"
    label: str = ""


def chart(
    name: str,
    title: str,
    description: str,
    across: Axis,
    up: Axis,
    lines: Sequence[Line],
    *,
    area: Line | None = None,
    mark: tuple[float, float, str] | None = None,
    bars: Sequence[tuple[float, float, float]] = (),
    upright: tuple[float, str] | None = None,
) -> str:
    """An SVG drawing of some lines, with an area below one, a marked point, bars (left, right, height) and a line up.

    >>> drawing = chart("c", "A line", "From 0 to 1.", Axis("x", 0, 1), Axis("y", 0, 1), [Line([0, 1], [0, 1])])
    >>> drawing.startswith("<svg") and "<desc" in drawing
    True
    """

    def x(value: float) -> float:
        return LEFT + across.place(value) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - min(max(up.place(value), 0.0), 1.02) * (HEIGHT - TOP - BOTTOM)

    def path(line: Line) -> str:
        points = [f"{x(a):.1f},{y(b):.1f}" for a, b in zip(line.x, line.y, strict=True)]
        return "M" + "L".join(points)

    parts = [
        f'<svg class="chart" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" aria-labelledby="{name}-t {name}-d">',
        f'<title id="{name}-t">{html.escape(title)}</title><desc id="{name}-d">{html.escape(description)}</desc>',
    ]
    base = HEIGHT - BOTTOM
    for tick in up.ticks():
        height = y(tick)
        parts.append(f'<line class="grid" x1="{LEFT:g}" x2="{WIDTH - RIGHT:g}" y1="{height:.1f}" y2="{height:.1f}"/>')
        parts.append(
            f'<text class="tick" x="{LEFT - 8:g}" y="{height + 4:.1f}" text-anchor="end">{up.name(tick)}</text>'
        )
    for tick in across.ticks():
        parts.append(f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{TOP:g}" y2="{base:g}"/>')
        parts.append(
            f'<text class="tick" x="{x(tick):.1f}" y="{base + 18:g}" text-anchor="middle">{across.name(tick)}</text>'
        )
    parts.append(f'<line class="axis" x1="{LEFT:g}" x2="{WIDTH - RIGHT:g}" y1="{base:g}" y2="{base:g}"/>')
    for left, right, height in bars:
        wide, tall = max(x(right) - x(left) - 1, 0.5), base - y(height)
        parts.append(
            f'<rect class="bar" x="{x(left):.1f}" y="{y(height):.1f}" width="{wide:.1f}" height="{tall:.1f}"/>'
        )
    if area is not None:
        end, start = f"{x(area.x[-1]):.1f},{base:g}", f"{x(area.x[0]):.1f},{base:g}"
        parts.append(f'<path class="area" d="{path(area)}L{end}L{start}Z"/>')
    for line in lines:
        parts.append(f'<path class="{line.kind}" d="{path(line)}"/>')
        if line.label:
            middle = len(line.x) // 2
            parts.append(
                f'<text class="note" x="{x(line.x[middle]) + 8:.1f}" y="{y(line.y[middle]) - 6:.1f}">'
                f"{html.escape(line.label)}</text>"
            )
    if upright is not None:
        at, label = upright
        parts.append(f'<line class="upright" x1="{x(at):.1f}" x2="{x(at):.1f}" y1="{TOP:g}" y2="{base:g}"/>')
        parts.append(f'<text class="note" x="{x(at) + 6:.1f}" y="{TOP + 12:g}">{html.escape(label)}</text>')
    if mark is not None:
        a, b, label = mark
        # Where a line falls its upper right is free, where it rises its upper left.
        falls = bool(lines) and lines[-1].y[0] > lines[-1].y[-1]
        wide = 7.5 * len(label)
        anchor, shift = ("start", min(10.0, WIDTH - x(a) - wide)) if falls else ("end", -10.0)
        if not falls and x(a) - LEFT < wide:
            anchor, shift = "start", 10.0
        parts.append(f'<circle class="mark" cx="{x(a):.1f}" cy="{y(b):.1f}" r="5"/>')
        lift = -10 if y(b) > TOP + 24 else 20
        parts.append(
            f'<text class="note strong" x="{x(a) + shift:.1f}" y="{y(b) + lift:.1f}" text-anchor="{anchor}">'
            f"{html.escape(label)}</text>"
        )
    parts.append(
        f'<text class="label" x="{(LEFT + WIDTH - RIGHT) / 2:g}" y="{HEIGHT - 6:g}" text-anchor="middle">'
        f"{html.escape(across.label)}</text>"
        f'<text class="label" transform="translate(15 {(TOP + base) / 2:g}) rotate(-90)" text-anchor="middle">'
        f"{html.escape(up.label)}</text></svg>"
    )
    return "".join(parts)
