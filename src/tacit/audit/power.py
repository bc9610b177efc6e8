"""Would an attack have found less noise? Powers of audits of which only the scores are known, whatever made them.

What code would do with less noise nobody can run. But an attack whose scores are noise and a shift sees the shift grow
as the noise shrinks: half the noise is twice the shift. So the scores themselves say what the same attack would have
seen, and an attack that hardly tells the worlds apart has no power, however large the claim.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from tacit.audit import bounds
from tacit.audit.evidence import one_run_refutes, rest_of, two_worlds_refute
from tacit.audit.findings import ENOUGH, THINNER, Power

Floats = npt.NDArray[np.float64]
#: Draws one attack over, of as many repeats or canaries as asked for, the second world shifted; whether it refutes.
Again = Callable[[int, float], bool]

#: Simulated attacks behind a power.
RUNS = 100
#: What is left of the noise in a shift by which no noise is meant.
NONE = 1e-3
#: How much larger an attack is tried to be, where this one is too small.
LARGER = (2, 4, 8, 16, 32, 64)


def shift_seen(zero: Floats, one: Floats, significance: float) -> float:
    """A lower bound on how far the second world's scores are above the first one's, 0 or more.

    >>> shift_seen(np.zeros(4), np.ones(4), 0.05)
    1.0
    """
    if min(len(zero), len(one)) < 2:
        return 0.0
    wrong = float(np.sqrt(zero.var(ddof=1) / len(zero) + one.var(ddof=1) / len(one)))
    return max(0.0, float(one.mean() - zero.mean()) + bounds.NORMAL.inv_cdf(significance) * wrong)


def two_world_powers(
    zero: Floats,
    one: Floats,
    claimed: float,
    delta: float,
    significance: float,
    rng: np.random.Generator | None = None,
) -> tuple[Power, ...]:
    """With which probability repeats on two data sets would have refuted a claim, with less noise than these had.

    Args:
        zero: The scores without the record.
        one: The scores with it.
        claimed: The ε that is claimed.
        delta: Its δ.
        significance: Of the certificate, and of how far the scores are apart.
        rng: Where simulated attacks come from; None makes a fresh generator.

    Returns:
        One power for each share of the noise that is left.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> seen = rng.laplace(size=2000), 1 + rng.laplace(size=2000)
        >>> two_world_powers(*seen, claimed=1.0, delta=0.0, significance=0.05, rng=rng)[1].enough
        True
    """
    generator = rng or np.random.default_rng()

    def again(count: int, shift: float) -> bool:
        drawn = generator.choice(zero, count), generator.choice(one, count) + shift
        return two_worlds_refute(*drawn, claimed, delta, significance)

    shift = shift_seen(rest_of(zero), rest_of(one), significance)
    return _powers(again, shift, min(len(zero), len(one)), "runs on each data set", LARGER)


def one_run_powers(
    scores: Floats,
    member: npt.NDArray[np.bool_],
    claimed: float,
    delta: float,
    significance: float,
    rng: np.random.Generator | None = None,
) -> tuple[Power, ...]:
    """With which probability the canaries of one run would have refuted a claim, with less noise than it had.

    Args:
        scores: One number per canary.
        member: Whether it was in.
        claimed: The ε that is claimed.
        delta: Its δ.
        significance: Of the certificate, and of how far the scores are apart.
        rng: Where simulated attacks come from; None makes a fresh generator.

    Returns:
        One power for each share of the noise that is left.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> coins = rng.integers(0, 2, 200).astype(bool)
        >>> one_run_powers(rng.normal(size=200), coins, 1.0, 1e-5, 0.05, rng)[1].enough  # scores that see nothing
        False
    """
    generator = rng or np.random.default_rng()
    zero, one = scores[~member], scores[member]

    def again(count: int, shift: float) -> bool:
        coins = generator.integers(0, 2, count).astype(bool)
        drawn = np.where(coins, generator.choice(one, count) + shift, generator.choice(zero, count))
        return one_run_refutes(count, claimed, delta, significance)(drawn, coins)

    shift = shift_seen(zero, one, significance)
    larger = tuple(times for times in LARGER if times * len(scores) <= 10_000)
    return _powers(again, shift, len(scores), "canaries", larger)


def _powers(again: Again, shift: float, count: int, what: str, larger: tuple[int, ...]) -> tuple[Power, ...]:
    found = []
    for lie, left in THINNER.items():
        more = shift * (1 / max(left, NONE) - 1)
        sure, needed = _share(again, count, more), left == 0.5
        by = f"{count:,} {what} that are told apart as well as these"
        if needed and sure < ENOUGH:
            enough = next((n * count for n in larger if shift and _share(again, n * count, more) >= ENOUGH), None)
            most = f"{max(larger, default=1) * count:,} would not do either"
            by += f" ({enough:,} would do)" if enough else f" ({most})" if shift else " (not at all)"
        found.append(Power(lie, sure, by, needed=needed))
    return tuple(found)


def _share(again: Again, count: int, shift: float) -> float:
    return sum(again(count, shift) for _ in range(RUNS)) / RUNS if shift else 0.0
