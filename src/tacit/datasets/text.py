"""How are the text sets read?

As frames with the columns ``text`` and ``label`` (a word, one of the schema's classes). polars reads delimited files
without quoting, as they were written. The two line formats are split at line feeds only, because their texts contain
other characters that count as line ends elsewhere.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.datasets.dataset import Dataset, entry
from tacit.datasets.errors import BrokenFileError
from tacit.datasets.locate import obtain, read_checked
from tacit.datasets.tables import assemble

if TYPE_CHECKING:
    import polars as pl


def _delimited(content: bytes, path: Path, columns: list[str], separator: str, quote: str | None) -> pl.DataFrame:
    import polars as pl

    try:
        frame = pl.read_csv(
            io.BytesIO(content),
            has_header=False,
            new_columns=columns,
            schema_overrides=[pl.String] * len(columns),
            separator=separator,
            quote_char=quote,
        )
    except pl.exceptions.PolarsError as error:
        raise BrokenFileError(f"{path} cannot be read: {error}") from error
    if frame.columns != columns or any(frame.null_count().row(0)):
        raise BrokenFileError(f"{path} cannot be read: a line does not have {len(columns)} values")
    return frame


def _named(frame: pl.DataFrame, names: Mapping[str, str], path: Path) -> pl.DataFrame:
    """Replace the labels' codes by the words that the schema uses."""
    import polars as pl

    if not set(frame["label"].unique()) <= set(names):
        raise BrokenFileError(f"{path} has a label that is not one of {', '.join(names)}")
    return frame.with_columns(pl.col("label").replace_strict(dict(names), return_dtype=pl.String))


def sst2(data_dir: str | Path | None = None, *, download: bool = True) -> Dataset:
    """Sentences of film reviews, negative or positive: 6,920 + 872 + 1,821.

    Args:
        data_dir: The folder to look in first, and to download to. None uses ``TACIT_DATA`` and the cache folder.
        download: Whether absent files may be fetched from their public address.

    Returns:
        Splits ``train``, ``validation`` and ``test``, polars frames with ``text`` and ``label``.

    Example:
        >>> from tacit import datasets
        >>> datasets.schema("sst2").classes
        ('negative', 'positive')
    """
    known = entry("sst2")
    found = obtain(known, data_dir, download=download)
    splits = {}
    for split, file, path in zip(known.rows, found.files, found.paths, strict=True):
        frame = _delimited(read_checked(file, path), path, ["text", "label"], "\t", None)
        splits[split] = _named(frame, {"0": "negative", "1": "positive"}, path)
    return assemble(known, splits, found.paths)


def _lines(content: bytes) -> list[str]:
    return content.decode("latin-1").removesuffix("\n").split("\n")


def mr(data_dir: str | Path | None = None, *, download: bool = True) -> Dataset:
    """Sentences of film reviews, 5,331 of each class. They include most sentences of SST-2.

    Args:
        data_dir: The folder to look in first, and to download to. None uses ``TACIT_DATA`` and the cache folder.
        download: Whether absent files may be fetched from their public address.

    Returns:
        One split, ``all``, a polars frame with ``text`` and ``label``.

    Example:
        >>> from tacit import datasets
        >>> datasets.entry("mr").rows
        {'all': 10662}
    """
    import polars as pl

    known = entry("mr")
    found = obtain(known, data_dir, download=download)
    parts = []
    for label, file, path in zip(("positive", "negative"), found.files, found.paths, strict=True):
        texts = [line.strip() for line in _lines(read_checked(file, path))]
        parts.append(pl.DataFrame({"text": texts, "label": [label] * len(texts)}))
    return assemble(known, {"all": pl.concat(parts)}, found.paths)


def trec(data_dir: str | Path | None = None, *, download: bool = True) -> Dataset:
    """Questions by the kind of their answer, 5,452 + 500: six classes in ``label``, fifty in ``fine``.

    Args:
        data_dir: The folder to look in first, and to download to. None uses ``TACIT_DATA`` and the cache folder.
        download: Whether absent files may be fetched from their public address.

    Returns:
        Splits ``train`` and ``test``, polars frames with ``text``, ``label`` and ``fine``.

    Example:
        >>> from tacit import datasets
        >>> datasets.entry("trec").rows
        {'train': 5452, 'test': 500}
    """
    import polars as pl

    known = entry("trec")
    found = obtain(known, data_dir, download=download)
    splits = {}
    for split, file, path in zip(known.rows, found.files, found.paths, strict=True):
        rows = [line.partition(" ") for line in _lines(read_checked(file, path))]
        fine = [head for head, _, _ in rows]
        splits[split] = pl.DataFrame(
            {"text": [text.strip() for _, _, text in rows], "label": [f.partition(":")[0] for f in fine], "fine": fine}
        )
    return assemble(known, splits, found.paths)


def sms_spam(data_dir: str | Path | None = None, *, download: bool = True) -> Dataset:
    """Text messages, ``ham`` or ``spam``: 5,574.

    Args:
        data_dir: The folder to look in first, and to download to. None uses ``TACIT_DATA`` and the cache folder.
        download: Whether absent files may be fetched from their public address.

    Returns:
        One split, ``all``, a polars frame with ``text`` and ``label``.

    Example:
        >>> from tacit import datasets
        >>> datasets.schema("sms_spam").classes
        ('ham', 'spam')
    """
    known = entry("sms_spam")
    found = obtain(known, data_dir, download=download)
    frame = _delimited(read_checked(found.files[0], found.paths[0]), found.paths[0], ["label", "text"], "\t", None)
    return assemble(known, {"all": frame.select("text", "label")}, found.paths)


def ag_news(data_dir: str | Path | None = None, *, download: bool = True, train: bool = False) -> Dataset:
    """News articles of four kinds: the 7,600 of the test file and, on demand, the 120,000 of the training file.

    Args:
        data_dir: The folder to look in first, and to download to. None uses ``TACIT_DATA`` and the cache folder.
        download: Whether absent files may be fetched from their public address.
        train: Whether to load the training file too.

    Returns:
        Split ``test`` and, on demand, ``train``: polars frames with ``text`` and ``label``.

    Example:
        >>> from tacit import datasets
        >>> datasets.schema("ag_news").classes
        ('World', 'Sports', 'Business', 'Sci/Tech')
    """
    import polars as pl

    known = entry("ag_news")
    names = {"1": "World", "2": "Sports", "3": "Business", "4": "Sci/Tech"}
    found = {"test": obtain(known, data_dir, download=download)}
    if train:
        found = {"train": obtain(known, data_dir, download=download, extra="train")} | found
    splits = {}
    for split, at in found.items():
        frame = _delimited(
            read_checked(at.files[0], at.paths[0]), at.paths[0], ["label", "title", "description"], ",", '"'
        )
        frame = _named(frame, names, at.paths[0])
        splits[split] = frame.with_columns(pl.concat_str("title", "description", separator=" ").alias("text"))
    return assemble(known, splits, tuple(path for at in found.values() for path in at.paths))
