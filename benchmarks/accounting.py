"""How fast is a certified ε? CPU time of tacit, dp-accounting (PLD, 1e-4) and Opacus (PRV) for the same runs.

    python -m benchmarks accounting [--repeat N] [--json FILE] [--ours]

Everything is timed in one process on one thread, with noise that differs at every call, so that no cache can help. The
median of the repetitions is shown. Cold starts and imports are the CPU time of a fresh process. Returns 1 where a
target is missed; ``--ours`` leaves the peers, and the targets that are ratios to them, out.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # before numpy is imported: CPU time of several threads would add up

from tacit import accounting as acc  # noqa: E402

B = 256 / 60000
#: name: (parts as (rate, noise, steps), ε of a Laplace part, δ, least ratio to dp-accounting)
CASES: dict[str, tuple[list[tuple[float, float, int]], float, float, float]] = {
    "a3": ([(0.01, 2.0, 72824)], 0.0, 1e-5, 10),
    "b": ([(B, 1.1, 3515)], 0.0, 1e-5, 3),
    "c": ([(4096 / 50000, 3.0, 2468)], 0.0, 1e-5, 10),
    "h": ([(0.01, 1.0, 1000), (0.02, 0.8, 500)], 0.1, 1e-5, 3),
    "million": ([(0.001, 0.8, 10**6)], 0.0, 1e-5, 10),
}


def cpu(work: Callable[[int], Any], repeat: int) -> tuple[float, Any]:
    """Median CPU seconds of ``work(i)`` with a different i every time, and what the last call gave."""
    taken, result = [], None
    for i in range(repeat):
        start = time.process_time()
        result = work(i)
        taken.append(time.process_time() - start)
    return statistics.median(taken), result


def process(code: list[str], repeat: int = 3) -> float:
    """Least CPU seconds (user and system) of a fresh process."""
    taken = []
    for _ in range(repeat):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(code, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(taken)


def run_of(parts: list[tuple[float, float, int]], laplace: float, shift: float) -> acc.Mechanism:
    total: acc.Mechanism = acc.nothing()
    for rate, noise, steps in parts:
        total = total + acc.PoissonSampled(acc.Gaussian(noise + shift), rate) * steps
    return total + acc.Laplace(1 / laplace) if laplace else total


def pld_epsilon(parts: list[tuple[float, float, int]], laplace: float, delta: float, shift: float) -> float:
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant(value_discretization_interval=1e-4)
    for rate, noise, steps in parts:
        step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise + shift))
        accountant.compose(step, steps)
    if laplace:
        accountant.compose(dp_accounting.LaplaceDpEvent(1 / laplace))
    return float(accountant.get_epsilon(delta))


def prv_epsilon(parts: list[tuple[float, float, int]], laplace: float, delta: float, shift: float) -> float:
    from opacus.accountants import PRVAccountant

    if laplace:
        raise NotImplementedError
    accountant = PRVAccountant()
    accountant.history = [(noise + shift, rate, steps) for rate, noise, steps in parts]
    return float(accountant.get_epsilon(delta))


def pld_noise(epsilon: float) -> float:
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    def event(noise: float) -> Any:
        step = dp_accounting.PoissonSampledDpEvent(B, dp_accounting.GaussianDpEvent(noise))
        return dp_accounting.SelfComposedDpEvent(step, 3515)

    bracket = dp_accounting.ExplicitBracketInterval(0.5, 2.0)  # close to the answer, in the peer's favour
    make = lambda: PLDAccountant(value_discretization_interval=1e-4)  # noqa: E731
    return float(dp_accounting.calibrate_dp_mechanism(make, event, epsilon, 1e-5, bracket))


def prv_noise(epsilon: float) -> float:
    from opacus.accountants.utils import get_noise_multiplier

    found = get_noise_multiplier(target_epsilon=epsilon, target_delta=1e-5, sample_rate=B, steps=3515, accountant="prv")
    return float(found)


def our_noise(epsilon: float) -> float:
    return acc.calibrate(lambda noise: acc.PoissonSampled(acc.Gaussian(noise), B) * 3515, epsilon=epsilon, delta=1e-5)


class Table:
    """Rows of figures with the targets they must meet."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(self, what: str, ours: float, peers: dict[str, float | None], note: str = "", **targets: float) -> None:
        ratios = {peer: value / ours for peer, value in peers.items() if value is not None}
        met = all(ours <= limit for name, limit in targets.items() if name == "at_most")
        met = met and all(ratios[peer] >= least for peer, least in targets.items() if peer in ratios)
        self.rows.append({"what": what, "ours": ours, "peers": peers, "ratios": ratios, "note": note, "met": met})
        print(self._line(self.rows[-1], targets), flush=True)

    def _line(self, row: dict[str, Any], targets: dict[str, float]) -> str:
        cells = [f"{row['what']:<34} {row['ours'] * 1e3:9.1f} ms"]
        for peer, value in row["peers"].items():
            if value is None:
                cells.append(f"{peer}      fails")
            else:
                wanted = f" (target {targets[peer]:g})" if peer in targets else ""
                cells.append(f"{peer} {value * 1e3:9.1f} ms = {row['ratios'][peer]:6.1f}x{wanted}")
        if "at_most" in targets:
            cells.append(f"target at most {targets['at_most'] * 1e3:.0f} ms")
        if row["note"]:
            cells.append(row["note"])
        return "  ".join(cells) + ("" if row["met"] else "  MISSED")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=7, help="repetitions of ours (peers: at most 3)")
    parser.add_argument("--json", type=Path, help="write the figures to a file as well")
    parser.add_argument("--ours", action="store_true", help="leave the peers out")
    options = parser.parse_args(argv)
    few = min(3, options.repeat)
    table = Table()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the peers' own
        if not options.ours:  # their imports and first calls are not what is timed
            pld_epsilon([(0.01, 3.0, 10)], 0.0, 1e-5, 0.0)
            prv_epsilon([(0.01, 3.0, 10)], 0.0, 1e-5, 0.0)
        for name, (parts, laplace, delta, least) in CASES.items():
            ours, bound = cpu(
                lambda i, p=parts, e=laplace, d=delta: acc.epsilon(run_of(p, e, 1e-6 * i), d), options.repeat
            )
            peers: dict[str, float | None] = {}
            if not options.ours:
                peers["PLD"] = cpu(lambda i, p=parts, e=laplace, d=delta: pld_epsilon(p, e, d, 1e-6 * i), few)[0]
                peers["PRV"] = None
                if not laplace:
                    peers["PRV"] = cpu(lambda i, p=parts, d=delta: prv_epsilon(p, 0.0, d, 1e-6 * i), few)[0]
            table.add(f"epsilon, case {name}", ours, peers, f"width {bound.width:.0e}", PLD=least)
        ours, noise = cpu(lambda i: our_noise(3.0 + 1e-6 * i), options.repeat)
        peers = {}
        if not options.ours:
            peers = {"PLD": cpu(lambda i: pld_noise(3.0), 1)[0], "PRV": cpu(lambda i: prv_noise(3.0), 1)[0]}
        table.add("noise for epsilon 3, case b", ours, peers, f"noise {noise:.6f}", PLD=10, PRV=10)
    ours, curve = cpu(
        lambda i: acc.epsilon_over_steps(acc.PoissonSampled(acc.Gaussian(1.1 + 1e-6 * i), B), 10_000, 1e-5), few
    )
    table.add("epsilon after each of 10,000 steps", ours, {}, f"{len(curve):,} counts priced", at_most=1.0)
    start = {"PLD": "import dp_accounting.pld", "PRV": "import opacus.accountants"} if not options.ours else {}
    imports = {peer: process([sys.executable, "-c", code]) for peer, code in start.items()}
    table.add("import", process([sys.executable, "-c", "import tacit.accounting"]), dict(imports), at_most=0.25)
    words = "epsilon --noise 1.1 --batch 256 --examples 60000 --epochs 15 --delta 1e-5"
    cold = process([sys.executable, "-c", "from tacit.cli import main; main()", *words.split()])
    table.add("cold process: tacit epsilon", cold, {}, at_most=0.6)
    if options.json:
        options.json.write_text(json.dumps(table.rows, indent=2) + "\n", encoding="utf-8")
    return 0 if all(row["met"] for row in table.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
