"""Which mistakes have been made with the price? Steps, choices and copies that nobody charged, noise that never was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tacit import accounting as acc
from tacit.ledger import surroundings
from tacit.selftest.mutants.base import mutant, replaced
from tacit.sgd import Classifier, Plan, Training, release
from tacit.sgd.training.resume import Resumable


@mutant("one step is not priced", "accounting")
def step_free() -> Iterator[None]:
    """Off by one."""
    prefix = Plan.prefix
    with replaced(Plan, "prefix", lambda self, steps: prefix(self, steps - 1)):
        yield


@mutant("a tenth more noise is priced than was added", "accounting")
def more_noise_priced() -> Iterator[None]:
    """The accountant and the step read the noise multiplier from two places."""

    def prefix(self: Plan, steps: int) -> acc.Mechanism:
        return self.sampler.describe([acc.Gaussian(z * 1.1, unit=self.unit) for z in self.noise[:steps]])

    with replaced(Plan, "prefix", prefix):
        yield


@mutant("ε is stated for ten times δ", "accounting")
def other_delta() -> Iterator[None]:
    """The δ of the price is not the δ beside it."""
    price = Plan.price

    def wrong(self: Plan, steps: int | None = None) -> acc.Bound:
        spent = self.mechanism if steps is None else self.prefix(steps)
        return acc.epsilon(spent, min(10 * self.delta, 0.9), adjacency=self.adjacency) if self.delta else price(self)

    with replaced(Plan, "price", wrong):
        yield


@mutant("a run stopped after looking pays for what it executed", "accounting")
def stop_after_looking() -> Iterator[None]:
    """When to stop is itself a release."""
    stop = Training.stop

    def cheap(self: Training, reason: str, *, looked_at_results: bool = True) -> None:
        stop(self, reason, looked_at_results=False)

    with replaced(Training, "stop", cheap):
        yield


@mutant("the ledger is charged after training", "accounting")
def charged_late() -> Iterator[None]:
    """A run that is killed has cost nothing, as far as the ledger knows."""
    begin, finish = Resumable.begin, Resumable.finish

    def without(self: Resumable) -> None:
        ledger, self.ledger = self.ledger, None
        try:
            begin(self)
        finally:
            self.ledger = ledger

    def late(self: Resumable) -> None:
        if self.ledger is not None and self.dataset is not None and self.charge is None:
            self.charge = self.ledger.charge(self.dataset, self.plan.mechanism, delta=self.plan.delta, purpose="late")
        finish(self)

    with replaced(Resumable, "begin", without), replaced(Resumable, "finish", late):
        yield


@mutant("the ledger is lost on clone", "accounting")
def lost_on_clone() -> Iterator[None]:
    """scikit-learn copies an estimator by its parameters, and the ledger is not among them."""
    from sklearn.base import BaseEstimator

    parameters = BaseEstimator.get_params

    def forgetful(self: Any, deep: bool = True) -> dict[str, Any]:
        found: dict[str, Any] = parameters(self, deep)
        return {name: None if name in ("ledger", "dataset") else value for name, value in found.items()}

    with replaced(BaseEstimator, "get_params", forgetful):
        assert Classifier.get_params is not parameters
        yield


@mutant("a search fits many times and states one ε", "accounting")
def search_free() -> Iterator[None]:
    """An estimator sees one fit and prices one; a grid search around it spends that again with every fit."""
    with replaced(surroundings, "refuse_uncounted_search", lambda *_: None):
        yield


@mutant("the noise begins again after a resume", "accounting")
def noise_again() -> Iterator[None]:
    """Steps are counted from the moment of the resume: the first noise is used for two releases."""
    load, noisy = Resumable.restore, release.noisy_gradients
    before: dict[int, int] = {}

    def noted(self: Resumable, state: Any) -> None:
        load(self, state)
        before[id(self.parameters)] = self.state.step

    def again(sums: Any, parameters: Any, key: Any, step: int, *rest: Any) -> Any:
        return noisy(sums, parameters, key, step - before.get(id(parameters), 0), *rest)

    with replaced(Resumable, "restore", noted), replaced(release, "noisy_gradients", again):
        yield
