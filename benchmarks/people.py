"""People drawn or rows drawn: accuracy at equal ε, and what averaging within a person costs in time.

    python -m benchmarks.people --part accuracy
    python -m benchmarks.people --part time

Accuracy: the census table labsup, cut into synthetic people. Rows are sorted by age and schooling with some noise, so
that a person's rows are alike, and cut into runs of geometric length, 10 on average and 40 at most. A fifth of the
people is set aside. Every way puts 512 rows a step through a linear model, 300 steps.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import torch
from torch import nn

from tacit import datasets, sgd

ROWS, STEPS, DELTA, MOST = 512, 300, 1e-6, 40
WAYS = [("units", 1, 1.0), ("units", 8, 1.0), ("units", 8, 0.5), ("rows", 4, 1.0), ("rows", 10, 1.0)]


def census(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, target and the synthetic person of each row."""
    data, rng = datasets.load("labsup"), np.random.default_rng(seed)
    encoded, _ = data.encode(None, dtype=np.float32)
    names = [column.name for column in data.schema.features]
    x = encoded.features
    alike = x[:, names.index("age")] + x[:, names.index("educ")]
    order = np.argsort(alike + 0.05 * rng.normal(size=len(x)))
    lengths = np.minimum(rng.geometric(1 / 10, len(x)), MOST)
    ids = np.empty(len(x), dtype=np.int64)
    ids[order] = np.repeat(np.arange(len(lengths)), lengths)[: len(x)]
    return x, encoded.target.astype(np.int64), ids


def accuracy(draw: str, most: int, clip: float, epsilon: float, seed: int) -> float:
    """The share of right answers on the people who were set aside."""
    x, y, ids = census(seed)
    aside = np.random.default_rng(1000 + seed).random(ids.max() + 1)[ids] < 0.2
    torch.manual_seed(seed)
    model = nn.Linear(x.shape[1], 2)
    training = sgd.Training(
        model, torch.optim.SGD(model.parameters(), lr=2.0, momentum=0.9), nn.CrossEntropyLoss(reduction="none"),
        (torch.from_numpy(x[~aside]), torch.from_numpy(y[~aside])), groups=ids[~aside], draw=draw, max_rows=most,
        batch_size=ROWS // most if draw == "units" else ROWS, steps=STEPS, epsilon=epsilon, delta=DELTA,
        clip_norm=clip, ema=0.95, compile=False,
    )  # fmt: skip
    for batch in training:
        training.step(batch)
    with training.averaged(), torch.no_grad():
        return float((model(torch.from_numpy(x[aside])).argmax(1).numpy() == y[aside]).mean())


def step_times(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, rows: int, most: int, steps: int
) -> dict[str, float]:
    """Median seconds of a step that draws rows, and of one that draws people, for as many rows."""
    ids = np.arange(len(x)) // most
    runs = {}
    for name, terms in (("rows", {"batch_size": rows}), ("people", {"groups": ids, "max_rows": most})):
        if name == "people":
            terms["batch_size"] = rows // most
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        runs[name] = sgd.Training(
            model, optimizer, nn.CrossEntropyLoss(reduction="none"), (x, y), steps=steps, noise_multiplier=1.0,
            delta=1e-6, sampler="fixed", compile=False, **terms,
        )  # fmt: skip
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for batches in zip(*runs.values(), strict=True):
        for (name, run), batch in zip(runs.items(), batches, strict=True):
            began = time.perf_counter()
            run.step(batch)
            taken[name].append(time.perf_counter() - began)
    return {name: statistics.median(values[2:]) for name, values in taken.items()}


class Words(nn.Module):
    """A small transformer that classifies sequences of 64 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
        self.layers, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(128, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The logits of each sequence."""
        return self.head(self.layers(self.embed(tokens)).mean(1))


def main() -> None:
    """Print a table of one of the parts."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--part", choices=("accuracy", "time"), required=True)
    options.add_argument("--seeds", type=int, nargs="+", default=list(range(5)))
    options.add_argument("--epsilon", type=float, nargs="+")
    chosen = options.parse_args()
    if chosen.part == "time":
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10))
        cases = {
            "network, 512 rows": (network, torch.randn(4096, 784), torch.randint(10, (4096,)), 512),
            "transformer, 64 sequences": (Words(), torch.randint(1000, (512, 64)), torch.randint(2, (512,)), 64),
        }
        for name, (model, x, y, rows) in cases.items():
            found = step_times(model, x, y, rows, 8, 22)
            one, other = (found[kind] * 1e3 for kind in ("rows", "people"))
            print(f"{name:<26} rows {one:7.1f} ms, people of 8 rows {other:7.1f} ms: x {other / one:.3f}")
        return
    for epsilon in chosen.epsilon or (0.5, 2.0):
        for draw, most, clip in WAYS:
            found = [100 * accuracy(draw, most, clip, epsilon, seed) for seed in chosen.seeds]
            told = f"ε {epsilon:<4g} {draw:<6} max_rows {most:<3} clip {clip:<4g} {statistics.mean(found):6.2f}"
            print(told, " ".join(f"{value:.2f}" for value in found), flush=True)


if __name__ == "__main__":
    main()
