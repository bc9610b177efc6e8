"""Which special functions does the accountant need? Five of scipy's, imported when one is first called.

``import scipy.special`` takes longer than everything else in this room together, and many prices never need it.
"""

from __future__ import annotations

import functools
from typing import Any


@functools.cache
def _scipy() -> Any:
    from scipy import special

    return special


def ndtr(x: Any) -> Any:
    """The standard normal distribution function.

    >>> float(ndtr(0.0))
    0.5
    """
    return _scipy().ndtr(x)


def log_ndtr(x: Any) -> Any:
    """Its logarithm, accurate far into the left tail."""
    return _scipy().log_ndtr(x)


def bdtrc(k: Any, n: Any, p: Any) -> Any:
    """Pr[Binomial(n, p) > k]."""
    return _scipy().bdtrc(k, n, p)


def gammaln(x: Any) -> Any:
    """log |Γ(x)|."""
    return _scipy().gammaln(x)


def erfcx(x: Any) -> Any:
    """e^{x²} erfc(x)."""
    return _scipy().erfcx(x)
