"""Which pictures does the README show? ``python tools/pictures.py [NAME ...]`` makes them anew in docs/pictures/.

``speed`` is drawn from kept measurements (``benchmarks/results``), ``interval`` is computed, ``ledger`` and ``report``
are what the command prints and writes, in a folder of their own; these two need Chromium. (The headline is made by
``python -m experiments.gallery``.)
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
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


PICTURES = {f.__name__: f for f in (speed, interval, ledger, report)}

if __name__ == "__main__":
    PLACE.mkdir(exist_ok=True)
    for name in sys.argv[1:] or PICTURES:
        PICTURES[name]()
        print(f"{name}: docs/pictures")
