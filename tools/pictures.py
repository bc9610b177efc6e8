"""Which pictures do the README and the pages show? ``python tools/pictures.py [NAME ...]`` makes them anew.

They go to docs/pictures/.

``speed`` is drawn from kept measurements (``benchmarks/results``), ``interval`` is computed, ``ledger`` and ``report``
are what the command prints and writes, in a folder of their own, ``studio`` shows its pages; these three need Chromium.
(The headline is made by ``python -m experiments.gallery``.) ``people`` is computed. ``neighbours``, ``loss``,
``processing`` and ``auxiliary`` are drawn, for the pages that teach; the people in them are made up.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / "docs" / "pictures"
BLUE, ORANGE, GREY = "#1f6fb2", "#e69f00", "#8a8a8a"


SPEED = "h200-2026-11-16.json", "peers-h200-2026-11-16.json"
NAMES = {"mlp": "MLP", "cnn": "CNN (MNIST)", "wrn-bf16": "WRN-16-4, bf16", "vit": "ViT-B/16", "gpt2": "GPT-2 124M"}


def speed() -> None:
    """A private step beside a plain one, each ratio inside one run on one card."""
    ours, peers = (json.loads((ROOT / "benchmarks" / "results" / name).read_text())["results"] for name in SPEED)
    bars: dict[str, list[float]] = {"plain, compiled": [], "tacit, compiled": [], "Opacus, its fastest mode": []}
    for name in NAMES:
        here, there = ours[name], peers[name]
        bars["plain, compiled"].append(_ms(here, "plain-compiled") / _ms(here, "plain"))
        bars["tacit, compiled"].append(_ms(here, "tacit-compiled") / _ms(here, "plain"))
        fastest = min(_ms(there, method) for method in there if method.startswith("opacus") and _ms(there, method))
        bars["Opacus, its fastest mode"].append(fastest / _ms(there, "plain"))
    figure = Figure(figsize=(9.6, 3.6), layout="constrained")
    axes = figure.subplots()
    for place, (label, values) in enumerate(bars.items()):
        where = [k + (place - 1) * 0.27 for k in range(len(values))]
        drawn = axes.bar(where, values, 0.25, label=label, color=(GREY, BLUE, ORANGE)[place])
        axes.bar_label(drawn, [f"{value:.2g}" for value in values], fontsize=8, padding=1)
    axes.axhline(1.0, color="black", lw=0.8)
    axes.set_xticks(range(len(NAMES)), list(NAMES.values()))
    axes.set_ylabel("time of a step\n(plain eager SGD = 1)")
    axes.set_title("One H200, torch 2.11", loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    figure.savefig(PLACE / "speed.png", dpi=110)


def _ms(found: dict[str, Any], method: str) -> float:
    told = found.get(method, {})
    return float(told.get("milliseconds", 0.0)) if isinstance(told, dict) else 0.0


def interval() -> None:
    """One run by several accountants, step by step."""
    from tacit import accounting as acc

    step, delta = acc.PoissonSampled(acc.Gaussian(1.1), rate=256 / 60_000), 1e-5
    numbers = [234 * k for k in range(1, 16)]
    figure = Figure(figsize=(4.8, 3.6), layout="constrained")
    axes = figure.subplots()
    for name, label, color in (("moments", "moments", "#b0b0b0"), ("rdp", "Rényi", GREY)):
        prices = [acc.compare(step * n, delta).prices[name].epsilon for n in numbers]
        axes.plot(numbers, prices, color=color, ls="--", label=label)
    bounds = [acc.epsilon(step * n, delta) for n in numbers]
    axes.fill_between(
        numbers, [b.lower for b in bounds], [b.upper for b in bounds], color=BLUE, lw=2.5, label="tacit: interval"
    )
    last = bounds[-1]
    axes.annotate(f"{last.lower:.8f}\n  ≤ ε ≤ {last.upper:.8f}", (numbers[-1], last.upper), (1300, 0.18), fontsize=10,
                  arrowprops={"arrowstyle": "-", "color": BLUE})  # fmt: skip
    axes.set(xlabel="steps", ylabel="ε at δ = 1e-5", ylim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="upper left")
    figure.savefig(PLACE / "interval.png", dpi=110)


LEDGER = """\
tacit ledger init people.db labsup --epsilon 2 --delta 1e-6 --unit person --adjacency zero-out
tacit train labsup --epsilon 1.2 --delta 5e-7 --epochs 2 --batch 1024 --model linear --ledger people.db --dataset labsup
tacit train labsup --epsilon 1.2 --delta 5e-7 --epochs 2 --batch 1024 --model linear --ledger people.db --dataset labsup
tacit ledger budget people.db labsup""".splitlines()
KEEP = (1, 1, 6, 3)  # lines of each answer


def ledger() -> None:
    """A budget, a run that is charged, one that is refused."""
    from rich.console import Console
    from rich.text import Text

    console = Console(record=True, width=64, file=io.StringIO(), force_terminal=True)
    with tempfile.TemporaryDirectory() as place:
        for line, keep in zip(LEDGER, KEEP, strict=True):
            told = [row for row in _shell(line, place).splitlines() if row.strip() and not row.startswith("step ")]
            console.print(Text(f"$ {line}", style="bold green"))
            console.print(Text("\n".join(told[:keep]) + "\n"))
        svg = Path(place, "ledger.svg")
        console.save_svg(str(svg), title="tacit")
        _picture(svg, "ledger.png", 860, 640)


def report() -> None:
    """The top of the page that a run leaves."""
    with tempfile.TemporaryDirectory() as place:
        _shell("tacit train labsup --epsilon 1 --delta 1e-6 --epochs 20 --batch 1024 --model linear", place)
        page = Path(place, "runs", "labsup-1", "report.html")
        _picture(page, "report.png", 1000, 1050)


FILLED = """
const set = (name, value) => { const field = document.querySelector(`[name="${name}"]`); field.value = value;
  field.dispatchEvent(new Event('input', {bubbles: true})); };
