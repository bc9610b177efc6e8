"""How often does the audit of a run find a lie, and how often does it accuse an honest run?

Real runs at ε = 4 with canaries, each broken in one way from outside, and many simulated honest records through the
same tests. ``python tools/audit_power.py --repeats 20 --honest 200`` makes the table of docs/results/audit.md; other
runs by ``--epsilon 2 --width 200 --sampler balls-in-bins --adjacency zero-out``.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from tacit import accounting as acc
from tacit.audit import Audit, audit_run
from tacit.sgd import Training, fit
from tacit.sgd.training.canaries import Planted
from tacit.sgd.training.sampling import Poisson, RandomBins, Shuffle

SETTINGS: dict[str, Any] = {"batch_size": 800, "steps": 40, "delta": 1e-5}
RECORDS, CANARIES, EPSILON, WIDTH = 600, 1000, 4.0, 64


def run(canaries: int, **settings: Any) -> Planted:
    """A small network on random records, with canaries."""
    x = torch.randn(RECORDS, 20)
    y = (x[:, 0] + x[:, 1] > 0).long()
    model = nn.Sequential(nn.Linear(20, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    loss = nn.CrossEntropyLoss(reduction="none")
    done = fit(model, optimizer, loss, (x, y), audit_canaries=canaries, progress=False, **(SETTINGS | settings))
    assert done.canaries is not None
    return done.canaries


@contextlib.contextmanager
def instead(owner: Any, name: str, other: Any) -> Iterator[None]:
    """Another function in place of one of the library's."""
    kept = owner.__dict__[name]
    setattr(owner, name, other)
    try:
        yield
    finally:
        setattr(owner, name, kept)


def thinner(left: float, canaries: int) -> Audit:
    """A run that adds ``left`` of its noise."""
    noise_at = Training.noise_at

    def thin(self: Training, step: int) -> Any:
        noise = noise_at(self, step)
        return dataclasses.replace(noise, scale=noise.scale * left)

    with instead(Training, "noise_at", thin):
        return audit_run(run(canaries, epsilon=EPSILON))


def shuffled(canaries: int) -> Audit:
    """A run whose batches are shuffled passes, priced as what is asked for."""

    def draw(self: Any, key: Any, step: int, units: int) -> Any:
        return Shuffle(units, self.batch_size).draw(key, step, units)

    with instead(RandomBins if SETTINGS.get("sampler") == "balls-in-bins" else Poisson, "draw", draw):
        return audit_run(run(canaries, epsilon=EPSILON))


def twice(canaries: int) -> Audit:
    """A run of twice the steps that are claimed."""
    size = RECORDS + canaries
    step = acc.PoissonSampled(acc.Gaussian(1.0), SETTINGS["batch_size"] / size)

    def claimed(noise: float) -> acc.Mechanism:
        return acc.PoissonSampled(acc.Gaussian(noise), step.rate) * SETTINGS["steps"]

    noise = acc.calibrate(claimed, epsilon=EPSILON, delta=SETTINGS["delta"])
    planted = run(canaries, noise_multiplier=noise, steps=2 * SETTINGS["steps"])
    claim = acc.Bound(EPSILON, EPSILON, given=SETTINGS["delta"])
    return audit_run(planted, mechanism=claimed(noise), claimed=claim)


def honest(canaries: int) -> Audit:
    """A run that is what it claims."""
    return audit_run(run(canaries, epsilon=EPSILON))


def simulated(planted: Planted, rng: np.random.Generator) -> Audit:
    """An honest record of the shape of ``planted``, drawn instead of trained, and scores that belong to it."""
    assert planted.residuals is not None
    assert planted.noise is not None
    steps, count = len(planted.noise), len(planted.member)
    rate = min(1.0, SETTINGS["batch_size"] / (RECORDS + count))
    member, drawn = rng.random(count) < 0.5, rng.random((steps, count)) < rate
    residuals, z = rng.standard_normal((steps, count)), planted.noise[:, None]
    seen = z * residuals + (drawn & member)
    scores = np.log1p(rate * np.expm1((2 * seen - 1) / (2 * z**2))).sum(0)
    made = dataclasses.replace(
        planted,
        member=member,
        scores=scores,
        residuals=residuals.astype(np.float32)[:, : planted.residuals.shape[1]],
        drawn=np.packbits(drawn, axis=1),
    )
    return audit_run(made)


def main() -> None:
    """Count refutations."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--honest", type=int, default=200)
    parser.add_argument("--canaries", type=int, default=CANARIES)
    parser.add_argument("--epsilon", type=float, default=EPSILON)
    parser.add_argument("--width", type=int, default=WIDTH, help="hidden units of the model")
    parser.add_argument("--sampler", choices=("poisson", "balls-in-bins"), default="poisson")
    parser.add_argument("--adjacency", choices=("add-remove", "zero-out"), default="add-remove")
    parser.add_argument("--batch", type=int, default=SETTINGS["batch_size"])
    parser.add_argument("--steps", type=int, default=SETTINGS["steps"])
    chosen = parser.parse_args()
    globals().update(EPSILON=chosen.epsilon, WIDTH=chosen.width)
    SETTINGS.update(sampler=chosen.sampler, adjacency=chosen.adjacency, batch_size=chosen.batch, steps=chosen.steps)
    lies: dict[str, Callable[[], Audit]] = {
        "half the noise": lambda: thinner(0.5, chosen.canaries),
        "95% of the noise": lambda: thinner(0.95, chosen.canaries),
        "97% of the noise": lambda: thinner(0.97, chosen.canaries),
        "shuffled batches": lambda: shuffled(chosen.canaries),
        "twice the steps": lambda: twice(chosen.canaries),
        "honest": lambda: honest(chosen.canaries),
    }
    if chosen.sampler != "poisson":
        del lies["twice the steps"]  # which claims Poisson sampling
    for name, lie in lies.items():
        found = [lie() for _ in range(chosen.repeats)]
        figures = [one.evidence.figures for one in found if one.evidence is not None]
        print(
            json.dumps(
                {
                    "run": name,
                    "refuted": sum(one.verdict == "fail" for one in found),
                    "of": len(found),
                    "certified": round(float(np.median([f["one-run"] for f in figures])), 2),
                    "curve": round(float(np.median([f["f-DP one-run"] for f in figures])), 2),
                    "printed": {power.lie: power.shown for power in found[0].powers},
                },
                ensure_ascii=False,
            ),
            flush=True,
        )
    if chosen.sampler != "poisson":
        return
    planted, rng = run(chosen.canaries, epsilon=EPSILON), np.random.default_rng()
    alarms = [one for one in (simulated(planted, rng) for _ in range(chosen.honest)) if one.verdict == "fail"]
    told = {"run": "honest, simulated", "refuted": len(alarms), "of": chosen.honest}
    print(json.dumps(told | {"alarms": [one.sentence for one in alarms]}, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
