"""How do I fit a table privately? Regression estimators with the scikit-learn API.

>>> import numpy as np
>>> from tacit.linear_model import LinearRegression
>>> ages = np.random.default_rng(0).uniform(18, 90, (20_000, 1))
>>> private = LinearRegression(epsilon=1.0, delta=1e-6, bounds=(18, 90), target_bounds=(0, 200))
>>> private.fit(ages, 2 * ages[:, 0]).coef_.round(1).tolist()
[2.0]
>>> private.privacy_
ε in [0.99..., 0.99...] at δ=1e-06, add/remove one record; method: second moments, then ...; noise: exact, ...
"""

from tacit.accounting.errors import PrivacyWarning as PrivacyWarning
from tacit.ledger.surroundings import SearchRefused
from tacit.linear_model.encoder import SchemaEncoder
from tacit.linear_model.file import from_json, to_json
from tacit.linear_model.functional_estimators import FunctionalLinearRegression, FunctionalLogisticRegression
from tacit.linear_model.linear import LinearRegression, Ridge
from tacit.linear_model.logistic import LogisticRegression

__all__ = [
    "FunctionalLinearRegression",
    "FunctionalLogisticRegression",
    "LinearRegression",
    "LogisticRegression",
    "Ridge",
    "SchemaEncoder",
    "SearchRefused",
    "from_json",
    "to_json",
]
