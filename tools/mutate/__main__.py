"""``python -m tools.mutate``: make the mutants, run the tests that cover them, list what no test noticed.

``list`` prints the mutants, ``record`` notes which tests run which lines, ``run`` does everything that is not done yet
and can be stopped and started again, ``survivors`` prints what no test noticed and ``explained.toml`` does not explain.
``save`` writes which test caught which mutant into ``caught.json``; ``check`` looks whether those tests still do.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.mutate import cover, forks, judge, rules

STORE = forks.ROOT / ".mutants"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.mutate", description=__doc__.split("\n")[0])
    parser.add_argument(
        "command", nargs="?", default="run", choices=["list", "record", "run", "survivors", "save", "check"]
    )
    parser.add_argument("ids", nargs="*", help="only mutants whose id (record: test files whose path) contains one")
    parser.add_argument("--rooms", nargs="+", help="only these rooms")
    parser.add_argument("--every", action="store_true", help="every place in a function, not one of them")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (2)")
    parser.add_argument("--sample", type=int, help="so many mutants, drawn with --seed")
    parser.add_argument("--seed", default="0", help="of the sample: the same seed draws the same mutants")
    parser.add_argument("--seconds", type=float, help="begin no mutant after so many seconds")
    parser.add_argument("--again", action="store_true", help="run what was judged before again")
    parser.add_argument("--longest", type=float, default=judge.LONGEST, help="seconds of tests for one mutant (60)")
    parser.add_argument("--quick", action="store_true", help="leave out what can only be judged by changing a file")
    parser.add_argument("--unrecorded", action="store_true", help="use the record as it is, however old")
    parser.add_argument("--store", type=Path, default=STORE, help="where the record and the results are (.mutants)")
    return parser.parse_args()


def main() -> int:
    """Do what the command line says.

    Returns:
        0, or 1 where a mutant survived that is not explained.
    """
    chosen = _options()
    mutants = [one for path in rules.files(chosen.rooms) for one in rules.mutants_of(path, chosen.every)]
    if chosen.ids:
        mutants = [one for one in mutants if any(text in one.id for text in chosen.ids)]
    # In an order drawn with the seed, so that what is done when time is over is a sample.
    mutants = judge.sample(mutants, chosen.sample or len(mutants), chosen.seed)
    if chosen.command == "list":
        for one in mutants:
            print(f"{one.id}\n    {one.path}:{one.line}  {' '.join(one.old.split())}  ->  {' '.join(one.new.split())}")
        print(f"{len(mutants)} mutants in {len({one.room for one in mutants})} rooms")
        return 0
    results = judge.Results(chosen.store / "results.jsonl")
    if chosen.command == "survivors":
        return judge.report(mutants, results)
    if chosen.command == "save":
        return judge.save(mutants, results)
    if chosen.command == "check":
        forks.warm()
        trees = [forks.copy_tree(chosen.store / f"tree{number}") for number in range(chosen.jobs)]
        forks.check(trees[0])
        return judge.check(mutants, trees, chosen.seconds)
    trees = []
    forks.warm()
    todo = [] if chosen.unrecorded else cover.stale(chosen.store / "cover", chosen.rooms)
    if chosen.command == "record" and chosen.ids:
        todo = [path for path in todo if any(text in path for text in chosen.ids)]
    if todo or chosen.command == "run":
        trees = [forks.copy_tree(chosen.store / f"tree{number}") for number in range(chosen.jobs)]
    if trees:
        forks.check(trees[0])
    if todo:
        print(f"recording which tests run which lines: {len(todo)} files", flush=True)
        forks.run_all(cover.record(todo, chosen.store / "cover"), trees, judge.told)
    if chosen.command == "record":
        return 0
    known = cover.load(chosen.store / "cover")
    limits = {"seconds": chosen.seconds, "again": chosen.again, "only_quick": chosen.quick, "longest": chosen.longest}
    judge.run(mutants, known, results, trees, **limits)
    return judge.report(mutants, results)


if __name__ == "__main__":
    sys.exit(main())
