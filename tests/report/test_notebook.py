"""In a notebook guarantees, ledgers, plans and estimators show themselves, with names as text."""

from __future__ import annotations

import numpy as np

from tacit import accounting as acc
from tacit.ledger import Ledger
from tacit.linear_model import LinearRegression
from tests.report.common import trained

HOSTILE = "<img src=x onerror=alert(1)>"


def test_a_guarantee_shows_its_terms_and_its_curve():
    text = acc.Privacy.of(acc.Gaussian(2.0, unit=HOSTILE), 1e-6, method=HOSTILE)._repr_html_()
    assert "<img" not in text
    assert "&lt;img" in text
    points = text.split('points="')[1].split('"')[0].split()
    heights = [float(point.split(",")[1]) for point in points]
    assert heights == sorted(heights)  # more accused, fewer missed
    for axis in ("wrongly accused", "missed"):
        assert f">{axis}, 0 to 100%</text>" in text  # to be read, not only to be pointed at
    assert acc.Privacy.of(acc.Gaussian(0.0), 1e-6)._repr_html_().count("<svg") == 0


def test_a_ledger_and_a_budget_show_what_is_left():
    ledger = Ledger()
    ledger.register(HOSTILE, epsilon=1.0, delta=1e-5, rule="sum")
    _ = ledger.charge(HOSTILE, acc.PureDP(0.25), delta=0)
    for text in (ledger._repr_html_(), ledger.budget(HOSTILE)._repr_html_()):
        assert "<img" not in text
        assert "ε = 0.75" in text
        assert "25.0%" in text


def test_an_estimator_shows_what_it_cost_once_it_is_fitted():
    x = np.random.default_rng(0).uniform(0, 1, (500, 1))
    plain = LinearRegression(1.0, bounds=(0, 1), target_bounds=(0, 1))
    assert "add/remove one record" not in plain._repr_html_()
    fitted = plain.fit(x, x[:, 0])
    assert "add/remove one record" in fitted._repr_html_()
    assert "add/remove one record" in fitted._repr_mimebundle_()["text/html"]


def test_a_plan_shows_its_price():
    plan = trained(Ledger()).plan
    text = plan._repr_html_()
    assert "zero out one person" in text
    assert "Poisson sampling at rate" in text
    assert "{" not in text.split("<svg")[0]  # no dictionary of a program
    assert f'<td style="text-align:left">{plan.steps}</td>' in text


def test_foresee_is_what_a_charge_leaves_and_charges_nothing():
    for rule in ("sum", "renyi", "tight"):
        ledger = Ledger()
        ledger.register("people", epsilon=2.0, delta=1e-5, rule=rule)
        run = acc.PoissonSampled(acc.Gaussian(3.0), 0.01) * 50
        for _ in range(2):
            head, told = ledger.head("people"), ledger.foresee("people", run)
            assert ledger.head("people") == head
            _ = ledger.charge("people", run)
            after = ledger.budget("people")
            assert (told.left_epsilon, told.used, told.charges) == (after.left_epsilon, after.used, after.charges)
