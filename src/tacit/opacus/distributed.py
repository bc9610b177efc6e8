"""How does a run use several processes? Not by wrapping the model; the name exists so that scripts can import it."""

from __future__ import annotations

from typing import Any

from torch import nn


class DifferentiallyPrivateDistributedDataParallel(nn.Module):
    """Stand in for Opacus' wrapper. It cannot be built."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(
            "make_private runs in one process. For several, use tacit.sgd.Training under torchrun "
            "(docs/howto/distributed.md) or tacit.integrations.lightning.PrivateDDPStrategy"
        )
