"""Which way of tuning is worth its price? ``tacit reproduce tuning``, here by one task at a time.

``python -m benchmarks tuning --data census --seeds 5`` measures what is missing of one task; the rows are those of
``tacit reproduce tuning`` in the same folder.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from experiments import tuning
from experiments.table import Table
from tacit.datasets import MissingDataError


def main(argv: list[str]) -> int:
    """Measure, print the table, write the plot."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks tuning", description=__doc__)
    parser.add_argument("--data", choices=tuning.DATA, default="census")
    parser.add_argument("--seeds", type=int, default=tuning.SEEDS)
    parser.add_argument("--out", type=Path, default=Path("results"))
    options = parser.parse_args(argv)
    table = Table("tuning", options.out, options.seeds)
    try:
        tuning.run(table, (options.data,))
    except MissingDataError as missing:
        print(missing)
        return 0
    print(tuning.summary(table.rows))
    tuning.plot(table.rows, table.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
