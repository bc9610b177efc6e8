"""The registry of rules: one small file per family of operations, all found by the name of the operation."""

from __future__ import annotations

from tacit.sgd.gradients.rules import contraction, convolution, elementwise, embedding, normalisation, recurrent
from tacit.sgd.gradients.rules.base import DECOMPOSE, RULES, SHAPE_ONLY

__all__ = [
    "DECOMPOSE",
    "RULES",
    "SHAPE_ONLY",
    "contraction",
    "convolution",
    "elementwise",
    "embedding",
    "normalisation",
    "recurrent",
]
