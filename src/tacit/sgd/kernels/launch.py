"""How are Triton kernels written, compiled and launched, where there is Triton? The one place that imports it.

Without Triton the modules with kernels can be imported all the same, and compute the same with torch.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from tacit.sgd.torch_compat import transformation, watchers

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
P = ParamSpec("P")
R = TypeVar("R")


class Operator(Generic[P, R]):
    """A function that is one node in a traced program, and a plain call where nothing traces it.

    torch's own way to a custom operator costs the host thirty times the call. So it is taken only where somebody
    watches: a mode below autograd, a compiler, a transformation, or a tensor of another class.

    >>> @as_operator("tacit::doubled")
    ... def doubled(x: Tensor) -> Tensor:
    ...     return x + x
    >>> doubled(torch.ones(1))
    tensor([2.])
    """

    def __init__(self, name: str, function: Callable[P, R]) -> None:
        self.function = function
        self.traced = torch.library.custom_op(name, function, mutates_args=())
        self.register_fake: Callable[[Any], Any] = self.traced.register_fake
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if watchers() or torch.compiler.is_compiling() or transformation() is not None or not _all_plain(args):
            return self.traced(*args, **kwargs)  # type: ignore[no-any-return]
        return self.function(*args, **kwargs)


def _all_plain(values: Sequence[Any]) -> bool:
    """Whether the tensors among some values are of torch's own classes."""
    return all(
        type(v) in (Tensor, nn.Parameter)
        or (_all_plain(v) if isinstance(v, list | tuple) else not isinstance(v, Tensor))
        for v in values
    )


def as_operator(name: str) -> Callable[[Callable[P, R]], Operator[P, R]]:
    """Make a function an :class:`Operator` of this name (``tacit::…``)."""

    def made(function: Callable[P, R]) -> Operator[P, R]:
        return Operator(name, function)

    return made


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
