"""What a model does with its batch behind torch's back is refused where it mixes examples, in the first such batch."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.sgd import nasty
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tacit import opacus, sgd
from tacit.sgd.gradients import capture, company, planning, verify
from tacit.sgd.gradients.engine import Engine

CLIP = 0.5


def model_of(make):
    torch.manual_seed(0)
    return nasty.Nasty(make())


def alone(model, batch):
    """The clipped sum and the norms of one example at a time, with nothing of tacit."""
    named, total, norms = dict(model.named_parameters()), {}, []
    for k in range(len(batch[0])):
        one = tuple(t[k : k + 1] for t in batch)
        found = torch.autograd.grad(nasty.loss(model, one).sum(), list(named.values()), allow_unused=True)
        own = {n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(named.items(), found, strict=True)}
        norms.append(torch.stack([g.square().sum() for g in own.values()]).sum().sqrt())
        for name, gradient in own.items():
            total[name] = total.get(name, 0) + gradient * min(1.0, CLIP / float(norms[-1]))
    return total, torch.stack(norms)


def close(sums, norms, wanted):
    off = sum(float((wanted[0][n] - sums[n]).square().sum()) for n in sums) ** 0.5
    return off < 1e-3 * CLIP and (norms is None or torch.allclose(norms, wanted[1], rtol=1e-3, atol=1e-5))


def right(model, batch):
    """Whether the clipped sum of a batch is that of one example at a time."""
    wanted = alone(copy.deepcopy(model), batch)
    found = sgd.clipped_grad(model, nasty.loss, batch, clip_norm=CLIP)
    return close(found.sums, found.norms, wanted)


@pytest.mark.parametrize("kind", nasty.FAIR)
def test_fair_models_are_right_in_every_batch(kind):
    model = model_of(nasty.FAIR[kind])
    assert all(right(model, nasty.batch(seed, loud=seed > 2)) for seed in range(1, 5))


@pytest.mark.parametrize("kind", nasty.MIXING)
def test_what_a_quiet_batch_hides_is_refused_in_a_loud_one(kind):
    """And in the one after, for whoever goes on; a quiet batch is right, before and after."""
    model = model_of(nasty.MIXING[kind])
    assert all(right(model, nasty.batch(seed)) for seed in (1, 2))
    for seed in (3, 4):
        with pytest.raises(sgd.ClippingError):
            sgd.clipped_grad(model, nasty.loss, nasty.batch(seed, loud=True), clip_norm=CLIP)
    assert right(model, nasty.batch(5))


def step(model, optimizer, x, y):
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()


@pytest.mark.parametrize("kind", nasty.MIXING)
def test_so_it_is_in_a_loop(kind):
    model = model_of(nasty.MIXING[kind])
    batches = [nasty.batch(seed, loud=seed > 2) for seed in range(1, 5)]
    data = TensorDataset(*map(torch.cat, zip(*batches, strict=True)))
    wanted = [alone(copy.deepcopy(model), b) for b in batches[:2]]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    model, optimizer, loader = opacus.PrivacyEngine().make_private(
        module=model, optimizer=optimizer, data_loader=DataLoader(data, batch_size=nasty.ROWS),
        noise_multiplier=1e-9, max_grad_norm=CLIP, poisson_sampling=False,
    )  # fmt: skip
    for number, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        if number < 2:
            step(model, optimizer, x, y)
            sums = {n: p.grad * len(x) for n, p in model.named_parameters()}
            assert close(sums, None, wanted[number])
            continue
        with pytest.raises(sgd.ClippingError):
            step(model, optimizer, x, y)


def kept_nothing_back(monkeypatch):
    monkeypatch.setattr(company, "_gradients_unmoved", lambda *_: None)


def deaf_to_numbers(monkeypatch):
    monkeypatch.setattr(capture.Capture, "way", property(lambda self: self.trace))


def at_the_same_weights(monkeypatch):
    monkeypatch.setattr(company, "AWAY", 0.0)


WRONG = [
    (at_the_same_weights, "behind a zero"),
    (at_the_same_weights, "behind a tiny number"),
    (at_the_same_weights, "behind two that cancel"),
    (kept_nothing_back, "a_hook_that_scales_by_numpy"),
    (kept_nothing_back, "detached, by a tensor"),
    (deaf_to_numbers, "a number by thread"),
    (deaf_to_numbers, "a_constant_that_a_thread_writes"),
]


@pytest.mark.parametrize(("broken", "kind"), WRONG)
def test_without_the_check_the_sum_would_be_wrong(broken, kind, monkeypatch):
    broken(monkeypatch)
    model = model_of(nasty.MIXING[kind])
    assert right(model, nasty.batch(1))
    assert right(model, nasty.batch(2))
    assert not right(model, nasty.batch(3, loud=True))


def test_a_plan_does_not_outlive_a_refusal(monkeypatch):
    model = model_of(nasty.MIXING["attention_to_loud_tokens"])
    sgd.clipped_grad(model, nasty.loss, nasty.batch(1))
    with pytest.raises(sgd.ClippingError):
        sgd.clipped_grad(model, nasty.loss, nasty.batch(3, loud=True))
    assert not Engine.of(model).plans


class Writing(nn.Module):
    """Writes what it sees into a parameter."""

    def __init__(self, how, trained):
        super().__init__()
        self.a, self.how = nn.Linear(nasty.WIDTH, nasty.CLASSES), how
        self.shift = nn.Parameter(torch.zeros(nasty.CLASSES), requires_grad=trained)

    def forward(self, x):
        out = self.a(x) + self.shift
        if self.how == "tensor":
            self.shift.data.add_(1e-4 * x.mean())
        elif self.how == "number":
            with torch.no_grad():
                self.shift.add_(1e-4 * float(x.mean()))
        elif self.how == "numpy":
            self.shift.detach().numpy()[:] += 1e-4 * x.numpy().mean()
        else:
            nasty.elsewhere(lambda: self.shift.data.add_(1e-4 * float(x.mean())))
        return out


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("how", ["tensor", "number", "numpy", "thread"])
def test_a_model_that_writes_the_batch_into_a_parameter_is_refused(how, trained):
    torch.manual_seed(0)
    with pytest.raises(sgd.ClippingError, match=r"writes values of the batch into a parameter|modified in place"):
        sgd.clipped_grad(Writing(how, trained), nasty.loss, nasty.batch(1))


class Elsewhere(nn.Module):
    """Keeps the largest value that it has seen where nobody can put it back."""

    def __init__(self):
        super().__init__()
        self.a, self.kept = nn.Linear(nasty.WIDTH, nasty.CLASSES), [type("Kept", (), {"value": 0.0})]

    def forward(self, x):
        before, self.kept[0].value = self.kept[0].value, float(x.mean())
        return self.a(x) * (1 + before)


def test_a_model_that_remembers_where_nobody_can_put_it_back_is_refused_at_once(monkeypatch):
    """Whichever examples are exchanged."""
    monkeypatch.setattr(verify, "isolated", lambda *_: None)
    monkeypatch.setattr(verify, "gradients_stay", lambda *_: True)
    torch.manual_seed(0)
    with pytest.raises(sgd.BatchMixing, match="once another batch has been seen"):
        sgd.clipped_grad(Elsewhere(), nasty.loss, nasty.batch(1))
    monkeypatch.setattr(planning.verify, "repeated", lambda *_: None)
    monkeypatch.setattr(company, "in_company", lambda *_, **__: None)
    sgd.clipped_grad(Elsewhere(), nasty.loss, nasty.batch(1))  # nothing else sees it


class Warm(nn.Module):
    """Divides by a temperature, which its loop lowers."""

    def __init__(self):
        super().__init__()
        self.a, self.temperature = nn.Linear(nasty.WIDTH, nasty.CLASSES), 1.0

    def forward(self, x):
        return self.a(x) / self.temperature


def test_a_program_does_not_keep_a_number_that_the_loop_has_changed():
    torch.manual_seed(0)
    model, batch = Warm(), nasty.batch(1)
    for step in range(7):
        model.temperature = 1.0 - 0.1 * step
        found = sgd.clipped_grad(model, nasty.loss, batch, clip_norm=CLIP, compile="traced")
        assert torch.allclose(found.norms, alone(model, batch)[1], rtol=1e-4)
    assert len([p for p in Engine.of(model).programs.values() if p is not None]) == 4
