"""Which prompt is published? Demonstrations from public text with released labels, chosen at no cost.

Everything here is computed from a public model and public or released values: it is post-processing and costs nothing.
On private data the same functions give the non-private baselines.
"""

from __future__ import annotations

import dataclasses
import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.prompts.errors import PromptError
from tacit.prompts.models import Scorer, as_scorer, calibration, scores_of
from tacit.prompts.text import Example, Template, Verbalizer, examples

#: How scores are corrected for a prompt's own bias: not at all, by meaningless contents, or by public texts.
CALIBRATIONS = ("none", "contextual", "batch")


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """A share of right answers with its 95% interval (Wilson's).

    Args:
        right: The number of right answers.
        total: The number of answers.

    Example:
        >>> found = Accuracy(90, 100)
        >>> found.value, tuple(round(end, 3) for end in found.interval)
        (0.9, (0.826, 0.945))
    """

    right: int
    total: int

    @property
    def value(self) -> float:
        """The share of right answers."""
        return self.right / self.total

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% interval for the share on infinitely many such texts."""
        z, n, p = 1.959963984540054, self.total, self.value
        middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.value:.1%} [{low:.1%}, {high:.1%}] of {self.total:,}"


@dataclasses.dataclass(frozen=True)
class Prompt:
    """A text prompt: template, label words, demonstrations, and a correction of the scores.

    With ``others`` it is a committee, whose members answer together. An answer then takes one pass per member.

    Args:
        template: How a text is asked about.
        verbalizer: The classes and their words.
        demonstrations: Pairs of text and class that stand before the query.
        offset: What is subtracted from the score of each class; None subtracts nothing (:func:`calibrated`).
        others: Further members of a committee, with the same template and words.

    Raises:
        PromptError: If a member of ``others`` has another template, other words, or members of its own.

    Example:
        >>> print(Prompt(Template("{text}\\nMood:"), Verbalizer.of(["bad", "good"]), (("rain", "bad"),)).text("sun"))
        rain
        Mood: bad
        <BLANKLINE>
        sun
        Mood:
    """

    template: Template
    verbalizer: Verbalizer
    demonstrations: tuple[Example, ...] = ()
    offset: tuple[float, ...] | None = None
    others: tuple[Prompt, ...] = ()

    def __post_init__(self) -> None:
        for other in self.others:
            if other.others or (other.template, other.verbalizer) != (self.template, self.verbalizer):
                raise PromptError(
                    "the members of a committee must be single prompts with one template and the same words"
                )

    @property
    def members(self) -> tuple[Prompt, ...]:
        """The prompts that answer together: only this one, unless it has others."""
        return (dataclasses.replace(self, others=()), *self.others)

    def text(self, text: str) -> str:
        """Write the whole prompt for a text, ready to paste.

        Args:
            text: The text to ask about.

        Returns:
            The prompt; for a committee, that of its first member.
        """
        return self.template.prefix(self.verbalizer.demonstrations(self.demonstrations)) + self.template.query(text)

    def scores(self, model: Any, texts: Sequence[str]) -> NDArray[np.float64]:
        """Score the classes of each text.

        Args:
            model: A :class:`LanguageModel`, an :class:`Endpoint` or another :class:`Scorer`.
            texts: The texts to ask about.

        Returns:
            Corrected log-probabilities: one row per text, one column per class. For a committee, the mean over its
            members, after the probabilities of each member were scaled to sum to one.
        """
        shown = [prompt.demonstrations for prompt in self.members]
        found = scores_of(as_scorer(model), self.template, self.verbalizer, texts, shown)
        even = (0.0,) * len(self.verbalizer.classes)
        found = found - np.array([prompt.offset or even for prompt in self.members])[:, None]
        return found[0] if len(found) == 1 else np.asarray(_normal(found).mean(0), dtype=np.float64)

    def predict(self, model: Any, texts: Sequence[str]) -> list[str]:
        """Predict the class of each text.

        Args:
            model: As in :meth:`scores`.
            texts: The texts to ask about.

        Returns:
            One class name per text.
        """
        return [self.verbalizer.classes[i] for i in self.scores(model, texts).argmax(1)]

    def accuracy(self, model: Any, data: Any) -> Accuracy:
        """Measure the share of right answers. Not private: use public texts, or do not publish it.

        Args:
            model: As in :meth:`scores`.
            data: Pairs of text and class, or a table with the columns ``text`` and ``label``.

        Returns:
            The share with its interval.
        """
        rows = examples(data, self.verbalizer)
        found = self.predict(model, [text for text, _ in rows])
        return Accuracy(sum(a == b for a, (_, b) in zip(found, rows, strict=True)), len(rows))

    def save(self, path: str | Path) -> None:
        """Write the prompt as JSON.

        Args:
            path: The file, which is overwritten.
        """
        about = {
            "template": dataclasses.asdict(self.template),
            "verbalizer": dict(self.verbalizer.words),
            "first_token": self.verbalizer.first_token,
            **self._own(),
        }
        if self.others:
            about["others"] = [prompt._own() for prompt in self.others]
        Path(path).write_text(json.dumps(about, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    def _own(self) -> dict[str, Any]:
        """The parts that differ between the members of a committee."""
        return {
            "demonstrations": [list(pair) for pair in self.demonstrations],
            "offset": None if self.offset is None else list(self.offset),
        }

    @staticmethod
    def load(path: str | Path) -> Prompt:
        """Read what :meth:`save` wrote.

        Args:
            path: The file.

        Returns:
            The prompt.

        Raises:
            PromptError: If the file is not a saved prompt.
        """
        try:
            about = json.loads(Path(path).read_text(encoding="utf-8"))
            template = Template(**about["template"])
            words = Verbalizer(about["verbalizer"], bool(about.get("first_token", False)))
            members = []
            for own in (about, *about.get("others", ())):
                shown = tuple((str(text), str(label)) for text, label in own.get("demonstrations", ()))
                offset = own.get("offset")
                members.append(
                    Prompt(template, words, shown, None if offset is None else tuple(float(x) for x in offset))
                )
            return committee(members)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise PromptError(f"{path} is not a saved prompt: {error}") from None


def committee(prompts: Sequence[Prompt]) -> Prompt:
    """Join prompts into one that asks all of them.

    >>> ask, words = Template("{text}\\nMood:"), Verbalizer.of(["bad", "good"])
    >>> both = committee([Prompt(ask, words), Prompt(ask, words, (("rain", "bad"), ("sun", "good")))])
    >>> [len(prompt.demonstrations) for prompt in both.members]
    [0, 2]
    """
    members = [member for prompt in prompts for member in prompt.members]
    if not members:
        raise PromptError("a committee needs at least one prompt")
    return dataclasses.replace(members[0], others=tuple(members[1:]))


def calibrated(model: Any, prompt: Prompt, way: str, public: Sequence[str] = ()) -> Prompt:
    """Correct the scores of a prompt for its own bias; each member of a committee by itself.

    Guarantee:
        Uses the prompt and public texts only, so it costs nothing.

    Args:
        model: A :class:`LanguageModel`, an :class:`Endpoint` or another :class:`Scorer`.
        prompt: The prompt.
        way: ``"contextual"`` subtracts what the prompt says to meaningless contents (Zhao et al. 2021). ``"batch"``
            subtracts what it says to ``public`` on average (Zhou et al. 2024, "Batch Calibration"), which fits if the
            classes are about equally frequent there. ``"none"`` removes a correction.
        public: Public texts, for ``"batch"``.

    Returns:
        The corrected prompt.

    Raises:
        PromptError: If ``way`` is none of these, or if ``"batch"`` has no texts.

    Example:
        See ``examples/private_prompt.py``, where :func:`choose` corrects its prompts this way.
    """
    if way not in CALIBRATIONS:
        raise PromptError(f"calibration must be one of {', '.join(CALIBRATIONS)}, not {way!r}")
    scorer, found = as_scorer(model), []
    for member in prompt.members:
        plain = dataclasses.replace(member, offset=None)
        scores = plain.scores(scorer, list(public)) if way == "batch" else np.zeros(0)
        found.append(dataclasses.replace(plain, offset=_offset(scorer, plain, way, scores)))
    return committee(found)


def _offset(scorer: Scorer, prompt: Prompt, way: str, scores: NDArray[np.float64]) -> tuple[float, ...] | None:
    """A prompt's bias, which is subtracted; ``scores`` are what it gave public texts."""
    if way == "none":
        return None
    if way == "batch":
        return tuple(leaning(scores).tolist())
    return tuple(calibration(scorer, prompt.template, prompt.verbalizer, prompt.demonstrations).tolist())


