"""Independent values of δ(ε) in arbitrary precision: other code, other formulas, other numbers of digits."""

from __future__ import annotations

from typing import Any

import mpmath as mp


def _ratio(x: Any, q: Any, sigma: Any) -> Any:
    return 1 - q + q * mp.exp((2 * x - 1) / (2 * sigma**2))


def one_step(q: Any, sigma: Any, epsilon: Any, direction: str) -> Any:
    """δ(ε), for any real ε, of one Poisson-sampled Gaussian step: the two tails at the point where the loss is ε."""
    below = mp.e**epsilon if direction == "remove" else mp.e ** (-epsilon)
    if below <= 1 - q:
        # the loss is always above ε (remove) or never (add)
        return 1 - mp.e**epsilon if direction == "remove" else mp.mpf(0)
    x = sigma**2 * mp.log((below - (1 - q)) / q) + mp.mpf(1) / 2

    def above(shift: int) -> Any:
        return mp.erfc((x - shift) / sigma / mp.sqrt(2)) / 2

    def below_it(shift: int) -> Any:
        return mp.erfc((shift - x) / sigma / mp.sqrt(2)) / 2

    if direction == "remove":
        return (1 - q) * above(0) + q * above(1) - mp.e**epsilon * above(0)
    return below_it(0) - mp.e**epsilon * ((1 - q) * below_it(0) + q * below_it(1))


def two_steps(q: float, sigma: float, epsilon: float, direction: str, digits: int = 30) -> Any:
    """δ(ε) of two steps: the first integrated out numerically, the second in closed form."""
    with mp.workdps(digits):
        q, sigma, epsilon = mp.mpf(q), mp.mpf(sigma), mp.mpf(epsilon)

        def integrand(x: Any) -> Any:
            loss = mp.log(_ratio(x, q, sigma))
            density = mp.npdf(x, 0, sigma)
            if direction == "remove":
                density = (1 - q) * mp.npdf(x, 0, sigma) + q * mp.npdf(x, 1, sigma)
            return density * one_step(q, sigma, epsilon - (loss if direction == "remove" else -loss), direction)

        # where the second step's closed form changes its branch
        e = mp.e ** (epsilon if direction == "remove" else -epsilon)
        kink = (e / (1 - q) - (1 - q)) / q
        marks = [sigma * k for k in range(-14, 15)] + [1 + sigma * k for k in range(-14, 15)]
        if kink > 0:
            marks.append(sigma**2 * mp.log(kink) + mp.mpf(1) / 2)
        return mp.quad(integrand, sorted(set(marks)))


def many_steps(q: float, sigma: float, steps: int, epsilon: float, direction: str, digits: int = 40) -> Any:
    """δ(ε) by the inversion integral, with step sizes far smaller and ranges far larger than any proof asks for."""
    with mp.workdps(digits):
        q, sigma, epsilon = mp.mpf(q), mp.mpf(sigma), mp.mpf(epsilon)
        h = sigma / 24
        c = _saddle(q, sigma, steps, epsilon, direction)
        reach = sigma * 20
        low, high = -reach - (c + 1), reach + (c + 2)
        n = int((high - low) / h)
        grid = [low + h * i for i in range(n + 1)]
        weights = [mp.npdf(x, 0, sigma) * h for x in grid]
        logs = [mp.log(_ratio(x, q, sigma)) for x in grid]
        sign, shift = (1, 1) if direction == "remove" else (-1, 0)

        def log_m(z: Any) -> Any:
            power = sign * z + shift
            return mp.log(mp.fsum(w * mp.exp(power * a) for w, a in zip(weights, logs, strict=True)))

        variance = -(log_m(c + mp.mpf("0.01") * 1j).real - log_m(mp.mpc(c)).real) * 2 / mp.mpf("0.0001") * steps
        spread = mp.sqrt(variance)
        dt = 2 * mp.pi / (24 * spread + 120 / c)
        total, k = mp.mpf(0), 0
        first = None
        while True:
            z = c + 1j * k * dt
            term = mp.exp(steps * log_m(z) - z * epsilon) / (z * (z + 1))
            total += term.real / (2 if k == 0 else 1)
            first = first or abs(term)
            if abs(term) < first * mp.mpf(10) ** (-18):
                return total * dt / mp.pi
            k += 1


def _saddle(q: Any, sigma: Any, steps: int, epsilon: Any, direction: str) -> Any:
    """A real abscissa near the saddle point, found crudely in double precision."""
    import numpy as np

    s = float(sigma)
    x = np.linspace(-40 * s - 200, 40 * s + 200, 400001)
    base = -0.5 * (x / s) ** 2
    v = np.logaddexp(np.log1p(-float(q)), np.log(float(q)) + (2 * x - 1) / (2 * s * s))
    sign, shift = (1, 1) if direction == "remove" else (-1, 0)
    best = (np.inf, 1.0)
    for c in np.exp(np.linspace(-3, 5, 60)):
        e = base + (sign * c + shift) * v
        k = e.max() + np.log(np.exp(e - e.max()).sum()) - (base.max() + np.log(np.exp(base - base.max()).sum()))
        value = steps * k - c * float(epsilon) - np.log(c * (c + 1))
        best = min(best, (value, float(c)))
    return mp.mpf(best[1])


def replaced(q: Any, sigma: Any, epsilon: Any) -> Any:
    """δ(ε) of one Poisson-sampled Gaussian step when a record at 1 becomes one at -1: the tails where the loss is ε."""

    def loss(x: Any) -> Any:
        up, down = (q * mp.exp((2 * sign * x - 1) / (2 * sigma**2)) for sign in (1, -1))
        return mp.log(1 - q + up) - mp.log(1 - q + down)

    low, high = -mp.mpf(1), mp.mpf(1)
    while loss(high) < epsilon:
        high *= 2
    for _ in range(mp.mp.prec + 20):
        middle = (low + high) / 2
        low, high = (middle, high) if loss(middle) < epsilon else (low, middle)

    def above(shift: int) -> Any:
        return mp.erfc((high - shift) / sigma / mp.sqrt(2)) / 2

    return (1 - q) * above(0) + q * above(1) - mp.e**epsilon * ((1 - q) * above(0) + q * above(-1))
