"""Opacus' functions of privacy analysis give bounds that hold, and an accountant counts what is put into its list."""

from __future__ import annotations

import copy
import math
import warnings

import numpy as np
import pytest
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.opacus.harness import data, net, private

from tacit import accounting as acc
from tacit.opacus.accountants import GaussianAccountant, PRVAccountant, RDPAccountant, create_accountant
from tacit.opacus.accountants.analysis import gdp, rdp
from tacit.sgd import PrivacyWarning

RUNS = [(1.0, 0.01, 1000), (0.7, 0.1, 10), (2.0, 1e-3, 5000), (1.3, 1.0, 7), (5.0, 0.3, 100)]


def opacus(part):
    return pytest.importorskip(f"opacus.{part}", reason="compared with Opacus: pip install 'tacit[oracles]'")


@settings(max_examples=30, deadline=None)
@given(q=st.floats(1e-6, 1.0), noise=st.floats(0.3, 20.0), steps=st.integers(1, 10**6))
def test_the_divergence_of_order_two_is_its_closed_form_and_never_less(q, noise, steps):
    exact = steps * math.log1p(q * q * math.expm1(noise**-2))
    found = rdp.compute_rdp(q=q, noise_multiplier=noise, steps=steps, orders=2.0)
    assert exact * (1 - 1e-13) <= found <= exact * (1 + 1e-9) + steps * 1e-13


