"""Releasing a few numbers with exact noise, and why ordinary floating-point noise will not do.

Run: python examples/exact_noise.py
"""

from __future__ import annotations

import numpy as np

from tacit.noise import add_gaussian, add_laplace, discrete_gaussian


def could_come_from(outputs: np.ndarray, value: float, scale: float) -> np.ndarray:
    """Whether naive noise, value + scale * (±log u) with u a multiple of 2^-53, can produce each output at all."""
    distance = outputs - value
    sign = np.where(distance < 0, 1.0, -1.0)
    nearest = np.rint(np.exp(-np.abs(distance) / scale) * 2.0**53)
    possible = np.zeros(len(outputs), bool)
    for step in range(-40, 41):
        u = np.clip((nearest + step) * 2.0**-53, 2.0**-53, 1.0)
        possible |= value + scale * (sign * np.log(u)) == outputs
    return possible


def main() -> None:
    # How many people answered yes, in three towns. Each person is in one town, so the L1 sensitivity is 1.
    counts = np.array([120, 340, 17])
    print("counts, 0.5-DP under add/remove-one:", add_laplace(counts, scale=2.0, granularity=1.0))
    print("the same with Gaussian noise:       ", np.round(add_gaussian(counts, sigma=4.0), 3))
    print("the same with integer noise:        ", counts + discrete_gaussian(4.0, 3))

    # A 0.1-DP release of 0 or 1 should leave an attacker with at most a 52.5% chance of a right guess.
    generator = np.random.default_rng()
    truth = generator.integers(0, 2, 5000)
    naive = truth + 10.0 * (generator.choice([-1.0, 1.0], 5000) * np.log(1 - generator.random(5000)))
    for name, outputs in (("naive", naive), ("exact", add_laplace(truth, scale=10.0))):
        zero, one = could_come_from(outputs, 0.0, 10.0), could_come_from(outputs, 1.0, 10.0)
        guess = np.where(zero == one, generator.integers(0, 2, 5000), one)
        print(f"{name} noise: the attack on its last bits is right {np.mean(guess == truth):.1%} of the time")


if __name__ == "__main__":
    main()
