"""How narrow and how fast are the prices of runs that people make? A grid of 200, and the ratios to other accountants.

    python -m benchmarks prices [--every N] [--json FILE]
    python -m benchmarks prices --peers [--limit SECONDS]

The grid has DP-SGD as it is published and as it is fine-tuned (few participations, little noise), long runs, histograms
and selections beside, and every sampler. A run is good if its interval is at most 1e-4·ε + 1e-5 wide (or contains a
statement without a known worst case) and it takes less than 100 ms of CPU time. What is not good is listed. Every run
is timed once, in one process, on one thread. ``--peers`` prices some of them with dp-accounting (PLD, 1e-4), Opacus
(PRV) and PLD_accounting, where these are installed: CPU time of each answer in a fork that has imported everything, and
is ended after the limit.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import itertools
import json
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # before numpy is imported: CPU time of several threads would add up

from tacit import accounting as acc  # noqa: E402

#: Limits of a good price: CPU seconds, and the share of the grid that keeps both.
SECONDS, SHARE = 0.1, 0.99
Run = tuple[str, acc.Mechanism, float, str]


def step(noise: float, rate: float) -> acc.Mechanism:
    return acc.PoissonSampled(acc.Gaussian(noise), rate)


def grid() -> list[Run]:
    """Name, mechanism, δ and adjacency of 200 runs."""
    found: list[Run] = []

    def add(name: str, run: acc.Mechanism, delta: float = 1e-5, adjacency: str = "add-remove") -> None:
        found.append((name, run, delta, adjacency))

    # training from scratch: batches of 256 to 4,096 of 50,000, 10 to 200 epochs
    for batch, noise, epochs in itertools.product((256, 1024, 4096), (0.6, 0.8, 1.1, 2.0), (10, 50, 200)):
        add(f"train {batch} {noise} {epochs}", step(noise, batch / 50_000) * (epochs * 50_000 // batch))
    # fine-tuning: few participations
    for rate, noise, steps in itertools.product((1e-5, 1e-4, 1e-3), (0.4, 0.6, 0.8), (500, 2000, 10_000)):
        add(f"tune {rate} {noise} {steps}", step(noise, rate) * steps, 1e-6)
    for rate, noise, steps in itertools.product((1e-4, 1e-3), (0.5, 0.7), (300, 3000)):
        add(f"tune+histogram {rate} {noise} {steps}", step(noise, rate) * steps + acc.Laplace(20.0), 1e-6)
        add(f"tune+zCDP {rate} {noise} {steps}", step(noise, rate) * steps + acc.ZCDP(0.001), 1e-6)
        sampled = acc.PoissonSampled(acc.Laplace(1.0), 0.01) * 100
        add(f"tune+sampled Laplace {rate} {noise} {steps}", step(noise, rate) * steps + sampled, 1e-6)
    # long runs and small models
    for rate, noise, steps in itertools.product((1e-3, 1e-2), (1.0, 2.0, 5.0), (10**4, 10**6)):
        add(f"long {rate} {noise} {steps}", step(noise, rate) * steps)
    # histograms, choices and counts beside a run
    beside = {
        "Laplace": acc.Laplace(10.0) * 3,
        "discrete Laplace": acc.DiscreteLaplace(10.0) * 5,
        "discrete Gaussian": acc.DiscreteGaussian(20.0) * 10,
        "table": acc.Outcomes((0.3, 0.2, 0.5), (0.27, 0.22, 0.51)),
        "choices": acc.PureDP(0.01) * 20,
        "failing": acc.ApproxDP(0.1, 1e-8),
        "two histograms": acc.Laplace(10.0) + acc.Laplace(7.0) * 2,
    }
    for (name, other), noise, steps in itertools.product(beside.items(), (0.8, 1.1), (1000, 5000)):
        add(f"run+{name} {noise} {steps}", step(noise, 0.005) * steps + other)
    # queries without training
    for scale, times in itertools.product((2.0, 10.0), (1, 10, 100)):
        add(f"Laplace {scale} {times}", acc.Laplace(scale) * times)
        add(f"discrete Laplace {scale} {times}", acc.DiscreteLaplace(scale) * times)
        add(f"discrete Gaussian {scale} {times}", acc.DiscreteGaussian(scale) * times)
        add(f"Gaussian+Laplace {scale} {times}", acc.Gaussian(scale) * times + acc.Laplace(scale) * times)
    for e, times in itertools.product((0.1, 0.5), (1, 10, 100)):
        add(f"pure {e} {times}", acc.PureDP(e) * times)
        add(f"sampled pure {e} {times}", acc.PoissonSampled(acc.PureDP(e), 0.01) * (10 * times))
        add(f"answers {e} {times}", acc.RandomizedResponse(e, 4) * times, 1e-5, "replace-one")
    # other adjacencies and samplers
    for noise, steps in itertools.product((0.8, 1.1, 2.0), (500, 5000)):
        add(f"replaced {noise} {steps}", step(noise, 0.005) * steps, 1e-5, "replace-one")
        add(f"blanked {noise} {steps}", step(noise, 0.005) * steps, 1e-5, "zero-out")
        add(f"fixed size {noise} {steps}", acc.FixedSizeSampled(acc.Gaussian(noise), 256, 50_000) * steps)
        add(f"sampled Laplace {noise} {steps}", acc.PoissonSampled(acc.Laplace(noise), 0.005) * steps)
    for noise, bins, passes in ((1.0, 50, 1), (1.0, 100, 10), (1.1, 235, 15), (0.8, 1000, 10), (5.0, 50, 200)):
        add(f"balls in bins {noise} {bins} {passes}", acc.BallsInBins(acc.Gaussian(noise), bins) * passes)
    for noise in (0.8, 1.6):
        add(f"two phases {noise}", step(noise, 0.01) * 500 + step(2 * noise, 0.02) * 2000)
    return found


@dataclasses.dataclass(frozen=True)
class Row:
    """What one run costs, and how long it took to say so."""

    run: str
    lower: float
    upper: float
    seconds: float
    #: whether a worst case is known; of a statement (zCDP, Rényi) it is not, and the interval says so
    tight: bool

    @property
    def good(self) -> bool:
        narrow = self.upper - self.lower <= 1e-4 * self.upper + 1e-5
        return (narrow or not self.tight) and self.seconds < SECONDS


def priced(run: Run) -> Row:
    name, mechanism, delta, adjacency = run
    start = time.process_time()
    bound = acc.epsilon(mechanism, delta, adjacency=adjacency)
    return Row(name, bound.lower, bound.upper, time.process_time() - start, bound.tight)


def peers(limit: float) -> int:
    """CPU seconds and ε of other accountants for some runs of the grid; each answer may take ``limit`` seconds."""
    from benchmarks.accounting import pld_epsilon, prv_epsilon, run_of

    cases = {
        "train 256 1.1 15": ([(256 / 60_000, 1.1, 3515)], 0.0, 1e-5),
        "train 4096 3.0 200": ([(4096 / 50_000, 3.0, 2468)], 0.0, 1e-5),
        "tune 1e-4 0.6 2000": ([(1e-4, 0.6, 2000)], 0.0, 1e-6),
        "tune+histogram": ([(1e-4, 0.6, 2000)], 0.1, 1e-6),
        "two phases+Laplace": ([(0.01, 1.0, 1000), (0.02, 0.8, 500)], 0.1, 1e-5),
        "long 0.001 0.8 1e6": ([(0.001, 0.8, 10**6)], 0.0, 1e-5),
    }
    acc.epsilon(step(1.0, 0.1) * 3, 1e-5)
    for other in (pld_epsilon, prv_epsilon):
        _imported(functools.partial(other, [(0.1, 2.0, 3)], 0.0, 1e-5, 0.0))
    _imported(functools.partial(allocation_epsilon, 2.0, 3))
    print(f"{'run':<24}{'ours':>22}{'dp-accounting':>26}{'Opacus PRV':>26}")
    for name, (parts, laplace, delta) in cases.items():
        run = run_of(parts, laplace, 0.0)
        ours, price = _timed(functools.partial(upper_end, run, delta))
        cells = [f"{price:>11.6f} {ours * 1e3:>7.0f} ms"]
        for other in (pld_epsilon, prv_epsilon):
            cells.append(_ratio(ours, functools.partial(other, parts, laplace, delta, 0.0), limit))
        print(f"{name:<24}" + "".join(f"{cell:>24}" for cell in cells), flush=True)
    print(f"\n{'balls in bins':<24}{'ours':>22}{'PLD_accounting':>26}")
    for noise, bins in ((1.0, 10), (1.0, 100), (1.0, 1000), (0.5, 1000)):
        mechanism = acc.BallsInBins(acc.Gaussian(noise), bins)
        ours, price = _timed(functools.partial(upper_end, mechanism, 1e-5))
        theirs = _ratio(ours, functools.partial(allocation_epsilon, noise, bins), limit)
        print(f"{f'{noise} {bins}':<24}{f'{price:>11.6f} {ours * 1e3:>7.0f} ms':>24}{theirs:>24}", flush=True)
    return 0


def upper_end(run: acc.Mechanism, delta: float) -> float:
    return acc.epsilon(run, delta).upper


def allocation_epsilon(noise: float, bins: int) -> float:
    """ε at δ = 1e-5 of one record in one of ``bins`` batches, by PLD_accounting."""
    import importlib

    pld = importlib.import_module("PLD_accounting")
    return float(pld.gaussian_allocation_epsilon_range(delta=1e-5, sigma=noise, num_steps=bins)[0])


def _timed(work: Callable[[], float]) -> tuple[float, float]:
    start = time.process_time()
    value = work()
    return time.process_time() - start, value


def _imported(work: Callable[[], float]) -> None:
    with contextlib.suppress(ImportError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        work()


def _ratio(ours: float, work: Callable[[], float], limit: float) -> str:
    receiver, sender = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_answer, args=(work, sender))
    child.start()
    answer = receiver.recv() if receiver.poll(limit) else f"over {limit:g} s"
    child.kill()
    child.join()
    if isinstance(answer, str):
        return answer
    seconds, value = answer
    return f"{value:.4f} {seconds:.2f} s {seconds / ours:.1f}x"


def _answer(work: Callable[[], float], sender: Connection) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sender.send(_timed(work))
    except ImportError:
        sender.send("not installed")
    except (ArithmeticError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        sender.send(f"fails ({type(error).__name__})")


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; 1 where fewer than 99 in 100 are good."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, help="take every N-th run only")
    parser.add_argument("--json", type=Path, help="write all rows to a file")
    parser.add_argument("--peers", action="store_true", help="compare with other accountants instead")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds that an answer of a peer may take")
    options = parser.parse_args(argv)
    if options.peers:
        return peers(options.limit)
    acc.epsilon(step(1.0, 0.1) * 3 + acc.Laplace(3.0), 1e-5)  # imports
    rows = []
    for run in grid()[:: options.every]:
        row = priced(run)
        rows.append(row)
        if not row.good:
            width = row.upper - row.lower
            line = f"{row.run:<40} [{row.lower:.6f}, {row.upper:.6f}] {width:.1e} {row.seconds * 1e3:.0f} ms"
            print(line, flush=True)
    good = sum(row.good for row in rows)
    times = sorted(row.seconds for row in rows)
    print(f"{len(rows)} runs: {good} good, median {times[len(times) // 2] * 1e3:.0f} ms")
    if options.json:
        options.json.write_text(json.dumps([dataclasses.asdict(row) for row in rows], indent=1))
    return int(good < SHARE * len(rows))


if __name__ == "__main__":
    raise SystemExit(main())
