"""How is the noise of a training step drawn, so that every process of a run draws the same and nobody else can?

Standard normal fp32 noise is a function of (secret key, step, parameter, element index) only: ChaCha12 words and a
Box-Muller transform, defined in ``stream.py``. However a tensor is split among processes, each element gets the bits
that it would have got in the whole tensor, on CPU and GPU alike.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from tacit.noise import exact, native, sampling, stream
from tacit.noise.keys import Key

if TYPE_CHECKING:
    from tacit.noise.cuda import Many

GENERATOR = "ChaCha12 (cryptographic, 256-bit key) with Box-Muller in binary32"
"""The name for a privacy card."""

_FUSED = (torch.float32, torch.float16, torch.bfloat16)
_CHUNK = 1 << 20  # elements of a temporary, where one is needed

P = ParamSpec("P")
R = TypeVar("R")


def _never_traced(function: Callable[P, R]) -> Callable[P, R]:
    """Keeps torch.compile out: a traced call would fix one step's key, and so its noise, in the compiled code.

    ``torch.compiler.disable`` imports the compiler, which takes a second, so it is called when noise is first drawn.
    """
    guarded: list[Callable[P, R]] = []

    @functools.wraps(function)
    def guard(*args: P.args, **kwargs: P.kwargs) -> R:
        if not guarded:
            guarded.append(torch.compiler.disable(function))
        return guarded[0](*args, **kwargs)

    return guard


@_never_traced
def normal(
    key: Key,
    step: int,
    parameter: int | str,
    shape: int | Sequence[int],
    *,
    offset: int = 0,
    strides: Sequence[int] | None = None,
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """Standard normal fp32 noise for one parameter, or a shard of it, at one step.

    The element at multi-index (i, j, …) of the result is element ``offset + i * strides[0] + j * strides[1] + …`` of
    the parameter's noise. For columns of a (rows, width) matrix, use ``shape=(rows, w), strides=(width, 1),
    offset=first_column``.

    Guarantee:
        For a sum of L2 sensitivity C (under the adjacency for which C was stated), adding ``sigma * C`` times this
        noise approximates the Gaussian mechanism of noise multiplier sigma, under three conditions
        (docs/explanation/tensor-noise.md): the key is secret and ChaCha12 is a pseudo-random function;
        :func:`tail_delta` is added to δ; the arithmetic is binary32 rather than real (for small releases use the exact
        samplers of :mod:`tacit.noise`). Each (key, step, parameter) must serve one release only.

    Args:
        key: The secret key of the run.
        step: The step of the run, at least 0 and below 2^64.
        parameter: The name or number of the parameter.
        shape: The shape of the result, that of the shard.
        offset: The index of the result's first element in the whole parameter (default 0).
        strides: The strides of the whole parameter, one for each dimension of ``shape``. None (default) means a
            contiguous range that begins at ``offset``.
        device: Where the result is made (default ``"cpu"``); every device gives the same bits.

    Returns:
        A float32 tensor of independent standard normal noise.

    Example:
        >>> from tacit.noise import Key, normal
        >>> key = Key(bytes(32))
        >>> whole = normal(key, 7, "layer.weight", (100, 30))
        >>> rows = normal(key, 7, "layer.weight", (50, 30), offset=50 * 30)
        >>> columns = normal(key, 7, "layer.weight", (100, 10), strides=(30, 1), offset=20)
        >>> bool((whole[50:] == rows).all() and (whole[:, 20:] == columns).all())
        True
    """
    sizes = (shape,) if isinstance(shape, int) else tuple(int(size) for size in shape)
    target = torch.device(device)
    _check(sizes, offset, strides)
    _check_eager(target)
    words = key.stream("normal", step, parameter)
    out = torch.empty(sizes, dtype=torch.float32, device=target)
    if out.numel() == 0:
        return out
    if strides is None:
        _fill(words, offset, out.view(-1))
    else:
        _fill_strided(words, offset, out, tuple(int(stride) for stride in strides))
    return out


@_never_traced
def add_normal_(
    tensor: torch.Tensor,
    key: Key,
    step: int,
    parameter: int | str,
    scale: float,
    *,
    offset: int = 0,
    strides: Sequence[int] | None = None,
) -> torch.Tensor:
    """Add ``scale`` times the noise of :func:`normal` to a tensor in place, without a full-size temporary.

    Sums are made in fp32 (in fp64 for an fp64 tensor) and then rounded to the tensor's type.

    Guarantee:
        That of :func:`normal`, under the same conditions, with noise of standard deviation ``scale``: at least that,
        because the scale is rounded up to binary32.

    Args:
        tensor: The private sum, of a floating-point type; it is changed.
        key: The secret key of the run.
        step: The step of the run; each (key, step, parameter) serves one release.
        parameter: The name or number of the parameter.
        scale: The standard deviation of the noise: noise multiplier times sensitivity.
        offset: The index of the tensor's first element in the whole parameter (default 0).
        strides: The strides of the whole parameter, if the tensor is a piece of it that is not contiguous (see
            :func:`normal`); this needs a temporary as large as the piece.

    Returns:
        The tensor that was given.

    Example:
        >>> import torch
        >>> from tacit.noise import Key, add_normal_, normal
        >>> key = Key(bytes(32))
        >>> noisy = add_normal_(torch.ones(1000), key, 0, "bias", 2.0)
        >>> bool((noisy == 1 + 2 * normal(key, 0, "bias", 1000)).all())
        True
    """
    with torch.no_grad():
        if strides is None:
            _add_checked(tensor, key, step, parameter, scale, offset)
        else:
            _check_sum(tensor, scale, offset)
            noise = normal(key, step, parameter, tensor.shape, offset=offset, strides=strides, device=tensor.device)
            wide = torch.promote_types(tensor.dtype, torch.float32)
            factor = scale if tensor.dtype == torch.float64 else _round_up(scale)
            tensor.copy_(tensor.to(wide) + noise.to(wide) * factor)
    return tensor


def _add_checked(tensor: torch.Tensor, key: Key, step: int, parameter: int | str, scale: float, offset: int) -> None:
    _check_sum(tensor, scale, offset)
    words = key.stream("normal", step, parameter)
    _add(words, offset, tensor, scale if tensor.dtype == torch.float64 else _round_up(scale))


@_never_traced
def add_normal_many_(
    tensors: Sequence[torch.Tensor],
    key: Key,
    step: int,
    parameters: Sequence[int | str],
    scale: float | Sequence[float],
    *,
    offsets: Sequence[int] | None = None,
    divisor: float = 1.0,
    into: Sequence[torch.Tensor] | None = None,
) -> None:
    """:func:`add_normal_` for all parameters of a model: the same bits, on a GPU with one launch for all of them.

    Guarantee:
        That of :func:`normal`, under the same conditions, for each tensor with its standard deviation. A tensor whose
        result goes elsewhere (``into``) is scratch: afterwards it may hold the result or, **without noise**, what it
        held before, and must not be released.

    Args:
        tensors: The private sums, of floating-point types; they are changed.
        key: The secret key of the run.
        step: The step of the run; each (key, step, parameter) serves one release.
        parameters: The name or number of each tensor's parameter. No two may be the same unless ``offsets`` are given:
            their noise would be the same where their ranges overlap.
        scale: The standard deviation of the noise, one for all tensors or one for each.
        offsets: The index of each tensor's first element in its whole parameter. None (default) means 0 for all.
        divisor: A public number that the noisy sums are divided by (default 1).
        into: For each tensor the one that gets its result: itself, or one of the same shape and device and of any
            floating type, which overlaps no other tensor of the call. None (default) writes in place.

    Example:
        >>> import torch
        >>> from tacit.noise import Key, add_normal_many_, normal
        >>> key = Key(bytes(32))
        >>> gradients = [torch.zeros(3, 4), torch.zeros(4)]
        >>> add_normal_many_(gradients, key, 0, ["weight", "bias"], 2.0)
        >>> bool((gradients[1] == 2 * normal(key, 0, "bias", 4)).all())
        True
        >>> narrow = torch.empty(4, dtype=torch.bfloat16)
        >>> add_normal_many_([torch.zeros(4)], key, 0, ["bias"], 2.0, into=[narrow])
        >>> bool((narrow == gradients[1].bfloat16()).all())
        True
    """
    targets = tensors if into is None else into
    known = _known[0]
    if known is not None and offsets is None and known.is_same(tensors, targets, parameters, scale, divisor):
        _check_eager(known.many.device)
        with torch.cuda.device(known.many.device):
            known.many.launch(key.streams("normal", step, known.parameters))
        return
    sums = _Sums(tensors, targets, parameters, scale, offsets, divisor)
    sums.add_one_by_one(key, step)
    launches = sums.add_together(key, step)
    moved = sums.copy_to_targets()
    once = len(launches) == 1 and not sums.rest and not moved
    if once and offsets is None and isinstance(scale, int | float):
        _known[0] = _Known(tensors, targets, parameters, scale, divisor, launches[0])


class _Sums:
    """The tensors of one call of :func:`add_normal_many_`, checked, and sorted by how their noise is added."""

    def __init__(
        self,
        tensors: Sequence[torch.Tensor],
        targets: Sequence[torch.Tensor],
        parameters: Sequence[int | str],
        scale: float | Sequence[float],
        offsets: Sequence[int] | None,
        divisor: float,
    ) -> None:
        self.tensors, self.targets, self.parameters, self.divisor = tensors, targets, parameters, divisor
        self.scales = [float(scale)] * len(tensors) if isinstance(scale, int | float) else [float(s) for s in scale]
        self.starts = [0] * len(tensors) if offsets is None else [int(start) for start in offsets]
        self._check_lists(one_each=offsets is None)
        #: Those of one launch, by device and types, and those that are added to one by one.
        self.together: dict[tuple[torch.device, torch.dtype, torch.dtype], list[int]] = {}
        self.rest: list[int] = []
        #: Where each result is made, before it is copied.
        self.places = list(tensors)
        for i, (tensor, target) in enumerate(zip(tensors, targets, strict=True)):
            if tensor.is_cuda and _has_triton() and _fused(tensor) and tensor.numel():
                self.places[i] = target if _fused(target) else tensor
                self.together.setdefault((tensor.device, tensor.dtype, self.places[i].dtype), []).append(i)
            else:
                self.rest.append(i)
        self._check_values()
        # Rounded once for each value, not for each tensor. A tensor in double precision has a scale in it.
        narrow = {value for value, tensor in zip(self.scales, tensors, strict=True) if tensor.dtype != torch.float64}
        self.factors = {value: _round_up(value) for value in narrow}

    def _check_lists(self, *, one_each: bool) -> None:
        """Refuse lists that do not fit together; ``one_each``: no parameter has two tensors."""
        lists = (self.parameters, self.scales, self.starts, self.targets)
        if any(len(some) != len(self.tensors) for some in lists):
            raise ValueError("tensors, parameters, scales, offsets and into must have the same length")
        if one_each and len({(type(p), p) for p in self.parameters}) != len(self.parameters):
            raise ValueError("two tensors have the same parameter name: they would get the same noise")
        if not (math.isfinite(self.divisor) and self.divisor > 0):
            raise ValueError(f"divisor must be positive and finite, not {self.divisor}")
        for tensor, target in zip(self.tensors, self.targets, strict=True):
            if target is not tensor:
                _check_target(tensor, target)

    def _check_values(self) -> None:
        """All before anything is changed, and what depends on the kind of a tensor alone once for each kind: this is
        asked at every step, of every parameter."""
        for value in set(self.scales):
            _check_scale(value)
        for i in [*self.rest, *(chosen[0] for chosen in self.together.values())]:
            _check_sum(self.tensors[i], self.scales[i], self.starts[i])
        for i, start in enumerate(self.starts):
            if start:
                _check(tuple(self.tensors[i].shape), start, None)

    def add_one_by_one(self, key: Key, step: int) -> None:
        """Add noise where no launch serves several tensors, and divide."""
        if not self.rest:
            return
        words = key.streams("normal", step, [self.parameters[i] for i in self.rest])
        with torch.no_grad():
            for own, i in zip(words, self.rest, strict=True):
                tensor, scale = self.tensors[i], self.scales[i]
                _add(own, self.starts[i], tensor, scale if tensor.dtype == torch.float64 else self.factors[scale])
                if self.divisor == 1.0:
                    continue
                if tensor.is_cuda:
                    _divide(tensor, self.divisor)
                else:
                    tensor.div_(self.divisor)

    def add_together(self, key: Key, step: int) -> list[Many]:
        """Add noise to all tensors of a kind in one launch, which also divides; the launches."""
        launches: list[Many] = []
        for (device, _, _), chosen in self.together.items():
            from tacit.noise import cuda

            with torch.cuda.device(device):
                many = cuda.Many(
                    [self.tensors[i] for i in chosen],
                    [self.starts[i] for i in chosen],
                    [self.factors[self.scales[i]] for i in chosen],
                    self.divisor,
                    into=[self.places[i] for i in chosen],
                )
                many.launch(key.streams("normal", step, [self.parameters[i] for i in chosen]))
            launches.append(many)
        return launches

    def copy_to_targets(self) -> bool:
        """Copy results that were not made where they belong; whether there were any."""
        moved = [i for i, target in enumerate(self.targets) if self.places[i] is not target]
        with torch.no_grad():
            for i in moved:
                self.targets[i].copy_(self.places[i])
        return bool(moved)


def _divide(tensor: torch.Tensor, divisor: float) -> None:
    """Divide in place on a GPU, with the bits of a CPU: by a number, it would multiply by the reciprocal instead."""
    wide = torch.promote_types(tensor.dtype, torch.float32)
    tensor.copy_(tensor.to(wide) / torch.full((), divisor, dtype=wide, device=tensor.device))


class _Known:
    """The last call with one launch for everything. A run makes the same call at every step, with the same tensors."""

    def __init__(
        self,
        tensors: Sequence[torch.Tensor],
        targets: Sequence[torch.Tensor],
        parameters: Sequence[int | str],
        scale: float,
        divisor: float,
        many: Many,
    ) -> None:
        self.about = self._describe(tensors, targets)
        # One that is gone may have left its place to another.
        self.those = [weakref.ref(t) for t in (*tensors, *targets)]
        self.parameters, self.scale, self.divisor, self.many = list(parameters), scale, divisor, many

    @staticmethod
    def _describe(tensors: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> list[object]:
        both = (*tensors, *targets)
        return [
            [t.data_ptr() for t in both],
            [t.numel() for t in both],
            [t.dtype for t in both],
            all([t.is_contiguous() for t in both]),
        ]

    def is_same(
        self,
        tensors: Sequence[torch.Tensor],
        targets: Sequence[torch.Tensor],
        parameters: Sequence[int | str],
        scale: float | Sequence[float],
        divisor: float,
    ) -> bool:
        """Whether a call is the same in everything but key and step."""
        both = (*tensors, *targets)
        return (
            (scale, divisor) == (self.scale, self.divisor)
            and list(parameters) == self.parameters
            and len(both) == len(self.those)
            and all([ref() is t for ref, t in zip(self.those, both, strict=True)])
            and self._describe(tensors, targets) == self.about
        )


_known: list[_Known | None] = [None]


def _fused(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() and tensor.dtype in _FUSED


def _check_target(tensor: torch.Tensor, target: torch.Tensor) -> None:
    """Every element of the target is written, and nothing else: it ends with noise wherever it is read."""
    if not target.is_floating_point():
        raise TypeError(f"noise can be written to a floating-point tensor, not to {target.dtype}")
    if target.shape != tensor.shape or target.device != tensor.device:
        raise ValueError(
            f"the result of a tensor of shape {tuple(tensor.shape)} on {tensor.device} cannot be written to one of "
            f"shape {tuple(target.shape)} on {target.device}"
        )


class _KeyedWords:
    """Words of one step as a source for the exact samplers: the same after a resume, unknown without the key."""

    word_bits = 64

    def __init__(self, key: Key, step: int) -> None:
        self._key, self._step, self._used = key, step, 0

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        found = sampling.uniform(self._key, self._step, count, offset=self._used)
        self._used += count
        return found


def add_laplace_many_(tensors: Sequence[torch.Tensor], key: Key, step: int, scale: float) -> None:
    """Add exact Laplace noise to all tensors, in place; on a CPU, for small models.

    Guarantee:
        For tensors of L1 sensitivity Δ together (under the adjacency for which Δ was stated, in the numbers as given)
        the result is (Δ / scale)-DP, with no δ, against anybody who does not know the key and cannot tell ChaCha12 from
        random. The noise is that of :func:`tacit.noise.add_laplace`, so no floating-point bit tells more. Each (key,
        step) must serve one release only, and no sampling by the same key and step.

    Args:
        tensors: The private sums; they are changed.
        key: The secret key of the run.
        step: The step of the run.
        scale: The scale of the noise, above 0.

    Example:
        >>> import torch
        >>> from tacit.noise import Key, add_laplace_many_
        >>> sums = [torch.zeros(3, 4), torch.zeros(4)]
        >>> add_laplace_many_(sums, Key(bytes(32)), 0, scale=2.0)
        >>> bool(all((s != 0).any() for s in sums))
        True
    """
    if not tensors:
        return
    flat = torch.cat([t.detach().double().flatten().cpu() for t in tensors]).numpy()
    noisy = torch.from_numpy(np.asarray(exact.add_laplace(flat, scale, source=_KeyedWords(key, step))))
    with torch.no_grad():
        for tensor, part in zip(tensors, noisy.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(part.view(tensor.shape))


def tail_mass(elements: int) -> float:
    """The probability that any of ``elements`` noise elements fell into the part of the tail that is not resolved.

    With probability 1 - 2^-80 per pair of elements the uniform behind the radius is resolved to a relative cell of
    2^-15 or better; otherwise (radius above 10.5) it may be off by more. By a union bound the whole sequence of draws
    is within this total-variation distance of one without that defect.

    >>> tail_mass(10**9 * 10_000) < 1e-11
    True
    """
    if elements < 0:
        raise ValueError(f"elements must be 0 or more, not {elements}")
    return min(1.0, elements * stream.UNRESOLVED_PAIR)


def tail_delta(elements: int, epsilon: float) -> float:
    """What to add to δ for the part of the tail that tensor noise does not resolve.

    A mechanism within total-variation distance p of an (ε, δ)-DP one is (ε, δ + (1 + e^ε) p)-DP: for neighbouring
    inputs P'(S) <= P(S) + p <= e^ε Q(S) + δ + p <= e^ε (Q'(S) + p) + δ + p. Here p is 2^-80 for each element of noise.

    Args:
        elements: How many elements of noise the whole run draws: parameters times steps.
        epsilon: The ε of the guarantee, 0 or more.

    Returns:
        (1 + e^ε) p, at most 1.

    Raises:
        ValueError: If ``epsilon`` or ``elements`` is negative.

    Example:
        >>> from tacit.noise import tail_delta
        >>> tail_delta(10**9 * 10_000, epsilon=8.0) < 3e-8
        True
    """
    if not epsilon >= 0:
        raise ValueError(f"epsilon must be 0 or more, not {epsilon}")
    mass = tail_mass(elements)
    if mass == 0.0 or epsilon > 700:
        return 0.0 if mass == 0.0 else 1.0
    return min(1.0, (1.0 + math.exp(epsilon)) * mass)


def bernoulli_mask(
    key: Key, step: int, n: int, rate: float, *, offset: int = 0, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """:func:`tacit.noise.sampling.bernoulli_mask` as a torch tensor.

    >>> bernoulli_mask(Key(bytes(32)), 0, 4, 1.0)
    tensor([True, True, True, True])
    """
    return torch.from_numpy(sampling.bernoulli_mask(key, step, n, rate, offset=offset)).to(device)


def backend(device: torch.device | str = "cpu") -> str:
    """Which implementation of the stream serves a device, and why; all give the same bits.

    >>> backend().split(":")[0] in ("native", "numpy")
    True
    """
    if _on_triton(torch.device(device)):
        return "triton"
    return native.load()[1]


def _check(shape: tuple[int, ...], offset: int, strides: Sequence[int] | None) -> None:
    if any(size < 0 for size in shape) or offset < 0:
        raise ValueError(f"shape {shape} and offset {offset} must not be negative")
    if strides is not None and (len(strides) != len(shape) or any(stride < 0 for stride in strides)):
        raise ValueError(f"strides {tuple(strides)} do not fit shape {shape}: one for each dimension, not negative")
    steps = strides if strides is not None else (1,)
    sizes = shape if strides is not None else (math.prod(shape),)
    last = offset + sum(max(size - 1, 0) * step for size, step in zip(sizes, steps, strict=True))
    if last >= 2**62:
        raise ValueError(f"element index {last} is too large")


def _check_scale(scale: float) -> None:
    if not (math.isfinite(scale) and scale >= 0):
        raise ValueError(f"scale must be finite and 0 or more, not {scale}")


def _check_sum(tensor: torch.Tensor, scale: float, offset: int) -> None:
    _check_scale(scale)
    if not tensor.is_floating_point():
        raise TypeError(f"noise can be added to a floating-point tensor, not to {tensor.dtype}")
    _check(tuple(tensor.shape), offset, None)
    _check_eager(tensor.device)


def _check_eager(device: torch.device) -> None:
    """A recorded kernel would repeat one step's noise at every replay, and difference out."""
    if device.type == "cuda" and torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "tensor noise cannot be captured in a CUDA graph: a replay would repeat the same noise. Capture the "
            "gradients only, and add the noise outside of the graph"
        )


