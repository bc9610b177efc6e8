"""A stream is trained on while it arrives: each row once, one row of each person, and nothing is kept."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from tacit import accounting as acc
from tacit import sgd
from tacit.ledger import FingerprintMismatch, Ledger
from tacit.noise import Key
from tacit.report import card, describe, make_card
from tacit.sgd import CheckpointError, release
from tacit.sgd.training.arriving import ArrivingRecords
from tacit.sgd.training.canaries import AuditedTraining

CLIP = 0.5


@pytest.fixture(autouse=True)
def _quiet(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name, value in {"POINTS": 2, "COUNTS": 1, "DELTAS": ()}.items():
        monkeypatch.setattr(card, name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def rows(count=500, people=0):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, 2)).astype(np.float32)
    who = rng.integers(0, people, count) if people else np.arange(count)
    return pl.DataFrame({"who": who, "a": x[:, 0], "b": x[:, 1], "ill": (x[:, 0] > 0).astype(np.int64)})


def frames(table, size=37):
    return (table[start : start + size] for start in range(0, table.height, size))


def opened(table, size, **more):
    return sgd.table(frames(table), target="ill", exclude=["who"], size=size, **more)


def train(data, steps=None, loop=True, **more):
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    usual = {"batch_size": 50, "epochs": None if steps else 1, "steps": steps, "sampler": "chunks"}
    usual |= {"noise": sgd.BandedInverse(3), "noise_multiplier": 2.0, "delta": 1e-6, "clip_norm": CLIP}
    training = sgd.Training(
        model, torch.optim.SGD(model.parameters(), lr=0.5), nn.CrossEntropyLoss(reduction="none"), data,
        **{**usual, "compile": False, **more},
    )  # fmt: skip
    for batch in training if loop else ():
        training.step(batch)
    return training


@pytest.mark.parametrize("physical", [None, 16])
def test_rows_that_arrive_give_the_run_on_the_same_rows_in_memory(physical):
    table, key = rows(), Key(bytes(32), repeatable=True)
    known = train(sgd.table(table, target="ill", exclude=["who"]), key=key, physical_batch=physical)
    data = opened(table, 500)
    found = train(data, key=key, physical_batch=physical)
    for one, two in zip(known.model.parameters(), found.model.parameters(), strict=True):
        assert torch.equal(one, two)
    assert (found.plan.mechanism, found.privacy.adjacency) == (known.plan.mechanism, "zero-out")
    # one participation: the noise of the whole run is that of one Gaussian mechanism
    whole = acc.epsilon(acc.Gaussian(2.0), 1e-6, adjacency="zero-out").upper
    assert found.privacy.upper == pytest.approx(whole, rel=1e-4)


def test_no_more_than_two_batches_and_a_frame_are_held():
    held = []
    data = opened(rows(), 500)
    training = train(data, loop=False)
    for batch in training:
        training.step(batch)
        held.append(sum(map(len, data.records._held)))
    assert max(held) <= 2 * 50 + 2 * 37
    with pytest.raises(IndexError):
        data.records.take(np.array([0]))


def test_a_run_that_begins_later_reads_and_drops_what_came_before():
    records = opened(rows(), 500).records
    records.begin(np.arange(300, 350))
    assert torch.equal(records.take(np.arange(300, 350))[0], torch.from_numpy(rows()["a", "b"].to_numpy()[300:350]))
    assert sum(map(len, records._held)) <= 50 + 2 * 37


def by_step(person, monkeypatch, people):
    """How far one person's thirty rows move the sum of each step, before there is noise, in clip norms."""
    sums = {True: [], False: []}
    table = rows(600)
    mine = np.zeros(600, bool)
    mine[20::20] = True  # a row in every batch, and three of them
    table = table.with_columns(who=np.where(mine, 10**6, table["who"].to_numpy()))
    extreme = pl.lit(mine)
    for there in sums:
        value = 100.0 if there else 0.0
        changed = table.with_columns(
            a=pl.when(extreme).then(value).otherwise("a"), b=pl.when(extreme).then(-value).otherwise("b")
        )
        plain = release.noisy_gradients

        def look(given, *rest, plain=plain, here=sums[there], **named):
            here.append(torch.cat([one.detach().double().reshape(-1) for one in given.values()]))
            found = plain(given, *rest, **named)
            return {name: torch.zeros_like(one) for name, one in found.items()}  # the same weights in both worlds

        with monkeypatch.context() as patch:
            patch.setattr(release, "noisy_gradients", look)
            count = 500 if people else 600
            train(opened(changed, count), groups="who" if people else None)
    return np.array([float((a - b).norm()) for a, b in zip(*sums.values(), strict=True)]) / CLIP


