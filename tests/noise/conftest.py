import numpy as np
import pytest


class SeededSource:
    """Repeatable words for tests; few bits per word make the rare cases (ties, undecided roundings) common."""

    def __init__(self, seed: int, word_bits: int = 64) -> None:
        self.word_bits = word_bits
        self._generator = np.random.default_rng(seed)
        self.drawn = 0

    def words(self, count: int) -> np.ndarray:
        self.drawn += count
        return self._generator.integers(0, 1 << self.word_bits, count, dtype=np.uint64, endpoint=False)


@pytest.fixture
def seeded():
    return SeededSource
