"""Where do random bits come from? The operating system, and nowhere else.

The exact samplers ask for words of 64 bits. They are read from ``os.urandom`` in larger pieces, kept in a buffer that a
forked child never shares with its parent, and used once. Tests may pass a source of their own; nothing else should.
"""

from __future__ import annotations

import os
import threading
from typing import Protocol

import numpy as np
import numpy.typing as npt


class Source(Protocol):
    """Independent fair bits, in words of ``word_bits`` bits."""

    word_bits: int

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        """The next ``count`` words, as unsigned integers below 2^word_bits."""


class SystemSource:
    """64-bit words from the operating system's entropy (``os.urandom``), buffered.

    Safe to use from several threads, and after a fork: the child drops what the parent had buffered.

    >>> SystemSource().words(3).shape
    (3,)
    """

    word_bits = 64

    def __init__(self, buffer_words: int = 4096) -> None:
        self._size = buffer_words
        self._lock = threading.Lock()
        self._forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

    def _forget(self) -> None:
        self._buffer: npt.NDArray[np.uint64] = np.empty(0, np.uint64)
        self._used = 0
        self._owner = os.getpid()

    def _after_fork(self) -> None:
        # The lock may have been held by a thread that does not exist in the child.
        self._lock = threading.Lock()
        self._forget()

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        """The next ``count`` words."""
        if count > self._size:
            return _read(count)
        with self._lock:
            # A fork that went past Python's hooks (a C library's) is caught by the process id.
            if self._owner != os.getpid():
                self._forget()
            if self._used + count > len(self._buffer):
                self._buffer, self._used = _read(self._size), 0
            taken = self._buffer[self._used : self._used + count].copy()
            self._buffer[self._used : self._used + count] = 0  # used bits do not stay in memory
            self._used += count
            return taken


def _read(count: int) -> npt.NDArray[np.uint64]:
    return np.frombuffer(bytearray(os.urandom(8 * count)), dtype=np.uint64)


SYSTEM = SystemSource()
"""The source that every sampler uses unless a test passes another."""


def random_bits(source: Source, count: int) -> int:
    """A uniform integer of ``count`` whole words, first word most significant.

    >>> 0 <= random_bits(SYSTEM, 2) < 2**128
    True
    """
    value = 0
    for word in source.words(count):
        value = (value << source.word_bits) | int(word)
    return value
