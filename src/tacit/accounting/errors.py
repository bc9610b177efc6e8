"""What can go wrong when a mechanism is priced? Each error says what to do; the one warning is shared by all rooms."""


class AccountingError(ValueError):
    """This mechanism or question has no valid price as asked; the message says what to change."""


class AdjacencyError(AccountingError):
    """A mechanism was priced or composed under an adjacency for which it has no guarantee."""


class UnitError(AccountingError):
    """Mechanisms that protect different units, such as a record and a person, were composed."""


class PrivacyWarning(UserWarning):
    """Allowed, but the guarantee is weaker than a reader may think or does not cover everything."""