def _round_up(scale: float) -> float:
    if scale > float(np.finfo(np.float32).max):
        raise ValueError(f"scale {scale} is too large for fp32")
    rounded = np.float32(scale)
    return float(rounded if float(rounded) >= scale else np.nextafter(rounded, np.float32(np.inf)))


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def _on_triton(device: torch.device) -> bool:
    return device.type == "cuda" and _has_triton()


def _fill(words: stream.Words, offset: int, flat: torch.Tensor, scale: float | None = None) -> None:
    """Writes, or adds scaled, a contiguous range of elements to a flat contiguous tensor."""
    if _on_triton(flat.device) and flat.dtype != torch.float64:
        from tacit.noise import cuda

        with torch.cuda.device(flat.device):
            cuda.fill(words, offset, flat, scale=scale)
        return
    library, _ = native.load()
    if flat.device.type == "cpu" and flat.dtype == torch.float32 and library is not None:
        count, place, threads = flat.numel(), flat.data_ptr(), torch.get_num_threads()
        if threads > 1 and count >= native.PARALLEL_FROM:
            library.normal(words, offset, count, place, scale=scale, threads=threads)
        elif scale is None:
            library.fill(words.tobytes(), offset, 1, 0, count, place, count, 0, 1.0)
        else:
            library.fill(words.tobytes(), offset, 1, 0, count, place, count, 1, scale)
        return
    if flat.device.type == "cpu" and flat.dtype == torch.float32 and scale is None:
        stream.fill_normal(words, offset, flat.numpy())
        return
    for start in range(0, flat.numel(), _CHUNK):
        piece = flat[start : start + _CHUNK]
        near = flat.device if _on_triton(flat.device) else torch.device("cpu")
        noise = torch.empty(piece.numel(), dtype=torch.float32, device=near)
        _fill(words, offset + start, noise)
        noise = noise.to(flat.device)
        if scale is None:
            piece.copy_(noise)
        else:
            # Multiplied, then added, each rounded: the order of the compiled code and of the GPU kernel.
            wide = torch.promote_types(piece.dtype, torch.float32)
            piece.copy_(piece.to(wide) + noise.to(wide) * scale)


