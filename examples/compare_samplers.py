"""Which sampler is cheapest for a run, and what could an attacker still find out? Prices only: nothing is trained.

Run: python examples/compare_samplers.py
"""

from __future__ import annotations

from tacit import accounting as acc

DELTA = 1e-5


def main() -> None:
    # Ten epochs over 1,000 records in batches of 100.
    noise, bins, epochs = acc.Gaussian(2.0), 10, 10
    print(acc.compare_samplers(noise, batch=100, examples=1000, steps=bins * epochs, delta=DELTA))

    # With passes: every record once in each of them, in a batch that is drawn anew.
    passes = acc.BallsInBins(noise, bins) * epochs
    poisson = acc.PoissonSampled(noise, 1 / bins) * (bins * epochs)
    print(f"\nballs in bins: {acc.epsilon(passes, DELTA)}")
    print(f"Poisson:       {acc.epsilon(poisson, DELTA)}")

    # It composes with whatever else is released from the same data.
    print(f"with a histogram: {acc.epsilon(passes + acc.Laplace(10.0), DELTA)}\n")

    # The same guarantee in rates and odds.
    print(acc.risk(poisson, fpr=[0.001, 0.01], prior=0.1))


if __name__ == "__main__":
    main()
