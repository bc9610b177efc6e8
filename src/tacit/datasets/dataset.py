"""What is a data set to the rest of tacit? Rows by split, with their public schema, source and licence."""

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
    """Images and their class numbers.

    Args:
        images: Bytes, rows x height x width; colour images have their channels last.
        labels: The class number of each image.

    Example:
        >>> Images(np.zeros((2, 28, 28), dtype=np.uint8), np.array([3, 7]))
        Images(2 of 28 x 28)
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        return f"Images({len(self)} of {' x '.join(map(str, self.images.shape[1:]))})"


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set with what is publicly known about it.

    Args:
        name: Its name in the catalogue.
        schema: Its public schema.
        splits: The published splits, each a polars frame (tables and text) or :class:`Images`. A set without a
            published split has the single split ``"all"``.
        source: Where the data come from.
        licence: Under which terms they may be used.
        files: The files that were read.

    Example:
        >>> from tacit import datasets
        >>> people = datasets.labsup()
        >>> people, people.unit
        (Dataset(labsup: all 31,857; unit person), 'person')
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
        """The training split, or the whole set if no split is published."""
        return self["train" if "train" in self.splits else "all"]

    @property
    def test(self) -> Any:
        """The test split."""
        return self["test"]

    @property
    def unit(self) -> str:
        """Name of the unit of privacy."""
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
        """Encode a split by the public schema, as :meth:`tacit.schema.Schema.encode` does.

        Guarantee:
            Each row is encoded by itself; the counts returned beside it are for the operator only.

        Args:
            split: Name of the split. None takes the training split.
            dtype: Type of the encoded numbers.

        Returns:
            The encoded rows, and the operator's counts of what was clipped, unknown or filled.
        """
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

    Args:
        name: One of the names in ``CATALOG``.

    Returns:
        The schema that is part of the package.

    Example:
        >>> schema("labsup").target.name
        'worked'
    """
    entry(name)
    source = importlib.resources.files("tacit.datasets") / "schemas" / f"{name}.toml"
    return Schema.parse_toml(source.read_text(encoding="utf-8"))


def entry(name: str) -> Entry:
    """What the catalogue knows about a data set.

    Args:
        name: One of the names in ``CATALOG``.

    Returns:
        Its entry: rows, unit, licence, source and files.

    Raises:
        DatasetError: If there is no such data set; the message lists those there are.

    Example:
        >>> entry("adult").total
        48842
    """
    try:
        return CATALOG[name]
    except KeyError:
        raise DatasetError(f"there is no data set {name!r}; the known ones are {', '.join(CATALOG)}") from None
