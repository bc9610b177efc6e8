"""Where Opacus keeps its wrapper for sharded models. The name exists so that scripts can import it."""

from __future__ import annotations

from typing import Any, NoReturn

SPREAD = (
    "make_private runs in one process. A model that is spread over ranks (fully_shard, tensor parallel) trains with "
    "tacit.sgd.Training under torchrun, as it is (docs/howto/distributed.md)"
)


def FSDP2Wrapper(model: Any, **kwargs: Any) -> NoReturn:
    """Stand in for Opacus' function, and say what to use."""
    raise NotImplementedError(SPREAD)


__all__ = ["FSDP2Wrapper"]
