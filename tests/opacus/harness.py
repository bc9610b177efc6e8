"""A private loop without noise, and what its gradient should be by one backward pass for each example."""

from __future__ import annotations

import copy
import warnings

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tacit.opacus import PrivacyEngine


def data(rows=48, features=6, classes=3, seed=0):
    g = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(rows, features, generator=g), torch.randint(classes, (rows,), generator=g))


def net(features=6, classes=3, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(features, 8), nn.Tanh(), nn.Linear(8, classes))


def private(model, dataset, *, batch_size=8, noise=0.0, clip=0.3, lr=0.1, engine=None, optimizer=None, **options):
    engine = engine or PrivacyEngine()
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=lr)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = engine.make_private(
            module=model,
            optimizer=optimizer,
            data_loader=DataLoader(dataset, batch_size=batch_size),
            noise_multiplier=noise,
            max_grad_norm=clip,
            **options,
        )
    return engine, made[1], made[-1]


def one_by_one(model, x, y):
    """Losses of single examples, each from a forward pass of its own, watched by nobody."""

    def losses(of):
        twin = copy.deepcopy(of)  # hooks do not travel
        for a, b in zip(twin.parameters(), of.parameters(), strict=True):
            a.data, a.requires_grad = b.data, b.requires_grad
        for k in range(len(x)):
            yield F.cross_entropy(twin(x[k : k + 1]), y[k : k + 1]), twin

    return losses


def expected(model, x, y, clip, divisor):
    """What ``p.grad`` should be after a step without noise on this batch."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    total = [torch.zeros_like(p) for p in parameters]
    for loss, twin in one_by_one(model, x, y)(model):
        grads = torch.autograd.grad(loss, [p for p in twin.parameters() if p.requires_grad])
        norm = torch.stack([g.double().norm() for g in grads]).norm()
        for t, g in zip(total, grads, strict=True):
            t += g * min(1.0, clip / float(norm))
    return [t / divisor for t in total]


def close(grads, wanted):
    size = torch.stack([w.norm() for w in wanted]).norm()
    return all(float((g - w).norm()) <= 1e-4 * float(size) + 1e-9 for g, w in zip(grads, wanted, strict=True))
