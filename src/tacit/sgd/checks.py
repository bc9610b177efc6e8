"""Is the answer right, and does a per-example bound exist at all?

Three checks stop training with an error. *Agreement*: for a few examples the captured gradient equals the gradient of that
example's own loss by autograd, parameter by parameter, and so does its norm; and the captured sum equals autograd's. *Isolation*:
the loss of an example stays the same when every other example of the batch is replaced. *Batch statistics*: a normalisation
layer that averages over the batch is named before anything runs.

The sum alone would not be enough: a value shared by the whole batch gives the right sum and wrong norms.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tacit.sgd.engine import Engine, Gradients, Pass, Plan
from tacit.sgd.errors import BatchMixing, ClippingError, SelfCheckFailed
from tacit.sgd.frames import Frame
from tacit.sgd.norms import Group
from tacit.sgd.rules.base import wide

CHECKED_EXAMPLES = 2
# How far two ways of computing the same gradient may lie apart, relative to its norm.
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.1}


def due(engine: Engine, check: Any) -> bool:
    """Whether this call is one of the periodic ones."""
    if isinstance(check, bool) or (not isinstance(check, int) and check not in ("first", "always", "never")):
        raise ValueError(f"check must be 'first', 'always', 'never' or a number of steps, not {check!r}")
    count = getattr(engine, "calls", 0)
    engine.calls = count + 1
    if isinstance(check, int):
        if check < 1:
            raise ValueError("a check every so many steps needs a positive number")
        return count % check == 0
    return check == "always"


def no_batch_statistics(model: nn.Module) -> None:
    """Refuse layers that average over the batch while training."""
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and (module.training or module.running_mean is None):
            raise BatchMixing(
                f"module {name!r} ({type(module).__name__}) normalises with statistics of the whole batch, so one example's "
                "loss depends on the others and no per-example bound exists. tacit.sgd.fix(model) replaces it by GroupNorm."
            )


@contextmanager
def same_randomness(device: torch.device) -> Any:
    """Give back a function that rewinds the random state to what it is now; leave that state behind at the end."""
    cpu = torch.get_rng_state()
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def rewind() -> None:
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state(cuda, device)

    try:
        yield rewind
    finally:
        rewind()


def planned(
    engine: Engine,
    losses_of: Callable[[Any], Callable[[], Tensor]],
    batch: Any,
    examples: int,
    views: int,
    check: Any,
    check_now: bool,
) -> tuple[Gradients, Tensor]:
    """Per-example gradients by a plan that holds for this batch; made, and checked, where there is none yet."""
    from tacit.sgd.clip import leaves

    device = next(iter(engine.parameters.values())).device
    cpu = torch.get_rng_state()
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def rewind() -> None:
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state(cuda, device)

    data = leaves(batch)
    run = engine.forward(losses_of(batch), data, examples)
    grads = run.output_gradients()
    plan = engine.plan_for(run, grads)
    if plan is None or check_now or (check != "never" and not plan.checked):
        del run, grads
        rewind()
        survey(engine, losses_of, batch, examples, views, rewind, check != "never")
        rewind()
        run = engine.forward(losses_of(batch), data, examples)
        grads = run.output_gradients()
        plan = engine.plans.get(engine.signature(run, grads))
        if plan is None:
            raise ClippingError("the model takes another path through its operations each time it runs on the same batch")
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        return engine.gradients(run, grads, plan), run.losses


def survey(
    engine: Engine,
    losses_of: Callable[[Any], Callable[[], Tensor]],
    batch: Any,
    examples: int,
    views: int,
    rewind: Callable[[], None],
    check: bool,
) -> Plan:
    """Make the plan for this batch, and check the answers it gives."""
    from tacit.sgd.clip import leaves

    run = engine.forward(losses_of(batch), leaves(batch), examples, named=True)
    finite = torch.isfinite(run.losses.detach())
    single = _finite_examples(engine, run, finite)
    if len(single) < examples and len(single) > 0:
        # Evidence and comparisons need finite numbers: bad examples are replaced by a good one, in the survey only.
        good = single[0]
        ok = set(single)
        source = torch.tensor([k if k in ok else good for k in range(examples)], device=finite.device)
        batch = _rows(batch, source, views)
        rewind()
        run = engine.forward(losses_of(batch), leaves(batch), examples, named=True)
    chosen = _some(single or list(range(examples)), CHECKED_EXAMPLES)
    swapped: Pass | None = None
    example = chosen[0]
    if examples > 1:
        for example in reversed(chosen):
            rewind()
            alike = _rows(batch, torch.full((examples,), example, device=finite.device), views)
            swapped = engine.forward(losses_of(alike), leaves(alike), examples, named=True)
            if check and single:
                _isolated(engine, losses_of, batch, alike, run, swapped, example, rewind)
    with torch.no_grad(), torch.autocast(finite.device.type, enabled=False):
        plan, gradients = engine.make_plan(run, swapped, example)
        if check and single:
            _agree(engine, run, gradients, chosen)
            plan.checked = True
    return plan


def _rows(batch: Any, examples: Tensor, views: int) -> Any:
    from tacit.sgd.clip import take

    rows = (examples.unsqueeze(1) * views + torch.arange(views, device=examples.device)).flatten()
    return take_on(batch, rows, take)


def take_on(batch: Any, rows: Tensor, take: Callable[[Any, Any], Any]) -> Any:
    """Rows of a batch whose tensors may live on several devices."""
    from torch.utils import _pytree as pytree

    return pytree.tree_map_only(Tensor, lambda t: t[rows.to(t.device)], batch)


def _some(of: list[int], count: int) -> list[int]:
    """A few members, spread out; the choice is no secret and needs no randomness of the model's."""
    if len(of) <= count:
        return list(of)
    generator = torch.Generator().manual_seed(torch.randint(2**31, (), generator=_own).item())  # type: ignore[arg-type]
    return [of[k] for k in torch.randperm(len(of), generator=generator)[:count].tolist()]


