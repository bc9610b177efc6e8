"""A correct run passes; a run that is wrong is caught; what an audit could have shown is always said."""

from __future__ import annotations

import json
import stat

import numpy as np
import pytest
import torch
from torch import nn

from tacit.audit import Audit, audit_implementation, audit_run, crafted, membership, mislabelled
from tacit.audit.attacks import lira, logit_confidence, rmia
from tacit.audit.pipeline import Pipeline
from tacit.ledger import OperatorView, PrivateValueError
from tacit.ledger.release import json_values
from tacit.noise.keys import Key
from tacit.report import describe, make_card, make_page, read_card, write_card
from tacit.selftest.mutants import MUTANTS
from tacit.sgd import fit
from tacit.sgd.training.canaries import AuditedTraining, Canaries, Planted

LOSS = nn.CrossEntropyLoss(reduction="none")
#: The audit of an implementation accuses a right one this often; its default is once in 10,000 times.
SELDOM = {"significance": 1e-9}


def model(width: int = 60) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(20, width), nn.Tanh(), nn.Linear(width, 4))


def data(rows: int = 400):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(rows, 20, generator=generator), torch.randint(4, (rows,), generator=generator)


def planted_run(canaries=1000, **settings):
    net = model()
    usual = {"batch_size": 700, "steps": 40, "epsilon": 4.0, "delta": 1e-5, "progress": False}
    return fit(
        net, torch.optim.SGD(net.parameters(), lr=0.5), LOSS, data(), audit_canaries=canaries, **(usual | settings)
    )


@pytest.fixture(scope="module")
def planted():
    """An honest run fails its audit once in 400 times, so its key is fixed."""
    return planted_run(key=Key(bytes(range(32)), repeatable=True))


def test_a_correct_run_at_epsilon_4_certifies_what_a_white_box_attack_can(planted):
    found = audit_run(planted)
    assert planted.privacy.upper <= 4.0
    assert found.verdict == "pass"
    assert found.evidence.figures["f-DP one-run"] >= 1.2
    assert found.evidence.figures["f-DP one-run"] <= 4.0
    assert "Gaussian DP" in found.evidence.estimates
    assert found.evidence.certified <= planted.privacy.upper
    assert "could at best have certified" in found.sentence


def test_a_run_with_far_too_little_noise_is_refuted_by_its_canaries():
    with MUTANTS["noise divided by the batch size"].apply():
        broken = planted_run(epsilon=1.0)
    assert audit_run(broken).verdict == "fail"


def test_canaries_are_kept_and_read_back(planted, tmp_path):
    again = Planted.load(planted.canaries.save(tmp_path / "canaries.npz"))
    assert (again.member == planted.canaries.member).all()
    assert stat.S_IMODE((tmp_path / "canaries.npz").stat().st_mode) == 0o600
    assert again.epsilon == planted.canaries.epsilon
    assert audit_run(again).evidence.certified == audit_run(planted).evidence.certified
    (tmp_path / "other").write_text("nothing")
    with pytest.raises(ValueError, match="canaries of a run"):
        Planted.load(tmp_path / "other")


def test_scores_of_gradient_canaries_hold_nothing_of_the_data():
    """The same key on other data gives the same scores: they are noise and coins."""
    found = []
    for seed in (0, 1):
        net, generator = model(), torch.Generator().manual_seed(seed)
        source = torch.randn(400, 20, generator=generator), torch.randint(4, (400,), generator=generator)
        settings = {
            "batch_size": 100,
            "steps": 5,
            "noise_multiplier": 2.0,
            "delta": 1e-5,
            "key": Key(bytes(32), repeatable=True),
        }
        done = fit(
            net,
            torch.optim.SGD(net.parameters(), lr=0.1),
            LOSS,
            source,
            audit_canaries=200,
            progress=False,
            **settings,
        )
        found.append(done.canaries)
    assert (found[0].member == found[1].member).all()
    assert np.allclose(found[0].scores, found[1].scores, atol=1e-3)


