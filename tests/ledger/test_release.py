"""What leaves holds charged and public values only; what the operator sees stays with the operator."""

from __future__ import annotations

import copy
import json
import pickle
import stat

import numpy as np
import pytest

from tacit import accounting as acc
from tacit.ledger import (
    EvaluationData,
    Ledger,
    OperatorLog,
    OperatorView,
    PrivateValueError,
    Release,
    charged,
    public,
)


@pytest.fixture
def charge():
    ledger = Ledger()
    ledger.register("people", epsilon=1.0, delta=0.0)
    return ledger.charge("people", acc.PureDP(0.5))


def test_a_release_gives_the_values_and_says_why_each_may_leave(charge):
    release = Release({"mean": charged(0.4, charge), "rate": public(0.01, because="chosen in advance")})
    assert dict(release) == {"mean": 0.4, "rate": 0.01}
    assert release.source("mean") == f"charged to people (charge {charge.number})"
    assert release.source("rate") == "public: chosen in advance"
    assert json.loads(release.to_json()) == {"mean": 0.4, "rate": 0.01}


@pytest.mark.parametrize("value", [0.3, "text", None, [1, 2], {"a": 1}, np.float64(0.5)])
def test_a_bare_value_is_refused_by_name(value):
    with pytest.raises(PrivateValueError, match="'train_loss' is a bare"):
        Release({"train_loss": value})


def test_an_operator_view_enters_no_release_however_it_is_wrapped(charge):
    view = OperatorView(loss=0.3)
    with pytest.raises(PrivateValueError, match="'x' is an operator view"):
        Release({"x": view})
    for wrapped in (lambda: public(view), lambda: charged({"deep": [view]}, charge), lambda: public((1, {"a": view}))):
        with pytest.raises(PrivateValueError, match="operator view"):
            wrapped()


def test_something_is_charged_only_with_a_granted_charge():
    with pytest.raises(PrivateValueError, match="granted Charge"):
        charged(0.4, "people")


def test_a_release_is_frozen_and_grows_only_by_releases(charge):
    release = Release({"a": public(1)})
    with pytest.raises(AttributeError, match="frozen"):
        release.a = 2
    with pytest.raises(TypeError):
        release["b"] = 2
    bigger = release | {"b": charged(2, charge)} | Release({"c": public(3), "inner": release})
    assert bigger.to_dict() == {"a": 1, "b": 2, "c": 3, "inner": {"a": 1}}
    with pytest.raises(PrivateValueError, match="'d' is a bare int"):
        bigger | {"d": 4}
    assert pickle.loads(pickle.dumps(bigger)).source("b") == bigger.source("b")


def test_json_of_a_release_has_numbers_for_arrays_and_words_for_infinity():
    release = Release({"w": public(np.array([1.0, 2.0])), "epsilon": public(float("inf"))})
    assert json.loads(release.to_json()) == {"w": [1.0, 2.0], "epsilon": "inf"}


def test_an_operator_view_is_marked_and_is_taken_by_no_encoder():
    view = OperatorView(loss=0.3, clipped=12)
    assert "not covered by the guarantee" in repr(view)
    assert (view.loss, view.names()) == (0.3, ("loss", "clipped"))
    with pytest.raises(AttributeError, match="no 'accuracy'"):
        view.accuracy
    with pytest.raises(AttributeError, match="frozen"):
        view.loss = 0
    with pytest.raises(TypeError):
        json.dumps({"view": view})
    with pytest.raises(TypeError):
        dict(view)
    with pytest.raises(TypeError):
        {**view}


def test_a_pickle_leaves_the_operators_values_behind():
    view = OperatorView(loss=0.123456789)
    pickled = pickle.dumps({"model": [1, 2], "view": view})
    assert b"0.123456789" not in pickled
    back = pickle.loads(pickled)["view"]
    assert back.loss is None
    assert "left behind" in repr(back)
    assert copy.deepcopy(view).loss == 0.123456789


def test_the_operators_log_is_private(tmp_path):
    path = tmp_path / "operator.jsonl"
    log = OperatorLog(path)
    log.write(OperatorView(loss=np.float32(0.5), norms=np.array([1.0, 2.0])), step=3)
    log.write(OperatorView(loss=float("nan")))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert (first["loss"], first["norms"], first["step"]) == (0.5, [1.0, 2.0], 3)
    assert first["note"] == "operator view: not covered by the guarantee"
    assert second["loss"] == "nan"
    with pytest.raises(PrivateValueError, match="takes an OperatorView"):
        log.write({"loss": 1})


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_a_log_that_others_can_reach_is_refused(tmp_path, mode):
    path = tmp_path / "operator.jsonl"
    path.touch()
    path.chmod(mode)
    with pytest.raises(PrivateValueError, match=f"mode {mode:04o}"):
        OperatorLog(path)
    assert path.read_text() == ""


def test_a_log_opened_up_later_is_refused_at_the_next_line(tmp_path):
    path = tmp_path / "operator.jsonl"
    log = OperatorLog(path)
    path.chmod(0o644)
    with pytest.raises(PrivateValueError, match="can be reached by other users"):
        log.write(OperatorView(loss=1.0))
    assert path.read_text() == ""


def test_a_link_is_no_private_log(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PrivateValueError, match="cannot open"):
        OperatorLog(tmp_path / "link")


def test_evaluation_data_is_public_or_charged_or_stays_with_the_operator(charge):
    shown = EvaluationData.declared_public([1, 2], because="published benchmark").metric("accuracy", 0.9)
    assert Release({"accuracy": shown})["accuracy"] == 0.9
    held = EvaluationData.private([1, 2], dataset="people")
    with pytest.raises(PrivateValueError):
        Release({"accuracy": held.metric("accuracy", 0.9)})
    assert Release({"accuracy": held.metric("accuracy", 0.87, charge=charge)}).source("accuracy").startswith("charged")
    with pytest.raises(PrivateValueError, match="the charge is on 'people'"):
        EvaluationData.private([1], dataset="visits").metric("accuracy", 0.9, charge=charge)
    for wrong in ({}, {"because": "x", "dataset": "y"}):
        with pytest.raises(PrivateValueError, match=r"give because .* or dataset"):
            EvaluationData([1], **wrong)
    assert "[1]" not in repr(EvaluationData.private([1], dataset="people"))
