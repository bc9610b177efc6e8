"""The privacy card says what was claimed, to whom, on which terms, and holds nothing that may not leave."""

from __future__ import annotations

import copy
import json
import math
import re

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from tacit import accounting as acc
from tacit.ledger import EvaluationData, Ledger, PrivateValueError, Release
from tacit.ledger.release import Charged, Public
from tacit.linear_model import LinearRegression, LogisticRegression, PrivacyWarning
from tacit.report import (
    CardError,
    Evaluation,
    Run,
    describe,
    describe_fit,
    make_card,
    read_card,
    schema,
    to_json,
    write_card,
)
from tacit.report.check import problems
from tacit.report.words import claim, rounded
from tacit.sgd import Training
from tests.report.common import run, trained


@pytest.fixture(scope="module")
def ledger():
    return Ledger()


@pytest.fixture(scope="module")
def card(ledger):
    return make_card(run(ledger))


def leaves(release: Release, path: str = ""):
    for key, value in release._values.items():
        place = f"{path}.{key}" if path else key
        if isinstance(value, Release):
            yield from leaves(value, place)
        else:
            yield place, value


def test_every_value_of_the_card_is_charged_or_public_and_says_why(card):
    found = dict(leaves(card))
    assert len(found) > 60
    assert all(isinstance(value, Charged | Public) for value in found.values())
    assert isinstance(found["run.model"], Charged)
    document = json.loads(to_json(card))
    assert set(document["sources"]) == set(found)
    assert all(why.startswith(("charged to ", "public: ")) for why in document["sources"].values())


def test_the_card_answers_the_checklists(card, ledger):
    told = json.loads(to_json(card))
    guarantee = told["guarantee"]
    assert guarantee["epsilon"]["lower"] <= guarantee["epsilon"]["upper"] <= guarantee["epsilon"]["claimed"] <= 2.0
    assert (guarantee["delta"], guarantee["adjacency"], guarantee["unit"]) == (1e-6, "zero-out", "person")
    assert told["mechanism"]["steps_planned"] == told["mechanism"]["steps_executed"] == 20
    assert told["mechanism"]["parameters"]["clip"] == [[1.0, 20]]
    assert told["mechanism"]["parameters"]["sampler"] == {"name": "poisson", "size": 300, "batch_size": 30}
    assert "ChaCha" in told["mechanism"]["noise_generator"]
    assert acc.from_dict(told["mechanism"]["description"]).unit == "person"
    assert told["accesses"]["records_public"] is True
    assert told["accesses"]["records"] == 300
    assert told["accesses"]["tuning"] == "on public data only"
    assert told["accesses"]["uncovered"] == []
    assert told["checks"]["audit"]["verdict"] == "not audited"
    assert len(told["checks"]["self_checks"]) == 2
    assert told["ledger"]["head"] == ledger.head("people")
    assert told["ledger"]["confirmed"] is True
    assert told["data"]["fingerprint"].startswith("rows-keyed:")
    assert told["statement"]["trust_model"].startswith("central")
    assert told["accountant"]["version"] == told["card"]["library"].split()[1]


def test_epsilon_is_an_interval_and_a_curve_that_contains_it(card):
    guarantee = card["guarantee"]
    at = {row["delta"]: row for row in guarantee["epsilon_of_delta"]}
    assert at[1e-6]["upper"] == pytest.approx(guarantee["epsilon"]["upper"], abs=1e-6)
    values = [row["upper"] for row in guarantee["epsilon_of_delta"] if row["delta"] >= 1e-9]
    assert values == sorted(values)
    over = guarantee["over_steps"]
    assert over["steps"][-1] == 20
    assert over["upper"][-1] == pytest.approx(guarantee["epsilon"]["upper"], abs=1e-6)
    assert over["upper"] == sorted(over["upper"])
    for curve in ("profile", "tradeoff", "over_steps"):
        assert all(a <= b for a, b in zip(guarantee[curve]["lower"], guarantee[curve]["upper"], strict=True))


@pytest.mark.parametrize("put", ['"claimed": 0.3, {}', '{}, "claimed": 0.3'])
def test_a_value_that_stands_twice_is_refused_since_readers_take_one_or_the_other(card, tmp_path, put):
    """An audit read the last ε, agreed, and a reader who takes the first one saw a smaller one."""
    path = write_card(card, tmp_path / "privacy.json")
    claimed = re.search(r'"claimed": [0-9.]+', path.read_text())[0]
    path.write_text(path.read_text().replace(claimed, put.format(claimed), 1))
    with pytest.raises(CardError, match="twice"):
        read_card(path)


def test_a_card_can_be_read_back_as_a_release(card, tmp_path):
    path = write_card(card, tmp_path / "privacy.json")
    again = read_card(path)
    assert to_json(again) == path.read_text(encoding="utf-8")
    assert again["run"].source("model").startswith("charged to people")


