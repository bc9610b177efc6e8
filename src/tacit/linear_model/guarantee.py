"""What does a fit promise, and who paid for it? The guarantee on ``privacy_``, and the charge before the release."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tacit import accounting as acc
from tacit.accounting.base import is_number
from tacit.ledger import BudgetExceeded, Charge, FingerprintMismatch, Ledger, StorageError
from tacit.ledger.fingerprint import table_of

if TYPE_CHECKING:
    from tacit.linear_model.base import Task

#: The search for an ε that would fit is a kindness, and ends after so many seconds.
PATIENCE = 5.0
GENERATOR = "exact, on a grid, from the operating system's entropy (tacit.noise)"


def check_budget(epsilon: Any, delta: Any) -> tuple[float, float]:
    """ε and δ as numbers, or an error that says what they may be."""
    for name, value in (("epsilon", epsilon), ("delta", delta)):
        if not is_number(value) or not math.isfinite(value):
            raise ValueError(f"{name} must be a finite number, not {value!r}")
    if not epsilon > 0:
        raise ValueError(f"epsilon must be positive, not {epsilon!r}: at 0 nothing can be learned from the data")
    if not 0 <= delta < 1:
        raise ValueError(f"delta must be in [0, 1), not {delta!r}; 0 asks for pure differential privacy")
    return float(epsilon), float(delta)


def terms(ledger: Ledger | None, dataset: str | None, adjacency: str | None, unit: str) -> tuple[str, str | None]:
    """The adjacency and the name of the data set, checked against the ledger's terms where there is a ledger."""
    if adjacency is not None and adjacency not in acc.ADJACENCIES:
        raise ValueError(f"unknown adjacency {adjacency!r}; choose one of {', '.join(acc.ADJACENCIES)}")
    if ledger is None:
        if dataset is not None:
            raise ValueError("dataset= names the data in a ledger: give ledger= too")
        return adjacency or "add-remove", None
    if not isinstance(ledger, Ledger):
        raise TypeError(f"ledger must be a tacit.Ledger, not {type(ledger).__name__}")
    if dataset is None:
        names = ledger.datasets()
        if len(names) != 1:
            raise ValueError(
                f"name the data set of the ledger: dataset= one of {', '.join(names)}"
                if names
                else "the ledger has no data set yet: register one with ledger.register()"
            )
        dataset = names[0]
    registered = ledger.dataset(dataset)
    if adjacency is not None and adjacency != registered.adjacency:
        raise ValueError(f"{dataset!r} is registered for {registered.adjacency}, not {adjacency}")
    if unit != registered.unit:
        raise ValueError(
            f"{dataset!r} is registered for one {registered.unit}, but this fit protects one {unit}: give "
            f"unit={registered.unit!r}, max_rows= and the ids, fit(X, y, groups=ids). If each row is a different "
            f"{registered.unit}, use groups=range(number of rows)"
        )
    return registered.adjacency, dataset


@contextlib.contextmanager
def paid(
    ledger: Ledger | None, task: Task, mechanism: acc.Mechanism, delta: float, purpose: str
) -> Iterator[Charge | None]:
    """Charge before anything is released; confirmed when the block ends, spent in any case."""
    if ledger is None or task.dataset is None:
        yield None
        return
    with ledger.charge(task.dataset, mechanism, delta=delta, purpose=purpose, data=task.data) as charge:
        yield charge


def with_smaller(error: BudgetExceeded, epsilon: float, fits: Callable[[float], bool]) -> BudgetExceeded:
    """The refusal of a fit, with the largest ε at which the ledger would grant it, to two digits."""
    until, low, high = time.monotonic() + PATIENCE, 0.0, epsilon
    try:
        while time.monotonic() < until and high > epsilon * 1e-3 and (high - low) > 0.005 * high:
            middle = high / 4 if low == 0 else (low + high) / 2
            low, high = (middle, high) if fits(middle) else (low, middle)
    except StorageError:  # a service, or a file that is gone meanwhile: the refusal itself is what counts
        return error
    if low == 0:
        return error
    digits = 1 - math.floor(math.log10(low))
    shown = math.floor(low * 10.0**digits + 1e-9) / 10.0**digits
    if not 0 < shown <= low * (1 + 1e-12):
        return error
    before, see, page = str(error).rpartition(" See: ")
    text = f"{before or page} epsilon={shown:g} would fit.{see}{page if see else ''}"
    advice = error.advice and dataclasses.replace(error.advice, epsilon=shown)
    return BudgetExceeded(text, advice)


def recognised(ledger: Ledger | None, dataset: str | None, X: Any, y: Any) -> str | None:
    """The fingerprint of the table that a fit reads, after comparing it with the one that is registered.

    A data set of a cluster is not read here: it has no fingerprint, and is refused where one is registered.
    """
    if ledger is None or dataset is None:
        return None
    if isinstance(X, str | os.PathLike):
        return ledger.recognise(dataset, pathlib.Path(X))
    if y is not None:
        return ledger.recognise(dataset, table_of(X, y))
    if not hasattr(X, "__array__"):
        if ledger.dataset(dataset).fingerprint is not None:
            raise FingerprintMismatch(
                f"{dataset!r} is registered with a fingerprint, and {type(X).__name__} is not read here, so it cannot "
                "be compared: give the file, or register the data without a fingerprint. See: tacit explain fingerprint"
            )
        return None
    return ledger.recognise(dataset, X)
