"""Encoding uses the public bounds and nothing else."""

from __future__ import annotations

import decimal
import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.schema import Boolean, Categorical, EncodingDiagnostics, Numeric, Schema, SchemaError, Text, Unit

PEOPLE = Schema(
    (
        Numeric("age", 0, 100, fill=50),
        Categorical("job", ["clerk", "nurse", 3], fill="other"),
        Boolean("smokes", true="Yes", false="No", fill=False),
        Numeric("income", -1000, 1000, target=True, fill=0),
    ),
    Unit("person"),
)
TABLE = {
    "age": [0, 100, 25, -5, 400, None],
    "job": ["clerk", "nurse", 3, "pilot", "3", None],
    "smokes": ["Yes", "No", True, 0, "maybe", None],
    "income": [-1000.0, 1000.0, 500.0, float("inf"), float("-inf"), float("nan")],
}
FEATURES = np.array(
    [
        [-1, 1, 0, 0, 0, 1],
        [1, 0, 1, 0, 0, -1],
        [-0.5, 0, 0, 1, 0, 1],
        [-1, 0, 0, 0, 1, -1],
        [1, 0, 0, 1, 0, -1],
        [0, 0, 0, 0, 1, -1],
    ]
)


def test_bounds_categories_and_fills_give_the_features():
    encoded, _ = PEOPLE.encode(TABLE)
    assert encoded.feature_names == ("age", "job=clerk", "job=nurse", "job=3", "job=other", "smokes")
    np.testing.assert_array_equal(encoded.features, FEATURES)
    np.testing.assert_array_equal(encoded.target, [-1, 1, 0.5, 1, -1, 0])
    np.testing.assert_allclose(PEOPLE.decode_target(encoded.target), [-1000, 1000, 500, 1000, -1000, 0])


def test_counts_over_private_data_are_only_in_the_operators_object():
    encoded, operator_view = PEOPLE.encode(TABLE)
    assert operator_view == EncodingDiagnostics(
        clipped={"age": 2, "income": 2},
        unknown={"job": 1, "smokes": 1},
        filled={"age": 1, "job": 1, "smokes": 1, "income": 1},
    )
    assert repr(operator_view).endswith("[operator view: not covered by the guarantee]")
    assert str(operator_view) == repr(operator_view)
    assert not any(isinstance(value, EncodingDiagnostics) for value in vars(encoded).values())
    assert b"clipped" not in pickle.dumps(encoded)


@pytest.mark.parametrize("make", [pl.DataFrame, pd.DataFrame], ids=["polars", "pandas"])
def test_a_data_frame_encodes_as_its_columns_do(make):
    table = {
        "age": [0, 100, 25, -5, 400, None],
        "job": ["clerk", "nurse", "3", "pilot", "3", None],
        "smokes": ["Yes", "No", "Yes", "No", "maybe", None],
        "income": TABLE["income"],
    }
    frame = make(table)
    encoded, operator_view = PEOPLE.encode(frame)
    np.testing.assert_array_equal(encoded.features, FEATURES)
    assert operator_view == PEOPLE.encode(TABLE)[1]


def test_categorical_and_nullable_dtypes_are_understood():
    polars = pl.DataFrame({"age": [1, None], "job": ["clerk", None], "smokes": [True, None], "income": [1, None]})
    polars = polars.with_columns(pl.col("job").cast(pl.Categorical))
    kinds = {"age": "Int64", "job": "category", "smokes": "boolean", "income": "Float64"}
    pandas = pd.DataFrame({name: pd.array(polars[name].to_list(), dtype=kind) for name, kind in kinds.items()})
    by_polars, by_pandas = PEOPLE.encode(polars)[0], PEOPLE.encode(pandas)[0]
    np.testing.assert_array_equal(by_polars.features, by_pandas.features)
    np.testing.assert_array_equal(by_polars.target, by_pandas.target)


def test_a_structured_array_encodes_by_its_fields():
    rows = np.array(
        [(25.0, b"nurse", True, 0.5)], dtype=[("age", "f4"), ("job", "S9"), ("smokes", "?"), ("income", "f8")]
    )
    encoded, _ = PEOPLE.encode(rows)
    np.testing.assert_array_equal(encoded.features, [[-0.5, 0, 1, 0, 0, 1]])


def test_masked_values_are_missing():
    masked = np.ma.masked_array([25.0, 99.0], mask=[False, True])
    encoded, view = Schema((Numeric("age", 0, 100, fill=0),), Unit("person")).encode({"age": masked})
    assert encoded.features[:, 0].tolist() == [-0.5, -1]
    assert view.filled == {"age": 1}