set('name[]', 'age'); set('lower[]', '18'); set('upper[]', '95'); set('why[]', 'only adults are asked');
"""


def studio() -> None:
    """The pages of the studio: a price, a run that would be refused, and a schema on a phone."""
    from tools.axe import home, started
    from tools.webdriver import Browser

    with tempfile.TemporaryDirectory() as place, started(home(Path(place))) as address, Browser(1100, 1000) as browser:
        base = address.partition("/?")[0]
        browser.open(address)
        for name, page, act, width, height in (
            ("cost", "cost", "", 1100, 1000),
            ("ledger", "ledger?noise=0.4", "document.querySelector('[data-click]').click()", 1100, 1150),
            ("schema", "schema", FILLED, 390, 900),
        ):
            browser.look(width, height)
            browser.open(f"{base}/{page}")
            browser.settled()
            browser.run(act)
            time.sleep(1)  # a change is asked for after a moment
            browser.settled()
            browser.picture(PLACE / f"studio-{name}.png")


RED = "#c0392b"
PEOPLE = (("Ada", "34", "yes"), ("Ben", "51", "no"), ("Cleo", "29", "yes"), ("Dan", "46", "no"))


def _page(width: float, height: float) -> tuple[Figure, Any]:
    """An empty sheet, measured in tenths of an inch."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.set(xlim=(0, 10 * width), ylim=(0, 10 * height))
    axes.axis("off")
    return figure, axes


def _table(
    axes: Any, x: float, y: float, widths: tuple[float, ...], rows: list[tuple[str, ...]], marks: dict[int, str]
) -> None:
    """A table whose upper left corner is at ``(x, y)``; ``marks`` colours rows by number."""
    from matplotlib.patches import Rectangle

    for k, row in enumerate(rows):
        left = x
        for width, cell in zip(widths, row, strict=True):
            color = "#dfe7ef" if k == 0 else marks.get(k, "white")
            axes.add_patch(Rectangle((left, y - 3 * (k + 1)), width, 3, facecolor=color, edgecolor=GREY, lw=0.8))
            weight = "bold" if k == 0 else "normal"
            axes.text(left + 0.8, y - 3 * k - 1.6, cell, fontsize=9, va="center", weight=weight)
            left += width


def _box(axes: Any, x: float, y: float, text: str, *, color: str = "white", width: float = 15) -> None:
    from matplotlib.patches import FancyBboxPatch

    style = "round,pad=0.2,rounding_size=0.8"
    axes.add_patch(FancyBboxPatch((x, y - 3), width, 6, boxstyle=style, facecolor=color, edgecolor="black", lw=0.9))
    axes.text(x + width / 2, y, text, ha="center", va="center", fontsize=9.5)


def _arrow(
    axes: Any, start: tuple[float, float], stop: tuple[float, float], text: str = "", color: str = "black"
) -> None:
    axes.annotate("", stop, start, arrowprops={"arrowstyle": "->", "color": color, "lw": 1.2})
    middle = (start[0] + stop[0]) / 2, (start[1] + stop[1]) / 2
    axes.text(middle[0], middle[1] + 0.9, text, ha="center", va="bottom", fontsize=8.5, color=color)