def test_a_value_that_was_slipped_into_a_card_is_refused(card, tmp_path):
    document = json.loads(to_json(card))
    path = tmp_path / "privacy.json"

    def refused(change, message):
        changed = copy.deepcopy(document)
        change(changed)
        path.write_text(json.dumps(changed))
        with pytest.raises(CardError, match=message):
            read_card(path)

    refused(lambda d: d["guarantee"].update(loss=0.3), r"guarantee\.loss: unknown key")
    refused(lambda d: d["sources"].pop("guarantee.delta"), "guarantee.delta has no source")
    refused(lambda d: d["sources"].update({"run.name": "trust me"}), "does not match")
    refused(lambda d: d["guarantee"].pop("unit"), "guarantee: 'unit' is missing")
    refused(lambda d: d["accesses"].update(tuning="maybe"), "accesses.tuning: must be one of")
    path.write_text("{")
    with pytest.raises(CardError, match="is not JSON"):
        read_card(path)
    with pytest.raises(CardError, match="cannot read the card"):
        read_card(tmp_path / "nothing.json")


def test_a_result_on_private_data_does_not_enter(ledger):
    private = EvaluationData.private([1], dataset="people")
    with pytest.raises(PrivateValueError, match="stays with the operator"):
        Evaluation("accuracy", private.metric("accuracy", 0.9))
    with pytest.raises(PrivateValueError, match="bare float"):
        Evaluation("accuracy", 0.9)


def test_without_a_ledger_the_card_says_so():
    told = json.loads(to_json(make_card(run())))
    assert told["ledger"] is None
    assert "not charged" in told["sources"]["ledger"]
    assert told["data"]["fingerprint"] is None


def test_what_was_not_stated_is_shown_as_not_stated():
    told = json.loads(to_json(make_card(Run("bare", acc.Gaussian(2.0), delta=1e-5))))
    assert told["accesses"]["tuning"] == "not stated"
    assert told["accesses"]["uncovered"] is None
    assert told["accesses"]["records_public"] is None
    assert told["statement"]["release"] == "not stated"


def test_no_noise_claims_nothing():
    card = make_card(Run("open", acc.Gaussian(0.0), delta=1e-5))
    told = json.loads(to_json(card))
    assert told["guarantee"]["epsilon"]["claimed"] == "inf"
    assert told["guarantee"]["profile"] is None
    assert told["guarantee"]["claim"].startswith("No protection is claimed")


def test_a_pure_guarantee_has_a_card_too():
    training = trained(mechanism="laplace", delta=None, epsilon=50.0, steps=2)
    told = json.loads(to_json(make_card(describe(training, "pure"))))
    assert told["guarantee"]["delta"] == 0
    assert told["guarantee"]["epsilon"]["claimed"] == pytest.approx(50.0, abs=1e-3)
    assert "plus a chance" not in told["guarantee"]["claim"]


def test_a_run_that_was_stopped_says_on_which_basis_it_claims():
    def stopped(looked):
        model = nn.Linear(2, 2)
        data = torch.randn(200, 2), torch.randint(2, (200,))
        run = Training(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(reduction="none"), data,
                       batch_size=200, steps=10, noise_multiplier=20.0, delta=1e-5)  # fmt: skip
        for batch in run:
            run.step(batch)
            if run.steps_executed == 4:
                run.stop("the machine was needed", looked_at_results=looked)
        return make_card(describe(run, "stopped"))

    planned, executed = stopped(True), stopped(False)
    assert executed["guarantee"]["epsilon"]["upper"] < planned["guarantee"]["epsilon"]["upper"]
    assert (executed["mechanism"]["steps_planned"], executed["mechanism"]["steps_executed"]) == (10, 4)
    assert "without looking at results" in executed["mechanism"]["basis"]
    assert executed["guarantee"]["profile"]["upper"][5] < 1
    at = {row["delta"]: row for row in executed["guarantee"]["epsilon_of_delta"]}
    assert at[1e-5]["upper"] == pytest.approx(executed["guarantee"]["epsilon"]["upper"], rel=1e-5)


# -- the schema --------------------------------------------------------------------------------------------------------


def _mutations(document):
    """Cards that are wrong in one place each."""
    for section, inner in document.items():
        without = copy.deepcopy(document)
        del without[section]
        yield without
        if isinstance(inner, dict) and section != "sources":
            for key in inner:
                for wrong in (object, "drop", [1], -1, {"a": 1}):
                    changed = copy.deepcopy(document)
                    if wrong is object:
                        changed[section][key + "_"] = 1
                    elif wrong == "drop":
                        del changed[section][key]
                    else:
                        changed[section][key] = wrong
                    yield changed


def test_our_validator_agrees_with_the_one_everybody_uses(card):
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    judge = jsonschema.Draft202012Validator(schema())
    judge.check_schema(schema())
    document = json.loads(to_json(card))
    assert judge.is_valid(document)
    assert problems(document) == []
    wrong = list(_mutations(document))
    verdicts = [judge.is_valid(changed) for changed in wrong]
    assert verdicts == [not problems(changed) for changed in wrong]
    assert verdicts.count(False) > 100


def test_every_part_of_the_schema_has_a_meaning_here():
    with pytest.raises(ValueError, match="does not know"):
        problems({}, {"type": "object", "minProperties": 3})