def leaning(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """The log of the mean share of each class, over rows of log-probabilities.

    >>> leaning(np.log([[0.2, 0.2], [0.1, 0.3]])).round(3).tolist()
    [-0.981, -0.47]
    """
    if len(scores) == 0:
        raise PromptError("calibration='batch' needs public texts")
    shares = np.exp(scores - scores.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    return np.asarray(np.log(np.maximum(shares.mean(0), 1e-12)), dtype=np.float64)


def choose(
    model: Any,
    template: str | Template,
    verbalizer: Any,
    labelled: Any,
    *,
    shots: int | Sequence[int] = 1,
    candidates: int = 64,
    members: int = 1,
    calibration: str = "none",
    unlabelled: Sequence[str] = (),
    seed: int = 0,
) -> Prompt:
    """Choose the demonstrations of a prompt among labelled texts.

    Candidates are drawn at random and scored on a quarter of the texts; the best quarter of them is scored on all. A
    candidate is not scored on texts that it shows. The prompt without demonstrations is a candidate too. Because labels
    are few and noisy, the score is their likelihood if a fifth of them were random, so that one surprising wrong label
    does not decide.

    Guarantee:
        If ``labelled`` are public texts with released labels, this is post-processing and costs nothing. On private
        texts the result is the non-private baseline and has no guarantee.

    Args:
        model: A :class:`LanguageModel`, an :class:`Endpoint` or another :class:`Scorer`.
        template: A template, or its body.
        verbalizer: A verbaliser, or anything that :meth:`Verbalizer.of` takes.
        labelled: Pairs of text and class, or a table with the columns ``text`` and ``label``; 4 at least.
        shots: Demonstrations per class, or several numbers to try.
        candidates: How many candidates to draw.
        members: How many prompts answer together. More are steadier, and an answer takes as many passes.
        calibration: ``"none"``, ``"contextual"`` or ``"batch"``, as in :func:`calibrated`.
        unlabelled: More public texts. The best dozen candidates label them together, and those that agree with that
            most often are taken.
        seed: Seeds the draw of candidates.

    Returns:
        The best prompt, or a committee of ``members`` (fewer if fewer candidates were kept).

    Raises:
        PromptError: If there are too few labelled texts, or if ``members`` or ``calibration`` is not allowed.

    Example:
        See ``examples/private_prompt.py``.
    """
    scorer, template, words = as_scorer(model), Template.of(template), Verbalizer.of(verbalizer)
    rows = examples(labelled, words)
    if len(rows) < FEWEST:
        raise PromptError(
            f"{len(rows)} labelled texts are too few to choose a prompt by; {FEWEST} are the least. Ask the teachers "
            "for more answers"
        )
    if members < 1:
        raise PromptError(f"members must be a positive whole number, not {members}")
    if calibration not in CALIBRATIONS:
        raise PromptError(f"calibration must be one of {', '.join(CALIBRATIONS)}, not {calibration!r}")
    draw = random.Random(seed)
    draw.shuffle(rows)
    pools = [pool for label in words.classes if (pool := [row for row in rows if row[1] == label])]
    prompts = [Prompt(template, words)]
    numbers = [shots] if isinstance(shots, int) else list(shots)
    for i in range(candidates if max(numbers) else 0):
        count = numbers[i % len(numbers)]
        shown = [pair for pool in pools for pair in draw.sample(pool, min(count, max(1, len(pool) // 2)))]
        draw.shuffle(shown)
        if (made := Prompt(template, words, tuple(shown))) not in prompts:
            prompts.append(made)
    quick = rows[: max(FEWEST, len(rows) // 4)]
    first = _ranked(scorer, prompts, quick, calibration)
    kept = first[: max(members, len(prompts) // 4)]
    if all(prompt.demonstrations for prompt in kept):
        kept.append(prompts[0])
    best = _ranked(scorer, kept, rows, calibration)
    if len(unlabelled) and len(best) > 1:
        shares, offsets = _shares(scorer, best, list(unlabelled), calibration)
        together = shares[: max(FINALISTS, members)].mean(0).argmax(1)
        order = np.argsort(-(shares.argmax(2) == together).mean(1), kind="stable")
        best = [dataclasses.replace(best[i], offset=offsets[i]) for i in order]
    return committee(best[:members])


#: Fewer labelled texts than this say nothing about a prompt.
FEWEST = 4
#: How many prompts label the unlabelled public texts together.
FINALISTS = 12
#: The share of noisy labels that are taken to be random.
RANDOM = 0.2


def _normal(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Log-probabilities of classes that sum to one among the classes."""
    return np.asarray(scores - np.logaddexp.reduce(scores, axis=-1, keepdims=True), dtype=np.float64)


def _shares(
    scorer: Scorer, prompts: list[Prompt], texts: list[str], way: str
) -> tuple[NDArray[np.float64], list[tuple[float, ...] | None]]:
    """The probability of each class, with each prompt's bias taken out (prompts by texts by classes), and the biases.

    The prompts have one template and the same label words.
    """
    template, words = prompts[0].template, prompts[0].verbalizer
    found = scores_of(scorer, template, words, texts, [prompt.demonstrations for prompt in prompts])
    offsets = [_offset(scorer, prompt, way, scores) for prompt, scores in zip(prompts, found, strict=True)]
    if way != "none":
        found = found - np.array(offsets)[:, None]
    return np.exp(_normal(found)), offsets


def _ranked(scorer: Scorer, prompts: list[Prompt], judges: list[Example], way: str) -> list[Prompt]:
    """The prompts with their bias taken out, best first, by the likelihood of noisy labels that they do not show."""
    texts = [text for text, _ in judges]
    right = np.array([prompts[0].verbalizer.number(label) for _, label in judges])
    shares, offsets = _shares(scorer, prompts, texts, way)
    found = []
    for number, prompt in enumerate(prompts):
        unseen = np.array([row not in prompt.demonstrations for row in judges])
        if unseen.any():
            given = shares[number, np.arange(len(right)), right][unseen]
            likely = float(np.log((1 - RANDOM) * given + RANDOM / shares.shape[2]).mean())
            found.append((-likely, number, dataclasses.replace(prompt, offset=offsets[number])))
    return [prompt for _, _, prompt in sorted(found, key=lambda one: one[:2])]
