"""What was found out about one batch is not believed of the next where it may not hold."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tacit import opacus, sgd
from tacit.noise.keys import Key
from tacit.sgd.gradients import company

LENGTH, WIDTH, ROWS = 6, 5, 8


def sequences(lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(len(lengths), LENGTH, WIDTH, generator=generator)
    return x, torch.tensor(lengths), torch.randint(3, (len(lengths),), generator=generator)


IN_ORDER = sequences(range(1, ROWS + 1))
SHUFFLED = sequences([5, 2, 7, 1, 8, 3, 6, 4], seed=1)


@torch.jit.script
def scripted_order(lengths):
    return torch.argsort(lengths)


def by_host(lengths):
    return sorted(range(len(lengths)), key=lambda i: lengths[i])


def by_comparison(lengths):
    order = list(range(len(lengths)))
    return order if bool(lengths[0] < lengths[-1]) else order[::-1]


def by_dlpack(lengths):
    return torch.from_dlpack(torch.utils.dlpack.to_dlpack(lengths)).argsort()


def by_thread(lengths):
    found = []
    thread = threading.Thread(target=lambda: found.append(lengths.argsort()))
    thread.start()
    thread.join()
    return found[0]


def by_data(lengths):
    order = torch.zeros_like(lengths)
    order.data = lengths.argsort()
    return order


def by_text(lengths):
    numbers = [int(word) for word in str(lengths)[8:-2].split(",")]
    return torch.tensor(numbers).argsort()


ORDERS = {
    "host": by_host,
    "comparison": by_comparison,
    "scripted": scripted_order,
    "dlpack": by_dlpack,
    "thread": by_thread,
    "data": by_data,
    "text": by_text,
    "vmap": lambda lengths: torch.vmap(lambda row: row.argsort())(lengths.unsqueeze(0))[0],
    "numpy": lambda lengths: torch.from_numpy(lengths.numpy().argsort()),
}


class Sorting(nn.Module):
    """A model that looks at its sequences in another order, and puts the answers back."""

    def __init__(self, order):
        super().__init__()
        self.order, self.inner, self.head = order, nn.Linear(WIDTH, 4), nn.Linear(4, 3)

    def forward(self, x, lengths):
        order = self.order(lengths)
        h = self.inner(x[order]).tanh().mean(1)
        back = torch.as_tensor(order).argsort()
        return self.head(h[back])


def sorting_loss(model, batch):
    x, lengths, y = batch
    return F.cross_entropy(model(x, lengths), y, reduction="none")


@pytest.mark.parametrize("kind", ORDERS)
def test_an_order_that_nobody_saw_is_not_that_of_the_first_batch(kind):
    torch.manual_seed(0)
    model = Sorting(ORDERS[kind])
    sgd.clipped_grad(model, sorting_loss, IN_ORDER, clip_norm=0.1)
    truth = sgd.clipped_grad(model, sorting_loss, SHUFFLED, clip_norm=0.1, method="examples").norms
    try:
        norms = sgd.clipped_grad(model, sorting_loss, SHUFFLED, clip_norm=0.1).norms
    except sgd.ClippingError:
        return  # refused, and not guessed
    torch.testing.assert_close(norms, truth, rtol=1e-4, atol=1e-6)


def token_mean(model, batch):
    x, lengths, y = batch
    inside = torch.arange(LENGTH) < lengths.unsqueeze(1)
    each = F.cross_entropy(model(x).flatten(0, 1), y.repeat_interleave(LENGTH), reduction="none").view(-1, LENGTH)
    return (each * inside).sum(1) * len(x) / inside.sum()


def test_a_mean_over_the_tokens_of_the_batch_is_refused_in_the_batch_that_shows_it():
    torch.manual_seed(0)
    model = nn.Linear(WIDTH, 3)
    sgd.clipped_grad(model, token_mean, sequences([4] * ROWS))
    with pytest.raises(sgd.BatchMixing):
        sgd.clipped_grad(model, token_mean, sequences([1, 1, 6, 1, 1, 1, 1, 1]))


def trimmed(model, batch):
    """Cut to the longest of the batch, and averaged over all that is left."""
    x, lengths, y = batch
    return F.cross_entropy(model(x[:, : int(lengths.max())]).mean(1), y, reduction="none")


def test_a_loss_that_cuts_to_the_longest_example_is_refused_in_the_batch_that_shows_it():
    torch.manual_seed(0)
    model = nn.Linear(WIDTH, 3)
    sgd.clipped_grad(model, trimmed, sequences([4] * ROWS))
    with pytest.raises(sgd.BatchMixing):
        sgd.clipped_grad(model, trimmed, sequences([2, 2, 3, 2, 2, 6, 2, 3]))


def test_a_message_about_mixing_shows_no_value_of_an_example():
    torch.manual_seed(0)
    model = nn.Linear(WIDTH, 3)
    with pytest.raises(sgd.BatchMixing) as caught:
        sgd.clipped_grad(model, lambda m, b: m(b).sum((1, 2)) * b.mean(), torch.randn(4, LENGTH, WIDTH))
    assert not any(character.isdigit() for character in str(caught.value))


def test_ordinary_passes_are_not_doubted_after_the_first(monkeypatch):
    """Constants of a closure, masks, positions and dropout leave nothing to check at every step."""
    torch.manual_seed(0)
    weights, asked = torch.tensor([1.0, 2.0, 3.0]), []
    model = nn.Sequential(nn.Linear(WIDTH, 8), nn.LayerNorm(8), nn.Dropout(0.2), nn.Linear(8, 3))

    def loss(model, batch):
        x, lengths, y = batch
        inside = torch.arange(LENGTH) < lengths.unsqueeze(1)
        h = model(x) + torch.zeros(LENGTH, 3)
        pooled = (h * inside.unsqueeze(2)).sum(1) / inside.sum(1, keepdim=True)
        return F.cross_entropy(pooled, y, reduction="none") * weights[y]

    sgd.clipped_grad(model, loss, IN_ORDER)
    monkeypatch.setattr(company, "in_company", lambda *_, **__: asked.append(1))
    for seed in range(3):
        sgd.clipped_grad(model, loss, sequences([5, 2, 7, 1, 8, 3, 6, 4], seed))
    assert not asked


# -- what an attack from outside found ------------------------------------------------------------------------------


@torch.jit.script
def scripted_count(x):
    return int((x.abs() > 3).sum().item())


class Keeping(nn.Module):
    """Keeps the largest value it has seen, and multiplies by it."""

    def __init__(self):
        super().__init__()
        self.inner, self.most = nn.Linear(ROWS * 2, 3), 1.0

    def forward(self, x):
        self.most = max(self.most, float(x.abs().max()) / 2)
        return self.inner(x) * self.most


class KeepingInList(nn.Module):
    """The same, with what it has seen in a list."""

    def __init__(self):
        super().__init__()
        self.inner, self.seen = nn.Linear(ROWS * 2, 3), [1.0]

    def forward(self, x):
        self.seen.append(float(x.abs().max()) / 2)
        return self.inner(x) * max(self.seen)


class KeepingLater(nn.Module):
    """The same, with nothing kept at first."""

    def __init__(self):
        super().__init__()
        self.inner, self.most = nn.Linear(ROWS * 2, 3), None

    def forward(self, x):
        self.most = max(self.most or 1.0, float(x.abs().max()) / 2)
        return self.inner(x) * self.most


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("kind", [Keeping, KeepingInList, KeepingLater])
def test_what_a_model_keeps_of_a_batch_does_not_hide_it_whichever_half_is_replaced_first(kind, first, monkeypatch):
    torch.manual_seed(0)
    order = list(range(ROWS)) if first else list(range(ROWS))[::-1]
    monkeypatch.setattr(company.verify, "a_few", lambda examples, few: order[:few])
    model = kind()

    def loss(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    quiet, y = torch.randn(ROWS, ROWS * 2) * 0.1, torch.arange(ROWS) % 3
    for _ in range(2):
        sgd.clipped_grad(model, loss, (quiet, y))
    loud = quiet.clone()
    loud[0] = 6.0
    with pytest.raises(sgd.BatchMixing):
        sgd.clipped_grad(model, loss, (loud, y))


LEAKS = {
    "size of a selection": lambda m, x: m(x) * (1 + x[x.abs() > 3].shape[0]),
    "size of unique values": lambda m, x: m(x) * (x.abs() > 3).long().unique().numel(),
    "largest of each feature": lambda m, x: m(x - F.relu(x.amax(0) - 2)),
    "softmax over the batch": lambda m, x: m(x) * (1 + 50 * F.relu(0.05 - x.softmax(0)).amax(1, keepdim=True)),
    "sums along the batch": lambda m, x: m(x) * (1 + F.relu(x - 2).cumsum(0)[:, :1]),
    "every row with every other": lambda m, x: m(x) * (1 + F.relu(torch.cdist(x, x) - 10).sum(1, keepdim=True)),
    "row of another, by data": lambda m, x: m(x) * (1 + F.relu(x[(x @ x.T).argmax(1)][:, :1] - 2).detach()),
    "scripted number": lambda m, x: m(x) * (1 + scripted_count(x)),
    "state of the model": lambda m, x: m(x),
    "a column that is sorted": lambda m, x: m(x) * (1 + F.relu(x[:, 0].sort().values - 2)).unsqueeze(1),
}


@pytest.mark.parametrize("kind", LEAKS)
def test_a_value_of_the_batch_that_quiet_batches_hide_is_refused_when_it_shows(kind):
    torch.manual_seed(0)
    model = Keeping() if kind == "state of the model" else nn.Linear(ROWS * 2, 3)

    def loss(model, batch):
        return F.cross_entropy(LEAKS[kind](model, batch[0]), batch[1], reduction="none")

    quiet, y = torch.randn(ROWS, ROWS * 2) * 0.1, torch.arange(ROWS) % 3
    for _ in range(2):
        sgd.clipped_grad(model, loss, (quiet, y))
    loud = quiet.clone()
    loud[0] = 6.0
    loud[1:, 0] += 1.0
    with pytest.raises(sgd.BatchMixing):
        sgd.clipped_grad(model, loss, (loud, y))


class Remembering(nn.Module):
    """Sets each batch against the one before."""

    def __init__(self, how):
        super().__init__()
        self.inner, self.how = nn.Linear(WIDTH, 3), how
        self.value, self.row, self.rows = 0.0, None, []

    def forward(self, x):
        z = self.inner(x)
        mean = z.detach().mean(0)
        if self.how == "number":
            z, self.value = z - self.value, float(mean[0])
        elif self.how == "tensor":
            z, self.row = z if self.row is None else z - self.row, mean
        elif self.how == "list":
            z = z - self.rows[-1] if self.rows else z
            self.rows.append(mean)
        else:
            z, self.later = z - getattr(self, "later", 0.0), mean
        return z


LOOPS = ("clipped_grad", "Training", "the drop-in")


@pytest.mark.filterwarnings("ignore::tacit.sgd.PrivacyWarning")
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("how", ["number", "tensor", "list", "new attribute"])
def test_what_a_model_keeps_of_a_batch_does_not_reach_the_next(how, loop):
    """Without noise it would be released with the next step: three steps are those of a model that forgets."""
    torch.manual_seed(0)
    x, y = torch.randn(18, WIDTH), torch.arange(18) % 3
    model, forgetful, criterion = Remembering(how), nn.Linear(WIDTH, 3), nn.CrossEntropyLoss(reduction="none")
    forgetful.load_state_dict(model.inner.state_dict())
    with pytest.warns(UserWarning, match="keeps values of its batches"):
        steps(model, loop, x, y, criterion)
    steps(forgetful, loop, x, y, criterion)
    assert (model.value, model.row, model.rows) == (0.0, None, [])
    assert not hasattr(model, "later")
    assert torch.allclose(model.inner.weight, forgetful.weight, atol=1e-6)


def steps(model, loop, x, y, criterion):
    """Three steps of plain gradient descent, on batches in order and without noise."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    if loop == "clipped_grad":
        for k in range(0, 18, 6):
            sums, _ = sgd.clipped_grad(model, criterion, (x[k : k + 6], y[k : k + 6]))
            for name, parameter in model.named_parameters():
                parameter.grad = sums[name] / 6
            optimizer.step()
    elif loop == "Training":
        key = Key(b"k" * 32, repeatable=True)
        settings = {"batch_size": 6, "steps": 3, "noise_multiplier": 0.0, "delta": 1e-5, "sampler": "fixed", "key": key}
        training = sgd.Training(model, optimizer, criterion, (x, y), **settings)
        for batch in training:
            training.step(batch)
    else:
        loader = DataLoader(TensorDataset(x, y), batch_size=6)
        private, optimizer, loader = opacus.PrivacyEngine().make_private(
            module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=0.0, max_grad_norm=1.0,
            poisson_sampling=False,
        )  # fmt: skip
        for inputs, labels in loader:
            optimizer.zero_grad()
            F.cross_entropy(private(inputs), labels).backward()
            optimizer.step()


