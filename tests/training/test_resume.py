"""Killed at any moment and resumed, a run equals the one that was never interrupted, and charges once."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tacit import accounting as acc
from tacit.ledger import BudgetExceeded, Ledger
from tacit.noise.keys import Key
from tacit.sgd import AdaptiveClipping, CheckpointError, DPAdam, PrivacyWarning
from tacit.sgd.training import checkpoint
from tests.training.common import data, finish, key, network, run, same, weights

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _keys(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


SETTINGS = {"steps": 8, "ema": 0.9, "adaptive": AdaptiveClipping(), "noise_multiplier": 0.8}


def dropped(tmp_path, **more):
    model = network(dropout=0.3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    settings = SETTINGS | {"checkpoint": tmp_path / "run.ckpt", "checkpoint_every": 1} | more
    torch.manual_seed(99)
    return run(model, optimizer=optimizer, scheduler=scheduler, **settings)


@pytest.mark.parametrize("kill", [0, 1, 4, 7, 8])
def test_a_run_interrupted_after_any_step_equals_the_uninterrupted_one(tmp_path, kill):
    expected = dropped(tmp_path / "whole")
    whole = finish(expected)
    first = dropped(tmp_path)
    for batch in first:
        if first.steps_executed == kill:
            break
        first.step(batch)
    torch.manual_seed(12345)  # whatever the new process did before
    second = dropped(tmp_path)
    assert second.steps_executed == kill
    assert same(whole, finish(second))
    assert same(expected.average, second.average)
    assert second.clip_norm == expected.clip_norm
    assert second.privacy == expected.privacy


@pytest.mark.parametrize("every", [1, 3, 5])
def test_steps_after_the_last_checkpoint_are_repeated_bit_by_bit(tmp_path, every):
    whole = finish(dropped(tmp_path / "whole"))
    first = dropped(tmp_path, checkpoint_every=every)
    seen = {}
    for batch in first:
        if first.steps_executed == 6:
            break
        first.step(batch)
        seen[first.steps_executed] = weights(first.model)
    second = dropped(tmp_path, checkpoint_every=every)
    assert second.steps_executed == 6 - 6 % every
    for batch in second:
        second.step(batch)
        if second.steps_executed in seen:
            assert same(seen[second.steps_executed], weights(second.model))
    assert same(whole, weights(second.model))


def test_a_checkpoint_is_whole_or_the_old_one_whatever_happens(tmp_path, monkeypatch):
    first = dropped(tmp_path)
    loop = iter(first)
    first.step(next(loop))

    def fails(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(checkpoint.os, "replace", fails)
    with pytest.raises(OSError, match="no space"):
        first.step(next(loop))
    monkeypatch.undo()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert dropped(tmp_path).steps_executed == 1
    assert [p.name for p in tmp_path.iterdir() if ".new" in p.name] == []


def test_a_run_that_ended_is_not_trained_again(tmp_path):
    done = dropped(tmp_path)
    whole = finish(done)
    again = dropped(tmp_path)
    assert again.done
    assert list(again) == []
    assert same(whole, weights(again.model))
    assert again.privacy == done.privacy


# -- keys ----------------------------------------------------------------------------------------------------------


def test_the_key_is_kept_apart_for_its_owner_only_and_destroyed_at_the_end(tmp_path):
    training = run(key=None, checkpoint=tmp_path / "run.ckpt", steps=3)
    batch = next(iter(training))
    files = list((tmp_path / "state" / "tacit" / "keys").iterdir())
    assert len(files) == 1
    assert stat.S_IMODE(files[0].stat().st_mode) == 0o600
    secret = files[0].read_bytes()[16:]
    assert secret not in (tmp_path / "run.ckpt").read_bytes()
    training.step(batch)
    finish(training)
    assert not files[0].exists()


def test_a_run_of_its_own_key_resumes_from_the_key_file(tmp_path):
    settings = {
        "key": None,
        "checkpoint": tmp_path / "run.ckpt",
        "checkpoint_every": 1,
        "key_file": tmp_path / "secret",
    }
    first = run(**settings)
    for batch in first:
        first.step(batch)
        if first.steps_executed == 3:
            break
    rows = next(iter(first)).rows
    second = run(**settings)
    assert second.steps_executed == 3
    assert (next(iter(second)).rows == rows).all()
    finish(second)
    assert not (tmp_path / "secret").exists()


def test_a_run_may_be_moved_with_its_key(tmp_path):
    def start(folder):
        files = {"checkpoint": tmp_path / folder / "run.ckpt", "key_file": tmp_path / folder / "secret"}
        return run(key=None, checkpoint_every=1, **files)

    first = start("here")
    for batch in first:
        first.step(batch)
        if first.steps_executed == 3:
            break
    shutil.copytree(tmp_path / "here", tmp_path / "copy")
    (tmp_path / "here").rename(tmp_path / "there")
    second = start("there")
    assert second.steps_executed == 3
    moved = finish(second)
    assert not (tmp_path / "there" / "secret").exists()
    assert same(moved, finish(start("copy")))


def test_a_key_file_of_another_run_is_refused_before_the_charge(tmp_path, ledger):
    Key.generate().save(tmp_path / "secret")
    training = run(key=None, ledger=ledger, dataset="people", checkpoint=tmp_path / "run.ckpt",
                   key_file=tmp_path / "secret")  # fmt: skip
    with pytest.raises(CheckpointError, match="key of another run"):
        next(iter(training))
    assert ledger.history("people") == []


def test_without_its_key_a_run_does_not_continue(tmp_path):
    settings = {"key": None, "checkpoint": tmp_path / "run.ckpt", "key_file": tmp_path / "secret"}
    next(iter(run(**settings)))
    (tmp_path / "secret").unlink()
    with pytest.raises(CheckpointError, match="the key, which is gone"):
        run(**settings)


def test_a_checkpoint_that_was_changed_is_refused(tmp_path):
    first = dropped(tmp_path)
    first.step(next(iter(first)))
    path = tmp_path / "run.ckpt"
    state, _, _ = checkpoint.read(path)
    state["step"] = 0
    checkpoint.write(path, state, key(9))
    with pytest.raises(CheckpointError, match="changed after it was written"):
        dropped(tmp_path)
    path.write_bytes(b"nonsense")
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        dropped(tmp_path)


# -- forks and the ledger ------------------------------------------------------------------------------------------


def charged(tmp_path, ledger, **more):
    settings = {"checkpoint": tmp_path / "run.ckpt", "checkpoint_every": 1, "key": None, "steps": 4}
    return run(ledger=ledger, dataset="people", **(settings | {"key_file": None} | more))


@pytest.fixture
def ledger(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.register("people", epsilon=20.0, delta=1e-3)
    return ledger


def begin(tmp_path, ledger, **more):
    first = charged(tmp_path, ledger, **more)
    for batch in first:
        first.step(batch)
        if first.steps_executed == 2:
            return first
    raise AssertionError


def test_a_resumed_run_is_charged_once(tmp_path, ledger):
    begin(tmp_path, ledger)
    second = charged(tmp_path, ledger)
    finish(second)
    history = ledger.history("people")
    assert len(history) == 1
    assert history[0].confirmed
    ledger.verify("people", reprice=True).require()


@pytest.mark.parametrize("what", ["data", "noise", "rate", "clip"])
def test_other_data_or_settings_are_a_fork_with_a_new_key_and_a_charge_of_its_own(tmp_path, ledger, what):
    first = begin(tmp_path, ledger)
    weights_then = weights(first.model)
    x, y = data()
    if what == "data":
        more = {"source": (x + 1e-9, y)}
    elif what == "noise":
        more = {"noise_multiplier": 1.1}
    elif what == "clip":
        more = {"clip_norm": 0.9}
    else:
        model = network()
        more = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.4, momentum=0.9)}
    with pytest.warns(PrivacyWarning, match="This run is a fork"):
        second = charged(tmp_path, ledger, **more)
    assert second.steps_executed == 0
    assert second.keys.root.fingerprint() != first.keys.root.fingerprint()
    assert same(weights_then, weights(second.model))
    finish(second)
    assert [r.confirmed for r in ledger.history("people")] == [False, True]
    both = acc.epsilon(first.plan.mechanism + second.plan.mechanism, 1e-5).upper
    assert second.privacy.upper == pytest.approx(both)
    assert second.privacy.upper > first.privacy.upper


def test_a_fork_without_budget_or_ledger_is_refused(tmp_path):
    small = Ledger(tmp_path / "small.db")
    small.register("people", epsilon=5.0, delta=1e-3)
    begin(tmp_path, small, noise_multiplier=1.0)
    with pytest.warns(PrivacyWarning), pytest.raises(BudgetExceeded):
        charged(tmp_path, small, noise_multiplier=0.5)
    first = run(checkpoint=tmp_path / "other.ckpt")
    next(iter(first))
    with pytest.raises(CheckpointError, match="needs a ledger"):
        run(checkpoint=tmp_path / "other.ckpt", noise_multiplier=2.0)


def test_a_run_whose_fork_was_refused_can_still_be_resumed(tmp_path):
    small = Ledger(tmp_path / "small.db")
    small.register("people", epsilon=5.0, delta=1e-3)
    begin(tmp_path, small, noise_multiplier=1.0)
    with pytest.warns(PrivacyWarning), pytest.raises(BudgetExceeded):
        charged(tmp_path, small, noise_multiplier=0.5)
    again = charged(tmp_path, small, noise_multiplier=1.0)
    assert again.steps_executed == 2
    finish(again)


def test_a_schedule_that_changes_the_optimizer_is_no_change_of_settings(tmp_path):
    def cycled(folder):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.5, total_steps=6)
        return run(model, optimizer=optimizer, scheduler=scheduler, checkpoint=folder / "run.ckpt", checkpoint_every=1)

    whole = finish(cycled(tmp_path / "whole"))
    first = cycled(tmp_path)
    for batch in first:
        first.step(batch)
        if first.steps_executed == 3:
            break
    assert same(whole, finish(cycled(tmp_path)))


def test_dp_adam_resumes(tmp_path):
    def adam(folder):
        model = network()
        return run(model, optimizer=DPAdam(model.parameters(), lr=0.1), checkpoint=folder / "c", checkpoint_every=2)

    whole = finish(adam(tmp_path / "whole"))
    first = adam(tmp_path)
    for batch in first:
        first.step(batch)
        if first.steps_executed == 4:
            break
    assert same(whole, finish(adam(tmp_path)))


def test_other_people_behind_the_same_records_are_other_data(tmp_path):
    settings = {"checkpoint": tmp_path / "run.ckpt", "batch_size": 10, "max_rows": 2}
    next(iter(run(groups=np.arange(120) // 4, **settings)))
    with pytest.raises(CheckpointError, match="the data changed"):
        run(groups=np.arange(120) % 30, **settings)


def test_a_checkpoint_whose_entry_is_missing_or_altered_is_refused(tmp_path, ledger):
    begin(tmp_path, ledger)
    with pytest.raises(CheckpointError, match="pass ledger="):
        run(checkpoint=tmp_path / "run.ckpt", key=None, steps=4)
    fresh = Ledger(tmp_path / "fresh.db")
    fresh.register("people", epsilon=20.0, delta=1e-3)
    with pytest.raises(CheckpointError, match="has no charge"):
        charged(tmp_path, fresh)

    import sqlite3

    with sqlite3.connect(tmp_path / "ledger.db") as base:
        tables = [r[0] for r in base.execute("select name from sqlite_master where type='table'")]
        changed = 0
        for name in tables:
            columns = [r[1] for r in base.execute(f"pragma table_info({name})")]
            if "body" in columns:
                triggers = base.execute("select name from sqlite_master where type='trigger'").fetchall()
                for (trigger,) in triggers:
                    base.execute(f"drop trigger {trigger}")
                changed += base.execute(
                    f"update {name} set body = replace(body, 'private training', 'private straining')"
                ).rowcount
        assert changed
    with pytest.raises(CheckpointError, match="altered"):
        charged(tmp_path, Ledger(tmp_path / "ledger.db"))


# -- real kills ----------------------------------------------------------------------------------------------------

# Loads torch once and forks a child for each life of the run, so that kills fall on training and not on imports.
SCRIPT = """
import os, random, signal, sys, time, traceback
from pathlib import Path
import torch
from tacit.ledger import Ledger, sql
from tests.training.common import finish, network, run