def test_a_person_with_rows_in_every_batch_takes_part_once(monkeypatch):
    far = by_step(True, monkeypatch, people=True)
    assert (far > 1e-9).sum() == 1
    assert 0.5 < far.max() <= 2 * (1 + 1e-5)  # zero-out at a row of zeros: its bias has a gradient, too
    # wrong versions: everything that a person says takes part, or people are known by what they say
    assert (by_step(True, monkeypatch, people=False) > 1e-9).sum() > 9
    with monkeypatch.context() as patch:
        patch.setattr(ArrivingRecords, "_new", lambda self, frame: [True] * frame.height)
        assert (by_step(True, monkeypatch, people=True) > 1e-9).sum() > 9


def test_people_are_known_by_their_ids_however_they_are_typed():
    table = pl.DataFrame({"who": [1, 2], "a": [0.0, 1.0], "b": [0.0, 1.0], "ill": [0, 1]})
    again = table.with_columns(who=pl.Series([1.0, 3.0]))
    data = sgd.table(iter([table, again]), target="ill", exclude=["who"], size=3)
    data.records.one_row_each("who")
    data.records.take(np.arange(3))
    assert data.records._next == 3
    missing = table.with_columns(who=pl.Series([1, None]))
    data = sgd.table(iter([missing]), target="ill", exclude=["who"], size=2)
    data.records.one_row_each("who")
    with pytest.raises(ValueError, match="missing ids"):
        data.records.take(np.arange(2))


def typed(*columns):
    """A stream of two people in each frame, whose ids have other types from frame to frame."""
    table = pl.DataFrame({"a": [0.0, 1.0], "b": [0.0, 1.0], "ill": [0, 1]})
    data = sgd.table(iter([table.with_columns(who=who) for who in columns]), target="ill", exclude=["who"], size=9)
    data.records.one_row_each("who")
    with pytest.raises(ValueError) as said:
        data.records.take(np.arange(9))
    return data.records._next, str(said.value)


NUMBERS, BIG = pl.Series([1, 2]), 2**53 + 1


@pytest.mark.parametrize(
    "columns",
    [
        (NUMBERS, NUMBERS.cast(pl.String)),
        (NUMBERS, NUMBERS.cast(pl.Decimal(10, 1))),
        (NUMBERS.cast(pl.Decimal(10, 1)), NUMBERS.cast(pl.Decimal(10, 2))),
        (pl.Series([0.1, 0.7]), pl.Series([0.1, 0.7]).cast(pl.Float32)),
        (pl.Series([BIG, 2]), pl.Series([BIG, 2]).cast(pl.Float64)),
        (pl.Series([1.0, 2.0]), pl.Series([float(BIG), 2.0]), pl.Series([BIG, 2])),
        (pl.Series([2**24 + 1, 2]), pl.Series([2**24 + 1, 2]).cast(pl.Float32)),
        (NUMBERS.cast(pl.Date), NUMBERS.cast(pl.Date).cast(pl.Datetime)),
        (pl.Series(["a", "b"]), pl.Series([b"a", b"b"])),
        (NUMBERS, pl.Series([1.0, float("inf")])),
    ],
    ids=lambda columns: "-".join(str(c.dtype) for c in columns),
)
def test_ids_that_change_their_type_never_make_one_person_several(columns):
    came, said = typed(*columns)
    assert came <= 3  # of the frame that was refused no row counts
    assert "one person could count as several" in said
    assert f"and are {columns[-1].dtype} now" in said


