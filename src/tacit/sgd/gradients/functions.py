"""What does a torch function do, as far as its name tells? And how is one opened that is made of others?

An :class:`Operation` and sets of names, for :class:`~tacit.sgd.gradients.capture.Capture`: whose result does not depend
on the values that went in, which select elements of their input or cast it, which put elements into places that the
data decide, where data leave torch.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tacit.sgd.torch_compat import is_wrapped, storage_id, unwrapped


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# The value of the result does not depend on the value of the argument.
CONSTANT = _words(
    "zeros_like ones_like empty_like full_like rand_like randn_like randint_like new_zeros new_ones new_empty "
    "new_full new_tensor new_empty_strided size dim numel stride is_contiguous is_floating_point is_complex "
    "element_size get_device storage_offset ndimension nelement __len__ has_names "
    "requires_grad_ retain_grad register_hook is_signed is_pinned is_inference"
)

# A derived value made by these holds a selection of the parameter's own elements, moved but not changed.
SELECTING = _words(
    "view reshape t transpose permute movedim moveaxis swapaxes swapdims expand expand_as broadcast_to repeat "
    "tile repeat_interleave chunk split split_with_sizes tensor_split unbind select narrow __getitem__ "
    "index_select embedding unsqueeze squeeze flatten unflatten ravel contiguous clone adjoint flip roll diagonal "
    "unfold view_as reshape_as T mT H mH"
)
CASTING = _words("to float double bfloat16 half type type_as")

JOINING = _words("cat concat concatenate")

# With an index that depends on the data these may put elements of one example where another's were in the last batch.
REARRANGING = _words(
    "__getitem__ __setitem__ index_select gather take take_along_dim index_put index_put_ index_add index_add_ "
    "index_copy index_copy_ scatter scatter_ scatter_add scatter_add_ scatter_reduce scatter_reduce_ "
    "masked_select masked_scatter masked_scatter_ repeat_interleave unique unique_consecutive "
    "_pack_padded_sequence index_fill index_fill_ index_reduce nonzero"
)
SORTING = _words("sort msort topk kthvalue argsort")
PACKING = _words("index_select _pack_padded_sequence")
# The data leave torch here; what comes back as an index may depend on them unseen. So do they wherever a function gives
# anything but tensors, unless it tells about the tensor and not about its values.
ESCAPES = _words("tolist numpy __array__ __dlpack__ __cuda_array_interface__ __set__ data_ptr untyped_storage storage")
ABOUT = _words(
    "type is_same_size is_set_to is_shared is_conj is_neg is_distributed is_tensor is_storage result_type can_cast "
    "__dlpack_device__ names is_coalesced dense_dim sparse_dim __hash__ _is_view backward dtype device shape"
)

# The size of what comes out tells something of the values that went in.
SIZED = _words("nonzero argwhere unique unique_consecutive masked_select bincount one_hot repeat_interleave")
# These bring elements along a dimension together, by the place of that dimension among the arguments.
_ALONG = {
    1: "sum mean amax amin max min any all prod std var std_mean var_mean median nanmedian mode logsumexp nansum "
    "nanmean cumsum cumprod cummax cummin logcumsumexp softmax log_softmax softmin sort argsort argmax argmin "
    "count_nonzero flip",
    2: "norm quantile nanquantile topk kthvalue roll diff normalize vector_norm renorm",
}
ALONG = {name: place for place, names in _ALONG.items() for name in names.split()}

EMBEDDING = ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")
_GETTERS = {
    getattr(torch.Tensor, name).__get__: name for name in ("T", "mT", "H", "mH", "data", "grad", "real", "imag")
}


@dataclass(frozen=True)
class Operation:
    """What the name of a torch function tells about it, and whether it is torch's own or somebody else's."""

    name: str
    from_torch: bool
    writes: bool

    @staticmethod
    def of(func: Callable[..., Any]) -> Operation:
        """The operation of this function; the name is one, whether it was called as a function, a method or an
        operator. Of torch's own functions it is remembered in :data:`KNOWN`."""
        name = _GETTERS[func] if func in _GETTERS else getattr(func, "__name__", str(func))
        module = getattr(func, "__module__", None)
        from_torch = module is None or module == "torch" or module.startswith("torch.")
        found = Operation(name, from_torch, _writes(name))
        if from_torch:
            KNOWN[func] = found
        return found


