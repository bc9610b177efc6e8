"""What is a data set to the rest of tacit?

Its rows by split and, inseparable from them, its public schema, its source and its licence.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tacit.datasets.catalog import CATALOG, Entry
from tacit.datasets.errors import DatasetError
from tacit.schema import Encoded, EncodingDiagnostics, Schema

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, eq=False)
class Images:
    """Pictures (rows x height x width, with channels last where there are any; bytes) and their class numbers."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        return f"Images({len(self)} of {' x '.join(map(str, self.images.shape[1:]))})"


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set with what is publicly known about it.

    ``splits`` maps the published splits to polars frames (tables and text) or :class:`Images`; a set without a
    published split has the single split ``"all"``.
    """

    name: str
    schema: Schema
    splits: Mapping[str, pl.DataFrame | Images]
    source: str
    licence: str
    files: tuple[Path, ...]

    def __getitem__(self, split: str) -> Any:
        try:
            return self.splits[split]
        except KeyError:
            raise KeyError(f"{self.name} has no split {split!r}; it has {', '.join(self.splits)}") from None

    @property
    def train(self) -> Any:
        """The training split (the whole set where no split is published)."""
        return self["train" if "train" in self.splits else "all"]

    @property
    def test(self) -> Any:
        """The test split."""
        return self["test"]

    @property
    def unit(self) -> str:
        """Whom one unit of privacy protects."""
        return self.schema.unit.name

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of their numbers; empty for a numeric target."""
        return self.schema.classes

    @property
    def rows(self) -> int:
        """Rows of all splits together."""
        return sum(len(split) for split in self.splits.values())

    def encode(
        self, split: str | None = None, *, dtype: type[np.floating[Any]] = np.float64
    ) -> tuple[Encoded, EncodingDiagnostics]:
        """Encode a split (training by default) by the public schema; see :meth:`tacit.schema.Schema.encode`."""
        part = self.train if split is None else self[split]
        if isinstance(part, Images):
            names = np.asarray(self.classes, dtype=object)
            part = {"image": part.images, "label": names[part.labels]}
        return self.schema.encode(part, dtype=dtype)

    def __repr__(self) -> str:
        splits = ", ".join(f"{name} {len(split):,}" for name, split in self.splits.items())
        return f"Dataset({self.name}: {splits}; unit {self.unit})"


@cache
def schema(name: str) -> Schema:
    """The public schema of a known data set, without its data.

    >>> schema("labsup").target.name
    'worked'
    """
    entry(name)
    source = importlib.resources.files("tacit.datasets") / "schemas" / f"{name}.toml"
    return Schema.parse_toml(source.read_text(encoding="utf-8"))


def entry(name: str) -> Entry:
    """What the catalogue knows about a data set.

    >>> entry("adult").total
    48842
    """
    try:
        return CATALOG[name]
    except KeyError:
        raise DatasetError(f"there is no data set {name!r}; the known ones are {', '.join(CATALOG)}") from None
