"""What ``sgd.fix`` puts in the place of batch normalisation computes what the layer did, but for the statistics."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tacit import sgd


class NormAct(nn.BatchNorm2d):
    """Normalisation with an activation inside, as in timm."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.drop = nn.Identity()
        self.act = nn.ReLU()

    def forward(self, x):
        return self.act(self.drop(super().forward(x)))


class Scaled(nn.BatchNorm2d):
    """A layer that does something else beside."""

    def forward(self, x):
        return 3 * super().forward(x)


def test_an_activation_inside_the_layer_is_kept():
    model = nn.Sequential(NormAct(8))
    keys, weight = [k for k in model.state_dict() if "running" not in k and "tracked" not in k], model[0].weight
    assert sgd.fix(model) == {"0": "NormAct -> GroupNorm(8, 8)"}
    x = torch.randn(2, 8, 4, 4)
    torch.testing.assert_close(model(x), torch.relu(nn.functional.group_norm(x, 8)))
    assert list(model.state_dict()) == keys
    assert model[0].weight is weight
    assert model[0].act.training


def test_a_layer_that_does_something_else_is_left_with_a_warning():
    model = nn.Sequential(Scaled(8))
    with pytest.warns(UserWarning, match=r"'0' \(Scaled\) does something else"):
        assert sgd.fix(model) == {}
    with pytest.raises(sgd.BatchMixing):
        sgd.clipped_grad(model, lambda m, b: m(b).square().sum((1, 2, 3)), torch.randn(2, 8, 3, 3))


@pytest.mark.parametrize("channels", [4, 5, 6, 8, 12, 16, 31, 32, 48, 64, 96, 128, 1024])
def test_no_map_of_one_pixel_becomes_a_constant(channels):
    """``nn.GroupNorm(16, 16)`` gives zero for a map of one pixel, and groups of two give a sign."""
    model = nn.Sequential(nn.BatchNorm2d(channels))
    sgd.fix(model)
    assert channels % model[0].num_groups == 0
    assert model[0].num_groups <= 32
    x = torch.randn(3, channels, 1, 1, generator=torch.Generator().manual_seed(0), requires_grad=True)
    out = model(x)
    assert (out[0] - out[1]).abs().max() > 1e-2
    assert torch.autograd.grad(model(x)[:, 0].sum(), x)[0].abs().max() > 1e-2


def randomised():
    return nn.Sequential(nn.Linear(6, 8), nn.RReLU(), nn.Linear(8, 3))


def test_a_layer_that_draws_only_for_negative_numbers_is_not_called_mixing():
    loss, batch = nn.CrossEntropyLoss(reduction="none"), (torch.randn(5, 6), torch.randint(3, (5,)))
    model = randomised()
    with pytest.raises(sgd.UncoveredUse, match=r"'1' \(RReLU\).*sgd\.fix\(model\)"):
        sgd.clipped_grad(model, loss, batch)
    assert sgd.fix(model) == {"1": "RReLU -> one that draws for each number"}
    sgd.clipped_grad(model, loss, batch, check="always")
    plain = randomised().eval()
    sgd.clipped_grad(plain, loss, batch)  # nothing is drawn in evaluation mode


def test_the_layer_in_its_place_has_the_same_law():
    model, x = nn.Sequential(nn.RReLU(0.2, 0.6)), -torch.ones(200_000)
    sgd.fix(model)
    drawn = -model(x)
    assert 0.2 <= drawn.min() < 0.21
    assert 0.59 < drawn.max() <= 0.6
    assert abs(float(drawn.mean()) - 0.4) < 6 * 0.4 / 12**0.5 / 200_000**0.5
    assert torch.equal(model.eval()(x), nn.functional.rrelu(x, 0.2, 0.6))


def test_instance_normalisation_keeps_no_statistics_of_the_data():
    torch.manual_seed(0)
    model = nn.Sequential(nn.InstanceNorm1d(4, affine=True, track_running_stats=True), nn.Flatten(), nn.Linear(20, 2))
    x = torch.randn(6, 4, 5)
    with pytest.raises(sgd.UncoveredUse, match=r"'0' \(InstanceNorm1d\) keeps running statistics.*sgd\.fix"):
        sgd.clipped_grad(model, lambda m, x: m(x).square().sum(1), x)
    with torch.no_grad():
        before = model(x)
    assert sgd.fix(model) == {"0": "InstanceNorm1d -> without running statistics"}
    assert torch.equal(model(x), before)
    assert sgd.check(model, lambda m, x: m(x).square().sum(1), x).uses["0.weight"]
