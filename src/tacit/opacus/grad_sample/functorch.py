"""Where Opacus keeps per-example gradients by ``torch.func``. They are asked for in another way here."""

from __future__ import annotations

from typing import Any, NoReturn

INSTEAD = (
    "no layer needs a function for its per-example gradients here: tacit.sgd.example_gradients(model, loss, batch) "
    "gives those of a whole model, or GradSampleModule(model, keep_grad_sample=True)"
)


def prepare_layer(layer: Any, batch_first: bool = True) -> NoReturn:
    """Stand in for Opacus' function, and say what to call."""
    raise NotImplementedError(INSTEAD)


def ft_compute_per_sample_gradient(layer: Any, activations: Any, backprops: Any) -> NoReturn:
    """Stand in for Opacus' function, and say what to call."""
    raise NotImplementedError(INSTEAD)


def make_functional(mod: Any, disable_autograd_tracking: bool = False) -> NoReturn:
    """Stand in for Opacus' function, and say what to call."""
    raise NotImplementedError("use torch.func.functional_call(module, parameters, inputs); " + INSTEAD)


__all__ = ["ft_compute_per_sample_gradient", "make_functional", "prepare_layer"]
