"""The sum of clipped per-example gradients of any PyTorch model, in one backward pass.

    sums, norms = tacit.sgd.clipped_grad(model, loss, batch, clip_norm=1.0)

This is the sensitive half of DP-SGD, usable alone by people with their own training loop: add noise of standard
deviation ``noise_multiplier * result.sensitivity`` to ``sums``, divide by the *expected* batch size, and step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from tacit.sgd.compile import cache
from tacit.sgd.gradients import company, survey, verify
from tacit.sgd.gradients.batches import Loss, example_losses, plain, rows_of, take
from tacit.sgd.gradients.bounds import HIDDEN, Clipping, clip_and_look, warn_once
from tacit.sgd.gradients.engine import Engine, Glance, Gradients
from tacit.sgd.kernels.products import full_precision
from tacit.sgd.sharding.shards import spread_of

Check = Literal["first", "always", "never"] | int
Method = Literal["operations", "examples"]
Compile = bool | Literal["traced"]


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


# -- the call --------------------------------------------------------------------------------------------------

_engines: WeakKeyDictionary[nn.Module, Engine] = WeakKeyDictionary()


def trainable(model: nn.Module) -> dict[str, Tensor]:
    """Trainable parameters by name, each tensor once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def engine_of(model: nn.Module, glance: Glance | None = None) -> Engine:
    """The engine of a model, with what it has learned about it; a new one when other parameters are trained."""
    spread = spread_of(model)  # first of all: it lets the model hold its pieces
    identity = (glance or Glance(model, ())).trained
    engine = _engines.get(model)
    # The engine keeps its parameters alive, so that no other can have taken their place in memory.
    if engine is None or engine.identity != identity:
        engine = _engines[model] = Engine(model, trainable(model) if spread is None else spread.seen, spread)
        engine.identity = identity
    return engine


