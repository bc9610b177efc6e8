"""LiRA on real pictures: an over-fitted model leaks its members, a private one of the same architecture does not.

Every model is the target once, with all others as its references; the scores of all targets are pooled, so that rates
of 0.1% can be told. Records of one target are not independent: intervals are those of independent scores.
"""

from __future__ import annotations

import os
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from tacit.audit.attacks import Membership, lira, logit_confidence
from tacit.audit.evidence import roc

RECORDS, MODELS, HIDDEN = 1000, 32, 64


def pool():
    from tacit.datasets import mnist

    images = mnist().train
    x = torch.from_numpy(images.images[:RECORDS].astype(np.float32)) / 127.5 - 1
    x = nn.functional.avg_pool2d(x.view(-1, 1, 28, 28), 2).flatten(1)
    return x, torch.from_numpy(images.labels[:RECORDS].astype(np.int64))


def overfitted(x, y, inside, steps=150):
    """All models at once: one batched product a layer, members weigh 1 and others 0."""
    torch.manual_seed(0)
    count = len(inside)
    shapes = [(count, x.shape[1], HIDDEN), (count, 1, HIDDEN), (count, HIDDEN, 10), (count, 1, 10)]
    weights = [(torch.randn(s) / s[1] ** 0.5 if s[1] > 1 else torch.zeros(s)).requires_grad_() for s in shapes]
    optimizer = torch.optim.Adam(weights, lr=0.01)
    mask = torch.from_numpy(inside).float()

    def outputs():
        hidden = torch.tanh(torch.matmul(x, weights[0]) + weights[1])
        return torch.matmul(hidden, weights[2]) + weights[3]

    labels = y.expand(count, -1)
    for _ in range(steps):
        optimizer.zero_grad()
        losses = nn.functional.cross_entropy(outputs().transpose(1, 2), labels, reduction="none")
        ((losses * mask).sum(1) / mask.sum(1)).sum().backward()
        optimizer.step()
    with torch.no_grad():
        given = torch.softmax(outputs(), 2)
    right = (given.argmax(2) == labels).numpy()
    chosen = given.gather(2, labels.unsqueeze(2)).squeeze(2).double().numpy()
    return chosen, [float(right[inside].mean()), float(right[~inside].mean())]


def private(x, y, inside, epsilon=1.0):
    """The same architecture, one private run a model."""
    from tacit.sgd import fit

    found, right = [], []
    for members in inside:
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(x.shape[1], HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 10))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fit(
                net, torch.optim.SGD(net.parameters(), lr=2.0, momentum=0.5), nn.CrossEntropyLoss(reduction="none"),
                (x[members], y[members]), batch_size=250, steps=15, size=500, epsilon=epsilon, delta=1e-4,
                clip_norm=0.5, progress=False,
            )  # fmt: skip
        with torch.no_grad():
            given = torch.softmax(net(x), 1)
        found.append(given[torch.arange(len(y)), y].double().numpy())
        right.append((given.argmax(1) == y).numpy())
    right = np.stack(right)
    return np.stack(found), [float(right[inside].mean()), float(right[~inside].mean())]


def attack(probabilities, inside, epsilon=None, delta=0.0):
    scores = []
    confidence = logit_confidence(probabilities)
    for target in range(len(inside)):
        others = np.arange(len(inside)) != target
        scores.append(lira(confidence[target], confidence[others], inside[others]))
    return Membership("LiRA", roc(np.concatenate(scores), inside.ravel()), epsilon, delta)


@pytest.mark.slow
@pytest.mark.data
def test_lira_finds_an_overfitted_model_and_not_a_private_one(capsys):
    if not os.environ.get("TACIT_DATA"):
        pytest.skip("TACIT_DATA is not set")
    x, y = pool()
    inside = np.random.default_rng(0).random((MODELS, RECORDS)) < 0.5
    leaky, leaky_accuracy = overfitted(x, y, inside)
    plain = attack(leaky, inside)
    safe, safe_accuracy = private(x, y, inside)
    kept = attack(safe, inside, epsilon=1.0, delta=1e-4)
    with capsys.disabled():
        print(f"\nnot private: {plain!r}, accuracy in/out {leaky_accuracy}")
        print(f"ε = 1:       {kept!r}, accuracy in/out {safe_accuracy}")
        print(f"allowed at ε = 1: TPR {kept.allowed(0.001):.4f} at 0.1%, {kept.allowed(0.01):.4f} at 1%")
    assert plain.curve.area > 0.6
    assert plain.curve.at(0.01)[1] > 0.02
    assert not kept.exceeds
    assert kept.curve.area < 0.55
