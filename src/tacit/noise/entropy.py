"""Where do random bits come from? The operating system, and nowhere else.

The exact samplers ask for words of 64 bits. They are read from ``os.urandom`` in larger pieces, kept in a buffer that a
forked child never shares with its parent, and used once. Tests may pass a source of their own; nothing else should.

Work that may be lost half-way, with a machine, and has to be done again *as it was* is the one exception: inside
:func:`expanded` everything is drawn from one secret of 256 bits that its caller took from the operating system.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tacit.noise.process import OneProcess


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
        again: _Expansion | None = getattr(_thread, "expansion", None)
        if again is not None:
            return again.words(count)
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


class _Expansion(OneProcess):
    """ChaCha12 under one secret, read from its beginning on."""

    def __init__(self, secret: bytes) -> None:
        from tacit.noise.keys import Key

        with Key(secret) as key:
            self._key = key.stream("expansion", 0, 0)
        self._offset = 0
        self._buffer: npt.NDArray[np.uint64] = np.empty(0, np.uint64)

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        self.check_process()
        if count > len(self._buffer):
            from tacit.noise import native, stream

            library, _ = native.load()
            more = max(4096, count)
            draw = stream.words64 if library is None else library.words64
            self._buffer = np.concatenate([self._buffer, draw(self._key, self._offset, more)])
            self._offset += more
        taken, self._buffer = self._buffer[:count].copy(), self._buffer[count:]
        return taken


_thread = threading.local()


@contextlib.contextmanager
def expanded(secret: bytes) -> Iterator[None]:
    """In this thread every sampler and every new key draws from ``secret``, so that work can be repeated bit by bit.

    ``secret`` is 32 bytes of the operating system's entropy, used for one piece of work only: the noise of two releases
    under one secret would cancel. Guarantee: as strong as that of keyed tensor noise, ChaCha12 under a key that nobody
    outside knows.

    >>> secret = os.urandom(32)
    >>> with expanded(secret):
    ...     first = random_bits(SYSTEM, 2)
    >>> with expanded(secret):
    ...     again = random_bits(SYSTEM, 2)
    >>> first == again, first == random_bits(SYSTEM, 2)
    (True, False)
    """
    if getattr(_thread, "expansion", None) is not None:
        raise RuntimeError("one secret is being expanded in this thread already")
    _thread.expansion = _Expansion(secret)
    try:
        yield
    finally:
        _thread.expansion = None


def fresh_bytes(count: int) -> bytes:
    """Secret bytes for a key.

    >>> len(fresh_bytes(32))
    32
    """
    again: _Expansion | None = getattr(_thread, "expansion", None)
    return os.urandom(count) if again is None else again.words(-(-count // 8)).tobytes()[:count]


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
