"""A ledger is one ledger, however often the object that holds it is copied, pickled or forked."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import types

import joblib
import pytest
from sklearn.base import BaseEstimator, clone

from tacit import accounting as acc
from tacit.ledger import BudgetExceeded, CopyError, Ledger


class Estimator(BaseEstimator):
    """The smallest estimator that charges a ledger when it is fitted."""

    def __init__(self, ledger=None, epsilon=0.1):
        self.ledger = ledger
        self.epsilon = epsilon

    def fit(self):
        with self.ledger.charge("people", acc.PureDP(self.epsilon)):
            self.fitted_ = True
        return self


def fit(estimator):
    try:
        estimator.fit()
    except BudgetExceeded:
        return False
    return True


def test_copies_in_one_process_share_the_ledger(ledger):
    ledger.register("people", epsilon=1.0, delta=0.0)
    assert copy.copy(ledger) is ledger
    assert copy.deepcopy([ledger])[0] is ledger
    estimator = Estimator(ledger, 0.25)
    for other in (clone(estimator), clone(clone(estimator)), copy.deepcopy(estimator)):
        assert other.ledger is ledger
        other.fit()
    assert ledger.budget("people").spent_epsilon == 0.75


def test_a_pickled_ledger_is_the_same_ledger(address):
    ledger = Ledger(address)
    ledger.register("people", epsilon=1.0, delta=0.0)
    other = pickle.loads(pickle.dumps(Estimator(ledger, 0.25)))
    other.fit()
    assert ledger.budget("people").spent_epsilon == 0.25


def test_a_charge_can_be_confirmed_in_another_copy(address):
    ledger = Ledger(address)
    ledger.register("people", epsilon=1.0, delta=0.0)
    charge = pickle.loads(pickle.dumps(ledger.charge("people", acc.PureDP(0.5))))
    charge.confirm()
    assert ledger.budget("people").unconfirmed == 0


def test_parallel_workers_share_one_budget(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ledger = Ledger("people.db")  # a relative path, found by workers in any folder
    ledger.register("people", epsilon=1.0, delta=0.0)
    granted = joblib.Parallel(n_jobs=2)(joblib.delayed(fit)(Estimator(ledger, 0.1)) for _ in range(16))
    assert sum(granted) == 10
    assert ledger.budget("people").left_epsilon == 0.0


def test_a_forked_child_charges_the_same_ledger(address):
    ledger = Ledger(address)
    ledger.register("people", epsilon=1.0, delta=0.0)
    ledger.charge("people", acc.PureDP(0.25))
    child = os.fork()
    if child == 0:
        try:
            ledger.charge("people", acc.PureDP(0.5)).confirm()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert ledger.budget("people").spent_epsilon == 0.75
    ledger.verify().require()


def test_a_ledger_in_memory_refuses_to_be_in_two_processes():
    ledger = Ledger()
    ledger.register("people", epsilon=1.0, delta=0.0)
    with pytest.raises(CopyError, match=r"grant the whole budget a second time.*people\.db"):
        pickle.dumps(Estimator(ledger))
    child = os.fork()
    if child == 0:
        try:
            ledger.charge("people", acc.PureDP(0.5))
        except CopyError as error:
            os._exit(7 if "forked" in str(error) else 1)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    ledger.charge("people", acc.PureDP(1.0))  # the parent goes on


@pytest.mark.postgres
def test_a_pickle_never_carries_the_password(postgres):
    address = postgres.new_database()
    ledger = Ledger(address)
    ledger.register("people", epsilon=1.0, delta=0.0)
    pickled = pickle.dumps(Estimator(ledger, 0.25))
    assert b"correct-horse" not in pickled
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer).ledger.datasets())"
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PG")} | {"PGPASSFILE": "/nonexistent"}
    command = [sys.executable, "-c", code]
    pickled = pickle.dumps(types.SimpleNamespace(ledger=ledger))
    with_it = subprocess.run(
        command, input=pickled, env=clean | {"PGPASSWORD": "correct-horse-7"}, capture_output=True, check=False
    )
    assert with_it.stdout.decode().strip() == "['people']", with_it.stderr.decode()
    without = subprocess.run(command, input=pickled, env=clean, capture_output=True, check=False)
    assert "AccessDenied" in without.stderr.decode()
    assert "A pickle does not carry it" in without.stderr.decode()