def test_numbers_of_every_python_type_are_numbers():
    schema = Schema((Numeric("x", -2, 2),), Unit("person"))
    values = [1, True, np.float32(1), decimal.Decimal(1), 10**400, -(10**400)]
    assert schema.encode({"x": values})[0].features[:, 0].tolist() == [0.5, 0.5, 0.5, 0.5, 1, -1]


def test_arrays_are_flattened_in_order():
    schema = Schema((Numeric("picture", 0, 255, shape=(2, 2)),), Unit("image"))
    pictures = np.array([[[0, 255], [51, 204]]], dtype=np.uint8)
    encoded, _ = schema.encode({"picture": pictures}, dtype=np.float32)
    assert encoded.feature_names == ("picture[0][0]", "picture[0][1]", "picture[1][0]", "picture[1][1]")
    assert encoded.features.dtype == np.float32
    np.testing.assert_allclose(encoded.features, [[-1, 1, -0.6, 0.6]], rtol=1e-6)
    for wrong in (pictures[:, 0], [[1, 2, 3, 4]], [[[1, 2], [3]]]):
        with pytest.raises(SchemaError, match="'picture'"):
            schema.encode({"picture": wrong})


def test_class_targets_become_class_numbers():
    schema = Schema((Numeric("x", 0, 1), Categorical("y", ["a", "b"], other=False, target=True)), Unit("row"))
    assert schema.encode({"x": [0, 1], "y": ["b", "a"]})[0].target.tolist() == [1, 0]
    with pytest.raises(SchemaError, match="'y' has values that are not among its categories"):
        schema.encode({"x": [0], "y": ["c"]})
    with pytest.raises(SchemaError, match="categorical target 'y'"):
        schema.decode_target([0.0])


def test_a_table_without_its_target_can_be_encoded_for_prediction():
    rows = {name: values for name, values in TABLE.items() if name != "income"}
    assert PEOPLE.encode(rows, target=False)[0].target is None
    with pytest.raises(SchemaError, match="'income' is in the schema but not in the table"):
        PEOPLE.encode(rows)


@pytest.mark.parametrize("make", [dict, pl.DataFrame, pd.DataFrame])
def test_an_absent_column_is_named(make):
    with pytest.raises(SchemaError, match="column 'age' is in the schema but not in the table"):
        PEOPLE.encode(make({"job": ["clerk"]}))


def test_the_unit_column_must_be_there_and_whole():
    schema = Schema((Numeric("x", 0, 1),), Unit("patient", column="id"))
    assert schema.encode({"x": [0, 1], "id": ["ann", "bob"]})[0].units.tolist() == ["ann", "bob"]
    with pytest.raises(SchemaError, match="'id' is in the schema but not in the table"):
        schema.encode({"x": [0, 1]})
    with pytest.raises(SchemaError, match="'id', the column of ids, has missing values"):
        schema.encode({"x": [0, 1], "id": ["ann", None]})


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (Numeric("c", 0, 1), [0.5, None]),
        (Numeric("c", 0, 1), np.array([np.nan])),
        (Categorical("c", ["a"]), ["a", None]),
        (Categorical("c", ["a"]), [float("nan")]),
        (Boolean("c"), [True, None]),
        (Boolean("c"), ["perhaps"]),
        (Boolean("c"), [2]),
    ],
)
def test_a_missing_value_without_a_public_fill_is_an_error_that_names_the_column(column, values):
    with pytest.raises(SchemaError, match=r"column 'c' has .*declare a public constant"):
        Schema((column,), Unit("person")).encode({"c": values})


def test_messages_never_show_a_value_or_its_row():
    with pytest.raises(SchemaError, match="column 'age' is numeric and holds str") as caught:
        PEOPLE.encode({**TABLE, "age": [1, "secret", 1, 1, 1, 1]})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([1, 2], "cannot encode a list"),
        (np.zeros(3), "cannot encode a ndarray"),
        ({**TABLE, "age": 3}, "'age' must be a sequence"),
        ({**TABLE, "age": "old"}, "'age' must be a sequence"),
        ({**TABLE, "age": np.zeros((6, 2))}, "'age' has 2 dimensions"),
        ({**TABLE, "job": np.zeros((6, 2))}, "'job' has 2 dimensions"),
        ({**TABLE, "age": [1]}, "'job' and 'age' have different numbers of rows"),
        ({**TABLE, "job": [["clerk"]] * 6}, "'job' holds list"),
        ({**TABLE, "age": np.array(["2020-01-01"] * 6, dtype="M8[D]")}, "'age' is numeric and holds datetime64"),
    ],
)
def test_what_is_no_table_is_refused(table, message):
    with pytest.raises(SchemaError, match=message):
        PEOPLE.encode(table)


