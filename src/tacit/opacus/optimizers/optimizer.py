"""What does ``optimizer.step()`` do now? It clips, sums and adds noise, and then the user's own optimizer steps.

The private part is a step pre-hook on the user's optimizer, so stepping the original instead of what ``make_private``
returned is private as well. :class:`DPOptimizer` is that optimizer with Opacus' attributes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.optim import Optimizer

from tacit.sgd.gradients.bounds import exact_products
from tacit.sgd.hooked.loop import Loop
from tacit.sgd.single import formed
from tacit.sgd.torch_compat import take_hooks


class DPOptimizer(Optimizer):
    """The user's optimizer, private: ``step`` releases a noisy gradient and lets the original use it.

    ``noise_multiplier`` and ``max_grad_norm`` may be set between steps; each step is charged with the noise it had.
    """

    def __init__(self, optimizer: Optimizer, loop: Loop | None = None, **kwargs: Any) -> None:
        if loop is None or kwargs:
            raise NotImplementedError(
                "a private optimizer cannot be built by hand: call PrivacyEngine.make_private, which joins model, "
                "optimizer and data loader so that the price fits what is sampled. For a loop without a data loader "
                "use tacit.sgd.clipped_grad"
            )
        # Not Optimizer.__init__: groups, state and defaults are the original's.
        self.original_optimizer = optimizer
        self.loop = loop
        self.step_hook: Callable[[DPOptimizer], None] | None = None
        self.generator, self.secure_mode = None, True
        self._step_skip_queue: list[bool] = []
        self._prepared = False
        inner = getattr(optimizer, "optimizer", None)  # accelerate's wrapper has one, and no hooks of its own
        target = inner if isinstance(inner, Optimizer) else optimizer
        self._wrapped = target is not optimizer
        self._handle = target.register_step_pre_hook(self._before)
        take_hooks(self)

    # -- the step ---------------------------------------------------------------------------------------------------

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        # torch passes the optimizer itself as the first argument.
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not self._prepared:
            self.pre_step()
        self._prepared = False
        return ((optimizer, lambda: loss), {}) if closure is not None else None

    def pre_step(self, closure: Callable[[], Any] | None = None) -> bool:
        """Clip and add up; noise and ``p.grad`` if the batch is complete. Whether a step is to be made."""
        if closure is not None:
            with torch.enable_grad():
                closure()
        skip = self._step_skip_queue.pop(0) if self._step_skip_queue else False
        if skip or not self.loop.finished():
            self.loop.settle()
            self.loop.hold = self.loop.hold or skip
            # Without a gradient every torch optimizer leaves weights and state alone.
            for p in self.params:
                p.grad = None
            return False
        known = {id(p) for p in self.loop.parameters.values()}
        if any(id(p) not in known for p in self.params):
            raise RuntimeError(
                "a parameter was added to the optimizer after make_private, and it would get no noise: add it before "
                "make_private"
            )
        if self.step_hook is not None:
            self.step_hook(self)
        self.loop.release()
        self._prepared = True
        return True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One private step; nothing where the batch goes on in another piece (``BatchMemoryManager``)."""
        if self._wrapped:  # the wrapper decides when there is a step
            return self.original_optimizer.step() if closure is None else self.original_optimizer.step(closure)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self.pre_step():
            told = self.original_optimizer.step()
            return told if closure is None else loss
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget gradients that no step was made of. Forgetting to call it does no harm: steps start from nothing."""
        self.loop.discard()
        for p in self.params:
            if getattr(p, "grad_sample", None) is not None:
                p.grad_sample = None  # type: ignore[attr-defined]
        self.original_optimizer.zero_grad(set_to_none)

    def signal_skip_step(self, do_skip: bool = True) -> None:
        """The next ``step`` only clips and adds up (``do_skip``)."""
        self._step_skip_queue.append(do_skip)

    def attach_step_hook(self, fn: Callable[[DPOptimizer], None]) -> None:
        """Call ``fn(optimizer)`` before every release."""
        self.step_hook = fn

    def detach(self) -> Optimizer:
        """The original optimizer, no longer private, for further use on public data."""
        self._handle.remove()
        self.loop.close()
        return self.original_optimizer

    # -- what people read and set -----------------------------------------------------------------------------------

    @property
    def noise_multiplier(self) -> float:
        """The noise of the next step, relative to the sensitivity of the sum."""
        return float(self.loop.noise_multiplier)

    @noise_multiplier.setter
    def noise_multiplier(self, value: float) -> None:
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"noise_multiplier must be finite and not negative, not {value!r}")
        self.loop.noise_multiplier = float(value)

    @property
    def max_grad_norm(self) -> float:
        """The bound on an example's gradient; of all layers together where each has its own."""
        return float(self.loop.spec().sensitivity)

    @max_grad_norm.setter
    def max_grad_norm(self, value: Any) -> None:
        before = self.loop.clip_norm
        self.loop.clip_norm = float(value) if isinstance(value, int | float | Tensor) else [float(v) for v in value]
        try:
            self.loop.spec()
        except ValueError:
            self.loop.clip_norm = before
            raise

    @property
    def max_grad_norms(self) -> list[float]:
        """The bounds of ``clipping="per_layer"``."""
        return list(self.loop.spec().bounds)

    @property
    def expected_batch_size(self) -> int:
        """What the noisy sum is divided by."""
        return int(self.loop.batches.sampler.batch_size)

    @property
    def loss_reduction(self) -> str:
        """Whether losses are averaged or summed over the batch."""
        return "mean" if self.loop.mean else "sum"

    @property
    def accumulated_iterations(self) -> int:
        """How many draws are in the sum that the next step releases."""
        self.loop.settle()
        return self.loop.accumulated

    @property
    def params(self) -> list[Tensor]:
        """The trainable parameters."""
        return [p for group in self.param_groups for p in group["params"] if p.requires_grad]

    @property
    def grad_samples(self) -> list[Tensor]:
        """The gradient of each example of the batch in hand, for every trainable parameter: the operator's, no release.

        They are computed when this is read, between ``backward`` and ``step``, and also put in ``p.grad_sample``, where
        they stay until the next reading or ``zero_grad``. They take ``examples * trainable elements * 4`` bytes;
        private training itself does not form them.
        """
        found = _grad_samples(self.loop)
        for p in self.params:
            p.grad_sample = found[id(p)]  # type: ignore[attr-defined]
        return [found[id(p)] for p in self.params]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The original's."""
        groups: list[dict[str, Any]] = self.original_optimizer.param_groups
        return groups

    @param_groups.setter
    def param_groups(self, value: list[dict[str, Any]]) -> None:
        self.original_optimizer.param_groups = value

    @property
    def state(self) -> Any:
        """The original's."""
        return self.original_optimizer.state

    @state.setter
    def state(self, value: Any) -> None:
        self.original_optimizer.state = value

    @property
    def defaults(self) -> dict[str, Any]:
        """The original's."""
        found: dict[str, Any] = self.original_optimizer.defaults
        return found

    @defaults.setter
    def defaults(self, value: dict[str, Any]) -> None:
        self.original_optimizer.defaults = value

    def add_param_group(self, param_group: dict[str, Any]) -> NoReturn:
        """Refused: what is trained is decided before ``make_private``."""
        raise RuntimeError("a parameter group added after make_private would get no noise: add it before")

    def state_dict(self) -> dict[str, Any]:
        """The original's."""
        found: dict[str, Any] = self.original_optimizer.state_dict()
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Into the original."""
        self.original_optimizer.load_state_dict(state_dict)

    def __getstate__(self) -> NoReturn:
        raise TypeError("a private optimizer cannot be pickled: save its state_dict()")

    def __repr__(self) -> str:
        return f"private {self.original_optimizer!r}"


def _grad_samples(loop: Loop) -> dict[int, Tensor]:
    """Gradients of single examples of the batch that went through the last backward pass, by id of the parameter."""
    calls = [call for call in loop.watch.pending if call.piece is loop.watch.pending[-1].piece]
    if not calls:
        raise RuntimeError("no batch is in hand: read grad_samples after backward() and before step()")
    parameters = list(loop.watch.engine.parameters.values())
    if not calls[0].rows:
        return {id(p): torch.zeros((0, *p.shape), dtype=p.dtype, device=p.device) for p in parameters}
    with torch.enable_grad():
        gradients, _ = loop.watch.gradients(calls)
    device = calls[0].device
    with torch.no_grad(), torch.autocast(device.type, enabled=False), exact_products(device):
        return {id(p): formed(gradients, k).to(p.dtype) for k, p in enumerate(parameters)}


class DPPerLayerOptimizer(DPOptimizer):
    """With ``clipping="per_layer"``."""


class DPOptimizerFastGradientClipping(DPOptimizer):
    """With a ghost mode."""


class DistributedDPOptimizer(DPOptimizer):
    """Opacus' optimizer for several processes: ``make_private`` runs in one and never returns it."""


class AdaClipDPOptimizer(DPOptimizer):
    """With ``clipping="adaptive"``: the clip norm follows a quantile of the norms, by a noisy count that is charged."""

    @property
    def target_unclipped_quantile(self) -> float:
        """Which part of the gradients is to stay unclipped."""
        assert self.loop.adaptive is not None
        return self.loop.adaptive.quantile


__all__ = [
    "AdaClipDPOptimizer",
    "DPOptimizer",
    "DPOptimizerFastGradientClipping",
    "DPPerLayerOptimizer",
    "DistributedDPOptimizer",
]
