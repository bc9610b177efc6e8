"""What a caller of clipped_grad can rely on."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from tests.sgd import zoo, zoo_more
from tests.sgd.harness import build, compare, layers, norm, single_gradients, snapshot, truth
from torch import nn
from torch.utils.checkpoint import checkpoint

from tacit import sgd
from tacit.sgd.gradients.engine import Engine

CASES = {
    "cnn": zoo.cnn,
    "gpt": zoo.gpt,
    "lstm": zoo.lstm,
    "weight-norm": zoo_more.weight_norm,
    "prompt": zoo_more.soft_prompt,
}


def total(sums):
    return math.sqrt(sum(v.double().square().sum().item() for v in sums.values()))


def difference(a, b):
    return math.sqrt(sum((a[k].double() - b[k].double()).square().sum().item() for k in a))


@pytest.fixture(params=CASES)
def case(request):
    return build(CASES[request.param], torch.float64)


def test_sums_and_norms_unpack_and_say_their_sensitivity(case):
    result = sgd.clipped_grad(case.model, case.loss, case.batch, clip_norm=0.5)
    sums, norms = result
    assert set(sums) == {n for n, p in case.model.named_parameters() if p.requires_grad}
    assert norms.shape == (len(next(iter(case.batch.values()))),)
    assert result.sensitivity == 0.5


def test_per_layer_bounds_add_up_to_the_clip_norm(case):
    result = sgd.clipped_grad(case.model, case.loss, case.batch, clip_norm=0.5, clipping="per_layer")
    assert result.norms.shape[1] == len(layers(list(result.sums)))
    assert result.sensitivity == pytest.approx(0.5, rel=1e-12)
    assert result.sensitivity <= 0.5
    assert result.sensitivity == pytest.approx(math.sqrt(sum(c * c for c in result.clipping.bounds)))


def test_groups_by_name_have_bounds_of_their_own():
    case = build(zoo.mlp, torch.float64)
    kind = {"2.*": 0.03, "*.weight": 0.04, "*": 1.0}
    result = sgd.clipped_grad(case.model, case.loss, case.batch, clipping=kind)
    groups = [["2.weight", "2.bias"], ["0.weight"], ["0.bias"]]
    assert [sorted(g) for g in result.clipping.groups] == [sorted(g) for g in groups]
    assert result.sensitivity == pytest.approx(math.sqrt(0.03**2 + 0.04**2 + 1))
    singles = single_gradients(case)
    for names, bound in zip(groups, (0.03, 0.04, 1.0), strict=True):
        wanted, _ = truth([{n: g[n] for n in names} for g in singles], [names], bound)
        assert difference(wanted, {n: result.sums[n] for n in names}) < 1e-12


def test_a_parameter_outside_every_group_is_refused():
    case = build(zoo.mlp, torch.float32)
    with pytest.raises(ValueError, match="unbounded"):
        sgd.clipped_grad(case.model, case.loss, case.batch, clipping={"0.*": 1.0})
    with pytest.raises(ValueError, match="matches"):
        sgd.clipped_grad(case.model, case.loss, case.batch, clipping={"*": 1.0, "nothing": 1.0})


def test_automatic_clipping_normalises_every_gradient(case):
    result = sgd.clipped_grad(case.model, case.loss, case.batch, clip_norm=2.0, clipping="automatic", stabiliser=0.01)
    singles = single_gradients(case)
    names = list(singles[0])
    wanted = {n: sum(2.0 * g[n] / (norm(g, names) + 0.01) for g in singles) for n in names}
    assert difference(wanted, result.sums) < 1e-10 * total(wanted)


def test_a_masked_example_adds_nothing(case):
    count = len(next(iter(case.batch.values())))
    mask = torch.arange(count) % 2 == 0
    masked = sgd.clipped_grad(case.model, case.loss, case.batch, clip_norm=0.5, mask=mask)
    kept = {k: v[mask] for k, v in case.batch.items()}
    alone = sgd.clipped_grad(case.model, case.loss, kept, clip_norm=0.5)
    assert difference(masked.sums, alone.sums) < 1e-12
    assert torch.allclose(masked.norms[mask], alone.norms)
    assert (masked.norms[~mask] == 0).all()


@pytest.mark.parametrize("size", [1, 2, 3, 9])
def test_micro_batches_add_up(case, size):
    whole = sgd.clipped_grad(case.model, case.loss, case.batch, clip_norm=0.5)
    parts = sgd.clipped_grad(case.model, case.loss, case.batch, clip_norm=0.5, microbatch=size)
    assert difference(whole.sums, parts.sums) < 1e-12
    assert torch.allclose(whole.norms, parts.norms)


def test_batches_of_all_sizes_share_one_plan_with_micro_batches():
    """Poisson sampling draws another number of examples at each step."""
    case = build(zoo.cnn, torch.float64)
    for count in (5, 3, 1, 4, 2):
        batch = {k: v[:count] for k, v in case.batch.items()}
        wanted = sgd.clipped_grad(case.model, case.loss, batch, clip_norm=0.5, method="examples")
        found = sgd.clipped_grad(case.model, case.loss, batch, clip_norm=0.5, microbatch=3)
        assert difference(wanted.sums, found.sums) < 1e-12
        assert torch.allclose(wanted.norms, found.norms)
        assert found.norms.shape == found.losses.shape == (count,)
    assert len(Engine.of(case.model).plans) == 1


@pytest.mark.parametrize("views", [2, 3])
def test_views_are_averaged_before_clipping(views):
    case = build(zoo.vit, torch.float64)
    rows = {k: v[:4].repeat_interleave(views, 0) for k, v in case.batch.items()}
    rows["x"] = rows["x"] + torch.randn_like(rows["x"])
    result = sgd.clipped_grad(case.model, case.loss, rows, clip_norm=1.0, views=views)
    case.batch = rows
    singles = single_gradients(case)
    averaged = [
        {n: sum(s[n] for s in singles[k : k + views]) / views for n in singles[0]}
        for k in range(0, len(singles), views)
    ]
    wanted, norms = truth(averaged, [list(averaged[0])], 1.0)
    assert difference(wanted, result.sums) < 1e-12 * max(1.0, total(wanted))
    assert torch.allclose(result.norms, norms[:, 0])


def test_a_criterion_is_a_loss():
    model = nn.Linear(3, 4).double()
    batch = (torch.randn(5, 3).double(), torch.randint(4, (5,)))
    by_criterion = sgd.clipped_grad(model, nn.CrossEntropyLoss(reduction="none"), batch)
    by_function = sgd.clipped_grad(model, lambda m, b: F.cross_entropy(m(b[0]), b[1], reduction="none"), batch)
    assert difference(by_criterion.sums, by_function.sums) == 0
    for loss in (F.cross_entropy, lambda logits, y: F.cross_entropy(logits, y, reduction="none")):
        assert difference(sgd.clipped_grad(model, loss, batch).sums, by_function.sums) == 0


def test_a_loss_per_position_is_averaged_over_each_example():
    model, x, y = nn.Linear(3, 2).double(), torch.randn(4, 5, 3).double(), torch.randn(4, 5, 2).double()
    found = sgd.clipped_grad(model, nn.MSELoss(reduction="none"), (x, y))
    wanted = sgd.clipped_grad(model, lambda m, b: (m(b[0]) - b[1]).square().mean((1, 2)), (x, y))
    assert difference(found.sums, wanted.sums) < 1e-12


def test_a_loss_that_is_not_per_example_is_refused():
    model, batch = nn.Linear(3, 4), (torch.randn(5, 3), torch.randint(4, (5,)))
    with pytest.raises(ValueError, match="reduction='none'"):
        sgd.clipped_grad(model, nn.CrossEntropyLoss(), batch)
    with pytest.raises(ValueError, match="one value per example"):
        sgd.clipped_grad(model, lambda m, b: F.cross_entropy(m(b[0]), b[1]), batch)
    with pytest.raises(ValueError, match="first dimension"):
        sgd.clipped_grad(model, lambda m, b: m(b[0]).sum(1), (torch.randn(5, 3), torch.randn(4)))


def test_an_empty_batch_gives_zeros():
    model = nn.Linear(3, 4)
    sums, norms = sgd.clipped_grad(model, lambda m, x: m(x).sum(1), torch.randn(0, 3))
    assert norms.shape == (0,)
    assert total(sums) == 0


def test_the_model_is_left_as_it_was(case):
    case.model.train()
    for k, parameter in enumerate(p for p in case.model.parameters() if p.requires_grad):
        parameter.grad = torch.full_like(parameter, float(k))
    before, random = snapshot(case.model), torch.get_rng_state()
    sgd.clipped_grad(case.model, case.loss, case.batch, check="always")
    after = snapshot(case.model)
    for key in ("ids", "hooks", "training", "attributes"):
        assert before[key] == after[key]
    assert list(before["state"]) == list(after["state"])
    for key, value in before["state"].items():
        assert torch.equal(value, after["state"][key]), key
    for key, value in before["grads"].items():
        assert after["grads"][key] is value
    assert torch.equal(random, torch.get_rng_state())


def test_buffers_that_a_pass_writes_are_put_back():
    """What the data leave in a buffer is a release without noise."""

    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2)
            self.norm = nn.InstanceNorm1d(3)
            self.register_buffer("mean", torch.zeros(3))
            self.register_buffer("seen", torch.zeros(3))
            self.register_buffer("last", torch.zeros(4, 3))

        def forward(self, x):
            self.seen += x.detach().sum(0)
            self.last = x.detach()
            with torch.no_grad():
                self.mean.lerp_(x.mean(0), 0.1)
            return self.linear(self.norm(x.unsqueeze(2).expand(-1, -1, 4) * torch.arange(1.0, 5)).mean(2) + x)

    model, x = Counter(), torch.randn(4, 3)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    held = model.last
    for _ in range(3):
        sgd.clipped_grad(model, lambda m, b: m(b).square().sum(1), x)
        for key, value in model.state_dict().items():
            assert torch.equal(value, before[key]), key
        assert model.last is held


def test_randomness_advances_as_in_one_plain_forward_pass():
    """Dropout draws one mask per step, the checks draw none, and the gradient is that of the mask that was drawn."""
    model = nn.Sequential(nn.Linear(6, 20), nn.Dropout(0.5), nn.Linear(20, 3)).double()
    batch = (torch.randn(4, 6).double(), torch.randint(3, (4,)))
    criterion = nn.CrossEntropyLoss(reduction="none")
    torch.manual_seed(3)
    losses = criterion(model(batch[0]), batch[1])
    after = torch.get_rng_state()
    wanted = [torch.autograd.grad(loss, list(model.parameters()), retain_graph=True) for loss in losses]
    torch.manual_seed(3)
    result = sgd.clipped_grad(model, criterion, batch, clip_norm=1e6)
    assert torch.equal(after, torch.get_rng_state())
    assert torch.allclose(result.losses, losses.detach())
    for k, value in enumerate(result.sums.values()):
        assert torch.allclose(value, sum(w[k] for w in wanted))
    again = sgd.clipped_grad(model, criterion, batch, clip_norm=1e6)
    assert not torch.allclose(again.losses, result.losses)


def test_a_changed_set_of_trained_parameters_is_noticed():
    case = build(zoo.mlp, torch.float64)
    sgd.clipped_grad(case.model, case.loss, case.batch)
    case.model[0].requires_grad_(False)
    assert compare(case).worst < 1e-10
    case.model[0].requires_grad_(True)
    assert compare(case).worst < 1e-10


def test_other_shapes_get_plans_of_their_own():
    case = build(zoo.gpt, torch.float64)
    for length in (6, 4, 6, 3):
        case.batch = {k: v[:, :length] for k, v in build(zoo.gpt, torch.float64).batch.items()}
        assert compare(case).worst < 1e-10


@pytest.mark.parametrize("name", ["mlp", "gpt-tied", "cnn"])
def test_one_backward_pass_per_example_gives_the_same(name):
    case = build(zoo.ZOO[name][1], torch.float64)
    fast = sgd.clipped_grad(case.model, case.loss, case.batch, clip_norm=0.7)
    slow = sgd.clipped_grad(case.model, case.loss, case.batch, clip_norm=0.7, method="examples")
    assert difference(fast.sums, slow.sums) < 1e-12 * total(fast.sums)
    assert torch.allclose(fast.norms, slow.norms)


def test_bfloat16_autocast_keeps_norms_and_sums_in_float32():
    case = build(zoo.vit, torch.float32)

    def loss(model, batch):
        with torch.autocast("cpu", torch.bfloat16):
            return zoo.classify(model, batch)

    case.loss = loss
    result = sgd.clipped_grad(case.model, loss, case.batch, clip_norm=0.5)
    assert {v.dtype for v in result.sums.values()} == {torch.float32}
    assert result.norms.dtype == torch.float32
    errors = compare(case)
    assert errors.worst < 0.03  # bfloat16 has eight bits; the truth is rounded as well
    with torch.autocast("cpu", torch.bfloat16):
        outside = sgd.clipped_grad(case.model, zoo.classify, case.batch, clip_norm=0.5)
    assert {v.dtype for v in outside.sums.values()} == {torch.float32}
    assert difference(outside.sums, result.sums) < 1e-5 * total(result.sums)


def test_bfloat16_weights_are_summed_in_float32():
    case = build(zoo.mlp, torch.bfloat16)
    result = sgd.clipped_grad(case.model, case.loss, case.batch, clip_norm=0.5)
    assert {v.dtype for v in result.sums.values()} == {torch.float32}
    assert total(result.sums) <= 0.5 * len(result.norms)


def test_checkpointing_changes_nothing_and_its_reentrant_form_is_refused():
    torch.manual_seed(0)
    body, head = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 5)).double(), nn.Linear(5, 3).double()
    x = torch.randn(4, 5).double()

    class Wrapped(nn.Module):
        def __init__(self, reentrant):
            super().__init__()
            self.body, self.head, self.first, self.reentrant = body, head, nn.Linear(5, 5).double(), reentrant

        def forward(self, x):
            x = self.first(x) * 0 + x
            if self.reentrant is None:
                return self.head(self.body(x))
            return self.head(checkpoint(self.body, x, use_reentrant=self.reentrant))

    def loss(model, x):
        return model(x).square().sum(1)

    plain, wrapped = (sgd.clipped_grad(Wrapped(r), loss, x, clip_norm=0.3) for r in (None, False))
    assert difference(plain.sums, wrapped.sums) < 1e-12
    with pytest.raises(sgd.ClippingError, match="use_reentrant=False"):
        sgd.clipped_grad(Wrapped(True), loss, x)


def test_batches_of_any_shape_are_trees():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(3, 2)

        def forward(self, x, scale=None):
            return self.a(x) * (1 if scale is None else scale)

    model, x, s, y = Net(), torch.randn(4, 3), torch.rand(4, 2), torch.randint(2, (4,))
    criterion = nn.CrossEntropyLoss(reduction="none")
    reference = sgd.clipped_grad(model, lambda m, b: criterion(m(b["x"], b["s"]), b["y"]), {"x": x, "s": s, "y": y})
    for inputs in ((x, s), [x, s], {"x": x, "scale": s}):
        found = sgd.clipped_grad(model, criterion, (inputs, y))
        assert difference(reference.sums, found.sums) == 0


class Like(nn.Module):
    """Casts a weight to the type of the data, by naming the data."""

    def __init__(self, cast):
        super().__init__()
        self.weight, self.cast = nn.Parameter(torch.randn(3, 6)), cast

    def forward(self, x):
        return F.linear(x, self.cast(self.weight.exp(), x))


@pytest.mark.parametrize("cast", [lambda w, x: w.to(x), lambda w, x: w.type_as(x), lambda w, x: w.to(x, copy=True)])
def test_a_weight_that_takes_the_type_of_the_data_is_not_called_mixing(cast):
    """BOFT of peft does that."""
    agrees(Like(cast).double(), torch.randn(4, 6, dtype=torch.float64), 1e-10)


class Rounded(nn.Module):
    """Computes its weight in 32 bits, whatever its type is, as FourierFT of peft does."""

    def __init__(self):
        super().__init__()
        self.spectrum = nn.Parameter(torch.randn(6, 6))

    def forward(self, x):
        return F.linear(x, torch.fft.ifft2(self.spectrum.float()).real.to(x.dtype))


def test_a_weight_made_in_a_narrower_type_is_compared_in_that_type():
    torch.manual_seed(0)
    agrees(Rounded().double(), torch.randn(4, 6, dtype=torch.float64), 1e-6)


class Unit(nn.Module):
    """Looks up directions: the row of padding has none."""

    def __init__(self):
        super().__init__()
        self.words, self.out = nn.Embedding(9, 4, padding_idx=0), nn.Linear(4, 3)

    def forward(self, text):
        found = self.words(text)
        return self.out(torch.where((text > 0).unsqueeze(-1), found / found.norm(dim=-1, keepdim=True), 0.0).sum(1))


def test_a_gradient_that_is_no_number_at_the_row_of_padding_is_nobodys():
    """Gemma 3n: autograd leaves such rows out, and so does the norm."""
    text = torch.tensor([[1, 2, 0], [3, 0, 0], [4, 5, 6]])
    agrees(Unit().double(), text, 1e-10)


def agrees(model, x, tolerance):
    """Norms and sums are those of one example at a time."""

    def loss(model, batch):
        return model(batch).square().sum(1)

    found = sgd.clipped_grad(model, loss, x, clip_norm=0.5)
    total = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    for k in range(len(x)):
        grads = torch.autograd.grad(loss(model, x[k : k + 1]).sum(), list(model.parameters()))
        size = math.sqrt(sum(float(g.square().sum()) for g in grads))
        assert abs(float(found.norms[k]) - size) <= tolerance * size
        for name, g in zip(total, grads, strict=True):
            total[name] += g * min(1.0, 0.5 / size)
    for name, wanted in total.items():
        assert (found.sums[name] - wanted).norm() <= tolerance * (1 + wanted.norm())
