"""How far a batch is padded must not matter to anybody in it, whoever pads."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from tacit import sgd
from tacit.opacus import PrivacyEngine
from tacit.sgd.errors import BatchMixing
from tacit.sgd.gradients import padding

CLASSES, WORDS = 3, 11


class Texts(torch.utils.data.Dataset):
    """Texts of different lengths, token 0 is padding."""

    def __init__(self, lengths, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.texts = [torch.randint(1, WORDS, (n,), generator=generator) for n in lengths]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, k):
        return self.texts[k], k % CLASSES


class Pooling(nn.Module):
    """The mean over time, of everything or of what is no padding."""

    def __init__(self, masked):
        super().__init__()
        self.masked, self.words, self.head = masked, nn.Embedding(WORDS, 6), nn.Linear(6, CLASSES)

    def forward(self, x):
        weight = (x != 0).float() if self.masked else torch.ones(x.shape)
        return self.head((self.words(x) * weight.unsqueeze(2)).sum(1) / weight.sum(1, keepdim=True))


class Reading(nn.Module):
    """Reads to the end, or from the end: padding on one side is in the way."""

    def __init__(self):
        super().__init__()
        self.words, self.positions, self.head = nn.Embedding(WORDS, 6), nn.Embedding(64, 6), nn.Linear(6, CLASSES)

    def forward(self, x):
        h = self.words(x) + self.positions(torch.arange(x.shape[1]))
        inside = (x != 0).float().unsqueeze(2)
        return self.head((h.tanh() * inside).sum(1) / inside.sum(1))


def padded_right(records):
    return pad_sequence([x for x, _ in records], batch_first=True), torch.tensor([y for _, y in records])


def padded_left(records):
    x, y = padded_right([(x.flip(0), y) for x, y in records])
    return x.flip(1), y


def padded_to_public_length(records):
    x, y = padded_right(records)
    return F.pad(x, (0, 32 - x.shape[1])), y


def centred(records):
    x, y = padded_right(records)
    return (x - x.max()).abs(), y


def steps(model, collate, data=None, count=3, **options):
    data = data or Texts([3, 4, 5, 3, 4, 20] * 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data, batch_size=12, collate_fn=collate, **options)
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
    )
    taken = 0
    while taken < count:
        for x, y in loader:
            optimizer.zero_grad()
            if len(x):
                F.cross_entropy(model(x), y).backward()
            optimizer.step()
            taken += 1
            if taken == count:
                break


@pytest.mark.parametrize(
    ("model", "collate", "fine"),
    [
        (lambda: Pooling(masked=False), padded_right, False),
        (lambda: Pooling(masked=True), padded_right, True),
        (lambda: Pooling(masked=True), padded_left, True),
        (lambda: Pooling(masked=False), padded_to_public_length, True),
        (Reading, padded_right, True),
        (Reading, padded_left, False),
        (lambda: Pooling(masked=True), centred, False),
    ],
    ids=["counts-padding", "masked", "masked-left", "public", "right", "left", "collator-mixes"],
)
def test_padding_to_the_longest_of_the_batch_is_refused_where_it_is_felt(model, collate, fine):
    torch.manual_seed(0)
    if fine:
        steps(model(), collate)
        return
    with pytest.raises(BatchMixing, match=r"padded|collate"):
        steps(model(), collate)


def test_padding_is_looked_for_in_worker_processes_too():
    torch.manual_seed(0)
    with pytest.raises(BatchMixing, match="padded"):
        steps(Pooling(masked=False), padded_right, num_workers=1)


@pytest.mark.parametrize("method", ["operations", "examples"])
def test_a_first_batch_of_equal_lengths_does_not_hide_padding(method):
    torch.manual_seed(0)
    model = Pooling(masked=False)

    def losses(m, batch):
        return F.cross_entropy(m(batch[0]), batch[1], reduction="none")

    even, uneven = (padded_right([texts[k] for k in range(6)]) for texts in (Texts([7] * 6), Texts([3, 4, 3, 5, 9, 4])))
    sgd.clipped_grad(model, losses, even, method=method)
    with pytest.raises(BatchMixing, match="padded"):
        sgd.clipped_grad(model, losses, uneven, method=method)
    masked = Pooling(masked=True)
    for batch in (even, uneven):
        sgd.clipped_grad(masked, losses, batch, method=method)


def with_longest(records):
    x, y = padded_right(records)
    return x, y, torch.tensor(x.shape[1])


def cut_to_shortest(records):
    shortest = min(len(x) for x, _ in records)
    return padded_right([(x[:shortest], y) for x, y in records])


def blanked_at_random(records):
    x, y = padded_left(records)
    return torch.where(torch.rand(x.shape) < 0.2, torch.full_like(x, WORDS - 1) * (x != 0), x), (x != 0).long(), y


def two_fields(records):
    x, y = padded_right(records)
    return torch.stack([x, x]).transpose(0, 1)[:, 0], pad_sequence([x[:3] for x, _ in records], batch_first=True), y


@pytest.mark.parametrize(("collate", "what"), [(with_longest, "no single record"), (cut_to_shortest, "shortest")])
def test_a_collate_function_through_which_records_reach_each_other_is_refused(collate, what):
    records = [Texts([3, 4, 20, 5])[k] for k in range(4)]
    with pytest.raises(sgd.ClippingError, match=what):
        padding.alone(collate, records, collate(records))


def in_the_second_dimension(records):
    x, y = padded_right(records)
    return x.T, y


def labels_from_the_smallest(records):
    x, y = in_the_second_dimension(records)
    return x, y - y.min()


def test_labels_are_a_vector_where_the_records_lie_in_the_second_dimension():
    records = [Texts([3, 4, 20, 5] * 2)[k] for k in range(1, 8)]
    found = padding.alone(in_the_second_dimension, records, in_the_second_dimension(records), 1)
    assert found is not None
    assert found.sizes[0][0] == 20
    records = [one for one in records if one[1] > 0]  # none has the smallest label of all
    with pytest.raises(BatchMixing, match="collate"):
        padding.alone(labels_from_the_smallest, records, labels_from_the_smallest(records), 1)


def test_a_loop_trains_on_texts_in_the_second_dimension():
    class Second(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Pooling(masked=True)

        def forward(self, x):
            return self.inner(x.T)

    torch.manual_seed(0)
    model = Second()
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(Texts([3, 4, 5, 3, 4, 20] * 8), batch_size=12, collate_fn=in_the_second_dimension),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        batch_first=False,
    )
    for x, y in loader:
        optimizer.zero_grad()
        if len(y):
            F.cross_entropy(model(x), y).backward()
        optimizer.step()


def test_a_collate_function_may_draw_at_random_and_pad_several_fields():
    records = [Texts([2, 4, 20, 5] * 2)[k] for k in range(8)]
    torch.manual_seed(0)
    for _ in range(20):
        found = padding.alone(blanked_at_random, records, blanked_at_random(records))
        assert found is not None
        assert found.left
    assert padding.alone(two_fields, records, two_fields(records)) is not None


def test_numbers_for_each_example_may_come_as_a_list():
    class Summed(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.head = nn.Embedding(WORDS, 6), nn.Linear(6, CLASSES)

        def forward(self, x, lengths):
            return self.head(self.words(x).cumsum(1)[torch.arange(len(x)), torch.tensor(lengths) - 1])

    def losses(m, batch):
        return F.cross_entropy(m(batch[0], batch[1]), batch[2], reduction="none")

    torch.manual_seed(0)
    model = Summed()
    for seed in range(3):
        texts = Texts([3, 4, 3, 5, 9, 4], seed)
        x, y = padded_right([texts[k] for k in range(6)])
        batch = (x, [len(t) for t in texts.texts], y)
        norms = sgd.clipped_grad(model, losses, batch).norms
        torch.testing.assert_close(norms, sgd.clipped_grad(model, losses, batch, method="examples").norms)
