"""Does tacit clip published models rightly? Judges the wide zoo: ``python -m tools.zoo [--library NAME] [NAME ...]``

Every member is judged in a process of its own with a time limit (``tests/sgd/zoo_wide``). What is known is kept in
``benchmarks/results/zoo.json`` as it is found, so that a run can stop and go on: members that were judged with
this source of ``tacit.sgd`` are left out. The page ``docs/results/zoo.md`` is made from that file.
"""

from __future__ import annotations

import argparse
import collections
import fcntl
import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
STATE = ROOT / "benchmarks" / "results" / "zoo.json"
LOCK = Path(tempfile.gettempdir()) / "tacit-zoo.lock"
PAGE = ROOT / "docs" / "results" / "zoo.md"
BEGIN, END = "<!-- the tables are made by python -m tools.zoo -->", "<!-- end of the tables -->"
LIMIT = 150.0
VERDICTS = ("right", "refused", "mixed", "wrong", "crash", "too slow", "not built")


def judged(library: str, name: str) -> dict[str, Any]:
    """The verdict on one member, in this process."""
    from tests.sgd.zoo_wide import NotBuilt, build
    from tests.sgd.zoo_wide.judge import judge

    def late(*_: Any) -> None:
        raise NotBuilt(f"to make it and to run it plainly takes more than {LIMIT / 2:.0f} s")

    signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, LIMIT / 2)

    def made() -> Any:
        case, where = build(library, name), os.environ.get("ZOO_DEVICE", "cpu")
        case.model.to(where)
        case.batches = tuple({k: v.to(where) for k, v in batch.items()} for batch in case.batches)  # type: ignore[assignment]
        return case

    try:
        case = made()
        found = judge(case, lambda: signal.setitimer(signal.ITIMER_PROF, 0))
        if found["verdict"] in ("wrong", "mixed", "refused") and "types" in case.notes:
            case = made()  # rounding or a fault? 64 bits tell
            del case.notes["types"]
            found = judge(case)
        return {"class": case.notes.get("class", name)} | found
    except NotBuilt as error:
        return {"verdict": "not built", "message": str(error)}


def _child(library: str, name: str, out: int) -> None:
    """Judge in a forked process and write the verdict."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        found = judged(library, name)
    except BaseException as error:  # noqa: BLE001 - the parent writes down whatever happened
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(where.filename).name}:{where.lineno}"
        found = {"verdict": "not built", "message": f"{type(error).__name__}: {error} ({place})"}
    os.write(out, json.dumps(found).encode()[:60_000])
    os._exit(0)


def spent(pid: int, start: float) -> float:
    """Seconds of processor time that a process has taken; of the clock, where the system does not tell."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except OSError:
        return time.monotonic() - start
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def run(members: list[tuple[str, str]], seconds: float, jobs: int, keep: Any) -> None:
    """Judge members in processes of their own, some at a time.

    Args:
        members: Library and name of each.
        seconds: Begin none after so many seconds.
        jobs: How many at a time.
        keep: Called with library, name and verdict of each.
    """
    began, waiting = time.monotonic(), collections.deque(members)
    running: dict[int, tuple[int, str, str, float]] = {}
    while waiting or running:
        while waiting and len(running) < jobs and time.monotonic() - began < seconds:
            library, name = waiting.popleft()
            read, write = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(read)
                _child(library, name, write)
            os.close(write)
            running[read] = (pid, library, name, time.monotonic())
        if not running:
            return
        ready, _, _ = select.select(list(running), [], [], 1.0)
        for pipe, (pid, library, name, start) in list(running.items()):
            took = spent(pid, start)
            late = took > LIMIT
            if pipe not in ready and not late:
                continue
            if pipe not in ready:
                os.kill(pid, signal.SIGKILL)
                found: dict[str, Any] = {"verdict": "too slow", "message": f"more than {LIMIT:.0f} s"}
            else:
                words = os.read(pipe, 65_536)
                found = json.loads(words) if words else {"verdict": "crash", "message": "the process died"}
            os.waitpid(pid, 0)
            os.close(pipe)
            del running[pipe]
            keep(library, name, found | {"seconds": round(took, 1)})


