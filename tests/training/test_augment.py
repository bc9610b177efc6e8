"""Several views of a record are averaged and clipped once."""

import pytest
import torch

from tacit.sgd import CheckpointError
from tacit.sgd.training.augment import crops, views_of
from tests.training.common import LOSS, data, key, network, run

pytestmark = pytest.mark.filterwarnings("ignore::tacit.sgd.PrivacyWarning")


def shaken(example):
    x, y = example
    return x + torch.randn_like(x), y


def test_the_views_of_a_record_are_averaged_and_then_clipped_once():
    clip, views = 0.3, 4
    model = network()
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    training = run(
        model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0), noise_multiplier=0, clip_norm=clip,
        augment=shaken, views=views, physical_batch=200, key=key(),
    )  # fmt: skip
    batch = next(iter(training))
    piece = next(iter(batch.pieces(training.physical_batch)))
    torch.manual_seed(5)
    x, y = views_of(piece.data, shaken, views)
    torch.manual_seed(5)
    training.step(batch)
    moved = {n: before[n] - p.detach() for n, p in model.named_parameters()}

    twin = network()
    twin.load_state_dict(before)
    total = {n: torch.zeros_like(p) for n, p in before.items()}
    clipped = 0
    for i in range(len(batch)):
        rows = slice(i * views, (i + 1) * views)
        twin.zero_grad()
        LOSS(twin(x[rows]), y[rows]).mean().backward()
        norm = torch.sqrt(sum(p.grad.square().sum() for p in twin.parameters()))
        clipped += int(norm > clip)
        for n, p in twin.named_parameters():
            total[n] += p.grad * min(1.0, clip / float(norm))
    assert clipped > 0
    for n in total:
        torch.testing.assert_close(moved[n], total[n] / training.plan.sampler.batch_size)


def test_an_augmentation_cannot_mix_examples():
    def mixed(batch):
        x, y = batch
        return x + x.flip(0).mean(0), y  # of one example alone, whatever its author meant

    x, y = data()
    alone = views_of((x[:1], y[:1]), mixed, 1)[0]
    together = views_of((x, y), mixed, 1)[0]
    torch.testing.assert_close(alone[0], together[0])


def test_crops_shift_and_mirror_each_view_on_its_own():
    images = torch.arange(28.0).expand(3, 1, 28, 28).contiguous()
    views = views_of((images, torch.arange(3)), crops(2, flips=True), 50)[0]
    shifts = {tuple(view[0, 0].int().tolist()) for view in views}
    assert len(shifts) == 10  # five shifts, mirrored or not


def test_an_augmentation_that_changed_is_a_fork(tmp_path):
    def start(**more):
        return run(checkpoint=tmp_path / "run", checkpoint_every=1, key=key(), **more)

    training = start(augment=shaken, views=2)
    training.step(next(iter(training)))
    with pytest.raises(CheckpointError, match="augmentation"):
        start()


def test_views_without_an_augmentation_are_refused():
    with pytest.raises(ValueError, match="views"):
        run(views=3)
    with pytest.raises(ValueError, match="padding"):
        crops(-1)
