"""A call for noise is taken for the one before only where it is the same in everything but key and step."""

import torch

from tacit.noise.tensor import _Known


def known(tensors, targets, many=None):
    return _Known(tensors, targets, ["a", "b"], 0.5, 4.0, many)


def test_any_difference_makes_another_call():
    tensors, narrow = [torch.zeros(3, 4), torch.zeros(5)], [torch.zeros(3, 4).half(), torch.zeros(5).half()]
    last = known(tensors, narrow)
    assert last.is_same(tensors, narrow, ("a", "b"), 0.5, 4.0)
    assert not last.is_same(tensors, narrow, ("b", "a"), 0.5, 4.0)
    assert not last.is_same(tensors, narrow, ("a",), 0.5, 4.0)
    assert not last.is_same(tensors, narrow, ("a", "b"), 1.0, 4.0)
    assert not last.is_same(tensors, narrow, ("a", "b"), [0.5, 0.5], 4.0)
    assert not last.is_same(tensors, narrow, ("a", "b"), 0.5, 2.0)
    assert not last.is_same(tensors, tensors, ("a", "b"), 0.5, 4.0)
    assert not last.is_same(tensors[:1], narrow[:1], ("a", "b"), 0.5, 4.0)
    assert not last.is_same([tensors[0], torch.zeros(5)], narrow, ("a", "b"), 0.5, 4.0)
    assert not last.is_same(tensors[::-1], narrow, ("a", "b"), 0.5, 4.0)


def test_a_tensor_that_moved_shrank_or_was_turned_is_another():
    for change in (
        lambda t: setattr(t, "data", torch.zeros(4, 4)),
        lambda t: t.resize_(2, 4),
        lambda t: setattr(t, "data", t.data.t()),
        lambda t: setattr(t, "data", t.data.view(torch.int32).view(torch.float16)[:, :4].clone()),
    ):
        tensors = [torch.zeros(4, 4), torch.zeros(5)]
        last = known(tensors, tensors)
        assert last.is_same(tensors, tensors, ("a", "b"), 0.5, 4.0)
        change(tensors[0])
        assert not last.is_same(tensors, tensors, ("a", "b"), 0.5, 4.0)


def test_what_is_remembered_keeps_no_tensor_alive():
    tensors = [torch.zeros(4), torch.zeros(5)]
    last = known(tensors, tensors)
    del tensors
    assert all(ref() is None for ref in last.those)
