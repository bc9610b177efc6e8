"""Where Opacus keeps ``GradSampleModule``: per-example gradients in ``p.grad_sample``, where somebody asks for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tacit.opacus.grad_sample.gsm_base import AbstractGradSampleModule
from tacit.sgd.gradients.bounds import exact_products
from tacit.sgd.gradients.engine import Engine
from tacit.sgd.hooked.calls import Call
from tacit.sgd.hooked.draws import Piece
from tacit.sgd.hooked.watch import Watch
from tacit.sgd.single import formed
from tacit.sgd.torch_compat import pytree


class GradSampleModule(AbstractGradSampleModule):
    """Keep the gradient of each example in ``p.grad_sample``, with ``keep_grad_sample=True``.

    After ``loss.backward()`` every trainable parameter has ``p.grad_sample``, one gradient per example, and ``p.grad``
    as usual: as in Opacus, for losses that are averaged (or summed) over the batch. Several backward passes give a
    list. It is for people who learn, debug or do research: private training goes through
    ``PrivacyEngine.make_private``, which takes the model itself and does not form these gradients. They take
    ``examples * trainable elements * 4`` bytes.

    Guarantee:
        None: nothing is clipped and nothing has noise. ``p.grad_sample`` and ``p.grad`` are the operator's; do not
        release them or a model trained with them.

    Args:
        m: The model.
        batch_first: Whether the first dimension of inputs counts the examples (default), or the second.
        loss_reduction: ``"mean"`` (default) if the loss is averaged over the batch, ``"sum"`` if it is summed.
        strict: Accepted; a model that mixes examples is refused in any case.
        force_functorch: Accepted, without effect.
        keep_grad_sample: Must be true: the request for gradients that private training does without.

    Raises:
        NotImplementedError: Without ``keep_grad_sample=True``. The message says what to call instead.
        ValueError: If ``loss_reduction`` is neither ``"mean"`` nor ``"sum"``.

    Example:
        >>> model = GradSampleModule(nn.Linear(3, 2), keep_grad_sample=True)
        >>> nn.functional.cross_entropy(model(torch.randn(5, 3)), torch.tensor([0, 1, 0, 1, 1])).backward()
        >>> {name: tuple(p.grad_sample.shape) for name, p in model.named_parameters()}
        {'_module.weight': (5, 2, 3), '_module.bias': (5, 2)}
    """

    def __init__(
        self,
        m: nn.Module,
        *,
        batch_first: bool = True,
        loss_reduction: str = "mean",
        strict: bool = True,
        force_functorch: bool = False,
        keep_grad_sample: bool = False,
    ) -> None:
        if not keep_grad_sample:
            super().__init__()
        if loss_reduction not in ("mean", "sum"):
            raise ValueError(f"loss_reduction must be 'mean' or 'sum', not {loss_reduction!r}")
        nn.Module.__init__(self)
        self._module = m
        self.batch_first, self.loss_reduction = batch_first, loss_reduction
        engine, dim = Engine.of(m), 0 if batch_first else 1
        self.__dict__["_watch"] = Watch(m, engine, piece=self._piece, mean=loss_reduction == "mean", batch_dim=dim)
        self._watch.arrived = self._keep
        self._rows: int | None = None
        self.set_grad_sample_to_none()

    @property
    def _watch(self) -> Watch:
        watch: Watch = self.__dict__["_watch"]
        return watch

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model.

        Args:
            *args: What the model takes.
            **kwargs: What the model takes, by name.

        Returns:
            What the model returns.
        """
        dim = self._watch.batch_dim
        sizes = [t.shape[dim] for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor) and t.dim() > dim]
        self._rows = sizes[0] if sizes else None
        try:
            return self._module(*args, **kwargs)
        finally:
            self._rows = None

    def _piece(self) -> Piece | None:
        return None if self._rows is None else Piece(0, self._rows, last=True, real=self._rows)

    def _keep(self, call: Call) -> None:
        """What arrived in a backward pass, as gradients of single examples and as their mean or sum."""
        self._watch.pending.remove(call)
        with torch.enable_grad():
            gradients, _ = self._watch.gradients([call])
        device = call.device
        with torch.no_grad(), torch.autocast(device.type, enabled=False), exact_products(device):
            for k, p in enumerate(self._watch.engine.parameters.values()):
                one = formed(gradients, k).to(p.dtype)
                before = getattr(p, "grad_sample", None)
                kept: Any = one if before is None else [*(before if isinstance(before, list) else [before]), one]
                p.grad_sample = kept  # type: ignore[attr-defined]
                whole = one.sum(0) / (max(1, len(one)) if self.loss_reduction == "mean" else 1)
                p.grad = whole if p.grad is None else p.grad + whole

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "_module":
                raise
            return getattr(self._module, name)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, also those of single examples.

        Args:
            set_to_none: Whether ``p.grad`` becomes None (default) or zero.
        """
        self.set_grad_sample_to_none()
        super().zero_grad(set_to_none)

    def set_grad_sample_to_none(self) -> None:
        """Forget the gradients of single examples."""
        for p in self._watch.engine.parameters.values():
            p.grad_sample = None  # type: ignore[attr-defined]

    def del_grad_sample(self) -> None:
        """Take the attribute ``grad_sample`` away from the parameters."""
        for p in self._watch.engine.parameters.values():
            if hasattr(p, "grad_sample"):
                del p.grad_sample

    def remove_hooks(self) -> None:
        """Leave the model alone from now on."""
        self._watch.close()

    def to_standard_module(self) -> nn.Module:
        """The model itself, as it was before."""
        self.remove_hooks()
        self.del_grad_sample()
        model: nn.Module = self._module
        return model


class GradSampleModuleFastGradientClipping(GradSampleModule):
    """Stand in for Opacus' wrapper of the ghost modes. It cannot be built.

    Args:
        *args: Not used.
        **kwargs: Not used.

    Raises:
        NotImplementedError: Always. Pass the model itself to ``PrivacyEngine.make_private``.

    Example:
        >>> from torch import nn
        >>> isinstance(nn.Linear(3, 2), GradSampleModuleFastGradientClipping)
        False
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        AbstractGradSampleModule.__init__(self, *args, **kwargs)


__all__ = ["GradSampleModule", "GradSampleModuleFastGradientClipping"]
