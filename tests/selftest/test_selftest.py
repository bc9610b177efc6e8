"""The selftest looks at every room, says what share of it it ran, and skips nothing in silence."""

from __future__ import annotations

import ast
import json
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from tacit import noise
from tacit.audit.findings import Finding, holds
from tacit.cli import build
from tacit.linear_model import LinearRegression
from tacit.selftest import Examination, examine, tap
from tacit.selftest.battery import battery
from tacit.selftest.examination import findings_of
from tacit.selftest.laws import check_law
from tacit.selftest.mutants import MUTANTS
from tacit.selftest.reach import LEFT_OUT, ROOMS, SOURCE, Tracer, functions, statements
from tacit.selftest.scene import SIGNIFICANCE, Scene, refused


def _alarms(findings):
    return [finding.check for finding in findings if not finding.passes(SIGNIFICANCE)]


def test_every_room_on_which_a_guarantee_rests_has_a_scene_and_every_scene_of_a_new_room_a_mutant():
    assert {scene.room for scene in battery().values()} == set(ROOMS)
    hinted = {scene.room for scene in battery().values()} - {"sgd"}
    assert hinted <= {mutant.room for mutant in MUTANTS.values()}


def test_what_is_left_out_is_there_and_has_a_reason():
    for part, why in LEFT_OUT.items():
        file, _, function = part.partition(":")
        assert (SOURCE / file).exists(), part
        assert why
        if function:
            assert function in dict(functions(ast.parse((SOURCE / file).read_text()))), part


def test_the_quick_scenes_look_at_every_room_without_optional_packages_too():
    for needs in (True, False):
        quick = [s for s in battery().values() if not s.long and (needs or not s.needs)]
        assert {scene.room for scene in quick} == set(ROOMS)


def test_an_unexpected_error_is_an_alarm_and_not_a_pass():
    def check(seed):
        raise ZeroDivisionError("oh")

    assert _alarms(findings_of(Scene("broken", "sgd", check), 0)) == ["error (broken)"]


def test_an_examination_without_findings_does_not_pass():
    assert not Examination({}, {}, {}, {}).passes
    assert not Examination({"a": [holds("x", False, "")]}, {}, {}, {}).passes


def test_a_scene_whose_package_is_absent_is_named(monkeypatch):
    scene = Scene("absent", "sgd", lambda seed: [], ("no_such_package",))
    monkeypatch.setattr("tacit.selftest.examination.battery", lambda: {"absent": scene})
    found = examine(reach=False)
    assert found.skipped == {"absent": "no_such_package is not installed"}
    assert not found.passes


@pytest.mark.parametrize(
    ("change", "alarm"),
    [
        (lambda z: z, ""),
        (lambda z: np.clip(z, -3, 3), "noise tails"),
        (lambda z: z * (np.arange(z.shape[1]) > 0), "noise in every place"),
        (lambda z: z * (np.arange(z.shape[1]) != 321), "noise in every place"),
        (lambda z: 0.95 * z, "noise variance"),
        (lambda z: np.tile(z[:1], (len(z), 1)), "noise used once"),
    ],
)
def test_noise_is_seen_in_every_place_and_out_to_its_tails(change, alarm):
    z = np.random.default_rng(3).standard_normal((25, 1700))
    alarms = _alarms(check_law(list(change(z))))
    assert (alarm in alarms) if alarm else alarms == []


def test_the_tap_hears_what_is_under_noise_and_what_is_not():
    def work(data, beside=0.0):
        return float(noise.add_gaussian(sum(data), 2.0)) + beside * len(data)

    first, heard = tap.listen(lambda: work([1.0, 2.0]))
    again, also = tap.listen(lambda: work([1.0, 2.0, 1.0]), heard)
    assert first == again
    assert tap.gaussian_cost(heard, also) == pytest.approx(0.5)
    leaking, heard = tap.listen(lambda: work([1.0, 2.0], beside=1.0))
    assert leaking != tap.listen(lambda: work([1.0, 2.0, 1.0], beside=1.0), heard)[0]
    with pytest.raises(tap.PathDiffers):
        tap.listen(lambda: (work([1.0]), work([1.0])), heard)
    x = np.random.default_rng(0).uniform(-1, 1, (30, 2))
    fitted = LinearRegression(bounds=(-1, 1), target_bounds=(-1, 1)).fit(x, x[:, 0])  # the tap is gone again
    assert np.isfinite(fitted.coef_).all()


def test_refused_tells_an_accepted_case_from_a_refused_one_and_from_the_wrong_error():
    def wrong():
        raise KeyError("x")

    good = {"a": (lambda: int("x"), ValueError)}
    assert refused("cases", good).p_value == 1.0
    assert refused("cases", good | {"b": (lambda: 1, ValueError)}).p_value == 0.0
    assert refused("cases", good | {"c": (wrong, ValueError)}).p_value == 0.0


def test_the_share_of_statements_counts_what_was_run_inside_functions():
    assert statements("x = 1\ndef f():\n    '''text'''\n    if x:\n        return 1\n    return 2\n") == (
        (4, 4),
        (5, 5),
        (6, 6),
    )
    text = "class A:\n    def f(self):\n        return 1\n    def g(self):\n        return 2\n"
    assert statements(text, frozenset({"A.f"})) == ((5, 5),)
    if sys.gettrace() is not None and not hasattr(sys, "monitoring"):
        pytest.skip("another tool traces this process")
    tracer = Tracer()
    with tracer:
        holds("not of a room that is counted", True, "")
        noise.default_granularity(1.0)
    reach = tracer.reach()
    assert 0 < reach["noise"].run < 40
    assert reach["schema"].run == 0
    assert set(reach) == set(ROOMS)


def test_the_command_refuses_what_it_cannot_do():
    run = CliRunner().invoke(build(), ["selftest", "--quick", "noise"])
    assert run.exit_code == 2
    assert CliRunner().invoke(build(), ["selftest", "there is none"]).exit_code == 2


def test_the_command_prints_shares_alarms_and_what_was_not_covered(monkeypatch):
    scenes = {
        "good": Scene("good", "noise", lambda seed: [Finding("fine", 0.5, "")]),
        "bad": Scene("bad", "ledger", lambda seed: [holds("sum of δ", False, "δ is not summed")]),
        "absent": Scene("absent", "prompts", lambda seed: [], ("no_such_package",)),
    }
    monkeypatch.setattr("tacit.selftest.examination.battery", lambda: scenes)
    monkeypatch.setattr("tacit.selftest.battery.battery", lambda: scenes)
    told = CliRunner().invoke(build(), ["selftest", "--quick"], env={"COLUMNS": "200"})
    assert told.exit_code == 4
    for text in ("statements run", "ALARM sum of δ", "not covered: absent", "tacit itself FAILS", "sgd/kernels"):
        assert text in told.output
    told = CliRunner().invoke(build(), ["selftest", "--quick", "--json"])
    assert not json.loads(told.stdout)["tacit"]["passes"]


@pytest.mark.slow
def test_the_command_shows_which_check_caught_what():
    told = CliRunner().invoke(build(), ["selftest", "votes get half", "--json"])
    assert told.exit_code == 0, told.output
    found = json.loads(told.stdout)
    assert found["tacit"]["passes"]
    assert found["mutants"][0]["caught_by"].startswith("votes")
    assert all(reach["share"] >= 0.8 for reach in found["tacit"]["reach"].values())
