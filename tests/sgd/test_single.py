"""The gradient of each single example is what autograd gives for that example alone."""

from __future__ import annotations

import json
import pickle

import pytest
import torch
from tests.sgd import zoo_more, zoo_transformers
from tests.sgd.harness import build, single_gradients
from tests.sgd.zoo import ZOO, Case
from torch import Tensor, nn
from torch.nn import functional as F

from tacit import sgd
from tacit.sgd import single

assert zoo_more
assert zoo_transformers

#: Dense layers, convolutions, tied and shared weights, recurrence, frozen parts, selections, generic derivatives.
SOME = [
    "cnn",
    "gpt-tied",
    "gpt-tied-large-vocabulary",
    "t5-style",
    "perceiver-latents",
    "lstm-packed",
    "block-called-twice",
    "registration-order",
    "weight-norm",
    "frozen-backbone",
    "dlrm-embedding-bag",
    "prototypes-generic",
    "mixture-of-experts",
    "overlapping-slices",
    "fourier-operator",
    "hf-gpt2",
]
PER_ROW = nn.CrossEntropyLoss(reduction="none")


def worst(case: Case, found: sgd.ExampleGradients) -> float:
    """The largest error of any example's gradient of any parameter, relative to that of the batch."""
    truth = single_gradients(case)
    assert found.keys() == list(truth[0])
    whole = torch.stack([g.square().sum() for one in truth for g in one.values()]).sum().sqrt()
    return max(float((found[n][k] - g).norm() / whole) for k, one in enumerate(truth) for n, g in one.items())


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", SOME)
def test_single_gradients_are_autograds_own(name: str) -> None:
    case = build(ZOO[name][1], torch.float64)
    found = sgd.example_gradients(case.model, case.loss, case.batch)
    assert worst(case, found) < 1e-10
    assert all(p.grad is None for p in case.model.parameters())
    _, norms = sgd.clipped_grad(case.model, case.loss, case.batch)
    torch.testing.assert_close(found.norms, norms)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", sorted(set(ZOO) - set(SOME)))
def test_single_gradients_of_the_rest_of_the_zoo_are_autograds_own(name: str) -> None:
    case = build(ZOO[name][1], torch.float64)
    # Mamba computes parts of its scan in float32
    assert worst(case, sgd.example_gradients(case.model, case.loss, case.batch)) < 1e-9


@pytest.mark.parametrize("options", [{"microbatch": 2}, {"microbatch": 3, "check": "always"}, {"method": "examples"}])
def test_every_way_of_computing_them_gives_the_same(options: dict[str, object]) -> None:
    case = build(ZOO["block-called-twice"][1], torch.float64)
    assert worst(case, sgd.example_gradients(case.model, case.loss, case.batch, **options)) < 1e-10


@pytest.mark.parametrize("name", ["gpt-tied", "overlapping-slices", "cnn"])
def test_the_comparison_notices_a_wrong_answer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = single.formed

    def of_neighbours(gradients: object, k: int) -> Tensor:
        return right(gradients, k).roll(1, 0)  # type: ignore[arg-type]

    case = build(ZOO[name][1], torch.float64)
    with monkeypatch.context() as patched:
        patched.setattr(single, "formed", of_neighbours)
        assert worst(case, sgd.example_gradients(case.model, case.loss, case.batch)) > 1e-3
    with monkeypatch.context() as patched:
        patched.setattr(single, "_values", lambda group: 1.001 * torch.nan_to_num(_dense_of(group)))
        assert worst(case, sgd.example_gradients(case.model, case.loss, case.batch)) > 1e-5


_dense_of = single._values


