"""What can go wrong when a mechanism is priced? Each error says what to do; the one warning is shared by all rooms."""

from __future__ import annotations

import importlib
from typing import Any


class AccountingError(ValueError):
    """This mechanism or question has no valid price as asked; the message says what to change."""


class AdjacencyError(AccountingError):
    """A mechanism was priced or composed under an adjacency for which it has no guarantee."""


class UnitError(AccountingError):
    """Mechanisms that protect different units, such as a record and a person, were composed."""


class PrivacyWarning(UserWarning):
    """Allowed, but the guarantee is weaker than a reader may think or does not cover everything."""


def optional(module: str) -> Any:
    """Import a module that prices do not need, or raise an error that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = module.split(".")[0]
        raise AccountingError(
            f"this needs the package {name} ({error}): pip install {name.replace('_', '-')}. "
            "See: tacit explain missing-extra"
        ) from error
