"""How are per-example gradients found in a training loop that somebody else wrote?

The loop calls the model, computes a loss from what it returns, and calls ``loss.backward()``. :class:`Watch` stands at
the border of the model: it watches each outermost call of a module (with the same capture that
:func:`tacit.sgd.clipped_grad` uses), hands out its outputs cut off from the graph behind them, and where the loop's
backward pass arrives at those outputs it goes on to the outputs of the watched operations and no further. So no weight
gradient is ever computed, and ``p.grad`` stays empty until noise has been added.

What the loss does is not seen, only the gradient with which it arrives. With the cotangent ``c_b`` of example ``b``,
the function ``<out_b, c_b>`` has the same gradient in the parameters as the example's own loss, which is what the
self-check compares with autograd, and what must not change when all other examples are replaced.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from tacit.sgd import checks
from tacit.sgd.adapt import Template, guards, merged, rescaled
from tacit.sgd.capture import Capture, Use
from tacit.sgd.engine import Engine, Gradients, Outputs, Pass, Plan, UsePlan, modules_of
from tacit.sgd.errors import BatchMixing, ClippingError, UncoveredUse
from tacit.sgd.layout import Layout
from tacit.sgd.rules import DECOMPOSE, RULES, SHAPE_ONLY
from tacit.sgd.rules.base import wide

UNWATCHED = (
    "parameter {!r} received a gradient outside the watched calls of the model, which is neither clipped nor noised. "
    "A penalty on the weights belongs into the optimizer (weight_decay); call the model itself rather than its "
    "forward(); outputs must be tensors in tuples, lists, dicts or registered classes; activation checkpointing needs "
    "use_reentrant=False."
)


class Call:
    """One outermost call of a module: what went in, what came out, and after the backward pass what arrived."""

    def __init__(self, watch: Watch, module: nn.Module, args: Any, kwargs: Any, piece: Any) -> None:
        self.watch, self.module, self.piece = watch, module, piece
        self.leaves, self.spec = pytree.tree_flatten((args, kwargs))
        self.linked: list[tuple[Tensor, Tensor]] = []
        for k, leaf in enumerate(self.leaves):
            if isinstance(leaf, Tensor) and leaf.requires_grad:
                self.linked.append((leaf, leaf.detach().requires_grad_()))
                self.leaves[k] = self.linked[-1][1]
        self.device = next(iter(watch.engine.parameters.values())).device
        self.rewind = checks.remember(self.device)
        on = torch.is_autocast_enabled(self.device.type)
        self.autocast = torch.get_autocast_dtype(self.device.type) if on else None
        self.training = tuple(m.training for m in modules_of(module))
        self.context = contextlib.ExitStack()
        self.uses: list[Use] = []
        self.outs: list[Tensor] = []
        self.cotangents: dict[int, Tensor] = {}
        self.whole: dict[int, Tensor] = {}
        self.grads: list[list[Tensor | None]] | None = None
        self.rows = 0

    @property
    def data(self) -> list[Tensor]:
        return [leaf for leaf in self.leaves if isinstance(leaf, Tensor)]

    def arguments(self, leaves: list[Any]) -> tuple[Any, Any]:
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return args, kwargs

    @property
    def key(self) -> Any:
        """What a plan made in one call says nothing about in another."""
        return "loop", id(self.module), self.training, tuple(sorted(self.cotangents)), self.watch.batch_dim

    # -- the backward pass ------------------------------------------------------------------------------------------

    def arrived(self, grads: tuple[Tensor | None, ...]) -> list[Tensor | None]:
        """Take the gradients of the loss at the outputs; give those at the inputs."""
        if self.grads is not None:
            raise ClippingError(
                "two backward passes went through one forward pass of the model: add the losses and call backward once"
            )
        if self.piece is None and self.linked:
            return self._for_inputs(grads)
        self.rows = self.watch.rows_of(self, [k for k, g in enumerate(grads) if g is not None])
        factor = self.watch.factor(self)
        found = {k: g * factor for k, g in enumerate(grads) if g is not None}
        whole = {k: g for k, g in found.items() if self.outs[k].dim() == 0}
        self.cotangents = {k: g for k, g in found.items() if k not in whole}
        if whole:
            # A loss that the model computed itself; the others are then none of the loop's business.
            self.whole = whole if not self.cotangents else {}
            self.cotangents = self._through(whole, self.cotangents)
        outs = [self.outs[k] for k in self.cotangents]
        edges = [edge for use in self.uses for edge in use.edges]
        targets = [*edges, *(leaf for _, leaf in self.linked)]
        if outs and targets:
            told = torch.autograd.grad(outs, targets, list(self.cotangents.values()), allow_unused=True)
        else:
            told = (None,) * len(targets)
        self.grads, at = [], 0
        for use in self.uses:
            self.grads.append([None if g is None else g.detach() for g in told[at : at + len(use.edges)]])
            at += len(use.edges)
        self.watch.pending.append(self)
        return [None if g is None else g / factor for g in told[at:]]

    def _for_inputs(self, grads: tuple[Tensor | None, ...]) -> list[Tensor | None]:
        """A batch that is none of the loader's trains something else through the model, as a generator is trained by
        its discriminator: the inputs get their gradient, the parameters none."""
        self.grads = []
        found = [(out, grad) for out, grad in zip(self.outs, grads, strict=True) if grad is not None]
        outs, values = [out for out, _ in found], [grad for _, grad in found]
        return list(torch.autograd.grad(outs, [leaf for _, leaf in self.linked], values, allow_unused=True))

    def _through(self, whole: dict[int, Tensor], direct: dict[int, Tensor]) -> dict[int, Tensor]:
        """A loss that the model computed itself, as cotangents of the outputs per example that it was computed from."""
        behind = [k for k, out in enumerate(self.outs) if out.dim() and self.watch.dim_of(out, self.rows) is not None]
        scalars, values = [self.outs[k] for k in whole], list(whole.values())
        found: Any = ()
        if behind:
            found = torch.autograd.grad(
                scalars, [self.outs[k] for k in behind], values, retain_graph=True, allow_unused=True
            )
        cotangents = dict(direct)
        for k, g in zip(behind, found, strict=True):
            if g is not None:
                cotangents[k] = cotangents[k] + g if k in cotangents else g
        if self.rows and not any(k in cotangents for k in behind):
            raise UncoveredUse(
                f"{type(self.module).__name__} returned one number for the whole batch and nothing per example that it "
                "was computed from: return the outputs (or one loss per example) beside it"
            )
        if self.watch.first(self) and self.rows:
            self._nothing_lost(scalars, values, direct, cotangents)
        return cotangents

    def _nothing_lost(
        self, scalars: list[Tensor], values: list[Tensor], direct: dict[int, Tensor], cotangents: dict[int, Tensor]
    ) -> None:
        """The loss must depend on parameters through the outputs alone."""
        edges = [edge for use in self.uses for edge in use.edges]
        if not edges:
            return
        roots, weights = [*scalars, *(self.outs[k] for k in direct)], [*values, *direct.values()]
        wanted = torch.autograd.grad(roots, edges, weights, retain_graph=True, allow_unused=True)
        outs = [self.outs[k] for k in cotangents]
        own = torch.autograd.grad(outs, edges, list(cotangents.values()), retain_graph=True, allow_unused=True)
        for a, b in zip(wanted, own, strict=True):
            size = 0.0 if a is None else float(a.double().norm())
            away = size if a is None or b is None else float((a.double() - b.double()).norm())
            if a is not None and not away <= 1e-2 * size + 1e-12:
                raise UncoveredUse(
                    f"the loss that {type(self.module).__name__} returns depends on its parameters in other ways than "
                    "through its other outputs, so it cannot be split into examples: compute the loss outside"
                )

    # -- running it again -------------------------------------------------------------------------------------------

    def surrogate(self, leaves: list[Any]) -> Callable[[], Tensor]:
        """One value per example whose gradient is that of the example's loss at the weights as they are."""

        def losses() -> Tensor:
            args, kwargs = self.arguments(leaves)
            with self._precision():
                out = self.module(*args, **kwargs)
            outs = _live(out)
            total: Tensor | None = None
            for k, cotangent in self.cotangents.items():
                dim = self.watch.place_of(self, k, self.rows)
                assert dim is not None
                kind = wide(outs[k].dtype)
                product = outs[k].to(kind).movedim(dim, 0) * cotangent.to(kind).movedim(dim, 0)
                value = product.reshape(self.rows, -1).sum(1)
                total = value if total is None else total + value
            assert total is not None
            return total

        return losses

    def again(self, leaves: list[Any]) -> dict[int, Tensor]:
        """The cotangents that a loss computed in the model has for these inputs."""
        args, kwargs = self.arguments(leaves)
        self.rewind()
        with torch.enable_grad(), self._precision():
            outs = _live(self.module(*args, **kwargs))
        roots, behind = [outs[k] for k in self.whole], [outs[k] for k in self.cotangents]
        found = torch.autograd.grad(roots, behind, list(self.whole.values()), allow_unused=True)
        return {k: g for k, g in zip(self.cotangents, found, strict=True) if g is not None}

    def _precision(self) -> Any:
        return torch.autocast(self.device.type, self.autocast or torch.bfloat16, enabled=self.autocast is not None)

    def picked(self, examples: Tensor, square: bool) -> list[Any] | None:
        """The inputs with these examples in place of all; ``None`` where no input has the examples in a dimension.

        With ``square`` inputs that have several dimensions of the batch's size are left alone: they may be masks.
        """
        found, any_moved = [], False
        for leaf in self.leaves:
            if isinstance(leaf, Tensor):
                leaf = leaf.detach()
                dim = self.watch.dim_of(leaf, self.rows) if leaf.dim() else None
                if dim is not None and not (square and sum(s == self.rows for s in leaf.shape) > 1):
                    leaf, any_moved = leaf.index_select(dim, examples.to(leaf.device)), True
            found.append(leaf)
        return found if any_moved else None


