"""Where do known data sets come from? Each has a public schema, a checksum and a licence.

There is one function for each data set. It looks in ``data_dir``, then in ``TACIT_DATA``, then in the cache folder,
then at the public address of the set if there is one. It returns a :class:`Dataset`, or raises an error that names the
file and says what to do.

>>> from tacit import datasets
>>> people = datasets.labsup()
>>> people
Dataset(labsup: all 31,857; unit person)
>>> people.schema["age"].lower, people.schema["age"].upper
(21, 35)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tacit.datasets.catalog import CATALOG, Entry
from tacit.datasets.dataset import Dataset, Images, entry, schema
from tacit.datasets.errors import BrokenFileError, DatasetError, DownloadError, MissingDataError
from tacit.datasets.images import cifar10, fashion_mnist, mnist
from tacit.datasets.locate import cache_folder, locate, obtain, search_folders
from tacit.datasets.tables import acs2018, adult, brazil2010, census1980, labsup, pums_california, pums_fulton
from tacit.datasets.text import ag_news, mr, sms_spam, sst2, trec

__all__ = [
    "CATALOG",
    "BrokenFileError",
    "Dataset",
    "DatasetError",
    "DownloadError",
    "Entry",
    "Images",
    "MissingDataError",
    "acs2018",
    "adult",
    "ag_news",
    "brazil2010",
    "cache_folder",
    "census1980",
    "cifar10",
    "entry",
    "fashion_mnist",
    "labsup",
    "load",
    "locate",
    "mnist",
    "mr",
    "obtain",
    "pums_california",
    "pums_fulton",
    "schema",
    "search_folders",
    "sms_spam",
    "sst2",
    "trec",
]


def load(name: str, data_dir: str | Path | None = None, *, download: bool = True) -> Dataset:
    """Load a data set by its name.

    Args:
        name: One of the names in ``CATALOG``, such as ``"labsup"``.
        data_dir: The folder to look in first, and to download to. None uses ``TACIT_DATA`` and the cache folder.
        download: Whether absent files may be fetched from their public address.

    Returns:
        The data set, with its schema.

    Example:
        >>> load("labsup").rows
        31857
    """
    entry(name)
    function: Any = globals()[name]
    result: Dataset = function(data_dir, download=download)
    return result
