"""Your own training loop, privately: clip each example's gradient, add noise, step with any optimizer.

The model is an ordinary module with bare parameters used twice, which no list of supported layers covers. The data are
census microdata (31,857 women, target: works for pay). Run it with ``python -m examples.own_loop``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit import accounting as acc
from tacit import datasets, sgd
from tacit.noise import Key, add_normal_, bernoulli_mask

EPSILON, DELTA, CLIP_NORM = 1.0, 1e-6, 1.0
STEPS, EXPECTED_BATCH = 60, 512


class Factors(nn.Module):
    """A linear model plus pairwise interactions through one matrix of factors."""

    def __init__(self, features: int, rank: int = 8) -> None:
        super().__init__()
        self.factors = nn.Parameter(0.1 * torch.randn(features, rank))
        self.linear = nn.Linear(features, 1)

    def forward(self, x: Tensor) -> Tensor:
        pairs = (x @ self.factors).square() - x.square() @ self.factors.square()
        return self.linear(x).squeeze(1) + 0.5 * pairs.sum(1)


def main() -> None:
    """Train with a guarantee and say what it cost."""
    encoded, _ = datasets.labsup().encode()
    x = torch.tensor(encoded.features, dtype=torch.float32)
    y = torch.tensor(encoded.target, dtype=torch.float32)
    held_out = torch.from_numpy(encoded.public_rows(0.2))  # a row's side depends on that row alone
    train_x, train_y = x[~held_out], y[~held_out]

    torch.manual_seed(0)  # of the initial weights, which are public; noise and sampling come from a secret key
    model = Factors(x.shape[1])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)

    def loss(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.binary_cross_entropy_with_logits(net(batch[0]), batch[1], reduction="none")

    rate = EXPECTED_BATCH / len(train_x)
    sigma = acc.calibrate(
        lambda noise: acc.PoissonSampled(acc.Gaussian(noise), rate) * STEPS, epsilon=EPSILON, delta=DELTA
    )
    key = Key.generate()
    for step in range(STEPS):
        chosen = torch.from_numpy(bernoulli_mask(key, step, len(train_x), rate))
        # A fixed micro-batch keeps every step's shapes the same although Poisson batches differ in size.
        result = sgd.clipped_grad(model, loss, (train_x[chosen], train_y[chosen]), CLIP_NORM, microbatch=256)
        for name, parameter in model.named_parameters():
            noisy = add_normal_(result.sums[name], key, step, name, sigma * result.sensitivity)
            parameter.grad = noisy / EXPECTED_BATCH  # the expected size: the drawn one is private
        optimizer.step()

    spent = acc.epsilon(acc.PoissonSampled(acc.Gaussian(sigma), rate) * STEPS, delta=DELTA)
    with torch.no_grad():
        correct = ((model(x[held_out]) > 0) == (y[held_out] > 0.5)).float().mean()
    print(
        f"noise multiplier {sigma:.3f}, {STEPS} steps of {EXPECTED_BATCH} expected examples, sampling rate {rate:.4f}"
    )
    print(f"epsilon at most {spent.upper:.3f} at delta {DELTA:g} (add/remove one person)")
    print(f"for the operator only: held-out accuracy {correct:.3f}")
    if not spent.upper <= EPSILON * 1.001:
        raise SystemExit("the guarantee was not kept")


if __name__ == "__main__":
    main()
