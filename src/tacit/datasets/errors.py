"""What can go wrong with a data set?"""

from __future__ import annotations


class DatasetError(Exception):
    """A data set cannot be loaded; the message names the file or the address and says what to do."""


class MissingDataError(DatasetError):
    """The files are in none of the folders that were searched."""


class BrokenFileError(DatasetError):
    """A file exists but is truncated, damaged or a different file."""


class DownloadError(DatasetError):
    """A file could not be downloaded from its public address."""
