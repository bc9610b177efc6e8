"""How does a form become values, and a value a field? Each has a name, a range and a sentence when it is wrong."""

from __future__ import annotations

import dataclasses
import html
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tacit.report.texts import languages


class FieldError(ValueError):
    """What was typed into a field is not what the field takes; the message names the field.

    Args:
        message: The sentence, which begins with the label.
        field: The name of the field in the form, if it is one field's.
    """

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


#: Thousands as English writes them.
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?")
#: And as German does; no such number begins with 0.
_DOTTED = re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+(,\d*)?")


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
        typed = "".join(str(values.get(self.name, self.default)).split()) or self.default
        try:
            value = float(pointed(self.label, typed, str(values.get("lang")), self.name))
        except FieldError:
            raise
        except ValueError:
            raise FieldError(f"{self.label}: a number, not {typed[:40]!r}", self.name) from None
        if not self.low <= value <= self.high:
            low, high = (f"{end:,.0f}" if end >= 1000 else f"{end:g}" for end in (self.low, self.high))
            raise FieldError(f"{self.label}: from {low} to {high}, not {typed[:40]}", self.name)
        if self.whole and not value.is_integer():
            raise FieldError(f"{self.label}: a whole number, not {typed[:40]}", self.name)
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


def pointed(label: str, typed: str, language: str, field: str = "") -> str:
    """A number as a program reads it. A comma is a decimal mark in German, and in English one of thousands.

    A dot is one of thousands in German where nothing else fits, and of decimals where no thousands do. What can be read
    both ways, such as 1.000, is refused.

    >>> [pointed("", typed, "de") for typed in ("1,5", "1.5", "0.125", "1.000,5", "1.000.000")]
    ['1.5', '1.5', '0.125', '1000.5', '1000000']
    >>> pointed("", "60,000", "en"), pointed("", "1,5", "en")
    ('60000', '1,5')
    """
    if language == "de":
        if _DOTTED.fullmatch(typed):
            if typed.count(".") == 1 and "," not in typed:
                raise FieldError(
                    f"{label}: {typed[:40]} can be read in two ways; write thousands without a dot, and decimals with "
                    "a comma",
                    field,
                )
            typed = typed.replace(".", "")
        return typed.replace(",", ".")
    return typed.replace(",", "") if _THOUSANDS.fullmatch(typed) else typed


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
            raise FieldError(f"{self.label}: one of {', '.join(self.options)}, not {chosen[:40]!r}", self.name)
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
            raise FieldError(f"{self.label}: at most {self.most} characters that can be printed", self.name)
        return typed

    def draw(self, values: Mapping[str, Any]) -> str:
        """A field to type into."""
        shown = html.escape(str(values.get(self.name, self.default)))
        return (
            f'<div class="field"><label for="{self.name}">{html.escape(self.label)}</label>'
            f'<input id="{self.name}" name="{self.name}" value="{shown}" maxlength="{self.most}" '
            f'autocomplete="off"></div>'
        )


def kept(values: Mapping[str, Any]) -> str:
    """What an address says for the next page to be in the language of this one.

    >>> kept({"lang": "de"}), kept({"lang": "en"}), kept({"lang": "<b>"})
    ('?lang=de', '', '')
    """
    language = str(values.get("lang"))
    return f"?lang={language}" if language in languages()[1:] else ""


def alert(message: str) -> str:
    """What went wrong, in words."""
    return f'<p class="warn" role="alert">{html.escape(message)}</p>'