@pytest.mark.parametrize(("noise", "rate", "steps"), RUNS)
def test_a_curve_and_what_it_proves_are_those_of_opacus(noise, rate, steps):
    theirs, orders = opacus("accountants.analysis.rdp"), RDPAccountant.DEFAULT_ALPHAS
    assert orders == opacus("accountants").RDPAccountant.DEFAULT_ALPHAS
    curve = rdp.compute_rdp(q=rate, noise_multiplier=noise, steps=steps, orders=orders)
    wanted = theirs.compute_rdp(q=rate, noise_multiplier=noise, steps=steps, orders=orders)
    assert curve == pytest.approx(wanted, rel=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        epsilon, order = theirs.get_privacy_spent(orders=orders, rdp=wanted, delta=1e-5)
    assert rdp.get_privacy_spent(orders=orders, rdp=curve, delta=1e-5) == pytest.approx((epsilon, order), rel=1e-6)
    # The accountant states the certified price, which is smaller; the order is that of the curve.
    accountant = create_accountant("rdp")
    accountant.history = [(noise, rate, steps)]
    stated, best = accountant.get_privacy_spent(delta=1e-5)
    assert stated == accountant.get_epsilon(1e-5) < epsilon
    assert best == order


def test_a_curve_at_its_limits():
    assert rdp.compute_rdp(q=0.0, noise_multiplier=1.0, steps=5, orders=[2, 30.5, math.inf]).tolist() == [0, 0, 0]
    assert rdp.compute_rdp(q=0.1, noise_multiplier=0.0, steps=5, orders=2.0) == math.inf
    assert rdp.compute_rdp(q=0.1, noise_multiplier=1.0, steps=5, orders=[3.0, math.inf])[1] == math.inf
    epsilon, order = rdp.get_privacy_spent(orders=[2.0, 3.0], rdp=[math.inf, math.nan], delta=1e-5)
    assert epsilon == math.inf
    assert math.isnan(order)
    # What is not a number proves nothing, and a curve of nothing costs nothing.
    assert rdp.get_privacy_spent(orders=[2, 8, 16], rdp=[math.nan, 1.0, 3.0], delta=1e-5)[1] == 8.0
    assert rdp.get_privacy_spent(orders=[200.0], rdp=[0.0], delta=0.5) == (0.0, 200.0)
    with pytest.warns(UserWarning, match="last one"):
        rdp.get_privacy_spent(orders=[2, 3, 4], rdp=[0.1, 0.1, 0.1], delta=1e-5)
    for wrong in ({"orders": [2, 3]}, {"orders": [1.0]}, {"rdp": [-1.0]}, {"delta": 0.0}):
        with pytest.raises(ValueError, match=r"order|negative|delta"):
            rdp.get_privacy_spent(**{"orders": [2.0], "rdp": [1.0], "delta": 1e-5, **wrong})
    assert create_accountant("prv").get_privacy_spent(delta=1e-5) == (0.0, 0.0)


@pytest.mark.parametrize("uniform", [False, True])
def test_mu_holds_at_every_epsilon_and_that_of_the_limit_theorem_does_not(uniform):
    theirs, name = opacus("accountants.analysis.gdp"), "compute_mu_uniform" if uniform else "compute_mu_poisson"
    run = {"steps": 100, "noise_multiplier": 1.0, "sample_rate": 0.05}
    step = acc.FixedSizeSampled(acc.Gaussian(1.0), 5, 100) if uniform else acc.PoissonSampled(acc.Gaussian(1.0), 0.05)
    true = [(x, acc.delta(step * 100, x)) for x in np.linspace(0.0, 12.0, 9)]
    mu = getattr(gdp, name)(**run)
    assert all(bound.upper <= gdp.delta_eps_mu(eps=x, mu=mu) for x, bound in true)
    approximate = getattr(theirs, name)(**run)
    assert any(bound.lower > theirs.delta_eps_mu(eps=x, mu=approximate) for x, bound in true)
    # Without sampling it is exact.
    whole, price = {**run, "sample_rate": 1.0}, getattr(gdp, name.replace("mu", "eps"))
    assert gdp.eps_from_mu(mu=mu, delta=1e-5) == pytest.approx(price(**whole, delta=1e-5), rel=1e-9)
    assert gdp.eps_from_mu(mu=0.5, delta=1e-5) == pytest.approx(theirs.eps_from_mu(mu=0.5, delta=1e-5), rel=1e-6)


def test_batches_of_fixed_size_cost_what_half_the_noise_costs_and_are_not_taken_for_poisson_samples():
    run = {"steps": 50, "sample_rate": 0.0123, "delta": 1e-5}
    fixed = gdp.compute_eps_uniform(noise_multiplier=2.0, **run)
    assert fixed == pytest.approx(gdp.compute_eps_poisson(noise_multiplier=1.0, **run), rel=1e-6)
    for accountant in (GaussianAccountant(), PRVAccountant(), RDPAccountant()):
        accountant.history = [(2.0, 0.0123, 50)]
        assert accountant.get_epsilon(1e-5, poisson=False) == fixed
        assert accountant.get_epsilon(1e-5) == gdp.compute_eps_poisson(noise_multiplier=2.0, **run) < fixed
    assert RDPAccountant().get_epsilon(1e-5, [2.0, 3.0]) == 0.0
    accountant = GaussianAccountant()
    accountant.history = [(2.0, 0.0123, 50)]
    assert accountant.get_epsilon(1e-5, False) == fixed  # second, as Opacus has it


# -- the list of steps ----


def test_steps_that_are_put_into_the_list_are_counted():
    accountant = PRVAccountant()
    held = accountant.history
    accountant.history.append((1.0, 0.01, 100))
    accountant.history += [(2.0, 0.01, 50)]
    accountant.step(noise_multiplier=3.0, sample_rate=0.5)
    held.append((1.0, 0.02, 7))  # a list that was asked for before all this
    assert accountant.history == [(1.0, 0.01, 100), (2.0, 0.01, 50), (3.0, 0.5, 1), (1.0, 0.02, 7)]
    noise, rate, times = accountant.history.pop(0)
    assert (noise, rate, times) == (1.0, 0.01, 100)
    assert len(accountant) == 58
    assert type(copy.deepcopy(accountant.history)) is list
    parts = acc.PoissonSampled(acc.Gaussian(2.0), 0.01) * 50 + acc.PoissonSampled(acc.Gaussian(3.0), 0.5)
    parts = parts + acc.PoissonSampled(acc.Gaussian(1.0), 0.02) * 7
    assert accountant.get_epsilon(1e-5) == pytest.approx(acc.epsilon(parts, 1e-5).upper, rel=1e-9)
    with pytest.raises(ValueError, match="rate"):
        accountant.history.append((1.0, 1.5, 10))


def test_what_a_run_released_stays_counted_whatever_becomes_of_the_list():
    model = net()
    engine, optimizer, loader = private(model, data(48), batch_size=8, noise=1.0)
    engine.accountant.history = [(2.0, 0.25, 10)]  # put back from an earlier run, before this one begins

    def epoch():
        for x, y in loader:
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

    epoch()
    saved = list(engine.accountant.history)
    assert saved == [(2.0, 0.25, 10), (1.0, 1 / 6, 6)]
    spent = engine.get_epsilon(1e-5)
    # What would five more steps cost? They are counted once, and the list can be put back.
    engine.accountant.history = [saved[0], (1.0, 1 / 6, 6 + 5)]
    more = acc.PoissonSampled(acc.Gaussian(2.0), 0.25) * 10 + acc.PoissonSampled(acc.Gaussian(1.0), 1 / 6) * 11
    assert len(engine.accountant) == 21
    assert engine.get_epsilon(1e-5) == pytest.approx(acc.epsilon(more, 1e-5).upper, rel=1e-4)
    engine.accountant.history = saved
    assert engine.get_epsilon(1e-5) == spent
    with pytest.warns(PrivacyWarning, match="6 steps"):
        engine.accountant.history = []
    epoch()
    assert engine.accountant.history == [(1.0, 1 / 6, 12)]
