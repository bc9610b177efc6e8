"""Errors of the accountant, each with what to do about it, and the one warning that all rooms share."""


class AccountingError(ValueError):
    """A mechanism or a question that has no valid price as asked."""


class AdjacencyError(AccountingError):
    """A mechanism was priced, or composed, under an adjacency for which it states no guarantee."""


class UnitError(AccountingError):
    """Mechanisms that protect different units (a record, a person) were composed."""


class PrivacyWarning(UserWarning):
    """What was asked is allowed, and its guarantee is weaker than a reader may think, or does not cover all of it."""
