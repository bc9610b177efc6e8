"""Would the selftest notice? Tries mutants of the source against the scenes that run them.

The scenes are run once over the source as it is, each in a fork, and note which mutants they ask for. Then each mutant
meets the scenes that asked for it, quick ones first, until one raises an alarm. What a scene was written for plays no
part, so mutants that nobody had in mind measure how much the scenes see.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools.mutate.rules import Mutant

#: A scene that takes longer, over a mutant or not, is stopped and has noticed nothing.
PATIENCE = 240.0


def _import(tree: Path) -> Any:
    """What the scenes need, imported and not used: what a library starts when it is used does not survive a fork."""
    os.environ["PYTHONPATH"] = f"{tree / 'src'}{os.pathsep}{tree}"
    os.chdir(tree)
    sys.path[:] = [str(tree / "src"), str(tree), *(one for one in sys.path if one not in ("", str(tree.parents[1])))]
    for name in ("transformers", "peft", "lightning.pytorch", "sklearn.linear_model", "polars"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    importlib.import_module("torch").set_num_threads(1)
    importlib.import_module("tacit.selftest.battery").battery()
    return importlib.import_module("mutant_switch")


def _apart(work: Callable[[], Any], patience: float) -> Any:
    """What a function returns in a fork; None where it says nothing in time."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)

    def run() -> None:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        there.send(work())

    child = context.Process(target=run)
    child.start()
    there.close()
    found = None
    if here.poll(patience):
        with contextlib.suppress(EOFError):
            found = here.recv()
    if child.pid:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, 9)
    child.join()
    return found


def measure(every: list[Mutant], chosen: list[Mutant], tree: Path, known: Path, names: list[str]) -> int:
    """Try mutants against the scenes and print which noticed each.

    Args:
        every: All mutants of the tree, by number.
        chosen: Those to try.
        tree: The copy of the tree (:mod:`tools.mutate.switch`).
        known: Where the results are kept: what noticed a mutant, and what did not while the source was the same.
        names: Only scenes whose names begin so; all where there is none.

    Returns:
        0.
    """
    switch = _import(tree)
    battery = importlib.import_module("tacit.selftest.battery").battery()
    findings_of = importlib.import_module("tacit.selftest.examination").findings_of
    significance = importlib.import_module("tacit.selftest.scene").SIGNIFICANCE
    numbers = {one.id: number for number, one in enumerate(every)}
    asked_file = known.with_suffix(".asked")

    def look(name: str, number: int) -> Callable[[], tuple[str, list[int], float]]:
        def work() -> tuple[str, list[int], float]:
            asked_file.unlink(missing_ok=True)
            os.environ |= {"MUTANT_ON": str(number), "MUTANT_ASKED": str(asked_file)}
            switch.on, began = number, sum(os.times()[:4])
            switch.asked.clear()
            bad = [f for f in findings_of(battery[name], 0) if not f.passes(significance)]
            asked = set(switch.asked)
            if asked_file.exists():
                asked |= {int(line) for line in asked_file.read_text().split()}
            return bad[0].check if bad else "", sorted(asked), sum(os.times()[:4]) - began

        return work

    scenes = [name for name in battery if not battery[name].missing() and (not names or name.startswith(tuple(names)))]
    source = sorted((tree / "src" / "tacit").rglob("*.py"))
    state = hashlib.sha256("".join(path.read_text(encoding="utf-8") for path in source).encode()).hexdigest()
    ran = _recorded(scenes, every, look, state, known.with_suffix(".scenes.json"))
    results = json.loads(known.read_text()) if known.exists() else {}
    for one in chosen:
        entry = results[one.id] = known_of(results.get(one.id, {}), state)
        meets = [name for name in ran if one.id in ran[name][0] and name not in entry["passed"]]
        began = time.monotonic()
        for name in sorted(meets, key=lambda name: (battery[name].room != one.room, ran[name][1])):
            if entry["caught"]:
                break
            found = _apart(look(name, numbers[one.id]), PATIENCE)
            if found is not None and found[0]:
                entry["caught"] = f"{name}: {found[0]}"
            else:
                entry["passed"].append(name)
        known.write_text(json.dumps(results, indent=1) + "\n")
        said = entry["caught"] or f"NOT NOTICED by {len(entry['passed'])} scenes"
        print(f"{time.monotonic() - began:6.1f} s  {one.id}  {said}", flush=True)
    told = [results[one.id] for one in chosen]
    met, noticed = sum(bool(one["caught"] or one["passed"]) for one in told), sum(bool(one["caught"]) for one in told)
    print(f"{noticed} of {len(told)} mutants noticed by a scene ({met} of them are run by one)")
    return 0


def known_of(entry: dict[str, Any], state: str) -> dict[str, Any]:
    """What is known of a mutant: a scene that did not notice it in another state of the source may notice it now.

    Args:
        entry: What was written down.
        state: The hash of the source now.

    Returns:
        The same, or nothing yet.
    """
    if entry.get("caught") or entry.get("state") == state:
        return entry
    return {"caught": "", "passed": [], "state": state}


def _recorded(
    scenes: list[str], every: list[Mutant], look: Callable[[str, int], Any], state: str, file: Path
) -> dict[str, tuple[set[str], float]]:
    """Which mutants each scene asks for, and its seconds; what is in the file was recorded over the same source."""
    kept = json.loads(file.read_text()) if file.exists() else {}
    kept = kept if kept.get("state") == state else {"state": state, "scenes": {}}
    for name in scenes:
        if name not in kept["scenes"]:
            alarm, asked, seconds = _apart(look(name, -1), PATIENCE) or ("it did not end", [], 0.0)
            print(f"{seconds:6.1f} s  {name}{f'  ALARM without a mutant: {alarm}' if alarm else ''}", flush=True)
            if not alarm:
                kept["scenes"][name] = [sorted(every[number].id for number in asked), round(seconds, 1)]
                file.write_text(json.dumps(kept) + "\n")
    return {name: (set(kept["scenes"][name][0]), kept["scenes"][name][1]) for name in scenes if name in kept["scenes"]}
