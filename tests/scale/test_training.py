"""Many ranks are one private run: the same sums, the same noise, the same charge, however the model lies on them."""

from __future__ import annotations

import os
import signal
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks import scale
from hypothesis import given
from hypothesis import settings as tries
from hypothesis import strategies as st
from scipy import stats
from torch import nn

from tacit.ledger import BudgetExceeded, Ledger
from tacit.noise.keys import Key
from tacit.selftest.ranks import RankFailed, on_ranks, possible
from tacit.sgd import CheckpointError, Training
from tacit.sgd.sharding.ranks import DistributedError, Ranks
from tacit.sgd.sharding.shards import sharding_of

pytestmark = pytest.mark.skipif(not possible(), reason="needs torch.distributed and fork")

WAIT = 300.0  # seconds on a busy machine; a quiet one needs two


def run_of(data=None, loss=None, width=3, **settings):
    """A tiny run."""
    torch.manual_seed(0)
    x, y = data or (torch.arange(120.0).view(40, 3) / 100, torch.arange(40) % 2)
    model = nn.Linear(width, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    usual = {"batch_size": 4, "steps": 6, "noise_multiplier": 1.0, "delta": 1e-5}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Training(model, optimizer, loss or nn.CrossEntropyLoss(reduction="none"), (x, y), **(usual | settings))


def finished(training):
    for batch in training:
        training.step(batch)
    return {n: p.detach().numpy().copy() for n, p in training.model.named_parameters()}


# -- the same model ----------------------------------------------------------------------------------------------------

QUICK = (("data parallel", 2), ("fully_shard", 2), ("tensor parallel", 2))


def holds(rows):
    for row in rows:
        assert row["sum"] <= 1e-5, row
        assert row["weights"] <= 1e-5, row
        assert row["noise"], row
        assert row["draws"], row


def test_two_ranks_give_the_sum_the_noise_and_the_weights_of_one_process():
    holds(scale.same(["gpt"], 4, QUICK))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["cnn", "gpt", "lora"])
def test_any_number_of_ranks_in_any_layout_trains_the_model_of_one_process(model):
    rows = scale.same([model], 20)
    holds(rows)
    assert {(r["layout"], r["ranks"]) for r in rows} == set(scale.LAYOUTS)
    assert any(r["empty"] for r in rows)  # ranks without records took part


