"""Teachers on a CUDA device vote as those on the CPU do."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tacit.noise import Key
from tacit.pate import ConfidentGNMax, Teachers

pytestmark = pytest.mark.gpu


def test_stacked_teachers_and_a_student_on_the_device():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 900)
    x = (rng.normal(size=(900, 4)) + 3 * np.eye(3, 4)[y]).astype(np.float32)

    def network():
        return torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))

    counts = {}
    for device in ("cpu", "cuda"):
        teachers = Teachers(network, (x[:600], y[:600]), n=10, key=Key(bytes(32)))
        counts[device] = teachers.fit(steps=300, learning_rate=1e-2, device=device).vote(x[600:])
    agree = (counts["cpu"].counts.argmax(axis=1) == counts["cuda"].counts.argmax(axis=1)).mean()
    assert agree > 0.97
    answers = ConfidentGNMax(threshold=6, check_noise=1, vote_noise=1, classes=3).answer(counts["cuda"], queries=200)
    student = answers.fit(network, steps=200, device="cuda")
    with torch.no_grad():
        said = student(torch.as_tensor(x[600:], device="cuda")).argmax(1).cpu().numpy()
    assert (said == y[600:]).mean() > 0.85


def test_a_committee_learns_alike_with_and_without_captured_graphs():
    rng = np.random.default_rng(1)
    y = rng.integers(0, 4, 700)
    x = (0.4 * rng.random((700, 1, 16, 16))).astype(np.float32)
    x[np.arange(700), 0, 3 * y + 2] += 0.6
    votes = np.eye(4, dtype=np.int64)[y[:500]] * 200

    def network():
        return torch.nn.Sequential(
            torch.nn.Conv2d(1, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU(),
            torch.nn.MaxPool2d(4), torch.nn.Flatten(), torch.nn.Linear(16 * 16, 4),
        )  # fmt: skip

    answers = ConfidentGNMax(threshold=150, check_noise=5, vote_noise=5, classes=4).answer(votes, queries=60)
    for graph in (False, True):
        torch.manual_seed(0)
        student = answers.fit(
            network, x[:500], method="committee", members=4, rounds=2, crossed=True, steps=150, batch_size=32,
            device="cuda", strong=lambda rows: rows + 0.1 * torch.randn_like(rows), weak=lambda rows: rows, graph=graph,
        )  # fmt: skip
        with torch.no_grad():
            said = student(torch.as_tensor(x[500:], device="cuda")).argmax(1).cpu().numpy()
        assert (said == y[500:]).mean() > 0.95, f"graph={graph}"
