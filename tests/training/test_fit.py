"""One call trains, shows what may be shown, and can be stopped; estimators fit tables."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.ensemble import BaggingClassifier, StackingRegressor, VotingClassifier
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    RandomizedSearchCV,
    cross_val_score,
    learning_curve,
    validation_curve,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator
from torch import nn

from tacit import accounting as acc
from tacit.ledger import BudgetExceeded, EvaluationData, Ledger, OperatorLog, PrivateValueError
from tacit.ledger.surroundings import SearchRefused
from tacit.sgd import Classifier, DPAdam, PrivacyWarning, Regressor, fit
from tests.training.common import LOSS, ROWS, data, key, network, run, same, weights
from tests.training.common import finish as finish_run

SETTINGS = {"batch_size": 20, "epochs": 2, "epsilon": 3.0, "delta": 1e-5}


def train(**more):
    model = network()
    return fit(model, torch.optim.SGD(model.parameters(), lr=0.5), LOSS, data(), **(SETTINGS | more))


def test_one_call_gives_the_same_run_as_the_loop():
    model = network()
    expected = finish_run(run(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.5), epsilon=3.0, steps=12))
    done = train(key=key())
    assert same(expected, weights(done.model))
    assert done.privacy.details["steps_executed"] == 12


def test_metrics_on_public_data_are_kept_and_those_on_private_data_are_the_operators(tmp_path):
    public = EvaluationData.declared_public(data(40), because="simulated")
    done = train(evaluate=public)
    assert [m["step"] for m in done.metrics] == [6, 12]
    assert 0 <= done.metrics[-1]["accuracy"] <= 1
    log = OperatorLog(tmp_path / "private.jsonl")
    private = train(evaluate=EvaluationData.private(data(40), dataset="people"), operator_log=log)
    assert private.metrics == ()
    assert "accuracy" in (tmp_path / "private.jsonl").read_text()
    with pytest.raises(PrivateValueError, match="must say whether its data are public"):
        train(evaluate=data(40))


def test_evaluation_changes_nothing_in_the_run():
    public = EvaluationData.declared_public(data(40), because="simulated")
    assert same(weights(train(key=key(), evaluate=public, ema=0.9).model), weights(train(key=key(), ema=0.9).model))


def test_a_time_limit_prices_the_executed_steps():
    done = train(time_limit=0.0)
    assert done.privacy.details["steps_executed"] == 1
    noise = done.training.plan.noise[0]
    expected = acc.epsilon(acc.PoissonSampled(acc.Gaussian(noise), 20 / ROWS), 1e-5).upper
    assert done.privacy.upper == pytest.approx(expected, rel=1e-6)
    assert "time limit" in repr(done.privacy)


def test_an_interrupt_saves_the_checkpoint_and_the_run_goes_on(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    whole = weights(train(key=key()).model)

    def interrupted(model, batch):
        raise KeyboardInterrupt

    public = EvaluationData.declared_public(data(40), because="simulated")
    settings = {"key": key(), "checkpoint": tmp_path / "run.ckpt"}
    with pytest.raises(KeyboardInterrupt):
        train(evaluate=public, metric=interrupted, evaluate_every=5, **settings)
    done = train(**settings)
    assert same(whole, weights(done.model))


def test_the_bar_shows_epsilon_on_a_terminal(capsys):
    train(progress=True)
    assert "ε ≤ 3.000 at δ=1e-05" in capsys.readouterr().err


# -- DP-Adam -------------------------------------------------------------------------------------------------------


def test_dp_adam_without_noise_is_adam_with_its_floor_under_the_root():
    one, two = (nn.Parameter(torch.ones(5, dtype=torch.float64)) for _ in range(2))
    adam = torch.optim.AdamW([one], lr=0.1, eps=0.0, weight_decay=0.01)
    private = DPAdam([two], lr=0.1, floor=1e-30, weight_decay=0.01)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        one.grad = torch.randn(5, generator=generator, dtype=torch.float64)
        two.grad = one.grad.clone()
        adam.step()
        private.step()
    assert torch.allclose(one, two, atol=1e-12)


def test_dp_adam_takes_the_noise_out_of_the_second_moment():
    generator = torch.Generator().manual_seed(0)
    signal = torch.tensor([1.0, 0.5, 0.25], dtype=torch.float64)
    weight = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    optimizer = DPAdam([weight], lr=0.0, betas=(0.9, 0.9995))
    optimizer.noise_variance = 4.0
    for _ in range(20000):
        weight.grad = signal + 2 * torch.randn(3, generator=generator, dtype=torch.float64)
        optimizer.step()
    state = optimizer.state[weight]
    corrected = (state["second"] - state["noise"]) / (1 - 0.9995 ** state["step"])
    assert torch.allclose(corrected, signal.square(), atol=0.45)
    assert state["second"].min() > 3.5


def test_training_tells_dp_adam_how_large_the_noise_is():
    model = network()
    optimizer = DPAdam(model.parameters(), lr=0.01)
    finish_run(run(model, optimizer=optimizer, noise_multiplier=1.5, clip_norm=0.4))
    assert optimizer.noise_variance == pytest.approx((1.5 * 0.4 / 20) ** 2)


# -- estimators ----------------------------------------------------------------------------------------------------


def simulated(rows=2000):
    generator = np.random.default_rng(0)
    x = generator.uniform(-1, 1, (rows, 3))
    return x, x @ [2.0, -1.0, 0.5]


def test_a_classifier_for_tables():
    x, score = simulated()
    y = np.where(score > 0, "yes", "no")
    private = Classifier(epsilon=1.0, delta=1e-6, bounds=(-1, 1), classes=["yes", "no"]).fit(x, y)
    assert private.score(x, y) > 0.9
    assert private.privacy_.upper <= 1.0
    assert private.predict_proba(x).sum(1) == pytest.approx(1.0)
    assert ((private.decision_function(x) > 0) == (private.predict(x) == "yes")).all()


def test_a_regressor_for_tables():
    x, y = simulated()
    private = Regressor(epsilon=1.0, delta=1e-6, bounds=(-1, 1), target_bounds=(-3.5, 3.5)).fit(x, y)
    assert private.score(x, y) > 0.8
    assert private.privacy_.upper <= 1.0
    hidden = Regressor(epsilon=8.0, delta=1e-6, bounds=(-1, 1), target_bounds=(-3.5, 3.5), hidden=(8,)).fit(x, y)
    assert hidden.score(x, y) > 0.5


def test_estimators_share_the_ledger_of_their_parameters():
    x, score = simulated(400)
    ledger = Ledger()
    ledger.register("people", epsilon=1.5, delta=1e-3, rule="sum")
    one = Classifier(epsilon=1.0, delta=1e-5, ledger=ledger, dataset="people")
    one.fit(x, score > 0)
    with pytest.raises(BudgetExceeded):
        clone(one).fit(x, score > 0)


RATES = {"learning_rate": [1.0, 2.0]}
REPEATED = [
    lambda one, x, y: GridSearchCV(one, RATES, cv=2, error_score="raise").fit(x, y),
    lambda one, x, y: RandomizedSearchCV(one, RATES, n_iter=2, cv=2, error_score="raise").fit(x, y),
    lambda one, x, y: HalvingGridSearchCV(one, RATES, cv=2, error_score="raise").fit(x, y),
    lambda one, x, y: cross_val_score(one, x, y, cv=2, error_score="raise"),
    lambda one, x, y: validation_curve(
        one, x, y, param_name="learning_rate", param_range=[1.0], cv=2, error_score="raise"
    ),
    lambda one, x, y: learning_curve(one, x, y, cv=2, error_score="raise"),
    lambda one, x, y: BaggingClassifier(one, 2).fit(x, y),
    lambda one, x, y: VotingClassifier([("a", one), ("b", one)]).fit(x, y),
    lambda one, x, y: StackingRegressor([("a", Regressor(bounds=(-1, 1), ledger=one.ledger))], cv=2).fit(x, y),
]


@pytest.mark.parametrize("around", REPEATED)
def test_a_search_or_an_ensemble_around_an_estimator_is_refused(around):
    x, score = simulated(100)
    with pytest.raises(SearchRefused, match=r"around \w+ fits many times.*tacit\.tuning"):
        around(Classifier(bounds=(-1, 1), epochs=1), x, (score > 0).astype(int))


def test_a_search_that_a_ledger_counts_is_charged_for_every_fit():
    x, score = simulated(100)
    ledger = Ledger()
    ledger.register("people", epsilon=100.0, delta=1e-2)
    one = Classifier(bounds=(-1, 1), epochs=1, ledger=ledger, dataset="people")
    with pytest.warns(PrivacyWarning, match="not covered"):
        GridSearchCV(one, RATES, cv=2).fit(x, score > 0)
    assert ledger.budget("people").charges == 2 * 2 + 1


def test_a_pipeline_that_learned_from_the_rows_is_noted_on_the_guarantee_of_an_estimator():
    x, score = simulated(100)
    with pytest.warns(PrivacyWarning, match="StandardScaler"):
        fitted = make_pipeline(StandardScaler(), Classifier(epochs=1)).fit(x, score > 0)
    assert "NOT covered: what StandardScaler" in repr(fitted[-1].privacy_)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "NOT covered" not in repr(
            make_pipeline("passthrough", Classifier(epochs=1)).fit(x, score > 0)[-1].privacy_
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "check"),
    [
        pytest.param(e, c, id=f"{type(e).__name__}-{getattr(c, 'func', c).__name__}")
        for kind in (Classifier, Regressor)
        for e, c in estimator_checks_generator(kind(epsilon=50.0, epochs=5))
    ],
)
def test_scikit_learns_own_checks(estimator, check):
    name = getattr(check, "func", check).__name__
    if name in NOT_DETERMINISTIC:
        pytest.skip("two fits differ by their noise, which comes from the operating system")
    check(estimator)


NOT_DETERMINISTIC = {
    "check_classifier_data_not_an_array",
    "check_fit_idempotent",
    "check_methods_sample_order_invariance",
    "check_methods_subset_invariance",
    "check_regressor_data_not_an_array",
    "check_regressors_int",
    "check_supervised_y_2d",
    "check_sample_weight_equivalence_on_dense_data",
}


# -- imports -------------------------------------------------------------------------------------------------------


def test_training_needs_torch_numpy_and_scipy_only(tmp_path):
    code = """
import sys
for name in ("sklearn", "polars", "rich", "sqlalchemy"):
    sys.modules[name] = None
import torch, tacit.sgd as sgd
x = torch.randn(50, 2)
net = torch.nn.Linear(2, 2)
done = sgd.fit(net, torch.optim.SGD(net.parameters(), lr=0.1), torch.nn.CrossEntropyLoss(reduction="none"),
               (x, (x[:, 0] > 0).long()), batch_size=10, epochs=1, epsilon=3.0, delta=1e-4, progress=False)
print(done.privacy)
try:
    sgd.Classifier
except ModuleNotFoundError as error:
    assert "pip install" in str(error) and "scikit-learn" in str(error), error
else:
    raise SystemExit("sklearn was there")
"""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    told = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    assert "zero out one record" in told.stdout
