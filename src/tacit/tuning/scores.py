"""How good is a candidate, privately? Scores of known sensitivity, with exact noise.

In private selection the base mechanism releases a model *and* its score; both have to be private. A :class:`Score` is a
statistic of a private validation set with a stated sensitivity; calling it adds noise, drawn exactly, and
:attr:`Score.mechanism` is what that costs. The exponential mechanism uses the same statistic without noise.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit import accounting as acc
from tacit.accounting.base import owner_numbers, unit_of
from tacit.noise import add_gaussian, add_laplace
from tacit.tuning.errors import TuningError

#: Losses of single records are rounded to multiples of 1/GRID, so that their sum is exact.
GRID = 2**20


@dataclasses.dataclass(frozen=True)
class Score:
    """A statistic of a model on private data, the larger the better, that one record moves by at most ``sensitivity``.

    ``function(model)`` gives the exact statistic; it stays inside. ``noise`` is the noise's scale in units of the
    sensitivity. ``replace`` is what replacing one record can move (default: twice the sensitivity). ``monotone`` says
    that adding a record never lowers the statistic of any model, or never raises it; the exponential mechanism then
    costs half under add/remove.

    Guarantee: a call releases one number and costs :attr:`mechanism`. ``unit`` names the one that ``sensitivity`` was
    stated for: whoever writes a Score of their own bounds what one person moves, with all of their records.

    >>> score = Score(lambda model: 17.0, noise=2.0)
    >>> isinstance(score(None), float), score.mechanism
    (True, Gaussian(2))
    """

    function: Callable[[Any], float] = dataclasses.field(repr=False)  # it may hold private rows
    sensitivity: float = 1.0
    noise: float = 20.0
    replace: float | None = None
    monotone: bool = False
    kind: str = "gaussian"
    unit: str = "record"
    name: str = "score"

    def __post_init__(self) -> None:
        for name in ("sensitivity", "noise"):
            value = getattr(self, name)
            if not (isinstance(value, int | float | np.number) and 0 < value < math.inf):
                raise TuningError(f"the {name} of a score is a number above 0, not {value!r}")
        if self.kind not in ("gaussian", "laplace"):
            raise TuningError(f"the noise of a score is 'gaussian' or 'laplace', not {self.kind!r}")

    @property
    def mechanism(self) -> acc.Mechanism:
        """What one noisy score costs."""
        moved = 2.0 if self.replace is None else self.replace / self.sensitivity
        kind = acc.Gaussian if self.kind == "gaussian" else acc.Laplace
        return kind(self.noise, replace=moved, unit=self.unit)

    def exact(self, model: Any) -> float:
        """The statistic itself: private, for mechanisms only."""
        return float(self.function(model))

    def __call__(self, model: Any) -> float:
        """The statistic with noise: what may be compared and released."""
        add = add_gaussian if self.kind == "gaussian" else add_laplace
        return float(add(self.exact(model), self.noise * self.sensitivity))


def correct_count(
    inputs: Any,
    targets: Any,
    *,
    noise: float = 20.0,
    predict: Callable[[Any, Any], Any] | None = None,
    groups: Any = None,
    unit: str | None = None,
) -> Score:
    """The number of right answers on a private validation set.

    Adding or removing one record moves it by at most 1, always the same way; replacing one by at most 1. ``groups``
    holds one id for each record: then a person's answers are averaged, each counts as a whole, and the same is true of
    adding, removing or replacing one person (``unit`` is the word for it) with all of their records. ``predict``
    turns (model, inputs) into class numbers or names; by default ``model.predict``, or the largest output of a torch
    model.

    >>> score = correct_count([[0], [1]], [0, 1], predict=lambda model, x: [0, 0])
    >>> score.exact(None), score.mechanism
    (1.0, Gaussian(20, replace=1))
    >>> score = correct_count([[0], [1], [2]], [0, 1, 0], predict=lambda model, x: [0, 0, 0], groups=["a", "a", "b"])
    >>> score.exact(None), score.mechanism.unit
    (1.5, 'person')
    """
    wanted = np.asarray(targets)
    if wanted.ndim < 1 or wanted.size != len(wanted):
        raise TuningError(
            f"targets of {wanted.ndim} dimensions: one answer for each record, or one record would move the count by "
            "more than 1. For several answers a record, write a Score that says by how much"
        )
    owners, name = _owners(groups, unit, len(wanted))
    count = _RightAnswers(inputs, wanted, predict or _predict, owners)
    return Score(count, 1.0, noise, replace=1.0, monotone=True, unit=name, name="right answers")


def bounded_loss(
    losses: Callable[[Any], Any],
    *,
    bound: float = 1.0,
    noise: float = 20.0,
    groups: Any = None,
    unit: str | None = None,
) -> Score:
    """Minus the sum of each validation record's loss, cut to [0, ``bound``].

    ``losses(model)`` gives one loss per record. Each is rounded to a fixed grid, so that the sum is exact and one
    record moves it by at most ``bound``. With ``groups``, one id for each record, the losses of a person are averaged,
    and one person with all of their records moves the sum by at most ``bound``.

    >>> bounded_loss(lambda model: [0.5, 3.0]).exact(None)
    -1.5
    """
    if not 0 < bound < math.inf:
        raise TuningError(f"the bound of a loss is a number above 0, not {bound!r}")

    owners, name = _owners(groups, unit)
    cut = _CutLosses(losses, bound, owners)
    return Score(cut, bound, noise, replace=bound, monotone=True, unit=name, name="bounded loss")


def _owners(groups: Any, unit: str | None, records: int | None = None) -> tuple[NDArray[np.intp] | None, str]:
    """The number of every record's owner, and the word for an owner; a word alone is refused."""
    name = unit_of(unit, owned=groups is not None, ids="Pass groups=, one id for each validation record, with unit=")
    if groups is None:
        return None, name
    try:
        return owner_numbers(groups, records), name
    except ValueError as error:
        raise TuningError(str(error)) from None


