"""Tables for the tests of private regression."""

from __future__ import annotations

import numpy as np

COEFFICIENTS = np.array([2.0, -1.0, 0.5])


def numbers(rows: int = 5000, seed: int = 0, noise: float = 0.3):
    """Three features in [0, 10] and a target in about [-20, 35]."""
    generator = np.random.default_rng(seed)
    x = generator.uniform(0, 10, (rows, 3))
    return x, x @ COEFFICIENTS + 4 + noise * generator.normal(size=rows)


BOUNDS = {"bounds": (0, 10), "target_bounds": (-20, 35)}


def labels(rows: int = 5000, seed: int = 0):
    """Three features in [0, 10] and classes 0 and 1 that follow a logistic model."""
    generator = np.random.default_rng(seed)
    x = generator.uniform(0, 10, (rows, 3))
    score = (x - 5) @ [0.8, -0.4, 0.2]
    return x, (generator.uniform(size=rows) < 1 / (1 + np.exp(-score))).astype(int)
