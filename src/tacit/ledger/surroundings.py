"""Who is calling ``fit``, and does anybody count? Searches, ensembles and pipelines around a private estimator.

An estimator sees one fit; that it is one of many on the same people, or that a scaler learned from these rows before,
only the callers know. They are found on the stack. What fits many times is refused unless a ledger counts it.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from types import FrameType
from typing import Any

from tacit.accounting.errors import PrivacyWarning
from tacit.ledger.core import Ledger

#: Modules of scikit-learn that fit an estimator many times and compare, or learn from, its results on private rows.
#: The functions are named where another one of the module fits once.
_SCORED: dict[str, tuple[str, ...]] = {
    "sklearn.model_selection._validation": (),
    "sklearn.model_selection._search": (),
    "sklearn.model_selection._search_successive_halving": (),
    "sklearn.model_selection._classification_threshold": ("_fit_and_score_over_thresholds",),
    "sklearn.calibration": (),
    "sklearn.feature_selection._sequential": (),
    "sklearn.ensemble._stacking": (),
    "sklearn.ensemble._weight_boosting": (),
    "sklearn.linear_model._ransac": (),
    "sklearn.semi_supervised._self_training": (),
    "sklearn.impute._iterative": (),
}
#: Modules that fit an estimator many times and combine what comes out.
_REPEATED = (
    "sklearn.ensemble._base",  # all that is on the stack of a worker
    "sklearn.ensemble._bagging",
    "sklearn.ensemble._voting",
    "sklearn.feature_selection._rfe",
    "sklearn.multiclass",
    "sklearn.multioutput",
)


class SearchRefused(RuntimeError):
    """A search, cross-validation or ensemble would fit many times without a ledger that counts."""


def _callers() -> Iterator[tuple[str, str, FrameType]]:
    """Module, function and frame of every caller that belongs to scikit-learn, here or in one of its workers."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith("sklearn."):
            yield module, frame.f_code.co_name, frame
        frame = frame.f_back


def fits_many_times() -> tuple[bool, bool]:
    """Whether something of scikit-learn is fitting many times now, and whether it looks at results on private rows.

    >>> fits_many_times()
    (False, False)
    """
    scored = repeated = False
    for module, function, _ in _callers():
        scored = scored or (module in _SCORED and (not _SCORED[module] or function in _SCORED[module]))
        repeated = repeated or module in _REPEATED
    return scored or repeated, scored


def learned_before() -> tuple[str, ...]:
    """Names of the steps before this fit, in the pipelines around it, that may have learned from the same rows."""
    found: dict[str, None] = {}
    for module, function, frame in _callers():
        if function != "fit":
            continue
        around: Any = frame.f_locals.get("self")
        if module == "sklearn.pipeline" and hasattr(around, "steps"):
            found |= {type(step).__name__: None for _, step in around.steps[:-1] if not learns_nothing(step)}
        elif module == "sklearn.compose._target" and not learns_nothing(getattr(around, "transformer", None)):
            found[type(around.transformer).__name__] = None
    return tuple(found)


def learns_nothing(step: Any) -> bool:
    """Whether a transformer's ``fit`` keeps nothing of the rows it is given.

    >>> from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
    >>> [learns_nothing(s) for s in (FunctionTransformer(), OneHotEncoder(categories=[["a", "b"]]), StandardScaler())]
    [True, True, False]
    """
    if step is None or isinstance(step, str):  # "passthrough", "drop"
        return True
    name, module = type(step).__name__, type(step).__module__
    if module.startswith("sklearn."):
        if name in ("FrozenEstimator", "PolynomialFeatures"):
            return True
        if name in ("OneHotEncoder", "OrdinalEncoder"):
            counted = (getattr(step, limit, None) for limit in ("min_frequency", "max_categories"))
            return not isinstance(step.categories, str) and all(limit is None for limit in counted)
        if name == "SimpleImputer":
            return bool(step.strategy == "constant" and step.keep_empty_features)
        if name == "Pipeline":
            return all(learns_nothing(part) for _, part in step.steps)
        if name == "FeatureUnion":
            return all(learns_nothing(part) for _, part in step.transformer_list)
        if name == "ColumnTransformer":
            return learns_nothing(step.remainder) and all(learns_nothing(part) for _, part, _ in step.transformers)
    try:
        return not step.__sklearn_tags__().requires_fit
    except AttributeError:
        return False


