"""Whose is each record that somebody else's loop reads? Ids, so that people are drawn and not their records.

A loop clips each record of a batch by itself. So a person who is drawn shows one record there, chosen anew each time by
the key of the run: then a person moves a sum by at most the clip norm, however many records they have.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.accounting.base import unit_of
from tacit.noise.keys import Key
from tacit.sgd.training.data import Units, ids_of

GIVE = "Pass groups=, one id for each record of the data set, with unit="


@dataclasses.dataclass(frozen=True, eq=False)
class Owners:
    """The unit that a loop protects: its name, how many there are, and the records of each (None: one record each).

    Guarantee: of each unit that is drawn for a batch, exactly one record is in it, chosen by key and number of the
    draw, and by nothing that a record says.

    >>> owners = Owners.of(["ann", "bob", "ann"], None, "abc")
    >>> owners.unit, owners.size, len(owners.records(np.arange(2), Key(bytes(32)), 0))
    ('person', 2, 2)
    """

    unit: str
    size: int
    units: Units | None

    @classmethod
    def of(cls, groups: Any, unit: str | None, dataset: Any) -> Owners:
        """From one id for each record of ``dataset``, or the name of its column that holds them."""
        word, rows = unit_of(unit, owned=groups is not None, ids=GIVE), len(dataset)
        if groups is None:
            return cls(word, rows, None)
        units = Units.of(ids_of(groups, dataset), rows)
        return cls(word, len(units), units if len(units) < rows else None)

    def records(self, chosen: npt.NDArray[np.int64], key: Key, draw: int) -> npt.NDArray[np.int64]:
        """One record of each unit that was drawn."""
        if self.units is None:
            return chosen
        return self.units.choose(chosen, 1, key.derive("members"), draw)[0][:, 0]

    @property
    def digest(self) -> str | None:
        """A short name of whose is whose; None where every record is a unit."""
        if self.units is None:
            return None
        found = hashlib.blake2b(self.units.order.tobytes() + self.units.starts.tobytes(), digest_size=16)
        return found.hexdigest()


__all__ = ["Owners"]
