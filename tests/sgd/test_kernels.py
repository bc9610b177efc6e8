"""The way of the GPU kernels (factors kept narrow, nothing unfolded) gives the same norms and sums.

Here, without a GPU, each kernel is replaced by what it stands for; `gpu_harness` runs the kernels themselves.
"""

from __future__ import annotations

import pytest
import torch
from tests.sgd import zoo, zoo_more
from tests.sgd.harness import TOLERANCE, build, compare
from tests.sgd.operations import OPERATIONS

from tacit.sgd import kernels, weighted

assert zoo_more

CASES = {label: builder for label, (name, builder) in OPERATIONS.items() if name in ("conv2d", "linear", "matmul")}
SLOW = ("wrn-groupnorm", "vit-class-token", "gpt-tied-large-vocabulary")
CASES |= {name: zoo.ZOO[name][1] for name in ("cnn", *SLOW)}


@pytest.fixture
def kernels_on_cpu(monkeypatch):
    """float32 factors take the way that narrow ones take on a GPU."""
    monkeypatch.setattr(kernels, "tf32", lambda t, convolution=False: t.dtype == torch.float32 and not convolution)
    monkeypatch.setattr(kernels, "to_tf32", lambda t: t)
    monkeypatch.setattr(kernels, "multiplies_convolutions", lambda t: t.dtype == torch.float32)


@pytest.mark.parametrize("case", [pytest.param(c, marks=[pytest.mark.slow] * (c in SLOW)) for c in CASES])
def test_factors_that_kernels_multiply_give_the_same_norms_and_sums(case, kernels_on_cpu):
    for clipping in ("flat", "per_layer"):
        assert compare(build(CASES[case], torch.float32), clipping).worst <= TOLERANCE[torch.float32]


@pytest.mark.parametrize(("tokens", "p", "q"), [(5, 40, 30), (40, 12, 9), (70, 33, 20)])
def test_each_kernel_is_what_it_says(tokens, p, q):
    torch.manual_seed(0)
    left, right, scale = torch.randn(3, tokens, p), torch.randn(3, tokens, q), torch.rand(3)
    product = torch.einsum("btp,btq->bpq", left.double(), right.double())
    squared = product.square().sum((1, 2))
    gram = kernels.gram_norms(left, right).double()
    assert torch.allclose(gram[:, 0], squared, rtol=1e-5)
    assert torch.allclose(gram[:, 1], left.double().square().sum((1, 2)), rtol=1e-5)
    assert torch.allclose(kernels.product_norms(left, right).double(), squared, rtol=1e-5)
    wanted = torch.tensordot(scale.double(), product, 1)
    assert torch.allclose(kernels.weighted_product(left, right, scale).double(), wanted, rtol=1e-4, atol=1e-4)
    assert torch.allclose(weighted.scaled_sum(left, right, scale).double(), wanted, rtol=1e-4, atol=1e-4)


def test_rounding_to_tf32_keeps_ten_bits_and_what_is_not_finite():
    x = torch.randn(1000) * torch.logspace(-30, 30, 1000)
    rounded = kernels.to_tf32(x)
    assert ((rounded - x).abs() <= 2.0**-11 * x.abs()).all()
    assert torch.equal(kernels.to_tf32(rounded), rounded)
    assert not torch.isfinite(kernels.to_tf32(torch.tensor([torch.nan, torch.inf, -torch.inf]))).any()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("tokens", "p", "q"), [(5, 40, 30), (200, 130, 72), (300, 96, 257), (1025, 64, 768)])
def test_the_kernels_themselves_on_a_gpu(tokens, p, q):
    torch.manual_seed(0)
    left, right = (torch.randn(3, tokens, n, device="cuda").to(torch.bfloat16) for n in (p, q))
    scale = torch.rand(3, device="cuda")
    product = torch.einsum("btp,btq->bpq", left.double(), right.double())
    squared = product.square().sum((1, 2))
    gram = kernels.gram_norms(left, right).double()
    assert torch.allclose(gram[:, 0], squared, rtol=1e-4)
    assert torch.allclose(gram[:, 2], right.double().square().sum((1, 2)), rtol=1e-4)
    assert torch.allclose(kernels.product_norms(left, right).double(), squared, rtol=1e-4)
    wanted = torch.tensordot(scale.double(), product, 1)
    found = kernels.weighted_product(left, right, scale).double()
    assert (found - wanted).norm() <= 2e-5 * wanted.norm()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    ("batch", "tokens", "p", "q"),
    [(3, 64, 64, 64), (32, 256, 768, 768), (7, 197, 136, 1032), (1, 2048, 256, 512), (300, 33, 128, 264)],
)
def test_scaled_sums_on_a_gpu_are_exact_and_the_same_every_time(batch, tokens, p, q):
    torch.manual_seed(0)
    left, right = (torch.randn(batch, tokens, n, device="cuda").to(torch.bfloat16) for n in (p, q))
    scale = 10.0 ** -torch.randint(0, 9, (batch, 2), device="cuda").float()[:, 1]  # one of several groups
    left[batch // 2] = 0  # a masked example
    wanted = torch.einsum("b,btp,btq->pq", scale.double(), left.double(), right.double())
    found = weighted.scaled_sum(left, right, scale)
    assert (found.double() - wanted).norm() <= 3e-6 * wanted.norm()
    assert all(torch.equal(found, weighted.scaled_sum(left, right, scale)) for _ in range(3))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("dtype", "exact", "tolerance"), [(torch.float32, True, 1e-5), (torch.bfloat16, False, 1e-4)])
@pytest.mark.parametrize(("channels", "rows", "stride", "dilation"), [(3, 16, 1, 1), (16, 40, 2, 1), (64, 64, 1, 2)])
def test_the_convolution_kernels_themselves_on_a_gpu(dtype, exact, tolerance, channels, rows, stride, dilation):
    torch.manual_seed(0)
    x = torch.randn(4, channels, 13, 13, device="cuda").to(dtype)
    side = (13 - 2 * dilation - 1) // stride + 1
    x = x[:, :, : (side - 1) * stride + 2 * dilation + 1, : (side - 1) * stride + 2 * dilation + 1].contiguous()
    grad = torch.randn(4, rows, side, side, device="cuda").to(dtype)
    scale = torch.rand(4, 3, device="cuda")[:, 1]  # a column: the factors of one of several groups
    patches = x.double().unfold(2, 2 * dilation + 1, stride).unfold(3, 2 * dilation + 1, stride)
    patches = patches[..., ::dilation, ::dilation]
    product = torch.einsum("nohw,nchwij->nocij", grad.double(), patches)
    settings = ([3, 3], [stride] * 2, [dilation] * 2, exact)
    assert torch.allclose(
        kernels.conv_norms(grad, x, *settings).double(), product.square().sum((1, 2, 3, 4)), rtol=tolerance
    )
    wanted = torch.tensordot(scale.double(), product, 1)
    assert (kernels.conv_sum(grad, x, scale, *settings).double() - wanted).norm() <= tolerance * wanted.norm()
    assert (kernels.conv_products(grad, x, *settings).double() - product).norm() <= tolerance * product.norm()
