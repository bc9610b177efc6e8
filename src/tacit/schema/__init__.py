"""What is publicly known about a table? Bounds, categories, the target and the unit of privacy.

A person writes a :class:`Schema` from a code book, or by decision, before anyone looks at the data. Every table becomes
numbers through :meth:`Schema.encode`, which learns nothing: the encoding of a row depends on that row and the schema
alone.

>>> from tacit.schema import Boolean, Numeric, Schema, Unit
>>> schema = Schema((Numeric("age", 0, 100), Boolean("worked", target=True)), Unit("person"))
>>> encoded, operator_view = schema.encode({"age": [25, 50, 140], "worked": [0, 1, 1]})
>>> encoded.features[:, 0].tolist(), encoded.target.tolist()
([-0.5, 0.0, 1.0], [0, 1, 1])
>>> operator_view
EncodingDiagnostics(clipped={'age': 1}) [operator view: not covered by the guarantee]
"""

from tacit.schema.columns import (
    OTHER,
    AnyColumn,
    Boolean,
    Categorical,
    Column,
    Date,
    Numeric,
    SchemaError,
    Text,
    Unit,
)
from tacit.schema.encoding import Encoded, EncodingDiagnostics
from tacit.schema.table import Schema

__all__ = [
    "OTHER",
    "AnyColumn",
    "Boolean",
    "Categorical",
    "Column",
    "Date",
    "Encoded",
    "EncodingDiagnostics",
    "Numeric",
    "Schema",
    "SchemaError",
    "Text",
    "Unit",
]