class Ranked(nn.Module):
    """Each example is set against the largest number in its column, where that is large."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, 3)

    def forward(self, x):
        return self.inner(x) * (1 + F.relu(x[:, 0].sort().values - 2)).unsqueeze(1)


@pytest.mark.filterwarnings("ignore::tacit.sgd.PrivacyWarning")
def test_the_drop_in_compares_every_batch_where_owners_could_not_be_followed():
    torch.manual_seed(0)
    x, y = torch.randn(18, WIDTH) * 0.1, torch.arange(18) % 3
    steps(Ranked(), "the drop-in", x, y, None)
    x[14] = 6.0  # in the last batch
    with pytest.raises(sgd.BatchMixing):
        steps(Ranked(), "the drop-in", x, y, None)


def by_hook(model, batch):
    z = model[0](batch[0]).tanh()
    if z.requires_grad:
        z.register_hook(lambda gradient: gradient * batch[0].abs().amax())
    return F.cross_entropy(model[1](z), batch[1], reduction="none")


def straight_through(model, batch):
    losses = F.cross_entropy(model(batch[0]), batch[1], reduction="none")
    return losses.detach() + batch[0].abs().amax() * (losses - losses.detach())


@pytest.mark.parametrize("loss", [by_hook, straight_through])
def test_a_gradient_that_depends_on_others_is_refused_though_the_loss_does_not(loss):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 4), nn.Linear(4, 3))
    with pytest.raises(sgd.BatchMixing, match="gradient"):
        sgd.clipped_grad(model, loss, (torch.randn(6, WIDTH), torch.arange(6) % 3))


def test_a_loss_that_depends_on_the_size_of_the_batch_is_refused_once_sizes_differ():
    model, y = nn.Linear(WIDTH, 3), torch.arange(8) % 3

    def loss(model, batch):
        return F.cross_entropy(model(batch[0]) * len(batch[0]), batch[1], reduction="none")

    sgd.clipped_grad(model, loss, (torch.randn(8, WIDTH), y))
    with pytest.raises(sgd.BatchMixing, match="how many examples"):
        sgd.clipped_grad(model, loss, (torch.randn(7, WIDTH), y[:7]))
