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
