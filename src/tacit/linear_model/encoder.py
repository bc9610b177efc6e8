"""How does a pipeline scale a table without learning from it? The encoding of a public schema as a transformer."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, TransformerMixin

from tacit.linear_model.bounds import as_table
from tacit.schema import Schema


class SchemaEncoder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Numbers in [-1, 1] by the public bounds of a schema: what StandardScaler and OneHotEncoder would learn from rows.

    ``fit`` learns nothing. The result fits ``bounds=(-1, 1)`` of any estimator here. An estimator that is given the
    schema itself as ``bounds`` needs less noise where there are categories: it knows that they exclude each other.

    Guarantee: each row is encoded by itself, so sensitivities and adjacency of what follows do not change.

    >>> from tacit.schema import Categorical, Numeric, Schema, Unit
    >>> schema = Schema((Numeric("age", 0, 100), Categorical("ward", ["north"])), Unit("patient"))
    >>> encoder = SchemaEncoder(schema).fit(None)
    >>> encoder.transform({"age": [25, 100], "ward": ["north", "south"]}).tolist()
    [[-0.5, 1.0, 0.0], [1.0, 0.0, 1.0]]
    >>> encoder.get_feature_names_out().tolist()
    ['age', 'ward=north', 'ward=other']
    """

    def __init__(self, schema: Schema) -> None:
        self.schema = schema

    def fit(self, X: Any = None, y: Any = None) -> SchemaEncoder:
        """Nothing is learned; the schema is checked."""
        if not isinstance(self.schema, Schema):
            raise TypeError(f"schema must be a tacit.schema.Schema, not {type(self.schema).__name__}")
        self.n_features_in_ = len(self.schema.features)
        return self

    def transform(self, X: Any) -> npt.NDArray[np.float64]:
        """The table as numbers."""
        encoded, _ = self.schema.encode(as_table(X, self.schema), target=False)
        return np.asarray(encoded.features, dtype=np.float64)

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[Any]:
        """Names of the encoded features, categories spelled out."""
        return np.array(self.schema.feature_names, dtype=object)

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        return tags
