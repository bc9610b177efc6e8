"""Is correlated noise what its price assumes? Seen through C, by enumeration, and by who takes part when."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from tacit import accounting as acc
from tacit.accounting.correlated import Correlation
from tacit.audit import statistics
from tacit.audit.findings import Finding, holds
from tacit.noise.keys import Key
from tacit.selftest.scene import Scene, refused
from tacit.sgd import Banded, BandedInverse, Training
from tacit.sgd.training.sampling import CyclicPoisson

BANDS, STEPS, DONE, UNITS, WIDE = 4, 24, 9, 200, 500


def _run(key: Key, folder: Path, until: int = STEPS, **more: Any) -> tuple[Training, list[npt.NDArray[np.float64]]]:
    """A run without gradients, new or resumed, and the weights before its first step and after each."""
    model = nn.Linear(4, WIDE, bias=False)
    nn.init.zeros_(model.weight)
    training = Training(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        lambda model, batch: model(batch[0]).sum(1),
        (torch.zeros(UNITS, 4), torch.zeros(UNITS)),
        batch_size=10,
        steps=STEPS,
        noise_multiplier=2.0,
        clip_norm=0.5,
        delta=1e-5,
        **({"noise": Banded(bands=BANDS)} | more),
        checkpoint=folder / "run.pt",
        checkpoint_every=1,
        key=key,
        compile=False,
    )
    weights = [model.weight.detach().double().flatten().numpy().copy()]
    for batch in training:
        training.step(batch)
        weights.append(model.weight.detach().double().flatten().numpy().copy())
        if training.steps_executed == until:
            break
    return training, weights


def noise_through_the_matrix(seed: int) -> list[Finding]:
    """What a run that was killed and resumed releases: seen through C, independent noise of the size that is priced."""
    key = Key(bytes([seed % 256]) * 32, repeatable=True)
    with tempfile.TemporaryDirectory() as folder:
        _, first = _run(key, Path(folder), DONE)
        training, rest = _run(key, Path(folder))
    x = -np.diff(np.array([*first, *rest[1:]]), axis=0) * 10 / (2.0 * 0.5)
    column = np.array(training.plan.correlation.coefficients)
    z = np.array([column[: t + 1] @ x[t : t - len(column) if t >= len(column) else None : -1] for t in range(STEPS)])
    rounds = sum(n for part, n in training.plan.mechanism.parts() if isinstance(part, acc.CyclicPoissonSampled))
    return [
        holds("correlated: columns", len(column) == BANDS and column @ column <= 1, f"squared norm {column @ column}"),
        holds("correlated: rounds", rounds == -(-STEPS // BANDS), f"{rounds} rounds of {BANDS} steps are priced"),
        Finding("correlated: size", statistics.variance_p_value(z.ravel()), f"{z.std():.4f} of the stated size"),
        Finding("correlated: each step", statistics.cosine_p_value(z), "largest cosine of the noise of two steps"),
        Finding("correlated: used once", statistics.repetition_p_value(z.ravel()), "correlation with itself"),
    ]


def noise_through_the_inverse(seed: int) -> list[Finding]:
    """The same where the inverse of C has few bands, for all ways in which a unit takes part, each tried."""
    key, first = Key(bytes([seed % 256]) * 32, repeatable=True), (1.0, -0.5, -0.2)
    with tempfile.TemporaryDirectory() as folder:
        way: dict[str, Any] = {"noise": BandedInverse(coefficients=first), "sampler": "chunks"}
        _, weights = _run(key, Path(folder), **way)
    inverse = sum(a * np.eye(STEPS, k=-j) for j, a in enumerate(first))
    seen = np.linalg.inv(inverse)
    moved = max(float(np.linalg.norm(seen[:, t :: UNITS // 10].sum(1))) for t in range(UNITS // 10))
    z = seen @ (-np.diff(np.array(weights), axis=0) * 10 / (2.0 * 0.5 * moved))
    return [
        Finding("inverse: size", statistics.variance_p_value(z.ravel()), f"{z.std():.4f} of the stated size"),
        Finding("inverse: each step", statistics.cosine_p_value(z), "largest cosine of the noise of two steps"),
        Finding("inverse: used once", statistics.repetition_p_value(z.ravel()), "correlation with itself"),
    ]


def who_takes_part(seed: int) -> list[Finding]:
    """A unit is in steps of one group only, with the stated probability, whoever else there is."""
    key, sampler = Key(bytes([seed % 256]) * 32), CyclicPoisson(UNITS, 10, BANDS)

    def drawn(units: int) -> npt.NDArray[np.bool_]:
        masks = np.zeros((400, units), dtype=bool)
        for step, mask in enumerate(masks):
            mask[sampler.draw(key, step, units)] = True
        return masks

    masks, fewer = drawn(UNITS), drawn(UNITS - 40)
    groups = sum(masks[k::BANDS].any(0).astype(int) for k in range(BANDS))
    hits, rounds = int(masks.sum()), 400 // BANDS * UNITS
    alike = bool((masks[:, : UNITS - 40] == fewer).all())
    return [
        holds("correlated: groups", int(np.max(groups)) <= 1, "no unit takes part twice in a round"),
        holds("correlated: whoever else", alike, "draws of a unit do not depend on how many others there are"),
        Finding("correlated: rate", statistics.frequency_p_value(hits, rounds, sampler.rate), f"{hits} of {rounds}"),
    ]


def sensitivity_by_trying(seed: int) -> list[Finding]:
    """No pattern of participation of a short run moves more than is stated, for columns that fall and for others."""
    rng, low = np.random.default_rng(seed), 0.0
    columns: list[Any] = [
        (1.0, 0.5, 0.3),
        (0.5, 1.0, 0.2),
        (1.0, 0.0, 0.9),
        (1.0, -0.6, 0.5),
        (1.0, *rng.normal(size=4)),
    ]
    for column in columns:
        whole = np.zeros(8)
        whole[: len(column)] = column
        matrix = np.array([[whole[i - j] if i >= j else 0.0 for j in range(8)] for i in range(8)])
        for apart in (1, 2, 3):
            worst = 0.0
            for pattern in itertools.chain.from_iterable(itertools.combinations(range(8), k) for k in (1, 2, 3)):
                if all(b - a >= apart for a, b in itertools.pairwise(pattern)):
                    for signs in itertools.product((1.0, -1.0), repeat=len(pattern) - 1):
                        worst = max(worst, float(((matrix[:, pattern] @ np.array([1.0, *signs])) ** 2).sum()))
            low = max(low, worst / Correlation(tuple(map(float, column))).squared_sensitivity(8, 3, apart))
    step = acc.CyclicPoissonSampled(acc.Gaussian(1.0), 0.1, 4)
    return [
        holds("correlated: sensitivity", low <= 1.0, f"a pattern moves {low:.4f} of what is stated, squared"),
        refused(
            "correlated: groups of records", {"two": (lambda: acc.epsilon(step, 1e-5, group=2), acc.AccountingError)}
        ),
    ]


SCENES = (
    Scene("correlated: noise", "sgd", noise_through_the_matrix),
    Scene("correlated: inverse", "sgd", noise_through_the_inverse),
    Scene("correlated: sampling", "sgd", who_takes_part),
    Scene("correlated: sensitivity", "sgd", sensitivity_by_trying),
)
