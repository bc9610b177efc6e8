"""``python -m tools.mutate``: make the mutants, run the tests that cover them, list what no test noticed.

``list`` prints the mutants, ``run`` does everything that is not done yet and can be stopped and started again,
``survivors`` prints what no test noticed and ``explained.toml`` does not explain. ``save`` writes which test caught
which mutant into ``caught.json``; ``check`` looks for a while whether those tests still do. ``selftest`` tries mutants
against the scenes of the selftest.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from tools.mutate import forks, judge, power, record, rules, switch

STORE = rules.ROOT / ".mutants"
COMMANDS = ("list", "run", "survivors", "save", "check", "selftest")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.mutate", description=__doc__.split("\n")[0])
    parser.add_argument("command", nargs="?", default="run", choices=COMMANDS)
    parser.add_argument("ids", nargs="*", help="only mutants whose id contains one")
    parser.add_argument("--rooms", nargs="+", help="only these rooms, in this order")
    parser.add_argument("--scenes", nargs="+", help="selftest: only scenes whose names begin so")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time (1)")
    parser.add_argument("--sample", type=int, help="so many mutants, drawn with --seed (check: 80)")
    parser.add_argument("--seed", help="of the sample: the same seed draws the same mutants (check: the commit)")
    parser.add_argument("--seconds", type=float, help="begin no mutant after so many seconds (check: 60)")
    parser.add_argument("--again", action="store_true", help="run what was judged before again")
    parser.add_argument("--longest", type=float, default=20.0, help="seconds of tests for one mutant (20)")
    parser.add_argument(
        "--store",
        type=lambda text: Path(text).resolve(),
        default=STORE,
        help="where the record and the results are (.mutants)",
    )
    return parser.parse_intermixed_args()


def main() -> int:
    """Do what the command line says.

    Returns:
        0, or 1 where a mutant survived that is not explained.
    """
    chosen = _options()
    every = [one for path in rules.files() for one in rules.mutants_of(path)] + rules.written()
    mutants = [one for one in every if not chosen.rooms or one.room in chosen.rooms]
    if chosen.rooms:
        mutants.sort(key=lambda one: chosen.rooms.index(one.room))
    if chosen.ids:
        mutants = [one for one in mutants if any(text in one.id for text in chosen.ids)]
    if chosen.command == "check":
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=rules.ROOT, capture_output=True, text=True)
        due = judge.due(mutants, chosen.sample or 80, chosen.seed or commit.stdout.strip())
        known = judge.Results(chosen.store / "results.jsonl")
        check = judge.Check(every, due, time.monotonic() + (chosen.seconds or 60.0), known)
        tree = switch.make_tree(chosen.store / "tree", every)
        forks.run(sorted({check.caught[one.id].test.split("::")[0] for one in due}), check.jobs, tree, chosen.jobs)
        return check.report(max(120.0, 4 * (chosen.seconds or 60.0)))
    if chosen.sample:
        mutants = judge.sample(mutants, chosen.sample, chosen.seed or "0")
    if chosen.command == "list":
        for one in mutants:
            print(f"{one.id}\n    {one.path}:{one.line}  {' '.join(one.old.split())}  ->  {' '.join(one.new.split())}")
        print(f"{len(mutants)} mutants in {len({one.room for one in mutants})} rooms")
        return 0
    if chosen.command == "selftest":
        tree = switch.make_tree(chosen.store / "scenes", every)
        return power.measure(every, mutants, tree, chosen.store / "selftest.json", chosen.scenes or [])
    results = judge.Results(chosen.store / "results.jsonl")
    if chosen.command == "survivors":
        return judge.report(mutants, results)
    if chosen.command == "save":
        return judge.save(mutants, results)
    covered = record.Record(chosen.store / "record")
    own = ("tests/catalogue/", *{place for one in mutants for place in record.beside(one)})
    covering = {test.split("::")[0] for one in mutants for test in covered.tests(one)}
    some = chosen.rooms or chosen.ids or chosen.sample
    files = [file for file in record.test_files() if not some or file in covering or file.startswith(own)]
    until = time.monotonic() + (chosen.seconds or 1e9)
    work = judge.Judge(every, mutants, files, covered, results, chosen.longest, until, chosen.again)
    known = {work.hints[one.id].test.split("::")[0] for one in mutants if one.id in work.hints}
    collected = [file for file in record.test_files() if file in {*files, *known}]
    forks.run(collected, work.jobs, switch.make_tree(chosen.store / "tree", every), chosen.jobs)
    return judge.report(mutants, results)


if __name__ == "__main__":
    sys.exit(main())
