"""``python -m experiments NAME``: the command for machines that have only torch, numpy and scipy."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from experiments import GROUPS, load, members, names
from experiments.table import SIZES, Table


def main(arguments: list[str] | None = None) -> None:
    """Run one experiment; draw its plot where matplotlib is installed."""
    parser = argparse.ArgumentParser(prog="python -m experiments", description=__doc__)
    parser.add_argument("name", metavar="NAME", help=f"one of {', '.join([*names(), *GROUPS])}")
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
    check_device(device)
    experiment = load(name)
    table = Table(name, out, seeds or (experiment.SEEDS if size == "full" else 1), size, data, device)
    try:
        with ended_politely():
            experiment.run(table)
    finally:  # what was measured before an error, Ctrl-C or a request to end is shown, too
        if table.rows:
            show(experiment, table)
    if size == "tiny":
        print("size tiny: it shows that the experiment runs, on few or made-up rows; its figures mean nothing")
    return table


def check_device(device: str) -> None:
    """Refuse a device that is not there, before anything is read."""
    import torch

    if device != "cpu" and device.partition(":")[0] != "cuda":
        raise ValueError(f"--device is cpu or cuda, not {device!r}")
    if device != "cpu" and not torch.cuda.is_available():
        raise ValueError(f"--device {device}: torch finds no CUDA device here; leave it out to run on the CPU")


@contextlib.contextmanager
def ended_politely() -> Iterator[None]:
    """A request to end (SIGTERM, from a scheduler or ``timeout``) ends as an error does: what was measured is shown."""

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


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
