"""What is a year of schooling worth, by three private methods, and what does the exact fit give away?

Log income on schooling in the census sample of Fulton County: the slope with its interval, the predictions, and the
test R², by whitened descent, by sufficient statistics and by the functional mechanism. Then two attacks on a fit of
1,000 people by somebody who knows all of them but one. *Reconstruction*: from the fit before and after that one joined,
what is their income? *Membership*: from one fit, did they take part? Exact fits answer both; private ones must not.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.table import Facts, Row, Table, markdown, mean_sd

ABOUT = "schooling and income (PUMS, Fulton County) by three private methods, with an attack on the exact fit"
FACTS = Facts(
    paper="coursework on the same sample: log income on schooling",
    same="25,766 people, income clipped to 10³…10⁶ dollars",
    differs="three private methods and an attack; public bounds",
    published="least squares: slope .2101",
    page="coefficients",
    short="30 s on two quiet cores: 5 seeds, smaller attacks",
    full="60 s on two cores, 20 seeds",
)
SEEDS = 20
SHORT_SEEDS = 5
DELTA = 1e-6
EPSILONS = (0.1, 1.0)
METHODS = ("auto", "sufficient-statistics", "functional")
INCOME = (math.log(1e3), math.log(1e6))  # public bounds: log dollars
TOWN, VICTIMS, WORLDS = 1_000, 100, 500  # people of the attacked fits; reconstructed ones; fits with and without one

Floats = npt.NDArray[np.float64]
Fit = Callable[[Floats, Floats], Floats]


def run(table: Table) -> None:
    """A row for each method, ε and seed; then one for each attack."""
    from tacit import datasets

    if table.tiny:
        people = datasets.labsup()
        frame = people.train.head(1000)
        dollars = 1e3 * frame["nonmomi"].to_numpy().astype(np.float64)
    else:
        table.path("tables", "pums2000_fulton_ga.parquet")
        people = datasets.pums_fulton(download=False, data_dir=table.data)
        frame = people.train
        dollars = frame["income"].to_numpy().astype(np.float64)
    epsilons = EPSILONS[-1:] if table.tiny else EPSILONS
    column: Any = people.schema["educ"]
    bounds = (float(column.lower), float(column.upper))
    x = np.clip(frame["educ"].to_numpy().astype(np.float64), *bounds)
    y = np.log(np.clip(dollars, 1e3, 1e6))
    table.row(lambda: {"slope": float(least_squares(x, y)[1]), "people": len(y)}, part="whole", data=people.name)
    for seed in range(max(table.seeds, table.pick(1, SHORT_SEEDS, 1))):
        order = np.random.default_rng(seed).permutation(len(y))
        parts = (order[len(y) // 5 :], order[: len(y) // 5])
        table.row(functools.partial(_plain, x, y, *parts), part="fit", method="not private", seed=seed)
        for method in METHODS:
            for epsilon in epsilons:
                table.row(
                    functools.partial(_private, x, y, *parts, bounds, method, epsilon),
                    part="fit",
                    method=method,
                    epsilon=epsilon,
                    seed=seed,
                )
    town, victims, worlds = table.pick((200, 5, 20), (TOWN, 40, 200), (TOWN, VICTIMS, WORLDS))
    fits: dict[float, Fit] = {math.inf: least_squares}
    for epsilon in epsilons:
        fits[epsilon] = functools.partial(_released, bounds=bounds, epsilon=epsilon)
    for epsilon, fit in fits.items():
        table.row(functools.partial(_reconstruct, x, y, fit, town, victims), part="reconstruction", epsilon=epsilon)
        table.row(functools.partial(_belongs, x, y, fit, town, worlds), part="membership", epsilon=epsilon)


# -- the relation ------------------------------------------------------------------------------------------------------


def _estimator(bounds: tuple[float, float], method: str, epsilon: float) -> Any:
    from tacit.linear_model import LinearRegression

    delta = 0.0 if method == "functional" else DELTA
    return LinearRegression(
        epsilon, delta, bounds=bounds, target_bounds=INCOME, method=method, unit="person", max_rows=1
    )


def _private(
    x: Floats, y: Floats, train: Any, test: Any, bounds: tuple[float, float], method: str, epsilon: float
) -> dict[str, float]:
    fitted = _estimator(bounds, method, epsilon).fit(x[train, None], y[train], groups=range(len(train)))
    ((low, high),) = fitted.confidence_interval(0.95)
    return {
        "claimed": fitted.privacy_.upper,
        "delta": fitted.privacy_.delta,
        "intercept": fitted.intercept_,
        "slope": float(fitted.coef_[0]),
        "low": float(low),
        "high": float(high),
        "r2": float(fitted.score(x[test, None], y[test])),
    }


def _plain(x: Floats, y: Floats, train: Any, test: Any) -> dict[str, float]:
    from scipy.stats import linregress, norm

    found = linregress(x[train], y[train])
    half = float(norm.ppf(0.975) * found.stderr)
    left = y[test] - found.intercept - found.slope * x[test]
    return {
        "intercept": float(found.intercept),
        "slope": float(found.slope),
        "low": float(found.slope - half),
        "high": float(found.slope + half),
        "r2": float(1 - (left**2).sum() / ((y[test] - y[test].mean()) ** 2).sum()),
    }


# -- the attacks -------------------------------------------------------------------------------------------------------


def least_squares(x: Floats, y: Floats) -> Floats:
    """Intercept and slope, exact: what is often published.

    >>> least_squares(np.array([0.0, 1.0, 2.0]), np.array([1.0, 3.0, 5.0])).round(6).tolist()
    [1.0, 2.0]
    """
    return np.linalg.lstsq(_design(x), y, rcond=None)[0].astype(np.float64)


def _released(x: Floats, y: Floats, bounds: tuple[float, float], epsilon: float) -> Floats:
    fitted = _estimator(bounds, "gradient-descent", epsilon).fit(x[:, None], y, groups=range(len(y)))
    return np.array([fitted.intercept_, fitted.coef_[0]])


def _design(x: Floats) -> Floats:
    return np.column_stack([np.ones(len(x)), x])


def reconstruct(before: Floats, after: Floats, x: Floats, one: float) -> float:
    """The target of the one who joined, from the fits before and after; ``x`` are the features of all, theirs last.

    Least squares moves by A⁻¹·(1, x)·(y - prediction) when a row joins, A the sum of squares with it, so the first
    entry of A·(after - before) is the residual of the one who joined.

    >>> x, y = np.array([0.0, 1.0, 3.0, 2.0]), np.array([0.0, 2.0, 5.0, 7.0])
    >>> round(reconstruct(least_squares(x[:3], y[:3]), least_squares(x, y), x, 2.0), 6)
    7.0
    """
    design = _design(x)
    return float(before @ [1.0, one] + (design.T @ design @ (after - before))[0])


def _reconstruct(x: Floats, y: Floats, fit: Fit, town: int, victims: int) -> dict[str, Any]:
    """Incomes of people and what the attacker says, cut to the public bounds (both in log dollars).

    They have an income between the bounds: of others a guess that was cut would be right by chance.
    """
    between = np.flatnonzero((y > INCOME[0]) & (y < INCOME[1]))
    truth, guesses, without = [], [], []
    for seed in range(victims):
        rng = np.random.default_rng(seed)
        last = rng.choice(between)
        order = rng.permutation(len(y))
        chosen = np.append(order[order != last][: town - 1], last)
        own_x, own_y = x[chosen], y[chosen]
        before, after = fit(own_x[:-1], own_y[:-1]), fit(own_x, own_y)
        guesses.append(float(np.clip(reconstruct(before, after, own_x, own_x[-1]), *INCOME)))
        truth.append(float(own_y[-1]))
        without.append(float(least_squares(own_x[:-1], own_y[:-1]) @ [1.0, own_x[-1]]))
    errors = np.abs(np.array(guesses) - truth)
    return {
        "median_error": float(np.median(errors)),
        "within_1_percent": float((errors < math.log(1.01)).mean()),
        "others_median_error": float(np.median(np.abs(np.array(without) - truth))),
        "truth": np.round(truth, 3).tolist(),
        "guess": np.round(guesses, 3).tolist(),
    }


def _belongs(x: Floats, y: Floats, fit: Fit, town: int, worlds: int) -> dict[str, float]:
    """Fits with and without the most influential of the people; the attacker knows everybody, and both exact fits."""
    from tacit.audit import roc, two_world_evidence

    chosen = np.random.default_rng(0).permutation(len(y))[:town]
    x, y = x[chosen], y[chosen]
    design = _design(x)
    inverse = np.linalg.inv(design.T @ design)
    moved = (design @ inverse) * (y - design @ least_squares(x, y))[:, None]
    last = int(np.argmax(np.einsum("ij,jk,ik->i", moved, design.T @ design, moved)))
    others = np.arange(len(y)) != last
    exact = least_squares(x[others], y[others])
    towards = design.T @ design @ (least_squares(x, y) - exact)
    outside = np.array([towards @ (fit(x[others], y[others]) - exact) for _ in range(worlds)])
    inside = np.array([towards @ (fit(x, y) - exact) for _ in range(worlds)])
    found = two_world_evidence(outside, inside, DELTA)
    curve = roc(np.r_[outside, inside], np.r_[np.zeros(worlds), np.ones(worlds)])
    return {"auc": float(curve.area), "epsilon_shown": found.certified, "at_most": found.best}


# -- what is shown -----------------------------------------------------------------------------------------------------


def _groups(rows: list[Row]) -> dict[str, list[Row]]:
    """The fits, by method and ε."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if row["part"] == "fit":
            label = f"{row['method']}, ε = {row['epsilon']:g}" if "epsilon" in row else row["method"]
            found.setdefault(label, []).append(row)
    return dict(sorted(found.items(), key=lambda item: (item[0] == "not private", item[0])))


