"""What is drawn in another thread, before it is asked for, is what would be drawn when it is."""

import gc
import threading

import numpy as np
import pytest
import torch

from tacit.noise.keys import Key
from tacit.sgd.training.data import Batch, records
from tacit.sgd.training.prefetch import BackgroundDraw
from tacit.sgd.training.sampling import SAMPLERS, Poisson, make_sampler


def draw(sampler, key, step):
    return sampler.draw(key, step, sampler.size)


@pytest.mark.parametrize("name", list(SAMPLERS))
def test_units_drawn_ahead_are_those_of_the_step_whichever_is_asked_for_next(name):
    samplers, keys = [make_sampler(name, n, 20) for n in (200, 190)], [Key(bytes([k] * 32)) for k in (1, 2)]
    ahead = BackgroundDraw()
    # In order, one again, one left out, another key, another sampler.
    for s, k, step in [(0, 0, 0), (0, 0, 1), (0, 0, 1), (0, 0, 2), (0, 0, 5), (0, 1, 6), (0, 1, 7), (1, 1, 8)]:
        found = ahead.take(draw, (samplers[s], keys[k]), step)
        assert np.array_equal(found, draw(samplers[s], keys[k], step))
    # Something else for the same step.
    found = ahead.take(lambda *of: draw(*of) + 1, (samplers[1], keys[1]), 9)
    assert np.array_equal(found, draw(samplers[1], keys[1], 9) + 1)
    ahead.stop()


def test_nothing_is_drawn_behind_the_last_step_and_nothing_reads_a_key_that_is_wiped():
    steps = []

    def watched(sampler, key, step):
        steps.append(step)
        return draw(sampler, key, step)

    ahead, key, sampler = BackgroundDraw(), Key(bytes(32)), Poisson(50, 5)
    for step in range(3):
        ahead.take(watched, (sampler, key), step, last=step == 2)
    ahead.stop()
    assert steps == [0, 1, 2]  # each once, and none behind the last
    ahead.take(watched, (sampler, key), 0)
    ahead.stop()
    key.destroy()
    with pytest.raises(ValueError, match="destroyed"):
        ahead.take(watched, (sampler, key), 1)


def test_what_goes_wrong_in_a_draw_ahead_is_told_when_it_is_asked_for():
    def broken(step):
        if step == 1:
            raise OverflowError("no such step")
        return step

    ahead = BackgroundDraw()
    assert ahead.take(broken, (), 0) == 0
    with pytest.raises(OverflowError, match="no such step"):
        ahead.take(broken, (), 1)
    assert ahead.take(broken, (), 2) == 2
    ahead.stop()


def test_a_run_that_is_dropped_leaves_no_thread_behind():
    before = set(threading.enumerate())
    ahead = BackgroundDraw()
    ahead.take(pow, (2,), 1)
    (thread,) = set(threading.enumerate()) - before
    del ahead
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.parametrize("rows", [5, 8, 9, 0])
def test_a_batch_begun_in_advance_has_the_records_of_one_that_was_not(rows):
    x, index = torch.arange(20.0).view(10, 2), np.arange(rows, dtype=np.int64)[::-1].copy()
    batches = [Batch(0, index, None, records((x, torch.arange(10))), torch.device("cpu")) for _ in range(3)]
    batches[0].begin(8)
    batches[1].begin(3)  # for pieces that it then is not cut into
    found = [[(p.data[0][p.mask], p.data[1][p.mask], len(p.mask)) for p in b.pieces(8)] for b in batches]
    assert torch.equal(
        torch.cat([torch.zeros(0, dtype=torch.int64), *(y for _, y, _ in found[2])]), torch.tensor(index)
    )
    for other in found[:2]:
        assert len(other) == len(found[2]) == -(-rows // 8)
        for mine, theirs in zip(other, found[2], strict=True):
            assert torch.equal(mine[0], theirs[0])
            assert torch.equal(mine[1], theirs[1])
            assert mine[2] == 8
