"""What does a studio look at? A folder of runs, a ledger, and who may come in."""

from __future__ import annotations

import dataclasses
import secrets
from pathlib import Path

from tacit.ledger import Ledger
from tacit.ledger.tokens import Token, Tokens


@dataclasses.dataclass(frozen=True, eq=False)
class Studio:
    """What a studio shows, and to whom.

    Args:
        runs: The folder with the folders of runs.
        ledger: The ledger, in a file, a database or a service; None shows none.
        address: The ledger as it is written in commands.
        tokens: Tokens with roles, as those of a ledger's service; None lets in whoever has ``secret``, as an owner.
        secret: The token of a studio without ``tokens``; random unless it is given.

    Example:
        >>> studio = Studio(secret="a")
        >>> studio.enter("a").role, studio.enter("b") is None, studio.enter("") is None
        ('owner', True, True)
    """

    runs: Path = Path("runs")
    ledger: Ledger | None = dataclasses.field(default=None, repr=False)
    address: str = "people.db"
    tokens: Tokens | None = None
    secret: str = dataclasses.field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)

    def enter(self, secret: str) -> Token | None:
        """Who somebody is, by the token that they sent.

        Args:
            secret: The token.

        Returns:
            Name and role; None for nobody.
        """
        if self.tokens is not None:
            return self.tokens.check(secret)
        known = secrets.compare_digest(secret.encode(), self.secret.encode())
        return Token("studio", "owner", "") if known else None
