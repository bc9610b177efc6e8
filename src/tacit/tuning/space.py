"""Which candidates may be tried? A grid or a distribution that is fixed before anyone sees the data.

The price of a selection rests on candidates that are drawn independently, from one law, without the data. Optimisers
that propose the next candidate from earlier scores (Bayesian optimisation, evolution, successive halving) make the runs
depend on each other through private scores. No theorem prices that as one selection, so they are refused.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tacit.noise import uniform_integers
from tacit.noise.entropy import Source
from tacit.tuning.errors import AdaptiveError, TuningError

Candidate = dict[str, Any]
#: Attributes by which adaptive optimisers are known, and where they come from.
_ADAPTIVE = ("suggest_float", "suggest_categorical", "sample_relative", "ask", "optimize", "suggest")
_MODULES = ("optuna", "hyperopt", "skopt", "nevergrad", "ray", "ax", "bayes_opt", "smac")
WHY_NOT_ADAPTIVE = (
    "an adaptive optimiser chooses the next candidate from earlier private scores, so the runs are not independent "
    "draws, and the theorems on private selection do not cover that. Give a fixed grid or distribution, or use the "
    "optimiser on public data (tune_on_public). See: tacit explain adaptive-search"
)


def _fraction(source: Source | None) -> float:
    return int(uniform_integers(2**53, source=source)) / 2**53


@dataclasses.dataclass(frozen=True)
class Uniform:
    """A range of numbers, all equally likely.

    Args:
        low: The lower end.
        high: The upper end, above ``low``.

    Raises:
        TuningError: If the ends are not finite or not in order.

    Example:
        >>> 1.0 <= Uniform(1.0, 2.0).draw() <= 2.0
        True
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise TuningError(f"Uniform(low, high) needs finite low < high, not {self.low} and {self.high}")

    def draw(self, source: Source | None = None) -> float:
        """Draw one value.

        Args:
            source: Where random bits come from; None is the operating system's entropy. Another source is for tests.

        Returns:
            A number in the range.
        """
        return self.low + (self.high - self.low) * _fraction(source)


@dataclasses.dataclass(frozen=True)
class LogUniform:
    """A range of positive numbers, equally likely on a logarithmic scale.

    Args:
        low: The lower end, above 0.
        high: The upper end, above ``low``.

    Raises:
        TuningError: If ``0 < low < high`` does not hold.

    Example:
        >>> 0.01 <= LogUniform(0.01, 10.0).draw() <= 10.0
        True
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (0 < self.low < self.high < math.inf):
            raise TuningError(f"LogUniform(low, high) needs 0 < low < high, not {self.low} and {self.high}")

    def draw(self, source: Source | None = None) -> float:
        """Draw one value.

        Args:
            source: Where random bits come from; None is the operating system's entropy. Another source is for tests.

        Returns:
            A number in the range.
        """
        value = math.exp(math.log(self.low) + math.log(self.high / self.low) * _fraction(source))
        return min(max(value, self.low), self.high)


class Space:
    """The candidates of a search, fixed before anyone sees the data.

    Every draw is independent and uses the operating system's entropy. The candidates of a grid are equally likely.

    Args:
        space: A mapping from names to lists of values (a grid) or to distributions (:class:`Uniform`,
            :class:`LogUniform`, or anything with ``draw(source)``); or a list of candidates, each a mapping.

    Raises:
        AdaptiveError: If it is an optimiser that proposes candidates as it goes.
        TuningError: If the space is empty, or is none of these.

    Example:
        >>> space = Space({"learning_rate": [0.1, 1.0], "clip_norm": [0.5]})
        >>> space.candidates
        ({'learning_rate': 0.1, 'clip_norm': 0.5}, {'learning_rate': 1.0, 'clip_norm': 0.5})
        >>> set(Space({"learning_rate": LogUniform(0.1, 1.0)}).draw())
        {'learning_rate'}
    """

    def __init__(self, space: Mapping[str, Any] | Sequence[Mapping[str, Any]] | Space) -> None:
        refuse_adaptive(space)
        self._choices: dict[str, Any] | None = None
        #: every candidate, if there are finitely many; otherwise None
        self.candidates: tuple[Candidate, ...] | None = None
        if isinstance(space, Space):
            self._choices, self.candidates = space._choices, space.candidates
        elif isinstance(space, Mapping):
            self._read(space)
        elif isinstance(space, Sequence) and not isinstance(space, str) and space:
            for entry in space:
                refuse_adaptive(entry)
                if not isinstance(entry, Mapping):
                    raise TuningError(f"each candidate in the list must map names to values, unlike {entry!r}")
            self.candidates = tuple(dict(entry) for entry in space)
        else:
            raise TuningError(
                "space must be a mapping such as {'learning_rate': [0.1, 1.0]}, with lists of values or distributions "
                f"(Uniform, LogUniform), or a list of candidates, not {space!r}"
            )

    def _read(self, space: Mapping[str, Any]) -> None:
        choices: dict[str, Any] = {}
        for name, values in space.items():
            refuse_adaptive(values)
            if isinstance(values, np.ndarray) and values.ndim == 1:
                values = values.tolist()  # np.logspace and its like
            if hasattr(values, "draw"):
                choices[str(name)] = values
            elif isinstance(values, Sequence) and not isinstance(values, str) and len(values):
                choices[str(name)] = list(values)
            else:
                raise TuningError(
                    f"{name!r} needs a list of values, Uniform(low, high) or LogUniform(low, high), not {values!r}"
                )
        if not choices:
            raise TuningError("the space is empty: name at least one parameter to choose")
        self._choices = choices
        if not any(hasattr(values, "draw") for values in choices.values()):
            products = itertools.product(*choices.values())
            self.candidates = tuple(dict(zip(choices, values, strict=True)) for values in products)

    def draw(self, source: Source | None = None) -> Candidate:
        """Draw one candidate, without looking at any data.

        Args:
            source: Where random bits come from; None is the operating system's entropy. Another source is for tests.

        Returns:
            A new mapping from names to values.
        """
        if self.candidates is not None:
            return dict(self.candidates[int(uniform_integers(len(self.candidates), source=source))])
        assert self._choices is not None
        found: Candidate = {}
        for name, values in self._choices.items():
            if hasattr(values, "draw"):
                found[name] = values.draw(source)
            else:
                found[name] = values[int(uniform_integers(len(values), source=source))]
        return found

    def __len__(self) -> int:
        """The number of candidates of a grid; an error for a continuous space."""
        if self.candidates is None:
            raise TuningError("a space with a continuous distribution has no number of candidates: give runs=")
        return len(self.candidates)

    def __repr__(self) -> str:
        if self._choices is not None:
            return f"Space({self._choices!r})"
        return f"Space({list(self.candidates or ())!r})"


def refuse_adaptive(value: Any) -> None:
    """Raise :class:`AdaptiveError` for what proposes candidates as it goes."""
    module = type(value).__module__.partition(".")[0]
    known = module in _MODULES or any(hasattr(value, name) for name in _ADAPTIVE)
    if known or (callable(value) and not hasattr(value, "draw")):
        raise AdaptiveError(f"{type(value).__module__}.{type(value).__name__} is refused: {WHY_NOT_ADAPTIVE}")
