"""Which arguments of ``make_private`` make sense? Words that are known, and those of adaptive clipping."""

from __future__ import annotations

import math
import warnings
from typing import Any

from torch import nn
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from tacit.accounting.errors import PrivacyWarning
from tacit.sgd.hooked.loop import Loop
from tacit.sgd.release import AdaptiveClipping
from tacit.sgd.training.sampling import Chunks, Poisson, Sampler

MODES = ("hooks", "ew", "functorch", "ghost", "ghost_fsdp", "no_op", "tp")
_ADAPTIVE = (
    "target_unclipped_quantile",
    "clipbound_learning_rate",
    "max_clipbound",
    "min_clipbound",
    "unclipped_num_std",
)

_DISTRIBUTED = (
    "DistributedDataParallel",
    "DataParallel",
    "FullyShardedDataParallel",
    "DifferentiallyPrivateDistributedDataParallel",
)


def check_words(grad_sample_mode: str, loss_reduction: str) -> None:
    """Refuse a mode or a reduction that there is not."""
    if grad_sample_mode not in MODES:
        raise ValueError(f"grad_sample_mode must be one of {', '.join(MODES)}, not {grad_sample_mode!r}")
    if loss_reduction not in ("mean", "sum"):
        raise ValueError(f"loss_reduction must be 'mean' or 'sum', not {loss_reduction!r}")


def check_module(module: nn.Module) -> None:
    """Refuse a model inside a wrapper that adds up gradients over processes."""
    if type(module).__name__ in _DISTRIBUTED or type(module).__mro__[1].__name__ == "FSDPModule":
        raise NotImplementedError(
            f"{type(module).__name__} is not supported: its reducer waits for gradients that are never formed. "
            "Pass the model itself, in one process; for several processes see docs/howto/distributed.md"
        )


def check_clipping(clipping: str, max_grad_norm: float | list[float]) -> None:
    """Refuse a way of clipping that there is not, or that does not fit the bounds."""
    if clipping not in ("flat", "per_layer", "adaptive", "automatic"):
        raise ValueError(f"clipping must be 'flat', 'per_layer', 'adaptive' or 'automatic', not {clipping!r}")
    if isinstance(max_grad_norm, list | tuple) and clipping != "per_layer":
        raise ValueError("max_grad_norm is a list, which needs clipping='per_layer'")


def elements(module: nn.Module) -> int:
    """Noise numbers of a step at most: one for each trainable number, and the count of adaptive clipping."""
    trained: int = sum(p.numel() for p in module.parameters() if p.requires_grad)
    return trained + 1


def adaptive_clipping(
    clipping: str, options: dict[str, Any], sampler: Sampler, noise: float
) -> tuple[AdaptiveClipping | None, tuple[float | None, float | None]]:
    """Opacus' arguments of adaptive clipping, of which none is silently dropped."""
    known = _ADAPTIVE if clipping == "adaptive" else ()
    unknown = [name for name in options if name not in known and name not in ("alphas", "eps_error")]
    if unknown:
        belongs = " (it belongs to clipping='adaptive')" if unknown[0] in _ADAPTIVE else ""
        raise TypeError(f"make_private has no argument {unknown[0]!r}{belongs}")
    if clipping != "adaptive":
        return None, (None, None)
    low, high = (None if name not in options else float(options[name]) for name in ("min_clipbound", "max_clipbound"))
    if not 0 < (1e-300 if low is None else low) < (math.inf if high is None else high):
        raise ValueError("max_clipbound must be larger than min_clipbound, and that larger than 0")
    adaptive = AdaptiveClipping(
        quantile=float(options.get("target_unclipped_quantile", 0.5)),
        rate=float(options.get("clipbound_learning_rate", 0.2)),
        count_noise=float(options.get("unclipped_num_std", sampler.batch_size / 20)),
    )
    adaptive.gradient_noise(noise)  # refuses a count that costs more than the noise allows
    return adaptive, (low, high)


def by_both_names(module: nn.Module) -> nn.Module:
    """The model itself, which scripts for Opacus also find as ``model._module``; no part of it, and not in its state.

    >>> model = by_both_names(nn.Linear(3, 2))
    >>> model._module is model, list(model.state_dict())
    (True, ['weight', 'bias'])
    """
    if not hasattr(module, "_module"):
        vars(module)["_module"] = module
    return module


def say_what_is_kept(loop: Loop, state: dict[str, Any]) -> None:
    """Say aloud where a checkpoint has another noise or clip norm than the run, which keeps its own."""
    for name, own in (("noise_multiplier", loop.noise_multiplier), ("max_grad_norm", loop.clip_norm)):
        if state.get(name, own) != own:
            warnings.warn(
                f"the checkpoint was saved with {name} {state[name]}; this run keeps its own, {own}, as given to "
                "make_private. Earlier steps are priced with the noise they had",
                PrivacyWarning,
                stacklevel=3,
            )


class Hooks:
    """What ``wrap_model=False`` returns: its ``cleanup()`` takes the hooks off the model."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def cleanup(self) -> None:
        """Take the hooks off the model."""
        self._loop.close()


def say_how_it_draws(sampler: Sampler, data_loader: DataLoader[Any]) -> None:
    """Say aloud what a loader's own way of choosing batches becomes."""
    if isinstance(sampler, Chunks):
        warnings.warn(
            "poisson_sampling=False over a loader without shuffle is priced with no amplification by sampling: the "
            "order of the batches is known. Expect a much larger ε. It holds for zeroing out one record. With "
            "shuffle=True each record falls into a batch of each pass at random, which is amplified",
            PrivacyWarning,
            stacklevel=5,
        )
    elif data_loader.drop_last:
        warnings.warn("drop_last has no meaning for batches that differ in size: none is dropped", stacklevel=5)
    inner = getattr(data_loader.batch_sampler, "sampler", None)
    if isinstance(sampler, Poisson) and type(inner) not in (RandomSampler, SequentialSampler, type(sampler)):
        kind = type(inner or data_loader.batch_sampler).__name__
        warnings.warn(
            f"{kind} does not choose the batches of private training: every record is drawn with the same "
            "probability, batch size / number of records. To make some records count more, weight their losses",
            stacklevel=5,
        )
