"""Which prompt is published? Demonstrations from public text with released labels, chosen where that costs nothing.

Everything here is computed from a public model and public or released values: post-processing, free of charge. Run on
private data instead, the same functions give the non-private baselines.
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

#: How scores are corrected for a prompt's own leaning: not at all, by contents without meaning, or by public texts.
CALIBRATIONS = ("none", "contextual", "batch")


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """A share of right answers with its interval (Wilson's, 95%).

    >>> found = Accuracy(90, 100)
    >>> found.value, tuple(round(end, 3) for end in found.interval)
    (0.9, (0.826, 0.945))
    """

    right: int
    total: int

    @property
    def value(self) -> float:
        """The share."""
        return self.right / self.total

    @property
    def interval(self) -> tuple[float, float]:
        """Where the share would be on endlessly many such texts, at 95%."""
        z, n, p = 1.959963984540054, self.total, self.value
        middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.value:.1%} [{low:.1%}, {high:.1%}] of {self.total:,}"


@dataclasses.dataclass(frozen=True)
class Prompt:
    """A discrete prompt: template, label words, demonstrations, and a correction of the scores.

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

    def text(self, text: str) -> str:
        """The whole prompt for a text, as one would paste it."""
        return self.template.prefix(self.verbalizer.demonstrations(self.demonstrations)) + self.template.query(text)

    def scores(self, model: Any, texts: Sequence[str]) -> NDArray[np.float64]:
        """Corrected log-probabilities of the classes."""
        raw = as_scorer(model).log_probabilities(self.template, self.verbalizer, texts, self.demonstrations)
        return raw if self.offset is None else raw - np.asarray(self.offset)

    def predict(self, model: Any, texts: Sequence[str]) -> list[str]:
        """The class of each text."""
        return [self.verbalizer.classes[i] for i in self.scores(model, texts).argmax(1)]

    def accuracy(self, model: Any, data: Any) -> Accuracy:
        """The share of labelled texts that are answered rightly."""
        rows = examples(data, self.verbalizer)
        found = self.predict(model, [text for text, _ in rows])
        return Accuracy(sum(a == b for a, (_, b) in zip(found, rows, strict=True)), len(rows))

    def save(self, path: str | Path) -> None:
        """Write the prompt as JSON."""
        about = {
            "template": dataclasses.asdict(self.template),
            "verbalizer": dict(self.verbalizer.words),
            "first_token": self.verbalizer.first_token,
            "demonstrations": [list(pair) for pair in self.demonstrations],
            "offset": None if self.offset is None else list(self.offset),
        }
        Path(path).write_text(json.dumps(about, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    @staticmethod
    def load(path: str | Path) -> Prompt:
        """Read what :meth:`save` wrote."""
        try:
            about = json.loads(Path(path).read_text(encoding="utf-8"))
            offset = about.get("offset")
            return Prompt(
                Template(**about["template"]),
                Verbalizer(about["verbalizer"], bool(about.get("first_token", False))),
                tuple((str(text), str(label)) for text, label in about.get("demonstrations", ())),
                None if offset is None else tuple(float(x) for x in offset),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise PromptError(f"{path} is no saved prompt: {error}") from None


def calibrated(model: Any, prompt: Prompt, way: str, public: Sequence[str] = ()) -> Prompt:
    """The prompt with its scores corrected.

    ``"contextual"`` subtracts what the prompt says to contents without meaning (Zhao et al. 2021); ``"batch"`` what it
    says on average to ``public`` texts (Zhou et al. 2024, "Batch Calibration"), which fits where classes are about
    equally frequent in them.
    """
    if way not in CALIBRATIONS:
        raise PromptError(f"calibration is one of {', '.join(CALIBRATIONS)}, not {way!r}")
    if way == "none":
        return dataclasses.replace(prompt, offset=None)
    scorer, plain = as_scorer(model), dataclasses.replace(prompt, offset=None)
    if way == "contextual":
        offset = calibration(scorer, prompt.template, prompt.verbalizer, prompt.demonstrations)
    else:
        offset = leaning(plain.scores(scorer, list(public)))
    return dataclasses.replace(prompt, offset=tuple(float(x) for x in offset))


def leaning(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """The log of the mean share of each class, over rows of log-probabilities.

    >>> leaning(np.log([[0.2, 0.2], [0.1, 0.3]])).round(3).tolist()
    [-0.981, -0.47]
    """
    if len(scores) == 0:
        raise PromptError("batch calibration needs public texts")
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
    calibration: str = "none",
    unlabelled: Sequence[str] = (),
    seed: int = 0,
) -> Prompt:
    """The best prompt of ``shots`` demonstrations a class, by its accuracy on the labelled texts that it does not show.

    Candidates are drawn at random, of each number of shots where several are given; they are scored on a quarter of the
    texts, and the better quarter of them on all. The prompt without demonstrations is a candidate. Labels are few and
    noisy: where ``unlabelled`` public texts are given, the best dozen answer these together, and of the better quarter
    the one that agrees most often with them is taken.

    Guarantee: where ``labelled`` are public texts with released labels, this is post-processing and costs nothing. On
    private labelled texts the result is the non-private baseline, and has no guarantee.
    """
    scorer, template, words = as_scorer(model), Template.of(template), Verbalizer.of(verbalizer)
    rows = examples(labelled, words)
    if len(rows) < 4:
        raise PromptError(f"{len(rows)} labelled texts are too few to choose a prompt by: ask for more answers")
    draw = random.Random(seed)
    draw.shuffle(rows)
    pools = [pool for label in words.classes if (pool := [row for row in rows if row[1] == label])]
    prompts = [Prompt(template, words)]
    numbers = [shots] if isinstance(shots, int) else list(shots)
    for i in range(candidates if max(numbers) else 0):
        count = numbers[i % len(numbers)]
        shown = [pair for pool in pools for pair in draw.sample(pool, min(count, max(1, len(pool) // 2)))]
        draw.shuffle(shown)
        prompts.append(Prompt(template, words, tuple(shown)))
    quick = rows[: max(4, len(rows) // 4)]
    first = _ranked(scorer, prompts, quick, calibration)
    kept = [prompts[i] for i in first[: max(1, len(prompts) // 4)]]
    if prompts[0] not in kept:
        kept.append(prompts[0])
    order = [kept[i] for i in _ranked(scorer, kept, rows, calibration)]
    texts = [text for text, _ in rows]
    best = order[0]
    if len(unlabelled) and len(order) > 1:
        texts = list(unlabelled)
        answers = _shares(scorer, order, texts, calibration)
        together = answers[:FINALISTS].mean(0).argmax(1)
        best = order[int(np.argmax((answers.argmax(2) == together).mean(1)))]
    return calibrated(scorer, best, calibration, texts)


#: How many prompts answer together where public texts without labels are at hand.
FINALISTS = 12


def _shares(scorer: Scorer, prompts: list[Prompt], texts: list[str], way: str) -> NDArray[np.float64]:
    """The probability of each class among the classes, with each prompt's leaning taken out: prompts, texts, classes.

    The prompts have one template and the same label words.
    """
    template, words = prompts[0].template, prompts[0].verbalizer
    found = scores_of(scorer, template, words, texts, [prompt.demonstrations for prompt in prompts])
    for prompt, scores in zip(prompts, found, strict=True):
        if way == "batch":
            scores -= leaning(scores)
        elif way == "contextual":
            scores -= calibration(scorer, template, words, prompt.demonstrations)
    return np.asarray(np.exp(found - np.logaddexp.reduce(found, axis=2, keepdims=True)), dtype=np.float64)


def _ranked(scorer: Scorer, prompts: list[Prompt], judges: list[Example], way: str) -> list[int]:
    """The numbers of the prompts, best first: by accuracy, then by the mean log-probability of the right word."""
    texts = [text for text, _ in judges]
    right = np.array([prompts[0].verbalizer.number(label) for _, label in judges])
    found = []
    for number, shares in enumerate(_shares(scorer, prompts, texts, way)):
        unseen = np.array([row not in prompts[number].demonstrations for row in judges])
        if not unseen.any():
            continue
        sure = float(np.log(np.maximum(shares[np.arange(len(right)), right], 1e-6))[unseen].mean())
        found.append((-float((shares.argmax(1) == right)[unseen].mean()), -sure, number))
    return [number for _, _, number in sorted(found)]
