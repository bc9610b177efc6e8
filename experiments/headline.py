"""How does our accuracy at a given ε compare with what is published? One picture, from rows that were measured before.

Nothing is trained here. The rows of ``records``, ``records-tables`` and the like are read from the folder of results
(``--out``), else from ``rows`` next to this file, which holds the rows behind the documentation. To renew the picture,
put a new ``NAME.jsonl`` there and run ``tacit reproduce headline`` again.

Like is compared with like: diffprivlib's notebook on Adult reads five numeric columns, so it stands next to our fit of
these five columns, not next to our fit of all of them.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from experiments import records
from experiments.table import Facts, Row, Table, markdown, mean_sd

ABOUT = "accuracy against ε, ours and published, on pictures and Adult: drawn from kept rows, trains nothing"
FACTS = Facts(
    paper="Abadi 2016, Papernot 2018 and 2020, Tramèr & Boneh 2021, De et al. 2022, Wei et al. 2022 (DPIS)",
    same="data sets and δ; no public data",
    differs="ours are our best recipes, not theirs",
    published="the lines of the picture",
    page="index",
    short="seconds: drawn from kept rows",
    full="seconds: drawn from kept rows",
)
SEEDS = 1
#: Adult with the columns of diffprivlib's notebook; drawn in the panel of Adult.
FIVE = "adult, five numeric columns"
PANELS = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10", "adult": "Adult"}
TITLES = {**PANELS, FIVE: "Adult, five numeric columns"}
#: Experiments that measured on a test split, with settings fixed before.
SOURCES = ("records", "records-cifar10", "records-tables")
KEPT = Path(__file__).parent / "rows"

#: Published, as (ε, per cent); pictures are those of ``records``. All at δ = 1e-5 but diffprivlib, which claims δ = 0.
PUBLISHED: dict[str, dict[str, list[tuple[float, float]]]] = {
    **records.PUBLISHED,
    "adult": {"PATE 2018": [(1.9, 83.7)]},
    FIVE: {"diffprivlib (notebook)": [(1.0, 79.5)]},
}
DELTAS = {"diffprivlib (notebook)": 0.0}
OURS = "tacit"


def run(table: Table) -> None:
    """One row for each published and each measured point; made anew every time, because rows elsewhere change."""
    table.rows.clear()
    table.file.unlink(missing_ok=True)
    for data, sources in PUBLISHED.items():
        for who, points in sources.items():
            for epsilon, accuracy in points:
                key = {"data": data, "who": who, "epsilon": epsilon, "delta": DELTAS.get(who, 1e-5)}
                table.row(functools.partial(dict, accuracy=accuracy / 100), **key)
    ours = measured(kept(table.out))
    if not ours:
        table.say(f"no rows of ours in {table.out} or {KEPT}: tacit reproduce records, for one, measures some")
    for found in ours:
        key = {name: found.pop(name) for name in ("data", "who", "epsilon", "delta")}
        table.row(functools.partial(dict, found), **key)


def kept(out: Path) -> dict[str, list[Row]]:
    """The rows of each experiment: those in ``out``, else the kept ones."""
    found: dict[str, list[Row]] = {}
    for name in SOURCES:
        for file in (out / name / "rows.jsonl", KEPT / f"{name}.jsonl"):
            if file.exists():
                lines = file.read_text(encoding="utf-8").splitlines()
                found[name] = [json.loads(line) for line in lines if line.endswith("}")]
                break
    return found


def measured(rows: dict[str, list[Row]]) -> list[Row]:
    """Mean and deviation over seeds of each data set and ε.

    Where several methods were tested, the one that did best in the trials is shown, not the one that did best in the
    test. Fits of the columns of diffprivlib's notebook (``part`` "notebook") are data of their own.

    >>> row = {"data": "mnist", "epsilon": 1.0, "delta": 1e-05}
    >>> ours = measured({"records": [row | {"seed": 0, "accuracy": 0.9}, row | {"seed": 1, "accuracy": 0.92}]})
    >>> [(point["data"], point["seeds"], round(point["accuracy"], 6)) for point in ours]
    [('mnist', 2, 0.91)]
    """
    groups: dict[tuple[str, float], list[Row]] = {}
    for own in rows.values():
        tested: dict[tuple[str, float], dict[str, list[Row]]] = {}
        for row in (_of_five(row) for row in own):
            counts = row.get("part", "test") == "test" and "candidate" not in row and "seed" in row
            if counts and row.get("data") in TITLES and row["epsilon"] < float("inf"):
                by_method = tested.setdefault((row["data"], row["epsilon"]), {})
                by_method.setdefault(row.get("method", ""), []).append(row)
        for place, by_method in tested.items():
            choices = [row for row in own if row.get("part") == "choice" and (row["data"], row["epsilon"]) == place]
            choices.sort(key=lambda row: -row["accuracy"])
            method = next((row["method"] for row in choices if row["method"] in by_method), next(iter(by_method)))
            groups[place] = by_method[method]
    found = []
    for (data, epsilon), own in sorted(groups.items()):
        mean, deviation = mean_sd([row["accuracy"] for row in own])
        point: dict[str, Any] = {"data": data, "who": OURS, "epsilon": epsilon}
        point["delta"] = max(row.get("delta", 1e-5) for row in own)
        found.append(point | {"accuracy": mean, "sd": deviation, "seeds": len(own), "method": own[0].get("method", "")})
    return found


def _of_five(row: Row) -> Row:
    """A fit of the notebook's columns as a test row of its own data."""
    return row | {"part": "test", "data": FIVE} if row.get("part") == "notebook" else row


