"""Who owns what: every rule is taken at its word, by changing all that belongs to one example."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit import sgd
from tacit.sgd.gradients import planning
from tacit.sgd.gradients.bounds import Clipping
from tacit.sgd.gradients.engine import Engine, Request
from tacit.sgd.gradients.ownership import rules
from tacit.sgd.gradients.ownership.ids import DTYPE, MIXED
from tacit.sgd.gradients.ownership.tracker import OwnershipMode
from tacit.sgd.gradients.randomness import remember
from tacit.sgd.torch_compat import pytree

EXAMPLES = 3


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def whole(high: int, *shape: int) -> Tensor:
    return torch.randint(high, shape)


# Each entry: a function, and the tensors that it takes. Their first or last dimension holds three examples.
OPERATORS = {
    "arithmetic": (lambda a, b: (a * b + 1).tanh() / (b.abs() + 1), [numbers(3, 4), numbers(3, 1)]),
    "where": (lambda a, b: torch.where(a > 0, a, b), [numbers(3, 4), numbers(4)]),
    "masked fill": (lambda a, m: a.masked_fill(m > 0, 7.0), [numbers(3, 4), numbers(3, 1)]),
    "prelu": (lambda a, w: F.prelu(a, w), [numbers(3, 2, 4), numbers(2)]),
    "sums": (lambda a: (a.sum(1), a.mean((0, 2)), a.amax(-1), a.sum(), a.var(1), a.logsumexp(1)), [numbers(3, 4, 3)]),
    "extremes": (lambda a: (*a.max(1), *a.median(1), a.argmin(1), a.norm(dim=1)), [numbers(3, 4)]),
    "softmax": (lambda a: (a.softmax(1), a.log_softmax(0), a.cumsum(1), a.cumprod(0)), [numbers(3, 4)]),
    "sort": (lambda a: (*a.sort(1), *a.topk(2, 1), a.argsort(0)), [numbers(3, 4)]),
    "fourier": (lambda a: (torch.fft.rfft(a, dim=1), torch.fft.fft2(a)), [numbers(3, 4, 6)]),
    "matrices": (lambda a, b: (a @ b, b.mT @ a.mT), [numbers(3, 4), numbers(4, 5)]),
    "batches of matrices": (lambda a, b: torch.baddbmm(a @ b, a, b), [numbers(3, 4, 5), numbers(3, 5, 6)]),
    "vectors": (lambda a, b: (a @ b, torch.addmv(a[:, 0], a, b)), [numbers(3, 4), numbers(4)]),
    "linear": (lambda a, w, b: F.linear(a, w, b), [numbers(3, 2, 4), numbers(5, 4), numbers(5)]),
    "einsum": (lambda a, b: torch.einsum("bij,bkj->bik", a, b), [numbers(3, 2, 4), numbers(3, 5, 4)]),
    "bilinear": (F.bilinear, [numbers(3, 4), numbers(3, 5), numbers(2, 4, 5)]),
    "distances": (lambda a, b: torch.cdist(a, b), [numbers(3, 4), numbers(5, 4)]),
    "convolution": (lambda a, w: F.conv2d(a, w, padding=1), [numbers(3, 2, 5, 5), numbers(4, 2, 3, 3)]),
    "transposed": (lambda a, w: F.conv_transpose1d(a, w), [numbers(3, 2, 5), numbers(2, 4, 3)]),
    "pooling": (lambda a: (F.max_pool2d(a, 2), F.avg_pool2d(a, 2), F.adaptive_avg_pool2d(a, 2)), [numbers(3, 2, 6, 6)]),
    "pads": (
        lambda a: (F.pad(a, (1, 1)), F.pad(a, (1, 1), mode="reflect"), F.pad(a, (2, 2), mode="circular")),
        [numbers(3, 2, 5)],
    ),
    "resizing": (lambda a: (F.interpolate(a, scale_factor=2), F.pixel_shuffle(a, 2)), [numbers(3, 4, 3, 3)]),
    "layer norm": (lambda a, w: F.layer_norm(a, (4,), w), [numbers(3, 2, 4), numbers(4)]),
    "rms norm": (lambda a: F.rms_norm(a, (4,)), [numbers(3, 2, 4)]),
    "group norm": (lambda a: F.group_norm(a, 2), [numbers(3, 4, 5)]),
    "batch norm": (lambda a: F.batch_norm(a, None, None, training=True), [numbers(3, 4, 5)]),
    "batch norm, known statistics": (
        lambda a, m, v: F.batch_norm(a, m, v.abs() + 1),
        [numbers(3, 4), numbers(4), numbers(4)],
    ),
    "instance norm": (F.instance_norm, [numbers(3, 4, 5)]),
    "attention": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), [numbers(3, 2, 5, 4)] * 3),
    "attention, a mask for all": (
        lambda q, m: F.scaled_dot_product_attention(q, q, q, attn_mask=m),
        [numbers(3, 2, 3, 4), numbers(3, 3)],
    ),
    "group norm, as many channels as examples": (
        lambda a, w: F.group_norm(a, 3, w),
        [numbers(3, 3, 5), numbers(3)],
    ),
    "lstm cell, a bias as long as the batch": (
        lambda x, h, b: torch.lstm_cell(x, (h, h), torch.full((12, 2), 0.1).double(), h.new_full((12, 3), 0.2), b, b),
        [numbers(12, 2), numbers(12, 3), numbers(12)],
    ),
    "embedding": (F.embedding, [whole(6, 3, 4), numbers(6, 2)]),
    "one of each row": (
        lambda a, i, b: (a[torch.arange(3), i], a.index_put((torch.arange(3), i), b), a[:, i, torch.arange(3) % 2]),
        [numbers(3, 4, 2), whole(4, 3), numbers(3, 2)],
    ),
    "gather": (lambda a, i: (a.gather(1, i), torch.take_along_dim(a, i, 1)), [numbers(3, 4), whole(4, 3, 2)]),
    "gather rows": (lambda a, i: a.gather(0, i), [numbers(3, 4), whole(3, 2, 4)]),
    "select": (lambda a, i: (a.index_select(0, i), a.index_select(1, i)), [numbers(3, 4), whole(3, 3)]),
    "index": (lambda a, i: (a[i], a[:, i], a[torch.arange(3), i]), [numbers(3, 4), whole(3, 3)]),
    "index between": (lambda a, i: a[:, i, :, i], [numbers(3, 4, 2, 4), whole(4, 3)]),
    "scatter": (
        lambda a, i, b: (a.scatter(1, i, b), a.scatter_add(0, i % 3, b), a.scatter(1, i, 2.0)),
        [numbers(3, 4), whole(4, 3, 2), numbers(3, 2)],
    ),
    "index add": (
        lambda a, i, b: (a.index_add(0, i, b), a.index_copy(0, i, b)),
        [numbers(3, 4), whole(3, 3), numbers(3, 4)],
    ),
    "index put": (
        lambda a, i, b: (a.index_put((i,), b), a.index_put((i,), b, accumulate=True)),
        [numbers(3, 4), whole(3, 3), numbers(3, 4)],
    ),
    "mask": (lambda a, m: a.clone().masked_fill_(m, 0.0), [numbers(3, 4), whole(2, 3, 4).bool()]),
    "one hot": (lambda i: F.one_hot(i, 5), [whole(5, 3, 4)]),
    "pieces": (
        lambda a: (torch.cat([a, a.flip(0)]), torch.stack([a, a], 1), a.repeat(2, 1), a.roll(1, 0)),
        [numbers(3, 4)],
    ),
    "triangles": (lambda a: (a.tril(), a.triu(1), torch.diag_embed(a), a.unfold(1, 2, 1)), [numbers(3, 4)]),
    "views": (lambda a: (a.t()[1], a.view(-1), a.reshape(2, 6), a[:, ::2], a.expand(2, 3, 4)), [numbers(3, 4)]),
    "complex": (
        lambda a: (torch.view_as_real(torch.fft.fft(a)), torch.view_as_complex(a.view(3, 2, 2)).abs()),
        [numbers(3, 4)],
    ),
    "losses": (
        lambda a, t: (F.cross_entropy(a, t, reduction="none"), F.cross_entropy(a, t)),
        [numbers(3, 4), whole(4, 3)],
    ),
    "losses between": (
        lambda a, b: (F.mse_loss(a, b, reduction="none"), F.mse_loss(a, b), F.huber_loss(a, b)),
        [numbers(3, 4)] * 2,
    ),
    "triangular": (
        lambda a, b: torch.linalg.solve_triangular(a, b, upper=True),
        [numbers(3, 2, 2), numbers(3, 2, 4)],
    ),
    "inverse": (lambda a: (torch.linalg.inv(a), torch.linalg.det(a)), [numbers(3, 2, 2)]),
    "lstm cell": (nn.LSTMCell(4, 5).double(), [numbers(3, 4)]),
    "gru": (nn.GRU(4, 5, batch_first=True).double(), [numbers(3, 2, 4)]),
}


def owned(tensor: Tensor, how: str, generator: torch.Generator) -> Tensor:
    """Who owns the elements of an argument: rows, columns, nobody, or anybody by chance."""
    if how == "public":
        return torch.zeros(tensor.shape, dtype=DTYPE)
    if how == "by chance" or not tensor.dim():
        return torch.randint(0, EXAMPLES + 1, tensor.shape, dtype=DTYPE, generator=generator)
    dim = 0 if how == "rows" else tensor.dim() - 1
    shape = [1] * tensor.dim()
    shape[dim] = -1
    return (torch.arange(tensor.shape[dim], dtype=DTYPE) % EXAMPLES + 1).view(shape).expand(tensor.shape).clone()


def changed(tensor: Tensor, owners: Tensor, example: int, generator: torch.Generator) -> Tensor:
    """The tensor with other values wherever the example owns it."""
    if tensor.is_floating_point():
        other = torch.randn(tensor.shape, dtype=tensor.dtype, generator=generator) * 3
    else:
        other = tensor.flatten()[torch.randint(tensor.numel(), tensor.shape, generator=generator)]
    return torch.where(owners == example + 1, other, tensor)


def computed(function, tensors: list[Tensor], *, backward: bool) -> list[Tensor]:
    """What a function gives, and its gradients where they are asked for."""
    torch.manual_seed(1)
    inputs = [t.requires_grad_() if backward and t.is_floating_point() else t for t in tensors]
    out = function(*inputs)
    found = [t for t in pytree.tree_leaves(out) if isinstance(t, Tensor)]
    if backward:
        live = [t for t in found if t.requires_grad]
        wanted = [t for t in inputs if t.requires_grad]
        seeds = [torch.ones_like(t) for t in live]
        if live and wanted:
            found += [g for g in torch.autograd.grad(live, wanted, seeds, allow_unused=True) if g is not None]
    return [t.detach() for t in found]


def too_little(name: str, how: tuple[str, ...], *, backward: bool) -> list[str]:
    """Where an element changed with an example that is not said to own it."""
    function, tensors = OPERATORS[name]
    generator = torch.Generator().manual_seed(3)
    owners = [owned(t, how[k % len(how)], generator) for k, t in enumerate(tensors)]
    tracker, watched = OwnershipMode(), [t.clone() for t in tensors]
    for tensor, some in zip(watched, owners, strict=True):
        tracker.write(tensor, some)
    with tracker:
        found = computed(function, watched, backward=backward)
        said = [tracker.owners(t) for t in found]
    assert not tracker.unknown, tracker.unknown
    before = computed(function, [t.clone() for t in tensors], backward=backward)
    wrong = []
    for example in range(EXAMPLES):
        other = [changed(t, o, example, generator) for t, o in zip(tensors, owners, strict=True)]
        after = computed(function, other, backward=backward)
        for one, two, mine in zip(before, after, said, strict=True):
            assert one.shape == two.shape
            differ = ~torch.isclose(one, two, rtol=1e-9, atol=1e-9, equal_nan=True)
            mine = torch.zeros(one.shape, dtype=DTYPE) if mine is None else mine
            if bool((differ & (mine != example + 1) & (mine != MIXED)).any()):
                wrong.append(f"{name} {how} example {example}")
    return wrong


HOW = [("rows",), ("columns",), ("by chance",), ("rows", "public"), ("public", "rows"), ("rows", "by chance", "public")]


@pytest.mark.parametrize("name", OPERATORS)
def test_nobody_else_can_change_what_an_example_owns(name):
    for how in HOW:
        assert too_little(name, how, backward=False) == []


WITHOUT = {"distances", "inverse", "resizing", "extremes", "batch norm, known statistics"}


@pytest.mark.parametrize("name", [n for n in OPERATORS if n not in WITHOUT])
def test_nor_its_gradients(name):
    # With seeds that are public: who owns a gradient is who owns the values that it is computed of.
    for how in HOW[:4]:
        assert too_little(name, how, backward=True) == []


def test_a_rule_that_says_too_little_is_found(monkeypatch):
    for wrong, names in ((rules.elementwise, ("mm", "_softmax", "sum")), (rules.public, ("index", "gather"))):
        for name in names:
            monkeypatch.setitem(rules.RULES, name, wrong)
    found = [name for name in ("gather", "index") if too_little(name, ("rows",), backward=False)]
    assert found == ["gather", "index"]


def test_an_index_of_the_data_that_is_taken_for_fixed_is_found(monkeypatch):
    monkeypatch.setattr(rules, "_free", lambda call, indices: ([], indices))
    assert too_little("one of each row", ("by chance",), backward=True)


def test_which_word_of_each_text_is_read_may_depend_on_the_text():
    """As classifiers do that read the last word before the padding."""

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(9, 4), nn.Linear(4, 2)

        def forward(self, text: Tensor) -> Tensor:
            return self.head(self.words(text))[torch.arange(len(text)), (text > 4).int().argmax(1)]

    assert sgd.check(Last(), by_class, (torch.randint(9, (6, 5)), torch.randint(2, (6,)))).certain


def test_most_is_known_and_not_merely_safe():
    """Rows stay rows: a tracker that calls everything mixed would pass the tests above."""
    batch = numbers(3, 2, 6, 6).float()
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16, 3)
    )
    tracker = OwnershipMode()
    tracker.own(batch)
    with tracker:
        out = model(batch)
        loss = F.cross_entropy(out, torch.tensor([0, 1, 2]), reduction="none")
    assert tracker.owners(loss).tolist() == [1, 2, 3]
    assert not tracker.reads
    assert not tracker.unsteady


def test_writes_through_views_and_storages_that_come_again():
    tracker = OwnershipMode()
    data = numbers(3, 2)
    tracker.own(data)
    with tracker:
        table = torch.zeros(4, 2, dtype=torch.float64)
        table[1] = data[2]
        table[:, 1].add_(1.0)
        column = table.t()[0]
    assert tracker.owners(table).tolist() == [[0, 0], [3, 3], [0, 0], [0, 0]]
    assert tracker.owners(column).tolist() == [0, 3, 0, 0]
    with tracker:
        table.zero_()
    assert tracker.owners(table).tolist() == [[0, 0]] * 4
    for _ in range(50):  # memory that is given back and taken again is not taken for what lay there
        with tracker:
            made = data * 2
        del made
        fresh = torch.empty(3, 2, dtype=torch.float64)
        assert tracker.owners(fresh) is None


# -- what the engine makes of it ---------------------------------------------------------------------------------------


def proof_of(model: nn.Module, loss, batch):
    engine = Engine.of(model)
    request = Request(loss, batch, Clipping.of("flat", 1.0, list(engine.parameters)))
    plan = planning.survey(engine, request, remember(engine.device), check=True)
    assert plan is not None
    return plan.proof


class Positions(nn.Module):
    """Looks up places that it counts from the tokens themselves, and sums what it found by an index of the data."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.head = nn.Embedding(9, 4), nn.Embedding(9, 4), nn.Linear(4, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        places = (tokens != 0).long().cumsum(1)
        seen = self.words(tokens) + self.places(places)
        order = tokens.argsort(1)
        seen = seen.gather(1, order.unsqueeze(-1).expand_as(seen))
        return self.head(seen).mean(1)


