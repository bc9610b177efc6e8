"""What a person sees who types ``tacit epsilon`` or ``tacit calibrate``."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tacit import accounting as acc
from tacit.cli import build

RUN = ["--batch", "256", "--examples", "60000", "--epochs", "15", "--delta", "1e-5"]


@pytest.fixture
def tacit():
    runner = CliRunner()
    return lambda *words: runner.invoke(build(), list(words))


def test_epsilon_prints_the_interval_the_comparison_and_a_sentence(tacit):
    told = tacit("epsilon", "--noise", "1.1", *RUN)
    assert told.exit_code == 0
    first, *rest = told.output.splitlines()
    assert first.startswith("ε in [1.1338")
    assert "at δ=1e-05, add/remove one record" in first
    assert "* 3516" in rest[0]  # 15 · 60000 / 256 = 3515.6, rounded up
    assert [line.split()[0] for line in rest[4:10]] == list(acc.accountants.ACCOUNTANTS)
    assert "With or without any one record" in rest[-1]
    assert rest[-1].endswith("Stated for: add/remove one record.")


def test_json_is_the_same_for_programs(tacit):
    told = json.loads(tacit("epsilon", "--noise", "1.1", *RUN, "--json").output)
    run = acc.PoissonSampled(acc.Gaussian(1.1), 256 / 60000) * 3516
    assert acc.from_dict(told["mechanism"]) == run
    assert told["epsilon"]["upper"] == acc.epsilon(run, 1e-5).upper
    assert {row["accountant"] for row in told["comparison"]["accountants"]} == set(acc.accountants.ACCOUNTANTS)
    assert told["times"] == 3516
    assert "record" in told["sentence"]


def test_calibrate_finds_noise_that_never_exceeds_the_target(tacit):
    told = json.loads(tacit("calibrate", "--epsilon", "3", *RUN, "--json").output)
    assert told["calibrated"]["parameter"] == "noise"
    assert 3 - 1e-4 <= told["epsilon"]["upper"] <= 3
    shown = tacit("calibrate", "--epsilon", "3", *RUN).output
    printed = float(shown.split("noise = ")[1].split()[0])
    again = json.loads(tacit("epsilon", "--noise", str(printed), *RUN, "--json").output)
    assert again["epsilon"]["upper"] <= 3


@pytest.mark.parametrize(
    ("left_out", "words"),
    [
        ("steps", ["--noise", "1.1", "--rate", "0.01", "--delta", "1e-5"]),
        ("rate", ["--noise", "1.1", "--steps", "5000", "--delta", "1e-5"]),
        ("delta", ["--noise", "1.1", "--rate", "0.01", "--steps", "5000"]),
    ],
)
def test_calibrate_finds_whatever_was_left_out(tacit, left_out, words):
    told = json.loads(tacit("calibrate", "--epsilon", "3", *words, "--json").output)
    assert told["calibrated"]["parameter"] == left_out
    assert told["epsilon"]["upper"] <= 3
    assert told["epsilon"]["upper"] > 2.999


@pytest.mark.parametrize(
    ("words", "mechanism", "adjacency"),
    [
        (["--sampler", "fixed"], acc.FixedSizeSampled(acc.Gaussian(1.1), 256, 60000) * 3516, "add-remove"),
        (
            ["--sampler", "truncated", "--max-batch", "400"],
            acc.TruncatedPoissonSampled(acc.Gaussian(1.1), 256 / 60000, 60000, 400) * 3516,
            "add-remove",
        ),
        (["--sampler", "shuffled", "--adjacency", "zero-out"], acc.Shuffled(acc.Gaussian(1.1), 235) * 15, "zero-out"),
        (["--sampler", "balls-in-bins"], acc.BallsInBins(acc.Gaussian(1.1), 235) * 15, "add-remove"),
        (["--adjacency", "replace-one"], acc.PoissonSampled(acc.Gaussian(1.1), 256 / 60000) * 3516, "replace-one"),
    ],
)
def test_every_sampler_and_adjacency_is_the_one_that_is_priced(tacit, words, mechanism, adjacency):
    told = json.loads(tacit("epsilon", "--noise", "1.1", *RUN, *words, "--json").output)
    assert acc.from_dict(told["mechanism"]) == mechanism
    assert told["epsilon"]["upper"] == acc.epsilon(mechanism, 1e-5, adjacency=adjacency).upper


def test_samplers_are_compared_for_the_same_run(tacit, monkeypatch):
    asked = []

    def compared(mechanism, **terms):
        asked.append((mechanism, terms))
        prices = {("poisson", "zero-out"): acc.epsilon(acc.Gaussian(2.0), 1e-5, adjacency="zero-out")}
        return acc.SamplerPrices({"poisson": mechanism}, prices, {}, 1e-5, 8, 2, "record", 1)

    monkeypatch.setattr(acc, "compare_samplers", compared)
    words = ["epsilon", "--noise", "2", "--batch", "50", "--examples", "200", "--epochs", "2", "--delta", "1e-5"]
    told = json.loads(tacit(*words, "--samplers", "--json").output)
    assert told["samplers"][0]["epsilon"]["zero-out"]["upper"] > 1.9
    assert "8 steps (2 passes) for one record" in tacit(*words, "--samplers").output
    terms = {"batch": 50, "examples": 200, "steps": 8, "delta": 1e-5, "max_batch": None, "group": 1}
    assert asked == [(acc.Gaussian(2.0), terms)] * 2
    refused = tacit("epsilon", "--noise", "2", "--rate", "0.1", "--steps", "5", "--delta", "1e-5", "--samplers")
    assert refused.exit_code == 2
    assert "--batch and --examples" in refused.stderr


def test_what_an_attack_could_find_out_is_told_on_request(tacit):
    words = ["epsilon", "--noise", "2", "--rate", "1", "--steps", "1", "--delta", "1e-5", "--risk"]
    assert "members found at a false positive rate of" in tacit(*words).output
    risk = json.loads(tacit(*words, "--json").output)["risk"]
    assert risk["advantage"][1] == pytest.approx(0.19741, abs=1e-5)


def test_groups_and_units_are_said(tacit):
    told = tacit("epsilon", "--noise", "4", *RUN, "--group", "4", "--unit", "visit").output
    assert "add/remove 4 visits together" in told
    assert "any 4 visits together" in told


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["epsilon", "--noise", "1", "--rate", "1.5", "--steps", "10", "--delta", "1e-5"], "[0, 1]"),
        (["epsilon", "--noise", "-1", *RUN], "noise multiplier"),
        (["epsilon", "--noise", "nan", *RUN], "noise multiplier"),
        (["epsilon", "--noise", "1", "--rate", "0.1", "--steps", "10", "--delta", "2"], "below 1"),
        (["epsilon", "--noise", "1", "--rate", "0.1", "--steps", "10", "--delta", "-1e-5"], "below 1"),
        (["epsilon", "--noise", "1", "--rate", "0.1", "--steps", "10"], "--delta"),
        (["epsilon", "--noise", "1", "--rate", "0.1", "--delta", "1e-5"], "--steps or --epochs"),
        (["epsilon", "--rate", "0.1", "--steps", "10", "--delta", "1e-5"], "--noise"),
        (["epsilon", "--noise", "1", "--steps", "10", "--delta", "1e-5"], "--rate"),
        (["epsilon", "--noise", "1", "--rate", "0.1", "--steps", "-3", "--delta", "1e-5"], "0 or more"),
        (["epsilon", "--noise", "1", "--rate", "0.1", "--epochs", "nan", "--delta", "1e-5"], "0 or more"),
        (["epsilon", "--noise", "1", *RUN, "--rate", "0.1"], "either --rate"),
        (["epsilon", "--noise", "1", *RUN, "--steps", "7"], "either --steps"),
        (["epsilon", "--noise", "1", *RUN, "--adjacency", "swap"], "choose one of"),
        (["epsilon", "--noise", "1", *RUN, "--group", "0"], "group"),
        (["epsilon", "--noise", "1", *RUN, "--sampler", "random"], "unknown sampler"),
        (["epsilon", "--noise", "1", *RUN, "--sampler", "truncated"], "--max-batch"),
        (["epsilon", "--noise", "1", *RUN, "--sampler", "shuffled"], "replace-one and zero-out"),
        (
            ["epsilon", "--noise", "1", "--rate", "0.1", "--steps", "5", "--delta", "1e-5", "--sampler", "fixed"],
            "needs",
        ),
        (["epsilon", "--noise", "1", "--batch", "11", "--examples", "10", "--steps", "1", "--delta", "1e-5"], "drawn"),
        (["calibrate", "--epsilon", "0", *RUN], "above 0"),
        (["calibrate", "--epsilon", "inf", *RUN], "finite"),
        (["calibrate", "--epsilon", "3", "--rate", "0.1"], "only one of"),
        (["calibrate", "--epsilon", "3", "--noise", "1", *RUN], "leave one out"),
        (["calibrate", "--epsilon", "3", "--rate", "0.1", "--steps", "0", "--delta", "1e-5"], "0 steps"),
    ],
)
def test_bad_input_is_told_apart_and_leaves_with_two(tacit, words, said):
    told = tacit(*words)
    assert told.exit_code == 2
    assert said in told.stderr
    assert "Traceback" not in told.stderr


def test_a_target_out_of_reach_leaves_with_one(tacit):
    told = tacit("calibrate", "--epsilon", "1e-9", "--noise", "1.1", "--rate", "0.01", "--delta", "1e-5")
    assert told.exit_code == 1
    assert "out of reach" in told.stderr


def test_no_steps_and_no_noise_have_right_answers(tacit):
    nothing = tacit("epsilon", "--noise", "1", "--rate", "0.01", "--steps", "0", "--delta", "1e-5")
    assert nothing.output.startswith("ε in [0, 0]")
    everything = tacit("epsilon", "--noise", "0", *RUN)
    assert everything.output.startswith("ε in [inf, inf]")
    assert "No protection is claimed" in everything.output
    plain = json.loads(tacit("epsilon", "--noise", "0", *RUN, "--json").output)
    assert plain["epsilon"]["upper"] == "inf"


def test_a_plot_is_drawn_where_asked(tacit, tmp_path: Path):
    drawn = tmp_path / "epsilon.svg"
    told = tacit(
        "epsilon", "--noise", "1.1", "--rate", "0.01", "--steps", "300", "--delta", "1e-5", "--plot", str(drawn)
    )
    assert told.exit_code == 0
    assert str(drawn) in told.output
    text = drawn.read_text()
    assert text.startswith("<?xml")
    assert text.count("<path") > 20
    nothing = tacit("epsilon", "--noise", "1", "--rate", "0.1", "--steps", "0", "--delta", "1e-5", "--plot", str(drawn))
    assert nothing.exit_code == 2


def test_help_teaches_with_examples(tacit):
    assert "$ tacit epsilon --noise 1.1" in tacit("epsilon", "--help").output
    assert "$ tacit calibrate --epsilon 3" in tacit("calibrate", "--help").output


def test_a_price_loads_nothing_heavy():
    code = (
        "import sys\n"
        "from tacit.cli import main\n"
        "sys.argv = ['tacit', *sys.argv[1:]]\n"
        "try: main()\n"
        "except SystemExit as leave: assert not leave.code\n"
        "heavy = ('torch', 'polars', 'sklearn', 'matplotlib', 'scipy.optimize', 'scipy.stats', 'scipy.integrate')\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    told = subprocess.check_output([sys.executable, "-c", code, "epsilon", "--noise", "1.1", *RUN], text=True)
    assert told.strip().splitlines()[-1] == "[]"


def test_the_sentence_holds_for_the_rounded_number():
    from tacit.cli.accounting import sentence

    bound = acc.epsilon(acc.Gaussian(3.0), 1e-5)
    said = float(sentence(bound).split("e^")[1].split(" ")[0])
    assert bound.upper <= said <= bound.upper + 1e-3
    assert math.isfinite(said)


def test_at_delta_zero_gaussian_noise_has_no_pure_guarantee(tacit):
    told = tacit("epsilon", "--noise", "1", "--rate", "0.1", "--steps", "5", "--delta", "0")
    assert told.exit_code == 0
    assert "ε in [inf, inf] at δ=0" in told.stdout
    assert "No pure guarantee holds" in told.stdout
    assert tacit("calibrate", "--epsilon", "3", "--rate", "0.1", "--steps", "5", "--delta", "0").exit_code == 1
