"""How do I choose hyper-parameters without leaking?

Try good defaults first (:func:`good_defaults`), then public data (:func:`tune_on_public`): both are free. Then
:class:`PrivateSearch`, which pays for every look at the private data out of one total budget.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tacit.tuning.defaults import Defaults, batch_for, good_defaults, learning_rate_for, noise_for
from tacit.tuning.errors import AdaptiveError, SearchFailed, TuningError
from tacit.tuning.exponential import exponential_mechanism, generalised_exponential_mechanism, permute_and_flip
from tacit.tuning.public import PublicTuning, tune_on_public
from tacit.tuning.scores import Score, bounded_loss, correct_count
from tacit.tuning.search import PrivateSearch, SearchResult
from tacit.tuning.space import LogUniform, Space, Uniform

if TYPE_CHECKING:
    from tacit.tuning.cv import PrivateSearchCV

__all__ = [
    "AdaptiveError",
    "Defaults",
    "LogUniform",
    "PrivateSearch",
    "PrivateSearchCV",
    "PublicTuning",
    "Score",
    "SearchFailed",
    "SearchResult",
    "Space",
    "TuningError",
    "Uniform",
    "batch_for",
    "bounded_loss",
    "correct_count",
    "exponential_mechanism",
    "generalised_exponential_mechanism",
    "good_defaults",
    "learning_rate_for",
    "noise_for",
    "permute_and_flip",
    "tune_on_public",
]


def __getattr__(name: str) -> Any:
    """``PrivateSearchCV`` needs scikit-learn, which the rest does not: loaded on first use."""
    if name == "PrivateSearchCV":
        from tacit.tuning.cv import PrivateSearchCV

        return PrivateSearchCV
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
