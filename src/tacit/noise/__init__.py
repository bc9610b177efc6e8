"""How is randomness drawn so that nobody can predict it, or read a value out of its floating-point bits?

There are two kinds of noise here. Small releases (counts, sums, scores, votes) use the exact samplers, which need only
numpy. Training, and a loop of your own, use tensor noise (:func:`add_normal_` and its like), which is a function of
(secret key, step, parameter, element index) and loads torch on first use. docs/explanation/noise.md and
docs/explanation/tensor-noise.md say what each guarantees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tacit.noise.counts import bernoulli_exp, exponential_choice, poisson, truncated_negative_binomial
from tacit.noise.discrete import bernoulli, discrete_gaussian, discrete_laplace, uniform_integers
from tacit.noise.exact import add_gaussian, add_laplace, default_granularity
from tacit.noise.keys import Key, KeyFileError
from tacit.noise.process import ForkError
from tacit.noise.sampling import bernoulli_mask, uniform

if TYPE_CHECKING:
    from tacit.noise.tensor import add_laplace_many_, add_normal_, add_normal_many_, normal, tail_delta

__all__ = [
    "ForkError",
    "Key",
    "KeyFileError",
    "add_gaussian",
    "add_laplace",
    "add_laplace_many_",
    "add_normal_",
    "add_normal_many_",
    "bernoulli",
    "bernoulli_exp",
    "bernoulli_mask",
    "default_granularity",
    "discrete_gaussian",
    "discrete_laplace",
    "exponential_choice",
    "normal",
    "poisson",
    "tail_delta",
    "truncated_negative_binomial",
    "uniform",
    "uniform_integers",
]

_OF_TENSORS = {"add_laplace_many_", "add_normal_", "add_normal_many_", "normal", "tail_delta"}


def __getattr__(name: str) -> Any:
    """Tensor noise needs torch, which the exact samplers do not: loaded on first use."""
    if name in _OF_TENSORS:
        from tacit.noise import tensor

        return getattr(tensor, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
