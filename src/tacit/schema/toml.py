"""How is a schema kept in a file that a person can read and review?

As TOML: one table for the unit of privacy and one for each column. Reading is strict: an unknown key is a typing
mistake, and a mistake in a bound is a mistake in the guarantee. Writing gives text that reads back to the same value.
"""

from __future__ import annotations

import tomllib
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from tacit.schema.columns import KINDS, AnyColumn, Date, SchemaError, Unit


def _table(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise SchemaError(f"{where} must be a table, not {value!r}")
    return value


def _refuse_unknown(found: dict[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in found:
        if key not in known:
            raise SchemaError(f"{where}: unknown key {key!r}; the keys are {', '.join(known)}")


def _column(name: str, entry: dict[str, Any]) -> AnyColumn:
    where = f"column {name!r}"
    kind = entry.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        given = "kind is missing" if kind is None else f"kind {kind!r} is not known"
        raise SchemaError(f"{where}: {given}; write kind = one of {', '.join(KINDS)}")
    cls = KINDS[kind]
    known = tuple(field.name for field in fields(cls) if field.name != "name")
    _refuse_unknown(entry, ("kind", *known), f"{where} ({kind})")
    needed = [f.name for f in fields(cls) if f.name != "name" and f.default is MISSING and f.name not in entry]
    if needed:
        see = ". See: tacit explain bounds-missing" if needed[0] in ("lower", "upper") else ""
        raise SchemaError(f"{where} ({kind}): {needed[0]} is missing; add it to [columns.{_key(name)}]{see}")
    for key, wanted in (("target", bool), ("other", bool), ("description", str)):
        if key in entry and not isinstance(entry[key], wanted):
            raise SchemaError(f"{where}: {key} must be {wanted.__name__}, not {entry[key]!r}")
    return cls(name, **{key: value for key, value in entry.items() if key != "kind"})


def parse(text: str) -> tuple[tuple[AnyColumn, ...], Unit, str, str]:
    """Columns, unit, name and description from TOML text."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SchemaError(f"not valid TOML: {error}") from error
    _refuse_unknown(document, ("name", "description", "unit", "columns"), "the schema")
    if "unit" not in document:
        raise SchemaError(
            "the schema does not say whom it protects; add [unit] with name = 'person' (or 'household', ...)"
        )
    unit = _table(document["unit"], "unit")
    _refuse_unknown(unit, ("name", "column"), "unit")
    if "name" not in unit:
        raise SchemaError("unit: name is missing; write name = 'person' (or 'household', ...) under [unit]")
    columns = _table(document.get("columns", {}), "columns")
    for key in ("name", "description"):
        if not isinstance(document.get(key, ""), str):
            raise SchemaError(f"the schema's {key} must be text, not {document[key]!r}")
    parsed = tuple(_column(name, _table(entry, f"column {name!r}")) for name, entry in columns.items())
    return parsed, Unit(**unit), document.get("name", ""), document.get("description", "")


def read(path: str | Path) -> str:
    """The text of a schema file, with an error that names the file."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")  # some editors begin a file with a mark
    except OSError as error:
        raise SchemaError(f"cannot read the schema {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SchemaError(f"cannot read the schema {path}: it is not UTF-8 text") from error


def _string(value: str) -> str:
    escapes = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r", "\b": "\\b", "\f": "\\f"}
    out = []
    for character in value:
        if character in escapes:
            out.append(escapes[character])
        elif ord(character) < 0x20 or ord(character) == 0x7F:
            out.append(f"\\u{ord(character):04X}")
        else:
            out.append(character)
    return '"' + "".join(out) + '"'


def _key(name: str) -> str:
    bare = name.isascii() and name.replace("_", "a").replace("-", "a").isalnum()
    return name if bare else _string(name)


def toml_value(value: Any) -> str:
    """A value as TOML writes it.

    >>> toml_value([True, 0.5, "a"])
    '[true, 0.5, "a"]'
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        # repr is the shortest text that reads back to the same number; TOML wants a point or an exponent.
        return repr(float(value))
    if isinstance(value, str):
        return _string(value)
    return "[" + ", ".join(toml_value(item) for item in value) + "]"


def write(columns: tuple[AnyColumn, ...], unit: Unit, name: str, description: str) -> str:
    """TOML text that :func:`parse` reads back to the same values."""
    lines = [f"{key} = {_string(value)}" for key, value in (("name", name), ("description", description)) if value]
    lines += ["", "[unit]", f"name = {_string(unit.name)}"]
    if unit.column is not None:
        lines.append(f"column = {_string(unit.column)}")
    for column in columns:
        lines += ["", f"[columns.{_key(column.name)}]", f"kind = {_string(column.kind)}"]
        for field in fields(column):
            value = getattr(column, field.name)
            if field.name != "name" and (field.default is MISSING or value != field.default):
                if isinstance(column, Date) and field.name in ("lower", "upper", "fill"):
                    lines.append(f"{field.name} = {column.shown(value)}")
                else:
                    lines.append(f"{field.name} = {toml_value(value)}")
    return "\n".join(lines).lstrip("\n") + "\n"
