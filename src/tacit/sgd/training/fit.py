"""How do I train privately in one call? :func:`fit` runs the loop, with progress, evaluation and checkpoints.

The progress bar shows the steps and the claim, which are public. A metric on public data is public too; one on private
data goes to the operator only. The private loss is never shown.
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
    """What :func:`fit` returns: the run, its guarantee, and the metrics that may be shown.

    Attributes:
        training: The run, which has ended.
        privacy: The guarantee of what ran.
        metrics: The metrics on public data, each a :class:`tacit.ledger.Release` with its step.
        seconds: How long the loop ran.
        canaries: Which canaries took part and how they scored, for :func:`tacit.audit.audit_run`; None without
            ``audit_canaries``. For the operator only.

    Example:
        >>> x, y = torch.randn(50, 3), torch.randint(2, (50,))
        >>> net = nn.Linear(3, 2)
        >>> done = fit(net, torch.optim.SGD(net.parameters(), lr=0.1), nn.CrossEntropyLoss(reduction="none"), (x, y),
        ...            batch_size=10, steps=2, noise_multiplier=2.0, delta=1e-5)
        >>> done.model is net, done.privacy.details["steps_executed"]
        (True, 2)
    """

    training: Training
    privacy: acc.Privacy
    metrics: tuple[Release, ...]
    seconds: float
    canaries: Planted | None = None

    @property
    def model(self) -> nn.Module:
        """The trained model: the object that was passed in."""
        return self.training.model


def accuracy(model: nn.Module, batch: Any) -> float:
    """The share of ``(inputs, targets)`` that is classified correctly.

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
    """Train a model privately, in one call.

    Ctrl-C saves the checkpoint, if there is one, and the run can be resumed.

    Guarantee:
        That of :class:`Training`: the weights, and metrics on public data, are (ε, δ)-DP as ``privacy`` of the result
        states. A metric on private data is not covered, and goes to ``operator_log`` only.

    Args:
        model: The model to train, as for :class:`Training`.
        optimizer: The optimizer of its parameters.
        loss: ``loss(model, batch)``, one value per record, or a criterion with ``reduction="none"``.
        data: The private records.
        *values: Values that group keywords, such as a :class:`Sampling`.
        evaluate: Data to compute ``metric`` on. Say what they are: ``EvaluationData.declared_public(...)``, whose
            metric is shown and returned, or ``EvaluationData.private(...)``, whose metric goes to ``operator_log``.
            Default: no evaluation.
        metric: A function ``metric(model, batch)`` that returns a number, averaged over pieces of the evaluation data.
            Default: accuracy.
        evaluate_every: Evaluate after every so many steps, and at the end. Default: once a pass.
        operator_log: Where diagnostics of every step and metrics on private data go. Default: nowhere.
        progress: Whether to show a progress bar. Default: on a terminal.
        time_limit: Stop after so many seconds. This does not depend on the data, so the executed steps are priced.
            Default: no limit.
        audit_canaries: How many canaries to plant beside the data, each included with probability ½, or the records to
            plant. ``Fit.canaries`` is then what :func:`tacit.audit.audit_run` needs. Default: none.
        scheduler: A torch learning-rate scheduler, stepped after every step. Default: none.
        ema: The decay of an average of the weights, which is then what is evaluated. Default: no average.

    Returns:
        The run, its guarantee and the metrics that may be shown. ``model`` itself is trained.

    Raises:
        tacit.ledger.PrivateValueError: If ``evaluate`` does not say whether its data are public.

    Example:
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
            "evaluate= must say whether its data are public: use EvaluationData.declared_public(data, because=...) or "
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
    """Compute the metric. It is kept if it may be shown; otherwise it goes to the operator's log."""
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
        rich.TextColumn("{task.fields[program]}"),
        rich.TextColumn("{task.fields[metric]}"),
    ]
    with rich.Progress(*columns, console=optional("rich.console", "a progress bar").Console(stderr=True)) as bar:
        task = bar.add_task(
            claim, total=training.plan.steps, completed=training.steps_executed, metric="", program=training.program
        )

        def update(text: str) -> None:
            more = {"metric": text} if text else {}
            bar.update(task, completed=training.steps_executed, program=training.program, **more)

        yield update