def by_class(model: nn.Module, batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def test_a_pass_that_moves_values_within_each_example_is_planned_once(monkeypatch):
    surveys = []
    original = planning.survey
    monkeypatch.setattr(planning, "survey", lambda *a, **k: surveys.append(1) or original(*a, **k))
    model = Positions()
    for _ in range(4):
        batch = (torch.randint(9, (6, 5)), torch.randint(2, (6,)))
        found = sgd.clipped_grad(model, by_class, batch, clip_norm=0.1)
        alone = sgd.clipped_grad(model, by_class, batch, clip_norm=0.1, method="examples")
        torch.testing.assert_close(found.norms, alone.norms, rtol=1e-4, atol=1e-6)
        for name, one in found.sums.items():
            torch.testing.assert_close(one, alone.sums[name], rtol=1e-4, atol=1e-6)
    assert len(surveys) == 1


def test_what_is_proven_is_told():
    tokens, classes = torch.randint(9, (6, 5)), torch.randint(2, (6,))
    assert sgd.check(Positions(), by_class, (tokens, classes)).certain
    proof = proof_of(Positions(), by_class, (tokens, classes))
    assert proof.holds
    assert proof.steady
    assert proof.place is None


@pytest.mark.parametrize("drawn", [True, False])
def test_an_order_of_the_examples_holds_for_one_pass_only(drawn):
    """By an index of the data, or one that is drawn anew, rows are somebody else's the next time."""
    x = numbers(6, 5)
    tracker = OwnershipMode()
    tracker.own(x)
    with tracker:
        order = torch.randperm(6) if drawn else torch.arange(6).flip(0)
        moved = x[order]
        back = moved[order.argsort()]
    assert tracker.owners(moved)[:, 0].tolist() == (order + 1).tolist()
    assert tracker.owners(back)[:, 0].tolist() == [1, 2, 3, 4, 5, 6]
    assert tracker.unsteady == drawn


def test_an_order_that_the_data_decide_is_nobodys_own():
    """Each row is somebody's (``test_piles.py``), and which stands where is everybody's."""
    x = numbers(6, 5)
    tracker = OwnershipMode()
    tracker.own(x)
    with tracker:
        moved = x[x.sum(1).argsort()]
        heard = moved + moved.roll(1, 0)
    assert bool((tracker.owners(moved) > 6).all())
    assert bool((tracker.owners(heard) == MIXED).all())
    assert tracker.mixes[0].operator == "roll"
    assert tracker.mixes[0].line.startswith("test_ownership.py:")


def test_a_split_at_places_of_the_data_is_read_from_them():
    class Split(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(5, 2)

        def forward(self, x: Tensor) -> Tensor:
            places = (x[:1, 0] > 0).long() + 1
            return self.head(torch.cat(torch.tensor_split(x, places.cpu(), dim=1), 1))

    torch.manual_seed(0)
    assert not sgd.check(Split(), by_class, (torch.randn(6, 5), torch.randint(2, (6,)))).certain


class Looking(nn.Module):
    """Looks at its mask for a shortcut, as many language models do unless they are compiled."""

    def __init__(self, *, honest: bool = True) -> None:
        super().__init__()
        self.head, self.honest = nn.Linear(5, 2), honest

    def forward(self, x: Tensor) -> Tensor:
        keep = x > -1
        if torch.compiler.is_compiling() and not self.honest:
            return self.head(x) * 2
        if not torch.compiler.is_compiling() and bool(keep.all()):
            return self.head(x)
        return self.head(x * keep)


def test_a_model_that_looks_at_its_data_unless_it_is_compiled_does_not_look():
    batch = (torch.randn(6, 5), torch.randint(2, (6,)))
    model = Looking()
    assert sgd.check(model, by_class, batch).certain
    for _ in range(3):
        batch = (torch.randn(6, 5), torch.randint(2, (6,)))
        found = sgd.clipped_grad(model, by_class, batch, clip_norm=0.1)
        alone = sgd.clipped_grad(model, by_class, batch, clip_norm=0.1, method="examples")
        torch.testing.assert_close(found.norms, alone.norms)
    assert list(Engine.of(model).hushed.values()) == [True]


def test_but_not_where_it_then_computes_something_else():
    model = Looking(honest=False)
    batch = (torch.randn(6, 5), torch.randint(2, (6,)))
    found = sgd.clipped_grad(model, by_class, batch, clip_norm=0.1)
    alone = sgd.clipped_grad(model, by_class, batch, clip_norm=0.1, method="examples")
    torch.testing.assert_close(found.norms, alone.norms)
    assert not sgd.check(model, by_class, batch).certain
    assert set(Engine.of(model).hushed.values()) == {False}