class Tied(nn.Module):
    """A table so large that its gradient stays in two pieces: what was looked up, and what the head multiplied."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(200, 24)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.table(x).tanh(), self.table.weight)


def test_both_uses_of_a_large_tied_table_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def tagging(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch["x"]).mT, batch["y"], reduction="none").mean(1)

    batch = {name: torch.randint(200, (4, 5)) for name in "xy"}
    case = Case(Tied().double(), tagging, batch)
    seen = []

    def watching(group: single.Group) -> Tensor:
        seen.append(group.lookup is not None and bool(group.parts))
        return _dense_of(group)

    monkeypatch.setattr(single, "_values", watching)
    assert worst(case, sgd.example_gradients(case.model, case.loss, case.batch)) < 1e-10
    assert seen == [True]

    def without_lookup(group: single.Group) -> Tensor:
        return single.to_dense(group.parts[0], group.shape)

    monkeypatch.setattr(single, "_values", without_lookup)
    assert worst(case, sgd.example_gradients(case.model, case.loss, case.batch)) > 1e-3


def test_dropout_is_drawn_once_and_belongs_to_the_example() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)).double().train()
    batch = (torch.randn(6, 4, dtype=torch.float64), torch.randint(3, (6,)))
    torch.manual_seed(3)
    found = sgd.example_gradients(model, PER_ROW, batch)
    torch.manual_seed(3)
    losses = PER_ROW(model(batch[0]), batch[1])
    for k in range(6):
        alone = torch.autograd.grad(losses[k], list(model.parameters()), retain_graph=True)
        for mine, truth in zip((g for _, g in found.items()), alone, strict=True):
            torch.testing.assert_close(mine[k], truth)
    torch.testing.assert_close(found.losses, losses.detach())


def test_views_are_averaged() -> None:
    model = nn.Linear(3, 2).double()
    x, y = torch.randn(8, 3, dtype=torch.float64), torch.tensor([0, 0, 1, 1, 0, 0, 1, 1])
    pairs = sgd.example_gradients(model, PER_ROW, (x, y), views=2, microbatch=3)
    each = sgd.example_gradients(model, PER_ROW, (x, y))
    torch.testing.assert_close(pairs["weight"], each["weight"].view(4, 2, 2, 3).mean(1))


def test_what_mixes_examples_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    with pytest.raises(sgd.ClippingError, match="BatchNorm"):
        sgd.example_gradients(model, PER_ROW, (torch.randn(5, 4), torch.randint(2, (5,))))

    def mixing(model: nn.Module, x: Tensor) -> Tensor:
        out = model(x)[:, 0]
        return (out - out.mean()).square()

    with pytest.raises(sgd.BatchMixing):
        sgd.example_gradients(nn.Linear(4, 2), mixing, torch.randn(5, 4))


def test_an_example_that_is_not_finite_is_seen_as_such_and_spoils_no_other() -> None:
    model = nn.Linear(3, 2)
    x, y = torch.randn(4, 3), torch.tensor([0, 1, 0, 1])
    clean = sgd.example_gradients(model, PER_ROW, (x, y))
    x[2, 1] = torch.nan
    found = sgd.example_gradients(model, PER_ROW, (x, y))
    assert not found["weight"][2].isfinite().all()
    for k in (0, 1, 3):
        torch.testing.assert_close(found["weight"][k], clean["weight"][k])
    x[:] = torch.nan
    assert not sgd.example_gradients(model, PER_ROW, (x, y))["bias"].isfinite().any()


def test_an_empty_batch_and_half_precision() -> None:
    model = nn.Linear(3, 2)
    none = sgd.example_gradients(model, PER_ROW, (torch.zeros(0, 3), torch.zeros(0, dtype=torch.long)))
    assert none["weight"].shape == (0, 2, 3)
    assert none.losses.shape == (0,)
    model.bfloat16()
    found = sgd.example_gradients(model, PER_ROW, (torch.randn(4, 3).bfloat16(), torch.tensor([0, 1, 0, 1])))
    assert found["weight"].dtype == torch.float32


def test_only_the_parameters_that_were_named_are_formed() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    batch = (torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))
    every = sgd.example_gradients(model, PER_ROW, batch)
    head = sgd.example_gradients(model, PER_ROW, batch, names="2.*")
    assert head.keys() == ["2.weight", "2.bias"]
    assert sgd.example_gradients(model, PER_ROW, batch, names=["0.bias", "2.b*"]).keys() == ["0.bias", "2.bias"]
    torch.testing.assert_close(head["2.weight"], every["2.weight"])
    with pytest.raises(ValueError, match=r"no trainable parameter matches names='3\.\*'"):
        sgd.example_gradients(model, PER_ROW, batch, names=["2.*", "3.*"])
    with pytest.raises(KeyError, match=r"no gradients of '0\.bias' here"):
        head["0.bias"]


def test_the_memory_is_what_is_said_and_too_much_is_refused_before_anything_runs() -> None:
    model, calls = nn.Linear(1000, 100), []

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        calls.append(len(x))
        return F.mse_loss(model(x), torch.zeros(len(x), 100), reduction="none").sum(1)

    needed = 8 * (1000 * 100 + 100) * 4
    assert sgd.example_gradients(model, loss, torch.randn(8, 1000), memory_limit=needed).nbytes == needed
    calls.clear()
    with pytest.raises(MemoryError, match=r"3\.055 MiB, more than memory_limit"):
        sgd.example_gradients(model, loss, torch.randn(8, 1000), memory_limit=needed - 1)
    assert not calls
    if single._free(torch.device("cpu")) is not None:
        with pytest.raises(MemoryError, match="free on cpu"):
            sgd.example_gradients(model, loss, torch.zeros(1).expand(1 << 40, 1000))


def test_the_result_says_that_it_is_the_operators() -> None:
    found = sgd.example_gradients(nn.Linear(3, 2), PER_ROW, (torch.randn(4, 3), torch.tensor([0, 1, 0, 1])))
    assert (
        repr(found) == "ExampleGradients(weight: (4, 2, 3), bias: (4, 2)) [operator view: not covered by the guarantee]"
    )
    with pytest.raises(TypeError, match="private data without noise"):
        pickle.dumps(found)
    with pytest.raises(TypeError):
        json.dumps(found)
    assert set(dict(found)) == {"weight", "bias"} == set(found)
    assert "bias" in found
    assert len(found) == 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_single_gradients_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from tacit.opacus import GradSampleModule

    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # autograd's own convolutions are rounded otherwise
    for name in [name for name in SOME if not name.startswith("hf-")]:
        case = build(ZOO[name][1], torch.float32, "cuda")
        assert worst(case, sgd.example_gradients(case.model, case.loss, case.batch)) < 1e-5, name
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).cuda()
    x, y = torch.randn(7, 6).cuda(), torch.randint(3, (7,)).cuda()
    wanted = sgd.example_gradients(model, PER_ROW, (x, y))
    wrapped = GradSampleModule(model, keep_grad_sample=True)
    for _ in range(2):
        wrapped.zero_grad()
        F.cross_entropy(wrapped(x), y).backward()
        for (_, mine), p in zip(wanted.items(), model.parameters(), strict=True):
            torch.testing.assert_close(p.grad_sample, mine, rtol=1e-4, atol=1e-6)
    with pytest.raises(MemoryError, match="free on cuda"):
        sgd.example_gradients(model, PER_ROW, (x[:1].expand(1 << 33, 6), y[:1].expand(1 << 33)))
