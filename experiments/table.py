"""Where are the measured rows of an experiment kept, and how is a run that was cut short taken up again?

:class:`Table` is what an experiment is given: its settings (size, seeds, device, where data lie), and
:meth:`Table.row`, which measures a row only if it is not in ``rows.jsonl`` yet. Each row is written as soon as it is
known, with the time it took; a torn last line, left by a kill, is measured again.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

Row = dict[str, Any]
T = TypeVar("T")
#: How much of an experiment is run; the first is what a person gets.
SIZES = ("short", "full", "tiny")


#: The rows behind the documentation.
ROWS = Path(__file__).parent / "rows"


@dataclasses.dataclass(frozen=True)
class Facts:
    """What a person wants to know before an experiment is run: every module has one, ``FACTS``, of plain constants.

    ``paper`` is author and year, or where the setting is from. ``same`` and ``differs`` say what is as published and
    what is not. ``published`` is the figure of the source. ``ours`` says how our figure is read from the kept rows:
    (words, the values that a row must have, the column whose mean over seeds is shown; ``accuracy`` in per cent, and
    the median of ``loss``, because a fit without repair can be off by any factor).
    Where no rows are kept, ``page`` has our figures. ``short`` and ``full`` are the times of the two sizes, measured.
    """

    paper: str
    same: str
    differs: str
    published: str
    short: str
    full: str
    page: str = ""
    ours: tuple[tuple[str, dict[str, Any], str], ...] = ()
    rows: str = ""

    def measured(self, name: str, folder: Path = ROWS) -> str:
        """Our figures, from the kept rows of the experiment ``name`` (or of ``rows``, where they have another name)."""
        file = folder / f"{self.rows or name}.jsonl"
        if not self.ours or not file.is_file():
            return f"docs/results/{self.page}.md" if self.page else ""
        kept = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        found, seeds = [], set()
        for words, key, column in self.ours:
            own = [float(row[column]) for row in kept if all(row.get(k) == v for k, v in key.items()) and column in row]
            if own:
                mean = statistics.median(own) if column == "loss" else mean_sd(own)[0]
                shown = f"{100 * mean:.2f}%" if column == "accuracy" else f"{mean:.4g}"
                found.append(f"{words} {shown}")
                seeds.add(len(own))
        counts = " to ".join(str(count) for count in sorted({min(seeds), max(seeds)})) if seeds else ""
        return ", ".join(found) + (f" ({counts} seed{'s' * (max(seeds) > 1)})" if seeds else "")


@dataclasses.dataclass
class Table:
    """The rows of one experiment in one folder; each size has a folder of its own.

    ``size`` is ``"short"``: at most five minutes on two cores, with figures that mean something; ``"full"``: as
    published, with all seeds; or ``"tiny"``: seconds, which shows nothing but that the experiment still runs.
    """

    name: str
    out: Path
    seeds: int
    size: str = "full"
    data: Path | None = None
    device: str = "cpu"
    say: Callable[[str], None] = print
    rows: list[Row] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ValueError(f"seeds is a positive whole number, not {self.seeds}")
        if self.size not in SIZES:
            raise ValueError(f"size is one of {', '.join(SIZES)}, not {self.size!r}")
        self.folder = self.out / (self.name if self.size == "full" else f"{self.name}-{self.size}")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.rows = self._kept()

    @property
    def tiny(self) -> bool:
        """Whether seconds are asked for."""
        return self.size == "tiny"

    def pick(self, tiny: T, short: T, full: T) -> T:
        """The one of three settings that belongs to the size."""
        return {"tiny": tiny, "short": short, "full": full}[self.size]

    @property
    def file(self) -> Path:
        """One measured row a line."""
        return self.folder / "rows.jsonl"

    def _kept(self) -> list[Row]:
        if not self.file.exists():
            return []
        text = self.file.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        if whole != text:  # a kill tore the last line
            self.file.write_text(whole, encoding="utf-8")
        return [json.loads(line) for line in whole.splitlines()]

    def row(self, measure: Callable[[], Mapping[str, Any]], **key: Any) -> Row:
        """The row with this key: the kept one, or ``measure()``, which is kept before it is returned."""
        for kept in self.rows:
            if all(kept.get(name) == value for name, value in key.items()):
                return kept
        began = time.perf_counter()
        found = {**key, **measure(), "seconds": round(time.perf_counter() - began, 2), "machine": machine(self.device)}
        line = json.dumps(found, ensure_ascii=False, allow_nan=True)
        with self.file.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.rows.append(json.loads(line))
        told = {name: value for name, value in found.items() if name not in ("machine", "mechanism")}
        self.say("  ".join(f"{name} {_short(value)}" for name, value in told.items()))
        return self.rows[-1]

    def show_kept(self, why: str) -> None:
        """Take the rows behind the documentation instead of measuring: the short size of what cannot be short."""
        self.say(why)
        text = (ROWS / f"{self.name}.jsonl").read_text(encoding="utf-8")
        self.file.write_text(text, encoding="utf-8")
        self.rows = self._kept()

    def path(self, *parts: str) -> Path:
        """A file of the data folder, with an error that says how to name that folder."""
        folder = self.data or (Path(os.environ["TACIT_DATA"]) if os.environ.get("TACIT_DATA") else None)
        if folder is None or not folder.joinpath(*parts).exists():
            where = "no folder of data sets is named" if folder is None else f"{folder} does not hold it"
            raise FileNotFoundError(
                f"{'/'.join(parts)} is needed and {where}: set TACIT_DATA, or pass --data-dir; "
                "tacit data list says what can be downloaded"
            )
        return folder.joinpath(*parts)


def _short(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def machine(device: str = "cpu") -> str:
    """What the rows were measured on, in words that name no one's machine."""
    parts = [f"{os.cpu_count()} cores", f"Python {platform.python_version()}"]
    torch = sys.modules.get("torch")
    if torch is not None:
        parts.append(f"torch {torch.__version__}")
        if device.startswith("cuda"):
            parts.insert(0, torch.cuda.get_device_name(0))
    return ", ".join(parts)


def mean_sd(values: list[float]) -> tuple[float, float]:
    """Mean and sample standard deviation over seeds; the deviation of one value is not a number.

    >>> mean_sd([1.0, 3.0])
    (2.0, 1.4142135623730951)
    """
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return mean, math.nan
    return mean, math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))


def markdown(rows: list[Row], columns: list[str]) -> str:
    """Rows as a table in Markdown; a missing value is an empty cell.

    >>> print(markdown([{"a": 1, "b": 0.25}], ["a", "b"]))
    | a | b |
    |---|---|
    | 1 | 0.25 |
    """
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(_short(row[c]) if c in row else "" for c in columns) + " |" for row in rows]
    return "\n".join(lines)
