"""How long does a price of the studio take while a slider moves? ``python -m benchmarks studio``

Each plan is dragged: its noise goes from 0.6 to 6 in eight steps, each priced as the page asks for it, with the ε that
is on the screen. Times are those of one core's work (process time), so that other work on the machine does not count.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections import defaultdict

from tacit.accounting.samplers import BATCHES
from tacit.studio import cost

#: Batch size, records, epochs.
SHAPES = ((256, 60_000, 15), (100, 1_000, 20), (1_000, 20_000, 10), (4_096, 1_281_167, 90), (512, 50_000, 300),
          (16, 60_000, 30), (1_024, 1_000_000, 3))  # fmt: skip
NOISES = tuple(0.6 * 10 ** (k / 8) for k in range(9))
ADJACENCIES = ("add-remove", "zero-out", "replace-one")


def dragged(plan: dict[str, object]) -> list[float]:
    """The seconds of each price of one drag; the page that is dragged shows a price."""
    found, told = [], cost.price(plan | {"noise": f"{NOISES[0]:.3g}"})
    for noise in NOISES[1:]:
        start = time.process_time()
        told = cost.price(plan | {"noise": f"{noise:.3g}", "rough": f"{told['epsilon']['upper']}"})
        found.append(time.process_time() - start)
    return found


def main(argv: list[str]) -> int:
    """Print the times of every sampler."""
    times: dict[str, list[float]] = defaultdict(list)
    for sampler, (batch, records, epochs), adjacency in itertools.product(BATCHES, SHAPES, ADJACENCIES):
        if (sampler, adjacency) == ("shuffled", "add-remove"):
            continue  # has no price
        plan = {"batch": batch, "records": records, "epochs": epochs, "delta": "1e-6", "sampler": sampler}
        times[sampler] += dragged(plan | {"adjacency": adjacency})
    print(f"{'sampler':<14} {'prices':>6} {'median':>8} {'95% below':>10} {'slowest':>8}  below 100 ms")
    for sampler, found in times.items():
        found.sort()
        share = sum(one < 0.1 for one in found) / len(found)
        ends = (statistics.median(found), found[int(0.95 * len(found))], found[-1])
        shown = " ".join(f"{1000 * one:>{wide}.0f}" for one, wide in zip(ends, (8, 10, 8), strict=True))
        print(f"{sampler:<14} {len(found):>6} {shown}  {share:.1%}", flush=True)
    return 0
