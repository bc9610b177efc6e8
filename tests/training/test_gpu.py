"""Training on a GPU is the same run: the same batches, the same noise, the same weights but for rounding."""

from __future__ import annotations

import gc

import pytest
import torch

from tacit.sgd import AdaptiveClipping
from tacit.sgd.training import training as training_module
from tests.training.common import data, finish, network, run, same, weights

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


@pytest.mark.parametrize("adaptive", [None, AdaptiveClipping()])
def test_a_run_on_a_gpu_equals_the_run_on_the_cpu(adaptive):
    here = finish(run(adaptive=adaptive))
    there = finish(run(network().cuda(), adaptive=adaptive))
    assert same(here, {n: w.cpu() for n, w in there.items()}, 1e-9)


def test_a_compiled_run_on_a_gpu_equals_the_run_on_the_cpu():
    """Noise and the next batch are launched before the answer is known, and the step is replayed as a CUDA graph."""
    source, settings = data(dtype=torch.float32), {"steps": 12, "physical_batch": 48}
    here = finish(run(network(dtype=torch.float32), source, **settings))
    there = finish(run(network(dtype=torch.float32).cuda(), source, compile=True, **settings))
    assert same(here, {n: w.cpu() for n, w in there.items()}, 1e-5)


@pytest.mark.parametrize("few", [0, 1 << 15])
def test_a_run_whose_data_are_on_the_gpu_equals_the_run_on_the_cpu(monkeypatch, few):
    """Batches are drawn in another thread, or where they are needed."""
    monkeypatch.setattr(training_module, "FEW", few)
    source = data(dtype=torch.float32)
    here = finish(run(network(dtype=torch.float32), source, steps=12, physical_batch=48))
    moved = tuple(t.cuda() for t in source)
    there = finish(run(network(dtype=torch.float32).cuda(), moved, compile=True, steps=12, physical_batch=48))
    assert same(here, {n: w.cpu() for n, w in there.items()}, 1e-5)


def test_what_is_told_of_a_compiled_step_is_told_of_the_last_one():
    """Norms and losses lie where the next step writes; they are read before."""
    source, models = data(dtype=torch.float32), [network(dtype=torch.float32) for _ in range(2)]
    runs = [run(models[0], source, steps=8, physical_batch=48)]
    runs.append(run(models[1].cuda(), source, steps=8, physical_batch=48, compile=True))
    for one, other in zip(*runs, strict=True):
        runs[0].step(one)
        runs[1].step(other)
        here, there = (r.diagnostics().reveal() for r in runs)
        assert here["records"] == there["records"]
        assert there["loss"] == pytest.approx(here["loss"], rel=1e-3)
        assert there["median_norm"] == pytest.approx(here["median_norm"], rel=1e-3)


def test_a_run_on_a_gpu_resumes_with_its_dropout(tmp_path):
    settings = {"checkpoint": tmp_path / "run.ckpt", "checkpoint_every": 1}

    def begin(folder):
        torch.manual_seed(4)
        return run(network(dropout=0.3).cuda(), **(settings | {"checkpoint": folder / "run.ckpt"}))

    whole = finish(begin(tmp_path / "whole"))
    first = begin(tmp_path)
    for batch in first:
        first.step(batch)
        if first.steps_executed == 3:
            break
    torch.manual_seed(77)
    assert same(whole, finish(begin(tmp_path)), 1e-12)


def test_a_batch_that_does_not_fit_is_cut_smaller():
    model = network(dtype=torch.float32).cuda()
    x, y = data(4000, torch.float32)
    gc.collect()
    torch.cuda.empty_cache()
    allowed = torch.cuda.memory_reserved() + 256 * 2**20  # what other tests of this process hold does not count
    torch.cuda.set_per_process_memory_fraction(min(1.0, allowed / torch.cuda.mem_get_info()[1]))

    def wide(net, batch):
        inputs, targets = batch
        big = net(inputs).unsqueeze(2).expand(-1, -1, 16384) * 1.0  # beside the 64 MiB that the matrix library takes
        return torch.nn.functional.cross_entropy(big.mean(2), targets, reduction="none")

    try:
        from tacit.sgd import Training

        training = Training(
            model, torch.optim.SGD(model.parameters(), lr=0.1), wide, (x, y), batch_size=3000, steps=2,
            noise_multiplier=1.0, delta=1e-5,
        )  # fmt: skip
        before = training.physical_batch
        finish(training)
        assert training.physical_batch < before
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert all(bool(w.isfinite().all()) for w in weights(model).values())