def state() -> dict[str, Any]:
    """What is known."""
    if not STATE.exists():
        return {"members": {}}
    found: dict[str, Any] = json.loads(STATE.read_text(encoding="utf-8"))
    return found


def save(known: dict[str, Any]) -> None:
    """Write what is known."""
    STATE.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def share(verdicts: list[str]) -> tuple[int, int]:
    """How many are right, of those that were built and do not mix."""
    counted = [v for v in verdicts if v not in ("mixed", "not built")]
    return counted.count("right"), len(counted)


def tables(known: dict[str, Any]) -> str:
    """The tables of the page.

    Args:
        known: What :func:`state` returns.

    Returns:
        Their lines.
    """
    members = known["members"]
    libraries = list(dict.fromkeys(map(library_of, sorted(members))))
    lines = [
        "| library | tried | right | refused | mixed | wrong | crash | too slow | right of those that do not mix |"
    ]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    for library in [*libraries, "all"]:
        own = [m for k, m in members.items() if library in ("all", library_of(k))]
        found = [m["verdict"] for m in own]
        good, of = share(found)
        version = "" if library == "all" else " " + ", ".join(sorted({m["version"] for m in own}))
        counts = [sum(v != "not built" for v in found), *(found.count(v) for v in VERDICTS[:-1])]
        cells = " | ".join(str(c) for c in counts)
        lines.append(f"| {library}{version} | {cells} | {good / max(of, 1):.1%} |")
    lines += [
        "",
        "| last change of `tacit.sgd` when judged | torch | members | right | not built |",
        "|---|---|---|---|---|",
    ]
    groups = collections.Counter((m["commit"], m["torch"]) for m in members.values())
    for (commit, torch), count in groups.most_common():
        verdicts = [m["verdict"] for m in members.values() if (m["commit"], m["torch"]) == (commit, torch)]
        right, absent = verdicts.count("right"), verdicts.count("not built")
        lines.append(f"| {commit} | {torch} | {count} | {right} | {absent} |")
    lines.append("")
    for verdict, words in SECTIONS.items():
        chosen = {k: m for k, m in sorted(members.items()) if m["verdict"] == verdict}
        if chosen:
            lines += [f"## {words}", "", "| model | class | what was seen |", "|---|---|---|"]
            lines += [f"| {k} | {m.get('class', '')} | {seen(m)} |" for k, m in chosen.items()] + [""]
    return "\n".join(lines).rstrip()


def library_of(member: str) -> str:
    """The library of ``library/name``."""
    return member.partition("/")[0]


SECTIONS = {
    "wrong": "Wrong",
    "crash": "Crashes",
    "too slow": "Too slow to judge",
    "mixed": "Truly mixed",
    "refused": "Refused",
    "not built": "Not built",
}


def seen(member: dict[str, Any]) -> str:
    """One line on a member: the measurement of a mix, or the beginning of a message."""
    message = " ".join(str(member.get("message", "")).split()).replace("|", "/").replace("<", "‹").replace(">", "›")
    message = message.replace("`", "'").replace("*", "∗").replace("_", r"\_")[:160]
    if member["verdict"] == "mixed":
        return f"another example moves its loss or gradient by {member['mixing']:.1e} of it"
    if member["verdict"] == "wrong":
        return f"off by {member.get('off', 0):.1e}; moved by others {member.get('mixing', 0):.1e}; {message}"
    return message


def write_page(known: dict[str, Any]) -> None:
    """Put the tables into the page.

    Args:
        known: What :func:`state` returns.
    """
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{tables(known)}\n\n{END}{rest.split(END)[1]}", encoding="utf-8")


