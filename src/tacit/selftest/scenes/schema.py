"""Does a schema keep its promises? Rows are encoded by public constants alone, and what contradicts them is refused."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tacit.audit.findings import Finding, holds
from tacit.schema import Boolean, Categorical, Numeric, Schema, SchemaError, Text, Unit
from tacit.selftest.scene import Scene, refused

SCHEMA = Schema(
    (
        Numeric("age", 0, 100, fill=40),
        Numeric("wage", -50, 50),
        Categorical("job", ["01", "baker", "true"], fill="baker"),
        Categorical("town", ["a", "b"], other=False),
        Boolean("member", true="yes", false="no", fill=False),
        Numeric("picture", 0, 255, shape=(2, 2)),
        Numeric("income", 0, 10, fill=5, target=True),
    ),
    Unit("person", "id"),
    name="made up",
    description='with "marks"\tand\x01more',
)
#: What the schema says of some values: encoded features by column, whoever else is in the table.
EXPECTED: dict[str, list[tuple[Any, list[float]]]] = {
    "age": [(0, [-1.0]), (100, [1.0]), (1e300, [1.0]), (-np.inf, [-1.0]), (None, [-0.2]), (75, [0.5])],
    "wage": [(-50, [-1.0]), (1e9, [1.0]), (25, [0.5]), (np.inf, [1.0]), (0, [0.0]), (-1e9, [-1.0])],
    "job": [
        ("01", [1, 0, 0, 0]),
        (1, [1, 0, 0, 0]),
        (True, [0, 0, 1, 0]),
        ("nobody", [0, 0, 0, 1]),
        (None, [0, 1, 0, 0]),
        ("baker", [0, 1, 0, 0]),
    ],
    "town": [("a", [1, 0]), ("b", [0, 1]), ("a", [1, 0]), ("b", [0, 1]), ("a", [1, 0]), ("b", [0, 1])],
    "member": [("yes", [1.0]), ("no", [-1.0]), (None, [-1.0]), ("perhaps", [-1.0]), ("yes", [1.0]), ("no", [-1.0])],
    "picture": [
        ([[0, 255], [510, -9]], [-1, 1, 1, -1]),
        ([[0, 0], [0, 0]], [-1] * 4),
        ([[255, 255], [255, 255]], [1] * 4),
        ([[0, 0], [0, 0]], [-1] * 4),
        ([[0, 0], [0, 0]], [-1] * 4),
        ([[1e9, 0], [0, 0]], [1, -1, -1, -1]),
    ],
    "income": [(0, [-1.0]), (1e6, [1.0]), (10, [1.0]), (-1e6, [-1.0]), (None, [0.0]), (7.5, [0.5])],
}
IDS = ["ann", "bob", "ann", "cy", "dee", "eve"]


def _table(rows: list[int] | None = None) -> dict[str, Any]:
    chosen = range(len(IDS)) if rows is None else rows
    table: dict[str, Any] = {name: [EXPECTED[name][i][0] for i in chosen] for name in EXPECTED}
    return table | {"id": [IDS[i] for i in chosen]}


def rows_are_encoded_alone(seed: int) -> list[Finding]:
    """Each row is encoded to what the schema says of it, alone or in company, from any kind of table."""
    import polars

    rng = np.random.default_rng(seed)
    names = [column.name for column in SCHEMA.features]
    true = np.array([[v for name in names for v in EXPECTED[name][i][1]] for i in range(len(IDS))], dtype=np.float64)
    target = np.array([value[0] for _, value in EXPECTED["income"]])
    together, seen = SCHEMA.encode(_table())
    worst = float(np.abs(together.features - true).max()) + float(np.abs(together.target - target).max())
    order = rng.permutation(len(IDS)).tolist()
    alone = [SCHEMA.encode(_table([i]))[0] for i in order]
    moved = max(float(np.abs(one.features - true[i]).max()) for one, i in zip(alone, order, strict=True))
    sides = together.public_rows(0.5)
    crossed = sum(bool(one.public_rows(0.5)[0] != sides[i]) for one, i in zip(alone, order, strict=True))
    frame = polars.DataFrame({n: _table()[n] for n in ("age", "wage", "town", "income", "id")}, strict=False)
    fewer = dataclasses.replace(SCHEMA, columns=tuple(SCHEMA[n] for n in ("age", "wage", "town", "income")))
    framed = float(np.abs(fewer.encode(frame)[0].features - true[:, [0, 1, 6, 7]]).max())
    masked = np.ma.MaskedArray([1.0, 2.0], mask=[False, True])
    arrays = np.zeros(2, dtype=[("age", float)])
    arrays["age"] = [50, np.nan]
    one = Schema((Numeric("age", 0, 100, fill=40),), Unit("record"))
    others = [one.encode({"age": masked})[0].features[1, 0], one.encode(arrays)[0].features[1, 0]]
    counts = (dict(seen.clipped), dict(seen.unknown), dict(seen.filled))
    text = f"{together!r} {seen!r}"
    return [
        holds("schema: values", worst < 1e-12, f"the worst value is {worst:.3g} from what the schema says"),
        holds("schema: rows alone", moved < 1e-12, f"a row alone differs by {moved:.3g} from the row in company"),
        holds("schema: data frames", framed < 1e-12, f"a data frame differs by {framed:.3g} from a mapping"),
        holds("schema: missing values", others == [-0.2, -0.2], f"the public constant gives -0.2, got {others}"),
        holds("schema: public side", crossed == 0, f"{crossed} rows change sides with their company"),
        holds("schema: a person's side", bool(sides[0] == sides[2]), "rows of one person are on one side"),
        holds(
            "schema: operator view",
            counts[2] == {"age": 1, "job": 1, "member": 1, "income": 1} and "operator" in text and "ann" not in text,
            "what was clipped, unknown or filled is for the operator, and no value is printed",
        ),
    ]


def outliers_move_nobody(seed: int) -> list[Finding]:
    """An outlier within the bounds changes no other row, and the share of public people is what was asked for."""
    rng = np.random.default_rng(seed)
    schema = Schema(tuple(Numeric(n, lower=-10.0, upper=10.0) for n in "abc"), Unit("record"))
    x = rng.uniform(-2, 2, (400, 3))
    more = np.vstack([np.full((1, 3), 10.0), x])
    plain, longer = (schema.encode({n: t[:, i] for i, n in enumerate("abc")})[0] for t in (x, more))
    moved = float(np.abs(plain.features - longer.features[1:]).max())
    public = plain.public_rows(0.25)
    crossed = int((public != longer.public_rows(0.25)[1:]).sum())
    ids = np.repeat([f"person {i}" for i in range(100)], 4)
    owned = dataclasses.replace(schema, unit=Unit("person", "id"))
    theirs = owned.encode({n: x[:, i] for i, n in enumerate("abc")} | {"id": ids})[0]
    people = {share: theirs.public_rows(share).reshape(100, 4) for share in (0.1, 0.5, 0.9)}
    split = [share for share, rows in people.items() if (rows.any(1) != rows.all(1)).any()]
    few, some, many = (int(plain.public_rows(share).sum()) for share in (0.05, 0.25, 0.9))
    return [
        holds("rows alone (schema)", moved == 0.0, f"an added row moved others by {moved:.3g}"),
        holds("people whole (public side)", not split, f"rows of one person on two sides at shares {split}"),
        holds("rows alone (public side)", crossed == 0, f"an added row moved {crossed} others to another side"),
        # The hash is fixed and the rows are not: 400 of them are within 12 standard deviations of their share.
        holds("public share", few < 73 and 0 < some < 204 and many > 288, f"{few}, {some}, {many} of 400 are public"),
    ]


def schemas_read_back(seed: int) -> list[Finding]:
    """A schema in a file is the same schema; other targets are public choices; predictions come back to their unit."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "schema.toml"
        path.write_text(SCHEMA.to_toml(), encoding="utf-8")
        same = Schema.from_toml(path) == SCHEMA
        path.write_text("[unit]\nname = 1\n", encoding="utf-8")
        wrong = refused("schema: files", {"a wrong unit": (lambda: Schema.from_toml(path), SchemaError)})
        path.write_bytes(b"\xff\xfe\x00")
        more = refused(
            "schema: unreadable",
            {
                "bytes": (lambda: Schema.from_toml(path), SchemaError),
                "absent": (lambda: Schema.from_toml(Path(folder) / "none"), SchemaError),
            },
        )
    member = SCHEMA.predicting("member", without=["picture"])
    back = SCHEMA.decode_target([-1.0, 0.5]).tolist()
    return [
        wrong,
        more,
        holds("schema: read back", same, "what was written is what is read"),
        holds(
            "schema: another target",
            member.classes == ("no", "yes") and "income" in member.feature_names and member["income"].target is False,
            f"classes {member.classes}",
        ),
        holds("schema: back to the unit", back == [0.0, 7.5], f"-1 and 0.5 are {back}"),
    ]


