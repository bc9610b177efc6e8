"""How do I attack the run I just made? Canaries, the implementation audit, and somebody else's code.

Run it with ``python -m examples.audit_a_run``. ``--repeats 10`` repeats the run with canaries and sums up.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import nn

from tacit.audit import Audit, audit_implementation, audit_run, audit_two_worlds, crafted
from tacit.sgd import fit

SETTINGS = {"batch_size": 800, "steps": 40, "epsilon": 4.0, "delta": 1e-5}
LOSS = nn.CrossEntropyLoss(reduction="none")


def attacked(seed: int) -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor], Audit]:
    """A run at ε = 4 in which each of 1,000 records of nobody takes part by a fair coin, and what they prove."""
    torch.manual_seed(seed)
    x = torch.randn(600, 20)
    y = (x[:, 0] + x[:, 1] > 0).long()
    model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    done = fit(model, optimizer, LOSS, (x, y), audit_canaries=1000, progress=False, **SETTINGS)
    return model, (x, y), audit_run(done)


def repeat(times: int) -> None:
    """Median and smallest of each figure."""
    figures = [dict(attacked(seed)[2].evidence.figures) for seed in range(times)]
    for name in figures[0]:
        values = [found[name] for found in figures]
        print(f"{name}: median {np.median(values):.2f}, smallest {min(values):.2f} of {times}")


def main() -> None:
    """Train with canaries, read what they prove, check the implementation, and catch a mean that lies."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=0)
    chosen = parser.parse_args()
    if chosen.repeats:
        repeat(chosen.repeats)
        return
    model, (x, y), found = attacked(0)
    print(found.sentence)
    for name, value in found.evidence.figures.items() if found.evidence else ():
        print(f"  {name}: ε ≥ {value:.2f}")

    # Clipping, noise, sampling and price, on records that are made up.
    checked = audit_implementation(model, LOSS, crafted((x[:1], y[:1]), 24, classes=2), size=1600, **SETTINGS)
    print(checked.sentence)

    # Anything with a declared ε: this mean forgets that its noise has to grow with the bound of a value.
    rng = np.random.default_rng(0)

    def mean_income(incomes: list[float]) -> float:
        return float(np.mean(np.clip(incomes, 0, 10))) + rng.laplace(scale=1 / (1.0 * len(incomes)))

    print(audit_two_worlds(mean_income, [1.0] * 20, [1.0] * 19 + [10.0], epsilon=1.0, repeats=2000).sentence)


if __name__ == "__main__":
    main()
