"""What a fit promises is what was priced, charged first, and shared by every copy of the estimator."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.ensemble import BaggingClassifier, VotingClassifier
from sklearn.ensemble._base import _fit_single_estimator
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.feature_selection import RFE, RFECV
from sklearn.frozen import FrozenEstimator
from sklearn.impute import IterativeImputer, SimpleImputer
from sklearn.model_selection import GridSearchCV, TunedThresholdClassifierCV, cross_val_score, permutation_test_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler, PolynomialFeatures, StandardScaler
from sklearn.semi_supervised import SelfTrainingClassifier

from tacit import accounting as acc
from tacit.ledger import BudgetExceeded, Ledger
from tacit.linear_model import (
    FunctionalLinearRegression,
    FunctionalLogisticRegression,
    LinearRegression,
    LogisticRegression,
    PrivacyWarning,
    Ridge,
    SearchRefused,
    descent,
    guarantee,
    inference,
    releases,
)
from tacit.linear_model import objective as op
from tacit.linear_model.second_moments import _target_factor
from tacit.linear_model.sensitivity import Shape
from tests.linear_model.common import BOUNDS, labels, numbers

EVERY = [
    LinearRegression(1.0, **BOUNDS),
    LinearRegression(1.0, method="adassp", **BOUNDS),
    LinearRegression(1.0, method="sufficient-statistics", **BOUNDS),
    LinearRegression(1.0, delta=0, **BOUNDS),
    Ridge(1.0, 1.0, **BOUNDS),
    FunctionalLinearRegression(1.0, **BOUNDS),
    FunctionalLinearRegression(1.0, sensitivity="textbook", **BOUNDS),
    LogisticRegression(1.0, bounds=(0, 10)),
    LogisticRegression(1.0, bounds=(0, 10), method="objective-perturbation"),
    LogisticRegression(1.0, delta=0, bounds=(0, 10)),
    FunctionalLogisticRegression(1.0, bounds=(0, 10)),
]


def table(estimator, rows=400):
    return labels(rows) if "Logistic" in type(estimator).__name__ else numbers(rows)


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one", "zero-out"])
@pytest.mark.parametrize("estimator", EVERY, ids=lambda e: f"{type(e).__name__}-{getattr(e, 'method', '')}")
def test_every_fit_costs_at_most_what_was_asked_and_nearly_that(estimator, adjacency):
    fitted = clone(estimator).set_params(adjacency=adjacency, epsilon=0.7).fit(*table(estimator))
    privacy = fitted.privacy_
    assert privacy.adjacency == privacy.interval.adjacency == adjacency
    assert 0.68 < privacy.upper <= 0.7
    if privacy.delta:
        assert acc.epsilon(privacy.mechanism, privacy.delta, adjacency=adjacency).upper <= 0.7
    assert "one record" in repr(privacy)
    assert privacy.to_dict()["interval"]["upper"] == privacy.upper


def test_noise_is_as_large_as_the_price_says_under_both_adjacencies():
    # μ of tables: replace-one at ε = 1, δ = 1e-6 is .236704 for one Gaussian release (reference/tables.md).
    one = LinearRegression(1.0, 1e-6, method="sufficient-statistics", adjacency="replace-one", **BOUNDS)

    def mu(fitted, shift):
        parts = [part for part, _ in fitted.privacy_.mechanism.parts()]
        return float(np.sqrt(sum((shift / part.noise_multiplier) ** 2 for part in parts)))

    assert mu(one.fit(*numbers(100)), np.sqrt(2)) == pytest.approx(0.236704, abs=2e-6)
    for epsilon, wanted in [(0.1, 0.027545), (0.5, 0.124106), (2.0, 0.448335), (5.0, 1.020357)]:
        other = clone(one).set_params(epsilon=epsilon, adjacency="add-remove").fit(*numbers(100))
        assert mu(other, 1.0) == pytest.approx(wanted, abs=2e-6)


@pytest.mark.parametrize(("adjacency", "gram", "step"), [("add-remove", 1.0, 1.0), ("replace-one", 2**0.5, 2.0)])
def test_the_noise_that_is_drawn_in_a_fit_adds_up_to_the_budget(monkeypatch, adjacency, gram, step):
    """μ² = Σ(sensitivity/σ)² over what gradient descent really draws, with the sensitivities written out here."""
    drawn, clipped = [], set()
    real_noise, real_sum = releases.add_gaussian, descent.clipped_sum

    def noise(values, sigma):
        drawn.append((np.size(values), sigma))
        return real_noise(values, sigma)

    def clip(vectors, clip_norm, by):
        clipped.add(clip_norm)
        return real_sum(vectors, clip_norm, by)

    monkeypatch.setattr(releases, "add_gaussian", noise)
    monkeypatch.setattr(descent, "clipped_sum", clip)
    LinearRegression(1.0, 1e-6, method="gradient-descent", adjacency=adjacency, **BOUNDS).fit(*numbers(300))
    (diagonal, s), (triangle, beside), *steps = drawn
    assert (diagonal, triangle, len(steps), len(clipped)) == (4, 6, 15, 1)
    assert beside == pytest.approx(s / 2**0.5)
    norm_squared = 4  # the constant and three features
    parts = [gram * norm_squared / s, *(step * clip_norm / sigma for clip_norm in clipped for _, sigma in steps)]
    mu = float(np.sqrt(np.sum(np.square(parts))))
    assert 0.999 * 0.236704 < mu <= 0.236705  # of ε = 1 at δ = 1e-6


@pytest.mark.parametrize("rows", [60, 100_000])
@pytest.mark.parametrize(("adjacency", "gram", "step"), [("add-remove", 1.0, 1.0), ("replace-one", 2**0.5, 2.0)])
def test_the_default_spends_the_budget_whichever_way_it_goes(monkeypatch, adjacency, gram, step, rows):
    """Few rows lead to gradient steps, many to more second moments; μ² adds up to the same."""
    drawn, lengths = [], []
    real_noise, real_sum = releases.add_gaussian, releases.gaussian_sum

    def noise(values, sigma):
        drawn.append((np.size(values), sigma))
        return real_noise(values, sigma)

    def total(exact, sensitivity, multiplier):
        lengths.append(sensitivity)
        return real_sum(exact, sensitivity, multiplier)

    monkeypatch.setattr(releases, "add_gaussian", noise)
    monkeypatch.setattr(releases, "gaussian_sum", total)
    fitted = LinearRegression(1.0, 1e-6, adjacency=adjacency, **BOUNDS).fit(*numbers(rows, noise=3.0))
    moments = [sigma for size, sigma in drawn if size == 5]  # diagonals of Σzzᵀ with z = (1, three features, y)
    sums = [sigma for size, sigma in drawn if size == 4]
    levels = len(inference.LEVELS)
    assert (len(moments), len(sums)) == ((1, 15 + levels) if rows == 60 else (2, levels))
    factor = _target_factor(4.0, 1.0)
    spent = sum((gram * (4 + factor**2) / s) ** 2 for s in moments)
    spent += sum((step * c / s) ** 2 for c, s in zip(lengths[:-levels], sums[:-levels], strict=True))
    ends = zip(lengths[-levels:], sums[-levels:], strict=True)
    spent += sum((gram * c / s) ** 2 for c, s in ends)  # entries without a sign: replacing a row moves √2 times as much
    assert 0.999 * 0.236704 < np.sqrt(spent) <= 0.236705
    assert fitted.privacy_.upper <= 1.0


def test_two_rows_that_disagree_move_a_clipped_sum_by_twice_the_norm():
    x, shape = np.array([[1.0, 1.0]]), Shape(1)
    pieces = [descent._whitened(op.Rows(x, np.array([y]), shape), np.eye(2)) for y in (-1.0, 1.0)]
    sides = [descent._gradient(each, np.zeros((2, 1)), lambda v, t: v - t[:, None], 0.5) for each in pieces]
    assert np.linalg.norm(sides[0] - sides[1]) == pytest.approx(shape.clipped_sum(0.5, "replace-one"), rel=1e-5)
    assert np.linalg.norm(sides[0]) == pytest.approx(shape.clipped_sum(0.5, "add-remove"), rel=1e-5)


def test_the_ledger_is_charged_before_anything_is_computed(monkeypatch):
    ledger = Ledger()
    ledger.register("people", epsilon=1.5, delta=1e-3, rule="sum")
    estimator = LinearRegression(1.0, ledger=ledger, dataset="people", **BOUNDS)
    estimator.fit(*numbers(200))
    assert ledger.budget("people").charges == 1
    assert ledger.history("people")[0].confirmed
    assert estimator.privacy_.details["charge"] == ledger.history("people")[0].charge

    def never(*args, **kwargs):
        raise AssertionError("computed although the budget was refused")

    monkeypatch.setattr("tacit.linear_model.releases.moments_of", never)
    monkeypatch.setattr("tacit.noise.exact._add", never)
    again = clone(estimator)
    with pytest.raises(BudgetExceeded):
        again.fit(*numbers(200))
    assert not hasattr(again, "coef_")


def test_a_fit_that_breaks_after_the_charge_stays_spent(monkeypatch):
    ledger = Ledger()
    ledger.register("people", epsilon=1.5, delta=1e-3)

    def broken(*args, **kwargs):
        raise OSError("the disk went away")

    monkeypatch.setattr("tacit.linear_model.releases.moments_of", broken)
    with pytest.raises(OSError, match="disk"):
        LinearRegression(1.0, ledger=ledger, **BOUNDS).fit(*numbers(200))
    assert ledger.budget("people").charges == 1
    assert not ledger.history("people")[0].confirmed


def test_every_copy_of_an_estimator_is_charged_to_the_one_ledger():
    """An accountant that clone() copies records nothing of a grid search of 21 fits: a fault found in a peer."""
    ledger = Ledger()
    ledger.register("people", epsilon=100.0, delta=1e-2)
    search = GridSearchCV(Ridge(epsilon=0.5, ledger=ledger, **BOUNDS), {"alpha": [0.1, 1, 10, 20]}, cv=5)
    with pytest.warns(PrivacyWarning, match="not covered"):
        search.fit(*numbers(300))
    assert ledger.budget("people").charges == 4 * 5 + 1
    assert clone(search.best_estimator_).ledger is ledger


def test_a_search_that_nobody_counts_is_refused():
    x, y = numbers(300)
    search = GridSearchCV(Ridge(epsilon=0.5, **BOUNDS), {"alpha": [0.1, 1]}, cv=3)
    with pytest.raises(SearchRefused, match="PrivateSearchCV"):
        search.fit(x, y)
    with pytest.raises(SearchRefused, match="ledger="):
        cross_val_score(LinearRegression(**BOUNDS), x, y)
    LinearRegression(**BOUNDS).fit(x, y)  # the same fit by itself is fine


@pytest.mark.parametrize("rule", ["renyi", "sum"])
@pytest.mark.parametrize("name", ["linear", "logistic", "pure"])
def test_a_refusal_names_the_epsilon_that_would_fit(name, rule, monkeypatch):
    monkeypatch.setattr(guarantee, "PATIENCE", 600.0)  # a busy machine would stop the search at a smaller one
    made = {
        "linear": lambda epsilon, ledger: LinearRegression(epsilon, ledger=ledger, **BOUNDS).fit(*numbers(300)),
        "logistic": lambda epsilon, ledger: LogisticRegression(epsilon, bounds=(0, 10), ledger=ledger).fit(
            *labels(300)
        ),
        "pure": lambda epsilon, ledger: FunctionalLinearRegression(epsilon, ledger=ledger, **BOUNDS).fit(*numbers(300)),
    }[name]
    ledger = Ledger()
    ledger.register("people", epsilon=1.0, delta=1e-5, rule=rule)
    made(0.4, ledger)
    with pytest.raises(BudgetExceeded, match=r"epsilon=0\.\d+ would fit") as refused:
        made(3.0, ledger)
    assert ledger.budget("people").charges == 1  # asking is not charging
    assert refused.value.advice.epsilon > 0.05
    with pytest.raises(BudgetExceeded):
        made(1.25 * refused.value.advice.epsilon, ledger)
    made(refused.value.advice.epsilon, ledger)


REPEATED = [
    lambda one, x, y: permutation_test_score(one, x, y, n_permutations=2),
    lambda one, x, y: CalibratedClassifierCV(one).fit(x, y),
    lambda one, x, y: TunedThresholdClassifierCV(one).fit(x, y),
    lambda one, x, y: RFE(one).fit(x, y),
    lambda one, x, y: RFECV(one).fit(x, y),
    lambda one, x, y: BaggingClassifier(one, 2).fit(x, y),
    lambda one, x, y: VotingClassifier([("a", one), ("b", one)]).fit(x, y),
    lambda one, x, y: OneVsRestClassifier(one).fit(x, y + (x[:, 0] > 5)),
    lambda one, x, y: MultiOutputClassifier(one).fit(x, np.column_stack([y, y])),
    lambda one, x, y: SelfTrainingClassifier(one, threshold=0.5).fit(x, np.where(np.arange(len(y)) < 100, y, -1)),
]


@pytest.mark.parametrize("around", REPEATED)
def test_whatever_fits_many_times_is_counted_or_refused(around):
    x, y = labels(200)
    alone = LogisticRegression(1.0, bounds=(0, 10), max_weight=3.0)
    with pytest.raises(SearchRefused, match="ledger="):
        around(alone, x, y)
    ledger = Ledger()
    ledger.register("people", epsilon=100.0, delta=1e-2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        around(clone(alone).set_params(ledger=ledger), x, y)
    assert ledger.budget("people").charges >= 2


def test_fits_in_a_worker_and_in_an_imputer_are_among_many():
    x, y = labels(200)
    with pytest.raises(SearchRefused):  # what VotingClassifier(n_jobs=2) sends to its workers
        _fit_single_estimator(LogisticRegression(1.0, bounds=(0, 10)), x, y, {})
    with pytest.raises(SearchRefused):
        IterativeImputer(LinearRegression(**BOUNDS)).fit(np.where(x > 9, np.nan, x))


def test_a_pipeline_that_learns_from_the_rows_is_not_covered_and_says_so():
    x, y = numbers(300)
    inside = LinearRegression(**BOUNDS)
    columns = ColumnTransformer([("scaled", MinMaxScaler(), [0])], remainder="passthrough")
    for step in (StandardScaler(), columns, make_pipeline("passthrough", SimpleImputer())):
        with pytest.warns(PrivacyWarning, match="learned from the same rows"):
            fitted = make_pipeline(step, inside).fit(x, y)
        assert "NOT covered" in repr(fitted[-1].privacy_)
    with pytest.warns(PrivacyWarning, match="StandardScaler"):
        TransformedTargetRegressor(inside, transformer=StandardScaler()).fit(x, y)
    public = FrozenEstimator(StandardScaler().fit(np.arange(30.0).reshape(10, 3)))
    constant = SimpleImputer(strategy="constant", fill_value=0, keep_empty_features=True)
    for step in (PolynomialFeatures(2), public, constant, FunctionTransformer(np.sqrt), "passthrough"):
        fitted = make_pipeline(step, inside).fit(x, y)  # a warning would be an error here
        assert fitted[-1].privacy_.details["assumptions"] == ()


def test_terms_of_the_ledger_hold():
    ledger = Ledger()
    ledger.register("people", unit="person", adjacency="replace-one", epsilon=5.0, delta=1e-3)
    x, y = numbers(200)
    with pytest.raises(ValueError, match=r"registered for one person.*groups=ids"):  # a row may be one of many
        LinearRegression(1.0, ledger=ledger, dataset="people", **BOUNDS).fit(x, y)
    with pytest.raises(acc.UnitError, match=r"only a word.*groups=ids"):
        LinearRegression(1.0, ledger=ledger, unit="person", **BOUNDS).fit(x, y)
    owned = {"unit": "person", "max_rows": 1, **BOUNDS}
    fitted = LinearRegression(1.0, ledger=ledger, **owned).fit(x, y, groups=range(200))
    assert (fitted.privacy_.adjacency, fitted.privacy_.unit) == ("replace-one", "person")
    with pytest.raises(ValueError, match="registered for replace-one"):
        LinearRegression(1.0, ledger=ledger, adjacency="add-remove", **owned).fit(x, y, groups=range(200))
    with pytest.raises(ValueError, match="registered for one person"):
        LinearRegression(1.0, ledger=ledger, **(owned | {"unit": "visit"})).fit(x, y, groups=range(200))
    ledger.register("others", epsilon=5.0, delta=1e-3)
    with pytest.raises(ValueError, match="name the data set"):
        LinearRegression(1.0, ledger=ledger, **BOUNDS).fit(x, y)


def test_nothing_unpaid_is_stored():
    """Neither the number of rows, nor a mean, nor a row of the data is left in a fitted estimator."""
    x, y = numbers(997)
    fitted = LinearRegression(1.0, **BOUNDS).fit(x, y)
    assert b"997" not in pickle.dumps({k: v for k, v in vars(fitted).items() if isinstance(v, int)})
    before = LinearRegression(1.0, **BOUNDS)
    names = set(vars(fitted)) - set(vars(before))
    paid = {"coef_", "intercept_", "covariance_", "privacy_", "_theta", "_centre", "prediction_noise_", "r2_noise_"}
    public = {"n_features_in_", "features_", "_middle", "_half_width", "_why"}
    assert names == paid | public
    kept = vars(fitted)["features_"]
    assert kept.middle.tolist() == [5.0] * 3


# -- objective perturbation --------------------------------------------------------------------------------------------


def test_the_hessian_bound_is_a_quarter_of_the_squared_norm():
    """R/4 in place of R²/4 is a fault found in a peer: the Jacobian's part of ε is then too small."""
    slope = op.Slope(norm_squared=16.0)
    assert slope.jacobian(2.0) == pytest.approx(np.log1p(16 / 4 / 2.0))
    assert slope.lipschitz == 4.0
    # Attained: one row of length R at p = 1/2 on top of nothing but the ridge.
    x = np.ones(16)
    hessian = 2.0 * np.eye(16)
    change = np.linalg.slogdet(hessian + 0.25 * np.outer(x, x))[1] - np.linalg.slogdet(hessian)[1]
    assert change == pytest.approx(slope.jacobian(2.0))


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_no_row_changes_the_determinant_or_the_gradient_more_than_stated(classes):
    generator = np.random.default_rng(0)
    slope = op.Slope(norm_squared=4.0, classes=classes)
    for _ in range(300):
        x = generator.choice([-1.0, 1.0], 4)
        columns = 1 if classes == 2 else classes
        theta = generator.normal(size=(4, columns)) * generator.choice([0.0, 0.3, 3.0])
        ridge = float(np.exp(generator.uniform(-3, 3)))
        base = generator.normal(size=(4 * columns, 4 * columns)) * generator.choice([0.0, 0.5])
        without = ridge * np.eye(4 * columns) + base @ base.T
        row = op.Rows(x[None], np.array([float(generator.integers(classes))]), Shape(3))
        _, gradient, hessian = op.logistic(row, theta) if classes == 2 else op.softmax(row, theta)
        assert np.linalg.norm(gradient) <= slope.lipschitz * (1 + 1e-12)
        change = np.linalg.slogdet(without + hessian)[1] - np.linalg.slogdet(without)[1]
        assert -1e-9 <= change <= slope.jacobian(ridge) + 1e-9