def other_ways(model, how):
    """Layouts that the table does not have."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

    if how in ("shards and copies", "columns"):
        inside = {"shard_placement_fn": lambda p: Shard(1) if p.dim() > 1 else None}
        if how == "shards and copies":
            inside = {"mesh": init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "shards"))}
        for block in model.blocks:
            fully_shard(block, **inside)
        return fully_shard(model, **inside)
    model.head.weight = nn.Parameter(model.head.weight.detach().clone())
    style = {
        "embedding by columns": {"tok": ColwiseParallel(output_layouts=Replicate())},
        "head by columns": {"head": ColwiseParallel(output_layouts=Replicate())},
        "divided vocabulary": {"tok": RowwiseParallel(input_layouts=Replicate())},
        "sequence parallel": {"norm": SequenceParallel()},
    }[how]
    return parallelize_module(model, init_device_mesh("cpu", (2,)), style)


def look_at(how, untied):
    def lay_out(model, layout):
        if untied:
            model.head.weight = nn.Parameter(model.head.weight.detach().clone())
        return other_ways(model, how) if how else model

    def work(rank):
        scale.lay_out = lay_out  # in this rank's own memory
        return scale.look(rank, "gpt", "", 3)

    return work


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "world"), [("shards and copies", 4), ("columns", 2), ("embedding by columns", 2), ("head by columns", 2)]
)
def test_other_ways_to_divide_a_model_are_right_as_well(how, world):
    untied = "by columns" in how
    alone = on_ranks(1, look_at("", untied), group=False, timeout=WAIT)[0]
    for found in on_ranks(world, look_at(how, untied), timeout=WAIT):
        assert scale.apart(found["sum"], alone["sum"]) < 1e-5
        assert scale.apart(found["weights"], alone["weights"]) < 1e-5
        assert all(found["noise"][n].tobytes() == alone["noise"][n].tobytes() for n in alone["noise"])


@pytest.mark.slow
@pytest.mark.parametrize("how", ["divided vocabulary", "sequence parallel"])
def test_what_leaves_no_rank_with_a_whole_gradient_is_refused(how):
    with pytest.raises(RankFailed, match="complete on no rank"):
        on_ranks(2, look_at(how, True), timeout=WAIT)


def test_more_ranks_than_records_and_clipping_that_adapts():
    """Most shares are empty, and the count behind the clip norm is added up as well."""

    def work(rank):
        from tacit.sgd import AdaptiveClipping

        settings = {
            "batch_size": 1,
            "steps": 8,
            "key": Key(bytes(32), repeatable=True),
            "adaptive": AdaptiveClipping(count_noise=1.0),
        }
        training = run_of(**settings)
        empty, weights = 0, None
        for batch in training:
            empty += len(batch) == 0
            training.step(batch)
        weights = {n: p.detach().numpy().copy() for n, p in training.model.named_parameters()}
        return empty, training.clip_norm, weights

    alone = on_ranks(1, work, group=False, timeout=WAIT)[0]
    ranks = on_ranks(3, work, timeout=WAIT)
    assert sum(empty for empty, _, _ in ranks) > 8
    for _, clip_norm, weights in ranks:
        assert clip_norm == pytest.approx(alone[1], rel=1e-6)
        assert scale.apart(weights, alone[2]) < 1e-6


def test_bf16_policy_and_a_rank_with_a_broken_record():
    """A record without a finite gradient counts as zero, also where its rank gathers parameters from others."""

    def work(rank):
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32)
        for layer in (model[0], model[2], model):
            fully_shard(layer, mp_policy=policy)
        x, y = torch.randn(8, 3), torch.randint(2, (8,))
        x[5] = 1e30  # overflows where it is squared
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            training = Training(
                model,
                torch.optim.SGD(model.parameters(), lr=0.1),
                lambda m, b: nn.functional.cross_entropy(
                    m(b[0]) * (1 + b[0].square().sum(1, keepdim=True)), b[1], reduction="none"
                ),
                (x, y),
                batch_size=8,
                steps=2,
                noise_multiplier=1e-3,
                delta=1e-5,
                sampler="fixed",
            )
        for batch in training:
            training.step(batch)
        return {n: p.full_tensor().detach().numpy() for n, p in model.named_parameters()}, model[0].weight.dtype

    weights, kept = on_ranks(2, work, timeout=WAIT)[0]
    assert kept == torch.float32
    assert all(np.isfinite(w).all() for w in weights.values())


# -- the noise and the sampler -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["data parallel", pytest.param("fully_shard", marks=pytest.mark.slow)])
def test_the_released_sum_has_the_noise_that_is_priced_at_every_world_size(layout):
    def work(rank):
        training = scale.make("cnn", layout, steps=3, noise_multiplier=2.0, clip_norm=1e-3, key=None)
        seen = []

        def look(optimizer, args, kwargs):
            grads = {n: p.grad for n, p in training.parameters.items()}
            seen.append({n: (g.full_tensor() if hasattr(g, "full_tensor") else g).numpy() for n, g in grads.items()})

        training.optimizer.register_step_pre_hook(look)
        for batch in training:
            training.step(batch)
        return seen

    world = 3
    ranks = on_ranks(world, work, timeout=WAIT)
    scale_of = 2.0 * 1e-3 / 6  # noise multiplier times clip norm, over the expected batch
    for mine in ranks[1:]:
        assert all(np.array_equal(a[n], b[n]) for a, b in zip(mine, ranks[0], strict=True) for n in a)
    flat = np.concatenate([g.ravel() for step in ranks[0] for g in step.values()]).astype(np.float64) / scale_of
    spread = float((flat**2).sum())  # the sum under the noise is a few percent of it at this clip norm
    low, high = stats.chi2.ppf([1e-9, 1 - 1e-9], len(flat))
    assert low < spread < high * 1.05


@tries(deadline=None, max_examples=30)
@given(st.integers(1, 9), st.integers(0, 60))
def test_shares_of_a_draw_are_a_partition_of_it(world, drawn):
    rows = np.arange(drawn) * 3
    shares = []
    for k in range(world):
        ranks = Ranks()
        ranks.data_rank, ranks.data_ranks = k, world
        shares.append(ranks.share(rows))
    assert sorted(np.concatenate(shares).tolist()) == rows.tolist()
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


# -- one ledger, one key -----------------------------------------------------------------------------------------------


def test_one_rank_charges_and_all_are_refused_together(tmp_path):
    price = run_of().plan.price().upper
    Ledger(tmp_path / "ledger.db").register("people", epsilon=1.2 * price, delta=1.5e-5)

    def work(rank):
        settings = {"ledger": Ledger(tmp_path / "ledger.db"), "dataset": "people"}
        first = run_of(**settings)
        finished(first)
        try:
            run_of(**settings)
        except BudgetExceeded as error:
            return first.charge_number, str(error)
        return None

    (number, words), (other, same_words) = on_ranks(2, work, timeout=WAIT)
    assert number == other
    assert words == same_words
    ledger = Ledger(tmp_path / "ledger.db")
    assert ledger.budget("people").charges == 1
    assert all(r.confirmed for r in ledger.history("people"))


def test_ranks_that_cannot_train_together_say_so():
    def work(rank):
        said = []
        for settings in (
            {"data": (torch.full((40, 3), float(rank)), torch.arange(40) % 2)},
            {"key": Key(bytes([rank]) * 32)},
            {"steps": 6 + rank},
        ):
            try:
                run_of(**settings)
            except DistributedError as error:
                said.append(str(error))
        return said

    for said in on_ranks(2, work, timeout=WAIT):
        assert "rank 1 has another data set" in said[0]
        assert "different keys" in said[1]
        assert "rank 1 has another plan" in said[2]


def test_what_cannot_be_on_ranks_is_refused_with_the_remedy(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(DistributedError, match="init_process_group"):
        run_of()
    finished(run_of(distributed=False))

    def work(rank):
        from torch.distributed.fsdp import fully_shard
        from torch.nn.parallel import DistributedDataParallel

        said = []
        plain = nn.Linear(3, 2)
        spread = fully_shard(nn.Linear(3, 2))
        for model, settings in (
            (DistributedDataParallel(plain), {}),
            (spread, {"compile": True}),
            (spread, {"distributed": False}),
        ):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            data = torch.randn(40, 3), torch.arange(40) % 2
            try:
                Training(model, optimizer, nn.CrossEntropyLoss(reduction="none"), data, batch_size=4, steps=2,
                         noise_multiplier=1.0, delta=1e-5, **settings)  # fmt: skip
            except (DistributedError, ValueError) as error:
                said.append(str(error))
        return said

    wrapped, compiled, alone = on_ranks(1, work, timeout=WAIT)[0]
    assert "Pass the model itself" in wrapped
    assert "leave out compile" in compiled
    assert "leave out distributed=False" in alone


def test_alone_nothing_is_sent_and_no_model_is_spread():
    assert Ranks().words == ""
    assert sharding_of(nn.Linear(2, 2)) is None
    assert run_of().layout == ""


# -- going on ----------------------------------------------------------------------------------------------------------


def legs(folder: Path, layout: str, until: int, kill: int | None = None):
    """Up to a step; ``kill``: the rank that dies without a word after it."""

    def work(rank):
        ledger = Ledger(folder / "ledger.db")
        settings = {"key": None, "checkpoint": folder / "run", "key_file": folder / "key", "checkpoint_every": 1}
        training = scale.make("lora", layout, steps=6, ledger=ledger, dataset="people", **settings)
        for batch in training:
            training.step(batch)
            with torch.no_grad():
                training.model(batch._source.tree[0][:2])  # looking at results leaves layers gathered
            if training.steps_executed == until:
                if not training.done:
                    training.save()
                if rank == kill:
                    os.kill(os.getpid(), signal.SIGKILL)
                break
        if kill is not None:
            training.ranks.any(False)  # waits for the one that is gone
        weights = {n: p.detach() for n, p in training.model.named_parameters()}
        return {n: (p.full_tensor() if hasattr(p, "full_tensor") else p).numpy().copy() for n, p in weights.items()}

    return work


def test_a_killed_rank_and_another_number_of_ranks_continue_the_same_run(tmp_path):
    """Two ranks, one of them killed; then two again; then one process alone: one charge, the weights of one run."""
    Ledger(tmp_path / "ledger.db").register("people", epsilon=50.0, delta=1e-4)
    with scale._given_key():
        with pytest.raises(RankFailed, match="rank"):
            on_ranks(2, legs(tmp_path, "fully_shard", 2, kill=1), timeout=WAIT)
        on_ranks(2, legs(tmp_path, "fully_shard", 4), timeout=WAIT)
        last = on_ranks(1, legs(tmp_path, "data parallel", 6), timeout=WAIT, group=False)[0]
    alone = on_ranks(1, lambda rank: scale.look(rank, "lora", "data parallel", 6), group=False, timeout=WAIT)[0]
    assert scale.apart(last, alone["weights"]) < 1e-5
    ledger = Ledger(tmp_path / "ledger.db")
    assert ledger.budget("people").charges == 1
    assert not (tmp_path / "key").exists()


def test_a_checkpoint_of_ranks_whose_files_were_changed_is_refused(tmp_path):
    def work(rank):
        training = run_of(checkpoint=tmp_path / "run", key_file=tmp_path / "key", checkpoint_every=1)
        for batch in training:
            training.step(batch)
            if training.steps_executed == 2:
                break

    on_ranks(2, work, timeout=WAIT)
    (held,) = (tmp_path / "run").glob("step-*")
    file = sorted(held.glob("*.distcp"))[0]
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match="was changed"):
        run_of(checkpoint=tmp_path / "run", key_file=tmp_path / "key", checkpoint_every=1)


@pytest.mark.slow
def test_four_workers_one_killed_under_torchrun_resume_without_a_second_charge():
    difference, charges = scale.killed()
    assert difference <= 1e-5
    assert charges == 1


@pytest.mark.slow
def test_four_ranks_then_two_then_one():
    assert scale.resume() <= 1e-5


@pytest.mark.slow
def test_memory_of_a_rank_falls_as_one_over_their_number():
    one, two, four = (row["peak"] for row in scale.memory())
    assert two < 0.6 * one
    assert four < 0.35 * one
