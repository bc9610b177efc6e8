"""Is the answer right, and does a per-example bound exist at all?

Three checks stop training with an error. *Agreement*: for a few examples the captured gradient equals the gradient of
that example's own loss by autograd, parameter by parameter, and so does its norm; and the captured sum equals
autograd's. *Isolation*: the loss of an example stays the same when every other example of the batch is replaced.
*Batch statistics*: a normalisation layer that averages over the batch is named before anything runs.

The sum alone would not be enough: a value shared by the whole batch gives the right sum and wrong norms.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor, nn

from tacit.sgd.errors import BatchMixing, ClippingError, SelfCheckFailed, UncoveredUse
from tacit.sgd.gradients.bounds import Gradients
from tacit.sgd.gradients.capture import tensors_in
from tacit.sgd.gradients.contributions import Group, wide
from tacit.sgd.gradients.frames import Frame
from tacit.sgd.torch_compat import BatchNorm, InstanceNorm

if TYPE_CHECKING:
    from tacit.sgd.gradients.engine import Engine, Request
    from tacit.sgd.gradients.outside import Pass

When = Literal["first", "always", "never"]
Check = When | int
CHECKED_EXAMPLES = 2
# How far two ways of computing the same gradient may lie apart, relative to its norm.
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.1}


#: Layers that :func:`no_known_obstacles` may refuse.
SUSPECTS = (BatchNorm, InstanceNorm, nn.Embedding, nn.EmbeddingBag, nn.RReLU)


CHANGED = "the model does other operations than with the batches before"
#: Ways through a model that are remembered, for batches of the same shapes.
WAYS = 64


class Ways:
    """The ways that passes over batches of the same shapes took through the model, and that were checked."""

    def __init__(self) -> None:
        self._known: dict[Any, set[int]] = {}

    def other(self, context: Any, data: list[Tensor], trace: int) -> bool:
        """Whether such batches were seen, and none of them went this way."""
        known = self._known.get((context, tuple([t.shape for t in data])))
        return known is not None and trace not in known

    def checked(self, context: Any, data: list[Tensor], trace: int, *, anew: bool) -> None:
        """Note a way whose plan holds; the only one, where the plan was made ``anew``."""
        known = self._known.setdefault((context, tuple([t.shape for t in data])), set())
        if anew:
            known.clear()
        if len(known) < WAYS:
            known.add(trace)


#: Where noise and clipping are exact and tested.
DEVICES = ("cpu", "cuda")


def trainable(model: nn.Module) -> dict[str, Tensor]:
    """Trainable parameters by name, each tensor once."""
    found: dict[str, Tensor] = {name: p for name, p in model.named_parameters() if p.requires_grad}
    for name, parameter in found.items():
        if parameter.device.type not in DEVICES:
            raise ClippingError(
                f"parameter {name!r} is on {parameter.device.type!r}, and tacit trains on the CPU and on CUDA GPUs: "
                "move the model with model.to('cpu') before you make its optimizer"
            )
    return found


def check_when(check: Any) -> None:
    """Refuse what does not say when gradients are checked."""
    if isinstance(check, bool) or (not isinstance(check, int) and check not in get_args(When)):
        raise ValueError(f"check must be 'first', 'always', 'never' or a number of steps, not {check!r}")
    if isinstance(check, int) and check < 1:
        raise ValueError("a check every so many steps needs a positive number")


def no_known_obstacles(model: nn.Module) -> None:
    """Refuse, before anything runs, layers that average over the batch or write what they see into their weights."""
    for name, module in model.named_modules():
        kind = type(module).__name__
        if isinstance(module, BatchNorm) and (module.training or module.running_mean is None):
            raise BatchMixing(
                f"module {name!r} ({kind}) normalises with statistics of the whole batch, so one example's loss "
                "depends on the others and no per-example bound exists. tacit.sgd.fix(model) replaces it by GroupNorm. "
                "See: tacit explain mixing"
            )
        if isinstance(module, InstanceNorm) and module.training and module.track_running_stats:
            raise UncoveredUse(
                f"module {name!r} ({kind}) keeps running statistics of the data without noise. tacit.sgd.fix(model) "
                "takes them away; each example is normalised by itself, as before. See: tacit explain no-rule"
            )
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
            raise UncoveredUse(
                f"module {name!r} ({kind}) rescales the weights that the batch looks up, without noise: set "
                "max_norm=None"
            )
        if type(module) is nn.RReLU and module.training:
            raise UncoveredUse(
                f"module {name!r} ({kind}) draws a slope only for negative numbers, so which one an example gets "
                "depends on the rest of its batch. tacit.sgd.fix(model) replaces it by a layer of the same law that "
                "draws for every number. See: tacit explain no-rule"
            )


def per_example(losses: Any, examples: int, views: int) -> Tensor:
    """One loss per example: the mean over its views."""
    rows = examples * views
    if not isinstance(losses, Tensor) or losses.shape != (rows,):
        what = f"a tensor of {losses.dim()} dimensions" if isinstance(losses, Tensor) else type(losses).__name__
        raise ValueError(
            f"the loss must return one value per example, a vector as long as the batch, not {what}. "
            "See: tacit explain loss-shape"
        )
    if not losses.requires_grad:
        raise ClippingError(
            "the loss does not depend on any trainable parameter: it was detached, or computed under torch.no_grad()"
        )
    wide_enough: Tensor = losses.to(torch.promote_types(losses.dtype, torch.float32))
    return wide_enough if views == 1 else wide_enough.view(examples, views).mean(1)


def is_finite(engine: Engine, run: Pass) -> bool:
    """Whether all losses are finite, and the gradient of their sum so far from overflow that it can be squared."""
    finite = bool(torch.isfinite(run.losses).all())
    if not finite and engine.shards is None:
        return False
    norms = []
    for part in _portions(engine):
        found = by_backward(engine, run, part, torch.ones_like(run.losses))
        norms += [dense_of(g).double().norm() for g in found if g is not None]
    if not norms:
        return finite
    norm = torch.stack(norms).norm()
    return finite and bool(norm < torch.finfo(wide(run.losses.dtype)).max ** 0.4)


_choice = torch.Generator()
_choice.seed()


def a_few(examples: int, count: int) -> list[int]:
    """A few examples at random, by randomness that is not the model's."""
    return [int(k) for k in torch.randperm(examples, generator=_choice, device="cpu")[:count]]


