"""The registry of rules: one small file per family of operations, all found by the name of the operation."""

from __future__ import annotations

from tacit.sgd.gradients.contributions import DECOMPOSE, RULES, SHAPE_ONLY
from tacit.sgd.gradients.rules import arithmetic, convolution, embedding, grouped, recurrent

__all__ = [
    "DECOMPOSE",
    "RULES",
    "SHAPE_ONLY",
    "arithmetic",
    "convolution",
    "embedding",
    "grouped",
    "recurrent",
]
