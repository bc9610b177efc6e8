"""How does a record become a prompt, and a class become a word? Templates, verbalisers, labelled texts.

A template is text with ``{text}`` where the record goes; for a masked language model it also has ``{mask}``. A
verbaliser gives each class the word that the model would say for it. Both are public: they are written by a person.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tacit.prompts.errors import PromptError

#: A labelled text: what is said, and its class by name.
Example = tuple[str, str]


@dataclasses.dataclass(frozen=True)
class Template:
    """How a text is asked about.

    ``body`` is filled for the query and for each demonstration; ``instruction`` stands once in front, and ``separator``
    between the parts. A label word is joined by one space, unless the body ends in white space.

    >>> ask = Template("Review: {text}\\nSentiment:", instruction="Is the review positive or negative?")
    >>> print(ask.query("a fine film"))
    Review: a fine film
    Sentiment:
    >>> ask.prefix([("dull", "bad")])
    'Is the review positive or negative?\\n\\nReview: dull\\nSentiment: bad\\n\\n'
    """

    body: str
    instruction: str = ""
    separator: str = "\n\n"

    def __post_init__(self) -> None:
        if self.body.count("{text}") != 1:
            raise PromptError(f"a template needs {{text}} exactly once, where the record goes: {self.body!r} has not")
        if self.body.count("{mask}") > 1:
            raise PromptError(f"a template has {{mask}} at most once: {self.body!r}")

    def for_labels(self) -> None:
        """Refuse a template that leaves no place for a label; one that only precedes text to learn needs none."""
        if not self.masked and self.body.endswith("{text}"):
            raise PromptError(
                "a template must go on after {text}, so that the next word is the label; for instance "
                "'{text}\\nSentiment:'"
            )

    @staticmethod
    def of(given: str | Template) -> Template:
        """A template from itself or from its body.

        >>> Template.of("{text} It was {mask}.").masked
        True
        """
        return given if isinstance(given, Template) else Template(given)

    @property
    def masked(self) -> bool:
        """Whether the label stands at ``{mask}`` inside the text rather than after it."""
        return "{mask}" in self.body

    @property
    def gap(self) -> str:
        """What stands between a prompt and its label word."""
        return "" if self.body[-1:].isspace() else " "

    def query(self, text: str, mask: str = "") -> str:
        """The body filled with a text. Braces in the text stay as they are."""
        self.for_labels()
        before, _, after = self.body.partition("{text}")
        return before.replace("{mask}", mask) + text + after.replace("{mask}", mask)

    def prefix(self, demonstrations: Iterable[tuple[str, str]] = ()) -> str:
        """What stands before the query: the instruction and ``(text, label word)`` pairs, each with its separator."""
        parts = [self.instruction] if self.instruction else []
        for text, word in demonstrations:
            parts.append(self.query(text, word) if self.masked else self.query(text) + self.gap + word)
        return "".join(part + self.separator for part in parts)


@dataclasses.dataclass(frozen=True)
class Verbalizer:
    """The word of each class, in the order of the classes.

    A word must be one token of the model, because its probability is read off one place. With ``first_token`` a word of
    several tokens is told by its first one, as long as no two classes share it.

    >>> words = Verbalizer({"0": "terrible", "1": "great"})
    >>> words.classes, words.number("1"), words.word("0")
    (('0', '1'), 1, 'terrible')
    """

    words: Mapping[str, str]
    first_token: bool = False

    def __post_init__(self) -> None:
        words = {str(label): str(word).strip() for label, word in dict(self.words).items()}
        if len(words) < 2:
            raise PromptError("a verbaliser needs a word for each of at least two classes")
        if not all(words.values()):
            raise PromptError("a verbaliser has an empty word")
        if len(set(words.values())) < len(words):
            raise PromptError(f"two classes have the same word: {', '.join(words.values())}")
        object.__setattr__(self, "words", words)

    @staticmethod
    def of(given: Verbalizer | Mapping[Any, str] | Sequence[str]) -> Verbalizer:
        """A verbaliser from itself, a mapping, or a list of words that are their own classes.

        >>> Verbalizer.of(["negative", "positive"]).classes
        ('negative', 'positive')
        """
        if isinstance(given, Verbalizer):
            return given
        if isinstance(given, Mapping):
            return Verbalizer({str(k): v for k, v in given.items()})
        return Verbalizer({word: word for word in given})

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        return tuple(self.words)

    def word(self, label: str | int) -> str:
        """The word of a class, by its name or number."""
        return self.words[self.classes[self.number(label)]]

    def number(self, label: Any) -> int:
        """The number of a class: by its name, or, where no class is so named, by the number itself."""
        if (name := str(label)) in self.words:
            return self.classes.index(name)
        whole = getattr(label, "item", lambda: label)()
        if isinstance(whole, int) and not isinstance(whole, bool) and 0 <= whole < len(self.words):
            return whole
        raise PromptError(
            f"a record has a label that no class of the verbaliser has; the classes are {', '.join(self.classes)}. "
            "(This message is about private data where the records are private.)"
        )

    def demonstrations(self, examples: Iterable[Example]) -> list[tuple[str, str]]:
        """Labelled texts as pairs of text and label word."""
        return [(text, self.word(label)) for text, label in examples]

    def tokens(self, tokenizer: Any, template: Template) -> list[int]:
        """The token of each class's word, as it stands after (or inside) the template.

        >>> class Letters:  # a tokenizer of single letters
        ...     unk_token_id = None
        ...     def __call__(self, text, add_special_tokens=False):
        ...         return {"input_ids": [ord(c) for c in text]}
        ...     def convert_ids_to_tokens(self, ids):
        ...         return [chr(i) for i in ids]
        >>> Verbalizer({"no": "n", "yes": "y"}).tokens(Letters(), Template("{text}\\n"))
        [110, 121]
        >>> Verbalizer({"no": "nay", "yes": "yes"}).tokens(Letters(), Template("{text}\\n"))
        Traceback (most recent call last):
        ...
        tacit.prompts.errors.PromptError: label words must be one token of this model: 'nay' is n·a·y; 'yes' is y·e·s...
        """
        template.for_labels()
        found: list[int] = []
        trouble: list[str] = []
        for word in self.words.values():
            ids = _continuation(tokenizer, template, word)
            if not ids or ids[0] == getattr(tokenizer, "unk_token_id", None):
                raise PromptError(f"the model's vocabulary has no token for the label word {word!r}; choose another")
            if len(ids) > 1:
                trouble.append(f"{word!r} is {'·'.join(map(str, tokenizer.convert_ids_to_tokens(ids)))}")
            found.append(int(ids[0]))
        if trouble and not self.first_token:
            raise PromptError(
                f"label words must be one token of this model: {'; '.join(trouble)}. Choose other words, or "
                "Verbalizer(words, first_token=True) to tell classes by the first token of each"
            )
        if len(set(found)) < len(found):
            raise PromptError("two label words begin with the same token, so the model cannot tell them apart")
        return found


def _continuation(tokenizer: Any, template: Template, word: str) -> list[int]:
    """The tokens of a word where the template puts it.

    Tokenizers differ in what they make of a leading space; what the word adds to the text before it is what counts.
    """

    def ids(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    if template.masked:
        before = template.body.partition("{mask}")[0]
        return ids(" " + word if before[-1:].isspace() else word)
    anchor = template.body.rpartition("{text}")[2]
    head, whole = ids(anchor), ids(anchor + template.gap + word)
    if whole[: len(head)] == head:
        return whole[len(head) :]
    return ids(template.gap + word)


def examples(data: Any, verbalizer: Verbalizer) -> list[Example]:
    """Labelled texts from pairs, or from a frame with the columns ``text`` and ``label``; labels become class names.

    >>> words = Verbalizer.of(["bad", "good"])
    >>> examples([("fine", 1), ("dull", "bad")], words)
    [('fine', 'good'), ('dull', 'bad')]
    """
    found = []
    for text, label in _pairs(data):
        if not isinstance(text, str):
            raise PromptError(f"a record must be a text and a label, not {type(text).__name__}")
        found.append((text, verbalizer.classes[verbalizer.number(label)]))
    if not found:
        raise PromptError("the data are empty")
    return found


def texts(data: Any) -> list[str]:
    """Texts alone: a list of strings, or the column ``text`` of a frame.

    >>> texts(["a", "b"])
    ['a', 'b']
    """
    found = list(data["text"]) if hasattr(data, "columns") else list(data)
    if not found:
        raise PromptError("the data are empty")
    if not all(isinstance(text, str) for text in found):
        raise PromptError("the data must be texts")
    return found


def _pairs(data: Any) -> Iterator[tuple[Any, Any]]:
    if hasattr(data, "columns"):
        names = list(data.columns)
        missing = [name for name in ("text", "label") if name not in names]
        if missing:
            raise PromptError(f"the table needs the columns text and label; it has {', '.join(map(str, names))}")
        yield from zip(list(data["text"]), list(data["label"]), strict=True)
        return
    for record in data:
        if isinstance(record, str) or not isinstance(record, Sequence) or len(record) != 2:
            raise PromptError("each record must be a pair (text, label)")
        yield record[0], record[1]