def refuse_uncounted_search(ledger: Ledger | None, name: str) -> None:
    """Refuse a fit inside a search, a cross-validation or an ensemble of scikit-learn unless a ledger counts it."""
    many, scored = fits_many_times()
    if many:
        count_or_refuse(ledger, name, scored=scored, level=5)


class RefusesSearch:
    """A private estimator that a search without a ledger cannot even copy.

    scikit-learn catches what goes wrong inside the fits of a search and says that the model is misconfigured. It copies
    the estimator before, and what is raised there is shown as it is.
    """

    ledger: Ledger | None

    def __sklearn_clone__(self) -> Any:
        if self.ledger is None and fits_many_times()[0]:
            count_or_refuse(None, type(self).__name__, scored=True)
        return super().__sklearn_clone__()  # type: ignore[misc]  # of scikit-learn's BaseEstimator


def count_or_refuse(ledger: Ledger | None, name: str, *, scored: bool, level: int = 3) -> None:
    """One of many fits is about to be made; ``scored`` says that they are compared by results on private rows.

    Guarantee: with a ledger every fit is charged to it (clones share the ledger). The scores of a search or
    cross-validation are computed on private rows without noise: the operator's, not for release.
    """
    if ledger is None:
        raise SearchRefused(
            f"a search, cross-validation or ensemble around {name} fits many times on the same people: each fit costs "
            "epsilon again, and the scores that a search compares are not private. Choose hyper-parameters with "
            "private tuning (tacit.tuning.PrivateSearchCV takes the place of GridSearchCV) or on public data, or give "
            "ledger= and dataset=: every fit is then charged. "
            "See: tacit explain repeated-fits"
        )
    if scored:
        warnings.warn(
            "every fit of this search is charged to the ledger, but its scores are computed on private rows without "
            "noise. They, and the choice they lead to, are not covered by the guarantee: for the operator only",
            PrivacyWarning,
            stacklevel=level,
        )


def note_pipeline() -> tuple[str, ...]:
    """What has to be said beside the guarantee where steps of a pipeline learned from the rows before; warns too."""
    learned = learned_before()
    if not learned:
        return ()
    words = ", ".join(learned)
    warnings.warn(
        f"{words} of this pipeline learned from the same rows without noise, so one person changes every row that is "
        "fitted: the guarantee does not cover it. Scale by public constants (tacit.linear_model.SchemaEncoder, "
        "FunctionTransformer), or freeze what was fitted to public data (sklearn.frozen.FrozenEstimator); a "
        "transformer of your own that learns nothing says so by its tag requires_fit=False",
        PrivacyWarning,
        stacklevel=4,
    )
    return (f"NOT covered: what {words} of the pipeline learned from the rows",)


@contextlib.contextmanager
def messages_without_values() -> Iterator[None]:
    """scikit-learn's checks of a table, where their messages would print values or counts of it or know no ``fill``."""
    try:
        yield
    except ValueError as error:
        text = str(error)
        if "could not convert" in text:
            told = "the table holds text where a number is needed: convert the column, or describe it by a schema"
        elif text.startswith("Complex data"):
            told = "Complex data not supported"
        elif text.startswith("Input X contains NaN"):
            told = "Input X contains NaN: remove those rows, or give fill=, public constants for missing values"
        elif text.startswith("Expected 2D array"):
            told = text.partition(":")[0] + ": " + text[text.index("Reshape your data") :]
        elif text.startswith("Found input variables with inconsistent"):
            told = "X and y have different numbers of rows"
        elif text.startswith("y should be a 1d array"):
            told = "y should be a 1d array: it holds one value a row"
        else:
            raise
    else:
        return
    raise ValueError(told) from None
