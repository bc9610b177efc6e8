"""Which tensors were there before a pass, and are what they were?"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tacit.sgd.torch_compat import version as version_of

#: Larger constants are not compared from pass to pass.
SMALL = 4096


class Constants:
    """Tensors that were there before a pass began, so that nothing in it can have made them of the batch.

    One that a pass meets for the first time may have been made in it, unseen (by scripted code, in another thread). One
    that was there in the pass before, and has not been written to since, was not. Buffers of the model are put back
    after every pass.
    """

    def __init__(self, buffers: Sequence[Tensor] = ()) -> None:
        self._known: dict[int, tuple[Any, int]] = {}
        self._met: list[tuple[Any, int]] = []
        self._buffers = {id(b) for b in buffers}

    def __contains__(self, tensor: Tensor) -> bool:
        if id(tensor) in self._buffers:
            return True
        known = self._known.get(id(tensor))
        if known is not None and known[0]() is tensor and known[1] == version_of(tensor):
            return True
        self._met.append((weakref.ref(tensor), version_of(tensor)))
        return False

    def next(self, buffers: Sequence[Tensor]) -> Constants:
        """What a new pass knows: what the last one met, and is still there."""
        alive = [(ref, version) for ref, version in [*self._known.values(), *self._met] if ref() is not None]
        after = Constants(buffers)
        after._known = {id(ref()): (ref, version) for ref, version in alive}
        return after


def content(tensor: Tensor) -> bytes:
    """What a small tensor in the memory of the CPU holds; nothing of others."""
    if tensor.device.type != "cpu" or tensor.numel() > SMALL or tensor.layout is not torch.strided or tensor.is_nested:
        return b""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
