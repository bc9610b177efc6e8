"""How does a Lightning script for Opacus use this? The name that its example imports, with what takes its place."""

from __future__ import annotations

from typing import Any


class DPLightningDataModule:
    """Stand in for Opacus' data module. It cannot be built."""

    def __init__(self, datamodule: Any, generator: Any = None) -> None:
        raise NotImplementedError(
            "Lightning needs no data module of its own here: give the Trainer "
            "callbacks=[tacit.integrations.lightning.PrivateTraining(...)] and your data as they are "
            "(docs/howto/lightning.md)"
        )


__all__ = ["DPLightningDataModule"]
