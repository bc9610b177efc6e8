"""What changes for an example when it is in other company? What is asked of every batch, not only of the first.

A plan, and the checks of it, hold for batches with which a pass does the same. Where it may do something else with each
batch (:attr:`~tacit.sgd.gradients.capture.Capture.doubt`: values of the data are read, or one of the whole batch goes
into the losses), the losses of each half of the examples must stay the same when the other is replaced. And where
batches are padded to their longest example, an example must come out the same without its padding
(:mod:`~tacit.sgd.gradients.padding`).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tacit.sgd.errors import BatchMixing, ClippingError
from tacit.sgd.gradients import padding, verify
from tacit.sgd.gradients.batches import leaves, numbers
from tacit.sgd.gradients.bounds import warn_once
from tacit.sgd.gradients.randomness import remember
from tacit.sgd.torch_compat import pytree

if TYPE_CHECKING:
    from tacit.sgd.gradients.engine import Engine, Request
    from tacit.sgd.gradients.outside import Pass

#: Those who stay, and whom each place of a batch holds then.
Halves = Iterable[tuple[Tensor, Tensor]]
#: Losses of a batch, and shapes on the way to them.
Values = Callable[[Any], tuple[Tensor, Any]]

#: How far the loss of an example may move in other company, relative to one plus its size. The same kernels on the same
#: row give the same bits: this is not about the precision of the model.
UNMOVED = 2e-5


RESIZED = (
    "how many examples the batch has changes what is computed for each of them, and under Poisson sampling that number "
    "is private: one person more reaches all others. Use a constant in its place, such as the expected batch size. "
    "See: tacit explain mixing"
)
#: What a model raises that does not run on rows in another order, or cut to another length.
REFUSED = (RuntimeError, ValueError, IndexError)
#: What one raises that asks something of its weights. All else is a fault in it, and is raised.
UNFIT = (RuntimeError, ValueError, LookupError, ArithmeticError, AssertionError)


def in_company(engine: Engine, request: Request, run: Pass, *, anew: bool) -> None:
    """No half of the examples may notice that the other is replaced; no single one, where the plan is made anew."""

    def losses(some: Request) -> tuple[Tensor, Any]:
        run.rewind()
        again = engine.forward(*engine.asked(some))
        return again.losses.detach().double(), [use.shapes for use in again.uses]

    def unmoved(known: tuple[Tensor, Any] | None, apart: list[tuple[Tensor, Tensor]]) -> None:
        if _unmoved(engine, request, run, apart, None if known is None else known[0]):
            return
        known = losses(request) if known is None else known
        for stay, other, fine in compared(losses, known, request, request.picked, apart, engine.model, tolerance):
            if not fine:
                raise verify.mixing(verify.culprit(engine, request, other, int(stay[0]), run.rewind))

    known = run.losses.detach().double(), [use.shapes for use in run.uses]
    tolerance = verify.TOLERANCE[verify.precision(engine, run)]
    every_two = anew or engine.doubted_as(run.context) in engine.meeting
    with kept(run.losses.device):
        if engine.strains(run) and engine.shards is None:
            _gradients_unmoved(engine, request, run, list(halves(request.examples)))
        unmoved(known, list(halves(request.examples, every_two=every_two)))
        if anew or elsewhere_too(engine, run):
            everyone = list(halves(request.examples))

            def by_gradients() -> None:
                run.rewind()
                again = engine.forward(*engine.asked(request))
                _gradients_unmoved(engine, request, again, everyone)

            at_other_weights(engine, lambda: unmoved(None, everyone), by_gradients)


#: How far weights are moved where examples are compared once more, and what is small next to that.
AWAY = 1e-2
UNFITTING = (
    "the model does not run with its weights moved by a hundredth ({}): in batches that are in doubt, examples are "
    "compared at the weights that it has, by their gradients"
)
#: Where every batch tells whose its rows are, one in so many is compared at other weights, too.
SELDOM = 16
#: Where an operation adds a parameter, which then hides nothing.
ADDEND = dict.fromkeys(("linear", "conv1d", "conv2d", "conv3d"), 2) | {"layer_norm": 3, "add": 1, "__add__": 1}


def elsewhere_too(engine: Engine, run: Pass) -> bool:
    """Whether examples are to be compared at other weights, too (:func:`displaced`).

    Always; but where every batch tells whose its rows are (experts) only if a factor is about zero, and at random.
    """
    if not engine.by_row or engine.doubted_as(run.context) in engine.meeting or not verify.a_few(SELDOM, 1)[0]:
        return True
    parameters, factors = list(engine.parameters.values()), set[int]()
    for use in run.uses:
        at = ADDEND.get(use.name, len(use.args))
        added = [*use.args[at : at + 1], use.kwargs.get("bias")]
        factors |= {k for d in use.derived for k in d.params if not any(d.tensor is t for t in added)}
    largest = [parameters[k].detach().abs().amax().float() for k in factors if parameters[k].numel()]
    return bool(largest) and bool(torch.stack(largest).min() <= AWAY)


def at_other_weights(engine: Engine, compare: Callable[[], None], otherwise: Callable[[], None]) -> None:
    """Compare with all trained weights moved a little; ``otherwise`` where the model does not run on such weights.

    Not where each rank holds pieces of them, as is said beside the guarantee
    (:data:`~tacit.sgd.training.probes.SPREAD`).
    """
    if engine.shards is not None:
        return
    try:
        with displaced(engine.parameters.values()):
            compare()
    except (ClippingError, torch.OutOfMemoryError):
        raise
    except UNFIT as error:
        warn_once(UNFITTING.format(type(error).__name__), engine.said, UserWarning)
        otherwise()


@contextmanager
def displaced(parameters: Iterable[Tensor]) -> Iterator[None]:
    """The trained parameters a little elsewhere, inside, further from zero and on the same side of it.

    A loss does not tell what reaches it through a weight that is zero (a new adapter, a gate, ``LayerScale``) or
    through two that cancel; the gradient of that weight does.
    """
    held = [(p, p.data, p.detach().clone()) for p in parameters]
    try:
        for _, values, _ in held:
            values.add_(torch.where(values.real < 0, -1.0, 1.0) * _moves(values))
        yield
    finally:
        for parameter, values, before in held:
            values.copy_(before)
            parameter.data = values  # a model may have put others in their place (as CPT of peft projects them)


def _moves(parameter: Tensor) -> Tensor:
    """Small positive numbers in the shape of a tensor, of rank one: fast, and of no structure that a model knows."""
    found = torch.full((), AWAY, dtype=torch.float32)
    for size in parameter.shape:
        found = found.unsqueeze(-1) * verify.around_one(size)
    return found.to(parameter.device, parameter.dtype)


def _unmoved(engine: Engine, request: Request, run: Pass, apart: Halves, before: Tensor | None) -> bool:
    """Whether no half notices, by passes that nobody watches; False where that is not sure.

    Others are replaced and not left out: what is shared among a batch, by number or by rank, may come to the same for
    each half of it. ``before`` are the losses of the batch, where they are known.
    """

    def losses(some: Request) -> Tensor:
        run.rewind()
        return engine.losses(some).detach().double()

    moved = False
    try:
        known = losses(request) if before is None else before
        if before is None and not bool((known.isfinite() | ~run.losses.isfinite()).all()):
            raise ArithmeticError  # the model does not run on these weights
        for stay, index in apart:
            one, two = (t[stay.to(t.device)] for t in (known, losses(request.picked(index))))
            moved = moved or not bool(((two - one).abs() <= UNMOVED * (1 + one.abs())).all())
            if moved and engine.shards is None:
                break
    except REFUSED as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        return False
    return not engine.anyone(flag=moved)  # ranks gather parameters from one another: what one asks again, all do


def _gradients_unmoved(engine: Engine, request: Request, run: Pass, apart: Halves) -> None:
    """Refuse a batch in which the gradient of some losses is another where all other examples are replaced."""
    everything = list(range(len(engine.parameters)))
    drawn = [verify.some_weights(run.losses, stay) for stay, _ in apart]
    known = [verify.by_backward(engine, run, everything, weights) for weights in drawn]  # before the next pass
    for (_, index), weights, before in zip(apart, drawn, known, strict=True):
        run.rewind()
        try:
            other = engine.forward(*engine.asked(request.picked(index)))
        except REFUSED as error:
            if isinstance(error, ClippingError | torch.OutOfMemoryError):
                raise
            continue  # which the losses tell, too
        after = verify.by_backward(engine, other, everything, weights)
        if not verify.same_gradients(before, after, verify.TOLERANCE[verify.precision(engine, run)]):
            raise verify.mixing(verify.ITS_GRADIENT)


def of_loss(
    loss: Callable[[nn.Module, Any], Tensor], model: nn.Module, batch: Any, known: Tensor, rewind: Callable[[], None]
) -> None:
    """As :func:`in_company`, for a loss that is called outside the engine and gave ``known`` for this batch."""
    rows = len(known)

    def losses(some: Any) -> tuple[Tensor, Any]:
        rewind()
        with torch.no_grad():
            return loss(model, some).double(), [t.shape for t in leaves(some)]

    def pick(index: Tensor) -> Any:
        return picked(batch, index, rows)

    before = known.detach().double(), [t.shape for t in leaves(batch)]
    tolerance = verify.TOLERANCE[verify.narrowest([p.dtype for p in model.parameters()], known.device)]
    with kept(known.device):
        for _, _, fine in compared(losses, before, batch, pick, halves(rows), model, tolerance):
            if not fine:
                raise verify.mixing("the loss function")


def picked(batch: Any, index: Tensor, rows: int) -> Any:
    """The rows of these numbers of whatever has as many rows."""
    return pytree.tree_map_only(Tensor, lambda t: t[index.to(t.device)] if t.dim() and len(t) == rows else t, batch)


def adds_up(value: Callable[[Tensor], Tensor | None], examples: int, tolerance: float) -> bool:
    """Whether a number for a batch is a sum over its examples: then what replacing some of them adds does not depend
    on the others.

    ``value`` gives it for the batch of the examples of these numbers; nothing where there is none to compare. There are
    three examples at least: with two there is nothing to see.
    """
    order, own = torch.tensor(verify.a_few(examples, examples)), torch.arange(examples)
    stay, first = order[: (examples + 1) // 2], order[:1].expand(examples)
    one, other = first.clone(), own.clone()
    one[stay], other[stay] = stay, first[stay]
    found = [value(some) for some in (own, first, one, other)]
    told = [f.detach().double() for f in found if f is not None]
    if len(told) < len(found) or not all(bool(f.isfinite()) for f in told):
        return True
    size = 1 + max(float(f.abs()) for f in told)
    return float((told[0] + told[1] - told[2] - told[3]).abs()) <= tolerance * size


def compared(
    losses: Values,
    known: tuple[Tensor, Any],
    batch: Any,
    pick: Callable[[Tensor], Any],
    apart: Halves,
    model: nn.Module,
    tolerance: float,
) -> Iterator[tuple[Tensor, Any, bool]]:
    """Those who stay, the batch in which all others are replaced, and whether they notice; for each half.

    ``pick`` makes a batch of the examples of these numbers; ``apart`` are the :func:`halves`.
    """
    for stay, index in apart:
        other = pick(index)
        try:
            yield stay, other, stays(losses, known, batch, other, stay, model, tolerance)
        except REFUSED as error:
            if isinstance(error, ClippingError | torch.OutOfMemoryError):
                raise
            # A batch that has to be sorted, say: with one of it in all places it always is.
            other = pick(torch.full_like(index, int(stay[0])))
            yield stay[:1], other, stays(losses, known, batch, other, stay[:1], model, tolerance)


def halves(examples: int, *, every_two: bool = False) -> Iterator[tuple[Tensor, Tensor]]:
    """Each of two parts of the examples, at random, and all places with one of it in place of every other example.

    So whoever reaches all others is replaced once, whoever it is. The smaller part is a half, a quarter, and so on to a
    single example, at random: a few notice what several others do alike (the longest, where many are as long). With
    ``every_two`` whoever reaches a single other is replaced, too, where that one stays: each example stays in half of
    the passes, and no two in the same (Sperner, 1928: eight passes do for 70 examples).
    """
    order = torch.tensor(verify.a_few(examples, examples))
    if every_two and examples > 1:
        passes = next(n for n in itertools.count(2) if math.comb(n, n // 2) >= examples)
        codes = list(itertools.islice(itertools.combinations(range(passes), passes // 2), examples))
        staying = [torch.tensor([k in code for code in codes]) for k in range(passes)]
    else:
        size = max(1, examples >> 1 + verify.a_few(max(1, examples.bit_length() - 1), 1)[0])
        first = torch.arange(examples) < size
        staying = [first, ~first]
    for stay in (order[some] for some in staying):
        if len(stay):
            index = torch.full((examples,), int(stay[0]))
            index[stay] = stay
            yield stay, index


def stays(
    losses: Values,
    known: tuple[Tensor, Any],
    batch: Any,
    other: Any,
    stay: Tensor,
    model: nn.Module,
    tolerance: float,
) -> bool:
    """Whether the losses of those who stay are the same in two batches.

    ``losses`` gives them, and shapes on the way there; ``known`` is what it gave for ``batch``.
    """

    def same(one: Tensor, two: Tensor, within: float) -> bool:
        one, two = one[stay.to(one.device)], two[stay.to(two.device)]
        return not bool(((one - two).abs() > within * (1 + one.abs())).any())  # also where one is not finite

    before, shapes = known
    after, others = losses(other)
    if same(before, after, UNMOVED):
        return True
    if shapes == others:
        # A GPU may add up in no fixed order.
        noise = ((losses(batch)[0] - before).abs() / (1 + before.abs())).nan_to_num(0.0, 0.0, 0.0).amax().item()
        return same(before, after, min(UNMOVED + 8 * noise, tolerance))
    # Other shapes are computed by other kernels, and dropout then draws other masks for the same example.
    with evaluating(model):
        return same(losses(batch)[0], losses(other)[0], tolerance)


@contextmanager
def kept(device: torch.device) -> Iterator[None]:
    """The random state after is the one before."""
    rewind = remember(device)
    try:
        yield
    finally:
        rewind()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model without dropout and the like, for a while."""
    training = [m for m in model.modules() if m.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def after_lengths(engine: Engine, request: Request) -> None:
    """Refuse losses that depend on padding, once batches have been seen to differ in length."""
    tensors, views, context = request.data, request.views, engine.context_of(request)
    dims = [0] * len(tensors)
    varying = engine.lengths.varying(context, tensors, dims)
    if varying:
        engine.one_shape.pop(context, None)
    else:
        engine.one_shape[context] = [t.shape[1:] for t in tensors]
    for size in varying:
        padded = padding.guessed(tensors, dims, request.examples * views, size)
        if padded is None:
            continue
        whole = dataclasses.replace(padded, row=padded.row // views)
        rows = request.examples * views
        unfelt(lambda _, some: engine.losses(request.on(some)), engine.model, request.batch, rows, whole, views)


def resized(engine: Engine, request: Request, tolerance: float, *, always: bool) -> None:
    """Refuse losses that depend on how many examples a batch has, once batches have been seen to differ in that, or
    ``always``."""
    examples = request.examples
    differs = engine.lengths.differs((engine.context_of(request), "examples"), examples)
    if not (differs or always) or examples < 2:
        return
    order, half = torch.tensor(verify.a_few(examples, examples)), (examples + 1) // 2
    parts = [order[:half].sort().values, *([order[half:].sort().values] if always else [])]
    rewind = remember(engine.device)

    def compare() -> None:
        losses: list[Tensor] = []
        with kept(engine.device), evaluating(engine.model), torch.enable_grad():
            try:
                for some in (request, *map(request.picked, parts)):
                    rewind()
                    losses.append(engine.losses(some).detach().double())
            except REFUSED as error:
                if isinstance(error, ClippingError | torch.OutOfMemoryError):
                    raise
                return  # a model that wants whole batches of one size does not run on another
        one, two = losses[0][torch.cat(parts).to(losses[0].device)], torch.cat(losses[1:])
        if bool(((one - two).abs() > tolerance * (1e-1 + one.abs())).any()):
            raise BatchMixing(RESIZED)

    compare()
    at_other_weights(engine, compare, lambda: None)  # it has run on its own


def unfelt(
    losses: Callable[[nn.Module, Any], Tensor],
    model: nn.Module,
    batch: Any,
    rows: int,
    padded: padding.Padded,
    views: int = 1,
) -> None:
    """Refuse a loss per example that changes when the padding of an example is taken off.

    The example is a batch by itself both times, without dropout.
    """
    place = torch.arange(padded.row * views, (padded.row + 1) * views)

    def single(tensor: Tensor, most: int) -> Tensor:
        if not tensor.dim() or len(tensor) != rows:
            return tensor
        return padded.strip(tensor[place.to(tensor.device)], 0, most)

    def cut(value: Any, most: int) -> Any:
        if isinstance(value, Tensor):
            return single(value, most)
        return type(value)(value[k] for k in place.tolist()) if numbers(value, rows) else value

    def run(most: int) -> tuple[Tensor, list[Tensor]]:
        some = pytree.tree_map(lambda v: cut(v, most), batch, is_leaf=lambda v: numbers(v, rows))
        with torch.enable_grad():
            found = losses(model, some)
        return found.detach().double(), gradients(found.sum(), model)

    device = next(model.parameters()).device
    with kept(device), evaluating(model):
        before, whole = run(0)
        tolerance = verify.TOLERANCE[verify.narrowest([p.dtype for p in model.parameters()], device)]
        for most in (9, 1):  # a dimension of features may have the size of a padded one
            try:
                after, own = run(most)
            except REFUSED as error:
                if isinstance(error, ClippingError | torch.OutOfMemoryError):
                    raise
                continue
            same = bool((before - after).abs().le(tolerance * (1e-2 + before.abs())).all())
            if same and alike(whole, own, tolerance):
                return
            raise BatchMixing(padding.FELT)
    raise ClippingError(padding.UNTOLD)


def gradients(value: Tensor, model: nn.Module) -> list[Tensor]:
    """The gradient of a number in every trained parameter it depends on; with zeros for the others."""
    trained = [p for p in model.parameters() if p.requires_grad]
    found = torch.autograd.grad(value, trained, allow_unused=True)
    return [verify.dense_of(torch.zeros_like(p) if g is None else g) for p, g in zip(trained, found, strict=True)]


def alike(one: list[Tensor], two: list[Tensor], tolerance: float) -> bool:
    """Whether two gradients differ by no more than rounding."""
    away = sum(float((a.double() - b.double()).square().sum()) for a, b in zip(one, two, strict=True))
    size = sum(float(a.double().square().sum()) for a in one)
    return not math.isfinite(size) or math.sqrt(away) <= 10 * tolerance * math.sqrt(size) + 1e-9
