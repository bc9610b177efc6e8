"""What a person meets who types ``tacit plan``: everything that can be known before a record is read."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tacit import accounting as acc
from tacit.cli import build

USUAL = ("--epsilon", "1", "--delta", "1e-6", "--epochs", "20", "--batch", "1024", "--model", "linear")


def tacit(*words: str):
    return CliRunner().invoke(build(), ["plan", *words])


@pytest.fixture(scope="module")
def told():
    return json.loads(tacit("labsup", *USUAL, "--json").output)


def test_the_noise_keeps_the_guarantee(told):
    assert told["steps"] == 20 * 32
    run = acc.PoissonSampled(acc.Gaussian(told["noise"], unit="person"), 1024 / 31857) * 640
    bound = acc.epsilon(run, 1e-6)
    assert 0.999 < bound.upper <= 1.0
    assert told["epsilon"]["upper"] == pytest.approx(bound.upper)
    assert told["terms"] == "add/remove one person"
    assert told["accountants"]["rdp"] > told["accountants"]["certified"] > told["accountants"]["gdp"]


def test_time_memory_and_the_model_are_told(told):
    assert told["parameters"] == 22
    assert told["seconds"] == pytest.approx(640 * told["seconds_a_step"])
    assert told["bytes"] > 31857 * 4 * 10


def test_changes_are_ranked_by_what_they_gain(told):
    gains = [row["times"] for row in told["changes"]]
    assert gains == sorted(gains)
    by = {row["change"]: row for row in told["changes"]}
    assert by["63,714 records"]["times"] == pytest.approx(0.5, abs=0.05)
    assert by["ε = 2"]["times"] < 0.7
    assert by["40 epochs"]["times"] > 0.9


def test_a_model_is_not_told_to_be_smaller_than_a_linear_one(told):
    assert not any("parameters" in row["change"] for row in told["changes"])
    larger = json.loads(tacit("labsup", *USUAL[:-1], "mlp", "--json").output)
    assert any("a quarter of the parameters" in row["change"] for row in larger["changes"])


def test_a_small_batch_is_told_to_grow_or_to_correlate_its_noise():
    words = ("labsup", "--epsilon", "1", "--delta", "1e-6", "--epochs", "5", "--batch", "16")
    by = {row["change"]: row for row in json.loads(tacit(*words, "--json").output)["changes"]}
    (banded,) = [name for name in by if name.startswith("--noise banded")]
    larger = "a batch of 64 for as many epochs"
    assert by[banded]["times"] < by[larger]["times"] < 1
    assert f"helps most without costing privacy: {banded}" in tacit(*words).output


def test_no_record_is_read(monkeypatch, empty_home):
    from tacit import datasets

    def refuse(*_, **__):
        raise AssertionError("a record was read")

    monkeypatch.setattr(datasets, "load", refuse)
    monkeypatch.setattr(datasets, "obtain", refuse)
    told = tacit("adult", *USUAL)
    assert told.exit_code == 0, told.output


def test_a_schema_of_ones_own(tmp_path):
    path = tmp_path / "s.toml"
    path.write_text(
        '[unit]\nname = "household"\n[columns.a]\nkind = "numeric"\nlower = 0\nupper = 1\n'
        '[columns.b]\nkind = "numeric"\nlower = 0\nupper = 1\ntarget = true\n'
    )
    told = tacit("--schema", str(path), "--examples", "5000", *USUAL)
    assert told.exit_code == 0, told.output
    assert "add/remove one household" in told.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nowhere", *USUAL), "there is no data set 'nowhere'"),
        ((*USUAL,), "name a known data set"),
        (("labsup", "--delta", "1e-6", "--epochs", "1"), "give --epsilon"),
        (("labsup", "--epsilon", "1", "--epochs", "1"), "give --delta"),
        (("labsup", "--epsilon", "1", "--delta", "1e-6"), "give --epochs or --steps"),
        (("labsup", *USUAL, "--batch", "40000"), "--batch must be between 1 and the 31857 records"),
        (("labsup", *USUAL, "--model", "tree"), "there is no model 'tree'"),
    ],
)
def test_a_mistake_is_told(words, message):
    told = tacit(*words)
    assert told.exit_code in (1, 2)
    assert message in told.output
    assert "Traceback" not in told.output


def test_people_and_rows_are_compared_from_public_numbers():
    usual = ["--users", "2000", "--rows-per-user", "6", "--epsilon", "2", "--delta", "1e-6", "--steps", "100"]
    told = json.loads(tacit(*usual, "--batch", "200", "--json").stdout)
    ways = {(way["draw"], way["max_rows"]): way for way in told["ways"]}
    assert set(ways) == {(draw, most) for draw in ("units", "rows") for most in (1, 2, 4, 6)}
    for (draw, most), way in ways.items():
        rate = way["batch_size"] / (2000 * (most if draw == "rows" else 1))
        run = acc.PoissonSampled(acc.Gaussian(way["noise"]), rate) * 100
        group = most if draw == "rows" else 1
        assert acc.epsilon(run, 1e-6, group=group).upper == pytest.approx(2.0, rel=1e-4)
        assert way["noise_of_a_step"] == way["noise"] / way["batch_size"]
    least = min(way["noise_of_a_step"] for way in ways.values())
    assert told["cheapest"]["noise_of_a_step"] <= 1.01 * least
    shown = tacit(*usual, "--batch", "200")
    assert "cheapest: draw='units', max_rows=1, batch_size=200" in shown.stdout
    assert tacit("--users", "10", "--epsilon", "1").exit_code == 2
    assert tacit(*usual, "labsup").exit_code == 2