torch.set_num_threads(1)
finish(run(steps=1))  # what torch imports on first use

def life(folder, own):
    model = network(dropout=0.3)
    ledger = Ledger(folder / "ledger.db")
    ledger.register("people", epsilon=1000.0, delta=1e-3, charges=10)
    torch.manual_seed(5)
    more = {"key": None, "key_file": folder / "secret"} if own else {}
    training = run(
        model, steps=40, checkpoint=folder / "run.ckpt", checkpoint_every=3, ledger=ledger, dataset="people", **more
    )
    torch.save(finish(training), folder / "new.pt")
    os.replace(folder / "new.pt", folder / "done.pt")

own = bool(int(sys.argv[4]))

def child(folder):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            life(folder, own)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return pid

def ended(pid):
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, -signal.SIGKILL), code
    return code

root, wanted = Path(sys.argv[1]), int(sys.argv[2])
moments = random.Random(int(sys.argv[3]))
(root / "whole").mkdir()
began = time.perf_counter()
assert ended(child(root / "whole")) == 0
length = time.perf_counter() - began
kills = lives = 0
while kills < wanted:
    folder = root / f"killed{lives}"
    folder.mkdir()
    lives += 1
    here = 0
    while not (folder / "done.pt").exists():
        pid = child(folder)
        if here < 8:
            time.sleep(moments.uniform(0.0, length))
            os.kill(pid, signal.SIGKILL)
        here += ended(pid) != 0
    kills += here
    (folder / "kills").write_text(str(here))
