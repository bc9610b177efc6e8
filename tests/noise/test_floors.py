"""Integer parts of large scales times deviates are exact where binary64 would round past an integer."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from tacit.noise import discrete
from tacit.noise.deviates import Deviates


class Zeros:
    """A source whose further bits are all 0."""

    word_bits = 64

    def words(self, count: int) -> np.ndarray:
        return np.zeros(count, np.uint64)


def test_a_product_that_rounds_up_to_an_integer_keeps_its_integer_part() -> None:
    count, scale = 64, 2.0**39 + 0.3
    noise = Deviates(count, Zeros())  # type: ignore[arg-type]
    noise.integer[:] = 2
    above = [math.floor(Fraction(scale) * 2) + 1 + 7 * 10**9 * k for k in range(count)]
    # the fraction whose product lies just below each integer
    found = [math.ceil((Fraction(k) / Fraction(scale) - 2) * 2**64) - 3 for k in above]
    noise.fraction[:] = np.array(found, dtype=np.uint64)
    exact = [math.floor(Fraction(scale) * (2 + Fraction(f, 2**64))) for f in found]
    assert exact == [k - 1 for k in above]
    assert discrete._floors(scale, noise).tolist() == exact
    rounded = np.floor(scale * (2 + np.ldexp(noise.fraction.astype(np.float64), -64)))
    assert (rounded != exact).any()  # what a plain product gives
