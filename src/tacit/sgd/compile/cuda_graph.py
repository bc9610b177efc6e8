"""How are all launches of a compiled step made in one? As a CUDA graph, which is recorded once and played again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tacit.sgd.torch_compat import foreach_copy_, foreach_mul, version


class StepGraph:
    """A compiled step as a CUDA graph: all its launches in one."""

    def __init__(self, run: Callable[..., Any], inputs: list[Tensor], constants: list[Tensor]) -> None:
        self.inputs = [t.clone() for t in inputs]
        self.given: list[tuple[Tensor, int] | None] = [None] * len(inputs)
        self.addresses = [t.data_ptr() for t in constants]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run(*self.inputs, *constants)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.outputs = run(*self.inputs, *constants)

    def holds(self, constants: list[Tensor]) -> bool:
        """Whether parameters and buffers are where they were recorded."""
        return all(t.data_ptr() == a for t, a in zip(constants, self.addresses, strict=True))

    def __call__(self, inputs: list[Tensor], *, reuse_memory: bool) -> list[Tensor]:
        changed: list[int] = []
        for k, given in enumerate(inputs):
            last = self.given[k]
            if last is None or last[0] is not given or last[1] != version(given):
                changed.append(k)
                # Kept only where it is the same tensor again and again (the bounds): data would be held for nothing.
                self.given[k] = (given, version(given)) if given.numel() <= 64 else None
        if changed:
            foreach_copy_([self.inputs[k] for k in changed], [inputs[k] for k in changed], non_blocking=True)
        self.graph.replay()
        if reuse_memory:
            return list(self.outputs)
        # Copies, because the next replay writes over them; all in one launch.
        *told, fine = self.outputs
        return [*foreach_mul(told, 1.0), fine]
