"""What went through one call of a model in a loop that somebody else wrote, and what came back to it?

A :class:`Call` is made where the loop calls the model (:class:`~tacit.sgd.hooked.watch.Watch`). Its outputs are handed
out through a :class:`Border`, behind which the loop's backward pass goes on to the outputs of the watched operations
and no further. A call can be run again, on the same inputs or on others, with the cotangents that arrived.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tacit.sgd.errors import ClippingError, UncoveredUse
from tacit.sgd.gradients.batches import numbers
from tacit.sgd.gradients.capture import Use, rows_of_nested
from tacit.sgd.gradients.contributions import wide
from tacit.sgd.gradients.outside import Attributes, modules_of
from tacit.sgd.gradients.owners import owner_weights
from tacit.sgd.gradients.padding import Padded
from tacit.sgd.gradients.randomness import random_state, remember
from tacit.sgd.torch_compat import pytree

if TYPE_CHECKING:
    from tacit.sgd.hooked.watch import Watch

MIXES = (
    "the output of {} for an example changed when other examples of the batch were replaced: the model mixes examples, "
    "so no per-example bound exists. tacit.sgd.fix(model) replaces batch normalisation; anything else must treat each "
    "example by itself. See: tacit explain mixing"
)


class Call:
    """One outermost call of a module: what went in, what came out, and after the backward pass what arrived."""

    def __init__(self, watch: Watch, module: nn.Module, args: Any, kwargs: Any, piece: Any) -> None:
        self.watch, self.module, self.piece = watch, module, piece
        rows = piece.rows if piece is not None else -1
        self.leaves, self.spec = pytree.tree_flatten((args, kwargs), is_leaf=lambda v: numbers(v, rows))
        self.linked: list[tuple[Tensor, Tensor]] = []
        for k, leaf in enumerate(self.leaves):
            if isinstance(leaf, Tensor) and leaf.requires_grad:
                self.linked.append((leaf, leaf.detach().requires_grad_()))
                self.leaves[k] = self.linked[-1][1]
        self.device = next(iter(watch.engine.parameters.values())).device
        outside = watch.engine.draws_outside
        drawn = remember(self.device, outside=outside)
        self.state = state = Attributes(watch.engine.model)

        def rewind() -> None:
            drawn()
            state.restore()

        self.rewind = rewind
        #: the random state before, and whether the call drew from it
        self.before, self.random = random_state(self.device, outside=outside), False
        on = torch.is_autocast_enabled(self.device.type)
        self.autocast = torch.get_autocast_dtype(self.device.type) if on else None
        self.training = tuple(m.training for m in modules_of(module))
        self.context = contextlib.ExitStack()
        self.uses: list[Use] = []
        self.outs: list[Tensor] = []
        self.cotangents: dict[int, Tensor] = {}
        self.whole: dict[int, Tensor] = {}
        self.grads: list[list[Tensor | None]] | None = None
        #: gradients at the outputs of the uses under weights of the examples, where the pass is one to be doubted
        self.weighed: list[tuple[Tensor, list[list[Tensor | None]]]] = []
        self.doubt = ""
        #: what the pass did, and whether its plan was made for it
        self.trace, self.anew, self.severed = 0, False, False
        self.rows = 0

    @property
    def lists(self) -> bool:
        """Whether a list of numbers, one for each example, went in."""
        return any(isinstance(leaf, list | tuple) for leaf in self.leaves)

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
        self._weigh()
        self.grads, told = self._at_uses(self.cotangents)
        self.watch.engine.settle()
        self.watch.pending.append(self)
        self.watch.arrived(self)
        return [None if g is None else g / factor for g in told]

    def _weigh(self) -> None:
        """Ask whose each element is, where a plan does not say it for every batch."""
        unsure = self.doubt or self.watch.engine.by_row or self.watch.first(self)
        if self.rows > 1 and (unsure or any(use.rearranged for use in self.uses)):
            for weights in owner_weights(self.rows, self.device, torch.float32):
                cotangents = {k: self._spread(k, weights) * g for k, g in self.cotangents.items()}
                self.weighed.append((weights, self._at_uses(cotangents, retain=True)[0]))

    def _spread(self, k: int, weights: Tensor) -> Tensor:
        """Weights of the examples, shaped to multiply an output."""
        dim = self.watch.place_of(self, k, self.rows)
        assert dim is not None
        out = self.outs[k]
        return weights.to(out.dtype).reshape([-1 if d == dim else 1 for d in range(out.dim())])

    def _at_uses(
        self, cotangents: dict[int, Tensor], *, retain: bool = False
    ) -> tuple[list[list[Tensor | None]], list[Tensor | None]]:
        """The gradients at the outputs of the uses, and at the inputs, for these at the outputs of the call."""
        outs = [self.outs[k] for k in cotangents]
        edges = [edge for use in self.uses for edge in use.edges]
        targets: list[Any] = [*edges, *(leaf for _, leaf in self.linked)]
        told: Any = (None,) * len(targets)
        if outs and targets:
            told = torch.autograd.grad(outs, targets, list(cotangents.values()), retain_graph=retain, allow_unused=True)
        found, at = [], 0
        for use in self.uses:
            here = told[at : at + len(use.edges)]
            found.append([None if g is None else rows_of_nested(g.detach()) for g in here])
            at += len(use.edges)
        return found, list(told[at:])

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

    def leave_out(self, apart: Collection[int]) -> None:
        """Forget uses of nothing but these parameters, which are somebody else's."""
        assert self.grads is not None
        kept = [k for k, u in enumerate(self.uses) if not all(p in apart for d in u.derived for p in d.params)]
        if len(kept) == len(self.uses):
            return
        self.uses, self.grads = [self.uses[k] for k in kept], [self.grads[k] for k in kept]
        self.weighed = [(weights, [told[k] for k in kept]) for weights, told in self.weighed]

    # -- running it again -------------------------------------------------------------------------------------------

    def surrogate(self, leaves: list[Any], of: Tensor | None = None) -> Callable[[], Tensor]:
        """One value per example whose gradient is that of the example's loss at the weights as they are.

        ``of`` says which example of the batch lies in each place, where they were picked.
        """

        return lambda: self.values_of(self.outputs(leaves), of=of)[0]

    def outputs(self, leaves: list[Any]) -> list[Tensor]:
        """The outputs of the module on these inputs."""
        args, kwargs = self.arguments(leaves)
        with self._precision(), self.watch.engine.protected_buffers():
            return live(self.module(*args, **kwargs))

    def values_of(self, outs: list[Tensor], *, overlap: bool = False, of: Tensor | None = None) -> tuple[Tensor, Any]:
        """One value per example: its outputs, weighed by what arrived at them; and the shapes of the outputs.

        With ``overlap`` outputs may be longer or shorter than those at which it arrived. ``of`` says which example of
        the batch lies in each place: it is weighed by what arrived at its own outputs.
        """
        total: Tensor | None = None
        for k, cotangent in self.cotangents.items():
            dim = self.watch.place_of(self, k, self.rows)
            assert dim is not None
            if of is not None:
                cotangent = cotangent.index_select(dim, of.to(cotangent.device))
            out, kind = outs[k], wide(outs[k].dtype)
            if overlap:
                out, cotangent = self.overlapping(out, cotangent)
            product = out.to(kind).movedim(dim, 0) * cotangent.to(kind).movedim(dim, 0)
            value = product.reshape(self.rows, -1).sum(1)
            total = value if total is None else total + value
        assert total is not None
        return total, [outs[k].shape for k in self.cotangents]

    @staticmethod
    def overlapping(one: Tensor, two: Tensor) -> tuple[Tensor, Tensor]:
        """The parts of two tensors that both have: how long padded outputs are may depend on the batch."""
        common = tuple(slice(0, min(a, b)) for a, b in zip(one.shape, two.shape, strict=True))
        return one[common], two[common]

    def single_value(self, padded: Padded, outs: list[Tensor]) -> Tensor:
        """What the loss makes of the outputs for a batch of this one example, with or without its padding."""
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for k in self.whole:
            total = total + outs[k].double()
        for k, cotangent in self.cotangents.items():
            if self.whole:
                continue  # they follow from it
            dim = self.watch.place_of(self, k, self.rows)
            assert dim is not None
            weight = cotangent.narrow(dim, padded.row, 1).double()
            weight = padded.strip(weight, dim, weight.dim()) if weight.shape != outs[k].shape else weight
            total = total + (outs[k].double() * weight).sum()
        return total

    def again(self, leaves: list[Any]) -> dict[int, Tensor]:
        """The cotangents that a loss computed in the model has for these inputs."""
        self.rewind()
        with torch.enable_grad():
            outs = self.outputs(leaves)
        roots, behind = [outs[k] for k in self.whole], [outs[k] for k in self.cotangents]
        found = torch.autograd.grad(roots, behind, list(self.whole.values()), allow_unused=True)
        return {k: g for k, g in zip(self.cotangents, found, strict=True) if g is not None}

    def _precision(self) -> Any:
        return torch.autocast(self.device.type, self.autocast or torch.bfloat16, enabled=self.autocast is not None)

    def picked(self, examples: Tensor, *, square: bool) -> list[Any] | None:
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
            elif numbers(leaf, self.rows):
                leaf = type(leaf)(leaf[k] for k in examples.tolist())
            found.append(leaf)
        return found if any_moved else None


class Border(torch.autograd.Function):
    """Outputs without what is behind them; the backward pass goes on in :meth:`Call.arrived`."""

    @staticmethod
    def forward(ctx: Any, call: Call, anchor: Tensor, *linked: Tensor) -> Any:
        ctx.call = call
        ctx.set_materialize_grads(False)
        return tuple(out.detach() for out in call.outs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        return (None, None, *ctx.call.arrived(grads))


def live(out: Any) -> list[Tensor]:
    """The outputs through which a gradient can come, each once."""
    found: list[Tensor] = []
    for leaf in pytree.tree_leaves(out):
        if isinstance(leaf, Tensor) and leaf.requires_grad and not any(leaf is f for f in found):
            found.append(leaf)
    return found
