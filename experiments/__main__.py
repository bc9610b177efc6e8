"""``python -m experiments NAME``: the command for machines that have only torch, numpy and scipy."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from types import ModuleType

from experiments import GROUPS, load, members, names
from experiments.table import SIZES, Table


def main(arguments: list[str] | None = None) -> None:
    """Run one experiment; draw its plot where matplotlib is installed."""
    parser = argparse.ArgumentParser(prog="python -m experiments", description=__doc__)
    parser.add_argument("name", choices=[*names(), *GROUPS])
    parser.add_argument("--size", choices=SIZES, default=SIZES[0], help="short: five minutes on two cores; full; tiny")
    parser.add_argument("--seeds", type=int, help="how many repetitions (default: what the experiment asks for)")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder of rows, tables and plots")
    parser.add_argument("--data-dir", type=Path, help="folder of the data sets (default: TACIT_DATA)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    chosen = parser.parse_args(arguments)
    for name in members(chosen.name):
        reproduce(name, chosen.out, chosen.seeds, size=chosen.size, data=chosen.data_dir, device=chosen.device)


def reproduce(
    name: str, out: Path, seeds: int | None, *, size: str = SIZES[0], data: Path | None = None, device: str = "cpu"
) -> Table:
    """Measure the rows of an experiment that are missing, then write its table and plot."""
    experiment = load(name)
    table = Table(name, out, seeds or (experiment.SEEDS if size == "full" else 1), size, data, device)
    try:
        experiment.run(table)
    finally:  # what was measured before an error or Ctrl-C is shown, too
        if table.rows:
            show(experiment, table)
    return table


def show(experiment: ModuleType, table: Table) -> None:
    """Write table and plot of the rows that there are."""
    if hasattr(experiment, "summary"):
        text = experiment.summary(table.rows)
        (table.folder / "table.md").write_text(text + "\n", encoding="utf-8")
        print(text)
    if hasattr(experiment, "plot"):
        if importlib.util.find_spec("matplotlib") is None:
            print("no plot: matplotlib is not installed here; run the command again where it is, on the same folder")
        else:
            experiment.plot(table.rows, table.folder)
    print(f"rows, table and plots: {table.folder}")


if __name__ == "__main__":
    main()