def dense_of(gradient: Tensor) -> Tensor:
    gradient = gradient.to_dense() if gradient.is_sparse else gradient
    return torch.view_as_real(gradient.resolve_conj()) if gradient.is_complex() else gradient


def isolated(
    engine: Engine, request: Request, run: Pass, losses: Tensor, example: int, rewind: Callable[[], None]
) -> None:
    """Refuse a loss that is another where every other example is replaced: ``losses`` are those of that batch."""
    before, after = run.losses[example].detach().double(), losses[example].double()
    narrow = precision(engine, run)
    if bool((before - after).abs() <= TOLERANCE[narrow] * (1e-3 + before.abs())):
        return
    raise mixing(culprit(engine, request, request.alike(example), example, rewind))


def repeated(before: Tensor, after: Tensor, tolerance: float) -> None:
    """Refuse losses of a batch that are others after another batch was seen: of two passes over it."""
    near = (before - after).abs() <= tolerance * (1e-3 + before.abs())
    if not bool((near | ~torch.isfinite(before)).all()):
        raise BatchMixing(
            "the losses of a batch are others once another batch has been seen: the model keeps something of its "
            "batches where it cannot be put back (a global, an object of another class), which reaches later steps "
            "without noise. Keep it in an attribute or a buffer of a module. See: tacit explain mixing"
        )


ITS_GRADIENT = (
    "a hook, a custom autograd function, a value without a gradient or what a weight of zero hides changed its "
    "gradient, which"
)