class TorchCall(NamedTuple):
    """One call of a torch function, with all tensors among its arguments."""

    func: Callable[..., Any]
    name: str
    operation: Operation
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: list[Tensor]


@dataclass(eq=False)
class Derived:
    """A value computed from trainable parameters alone.

    ``chain`` replays the selection of elements of one parameter (empty for the parameter itself), and is ``None`` when
    the value is anything but such a selection.
    """

    tensor: Tensor
    params: frozenset[int]
    chain: tuple[tuple[Callable[..., Any], str, tuple[Any, ...], dict[str, Any], int | None], ...] | None


#: Operations by function, for those that ask at every operation of every step.
KNOWN: dict[Callable[..., Any], Operation] = {}


def _writes(name: str) -> bool:
    """Whether a function of this name writes into its first argument."""
    if name == "__setitem__":
        return True
    if name.startswith("__i") and name.endswith("__"):
        return name not in ("__invert__", "__index__", "__int__")
    return name.endswith("_") and not name.endswith("__")


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # as torch has it
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention written out, so that a learned bias or query is seen where it is added or multiplied.

    Fused attention with dropout cannot be run again to ask for its derivative: it would drop others.
    """
    if enable_gqa:
        key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
    scores = (query * (query.shape[-1] ** -0.5 if scale is None else scale)) @ key.transpose(-2, -1)
    if is_causal:
        before = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~before, float("-inf"))
    if attn_mask is not None:
        hidden = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, float("-inf")) if hidden else scores + attn_mask
    nothing = (scores == float("-inf")).all(-1, keepdim=True)  # who sees nothing gets zeros
    weights = scores.masked_fill(nothing, 0.0).softmax(-1).masked_fill(nothing, 0.0)
    if dropout_p > 0:
        weights = torch.nn.functional.dropout(weights, dropout_p)
    return weights @ value


#: What composite functions are made of, by function: written out above, or copies of their own code.
OPENED: dict[Callable[..., Any], Callable[..., Any]] = {torch.nn.functional.scaled_dot_product_attention: attention}


def opened(func: Callable[..., Any]) -> Callable[..., Any] | None:
    """A composite torch function, with its own dispatch to the mode switched off so that what it calls is seen.

    Such a function first asks ``has_torch_function`` and hands itself to the mode; run under the mode it would do so
    for ever. The copy made here has the same code and looks that question up in globals of its own, where the answer
    is no.
    """
    if not isinstance(func, types.FunctionType) or not (KNOWN.get(func) or Operation.of(func)).from_torch:
        return None
    if func not in OPENED:
        scope = dict(func.__globals__)
        for question in ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"):
            scope[question] = lambda *_: False
        copy = types.FunctionType(func.__code__, scope, func.__name__, func.__defaults__, func.__closure__)
        copy.__kwdefaults__ = func.__kwdefaults__
        OPENED[func] = copy
    return OPENED[func]


def only_selects(call: TorchCall) -> bool:
    """Whether an embedding is a mere selection: a padding row gets no gradient, and frequencies scale the others."""
    functional = call.func is nn.functional.embedding
    names = EMBEDDING if functional else ("weight", "indices", "padding_idx", "scale_grad_by_freq", "sparse")
    options = {**dict(zip(names, call.args, strict=False)), **call.kwargs}
    padding = options.get("padding_idx")
    unpadded = padding is None if functional else padding in (None, -1)
    return unpadded and options.get("max_norm") is None and not options.get("scale_grad_by_freq")


class Placeholder:
    """Stands for the derived value among the recorded arguments of an operation."""


HERE = Placeholder()


def storage_of(tensor: Tensor) -> int:
    """The memory that a tensor lies in."""
    while is_wrapped(tensor):
        tensor = unwrapped(tensor)
    return storage_id(tensor.untyped_storage())