@pytest.mark.parametrize("slots", [1, 2])
def test_the_price_of_objective_perturbation_covers_the_loss_that_is_found(slots):
    """With one coefficient the minimiser's density is known: its δ(ε), by quadrature, is at most what is stated."""
    sigma, ridge = 6.0, 4.0
    slope = op.Slope(norm_squared=1.0, slots=slots)
    theta = np.linspace(-60, 60, 400_001)

    def density(rows):
        gradient, hessian = ridge * theta, np.full_like(theta, ridge)
        for x, y in rows:
            p = 1 / (1 + np.exp(-x * theta))
            gradient, hessian = gradient + x * (p - y), hessian + x * x * p * (1 - p)
        return np.exp(-(gradient**2) / (2 * sigma**2)) / np.sqrt(2 * np.pi) / sigma * hessian

    both = [(1.0, 1), (-1.0, 1)]
    pairs = [([(1.0, 1)], [(1.0, 0)])] if slots == 2 else [([(1.0, 1)], []), ([], [(1.0, 1)]), (both, both[:1])]
    for epsilon in (0.1, 0.3):
        stated = op.gaussian_delta(epsilon, sigma, ridge, slope)
        for one, two in pairs:
            found = np.trapezoid(np.maximum(density(one) - np.exp(epsilon) * density(two), 0), theta)
            assert found <= stated * (1 + 1e-6)


