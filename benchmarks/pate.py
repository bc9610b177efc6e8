"""How many votes a second can be priced, by Theorem 6 and exactly?

Random histograms of 250 teachers over 10 classes, no two alike, so that nothing is saved by pricing equal ones once.
Targets: Theorem 6 at least 1,000,000 queries a second, exact at least 1,000, on two cores.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from tacit.pate import bounds, exact

ORDERS = [2.0, 8.0, 20.0, 32.0, 64.0]


def histograms(count: int, seed: int = 0) -> np.ndarray:
    """Votes from unanimous to split."""
    rng = np.random.default_rng(seed)
    clear = 10 ** rng.uniform(-1.5, 0.5, count)
    shares = rng.standard_gamma(np.repeat(clear[:, None], 10, axis=1)) + 1e-12
    return rng.multinomial(250, shares / shares.sum(axis=1, keepdims=True))


def best(work: object, turns: int) -> float:
    """Seconds of the quickest of some turns."""
    times = []
    for _ in range(turns):
        began = time.perf_counter()
        work()  # type: ignore[operator]
        times.append(time.perf_counter() - began)
    return min(times)


def main(argv: list[str] | None = None) -> int:
    """Print queries a second; the exit status says whether both targets were met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks pate", description=__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--theorem6", type=int, default=1_000_000, help="queries")
    parser.add_argument("--exact", type=int, default=3_000, help="queries")
    given = parser.parse_args(argv)
    many = np.concatenate([histograms(50_000, seed) for seed in range(-(-given.theorem6 // 50_000))])[: given.theorem6]
    seconds = best(lambda: bounds.theorem6(bounds.log_q(many, 40.0), 40.0, ORDERS), given.turns)
    quick = len(many) / seconds
    print(f"Theorem 6, 10 classes, 5 orders: {quick:12,.0f} queries/s")
    few = np.unique(-np.sort(-histograms(2 * given.exact), axis=1), axis=0)[: given.exact]
    seconds = best(lambda: exact.divergences(few, 40.0, ORDERS), given.turns)
    slow = len(few) / seconds
    print(f"exact, 10 classes, 5 orders:     {slow:12,.0f} queries/s")
    check = exact.Check(200.0, 150.0)
    seconds = best(lambda: exact.divergences(few, 40.0, ORDERS, check=check), given.turns)
    print(f"exact with the check:            {len(few) / seconds:12,.0f} queries/s")
    return 0 if quick >= 1e6 and slow >= 1e3 else 1


if __name__ == "__main__":
    raise SystemExit(main())