def bounded_total(each: NDArray[np.float64], owner: NDArray[np.intp] | None) -> float:
    """The sum of values in [0, 1] on a grid, or of every owner's mean.

    Sensitivity: 1 for adding, removing or replacing one record or, with ``owner``, everything of one owner. Each term
    is rounded to a multiple of 1/GRID that depends on that record or owner alone, so that the sum is exact.
    """
    if owner is not None:
        if len(owner) != len(each):
            raise TuningError("groups holds one id for each record that is scored: as many, please")
        # The mean of each owner's values in their own order: what others hold changes not a bit of it.
        each = np.bincount(owner, weights=each) / np.bincount(owner)
    return int(np.rint(each * GRID).astype(np.int64).sum()) / GRID


# What scores compute are classes, not functions in functions: a search in processes sends them there.


@dataclasses.dataclass(frozen=True, eq=False)
class _RightAnswers:
    inputs: Any
    wanted: Any
    predict: Callable[[Any, Any], Any]
    owner: NDArray[np.intp] | None = None

    def __call__(self, model: Any) -> float:
        given = np.asarray(self.predict(model, self.inputs))
        if given.shape != self.wanted.shape:
            raise TuningError("the model gives other than one answer for each of the records that are scored")
        return bounded_total((given == self.wanted).reshape(-1).astype(np.float64), self.owner)


@dataclasses.dataclass(frozen=True, eq=False)
class _CutLosses:
    losses: Callable[[Any], Any]
    bound: float
    owner: NDArray[np.intp] | None = None

    def __call__(self, model: Any) -> float:
        each = np.asarray(self.losses(model), dtype=np.float64)
        if each.ndim < 1 or each.size != len(each):
            raise TuningError(f"losses of {each.ndim} dimensions: one for each record, please")
        cut = np.clip(np.nan_to_num(each / self.bound, nan=1.0, posinf=1.0, neginf=1.0), 0.0, 1.0)
        return -bounded_total(cut.reshape(-1), self.owner) * self.bound


def _predict(model: Any, inputs: Any) -> Any:
    """Class answers of a scikit-learn estimator or of a torch model."""
    if hasattr(model, "predict"):
        return model.predict(inputs)
    import torch

    was = model.training
    model.eval()
    try:
        with torch.no_grad():
            outputs = torch.cat([model(part) for part in torch.as_tensor(inputs).split(4096)])
    finally:
        model.train(was)
    binary = outputs.dim() < 2 or outputs.shape[1] == 1
    return ((outputs.flatten() > 0).long() if binary else outputs.argmax(1)).cpu().numpy()
