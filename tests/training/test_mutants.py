"""Wrong versions of private training, each of which has been shipped by somebody, fail the statements below.

A statement is a function of how to build a run. It holds for the product; for each wrong version at least one fails.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from tacit import accounting as acc
from tacit.noise.tensor import normal
from tacit.sgd import Plan, Training
from tacit.sgd.training.sampling import Poisson, Sampler, Shuffle
from tests.training.common import LOSS, data, finish, key, network, same, weights

ROWS, BATCH, STEPS = 110, 20, 12  # the batch does not divide the data: 1 / len(loader) is another number than the rate


class Case:
    """How to build a run: the class of training, and the sampler."""

    def __init__(self, training: type[Training] = Training, sampler: Callable[..., Sampler] | None = None) -> None:
        self.training, self.sampler = training, sampler

    def __call__(self, batch_size=BATCH, **more):
        model = network()
        settings = {"steps": STEPS, "noise_multiplier": 1.5, "delta": 1e-5, "clip_norm": 0.3, "key": key()} | more
        if self.sampler is not None:
            settings["sampler"] = self.sampler(ROWS, batch_size)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        return self.training(model, optimizer, LOSS, data(ROWS), batch_size=batch_size, **settings)


# -- statements ----------------------------------------------------------------------------------------------------


def the_price_is_that_of_the_batches_that_were_drawn(case, tmp_path):
    """Read off how units took part, decide which law that is, and ask the accountant about it."""
    training = case(steps=600)
    taken = np.zeros((600, ROWS))
    for step in range(600):
        taken[step, training.plan.sampler.draw(key().derive("sampler"), step, ROWS)] = 1
    passes = taken.reshape(-1, math.ceil(ROWS / BATCH), ROWS).sum(1)
    if (passes == 1).all():
        expected = acc.epsilon(acc.Shuffled(acc.Gaussian(1.5)) * 100, 1e-5, adjacency="zero-out")
    else:
        rate = taken.mean()
        assert rate == pytest.approx(BATCH / ROWS, abs=4 * math.sqrt(0.15 / taken.size))
        expected = acc.epsilon(acc.PoissonSampled(acc.Gaussian(1.5), BATCH / ROWS) * 600, 1e-5)
    assert training.privacy.upper == pytest.approx(expected.upper, rel=1e-6)


def every_step_of_the_plan_is_charged(case, tmp_path):
    training = case()
    finish(training)
    assert training.steps_executed == STEPS
    assert sum(t for p, t in training.plan.mechanism.parts() if isinstance(p, acc.PoissonSampled)) == STEPS


def a_step_divides_by_a_public_constant(case, tmp_path):
    training = case()
    for batch in training:
        before = weights(training.model)
        sums, _ = training.clipped_sums(batch, training.clip_at(batch.step))
        training.step(batch)
        for n, p in training.model.named_parameters():
            noise = 1.5 * 0.3 * normal(key().derive("noise"), batch.step, n, tuple(p.shape))
            assert torch.allclose(before[n] - p, (sums[n] + noise) / BATCH, atol=1e-9)


def an_empty_batch_releases_noise(case, tmp_path):
    training = case(batch_size=1, steps=30)
    empty = 0
    for batch in training:
        before = weights(training.model)
        training.step(batch)
        if len(batch) == 0:
            empty += 1
            assert not same(before, weights(training.model), 1e-6)
    assert empty


def no_noise_is_used_for_two_releases(case, tmp_path):
    """Killed and resumed, the rest of the run is the one that was not interrupted."""
    whole = finish(case())
    first = case(checkpoint=tmp_path / "run.ckpt", checkpoint_every=1)
    for batch in first:
        first.step(batch)
        if first.steps_executed == 5:
            break
    assert same(whole, finish(case(checkpoint=tmp_path / "run.ckpt", checkpoint_every=1)))


STATEMENTS = [
    the_price_is_that_of_the_batches_that_were_drawn,
    every_step_of_the_plan_is_charged,
    a_step_divides_by_a_public_constant,
    an_empty_batch_releases_noise,
    no_noise_is_used_for_two_releases,
]


@pytest.mark.parametrize("statement", STATEMENTS)
def test_the_product_meets_every_statement(statement, tmp_path):
    statement(Case(), tmp_path)


# -- wrong versions ------------------------------------------------------------------------------------------------


class RateOfTheLoader(Poisson):
    """Prices, and samples, with 1 / len(loader), as loaders that round up make it."""

    @property
    def rate(self):
        return 1 / self.steps_per_epoch


@dataclasses.dataclass(frozen=True)
class PricedByTheLoader(Poisson):
    """Samples with the true rate and prices 1 / len(loader), which is smaller."""

    def sampled(self, step):
        return acc.PoissonSampled(step, 1 / self.steps_per_epoch)


class RealisedSize(Training):
    """Divides by the number of records that happened to be drawn."""

    def step(self, batch):
        self._size = max(len(batch), 1)
        super().step(batch)

    def _release(self, sums, inside, step):
        factor = self.plan.sampler.divisor / self._size
        super()._release({n: s * factor for n, s in sums.items()}, inside, step)


class SkipsEmpty(Training):
    """Counts an empty batch as done."""

    def step(self, batch):
        if len(batch):
            super().step(batch)
        else:
            self.count_step()


class ShuffledAsPoisson(Shuffle):
    """Shuffles and claims the amplification of Poisson sampling."""

    adjacency = "add-remove"

    def describe(self, steps):
        return Poisson(self.size, self.batch_size).describe(steps)


class OneStepFree(Plan):
    """Forgets a step."""

    def prefix(self, steps):
        return super().prefix(steps - 1)


class StepNotCharged(Training):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.plan = OneStepFree(**{f.name: getattr(self.plan, f.name) for f in dataclasses.fields(self.plan)})


class NoiseAgain(Training):
    """Counts the steps of the noise from the moment it was resumed."""

    _before = 0

    def restore(self, state):
        super().restore(state)
        self._before = self.steps_executed

    def _release(self, sums, inside, step):
        super()._release(sums, inside, step - self._before)


WRONG = {
    "rate 1/len(loader)": (Case(sampler=RateOfTheLoader), the_price_is_that_of_the_batches_that_were_drawn),
    "priced at 1/len(loader)": (Case(sampler=PricedByTheLoader), the_price_is_that_of_the_batches_that_were_drawn),
    "realised batch size as divisor": (Case(RealisedSize), a_step_divides_by_a_public_constant),
    "empty batch skipped": (Case(SkipsEmpty), an_empty_batch_releases_noise),
    "shuffled priced as Poisson": (Case(sampler=ShuffledAsPoisson), the_price_is_that_of_the_batches_that_were_drawn),
    "step not charged": (Case(StepNotCharged), every_step_of_the_plan_is_charged),
    "noise repeated after resume": (Case(NoiseAgain), no_noise_is_used_for_two_releases),
}


@pytest.mark.filterwarnings("ignore::tacit.sgd.PrivacyWarning")
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_version_fails_its_statement(name, tmp_path):
    case, statement = WRONG[name]
    with pytest.raises(AssertionError):
        statement(case, tmp_path)
