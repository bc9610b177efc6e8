"""How is one candidate run so that nothing about it gets out? Training, score, and silence around both."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import logging
import math
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from tacit import accounting as acc
from tacit.cluster import seeded
from tacit.noise.entropy import expanded
from tacit.tuning.errors import TuningError
from tacit.tuning.space import Candidate

Train = Callable[[Candidate, float], Any]
Judge = Callable[[Any], float]


@dataclasses.dataclass(frozen=True)
class RunOutcome:
    """What one run gave: a model and its score, or its error and the lowest score."""

    candidate: Candidate
    model: Any
    score: float
    #: drawn without the data, to break ties
    lot: int
    #: how it failed, where it did
    error: str = ""

    @property
    def rank(self) -> tuple[float, int]:
        """Outcomes are compared by this."""
        return self.score, self.lot


def run_one(
    train: Train, judge: Judge, candidate: Candidate, noise: float, priced: acc.Mechanism, lot: int
) -> RunOutcome:
    """Train and score one candidate.

    A failure is an outcome like any other, with the lowest score. Whether a run fails may depend on the data, so
    stopping the search because of it would be another release.
    """
    try:
        made = train(dict(candidate), noise)
        if is_training(made):
            check_plan(made, priced)
            model = _driven(made)
        else:
            model = made
        score = float(judge(model))
    except Exception as error:  # noqa: BLE001 - see above
        # What somebody else's code says when it fails may hold rows; what this library says does not.
        own = type(error).__module__.startswith("tacit.")
        told = f"{type(error).__name__}: {error}" if own else f"{type(error).__name__} (its text may hold rows)"
        return RunOutcome(candidate, None, -math.inf, lot, told)
    return RunOutcome(candidate, model, -math.inf if math.isnan(score) else score, lot)


def run_again(
    train: Train, judge: Judge, candidate: Candidate, noise: float, priced: acc.Mechanism, lot: int, secret: bytes
) -> RunOutcome:
    """:func:`run_one` as a function of its arguments: the same run, bit by bit, however often a machine loses it.

    A run that is lost and drawn anew would be a run *given that it was not lost*. Where losing it depends on the data
    (a model that grows until memory is short), nobody has priced that. So the driver draws ``secret``, once for each
    run, and training, score and everything else random in it follow from it.
    """
    # Seeds are not kept as secret as what noise is made of, so they must not tell anything about it.
    seed = hashlib.blake2b(secret, digest_size=8, person=b"tacit seeds").digest()
    with expanded(secret), seeded(int.from_bytes(seed, "big"), torch_too=True):
        return run_one(train, judge, candidate, noise, priced, lot)


def run_beside(
    train: Train, judge: Judge, candidate: Candidate, noise: float, priced: acc.Mechanism, lot: int, secret: bytes
) -> RunOutcome:
    """:func:`run_again` among threads, which share the generators of torch, numpy and ``random``.

    Those are left alone, so that a model's random start differs; sampling, noise and the score's noise repeat.
    """
    with expanded(secret):
        return run_one(train, judge, candidate, noise, priced, lot)


def is_training(made: Any) -> bool:
    """Whether this is a :class:`tacit.sgd.Training` (or walks like one) that has not run yet."""
    return all(hasattr(made, name) for name in ("plan", "step", "model", "done")) and not made.done


def check_plan(training: Any, priced: acc.Mechanism) -> None:
    """Refuse a run whose own description is not the one that was priced."""
    if training.plan.mechanism != priced:
        raise TuningError(
            f"the run is {training.plan.mechanism!r}, but {priced!r} was priced: train(candidate, noise) must build "
            "the same training every time, with noise_multiplier=noise"
        )
    if training.ledger is not None:
        raise TuningError(
            "train(candidate, noise) must not charge a ledger: give ledger= to the search, which charges once for all"
        )


def _driven(training: Any) -> Any:
    for batch in training:
        training.step(batch)
    if training.state.average is not None:
        training.model.load_state_dict(training.average, strict=False)
    return training.model


class _Nowhere(io.TextIOBase):
    def write(self, text: str) -> int:
        return len(text)

    def writable(self) -> bool:
        return True


@contextlib.contextmanager
def silence() -> Iterator[TextIO]:
    """Standard output and error, logging and warnings go nowhere; gives back the true standard error.

    What candidate runs would print tells how many there were and how they went.
    """
    out, err, level = sys.stdout, sys.stderr, logging.root.manager.disable
    sys.stdout = sys.stderr = _Nowhere()
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield err
    finally:
        sys.stdout, sys.stderr = out, err
        logging.disable(level)


@contextlib.contextmanager
def clock(stream: TextIO, *, wanted: bool) -> Iterator[None]:
    """Elapsed time on a terminal, and nothing else: a bar would tell how many runs there are."""
    if not wanted:
        yield
        return
    began, ended = time.monotonic(), threading.Event()

    def tick() -> None:
        while not ended.wait(1.0):
            seconds = int(time.monotonic() - began)
            stream.write(f"\r\033[Ksearching  {seconds // 60}:{seconds % 60:02d}")
            stream.flush()

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        stream.write("\r\033[K")
        stream.flush()
