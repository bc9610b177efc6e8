"""How is a fitted model kept in a file that can be loaded without running code? As JSON: released numbers and words.

What is written was released by the fit or is public: coefficients with their uncertainty, the public scaling of each
column, and the price. Reading makes an estimator that predicts and states intervals as the one that was written.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from tacit import accounting as acc
from tacit.linear_model.base import PrivateEstimator
from tacit.linear_model.bounds import Features
from tacit.linear_model.functional_estimators import FunctionalLinearRegression, FunctionalLogisticRegression
from tacit.linear_model.linear import LinearRegression, Ridge
from tacit.linear_model.logistic import LogisticRegression
from tacit.schema import Schema

FORMAT, VERSION = "tacit table model", 1
KINDS: dict[str, type[PrivateEstimator]] = {
    kind.__name__: kind
    for kind in (
        LinearRegression,
        Ridge,
        LogisticRegression,
        FunctionalLinearRegression,
        FunctionalLogisticRegression,
    )
}
#: What a fit left that is numbers: arrays, and plain numbers.
ARRAYS = ("coef_", "covariance_", "_theta", "_centre")
NUMBERS = ("_middle", "_half_width", "prediction_noise_", "r2_noise_")


def to_json(fitted: PrivateEstimator) -> str:
    """A fitted estimator as JSON text.

    Guarantee:
        The text holds what the fit released, public values and its price, nothing else: it costs nothing.

    Args:
        fitted: A fitted estimator of this room.

    Returns:
        The text, which :func:`from_json` reads.

    Raises:
        ValueError: If the estimator is of another kind, or not fitted.

    Example:
        >>> x = np.random.default_rng(0).uniform(0, 10, (5000, 2))
        >>> made = LinearRegression(1.0, bounds=(0, 10), target_bounds=(0, 20)).fit(x, x.sum(axis=1))
        >>> read = from_json(to_json(made))
        >>> bool((read.predict(x) == made.predict(x)).all()), read.privacy_.claim == made.privacy_.claim
        (True, True)
    """
    kind = type(fitted).__name__
    if KINDS.get(kind) is not type(fitted) or not hasattr(fitted, "_theta"):
        raise ValueError(f"a fitted estimator of tacit.linear_model is written, not {kind}")
    features, privacy = fitted.features_, fitted.privacy_
    values = {name: _plain(getattr(fitted, name)) for name in (*ARRAYS, *NUMBERS) if hasattr(fitted, name)}
    values["intercept_"] = _plain(fitted.intercept_)
    found = {
        "format": FORMAT,
        "version": VERSION,
        "kind": kind,
        "fit_intercept": bool(fitted.fit_intercept),
        "features": {
            "names": [str(name) for name in features.names],
            "columns": [str(name) for name in getattr(fitted, "feature_names_in_", ())],
            "middle": _plain(features.middle),
            "half_width": _plain(features.half_width),
            "scalars": features.scalars,
            "blocks": features.blocks,
            "schema": None if features.schema is None else features.schema.to_toml(),
            "fill": None if features.fill is None else _plain(features.fill),
            "centre": None if features.centre is None else [_plain(one) for one in features.centre],
            "shortened": features.shortened,
        },
        "classes": _plain(fitted.classes_) if hasattr(fitted, "classes_") else None,
        "values": values,
        "no_intervals": fitted._why,
        "privacy": {
            "mechanism": privacy.mechanism.to_dict(),
            "delta": privacy.delta,
            "adjacency": privacy.adjacency,
            "details": {name: _plain(value) for name, value in privacy.details.items()},
            "words": repr(privacy),
        },
    }
    return json.dumps(found, ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def from_json(text: str) -> Any:
    """The fitted estimator that :func:`to_json` wrote. No code is run, whatever the text holds.

    Args:
        text: The JSON text.

    Returns:
        An estimator that predicts, with ``coef_``, ``privacy_`` and intervals. It holds no ledger.

    Raises:
        ValueError: If the text is no model of this form.

    Example:
        >>> from_json("{}")
        Traceback (most recent call last):
        ValueError: this is no tacit table model of version 1, as 'tacit fit' writes it
    """
    try:
        found = json.loads(text)
        if found["format"] != FORMAT or found["version"] != VERSION or found["kind"] not in KINDS:
            raise ValueError
        return _made(found)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"this is no {FORMAT} of version {VERSION}, as 'tacit fit' writes it") from error


def _made(found: dict[str, Any]) -> Any:
    about, privacy = found["features"], found["privacy"]
    schema = None if about["schema"] is None else Schema.parse_toml(about["schema"])
    features = Features(
        tuple(about["names"]),
        _array(about["middle"]),
        _array(about["half_width"]),
        int(about["scalars"]),
        int(about["blocks"]),
        schema,
        None if about["fill"] is None else _array(about["fill"]),
        None if about["centre"] is None else (_array(about["centre"][0]), _array(about["centre"][1])),
        bool(about["shortened"]),
    )
    made: Any = KINDS[found["kind"]](bounds=schema, fit_intercept=bool(found["fit_intercept"]))
    made.features_ = features
    columns = about["columns"]
    made.n_features_in_ = len(columns or features.names)
    if columns:
        made.feature_names_in_ = np.array(columns, dtype=object)
    for name in ARRAYS:
        setattr(made, name, _array(found["values"][name]))
    for name in NUMBERS:
        if name in found["values"]:
            setattr(made, name, float(_array(found["values"][name])))
    intercept = found["values"]["intercept_"]
    made.intercept_ = _array(intercept) if isinstance(intercept, list) else float(intercept)
    if found["classes"] is not None:
        made.classes_ = np.array(found["classes"])
    made._why = str(found["no_intervals"])
    _check_shapes(made)
    made.privacy_ = acc.Privacy.of(
        acc.from_dict(privacy["mechanism"]),
        float(privacy["delta"]),
        adjacency=str(privacy["adjacency"]),
        **{name: tuple(one) if isinstance(one, list) else one for name, one in privacy["details"].items()},
    )
    return made


def _check_shapes(made: Any) -> None:
    """Refuse numbers that do not belong together."""
    width = len(made.features_.names)
    good = len(made.features_.middle) == len(made.features_.half_width) == width == made.coef_.shape[-1]
    good &= len(made._theta) == width + bool(made.fit_intercept)
    good &= made.covariance_.shape == (width + 1, width + 1) and len(made._centre) == width + 1
    if made.features_.schema is not None:
        good &= tuple(made.features_.schema.feature_names) == made.features_.names
    if not (good and np.isfinite(made._theta).all()):
        raise ValueError("the numbers of the file do not belong together")


def _plain(value: Any) -> Any:
    """Lists and plain numbers; NaN, which JSON does not have, as None."""
    if isinstance(value, np.ndarray):
        return [_plain(one) for one in value.tolist()]
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value.item() if isinstance(value, np.generic) else value


def _array(values: Any) -> Any:
    return np.array(values, dtype=np.float64)  # None becomes NaN