def _without(name: str) -> object:
    """A table that lacks a column of its schema, encoded."""
    return SCHEMA.encode({column: values for column, values in _table().items() if column != name})


def contradictions_are_refused(seed: int) -> list[Finding]:
    """Bounds that are none, missing values without a public constant, and tables that are none, are refused."""

    def column(text: str) -> Any:
        return lambda: Schema.parse_toml(f'[unit]\nname = "person"\n[columns.a]\n{text}')

    def table(kind: Any, values: Any) -> Any:
        return lambda: Schema((kind,), Unit("record")).encode({"a": values})

    number, word = Numeric("a", 0, 1), Categorical("a", ["x"], other=False)
    cases: dict[str, Any] = {
        "bounds in reverse": lambda: Numeric("a", 1, 0),
        "no bounds": lambda: Numeric("a", 0, float("inf")),
        "bounds of text": lambda: Numeric("a", "0", 1),  # type: ignore[arg-type]
        "a constant outside": lambda: Numeric("a", 0, 1, fill=2),
        "a shape of nothing": lambda: Numeric("a", 0, 1, shape=(0,)),
        "a target with a shape": lambda: Numeric("a", 0, 1, shape=(2,), target=True),
        "no categories": lambda: Categorical("a", []),
        "categories of text": lambda: Categorical("a", "xy"),
        "one category twice": lambda: Categorical("a", [1, "1"]),
        "a constant that is none": lambda: Categorical("a", ["x"], fill="y"),
        "one word for both": lambda: Boolean("a", "x", "x"),
        "a constant that is neither": lambda: Boolean("a", fill="x"),  # type: ignore[arg-type]
        "no name": lambda: Text(""),
        "no unit": lambda: Schema((number,), "person"),  # type: ignore[arg-type]
        "no name of a unit": lambda: Unit(""),
        "no columns": lambda: Schema((), Unit("record")),
        "no column": lambda: Schema(("a",), Unit("record")),  # type: ignore[arg-type]
        "a column twice": lambda: Schema((number, number), Unit("record")),
        "two targets": lambda: Schema((number, Boolean("b", target=True), Boolean("c", target=True)), Unit("record")),
        "only a target": lambda: Schema((Numeric("a", 0, 1, target=True),), Unit("record")),
        "ids as a feature": lambda: Schema((number, Numeric("id", 0, 1)), Unit("person", "id")),
        "two features of one name": lambda: Schema((Categorical("a", ["x"]), Numeric("a=x", 0, 1)), Unit("record")),
        "no kind": column("lower = 0"),
        "an unknown kind": column('kind = "date"'),
        "no lower bound": column('kind = "numeric"\nupper = 1'),
        "an unknown key": column('kind = "numeric"\nlower = 0\nupper = 1\nmaximum = 2'),
        "a target of text": column('kind = "numeric"\nlower = 0\nupper = 1\ntarget = "yes"'),
        "no table": lambda: Schema.parse_toml('[unit]\nname = "person"\n[columns]\na = 1'),
        "no TOML": lambda: Schema.parse_toml("="),
        "no unit in a file": lambda: Schema.parse_toml("[columns.a]\nkind = 'text'"),
        "no unit's name in a file": lambda: Schema.parse_toml("[unit]\ncolumn = 'id'"),
        "a name that is none": lambda: Schema.parse_toml("name = 1\n[unit]\nname = 'person'"),
        "a missing number": table(number, [0.5, None]),
        "a missing category": table(word, ["x", None]),
        "an unknown category": table(word, ["x", "y"]),
        "a missing truth": table(Boolean("a"), [True, None]),
        "neither true nor false": table(Boolean("a"), [True, "maybe"]),
        "numbers that are text": table(number, [0.5, "x"]),
        "numbers that are dates": table(number, np.array(["2020-01-01"], dtype="datetime64[D]")),
        "two dimensions": table(number, np.zeros((2, 2))),
        "categories of two dimensions": table(word, np.zeros((2, 2))),
        "arrays of another shape": table(Numeric("a", 0, 1, shape=(2,)), [[0, 1], [0]]),
        "arrays of text": table(Numeric("a", 0, 1, shape=(2,)), np.array([["a", "b"]])),
        "categories that are lists": table(word, [["x"]]),
        "one text": table(number, "abc"),
        "one number": table(number, np.float64(3)),
        "no such column": lambda: Schema((number,), Unit("record")).encode({"b": [1]}),
        "a list": lambda: Schema((number,), Unit("record")).encode([1, 2]),
        "text to encode": lambda: Schema((number, Text("t")), Unit("record")).encode({"a": [1], "t": ["x"]}),
        "columns of two lengths": lambda: Schema((number, Boolean("b")), Unit("record")).encode({"a": [1], "b": []}),
        **{f"a table without {name}": lambda name=name: _without(name) for name in _table()},  # ids included
        "an owner that is missing": lambda: SCHEMA.encode(_table() | {"id": [None, *IDS[1:]]}),
        "no such target": lambda: SCHEMA.predicting("nothing"),
        "a target that is left out": lambda: SCHEMA.predicting("member", without=["member"]),
        "arrays as a target": lambda: SCHEMA.predicting("picture"),
        "a class to decode": lambda: SCHEMA.predicting("member").decode_target([0.0]),
        "a share above 1": lambda: SCHEMA.encode(_table())[0].public_rows(1.5),
    }
    return [
        refused("schema: contradictions", {name: (work, SchemaError) for name, work in cases.items()}),
        refused("schema: columns", {"no such column": (lambda: SCHEMA["nothing"], KeyError)}),
    ]


SCENES = (
    Scene("schema: values", "schema", rows_are_encoded_alone),
    Scene("schema: outliers", "schema", outliers_move_nobody),
    Scene("schema: files", "schema", schemas_read_back),
    Scene("schema: refusals", "schema", contradictions_are_refused),
)
