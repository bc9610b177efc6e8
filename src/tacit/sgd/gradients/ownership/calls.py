"""What does a rule see of one call of an operator?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from tacit.sgd.torch_compat import pytree

if TYPE_CHECKING:
    from tacit.sgd.gradients.ownership.tracker import OwnershipMode

#: Owners of the results of a call, in their order; None where all of a result is public.
Owners = list[Tensor | None]


def words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


class Unknown(Exception):
    """No rule says what a call does."""


class OperatorCall(NamedTuple):
    """One call of an operator: its arguments by name, and what came out."""

    name: str
    arguments: dict[str, Any]
    results: list[Tensor]
    tracker: OwnershipMode

    def tensor(self, name: str) -> Tensor | None:
        """An argument, where it is a tensor."""
        found = self.arguments.get(name)
        return found if isinstance(found, Tensor) else None

    def owners(self, name: str) -> Tensor | None:
        """The owners of an argument; None where it is no tensor or all of it is public."""
        found = self.tensor(name)
        return None if found is None else self.tracker.owners(found)

    def tensors(self, *without: str) -> list[Tensor]:
        """All tensors among the arguments, except those of these names."""
        kept = [value for name, value in self.arguments.items() if name not in without]
        return [t for t in pytree.tree_leaves(kept) if isinstance(t, Tensor)]
