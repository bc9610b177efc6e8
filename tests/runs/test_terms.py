"""Plans, claims and settings of a run keep to its adjacency, its ledger and its length."""

from __future__ import annotations

import math

import pytest

from tacit import accounting as acc
from tacit.prompts.endpoint import Endpoint, EndpointError
from tacit.runs import claims
from tacit.runs.plan import Case
from tacit.runs.settings import Settings, SettingsError, again


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_the_noise_of_a_plan_keeps_its_epsilon_under_its_adjacency(adjacency):
    case = Case(1000, 100, 20, 1.0, 1e-5, adjacency=adjacency)
    noise = case.noise()
    mechanism = acc.PoissonSampled(acc.Gaussian(noise), 0.1) * 20
    assert 0.98 < acc.epsilon(mechanism, 1e-5, adjacency=adjacency).upper <= 1.0
    assert claims._priced(mechanism, 1e-5, adjacency) == acc.epsilon(mechanism, 1e-5, adjacency=adjacency)
    assert case.spread(noise, 400) == pytest.approx(noise * 20 / (100 * math.sqrt(20)))


@pytest.mark.parametrize("length", [{}, {"epochs": 2, "steps": 10}])
def test_a_run_has_one_length(length):
    with pytest.raises(SettingsError, match="epochs or steps"):
        Settings(data="people.csv", epsilon=1.0, delta=1e-6, **length)


def test_a_resumed_run_keeps_its_ledger():
    assert again("sqlite:///a.db", None) == again("sqlite:///a.db", "sqlite:///a.db") == "sqlite:///a.db"
    for saved in (None, "sqlite:///b.db"):
        with pytest.raises(SettingsError, match="keeps its ledger"):
            again(saved, "sqlite:///a.db")


@pytest.mark.parametrize("key", ["secret\n", "sécret"])
def test_a_key_that_no_header_takes_is_refused_before_an_error_could_show_it(key):
    with pytest.raises(EndpointError) as told:
        Endpoint("https://example.org/v1", "a-model", key=key)
    assert key.strip() not in str(told.value)
