"""Whose gradient is the longest? Single gradients, to choose a clip norm on public rows or to find what is wrong.

A small network on census microdata (31,857 women, target: works for pay). Single gradients are private data without
noise: everything printed here is for the operator. Run it with ``python -m examples.single_gradients``.
"""

from __future__ import annotations

import torch
from torch import nn

from tacit import datasets, sgd


def main() -> None:
    """Form the gradients of 512 people, compare them with autograd's, and look at them."""
    encoded, _ = datasets.labsup().encode()
    x = torch.tensor(encoded.features[:512], dtype=torch.float32)
    y = torch.tensor(encoded.target[:512], dtype=torch.long)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(x.shape[1], 32), nn.Tanh(), nn.Linear(32, 2))
    loss = nn.CrossEntropyLoss(reduction="none")

    gradients = sgd.example_gradients(model, loss, (x, y))
    print(gradients)
    print(f"{gradients.nbytes / 2**20:.1f} MiB for {len(x)} examples")

    # The same, one at a time.
    for k in range(3):
        alone = torch.autograd.grad(loss(model(x[k : k + 1]), y[k : k + 1]).sum(), list(model.parameters()))
        for (name, found), truth in zip(gradients.items(), alone, strict=True):
            torch.testing.assert_close(found[k], truth, msg=f"{name} of example {k}")

    norms = gradients.norms
    low, middle, high = (float(norms.quantile(q)) for q in (0.05, 0.5, 0.95))
    print(f"for the operator only: norms {low:.2f} (5%), {middle:.2f} (median), {high:.2f} (95%)")
    clipped = (norms > middle).float().mean()
    print(f"for the operator only: a clip norm of {middle:.2f} shortens {clipped:.0%} of the gradients")

    # Where do the people who pull hardest pull?
    hardest = norms.topk(10).indices
    share = gradients["2.weight"][hardest].flatten(1).norm(dim=1) / norms[hardest]
    print(f"for the operator only: of the ten longest, the last layer's weight holds {share.mean():.0%} of the length")


if __name__ == "__main__":
    main()
