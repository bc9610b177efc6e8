"""How do I train privately in one call? :func:`fit`: the loop, with progress, evaluation and checkpoints.

The bar shows steps and the ε that is claimed, both public. A metric on data declared public is public too; one on
private data goes to the operator only. The private loss is never shown.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Unpack

import numpy as np
import torch
from torch import nn

from tacit import accounting as acc
from tacit.ledger import EvaluationData, OperatorLog, OperatorView, PrivateValueError, Release, public
from tacit.sgd.gradients.batches import Loss
from tacit.sgd.torch_compat import pytree
from tacit.sgd.training.canaries import AuditedTraining, Planted
from tacit.sgd.training.config import TrainingKeywords, Value, shows_keywords
from tacit.sgd.training.data import optional, records
from tacit.sgd.training.training import Training

Metric = Callable[[nn.Module, Any], float]


@dataclasses.dataclass(frozen=True)
class Fit:
    """What :func:`fit` returns: the run, its guarantee, and the metrics that may be shown, by step."""

    training: Training
    privacy: acc.Privacy
    metrics: tuple[Release, ...]
    seconds: float
    canaries: Planted | None = None

    @property
    def model(self) -> nn.Module:
        """The model that was trained: the object that was passed in."""
        return self.training.model


def accuracy(model: nn.Module, batch: Any) -> float:
    """The share of right classes in ``(inputs, targets)``.

    >>> accuracy(nn.Identity(), (torch.eye(3), torch.tensor([0, 1, 1])))
    0.666...
    """
    inputs, targets = batch
    outputs = model(inputs)
    guesses = outputs.argmax(1) if outputs.dim() > 1 and outputs.shape[1] > 1 else (outputs.flatten() > 0).long()
    return float((guesses == targets.to(guesses.device)).double().mean())


@shows_keywords
def fit(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Loss,
    data: Any,
    *values: Value,
    evaluate: EvaluationData | None = None,
    metric: Metric = accuracy,
    evaluate_every: int | None = None,
    operator_log: OperatorLog | None = None,
    progress: bool | None = None,
    time_limit: float | None = None,
    audit_canaries: Any = None,
    scheduler: Any = None,
    ema: float | None = None,
    **keywords: Unpack[TrainingKeywords],
) -> Fit:
    """Train ``model`` privately; ``model`` to ``values``, ``scheduler``, ``ema`` and keywords are those of
    :class:`Training`.

    ``evaluate`` are data declared public (the metric is kept and shown) or private (it goes to ``operator_log`` and
    nowhere else); by default once a pass and at the end. ``progress`` defaults to a bar on a terminal. After
    ``time_limit`` seconds the run stops, which does not depend on the data: the executed steps are priced. An interrupt
    (Ctrl-C) saves the checkpoint, where there is one, and the run can be resumed.

    ``audit_canaries`` plants so many canaries beside the data, each in by a fair coin (or, where records are given,
    these); ``tacit.audit.audit_run`` reads a lower bound on ε from what :class:`Fit` then holds in ``canaries``.

    >>> x, y = torch.randn(200, 3), torch.randint(2, (200,))
    >>> net = nn.Linear(3, 2)
    >>> test = EvaluationData.declared_public((x[:20], y[:20]), because="simulated")
    >>> done = fit(net, torch.optim.SGD(net.parameters(), lr=0.1), nn.CrossEntropyLoss(reduction="none"), (x, y),
    ...            evaluate=test, batch_size=20, epochs=1, epsilon=2.0, delta=1e-5)
    >>> done.privacy.upper <= 2.0, done.metrics[-1]["step"]
    (True, 10)
    """
    if evaluate is not None and not isinstance(evaluate, EvaluationData):
        raise PrivateValueError(
            "say whether the evaluation data are public: EvaluationData.declared_public(data, because=...) or "
            "EvaluationData.private(data, dataset=...)"
        )
    if audit_canaries is None:
        training = Training(model, optimizer, loss, data, *values, scheduler=scheduler, ema=ema, **keywords)
    else:
        training = AuditedTraining(
            model, optimizer, loss, data, *values, canaries=audit_canaries, scheduler=scheduler, ema=ema, **keywords
        )
    every = evaluate_every or training.plan.sampler.steps_per_epoch
    shown: list[Release] = []
    began = time.monotonic()
    with _bar(training, sys.stderr.isatty() if progress is None else progress) as update:
        try:
            for batch in training:
                training.step(batch)
                text = ""
                if evaluate is not None and (training.done or training.steps_executed % every == 0):
                    text = _evaluate(training, evaluate, metric, shown, operator_log)
                if operator_log is not None:
                    operator_log.write(training.diagnostics())
                update(text)
                if time_limit is not None and not training.done and time.monotonic() - began > time_limit:
                    training.stop(f"time limit of {time_limit:g} s", looked_at_results=False)
        except KeyboardInterrupt:
            if training.checkpoint is not None and not training.done and not training._broken:
                training.save()
            raise
    planted = training.planted() if isinstance(training, AuditedTraining) else None
    return Fit(training, training.privacy, tuple(shown), time.monotonic() - began, planted)


def _evaluate(
    training: Training, evaluate: EvaluationData, metric: Metric, shown: list[Release], log: OperatorLog | None
) -> str:
    """The metric; where it may be shown it is kept, else it goes to the operator's log."""
    first = next(iter(training.parameters.values()))
    rows = records(evaluate.data, first.dtype)
    model, was_training = training.model, training.model.training
    model.eval()
    total = 0.0
    try:
        with torch.no_grad(), training.averaged() if training.state.average is not None else contextlib.nullcontext():
            for start in range(0, len(rows), 1024):
                index = np.arange(start, min(start + 1024, len(rows)), dtype=np.int64)
                batch = rows.take(index)
                moved = pytree.tree_map_only(torch.Tensor, lambda t: t.to(training.device), batch)
                total += metric(model, moved) * len(index)
    finally:
        model.train(was_training)
    name = getattr(metric, "__name__", "metric")
    value = evaluate.metric(name, total / len(rows))
    if isinstance(value, OperatorView):
        if log is not None:
            log.write(value, step=training.steps_executed)
        return ""
    shown.append(Release({"step": public(training.steps_executed), name: value}))
    return f"{name} {total / len(rows):.4f}"


@contextlib.contextmanager
def _bar(training: Training, wanted: bool) -> Iterator[Callable[[str], None]]:
    """A progress bar with ε on it, or nothing."""
    if not wanted:
        yield lambda text: None
        return
    rich = optional("rich.progress", "a progress bar")
    claim = f"ε ≤ {training.privacy.upper:.3f} at δ={training.plan.delta:g}"
    columns = [
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        rich.TimeRemainingColumn(),
        rich.TextColumn("{task.fields[metric]}"),
    ]
    with rich.Progress(*columns, console=optional("rich.console", "a progress bar").Console(stderr=True)) as bar:
        task = bar.add_task(claim, total=training.plan.steps, completed=training.steps_executed, metric="")

        def update(text: str) -> None:
            more = {"metric": text} if text else {}
            bar.update(task, completed=training.steps_executed, **more)

        yield update