def choose() -> None:
    """Choose the members of timm and torchvision anew."""
    from tests.sgd.zoo_wide import images, vision

    found = {"timm": images.choose(), "torchvision": vision.choose()}
    images.CHOSEN.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def warm(libraries: list[str]) -> None:
    """Import what all children need, once."""
    import torch

    torch.set_num_threads(1)
    from tests.sgd.zoo_wide import judge, rules

    assert judge
    for library in libraries:
        rules(library)
    if {"transformers", "peft"} & set(libraries):
        import transformers.models.bart.modeling_bart
        import transformers.models.bert.modeling_bert
        import transformers.models.mixtral.modeling_mixtral  # noqa: F401
    if "timm" in libraries:
        import timm  # noqa: F401


def wanted(known: dict[str, Any], wish: argparse.Namespace, commit: str) -> list[tuple[str, str]]:
    """The members to judge; what was not right, or never judged, comes first."""
    from tests.sgd import zoo_wide

    def asked(library: str, name: str) -> bool:
        old = known["members"].get(f"{library}/{name}", {})
        if wish.names:
            return f"{library}/{name}" in wish.names
        if wish.verdict and old.get("verdict") != wish.verdict:
            return False
        return wish.again or old.get("commit") != commit

    libraries = [wish.library] if wish.library else list(zoo_wide.LIBRARIES)
    todo = [(lib, name) for lib in libraries for name in zoo_wide.members(lib) if asked(lib, name)]
    if wish.sample is not None:
        return random.Random(wish.sample).sample(todo, len(todo))
    return sorted(todo, key=lambda m: known["members"].get("/".join(m), {}).get("verdict") == "right")


def judge_all(known: dict[str, Any], wish: argparse.Namespace) -> None:
    """Judge what is wanted and keep what is found.

    Args:
        known: What :func:`state` returns; it is added to.
        wish: The command line.
    """
    from tests.sgd import zoo_wide

    words = ["git", "log", "-1", "--format=%h", "--", "src/tacit/sgd"]
    commit = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    todo = wanted(known, wish, commit)
    warm(sorted({library for library, _ in todo}))
    versions = zoo_wide.versions()

    def keep(library: str, name: str, found: dict[str, Any]) -> None:
        print(f"{library}/{name}: {found['verdict']} {seen(found)} ({found['seconds']} s)", flush=True)
        with LOCK.open("w") as lock:  # another run may add to the file meanwhile
            fcntl.flock(lock, fcntl.LOCK_EX)
            known.update(state())
            facts = {"commit": commit, "torch": versions["torch"], "version": versions[library]}
            known["members"][f"{library}/{name}"] = found | facts
            save(known)

    run(todo, wish.seconds, wish.jobs, keep)


def main() -> int:
    """Do what the command line says.

    Returns:
        1 where a model was wrong or crashed, 0 otherwise.
    """
    parser = argparse.ArgumentParser(prog="python -m tools.zoo", description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="these members (LIBRARY/NAME); otherwise all")
    parser.add_argument("--library", help="only this library: transformers, timm, torchvision or peft")
    parser.add_argument("--verdict", help="only members that had this verdict before")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no model after so many seconds")
    parser.add_argument("--sample", type=int, help="in a random order of this seed: what is judged in time is a sample")
    parser.add_argument("--jobs", type=int, default=1, help="how many models at a time (1)")
    parser.add_argument("--device", default="cpu", help="where the models run (cpu)")
    parser.add_argument("--again", action="store_true", help="also what was judged at this commit")
    parser.add_argument("--table", action="store_true", help="only write the tables anew")
    parser.add_argument("--choose", action="store_true", help="only choose the members of timm and torchvision anew")
    wish = parser.parse_args()
    os.environ["ZOO_DEVICE"] = wish.device
    if wish.choose:
        choose()
        return 0
    known = state()
    if not wish.table:
        judge_all(known, wish)
    if PAGE.exists():
        write_page(known)
    return int(any(m["verdict"] in ("wrong", "crash") for m in known["members"].values()))


if __name__ == "__main__":
    sys.exit(main())