def test_input_canaries_are_trained_on_and_scored_by_their_loss():
    x, y = mislabelled(data(60), 4, seed=2)
    # Large inputs that little noise hides: in twelve runs the means lay 4.4 to 6.9 standard errors apart. The key is
    # fixed, because that could be 2 in one run of some thousands.
    settings = {"noise_multiplier": 0.1, "epsilon": None, "batch_size": 200, "steps": 100, "clip_norm": 5.0}
    done = planted_run((4 * x, y), key=Key(bytes(32), repeatable=True), **settings)
    assert done.canaries.kind == "input"
    member, scores = done.canaries.member, done.canaries.scores
    inside, outside = scores[member], scores[~member]
    assert inside.mean() - outside.mean() > 2 * np.sqrt(inside.var() / len(inside) + outside.var() / len(outside))
    made = crafted(data(1), 10, classes=4, seed=0)
    assert made[0].shape == (10, 20)
    assert Canaries.of(made).kind == "input"


def test_what_cannot_be_audited_is_refused():
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    usual = {"batch_size": 40, "steps": 3, "epsilon": 4.0, "delta": 1e-5}
    with pytest.raises(ValueError, match="at most"):
        AuditedTraining(net, optimizer, LOSS, data(), canaries=2000, **usual)
    with pytest.raises(ValueError, match="2 or more"):
        fit(net, optimizer, LOSS, data(), audit_canaries=1, **usual)
    with pytest.raises(ValueError, match="cannot be resumed"):
        fit(net, optimizer, LOSS, data(), audit_canaries=10, checkpoint="x", **usual)
    with pytest.raises(ValueError, match="no canaries"):
        audit_run(fit(net, optimizer, LOSS, data(), progress=False, **usual))
    with pytest.raises(ValueError, match="look like the data"):
        fit(net, optimizer, LOSS, data(), audit_canaries=(torch.randn(9, 7), torch.zeros(9).long()), **usual)


def test_people_with_several_records_can_be_audited():
    net = model()
    done = fit(
        net, torch.optim.SGD(net.parameters(), lr=0.1), LOSS, data(), audit_canaries=50, progress=False,
        groups=np.arange(400) // 2, max_rows=2, batch_size=50, steps=4, epsilon=4.0, delta=1e-5,
    )  # fmt: skip
    assert done.privacy.unit == "person"
    assert len(done.canaries.scores) == 50


def test_the_implementation_audit_passes_a_correct_model_and_catches_wrong_ones():
    settings = {"batch_size": 256, "size": 2000, "epochs": 1, "epsilon": 3.0, "delta": 1e-6, "clip_norm": 0.7}
    found = audit_implementation(model(), LOSS, data(30), **settings, **SELDOM)
    assert found.verdict == "pass", found.sentence
    assert {"sensitivity", "sum", "noise variance", "sampling rate", "price"} <= {f.check for f in found.findings}
    assert any("too small" in f.best for f in found.findings)
    with MUTANTS["biases are left out of the norm"].apply():
        wrong = audit_implementation(model(), LOSS, data(30), **settings)
    assert wrong.verdict == "fail"
    assert {"self-check", "sensitivity"} <= {f.check for f in wrong.findings if f.p_value == 0}
    with pytest.raises(ValueError, match="4 records"):
        audit_implementation(model(), LOSS, data(2), **settings)


@pytest.mark.parametrize("sampler", ["shuffle", "fixed"])
def test_other_samplers_are_audited_for_what_they_are(sampler):
    settings = {"batch_size": 50, "size": 500, "steps": 20, "noise_multiplier": 3.0, "delta": 1e-5, "sampler": sampler}
    found = audit_implementation(model(), LOSS, data(500), **settings, **SELDOM)
    assert found.verdict == "pass", found.sentence


def test_a_run_with_laplace_noise_is_underpowered_and_not_wrong():
    settings = {"batch_size": 20, "size": 200, "steps": 5, "noise_multiplier": 20.0, "mechanism": "laplace"}
    found = audit_implementation(nn.Linear(20, 4), LOSS, data(10), **settings, **SELDOM)
    assert found.verdict == "underpowered", found.sentence


@pytest.mark.parametrize("sampler", ["balls-in-bins", "truncated"])
def test_a_sampler_is_no_reason_to_accuse_an_honest_run(sampler):
    """The price of every pass as if batches were known accused balls in bins, and truncated batches were refused."""
    settings = {"batch_size": 100, "size": 1000, "epochs": 4, "epsilon": 3.0, "delta": 1e-5, "adjacency": "zero-out"}
    found = audit_implementation(model(), LOSS, data(24), sampler=sampler, **settings, **SELDOM)
    assert found.verdict == "pass", found.sentence