def gradients_stay(engine: Engine, run: Pass, swapped: Pass, weights: Tensor) -> bool:
    """Whether the gradient of the weighted losses, too, stays the same where those of weight zero are replaced."""
    if engine.shards is not None:
        return True  # the answer would have to be the same on all ranks
    everything = list(range(len(engine.parameters)))
    one, two = (by_backward(engine, p, everything, weights) for p in (run, swapped))
    return same_gradients(one, two, 10 * TOLERANCE[precision(engine, run)])


def same_gradients(one: Sequence[Tensor | None], two: Sequence[Tensor | None], tolerance: float) -> bool:
    """Whether two gradients are the same, relative to the size of the first; also where that is not finite."""
    size = away = 0.0
    for a, b in zip(one, two, strict=True):
        first, second = (None if g is None else dense_of(g).double() for g in (a, b))
        size += 0.0 if first is None else float(first.square().sum())
        if first is None or second is None:
            away += sum(float(g.square().sum()) for g in (first, second) if g is not None)
        else:
            away += float((first - second).square().sum())
    return not math.isfinite(size) or math.sqrt(away) <= tolerance * math.sqrt(size) + 1e-9


def mixing(what: str) -> BatchMixing:
    return BatchMixing(
        f"the loss of an example changed when other examples of the batch were replaced: {what} mixes examples, so no "
        "per-example bound exists. tacit.sgd.fix(model) replaces batch normalisation; anything else must treat each "
        "example by itself (a mean over all tokens of the batch does not: divide by the example's own number). "
        "See: tacit explain mixing"
    )


def culprit(engine: Engine, request: Request, other: Request, example: int, rewind: Callable[[], None]) -> str:
    """The first module whose output for the example changes although its input for it did not."""
    names = {id(m): n for n, m in engine.model.named_modules()}
    records: list[list[tuple[str, str, list[Tensor], list[Tensor]]]] = []
    for some in (request, other):
        record: list[tuple[str, str, list[Tensor], list[Tensor]]] = []

        def note(module: nn.Module, args: Any, out: Any, record: Any = record) -> None:
            if id(module) in names:
                inside, outside = ([t.detach() for t in tensors_in(v)] for v in (args, out))
                record.append((names[id(module)], type(module).__name__, inside, outside))

        handle = nn.modules.module.register_module_forward_hook(note)
        try:
            rewind()
            with torch.enable_grad(), contextlib.suppress(ClippingError):  # models may ask for gradients themselves
                engine.losses(some)
        finally:
            handle.remove()
        records.append(record)

    def same(a: list[Tensor], b: list[Tensor]) -> bool:
        for x, y in zip(a, b, strict=False):
            if x.shape == y.shape and x.dim() and x.shape[0] % request.examples == 0 and x.is_floating_point():
                own = x.shape[0] // request.examples
                one, two = x[example * own : (example + 1) * own], y[example * own : (example + 1) * own]
                if not torch.allclose(one, two, rtol=1e-3, atol=1e-5, equal_nan=True):
                    return False
        return True

    for (name, kind, in_a, out_a), (_, _, in_b, out_b) in zip(*records, strict=False):
        if same(in_a, in_b) and not same(out_a, out_b):
            return f"module {name!r} ({kind})" if name else f"the model ({kind}) itself"
    return "the loss function"


def precision(engine: Engine, run: Pass) -> torch.dtype:
    """The narrowest floating type anything was computed in."""
    types = {t for use in run.uses for t in use.types}
    return narrowest([*types, *run.types, *(p.dtype for p in engine.pieces)])


def narrowest(types: Iterable[torch.dtype], device: torch.device | None = None) -> torch.dtype:
    """The narrowest of these floating types, and of what autocast now makes of them on a device."""
    found = {t for t in types if t in TOLERANCE}
    if device is not None and torch.is_autocast_enabled(device.type):
        found.add(torch.get_autocast_dtype(device.type))
    return max(found, key=lambda t: TOLERANCE[t])


