"""What does a caller hold after a charge was granted? A number that counts, until and after it is confirmed."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from tacit import accounting as acc
from tacit.ledger.errors import ChargeError
from tacit.ledger.rules import Price

if TYPE_CHECKING:
    from tacit.ledger.core import Ledger


class Charge:
    """A granted charge. It counts as spent from the moment it exists; ``confirm`` says that the release happened.

    :meth:`Ledger.charge` returns it. In a ``with`` block it is confirmed at the end. If the block raises, it stays
    reserved, and spent.

    Args:
        ledger: The ledger that granted it.
        dataset: The name of the data set.
        number: The charge's number in the ledger.
        mechanism: What was charged.
        price: What it costs by itself.
        head: The head of the data set's chain just after this charge was recorded. Confirming renews it.
        purpose: The public text that says why.

    Example:
        >>> from tacit import accounting as acc
        >>> from tacit.ledger import Ledger
        >>> ledger = Ledger()
        >>> _ = ledger.register("people", epsilon=1.0, delta=1e-5)
        >>> charge = ledger.charge("people", acc.Gaussian(10.0), purpose="mean age")
        >>> charge.confirmed, charge.epsilon < 1
        (False, True)
        >>> charge.confirm()
        >>> charge.confirmed
        True
    """

    def __init__(
        self, ledger: Ledger, dataset: str, number: str, mechanism: acc.Mechanism, price: Price, head: str, purpose: str
    ) -> None:
        self.ledger, self.dataset, self.number, self.mechanism = ledger, dataset, number, mechanism
        self.price, self.purpose = price, purpose
        self.head = head
        self.confirmed = False

    @property
    def epsilon(self) -> float:
        """The certified ε of this charge by itself, at :attr:`delta`."""
        return self.price.epsilon

    @property
    def delta(self) -> float:
        """The δ at which :attr:`epsilon` is stated."""
        return self.price.delta

    def confirm(self) -> None:
        """Record that what was paid for has been released.

        Raises:
            ChargeError: If it was confirmed before.
        """
        if self.confirmed:
            raise ChargeError(f"charge {self.number} was confirmed before; another release needs its own charge")
        self.head = self.ledger._confirm(self.dataset, self.number)
        self.confirmed = True

    def __enter__(self) -> Charge:
        if self.confirmed:
            raise ChargeError(f"charge {self.number} was used before; another release needs its own charge")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and not self.confirmed:
            self.confirm()

    def __repr__(self) -> str:
        state = "confirmed" if self.confirmed else "reserved"
        return f"<Charge {self.number[:8]} on {self.dataset!r}: ε={self.epsilon:.6g} at δ={self.delta:g}, {state}>"
