"""The sum of clipped per-example gradients of any PyTorch model, in one backward pass.

    sums, norms = tacit.sgd.clipped_grad(model, loss, batch, clip_norm=1.0)

This is the sensitive half of DP-SGD, usable alone by people with their own training loop: add noise of standard
deviation ``noise_multiplier * result.sensitivity`` to ``sums``, divide by the *expected* batch size, and step.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from tacit.sgd import checks
from tacit.sgd.batches import Loss, example_losses, plain, rows_of, take
from tacit.sgd.engine import Engine, Gradients
from tacit.sgd.errors import ClippingError
from tacit.sgd.norms import full_precision

Check = Literal["first", "always", "never"] | int
Method = Literal["operations", "examples"]


@dataclass(frozen=True)
class Clipping:
    """How per-example gradients are bounded, and the sensitivity that follows.

    ``groups[k]`` are the names of the parameters bounded together by ``bounds[k]``. Adding or removing one example
    changes the clipped sum by at most ``sensitivity`` in L2 norm (twice that for replacing one).

    >>> Clipping("per_layer", (("a.weight",), ("b.weight",)), (3.0, 4.0)).sensitivity
    5.0
    """

    kind: str
    groups: tuple[tuple[str, ...], ...]
    bounds: tuple[float, ...]
    stabiliser: float = 0.0

    @property
    def sensitivity(self) -> float:
        """L2 sensitivity of the clipped sum under add/remove-one adjacency: the root of the sum of squared bounds."""
        return self.bounds[0] if len(self.bounds) == 1 else math.sqrt(sum(c * c for c in self.bounds))

    @staticmethod
    def of(kind: Any, clip_norm: float, names: list[str], stabiliser: float = 0.01) -> Clipping:
        """The clipping a user asked for, over these parameters.

        ``"flat"`` bounds the whole gradient. ``"per_layer"`` bounds the parameters of each module together by
        ``clip_norm / sqrt(number of modules)``, so that the total is ``clip_norm``. A mapping from name patterns to
        bounds gives each group its own. ``"automatic"`` scales every gradient to (nearly) ``clip_norm``, long or
        short.

        >>> Clipping.of({"head.*": 0.3, "*": 0.4}, 1.0, ["body.weight", "head.weight"]).sensitivity
        0.5
        """
        if not (math.isfinite(clip_norm) and clip_norm > 0):
            raise ValueError(f"clip_norm must be positive and finite, not {clip_norm}")
        if not names:
            raise ClippingError("the model has no trainable parameters")
        if isinstance(kind, Mapping):
            return _by_pattern(kind, names)
        if kind == "per_layer":
            layers: dict[str, list[str]] = {}
            for name in names:
                layers.setdefault(name.rpartition(".")[0], []).append(name)
            bound = clip_norm / math.sqrt(len(layers))
            # Rounded down, so that the bounds do not add up to more than clip_norm.
            bound = math.nextafter(bound, 0.0)
            return Clipping("per_layer", tuple(map(tuple, layers.values())), (bound,) * len(layers))
        if kind == "flat":
            return Clipping("flat", (tuple(names),), (clip_norm,))
        if kind == "automatic":
            return Clipping("automatic", (tuple(names),), (clip_norm,), stabiliser)
        raise ValueError(f"clipping must be 'flat', 'per_layer', 'automatic' or a mapping of patterns, not {kind!r}")


def _by_pattern(kind: Mapping[str, float], names: list[str]) -> Clipping:
    groups: dict[str, list[str]] = {pattern: [] for pattern in kind}
    for name in names:
        pattern = next((p for p in kind if fnmatch.fnmatchcase(name, p)), None)
        if pattern is None:
            raise ValueError(f"no pattern in clipping covers parameter {name!r}: it would be unbounded")
        groups[pattern].append(name)
    empty = [pattern for pattern, members in groups.items() if not members]
    if empty:
        raise ValueError(f"no parameter matches {empty[0]!r}")
    bounds = tuple(float(kind[p]) for p in groups)
    if not all(math.isfinite(c) and c > 0 for c in bounds):
        raise ValueError("every bound must be positive and finite")
    return Clipping("groups", tuple(map(tuple, groups.values())), bounds)


@dataclass(frozen=True)
class ClippedGradients:
    """What :func:`clipped_grad` returns; unpacks as ``sums, norms``.

    ``sums`` maps parameter names to clipped sums (float32, or float64 for float64 parameters). ``norms`` are the
    norms before clipping, ``(B,)``, or ``(B, groups)`` when there are several groups; they and ``losses`` are **not**
    private: never release them.
    """

    sums: dict[str, Tensor]
    norms: Tensor
    clipping: Clipping
    losses: Tensor
    scale: Tensor

    def __iter__(self) -> Iterator[Any]:
        yield self.sums
        yield self.norms

    @property
    def sensitivity(self) -> float:
        """L2 sensitivity of ``sums`` under add/remove-one adjacency; rounding is inside."""
        return self.clipping.sensitivity


def factors(
    squared: Tensor, safe: Tensor, bounds: Tensor, good: Tensor, mask: Tensor | None, stabiliser: float
) -> tuple[Tensor, Tensor]:
    """Norms and clip factors, ``(B, groups)``, from squared norms and norms with their margins.

    Guarantee: ``factor * norm <= bound`` for every example and group; an example that is masked, not ``good``, or not
    finite in any group, has factor zero in all of them.
    """
    good = good & torch.isfinite(safe).all(1)
    bad = ~good
    if mask is not None:
        good = good & mask.bool()
    kept = good.unsqueeze(1)
    # Rounding of the factor itself and of the product with it, four units at the most.
    below = 1.0 - 4 * torch.finfo(safe.dtype).eps
    safe = torch.where(kept, safe, 0.0)
    if stabiliser:
        scale = bounds / (safe + stabiliser) * below
    else:
        scale = torch.where(safe > bounds, bounds / safe.clamp(min=torch.finfo(safe.dtype).tiny) * below, 1.0)
    norms = torch.where(bad.unsqueeze(1), torch.inf, squared.clamp(min=0).sqrt())
    if mask is not None:
        norms = torch.where(mask.bool().unsqueeze(1), norms, 0.0)
    return norms, torch.where(kept, scale, 0.0)


def clip(
    gradients: Gradients, names: list[str], clipping: Clipping, good: Tensor, mask: Tensor | None
) -> tuple[Callable[[bool], dict[str, Tensor]], Tensor, Tensor]:
    """Sums, norms and factors from per-example gradients; static shapes, no data-dependent Python."""
    group_of = {name: g for g, members in enumerate(clipping.groups) for name in members}
    squared: list[Any] = [0.0] * len(clipping.groups)
    safe_squared: list[Any] = [0.0] * len(clipping.groups)
    product: list[Any] = [0.0] * len(clipping.groups)
    for k, name in enumerate(names):
        norms = gradients.norms(k)
        g = group_of[name]
        squared[g] = squared[g] + norms.squared
        safe_squared[g] = safe_squared[g] + norms.squared.clamp(min=0) + norms.gram
        product[g] = product[g] + norms.product + torch.zeros_like(norms.squared)
    squared_BG = torch.stack(squared, 1)
    safe_BG = torch.stack(safe_squared, 1).sqrt() + torch.stack(product, 1).sqrt()
    bounds = torch.tensor(clipping.bounds, dtype=safe_BG.dtype, device=safe_BG.device)
    norms_BG, scale_BG = factors(squared_BG, safe_BG, bounds, good, mask, clipping.stabiliser)

    def sums(sanitise: bool) -> dict[str, Tensor]:
        return {n: gradients.weighted_sum(k, scale_BG[:, group_of[n]], sanitise) for k, n in enumerate(names)}

    return sums, norms_BG, scale_BG


# -- the call --------------------------------------------------------------------------------------------------

_engines: WeakKeyDictionary[nn.Module, Engine] = WeakKeyDictionary()


def trainable(model: nn.Module) -> dict[str, Tensor]:
    """Trainable parameters by name, each tensor once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def engine_of(model: nn.Module) -> Engine:
    """The engine of a model, with what it has learned about it; a new one when other parameters are trained."""
    parameters = trainable(model)
    engine = _engines.get(model)
    if engine is None or [(n, id(p)) for n, p in engine.parameters.items()] != [
        (n, id(p)) for n, p in parameters.items()
    ]:
        engine = _engines[model] = Engine(model, parameters)
    return engine