def _rounds(losses: Tensor, chosen: list[int]) -> list[tuple[str, Tensor]]:
    """What is compared with autograd, as weights of the losses."""
    rounds = [(f"example {k}", one_hot(losses, k)) for k in chosen]
    return [*rounds, ("the sum over the batch", torch.ones_like(losses))]


def truth(engine: Engine, run: Pass, chosen: list[int]) -> list[list[Tensor | None]]:
    """What :func:`agree` compares with, by autograd, for all parameters at once."""
    everything = list(range(len(engine.parameters)))
    return [by_backward(engine, run, everything, weights) for _, weights in _rounds(run.losses, chosen)]


def agree(
    engine: Engine,
    run: Pass,
    gradients: Gradients,
    chosen: list[int],
    known: list[list[Tensor | None]] | None = None,
    grads: list[list[Tensor | None]] | None = None,
) -> None:
    """Compare single examples' gradients and norms, and the sum, with autograd.

    ``known`` is the :func:`truth` and ``grads`` the gradients at the outputs, where the graph of the pass is gone.
    """
    names = list(engine.parameters)
    tolerance = TOLERANCE[precision(engine, run)]
    norms = [gradients.norms(k).squared for k in range(len(names))]
    for number, (what, weights) in enumerate(_rounds(run.losses, chosen)):
        index = int(weights.argmax()) if what.startswith("example") else None
        found: list[tuple[int, float, float, float | None]] = []  # parameter, error, true norm, own norm
        for part in _portions(engine):
            true = by_backward(engine, run, part, weights) if known is None else known[number]
            for k, gradient in zip(part, true, strict=True):
                if k in engine.apart:
                    continue
                own = gradients.weighted_sum(k, weights)
                wanted = torch.zeros_like(own) if gradient is None else dense_of(gradient).to(own.dtype)
                own_norm = None if index is None else norms[k][index].clamp(min=0).sqrt().item()
                found.append((k, (own - wanted).double().norm().item(), wanted.double().norm().item(), own_norm))
                if index is None and engine.shards is not None:
                    _copies_agree(engine, names[k], own, tolerance)
        size = math.hypot(*(norm for _, _, norm, _ in found))
        doubtful = _apart(found, what, tolerance * size + 1e-12) if size < float("inf") else []
        if not engine.anyone(flag=bool(doubtful)):
            continue
        at_outputs = run.output_gradients(retain=True) if grads is None else grads
        for k, of_what, error, endless in doubtful:
            if endless and overflows(run, k, at_outputs):
                continue  # such an example counts as zero
            if not error <= tolerance * size + rounding(run, k, at_outputs, squared=of_what != what):
                raise SelfCheckFailed(_message(engine, run, k, names[k], of_what, error, size))


def _apart(
    found: list[tuple[int, float, float, float | None]], what: str, limit: float
) -> list[tuple[int, str, float, bool]]:
    """Parameters whose gradient, or its norm, is further from autograd's than a limit; whether the norm is endless."""
    apart = []
    for k, error, norm, own_norm in found:
        if not error <= limit:
            apart.append((k, what, error, False))
        if own_norm is not None and not abs(own_norm - norm) <= limit:
            apart.append((k, f"the norm of {what}", abs(own_norm - norm), not math.isfinite(own_norm)))
    return apart


def _portions(engine: Engine) -> list[list[int]]:
    """The numbers of all parameters: at once, or as many at a time as one rank of several is meant to hold."""
    return [list(range(len(engine.parameters)))] if engine.shards is None else engine.shards.parts()


def by_backward(engine: Engine, run: Pass, part: list[int], weights: Tensor) -> list[Tensor | None]:
    """Gradients of the weighted sum of the losses, by autograd itself."""
    parameters = list(engine.parameters.values())
    chosen = [parameters[k] for k in part]
    found = torch.autograd.grad(run.losses, chosen, weights, retain_graph=True, allow_unused=True)
    if engine.shards is None:
        return list(found)
    return [engine.shards.own(k, gradient) for k, gradient in zip(part, found, strict=True)]


