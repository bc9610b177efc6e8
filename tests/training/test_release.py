"""Training and other people's loops release sums in one place: the same noise, the same clip norms."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tacit.noise.keys import Key
from tacit.opacus import PrivacyEngine
from tacit.sgd import AdaptiveClipping, DPAdam, PrivacyWarning, Training, release
from tacit.sgd.hooked.draws import PrivateBatches
from tacit.sgd.hooked.loop import Loop
from tacit.sgd.training.sampling import Poisson

SIZE, BATCH, STEPS, FIRST = 40, 40, 6, 2.0


def _optimizer(model: nn.Module, *hooks: Callable[..., None]) -> tuple[torch.optim.SGD, list[dict[str, Tensor]]]:
    """An optimizer, and the gradients that it is given, after the hooks."""
    found = torch.optim.SGD(model.parameters(), lr=0.05)
    seen: list[dict[str, Tensor]] = []
    for hook in hooks:
        found.register_step_pre_hook(hook)
    found.register_step_pre_hook(
        lambda *_: seen.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
    )
    return found, seen


def _model(dtype: torch.dtype) -> nn.Module:
    model = nn.Linear(3, 2)
    nn.init.constant_(model.weight, 0.1)
    nn.init.zeros_(model.bias)
    return model.to(dtype)


def _losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]).float(), batch[1], reduction="none")


@pytest.mark.filterwarnings("ignore::tacit.sgd.PrivacyWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("adaptive", [None, AdaptiveClipping(0.3, 0.5, count_noise=4.0)], ids=["fixed", "adaptive"])
def test_training_and_a_loop_release_the_same_bits(dtype: torch.dtype, adaptive: AdaptiveClipping | None) -> None:
    """For the same key, steps and records: every record takes part, so that both sum the same."""
    torch.manual_seed(0)
    x, y = torch.randn(SIZE, 3).to(dtype), torch.randint(2, (SIZE,))

    model = _model(dtype)
    mine, seen = _optimizer(model)
    training = Training(
        model,
        mine,
        _losses,
        (x, y),
        batch_size=BATCH,
        steps=STEPS,
        noise_multiplier=1.0,
        delta=1e-3,
        clip_norm=FIRST,
        adaptive=adaptive,
        key=Key(bytes(32), repeatable=True),
    )
    norms = []
    for batch in training:
        training.step(batch)
        norms.append(training.clip_norm)

    other = _model(dtype)
    loops: list[Loop] = []
    theirs, others = _optimizer(other, lambda *_: loops[0].release())
    batches = PrivateBatches(Poisson(SIZE, BATCH), Key(bytes(32)).derive("sampler"), SIZE)
    loop = Loop(
        other,
        theirs,
        batches,
        noise_multiplier=1.0,
        clip_norm=FIRST,
        adaptive=adaptive,
        key=Key(bytes(32), repeatable=True),
        check=False,
        summed=True,
    )
    loops.append(loop)
    told = []
    for rows in itertools.chain.from_iterable(batches for _ in range(STEPS)):  # a step is a pass
        loop.hand_out()
        _losses(other, (x[rows], y[rows])).sum().backward()
        theirs.step()
        told.append(loop.clip_norm)
    loop.close()

    assert told == norms
    assert len(set(norms)) == (1 if adaptive is None else STEPS)
    assert len(seen) == STEPS
    for ours, released in zip(seen, others, strict=True):
        for name in ours:
            assert torch.equal(ours[name], released[name]), name


def test_an_adaptive_clip_norm_stays_near_the_first_whatever_the_data() -> None:
    """Zero gradients pull it down for ever; both kinds of loop stop at the same bound."""
    adaptive = AdaptiveClipping(quantile=0.1, rate=5.0, count_noise=2.0)
    x, y = torch.zeros(100, 3), torch.zeros(100, 1)
    model = nn.Linear(3, 1)
    model.requires_grad_(False)
    model.weight.requires_grad_(True)  # of an input of zeros its gradient is zero
    training = Training(
        model,
        torch.optim.SGD([model.weight], lr=0.0),
        nn.MSELoss(reduction="none"),
        (x, y),
        batch_size=100,
        steps=80,
        noise_multiplier=0.5,
        delta=1e-3,
        clip_norm=FIRST,
        adaptive=adaptive,
    )
    for batch in training:
        training.step(batch)

    other = nn.Linear(3, 1)
    other.requires_grad_(False)
    other.weight.requires_grad_(True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        _, optimizer, loader = PrivacyEngine().make_private(
            module=other,
            optimizer=torch.optim.SGD([other.weight], lr=0.0),
            data_loader=DataLoader(TensorDataset(x, y), batch_size=100),
            noise_multiplier=0.5,
            max_grad_norm=FIRST,
            clipping="adaptive",
            target_unclipped_quantile=0.1,
            clipbound_learning_rate=5.0,
            unclipped_num_std=2.0,
        )
        for _ in range(80):
            for a, b in loader:
                optimizer.zero_grad()
                nn.functional.mse_loss(other(a), b).backward()
                optimizer.step()
    assert training.clip_norm == optimizer.loop.clip_norm == FIRST / release.FURTHEST


def test_bounds_that_are_given_are_kept() -> None:
    assert release.clip_range(1.0, 0.5, 3.0) == (0.5, 3.0)
    assert release.clip_range(1.0, 1e8) == (1e8, 1e8)
    assert release.clip_range(1.0, None, 1e-9) == (1e-9, 1e-9)


def test_dp_adam_learns_the_noise_in_a_loop_too() -> None:
    model = nn.Linear(3, 2)
    inner = DPAdam(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(100, 3), torch.randint(2, (100,)))
    _, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=inner,
        data_loader=DataLoader(data, batch_size=20),
        noise_multiplier=1.5,
        max_grad_norm=0.4,
    )
    x, y = next(iter(loader))
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    assert inner.noise_variance == pytest.approx((1.5 * 0.4 / 20) ** 2, rel=1e-3)