def test_the_solver_reaches_the_tolerance_that_the_proof_uses():
    x, y = labels(500)
    features = np.column_stack([np.ones(500), (x - 5) / 5])
    made = op.perturb(op.Slope(4.0), 0.5, 1e-6, "add-remove", "record")
    rows = op.Rows(features, y.astype(float), Shape(3))
    noise = made.noise(4)
    theta = op.minimise(rows, noise, made.ridge, made.tolerance, 2)
    _, gradient, _ = op.logistic(rows, theta)
    gradient = gradient + made.ridge * theta + noise[:, None]
    assert np.linalg.norm(gradient) <= made.tolerance / 2
    scale = made.output * 2 * made.tolerance / made.ridge
    moved = np.std([made.hide(np.zeros(1000)) for _ in range(3)])
    assert moved == pytest.approx(scale, rel=0.1)


def test_pure_noise_on_the_objective_has_the_right_length():
    made = op.perturb(op.Slope(4.0), 1.0, 0.0, "add-remove", "record")
    lengths = np.array([np.linalg.norm(made.noise(5)) for _ in range(400)])
    # |b| is a gamma variable of shape 5 and rate η.
    assert lengths.mean() == pytest.approx(5 / made.rate, rel=0.12)
    assert lengths.std() == pytest.approx(np.sqrt(5) / made.rate, rel=0.2)
    assert made.rate * made.slope.reach + made.slope.jacobian(made.ridge) <= 0.99 * (1 + 1e-9)


