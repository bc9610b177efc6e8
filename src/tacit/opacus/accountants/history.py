"""How does an accountant hear of changes to the list of its steps? Opacus' ``history`` is a list that people change.

They append steps that were made elsewhere, and put back a list that they saved. A list that is only a copy would lose
such steps, and ε would be stated without them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

#: noise multiplier, sampling rate, steps
Entry = tuple[float, float, int]


def _told(name: str) -> Callable[..., Any]:
    """A method of ``list`` after which the accountant takes over what the list holds."""
    change = getattr(list, name)

    def changed(self: History, *args: Any, **kwargs: Any) -> Any:
        # Steps that were made since the list was asked for must not get lost.
        list.__setitem__(self, slice(None), list(self.accountant.history))
        result = change(self, *args, **kwargs)
        self.accountant.history = self
        return result

    changed.__name__ = name
    return changed


class History(list[Entry]):
    """The steps of an accountant, which hears of every change."""

    def __init__(self, accountant: Any, entries: Iterable[Entry]) -> None:
        super().__init__(entries)
        self.accountant = accountant

    def __reduce__(self) -> Any:
        return list, (list(self),)  # a copy is a list like any other


for _name in (
    *("append", "extend", "insert", "pop", "remove", "clear", "sort", "reverse"),
    *("__setitem__", "__delitem__", "__iadd__", "__imul__"),
):
    setattr(History, _name, _told(_name))


__all__ = ["Entry", "History"]
