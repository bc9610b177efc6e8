"""Which optimizer knows that its gradients are noisy? Adam with the noise subtracted from its second moment.

Every ``torch.optim`` optimizer works on private gradients, because whatever it does to them is post-processing. Adam
divides by the root of the mean squared gradient, which the noise inflates by its variance: small and large
coordinates then move alike, and Adam becomes SGD with momentum. The variance is public, and DP-AdamBC subtracts it.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tacit.accounting.correlated import Workload


def workload_of(optimizer: torch.optim.Optimizer, scheduler: Any = None, steps: int = 1) -> Workload:
    """What an optimizer makes of gradients, as far as that is a filter of them.

    That of plain SGD is exact. Adam's is that of its momentum, as if its second moment stood still; of other optimizers
    the learning rates are known alone.

    >>> weight = torch.nn.Parameter(torch.ones(1))
    >>> optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9, weight_decay=0.1)
    >>> workload_of(optimizer)
    Workload(momentum=0.9, decay=0.1, rates=(0.1,), nesterov=False)
    >>> workload_of(optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5), 3).rates
    (0.1, 0.05, 0.025)
    """
    group = optimizer.param_groups[0]
    rates = (float(group["lr"]),) if scheduler is None else rates_of(optimizer, scheduler, steps)
    momentum = decay = 0.0
    if type(optimizer) is torch.optim.SGD:
        momentum, decay = float(group["momentum"]), float(group["weight_decay"])
    elif isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW | DPAdam):
        momentum = float(group["betas"][0])
    return Workload(momentum, decay, rates, bool(momentum and group.get("nesterov")))


def rates_of(optimizer: torch.optim.Optimizer, scheduler: Any, steps: int) -> tuple[float, ...]:
    """The learning rate of each step, by a copy of the schedule; only the first one, where it cannot be copied."""
    rates = [float(optimizer.param_groups[0]["lr"])]
    twin = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    twin.param_groups = [{**group, "params": []} for group in optimizer.param_groups]
    try:
        with warnings.catch_warnings(action="ignore"):  # the copy makes no steps
            copied = copy.deepcopy(scheduler, {id(optimizer): twin})
            for _ in range(steps - 1):
                copied.step()
                rates.append(float(twin.param_groups[0]["lr"]))
    except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError):
        return tuple(rates[:1])
    return tuple(rates)


class DPAdam(torch.optim.Optimizer):
    """Adam with bias correction for the noise: DP-AdamBC (Tang, Shpilevskiy and Lécuyer 2024).

    It subtracts the variance (σC/B)² of the noise in each coordinate from the second moment, before the root.
    :class:`tacit.sgd.Training` sets :attr:`noise_variance` before every step; if it changes from step to step, it is
    averaged like the squared gradients.

    Args:
        params: The parameters to update, or groups of them, as for any torch optimizer.
        lr: The learning rate. Default: 0.001.
        betas: The decay of the first and of the second moment, each at least 0 and below 1. Default: (0.9, 0.999).
        floor: The least value of the corrected second moment (γ' in the paper); positive. Default: 1e-8.
        weight_decay: Decoupled weight decay, as in AdamW. Default: 0.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(3))
        >>> optimizer = DPAdam([weight], lr=0.1)
        >>> optimizer.noise_variance = 0.25
        >>> weight.grad = torch.tensor([1.0, 0.6, -1.0])
        >>> optimizer.step()
        >>> weight.detach()
        tensor([0.8845, 0.8191, 1.1155])
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        floor: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        if lr < 0 or floor <= 0 or weight_decay < 0 or not all(0 <= b < 1 for b in betas):
            raise ValueError(
                "lr and weight_decay must not be negative, floor must be positive, betas must lie in [0, 1)"
            )
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "floor": floor, "weight_decay": weight_decay})
        #: The variance of the noise in each coordinate of the next gradient.
        self.noise_variance = 0.0

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]  # no closure, no loss
        """Update the parameters once from their gradients.

        Args:
            closure: Must be None: a closure would compute gradients again.

        Raises:
            ValueError: If a closure is given.
        """
        if closure is not None:
            raise ValueError("step takes no closure: computing gradients again would be another release")
        for group in self.param_groups:
            fast, slow = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state |= {"step": 0, "first": torch.zeros_like(p), "second": torch.zeros_like(p), "noise": 0.0}
                state["step"] += 1
                state["first"].lerp_(p.grad, 1 - fast)
                state["second"].mul_(slow).addcmul_(p.grad, p.grad, value=1 - slow)
                state["noise"] = slow * state["noise"] + (1 - slow) * self.noise_variance
                rest = 1 - slow ** state["step"]
                second: Tensor = (state["second"] - state["noise"]) / rest
                size = second.clamp_(min=group["floor"]).sqrt_()
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.addcdiv_(state["first"], size, value=-group["lr"] / (1 - fast ** state["step"]))
