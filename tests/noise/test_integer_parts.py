"""Integer parts of scaled deviates are exact where binary64 is not."""

from __future__ import annotations

import pytest

from tacit.noise import Key, deviates, discrete, sampling
from tacit.noise.entropy import SYSTEM


@pytest.mark.parametrize(("scale", "count"), [(0.1, 2000), (3.7e5, 2000), (2.0**39 * 1.234567, 60_000)])
def test_the_integer_part_of_a_product_is_that_of_the_exact_product(scale, count):
    noise = deviates.exponential(count, SYSTEM)
    found = discrete._floors(scale, noise)
    above, below = scale.as_integer_ratio()
    for index in range(count):
        digits, bits = noise.digits(index)
        start = (int(noise.integer[index]) << bits) + digits
        low, high = above * start // (below << bits), -(-above * (start + 1) // (below << bits)) - 1
        assert low <= found[index] <= high


def test_who_takes_part_differs_from_step_to_step():
    key = Key(bytes(range(32)), repeatable=True)
    some = [set(sampling.taking_part(key, step, 1000, 0.5).tolist()) for step in range(3)]
    assert some[0] != some[1] != some[2] != some[0]
    assert (sampling.uniform(key, 5, 10)[4:] == sampling.uniform(key, 5, 6, offset=4)).all()
    assert (sampling.uniform(key, 5, 6, offset=4) != sampling.uniform(key, 5, 6)).all()
