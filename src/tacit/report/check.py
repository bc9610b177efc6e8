"""Is this a privacy card? A validator for the part of JSON Schema that ``privacy.schema.json`` uses.

The schema is published inside the package, so that others can validate cards with any JSON Schema library. Reading a
card must not need such a library, and its errors have to name the key.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
import re
from collections.abc import Iterator
from typing import Any

_KINDS: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "null": (type(None),),
}
#: The words of JSON Schema that are understood here; a schema with any other would be checked in part only.
_WORDS = {
    "$schema", "$id", "$defs", "$ref", "title", "description", "type", "properties", "required",
    "additionalProperties", "items", "enum", "const", "minimum", "maximum", "pattern", "anyOf",
}  # fmt: skip


@functools.cache
def schema() -> dict[str, Any]:
    """The published JSON schema of a privacy card.

    Returns:
        The schema as a dictionary, for any JSON Schema library.

    Example:
        >>> schema()["title"]
        'tacit privacy card'
    """
    source = importlib.resources.files("tacit.report") / "privacy.schema.json"
    found: dict[str, Any] = json.loads(source.read_text(encoding="utf-8"))
    return found


def problems(document: Any, rules: dict[str, Any] | None = None) -> list[str]:
    """Everywhere that ``document`` breaks the schema, each with its key; an empty list where it does not.

    >>> problems({"a": 1}, {"type": "object", "properties": {"a": {"type": "string"}}})
    ['a: is a number, not a string']
    """
    whole = schema() if rules is None else rules
    return list(_walk(document, whole, whole, ""))


def _walk(value: Any, rules: Any, whole: dict[str, Any], path: str) -> list[str]:
    unknown = set(rules) - _WORDS
    if unknown:
        raise ValueError(f"the schema uses {sorted(unknown)}, which this validator does not know")
    if "$ref" in rules:
        target: Any = whole
        for part in rules["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        return _walk(value, target, whole, path)
    if "anyOf" in rules:
        tries = [_walk(value, choice, whole, path) for choice in rules["anyOf"]]
        return [] if any(not found for found in tries) else min(tries, key=len)
    if "type" in rules:
        wanted = [rules["type"]] if isinstance(rules["type"], str) else rules["type"]
        if not any(_is(value, kind) for kind in wanted):
            return [f"{path or 'the card'}: is a {_kind(value)}, not a {' or '.join(wanted)}"]
    found = [f"{path or 'the card'}: {problem}" for problem in _alone(value, rules)]
    if isinstance(value, dict):
        found += _object(value, rules, whole, path)
    if isinstance(value, list) and "items" in rules:
        for i, item in enumerate(value):
            found += _walk(item, rules["items"], whole, f"{path}[{i}]")
    return found


def _alone(value: Any, rules: Any) -> Iterator[str]:
    """What is wrong with a value whatever is inside it."""
    if "const" in rules and value != rules["const"]:
        yield f"must be {rules['const']!r}, not {value!r}"
    if "enum" in rules and value not in rules["enum"]:
        yield f"must be one of {rules['enum']}, not {value!r}"
    if _is(value, "number"):
        if "minimum" in rules and value < rules["minimum"]:
            yield f"{value} is below {rules['minimum']}"
        if "maximum" in rules and value > rules["maximum"]:
            yield f"{value} is above {rules['maximum']}"
    if isinstance(value, str) and "pattern" in rules and not re.search(rules["pattern"], value):
        yield f"{value!r} does not match {rules['pattern']}"


def _object(value: dict[str, Any], rules: Any, whole: dict[str, Any], path: str) -> list[str]:
    found = [f"{path or 'the card'}: {name!r} is missing" for name in rules.get("required", ()) if name not in value]
    known = rules.get("properties", {})
    others = rules.get("additionalProperties", True)
    for name, inner in value.items():
        place = f"{path}.{name}" if path else name
        if name in known:
            found += _walk(inner, known[name], whole, place)
        elif others is False:
            found.append(f"{place}: unknown key")
        elif isinstance(others, dict):
            found += _walk(inner, others, whole, place)
    return found


def _is(value: Any, kind: str) -> bool:
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _KINDS[kind]) and (kind == "boolean" or not isinstance(value, bool))


def _kind(value: Any) -> str:
    return next((kind for kind in ("boolean", "null", "number", "string", "array", "object") if _is(value, kind)), "?")
