"""Steps that were noted by hand count like those of a run, and settings that contradict each other are refused."""

from __future__ import annotations

import pytest
from torch import nn

from tacit import accounting as acc
from tacit.opacus.accountants import RDPAccountant
from tacit.opacus.utils.uniform_sampler import UniformWithReplacementSampler
from tacit.opacus.validators import ModuleValidator
from tacit.sgd.hooked.draws import Spent
from tacit.sgd.training.sampling import Poisson


def tail(noted: int) -> float:
    """What the noise generator adds to δ, of a run of two steps and steps that were noted."""
    accountant = RDPAccountant()
    run = Spent(Poisson(size=1000, batch_size=10), elements=1000)
    run.add(1.0)
    run.add(1.0)
    accountant._runs.append(run)
    for _ in range(noted):
        accountant.step(noise_multiplier=1.0, sample_rate=0.01)
    parts = accountant.privacy(1e-5).mechanism.parts()
    return sum(times * part.delta for part, times in parts if isinstance(part, acc.ApproxDP))


def test_the_tail_of_the_generator_is_paid_for_steps_that_were_noted():
    assert tail(98) >= 40 * tail(0) > 0


def test_a_sampler_expects_its_rate_times_its_records():
    for rate, expected in ((0.1, 10), (0.001, 1), (1.0, 100)):
        sampler = UniformWithReplacementSampler(num_samples=100, sample_rate=rate)
        assert sampler.sampler.batch_size == sampler.sampler.divisor == expected
        assert sampler.sampler.rate == rate


def test_groups_for_a_normalisation_without_groups_are_refused():
    with pytest.raises(ValueError, match="num_groups belongs"):
        ModuleValidator.fix(nn.BatchNorm2d(4), num_groups=2, replace_bn_with_in=True)
