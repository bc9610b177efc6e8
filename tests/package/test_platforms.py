"""Where something cannot work, it is refused with a sentence that says what to do."""

from __future__ import annotations

import os
import sys

import pytest
import torch
from torch import nn

from tacit.noise import Key
from tacit.runs import journal
from tacit.runs.journal import JournalError
from tacit.sgd import Training, clipped_grad
from tacit.sgd.errors import ClippingError

LOSS = nn.CrossEntropyLoss(reduction="none")


def test_a_model_on_a_device_that_is_not_supported_is_refused_by_name():
    model = nn.Linear(2, 2, device="meta")  # stands for every device but the CPU and CUDA, such as MPS
    with pytest.raises(ClippingError, match=r"'weight' is on 'meta'.*model.to\('cpu'\)"):
        clipped_grad(
            model, nn.CrossEntropyLoss(reduction="none"), (torch.ones(3, 2), torch.zeros(3).long()), clip_norm=1.0
        )
    with pytest.raises(ClippingError, match="on CUDA GPUs"):
        Training(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            LOSS,
            (torch.ones(30, 2), torch.zeros(30).long()),
            batch_size=3,
            steps=1,
            noise_multiplier=1.0,
            delta=1e-3,
        )


def test_a_key_is_not_saved_where_others_could_read_it(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "fchmod")
    with pytest.raises(OSError, match="cannot keep a key's file from other users"):
        Key.generate().save(tmp_path / "key")
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_refused_where_files_cannot_be_locked(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with pytest.raises(JournalError, match="use Linux, macOS or WSL"):
        journal._locked(tmp_path, tmp_path / "lock")
    assert list(tmp_path.iterdir()) == []
