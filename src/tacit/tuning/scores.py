"""How good is a candidate, privately? Scores of known sensitivity, with exact noise.

Private selection releases a model *and* its score, so both must be private. A :class:`Score` is a statistic of a
private validation set with a stated sensitivity. Calling it adds exact noise, and :attr:`Score.mechanism` is what is
charged for that. The exponential mechanism uses the same statistic without noise.
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

#: The loss of each record is rounded to a multiple of 1/GRID, so that the sum is exact.
GRID = 2**20


@dataclasses.dataclass(frozen=True)
class Score:
    """A statistic of a model on private data with a known sensitivity. Larger is better.

    :func:`correct_count` and :func:`bounded_loss` make the usual ones.

    Guarantee:
        A call releases one number and costs :attr:`mechanism`. If you write your own Score, ``sensitivity`` must bound
        what one ``unit`` moves with all of its records.

    Args:
        function: ``function(model)`` returns the exact statistic, which stays inside.
        sensitivity: By how much adding or removing one unit can move the statistic of any model.
        noise: The scale of the noise, in units of ``sensitivity``.
        replace: By how much replacing one unit can move it. None means twice ``sensitivity``.
        monotone: Whether adding a unit never lowers the statistic of any model, or never raises it. The exponential
            mechanism then costs half under add/remove.
        kind: The noise, ``"gaussian"`` or ``"laplace"``.
        unit: The name of the unit that ``sensitivity`` is stated for.
        name: What the score is called.

    Raises:
        TuningError: If ``sensitivity`` or ``noise`` is not a number above 0, or if ``kind`` is not one of the two.

    Example:
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
                raise TuningError(f"{name} of a score must be a number above 0, not {value!r}")
        if self.kind not in ("gaussian", "laplace"):
            raise TuningError(f"kind, the noise of a score, must be 'gaussian' or 'laplace', not {self.kind!r}")

    @property
    def mechanism(self) -> acc.Mechanism:
        """The mechanism of one noisy score."""
        moved = 2.0 if self.replace is None else self.replace / self.sensitivity
        kind = acc.Gaussian if self.kind == "gaussian" else acc.Laplace
        return kind(self.noise, replace=moved, unit=self.unit)

    def exact(self, model: Any) -> float:
        """Compute the statistic itself. Private: for mechanisms only.

        Args:
            model: The trained model.

        Returns:
            The exact statistic.
        """
        return float(self.function(model))

    def __call__(self, model: Any) -> float:
        """The statistic with noise, which may be compared and released."""
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
    """Score models by the number of right answers on a private validation set.

    Guarantee:
        Adding, removing or replacing one record moves the count by at most 1; adding never lowers it. With ``groups``
        the answers of one owner are averaged, and the same holds for one owner with all of their records.

    Args:
        inputs: The private validation inputs.
        targets: One right answer per record. Private.
        noise: The standard deviation of the noise, in right answers.
        predict: ``predict(model, inputs)`` returns class numbers or names. None uses ``model.predict``, or the largest
            output of a torch model.
        groups: The id of each record's owner. None protects one record.
        unit: The name of the unit, such as ``"person"``; needs ``groups``. None means ``"person"`` with ``groups`` and
            ``"record"`` without.

    Returns:
        The score.

    Raises:
        TuningError: If there is not one target, or not one id, per record.

    Example:
        >>> score = correct_count([[0], [1]], [0, 1], predict=lambda model, x: [0, 0])
        >>> score.exact(None), score.mechanism
        (1.0, Gaussian(20, replace=1))
        >>> score = correct_count([[0], [1], [2]], [0, 1, 0], predict=lambda model, x: [0, 0, 0], groups=[7, 7, 3])
        >>> score.exact(None), score.mechanism.unit
        (1.5, 'person')
    """
    wanted = np.asarray(targets)
    if wanted.ndim < 1 or wanted.size != len(wanted):
        raise TuningError(
            f"targets has {wanted.ndim} dimensions: give one answer for each record, or one record would move the "
            "count by more than 1. For several answers per record, write a Score with its own sensitivity"
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
    """Score models by minus the sum of the validation records' losses, each cut to [0, ``bound``].

    Guarantee:
        Adding, removing or replacing one record moves the sum by at most ``bound``. With ``groups`` the losses of one
        owner are averaged, and the same holds for one owner with all of their records. Each loss is rounded to a fixed
        grid, so the sum is exact.

    Args:
        losses: ``losses(model)`` returns one loss per private validation record. NaN counts as ``bound``.
        bound: The largest loss that counts, chosen without looking at the data.
        noise: The standard deviation of the noise, in units of ``bound``.
        groups: The id of each record's owner. None protects one record.
        unit: The name of the unit, such as ``"person"``; needs ``groups``. None means ``"person"`` with ``groups`` and
            ``"record"`` without.

    Returns:
        The score.

    Raises:
        TuningError: If ``bound`` is not a number above 0.

    Example:
        >>> bounded_loss(lambda model: [0.5, 3.0]).exact(None)
        -1.5
    """
    if not 0 < bound < math.inf:
        raise TuningError(f"bound of a loss must be a number above 0, not {bound!r}")

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
            raise TuningError("groups must hold one id for each record that is scored")
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
            raise TuningError("the model must give one answer for each record that is scored")
        return bounded_total((given == self.wanted).reshape(-1).astype(np.float64), self.owner)


@dataclasses.dataclass(frozen=True, eq=False)
class _CutLosses:
    losses: Callable[[Any], Any]
    bound: float
    owner: NDArray[np.intp] | None = None

    def __call__(self, model: Any) -> float:
        each = np.asarray(self.losses(model), dtype=np.float64)
        if each.ndim < 1 or each.size != len(each):
            raise TuningError(f"losses(model) has {each.ndim} dimensions: it must give one loss for each record")
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
