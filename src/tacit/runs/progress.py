"""What does the operator see while a run goes on? One live line on a terminal; a few plain lines anywhere else.

The line's diagnostics are computed from private data. They are shown on a terminal, which is the operator's, and
marked; in a pipe or a file, which others may read, only the step and ε are written.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO

if TYPE_CHECKING:
    from tacit.sgd import Training

#: Seconds between two looks of the line.
EVERY = 0.1
BAR = 14
#: Where a run says how far it is, in its private folder.
PROGRESS = "progress.json"


class Interrupted(KeyboardInterrupt):
    """The operator stopped the run between two steps; the message says how it goes on."""


class Reporter(Protocol):
    """What a run calls on its way. Whoever starts one decides what becomes of it."""

    quiet: bool

    def begun(self, folder: Path) -> None:
        """The folder of the run is there: from now on the run can be resumed."""

    def note(self, text: str) -> None:
        """Something that the operator should read, in a line."""

    def follow(self, training: Training) -> Live:
        """The steps begin."""


class Told:
    """Progress on standard error: notes, and the live line unless ``quiet``.

    Where standard error is no terminal, ``every_tenth`` of the steps has a line.
    """

    def __init__(self, *, quiet: bool = False, every_tenth: bool = True) -> None:
        self.quiet, self.every_tenth = quiet, every_tenth
        self.folder: Path | None = None

    def begun(self, folder: Path) -> None:
        """Remember where the run is."""
        self.folder = folder

    def note(self, text: str) -> None:
        """One line on standard error."""
        sys.stderr.write(f"tacit: {text}\n")

    def follow(self, training: Training) -> Live:
        """The live line of these steps."""
        return Live(training, quiet=self.quiet or not (self.every_tenth or on_terminal(sys.stderr)))


def on_terminal(stream: TextIO) -> bool:
    """Whether a line can be written over on this stream."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


class Elapsed:
    """How fast a run goes on, from the end of its first step here: that one makes ready what the others use."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self.began: float | None = None
        self.first = 0

    def update(self) -> None:
        """A step has ended."""
        if self.began is None:
            self.began, self.first = time.monotonic(), self.training.steps_executed

    @property
    def seconds(self) -> float:
        """How long ago the first step here ended."""
        return 0.0 if self.began is None else time.monotonic() - self.began

    @property
    def steps(self) -> int:
        """The steps since then."""
        return 0 if self.began is None else self.training.steps_executed - self.first


class Kept:
    """How far a run is, in a small file of its private folder, for whoever watches it from outside.

    Every second, or more seldom where a price takes long: the step, ε so far, seconds, and which program runs. Nothing
    in it is computed from the data, and no run fails because the file cannot be written.
    """

    def __init__(self, training: Training, path: Path) -> None:
        self.training, self.path, self.elapsed, self.next = training, path, Elapsed(training), 0.0

    def update(self) -> None:
        """Write where the run is, if it is time."""
        self.elapsed.update()
        now, step, steps = time.monotonic(), self.training.steps_executed, self.training.plan.steps
        if now < self.next and step < steps:
            return
        bound = self.training.plan.stated.price(step)
        told = {
            "step": step,
            "steps": steps,
            "epsilon": bound.upper if math.isfinite(bound.upper) else None,
            "delta": self.training.plan.delta,
            "terms": bound.terms,
            "program": str(self.training.program),
            "seconds": self.elapsed.seconds,
            "steps_here": self.elapsed.steps,
            "time": time.time(),
        }
        beside = self.path.with_name(self.path.name + ".new")
        with contextlib.suppress(OSError):
            beside.write_text(json.dumps(told), encoding="utf-8")
            os.replace(beside, self.path)
        ended = time.monotonic()
        self.next = ended + max(1.0, 20 * (ended - now))


class Live:
    """The live line of a run."""

    def __init__(self, training: Training, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self.training, self.quiet = training, quiet
        self.stream = stream or sys.stderr
        self.terminal = on_terminal(self.stream)
        self.color = self.terminal and not os.environ.get("NO_COLOR")
        self.elapsed = Elapsed(training)
        self.shown, self.tenth = 0.0, -1
        self.counts: list[int] = []
        self.prices: list[float] = []
        if not quiet:
            self._price()

    def _price(self) -> None:
        """ε at some step counts; in between the line shows the next one up."""
        steps = self.training.plan.steps
        self.counts = sorted({max(1, round(steps * i / 40)) for i in range(41)})
        self.prices = [self.training.plan.price(count).upper for count in self.counts]

    def epsilon(self, step: int) -> float:
        """What the first ``step`` steps cost, or a little more."""
        return next((p for c, p in zip(self.counts, self.prices, strict=True) if c >= step), self.prices[-1])

    def line(self, diagnostics: dict[str, Any], ratio: float | None) -> str:
        """The live line as text."""
        step, steps = self.training.steps_executed, self.training.plan.steps
        spent, whole = self.epsilon(step), self.prices[-1]
        full = round(BAR * step / steps)
        parts = [f"step {step}/{steps}", f"ε {spent:.2f}/{whole:.2f} " + "▓" * full + "░" * (BAR - full)]
        private = []
        if "loss" in diagnostics:
            private += [f"loss {diagnostics['loss']:.3f}", f"clipped {diagnostics['clipped_fraction']:.0%}"]
        if ratio is not None:
            private.append(f"signal/noise {ratio:.2f}")
        if private:
            shown = f"operator view: {'  '.join(private)}"
            parts.append(f"\033[2m{shown}\033[22m" if self.color else shown)
        if self.elapsed.steps:
            left = self.elapsed.seconds / self.elapsed.steps * (steps - step)
            parts.append(f"ETA {int(left // 60)}:{int(left % 60):02d}")
        return "  ".join(parts)

    def update(self, diagnostics: dict[str, Any], ratio: float | None) -> None:
        """Show where the run is."""
        self.elapsed.update()
        if self.quiet:
            return
        step, steps = self.training.steps_executed, self.training.plan.steps
        if self.terminal:
            now = time.monotonic()
            if now - self.shown < EVERY and step < steps:
                return
            self.shown = now
            text = self.line(diagnostics, ratio)
            width = shutil.get_terminal_size().columns - 1
            visible = len(text) - (9 if self.color and "\033" in text else 0)
            if visible > width:  # a line that wraps cannot be written over
                text = "  ".join(text.split("  ")[:2])[:width]
            self.stream.write("\r\033[K" + text)
        else:
            tenth = 10 * step // steps
            if tenth == self.tenth:
                return
            self.tenth = tenth
            self.stream.write(f"step {step}/{steps}  ε {self.epsilon(step):.2f}/{self.prices[-1]:.2f}\n")
        self.stream.flush()

    def close(self) -> None:
        """Leave the line where it is."""
        if self.terminal and not self.quiet:
            self.stream.write("\n")
            self.stream.flush()
