"""What is the best accuracy at each ε on small pictures, without public data? Plain DP-SGD, tight accounting.

For each data set an encoder learns from random processes (:mod:`~experiments.priors`; no one's data), then small
models are trained privately on its features and on scattering maps (:mod:`~experiments.heads`), for CIFAR-10
together with a stage of the encoder itself (:mod:`~experiments.tuned`). Settings are
found in rounds by a fixed rule on the last 10,000 training pictures: the rows with ``part`` "trial" are what was tried,
those with "choice" what was chosen, written before its test rows, which train on all pictures. Test rows decide
nothing: the figure of an ε is that of its choice with the best trial. The figures do not pay for the choice:
``claimed`` is the price of one run. What a private choice among as many trials would have cost stands in the row of the
choice.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from experiments import heads, pictures, priors
from experiments.heads import Recipe
from experiments.table import Facts, Row, Table, markdown, mean_sd
from tacit import accounting as acc

ABOUT = "best accuracy of plain DP-SGD on MNIST and Fashion-MNIST at ε = .5, 1, 2, 3, 8"
FACTS = Facts(
    paper="Papernot et al. 2020, Tramèr & Boneh 2021, Wei et al. 2022 (DPIS)",
    same="MNIST and Fashion-MNIST, δ = 1e-5, no public data",
    differs="features from random processes and scattering; settings chosen on held-out training rows, not in ε",
    published="ε = 3: MNIST 98.7%, Fashion-MNIST 89.7% (Tramèr & Boneh)",
    ours=(
        (
            "ε = 3: MNIST",
            {
                "part": "test",
                "data": "mnist",
                "epsilon": 3.0,
                "method": "maps on scatter+middle, 500 steps, rate 4, clip 0.1",
            },
            "accuracy",
        ),
        (
            "Fashion-MNIST",
            {
                "part": "test",
                "data": "fashion_mnist",
                "epsilon": 3.0,
                "method": "head on scatter+middle+prior, 500 steps, rate 16, clip 0.1, centred",
            },
            "accuracy",
        ),
    ),
    page="pictures",
    short="seconds: shows the kept rows",
    full="2.9 hours of runs, on one H200 and on two cores",
)
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
_MAPS = {0.5: (200, 4.0), 1.0: (300, 4.0), 2.0: (400, 4.0), 3.0: (500, 4.0), 8.0: (800, 4.0)}
#: A network of which a stage of the prior is trained too. The more budget, the larger the part of that stage in the
#: clip norm and its rate: what noise adds to its weights in all steps stays at three tenths of their size or less.
_TUNED: dict[float, dict[str, Any]] = {
    1.0: {"steps": 200, "rate": 4.0, "share": 0.2, "slower": 0.04},
    3.0: {"steps": 400, "rate": 4.0, "share": 0.3, "slower": 0.08, "views": 2, "width": 96},
    8.0: {"steps": 600, "rate": 5.0, "share": 0.5, "slower": 0.1, "views": 2, "width": 128},
}
BOTH = ("scatter", "middle", "prior")
#: A change of settings is kept if it is better on the held-out pictures by more than this.
MARGIN = 0.001
ROUNDS = 4
SEEDS_CIFAR = 3


def begin(epsilon: float, network: str = "head", **more: Any) -> Recipe:
    """The recipe from which a search begins at this ε.

    >>> begin(1.0).steps, begin(1.0, "maps").rate
    (300, 4.0)
    """
    if network == "tuned":
        settings = _TUNED[epsilon] | more
        return Recipe((), network, batch=4096, ema=1 - 10 / settings["steps"], centre=None, **settings)
    steps, rate = (_HEAD if network == "head" else _MAPS)[epsilon]
    batch = 8192 if network == "head" else 4096
    plain = Recipe(network=network, batch=batch, steps=steps, rate=rate, ema=1 - 10 / steps)
    return dataclasses.replace(plain, **more)


def words(recipe: Recipe) -> str:
    """A short name of a recipe.

    >>> words(begin(1.0))
    'head on scatter, 300 steps, rate 16, clip 0.1, centred'
    """
    kind = recipe.network if recipe.width == 64 else f"{recipe.width} {recipe.network}"
    parts = [f"{kind} on {'+'.join(recipe.blocks)}" if recipe.blocks else kind, f"{recipe.steps} steps"]
    slower = f" and {recipe.rate * recipe.slower:g}" if recipe.network == "tuned" else ""
    parts += [f"rate {recipe.rate:g}{slower}", f"clip {recipe.clip:g}"]
    parts += [f"{recipe.views} views"] if recipe.views > 1 else []
    parts += ["centred"] if recipe.centre is not None and recipe.network == "head" else []
    parts += [f"batch {recipe.batch}"] if recipe.batch != (8192 if recipe.network == "head" else 4096) else []
    return ", ".join(parts)


def proposals(name: str, epsilon: float, number: int, best: Recipe | None) -> list[Recipe]:
    """What is tried in one round of the search, given the best so far: fixed before anything is measured.

    On CIFAR-10 what is expected to be best comes first and is tested at once, because time on a GPU is short.

    >>> [words(recipe) for recipe in proposals("cifar10", 1.0, 0, None)]
    ['tuned, 200 steps, rate 4 and 0.16, clip 0.1']
    """
    if name == "cifar10":
        return _proposals_cifar(epsilon, number, best)
    if number == 0 or best is None:
        if name == "fashion_mnist":
            return [begin(epsilon, "maps", blocks=BOTH[:2]), begin(epsilon, blocks=BOTH)]
        return [begin(epsilon, "maps", blocks=BOTH[:2])]
    change = functools.partial(dataclasses.replace, best)
    if number == 1:
        return [change(rate=best.rate * 2), change(rate=best.rate / 2)]
    if number == 2:
        other = begin(epsilon, "maps" if best.network == "head" else "head", blocks=BOTH[:2])
        return [change(views=5), other]
    return [change(steps=2 * best.steps, ema=1 - 5 / best.steps)]


def _proposals_cifar(epsilon: float, number: int, best: Recipe | None) -> list[Recipe]:
    if number == 0 or best is None:
        return [begin(epsilon, "tuned")]
    if number == 1:
        return [begin(epsilon, "maps", blocks=BOTH[:2], views=2 if epsilon > 3 else 1)]
    if number == 2:
        return [begin(epsilon, "tuned", slower=2 * _TUNED[epsilon]["slower"])]
    return [dataclasses.replace(best, views=2 * best.views)] if best.network == "tuned" else []


def run_set(table: Table, name: str, only: tuple[float, ...] | None = None) -> None:
    """The rows of one data set: in each round trials, a choice where they found something better, and test runs."""
    split = pictures.load(table, name, test=True)
    if split.train[0].shape[-1] < priors.COURSES[name].size:
        parts = (split.train, split.test)
        split = pictures.Split(*((F.pad(x, [2] * 4, value=-1.0), y) for x, y in parts))
    prior, about = encoder(table, name)
    table.row(functools.partial(dict, about), part="prior", data=name)
    runner = heads.Runner(heads.Features(split, prior), table.folder / "runs")
    chosen: dict[float, tuple[Recipe, Row]] = {}
    for number in range(1 if table.tiny else ROUNDS):
        for epsilon in only or tuple(TARGETS[name])[: 1 if table.tiny else None]:
            found = choose(table, runner, name, epsilon, number, chosen.get(epsilon))
            if found is not None:
                chosen[epsilon] = found
                judge(table, runner, name, epsilon, found[0])


def choose(
    table: Table, runner: heads.Runner, name: str, epsilon: float, number: int, before: tuple[Recipe, Row] | None
) -> tuple[Recipe, Row] | None:
    """A better recipe than the one before, with its trial, or nothing; a row says what was chosen."""
    best = before
    for recipe in proposals(name, epsilon, number, before[0] if before else None):
        measure = functools.partial(runner.run, _short(table, recipe), epsilon, 0, test=False)
        row = table.row(measure, part="trial", data=name, epsilon=epsilon, candidate=words(recipe))
        if best is None or row["accuracy"] > best[1]["accuracy"] + MARGIN:
            best = recipe, row
    if best is None or best is before:
        return None
    recipe, row = best
    trials = sum(r["part"] == "trial" and r["data"] == name and r.get("epsilon") == epsilon for r in table.rows)

    def decided() -> Row:
        price = row["claimed"] if table.tiny else price_of_choice(row, trials)
        found = {"accuracy": row["accuracy"], "trials": trials, "claimed": row["claimed"], "with_choice": price}
        return found | {"delta": pictures.DELTA, "recipe": recipe.words()}

    table.row(decided, part="choice", data=name, epsilon=epsilon, method=words(recipe))
    return best


def judge(table: Table, runner: heads.Runner, name: str, epsilon: float, recipe: Recipe) -> None:
    """The runs of one ε on all training pictures, judged on the test pictures: CIFAR-10 above ε = 1 has one."""
    seeds = 1 if name == "cifar10" and epsilon > 1 and table.seeds == SEEDS_CIFAR else table.seeds
    for seed in range(seeds):
        measure = functools.partial(runner.run, _short(table, recipe), epsilon, seed, test=True)
        table.row(measure, part="test", data=name, epsilon=epsilon, seed=seed, method=words(recipe))


def price_of_choice(row: Row, trials: int) -> float:
    """What one run and a private choice among ``trials`` like it cost together (random stopping, Liu & Talwar 2019)."""
    if trials < 2:
        return float(row["claimed"])
    recipe = row["recipe"]
    rate = min(recipe["batch"], row["rows"] // 4) / row["rows"]
    whole: acc.Mechanism = acc.PoissonSampled(acc.Gaussian(row["noise"]), rate) * recipe["steps"]
    if recipe["network"] == "head" and recipe["centre"] is not None:
        whole = whole + acc.Gaussian(recipe["centre"])
    return float(acc.epsilon(acc.Selected.of(whole, trials), pictures.DELTA).upper)


def encoder(table: Table, name: str) -> tuple[priors.Encoder, dict[str, Any]]:
    """The prior of a data set, and how it was made: read from the folder of results, or trained and kept there."""
    file = table.out / "priors" / f"{priors.COURSES[name].process}.pt"
    if table.tiny:
        small = dataclasses.replace(priors.COURSES[name], width=4, batch=8, steps=2, pool=16)
        return priors.pretrain(small, table.device, say=lambda _: None)
    if not file.exists():
        torch.manual_seed(0)
        made, about = priors.pretrain(priors.COURSES[name], table.device, table.say)
        file.parent.mkdir(parents=True, exist_ok=True)
        priors.save(made, about, file)
    return priors.restore(file, table.device)


def _short(table: Table, recipe: Recipe) -> Recipe:
    return dataclasses.replace(recipe, steps=3, batch=25) if table.tiny else recipe


def run(table: Table) -> None:
    """All rows of both sets. The short size shows the kept ones."""
    if table.size == "short":
        return table.show_kept(
            "the features alone take more than five minutes on two busy cores, so the kept rows are shown; "
            "tacit reproduce records --size full --device cuda measures them again"
        )
    for name in SETS[1:] if table.tiny else SETS:
        run_set(table, name)


def _grouped(rows: list[Row]) -> Iterator[Row]:
    for name, targets in TARGETS.items():
        for epsilon, target in targets.items():
            here = [r for r in rows if r["data"] == name and r.get("epsilon") == epsilon]
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
        "Wei et al. 2022 (DPIS)": [(1.0, 97.79), (2.0, 98.51), (3.0, 98.62), (4.0, 98.78)],
    },
    "fashion_mnist": {
        "tempered sigmoids 2020": [(2.7, 86.1)],
        "Tramèr & Boneh 2021": [(3.0, 89.7)],
        "Wei et al. 2022 (DPIS)": [(1.0, 86.25), (2.0, 88.24), (3.0, 88.82), (4.0, 89.21)],
    },
    "cifar10": {
        "De et al. 2022": [(1.0, 56.8), (8.0, 81.4)],
        "ScaleNorm": [(8.0, 82.5)],
        "DP-RandP": [(1.0, 72.3)],
    },
}