print(kills)
"""


def killed(folder, kills, own=False):
    """Run the script until so many kills have hit; then compare every run with the one that was left alone.

    ``own``: each run has a key of its own, so there is nothing to compare with, and the key must be gone at the end.
    """
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    environment["XDG_STATE_HOME"] = str(folder / "state")
    told = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), str(kills), "1", str(int(own))],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    assert int(told.stdout) >= kills
    whole = torch.load(folder / "whole" / "done.pt")
    for one in folder.glob("killed*"):
        assert own or same(whole, torch.load(one / "done.pt"))
        assert not (one / "secret").exists()
        ledger = Ledger(one / "ledger.db")
        history = ledger.history("people")
        assert [record.confirmed for record in history] == [True]
        ledger.verify("people").require()


def test_a_process_killed_at_random_moments_ends_with_the_same_weights(tmp_path):
    killed(tmp_path, 4)


def test_a_process_with_its_own_key_ends_whenever_it_is_killed(tmp_path):
    killed(tmp_path, 4, own=True)


@pytest.mark.parametrize("moment", ["before the charge", "after the charge", "before the key", "after the key"])
def test_killed_before_anything_was_drawn_the_charge_is_taken_up(tmp_path, ledger, monkeypatch, moment):
    class Killed(BaseException):
        pass

    owner, name = (Ledger, "charge") if "charge" in moment else (Key, "save")
    real = getattr(owner, name)

    def killing(self, *rest, **more):
        if "after" in moment:
            real(self, *rest, **more)
        raise Killed

    monkeypatch.setattr(owner, name, killing)
    with pytest.raises(Killed):
        next(iter(charged(tmp_path, ledger, key_file=tmp_path / "secret")))
    monkeypatch.setattr(owner, name, real)
    training = charged(tmp_path, ledger, key_file=tmp_path / "secret")
    finish(training)
    assert [r.confirmed for r in ledger.history("people")] == [True]
    assert not (tmp_path / "secret").exists()


@pytest.mark.slow
def test_a_hundred_random_kills(tmp_path):
    killed(tmp_path, 100)


@pytest.mark.slow
def test_a_hundred_random_kills_of_runs_with_their_own_keys(tmp_path):
    killed(tmp_path, 100, own=True)
