"""How does a large batch go through a small machine? In pieces, with one step for the whole of it.

with BatchMemoryManager(data_loader=loader, max_physical_batch_size=64, optimizer=optimizer) as pieces:
    for x, y in pieces: ...        # the same loop; optimizer.step() does nothing until the batch is complete
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from tacit.opacus.data_loader import DPDataLoader
from tacit.opacus.optimizers import DPOptimizer


def wrap_data_loader(*, data_loader: Any, max_batch_size: int, optimizer: DPOptimizer) -> DPDataLoader:
    """The same draws in pieces of at most ``max_batch_size`` records."""
    if not isinstance(data_loader, DPDataLoader) or data_loader.loop is not optimizer.loop:
        raise ValueError("BatchMemoryManager takes the data loader and the optimizer that make_private returned")
    return data_loader.split(max_batch_size)


class BatchMemoryManager:
    """Hands out each batch in pieces of at most ``max_physical_batch_size``.

    Which piece ends a batch is known from the piece itself, so loaders with workers that read ahead are right too.
    """

    def __init__(self, *, data_loader: Any, max_physical_batch_size: int, optimizer: DPOptimizer) -> None:
        self.data_loader, self.max_physical_batch_size, self.optimizer = data_loader, max_physical_batch_size, optimizer

    def __enter__(self) -> DPDataLoader:
        return wrap_data_loader(
            data_loader=self.data_loader, max_batch_size=self.max_physical_batch_size, optimizer=self.optimizer
        )

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


__all__ = ["BatchMemoryManager", "wrap_data_loader"]
