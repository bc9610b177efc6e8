"""Where memory does not suffice to look at a whole batch, a part says where examples are, and the whole is checked."""

import copy
import gc

import pytest
import torch
from tests.sgd.test_checks import Choosing
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tacit.sgd import BatchMixing, ClippingError, SelfCheckFailed, clipped_grad
from tacit.sgd.gradients import planning


@pytest.fixture
def scarce(monkeypatch):
    """Memory for a survey of so many examples; returns the sizes that were tried."""
    tried, survey = [], planning.survey

    def limit(most):
        def short(engine, request, *rest, **named):
            tried.append(request.examples)
            if request.examples > most:
                raise torch.OutOfMemoryError("as if")
            return survey(engine, request, *rest, **named)

        monkeypatch.setattr(planning, "survey", short)
        return tried

    return limit


class Columns(nn.Module):
    """Examples in the second dimension, as recurrent layers have them, and in the first, folded with the positions."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.recurrent = nn.GRU(6, 6)
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 11)

    def forward(self, tokens):
        seen, _ = self.recurrent(self.embed(tokens.T))
        return self.head(self.norm(seen).transpose(0, 1).reshape(-1, 6)).view(*tokens.shape, 11)


def columns_loss(model, batch):
    return nn.functional.cross_entropy(model(batch).transpose(1, 2), batch, reduction="none").mean(1)


def images():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5))


CASES = {
    "recurrent": (Columns, columns_loss, lambda n: torch.randint(11, (n, 5))),
    "images": (
        images,
        nn.CrossEntropyLoss(reduction="none"),
        lambda n: (torch.randn(n, 3, 8, 8), torch.randint(5, (n,))),
    ),
}


@pytest.mark.parametrize("name", list(CASES))
def test_the_answer_is_that_of_a_machine_with_more_memory(name, scarce):
    build, loss, batch_of = CASES[name]
    torch.manual_seed(0)
    model, batch = build(), batch_of(12)
    whole = clipped_grad(model, loss, batch, 0.1)
    twin = build()
    twin.load_state_dict(model.state_dict())
    tried = scarce(3)
    found = clipped_grad(twin, loss, batch, 0.1)
    assert tried == [12, 6, 3]
    assert torch.allclose(found.norms, whole.norms, rtol=1e-4)
    assert all(torch.allclose(found.sums[n], whole.sums[n], rtol=1e-4, atol=1e-6) for n in whole.sums)
    assert clipped_grad(twin, loss, batch_of(12), 0.1).norms.shape == (12,)
    assert tried == [12, 6, 3]  # what was learned is kept


class MixesMany(nn.Module):
    """Looks at other examples only where there are many of them."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 2)

    def forward(self, x):
        return self.inner(x - x.mean(0) if len(x) > 4 else x)


def test_examples_that_mix_in_the_whole_batch_alone_are_found_in_it(scarce):
    scarce(4)
    batch = (torch.randn(8, 4), torch.randint(2, (8,)))
    with pytest.raises(BatchMixing, match="mixes examples"):
        clipped_grad(MixesMany(), nn.CrossEntropyLoss(reduction="none"), batch)


def test_a_plan_that_is_wrong_for_the_whole_batch_is_found_in_it(scarce, monkeypatch):
    scarce(3)
    real = planning.adapted

    def wrong(known, run):
        plan, _ = real(known, run)
        for use in plan.uses:  # the examples of another place
            use.layouts = [y and type(y)(y.dim, y.outer * y.inner, y.batch, 1) for y in use.layouts]
        return plan, False

    monkeypatch.setattr(planning, "adapted", wrong)
    with pytest.raises(SelfCheckFailed):
        clipped_grad(Columns(), columns_loss, torch.randint(11, (6, 5)))


class OtherPath(nn.Module):
    """Takes another path through its operations where there are many examples."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.last(self.first(x).tanh() if len(x) > 4 else x)


def test_a_part_that_takes_another_path_than_the_whole_says_nothing_about_it(scarce):
    scarce(4)
    with pytest.raises(torch.OutOfMemoryError, match="unlike"):
        clipped_grad(OtherPath(), nn.CrossEntropyLoss(reduction="none"), (torch.randn(8, 4), torch.zeros(8).long()))


class Peak(TorchDispatchMode):
    """The most bytes that tensors made inside hold at a time."""

    def __init__(self):
        super().__init__()
        self.live, self.most = {}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        known = len(self.live)
        for tensor in pytree.tree_leaves(found):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                place = storage._cdata
                if place not in self.live or self.live[place][0].expired():
                    self.live[place] = StorageWeakRef(storage), storage.nbytes()
                    known = -1
        if known < 0:  # only what is new makes it more
            self.live = {place: (ref, size) for place, (ref, size) in self.live.items() if not ref.expired()}
            self.most = max(self.most, sum(size for _, size in self.live.values()))
        return found


@pytest.mark.parametrize("between", [[nn.Tanh()], [nn.SiLU(), nn.Softplus(), nn.SiLU()]])
@pytest.mark.parametrize("after", [False, True])
def test_a_first_step_short_of_memory_needs_little_more_than_a_later_one(scarce, between, after):
    """One pass at a time, without the outputs of its operations, whose graph goes when the gradients come.

    Also ``after`` a failure of torch's compiler, which stays between Python's calls: a caller then keeps what it gave.
    """
    if after:
        with pytest.raises(ClippingError):
            clipped_grad(Choosing(), nn.CrossEntropyLoss(reduction="none"), (torch.ones(4, 3), torch.zeros(4).long()))

    def peak(model):
        gc.collect()
        with Peak() as seen:
            clipped_grad(model, nn.CrossEntropyLoss(reduction="none"), batch)
        return seen.most

    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(16, 16), *between)]
    batch = (torch.randn(256, 16), torch.randint(16, (256,)))
    model, twin = nn.Sequential(*layers), nn.Sequential(*copy.deepcopy(layers))
    first, later = peak(model), peak(model)
    scarce(32)
    assert peak(twin) < 1.25 * later < first


def test_a_batch_that_does_not_fit_even_in_parts_says_so(scarce):
    tried = scarce(1)
    with pytest.raises(torch.OutOfMemoryError):
        clipped_grad(nn.Linear(3, 2), nn.CrossEntropyLoss(reduction="none"), (torch.randn(9, 3), torch.zeros(9).long()))
    assert tried == [9, 4, 2]


def test_values_that_are_not_finite_are_not_looked_at_in_parts(scarce):
    """The caller takes smaller batches then; nothing is released."""
    scarce(4)
    x = torch.randn(8, 3)
    x[6, 0] = torch.inf
    with pytest.raises(torch.OutOfMemoryError, match="not finite"):
        clipped_grad(nn.Linear(3, 2), nn.CrossEntropyLoss(reduction="none"), (x, torch.zeros(8).long()))
