"""Which special functions does the accountant need? Five of scipy's, imported when one is first called.

``import scipy.special`` takes longer than everything else in this room together, and many prices never need it.
"""

from __future__ import annotations

from typing import Any


def ndtr(x: Any) -> Any:
    """The standard normal distribution function.

    >>> float(ndtr(0.0))
    0.5
    """
    from scipy import special

    return special.ndtr(x)


def log_ndtr(x: Any) -> Any:
    """Its logarithm, accurate far into the left tail."""
    from scipy import special

    return special.log_ndtr(x)


def bdtrc(k: Any, n: Any, p: Any) -> Any:
    """Pr[Binomial(n, p) > k]."""
    from scipy import special

    return special.bdtrc(k, n, p)


def gammaln(x: Any) -> Any:
    """log |Γ(x)|."""
    from scipy import special

    return special.gammaln(x)


def erfcx(x: Any) -> Any:
    """e^{x²} erfc(x)."""
    from scipy import special

    return special.erfcx(x)
