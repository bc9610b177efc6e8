"""Records on pictures: what a run claims, what its trials may look at, and how settings are chosen."""

import dataclasses

import pytest
import torch

from experiments import priors, processes, records
from experiments.heads import Features, Recipe, Runner, private_mean
from experiments.pictures import DELTA, Split, _made_up
from experiments.table import Table
from tacit import accounting as acc
from tacit.noise.keys import Key


@pytest.fixture(scope="module")
def encoder():
    torch.manual_seed(0)
    made = priors.Encoder(1, width=4)
    made(processes.glyphs(32))  # statistics of its normalisation
    return made.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def split():
    torch.manual_seed(1)
    x, y = processes.glyphs(25, views=4), torch.arange(25).repeat_interleave(4) % 10
    return Split((x[:80], y[:80]), (x[80:], y[80:]))


def test_a_run_pays_for_the_mean_it_releases(encoder, split):
    runner = Runner(Features(split, encoder))
    recipe = Recipe(blocks=("scatter", "prior"), steps=3, batch=20, centre=5.0)
    paid = runner.run(recipe, 1.0, 0, test=False)
    free = runner.run(dataclasses.replace(recipe, centre=None), 1.0, 0, test=False)
    assert paid["noise"] > free["noise"]
    steps = acc.PoissonSampled(acc.Gaussian(paid["noise"]), 15 / 60) * 3
    assert paid["claimed"] >= acc.epsilon(steps + acc.Gaussian(5.0), DELTA).lower
    assert 0.999 < paid["claimed"] <= 1.0
    assert acc.epsilon(steps, DELTA).upper < 1.0


def test_one_record_moves_the_released_mean_by_at_most_its_bound():
    torch.manual_seed(0)
    key, x = Key.generate(), torch.randn(40, 2, 30)
    x = torch.nn.functional.normalize(x, dim=2)
    x[-1] *= 50  # clipped to norm 1
    whole, less = private_mean(x, 3.0, key) * 40, private_mean(x[:-1], 3.0, key) * 39
    assert float((whole - less).norm()) <= 1.0 + 1e-5
    assert float((whole - private_mean(x, 1e-6, key) * 40).std()) == pytest.approx(3.0, rel=0.5)


def test_a_trial_does_not_look_at_test_pictures(encoder, split):
    hidden = Split(split.train, (torch.full_like(split.test[0], torch.nan), split.test[1]))
    recipe = Recipe(steps=2, batch=20)
    features = Features(hidden, encoder)
    Runner(features).run(recipe, 1.0, 0, test=False)
    assert set(features._made) == {0}
    assert len(features.split(recipe, test=False).train[1]) == 60


@pytest.mark.slow
def test_every_kind_of_model_learns(encoder):
    runner = Runner(Features(_made_up("cpu"), encoder))
    for network, blocks, rate in (("head", ("scatter",), 0.05), ("maps", ("scatter",), 0.2)):
        recipe = Recipe(blocks, network, batch=25, steps=40, rate=rate, ema=0.8, clip=1.0, centre=None)
        assert runner.run(recipe, 15.0, 0, test=True)["accuracy"] > 0.4, network


def test_a_choice_is_the_best_trial_and_is_written_before_its_test_runs(tmp_path):
    table = Table("records", tmp_path, 2, size="tiny", say=lambda _: None)
    records.run(table)
    assert [row["part"] for row in table.rows] == ["prior", "trial", "trial", "choice", "test", "test"]
    trials, choice, test = table.rows[1:3], table.rows[3], table.rows[4]
    assert choice["accuracy"] >= max(row["accuracy"] for row in trials) - records.MARGIN
    assert choice["method"] == test["method"]


def test_a_private_choice_would_cost_more_than_one_run():
    recipe = records.begin(1.0).words()
    row = {"claimed": 1.0, "noise": 9.0, "rows": 60_000, "recipe": recipe}
    assert records.price_of_choice(row, 1) == 1.0
    assert 1.2 < records.price_of_choice(row, 4) < records.price_of_choice(row, 12) < 2.0


def test_the_search_changes_one_thing_at_a_time():
    first = records.proposals("mnist", 8.0, 0, None)
    for number in (1, 3):
        for recipe in records.proposals("mnist", 8.0, number, first[0]):
            changed = {k for k, v in recipe.words().items() if v != first[0].words()[k]}
            assert changed in ({"rate"}, {"steps", "ema"})


def test_two_hands_write_one_sign_alike():
    torch.manual_seed(0)
    x = processes.glyphs(60, 2).flatten(1)
    near = (x[::2] - x[1::2]).norm(dim=1).median()
    far = (x[::2] - x[1::2].roll(1, 0)).norm(dim=1).median()
    assert near < 0.92 * far


@pytest.mark.slow
def test_a_prior_learns_to_tell_signs_apart():
    torch.manual_seed(0)
    course = priors.Course("glyphs", 1, 28, width=8, batch=64, steps=100, seconds=600)
    encoder, _ = priors.pretrain(course, say=lambda _: None)
    fresh = priors.Encoder(1, 8).eval()
    torch.manual_seed(1)
    x = processes.glyphs(64)

    def found(some):
        z = torch.nn.functional.normalize(priors.encode(some, x)[-1].flatten(1), dim=1)
        scores = (z @ z.T).fill_diagonal_(-1)
        return float((scores.argmax(1) == torch.arange(128) ^ 1).float().mean())

    assert found(encoder) > found(fresh) + 0.05
