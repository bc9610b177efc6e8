"""What is the gradient of each single example? For people who learn, debug or do research; not to be released.

    gradients = tacit.sgd.example_gradients(model, loss, batch)
    gradients["head.weight"]  # (examples, *shape)

Private training does not need this: :func:`tacit.sgd.clipped_grad` gives clipped sums without forming what is here.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import math
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from tacit.sgd.gradients import company, fallback, verify
from tacit.sgd.gradients.batches import Loss, take
from tacit.sgd.gradients.bounds import Clipping, Gradients, exact_products
from tacit.sgd.gradients.contributions import Group, to_dense, wide
from tacit.sgd.gradients.engine import Engine, Method, Request
from tacit.sgd.gradients.randomness import remember
from tacit.sgd.gradients.verify import Check

__all__ = ["ExampleGradients", "example_gradients", "formed"]

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


class ExampleGradients:
    """What :func:`example_gradients` returns: the gradient of every example, **for the operator only**.

    Look a parameter up by its name, as in a dictionary. It is no mapping, so that a tracker or JSON encoder that takes
    anything does not take it, and it cannot be pickled; ``dict(gradients)`` is one.

    Guarantee:
        None: nothing is clipped and nothing has noise. Never release it, nor anything computed from it.

    Args:
        gradients: By parameter name, tensors ``(examples, *shape)``.
        losses: The loss of each example, shape ``(examples,)``.

    Example:
        >>> found = ExampleGradients({"bias": torch.tensor([[3.0, 4.0], [0.0, 0.0]])}, torch.tensor([1.0, 2.0]))
        >>> found["bias"].shape, found.norms.tolist()
        (torch.Size([2, 2]), [5.0, 0.0])
        >>> found
        ExampleGradients(bias: (2, 2)) [operator view: not covered by the guarantee]
    """

    def __init__(self, gradients: dict[str, Tensor], losses: Tensor) -> None:
        self._gradients, self._losses = gradients, losses

    @property
    def losses(self) -> Tensor:
        """The loss of each example, shape ``(examples,)``."""
        return self._losses

    @property
    def norms(self) -> Tensor:
        """The L2 norm of each example's gradient over the parameters that are here, shape ``(examples,)``."""
        squares = [g.reshape(len(g), -1).square().sum(1) for g in self._gradients.values()]
        return torch.stack(squares).sum(0).sqrt()

    @property
    def nbytes(self) -> int:
        """How much memory the gradients take, in bytes."""
        return sum(g.numel() * g.element_size() for g in self._gradients.values())

    def keys(self) -> list[str]:
        """The names of the parameters."""
        return list(self._gradients)

    def items(self) -> list[tuple[str, Tensor]]:
        """Names and gradients."""
        return list(self._gradients.items())

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._gradients:
            raise KeyError(
                f"no gradients of {name!r} here; there are those of {', '.join(self._gradients) or 'nothing'}"
            )
        return self._gradients[name]

    def __contains__(self, name: object) -> bool:
        return name in self._gradients

    def __iter__(self) -> Iterator[str]:
        return iter(self._gradients)

    def __len__(self) -> int:
        return len(self._gradients)

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name}: {tuple(g.shape)}" for name, g in self._gradients.items())
        return f"ExampleGradients({shapes}) [operator view: not covered by the guarantee]"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "single gradients are private data without noise and are not pickled: keep them in this process"
        )


