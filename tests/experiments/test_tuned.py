"""A prior whose upper stage is trained too: where it starts, what one picture may do, what a run claims."""

import dataclasses
import signal

import pytest
import torch

from experiments import priors, records, tuned
from experiments.heads import Features, Recipe, Runner
from experiments.pictures import DELTA, Split
from experiments.table import Table
from tacit import accounting as acc
from tacit.sgd import clipped_grad


@pytest.fixture(scope="module")
def encoder():
    torch.manual_seed(0)
    made = priors.Encoder(3, width=4)
    for norm in made.modules():
        if isinstance(norm, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
            torch.nn.init.normal_(norm.bias, std=0.3)
    for _ in range(3):
        made(torch.randn(16, 3, 16, 16))  # statistics of its normalisation
    return made.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def split():
    torch.manual_seed(1)
    y = torch.arange(120) % 3
    x = 0.3 * torch.randn(120, 3, 16, 16)
    x[torch.arange(120), y] += 3.0  # a colour for each class
    return Split((x[:100], y[:100]), (x[100:], y[100:]))


RECIPE = Recipe((), "tuned", views=2, batch=20, steps=3, rate=1.0, width=8, centre=None)


@pytest.mark.parametrize("views", [1, 3])
def test_it_starts_with_the_function_of_the_prior(encoder, views):
    x = torch.randn(6, 3, 16, 16)
    model = tuned.Tuned(encoder, 4, 8, views)
    middle, _ = encoder(x)
    torch.testing.assert_close(model.body(tuned.below(encoder, x)), middle, atol=1e-4, rtol=1e-4)
    assert not any(isinstance(m, torch.nn.BatchNorm2d) for m in model.modules())


def test_a_picture_is_alone_and_its_views_are_averaged_before_clipping(encoder):
    torch.manual_seed(2)
    model = tuned.Tuned(encoder, 4, 8, views=2).double()
    x, y = tuned.below(encoder, torch.randn(8, 3, 16, 16)).double(), torch.tensor([1, 1, 4, 4, 7, 7, 2, 2])
    bounds = {"head.*": 0.8, "body.*": 0.6}
    clip = {"views": 2, "clipping": bounds, "check": "always"}
    together = clipped_grad(model, tuned.loss, (x, y), **clip)
    assert together.sensitivity == pytest.approx(1.0)
    expected = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    model.see(1)
    for k in range(0, 8, 2):
        grads = torch.autograd.grad(tuned.loss(model, (x[k : k + 2], y[k : k + 2])).mean(), list(model.parameters()))
        found = dict(zip(expected, grads, strict=True))
        for part, bound in (("head", 0.8), ("body", 0.6)):
            names = [n for n in found if n.startswith(part)]
            norm = torch.stack([found[n].norm() for n in names]).norm()
            for n in names:
                expected[n] += found[n] * min(1.0, bound / float(norm))
    for name, value in together.sums.items():
        torch.testing.assert_close(value, expected[name], atol=1e-8, rtol=1e-6)


def test_views_are_moved_and_mirrored_pictures(encoder):
    x = torch.randn(5, 3, 16, 16)
    zero, no = torch.zeros(5, dtype=torch.int64), torch.zeros(5, dtype=torch.bool)
    assert torch.equal(tuned.shifted(x, zero, zero, no), x)
    padded = torch.nn.functional.pad(x, [4] * 4, mode="reflect")
    moved = tuned.shifted(x, zero - 3, zero + 4, ~no)
    assert torch.equal(moved, padded[:, :, 1:17, 8:24].flip(3))
    made = tuned.bank(encoder, x, 4)
    assert torch.equal(made, tuned.bank(encoder, x, 4))
    view, label = tuned.from_bank(made)((torch.tensor(3), torch.tensor(9)))
    assert int(label) == 9
    assert any(torch.equal(view, made[3, k].permute(2, 0, 1)) for k in range(4))


def test_a_run_claims_what_it_was_given_and_holds_out_what_it_is_judged_on(encoder, split):
    hidden = Split(split.train, (torch.full_like(split.test[0], torch.nan), split.test[1]))
    found = Runner(Features(hidden, encoder)).run(RECIPE, 2.0, 0, test=False)
    assert found["rows"] == 75
    steps = acc.PoissonSampled(acc.Gaussian(found["noise"]), 18 / 75) * 3
    assert acc.epsilon(steps, DELTA).lower <= found["claimed"] <= 2.0
    assert found["claimed"] > 1.99


def test_a_run_that_was_cut_goes_on(encoder, split, tmp_path, monkeypatch):
    """Killed after a checkpoint, it takes up its key and its steps; a run of another recipe does not disturb it."""
    monkeypatch.setattr(tuned, "EVERY", 1)
    steps = []
    real = torch.optim.SGD.step

    def counted(self, *args):
        if len(steps) == 2:
            steps.append("cut")
            raise KeyboardInterrupt(signal.SIGINT)
        steps.append("step")
        return real(self, *args)

    monkeypatch.setattr(torch.optim.SGD, "step", counted)
    recipe = dataclasses.replace(RECIPE, steps=4)
    with pytest.raises(KeyboardInterrupt):
        Runner(Features(split, encoder), tmp_path).run(recipe, 2.0, 0, test=True)
    assert len(list(tmp_path.glob("*.key"))) == 1
    found = Runner(Features(split, encoder), tmp_path).run(recipe, 2.0, 0, test=True)
    assert steps.count("step") == 4
    assert found["rows"] == 100
    assert not list(tmp_path.glob("*.key"))
    Runner(Features(split, encoder), tmp_path).run(RECIPE, 2.0, 0, test=True)
    assert len(list(tmp_path.glob("*.pt"))) == 1


def test_the_best_guess_on_cifar_is_tested_before_anything_else_is_tried(tmp_path):
    table = Table("records-cifar10", tmp_path, 1, size="tiny", say=lambda _: None)
    records.run_set(table, "cifar10")
    assert [row["part"] for row in table.rows] == ["prior", "trial", "choice", "test"]
    assert table.rows[1]["candidate"] == records.words(records.begin(1.0, "tuned"))
    assert all(row["claimed"] <= 1.0 for row in table.rows[1:])


def test_clipped_gradients_of_both_parts_teach_it(encoder, split):
    torch.manual_seed(3)
    x, y = split.train
    maps = tuned.bank(encoder, x, 2).permute(0, 1, 4, 2, 3).flatten(0, 1)
    batch = maps, y.repeat_interleave(2)
    model = tuned.Tuned(encoder, 4, 8, views=2)
    before = tuned.accuracy(model, encoder, split.test)
    model.see(2)
    for _ in range(40):
        sums = clipped_grad(model, tuned.loss, batch, clipping={"head.*": 0.8, "body.*": 0.6}, views=2).sums
        with torch.no_grad():
            for name, p in model.named_parameters():
                p -= (0.3 if name.startswith("head") else 0.06) * sums[name] / len(y)
    assert before < 0.6
    assert tuned.accuracy(model, encoder, split.test) > 0.9