def _means(rows: list[Row], *names: str) -> list[float]:
    return [mean_sd([row[name] for row in rows])[0] for name in names]


def summary(rows: list[Row]) -> str:
    """The relation, means over seeds, and how many intervals hold the slope of the whole table; then the attacks."""
    first_row = next(row for row in rows if row["part"] == "whole")
    whole = first_row["slope"]
    fits: list[Row] = []
    for label, own in _groups(rows).items():
        slope, deviation = mean_sd([row["slope"] for row in own])
        low, high, r2 = _means(own, "low", "high", "r2")
        fits.append(
            {
                "fit": label,
                "seeds": len(own),
                "slope": slope,
                "sd": deviation,
                "mean 95% interval": f"{low:.4f} to {high:.4f}",
                f"intervals that hold {whole:.4f}": sum(row["low"] <= whole <= row["high"] for row in own),
                "test R²": r2,
            }
        )
    attacks: list[Row] = []
    for first in (row for row in rows if row["part"] == "reconstruction"):
        found = {
            "ε of each fit": first["epsilon"],
            "incomes found within 1%": f"{100 * first['within_1_percent']:.0f}% of {len(first['truth'])}",
            "median error, a factor of": math.exp(first["median_error"]),
            "by the others' fit alone": math.exp(first["others_median_error"]),
        }
        same = [row for row in rows if row["part"] == "membership" and row["epsilon"] == first["epsilon"]]
        for second in same:  # none where the run was cut short
            found |= {
                "membership AUC": second["auc"],
                "ε shown at 95%": second["epsilon_shown"],
                "at most": second["at_most"],
            }
        attacks.append(found)
    text = f"Data: {first_row['data']}, {first_row['people']:,} people."
    for part in (fits, attacks):
        text += "\n\n" + markdown(part, list(part[0])) if part else ""
    return text


