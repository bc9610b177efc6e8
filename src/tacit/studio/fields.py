"""How does a form become values, and a value a field? Each has a name, a range and a sentence when it is wrong."""

from __future__ import annotations

import dataclasses
import html
import math
from collections.abc import Mapping, Sequence
from typing import Any


class FieldError(ValueError):
    """What was typed into a field is not what the field takes; the message names the field."""


@dataclasses.dataclass(frozen=True)
class NumberField:
    """A number with its range. ``log`` gives its slider a logarithmic scale."""

    name: str
    label: str
    default: str
    low: float
    high: float
    whole: bool = False
    log: bool = True
    help: str = ""

    def read(self, values: Mapping[str, Any]) -> float:
        """The number that was typed, or the default."""
        typed = str(values.get(self.name, self.default)).strip().replace(" ", "") or self.default
        try:
            value = float(typed)
        except ValueError:
            raise FieldError(f"{self.label}: a number, not {typed[:40]!r}") from None
        if not self.low <= value <= self.high:
            raise FieldError(f"{self.label}: from {self.low:g} to {self.high:g}, not {typed[:40]}")
        if self.whole and not value.is_integer():
            raise FieldError(f"{self.label}: a whole number, not {typed[:40]}")
        return value

    def draw(self, values: Mapping[str, Any]) -> str:
        """A field to type into with a slider beside it."""
        shown = html.escape(str(values.get(self.name, self.default)))
        low, high = (math.log10(self.low), math.log10(self.high)) if self.log else (self.low, self.high)
        told = f'<small id="{self.name}-h">{html.escape(self.help)}</small>' if self.help else ""
        by = f' aria-describedby="{self.name}-h"' if self.help else ""
        return (
            f'<div class="field"><label for="{self.name}">{html.escape(self.label)}</label>'
            f'<input id="{self.name}" name="{self.name}" value="{shown}" inputmode="decimal" autocomplete="off"{by}>'
            f'<input type="range" data-for="{self.name}" data-log="{int(self.log)}" data-whole="{int(self.whole)}" '
            f'min="{low:g}" max="{high:g}" step="any" aria-label="{html.escape(self.label)}">{told}</div>'
        )


@dataclasses.dataclass(frozen=True)
class ChoiceField:
    """One of some words."""

    name: str
    label: str
    options: Sequence[str]
    help: str = ""

    def read(self, values: Mapping[str, Any]) -> str:
        """The chosen word, or the first."""
        chosen = str(values.get(self.name) or self.options[0])
        if chosen not in self.options:
            raise FieldError(f"{self.label}: one of {', '.join(self.options)}, not {chosen[:40]!r}")
        return chosen

    def draw(self, values: Mapping[str, Any], *, still: bool = False) -> str:
        """A list to choose from. ``still``: its words are names."""
        chosen = str(values.get(self.name) or (self.options[0] if self.options else ""))
        options = "".join(
            f'<option value="{html.escape(one)}"{" selected" if one == chosen else ""}>{html.escape(one)}</option>'
            for one in self.options
        )
        mark = ' translate="no"' if still else ""
        return (
            f'<div class="field"><label for="{self.name}">{html.escape(self.label)}</label>'
            f'<select id="{self.name}" name="{self.name}"{mark}>{options}</select></div>'
        )


@dataclasses.dataclass(frozen=True)
class TextField:
    """A short text."""

    name: str
    label: str
    default: str = ""
    most: int = 60

    def read(self, values: Mapping[str, Any]) -> str:
        """What was typed, or the default."""
        typed = str(values.get(self.name, self.default)).strip() or self.default
        if len(typed) > self.most or not typed.isprintable():
            raise FieldError(f"{self.label}: at most {self.most} characters that can be printed")
        return typed

    def draw(self, values: Mapping[str, Any]) -> str:
        """A field to type into."""
        shown = html.escape(str(values.get(self.name, self.default)))
        return (
            f'<div class="field"><label for="{self.name}">{html.escape(self.label)}</label>'
            f'<input id="{self.name}" name="{self.name}" value="{shown}" maxlength="{self.most}" '
            f'autocomplete="off"></div>'
        )


def alert(message: str) -> str:
    """What went wrong, in words."""
    return f'<p class="warn" role="alert">{html.escape(message)}</p>'
