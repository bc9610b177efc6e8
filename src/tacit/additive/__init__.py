"""How do I fit curves on a table privately? Additive models with the scikit-learn API, without bins cut by hand.

>>> import numpy as np
>>> from tacit.additive import AdditiveRegressor
>>> ages = np.random.default_rng(0).uniform(18, 90, (20_000, 1))
>>> private = AdditiveRegressor(epsilon=1.0, bounds=(18, 90), target_bounds=(0, 1000))
>>> bool(private.fit(ages, (ages[:, 0] - 50) ** 2).score(ages, (ages[:, 0] - 50) ** 2) > 0.9)
True
>>> private.privacy_
ε in [0.99..., 0.99...] at δ=1e-06, add/remove one record; method: additive model, ...; noise: exact, ...
"""

from tacit.additive.curves import ColumnCurve
from tacit.additive.estimators import AdditiveClassifier, AdditiveRegressor

__all__ = ["AdditiveClassifier", "AdditiveRegressor", "ColumnCurve"]