def _copies_agree(engine: Engine, name: str, own: Tensor, tolerance: float) -> None:
    assert engine.shards is not None
    if not engine.shards.copies_agree(name, own, tolerance):
        raise SelfCheckFailed(
            f"parameter {name!r} is held whole by every tensor-parallel rank, and they computed different gradients of "
            "it: each saw only its own part of the data it is used on, so its norm would be too small"
        )


def rounding(run: Pass, k: int, all_grads: list[list[Tensor | None]], *, squared: bool = False) -> float:
    """What rounding may do to a gradient whose terms cancel: relative to the size of the terms, not of their sum."""
    size = 0.0
    for use, grads in zip(run.uses, all_grads, strict=True):
        if any(k in d.params for d in use.derived):
            known = [d.tensor for d in use.derived]
            inputs = [t for t in tensors_in((use.args, use.kwargs)) if not any(t is d for d in known)]
            reach = [t.double().norm().item() for t in inputs if t.is_floating_point() and not t.is_meta]
            size += sum(g.double().norm().item() for g in grads if g is not None) * (1.0 + max(reach, default=0.0))
    eps = float(torch.finfo(wide(run.losses.dtype)).eps)
    # A squared norm loses twice as many digits to cancellation as the gradient itself.
    return size * (2 * eps**0.5 if squared else 16 * eps)


def overflows(run: Pass, k: int, all_grads: list[list[Tensor | None]]) -> bool:
    """Whether the use of a parameter sees numbers whose squares leave the range of the type."""
    limit = float(torch.finfo(wide(run.losses.dtype)).max) ** 0.25
    for use, grads in zip(run.uses, all_grads, strict=True):
        if any(k in d.params for d in use.derived):
            values = [*tensors_in((use.args, use.kwargs)), *(g for g in grads if g is not None)]
            seen = [v for v in values if v.is_floating_point() and v.numel() and not v.is_meta]
            if any(bool(v.abs().amax() > limit) for v in seen):
                return True
    return False


def _message(engine: Engine, run: Pass, k: int, name: str, what: str, error: float, size: float) -> str:
    uses = sorted({u.name for u in run.uses if any(k in d.params for d in u.derived)})
    return (
        f"captured gradient of parameter {name!r} differs from autograd's for {what} by {error:.3g} "
        f"(gradient norm {size:.3g}). It is used by {', '.join(uses) or 'no operation that was seen'}. "
        "Training this model would break the guarantee. method='examples' is slower, and does not rely on captured "
        "operations. See: tacit explain no-rule"
    )


def some_weights(like: Tensor, places: Tensor) -> Tensor:
    """Weights at random for the losses at these places, and zero for all others."""
    weights = torch.zeros_like(like)
    drawn = torch.rand(len(places), generator=_choice) + 0.5
    weights[places.to(like.device)] = drawn.to(like.device, like.dtype)
    return weights


def around_one(count: int) -> Tensor:
    """Numbers at random between a half and one and a half."""
    return torch.rand(count, generator=_choice) + 0.5


def one_hot(like: Tensor, k: int) -> Tensor:
    one = torch.zeros_like(like)
    one[k] = 1.0
    return one


def by_autograd(engine: Engine, request: Request) -> tuple[Gradients, Tensor]:
    """The gradient of a batch of one, by autograd itself."""
    with torch.enable_grad():
        values = engine.losses(request)
    parameters = list(engine.parameters.values())
    found: Sequence[Tensor | None] = torch.autograd.grad(values.sum(), parameters, allow_unused=True)
    if engine.shards is not None:
        found = [engine.shards.own(k, g) for k, g in enumerate(found)]
    groups = []
    for p, g in zip(engine.pieces, found, strict=True):
        dense = torch.zeros_like(p) if g is None else dense_of(g)
        groups.append([(Frame("root"), Group(p.shape, dense=dense.detach().to(wide(p.dtype)).unsqueeze(0)))])
    return Gradients(1, engine.pieces, groups), values
