"""Evidence about where the examples are is the same in parts as in one piece, and takes no more room than a part."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tacit.sgd.gradients import owners
from tacit.sgd.gradients.contributions import Layout
from tacit.sgd.gradients.owners import OwnerEvidence, digit_weights, unmoved

BATCH = 10


class Largest(TorchDispatchMode):
    """The most elements that any tensor of more than one byte each had that was made inside."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        old = {t.untyped_storage().data_ptr() for t in tree_leaves(args) if isinstance(t, Tensor)}
        new = [t for t in tree_leaves(found) if isinstance(t, Tensor) and t.untyped_storage().data_ptr() not in old]
        made = [t for t in new if t.element_size() > 1]
        self.elements = max([self.elements, *(t.numel() for t in made)])
        return found


def gathered(plain: Tensor, dim: int, mixing: float = 0.0) -> OwnerEvidence:
    evidence = OwnerEvidence(plain, BATCH)
    torch.manual_seed(1)
    owner = torch.arange(plain.shape[dim]) % BATCH
    for weights in digit_weights(BATCH, plain.device, torch.float32):
        spread = weights[owner].reshape((-1,) + (1,) * (plain.dim() - dim - 1))
        evidence.add(plain * spread * (1 + mixing * torch.rand(plain.shape)))
    return evidence


@pytest.mark.parametrize(("shape", "dim"), [((20, 7, 30), 0), ((7, 20, 30), 1), ((7, 3, 20), 2), ((20,), 0)])
@pytest.mark.parametrize("mixing", [0.0, 0.3])
def test_evidence_in_parts_says_what_it_says_in_one_piece(monkeypatch, shape, dim, mixing):
    torch.manual_seed(0)
    plain = torch.randn(shape)
    plain[0] = 0
    plain.view(-1)[-1] = float("nan")
    whole = gathered(plain, dim, mixing)
    monkeypatch.setattr(owners, "CHUNK", 64)
    parts = gathered(plain, dim, mixing)
    assert parts.layouts() == whole.layouts()
    assert (Layout(dim, 2, BATCH, 1) in parts.layouts()) is (mixing == 0)
    assert parts.mixed is whole.mixed is (mixing > 0)
    for some, others in zip(parts.digits, whole.digits, strict=True):
        assert some.keys() == others.keys()
        assert all(torch.equal(a, b) for k in some for a, b in zip(some[k], others[k], strict=True))


def test_complex_outputs_have_evidence_too():
    torch.manual_seed(0)
    plain = torch.randn(BATCH, 6, dtype=torch.complex64)
    assert Layout(0, 1, BATCH, 1) in gathered(plain, 0).layouts()


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_a_gradient_follows_the_weights_of_its_owners_and_no_others(dtype):
    torch.manual_seed(0)
    plain, layout = torch.randn(BATCH, 6, dtype=dtype), Layout(0, 1, BATCH, 1)
    for weights in owners.owner_weights(BATCH, plain.device, torch.float32):
        theirs = plain * weights[:, None]
        assert owners.follows(layout, plain, theirs, weights)
        assert not owners.follows(layout, plain, theirs.roll(1, 0), weights)
        assert not owners.follows(layout, plain, plain * weights.flip(0)[:, None], weights)


def test_what_stayed_in_place_is_found_in_parts_too(monkeypatch):
    torch.manual_seed(0)
    before, after = torch.randn(BATCH, BATCH, 5), torch.randn(BATCH, BATCH, 5)
    after[:, 3] = before[:, 3]
    choices = [Layout(0, 1, BATCH, 1), Layout(1, 1, BATCH, 1)]
    assert unmoved(choices, before, after, 3) == choices[1:]
    monkeypatch.setattr(owners, "CHUNK", 64)
    assert unmoved(choices, before, after, 3) == choices[1:]


def test_nothing_of_the_size_of_an_output_is_made_to_gather_evidence(monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(owners, "CHUNK", 512)
    plain, weighted = torch.randn(100, 64), torch.randn(100, 64)
    with Largest() as seen:
        OwnerEvidence(plain, BATCH).add(weighted)
        unmoved([Layout(0, 10, BATCH, 1)], plain, weighted, 3)
    assert 0 < seen.elements <= 512
