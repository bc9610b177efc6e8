"""Several students are one student, and a label that nobody would have guessed is not learned by heart."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from tacit.pate import GNMax
from tacit.pate.learner import Committee, Learner, StudentOptions, _halves, learn, probabilities


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))


def two_clouds(rows: int, seed: int) -> tuple[torch.Tensor, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, rows)
    x = rng.normal(size=(rows, 2)) + np.where(y[:, None] == 1, 2.5, -2.5)
    return torch.as_tensor(x, dtype=torch.float32), y


def answers_with_wrong_ones(y: np.ndarray, wrong: int):
    said = y.copy()
    said[:wrong] = 1 - said[:wrong]
    return GNMax(vote_noise=40, classes=2).answer(9000 * np.eye(2, dtype=np.int64)[said], queries=len(y))


def test_a_crossed_committee_forgets_wrong_answers():
    x, y = two_clouds(80, seed=0)
    answers = answers_with_wrong_ones(y, wrong=8)
    assert (answers.labels[:8] != y[:8]).all()
    options = {"steps": 150, "batch_size": 32, "learning_rate": 1e-2, "device": "cpu", "strong": lambda rows: rows}
    torch.manual_seed(0)
    student = answers.fit(network, x, method="committee", members=4, crossed=True, **options)
    unsure = probabilities(student, x)[torch.arange(8), torch.as_tensor(answers.labels[:8])]
    by_heart = answers.fit(network(), x, method="supervised", **options | {"steps": 700})
    assert (student(x).argmax(1).numpy() == y).mean() > 0.95
    assert unsure.mean() < probabilities(by_heart, x)[torch.arange(8), torch.as_tensor(answers.labels[:8])].mean()


def test_every_label_is_left_out_by_a_member():
    seen = _halves(101, members=5, seed=3)
    assert (~seen).any(0).all()
    assert seen.any(0).all()
    assert torch.equal(seen[0], ~seen[1])
    assert set(seen.sum(1).tolist()) == {50, 51}


def test_a_committee_says_the_logarithm_of_the_mean():
    torch.manual_seed(1)
    members = [network(), network(), network()]
    x = torch.randn(5, 2)
    mean = torch.stack([member(x).softmax(1) for member in members]).mean(0)
    torch.testing.assert_close(Committee(members)(x).exp(), mean)
    torch.testing.assert_close(probabilities(Committee(members), x, batch=2), mean)


def test_students_side_by_side_depend_on_the_seed_alone():
    x, y = two_clouds(40, seed=2)
    options = StudentOptions(steps=20, batch_size=8)

    def weights() -> torch.Tensor:
        torch.manual_seed(5)
        made = [Learner(network(), x, torch.as_tensor(y), x, options) for _ in range(2)]
        torch.rand(3)  # what else was drawn does not matter
        return torch.cat([p.flatten() for student in learn(made, seed=7) for p in student.parameters()])

    assert torch.equal(weights(), weights())


def test_what_cannot_be_a_committee_says_so():
    x, y = two_clouds(20, seed=4)
    answers = answers_with_wrong_ones(y, wrong=0)
    with pytest.raises(ValueError, match="function that makes one"):
        answers.fit(network(), x, method="committee", device="cpu")
    with pytest.raises(ValueError, match="two members"):
        answers.fit(network, x, method="committee", device="cpu", members=1, crossed=True)
    with pytest.raises(ValueError, match="on the CPU"):
        answers.fit(network, x, method="committee", device="cpu", graph=True)
    assert math.isclose(StudentOptions(steps=100, learning_rate=1.0).rate(2), 0.5 * (1 + math.cos(0.02 * math.pi)))


def test_batch_normalisation_ends_with_the_statistics_of_rows_as_they_are():
    torch.manual_seed(0)
    rows = torch.randn(300, 4) + 3.0
    labels = (rows[:, 0] > 3.0).long()
    network = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2))
    options = StudentOptions(steps=150, batch_size=16, learning_rate=0.05, weak=lambda x: x, strong=lambda x: 0.1 * x)
    (student,) = learn([Learner(network, rows[:40], labels[:40], rows, options)], seed=0)
    assert torch.allclose(student[0].running_mean, rows.mean(0), atol=1e-4)
    assert student[0].momentum == 0.1
    assert not student.training
    # with the statistics of changed rows every row would lie far to one side
    assert (probabilities(student, rows).argmax(1) == labels).float().mean() > 0.9


def test_half_precision_keeps_float32_weights():
    rows = torch.tensor([[1.0], [-1.0]] * 8)
    options = StudentOptions(steps=60, batch_size=8, learning_rate=0.1, strong=lambda x: x, half=True)
    (student,) = learn([Learner(nn.Linear(1, 2), rows, torch.tensor([0, 1] * 8), None, options)], seed=0)
    assert student.weight.dtype == torch.float32
    assert student(rows[:2]).argmax(1).tolist() == [0, 1]