_own = torch.Generator()
_own.seed()


def _finite_examples(engine: Engine, run: Pass, finite: Tensor) -> list[int]:
    """Examples whose loss and output gradients are all finite, as far as whole tensors tell."""
    candidates = [k for k, ok in enumerate(finite.tolist()) if ok]
    grads = run.output_gradients(retain=True)
    if all(bool(torch.isfinite(g).all()) for per_use in grads for g in per_use if g is not None):
        values = [t for use in run.uses for t in use.outputs]
        if all(bool(torch.isfinite(v).all()) for v in values) or len(candidates) == len(finite):
            return candidates
    good = []
    for k in candidates:
        one = torch.zeros_like(run.losses)
        one[k] = 1.0
        # Zero weights elsewhere leave zeros, or NaN where zero meets infinity: those are not this example's doing.
        found = torch.autograd.grad(run.losses[k], list(engine.parameters.values()), retain_graph=True, allow_unused=True)
        if all(bool(torch.isfinite(_dense(g)).all()) for g in found if g is not None):
            good.append(k)
    return good if good else candidates


def _dense(gradient: Tensor) -> Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient


def _isolated(
    engine: Engine,
    losses_of: Callable[[Any], Callable[[], Tensor]],
    batch: Any,
    alike: Any,
    run: Pass,
    swapped: Pass,
    example: int,
    rewind: Callable[[], None],
) -> None:
    before, after = run.losses[example].detach().double(), swapped.losses[example].detach().double()
    narrow = _precision(engine, run)
    if bool((before - after).abs() <= TOLERANCE[narrow] * (1e-3 + before.abs())):
        return
    culprit = _culprit(engine, losses_of, batch, alike, run.batch, example, rewind)
    raise BatchMixing(
        f"the loss of example {example} changed from {before.item():.6g} to {after.item():.6g} when the other examples of the batch "
        f"were replaced: {culprit} mixes examples, so no per-example bound exists. "
        "tacit.sgd.fix(model) replaces batch normalisation; anything else has to treat each example by itself."
    )


def _culprit(
    engine: Engine,
    losses_of: Callable[[Any], Callable[[], Tensor]],
    batch: Any,
    alike: Any,
    examples: int,
    example: int,
    rewind: Callable[[], None],
) -> str:
    """The first module whose output for the example changes although its input for it did not."""
    names = {id(m): n for n, m in engine.model.named_modules()}
    records: list[list[tuple[str, str, list[Tensor], list[Tensor]]]] = []
    for data in (batch, alike):
        record: list[tuple[str, str, list[Tensor], list[Tensor]]] = []

        def note(module: nn.Module, args: Any, out: Any, record: Any = record) -> None:
            from tacit.sgd.capture import tensors_in

            if id(module) in names:
                inside, outside = ([t.detach() for t in tensors_in(v)] for v in (args, out))
                record.append((names[id(module)], type(module).__name__, inside, outside))

        handle = nn.modules.module.register_module_forward_hook(note)
        try:
            rewind()
            with torch.no_grad(), engine.protected_buffers():
                losses_quietly(losses_of(data))
        finally:
            handle.remove()
        records.append(record)

    def same(a: list[Tensor], b: list[Tensor]) -> bool:
        for x, y in zip(a, b, strict=False):
            if x.shape == y.shape and x.dim() and x.shape[0] % examples == 0 and x.is_floating_point():
                own = x.shape[0] // examples
                one, two = x[example * own : (example + 1) * own], y[example * own : (example + 1) * own]
                if not torch.allclose(one, two, rtol=1e-3, atol=1e-5, equal_nan=True):
                    return False
        return True

    for (name, kind, in_a, out_a), (_, _, in_b, out_b) in zip(*records, strict=False):
        if same(in_a, in_b) and not same(out_a, out_b):
            return f"module {name!r} ({kind})" if name else f"the model ({kind}) itself"
    return "the loss function"


