"""How do I attack the run I just made? Canaries, the implementation audit, and somebody else's code.

Run it with ``python -m examples.audit_a_run``.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from tacit.audit import audit_implementation, audit_run, audit_two_worlds, crafted
from tacit.sgd import fit


def main() -> None:
    """Train with canaries, read what they prove, check the implementation, and catch a mean that lies."""
    torch.manual_seed(0)
    loss = nn.CrossEntropyLoss(reduction="none")
    x = torch.randn(600, 20)
    y = (x[:, 0] + x[:, 1] > 0).long()
    model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    # Each of 1,000 records of nobody takes part by a fair coin.
    settings = {"batch_size": 800, "steps": 40, "epsilon": 4.0, "delta": 1e-5}
    done = fit(model, optimizer, loss, (x, y), audit_canaries=1000, progress=False, **settings)
    found = audit_run(done)
    print(found.sentence)
    for name, value in found.evidence.figures.items() if found.evidence else ():
        print(f"  {name}: ε ≥ {value:.2f}")

    # Clipping, noise, sampling and price, on records that are made up.
    checked = audit_implementation(model, loss, crafted((x[:1], y[:1]), 24, classes=2), size=1600, **settings)
    print(checked.sentence)

    # Anything with a declared ε: this mean forgets that its noise has to grow with the bound of a value.
    rng = np.random.default_rng(0)

    def mean_income(incomes: list[float]) -> float:
        return float(np.mean(np.clip(incomes, 0, 10))) + rng.laplace(scale=1 / (1.0 * len(incomes)))

    print(audit_two_worlds(mean_income, [1.0] * 20, [1.0] * 19 + [10.0], epsilon=1.0, repeats=2000).sentence)


if __name__ == "__main__":
    main()