def example_gradients(
    model: nn.Module,
    loss: Loss,
    batch: Any,
    *,
    names: str | Collection[str] | None = None,
    views: int = 1,
    microbatch: int | None = None,
    check: Check = "first",
    method: Method = "operations",
    memory_limit: int | None = None,
) -> ExampleGradients:
    """Compute the gradient of each single example, for every trainable parameter.

    It takes every model that :func:`clipped_grad` takes, by the same rules and with the same checks: weights that are
    tied or used several times have one gradient, frozen ones none, and a model that mixes examples is refused. Dropout
    and other random layers draw once for the batch, as in training: each example's gradient belongs to its own draw.
    The model is left as it was.

    The result takes ``examples * trainable elements * 4`` bytes (8 for float64 parameters): for 256 examples of a model
    with 10 million parameters, 9.5 GiB. That is checked before anything is computed. While it runs, a micro-batch
    needs its activations and one parameter's gradients of its examples.

    Guarantee:
        None: nothing is clipped and nothing has noise. The result is for the operator; do not release it.

    Args:
        model: Any PyTorch model, unmodified.
        loss: ``loss(model, batch)``, one value per example, shape ``(B,)``; or a criterion with ``reduction="none"``
            for a batch ``(inputs, targets)``.
        batch: Tensors, or a tuple, list or dict of them, with the examples in the first dimension.
        names: Which parameters, as one pattern or several (``"head.*"``): less memory than all of them. Default: all
            trainable ones.
        views: How many adjacent rows are views of one example; their gradients are averaged. Default: 1.
        microbatch: How many examples run at a time. Default: all of them.
        check: When the answer is compared with autograd's: ``"first"`` (default: the first batch of each shape),
            ``"always"``, ``"never"``, or a number of calls between two checks.
        method: ``"operations"`` (default), or ``"examples"``: one backward pass per example, slow, for models that the
            default refuses although they treat examples separately.
        memory_limit: The most bytes that the result may take. Default: what is free on the model's device, where that
            can be found out.

    Returns:
        The gradients by parameter name, each ``(examples, *shape)`` in float32 (float64 for float64 parameters), and
        the losses. An example whose loss is not finite keeps its gradient as it is, not finite.

    Raises:
        MemoryError: If the result would take more than ``memory_limit``; the message says how much.
        ClippingError: If the model's examples cannot be told apart; the message says why.
        ValueError: If no parameter matches ``names``, the loss does not return one value per example, an argument is
            out of range, or the model is spread over ranks.

    Example:
        >>> model = torch.nn.Linear(3, 2)
        >>> batch = (torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 1]))
        >>> gradients = example_gradients(model, torch.nn.CrossEntropyLoss(reduction="none"), batch)
        >>> gradients["weight"].shape, gradients.norms.shape
        (torch.Size([5, 2, 3]), torch.Size([5]))

        ``examples/single_gradients.py`` finds the examples that pull hardest.
    """
    engine = Engine.of(model)
    if engine.shards is not None:
        raise ValueError("the model is spread over ranks: single gradients are computed where it is whole")
    # The bound is not used; a request has one.
    bound = Clipping.of("flat", 1.0, list(engine.parameters))
    request = Request(loss, batch, bound, views=views, microbatch=microbatch, check=check, method=method)
    wanted = _wanted(list(engine.parameters), names)
    _check_memory(engine, wanted, request.examples, memory_limit)
    if engine.state.suspicious:
        verify.no_known_obstacles(model)
    if method == "examples" and check != "never":
        company.after_lengths(engine, request)
    due = check == "always" or (isinstance(check, int) and engine.calls % check == 0)
    engine.calls += 1
    found = {
        name: torch.empty((request.examples, *p.shape), dtype=wide(p.dtype), device=p.device)
        for name, p in engine.parameters.items()
        if name in wanted
    }
    losses = torch.empty(request.examples, device=engine.device)
    for start in range(0, request.examples, request.size):
        stop = min(request.examples, start + request.size)
        values = _fill(engine, _piece(request, start, stop), found, start, stop, due=due)
        losses = losses.to(values.dtype)
        losses[start:stop] = values
    return ExampleGradients(found, losses)