class _Border(torch.autograd.Function):  # type: ignore[misc]
    """Outputs without what is behind them; the backward pass goes on in :meth:`Call.arrived`."""

    @staticmethod
    def forward(ctx: Any, call: Call, anchor: Tensor, *linked: Tensor) -> Any:
        ctx.call = call
        ctx.set_materialize_grads(False)
        return tuple(out.detach() for out in call.outs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        return (None, None, *ctx.call.arrived(grads))


class _Hook:
    """A hook that does not travel: a copy or a pickle of the model holds a hook that does nothing."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.method = method

    def __call__(self, *args: Any) -> Any:
        return self.method(*args)

    def __reduce__(self) -> Any:
        return _left_behind, ()

    def __deepcopy__(self, memo: Any) -> Any:
        return nothing


def nothing(*_: Any) -> None:
    """What is left of a hook in a copy of the model."""


def _left_behind() -> Callable[..., None]:
    return nothing


_watching: WeakKeyDictionary[nn.Module, Watch] = WeakKeyDictionary()


def _live(out: Any) -> list[Tensor]:
    """The outputs through which a gradient can come, each once."""
    found: list[Tensor] = []
    for leaf in pytree.tree_leaves(out):
        if isinstance(leaf, Tensor) and leaf.requires_grad and not any(leaf is f for f in found):
            found.append(leaf)
    return found


class Watch:
    """Per-example gradients of every batch that a loop puts through ``model``, which stays as it is.

    ``rows`` says how many examples a call has (the batch that the loop was handed), ``mean`` whether the loop's losses
    are averaged over them.
    """

    def __init__(
        self,
        model: nn.Module,
        engine: Engine,
        *,
        piece: Callable[[], Any],
        mean: bool = True,
        batch_dim: int = 0,
        check: bool = True,
    ) -> None:
        checks.no_known_obstacles(model)
        before = _watching.get(model)
        if before is not None and before._handles:
            raise ClippingError(
                "the model is private already, and its batches would be charged to two runs: call detach() of the "
                "private optimizer first"
            )
        _watching[model] = self
        self.engine, self.mean, self.batch_dim, self.check = engine, mean, batch_dim, check
        self.piece = piece
        #: what the loop divided its losses by, besides the number of examples
        self.scale = 1.0
        self.pending: list[Call] = []
        self._all = list(model.parameters())
        self._flags = [p.requires_grad for p in self._all]
        self._anchor = torch.zeros((), requires_grad=True)
        self._inside: list[Call] = []
        self._off = 0
        self._templates: dict[Any, Template] = {}
        self._handles: list[Any] = []
        for module in model.modules():
            if any(p.requires_grad for p in module.parameters()):
                self._handles.append(module.register_forward_pre_hook(_Hook(self._enter), with_kwargs=True))
                self._handles.append(
                    module.register_forward_hook(_Hook(self._leave), with_kwargs=True, always_call=True)
                )
        for name, parameter in engine.parameters.items():
            self._handles.append(parameter.register_post_accumulate_grad_hook(_Hook(self._unwatched(name))))

    def close(self) -> None:
        """Leave the model alone from now on."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.pending.clear()

    @contextlib.contextmanager
    def off(self) -> Iterator[None]:
        """Calls inside are not watched."""
        self._off += 1
        try:
            yield
        finally:
            self._off -= 1

    def _unwatched(self, name: str) -> Callable[[Tensor], None]:
        def complain(parameter: Tensor) -> None:
            parameter.grad = None
            raise UncoveredUse(UNWATCHED.format(name))

        return complain

    # -- what a call is about ---------------------------------------------------------------------------------------

    def rows_of(self, call: Call, reached: list[int]) -> int:
        """How many examples a call has; ``reached`` are the outputs that the loop's loss depends on."""
        if call.piece is None:
            raise ClippingError(
                "this batch did not come from the private data loader, so how it was sampled is not known: iterate "
                "over the data_loader that make_private returned, and take one step for each batch"
            )
        rows: int = call.piece.rows
        lost = self._without_examples(call, rows, reached)
        if lost is not None:
            raise ClippingError(
                f"{type(call.module).__name__} returned shape {tuple(lost.shape)} for a batch of {rows} examples: "
                "no dimension holds the examples. Each row must be one example of the batch that the private data "
                "loader handed out, in the first dimension (in the second with batch_first=False)"
            )
        return rows

    def _without_examples(self, call: Call, rows: int, reached: list[int]) -> Tensor | None:
        """An output of the call that cannot hold the examples of the batch in hand."""
        # Of a loss that the model computed itself any output may be what it was computed from.
        chosen = [k for k in reached if call.outs[k].dim()] or [k for k, out in enumerate(call.outs) if out.dim()]
        outs = [call.outs[k] for k in chosen]
        lost = next((call.outs[k] for k in chosen if self.place_of(call, k, rows) is None), None)
        if lost is None and outs and not any(self._holds(tensor, rows) for tensor in (*call.data, *outs)):
            # As many classes or tokens as there are examples: a dimension of that size does not make it the examples'.
            return outs[0]
        return lost

    def _holds(self, tensor: Tensor, rows: int) -> bool:
        """Whether the examples can be where the loop says that they are."""
        return bool(tensor.dim() > self.batch_dim and tensor.shape[self.batch_dim] == rows)

    def factor(self, call: Call) -> float:
        return self.scale * (float(call.rows) if self.mean and call.rows else 1.0)

    def dim_of(self, tensor: Tensor, rows: int) -> int | None:
        """The dimension of a tensor that holds the examples."""
        if self._holds(tensor, rows):
            return self.batch_dim
        same = [k for k, size in enumerate(tensor.shape) if size == rows]
        return same[0] if len(same) == 1 else None

    def place_of(self, call: Call, k: int, rows: int) -> int | None:
        """:meth:`dim_of` of an output, also of one with two dimensions of the batch's size: then the first of them.

        The state of a recurrent layer is (layers, examples, features), and a batch may happen to have as many examples
        as there are features. Were it the other one, the examples would be seen to be mixed.
        """
        out = call.outs[k]
        found = self.dim_of(out, rows)
        if found is None and any(self._holds(tensor, rows) for tensor in call.data):
            return next((d for d, size in enumerate(out.shape) if size == rows), None)
        return found

    def first(self, call: Call) -> bool:
        """Whether no plan was made yet for this module."""
        return not any(key[0][1] == id(call.module) for key in self._templates)

    # -- hooks ------------------------------------------------------------------------------------------------------

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        if self._off or self._inside or not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
            return None
        if [p.requires_grad for p in self._all] != self._flags:
            raise ClippingError(
                "requires_grad of a parameter was changed after make_private: decide what is trained before it"
            )
        piece = self.piece()
        call = Call(self, module, args, kwargs, piece)
        engine = self.engine
        capture = Capture(
            engine.parameters,
            call.data,
            covers=RULES.__contains__,
            decompose=DECOMPOSE,
            needs_values=lambda name: name not in SHAPE_ONLY,
        )
        call.uses = capture.uses
        call.context.enter_context(engine.protected_buffers())
        call.context.enter_context(engine._uncompiled())
        call.context.enter_context(capture)
        call.capture = capture  # type: ignore[attr-defined]
        self._inside.append(call)
        return call.arguments(call.leaves)

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, out: Any) -> Any:
        if not self._inside or self._inside[-1].module is not module or self._off:
            return None
        call = self._inside.pop()
        call.context.close()
        capture: Capture = call.__dict__.pop("capture")
        call.outs = [t for t in _live(out) if capture.derived(t) is None]
        if not call.outs or not (call.uses or call.linked):
            return None
        cut = _Border.apply(call, self._anchor, *(original for original, _ in call.linked))
        return pytree.tree_map(
            lambda leaf: next((c for c, o in zip(cut, call.outs, strict=True) if o is leaf), leaf), out
        )

    # -- per-example gradients --------------------------------------------------------------------------------------

    def gradients(self, calls: list[Call]) -> tuple[Gradients, Tensor]:
        """Per-example gradients of one batch, put through the model in these calls, and which examples are finite."""
        rows = calls[0].rows
        device = calls[0].device
        good = torch.ones(rows, dtype=torch.bool, device=device)
        found: list[Gradients] = []
        for call in calls:
            for k, cotangent in call.cotangents.items():
                dim = self.place_of(call, k, rows)
                assert dim is not None
                good &= torch.isfinite(cotangent).movedim(dim, 0).reshape(rows, -1).all(1)
            if call.uses:
                gradients = self._one(call)
                if gradients is None:
                    good = torch.zeros_like(good)
                else:
                    found.append(gradients)
        return merged(found, rows, list(self.engine.parameters.values())), good

    def _one(self, call: Call) -> Gradients | None:
        engine = self.engine
        assert call.grads is not None
        run = Pass(call.uses, torch.ones(call.rows, device=call.device), call.rows)
        engine.context = call.key
        plan = engine.plan_for(run, call.grads)
        quiet = torch.no_grad(), torch.autocast(call.device.type, enabled=False)
        if plan is None:
            plan, same = self._adapted(run, call.grads)
            if plan is not None:
                with quiet[0], quiet[1]:
                    gradients = engine.gradients(run, call.grads, plan, planning=not same)
                engine.plans[engine.signature(run, call.grads)] = plan
                return gradients
            with self.off():
                if not self._survey(call):
                    return None
            engine.context = call.key
            plan = engine.plans.get(engine.signature(run, call.grads))
            if plan is None:
                raise ClippingError(
                    "the model takes another path through its operations each time it runs on the same batch"
                )
            if plan.settled and call.rows > 1 and not any(use.rearranged for use in call.uses):
                self._templates[self._outline(run, call.grads)] = Template(plan, call.uses)
        with quiet[0], quiet[1]:
            return engine.gradients(run, call.grads, plan)

    def _outline(self, run: Pass, grads: list[list[Tensor | None]]) -> Any:
        """A signature without sizes: what has to be the same for layouts to be those of another batch size."""
        return (
            self.engine.context,
            tuple(
                (
                    use.name,
                    tuple(len(shape) for shape in use.shapes),
                    tuple(g is None for g in grad),
                    tuple((tuple(sorted(d.params)), d.tensor.dim()) for d in use.derived),
                )
                for use, grad in zip(run.uses, grads, strict=True)
            ),
        )

    def _adapted(self, run: Pass, grads: list[list[Tensor | None]]) -> tuple[Plan | None, bool]:
        """The plan for this batch size, from where the examples were found in a batch of another size.

        Poisson batches have another size at every step. Layouts are facts about the model's code: the dimension, and
        on which side of the examples it is folded, stay. Rules and frames stay too where the values made of parameters
        are the same (second result); else they are found anew.
        """
        known = self._templates.get(self._outline(run, grads))
        if known is None or (run.batch > 1 and any(use.rearranged for use in run.uses)):
            return None, False
        same = all(known.same(k, use) for k, use in enumerate(run.uses))
        uses: list[UsePlan] = []
        for plan, before, use in zip(known.plan.uses, known.shapes, run.uses, strict=True):
            layouts: list[Layout | None] = []
            for layout, old, new in zip(plan.layouts, before, use.shapes, strict=True):
                moved = rescaled(layout, old, new, run.batch) if layout is not None else None
                if layout is not None and moved is None:
                    return None, False
                layouts.append(moved)
            if same:
                notes = {name: note for name, note in plan.notes.items() if note is None}
                uses.append(UsePlan(layouts, plan.by_rule, notes, plan.frames, plan.guards))
            else:
                uses.append(UsePlan(layouts, guards=guards(use)))
        return Plan(uses, set(known.plan.materialised) if same else set(), True, checked=True), same

    def _survey(self, call: Call) -> bool:
        """Make the plan for a call and check it, as :func:`tacit.sgd.checks.survey` does; False where nothing is
        finite.
        """
        engine, rows = self.engine, call.rows

        def forward(leaves: list[Any]) -> Pass:
            call.rewind()
            engine.context = call.key
            data = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
            with torch.enable_grad():
                return engine.forward(call.surrogate(leaves), data, rows, named=True)

        after = checks.remember(call.device)
        try:
            leaves = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in call.leaves]
            run, original = forward(leaves), None
            if not checks._finite(engine, run):
                good: list[int] = []
                for k in torch.isfinite(run.losses.detach()).nonzero().flatten().tolist():
                    single = call.picked(torch.full((rows,), k), False)
                    if single is not None and len(good) < 2 and checks._finite(engine, forward(single)):
                        good.append(k)
                mended = call.picked(torch.tensor([good[k % len(good)] for k in range(rows)]), False) if good else None
                if mended is None:
                    return False
                leaves = mended
                run, original = forward(leaves), run
            chosen = checks._some(rows, checks.CHECKED_EXAMPLES)
            outputs: Outputs | None = None
            if rows > 1:
                for example in reversed(chosen):
                    outputs = self._isolated(call, forward, run, leaves, example)
            with torch.no_grad(), torch.autocast(call.device.type, enabled=False):
                plan, gradients = engine.make_plan(run, outputs, chosen[0], original)
                if self.check:
                    checks._agree(engine, run, gradients, chosen)
                plan.checked = True
            return True
        finally:
            after()

    def _isolated(
        self, call: Call, forward: Callable[[list[Any]], Pass], run: Pass, leaves: list[Any], example: int
    ) -> Outputs | None:
        """The values of all operations when every other example is replaced; the example itself must not notice."""
        everyone = torch.full((call.rows,), example)
        narrow = checks._precision(self.engine, run)
        before = run.losses[example].detach().double()
        failure: str | None = None
        for square in (False, True):
            alike = call.picked(everyone, square)
            if alike is None:
                return None
            try:
                swapped = forward(alike)
            except (ValueError, RuntimeError, IndexError):
                # Bags of different lengths and the like: rows cannot be exchanged. Mixing then shows as elements that
                # several examples' losses depend on.
                return None
            outputs, after = swapped.outputs(), swapped.losses.detach()[example].double()
            del swapped
            near = checks.TOLERANCE[narrow] * (1e-3 + before.abs())
            if not self.check or bool((before - after).abs() <= near):
                if self.check and call.whole:
                    self._weighed(call, alike, example)
                return outputs
            failure = (
                f"the output of {type(call.module).__name__} for example {example} changed when the other examples of "
                "the batch were replaced: the model mixes examples, so no per-example bound exists. "
                "tacit.sgd.fix(model) replaces batch normalisation; anything else has to treat each example by itself."
            )
        raise BatchMixing(failure or "")

    def _weighed(self, call: Call, alike: list[Any], example: int) -> None:
        """A loss computed in the model must not weigh an example by what the others are."""
        for k, now in call.again(alike).items():
            dim = self.place_of(call, k, call.rows)
            assert dim is not None
            one, two = (t.select(dim, example).double() for t in (call.cotangents[k], now))
            if not bool((one - two).norm() <= 2e-2 * one.norm() + 1e-12):
                raise BatchMixing(
                    f"the loss that {type(call.module).__name__} returns weighs an example by how many tokens the "
                    "others have (a mean over all tokens of the batch), so no per-example bound exists. Compute it "
                    "outside, one mean for each example (tacit.integrations.losses.per_example_loss)"
                )


__all__ = ["Call", "Watch"]
