"""How can a computer hold a real random number exactly? As the bits drawn so far, with more drawn when needed.

The exponential and normal deviates here are exact: they are made only by comparing uniform real numbers, whose binary
digits are drawn until the comparison is decided, so there is no logarithm, no rounding and no truncation. A deviate is
a sign, an integer part, and a fraction of which 64 bits are known; :meth:`Deviates.more` draws the following bits of
the *same* number. The methods are von Neumann's (1951) and Karney's ("Sampling exactly from the normal distribution",
ACM TOMS 42, 2016), arranged so that numpy works on many deviates at once.

With B(p) an event of probability p, the building blocks are: B(1/n) from a uniform integer; B(x) for a real x, as "a
fresh uniform is below x"; and B(exp(-g)) for g in [0, 1], as "the first n = 1, 2, … for which B(g) and B(1/n) do not
both happen is odd", because the probability that it is above n is g^n / n!.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from tacit.noise.entropy import Source, random_bits

Indices = npt.NDArray[np.intp]
Booleans = npt.NDArray[np.bool_]
Trial = Callable[[Indices], Booleans]
"""Performs one independent trial for each index and says where it succeeded."""


class Deviates:
    """Exact real numbers sign * (integer + fraction), the fraction known to as many bits as were needed so far."""

    def __init__(self, count: int, source: Source) -> None:
        self.source = source
        self.integer = np.zeros(count, np.int64)
        self.fraction = np.zeros(count, np.uint64)
        self.negative = np.zeros(count, np.bool_)
        self._more: dict[int, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self.integer)

    def redraw(self, where: Indices) -> None:
        """Gives new uniform fractions to some deviates."""
        self.fraction[where] = self.source.words(len(where))
        if self._more:
            for index in where.tolist():
                self._more.pop(index, None)

    def digits(self, index: int) -> tuple[int, int]:
        """The known bits of one fraction: (m, b) with m / 2^b <= fraction <= (m + 1) / 2^b."""
        return self._more.get(index, (int(self.fraction[index]), self.source.word_bits))

    def more(self, index: int) -> tuple[int, int]:
        """Draws another word of the fraction's bits and returns all that are known."""
        value, bits = self.digits(index)
        value = (value << self.source.word_bits) | random_bits(self.source, 1)
        self._more[index] = value, bits + self.source.word_bits
        return self._more[index]

    def below_fraction(self, where: Indices) -> Booleans:
        """For each index, whether a fresh uniform real number is below the fraction: B(fraction)."""
        fresh = self.source.words(len(where))
        known = self.fraction[where]
        below = fresh < known
        for position in np.flatnonzero(fresh == known).tolist():
            below[position] = self._compare_further(int(where[position]), int(fresh[position]))
        return below

    def _compare_further(self, index: int, fresh: int) -> bool:
        """Decides a comparison whose first words are equal by drawing further bits of both numbers."""
        bits = self.source.word_bits
        while True:
            value, known = self.digits(index)
            while known < bits:
                value, known = self.more(index)
            leading = value >> (known - bits)
            if fresh != leading:
                return fresh < leading
            fresh = (fresh << self.source.word_bits) | random_bits(self.source, 1)
            bits += self.source.word_bits


def one_in(source: Source, n: npt.NDArray[np.int64]) -> Booleans:
    """For each entry of n, an event of probability exactly 1 / n."""
    result: Booleans = uniform_below(source, n) == 0
    return result


