"""A key serves one run: two runs with the same noise would give away how their data differ."""

from __future__ import annotations

import pytest

from tacit.ledger import Ledger
from tacit.noise import Key
from tacit.sgd import CheckpointError
from tests.training.common import data, finish, run, same


def test_a_second_run_with_the_same_key_is_refused_before_it_is_charged(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.register("people", epsilon=100.0, delta=1e-3)
    key = Key.generate()
    finish(run(key=key))
    x, y = data()
    for given in (key, Key(key.reveal())):
        second = run(source=(-x, y), key=given, ledger=ledger, dataset="people")
        with pytest.raises(ValueError, match="another run of this process uses this key"):
            next(iter(second))
    assert ledger.history("people") == []


def test_a_run_that_drew_nothing_leaves_its_key_free():
    key = Key.generate()
    run(key=key)
    finish(run(key=key))


def test_the_key_that_a_run_made_serves_no_other():
    first = run(key=None)
    next(iter(first))
    with pytest.raises(ValueError, match="another run"):
        next(iter(run(key=first.keys.root)))


def test_a_resumed_run_goes_on_with_its_key_and_a_changed_one_is_refused(tmp_path):
    secret = Key.generate().reveal()
    settings = {"checkpoint": tmp_path / "run.ckpt", "checkpoint_every": 1}
    whole = finish(run(key=Key(secret, repeatable=True)))
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.register("people", epsilon=100.0, delta=1e-3)
    settings |= {"ledger": ledger, "dataset": "people"}
    # Of this process, the first to draw from these bytes was the run above.
    first = run(key=Key(secret, repeatable=True), **settings)
    for batch in first:
        first.step(batch)
        if first.steps_executed == 3:
            break
    with pytest.raises(CheckpointError, match="A fork needs a new key: leave key= out"):
        run(key=Key(secret), noise_multiplier=2.0, **settings)
    again = run(key=Key(secret), **settings)
    assert again.steps_executed == 3
    assert same(whole, finish(again))
