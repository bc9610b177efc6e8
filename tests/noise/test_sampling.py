"""Keyed uniform bits and Poisson masks."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tacit.noise import Key, bernoulli_mask, native, sampling, tensor, uniform
from tacit.noise.sampling import bernoulli_threshold, taking_part

KEY = Key(bytes(range(32)))


def test_the_words_are_uniform_in_every_bit():
    words = uniform(KEY, 0, 200_000)
    assert stats.kstest(words.astype(float) / 2.0**64, "uniform").pvalue > 1e-3
    for bit in range(64):
        assert abs(((words >> np.uint64(bit)) & np.uint64(1)).mean() - 0.5) < 4.5 * math.sqrt(0.25 / words.size)


@given(st.integers(0, 2000), st.integers(0, 2000), st.integers(0, 2**50))
def test_any_split_of_the_records_gives_the_same_words(first, second, offset):
    whole = uniform(KEY, 3, first + second, offset=offset)
    parts = uniform(KEY, 3, first, offset=offset), uniform(KEY, 3, second, offset=offset + first)
    assert np.array_equal(np.concatenate(parts), whole)


@given(st.floats(0, 1))
def test_the_true_rate_is_never_above_the_accounted_one(rate):
    threshold = bernoulli_threshold(rate)
    assert Fraction(threshold, 2**64) <= Fraction(rate) < Fraction(threshold + 1, 2**64)


@pytest.mark.parametrize("rate", [0.0, 1e-3, 256 / 60_000, 0.5, 1.0])
def test_records_take_part_at_the_rate(rate):
    taking_part = sum(int(bernoulli_mask(KEY, step, 60_000, rate).sum()) for step in range(10))
    assert stats.binomtest(taking_part, 600_000, rate).pvalue > 1e-4


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("rate", [0.0, 1e-3, 0.25, 1.0])
def test_those_who_take_part_are_those_of_the_mask(monkeypatch, rate, compiled):
    """Drawn at once or in several parts, which begin and end inside a tile of the stream or at its end."""
    if not compiled:
        monkeypatch.setattr(native, "load", lambda: (None, "not wanted"))
    for at_once in (1 << 24, 256, 300):
        monkeypatch.setattr(sampling, "_LISTED", at_once)
        for n in (0, 1, 255, 256, 257, 1000, 2000):
            found = taking_part(KEY, 5, n, rate)
            assert found.dtype == np.int64
            assert np.array_equal(found, np.flatnonzero(bernoulli_mask(KEY, 5, n, rate)))


def test_a_mask_that_is_made_in_parts_is_that_of_one_part(monkeypatch):
    whole = bernoulli_mask(KEY, 5, 1000, 0.3)
    monkeypatch.setattr(sampling, "_AT_ONCE", 64)
    assert np.array_equal(bernoulli_mask(KEY, 5, 1000, 0.3), whole)


def test_steps_and_records_are_independent():
    masks = np.stack([bernoulli_mask(KEY, step, 100_000, 0.3) for step in range(5)]).astype(float)
    correlations = np.corrcoef(masks) - np.eye(5)
    assert np.abs(correlations).max() < 4.5 / math.sqrt(100_000)
    neighbours = np.corrcoef(masks[0, 1:], masks[0, :-1])[0, 1]
    assert abs(neighbours) < 4.5 / math.sqrt(100_000)


def test_the_size_of_a_batch_varies_as_poisson_sampling_says():
    sizes = [int(bernoulli_mask(KEY, step, 1000, 0.1).sum()) for step in range(2000)]
    assert abs(np.mean(sizes) - 100) < 4.5 * math.sqrt(90 / 2000)
    assert 0.85 < np.var(sizes) / 90 < 1.15


def test_sampling_and_noise_of_one_key_are_unrelated():
    noise = tensor.normal(KEY, 0, 0, 100_000).double().numpy()
    chosen = uniform(KEY, 0, 100_000).astype(float)
    assert abs(np.corrcoef(noise, chosen)[0, 1]) < 4.5 / math.sqrt(100_000)


def test_torch_gets_the_same_mask():
    mask = tensor.bernoulli_mask(KEY, 4, 1000, 0.2, offset=7)
    assert mask.dtype == torch.bool
    assert np.array_equal(mask.numpy(), bernoulli_mask(KEY, 4, 1000, 0.2, offset=7))


@pytest.mark.parametrize("rate", [-0.1, 1.1, math.nan])
def test_rates_that_are_no_probabilities_are_refused(rate):
    with pytest.raises(ValueError, match="rate"):
        bernoulli_mask(KEY, 0, 10, rate)


@pytest.mark.parametrize(("n", "offset"), [(-1, 0), (1, -1), (2**63, 1)])
def test_senseless_ranges_are_refused(n, offset):
    with pytest.raises(ValueError, match="range"):
        uniform(KEY, 0, n, offset=offset)