@pytest.mark.parametrize(
    "columns",
    [
        (NUMBERS, *(NUMBERS.cast(t) for t in (pl.UInt8, pl.Int32, pl.UInt64, pl.Float32, pl.Float64, pl.Int64))),
        (pl.Series([True, False]), pl.Series([1, 0]), pl.Series([1.0, 0.0])),
        tuple(pl.Series(["a", "b"], dtype=t) for t in (pl.String, pl.Categorical, pl.Enum(["b", "a"]))),
        (pl.Series([0.5, 2.0]), pl.Series([2.0, 0.5])),
    ],
    ids=["numbers", "bool", "text", "floats"],
)  # fmt: skip
def test_ids_of_types_that_can_be_compared_are_one_person(columns):
    came, said = typed(*columns)
    assert came == 2
    assert "ended after 2 of 9 persons" in said


def test_a_row_of_a_stream_with_several_owners_is_refused():
    came, said = typed(pl.Series([["ann", "bob"], ["ann"]]))
    assert came == 0
    assert "holds ids of type List(String)" in said


def test_the_card_says_what_a_person_with_more_rows_loses_and_what_is_public():
    run = train(opened(rows(people=400), 200), groups="who", unit="patient")
    said = " ".join(make_card(describe(run, "visits"))["accountant"]["assumptions"])
    assert "of each patient the first counts alone. Who owns which row is public" in said
    assert (run.privacy.unit, run.privacy.adjacency) == ("patient", "zero-out")


def test_what_a_stream_cannot_do_is_refused(tmp_path):
    for more, match in (
        ({"sampler": "poisson", "noise": None}, "cannot be sampled"),
        ({"sampler": "balls-in-bins", "noise": None}, "cannot be sampled"),
        ({"sampler": "shuffle", "noise": None}, "cannot be sampled"),
        ({"epochs": 2}, "comes once"),
        ({"steps": 11, "epochs": None}, "comes once"),
        ({"groups": list(range(500))}, "name of a column"),
        ({"groups": "who", "max_rows": 2}, "one row of each person"),
        ({"groups": "who", "draw": "rows", "max_rows": 1}, "one row of each person"),
        ({"groups": "who", "adjacency": "replace-one"}, "who owns what is public"),
    ):
        with pytest.raises(ValueError, match=match):
            train(opened(rows(), 500), **more)
    with pytest.raises(ValueError, match="come once"):
        audited(opened(rows(), 500))
    with pytest.raises(ValueError, match="give one of the two"):
        opened(rows(), 500, index=tmp_path / "index")
    with pytest.raises(TypeError, match="with index=, a folder, or trained on"):
        sgd.table(frames(rows()), target="ill")
    with pytest.raises(TypeError, match="iterator of polars frames"):
        sgd.table(rows(), target="ill", size=500)
    with pytest.raises(ValueError, match="must be positive"):
        opened(rows(), 0)


def audited(data):
    model = nn.Linear(2, 2)
    AuditedTraining(
        model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(reduction="none"), data,
        batch_size=50, epochs=1, sampler="chunks", noise_multiplier=1.0, delta=1e-6, canaries=3,
    )  # fmt: skip


def test_a_stream_that_ends_early_is_said_and_the_steps_so_far_stand():
    training = train(opened(rows(), 800), loop=False, noise=None)
    batches = iter(training)
    for batch in itertools.islice(batches, 10):
        training.step(batch)
    batch = next(batches)
    with pytest.raises(ValueError, match="ended after 500 of 800 rows"):
        training.step(batch)
    with pytest.raises(ValueError, match=r"ended after [0-9]+ of 450 patients"):
        train(opened(rows(people=400), 450), groups="who", unit="patient")
    training.stop("the stream ended", looked_at_results=False)
    assert training.steps_executed == 10


def test_a_run_that_was_killed_does_not_go_on_because_nobody_knows_whether_the_rest_is_the_same(tmp_path):
    place = tmp_path / "run.pt"
    first = train(opened(rows(), 500), loop=False, checkpoint=place, checkpoint_every=1)
    for batch in itertools.islice(first, 4):
        first.step(batch)
    with pytest.raises(CheckpointError, match="cannot be recognised in a later process"):
        train(opened(rows(), 500), checkpoint=place)


def test_a_ledger_that_knows_the_rows_refuses_a_stream_that_it_cannot_compare():
    ledger = Ledger()
    ledger.register("visits", epsilon=50.0, delta=1e-5, adjacency="zero-out", fingerprint=rows())
    with pytest.raises(FingerprintMismatch):
        train(opened(rows(), 500), ledger=ledger, dataset="visits")
