"""Random bits: from the operating system, never shared by two processes or two threads."""

import multiprocessing
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tacit.noise import add_laplace
from tacit.noise.entropy import SYSTEM, SystemSource


def _child_words(source, pipe):
    pipe.send(source.words(8).tolist())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_repeat_its_parents_bits():
    context = multiprocessing.get_context("fork")
    source = SystemSource()
    source.words(8)  # fills the buffer that a careless child would inherit
    seen = []
    for _ in range(3):
        here, there = context.Pipe()
        child = context.Process(target=_child_words, args=(source, there))
        child.start()
        seen.append(tuple(here.recv()))
        child.join()
    seen.append(tuple(source.words(8).tolist()))
    assert len({word for words in seen for word in words}) == 32


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_that_python_did_not_see_is_noticed_too():
    source = SystemSource()
    source.words(8)
    buffered = source._buffer.copy()
    source._owner = -1  # what a child made behind Python's back would find
    assert not set(source.words(100).tolist()) & set(buffered.tolist())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_released_noise_differs_between_parent_and_children():
    context = multiprocessing.get_context("fork")
    add_laplace(0.0, 1.0)
    with context.Pool(2) as pool:
        first = pool.starmap(add_laplace, [(np.zeros(4), 1.0)] * 4)
    everything = np.concatenate([*first, add_laplace(np.zeros(4), 1.0)])
    assert len(np.unique(everything)) == everything.size


def test_threads_never_get_the_same_bits():
    source = SystemSource(buffer_words=64)
    with ThreadPoolExecutor(8) as pool:
        pieces = list(pool.map(lambda _: source.words(5), range(2000)))
    assert len(np.unique(np.concatenate(pieces))) == 10_000


def test_used_bits_do_not_stay_in_the_buffer():
    source = SystemSource(buffer_words=64)
    taken = source.words(10)
    assert not set(taken.tolist()) & set(source._buffer.tolist())


def test_every_bit_of_the_system_source_is_fair():
    words = SYSTEM.words(100_000)
    for bit in range(64):
        ones = int(((words >> np.uint64(bit)) & np.uint64(1)).sum())
        assert abs(ones - 50_000) < 6 * np.sqrt(25_000)
