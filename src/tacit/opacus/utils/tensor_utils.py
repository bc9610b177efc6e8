"""What are the norms of examples, and which inputs does a convolution meet? Helpers that code for Opacus imports.

Nothing here takes part in private training: they are for rules and diagnostics of one's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F


def calc_sample_norms(named_params: Iterable[tuple[str, Tensor]], *, flat: bool = True) -> list[Tensor]:
    """The norm of every example in each of some tensors, or (``flat``) in all of them together.

    >>> values = [("a", torch.tensor([[3.0, 0.0], [1.0, 2.0]])), ("b", torch.tensor([[4.0], [2.0]]))]
    >>> calc_sample_norms(values)
    [tensor([5., 3.])]
    """
    norms = [calc_sample_norms_one_layer(value) for _, value in named_params]
    return [torch.stack(norms).norm(dim=0)] if flat else norms


def calc_sample_norms_one_layer(param: Tensor) -> Tensor:
    """The norm of every example, which are in the first dimension."""
    return param.flatten(1).norm(dim=1) if param.dim() > 1 else param.abs()


def sum_over_all_but_batch_and_last_n(tensor: Tensor, n_dims: int) -> Tensor:
    """The sum over what lies between the first dimension and the last ``n_dims``.

    >>> sum_over_all_but_batch_and_last_n(torch.ones(1, 2, 3, 4, 5), n_dims=2).shape
    torch.Size([1, 4, 5])
    """
    between = tuple(range(1, tensor.dim() - n_dims))
    return tensor.sum(dim=between) if between else tensor


def unfold2d(
    input: Tensor,
    *,
    kernel_size: Sequence[int],
    padding: str | Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    """The inputs of a two-dimensional convolution by place: (batch, channels * size of the kernel, places).

    >>> unfold2d(torch.ones(2, 3, 5, 5), kernel_size=(3, 3), padding="same", stride=(1, 1), dilation=(1, 1)).shape
    torch.Size([2, 27, 25])
    """
    return _unfold(input, kernel_size, padding, stride, dilation)


def unfold3d(
    tensor: Tensor,
    *,
    kernel_size: int | Sequence[int],
    padding: str | int | Sequence[int] = 0,
    stride: int | Sequence[int] = 1,
    dilation: int | Sequence[int] = 1,
) -> Tensor:
    """The same for three dimensions.

    >>> unfold3d(torch.ones(2, 3, 4, 4, 4), kernel_size=2).shape
    torch.Size([2, 24, 27])
    """
    if tensor.dim() != 5:
        raise ValueError(f"a tensor of (batch, channels, depth, height, width), not of {tensor.dim()} dimensions")
    return _unfold(tensor, kernel_size, padding, stride, dilation)


def _unfold(
    tensor: Tensor,
    kernel_size: int | Sequence[int],
    padding: str | int | Sequence[int],
    stride: int | Sequence[int],
    dilation: int | Sequence[int],
) -> Tensor:
    dims = tensor.dim() - 2
    kernel, step, gap = (
        (value,) * dims if isinstance(value, int) else tuple(value) for value in (kernel_size, stride, dilation)
    )
    if padding == "same":  # one more behind than before, where the number is odd
        around = [(g * (k - 1) // 2, -(g * (1 - k) // 2)) for k, g in zip(kernel, gap, strict=True)]
    elif isinstance(padding, str):
        around = [(0, 0)] * dims
    else:
        around = [(p, p) for p in ((padding,) * dims if isinstance(padding, int) else padding)]
    windows = F.pad(tensor, [p for pair in reversed(around) for p in pair])
    for dim, (k, s, g) in enumerate(zip(kernel, step, gap, strict=True), start=2):
        # every window of its full width, and of that each g-th
        windows = windows.unfold(dim, g * (k - 1) + 1, s)[..., ::g]
    # (batch, channels, places of each dimension, kernel of each dimension)
    order = [0, 1, *range(2 + dims, 2 + 2 * dims), *range(2, 2 + dims)]
    places = windows.shape[2 : 2 + dims].numel()
    return windows.permute(order).reshape(len(tensor), -1, places)


__all__ = [
    "calc_sample_norms",
    "calc_sample_norms_one_layer",
    "sum_over_all_but_batch_and_last_n",
    "unfold2d",
    "unfold3d",
]