def _fill_strided(words: stream.Words, offset: int, out: torch.Tensor, strides: tuple[int, ...]) -> None:
    """Fills a contiguous tensor whose elements lie at the given strides in the whole parameter."""
    # Trailing dimensions that are contiguous in the whole parameter form runs.
    run, dimension = 1, len(strides)
    while dimension > 0 and (out.shape[dimension - 1] == 1 or strides[dimension - 1] == run):
        dimension -= 1
        run *= out.shape[dimension]
    if dimension == 0:
        _fill(words, offset, out.view(-1))
        return
    rows, stride = out.shape[dimension - 1], strides[dimension - 1]
    flat = out.view(-1, rows, run)
    outer = np.zeros(1, dtype=np.int64)
    for size, step in zip(out.shape[: dimension - 1], strides[: dimension - 1], strict=True):
        outer = (outer[:, None] + np.arange(size) * step).reshape(-1)
    library, _ = native.load()
    for block, start in zip(flat, outer.tolist(), strict=True):
        if _on_triton(out.device):
            from tacit.noise import cuda

            with torch.cuda.device(out.device):
                cuda.fill(words, offset + start, block, rows=rows, stride=stride)
        elif out.device.type == "cpu" and library is not None:
            library.normal(words, offset + start, run, block.data_ptr(), rows=rows, stride=stride)
        else:
            for row in range(rows):
                _fill(words, offset + start + row * stride, block[row])


def _add(words: stream.Words, offset: int, tensor: torch.Tensor, scale: float) -> None:
    if tensor.numel() == 0:
        return
    if tensor.is_contiguous():
        _fill(words, offset, tensor.view(-1), scale)
    elif tensor.numel() <= _CHUNK:
        copy = tensor.contiguous()
        _fill(words, offset, copy.view(-1), scale)
        tensor.copy_(copy)
    elif tensor.shape[0] == 1:
        _add(words, offset, tensor[0], scale)
    else:
        # A large tensor in another memory order goes slice by slice; each slice is a range of the logical order.
        middle = tensor.shape[0] // 2
        _add(words, offset, tensor[:middle], scale)
        _add(words, offset + tensor[:middle].numel(), tensor[middle:], scale)
