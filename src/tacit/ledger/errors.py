"""What can go wrong with a ledger? One error for each case that a person would handle differently."""

from __future__ import annotations

import dataclasses
from typing import Any


class LedgerError(Exception):
    """Base of everything that the ledger raises. The message says what to do."""


class BudgetExceeded(LedgerError):
    """A charge was refused: it would take the data set over its budget.

    Nothing was recorded, and nothing may be released.

    Attributes:
        advice: What is left and what would still fit, as numbers; None if it was not computed.
    """

    def __init__(self, message: str, advice: Advice | None = None) -> None:
        super().__init__(message)
        self.advice = advice

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.advice)


@dataclasses.dataclass(frozen=True)
class Advice:
    """What a refused charge asked for, what is left, and what would still fit.

    Args:
        dataset: The name of the data set.
        asked_epsilon: The ε of the refused charge by itself, at ``asked_delta``.
        asked_delta: The refused charge's part of δ.
        left_epsilon: The ε that is left. Under the rule ``"renyi"``, a pure ε that would fit.
        left_delta: The δ that is left. Under the rule ``"renyi"``, what is left for failures.
        asked_repeats: How often the refused charge repeats the mechanism that it repeats most: the steps of a run.
        repeats: How many repeats would fit at the same noise; None if that was not found.
        noise: The noise with which all repeats would fit, if the charge has one kind of mechanism; else None.
        noise_factor: The factor by which all noise would have to grow for all repeats to fit; None if none was found.
        epsilon: The ε with which the same fit of a table would be granted; None if that was not found, or it is no fit.

    Example:
        >>> from tacit import accounting as acc, ledger
        >>> people = ledger.Ledger()
        >>> _ = people.register("people", epsilon=1.0, delta=1e-5)
        >>> try:
        ...     people.charge("people", acc.Laplace(1.0) * 20, delta=0)
        ... except ledger.BudgetExceeded as error:
        ...     print(error.advice.asked_repeats, error.advice.repeats, error.advice.left_epsilon)
        20 1 1.0
    """

    dataset: str
    asked_epsilon: float
    asked_delta: float
    left_epsilon: float
    left_delta: float
    asked_repeats: int
    repeats: int | None = None
    noise: float | None = None
    noise_factor: float | None = None
    epsilon: float | None = None


class UnknownDataset(LedgerError, KeyError):
    """No data set of this name is registered. The message lists the names that are."""

    def __str__(self) -> str:  # KeyError would show the message in quotes
        return str(self.args[0])


class DatasetExists(LedgerError):
    """A data set of this name is registered already, on other terms."""


class TermsError(LedgerError, ValueError):
    """A registration or charge contradicts itself or the terms of its data set (unit, adjacency, size, δ)."""


class FingerprintMismatch(LedgerError):
    """The data at hand are not the data that were registered under this name."""


class PriceError(LedgerError, ArithmeticError):
    """The accountant's ε at δ and its δ at ε contradict each other, so there is no price and no charge."""


class ChargeError(LedgerError):
    """The charge does not exist, was confirmed before, or was made for something else."""


class CopyError(LedgerError, TypeError):
    """A ledger in memory was about to be copied, and each copy would grant the whole budget."""


class StorageError(LedgerError):
    """The ledger's file or server could not be read or written; no charge was granted."""


class ReadOnlyLedger(StorageError):
    """The ledger's file or folder may be read but not written."""


class DiskFull(StorageError):
    """There is no space left to record a charge."""


class LedgerBusy(StorageError):
    """Other processes held the ledger's lock for too long."""


class AccessDenied(StorageError):
    """The server did not accept the user or the password."""


class ServerUnreachable(StorageError):
    """No server answered, or it does not have this database."""


class NotALedger(StorageError):
    """The file or database is something else, is damaged, or was written by a newer version."""


class LedgerTampered(LedgerError):
    """The hash chain does not hold: a row was changed, deleted, inserted or moved after it was written."""


class UnreadableEntry(LedgerError):
    """This process cannot read the mechanism of a charge. Its price counts all the same."""
