"""What may I send to an experiment tracker? What the guarantee covers, and what never depended on the data.

Others read a tracker, so what goes there is a :class:`tacit.ledger.Release`:

* ε is a price. It follows from noise, rate and number of steps, which are all public.
* The signal-to-noise ratio is estimated from the noisy sum alone, which was released and charged.
* The clipped fraction is a count over private gradients. It is logged if it was counted with noise, as adaptive
clipping
  does, and then ε includes it. Otherwise only the operator may see it: ``operator=True`` writes it under ``operator/``,
  for a tracker that nobody else reads.
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
    raise ValueError(f"{type(source).__name__} has no private run yet: call make_private, or begin training, first")


def _delta_of(source: Any, delta: float | None) -> float:
    found = delta
    for name in ("", "run", "private_run"):
        holder = getattr(source, name, None) if name else source
        found = found or getattr(holder, "delta", None)
    if not found:
        raise ValueError("give delta=: ε is stated at a δ")
    return float(found)


def record(source: Any, delta: float | None = None) -> Release:
    """Collect what may be released about a run so far.

    Guarantee:
        Nothing in the record needs further privacy budget: ε, δ, noise and steps are public, and the signal-to-noise
        ratio and the clip norm are computed from noisy values that the run's ε covers.

    Args:
        source: A ``PrivacyEngine``, a private ``Trainer`` or a ``PrivateTraining`` whose run has begun.
        delta: The δ at which to state ε. Default: that of the run. A ``PrivacyEngine`` has none, so give it.

    Returns:
        The record, each value with its reason for being public.

    Raises:
        ValueError: If no run has begun, or no ``delta`` is known.

    Example:
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
    """Write to TensorBoard, under ``privacy/``.

    Args:
        writer: A ``torch.utils.tensorboard.SummaryWriter``.

    Returns:
        A sink for :class:`Tracker`.

    Example:
        >>> class Writer:
        ...     def add_scalar(self, name, value, step):
        ...         print(name, value, step)
        ...     def flush(self):
        ...         pass
        >>> tensorboard(Writer())({"epsilon": 1.5}, 10)
        privacy/epsilon 1.5 10
    """

    def write(values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(f"privacy/{name}", value, step)
        writer.flush()

    return write


def mlflow(run_id: str | None = None) -> Sink:
    """Write to MLflow, under ``privacy/``.

    Args:
        run_id: The id of the run. Default: the active run.

    Returns:
        A sink for :class:`Tracker`.

    Raises:
        ModuleNotFoundError: If MLflow is not installed.

    Example:
        >>> import sys, types, unittest.mock
        >>> package = types.SimpleNamespace(log_metrics=lambda values, step, run_id: print(values, step))
        >>> with unittest.mock.patch.dict(sys.modules, mlflow=package):  # in place of the real one
        ...     mlflow()({"epsilon": 1.5}, 10)
        {'privacy/epsilon': 1.5} 10
    """
    try:
        import mlflow as package
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "mlflow() needs MLflow: pip install mlflow-skinny. See: tacit explain missing-extra", name=error.name
        ) from error

    def write(values: Mapping[str, float], step: int) -> None:
        named = {f"privacy/{name}": value for name, value in values.items()}
        package.log_metrics(named, step, run_id=run_id)

    return write


def wandb(run: Any) -> Sink:
    """Write to Weights & Biases, under ``privacy/``.

    Args:
        run: What ``wandb.init`` returned.

    Returns:
        A sink for :class:`Tracker`.

    Example:
        >>> class Run:
        ...     def log(self, values, step, commit):
        ...         print(values, step)
        >>> wandb(Run())({"epsilon": 1.5}, 10)
        {'privacy/epsilon': 1.5} 10
    """

    def write(values: Mapping[str, float], step: int) -> None:
        run.log({f"privacy/{name}": value for name, value in values.items()}, step=step, commit=True)

    return write


class Tracker:
    """Write what may be released about a run to one or more trackers.

    Args:
        source: A ``PrivacyEngine``, a private ``Trainer`` or a ``PrivateTraining``.
        *sinks: One or more of :func:`tensorboard`, :func:`mlflow` and :func:`wandb`, or any function that takes a
            mapping of values and a step.
        delta: The δ at which to state ε. Default: that of the run. A ``PrivacyEngine`` has none, so give it.
        operator: Also write the raw clipped fraction and median norm of the last batch, under ``operator/``. No
            guarantee covers them: only for a tracker that nobody but the operator reads.

    Raises:
        ValueError: If no sink is given.

    Example:
        >>> import torch
        >>> from tacit.opacus import PrivacyEngine
        >>> model, engine = torch.nn.Linear(3, 2), PrivacyEngine()
        >>> data = torch.utils.data.TensorDataset(torch.randn(50, 3), torch.randint(0, 2, (50,)))
        >>> _, optimizer, loader = engine.make_private(
        ...     module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), noise_multiplier=1.0,
        ...     max_grad_norm=1.0, data_loader=torch.utils.data.DataLoader(data, batch_size=10))
        >>> x, y = next(iter(loader))
        >>> torch.nn.functional.cross_entropy(model(x), y).backward()
        >>> optimizer.step()
        >>> seen = []
        >>> told = Tracker(engine, lambda values, step: seen.append(step), delta=1e-5).log()
        >>> seen, told["noise_multiplier"]
        ([1], 1.0)
    """

    def __init__(self, source: Any, *sinks: Sink, delta: float | None = None, operator: bool = False) -> None:
        if not sinks:
            raise ValueError("give at least one of tensorboard(writer), mlflow(), wandb(run)")
        self.source, self.sinks, self.delta, self.operator = source, sinks, delta, operator

    def log(self, values: Release | None = None) -> Release:
        """Write the record of the run, and values of your own.

        Args:
            values: A release with further values, such as accuracy on public data. Default: none.

        Returns:
            All that may be released: the record of the run and ``values``.

        Raises:
            PrivateValueError: If ``values`` is not a :class:`tacit.ledger.Release`.
        """
        if values is not None and not isinstance(values, Release):
            raise PrivateValueError(
                "values must be a Release: mark each value by name with tacit.ledger.public or tacit.ledger.charged"
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
