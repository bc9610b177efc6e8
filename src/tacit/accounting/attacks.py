"""What could somebody find out? The best attack that a price leaves room for, in rates and odds.

Every number follows from the certified profile δ(ε) and holds for any attack on the release, with any knowledge of the
other records: how often a test of membership is right, and how far a belief about a person can move.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.accounting.base import Mechanism, is_number
from tacit.accounting.bound import Bound
from tacit.accounting.curves import tradeoff
from tacit.accounting.errors import AccountingError, optional
from tacit.accounting.pricing import delta as certified_delta
from tacit.accounting.pricing import epsilon as certified_epsilon

Array = NDArray[np.float64]
#: Shares of the chance of an exception at which the price is asked for; the best of them is taken.
SHARES = (0.5, 0.2, 0.08, 0.03)


@dataclasses.dataclass(frozen=True, eq=False)
class Risk:
    """How well any attack can tell which of two neighbouring data sets it was; made by :func:`risk`.

    Under add/remove, a member is a unit that was in the data. Under zero-out, one whose contribution was counted and
    not left blank; under replace-one, one whose data had the first of two contents. Presence is no secret there.

    Args:
        advantage: The largest true positive rate minus false positive rate of any test, from below and above.
        fpr: False positive rates: how often a test names somebody who is no member.
        tpr_lower: The true positive rate that some test reaches, at each false positive rate.
        tpr_upper: The true positive rate that no test exceeds.
        prior: The probability of membership that the attacker starts from.
        chance: The probability that the bound on the belief does not hold.
        odds: The factor by which the odds of membership rise at most, except with probability ``chance``.
        posterior: The belief that ``odds`` leads to from ``prior``.
        adjacency: The adjacency of the guarantee.
        unit: Whom the guarantee protects.
        group: How many units are protected together.

    Example:
        >>> from tacit.accounting import Gaussian, risk
        >>> found = risk(Gaussian(2.0), fpr=[0.01])
        >>> round(found.advantage[1], 3), round(float(found.tpr_upper[0]), 3)
        (0.197, 0.034)
    """

    advantage: tuple[float, float]
    fpr: Array
    tpr_lower: Array
    tpr_upper: Array
    prior: float
    chance: float
    odds: float
    posterior: float
    adjacency: str
    unit: str
    group: int

    @property
    def accuracy(self) -> float:
        """The largest share of right guesses on members and others in equal numbers: (1 + advantage)/2."""
        return 0.5 * (1 + self.advantage[1])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; infinities are written as the string ``"inf"``."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        plain |= {name: value.tolist() for name, value in plain.items() if isinstance(value, np.ndarray)}
        plain["advantage"] = list(self.advantage)
        return {name: "inf" if value == math.inf else value for name, value in plain.items()}

    def __repr__(self) -> str:
        terms = Bound(0.0, 0.0, adjacency=self.adjacency, unit=self.unit, group=self.group).terms
        lines = [
            f"Any attack on this release, {terms}:",
            f"  right guesses, members and others in equal numbers   at most {_share(self.accuracy)}",
            f"  advantage (true minus false positive rate)           at most {_share(self.advantage[1])}",
        ]
        for alpha, high in zip(self.fpr, self.tpr_upper, strict=True):
            lines.append(f"  members found at a false positive rate of {_share(alpha):>9}  at most {_share(high)}")
        lines.append(
            f"  a belief of {_share(self.prior)} rises to at most {_share(self.posterior)}, "
            f"but for a chance of {self.chance:g}"
        )
        return "\n".join(lines)


def risk(
    mechanism: Mechanism,
    *,
    fpr: Sequence[float] = (0.001, 0.01, 0.1),
    prior: float = 0.5,
    chance: float = 0.001,
    adjacency: str = "add-remove",
    group: int = 1,
) -> Risk:
    """What the best attack on a mechanism can find out: true positive rates, advantage and odds.

    The advantage is δ(0), the total variation. The true positive rate at a false positive rate α is 1 - f(α), f the
    trade-off curve of the test of presence. Write L for the privacy loss, by which the log odds of membership rise.
    P[L > l] <= δ(ε)/(1 - e^{ε-l}) for every ε < l, so with ε the price at δ = x·chance the odds rise by more than
    e^ε/(1 - x) with a probability of at most ``chance``. The smallest over some x is taken. (An (ε, δ) guarantee alone
    does not say that the loss exceeds ε with probability δ at most.)

    Args:
        mechanism: What ran: one mechanism, or several composed with ``*`` and ``+``.
        fpr: False positive rates, in [0, 1].
        prior: The probability of membership before the attack, above 0 and below 1 (default 0.5).
        chance: The probability, above 0 and below 1, with which the bound on the odds may fail (default 0.001).
        adjacency: ``"add-remove"`` (default), ``"replace-one"`` or ``"zero-out"``.
        group: How many units one neighbour changes together (default 1).

    Returns:
        The bounds. Upper ends hold for every attack; lower ends are reached by some test of the worst two data sets.

    Raises:
        AccountingError: If a rate, the prior or the chance is out of range.

    Example:
        >>> from tacit import accounting as acc
        >>> run = acc.PoissonSampled(acc.Gaussian(1.1), 256 / 60000) * 3516
        >>> print(acc.risk(run, fpr=[0.01], prior=0.1))
        Any attack on this release, add/remove one record:
          right guesses, members and others in equal numbers   at most ...%
          advantage (true minus false positive rate)           at most ...%
          members found at a false positive rate of        1%  at most ...%
          a belief of 10% rises to at most ...%, but for a chance of 0.001
    """
    for name, value in (("prior", prior), ("chance", chance)):
        if not is_number(value) or not 0 < value < 1:
            raise AccountingError(f"{name} is a probability above 0 and below 1, not {value!r}")
    terms: dict[str, Any] = {"adjacency": adjacency, "group": group}
    whole = certified_delta(mechanism, 0.0, **terms)
    curve = tradeoff(mechanism, np.asarray(fpr, dtype=float), points=49, **terms)
    low, high = curve.orders[0]
    # no test is better than the advantage allows
    upper = np.minimum(1 - low, np.minimum(curve.alpha + whole.upper, 1.0))
    log_odds = math.inf
    for share in SHARES:
        price = certified_epsilon(mechanism, share * chance, **terms).upper
        log_odds = min(log_odds, (price - math.log1p(-share)) * (1 + 1e-12))
    odds = math.exp(log_odds) if log_odds < 700 else math.inf
    posterior = 1.0 if math.isinf(odds) else prior * odds / (prior * odds + 1 - prior)
    return Risk(
        (whole.lower, whole.upper),
        curve.alpha,
        np.minimum(1 - high, upper),
        upper,
        float(prior),
        float(chance),
        odds,
        posterior,
        adjacency,
        mechanism.unit,
        whole.group,
    )


def plot(
    mechanisms: Mechanism | Mapping[str, Mechanism],
    path: Any = None,
    *,
    adjacency: str = "add-remove",
    group: int = 1,
) -> Any:
    """Draw how many members any attack can find, against how many others it accuses: the certified ROC curve.

    Both axes are logarithmic, because what matters is how many members are found with few false accusations. Each curve
    is the upper bound for every attack, with a band down to what some test reaches. The diagonal is a guess.

    Args:
        mechanisms: What ran, or several runs by the name that the figure shows.
        path: Where to save the figure (.svg, .png, .pdf). None (default) does not save it.
        adjacency: ``"add-remove"`` (default), ``"replace-one"`` or ``"zero-out"``.
        group: How many units one neighbour changes together (default 1).

    Returns:
        The figure, of matplotlib.

    Raises:
        AccountingError: If there is nothing to draw, or matplotlib is not installed.

    Example:
        >>> from tacit import accounting as acc
        >>> figure = acc.plot({"σ = 1": acc.Gaussian(1.0), "σ = 4": acc.Gaussian(4.0)})
        >>> [line.get_label() for line in figure.axes[0].get_lines()]
        ['σ = 1', 'σ = 4', 'guessing']
    """
    runs = {"": mechanisms} if isinstance(mechanisms, Mechanism) else dict(mechanisms)
    if not runs:
        raise AccountingError("there is nothing to draw: give at least one mechanism")
    alpha = np.logspace(-5, 0, 101)
    curves = {name: risk(one, fpr=alpha.tolist(), adjacency=adjacency, group=group) for name, one in runs.items()}
    figure = optional("matplotlib.figure").Figure(figsize=(5.6, 5.0), layout="constrained")
    axes = figure.subplots()
    colors = ("black", "#4477aa", "#aa4477", "#c98a2b", "#228833", "#8c8c8c")
    for i, (name, curve) in enumerate(curves.items()):
        color = colors[i % len(colors)]
        label = name or "any attack"
        axes.plot(alpha, curve.tpr_upper, color=color, lw=2, label=label)
        axes.fill_between(alpha, curve.tpr_lower, curve.tpr_upper, color=color, alpha=0.2, lw=0)
    axes.plot(alpha, alpha, color="#b0b0b0", lw=1, ls="--", label="guessing")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(1e-5, 1)
    axes.set_ylim(1e-5, 1.05)
    axes.set_xlabel("false positive rate: others who are taken for members")
    axes.set_ylabel("true positive rate: members who are found")
    terms = Bound(0.0, 0.0, adjacency=adjacency, unit=next(iter(runs.values())).unit, group=group).terms
    axes.set_title(f"What no attack exceeds, {terms}", fontsize=9, loc="left")
    axes.grid(True, which="major", color="#e6e6e6", lw=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure


def _share(value: float) -> str:
    """A share in percent, rounded up to three digits."""
    percent = 100 * value
    if percent <= 0 or percent >= 100:
        return f"{min(max(percent, 0.0), 100.0):g}%"
    digits = max(0, 2 - math.floor(math.log10(percent)))
    scale = 10.0**digits
    return f"{min(math.ceil(percent * scale * (1 - 1e-12)) / scale, 100.0):.{digits}f}".rstrip("0").rstrip(".") + "%"
