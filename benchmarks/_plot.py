"""How do the measured ratios look, and how do they grow? Pictures of what ``python -m benchmarks.gpu --json`` wrote.

python -m benchmarks._plot table benchmarks/results/h200-2026-11-16.json docs/results/speed.svg
python -m benchmarks._plot growth benchmarks/results/growth-h200-2026-11-16.json docs/results/growth.svg
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks._workloads import TITLES

OURS, THEIRS = "#0072b2", "#e69f00"


def device_time(told: dict[str, Any], method: str) -> float | None:
    """Milliseconds of kernels a step, from the first line of a profile."""
    lines = told.get("profile", {}).get(method, "").splitlines()
    if not lines:
        return None
    # The profiler tells the optimizer's kernels twice: each by itself, and all of them under its name.
    twice = sum(float(line.split()[0]) for line in lines[1:] if "Optimizer.step" in line)
    return float(lines[0].split()[0]) - twice


def table(told: dict[str, Any], pyplot: Any) -> Any:
    """The ratios to compiled plain SGD."""
    pair = ("tacit-compiled", "plain-compiled")
    names = [n for n in TITLES if all("milliseconds" in told["results"].get(n, {}).get(m, {}) for m in pair)]
    wall, device = [], []
    for name in names:
        found = told["results"][name]
        wall.append(found["tacit-compiled"]["milliseconds"] / found["plain-compiled"]["milliseconds"])
        ours, theirs = device_time(found, "tacit-compiled"), device_time(found, "plain-compiled")
        device.append(ours / theirs if ours and theirs else 0.0)
    figure, axes = pyplot.subplots(figsize=(8, 0.5 * len(names) + 1.2), layout="constrained")
    places = range(len(names))
    axes.barh([k + 0.2 for k in places], wall, 0.36, label="step, wall clock", color=OURS)
    axes.barh([k - 0.2 for k in places], device, 0.36, label="kernels on the device", color=THEIRS)
    for target, style in ((1.0, "-"), (1.25, "--")):
        axes.axvline(target, color="black", linewidth=0.8, linestyle=style)
    axes.set_yticks(list(places), [TITLES[n] for n in names])
    axes.invert_yaxis()
    axes.set_xlabel("time of a private step, compiled plain SGD = 1 (dashed: the target, 1.25)")
    axes.set_title(f"{told['about']['device']}, torch {told['about']['torch']}, {told['about']['date']}", fontsize=10)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


def growth(told: dict[str, Any], pyplot: Any) -> Any:
    """Time and memory against each quantity, both axes logarithmic, private and plain; memory where it was measured."""
    from matplotlib.ticker import LogLocator

    pair = next(
        ours
        for ours in (("plain-compiled", "tacit-compiled"), ("plain", "tacit"))
        if any(all("milliseconds" in found.get(m, {}) for m in ours) for found in told["results"].values())
    )
    measured = [("milliseconds", "ms a step")]
    if any("mebibytes" in found.get(pair[1], {}) for found in told["results"].values()):
        measured.append(("mebibytes", "MiB at the peak"))
    curves: dict[str, list[tuple[float, dict[str, Any]]]] = {}
    for name, found in told["results"].items():
        curve, _, value = name.rpartition("@")
        if all("milliseconds" in found.get(m, {}) for m in pair):
            curves.setdefault(curve, []).append((float(value), found))
    size = (3.4 * len(curves), 3.0 * len(measured) + 0.3)
    figure, grid = pyplot.subplots(len(measured), len(curves), figsize=size, layout="constrained", squeeze=False)
    for column, (curve, points) in enumerate(curves.items()):
        points.sort(key=lambda point: point[0])
        x = [value for value, _ in points]
        for row, (what, unit) in enumerate(measured):
            axes = grid[row][column]
            for method, label, color, mark in zip(
                pair, ("plain SGD", "private"), (THEIRS, OURS), ("s--", "o-"), strict=True
            ):
                axes.loglog(
                    x, [found[method][what] for _, found in points], mark, color=color, label=label, markersize=5
                )
            for value, found in points:
                ratio = found[pair[1]].get("ratio") if what == "milliseconds" else None
                ratio = ratio or found[pair[1]][what] / found[pair[0]][what]
                place = (value, found[pair[1]][what])
                axes.annotate(f"{ratio:.2f}", place, (0, 6), textcoords="offset points", fontsize=8, ha="center")
            axes.set_xticks(x, [f"{int(value):,}" for value in x])
            axes.minorticks_off()
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter("{x:,g}")
            axes.margins(0.12, 0.18)
            axes.set_ylabel(unit if column == 0 else "")
        name, _, rest = curve.partition(" (")
        grid[0][column].set_title(f"{name}\n({rest}", fontsize=9)
        grid[-1][column].set_xlabel(name)
    grid[0][0].legend(frameon=False)
    how = "both compiled" if pair[0] != "plain" else "both uncompiled"
    title = f"{told['about']['device']}, torch {told['about']['torch']}: {how}; the numbers are ratios"
    figure.suptitle(title, fontsize=10)
    return figure


def main(argv: list[str]) -> int:
    """Draw one of the pictures."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    told = json.loads(Path(argv[1]).read_text(encoding="utf-8"))
    figure = {"table": table, "growth": growth}[argv[0]](told, pyplot)
    figure.savefig(argv[2], metadata={"Date": None} if argv[2].endswith("svg") else None)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
