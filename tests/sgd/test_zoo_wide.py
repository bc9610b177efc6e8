"""Published models, chosen by a rule, are clipped as one example at a time would be, or refused."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from tests.sgd import zoo_wide
from tests.sgd.zoo_wide.judge import judge
from tools import zoo
from torch import nn


def squares(model, batch):
    return model(batch["x"]).square().sum(1)


def case(model, loss=squares):
    batches = tuple({"x": torch.randn(4, 6, generator=torch.Generator().manual_seed(k))} for k in (0, 1))
    return zoo_wide.Case(model, loss, batches)


def test_a_model_that_treats_examples_apart_is_right():
    found = judge(case(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))))
    assert found["verdict"] == "right"
    assert found["off"] < 1e-10


def test_what_is_kept_of_the_zoo_has_no_fault_and_few_refusals():
    verdicts = [m["verdict"] for m in zoo.state()["members"].values()]
    good, of = zoo.share(verdicts)
    assert of >= 300
    assert good >= 0.95 * of
    assert not {"wrong", "crash"} & set(verdicts)


class Centred(nn.Module):
    """Each example is set against the mean of its batch."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 5)

    def forward(self, x):
        found = self.layer(x)
        return found - 0.1 * found.mean(0)


def test_a_model_that_mixes_is_shown_to_mix():
    found = judge(case(Centred()))
    assert found["verdict"] == "mixed"
    assert found["mixing"] > 1e-2


def test_a_mix_that_is_not_refused_is_wrong(monkeypatch):
    monkeypatch.setattr("tests.sgd.zoo_wide.judge.off", lambda *_: 0.0)
    assert judge(case(Centred()))["verdict"] == "wrong"


def test_a_norm_that_is_off_is_wrong(monkeypatch):
    from tacit.sgd.gradients import contributions

    whole = contributions.Group.norms

    def wrong(self):
        found = whole(self)
        return contributions.Norms(found.squared * 1.002, found.gram, found.product)

    monkeypatch.setattr(contributions.Group, "norms", wrong)
    found = judge(case(nn.Linear(6, 5)))
    assert found["verdict"] in ("wrong", "refused")  # the check of the first step sees it too


def test_another_exception_is_a_crash(monkeypatch):
    monkeypatch.setattr("tests.sgd.zoo_wide.judge.off", lambda *_: 1 / 0)
    assert judge(case(nn.Linear(6, 5)))["verdict"] == "crash"


def test_the_page_shows_what_was_measured():
    """To renew it: ``python -m tools.zoo --table``."""
    assert zoo.tables(zoo.state()) in zoo.PAGE.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("library", zoo_wide.LIBRARIES)
def test_a_library_is_clipped_rightly(library):
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed (pip install 'tacit[zoo]')")
    zoo.warm([library])
    found = {}
    members = [(library, name) for name in zoo_wide.members(library)]
    zoo.run(members, float("inf"), 2, lambda _, name, verdict: found.update({name: verdict}))
    assert len(found) == len(members)
    assert not {n: f for n, f in found.items() if f["verdict"] in ("wrong", "crash")}
    right, counted = zoo.share([f["verdict"] for f in found.values()])
    assert right / counted >= 0.95
