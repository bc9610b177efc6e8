"""A schema is checked when it is made, and every message names the column and says what to do."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.schema import Boolean, Categorical, Numeric, Schema, SchemaError, Text, Unit

PERSON = Unit("person")
AGE = Numeric("age", 0, 120)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Numeric("age", 5, 5), r"'age': lower \(5\) must be below upper \(5\)"),
        (lambda: Numeric("age", 9, 5), r"'age': lower \(9\) must be below"),
        (lambda: Numeric("age", float("nan"), 5), r"'age': lower is nan, but a bound must be finite"),
        (lambda: Numeric("age", 0, float("inf")), r"'age': upper is inf, but a bound must be finite"),
        (lambda: Numeric("age", 0, 10**400), r"'age': upper is .* must be finite"),
        (lambda: Numeric("age", "0", 5), r"'age': lower must be a number"),
        (lambda: Numeric("age", 0, True), r"'age': upper must be a number"),
        (lambda: Numeric("age", 0, 5e-324), r"'age': lower and upper are too close"),
        (lambda: Numeric("age", 0, 5, fill=6), r"'age': fill \(6\) must lie between"),
        (lambda: Numeric("age", 0, 5, fill=float("nan")), r"'age': fill is nan"),
        (lambda: Numeric("age", 0, 5, shape=(0,)), r"'age': shape"),
        (lambda: Numeric("age", 0, 5, shape=(2,), target=True), r"'age': a target has one number"),
        (lambda: Numeric(" ", 0, 5), r"name must be a non-empty string"),
        (lambda: Categorical("sex", []), r"'sex': categories is empty"),
        (lambda: Categorical("sex", "FM"), r"'sex': categories must be a list"),
        (lambda: Categorical("sex", ["F", "M", "F"]), r"'sex': category 'F' is listed twice"),
        (lambda: Categorical("code", [1, "1"]), r"'code': category '1' is listed twice"),
        (lambda: Categorical("sex", ["F", "M"], fill="X"), r"'sex': fill \('X'\) must be one of the categories"),
        (lambda: Boolean("b", true="x", false="x"), r"'b': true and false are both 'x'"),
        (lambda: Boolean("b", fill=1), r"'b': fill must be true or false"),
        (lambda: Unit(""), r"unit of privacy needs a name"),
        (lambda: Schema((), PERSON), r"no columns"),
        (lambda: Schema((AGE, AGE), PERSON), r"'age' is declared twice"),
        (lambda: Schema((AGE,), "person"), r"unit of privacy must be a Unit"),
        (lambda: Schema(("age",), PERSON), r"'age' is not a column"),
        (lambda: Schema((Numeric("y", 0, 1, target=True),), PERSON), r"'y' is the target and there is no other column"),
        (
            lambda: Schema((AGE, Numeric("y", 0, 1, target=True), Boolean("z", target=True)), PERSON),
            r"'y' and 'z' are both marked as the target",
        ),
        (
            lambda: Schema((AGE,), Unit("person", column="age")),
            r"'age' is the column of ids .* an id is not a feature",
        ),
        (lambda: Schema((Categorical("a", ["b"]), Numeric("a=b", 0, 1)), PERSON), r"'a=b': its feature 'a=b'"),
    ],
)
def test_a_mistake_is_refused_with_the_columns_name(make, message):
    with pytest.raises(SchemaError, match=message):
        make()


UNIT = '[unit]\nname = "person"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[unit", "not valid TOML"),
        ('[columns.a]\nkind = "boolean"', "does not say whom it protects"),
        ('[unit]\ncolumn = "id"', "unit: name is missing"),
        ('[unit]\nname = "p"\nnmae = "q"', "unit: unknown key 'nmae'"),
        (UNIT, "no columns"),
        (UNIT + "[colums.a]\nkind = 'boolean'", "unknown key 'colums'"),
        (
            UNIT + "[columns.a]\nlower = 0",
            "'a': kind is missing; write kind = one of numeric, date, categorical, boolean, text",
        ),
        (UNIT + "[columns.a]\nkind = 'number'", "'a': kind 'number' is not known"),
        (UNIT + "[columns.a]\nkind = 'numeric'\nlower = 0", "'a' \\(numeric\\): upper is missing"),
        (UNIT + "[columns.a]\nkind = 'numeric'\nlower = 0\nuper = 1", "'a' \\(numeric\\): unknown key 'uper'"),
        (UNIT + "[columns.a]\nkind = 'numeric'\nlower = nan\nupper = 1", "'a': lower is nan"),
        (UNIT + "[columns.a]\nkind = 'boolean'\ntarget = 'yes'", "'a': target must be bool"),
        (UNIT + "[columns.a]\nkind = 'text'\ntarget = true", "'a' \\(text\\): unknown key 'target'"),
        (UNIT + "[columns]\na = 3", "column 'a' must be a table"),
        (
            UNIT + "[columns.a]\nkind='boolean'\ntarget=true\n[columns.b]\nkind='boolean'\ntarget=true",
            "'a' and 'b' are both marked",
        ),
    ],
)
def test_a_mistake_in_a_file_names_the_file_and_the_column(tmp_path, text, message):
    path = tmp_path / "people.toml"
    path.write_text(text)
    with pytest.raises(SchemaError, match=message) as caught:
        Schema.from_toml(path)
    assert str(path) in str(caught.value)


def test_an_unreadable_file_is_named(tmp_path):
    with pytest.raises(SchemaError, match=r"nowhere\.toml: No such file"):
        Schema.from_toml(tmp_path / "nowhere.toml")
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"')
    with pytest.raises(SchemaError, match=r"latin\.toml: it is not UTF-8"):
        Schema.from_toml(tmp_path / "latin.toml")


# Surrogates are no characters and cannot be written as UTF-8.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)
NUMBERS = st.one_of(st.integers(-(2**53), 2**53), st.floats(-1e300, 1e300))


@st.composite
def columns(draw, name):
    description = draw(st.text(string.printable, max_size=20))
    match draw(st.sampled_from(["numeric", "categorical", "boolean", "text"])):
        case "numeric":
            lower, upper = sorted(draw(st.lists(NUMBERS, min_size=2, max_size=2, unique=True)))
            try:
                return Numeric(name, lower, upper, draw(st.sampled_from([None, lower])), description=description)
            except SchemaError:  # two numbers that are one as floats
                return Numeric(name, 0, 1)
        case "categorical":
            labels = draw(st.lists(TEXTS, min_size=1, max_size=5, unique=True))
            return Categorical(name, labels, other=draw(st.booleans()), fill=draw(st.sampled_from([None, labels[0]])))
        case "boolean":
            return Boolean(name, fill=draw(st.sampled_from([None, True, False])), description=description)
    return Text(name, description)


@st.composite
def schemas(draw):
    names = draw(st.lists(TEXTS, min_size=1, max_size=5, unique=True))
    made = [draw(columns(name)) for name in names]
    unit = Unit(draw(TEXTS), draw(st.none() | TEXTS.filter(lambda text: text not in names)))
    try:
        return Schema(tuple(made), unit, draw(TEXTS), draw(TEXTS))
    except SchemaError:  # two columns whose features happen to have one name
        return Schema((AGE,), unit)


@given(schemas())
def test_a_schema_reads_back_from_toml_as_it_was_written(schema):
    assert Schema.parse_toml(schema.to_toml()) == schema


def test_a_schema_file_round_trips(tmp_path):
    schema = Schema(
        (AGE, Categorical("who", ["a", "b"], target=True, other=False)), Unit("person", "id"), "n", 'd "q"\\'
    )
    (tmp_path / "s.toml").write_text(schema.to_toml(), encoding="utf-8")
    assert Schema.from_toml(tmp_path / "s.toml") == schema
    assert schema.classes == ("a", "b")
    assert schema["age"] is AGE
    with pytest.raises(KeyError, match="no column 'nix'"):
        schema["nix"]


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "marked.toml"
    path.write_bytes(b"\xef\xbb\xbf" + SCHEMA_TEXT.encode())
    assert Schema.from_toml(path) == Schema.parse_toml(SCHEMA_TEXT)


SCHEMA_TEXT = """[unit]
name = "person"
[columns.age]
kind = "numeric"
lower = 0
upper = 9
"""
