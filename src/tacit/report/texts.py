"""In which language is a page? Its texts are in one catalogue, and a page is translated piece of text by piece of text.

English is the language of the source, so an English text is its own key. A key may have places, such as
``"any one {unit}"``: what stands there is looked up in turn. What is in no catalogue, such as a name, stays as it is,
and so does everything in an element with ``translate="no"``.
"""

from __future__ import annotations

import functools
import html
import html.parser
import importlib.resources
import json
import re

#: Attributes that people read or hear; those with data- are shown later.
SPOKEN = ("aria-label", "placeholder", "alt", "data-busy", "data-later")
#: Elements whose text is no language.
SILENT = frozenset({"style", "script", "code", "pre"})
#: A number by itself, as English writes it; not a version and not a part of a word.
_NUMBER = re.compile(r"(?<![\w.,])\d{1,3}(?:(?:,\d{3})+|\d*)(?:\.\d+)?(?:e-?\d+)?(?!\w|\.\d|,\d)")
#: The mark of percent with what stands between it and its number.
_PERCENT = re.compile(r"(?<=\d)[ \u202f]?%")
#: How a language writes the mark of decimals and that of thousands.
_MARKS = {"de": (",", "\u202f")}
_VOID = frozenset({"meta", "link", "br", "input", "img", "hr"})


class UnknownLanguage(ValueError):
    """A language that the catalogue does not have; the message lists those that it has."""


@functools.cache
def catalogue() -> dict[str, dict[str, str]]:
    """The texts of every language but English, by their English text."""
    source = importlib.resources.files("tacit.report") / "texts.json"
    found: dict[str, dict[str, str]] = json.loads(source.read_text(encoding="utf-8"))
    return found


def languages() -> tuple[str, ...]:
    """The languages that there are.

    >>> languages()
    ('en', 'de')
    """
    return ("en", *catalogue())


def check_language(language: str) -> str:
    """The language, or an error that lists those there are."""
    if language not in languages():
        raise UnknownLanguage(f"there is no language {language!r}; there are {', '.join(languages())}")
    return language


@functools.cache
def _templates(language: str) -> list[tuple[re.Pattern[str], str]]:
    found = []
    for key, text in catalogue()[language].items():
        if "{" in key:
            parts = re.split(r"\{(\w+)\}", key)
            # a number or a unit ends with its clause
            places = [
                f"(?P<{p}>{'[^;]+?' if p in ('n', 'unit') else '.+?'})" if i % 2 else re.escape(p)
                for i, p in enumerate(parts)
            ]
            found.append((re.compile("".join(places), re.DOTALL), text))
    # a list is taken apart before its members; of the rest the most particular first
    return sorted(found, key=lambda one: (";\\ then" not in one[0].pattern, -len(one[0].pattern)))


@functools.lru_cache(4096)
def say(text: str, language: str) -> str:
    """A text in a language; itself where the catalogue does not have it.

    >>> say("not stated", "de"), say("zero out one record", "de"), say("labsup-1", "de")
    ('nicht angegeben', 'ein Datensatz durch einen leeren ersetzt', 'labsup-1')
    """
    if language == "en":
        return text
    key = " ".join(text.split())
    known = catalogue()[language].get(key)
    if known is not None:
        return known
    for pattern, target in _templates(language):
        if (match := pattern.fullmatch(key)) is not None:
            return target.format(**{name: say(part, language) for name, part in match.groupdict().items()})
    return "; ".join(say(part, language) for part in key.split("; ")) if "; " in key else text


def numbers(text: str, language: str) -> str:
    """A text with its numbers as a language writes them.

    >>> numbers("at most 2.5% or one in 1,000,000 (tacit 0.2.0)", "de")
    'at most 2,5\u202f% or one in 1\u202f000\u202f000 (tacit 0.2.0)'
    """
    if language not in _MARKS:
        return text
    decimal, thousands = _MARKS[language]
    marks = str.maketrans({".": decimal, ",": thousands})
    return _PERCENT.sub("\u202f%", _NUMBER.sub(lambda found: found[0].translate(marks), text))


class _Translated(html.parser.HTMLParser):
    """A page read and written again, its texts in another language."""

    def __init__(self, language: str) -> None:
        super().__init__(convert_charrefs=False)
        self.language, self.out, self.text, self.still = language, [], "", []
        self.tags: list[str] = []

    out: list[str]
    still: list[int]

    def _flush(self) -> None:
        raw, self.text = self.text, ""
        body = raw.strip()
        if not body or self.still or (self.tags and self.tags[-1] in SILENT):
            self.out.append(raw)
            return
        plain = html.unescape(body)
        said = numbers(say(plain, self.language), self.language)
        lead, trail = raw[: len(raw) - len(raw.lstrip())], raw[len(raw.rstrip()) :]
        self.out.append(raw if said == plain else lead + html.escape(said) + trail)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._flush()
        written = self.get_starttag_text() or ""
        held = dict(attrs)
        for name in SPOKEN:
            if (spoken := held.get(name)) and (said := say(spoken, self.language)) != spoken:
                written = written.replace(f'{name}="{html.escape(spoken)}"', f'{name}="{html.escape(said)}"')
        if tag == "html":
            written = f'<html lang="{self.language}">'
        self.out.append(written)
        if tag not in _VOID:
            self.tags.append(tag)
            if held.get("translate") == "no":
                self.still.append(len(self.tags))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._flush()
        self.out.append(self.get_starttag_text() or "")

    def handle_endtag(self, tag: str) -> None:
        self._flush()
        self.out.append(f"</{tag}>")
        if self.still and self.still[-1] == len(self.tags):
            self.still.pop()
        if self.tags:
            self.tags.pop()

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_entityref(self, name: str) -> None:
        self.text += f"&{name};"

    def handle_charref(self, name: str) -> None:
        self.text += f"&#{name};"

    def handle_decl(self, decl: str) -> None:
        self.out.append(f"<!{decl}>")


def translated(page: str, language: str) -> str:
    """A page in another language; the same page in English.

    >>> translated('<p>not stated <b translate="no">not stated</b></p>', "de")
    '<p>nicht angegeben <b translate="no">not stated</b></p>'
    """
    if check_language(language) == "en":
        return page
    reader = _Translated(language)
    reader.feed(page)
    reader.close()
    reader._flush()
    return "".join(reader.out)
