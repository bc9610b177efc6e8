"""One of every mechanism, for the tests that all of them must pass."""

from __future__ import annotations

from tacit import accounting as acc
from tests.catalogue.mechanisms import MECHANISMS as EVERY

MECHANISMS = {name: mechanism for name, mechanism in EVERY.items() if name != "Accumulated"}
CASES = [(name, adjacency) for name, m in MECHANISMS.items() for adjacency in m.adjacencies()]


def poisson(rate: float, noise: float, steps: int) -> acc.Composed:
    """DP-SGD: ``steps`` Gaussian steps on Poisson samples."""
    return acc.PoissonSampled(acc.Gaussian(noise), rate) * steps
