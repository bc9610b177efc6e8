"""How does a record become a prompt, and a class become a word? Templates, verbalisers, labelled texts.

A template is a text with ``{text}`` where the record goes; for a masked language model it also has ``{mask}``. A
verbaliser gives each class the word that the model would say for it. Both are public: a person wrote them.
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
    """How a text is asked about. Public.

    A label word follows the body after one space, unless the body ends in white space.

    Args:
        body: Text with ``{text}`` once, and with ``{mask}`` at most once, for a masked model. It is filled for the
            query and for each demonstration.
        instruction: Text that stands once, in front. Empty means none.
        separator: What stands between instruction, demonstrations and query.

    Raises:
        PromptError: If the body does not have ``{text}`` exactly once, or has ``{mask}`` twice.

    Example:
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
            raise PromptError(f"a template needs {{text}} exactly once, where the record goes, unlike {self.body!r}")
        if self.body.count("{mask}") > 1:
            raise PromptError(f"a template may have {{mask}} only once, unlike {self.body!r}")

    def for_labels(self) -> None:
        """Refuse a template that leaves no place for a label.

        Raises:
            PromptError: If the body ends in ``{text}`` and has no ``{mask}``.
        """
        if not self.masked and self.body.endswith("{text}"):
            raise PromptError(
                "a template must go on after {text}, so that the next word is the label, as in '{text}\\nSentiment:'"
            )

    @staticmethod
    def of(given: str | Template) -> Template:
        """Make a template from its body.

        Args:
            given: A body, or a template, which comes back as it is.

        Returns:
            The template.

        Example:
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
        """Fill the body with a text. Braces in the text stay as they are.

        Args:
            text: The record.
            mask: What stands at ``{mask}``: the model's mask token, or a label word.

        Returns:
            The query.
        """
        self.for_labels()
        before, _, after = self.body.partition("{text}")
        return before.replace("{mask}", mask) + text + after.replace("{mask}", mask)

    def prefix(self, demonstrations: Iterable[tuple[str, str]] = ()) -> str:
        """Write what stands before the query: the instruction and the demonstrations, each with its separator.

        Args:
            demonstrations: Pairs of text and label word.

        Returns:
            The text before the query; empty if there is nothing.
        """
        parts = [self.instruction] if self.instruction else []
        for text, word in demonstrations:
            parts.append(self.query(text, word) if self.masked else self.query(text) + self.gap + word)
        return "".join(part + self.separator for part in parts)


@dataclasses.dataclass(frozen=True)
class Verbalizer:
    """The word that the model says for each class. Public.

    A word must be one token of the model, because its probability is read at one place.

    Args:
        words: A mapping from class names to words, in the order of the classes; two classes at least.
        first_token: Whether a word of several tokens may be told by its first token. No two classes may share it.

    Raises:
        PromptError: If there are fewer than two classes, or if a word is empty or used twice.

    Example:
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
            raise PromptError("a word of the verbaliser is empty")
        if len(set(words.values())) < len(words):
            raise PromptError(f"two classes have the same word: {', '.join(words.values())}")
        object.__setattr__(self, "words", words)

    @staticmethod
    def of(given: Verbalizer | Mapping[Any, str] | Sequence[str]) -> Verbalizer:
        """Make a verbaliser from a mapping or from a list of words.

        Args:
            given: A mapping from classes to words, a list of words that are their own classes, or a verbaliser, which
                comes back as it is.

        Returns:
            The verbaliser.

        Example:
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
        """Look up the word of a class.

        Args:
            label: The name or number of the class.

        Returns:
            The word.
        """
        return self.words[self.classes[self.number(label)]]

    def number(self, label: Any) -> int:
        """Look up the number of a class.

        Args:
            label: The name of the class; if no class has that name, its number.

        Returns:
            The number, from 0.

        Raises:
            PromptError: If there is no such class.
        """
        if (name := str(label)) in self.words:
            return self.classes.index(name)
        whole = getattr(label, "item", lambda: label)()
        if isinstance(whole, int) and not isinstance(whole, bool) and 0 <= whole < len(self.words):
            return whole
        raise PromptError(
            f"a record has a label that no class of the verbaliser has; the classes are {', '.join(self.classes)}. "
            "(If the records are private, so is the fact that you saw this message.)"
        )

    def demonstrations(self, examples: Iterable[Example]) -> list[tuple[str, str]]:
        """Turn labelled texts into pairs of text and label word.

        Args:
            examples: Pairs of text and class.

        Returns:
            Pairs of text and label word.
        """
        return [(text, self.word(label)) for text, label in examples]

    def tokens(self, tokenizer: Any, template: Template) -> list[int]:
        """Find the token of each class's word, as it stands after (or inside) the template.

        Args:
            tokenizer: The model's tokenizer.
            template: The template that the word follows.

        Returns:
            One token id per class.

        Raises:
            PromptError: If a word is not one token, is not in the vocabulary, or begins like another one.

        Example:
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
            tacit.prompts.errors.PromptError: label words must be one token of this model: 'nay' is n·a·y; 'yes' is ...
        """
        template.for_labels()
        found: list[int] = []
        trouble: list[str] = []
        for word in self.words.values():
            ids = _continuation(tokenizer, template, word)
            if not ids or ids[0] == getattr(tokenizer, "unk_token_id", None):
                raise PromptError(
                    f"the model's vocabulary has no token for the label word {word!r}: choose another. "
                    "See: tacit explain label-words"
                )
            if len(ids) > 1:
                trouble.append(f"{word!r} is {'·'.join(map(str, tokenizer.convert_ids_to_tokens(ids)))}")
            found.append(int(ids[0]))
        if trouble and not self.first_token:
            raise PromptError(
                f"label words must be one token of this model: {'; '.join(trouble)}. Choose other words, or "
                "Verbalizer(words, first_token=True) to use the first token of each. See: tacit explain label-words"
            )
        if len(set(found)) < len(found):
            raise PromptError(
                "two label words begin with the same token, so the model cannot tell them apart: choose other words. "
                "See: tacit explain label-words"
            )
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
            raise PromptError(f"each record must be a text with a label, and one of them has {type(text).__name__}")
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
        raise PromptError("every record must be a text")
    return found


def _pairs(data: Any) -> Iterator[tuple[Any, Any]]:
    if hasattr(data, "columns"):
        names = list(data.columns)
        missing = [name for name in ("text", "label") if name not in names]
        if missing:
            raise PromptError(f"the table needs the columns text and label, but it has {', '.join(map(str, names))}")
        yield from zip(list(data["text"]), list(data["label"]), strict=True)
        return
    for record in data:
        if isinstance(record, str) or not isinstance(record, Sequence) or len(record) != 2:
            raise PromptError("each record must be a pair (text, label)")
        yield record[0], record[1]
