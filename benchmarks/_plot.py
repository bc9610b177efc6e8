"""How do the measured ratios look? A picture of a file that ``python -m benchmarks.gpu --json`` wrote.

python -m benchmarks._plot benchmarks/results/h200-2026-11-15.json docs/benchmarks.svg
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks._workloads import TITLES


def device_time(told: dict[str, Any], method: str) -> float | None:
    """Milliseconds of kernels a step, from the first line of a profile."""
    text = told.get("profile", {}).get(method, "")
    return float(text.split()[0]) if text else None


def main(argv: list[str]) -> int:
    """Draw the ratios to compiled plain SGD."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    told = json.loads(Path(argv[0]).read_text(encoding="utf-8"))
    names = [n for n in TITLES if "milliseconds" in told["results"].get(n, {}).get("tacit-compiled", {})]
    wall, device = [], []
    for name in names:
        found = told["results"][name]
        wall.append(found["tacit-compiled"]["milliseconds"] / found["plain-compiled"]["milliseconds"])
        ours, theirs = device_time(found, "tacit-compiled"), device_time(found, "plain-compiled")
        device.append(ours / theirs if ours and theirs else 0.0)
    figure, axes = pyplot.subplots(figsize=(8, 0.5 * len(names) + 1.2), layout="constrained")
    places = range(len(names))
    axes.barh([k + 0.2 for k in places], wall, 0.36, label="step, wall clock", color="#0072b2")
    axes.barh([k - 0.2 for k in places], device, 0.36, label="kernels on the device", color="#e69f00")
    for target, style in ((1.0, "-"), (1.25, "--")):
        axes.axvline(target, color="black", linewidth=0.8, linestyle=style)
    axes.set_yticks(list(places), [TITLES[n] for n in names])
    axes.invert_yaxis()
    axes.set_xlabel("time of a private step, compiled plain SGD = 1 (dashed: the target, 1.25)")
    axes.set_title(f"{told['about']['device']}, torch {told['about']['torch']}, {told['about']['date']}", fontsize=10)
    axes.legend(loc="lower right", frameon=False)
    figure.savefig(argv[1], metadata={"Date": None} if argv[1].endswith("svg") else None)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
