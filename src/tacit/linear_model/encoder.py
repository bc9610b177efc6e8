"""How does a pipeline scale a table without learning from it? The encoding of a public schema as a transformer."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, TransformerMixin

from tacit.linear_model.bounds import as_table
from tacit.schema import Schema


class SchemaEncoder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Scale a table to [-1, 1] by the public bounds of a schema, as a transformer for pipelines.

    It takes the place of ``StandardScaler`` and ``OneHotEncoder``, which learn from private rows; ``fit`` learns
    nothing. Give the estimator after it ``bounds=(-1, 1)``. An estimator that gets the schema itself as ``bounds`` adds
    less noise if there are categories, because it knows that they exclude each other.

    Guarantee:
        Each row is encoded by itself: neither the sensitivity nor the adjacency of what follows changes.

    Args:
        schema: The public description of the table, a :class:`tacit.schema.Schema`.

    Example:
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
        """Check the schema; nothing is learned.

        Args:
            X: Ignored; present as in scikit-learn.
            y: Ignored.

        Returns:
            The encoder itself.

        Raises:
            TypeError: If ``schema`` is not a schema.
        """
        if not isinstance(self.schema, Schema):
            raise TypeError(f"schema must be a tacit.schema.Schema, not {type(self.schema).__name__}")
        self.n_features_in_ = len(self.schema.features)
        return self

    def transform(self, X: Any) -> npt.NDArray[np.float64]:
        """Encode the features of a table.

        Args:
            X: A data frame, a mapping of columns, or an array with the schema's features in order.

        Returns:
            Rows x encoded features, in [-1, 1].
        """
        encoded, _ = self.schema.encode(as_table(X, self.schema), target=False)
        return np.asarray(encoded.features, dtype=np.float64)

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[Any]:
        """Names of the encoded features.

        Args:
            input_features: Ignored; present as in scikit-learn.

        Returns:
            Column names; a category is named ``column=category``.
        """
        return np.array(self.schema.feature_names, dtype=object)

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        return tags
