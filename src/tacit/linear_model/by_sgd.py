"""How is a logistic regression trained by DP-SGD? By :class:`tacit.sgd.Training` on one linear layer.

Its noise is the keyed tensor noise of training, not that of the exact samplers of the other methods; ``privacy_`` says
so.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from tacit import accounting as acc
from tacit.ledger import Ledger
from tacit.linear_model.base import Priced, Task
from tacit.linear_model.rows import Rows
from tacit.sgd import Training

#: A twentieth of the rows in each step, 200 steps (measured in docs/results/regression.md).
RATE, STEPS, LEARNING_RATE, CLIP = 0.05, 200, 8.0, 1.0


def train(
    task: Task, classes: int, alpha: float, ledger: Ledger | None, purpose: str
) -> tuple[npt.NDArray[np.float64], acc.Privacy]:
    """Coefficients (features x 1, or features x classes) and the guarantee of the run.

    Guarantee: that of the run's plan (Poisson sampling), stated for zero-out: the number of rows is treated as public.
    """
    rows = task.source
    assert isinstance(rows, Rows)
    if alpha:
        raise ValueError("method='dp-sgd' has no ridge: leave alpha at 0")
    outputs = 1 if classes == 2 else classes
    model = nn.Linear(task.width, outputs, bias=False)
    nn.init.zeros_(model.weight)
    inputs = torch.from_numpy(rows.x.astype(np.float32))
    loss: nn.Module
    if outputs == 1:
        target, loss = torch.from_numpy(rows.y.astype(np.float32))[:, None], nn.BCEWithLogitsLoss(reduction="none")
    else:
        target, loss = torch.from_numpy(rows.y.astype(np.int64)), nn.CrossEntropyLoss(reduction="none")
    training = Training(
        model,
        torch.optim.SGD(model.parameters(), lr=LEARNING_RATE / task.shape.norm_squared**0.5),
        loss,
        (inputs, target),
        batch_size=max(1, round(RATE * len(rows))),
        steps=STEPS,
        epsilon=task.epsilon,
        delta=task.delta,
        clip_norm=CLIP,
        ema=0.95,
        ledger=None if task.asking else ledger,
        dataset=None if task.asking else task.dataset,
        unit=task.unit,
        groups=range(len(rows)),  # one row for each unit: anything else was refused
        purpose=purpose,
        source=task.data,
    )
    if task.asking:
        raise Priced(training.plan.mechanism, training.plan.stated.adjacency)
    for batch in training:
        training.step(batch)
    weights = training.average["weight"].detach().double().numpy()
    privacy, charge = training.privacy, training.charge
    said = privacy.details
    return np.asarray(weights.T), privacy.with_details(
        method=f"DP-SGD, {said['steps_planned']} steps, {said['sampler']}",
        assumptions=(*task.assumed, said["size"]),
        charge=None if charge is None else charge.number,
    )