# -- sentences ---------------------------------------------------------------------------------------------------------


@hypothesis.given(st.floats(1e-12, 1e6), st.integers(2, 6))
def test_rounding_is_outward_and_close(value, decimals):
    up, down = rounded(value, decimals), rounded(value, decimals, up=False)
    assert down <= value <= up
    assert up - down <= 10.0**-decimals * max(1.0, 0.0) * 1.0001 + 1e-9 * value


@hypothesis.given(st.floats(0.01, 15.0), st.integers(2, 12))
@hypothesis.settings(max_examples=50)
def test_the_sentence_to_quote_is_true(epsilon, power):
    """The factor and the chance in the sentence are not below exp(ε) and δ."""
    text = claim(acc.Bound(epsilon, epsilon, given=10.0**-power))
    factor = float(text.split("factor of ")[1].split(", plus")[0].replace(",", ""))
    odds = int(text.split("one in ")[1].rstrip(".").replace(",", ""))
    assert factor >= math.exp(epsilon) * (1 - 1e-12)
    assert 1 / odds >= 10.0**-power * (1 - 1e-15)


FITS = [
    LinearRegression(0.5, 1e-7, bounds=(0, 10), target_bounds=np.array([-20, 35]), fill={0: 5.0}),
    pytest.param(
        LinearRegression(0.5, 0, bounds=(0, 10), target_bounds=(-20, 35), adjacency="replace-one"),
        marks=pytest.mark.slow,  # the curves of a Laplace mechanism take seconds
    ),
    LogisticRegression(0.5, 1e-7, bounds=(0, 10), classes=np.array([0, 1]), fit_intercept=False),
    pytest.param(LogisticRegression(0.5, 1e-7, bounds=(0, 10), method="dp-sgd"), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("estimator", FITS, ids=lambda e: f"{type(e).__name__}-{e.method}-{e.delta}")
def test_a_fit_gets_a_card_of_what_was_charged_for_it(estimator, tmp_path):
    ledger = Ledger()
    ledger.register("people", epsilon=1.0, delta=1e-6, unit="person", adjacency=estimator.adjacency or "add-remove")
    x = np.random.default_rng(0).uniform(0, 10, (613, 2))
    target = x[:, 0] if isinstance(estimator, LinearRegression) else (x[:, 0] > 5).astype(int)
    fitted = clone(estimator).set_params(ledger=ledger, unit="person", max_rows=1).fit(x, target, groups=range(613))
    card = make_card(describe_fit(fitted, "coefficients", tuning="none"))
    told = json.loads(write_card(card, tmp_path / "privacy.json").read_text())
    read_card(tmp_path / "privacy.json")
    assert told["guarantee"]["epsilon"]["claimed"] == 0.5
    assert (told["guarantee"]["delta"], told["guarantee"]["unit"]) == (estimator.delta, "person")
    assert (told["ledger"]["dataset"], told["ledger"]["charge"]) == ("people", ledger.history("people")[0].charge)
    assert told["mechanism"]["parameters"]["bounds"] == {"x0": [0.0, 10.0], "x1": [0.0, 10.0]}
    drawn = "Poisson" if estimator.method == "dp-sgd" else "none: every record takes part"
    assert told["mechanism"]["sampler"].startswith(drawn)
    known = estimator.method == "dp-sgd"  # people are grouped: how many there are stays private elsewhere
    assert told["accesses"]["records_public"] is known
    if not known:
        rest = json.dumps({k: v for k, v in told.items() if k not in ("guarantee", "ledger", "card")})
        # As a number, not as some digits of one, or of a hash: of two hashes one holds a613b, say, once in 500 times.
        assert not re.search(r"(?<![\w.])613(?!\w)", rest)


def test_a_pure_guarantee_is_priced_by_itself():
    assert Run("count", acc.Laplace(10.0), delta=0.0).price().upper == pytest.approx(0.1)
    assert Run("counts", acc.Laplace(10.0) * 3 + acc.PureDP(1.0), delta=0.0).price().upper == pytest.approx(1.3)
    none = make_card(Run("no", acc.Gaussian(1.0), delta=0.0))
    assert none["guarantee"]["claim"].startswith("No protection is claimed")


@pytest.mark.parametrize("epsilon", [20.00004, 96.71731, 234.56141, 1234.5641, 7654321.5])
def test_a_large_epsilon_is_never_said_smaller_than_it_is(epsilon):
    said = claim(acc.Bound(epsilon, epsilon, given=1e-6)).split("e to the power of ")[1].split(", plus")[0]
    assert float(said.replace(",", "")) >= epsilon


def test_what_a_pipeline_learned_is_on_the_card_as_not_covered():
    x = np.random.default_rng(0).uniform(0, 10, (300, 2))
    fitted = make_pipeline(StandardScaler(), LinearRegression(1.0, bounds=(-3, 3), target_bounds=(0, 10)))
    with pytest.warns(PrivacyWarning):
        fitted.fit(x, x[:, 0])
    card = make_card(describe_fit(fitted[-1], "scaled"))
    assert "StandardScaler" in card["accesses"]["uncovered"][0]