def test_text_has_no_encoding():
    with pytest.raises(SchemaError, match="column 'words' is text"):
        Schema((Text("words"),), Unit("message")).encode({"words": ["hello"]})


def test_an_empty_table_encodes_to_no_rows():
    encoded, _ = PEOPLE.encode({name: [] for name in TABLE})
    assert encoded.features.shape == (0, 6)


def test_a_declared_category_named_other_takes_the_unknown_values():
    schema = Schema((Categorical("c", ["other", "a"]),), Unit("person"))
    assert schema.feature_names == ("c=other", "c=a")
    assert schema.encode({"c": ["b", "a"]})[0].features.tolist() == [[1, 0], [0, 1]]


ANY_NUMBER = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=True, allow_infinity=True))
ANY_VALUE = st.one_of(
    ANY_NUMBER, st.text(max_size=5), st.binary(max_size=3), st.sampled_from(["clerk", "nurse", "3", 3, 3.0])
)
ROWS = st.lists(st.tuples(ANY_NUMBER, ANY_VALUE, ANY_VALUE, ANY_NUMBER), min_size=1, max_size=8)


def _columns(rows):
    return dict(zip(("age", "job", "smokes", "income"), map(list, zip(*rows, strict=True)), strict=True))


@given(ROWS)
def test_a_rows_encoding_depends_on_no_other_row(rows):
    together, _ = PEOPLE.encode(_columns(rows))
    for i, row in enumerate(rows):
        alone, _ = PEOPLE.encode(_columns([row]))
        np.testing.assert_array_equal(alone.features[0], together.features[i])
        assert alone.target[0] == together.target[i]


@given(ROWS, st.data())
def test_every_encoded_number_is_finite_and_in_minus_one_to_one(rows, data):
    lower, upper = sorted(data.draw(st.tuples(*2 * [st.floats(allow_nan=False, allow_infinity=False)])))
    try:
        bounded = Numeric("age", lower, upper, fill=lower)
    except SchemaError:
        bounded = PEOPLE.columns[0]
    schema = Schema((bounded, *PEOPLE.columns[1:]), PEOPLE.unit)
    encoded, _ = schema.encode(_columns(rows), dtype=data.draw(st.sampled_from([np.float32, np.float64])))
    for array in (encoded.features, encoded.target):
        assert np.isfinite(array).all()
        assert np.abs(array).max() <= 1


@given(st.floats(-1e9, 1e9), st.floats(1e-3, 1e9), st.lists(st.floats(0, 1), min_size=1))
def test_a_numeric_target_decodes_to_what_was_encoded(lower, width, places):
    schema = Schema((Boolean("x"), Numeric("y", lower, lower + width, target=True)), Unit("person"))
    values = np.clip(lower + np.array(places) * width, lower, lower + width)
    encoded, view = schema.encode({"x": [True] * len(values), "y": values})
    assert view.clipped == {}
    np.testing.assert_allclose(schema.decode_target(encoded.target), values, atol=1e-9 * (abs(lower) + width))


def test_encoding_a_private_table_does_not_print_it():
    encoded, _ = PEOPLE.encode(TABLE)
    assert repr(encoded) == "Encoded(6 features float64, target float64)"
    assert len(encoded) == 6


def test_bounds_out_of_numpy_are_the_numbers_they_are():
    made = Numeric("age", np.float32(17), np.int64(90), fill=np.float64(40.5))
    assert made == Numeric("age", 17.0, 90.0, fill=40.5)
    assert {type(made.lower), type(made.upper), type(made.fill)} == {float}


def test_a_category_is_found_whatever_type_the_reader_of_a_file_guessed():
    """The text 01 is read as the number 1 unless one person's row holds 1A: that row must not change the others."""
    schema = Schema((Categorical("c", ["01", "2", "true", "x"]),), Unit("person"))
    spellings = [["01", "2", "3"], [1, 2, 3], [1.0, 2.0, 3.0], ["1.0", "2.0", "3.0"], ["+1", "02", "1e9"]]
    for values in spellings:
        features = schema.encode({"c": values})[0].features
        assert features.argmax(axis=1).tolist() == [0, 1, 4]
    for values in ([True], ["true"], ["TRUE"]):
        assert schema.encode({"c": values})[0].features.argmax() == 2
    apart = Schema((Categorical("c", ["1", "01"]),), Unit("person"))  # one number, two labels: by their text alone
    assert apart.encode({"c": ["1", "01", "001"]})[0].features.argmax(axis=1).tolist() == [0, 1, 2]


def test_a_lazy_frame_is_collected_first():
    with pytest.raises(SchemaError, match="collect"):
        Schema((Numeric("a", 0, 1),), Unit("person")).encode(pl.LazyFrame({"a": [1]}))
