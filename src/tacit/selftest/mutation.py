"""Would a broken version be caught? Every mutant is run against the scenes until one of them raises an alarm.

The scenes that look at what a mutant breaks come first, the quick ones of them before the others; the rest follow only
where none of these noticed. Each mutant lives in a process of its own, so that two are tried at a time and nothing of a
mutant stays. These are forked from one that has imported everything and run nothing: pools of threads, such as that of
polars, do not survive a fork.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import importlib
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from tacit.audit.findings import Finding
from tacit.selftest.battery import battery
from tacit.selftest.examination import findings_of
from tacit.selftest.mutants import MUTANTS, Mutant
from tacit.selftest.scene import SIGNIFICANCE

#: Mutants that are tried at a time.
AT_ONCE = max(1, min(2, os.cpu_count() or 1))
#: A mutant that takes longer than this many seconds is not caught.
PATIENCE = 900.0


@dataclasses.dataclass(frozen=True)
class MutantOutcome:
    """One row of the selftest: which broken version was tested, and which check caught it.

    Args:
        name: Name of the mutant.
        family: What the mutant breaks: ``noise``, ``sensitivity``, ``sampling``, ``accounting`` or ``ranks``.
        room: The room that it breaks.
        caught_by: The check that caught it; empty if none did.
        detail: What that check saw.
        p_value: The p-value of that check; 1 if none caught it.
        seconds: How long the test took.
        skipped: Why it was not tested: a package that it needs is not installed. Empty if it was.
        later: Whether the mutant was written after the checks were frozen.

    Example:
        >>> outcome = MutantOutcome("noise × 0.9", "noise", "sgd", "noise variance", "standard deviation 0.9", 0.0, 2.1)
        >>> outcome.caught, outcome.good
        (True, True)
    """

    name: str
    family: str
    room: str
    caught_by: str
    detail: str
    p_value: float
    seconds: float
    skipped: str = ""
    later: bool = False

    @property
    def caught(self) -> bool:
        """Whether a check caught it."""
        return bool(self.caught_by)

    @property
    def good(self) -> bool:
        """Whether nothing is wrong: the mutant was caught, or could not be tested here."""
        return self.caught or bool(self.skipped)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return dataclasses.asdict(self) | {"caught": self.caught, "good": self.good}


#: Which scenes of ``sgd`` run first, by what a mutant breaks.
FIRST = {
    "noise": ("noise",),
    "sampling": ("sampling", "steps", "kinds: samplers"),
    "accounting": ("prices", "stopping", "charges", "resume"),
    "sensitivity": ("bounded", "rules"),
    "ranks": ("ranks",),
}


def first_failure(seed: int, mutant: Mutant, took: Mapping[str, float] | None = None) -> Finding | None:
    """The first finding that raises an alarm at its part of the family-wise significance; None if none does.

    ``took`` says how long each scene took before, so that quick ones come first.
    """
    scenes, seconds = battery(), took or {}

    def order(name: str) -> tuple[bool, float]:
        if mutant.scenes or mutant.room == "sgd":
            later = not name.startswith(mutant.scenes or FIRST[mutant.family])
        else:
            later = scenes[name].room != mutant.room
        return later, seconds.get(name, 0.0)

    for name in sorted(scenes, key=order):
        if scenes[name].missing():
            continue
        for finding in findings_of(scenes[name], seed):
            if not finding.passes(SIGNIFICANCE):
                return finding
    return None


def forget() -> None:
    """Empty tacit's caches: they hold what the right version computed.

    A mutant of an inner function would be tried against prices that were computed before it was put in place.
    """
    gc.unfreeze()  # whoever froze what was there would hide it
    for thing in gc.get_objects():
        if type(thing) is functools._lru_cache_wrapper and thing.__module__.startswith("tacit."):
            thing.cache_clear()


def run_one(mutant: Mutant, seed: int = 0, took: Mapping[str, float] | None = None) -> MutantOutcome:
    """Test one mutant."""
    began = time.monotonic()
    absent = mutant.missing()
    found = None
    if not absent:
        forget()
        with mutant.apply():
            found = first_failure(seed, mutant, took)
        forget()
    skipped = f"{', '.join(absent)} is not installed" if absent else ""
    return _outcome(mutant, found, time.monotonic() - began, skipped)


def _outcome(mutant: Mutant, found: Finding | None, seconds: float, skipped: str = "") -> MutantOutcome:
    check, detail, p_value = ("", "", 1.0) if found is None else (found.check, found.detail, found.p_value)
    return MutantOutcome(
        mutant.name, mutant.family, mutant.room, check, detail, p_value, seconds, skipped, mutant.later
    )


def try_mutants(
    seed: int = 0,
    names: tuple[str, ...] | None = None,
    tell: Callable[[str], None] = lambda name: None,
    took: Mapping[str, float] | None = None,
) -> Iterator[MutantOutcome]:
    """Break tacit in many ways, two at a time, and see whether each is caught.

    That tacit as it is passes every check is for :func:`examine` to show. ``tacit selftest`` does both.

    Args:
        seed: Seed of the made-up data; noise is always fresh.
        names: Parts of the names of mutants to test; None tests them all, which takes minutes.
        tell: Called with the name of each mutant before it is tested.
        took: Seconds of each scene, as :func:`examine` measured them: quick scenes come first. It may be filled until
            the first outcome is asked for.

    Returns:
        An iterator that yields one outcome per mutant, as soon as it is known.

    Raises:
        ValueError: If no mutant has one of ``names`` in its name.

    Example:
        >>> from tacit.selftest import try_mutants
        >>> outcomes = try_mutants(names=("noise × 0.5",))  # nothing runs before the first outcome is asked for
        >>> [outcome.good for outcome in outcomes]  # doctest: +SKIP
        [True]
    """
    return _in_turn([mutant.name for mutant in chosen_mutants(names)], seed, tell, took)


def chosen_mutants(names: tuple[str, ...] | None) -> list[Mutant]:
    """The mutants with one of these in their names."""
    chosen = [m for m in MUTANTS.values() if names is None or any(n.lower() in m.name.lower() for n in names)]
    if names is not None and not chosen:
        raise ValueError(f"no mutant has {' or '.join(names)} in its name; there are: {', '.join(MUTANTS)}")
    return chosen


def _in_turn(
    names: list[str], seed: int, tell: Callable[[str], None], took: Mapping[str, float] | None
) -> Iterator[MutantOutcome]:
    if AT_ONCE == 1 or "fork" not in multiprocessing.get_all_start_methods():
        for name in names:
            tell(name)
            yield run_one(MUTANTS[name], seed, took)
        return
    here, there = multiprocessing.Pipe(duplex=False)
    work = f"from tacit.selftest import mutation; mutation.keep({there.fileno()})"
    keeper = subprocess.Popen(
        [sys.executable, "-c", work], stdin=subprocess.PIPE, pass_fds=(there.fileno(),), text=True
    )
    there.close()
    assert keeper.stdin is not None
    keeper.stdin.write(json.dumps([names, seed, dict(took or {})]))
    keeper.stdin.close()
    left = set(names)
    try:
        while left:
            said = here.recv()
            if isinstance(said, str):
                tell(said)
                continue
            left.discard(said.name)
            yield said
    except EOFError:
        raise RuntimeError(f"the process that tries mutants ended before {', '.join(sorted(left))}") from None
    finally:
        here.close()
        keeper.terminate()
        keeper.wait()


def keep(descriptor: int) -> None:
    """In a process that has run nothing: import what the scenes need, then try the mutants that are asked for."""
    there, (names, seed, took) = Connection(descriptor), json.load(sys.stdin)
    for package in ("transformers", "peft", "lightning.pytorch", "sklearn.linear_model", "polars"):
        with contextlib.suppress(ImportError):
            importlib.import_module(package)
    torch.set_num_threads(1)
    for outcome in tried([MUTANTS[name] for name in names], seed, there.send, took):
        there.send(outcome)


def tried(
    mutants: list[Mutant], seed: int, tell: Callable[[str], None], took: Mapping[str, float] | None
) -> Iterator[MutantOutcome]:
    """Outcomes of mutants, each in a process that is forked from this one."""
    waiting, running = list(reversed(mutants)), dict[Connection, tuple[Mutant, Any, float]]()
    context = multiprocessing.get_context("fork")
    try:
        while waiting or running:
            while waiting and len(running) < AT_ONCE:
                mutant = waiting.pop()
                tell(mutant.name)
                here, there = context.Pipe(duplex=False)
                child = context.Process(target=_apart, args=(there, mutant, seed, dict(took or {})))
                child.start()
                there.close()
                running[here] = mutant, child, time.monotonic()
            ready = wait(list(running), timeout=1.0)
            for here, (mutant, child, began) in list(running.items()):
                seconds = time.monotonic() - began
                if here not in ready and seconds < PATIENCE:
                    continue
                outcome = None
                if here in ready:
                    # a process that died without a word caught nothing
                    with contextlib.suppress(EOFError):
                        outcome = here.recv()
                child.kill()
                child.join()
                here.close()
                del running[here]
                yield outcome if outcome is not None else _outcome(mutant, None, seconds)
    finally:
        for _, child, _ in running.values():
            child.kill()


def _apart(there: Connection, mutant: Mutant, seed: int, took: Mapping[str, float]) -> None:
    """In a process of its own."""
    there.send(run_one(mutant, seed, took))
    there.close()