def test_budgets_out_of_numpy_are_numbers_too():
    x, y = numbers(50)
    made = LinearRegression(np.float32(1.0), np.float64(1e-5), coef_norm=np.float32(2.0), **BOUNDS).fit(x, y)
    assert 0.999 < made.privacy_.upper <= 1.0
    assert LinearRegression(np.int64(1), np.int64(0), **BOUNDS).fit(x, y).privacy_.delta == 0


@pytest.mark.parametrize("method", ["adaptive", "gradient-descent", "objective-perturbation", "dp-sgd", "moments"])
def test_what_a_fit_would_run_is_said_for_made_up_rows_and_charged_to_nobody(method):
    """The ledger knows the table, and made-up rows are not it; what is said is what the fit then runs."""
    x, generator = np.random.default_rng(0).uniform(-1, 1, (200, 2)), np.random.default_rng(1)
    y = (x[:, 0] > 0).astype(int)
    ledger = Ledger()
    ledger.register("people", epsilon=2.0, delta=1e-5, fingerprint=(x, y))
    terms = {"epsilon": 1.0, "delta": 1e-6, "bounds": (-1, 1), "ledger": ledger, "dataset": "people"}
    if method == "moments":
        made = LinearRegression(target_bounds=(0, 1), method="sufficient-statistics", **terms)
    else:
        made = LogisticRegression(classes=[0, 1], **({} if method == "adaptive" else {"method": method}), **terms)
    said = made.asked(generator.uniform(-1, 1, x.shape), generator.integers(0, 2, len(y)))
    assert ledger.budget("people").charges == 0
    fitted = made.fit(x, y)
    assert (said.mechanism, said.adjacency) == (fitted.privacy_.mechanism, fitted.privacy_.adjacency)
    assert ledger.budget("people").charges == 1