def plot(rows: list[Row], folder: Path) -> None:
    """Predictions of the methods at the smallest ε, intervals of the slope, and the reconstruction."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 4.2), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    groups = _groups(rows)
    smallest = min((row["epsilon"] for row in rows if row["part"] == "fit" and "epsilon" in row), default=math.nan)
    schooling = np.linspace(1, 16, 31)
    for number, method in enumerate(METHODS):
        own = groups.get(f"{method}, ε = {smallest:g}", [])
        if not own:  # cut short
            continue
        lines = np.exp([row["intercept"] + row["slope"] * schooling for row in own])
        low, high = np.quantile(lines, [0.05, 0.95], axis=0)
        left.fill_between(schooling, low, high, color=f"C{number}", alpha=0.2)
        left.plot(schooling, np.median(lines, 0), color=f"C{number}", label=method)
    for own in (groups[name] for name in groups if name == "not private"):
        intercept, slope = _means(own, "intercept", "slope")
        left.plot(schooling, np.exp(intercept + slope * schooling), "--", color="black", label="not private")
        middle.axvline(slope, ls="--", color="black", lw=1)
    left.set(
        yscale="log", xlabel="schooling (code of the census)", ylabel="predicted income ($)",
        title=f"predictions at ε = {smallest:g}, 90% of seeds",
    )  # fmt: skip
    left.legend(fontsize=8)
    for place, own in enumerate(groups.values()):
        slope, low, high = _means(own, "slope", "low", "high")
        middle.errorbar([slope], [place], xerr=[[slope - low], [high - slope]], marker="o", capsize=3, color="C0")
    middle.set_yticks(range(len(groups)), list(groups), fontsize=8)
    middle.set(xlabel="log income for one more step of schooling", title="slope, mean 95% interval")
    ends = np.exp(INCOME)
    right.plot(ends, ends, color="gray", lw=1)
    for number, row in enumerate(row for row in rows if row["part"] == "reconstruction"):
        label = "exact fits" if row["epsilon"] == math.inf else f"private fits, ε = {row['epsilon']:g} each"
        right.plot(
            np.exp(row["truth"]),
            np.exp(row["guess"]),
            "o^s"[number],
            ms=(4, 9, 4)[number],
            ls="",
            alpha=0.7,
            label=label,
        )
    right.set(
        xscale="log", yscale="log", xlabel="true income ($)", ylabel="the attacker's answer ($)",
        title=f"income of one of {TOWN:,}, from two fits",
    )  # fmt: skip
    right.legend(fontsize=8, loc="upper left", bbox_to_anchor=(0, 0.93))
    for axes in (left, middle, right):
        axes.grid(True, alpha=0.2)
    figure.savefig(folder / "education-income.png", dpi=110)