def neighbours() -> None:
    """One table and three of its neighbours."""
    figure, axes = _page(9.2, 2.2)
    head, widths = ("name", "age", "smokes"), (6.0, 4.5, 7.5)
    blank, other = ("–", "–", "–"), ("Eve", "38", "yes")
    light = {"without": "#f6d9d5", "with": "#d6e8d2"}
    tables = (
        ("the table D", [head, *PEOPLE], {3: light["with"]}),
        ("add/remove: Cleo is not there", [head, *PEOPLE[:2], PEOPLE[3]], {}),
        ("zero-out: her row is blank", [head, *PEOPLE[:2], blank, PEOPLE[3]], {3: light["without"]}),
        ("replace-one: another in her place", [head, *PEOPLE[:2], other, PEOPLE[3]], {3: light["without"]}),
    )
    for k, (title, rows, marks) in enumerate(tables):
        _table(axes, 1 + 23 * k, 17, widths, rows, marks)
        axes.text(1 + 23 * k, 18.6, title, fontsize=9.5, color="black" if k else BLUE, weight="normal" if k else "bold")
    figure.savefig(PLACE / "neighbours.png", dpi=110)


def loss() -> None:
    """The laws of a release with and without one record, and the privacy loss between them."""
    import math

    import numpy as np

    from tacit import accounting as acc

    figure = Figure(figsize=(9.2, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    x = np.linspace(-4, 5, 400)
    density = lambda shift: np.exp(-((x - shift) ** 2) / 2) / math.sqrt(2 * math.pi)  # noqa: E731
    for shift, color, label in ((0.0, GREY, "Q: without the record"), (1.0, BLUE, "P: with it")):
        left.plot(x, density(shift), color=color, label=label)
    seen = 2.0
    p, q = (float(np.exp(-((seen - shift) ** 2) / 2) / math.sqrt(2 * math.pi)) for shift in (1.0, 0.0))
    left.vlines([seen], 0, [p], color=RED, lw=1)
    left.plot([seen, seen], [p, q], "o", color=RED, ms=4)
    left.annotate(f"L = log p/q = {math.log(p / q):.1f}", (seen, p), (2.4, 0.31), color=RED, fontsize=9)
    left.set(xlabel="released value (count + Gaussian noise, σ = 1)", ylabel="density", ylim=(0, 0.5))
    left.legend(frameon=False, fontsize=8.5, loc="upper left")
    # L = x - 1/2 with x ~ N(1, 1)
    values = np.linspace(-3, 4.5, 400)
    law = np.exp(-((values - 0.5) ** 2) / 2) / math.sqrt(2 * math.pi)
    epsilon = 1.0
    counted = np.where(values > epsilon, law * -np.expm1(np.minimum(epsilon - values, 0.0)), 0.0)
    right.plot(values, law, color=BLUE, label="law of the loss L under P")
    right.fill_between(values, 0, counted, color=RED, alpha=0.5, label="part of it that counts for δ")
    right.axvline(epsilon, color="black", lw=0.8, ls="--")
    area = acc.delta(acc.Gaussian(1.0), epsilon=epsilon).upper
    right.text(epsilon + 0.06, 0.43, f"ε = {epsilon:g}", fontsize=9)
    right.text(2.1, 0.2, f"area = δ(1) = {area:.3f}", fontsize=9, color=RED)
    right.set(xlabel="privacy loss", ylim=(0, 0.5))
    right.legend(frameon=False, fontsize=8.5, loc="upper left")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(PLACE / "loss.png", dpi=110)


def people() -> None:
    """People drawn, or rows drawn: the noise of a step for as many rows, for a small and a large budget."""
    from tacit.runs.users import Crowd

    figure = Figure(figsize=(8.4, 3.4), layout="constrained")
    for axes, epsilon in zip(figure.subplots(1, 2, sharey=True), (0.5, 20.0), strict=True):
        lines: dict[str, list[tuple[int, float, float]]] = {}
        for batch in (256, 1024, 4096, 16384, 65536, 262144):
            for way in Crowd(20_000, 40, batch, 500, epsilon, 1e-6).ways():
                name = f"{way['draw']} {way['max_rows']}"
                lines.setdefault(name, []).append((batch, way["noise_of_a_step"], way["noise_at_best"]))
        shown = {"units 1": ("people, 1 row", BLUE), "rows 40": ("rows, at most 40", GREY)}
        for name, (label, color) in shown.items():
            x, y, _ = zip(*lines[name], strict=True)
            axes.loglog(x, y, "o-", color=color, label=label, markersize=4)
        x, alike, best = zip(*lines["units 8"], strict=True)
        axes.fill_between(x, best, alike, color=ORANGE, alpha=0.35, label="people, 8 rows: alike to unlike")
        axes.set(title=f"ε = {epsilon:g}", xlabel="rows in a step")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("noise of a step, in clip norms")
    figure.axes[0].legend(frameon=False, fontsize=9)
    figure.savefig(PLACE / "people.png", dpi=110)


def processing() -> None:
    """What is done with a release costs nothing; looking at the data again does."""
    figure, axes = _page(9.2, 2.1)
    _box(axes, 1, 16, "private table")
    _box(axes, 25, 16, "mechanism\n(adds noise)", color="#dfe7ef")
    _box(axes, 49, 16, "release", color="#d6e8d2")
    _box(axes, 73, 16, "plots, rounding,\nmodels, attacks", width=17, color="#d6e8d2")
    _arrow(axes, (16.4, 16), (24.6, 16))
    _arrow(axes, (40.4, 16), (48.6, 16), "costs ε")
    _arrow(axes, (64.4, 16), (72.6, 16), "costs 0")
    axes.plot([8, 8, 81.5], [12.6, 6, 6], color=RED, lw=1.2, ls="--")
    axes.annotate("", (81.5, 12.4), (81.5, 6), arrowprops={"arrowstyle": "->", "color": RED, "lw": 1.2, "ls": "--"})
    axes.text(45, 3.0, "another look at the table is another mechanism", ha="center", fontsize=9, color=RED)
    figure.savefig(PLACE / "processing.png", dpi=110)


def auxiliary() -> None:
    """Names are found again by joining tables; what a release can teach about one person is bounded."""
    import math

    import numpy as np
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(9.2, 3.3), layout="constrained")
    axes, curve = figure.subplots(1, 2, width_ratios=(1.45, 1))
    axes.set(xlim=(0, 55), ylim=(0, 33))
    axes.axis("off")
    axes.text(0.5, 30.2, "“anonymous” table, no noise", fontsize=9.5, weight="bold")
    health = [
        ("zip", "born", "illness"),
        ("30303", "1991", "none"),
        ("30309", "1987", "asthma"),
        ("30312", "1975", "gout"),
    ]
    _table(axes, 0.5, 28.5, (7, 6, 8), health, {2: "#f6d9d5"})
    axes.text(30.5, 30.2, "public register", fontsize=9.5, weight="bold")
    register = [("zip", "born", "name"), ("30308", "1991", "Ada"), ("30309", "1987", "Ben"), ("30312", "1962", "Dan")]
    _table(axes, 30.5, 28.5, (7, 6, 8), register, {2: "#f6d9d5"})
    axes.add_line(Line2D([21.6, 30.4], [21, 21], color=RED, lw=1.6))
    axes.text(26, 21.6, "join", ha="center", fontsize=9, color=RED)
    axes.text(26, 11.5, "Ben has asthma: learned although no name was in the table", ha="center", fontsize=9, color=RED)
    axes.text(
        26, 3.2, "With ε-DP, whatever else somebody knows:\nthe odds that Ben took part change\n"
        "by a factor of at most $e^ε$, up or down.", ha="center", fontsize=9,
    )  # fmt: skip
    prior = np.linspace(0.001, 0.999, 300)
    for epsilon, color in ((0.1, "#9ecae1"), (1.0, BLUE), (3.0, "#08306b")):
        odds = prior / (1 - prior) * math.exp(epsilon)
        curve.plot(prior, odds / (1 + odds), color=color, label=f"ε = {epsilon:g}")
    curve.plot(prior, prior, color=GREY, ls="--", lw=1, label="nothing learned")
    curve.set(xlabel="belief before the release", ylabel="belief after it, at most", xlim=(0, 1), ylim=(0, 1))
    curve.spines[["top", "right"]].set_visible(False)
    curve.legend(frameon=False, fontsize=8.5, loc="lower right")
    figure.savefig(PLACE / "auxiliary.png", dpi=110)


def _picture(page: Path, name: str, width: int, height: int) -> None:
    browser = f"chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size={width},{height}"
    shot = f"--screenshot={PLACE / name}"
    subprocess.run([*browser.split(), shot, f"file://{page}"], check=True, capture_output=True)


def _shell(line: str, folder: str) -> str:
    """What a command prints."""
    words = [sys.executable, "-m", *line.split()]
    wide = os.environ | {"COLUMNS": "84", "NO_COLOR": "1"}
    told = subprocess.run(words, cwd=folder, env=wide, capture_output=True, text=True, check=False)
    return told.stdout + told.stderr


DRAWN = (speed, interval, ledger, report, studio, people, neighbours, loss, processing, auxiliary)
PICTURES = {f.__name__: f for f in DRAWN}

if __name__ == "__main__":
    PLACE.mkdir(exist_ok=True)
    for name in sys.argv[1:] or PICTURES:
        PICTURES[name]()
        print(f"{name}: docs/pictures")
