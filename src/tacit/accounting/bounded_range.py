"""What do n mechanisms of bounded range cost, each chosen after the answers of those before? The worst case itself.

A mechanism of range b has losses within [t - b, t] for some t in [0, b] that depends on the data. δ is convex in the
likelihood ratio, so losses at the two ends are the worst, and the worst t depends on the loss so far. With W_k(s) the
largest e^{-ε}δ that k mechanisms can still reach where the loss so far is ε - s,

    W_0(s) = (e^{-s} - 1)₊,   W_k(s) = max over t of q_t W_{k-1}(s - t) + (1 - q_t) W_{k-1}(s - t + b),

q_t the Q-mass of the higher loss. W is convex in e^{-s}, so chords between the points of a grid lie above it, and with
chords the maximum over t has a closed form on each cell. Proof: docs/explanation/derived-pairs.md. (Dong, Durfee &
Rogers 2020 solve the case where nothing is chosen after answers.)
"""

from __future__ import annotations

import functools
import math

import numpy as np

from tacit.accounting.derived import symmetric_law
from tacit.accounting.losses import Array, AtomsLoss

#: How many maxima over one cell may be taken in all, and the finest and the coarsest grid, in points for each range.
WORK, FINEST, COARSEST = 12_000_000, 20, 4
#: More than rounding can take from one step.
RAISED = 1e-11


@functools.lru_cache(maxsize=64)
def pair_of_bounded_range(size: float, times: int, log_least: float) -> AtomsLoss | None:
    """A symmetric pair that dominates ``times`` adaptive mechanisms of this range, down to a δ of e^{log_least}.

    None where it is out of reach: too many of them, or a range so large or small that nothing is gained.
    """
    if not 1e-6 < size < 20:
        return None
    # beyond this far from the mean, Hoeffding's bound is below e^{log_least - 12}
    reach = math.sqrt(0.5 * times * (12 - log_least)) * size
    top = min(times * size, reach + 0.5 * times * size * math.tanh(size / 4))
    low, high = min(times * size, reach), min(times * size, top + reach)
    fine = min(4 * FINEST if times < 5 else FINEST, int(math.sqrt(WORK / (times * (low + high) / size))))
    if fine < COARSEST:
        return None
    step = size / fine
    first, last = -math.ceil(low / step), min(times * fine, math.ceil(high / step))
    s = step * np.arange(first, last + 1)
    w = np.maximum(np.expm1(-s), 0.0)
    for _ in range(times):
        w = _one_more(w, s, step, fine)
    kept = (s >= 0) & (s <= top + step)
    delta = np.minimum(np.exp(s[kept]) * w[kept], 1.0)
    if last == times * fine:
        delta[s[kept] >= times * size - 0.5 * step] = 0.0  # no loss is larger
    return symmetric_law(s[kept], delta, spacing=step)


def _one_more(w: Array, s: Array, step: float, fine: int) -> Array:
    """The worst of one mechanism before those that ``w`` is for."""
    size = step * fine
    count = len(w)
    # below the grid W is at most e^{-s}, above it at most its last value
    before = np.exp(-(s[0] - step * np.arange(fine + 1, 0, -1)))
    padded = np.concatenate([before, w, np.full(fine, w[-1])])
    whole = -math.expm1(-size)

    def at(shift: int) -> Array:
        return padded[fine + 1 - shift : fine + 1 - shift + count]

    best = np.zeros(count)
    for j in range(fine + 1):
        y = math.exp(step * j)
        q = max((1 / y - math.exp(-size)) / whole, 0.0)
        near, far = at(j), at(j - fine)
        best = np.maximum(best, q * near + (1 - q) * far)
        if j == fine:
            break
        # on the cell: near = A + BY, far = A' + B'Y, and their mean is a/Y + rest + gamma·Y, Y = e^t
        gap = math.exp(step * (j + 1)) - y
        slope, far_slope = (at(j + 1) - near) / gap, (at(j + 1 - fine) - far) / gap
        base, far_base = near - slope * y, far - far_slope * y
        a, gamma = (base - far_base) / whole, (far_slope - slope * math.exp(-size)) / whole
        rest = (slope - base * math.exp(-size) - far_slope + far_base) / whole
        with np.errstate(divide="ignore", invalid="ignore"):
            turn = np.sqrt(a / gamma)
            peak = rest - 2 * np.sqrt(a * gamma)
        inside = (a < 0) & (gamma < 0) & (turn > y) & (turn < y + gap)
        best = np.where(inside, np.maximum(best, peak), best)
    return best * (1 + RAISED)
