"""How is a schema written without a look at the data? In a form that asks for every bound and category."""

from __future__ import annotations

import html
import shlex
from collections.abc import Mapping
from typing import Any

from tacit.schema import Boolean, Categorical, Numeric, Schema, SchemaError, Unit
from tacit.studio.fields import FieldError, pointed

#: The fields of a column, in the order of the form.
PARTS = ("name", "kind", "lower", "upper", "categories", "missing", "target", "why")
#: The most columns of one form.
MOST = 500


def _list(values: Mapping[str, Any], name: str) -> list[str]:
    found = values.get(f"{name}[]", [])
    if not isinstance(found, list) or len(found) > MOST:
        raise FieldError(f"Columns: a list of at most {MOST}")
    return [str(one).strip() for one in found]


def _number(column: str, what: str, text: str, language: str) -> float:
    if not text:
        raise FieldError(f"column {column!r}: {what} is missing; take it from the code book, never from the rows")
    try:
        return float(pointed(f"column {column!r}: {what}", "".join(text.split()), language))
    except FieldError:
        raise
    except ValueError:
        raise FieldError(f"column {column!r}: {what} is a number, not {text[:40]!r}") from None


def _column(row: dict[str, str], language: str) -> Any:
    name, why, target = row["name"], row["why"], row["target"] == "yes"
    missing = row["missing"] or None
    match row["kind"]:
        case "numeric":
            fill = None if missing is None else _number(name, "the value for missing ones", missing, language)
            low = _number(name, "the lower bound", row["lower"], language)
            high = _number(name, "the upper bound", row["upper"], language)
            return Numeric(name, low, high, fill=fill, target=target, description=why)
        case "categorical":
            labels = [part.strip() for part in row["categories"].split(",") if part.strip()]
            if not labels:
                raise FieldError(f"column {name!r}: its categories are missing; list them, with commas between")
            return Categorical(name, tuple(labels), fill=missing, target=target, description=why)
        case "boolean":
            labels = [part.strip() for part in row["categories"].split(",") if part.strip()] or ["false", "true"]
            if len(labels) != 2:
                raise FieldError(f"column {name!r}: two words, that of no first, such as no, yes")
            if missing not in (None, *labels):
                raise FieldError(f"column {name!r}: the value for missing ones is {labels[0]} or {labels[1]}")
            fill = None if missing is None else missing == labels[1]
            return Boolean(name, true=labels[1], false=labels[0], fill=fill, target=target, description=why)
    raise FieldError(f"column {name!r}: its kind is numeric, categorical or boolean")


def make(values: Mapping[str, Any]) -> Schema:
    """The schema that a form describes."""
    lists = {part: _list(values, part) for part in PARTS}
    if len({len(found) for found in lists.values()}) != 1:
        raise FieldError("Columns: every column needs all of its fields")
    rows = [dict(zip(PARTS, row, strict=True)) for row in zip(*lists.values(), strict=True)]
    rows = [row for row in rows if row["name"]]
    unit, ids = str(values.get("unit") or "").strip(), str(values.get("ids") or "").strip()
    if not unit:
        raise FieldError("Unit: whom does the guarantee protect? Such as person or household")
    try:
        return Schema(
            tuple(_column(row, str(values.get("lang"))) for row in rows),
            Unit(unit, ids or None),
            str(values.get("schema_name") or ""),
        )
    except SchemaError as error:
        raise FieldError(str(error)) from None


def toml(values: Mapping[str, Any]) -> dict[str, Any]:
    """The schema as TOML, and the command that uses it."""
    if not any(_list(values, "name")):
        return {"html": "<p>Name a first column.</p>"}
    schema = make(values)
    file = str(values.get("file") or "data.csv").strip()
    goal = "" if schema.target is not None else " --target COLUMN"
    rows = f" --max-rows {shlex.quote(str(values.get('max_rows') or '1'))}" if schema.unit.column is not None else ""
    command = (
        f"tacit train {shlex.quote(file)} --schema schema.toml{goal}{rows} --epsilon 1 --delta 1e-6 --epochs 20 "
        "--batch 1024 --model linear"
    )
    text = (
        f"<p>Save this as <code>schema.toml</code>:</p><pre>{html.escape(schema.to_toml())}</pre>"
        f"<p>Then run:</p><pre>{html.escape(command)}</pre>"
    )
    return {"html": text, "toml": schema.to_toml(), "command": command}
