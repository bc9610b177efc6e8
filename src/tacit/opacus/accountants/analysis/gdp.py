"""What is the μ of Gaussian differential privacy, and which ε belongs to it? Opacus' names, with proven answers.

Opacus' μ comes from a central limit theorem and is an approximation that can be too small. Here a μ is one that holds:
a sampled Gaussian release is μ-GDP for no μ below that of the release without sampling. Its loss has the same Gaussian
tail, only further out, so the trade-off curve of any smaller μ lies above the true one for small enough error rates.
ε is priced with the amplification by sampling, and not through such a μ.
"""

from __future__ import annotations

import math
from fractions import Fraction

from tacit import accounting as acc


def uniform(noise_multiplier: float, sample_rate: float) -> acc.Mechanism:
    """One Gaussian release on a batch of fixed size, drawn without replacement, that holds this part of the records.

    >>> uniform(1.0, 0.25).batch
    1
    """
    share = Fraction(float(sample_rate))
    if not 0 <= share <= 1:
        raise ValueError(f"a sampling rate lies in [0, 1], not {sample_rate!r}")
    if share == 0:
        return acc.nothing()
    # The price depends on the quotient of the two numbers only, and this one is exact.
    return acc.FixedSizeSampled(acc.Gaussian(noise_multiplier), share.numerator, share.denominator)


def _mu(steps: int, noise_multiplier: float, sample_rate: float, moved: float) -> float:
    acc.PoissonSampled(acc.Gaussian(noise_multiplier), sample_rate) * steps  # refuses what is no such mechanism
    if sample_rate == 0 or steps == 0:
        return 0.0
    if noise_multiplier == 0:
        return math.inf
    return math.sqrt(steps) * moved / noise_multiplier * (1 + 1e-15)  # never below, whatever was rounded


def compute_mu_poisson(*, steps: int, noise_multiplier: float, sample_rate: float) -> float:
    """The smallest μ for which ``steps`` Gaussian releases on Poisson samples are μ-GDP: √steps / noise.

    Guarantee: for adding or removing one record every test of membership errs at least as much as one between N(0, 1)
    and N(μ, 1). The rate is in it only where it is 0.

    >>> round(compute_mu_poisson(steps=400, noise_multiplier=10.0, sample_rate=0.01), 6)
    2.0
    """
    return _mu(steps, noise_multiplier, sample_rate, 1.0)


def compute_mu_uniform(*, steps: int, noise_multiplier: float, sample_rate: float) -> float:
    """The same for batches of fixed size, in which another record takes the place of the one that is not there.

    So the sum moves by 2 and not by 1.

    >>> round(compute_mu_uniform(steps=400, noise_multiplier=10.0, sample_rate=0.01), 6)
    4.0
    """
    return _mu(steps, noise_multiplier, sample_rate, 2.0)


def delta_eps_mu(*, eps: float, mu: float) -> float:
    """An upper bound on the δ of μ-GDP at ``eps``.

    >>> round(delta_eps_mu(eps=1.0, mu=1.0), 6)
    0.126937
    """
    return float(acc.delta(acc.GDP(mu), eps).upper)


def eps_from_mu(*, mu: float, delta: float) -> float:
    """An upper bound on the ε of μ-GDP at ``delta``.

    >>> round(eps_from_mu(mu=1.0, delta=1e-5), 3)
    4.377
    """
    return float(acc.epsilon(acc.GDP(mu), delta).upper)


def compute_eps_poisson(*, steps: int, noise_multiplier: float, sample_rate: float, delta: float) -> float:
    """The certified ε of ``steps`` Gaussian releases on Poisson samples, for adding or removing one record.

    >>> round(compute_eps_poisson(steps=300, noise_multiplier=1.0, sample_rate=0.01, delta=1e-5), 2)
    1.07
    """
    step = acc.PoissonSampled(acc.Gaussian(noise_multiplier), sample_rate)
    return float(acc.epsilon(step * steps, delta).upper)


def compute_eps_uniform(*, steps: int, noise_multiplier: float, sample_rate: float, delta: float) -> float:
    """The certified ε of ``steps`` Gaussian releases on batches of fixed size, drawn without replacement.

    For adding or removing one record, with another in its place in the batch: that of Poisson samples with half the
    noise.

    >>> round(compute_eps_uniform(steps=300, noise_multiplier=2.0, sample_rate=0.01, delta=1e-5), 2)
    1.07
    """
    return float(acc.epsilon(uniform(noise_multiplier, sample_rate) * steps, delta).upper)


__all__ = [
    "compute_eps_poisson",
    "compute_eps_uniform",
    "compute_mu_poisson",
    "compute_mu_uniform",
    "delta_eps_mu",
    "eps_from_mu",
]
