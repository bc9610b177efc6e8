"""Describe a table publicly, encode it, and keep the operator's counts apart.

Run it with ``python -m examples.schema_encode``.
"""

from __future__ import annotations

import polars as pl

from tacit.schema import Schema, SchemaError

SCHEMA = """
name = "clinic"

[unit]
name = "patient"
column = "patient_id"

[columns.age]
kind = "numeric"
lower = 0
upper = 110

[columns.ward]
kind = "categorical"
categories = ["north", "south"]

[columns.weight]
kind = "numeric"
lower = 0
upper = 200
fill = 70        # a public constant, not a mean of the data

[columns.readmitted]
kind = "boolean"
target = true
"""


def main() -> None:
    """Encode a small table and show what each kind of reader may see."""
    schema = Schema.parse_toml(SCHEMA)
    visits = pl.DataFrame(
        {
            "patient_id": ["a", "a", "b", "c"],
            "age": [34, 35, 140, 8],
            "ward": ["north", "south", "east", "north"],
            "weight": [70.5, None, 81.0, 30.0],
            "readmitted": [True, False, False, True],
        }
    )
    encoded, operator_view = schema.encode(visits)
    print("features:", *encoded.feature_names)
    print(encoded.features.round(3))
    print("target:", encoded.target)
    print("rows of each patient are known by:", encoded.units)
    print("for the operator only:", operator_view)

    # Without a public constant a missing value is an error that names the column; no value is ever guessed from others.
    strict = Schema.parse_toml(SCHEMA.replace("fill = 70", ""))
    try:
        strict.encode(visits)
    except SchemaError as error:
        print("refused:", error)
    else:
        raise SystemExit("a missing value was accepted without a public constant")


if __name__ == "__main__":
    main()
