"""What can go wrong in a search?"""

from __future__ import annotations


class TuningError(ValueError):
    """A search cannot be built or run. The message says what to do."""


class AdaptiveError(TuningError):
    """The candidates would depend on the scores of earlier ones, which no theorem covers."""


class SearchFailed(TuningError):
    """Every run failed: it raised an error or gave no score."""
