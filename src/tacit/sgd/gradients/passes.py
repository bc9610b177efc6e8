"""What is one pass of a model, and what has to be as it was for what is known of the model to hold?"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any

import torch
from torch import Tensor, nn

from tacit.sgd.errors import ClippingError
from tacit.sgd.gradients import verify
from tacit.sgd.gradients.capture import Use, rows_of_nested
from tacit.sgd.sharding.shards import cut_alike
from tacit.sgd.torch_compat import compiled_call, own_buffers, own_modules, own_parameters

Outputs = list[list[Tensor]]


class ModelState:
    """What has to be as it was for what is known of a model to hold: asked at every step, so all in one walk.

    ``trained`` names tensors by their place in memory, for as long as somebody keeps them. ``buffers`` are the tables
    that hold buffers, with name and value of each: not the modules, which an engine must not keep alive.
    """

    def __init__(self, model: nn.Module) -> None:
        self.training: list[bool] = []
        #: numbers that modules keep (a temperature, a rate of dropout): a program has them built in
        numbers: list[float] = []
        self.trained: list[int] = []
        self.buffers: list[tuple[MutableMapping[str, Tensor | None], str, Tensor]] = []
        self.frozen: list[Tensor] = []
        self.suspicious = self.compiled = False
        seen: set[int] = set()
        stack = [model]
        while stack:
            module = stack.pop()
            if id(module) in seen:
                continue
            seen.add(id(module))
            self.training.append(module.training)
            suspicious = isinstance(module, verify.SUSPECTS) and getattr(module, "max_norm", 0) is not None
            self.suspicious = self.suspicious or suspicious
            compiled = compiled_call(module) is not None or type(module).__name__ == "OptimizedModule"
            self.compiled = self.compiled or compiled
            for p in own_parameters(module).values():
                if p is not None and p.requires_grad:
                    self.trained.append(id(p))
                elif p is not None:
                    self.frozen.append(p)
            table = own_buffers(module)
            self.buffers += [(table, key, b) for key, b in table.items() if b is not None]
            stack += [child for child in own_modules(module).values() if child is not None]
            numbers += [value for value in vars(module).values() if type(value) is float]
        self.numbers = tuple(numbers)


class Pass:
    """One watched forward pass: its uses and the losses of its examples (already averaged over views).

    ``context`` is what a check of one pass says nothing about in another, ``unrolled`` says whether a recurrent layer
    was written out in time, ``trace`` what was done, ``doubt`` why what was found out about other batches may not hold
    for this one; ``rewind`` puts the random state back to what it was before.
    """

    def __init__(
        self,
        uses: list[Use],
        losses: Tensor,
        batch: int,
        context: Any = None,
        *,
        doubt: str = "",
        rewind: Callable[[], None] = lambda: None,
    ) -> None:
        self.uses, self.losses, self.batch, self.context = uses, losses, batch, context
        self.doubt, self.rewind = doubt if batch > 1 else "", rewind
        self.unrolled, self.trace, self.way, self.types = False, 0, 0, set[torch.dtype]()
        self.severed = False

    def outputs(self) -> Outputs:
        """The values of the outputs of the uses, without the graph behind them."""
        return [[t.detach() for t in use.outputs] for use in self.uses]

    def output_gradients(self, weights: Tensor | None = None, *, retain: bool = False) -> list[list[Tensor | None]]:
        """The gradient of the (weighted) sum of the losses at every output of every use, by one backward pass."""
        edges = [edge for use in self.uses for edge in use.edges]
        if not edges:
            return []
        weights = torch.ones_like(self.losses) if weights is None else weights.to(self.losses.dtype)
        try:
            found = list(torch.autograd.grad(self.losses, edges, weights, retain_graph=retain, allow_unused=True))
        except RuntimeError as error:
            if "use_reentrant" in str(error) or "not compatible with .grad()" in str(error):
                raise ClippingError(
                    "reentrant activation checkpointing hides its operations from autograd.grad: use "
                    "torch.utils.checkpoint.checkpoint(..., use_reentrant=False)"
                ) from error
            raise
        grads: list[list[Tensor | None]] = []
        for use in self.uses:
            own: list[Tensor | None] = [
                None if g is None else rows_of_nested(g.detach()) for g in found[: len(use.edges)]
            ]
            grads.append(own if use.placements is None else cut_alike(own, use.placements))
            found = found[len(use.edges) :]
        return grads
