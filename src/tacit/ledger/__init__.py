"""What has been spent on this data, and what is left?

>>> from tacit import accounting as acc
>>> from tacit.ledger import Ledger
>>> ledger = Ledger()
>>> people = ledger.register("people", epsilon=3.0, delta=1e-5)
>>> with ledger.charge("people", acc.Gaussian(5.0), purpose="mean income") as charge:
...     pass
>>> ledger.budget("people").charges
1
>>> ledger.verify().ok
True
"""

from tacit.ledger.charge import Charge
from tacit.ledger.core import Ledger
from tacit.ledger.errors import (
    AccessDenied,
    Advice,
    BudgetExceeded,
    ChargeError,
    CopyError,
    DatasetExists,
    DiskFull,
    FingerprintMismatch,
    LedgerBusy,
    LedgerError,
    LedgerTampered,
    NotALedger,
    PriceError,
    ReadOnlyLedger,
    ServerUnreachable,
    StorageError,
    TermsError,
    UnknownDataset,
    UnreadableEntry,
)
from tacit.ledger.release import (
    EvaluationData,
    OperatorLog,
    OperatorView,
    PrivateValueError,
    Release,
    charged,
    public,
)
from tacit.ledger.rules import Price
from tacit.ledger.views import NOT_ADAPTIVE, Budget, ChangeRecord, ChargeRecord, DatasetTerms, Verification

__all__ = [
    "NOT_ADAPTIVE",
    "AccessDenied",
    "Advice",
    "Budget",
    "BudgetExceeded",
    "ChangeRecord",
    "Charge",
    "ChargeError",
    "ChargeRecord",
    "CopyError",
    "DatasetExists",
    "DatasetTerms",
    "DiskFull",
    "EvaluationData",
    "FingerprintMismatch",
    "Ledger",
    "LedgerBusy",
    "LedgerError",
    "LedgerTampered",
    "NotALedger",
    "OperatorLog",
    "OperatorView",
    "Price",
    "PriceError",
    "PrivateValueError",
    "ReadOnlyLedger",
    "Release",
    "ServerUnreachable",
    "StorageError",
    "TermsError",
    "UnknownDataset",
    "UnreadableEntry",
    "Verification",
    "charged",
    "public",
]