def context_of(model: nn.Module, loss: Loss, views: int) -> Any:
    """What a check of one call says nothing about in another: the code of the loss, views, training or evaluation."""
    code = getattr(getattr(loss, "func", loss), "__code__", None) or type(loss)
    return code, views, tuple(module.training for module in model.modules())


def clipped_grad(
    model: nn.Module,
    loss: Loss,
    batch: Any,
    clip_norm: float = 1.0,
    *,
    clipping: Literal["flat", "per_layer", "automatic"] | Mapping[str, float] = "flat",
    mask: Tensor | None = None,
    views: int = 1,
    microbatch: int | None = None,
    check: Check = "first",
    method: Method = "operations",
    stabiliser: float = 0.01,
) -> ClippedGradients:
    """The sum over examples of per-example gradients, each clipped to ``clip_norm``, and their norms.

    ``loss(model, batch)`` returns one loss per example, shape ``(B,)``; or it is a criterion module with
    ``reduction="none"`` and the batch is ``(inputs, targets)``. Every tensor in ``batch`` has the examples in its
    first dimension.

    ``mask`` (B,) marks the real examples of a padded batch. With ``views=K`` each example has K adjacent rows
    (augmented views), whose gradients are averaged *before* clipping. ``microbatch`` bounds how many examples run at
    a time. ``check`` says when the answer is compared with autograd's own (``"first"`` step of each shape,
    ``"always"``, ``"never"``, or every so many steps). ``method="examples"`` runs one backward pass per example:
    slow, for models that the engine refuses.

    Guarantee: adding or removing one example changes ``sums`` by at most ``result.sensitivity`` in L2 norm, rounding
    included, whatever the example holds; one whose gradient is not finite counts as zero. The model is left as it
    was.

    >>> import torch
    >>> model = torch.nn.Linear(3, 2)
    >>> batch = (torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 1]))
    >>> sums, norms = clipped_grad(model, torch.nn.CrossEntropyLoss(reduction="none"), batch, clip_norm=0.1)
    >>> sorted(sums), norms.shape
    (['bias', 'weight'], torch.Size([5]))
    """
    batch = plain(batch)
    rows = rows_of(batch)
    if views < 1 or rows % views:
        raise ValueError(f"{rows} rows are not a whole number of examples with {views} views each")
    examples = rows // views
    if mask is not None and mask.shape != (examples,):
        raise ValueError(f"mask must have shape ({examples},), not {tuple(mask.shape)}")
    if method not in ("operations", "examples"):
        raise ValueError(f"method must be 'operations' or 'examples', not {method!r}")
    engine = engine_of(model)
    engine.context = context_of(model, loss, views)
    names = list(engine.parameters)
    spec = Clipping.of(clipping, clip_norm, names, stabiliser)
    checks.no_known_obstacles(model)
    if microbatch is not None and microbatch < 1:
        raise ValueError(f"microbatch must be at least 1, not {microbatch}")
    size = 1 if method == "examples" else microbatch or max(1, examples)
    device = next(iter(engine.parameters.values())).device
    due = checks.due(engine, check)
    sums = {n: torch.zeros(p.shape, dtype=_wide(p), device=p.device) for n, p in engine.parameters.items()}
    told: list[tuple[Tensor, Tensor, Tensor]] = []
    for start in range(0, examples, size):
        real = min(size, examples - start)
        piece, kept = batch, None if mask is None else mask[start : start + real].to(device)
        if real < size:
            # Filled up with copies of its last example, masked: every micro-batch has the same shape and the same plan.
            rows = torch.arange(size * views).clamp(max=real * views - 1) + start * views
            piece = take(batch, rows)
            filled = torch.zeros(size, dtype=torch.bool, device=device)
            filled[:real] = True if kept is None else kept.bool()
            kept = filled
        elif size < examples:
            piece = take(batch, slice(start * views, (start + size) * views))
        part, *rest = _one(engine, loss, piece, spec, kept, views, check, due, method)
        sums = part if real == examples else {name: sums[name] + part[name] for name in names}
        told.append(tuple(value[:real] for value in rest))
    if not told:
        none = torch.zeros((0, len(spec.groups)), device=device)
        told.append((none, none[:, 0], none))
    norms, losses, scale = (torch.cat(values) if len(told) > 1 else values[0] for values in zip(*told, strict=True))
    return ClippedGradients(sums, norms.squeeze(1) if len(spec.groups) == 1 else norms, spec, losses, scale)


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _one(
    engine: Engine,
    loss: Loss,
    batch: Any,
    spec: Clipping,
    mask: Tensor | None,
    views: int,
    check: Check,
    due: bool,
    method: Method,
) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor]:
    rows = rows_of(batch)
    examples = rows // views

    def losses_of(some: Any) -> Callable[[], Tensor]:
        return lambda: example_losses(engine.model, loss, some, rows, views)

    gradients: Gradients | None
    if method == "examples":
        gradients, losses = checks.by_autograd(engine, losses_of(batch))
    else:
        gradients, losses = checks.planned(engine, losses_of, batch, examples, views, check, due)
    names = list(engine.parameters)
    losses = losses.detach()
    good = torch.isfinite(losses)
    if gradients is None:
        good = torch.zeros_like(good)
        gradients = Gradients(examples, list(engine.parameters.values()), [[] for _ in names])
    with torch.no_grad(), torch.autocast(losses.device.type, enabled=False), full_precision():
        sums, norms, scale = clip(gradients, names, spec, good, mask)
        result = sums(False)
        # An example counted as zero still poisons a product with its infinities: only then are all factors cleaned.
        if not bool(torch.stack([v.sum() for v in result.values()]).isfinite().all()):
            result = sums(True)
    return result, norms, losses, scale
