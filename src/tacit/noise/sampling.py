"""Which records take part in a step? Keyed uniform bits and Poisson masks.

Like tensor noise, the choice is a function of (secret key, step, record): any process that holds the key computes the
same choice for the records it owns, and a resumed run repeats it. Privacy amplification by sampling needs the choice to
stay secret, so this key is as secret as the noise key.
"""

from __future__ import annotations

import functools
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from tacit.noise import native, stream
from tacit.noise.keys import Key

#: Records whose words are drawn at a time.
_AT_ONCE = 1 << 18
#: Records that are listed in one call. It asks for memory for all of them, and touches what those who take part need.
_LISTED = 1 << 22


def uniform(key: Key, step: int, n: int, *, offset: int = 0) -> npt.NDArray[np.uint64]:
    """Independent uniform 64-bit integers, one for each record of a step.

    Args:
        key: The secret key. Next to :func:`add_laplace_many_`, which draws from the same words, use another one:
            ``key.derive("sampler")``.
        step: The step of the run.
        n: How many records.
        offset: The number of the first record (default 0).

    Returns:
        Words for the records ``offset`` to ``offset + n - 1``, as uint64.

    Example:
        >>> from tacit.noise import Key, uniform
        >>> key = Key(bytes(32))
        >>> bool((uniform(key, 3, 10)[4:] == uniform(key, 3, 6, offset=4)).all())
        True
    """
    _check_range(n, offset)
    words = key.stream("uniform", step, 0)
    library, _ = native.load()
    return stream.words64(words, offset, n) if library is None else library.words64(words, offset, n)


@functools.lru_cache(maxsize=64)
def bernoulli_threshold(rate: float) -> int:
    """The largest integer t with t / 2^64 <= rate: a uniform 64-bit word is below t with probability t / 2^64.

    >>> bernoulli_threshold(0.5) == 2**63
    True
    """
    if not 0.0 <= rate <= 1.0:
        raise ValueError(f"the sampling rate must lie between 0 and 1, not {rate}")
    return int(Fraction(rate if isinstance(rate, Fraction) else float(rate)) * 2**64)


def bernoulli_mask(key: Key, step: int, n: int, rate: float, *, offset: int = 0) -> npt.NDArray[np.bool_]:
    """Poisson sampling: whether each record takes part in a step.

    Guarantee:
        Each record takes part independently (up to the security of ChaCha12) with probability floor(rate * 2^64) /
        2^64, which is at most the rate that is accounted for, and less by under 6e-20. Amplification is monotone in the
        rate, so the accounted price holds. This is the sampling of add/remove-one adjacency.

    Args:
        key: The secret key. Next to :func:`add_laplace_many_`, which draws from the same words, use another one:
            ``key.derive("sampler")``.
        step: The step of the run.
        n: How many records.
        rate: The probability that a record takes part, from 0 to 1.
        offset: The number of the first record (default 0).

    Returns:
        One flag for each of the records ``offset`` to ``offset + n - 1``.

    Example:
        >>> from tacit.noise import Key, bernoulli_mask
        >>> mask = bernoulli_mask(Key(bytes(32)), 0, 100_000, 0.01)
        >>> bool(850 < mask.sum() < 1150)
        True
    """
    _check_range(n, offset)
    threshold = bernoulli_threshold(rate)
    mask = np.ones(n, dtype=np.bool_)
    if threshold == 2**64:
        return mask
    for start in range(0, n, _AT_ONCE):  # eight bytes a record stay in the cache, and one is kept
        count = min(_AT_ONCE, n - start)
        np.less(uniform(key, step, count, offset=offset + start), np.uint64(threshold), out=mask[start : start + count])
    return mask


def taking_part(key: Key, step: int, n: int, rate: float) -> npt.NDArray[np.int64]:
    """The numbers of the records 0 to n - 1 that take part in a step: where :func:`bernoulli_mask` is true.

    The guarantee is that of :func:`bernoulli_mask`.

    >>> key = Key(bytes(32))
    >>> bool((taking_part(key, 3, 1000, 0.1) == np.flatnonzero(bernoulli_mask(key, 3, 1000, 0.1))).all())
    True
    """
    _check_range(n, 0)
    threshold, (library, _) = bernoulli_threshold(rate), native.load()
    words = key.stream("uniform", step, 0)

    def listed(start: int, count: int) -> npt.NDArray[np.int64]:
        if library is None or threshold == 2**64:
            return start + np.flatnonzero(bernoulli_mask(key, step, count, rate, offset=start)).astype(np.int64)
        found = library.below(words, start, count, threshold)
        return found if n <= _LISTED else found.copy()  # without the room for all of them

    parts = [listed(start, min(_LISTED, n - start)) for start in range(0, n, _LISTED)]
    return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.int64), *parts])


def _check_range(n: int, offset: int) -> None:
    if n < 0 or offset < 0 or n + offset > 2**63:
        raise ValueError("n and offset must give a range of record numbers: both 0 or more, their sum at most 2**63")
