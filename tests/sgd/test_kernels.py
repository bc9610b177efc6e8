"""The way of the GPU kernels (factors kept narrow, nothing unfolded) gives the same norms and sums.

Here, without a GPU, each kernel is replaced by what it stands for; `gpu_harness` runs the kernels themselves.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.sgd import zoo, zoo_more
from tests.sgd.harness import TOLERANCE, build, compare
from tests.sgd.operations import OPERATIONS
from torch import nn

from tacit import sgd
from tacit.sgd.gradients.contributions import Group, OneHot, Outer
from tacit.sgd.gradients.rules import convolution
from tacit.sgd.kernels import autotune, convolutions, products, weighted

assert zoo_more

CASES = {label: builder for label, (name, builder) in OPERATIONS.items() if name in ("conv2d", "linear", "matmul")}
SLOW = ("wrn-groupnorm", "vit-class-token", "gpt-tied-large-vocabulary")
CASES |= {name: zoo.ZOO[name][1] for name in ("cnn", *SLOW)}


@pytest.fixture
def kernels_on_cpu(monkeypatch):
    """float32 factors take the way that narrow ones take on a GPU."""
    monkeypatch.setattr(products, "DEVICES", {"cpu"})
    monkeypatch.setattr(products, "tf32", lambda t, convolution=False: t.dtype == torch.float32 and not convolution)
    monkeypatch.setattr(products, "to_tf32", lambda t: t)
    monkeypatch.setattr(products, "multiplies_convolutions", lambda t: t.dtype == torch.float32)
    monkeypatch.setattr(products, "sums_tokens", lambda t: t.dtype == torch.float32)


@pytest.mark.parametrize("case", [pytest.param(c, marks=[pytest.mark.slow] * (c in SLOW)) for c in CASES])
def test_factors_that_kernels_multiply_give_the_same_norms_and_sums(case, kernels_on_cpu):
    for clipping in ("flat", "per_layer"):
        assert compare(build(CASES[case], torch.float32), clipping).worst <= TOLERANCE[torch.float32]


def agree(left, right, scale):
    """Norms and sums of these factors in every way that can be taken here."""
    product = torch.einsum("btp,btq->bpq", left.double(), right.double())
    lengths = left.double().norm(dim=2) * right.double().norm(dim=2)
    wanted = torch.stack([product.square().sum((1, 2)), lengths.square().sum(1), lengths.sum(1)], 1)
    total = torch.tensordot(scale.double(), product, 1)
    norms, sums = products.norm_ways(left, right), weighted.sum_ways(left, right)
    batch, tokens, _ = left.shape
    cut = (tokens + batch * tokens // 128) * autotune.CUT_OFF  # what one program adds up
    for name in (None, *norms):
        with autotune.forced(**({} if name is None else {"norms": name})):
            assert torch.allclose(products.factor_norms(left, right).double(), wanted, rtol=1e-4), name
    for name in (None, *(sums if weighted.fits(left, right) or not left.is_cuda else ())):
        with autotune.forced(**({} if name is None else {"sum": name})):
            found = weighted.scaled_sum(left, right, scale).double()
            exact = 3e-6 if weighted.fits(left, right) and name != "two products" else 2e-5
            assert (found - total).norm() <= (exact + cut) * total.norm(), name
            assert torch.equal(found, weighted.scaled_sum(left, right, scale).double()), name
    return {*norms, *sums}


@pytest.mark.parametrize(("tokens", "p", "q"), [(5, 40, 30), (40, 12, 9), (70, 33, 20)])
def test_every_way_to_norms_and_sums_is_exact(tokens, p, q):
    torch.manual_seed(0)
    left, right, scale = torch.randn(3, tokens, p), torch.randn(3, tokens, q), torch.rand(3) + 0.01
    assert "two products" in agree(left, right, scale)


def test_a_long_gram_matrix_is_made_in_bands_from_the_diagonal_on():
    torch.manual_seed(0)
    left, right = torch.randn(3, 90, 12), torch.randn(3, 90, 10)
    one, four = (products._gram_by_products(left, right, bands) for bands in (1, 4))
    assert torch.allclose(one, four, rtol=1e-5)
    assert torch.allclose(one, products.factor_norms(left, right), rtol=1e-5)


def test_a_tied_head_in_bf16_is_bounded_with_the_rounding_of_its_sum():
    """The two parts of a scaled narrow factor leave out 2^-17 of it, and the clip factor has room for that."""
    torch.manual_seed(0)
    left, right = (torch.randn(2, 1, 9, n).bfloat16() for n in (400, 100))
    outer = Outer(left, right, (400, 100), (0, 1), by_kernel=True)
    lookup = OneHot(torch.randint(400, (2, 9)), torch.randn(2, 9, 100), 400)
    group = Group.of([outer, lookup], torch.Size((400, 100)))
    size = outer.lengths().sum((1, 2)).square()
    assert (group.norms().product >= products.SPLIT_ERROR[torch.bfloat16] ** 2 * size).all()


def test_rounding_to_tf32_keeps_ten_bits_and_what_is_not_finite():
    x = torch.randn(1000) * torch.logspace(-30, 30, 1000)
    rounded = products.to_tf32(x)
    assert ((rounded - x).abs() <= 2.0**-11 * x.abs()).all()
    assert torch.equal(products.to_tf32(rounded), rounded)
    assert not torch.isfinite(products.to_tf32(torch.tensor([torch.nan, torch.inf, -torch.inf]))).any()


def mean_square(model, batch):
    return model(batch[0]).square().mean((1, 2, 3))


class Twice(nn.Module):
    """A convolution that is used twice, and one each with a stride and few positions."""

    def __init__(self):
        super().__init__()
        self.same, self.down, self.last = (
            nn.Conv2d(8, 8, 3, 1, 1),
            nn.Conv2d(8, 16, 3, 2, 1),
            nn.Conv2d(16, 40, 3, 2, 1),
        )
        self.out = nn.Linear(160, 3)

    def forward(self, x):
        x = F.relu(self.down(self.same(F.relu(self.same(x)))))
        return self.out(self.last(x).flatten(1))


def test_convolutions_by_kernels_make_no_patches(kernels_on_cpu, monkeypatch):
    """They would take many times the room of the image; also a bound on rounding asks for sizes only."""
    made = []
    real = convolution.patches
    monkeypatch.setattr(convolution, "patches", lambda *a: made.append(1) or real(*a))
    torch.manual_seed(0)
    sgd.clipped_grad(Twice().down, mean_square, (torch.randn(3, 8, 8, 8), torch.zeros(3)), 0.1, check="never")
    few = nn.Conv2d(16, 40, 3, 2, 1)  # few positions: by Gram matrices, with a bound on their rounding
    sgd.clipped_grad(few, mean_square, (torch.randn(3, 16, 4, 4), torch.zeros(3)), 0.1, check="never")
    assert not made


@pytest.mark.parametrize("size", [1.0, 1e-12])
def test_convolutions_in_tf32_are_clipped_as_the_numbers_in_half_precision_that_stand_for_them(size, monkeypatch):
    """With eleven digits, those of tf32, however small the gradients are."""
    monkeypatch.setattr(products, "DEVICES", {"cpu"})
    monkeypatch.setattr(products, "tf32", lambda t, convolution=False: t.dtype == torch.float32 and convolution)
    monkeypatch.setattr(products, "multiplies_convolutions", lambda t: t.dtype == torch.float32)
    halves = []
    halved = convolutions.halved
    monkeypatch.setattr(convolutions, "halved", lambda *t: halves.append(1) or halved(*t))
    torch.manual_seed(0)
    model, x, y = Twice(), torch.randn(5, 8, 8, 8), torch.randint(3, (5,))

    def loss(model, batch):
        return size * F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    found = sgd.clipped_grad(model, loss, (x, y), 0.1 * size)
    assert halves
    wanted = sgd.clipped_grad(model.double(), loss, (x.double(), y), 0.1 * size)
    assert torch.allclose(found.norms.double(), wanted.norms, rtol=2.0**-9)
    off = sum((found.sums[n] - wanted.sums[n]).square().sum() for n in wanted.sums) ** 0.5
    assert off <= 2.0**-9 * sum(t.square().sum() for t in wanted.sums.values()) ** 0.5


def test_half_precision_in_units_of_each_example_keeps_eleven_digits_whatever_the_size():
    torch.manual_seed(0)
    x = torch.randn(5, 3, 4, 4) * torch.tensor([1e-30, 1e-7, 1.0, 1e20, 0.0]).view(5, 1, 1, 1)
    (half,), (units,) = convolutions.halved(x)
    assert half.dtype == torch.float16
    assert torch.equal(units, 2.0 ** units.log2().round())
    back = half.float() * units.view(5, 1, 1, 1)
    assert ((back - x).abs() <= 2.0**-11 * x.abs() + 2.0**-38 * x.abs().amax((1, 2, 3), keepdim=True)).all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    ("batch", "tokens", "p", "q"),
    [(3, 5, 40, 30), (3, 200, 130, 72), (2, 300, 96, 264), (2, 1100, 768, 512), (3, 64, 64, 64), (32, 256, 768, 768),
     (7, 197, 136, 1032), (1, 2048, 256, 512), (300, 33, 128, 264),
     (70_000, 5, 40, 30), (70_000, 32, 64, 64),  # more examples than a grid has rows
     (4, 64, 6784, 640)],  # one tile more than programs (132 processors): its few parts are dealt to many
)  # fmt: skip
def test_every_way_on_a_gpu_is_exact_and_the_same_every_time(batch, tokens, p, q):
    torch.manual_seed(0)
    left, right = (torch.randn(batch, tokens, n, device="cuda").to(torch.bfloat16) for n in (p, q))
    scale = 10.0 ** -torch.randint(0, 9, (batch, 2), device="cuda").float()[:, 1]  # one of several groups
    agree(left, right, scale)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_an_example_of_more_than_two_billion_numbers_is_read_to_its_end():
    """Logits of 46,400 tokens: places in them do not fit into 32 bits."""
    if torch.cuda.mem_get_info()[0] < 90 << 30:
        pytest.skip("needs 90 GiB")
    torch.manual_seed(0)
    tokens = 46_400
    left, right = (torch.randn(1, tokens, n, device="cuda", dtype=torch.bfloat16) for n in (64, tokens))
    right[:, tokens // 2 :] *= 4  # what is read at a wrong place is seen
    agree(left, right, torch.ones(1, device="cuda"))
    wanted = products.factor_norms(left, right)
    for name, tile in products.gram_tiles(left, right).items():
        assert torch.allclose(products._gram(left, right, **tile), wanted, rtol=1e-3), name
    narrow = right[:, :, :32].contiguous()
    found = products._gram_by_products(left, narrow, 1)  # a Gram matrix of so many numbers
    assert torch.allclose(found, products.factor_norms(left, narrow), rtol=1e-3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    "shape", [(3, 5, 40), (32, 256, 3072), (64, 197, 768), (4, 2048, 2304), (1, 4001, 17), (70_000, 3, 8)]
)
def test_tokens_are_added_up_in_float32_and_in_the_same_order_every_time(shape):
    torch.manual_seed(0)
    values = torch.randn(*shape, device="cuda").to(torch.bfloat16)
    found = products.token_sums(values)
    assert torch.allclose(found.double(), values.double().sum(1), rtol=1e-5, atol=1e-5 * shape[1] ** 0.5)
    assert torch.equal(found, products.token_sums(values))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_fastest_way_is_measured_once_and_kept(tmp_path):
    left, right = (torch.randn(8, 256, n, device="cuda").to(torch.bfloat16) for n in (256, 512))
    path = tmp_path / "choices.json"
    for k in range(2):
        chooser = autotune.Chooser(autotune.TuningRecord.read(path))
        with autotune.using(chooser):
            products.factor_norms(left, right)
            weighted.scaled_sum(left, right, torch.ones(8, device="cuda"))
        assert (chooser.left < autotune.SECONDS) is (k == 0)
    entries = autotune.TuningRecord.read(path).entries
    assert len(entries) == 2
    for entry in entries.values():
        assert "wrong" not in entry["left_out"].values(), entry
        assert entry["microseconds"][entry["way"]] <= min(entry["microseconds"].values()) / autotune.CLEARLY**4


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    ("dtype", "exact", "tolerance"),
    [(torch.float32, True, 1e-5), (torch.bfloat16, False, 1e-4), (torch.float16, False, 1e-4)],
)
@pytest.mark.parametrize(
    ("channels", "rows", "stride", "padding", "dilation"), [(3, 16, 1, 1, 1), (16, 40, 2, 0, 1), (64, 64, 1, 2, 2)]
)
def test_the_convolution_kernels_themselves_on_a_gpu(
    dtype, exact, tolerance, channels, rows, stride, padding, dilation
):
    torch.manual_seed(0)
    order = torch.contiguous_format if dtype == torch.float32 else torch.channels_last
    x = torch.randn(4, channels, 13, 13, device="cuda").to(dtype).contiguous(memory_format=order)
    weight = torch.zeros(rows, channels, 3, 3, device="cuda", dtype=torch.float64, requires_grad=True)
    outs = [F.conv2d(row.double(), weight, None, stride, padding, dilation) for row in x.split(1)]
    grad = torch.randn(4, *outs[0].shape[1:], device="cuda").to(dtype).contiguous(memory_format=order)
    product = torch.stack(
        [torch.autograd.grad(o, weight, g.double())[0] for o, g in zip(outs, grad.split(1), strict=True)]
    )
    scale = torch.rand(4, 3, device="cuda")[:, 1]  # a column: the factors of one of several groups
    unit = 2.0 ** torch.arange(-2, 2, device="cuda")
    settings = ([3, 3], [stride] * 2, [padding] * 2, [dilation] * 2, exact)
    for units in (None, unit):
        own = product if units is None else product * units.double().view(-1, 1, 1, 1, 1)
        squared = own.square().sum((1, 2, 3, 4))
        found = convolutions.conv_norms(grad, x, units, *settings).double()
        assert torch.allclose(found, squared, rtol=tolerance)
        found = convolutions.conv_products(grad, x, units, *settings).double().movedim(-1, 2)
        assert (found - own).norm() <= tolerance * own.norm()
    wanted = torch.tensordot(scale.double(), product, 1)
    assert (convolutions.conv_sum(grad, x, scale, *settings).double() - wanted).norm() <= tolerance * wanted.norm()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("dtype", "exact"), [(torch.float32, True), (torch.bfloat16, False)])
def test_the_convolution_kernels_take_more_examples_than_a_grid_has_rows(dtype, exact):
    torch.manual_seed(0)
    x, grad = (torch.randn(5, 3, 9, 9, device="cuda").to(dtype) for _ in range(2))
    settings = ([3, 3], [1, 1], [1, 1], [1, 1], exact)
    many = [t.repeat(14_000, 1, 1, 1) for t in (grad, x)]
    for what in (convolutions.conv_norms, convolutions.conv_products):
        few = what(grad, x, None, *settings)
        found = what(*many, None, *settings).view(14_000, *few.shape)
        assert torch.equal(found, few.expand_as(found))


def test_a_product_that_is_kept_is_made_of_whole_lines_of_memory(monkeypatch):
    """An odd number of classes is filled up first, and what was filled up is in neither norm nor sum."""
    torch.manual_seed(0)
    left, right = torch.randn(3, 1, 200, 67).bfloat16(), torch.randn(3, 1, 200, 20).bfloat16()
    outer = Outer(left, right, (67, 20), (0, 1), by_kernel=True)
    seen = []
    real = products.products
    monkeypatch.setattr(products, "products", lambda a, b: seen.append((a.shape[2], b.shape[2])) or real(a, b))
    group = Group.of([outer], torch.Size((67, 20)))
    wanted = left[:, 0].double().mT @ right[:, 0].double()
    assert torch.allclose(group.norms().squared.double(), wanted.square().sum((1, 2)), rtol=1e-5)
    assert seen == [(128, 20)]
    scale = torch.rand(3)
    total = torch.tensordot(scale.double(), wanted, 1)
    assert (group.weighted_sum(scale, sanitise=False).double() - total).norm() <= 1e-6 * total.norm()
