"""What can go wrong with a data set?"""

from __future__ import annotations


class DatasetError(Exception):
    """A data set cannot be had; the message names the file or the address and says what to do."""


class MissingDataError(DatasetError):
    """The files are in none of the places that were searched."""


class BrokenFileError(DatasetError):
    """A file is there but is not what it should be: truncated, damaged or another file."""


class DownloadError(DatasetError):
    """A file could not be fetched from its public address."""
