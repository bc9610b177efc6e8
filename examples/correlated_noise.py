"""Train with noise that takes back noise of earlier steps, next to independent noise at the same ε.

python -m examples.correlated_noise
"""

from __future__ import annotations

import torch
from torch import nn

from tacit import accounting as acc
from tacit import sgd


def trained(noise: sgd.Banded | None) -> tuple[sgd.Training, float]:
    """A logistic regression on simulated records, and its distance from the weights that made them."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20_000, 200, generator=generator)
    truth = torch.linspace(-1, 1, 200)
    y = (x @ truth > 0).long()
    torch.manual_seed(0)
    model = nn.Linear(200, 2)
    training = sgd.Training(
        model,
        torch.optim.SGD(model.parameters(), lr=0.5),
        nn.CrossEntropyLoss(reduction="none"),
        (x, y),
        batch_size=100,
        steps=400,
        epsilon=1.0,
        delta=1e-6,
        noise=noise,
    )
    for batch in training:
        training.step(batch)
    found = (model.weight[1] - model.weight[0]).detach()
    return training, float(torch.cosine_similarity(found, truth, dim=0))


def main() -> None:
    """Show what was chosen, what it costs, and what it brought."""
    for choice in acc.choose_bands(20_000, 100, 400, epsilon=1.0, delta=1e-6)[:3]:
        print(f"{choice.bands:3} bands are predicted to leave {choice.error:.2f} of DP-SGD's noise in the weights")
    for name, noise in (("independent", None), ("banded", sgd.Banded())):
        training, cosine = trained(noise)
        bands = training.plan.correlation.bands
        print(f"{name} noise ({bands} bands): ε = {training.privacy.claim:.3f}, cosine to the truth {cosine:.4f}")


if __name__ == "__main__":
    main()
