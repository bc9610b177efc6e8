"""What is the best accuracy at each ε on small pictures, without public data? Plain DP-SGD, tight accounting.

For each data set an encoder learns from random processes (:mod:`~tacit.experiments.priors`; no one's data), then small
models are trained privately on its features and on scattering maps (:mod:`~tacit.experiments.heads`). Settings are
found by a fixed rule on the last 10,000 training pictures: the rows with ``part`` "trial" are what was tried, those
with "choice" what was chosen, written before any test picture of that ε is looked at; "test" rows train on all
pictures. The figures do not pay for the choice: ``claimed`` is the price of one run. What a private choice among as
many trials would have cost stands in the row of the choice.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from tacit import accounting as acc
from tacit.experiments import heads, pictures, priors
from tacit.experiments.heads import Recipe
from tacit.experiments.table import Row, Table, markdown, mean_sd
from tacit.sgd.errors import ClippingError

ABOUT = "best accuracy of plain DP-SGD on MNIST and Fashion-MNIST at ε = .5, 1, 2, 3, 8"
SEEDS = 5
SETS = ("mnist", "fashion_mnist")
#: Asked for, in per cent, by data set and ε.
TARGETS: dict[str, dict[float, float]] = {
    "mnist": {0.5: 97.0, 1.0: 98.0, 2.0: 98.6, 3.0: 98.8, 8.0: 99.1},
    "fashion_mnist": {0.5: 87.0, 1.0: 88.4, 2.0: 89.5, 3.0: 90.0, 8.0: 91.0},
    "cifar10": {1.0: 60.0, 3.0: 72.0, 8.0: 80.0},
}
#: Steps and learning rate from which the search begins, by ε: more budget, more of both.
_HEAD = {0.5: (200, 12.0), 1.0: (300, 16.0), 2.0: (400, 24.0), 3.0: (500, 32.0), 8.0: (800, 48.0)}
_MAPS = {0.5: (200, 3.0), 1.0: (300, 4.0), 2.0: (500, 4.0), 3.0: (800, 4.0), 8.0: (1500, 4.0)}
_LAST = {0.5: (200, 12.0), 1.0: (300, 16.0), 2.0: (400, 24.0), 3.0: (500, 32.0), 8.0: (700, 48.0)}
_WHOLE = {1.0: (200, 16.0), 3.0: (300, 32.0), 8.0: (400, 48.0)}
_BEGIN = {"head": _HEAD, "maps": _MAPS, "last": _LAST, "whole": _WHOLE}
#: The ε at which everything is searched, and where the others begin: with the choice made there.
_ORDER: dict[str, tuple[tuple[float, float | None], ...]] = {
    "mnist": ((1.0, None), (8.0, None), (0.5, 1.0), (3.0, 8.0), (2.0, 1.0)),
    "fashion_mnist": ((1.0, None), (8.0, None), (0.5, 1.0), (3.0, 8.0), (2.0, 1.0)),
    "cifar10": ((1.0, None), (3.0, None), (8.0, None)),
}
BOTH = ("scatter", "middle", "prior")


def begin(epsilon: float, network: str = "head", **more: Any) -> Recipe:
    """The recipe from which a search begins at this ε.

    >>> begin(1.0).steps, begin(1.0, "maps").rate
    (300, 4.0)
    """
    steps, rate = _BEGIN[network][epsilon]
    batch = 4096 if network in ("last", "whole") else 8192
    return Recipe(network=network, batch=batch, steps=steps, rate=rate, ema=1 - 10 / steps, **more)


def at(recipe: Recipe, before: float, epsilon: float) -> Recipe:
    """A recipe chosen at another ε, with steps and rate moved as those of the beginnings are."""
    old, new = begin(before, recipe.network), begin(epsilon, recipe.network)
    steps = max(50, round(recipe.steps * new.steps / old.steps))
    return dataclasses.replace(recipe, steps=steps, rate=recipe.rate * new.rate / old.rate, ema=1 - 10 / steps)


def words(recipe: Recipe) -> str:
    """A short name of a recipe.

    >>> words(begin(1.0))
    'head on scatter, 300 steps, rate 16, clip 0.1, centred'
    """
    parts = [
        f"{recipe.network} on {'+'.join(recipe.blocks) or 'pictures'}",
        f"{recipe.steps} steps",
        f"rate {recipe.rate:g}",
    ]
    parts.append(f"clip {recipe.clip:g}")
    parts += [f"{recipe.views} views"] if recipe.views > 1 else []
    parts += [f"body {recipe.body:g}"] if recipe.network in ("last", "whole") else []
    parts += ["centred"] if recipe.centre is not None and recipe.network != "maps" else []
    return ", ".join(parts)


Try = Callable[[Recipe], float]


def search(tried: Try, epsilon: float, colour: bool = False, first: Recipe | None = None) -> Recipe:
    """The best recipe found by a fixed sequence of changes, each kept if it is better on the held-out pictures.

    ``first`` is a choice made at another ε: then only rate and length are tried.

    >>> search(lambda recipe: -abs(recipe.rate - 64) - ("prior" in recipe.blocks), 1.0).rate
    64.0
    """
    best = first or begin(epsilon)

    def better(**change: Any) -> bool:
        nonlocal best
        candidate = dataclasses.replace(best, **change)
        if candidate == best or tried(candidate) <= tried(best):
            return False
        best = candidate
        return True

    def tune() -> None:
        if not better(rate=best.rate * 2):
            better(rate=best.rate / 2)
        elif better(rate=best.rate * 2):
            better(rate=best.rate * 2)

    if first is None:
        if better(blocks=BOTH):
            better(blocks=tuple(f"{name}-root" for name in BOTH))
        tune()
        better(views=2 if colour else 5)
        if not colour:
            better(clip=1.0, rate=best.rate / 10)
        rivals = [begin(epsilon, network, blocks=("scatter", "middle")) for network in ("last", "maps")]
        rivals += [] if colour else [begin(epsilon, "maps")]
        rival = max(rivals, key=tried)
        if tried(rival) > tried(best) - 0.005:  # near enough to be worth its own rate
            head, best = best, rival
            if best.network == "maps":
                tune()
            elif not better(body=best.body * 3):
                better(body=best.body / 3)
            best = max(head, best, key=tried)
    else:
        tune()
    if best.network == "head":
        better(steps=best.steps * 2, ema=1 - 5 / best.steps)
    return best


def run_set(table: Table, name: str, only: tuple[float, ...] | None = None) -> None:
    """Trials, choice and test rows of one data set, at one ε after the other; or at some of them."""
    split = pictures.load(table, name, test=True)
    if table.small and name == "cifar10":
        parts = (split.train, split.test)
        split = pictures.Split(*((F.pad(x, [2] * 4, value=-1).expand(-1, 3, -1, -1), y) for x, y in parts))
    features = heads.Features(split, encoder(table, name))
    runner = heads.Runner(features, compiled=table.device.startswith("cuda"))
    chosen: dict[float, Recipe] = {}
    order = [(e, o) for e, o in _ORDER[name] if only is None or e in only][: 1 if table.small else None]
    for epsilon, origin in order:
        first = at(chosen[origin], origin, epsilon) if origin is not None else None
        chosen[epsilon] = choose(table, runner, name, epsilon, first)
        judge(table, runner, name, epsilon, chosen[epsilon])
    if name != "cifar10":
        return
    for epsilon in sorted((e for e, _ in order if e > 1 or table.small), reverse=True):
        whole = whole_encoder(table, runner, epsilon, chosen[epsilon])
        if whole is not None:
            judge(table, runner, name, epsilon, whole)


def judge(table: Table, runner: heads.Runner, name: str, epsilon: float, recipe: Recipe) -> None:
    """The runs of one ε on all training pictures, judged on the test pictures."""
    for seed in range(seeds(table, name, epsilon)):
        measure = functools.partial(runner.run, _short(table, recipe), epsilon, seed, test=True)
        table.row(measure, part="test", data=name, epsilon=epsilon, seed=seed, method=words(recipe))


def whole_encoder(table: Table, runner: heads.Runner, epsilon: float, rival: Recipe) -> Recipe | None:
    """Training all of the encoder takes longest, so it is tried last, once: chosen where it beats the choice so far."""
    recipe = begin(epsilon, "whole", blocks=(), views=2)
    row = _trial(table, runner, "cifar10", epsilon, recipe)
    before = _trial(table, runner, "cifar10", epsilon, rival)
    if row["accuracy"] <= before["accuracy"]:
        return None
    trials = sum(r["part"] == "trial" and r["epsilon"] == epsilon for r in table.rows)
    _decide(table, "cifar10", epsilon, recipe, row, trials)
    return recipe


def seeds(table: Table, name: str, epsilon: float) -> int:
    """How many test runs there are; CIFAR-10 above ε = 1 has one unless more are asked for."""
    return 1 if name == "cifar10" and epsilon > 1 and table.seeds == SEEDS_CIFAR else table.seeds


SEEDS_CIFAR = 3


def choose(table: Table, runner: heads.Runner, name: str, epsilon: float, first: Recipe | None) -> Recipe:
    """The recipe for one ε, by trials that are kept, and a row that says so."""
    seen: dict[Recipe, Row] = {}

    def tried(recipe: Recipe) -> float:
        seen[recipe] = _trial(table, runner, name, epsilon, recipe)
        return float(seen[recipe]["accuracy"])

    if table.small:  # enough to show that every kind runs
        few = ("head", BOTH), ("maps" if name == "cifar10" else "last", BOTH[:2])
        best = max((begin(epsilon, network, blocks=blocks) for network, blocks in few), key=tried)
    else:
        best = search(tried, epsilon, name == "cifar10", first)
    _decide(table, name, epsilon, best, seen[best], len(seen))
    return best


def _trial(table: Table, runner: heads.Runner, name: str, epsilon: float, recipe: Recipe) -> Row:
    def measure() -> Row:
        try:
            return runner.run(_short(table, recipe), epsilon, 0, test=False)
        except (torch.OutOfMemoryError, ClippingError) as error:  # what this device cannot run is not chosen
            return {"accuracy": 0.0, "error": str(error).splitlines()[0]}

    return table.row(measure, part="trial", data=name, epsilon=epsilon, candidate=words(recipe))


def _decide(table: Table, name: str, epsilon: float, best: Recipe, row: Row, trials: int) -> None:
    def decided() -> Row:
        return {
            "accuracy": row["accuracy"], "trials": trials, "claimed": row["claimed"],
            "with_choice": price_of_choice(row, trials), "delta": pictures.DELTA, "recipe": best.words(),
        }  # fmt: skip

    table.row(decided, part="choice", data=name, epsilon=epsilon, method=words(best))


def price_of_choice(row: Row, trials: int) -> float:
    """What one run and a private choice among ``trials`` like it cost together (random stopping, Liu & Talwar 2019)."""
    if trials < 2:
        return float(row["claimed"])
    recipe = row["recipe"]
    rate = min(recipe["batch"], row["rows"] // 4) / row["rows"]
    whole: acc.Mechanism = acc.PoissonSampled(acc.Gaussian(row["noise"]), rate) * recipe["steps"]
    if recipe["network"] != "maps" and recipe["centre"] is not None:
        whole = whole + acc.Gaussian(recipe["centre"])
    return float(acc.epsilon(acc.Selected.of(whole, trials), pictures.DELTA).upper)


def encoder(table: Table, name: str) -> priors.Encoder:
    """The prior of a data set: read from the folder of results, or trained and kept there."""
    file = table.out / "priors" / f"{name}.pt"
    if table.small:
        small = dataclasses.replace(priors.COURSES[name], width=4, batch=8, steps=2, pool=16)
        return priors.pretrain(small, table.device, say=lambda _: None)[0]
    if not file.exists():
        torch.manual_seed(0)
        made, about = priors.pretrain(priors.COURSES[name], table.device, table.say)
        file.parent.mkdir(parents=True, exist_ok=True)
        priors.save(made, about, file)
    return priors.restore(file, table.device)[0]


def _short(table: Table, recipe: Recipe) -> Recipe:
    return dataclasses.replace(recipe, steps=3, batch=25) if table.small else recipe


def run(table: Table) -> None:
    """All rows of both sets."""
    for name in SETS[:1] if table.small else SETS:
        run_set(table, name)


def _grouped(rows: list[Row]) -> Iterator[Row]:
    for name, targets in TARGETS.items():
        for epsilon, target in targets.items():
            here = [r for r in rows if r["data"] == name and r["epsilon"] == epsilon]
            choices = sorted((r for r in here if r["part"] == "choice"), key=lambda r: -r["accuracy"])
            tested = [c for c in choices if any(r["part"] == "test" and r["method"] == c["method"] for r in here)]
            if tested:
                choice = tested[0]
                own = [r for r in here if r["part"] == "test" and r["method"] == choice["method"]]
                mean, deviation = mean_sd([100 * r["accuracy"] for r in own])
                yield {
                    "data": name, "ε": epsilon, "seeds": len(own), "accuracy %": round(mean, 2),
                    "sd": round(deviation, 2), "target": target, "reached": "yes" if mean >= target else "no",
                    "held-out %": round(100 * choice["accuracy"], 2), "method": choice["method"],
                    "trials": choice["trials"], "ε with the choice": round(choice["with_choice"], 2),
                    "seconds": round(sum(r["seconds"] for r in own) / len(own), 1),
                }  # fmt: skip


def summary(rows: list[Row]) -> str:
    """Means over seeds against the targets."""
    columns = ["data", "ε", "seeds", "accuracy %", "sd", "target", "reached", "held-out %", "method", "trials"]
    return markdown(list(_grouped(rows)), [*columns, "ε with the choice", "seconds"])


def plot(rows: list[Row], folder: Path) -> None:
    """Accuracy against ε, with published figures and targets."""
    from matplotlib.figure import Figure

    found = list(_grouped(rows))
    shown = [name for name in TARGETS if any(r["data"] == name for r in found)]
    if not shown:
        return
    figure = Figure(figsize=(4.8 * len(shown), 4.2), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(shown), squeeze=False).flat, shown, strict=True):
        own = [row for row in found if row["data"] == name]
        deviations = [0.0 if r["seeds"] == 1 else r["sd"] for r in own]
        axes.errorbar(
            [r["ε"] for r in own],
            [r["accuracy %"] for r in own],
            deviations,
            marker="o",
            capsize=3,
            lw=2,
            label="tacit",
        )
        axes.plot(list(TARGETS[name]), list(TARGETS[name].values()), "_", color="grey", ms=14, label="target")
        for source, points in PUBLISHED[name].items():
            axes.plot(*zip(*points, strict=True), marker="x", ls="--", label=source)
        ticks = list(TARGETS[name])
        axes.set(xscale="log", xlabel=f"ε at δ = {pictures.DELTA:g}", ylabel="test accuracy (%)", title=name)
        axes.set_xticks(ticks, [f"{e:g}" for e in ticks], minor=False)
        axes.minorticks_off()
        axes.grid(True, alpha=0.2)
        axes.legend(fontsize=8)
    figure.savefig(folder / "records.png", dpi=150)


#: Figures of the papers, as (ε, per cent) at δ = 1e-5. CIFAR-10 without public data; DP-RandP learns a prior from
#: random processes, as here.
PUBLISHED: dict[str, dict[str, list[tuple[float, float]]]] = {
    "mnist": {
        "Abadi et al. 2016": [(0.5, 90.0), (2.0, 95.0), (8.0, 97.0)],
        "tempered sigmoids 2020": [(2.93, 98.1)],
        "Tramèr & Boneh 2021": [(3.0, 98.7)],
        "DPIS 2023": [(1.0, 97.79), (2.0, 98.51), (3.0, 98.62), (4.0, 98.78)],
    },
    "fashion_mnist": {
        "tempered sigmoids 2020": [(2.7, 86.1)],
        "Tramèr & Boneh 2021": [(3.0, 89.7)],
        "DPIS 2023": [(1.0, 86.25), (2.0, 88.24), (3.0, 88.82), (4.0, 89.21)],
    },
    "cifar10": {
        "De et al. 2022": [(1.0, 56.8), (8.0, 81.4)],
        "ScaleNorm": [(8.0, 82.5)],
        "DP-RandP": [(1.0, 72.3)],
    },
}
