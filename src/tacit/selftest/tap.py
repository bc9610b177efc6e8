"""What passes through noise, and does anything pass beside it? A tap on every draw of exact noise.

:func:`listen` runs something and notes, at each draw, the exact value, the scale of the noise and what came out. Run
again on a neighbour with the same outcomes (``replay``), the exact values say what the neighbour would have cost along
this path; and whatever is released beside the noise shows as a difference in the end result.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from tacit.noise import exact

Floats = npt.NDArray[np.float64]
T = TypeVar("T")
KINDS = {"gaussian": "add_gaussian", "laplace": "add_laplace"}


@dataclasses.dataclass(frozen=True, eq=False)
class Draw:
    """One draw: the law of its noise, the value that it hides, its scale, and what came out."""

    kind: str
    value: Floats
    scale: float
    outcome: Floats


class PathDiffers(AssertionError):
    """With the same outcomes a neighbour took another path: something was decided beside the noise."""


def listen(
    work: Callable[[], T], replay: Sequence[Draw] | None = None, *, silent: bool = False
) -> tuple[T, list[Draw]]:
    """What ``work`` gives, and its draws; each outcome is that of ``replay``, or exact where ``silent``."""
    draws: list[Draw] = []

    def tapped(kind: str) -> Callable[..., Any]:
        plain = getattr(exact, KINDS[kind])

        def draw(values: Any, scale: float, **more: Any) -> Any:
            value = np.array(values, dtype=np.float64)
            if replay is None:
                outcome = value if silent else np.asarray(plain(values, scale, **more))
            else:
                here = len(draws)
                same = here < len(replay) and replay[here].kind == kind and replay[here].outcome.shape == value.shape
                if not same:
                    raise PathDiffers(f"draw {here + 1} is {kind} noise on {value.shape}, and was not before")
                outcome = replay[here].outcome
            draws.append(Draw(kind, value, float(scale), np.array(outcome)))
            return np.array(outcome) if np.ndim(values) else float(outcome)

        return draw

    with contextlib.ExitStack() as stack:
        for kind, name in KINDS.items():
            stack.enter_context(_everywhere(name, tapped(kind)))
        result = work()
    return result, draws


@contextlib.contextmanager
def _everywhere(name: str, function: Any) -> Iterator[None]:
    """``function`` in the place of a function of ``tacit.noise.exact``, wherever it was imported."""
    plain = getattr(exact, name)
    holders = [m for key, m in list(sys.modules.items()) if key.startswith("tacit.") and vars(m).get(name) is plain]
    for module in holders:
        if module is not exact:
            setattr(module, name, function)
    try:
        yield
    finally:
        for module in holders:
            setattr(module, name, plain)


def gaussian_cost(one: Sequence[Draw], other: Sequence[Draw]) -> float:
    """μ: the length of the difference in standard deviations, over all Gaussian draws."""
    parts = [(a.value - b.value) / a.scale for a, b in zip(one, other, strict=True) if a.kind == "gaussian"]
    return math.sqrt(sum(float((part**2).sum()) for part in parts))


def laplace_cost(one: Sequence[Draw], other: Sequence[Draw]) -> float:
    """ε: the L1 length of the difference in scales, over all Laplace draws."""
    parts = [(a.value - b.value) / a.scale for a, b in zip(one, other, strict=True) if a.kind == "laplace"]
    return sum(float(np.abs(part).sum()) for part in parts)


def same_scales(one: Sequence[Draw], other: Sequence[Draw]) -> bool:
    """Whether both had noise of the same size at each draw."""
    return all(math.isclose(a.scale, b.scale, rel_tol=1e-12) for a, b in zip(one, other, strict=True))