def summary(rows: list[Row]) -> str:
    """Ours beside the published figures, by data set and ε."""
    shown = []
    for data, title in TITLES.items():
        for epsilon in sorted({row["epsilon"] for row in rows if row["data"] == data}):
            own = [row for row in rows if (row["data"], row["epsilon"]) == (data, epsilon)]
            ours = [row for row in own if row["who"] == OURS]
            line: Row = {"data": title, "ε": epsilon, "tacit %": "", "published %": ""}
            if ours:
                spread = "" if ours[0]["seeds"] == 1 else f" ± {100 * ours[0]['sd']:.2f}"
                line["tacit %"] = f"{100 * ours[0]['accuracy']:.2f}{spread} ({ours[0]['seeds']})"
            others = [row for row in own if row["who"] != OURS]
            line["published %"] = ", ".join(f"{100 * row['accuracy']:.4g} {row['who']}" for row in others)
            shown.append(line)
    return markdown(shown, ["data", "ε", "tacit %", "published %"]) + "\n\ntacit: mean ± sd over test runs (how many)."


def plot(rows: list[Row], folder: Path) -> None:
    """One panel for each data set.

    Many branches: they are comprehensions that select the rows of a panel.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, NullLocator

    figure = Figure(figsize=(13.2, 3.3), layout="constrained")
    for axes, (data, title) in zip(figure.subplots(1, 4).flat, PANELS.items(), strict=True):
        own = [row for row in rows if row["data"] == data or (data == "adult" and row["data"] == FIVE)]
        for place, who in enumerate(dict.fromkeys(row["who"] for row in own if row["who"] != OURS)):
            theirs = [row for row in own if row["who"] == who]
            points = sorted((row["epsilon"], 100 * row["accuracy"]) for row in theirs)
            look = {"marker": "sv^D"[place % 4], "color": f"{0.25 + 0.15 * place}"} | _hollow(theirs[0])
            axes.plot(*zip(*points, strict=True), ls=":", ms=6, label=who + _which(theirs[0]), **look)
        for which in dict.fromkeys(row["data"] for row in own if row["who"] == OURS):
            ours = [row for row in own if row["who"] == OURS and row["data"] == which]
            ours.sort(key=lambda row: row["epsilon"])
            axes.errorbar(
                [row["epsilon"] for row in ours],
                [100 * row["accuracy"] for row in ours],
                [0.0 if row["seeds"] == 1 else 100 * row["sd"] for row in ours],
                marker="o", ms=7, lw=2, capsize=3, color="#1f6fb2", label="tacit" + _which(ours[0]), zorder=5,
                **_hollow(ours[0]),
            )  # fmt: skip
        ticks = [e for e in (0.1, 0.5, 1, 2, 3, 4, 8) if own and min(r["epsilon"] for r in own) <= e]
        deltas = sorted({row["delta"] for row in own})
        axes.set(xscale="log", xlabel=f"ε (δ = {' / '.join(f'{d:g}' for d in deltas)})", ylabel="test accuracy (%)")
        axes.set_title(title, loc="left", fontweight="bold")
        axes.xaxis.set_major_locator(FixedLocator(ticks))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticklabels([f"{e:g}" for e in ticks])
        axes.grid(True, alpha=0.2)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(y=0.12)
        axes.legend(fontsize=7, loc="center left" if data == "adult" else "best", framealpha=0.8, edgecolor="none")
    figure.savefig(folder / "headline.png", dpi=150)


def _which(row: Row) -> str:
    """What the legend says about the columns."""
    return " (5 columns)" if row["data"] == FIVE else ""


def _hollow(row: Row) -> dict[str, Any]:
    """Points of the five columns are hollow."""
    return {"markerfacecolor": "white"} if row["data"] == FIVE else {}