def uniform_below(source: Source, bound: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """For each bound (at least 1), a uniform integer from 0 to bound - 1, exactly, by rejection."""
    limit = bound.astype(np.uint64)
    if limit.size and int(limit.max()) > 1 << source.word_bits:
        raise ValueError("the bound does not fit a random word")
    out = np.zeros(len(bound), np.int64)
    waiting = np.flatnonzero(limit > 1)
    top = np.uint64((1 << source.word_bits) - 1)
    while len(waiting):
        word = source.words(len(waiting))
        divisor = limit[waiting]
        remainder = word % divisor
        # The last, incomplete run of `divisor` words is refused: word - remainder is the start of the run it lies in.
        complete = (word - remainder) <= top - (divisor - np.uint64(1))
        out[waiting[complete]] = remainder[complete].astype(np.int64)
        waiting = waiting[~complete]
    return out


def exp_trial(source: Source, where: Indices, trial: Trial | None = None) -> Booleans:
    """For each index, an event of probability exp(-g), where ``trial`` has probability g (None: g = 1)."""
    odd = np.zeros(len(where), np.bool_)
    active = np.arange(len(where))
    n = 1
    while len(active):
        # B(1/1) always happens; the sequence stops at the first n where B(g) or B(1/n) fails.
        going = np.ones(len(active), np.bool_) if n == 1 else one_in(source, np.full(len(active), n, np.int64))
        if trial is not None:
            alive = np.flatnonzero(going)
            going[alive] = trial(where[active[alive]])
        odd[active[~going]] = n % 2 == 1
        active = active[going]
        n += 1
    return odd


def all_exp_trials(
    source: Source, where: Indices, times: npt.NDArray[np.int64], trial: Trial | None = None
) -> Booleans:
    """For each index, whether ``times`` independent events of probability exp(-g) all happen."""
    passed = np.ones(len(where), np.bool_)
    left = times.copy()
    active = np.flatnonzero(left > 0)
    while len(active):
        happened = exp_trial(source, where[active], trial)
        passed[active[~happened]] = False
        left[active] -= 1
        active = active[happened]
        active = active[left[active] > 0]
    return passed


def count_exp_trials(source: Source, count: int, trial: Trial | None = None) -> npt.NDArray[np.int64]:
    """How many independent events of probability exp(-g) happen before the first that does not (a geometric number)."""
    total = np.zeros(count, np.int64)
    active = np.arange(count)
    while len(active):
        active = active[exp_trial(source, active, trial)]
        total[active] += 1
    return total


def half_trial(source: Source) -> Trial:
    """Fair coins."""
    return lambda where: (source.words(len(where)) & np.uint64(1)).astype(np.bool_)


def exponential(count: int, source: Source) -> Deviates:
    """Exact standard exponential deviates.

    The integer part is geometric with ratio exp(-1); the fraction has density proportional to exp(-x) on [0, 1) and is
    drawn by rejection. They are independent, because exp(-(k + x)) is a product.
    """
    deviates = Deviates(count, source)
    deviates.integer[:] = count_exp_trials(source, count)
    waiting = np.arange(count)
    while len(waiting):
        deviates.redraw(waiting)
        waiting = waiting[~exp_trial(source, waiting, deviates.below_fraction)]
    return deviates


def laplace(count: int, source: Source) -> Deviates:
    """Exact standard Laplace deviates (density exp(-|x|) / 2)."""
    deviates = exponential(count, source)
    deviates.negative[:] = half_trial(source)(np.arange(count))
    return deviates


def normal(count: int, source: Source) -> Deviates:
    """Exact standard normal deviates, by Karney's algorithm N.

    An integer k is drawn with probability proportional to exp(-k/2), kept with probability exp(-k(k-1)/2); a uniform x
    is drawn and k + x kept with probability exp(-x(2k+x)/2). The product is exp(-(k+x)^2/2). The last event is k + 1
    independent events of probability exp(-g), g = x * (2k+x)/(2k+2), and g <= 1.
    """
    deviates = Deviates(count, source)
    coin = half_trial(source)

    def trial(where: Indices) -> Booleans:
        happened = deviates.below_fraction(where)
        alive = np.flatnonzero(happened)
        twice = 2 * deviates.integer[where[alive]]
        # B((2k + x) / (2k + 2)): a uniform integer below 2k + 2 is below 2k, or is 2k and B(x) happens.
        face = uniform_below(source, twice + 2)
        second = face < twice
        edge = np.flatnonzero(face == twice)
        second[edge] = deviates.below_fraction(where[alive[edge]])
        happened[alive] = second
        return happened

    waiting = np.arange(count)
    while len(waiting):
        k = count_exp_trials(source, len(waiting), coin)
        kept = all_exp_trials(source, waiting, k * (k - 1) // 2)
        chosen = waiting[kept]
        deviates.integer[chosen] = k[kept]
        deviates.redraw(chosen)
        accepted = chosen[all_exp_trials(source, chosen, deviates.integer[chosen] + 1, trial)]
        done = np.zeros(count, np.bool_)
        done[accepted] = True
        waiting = waiting[~done[waiting]]
    deviates.negative[:] = coin(np.arange(count))
    return deviates
