"""What do the rows of the prompts experiment say? Its tables and its picture."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from experiments.table import Row, markdown

#: name in the rows -> name in tables and pictures
METHODS = {"soft": "soft prompt", "prefix": "prefix", "lora": "LoRA", "lora2": "LoRA, longer"}
TASKS = {"sst2": "SST-2", "trec": "TREC", "ag_news": "AG News"}
#: Of several kinds of public texts, which are shown first, and what they are.
PUBLIC = {
    "sst2 validation": "SST-2 validation",
    "mr without sst2": "MR without SST-2",
    "ag_news": "AG News",
    "trec": "TREC questions",
    "trec held out": "TREC held out",
}


def share(row: Row) -> str:
    """Accuracy in percent with its interval.

    >>> share({"accuracy": 0.881, "low": 0.866, "high": 0.895})
    '88.1 [86.6, 89.5]'
    """
    if "low" not in row:
        return ""
    return f"{100 * row['accuracy']:.1f} [{100 * row['low']:.1f}, {100 * row['high']:.1f}]"


def tuned(rows: list[Row]) -> list[dict[str, Any]]:
    """One line a task and method: accuracy at each ε, and without privacy."""
    found = []
    for task, title in TASKS.items():
        for method, name in METHODS.items():
            own = [row for row in rows if row["task"] == task and row["method"] == method]
            plain = [row for row in rows if row["task"] == task and row["method"] == f"{method}, not private"]
            if not own and not plain:
                continue
            line: dict[str, Any] = {"data": title, "method": name}
            for row in sorted(own, key=lambda row: row["epsilon"]):
                line[f"ε = {row['epsilon']:g}"] = share(row)
            if plain:
                line["not private"] = share(plain[0])
            known = (own or plain)[0]
            line |= {"weights": f"{known['weights']:,}", "steps": known["steps"], "batch": known["batch_size"]}
            line["learning rate"] = known["learning_rate"]
            found.append(line)
    return found


def baselines(rows: list[Row]) -> list[dict[str, Any]]:
    """Zero-shot, and few-shot chosen on private labels."""
    found = []
    for task, title in TASKS.items():
        for row in rows:
            if row["task"] == task and row["method"] == "zero-shot":
                line = {"data": title, "prompt": "zero-shot", "accuracy": share(row)}
                found.append({**line, "leaning taken out": f"{100 * row['calibrated']:.1f}"})
        few = [row for row in rows if row["task"] == task and row["method"] == "few-shot, not private"]
        for members in sorted({row.get("members", 1) for row in few}):
            line = {"data": title, "prompt": "few-shot by private labels, not private", "prompts": members}
            for row in few:
                if row.get("members", 1) == members:
                    even = row.get("calibration") == "batch"
                    line["leaning taken out" if even else "accuracy"] = share(row)
            found.append(line)
    return found


def voted(rows: list[Row]) -> list[dict[str, Any]]:
    """PromptPATE: what was asked, what it cost, what the student does; one line for the draws of noise on one vote.

    The figures are those of the first draw.
    """
    order = list(PUBLIC)
    own = [row for row in rows if row["method"] == "PromptPATE"]
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    students: dict[tuple[Any, ...], list[float]] = {}
    for row in sorted(own, key=lambda row: (row["task"], order.index(row["public"]), -row["teachers"])):
        members = row.get("members", 1)
        same = (row["task"], row["public"], row["votes"], members)
        students.setdefault(same, []).append(100 * row["accuracy"])
        if same in found:
            continue
        right = row["labels_right"]
        found[same] = {
            "data": TASKS[row["task"]],
            "public texts": PUBLIC[row["public"]],
            "teachers": row["teachers"],
            "asked": row["asked"],
            "answered": row["answered"],
            "labels right %": "" if math.isnan(right) else f"{100 * right:.1f}",
            "ε claimed": f"{row['epsilon_data_independent']:.3g}",
            "data-dependent": f"{row['epsilon_theorem6']:.3g}",
            "exact": f"{row['epsilon_exact']:.3g}" if row["epsilon_exact"] is not None else "",
            "prompts": members,
            "student": share(row),
        }
    for same, values in students.items():
        if len(values) > 1:
            ends = f"{min(values):.1f} to {max(values):.1f}"
            found[same]["noise drawn again"] = f"{sum(values) / len(values):.1f}, mean of {len(values)} ({ends})"
    return list(found.values())


def summary(rows: list[Row]) -> str:
    """Three tables: adapters, PromptPATE, and prompts without privacy."""
    parts = []
    for lines in (tuned(rows), voted(rows), baselines(rows)):
        if lines:
            columns = list(dict.fromkeys(name for line in lines for name in line))
            columns.sort(key=lambda name: name in ("not private", "weights", "steps", "batch", "learning rate"))
            parts.append(markdown(lines, columns))
    return "\n\n".join(parts)


def plot(rows: list[Row], folder: Path) -> None:
    """Accuracy against ε for SST-2 and TREC, with what needs no privacy as lines.

    Many branches: every kind of line and mark selects its own rows.
    """
    from matplotlib.figure import Figure

    shown = [task for task in ("sst2", "trec") if any(r["task"] == task and r["method"] in METHODS for r in rows)]
    if not shown:
        return
    figure = Figure(figsize=(5.6 * len(shown), 4.6), layout="constrained")
    for axes, task in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        for number, (method, name) in enumerate(METHODS.items()):
            own = sorted(
                (row for row in rows if row["task"] == task and row["method"] == method), key=lambda r: r["epsilon"]
            )
            if own:
                at = [row["epsilon"] * 1.06 ** (number - 1) for row in own]
                heights, below, above = zip(*map(_percent, own), strict=True)
                axes.errorbar(at, heights, (below, above), fmt="o-", color=f"C{number}", capsize=3, label=name)
            for row in rows:
                if row["task"] == task and row["method"] == f"{method}, not private":
                    axes.axhline(100 * row["accuracy"], color=f"C{number}", ls=":", lw=1.2)
        for row in rows:
            if row["task"] == task and row["method"] == "zero-shot":
                axes.axhline(100 * row["accuracy"], color="0.3", ls="--", lw=1.2, label="zero-shot")
        few = [row for row in rows if row["task"] == task and row["method"] == "few-shot, not private"]
        few = [row for row in few if row.get("calibration") == "batch"]
        for row in sorted(few, key=lambda row: -row.get("members", 1))[:1]:
            axes.axhline(100 * row["accuracy"], color="0.3", ls="-.", lw=1.2, label="few-shot, not private")
        for row in _best_votes(rows, task):
            height, under, over = _percent(row)
            label = f"PromptPATE, {row['teachers']:,} teachers"
            place = row["epsilon_data_independent"] * 0.9
            axes.errorbar([place], [height], ([under], [over]), fmt="s", color="C4", capsize=3, label=label)
        axes.set(xscale="log", xlabel="ε", ylabel="test accuracy (%)", title=TASKS[task])
        axes.set_xticks([1, 3, 8], ["1", "3", "8"], minor=False)
        axes.minorticks_off()
        axes.grid(True, alpha=0.2)
        axes.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=3)
    figure.suptitle("SmolLM2-135M adapted to private text; bars: 95%; dotted: the same adapter without privacy")
    figure.savefig(folder / "prompts.png", dpi=150)


def _percent(row: Row) -> tuple[float, float, float]:
    """Accuracy in percent, and how far the interval goes below and above."""
    return 100 * row["accuracy"], 100 * (row["accuracy"] - row["low"]), 100 * (row["high"] - row["accuracy"])


def _best_votes(rows: list[Row], task: str) -> list[Row]:
    """The vote on texts like the private ones that has the most teachers and a claimed ε of one at the most."""
    like = {"sst2": "sst2 validation", "trec": "trec held out"}[task]
    own = [r for r in rows if r["method"] == "PromptPATE" and r["task"] == task and r["public"] == like]
    fits = [r for r in own if r["epsilon_data_independent"] <= 1 and "low" in r]
    most = sorted(fits, key=lambda row: (-row["teachers"], -row.get("members", 1), row.get("draw", 0), row["asked"]))
    return most[:1]
