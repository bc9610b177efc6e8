"""What an experiment on pictures chooses, it chooses by a rule that its own rows decide."""

import itertools

import numpy as np
import pytest
import torch

from experiments import abadi, fashion, pate_mnist, pate_recipe
from experiments.pate_mnist import Recipe
from experiments.table import Table
from tacit.pate import VoteCounts


def test_the_student_is_the_best_trial_on_the_mean():
    rows = [
        {"name": "640, 200 and 60", "seed": 0, "accuracy": 0.98},
        {"name": "2600, 200 and 150", "seed": 0, "accuracy": 0.984},
        {"name": "640, 200 and 60", "seed": 1, "accuracy": 0.986},
    ]
    assert pate_recipe.chosen(rows[:2]).queries == 2600
    assert pate_recipe.chosen([*rows, rows[2]]) == Recipe(
        queries=640, check_noise=60.0, rounds=1, batch=32, **pate_recipe.FINAL
    )


def test_spread_queries_are_every_so_many_images_and_all_are_kept():
    order = Recipe(queries=2000).asked(9000)
    assert sorted(order) == list(range(9000))
    assert set(np.diff(order[:2000])) == {4, 5}
    assert list(Recipe(queries=640, spread=False).asked(9000)) == list(range(9000))


def test_surer_teachers_give_fewer_answers_of_which_more_are_right():
    rng = np.random.default_rng(0)
    top = rng.choice([250, 150], 400)
    counts = np.zeros((400, 10), dtype=np.int64)
    counts[np.arange(400), np.where(top == 250, 3, 4)] = top  # class 3 is right; where teachers waver, most say 4
    counts[:, 3] += 250 - top
    votes = VoteCounts(counts, 250, "keyed", x=torch.zeros(400, 1))
    found = []
    for recipe in (Recipe(queries=400), Recipe(queries=400, threshold=250.0, check_noise=60.0)):
        answers = pate_mnist.ask(votes, recipe, 0)
        _, labels, _ = answers.labelled()
        found.append((len(labels), (np.asarray(labels) == 3).mean()))
    assert found[1][0] < found[0][0]
    assert found[1][1] > found[0][1] + 0.1


def test_the_rate_of_the_test_runs_is_the_best_one_on_held_out_rows():
    rows = [{"part": "heat", "noise": 1.0, "rate": r, "accuracy": a} for r, a in ((0.3, 0.8), (2.0, 0.84), (5.0, 0.7))]
    assert fashion.best_rate(rows, 1.0) == 2.0
    assert fashion.best_rate(rows, 4.0) == fashion.BASE.rate


def test_more_budget_or_a_larger_delta_never_lowers_the_best_accuracy():
    rows = [
        {"part": "original", "noise": noise, "seed": 0, "epoch": epoch, "accuracy": accuracy,
         **abadi.prices(abadi.released(noise, abadi.LEVELS[noise][0], 100 * epoch), 100 * epoch)}
        for noise, epoch, accuracy in ((8.0, 2, 0.85), (8.0, 20, 0.9), (4.0, 3, 0.88), (4.0, 20, 0.93), (2.0, 20, 0.95))
    ]  # fmt: skip
    curves = [abadi.grid(rows, delta) for delta in abadi.DELTAS]
    for curve in curves:
        assert curve == sorted(curve)
        assert [accuracy for _, accuracy in curve] == sorted(accuracy for _, accuracy in curve)
    for loose, strict in itertools.pairwise(curves):
        for epsilon, accuracy in strict:
            assert abadi._at(loose, epsilon) >= accuracy


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_the_projection_finds_the_plane_that_holds_the_rows(noise):
    generator = torch.Generator().manual_seed(0)
    plane = torch.linalg.qr(torch.randn(80, 2, generator=generator))[0]
    rows = torch.randn(2000, 2, generator=generator) @ plane.T
    basis = abadi.project(rows, noise)
    torch.testing.assert_close(basis.T @ basis, torch.eye(60), atol=1e-5, rtol=0)
    assert (basis @ basis.T @ plane - plane).norm() < 0.05


def test_a_curve_that_was_cut_keeps_its_points(tmp_path):
    table = Table("abadi-mnist", tmp_path, seeds=1, size="tiny", say=lambda _: None)
    task = abadi.tasks(table)[1]  # without privacy
    task()
    assert [row["epoch"] for row in table.rows] == [1, 2]
    kept = table.rows[0]["accuracy"]
    table.rows.pop()
    task()
    assert [row["epoch"] for row in table.rows] == [1, 2]
    assert table.rows[0]["accuracy"] == kept
