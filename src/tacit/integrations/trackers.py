"""What may go into an experiment tracker? Only what the guarantee covers, or what never depended on the data.

    tracker = Tracker(privacy_engine, tensorboard(writer), delta=1e-5)
    tracker.log()          # after a step or an epoch: ε, noise, clip norm, signal-to-noise

A tracker is read by others, so what goes there is a :class:`tacit.ledger.Release`:

* ε is a price: it follows from noise, rate and number of steps, all public.
* The signal-to-noise ratio is estimated from the noisy sum alone, which has been released and paid for.
* The clipped fraction is a count over private gradients. It is logged where it was counted with noise, as adaptive
  clipping does and ε includes; otherwise it is an operator's value. ``operator=True`` writes it, under ``operator/``,
  for trackers that nobody but the operator reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from tacit import accounting as acc
from tacit.integrations.run import PrivateRun
from tacit.ledger import PrivateValueError, Release, public
from tacit.sgd.hooked.loop import Loop

Sink = Callable[[Mapping[str, float], int], None]

PRICE = "a price, computed from noise, sampling rate and number of steps"
CHOSEN = "chosen before the data were seen"
PAID = "computed from the noisy sum, which was released and is in ε"


def _loop_of(source: Any) -> Loop:
    if isinstance(source, Loop):
        return source
    loops = getattr(source, "loops", None)
    if loops:
        return loops[-1]  # type: ignore[no-any-return]
    for name in ("loop", "run", "private_run"):
        inner = getattr(source, name, None)
        if inner is not None:
            return _loop_of(inner)
    raise ValueError(f"{type(source).__name__} has no private run that has begun")


def _delta_of(source: Any, delta: float | None) -> float:
    found = delta
    for name in ("", "run", "private_run"):
        holder = getattr(source, name, None) if name else source
        found = found or getattr(holder, "delta", None)
    if not found:
        raise ValueError("give delta=: a price needs it")
    return float(found)


def record(source: Any, delta: float | None = None) -> Release:
    """What may be told about a run so far: of a ``PrivacyEngine``, a private ``Trainer`` or a ``PrivateTraining``.

    >>> import torch
    >>> from tacit.opacus import PrivacyEngine
    >>> model, engine = torch.nn.Linear(3, 2), PrivacyEngine()
    >>> data = torch.utils.data.TensorDataset(torch.randn(50, 3), torch.randint(0, 2, (50,)))
    >>> _, optimizer, loader = engine.make_private(
    ...     module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), noise_multiplier=1.0,
    ...     max_grad_norm=1.0, data_loader=torch.utils.data.DataLoader(data, batch_size=10))
    >>> for x, y in loader:
    ...     torch.nn.functional.cross_entropy(model(x), y).backward()
    ...     optimizer.step()
    >>> told = record(engine, delta=1e-5)
    >>> told["steps"], told.source("signal_to_noise")
    (5, 'public: computed from the noisy sum, which was released and is in ε')
    """
    loop, delta = _loop_of(source), _delta_of(source, delta)
    holders = (source, *(getattr(source, name, None) for name in ("run", "private_run")))
    run = next((r for r in holders if isinstance(r, PrivateRun)), None)
    accountant = getattr(source, "accountant", None)
    if run is not None:
        bound = run.priced(delta).interval  # of the plan
    else:
        bound = accountant.privacy(delta).interval if accountant is not None else loop.spent.price(delta)
    values: dict[str, Any] = {
        "epsilon": public(float(bound.upper), PRICE),
        "epsilon_lower": public(float(bound.lower), PRICE),
        "delta": public(delta, CHOSEN),
        "adjacency": public(acc.stated_adjacency(bound.adjacency, counted=True), CHOSEN),
        "unit": public(bound.unit, CHOSEN),
        "steps": public(loop.steps, "the number of steps, which is in the price"),
        "noise_multiplier": public(float(loop.noise_multiplier), CHOSEN),
        "clip_norm": public(loop.spec().sensitivity, CHOSEN if loop.adaptive is None else PAID),
    }
    ratio = loop.signal_to_noise()
    if ratio is not None:
        values["signal_to_noise"] = public(ratio, PAID)
    if loop.inside_fraction is not None:
        values["clipped_fraction"] = public(1.0 - loop.inside_fraction, "the noisy count of adaptive clipping, in ε")
    return Release(values)


def tensorboard(writer: Any) -> Sink:
    """A ``torch.utils.tensorboard.SummaryWriter``."""

    def write(values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(f"privacy/{name}", value, step)
        writer.flush()

    return write


def mlflow(run_id: str | None = None) -> Sink:
    """The active run of MLflow, or the one of this id."""
    try:
        import mlflow as package
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("needs MLflow: pip install mlflow-skinny", name=error.name) from error

    def write(values: Mapping[str, float], step: int) -> None:
        named = {f"privacy/{name}": value for name, value in values.items()}
        package.log_metrics(named, step, run_id=run_id)

    return write


def wandb(run: Any) -> Sink:
    """A run of Weights & Biases."""

    def write(values: Mapping[str, float], step: int) -> None:
        run.log({f"privacy/{name}": value for name, value in values.items()}, step=step, commit=True)

    return write


class Tracker:
    """Writes what may be told of a run into one or more trackers.

    ``operator=True`` adds the raw clipped fraction and median norm of the last batch, which no guarantee covers.
    """

    def __init__(self, source: Any, *sinks: Sink, delta: float | None = None, operator: bool = False) -> None:
        if not sinks:
            raise ValueError("give at least one of tensorboard(writer), mlflow(), wandb(run)")
        self.source, self.sinks, self.delta, self.operator = source, sinks, delta, operator

    def log(self, values: Release | None = None) -> Release:
        """Write the run's record, and ``values``, a release of the user's own (validation on public data, say)."""
        if values is not None and not isinstance(values, Release):
            raise PrivateValueError(
                "a tracker takes a Release: mark each value with tacit.ledger.public or charged, by name"
            )
        told = record(self.source, self.delta)
        if values is not None:
            told = told | values
        numbers = {name: float(v) for name, v in told.items() if isinstance(v, int | float) and math.isfinite(v)}
        if self.operator:
            seen = _loop_of(self.source).diagnostics().reveal()
            for name in ("clipped_fraction", "median_norm"):
                value = seen.get(name)
                if isinstance(value, float) and math.isfinite(value):
                    numbers[f"operator/{name}"] = value
        for sink in self.sinks:
            sink(numbers, int(told["steps"]))
        return told


__all__ = ["Tracker", "mlflow", "record", "tensorboard", "wandb"]
