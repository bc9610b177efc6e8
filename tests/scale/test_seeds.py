"""What a piece of work draws and sums does not depend on what else was done, where, or in which pieces."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
import torch
from benchmarks import projection
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.linear_model.moments import Moments, to_grid
from tacit.noise import Key, add_gaussian, bernoulli
from tacit.noise.entropy import expanded
from tacit.pate import Teachers
from tacit.pate.stacked import StackedTeachers

KEY = Key(bytes(range(32)))
#: with which teachers 1 and 4 of Moody break at first, and recover
SEED = 0


def people(rows: int = 240) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, rows)
    return (rng.normal(size=(rows, 3)) + 2 * y[:, None]).astype(np.float32), y, np.arange(rows) // 4


class Moody(torch.nn.Module):
    """Breaks on large values, unless it was made on a good day."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)
        self.register_buffer("mood", torch.rand(()))

    def forward(self, rows):
        bad = (rows.abs().amax() > 100) & (self.mood < 0.7)
        return self.layer(rows.clamp(-3, 3)) * torch.where(bad, torch.nan, 1.0)


def test_a_teacher_that_is_trained_again_learns_the_same_whoever_else_broke():
    """Two teachers break at first; without one person only the second does, and it must not notice."""
    x, y, person = people()
    parts = Teachers(Moody, (x, y), n=6, groups=person, key=KEY)._parts
    one, other = (int(person[parts[i][0]]) for i in (1, 4))
    x[np.isin(person, [one, other])] = 1000.0

    def trained(kept: np.ndarray) -> Teachers:
        made = Teachers(Moody, (x[kept], y[kept]), n=6, groups=person[kept], key=KEY, seed=SEED)
        return made.fit(steps=40)

    here, there = trained(np.arange(len(y))), trained(np.flatnonzero(person != one))
    first = StackedTeachers(Moody, 6, seed=SEED).models
    assert all(first[i].mood < 0.7 for i in (1, 4))  # both broke
    assert not here._failed
    for i in (0, 2, 3, 4, 5):
        assert torch.equal(here._fitted[0].models[i].layer.weight, there._fitted[0].models[i].layer.weight), i
    assert not torch.equal(here._fitted[0].models[1].layer.weight, there._fitted[0].models[1].layer.weight)


def test_what_one_teacher_draws_changes_nothing_for_the_next():
    x, y, person = people()
    drawn: dict[str, list[float]] = {}

    def greedy(extra: int, name: str):
        def train(rows, labels):
            if len(drawn.setdefault(name, [])) == 2:  # one teacher draws more than in the other run
                random.random(), np.random.random(extra), torch.rand(extra)  # noqa: NPY002
            drawn[name].append(random.random() + np.random.random() + float(torch.rand(())))  # noqa: NPY002
            return lambda queries: np.zeros(len(queries), int)

        return train

    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # noqa: NPY002
    for name, extra in (("a", 1), ("b", 17)):
        Teachers(greedy(extra, name), (x, y), n=6, groups=person, key=KEY, classes=2).fit()
    assert drawn["a"][:2] + drawn["a"][3:] == drawn["b"][:2] + drawn["b"][3:]
    assert len(set(drawn["a"])) == 6
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # noqa: NPY002
    assert before[:2] == after[:2]
    assert torch.equal(before[2], after[2])


def test_inside_one_secret_everything_repeats_and_outside_nothing_does():
    def draw() -> tuple[float, list[bool], str]:
        return float(add_gaussian(0.0, 1.0)), bernoulli(0.5, 64).tolist(), Key.generate().fingerprint()

    secret = os.urandom(32)
    seen = []
    for _ in range(2):
        with expanded(secret):
            seen.append(draw())
    assert seen[0] == seen[1]
    assert draw() not in (seen[0], draw())
    with expanded(os.urandom(32)):
        assert draw() != seen[0]
    with expanded(secret), pytest.raises(RuntimeError, match="already"), expanded(secret):
        pass
    with expanded(secret):
        values = add_gaussian(np.zeros(4000), 1.0)
    assert abs(np.mean(values)) < 6 / np.sqrt(4000)
    assert abs(np.std(values) - 1) < 6 / np.sqrt(2 * 4000)


@settings(max_examples=25)
@given(st.lists(st.integers(0, 60), max_size=3), st.integers(0, 2**32))
def test_any_division_of_the_rows_gives_the_same_sums(cuts, seed):
    rows = to_grid(np.random.default_rng(seed).uniform(-1, 1, (60, 3)))
    whole, order = Moments(3), np.random.default_rng(seed + 1).permutation(60)
    whole.add(rows)
    total = Moments(3)
    for part in np.split(rows[order], sorted(cuts)):
        there = Moments(3)
        there.add(part)
        if seed % 2:
            total.take(there.sums(), len(part))
        else:
            total.merge(there)
    assert (total.total() == whole.total()).all()
    assert total.rows == 60


def test_a_projection_begins_at_what_was_measured_and_privacy_adds_no_volume():
    links = projection.Links()
    for model in projection.models():
        for sharded in (False, True):
            assert projection.sent(model, 1, sharded) == 0
            memory = [projection.held(model, world, sharded) for world in projection.WORLDS]
            assert memory == sorted(memory, reverse=True)
            if model.private is None:
                continue
            for kind, measured in (("plain", model.plain), ("private", model.private), ("overlapped", model.private)):
                times = [projection.step(model, w, links, sharded=sharded, kind=kind) for w in projection.WORLDS]
                assert times[0] == pytest.approx(measured)
                assert times == sorted(times)
            for world in projection.WORLDS:
                found = [
                    projection.step(model, world, links, sharded=sharded, kind=kind)
                    for kind in ("overlapped", "private")
                ]
                assert found[0] <= found[1] * (1 + 1e-9)
        assert projection.sent(model, 8, False) == pytest.approx(2 * 7 / 8 * 4 * model.parameters)
