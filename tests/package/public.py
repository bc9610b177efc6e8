"""Every public name of tacit, and what its docstring says: ``python -m tests.package.public [ROOM ...]``.

Public is what a room's ``__all__`` names, the names of ``tacit`` itself, and the methods and properties of public
classes that tacit's own code defines.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import functools
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
MODULES = (
    "tacit",
    "tacit.accounting",
    "tacit.noise",
    "tacit.schema",
    "tacit.ledger",
    "tacit.cluster",
    "tacit.datasets",
    "tacit.sgd",
    "tacit.linear_model",
    "tacit.additive",
    "tacit.pate",
    "tacit.prompts",
    "tacit.tuning",
    "tacit.audit",
    "tacit.opacus",
    "tacit.integrations.transformers",
    "tacit.integrations.lightning",
    "tacit.integrations.trackers",
    "tacit.report",
    "tacit.selftest",
)
SECTIONS = ("Args", "Attributes", "Returns", "Yields", "Raises", "Guarantee", "Example", "Examples", "Note", "Warns")
#: Section names that end the one before.
HEAD = re.compile(rf"^({'|'.join(SECTIONS)}):\s*$", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Public:
    """One public class, function, method or property."""

    name: str
    thing: Any
    kind: str
    doc: str

    def section(self, *names: str) -> str:
        """The indented text under the first of these headings."""
        parts = HEAD.split(self.doc)
        found = dict(zip(parts[1::2], parts[2::2], strict=True))
        return "\n".join(found.get(name, "") for name in names)

    def described(self) -> set[str]:
        """The parameters that have a description."""
        text = textwrap.dedent(self.section("Args", "Attributes").strip("\n"))
        lines = re.findall(r"^(\S.*?)(?: \([^)]*\))?: +\S", text, re.MULTILINE)
        return {name.strip("`* ") for line in lines for name in line.split(",")}

    def parameters(self) -> list[str]:
        """What a caller may give it."""
        call = self.thing
        if self.kind == "class":
            if issubclass(call, BaseException) or call.__init__ is object.__init__:
                return []
            if not str(getattr(call.__init__, "__module__", "tacit")).startswith("tacit"):
                return []
        try:
            found = inspect.signature(call)
        except (TypeError, ValueError):
            return []
        return [name for name in found.parameters if name not in ("self", "cls") and not name.startswith("_")]

    def raised(self) -> set[str]:
        """The exceptions that its own body raises by name."""
        calls = [self.thing]
        if self.kind == "class":
            calls = [vars(self.thing).get(name) for name in ("__init__", "__post_init__")]
        return {name for call in calls if call is not None for name in _raised(call)}

    def gaps(self) -> list[str]:
        """What its docstring does not say."""
        if not self.doc:
            return ["has no docstring"]
        found = [f"{name} is not described" for name in self.parameters() if name not in self.described()]
        raises = self.section("Raises")
        found += [f"Raises: leaves out {name}" for name in sorted(self.raised()) if name not in raises]
        if self.kind == "function" or (self.kind == "method" and self.parameters()):
            back = _returns(self.thing)
            if back not in (None, "None", "NoReturn") and not self.section("Returns", "Yields").strip():
                found.append("Returns: is missing")
        if self.kind == "function" or (self.kind == "class" and not issubclass(self.thing, BaseException)):
            files = re.findall(r"\bexamples/\w+\.(?:py|ipynb)", self.doc)
            if ">>>" not in self.doc and not any((ROOT / file).exists() for file in files):
                found.append("has no example")
        return found


def _returns(call: Any) -> Any:
    back = inspect.signature(call).return_annotation
    return getattr(back, "__name__", back) if back is not inspect.Signature.empty else None


def _raised(call: Any) -> Iterator[str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(call))))
    except (OSError, TypeError, SyntaxError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and node.exc is not None:
            what = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            name = what.attr if isinstance(what, ast.Attribute) else getattr(what, "id", "")
            if name[:1].isupper() and name not in ("AssertionError", "NotImplementedError", "AttributeError"):
                yield name


def _names(module: str) -> list[str]:
    if module == "tacit":
        return ["run", "Ledger", "Schema"]
    return list(importlib.import_module(module).__all__)


def _ours(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "")).startswith("tacit")


@functools.cache
def public() -> tuple[Public, ...]:
    """Everything public, each thing once, under the first name it has."""
    return tuple(_public())


def _public() -> Iterator[Public]:
    seen: set[int] = set()
    for module in MODULES:
        home = importlib.import_module(module)
        for name in _names(module):
            thing = getattr(home, name)
            if id(thing) in seen or inspect.ismodule(thing) or not callable(thing) or not _ours(thing):
                continue
            seen.add(id(thing))
            kind = "class" if inspect.isclass(thing) else "function"
            doc = vars(thing).get("__doc__") if kind == "class" else thing.__doc__
            if kind == "class" and dataclasses.is_dataclass(thing) and (doc or "").startswith(f"{thing.__name__}("):
                doc = ""  # the one that dataclasses make up
            yield Public(f"{module}.{name}", thing, kind, inspect.cleandoc(doc or ""))
            if kind == "class":
                yield from _members(f"{module}.{name}", thing, seen)


def _members(owner: str, cls: type, seen: set[int]) -> Iterator[Public]:
    for base in cls.__mro__:
        if not _ours(base) or base.__name__ in vars(builtins):
            continue
        for name, member in vars(base).items():
            inner = member.__func__ if isinstance(member, classmethod | staticmethod) else member
            if isinstance(member, property):
                inner = member.fget
            elif isinstance(member, functools.cached_property):
                inner = member.func
            if name.startswith("_") or not inspect.isfunction(inner) or id(inner) in seen:
                continue
            seen.add(id(inner))
            kind = (
                "property" if inner is not member and not isinstance(member, classmethod | staticmethod) else "method"
            )
            doc = inspect.getdoc(getattr(cls, name, None)) if kind == "method" else inner.__doc__
            yield Public(f"{owner}.{name}", inner, kind, inspect.cleandoc(doc or ""))


if __name__ == "__main__":
    rooms, parameters, missing, short = sys.argv[1:], 0, 0, 0
    for item in public():
        if rooms and not any(item.name.startswith(f"tacit.{room}.") for room in rooms):
            continue
        gaps = item.gaps()
        parameters += len(item.parameters())
        missing += sum(gap.endswith("is not described") for gap in gaps)
        short += bool(gaps)
        if gaps:
            print(
                f"{item.name} ({Path(inspect.getsourcefile(inspect.unwrap(item.thing)) or '').name}): {'; '.join(gaps)}"
            )
    print(f"{parameters - missing} of {parameters} parameters described; {short} names with gaps")
