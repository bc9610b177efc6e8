"""What would still fit? The largest number of repeats, and the smallest noise, that a refused charge could have had.

Both are found by search with the same price and the same rule that refused the charge: fewer repeats and more noise
never cost more, so the border between what fits and what does not is found by halving.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

from tacit import accounting as acc
from tacit.ledger.errors import Advice

#: The field that holds the noise of each kind of mechanism.
NOISE_FIELDS = {
    "Gaussian": "noise_multiplier",
    "Laplace": "scale",
    "DiscreteGaussian": "sigma",
    "LaplaceVotes": "scale",
    "Votes": "noise",
    "VoteCheck": "noise",
}
#: A suggestion is a kindness: the search for it ends after this many seconds.
PATIENCE = 5.0

Fits = Callable[[acc.Mechanism], bool]


def advise(mechanism: acc.Mechanism, fits: Fits, blank: Advice) -> Advice:
    """Fill in what would fit. ``blank`` holds what was asked and what is left."""
    until = time.monotonic() + PATIENCE
    parts = mechanism.parts()
    if not parts:
        return blank
    # The part that repeats most is what a person means by "steps"; the others stay as they are.
    most = max(range(len(parts)), key=lambda i: parts[i][1])
    repeats = _repeats(parts, most, fits, until)
    factor = _noise_factor(mechanism, fits, until)
    noise = noise_of(parts[most][0]) if factor is not None and len(parts) == 1 else None
    if noise is not None and factor is not None:
        noise, factor = _readable_noise(mechanism, noise, factor, fits)
    return dataclasses.replace(
        blank, asked_repeats=parts[most][1], repeats=repeats, noise=noise, noise_factor=factor if factor else None
    )


def sentence(advice: Advice) -> str:
    """The advice in words; empty where nothing was found.

    >>> sentence(Advice("people", 3.0, 1e-6, 1.0, 1e-6, asked_repeats=500, repeats=312, noise=1.41, noise_factor=1.28))
    'Still fits: 312 more steps at this noise, or noise 1.41 for all 500 that were asked for.'
    """
    options = []
    if advice.asked_repeats > 1 and advice.repeats:
        options.append(f"{advice.repeats} more step{'s' * (advice.repeats > 1)} at this noise")
    asked = f" for all {advice.asked_repeats} that were asked for" if advice.asked_repeats > 1 else ""
    if advice.noise is not None:
        options.append(f"noise {advice.noise:.6g}{asked}")
    elif advice.noise_factor is not None:
        options.append(f"all noise times {advice.noise_factor:.4g}{asked}")
    return f"Still fits: {', or '.join(options)}." if options else ""


def noise_of(mechanism: acc.Mechanism) -> float | None:
    """The noise of a mechanism, or of the mechanism inside a sampler; None where it has none.

    >>> noise_of(acc.PoissonSampled(acc.Gaussian(1.1), 0.01))
    1.1
    """
    field = NOISE_FIELDS.get(type(mechanism).__name__)
    if field is not None:
        return float(getattr(mechanism, field))
    inner = getattr(mechanism, "mechanism", None)
    return noise_of(inner) if isinstance(inner, acc.Mechanism) else None


def with_noise(mechanism: acc.Mechanism, factor: float) -> acc.Mechanism:
    """The same mechanism with every noise multiplied by ``factor``.

    >>> with_noise(acc.PoissonSampled(acc.Gaussian(1.0), 0.01) * 5, 2.0)
    PoissonSampled(Gaussian(2), rate=0.01) * 5
    """
    if isinstance(mechanism, acc.Composed):
        members = tuple((with_noise(part, factor), times) for part, times in mechanism.members)
        return acc.Composed(members, unit=mechanism.unit)
    field = NOISE_FIELDS.get(type(mechanism).__name__)
    if field is not None:
        change: dict[str, Any] = {field: getattr(mechanism, field) * factor}
        return dataclasses.replace(mechanism, **change)
    inner = getattr(mechanism, "mechanism", None)
    if isinstance(inner, acc.Mechanism):
        change = {"mechanism": with_noise(inner, factor)}
        return dataclasses.replace(mechanism, **change)
    return mechanism


def _repeats(parts: tuple[tuple[acc.Mechanism, int], ...], most: int, fits: Fits, until: float) -> int | None:
    def having(count: int) -> bool:
        members = tuple((part, count if i == most else times) for i, (part, times) in enumerate(parts))
        return fits(acc.Composed(members, unit=parts[most][0].unit))

    low, high = 0, parts[most][1]
    if len(parts) > 1 and not having(0):
        return 0
    while high - low > 1:
        if time.monotonic() > until:
            return None
        middle = (low + high) // 2
        low, high = (middle, high) if having(middle) else (low, middle)
    return low


def _noise_factor(mechanism: acc.Mechanism, fits: Fits, until: float) -> float | None:
    if all(not noise_of(part) for part, _ in mechanism.parts()):
        return None
    low, high = 1.0, 2.0
    while not fits(with_noise(mechanism, high)):
        low, high = high, high * 4
        if high > 1e6 or time.monotonic() > until:
            return None
    while high / low > 1.001:
        if time.monotonic() > until:
            break
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(with_noise(mechanism, middle)) else (middle, high)
    return high


def _readable_noise(mechanism: acc.Mechanism, noise: float, factor: float, fits: Fits) -> tuple[float, float]:
    """The noise rounded up to three digits, or where that is too little by a rounding, one unit more."""
    digits = 2 - math.floor(math.log10(noise * factor))
    for units in (0, 1):
        shown = round(math.ceil(noise * factor * 10.0**digits + units) / 10.0**digits, max(digits, 0))
        if fits(with_noise(mechanism, shown / noise)):
            return shown, shown / noise
    return noise * factor, factor
