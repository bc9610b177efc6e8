"""How do private texts teach a model that only answers? PromptPATE: prompts of disjoint private demonstrations vote.

Each teacher is the same language model with its own private demonstrations in front (Duan et al. 2023). The prefix of a
teacher is encoded once, and all queries are scored behind it. Only :class:`tacit.pate.VoteCounts` leave, and an
aggregator turns them into noisy labels.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.accounting.base import owner_numbers, unit_of
from tacit.noise import Key
from tacit.pate import VoteCounts
from tacit.pate import partition as dealing
from tacit.prompts.errors import PromptError
from tacit.prompts.models import as_scorer, calibration, scores_of
from tacit.prompts.students import CALIBRATIONS, leaning
from tacit.prompts.text import Example, Template, Verbalizer, examples

#: The number of the class that a teacher gives each query.
Ballot = NDArray[np.signedinteger[Any]]


class PromptTeachers:
    """Teachers that are one language model, prompted with disjoint private demonstrations.

    A keyed hash of a record (or of its owner's id) decides its teacher. Of its own records a teacher shows those that
    come first in the order of another keyed hash. If a teacher's part is short of a class, it shows what it has.

    Guarantee:
        Adding or removing one record (or owner) changes the prompt of one teacher, so one vote per query moves from one
        class to another: sensitivity √2 in L2. The aggregators of :mod:`tacit.pate` price that as
        ``partition="keyed"``. The demonstrations are sent to the model: whoever runs it sees them.

    Args:
        model: A :class:`~tacit.prompts.LanguageModel`, an :class:`~tacit.prompts.Endpoint`, another
            :class:`~tacit.prompts.Scorer`, or a model of ``transformers`` (then with ``tokenizer``).
        template: A template, or its body.
        verbalizer: A verbaliser, or anything that :meth:`Verbalizer.of` takes.
        private: Private pairs of text and class, or a table with the columns ``text`` and ``label``.
        shots: How many demonstrations of each class a teacher shows.
        n: The number of teachers.
        per_class: False makes ``shots`` the number of demonstrations of all classes together.
        groups: The id of each record's owner. None protects one record, identified by its contents.
        unit: The name of the unit, such as ``"person"``; needs ``groups``. None means ``"person"`` with ``groups`` and
            ``"record"`` without.
        calibration: ``"none"``, ``"contextual"`` or ``"batch"``, as in :func:`tacit.prompts.calibrated`, with the
            queries as public texts.
        key: The secret key of the hashes. None draws a new one; a checkpoint needs the same one again.
        tokenizer: The tokenizer of a ``transformers`` model. None tries the one of the model's name.

    Raises:
        PromptError: If there are too few private records for so many teachers, or if a parameter is not allowed.

    Example:
        See ``examples/private_prompt.py``.
    """

    def __init__(
        self,
        model: Any,
        template: str | Template,
        verbalizer: Any,
        private: Any,
        shots: int = 1,
        n: int = 200,
        *,
        per_class: bool = True,
        groups: Sequence[Any] | None = None,
        unit: str | None = None,
        calibration: str = "none",
        key: Key | None = None,
        tokenizer: Any = None,
    ) -> None:
        self.model = as_scorer(model, tokenizer)
        self.template, self.verbalizer = Template.of(template), Verbalizer.of(verbalizer)
        if hasattr(self.model, "check"):
            self.model.check(self.template, self.verbalizer)
        if calibration not in CALIBRATIONS:
            raise PromptError(f"calibration must be one of {', '.join(CALIBRATIONS)}, not {calibration!r}")
        if shots < 1 or n < 1:
            raise PromptError("shots and n must be positive whole numbers")
        self._private, rows = private, examples(private, self.verbalizer)
        needed = n * shots * (len(self.verbalizer.classes) if per_class else 1)
        if len(rows) < needed:
            raise PromptError(
                f"{n} teachers with {shots} demonstration{'s' if shots > 1 else ''}{' of each class' * per_class} need "
                f"at least {needed} private records, and there are fewer: use fewer teachers or fewer shots. "
                "See: tacit explain too-few-records-for-teachers"
            )
        if groups is not None:
            try:
                owner_numbers(groups, len(rows))
            except ValueError as error:
                raise PromptError(str(error)) from None
        self.n, self.shots, self.calibration = int(n), int(shots), calibration
        self.unit = unit_of(
            unit, owned=groups is not None, ids="Pass groups=, the id of every record's owner, with unit="
        )
        self._key = key or Key.generate()
        names = [_content(row) for row in rows]
        parts = dealing.keyed(names if groups is None else groups, self.n, self._key.derive("prompt teachers"))
        order = self._key.derive("demonstrations")
        ranked: list[list[tuple[int, int]]] = [[] for _ in range(self.n)]
        for i, name in enumerate(names):
            words = order.stream("partition", 0, name)
            ranked[int(parts[i])].append((int(words[0]) | int(words[1]) << 32, i))
        self._demonstrations = [_shown(sorted(part), rows, self.shots, per_class=per_class) for part in ranked]

    def __len__(self) -> int:
        return self.n

    def __repr__(self) -> str:
        return f"PromptTeachers({self.n} teachers, {self.shots} shots) [their demonstrations are private]"

    def vote(
        self, queries: Sequence[str], *, checkpoint: str | os.PathLike[str] | None = None, progress: bool | None = None
    ) -> VoteCounts:
        """Count how many teachers give each public query each class.

        Guarantee:
            Nothing is charged here: the counts are private until an aggregator has added its noise.

        Args:
            queries: The public texts.
            checkpoint: A file for each teacher's votes, which only its owner can read. After an interruption the
                teachers that have not voted go on; that needs the same ``key``. None keeps nothing.
            progress: Whether to show a progress bar. None shows it on a terminal.

        Returns:
            One histogram of classes per query.

        Raises:
            PromptError: If there are no queries, or if the checkpoint belongs to other teachers, queries or settings.
        """
        asked = list(queries)
        if not asked:
            raise PromptError("there are no queries: give at least one public text")
        name = self._name(asked) if checkpoint is not None else ""
        kind = _kind(len(self.verbalizer.classes))
        kept = _read(Path(checkpoint), name, kind) if checkpoint is not None else {}
        counts = np.zeros((len(asked), len(self.verbalizer.classes)), np.int64)
        with _bar(self.n, len(kept), sys.stderr.isatty() if progress is None else progress) as advance:
            for number in range(self.n):
                if number in kept:
                    continue
                kept[number] = self._ballot(self._demonstrations[number], asked)
                if checkpoint is not None:
                    _append(Path(checkpoint), name, number, kept[number])
                advance()
        for ballot in kept.values():
            counts[np.arange(len(asked)), ballot] += 1
        return VoteCounts(counts, self.n, "keyed", self.unit, asked, learned=self._private)

    def _ballot(self, shown: tuple[Example, ...], queries: list[str]) -> Ballot:
        """The classes that one teacher gives the queries.

        A teacher never shares a pass with others. The padding, and with it the last bits of a score, would depend on
        their texts, and one record could tip the near ties of teachers that do not hold it.
        """
        scores = scores_of(self.model, self.template, self.verbalizer, queries, [shown])[0]
        if self.calibration == "contextual":
            scores = scores - calibration(self.model, self.template, self.verbalizer, shown)
        elif self.calibration == "batch":
            scores = scores - leaning(scores)
        return np.asarray(scores.argmax(1), dtype=_kind(len(self.verbalizer.classes)))

    def _name(self, queries: list[str]) -> str:
        """What a checkpoint belongs to; keyed, so that it tells nobody anything."""
        about = repr(
            (self.template, dict(self.verbalizer.words), self.n, self.calibration, self._demonstrations, queries)
        )
        words = self._key.derive("votes").stream("votes", 0, hashlib.sha256(about.encode()).hexdigest())
        return "".join(f"{int(w):08x}" for w in words)


def _content(row: Example) -> str:
    return f"{len(row[0])}:{row[0]}|{row[1]}"


def _shown(ranked: list[tuple[int, int]], rows: list[Example], shots: int, *, per_class: bool) -> tuple[Example, ...]:
    """The first records in the keyed order: ``shots`` of each class, or of all together. Equal records show once."""
    chosen: list[Example] = []
    for _, i in ranked:
        row = rows[i]
        same = [r for r in chosen if not per_class or r[1] == row[1]]
        if len(same) < shots and row not in chosen:
            chosen.append(row)
    return tuple(chosen)


def _kind(classes: int) -> type[np.signedinteger[Any]]:
    """The smallest kind of number that holds every class."""
    return np.int8 if classes <= 127 else np.int32


def _read(path: Path, name: str, kind: type[np.signedinteger[Any]]) -> dict[int, Ballot]:
    """The votes that are kept, without a last line that a kill has torn."""
    if not path.exists():
        return {}
    lines = path.read_text(encoding="ascii").split("\n")
    if not lines[0] or lines[0] != name:
        raise PromptError(
            f"{path} holds votes of other teachers, queries, settings or another key: delete it to start again"
        )
    kept: dict[int, Ballot] = {}
    for line in lines[1:]:
        number, _, votes = line.partition(" ")
        if votes.endswith("."):
            kept[int(number)] = np.frombuffer(bytes.fromhex(votes[:-1]), dtype=kind)
    return kept


def _append(path: Path, name: str, number: int, votes: Ballot) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "a+b") as file:
        if file.tell() == 0:
            file.write(name.encode("ascii"))
        # A new line first: what a kill left unfinished stays alone on its line.
        file.write(f"\n{number} {votes.tobytes().hex()}.".encode("ascii"))
        file.flush()
        os.fsync(file.fileno())


class _bar:
    """A progress bar on standard error, or nothing."""

    def __init__(self, total: int, done: int, wanted: bool) -> None:
        self.total, self.done, self.wanted = total, done, wanted
        self.bar: Any = None

    def __enter__(self) -> Any:
        if not self.wanted:
            return lambda: None
        from rich.console import Console
        from rich.progress import Progress

        self.bar = Progress(console=Console(stderr=True))
        self.bar.start()
        task = self.bar.add_task("teachers vote", total=self.total, completed=self.done)
        return lambda: self.bar.advance(task)

    def __exit__(self, *error: Any) -> None:
        if self.bar is not None:
            self.bar.stop()
