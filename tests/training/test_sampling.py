"""Every sampler draws what it says it draws, and says what that costs."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from tacit import accounting as acc
from tacit.noise.keys import Key
from tacit.sgd.training import sampling
from tacit.sgd.training.plan import Plan
from tacit.sgd.training.sampling import SAMPLERS, Poisson, RandomBins, TruncatedPoisson, bins_of, make_sampler

UNITS, BATCH, STEPS = 60, 12, 4000


def draws(name, steps=STEPS, **more):
    sampler = make_sampler(name, UNITS, BATCH, **more)
    key = Key(bytes([3]) * 32)
    taken = np.zeros((steps, UNITS), dtype=bool)
    for step in range(steps):
        chosen = sampler.draw(key, step, UNITS)
        assert np.all(np.diff(chosen) > 0)
        taken[step, chosen] = True
    return sampler, taken


@pytest.fixture(scope="module")
def taken():
    return {name: draws(name)[1] for name in SAMPLERS}


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_unit_takes_part_as_often_as_the_rate_says(name, taken):
    counts = taken[name].sum(0)
    rate = BATCH / UNITS
    if name in ("chunks", "shuffle", "balls-in-bins"):
        # once in every pass, exactly
        passes = taken[name].reshape(-1, UNITS // BATCH, UNITS).sum(1)
        assert (passes == 1).all()
    else:
        deviation = (counts - STEPS * rate) / np.sqrt(STEPS * rate * (1 - rate))
        assert np.abs(deviation).max() < 4.5
        # and the deviations themselves are neither too large nor too small to be chance
        assert stats.kstest(deviation, "norm").pvalue > 1e-4


def test_poisson_batch_sizes_follow_the_binomial_law(taken):
    sizes = taken["poisson"].sum(1)
    edges = [0, 8, 10, 12, 14, 16, UNITS + 1]
    found = np.histogram(sizes, bins=edges)[0]
    law = stats.binom(UNITS, BATCH / UNITS)
    expected = STEPS * np.diff(law.cdf(np.array(edges) - 1))
    assert stats.chisquare(found, expected * found.sum() / expected.sum()).pvalue > 1e-4


def test_balls_in_bins_batch_sizes_follow_the_binomial_law(taken):
    sizes = taken["balls-in-bins"].reshape(-1, 5, UNITS)[:, 0].sum(1)
    law = stats.binom(UNITS, 1 / 5)
    assert abs(sizes.mean() - law.mean()) < 5 * law.std() / np.sqrt(len(sizes))
    assert 0.8 < sizes.var() / law.var() < 1.25


def test_fixed_size_and_chunks_have_the_size_they_say(taken):
    for name in ("fixed", "shuffle", "chunks"):
        assert (taken[name].sum(1) == BATCH).all()


def test_truncated_batches_are_poisson_batches_cut_at_random():
    _, whole = draws("poisson", 1500)
    _, cut = draws("truncated", 1500, max_batch=BATCH)
    assert (cut <= whole).all()
    assert (cut.sum(1) == np.minimum(whole.sum(1), BATCH)).all()
    lost = (whole & ~cut).sum(0)
    assert stats.chisquare(lost).pvalue > 1e-4


@pytest.mark.parametrize("name", ["poisson", "truncated", "fixed", "balls-in-bins", "shuffle"])
def test_two_units_are_drawn_independently(name, taken):
    """Pairs within a step, and a unit in two steps in a row; a fixed size leaves a known negative correlation."""
    table = taken[name].astype(float)
    within = np.corrcoef(table.T)[np.triu_indices(UNITS, 1)]
    expected = {"fixed": -1 / (UNITS - 1), "shuffle": -1 / (UNITS - 1)}.get(name, 0.0)
    assert np.abs(within - expected).max() < 5.5 / np.sqrt(STEPS)
    assert abs(within.mean() - expected) < 5 / np.sqrt(STEPS * len(within))
    if name in ("poisson", "truncated", "fixed"):
        across = [np.corrcoef(table[:-1, i], table[1:, i])[0, 1] for i in range(UNITS)]
        assert np.abs(across).max() < 4.5 / np.sqrt(STEPS)


def test_shuffling_differs_from_pass_to_pass_and_chunks_do_not(taken):
    passes = taken["shuffle"].reshape(-1, 5, UNITS)
    assert not (passes[0] == passes[1]).all()
    where = passes.argmax(1)
    assert stats.chisquare(np.bincount(where[:, 0], minlength=5)).pvalue > 1e-4
    fixed = taken["chunks"].reshape(-1, 5, UNITS)
    assert (fixed == fixed[0]).all()


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_batch_depends_on_key_and_step_alone(name):
    sampler = make_sampler(name, UNITS, BATCH)
    one = [sampler.draw(Key(bytes([3]) * 32), step, UNITS) for step in (4, 2, 3)]
    two = [sampler.draw(Key(bytes([3]) * 32), step, UNITS) for step in (4, 2, 3)]
    assert all((a == b).all() for a, b in zip(one, two, strict=True))
    if name != "chunks":
        assert any(
            len(a) != len(b) or (a != b).any()
            for a, b in ((x, sampler.draw(Key(bytes([4]) * 32), s, UNITS)) for x, s in zip(one, (4, 2, 3), strict=True))
        )


def test_each_sampler_states_its_own_mechanism():
    noise = [acc.Gaussian(1.5)] * 10
    stated = {name: make_sampler(name, 60, 12).describe(noise) for name in SAMPLERS}
    assert stated["poisson"] == acc.PoissonSampled(acc.Gaussian(1.5), 0.2) * 10
    assert stated["fixed"] == acc.FixedSizeSampled(acc.Gaussian(1.5), 12, 60) * 10
    assert stated["shuffle"] == acc.Shuffled(acc.Gaussian(1.5), bins=5) * 2
    assert stated["chunks"] == acc.Shuffled(acc.Gaussian(1.5)) * 2
    assert stated["balls-in-bins"] == acc.BallsInBins(acc.Gaussian(1.5), 5) * 2
    cut = TruncatedPoisson(60, 12, 20).describe(noise)
    assert cut == acc.TruncatedPoissonSampled(acc.Gaussian(1.5), 0.2, 60, 20) * 10


def test_a_pass_that_was_begun_is_priced_as_a_whole_at_its_least_noise():
    sampler = make_sampler("shuffle", 60, 12)
    steps = [acc.Gaussian(z) for z in (2.0, 1.0, 3.0, 2.0, 2.0, 4.0)]
    assert sampler.describe(steps) == acc.Shuffled(acc.Gaussian(1.0), 5) + acc.Shuffled(acc.Gaussian(4.0), 5)
    bins = make_sampler("balls-in-bins", 60, 12)
    assert bins.describe(steps) == acc.BallsInBins(acc.Gaussian(1.0), 5) + acc.BallsInBins(acc.Gaussian(4.0), 5)


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(ValueError, match="larger than the number of units"):
        Poisson(10, 11)
    with pytest.raises(ValueError, match="there is no sampler 'posson'"):
        make_sampler("posson", 10, 2)


def test_samplers_that_need_the_true_size_say_so():
    with pytest.raises(ValueError, match="needs the true number"):
        make_sampler("fixed", 100, 10).check(90)
    with pytest.raises(ValueError, match="overflow"):
        make_sampler("truncated", 100, 10).check(110)
    make_sampler("poisson", 100, 10).check(90)


# -- balls in bins: what the price rests on ----


def each_unit_comes_once_in_each_pass(sampler, key, passes=40):
    each = sampler.steps_per_epoch
    for number in range(passes):
        drawn = np.concatenate([sampler.draw(key, number * each + k, UNITS) for k in range(each)])
        assert sorted(drawn.tolist()) == list(range(UNITS))


def bins_are_drawn_evenly_and_anew_for_each_pass(sampler, key, passes=600):
    """A unit is in the same batch of two passes as often as chance says, and in each batch equally often."""
    each = sampler.steps_per_epoch
    where = np.zeros((passes, UNITS), dtype=int)
    for step in range(passes * each):
        where[step // each, sampler.draw(key, step, UNITS)] = step % each
    counts = np.bincount(where.ravel(), minlength=each)
    assert stats.chisquare(counts).pvalue > 1e-6
    same = int((where[1:] == where[:-1]).sum())
    assert stats.binomtest(same, (passes - 1) * UNITS, 1 / each).pvalue > 1e-6


class Reused(RandomBins):
    """The bins of the first pass in all passes: the same as the chunks of one shuffle."""

    def draw(self, key, step, units):
        return super().draw(key, step % self.steps_per_epoch, units)


class Dropped(RandomBins):
    """One bin more than there are batches: who falls into it is never seen."""

    def draw(self, key, step, units):
        bins = self.steps_per_epoch
        return np.flatnonzero(bins_of(key, step // bins, units, bins + 1) == step % bins)


class Uneven(RandomBins):
    def draw(self, key, step, units):
        bins = self.steps_per_epoch
        word = bins_of(key, step // bins, units, 4 * bins)
        return np.flatnonzero(np.where(word == 0, 1, word % bins) == step % bins)


def test_random_bins_are_what_they_are_priced_as():
    key, right = Key(bytes([7]) * 32), RandomBins(UNITS, BATCH)
    each_unit_comes_once_in_each_pass(right, key)
    bins_are_drawn_evenly_and_anew_for_each_pass(right, key)
    with pytest.raises(AssertionError):
        each_unit_comes_once_in_each_pass(Dropped(UNITS, BATCH), key)
    for wrong in (Reused, Uneven):
        with pytest.raises(AssertionError):
            bins_are_drawn_evenly_and_anew_for_each_pass(wrong(UNITS, BATCH), key)


def test_a_word_that_would_prefer_a_bin_is_drawn_again(monkeypatch):
    """2^64 is 1 modulo 5 and 3: its last word is above every multiple, and another one takes its place."""
    asked, real = [], sampling.uniform

    def words(key, step, n, *, offset=0):
        asked.append(key)
        return np.full(n, 2**64 - 1, dtype=np.uint64) if len(asked) < 3 else np.arange(n, dtype=np.uint64)

    monkeypatch.setattr(sampling, "uniform", words)
    assert bins_of(Key(bytes(32)), 0, 6, 5).tolist() == [0, 1, 2, 3, 4, 0]
    assert len(asked) == 3
    assert len({tuple(real(key, 0, 2).tolist()) for key in asked}) == 3


def test_the_number_of_bins_does_not_follow_the_true_number_of_units():
    sampler = RandomBins(100, 10)
    sampler.check(93)
    assert sum(len(sampler.draw(Key(bytes(32)), step, 93)) for step in range(10)) == 93
    assert sampler.divisor == 10


def test_cut_batches_of_a_given_size_are_priced_for_adding_and_removing_only():
    plan = Plan(TruncatedPoisson(60, 12, 20), (1.0,), (1.0,), delta=1e-5, size_given=True)
    assert plan.stated.adjacency == "add-remove"
    with pytest.raises(ValueError, match="leave size= out"):
        Plan(TruncatedPoisson(60, 12, 20), (1.0,), (1.0,), delta=1e-5, size_given=True, adjacency="zero-out")