def formed(gradients: Gradients, k: int) -> Tensor:
    """Per-example gradients of the ``k``-th parameter, ``(examples, *shape)``, from its contributions."""
    parameter = gradients.parameters[k]
    shape = (gradients.batch, *parameter.shape)
    total: Tensor | None = None
    for frame, group in gradients.groups[k]:
        values = _values(group).reshape(gradients.batch, -1).to(wide(parameter.dtype))
        if frame.index is not None:
            index = frame.index.reshape(1, -1).expand(gradients.batch, -1)
            whole = torch.zeros(gradients.batch, parameter.numel(), dtype=values.dtype, device=values.device)
            values = whole.scatter_add_(1, index, values)
        total = values if total is None else total + values
    if total is None:
        return torch.zeros(shape, dtype=wide(parameter.dtype), device=parameter.device)
    return total.reshape(shape)


def _values(group: Group) -> Tensor:
    """The contributions to one value, added up, ``(examples, …)``."""
    if group.dense is not None:
        return group.dense
    parts = [to_dense(part, group.shape) for part in (*group.parts, group.lookup) if part is not None]
    first = parts[0].reshape(len(parts[0]), -1)
    return sum((part.reshape(first.shape) for part in parts[1:]), first)


def _piece(request: Request, start: int, stop: int) -> Request:
    """So many examples at a time; a last piece is filled up with copies of its last example, for the same shapes."""
    size, views = request.size, request.views
    if size == request.examples:
        return request
    rows = (torch.arange(size * views) + start * views).clamp(max=stop * views - 1)
    return dataclasses.replace(request, batch=take(request.batch, rows))


def _fill(engine: Engine, request: Request, found: dict[str, Tensor], start: int, stop: int, *, due: bool) -> Tensor:
    """Write the gradients of these examples into their places; their losses."""
    gradients: Gradients | None
    if request.method == "examples":
        gradients, losses = verify.by_autograd(engine, request)
    else:

        def once() -> tuple[Gradients | None, Tensor]:
            return fallback.of_batch(engine, request, due=due)

        gradients, losses = fallback.attempt(engine, once, remember(engine.device))
    if gradients is None:  # no example is finite, which whoever looks at single gradients wants to see
        for k in range(stop - start):
            one = dataclasses.replace(request.picked(torch.tensor([k])), method="examples", microbatch=None)
            _fill(engine, one, found, start + k, start + k + 1, due=False)
        return losses.detach()[: stop - start]
    device = engine.device
    with torch.no_grad(), torch.autocast(device.type, enabled=False), exact_products(device):
        for k, name in enumerate(engine.parameters):
            if name in found:
                found[name][start:stop] = formed(gradients, k)[: stop - start]
    return losses.detach()[: stop - start]


def _wanted(known: list[str], names: str | Collection[str] | None) -> set[str]:
    if names is None:
        return set(known)
    patterns = [names] if isinstance(names, str) else list(names)
    lost = [pattern for pattern in patterns if not fnmatch.filter(known, pattern)]
    if lost or not patterns:
        raise ValueError(f"no trainable parameter matches names={lost[0]!r}" if lost else "names is empty")
    return {name for name in known if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)}


def _check_memory(engine: Engine, wanted: set[str], examples: int, limit: int | None) -> None:
    some = [p for name, p in engine.parameters.items() if name in wanted]
    needed = examples * sum(p.numel() * wide(p.dtype).itemsize for p in some)
    free = _free(engine.device) if limit is None else limit
    if free is not None and needed > free:
        where = "memory_limit" if limit is not None else f"what is free on {engine.device}"
        raise MemoryError(
            f"single gradients of this batch take {_size(needed)}, more than {where} ({_size(free)}): take fewer "
            "examples at a time, name some parameters (names='head.*'), or use clipped_grad, which forms none"
        )


def _free(device: torch.device) -> int | None:
    """Free memory of a device in bytes; None where nothing says."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0] + unused)
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else None


def _size(count: float) -> str:
    step = min(int(math.log(max(count, 1), 1024)), len(_UNITS) - 1)
    return f"{count / 1024**step:.4g} {_UNITS[step]}"
