"""One of every mechanism, for the tests that all of them must pass."""

from __future__ import annotations

from tacit import accounting as acc

MECHANISMS: dict[str, acc.Mechanism] = {
    "Gaussian": acc.Gaussian(2.0),
    "Gaussian votes": acc.Gaussian(3.0, replace=1.5),
    "Laplace": acc.Laplace(4.0),
    "DiscreteGaussian": acc.DiscreteGaussian(5.0, sensitivity=2),
    "PureDP": acc.PureDP(0.25),
    "ApproxDP": acc.ApproxDP(0.25, 1e-8),
    "GDP": acc.GDP(0.4),
    "ZCDP": acc.ZCDP(0.05),
    "ExponentialMechanism": acc.ExponentialMechanism(0.5),
    "PoissonSampled Gaussian": acc.PoissonSampled(acc.Gaussian(1.0), 0.05),
    "PoissonSampled Laplace": acc.PoissonSampled(acc.Laplace(1.0), 0.05),
    "PoissonSampled PureDP": acc.PoissonSampled(acc.PureDP(1.0), 0.05),
    "PoissonSampled ApproxDP": acc.PoissonSampled(acc.ApproxDP(1.0, 1e-7), 0.05),
    "PoissonSampled GDP": acc.PoissonSampled(acc.GDP(1.0), 0.05),
    "TruncatedPoissonSampled": acc.TruncatedPoissonSampled(acc.Gaussian(1.0), 0.05, 2000, 190),
    "FixedSizeSampled": acc.FixedSizeSampled(acc.Gaussian(2.0), 50, 1000),
    "Shuffled": acc.Shuffled(acc.Gaussian(2.0)),
    "BallsInBins": acc.BallsInBins(acc.Gaussian(2.0), 20),
    "Votes": acc.Votes(20.0),
    "Votes keyed": acc.Votes(20.0, partition="keyed"),
    "VoteCheck": acc.VoteCheck(20.0, partition="positions"),
    "LaplaceVotes": acc.LaplaceVotes(10.0),
    "SmoothRelease": acc.SmoothRelease(0.01, 20.0),
    "Selected": acc.Selected(acc.Gaussian(10.0), gamma=0.2),
    "Either": acc.Either(acc.Gaussian(10.0), acc.PoissonSampled(acc.Gaussian(2.0), 0.1)),
}

CASES = [(name, adjacency) for name, m in MECHANISMS.items() for adjacency in m.adjacencies()]


def poisson(rate: float, noise: float, steps: int) -> acc.Composed:
    """DP-SGD: ``steps`` Gaussian steps on Poisson samples."""
    return acc.PoissonSampled(acc.Gaussian(noise), rate) * steps
