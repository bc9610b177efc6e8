"""How are Triton kernels written, compiled and launched, where there is Triton? The one place that imports it.

Without Triton the modules with kernels can be imported all the same, and compute the same with torch.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

try:
    import triton  # type: ignore[import-not-found, unused-ignore]
    import triton.language  # type: ignore[import-not-found, unused-ignore]
except ImportError:
    tl: Any = None

    def jit(function: Any = None, **_: Any) -> Any:
        """What ``triton.jit`` is where there is no Triton: nothing."""
        return function if function is not None else jit
else:
    jit, tl = triton.jit, triton.language

_compiling: list[bool] = []


@functools.cache
def has_triton() -> bool:
    """Whether kernels can be compiled here."""
    return importlib.util.find_spec("triton") is not None


def interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels, on any device."""
    return has_triton() and os.environ.get("TRITON_INTERPRET") == "1"


def version() -> str:
    """Triton's version."""
    return str(getattr(triton, "__version__", "")) if has_triton() else "none"


@functools.cache
def processors(device: torch.device) -> int:
    """How many multiprocessors a GPU has; a few for the interpreter."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 3


@functools.cache
def has_descriptors() -> bool:
    """Whether blocks of tensors can be fetched by the copy engine: Triton that knows how, on Hopper or later."""
    known = has_triton() and importlib.util.find_spec("triton.tools.tensor_descriptor") is not None
    if interpreted():
        return known
    return known and torch.cuda.is_available() and torch.cuda.get_device_capability()[0] >= 9


def fetchable(*tensors: Tensor) -> bool:
    """Whether the copy engine can read these: it wants rows that are whole, and begin at multiples of 16 bytes."""
    return has_descriptors() and all(
        t.stride(-1) == 1 and t.data_ptr() % 16 == 0 and all(n * t.element_size() % 16 == 0 for n in t.stride()[:-1])
        for t in tensors
    )


def described(tensor: Tensor, block: Sequence[int]) -> Any:
    """A tensor as the copy engine reads it, in blocks of this shape; what lies outside is zero."""
    from triton.tools.tensor_descriptor import TensorDescriptor  # type: ignore[import-not-found, unused-ignore]

    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), list(block))


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """Run a kernel, or only have it compiled inside :func:`together`."""
    if _compiling:
        kernel.warmup(*args, grid=grid, **options)
    else:
        kernel[grid](*args, **options)


@contextmanager
def together(threads: int | None = None) -> Iterator[None]:
    """Kernels launched inside are compiled side by side and do not run; those that cannot be compiled are left out.

    Only where :func:`compiles_together` says so.
    """
    with (
        ThreadPoolExecutor(threads or min(8, os.cpu_count() or 1)) as pool,
        triton.AsyncCompileMode(pool, ignore_errors=True),
    ):
        _compiling.append(True)
        try:
            yield
        finally:
            _compiling.pop()


def compiles_together() -> bool:
    """Whether :func:`together` compiles anything."""
    return has_triton() and not interpreted() and hasattr(triton, "AsyncCompileMode")