def losses_quietly(losses: Callable[[], Tensor]) -> None:
    """Run a forward pass for its side effects on hooks; without gradients the loss cannot be asked for one."""
    try:
        losses()
    except ClippingError:
        return


def _precision(engine: Engine, run: Pass) -> torch.dtype:
    """The narrowest floating type anything was computed in."""
    types = {t.dtype for use in run.uses for t in use.outputs if t.is_floating_point()}
    types |= {p.dtype for p in engine.parameters.values()}
    return min((t for t in types if t in TOLERANCE), key=lambda t: -TOLERANCE[t])


def _agree(engine: Engine, run: Pass, gradients: Gradients, chosen: list[int]) -> None:
    """Compare single examples' gradients and norms, and the sum, with autograd."""
    names, parameters = list(engine.parameters), list(engine.parameters.values())
    tolerance = TOLERANCE[_precision(engine, run)]
    norms = [gradients.norms(k).squared for k in range(len(names))]
    rounds: list[tuple[str, Tensor]] = [(f"example {k}", _one_hot(run.losses, k)) for k in chosen]
    rounds.append(("the sum over the batch", torch.ones_like(run.losses)))
    for what, weights in rounds:
        true = torch.autograd.grad(run.losses, parameters, weights, retain_graph=True, allow_unused=True)
        own = [gradients.weighted_sum(k, weights) for k in range(len(names))]
        wanted = [torch.zeros_like(o) if t is None else _dense(t).to(o.dtype) for t, o in zip(true, own, strict=True)]
        size = torch.stack([w.double().norm() for w in wanted]).norm().item()
        if not size < float("inf"):
            continue  # nothing to compare with; the plan stays as it is and non-finite examples count as zero
        for k, name in enumerate(names):
            error = (own[k] - wanted[k]).double().norm().item()
            if not error <= tolerance * size + 1e-12:
                raise SelfCheckFailed(_message(engine, run, k, name, what, error, size))
            if what.startswith("example"):
                index = int(weights.argmax())
                norm = norms[k][index].clamp(min=0).sqrt().item()
                if not abs(norm - wanted[k].double().norm().item()) <= tolerance * size + 1e-12:
                    error = abs(norm - wanted[k].double().norm().item())
                    raise SelfCheckFailed(_message(engine, run, k, name, f"the norm of {what}", error, size))


def _message(engine: Engine, run: Pass, k: int, name: str, what: str, error: float, size: float) -> str:
    uses = sorted({u.name for u in run.uses if any(k in d.params for d in u.derived)})
    return (
        f"captured gradient of parameter {name!r} differs from autograd's for {what} by {error:.3g} (gradient norm {size:.3g}). "
        f"It is used by {', '.join(uses) or 'no operation that was seen'}. Training must not go on with this model; "
        "method='examples' is slower and does not rely on captured operations."
    )


def _one_hot(like: Tensor, k: int) -> Tensor:
    one = torch.zeros_like(like)
    one[k] = 1.0
    return one


def by_autograd(engine: Engine, losses: Callable[[], Tensor]) -> tuple[Gradients, Tensor]:
    """The gradient of a batch of one, by autograd itself."""
    with engine.protected_buffers(), torch.enable_grad():
        values = losses()
    parameters = list(engine.parameters.values())
    found = torch.autograd.grad(values.sum(), parameters, allow_unused=True)
    groups = []
    for p, g in zip(parameters, found, strict=True):
        dense = torch.zeros_like(p) if g is None else _dense(g)
        groups.append([(Frame("root"), Group(p.shape, dense=dense.detach().to(wide(p.dtype)).unsqueeze(0)))])
    return Gradients(1, parameters, groups), values
