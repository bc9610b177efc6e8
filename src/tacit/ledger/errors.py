"""What can go wrong with a ledger? One error for each thing a person would do something different about."""

from __future__ import annotations

import dataclasses
from typing import Any


class LedgerError(Exception):
    """Base of everything the ledger raises; the message says what to do."""


class BudgetExceeded(LedgerError):
    """A charge was refused: it would take the data set over its budget. Nothing was recorded; nothing may be released.

    ``advice`` holds what is left and what would still fit, as numbers.
    """

    def __init__(self, message: str, advice: Advice | None = None) -> None:
        super().__init__(message)
        self.advice = advice

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.advice)


@dataclasses.dataclass(frozen=True)
class Advice:
    """What a refused charge asked, what is left, and what would still fit (None: nothing does, or it was not found)."""

    dataset: str
    asked_epsilon: float
    asked_delta: float
    left_epsilon: float
    left_delta: float
    asked_repeats: int
    repeats: int | None = None
    noise: float | None = None
    noise_factor: float | None = None


class UnknownDataset(LedgerError, KeyError):
    """No data set of this name is registered; the message lists the names there are."""

    def __str__(self) -> str:  # KeyError would show the message in quotes
        return str(self.args[0])


class DatasetExists(LedgerError):
    """A data set of this name is registered already, on other terms."""


class TermsError(LedgerError, ValueError):
    """A registration or a charge that contradicts itself or the terms of its data set (unit, adjacency, size, δ)."""


class FingerprintMismatch(LedgerError):
    """The data at hand are not the data that were registered under this name."""


class PriceError(LedgerError, ArithmeticError):
    """The accountant's two answers, ε at δ and δ at ε, contradict each other: no price, so no charge."""


class ChargeError(LedgerError):
    """A charge that is not there, or was confirmed before."""


class CopyError(LedgerError, TypeError):
    """A ledger in memory was about to exist twice, and each copy would grant the whole budget."""


class StorageError(LedgerError):
    """The ledger's file or server could not be read or written; no charge was granted."""


class ReadOnlyLedger(StorageError):
    """The ledger's file or folder may be read but not written."""


class DiskFull(StorageError):
    """There is no room to record a charge."""


class LedgerBusy(StorageError):
    """Others held the ledger's lock for too long."""


class AccessDenied(StorageError):
    """The server did not accept the user or the password."""


class ServerUnreachable(StorageError):
    """No server answered, or it has no such database."""


class NotALedger(StorageError):
    """The file or database is something else, is damaged, or was written by a newer version."""


class LedgerTampered(LedgerError):
    """The hash chain does not hold: a row was changed, deleted, inserted or moved after it was written."""


class UnreadableEntry(LedgerError):
    """A charge whose mechanism this process cannot read back; its price counts all the same."""
