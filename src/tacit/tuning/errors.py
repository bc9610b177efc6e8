"""What can go wrong in tuning?"""

from __future__ import annotations


class TuningError(ValueError):
    """A search that cannot be made or run; the message says what to do."""


class AdaptiveError(TuningError):
    """Candidates that depend on the scores of earlier ones, which no theorem covers."""


class SearchFailed(TuningError):
    """The selected run had failed: every run that was made raised an error or gave no score."""
