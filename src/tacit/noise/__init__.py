"""How is randomness drawn so that nobody can predict it, or read a value out of its floating-point bits?

Two kinds of noise live here. Small releases (counts, sums, scores, votes) use the exact samplers below, which need
numpy only. Training uses :mod:`tacit.noise.tensor` (torch), where noise is a function of (secret key, step, parameter,
element index). docs/noise.md says what each guarantees.
"""

from tacit.noise.counts import bernoulli_exp, exponential_choice, poisson, truncated_negative_binomial
from tacit.noise.discrete import bernoulli, discrete_gaussian, discrete_laplace, uniform_integers
from tacit.noise.exact import add_gaussian, add_laplace, default_granularity
from tacit.noise.keys import Key, KeyFileError
from tacit.noise.process import ForkError
from tacit.noise.sampling import bernoulli_mask, uniform

__all__ = [
    "ForkError",
    "Key",
    "KeyFileError",
    "add_gaussian",
    "add_laplace",
    "bernoulli",
    "bernoulli_exp",
    "bernoulli_mask",
    "default_granularity",
    "discrete_gaussian",
    "discrete_laplace",
    "exponential_choice",
    "poisson",
    "truncated_negative_binomial",
    "uniform",
    "uniform_integers",
]