def test_clipping_by_layer_in_training_uses_the_whole_clip_norm():
    """Found by this audit: the clip norm was divided among the layers twice."""
    from tacit.audit.implementation import check_sum

    scene = Pipeline(model(), LOSS, data(20), clipping="per_layer", batch_size=5, noise_multiplier=1.0, delta=1e-5)
    assert check_sum(scene).p_value == 1.0


def test_weights_and_scores_of_gradient_canaries_together_would_give_the_exact_sum(planted):
    """So the scores beside private data are the operator's: noisy sum less noise is what privacy hides."""
    found = audit_run(planted)
    with pytest.raises(PrivateValueError, match="would undo the noise"):
        found.to_dict()
    assert "operator view" in repr(found)
    assert found.view().reveal()["verdict"] == "pass"
    assert audit_run(planted, made_up=True).to_dict()["verdict"] == "pass"


def test_scores_of_input_canaries_come_from_released_weights_and_may_leave():
    net = model()
    done = fit(
        net, torch.optim.SGD(net.parameters(), lr=0.5), LOSS, data(), progress=False,
        audit_canaries=crafted(data(1), 50, classes=2), batch_size=40, steps=4, noise_multiplier=1.0, delta=1e-5,
    )  # fmt: skip
    assert not audit_run(done).operator_only
    assert "figures" in audit_run(done).to_dict()


def test_an_audit_enters_card_and_report(planted, tmp_path):
    found = audit_run(planted, made_up=True)
    card = make_card(describe(planted.training, "audited", audit=json_values(found.to_dict())))
    page = make_page(card)
    assert "ROC of the attack" in page
    assert "Scores of canaries" in page
    assert "could at best have certified" in page
    again = read_card(write_card(card, tmp_path / "privacy.json"))
    assert again["checks"]["audit"]["verdict"] == "pass"
    assert "member" not in json.dumps(sorted(found.to_dict()))  # no coin of a single canary leaves


# -- membership --------------------------------------------------------------------------------------------------------


def synthetic(leak: float, records: int = 600, models: int = 32):
    rng = np.random.default_rng(4)
    inside = rng.random((models + 1, records)) < 0.5
    hard = rng.normal(0, 1.5, records)
    logits = hard + leak * inside + rng.normal(0, 0.5, inside.shape)
    outside = rng.normal(0, 1.5, 300) + rng.normal(0, 0.5, (models + 1, 300))
    return 1 / (1 + np.exp(-logits)), inside, 1 / (1 + np.exp(-outside))


def test_lira_and_rmia_find_what_a_threshold_does_not():
    p, inside, others = synthetic(1.0)
    found = membership(p[0], inside[0], p[1:], inside[1:], population=others[0], population_references=others[1:])
    assert found["LiRA"].curve.area > 0.85 > found["loss threshold"].curve.area > 0.5
    assert found["RMIA"].curve.area > 0.7
    assert "operator" in repr(found["LiRA"])
    view = found["LiRA"].view()
    assert isinstance(view, OperatorView)
    assert view.auc > 0.85
    assert membership(p[0], inside[0], p[1:], inside[1:], epsilon=0.1)["LiRA"].exceeds
    assert not membership(p[0], inside[0], p[1:], inside[1:], epsilon=8.0)["LiRA"].exceeds


def test_nothing_is_found_where_nothing_leaks():
    p, inside, _ = synthetic(0.0)
    found = membership(p[0], inside[0], p[1:], inside[1:], epsilon=1.0)["LiRA"]
    assert found.curve.interval[0] < 0.5 < found.curve.interval[1]
    assert not found.exceeds


def test_attacks_refuse_what_they_cannot_use():
    p, inside, others = synthetic(0.5, 20, 24)
    with pytest.raises(ValueError, match="belong together"):
        lira(p[0], p[1:, :5], inside[1:, :5])
    with pytest.raises(ValueError, match="train more"):
        lira(p[0], p[1:], np.ones_like(inside[1:]))
    with pytest.raises(ValueError, match="probabilities"):
        membership([2.0, 3.0], [0, 1])
    assert len(rmia(p[0], p[1:], inside[1:], others[0], others[1:])) == 20
    assert logit_confidence([0.0, 1.0]).tolist() == pytest.approx([-27.6, 27.6], abs=0.1)


def test_an_audit_without_evidence_proves_nothing():
    assert Audit("nothing", 1.0, 1e-5, "").verdict == "underpowered"