def context_of(model: nn.Module, loss: Loss, views: int, glance: Glance | None = None) -> Any:
    """What a check of one call says nothing about in another: the code of the loss, views, training or evaluation."""
    code = getattr(getattr(loss, "func", loss), "__code__", None) or type(loss)
    return code, views, tuple((glance or Glance(model, ())).training)


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
    compile: Compile = False,
    lend: bool = False,
    meanwhile: Callable[[dict[str, Tensor]], None] | None = None,
) -> ClippedGradients:
    """The sum over examples of per-example gradients, each clipped to ``clip_norm``, and their norms.

    ``loss(model, batch)`` returns one loss per example, shape ``(B,)``; or it is a criterion module with
    ``reduction="none"`` and the batch is ``(inputs, targets)``. Every tensor in ``batch`` has the examples in its
    first dimension.

    ``mask`` (B,) marks the real examples of a padded batch. With ``views=K`` each example has K adjacent rows
    (augmented views), whose gradients are averaged *before* clipping. ``microbatch`` bounds how many examples run at
    a time. ``check`` says when the answer is compared with autograd's own (``"first"`` step of each shape,
    ``"always"``, ``"never"``, or every so many steps); with any but ``"never"`` a pass that reads values of the data is
    looked at in every batch. ``method="examples"`` runs one backward pass per example:
    slow, for models that the engine refuses. ``compile=True`` traces and compiles the step once for every shape,
    ``compile="traced"`` only traces it: seconds instead of a minute, and on a GPU a CUDA graph all the same. Where
    that cannot be done a :class:`~tacit.sgd.NotCompiled` warning says why, and the step runs as without it. With
    ``lend=True`` the results of a compiled step may lie in memory that the next call writes over, which saves copies;
    ``meanwhile(sums)`` is called once a compiled step is on its way and before its answer is looked at: what it
    enqueues on a GPU runs behind them. They count only if they are what is returned: the very same dictionary.

    Of a model that is spread over ranks (``fully_shard``, tensor parallel) every rank calls this together, with a batch
    of the same shape; the sums are then over the batches of all ranks, and each gets the pieces of them that it keeps.

    Guarantee: adding or removing one example changes ``sums`` by at most ``result.sensitivity`` in L2 norm, rounding
    included, whatever the example holds; one whose gradient is not finite counts as zero. What an example is in the
    batch must follow from that example alone: pad to a public length, or such that padding changes nothing, which is
    looked at once batches differ in length. The model is left as it was.

    >>> import torch
    >>> model = torch.nn.Linear(3, 2)
    >>> batch = (torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 1]))
    >>> sums, norms = clipped_grad(model, torch.nn.CrossEntropyLoss(reduction="none"), batch, clip_norm=0.1)
    >>> sorted(sums), norms.shape
    (['bias', 'weight'], torch.Size([5]))
    """
    # What most batches are, a tuple of tensors, needs no search: this is asked at every step.
    usual = type(batch) is tuple and bool(batch) and all(isinstance(t, Tensor) and t.dim() > 0 for t in batch)
    batch = batch if usual else plain(batch)
    rows = len(batch[0]) if usual and len({len(t) for t in batch}) == 1 else rows_of(batch)
    if views < 1 or rows % views:
        raise ValueError(f"the rows are not a whole number of examples with {views} views each")
    examples = rows // views
    if mask is not None and mask.shape != (examples,):
        raise ValueError("mask must be a vector with one entry for each example")
    if compile not in (False, True, "traced"):
        raise ValueError(f"compile must be True, False or 'traced', not {compile!r}")
    if method not in ("operations", "examples"):
        raise ValueError(f"method must be 'operations' or 'examples', not {method!r}")
    spread_of(model)  # first of all: it lets the model hold its pieces
    glance = Glance(model, verify.SUSPECTS)
    engine = engine_of(model, glance)
    engine.context = context_of(model, loss, views, glance)
    engine.buffers = glance.buffers
    names = list(engine.parameters)
    spec = Clipping.of(clipping, clip_norm, names, stabiliser)
    if glance.suspicious:
        verify.no_known_obstacles(model)
    if microbatch is not None and microbatch < 1:
        raise ValueError(f"microbatch must be at least 1, not {microbatch}")
    size = 1 if method == "examples" else microbatch or max(1, examples)
    device = next(iter(engine.parameters.values())).device
    if engine.spread is not None and (compile or not examples):
        raise ValueError(
            "a model that is spread over ranks is not compiled, and every rank runs at least one (masked) row"
        )
    due = verify.due(engine, check)
    if method == "examples" and check != "never":
        company.after_lengths(
            engine, lambda b: lambda: example_losses(model, loss, b, rows_of(b), views), batch, examples, views
        )
    sums: dict[str, Tensor] = {}
    told: list[tuple[Tensor, Tensor, Tensor]] = []
    for start in range(0, examples, size):
        real = min(size, examples - start)
        piece, kept = batch, mask
        if kept is not None:
            kept = kept if size >= examples else kept[start : start + real]
            kept = kept if kept.device == device else kept.to(device)
        if real < size:
            # Filled up with copies of its last example, masked: every micro-batch has the same shape and the same plan.
            piece = take(batch, torch.arange(size * views).clamp(max=real * views - 1) + start * views)
            filled = torch.zeros(size, dtype=torch.bool, device=device)
            filled[:real] = True if kept is None else kept.bool()
            kept = filled
        elif size < examples:
            piece = take(batch, slice(start * views, (start + size) * views))
        lent = lend and size >= examples
        early = meanwhile if size >= examples else None
        part, norms, losses, scale = _one(
            engine, loss, piece, spec, kept, views, check, due, method, compile, lent, early, size
        )
        if engine.spread is not None:
            engine.spread.rest()
        sums = {name: sums[name] + part[name] for name in names} if sums else part
        told.append((norms[:real], losses[:real], scale[:real]) if real < size else (norms, losses, scale))
    if not told:
        sums = {n: torch.zeros(p.shape, dtype=_wide(p), device=p.device) for n, p in engine.parameters.items()}
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
    compile: Compile,
    lend: bool,
    meanwhile: Callable[[dict[str, Tensor]], None] | None,
    examples: int,
) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor]:

    def losses_of(some: Any) -> Callable[[], Tensor]:
        return lambda: example_losses(engine.model, loss, some, rows_of(some), views)

    if compile and method == "operations":
        by_compiler = compile != "traced"
        done = cache.attempt(
            engine, loss, losses_of, batch, examples, spec, mask, views, check, due, by_compiler, lend, meanwhile
        )
        if done is not None:
            warn_once(HIDDEN if done.lost else None, engine.said)
            return done.sums, done.norms, done.losses, done.scale
    gradients: Gradients | None
    if method == "examples":
        gradients, losses = verify.by_autograd(engine, losses_of(batch))
    else:
        gradients, losses = survey.planned(engine, losses_of, batch, examples, views, check, due)
    names = list(engine.parameters)
    losses = losses.detach()
    good = torch.isfinite(losses)
    if gradients is None:
        good = torch.zeros_like(good)
        gradients = Gradients(examples, engine.pieces, [[] for _ in names])
    with torch.no_grad(), torch.autocast(losses.device.type, enabled=False), full_precision():
        found, sums, why = clip_and_look(gradients, names, spec, good, mask, engine.spread)
    warn_once(why, engine.said)
    return sums, found.norms, losses, found.scale
