"""How did teachers vote? The mechanisms of PATE: noisy arg maxima over votes, their checks, and a sanitised price.

Each is priced in teachers that one neighbour can change. A person's records lie with one teacher; how many teachers a
*neighbouring data set* changes depends on how people were assigned to teachers (``partition``):

- ``"keyed"``: by a keyed hash of who they are. Adding or removing one person changes one teacher; replacing a person by
  another changes two, the one that loses a person and the one that gains one.
- ``"positions"``: by their position in the table. Replacing one person changes one teacher; adding or removing one
  shifts everybody after them, so there is no guarantee under add/remove.
- ``"any"``: one neighbour changes one teacher, whatever the adjacency; the caller vouches for it.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import numpy as np

from tacit.accounting.base import ADJACENCIES, Mechanism, check_not_negative, check_positive
from tacit.accounting.errors import AccountingError
from tacit.accounting.losses import Loss
from tacit.accounting.mechanisms import Gaussian, Laplace, everything_revealed

PARTITIONS = ("any", "keyed", "positions")


@dataclasses.dataclass(frozen=True, repr=False)
class _AboutTeachers(Mechanism):
    """What the mechanisms of teachers' votes share: how many teachers one neighbour changes."""

    tight: ClassVar[bool] = False
    partition: str = dataclasses.field(default="any", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.partition not in PARTITIONS:
            raise AccountingError(f"partition is one of {', '.join(PARTITIONS)}, not {self.partition!r}")

    def adjacencies(self) -> tuple[str, ...]:
        return ("replace-one", "zero-out") if self.partition == "positions" else ADJACENCIES

    def advice(self, adjacency: str) -> str:
        return "adding or removing a person moves everybody after them to another teacher; use partition='keyed'"

    def teachers(self, adjacency: str, group: int = 1) -> int:
        """How many teachers a neighbouring data set changes at most.

        Args:
            adjacency: ``"add-remove"``, ``"replace-one"`` or ``"zero-out"``.
            group: How many people change together (default 1).

        Returns:
            The number of teachers: ``group``, or twice that for a keyed partition under replace-one.
        """
        return group * (2 if self.partition == "keyed" and adjacency == "replace-one" else 1)


@dataclasses.dataclass(frozen=True, repr=False)
class Votes(_AboutTeachers):
    """One noisy arg max over a histogram of teachers' votes, with Gaussian noise on every count (GNMax).

    One teacher's vote moves from one class to another: √2 in L2 (Papernot et al. 2018, proposition 8: Rényi divergence
    α/σ²). The arg max is post-processing, so this is an upper bound.

    Args:
        noise: The standard deviation σ of the noise on each count, in votes. 0 means no noise.
        partition: How people were assigned to teachers: ``"any"`` (default), ``"keyed"`` or ``"positions"``.
        unit: Whom the guarantee protects (default ``"record"``).

    Example:
        >>> from tacit.accounting import Votes, renyi
        >>> renyi(Votes(40.0), [32.0])
        array([0.02])
    """

    noise: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative("noise", self.noise)

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        moved = Gaussian(self.noise / math.sqrt(2), replace=1.0)
        return moved.pair("add-remove", direction, self.teachers(adjacency, group))


@dataclasses.dataclass(frozen=True, repr=False)
class VoteCheck(_AboutTeachers):
    """One noisy comparison of the largest count with a threshold, with Gaussian noise on the *maximum* only.

    One teacher moves the largest count by at most 1: Rényi divergence α/(2σ²). (Noise on every count, before the
    maximum is taken, would be another mechanism: Gaussian with L2 sensitivity √2, α/σ².)

    Args:
        noise: The standard deviation σ of the noise on the largest count, in votes. 0 means no noise.
        partition: How people were assigned to teachers: ``"any"`` (default), ``"keyed"`` or ``"positions"``.
        unit: Whom the guarantee protects (default ``"record"``).

    Example:
        >>> from tacit.accounting import VoteCheck, renyi
        >>> round(float(renyi(VoteCheck(150.0), [2.0])[0]) * 150**2, 12)
        1.0
    """

    noise: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative("noise", self.noise)

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        return Gaussian(self.noise, replace=1.0).pair("add-remove", direction, self.teachers(adjacency, group))


@dataclasses.dataclass(frozen=True, repr=False)
class LaplaceVotes(_AboutTeachers):
    """One noisy arg max over votes, with Laplace noise on every count (LNMax): pure, ε = 2/scale for one teacher.

    One teacher's vote moves from one class to another: 2 in L1. The arg max is post-processing, so the price of Laplace
    noise on a number that moves by 2 is an upper bound.

    Args:
        scale: The scale of the noise on each count, in votes. 0 means no noise.
        partition: How people were assigned to teachers: ``"any"`` (default), ``"keyed"`` or ``"positions"``.
        unit: Whom the guarantee protects (default ``"record"``).

    Example:
        >>> from tacit.accounting import LaplaceVotes, epsilon
        >>> round(epsilon(LaplaceVotes(20.0), 1e-9).upper, 6)
        0.1
    """

    scale: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative("scale", self.scale)

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        if self.scale == 0:
            return everything_revealed()
        return Laplace(self.scale / 2).pair("add-remove", direction, self.teachers(adjacency, group))


@dataclasses.dataclass(frozen=True, repr=False)
class SmoothRelease(_AboutTeachers):
    """A number F published as F + SS·N(0, ``noise``²), with SS a ``beta``-smooth upper bound on its local sensitivity.

    Guarantee:
        The Rényi divergence is at most αE/(2σ²v) - (½ ln v + αβ)/(α-1), with E = e^{-2β} and v = 1 - α(1-E), if v > 0;
        it is infinite at larger orders. For k teachers at once the width changes by e^{kβ} and F by
        s'(1 + e^β + … + e^{(k-1)β}).

    This is the divergence of two Gaussians of unequal width, N(F, s²σ²) from N(F', s'²σ²), at its worst: neighbours
    have e^{-β} <= s'/s and abs(F - F') <= min(s, s'), and three data sets in a row with F = 0, 1, 1 + e^β attain both.
    (The formula of Papernot et al. 2018, theorem 23, lies below it where 2αβ > ½.)

    Args:
        beta: The β by which the bound on the sensitivity is smooth: between neighbours it changes by at most e^β.
        noise: The standard deviation σ of the noise, in units of the smooth sensitivity; above 0.
        partition: How people were assigned to teachers: ``"any"`` (default), ``"keyed"`` or ``"positions"``.
        unit: Whom the guarantee protects (default ``"record"``).

    Example:
        >>> from tacit.accounting import SmoothRelease, renyi
        >>> float(renyi(SmoothRelease(beta=0.02, noise=30.0), [20.0])[0].round(9))
        0.068773154
    """

    beta: float
    noise: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative("beta", self.beta)
        check_positive("noise", self.noise)

    def pair(self, adjacency: str, direction: str, group: int = 1) -> Loss | None:
        return None

    def renyi(self, adjacency: str, orders: np.ndarray[Any, Any], group: int = 1) -> np.ndarray[Any, Any] | None:
        teachers = self.teachers(adjacency, group)
        narrow = math.exp(-2 * self.beta * teachers)
        steps = math.fsum(math.exp(self.beta * j) for j in range(teachers))
        v = 1 + orders * math.expm1(-2 * self.beta * teachers)
        with np.errstate(divide="ignore", invalid="ignore"):
            apart = orders * narrow * steps**2 / (2 * self.noise**2 * v)
            wider = -(0.5 * np.log(v) + orders * self.beta * teachers) / (orders - 1)
        # what is subtracted nearly cancels at small orders: a few units of rounding on top
        rounding = 1e-14 * (1 + orders) / (orders - 1)
        return np.where(v > 0, apart + np.maximum(wider, 0.0) + rounding, math.inf)
