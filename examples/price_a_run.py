"""What does a training run cost, and what noise would it need? Pricing, comparing and calibrating without training.

Run: python examples/price_a_run.py
"""

from __future__ import annotations

from tacit import accounting as acc

DELTA = 1e-5


def main() -> None:
    # 15 epochs over 60,000 records in Poisson batches of 256 on average: the usual first run on MNIST.
    step = acc.PoissonSampled(acc.Gaussian(1.1), rate=256 / 60000)
    run = step * 3516
    print("certified:   ", acc.epsilon(run, DELTA))
    print("replace-one: ", acc.epsilon(run, DELTA, adjacency="replace-one"))
    print("groups of 4: ", acc.epsilon(run, DELTA, group=4))

    print("\nWhat other accountants would say:")
    print(acc.compare(run, DELTA))

    # One more release on the same data, say a histogram with Laplace noise, composes with a plus sign.
    print("\nwith a histogram:", acc.epsilon(run + acc.Laplace(10.0), DELTA))

    noise = acc.calibrate(
        lambda noise: acc.PoissonSampled(acc.Gaussian(noise), 256 / 60000) * 3516, epsilon=3.0, delta=DELTA
    )
    print(f"\nnoise multiplier for ε = 3: {noise:.6f}")
    print("steps for ε = 2 at noise 1.1:", acc.calibrate_steps(step, epsilon=2.0, delta=DELTA))

    curve = acc.epsilon_over_steps(step, 3516, DELTA)
    for steps in (1, 100, 1000, 3516):
        print(f"after {steps:>5,} steps: ε at most {curve.at(steps).upper:.4f}")

    # The same guarantee as a test: at 5% false alarms an attacker misses at least this share of the members.
    missed = acc.tradeoff(run, [0.05]).lower[0]
    print(f"\nat 5% false alarms any membership test misses at least {missed:.1%} of members")
    print(f"as strong at this δ as one Gaussian release with μ = {acc.gdp_equivalent(run, DELTA):.4f}")

    # Noise chosen as one goes: ask a filter before every step, whatever the choice depended on.
    budget = acc.RenyiFilter(epsilon=2.0, delta=DELTA)
    taken = 0
    for noise in (2.0, 1.5, 1.2, 1.0, 0.9):
        epoch = acc.PoissonSampled(acc.Gaussian(noise), 256 / 60000) * 234
        if budget.allows(epoch):
            budget.spend(epoch)
            taken += 1
    print(f"{taken} adaptive epochs ran, {budget.left:.0%} of the budget is left")


if __name__ == "__main__":
    main()
