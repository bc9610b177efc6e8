"""Rows that are read from disk are the rows of the files, and memory does not grow with their number."""

from __future__ import annotations

import json
import os
import stat
import time
import tracemalloc

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import torch
from torch import nn

from tacit import sgd
from tacit.ledger import Ledger
from tacit.noise import Key
from tacit.noise import sampling as draws
from tacit.sgd.training import owned, sampling, stored
from tacit.sgd.training.data import Units
from tacit.sgd.training.kept import KeptRows, RowsOfUnits
from tacit.sgd.training.sampling import CyclicPoisson, Poisson, RandomBins, TruncatedPoisson

SAMPLERS = [
    Poisson(1000, 100), RandomBins(1000, 100), CyclicPoisson(1000, 100, groups=4), TruncatedPoisson(1000, 100, 80),
]  # fmt: skip


def frame(rows=500, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 3)).astype(np.float32)
    columns = {f"x{k}": x[:, k] for k in range(3)}
    return pl.DataFrame({"who": rng.integers(0, 60, rows), **columns, "ill": (x[:, 0] > 0).astype(np.int64)})


def written(folder, table, parts=3, kind="parquet"):
    """The table in several files, with row groups and batches that are no round numbers."""
    folder.mkdir(exist_ok=True)
    for k, rows in enumerate(np.array_split(np.arange(table.height), parts)):
        part = table[rows]
        if kind == "parquet":
            part.write_parquet(folder / f"part-{k}.parquet", row_group_size=37)
            continue
        file = folder / f"part-{k}.arrow"
        make = pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file
        with pa.OSFile(str(file), "wb") as sink, make(sink, part.to_arrow().schema) as writer:
            writer.write_table(part.to_arrow(), max_chunksize=41)
    return folder


def opened(source, index, **more):
    return sgd.table(source, target="ill", exclude=["who"], index=index, **more)


@pytest.mark.parametrize("kind", ["parquet", "file", "stream"])
def test_rows_are_found_by_number_with_gaps_repeats_and_in_any_order(tmp_path, kind, monkeypatch):
    table = frame()
    there = opened(written(tmp_path / "rows", table, kind=kind), tmp_path / "index")
    known = sgd.table(table, target="ill", exclude=["who"])
    assert there.features == known.features == ("x0", "x1", "x2")
    rng = np.random.default_rng(1)
    for near, span in ((stored.NEAR, stored.SPAN), (40, 1 << 22), (1 << 14, 100)):
        monkeypatch.setattr(stored, "NEAR", near)
        monkeypatch.setattr(stored, "SPAN", span)
        for some in (np.arange(500), rng.integers(0, 500, 80), np.array([499, 0, 499]), np.array([], dtype=np.int64)):
            for one, two in zip(there.records.take(some), known.records.take(some), strict=True):
                assert one.dtype == two.dtype
                assert torch.equal(one, two)
    assert (there.column("who") == table["who"].to_numpy()).all()
    with pytest.raises(IndexError):
        there.records.take(np.array([500]))


def test_a_run_from_disk_is_the_run_from_memory(tmp_path):
    table = frame()
    source = written(tmp_path / "rows", table)

    def run(data, **more):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        training = sgd.Training(
            model, torch.optim.SGD(model.parameters(), lr=0.5), nn.CrossEntropyLoss(reduction="none"), data,
            epochs=2, noise_multiplier=1.0, delta=1e-5, key=Key(bytes(32), repeatable=True), compile=False, **more,
        )  # fmt: skip
        for batch in training:
            training.step(batch)
        return model.weight.detach().clone(), training

    plain = sgd.table(table, target="ill", exclude=["who"])
    for terms in (
        {"batch_size": 50},
        {"batch_size": 50, "physical_batch": 16},
        {"batch_size": 10, "groups": "who", "max_rows": 3},
        {"batch_size": 50, "sampler": "balls-in-bins"},
    ):
        one, _ = run(plain, **terms)
        two, training = run(opened(source, tmp_path / "index"), **terms)
        assert torch.equal(one, two)
    assert training.privacy.details["sampler"] == "balls in 10 bins a pass"


def test_an_index_that_was_interrupted_goes_on_with_the_next_file(tmp_path, monkeypatch):
    table = frame()
    source = written(tmp_path / "rows", table)
    whole = (source / "part-1.parquet").read_bytes()
    read = []
    plain = stored._frames

    def frames(file, columns=None):
        read.append(file.name)
        for number, part in enumerate(plain(file, columns)):
            if file.name == "part-1.parquet" and broken and number:
                raise KeyboardInterrupt
            yield part

    monkeypatch.setattr(stored, "_frames", frames)
    monkeypatch.setattr(stored, "AT_ONCE", 50)
    broken = True
    with pytest.raises(KeyboardInterrupt):
        opened(source, tmp_path / "index")
    broken, read[:] = False, []
    found = opened(source, tmp_path / "index").records
    assert read == ["part-1.parquet", "part-2.parquet"]
    assert torch.equal(found.take(np.arange(500))[1], torch.tensor(table["ill"].to_list()))
    again = opened(source, tmp_path / "other").records
    assert found.fingerprint(bytes(32)) == again.fingerprint(bytes(32))
    read[:] = []
    opened(source, tmp_path / "index")
    assert read == []
    # other files or columns are never taken for those of the index
    (source / "part-1.parquet").write_bytes(whole + b" ")
    with pytest.raises(ValueError, match="files were changed"):
        opened(source, tmp_path / "index")
    with pytest.raises(ValueError, match="other files or columns"):
        sgd.table(source, target="who", index=tmp_path / "other")


def rewritten(file, table, how):
    """The file with other rows in as many bytes, and the time of writing of the old one."""
    before, other = file.stat(), file.with_name("other.new")
    table.write_ipc(other if how == "moved" else file)
    if how == "moved":
        other.replace(file)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


@pytest.mark.parametrize("how", ["written over", "moved"])
@pytest.mark.parametrize("recent", [2 * 10**9, 0])
def test_ids_are_never_those_of_files_that_changed_since_their_rows_were_copied(tmp_path, monkeypatch, how, recent):
    """People of ten rows each become people of one: with the ids of the new file ε would be that of one row."""
    file, table = tmp_path / "f.arrow", frame().with_columns(who=np.arange(500) % 50)
    table.write_ipc(file)
    there = opened(file, tmp_path / "index")
    assert (there.column("who") == np.arange(500) % 50).all()
    monkeypatch.setattr(stored, "RECENT", recent, raising=False)
    if not recent:
        time.sleep(0.05)  # longer than the clock of a file system needs
        there = opened(file, tmp_path / "index")
    rewritten(file, table.with_columns(who=np.arange(500)), how)
    with pytest.raises(ValueError, match=r"f\.arrow changed since its rows were copied"):
        nn_run(there, groups="who")
    with pytest.raises(ValueError, match="files were changed since"):
        opened(file, tmp_path / "index")
    # the same rows again, in another place and at another time, are the same file
    table.write_ipc(file)
    assert (opened(file, tmp_path / "index").column("who") == np.arange(500) % 50).all()


@pytest.mark.parametrize("ids", [pl.Int64, pl.String, pl.Date])
def test_whose_rows_are_is_found_on_disk_as_in_memory(tmp_path, monkeypatch, ids):
    monkeypatch.setattr(owned, "PIECE", 40)
    monkeypatch.setattr(owned, "AT_ONCE", 33)
    table = frame().with_columns(pl.col("who").cast(pl.Int32).cast(ids))
    table = table.with_columns(who=pl.when(pl.col("x0") > 1).then(pl.col("who").first()).otherwise(pl.col("who")))
    source = written(tmp_path / "rows", table)
    known, there = Units.of(table["who"].to_numpy(), 500), opened(source, tmp_path / "index").units("who")
    assert (len(there), len(there.rows_of(np.zeros(0, np.int64)))) == (len(known), 0)
    everyone = np.arange(len(known))
    assert [a.tolist() for a in there.rows_of(everyone)] == [b.tolist() for b in known.rows_of(everyone)]
    with monkeypatch.context() as patch:
        patch.setattr(stored, "put_in_order", None)  # it is made once
        assert opened(source, tmp_path / "index").units("who").digest == there.digest
    assert stat.S_IMODE(os.stat(there.stem.with_suffix(".order")).st_mode) == 0o600
    for end in (".order", ".starts"):  # a row that is somebody else's, or nobody's
        held = there.stem.with_suffix(end)
        other = np.fromfile(held, "<i8")
        other[:2] = other[1::-1]
        other.tofile(held)
        again = opened(source, tmp_path / "index").units("who")
        assert [a.tolist() for a in again.rows_of(everyone)] == [b.tolist() for b in known.rows_of(everyone)]


@pytest.mark.parametrize("most", [1, 3, 500])
def test_rows_of_people_on_disk_are_chosen_as_in_memory(tmp_path, most):
    source, key = written(tmp_path / "rows", frame()), Key(bytes(range(32)))
    there = RowsOfUnits(opened(source, tmp_path / "index").units("who"), most)
    known = KeptRows.of(frame()["who"].to_numpy(), 500, most)
    places = np.random.default_rng(0).permutation(len(known))
    assert len(there) == len(known)
    for step in range(2):
        assert there.choose(places, 1, key, step)[0].tolist() == known.choose(places, 1, key, step)[0].tolist()
    assert there.diagnostics() == known.diagnostics()
    assert there.choice != known.choice


def test_a_missing_id_is_refused_on_disk_and_lists_of_owners_are_not_taken_for_people(tmp_path):
    table = frame().with_columns(who=pl.when(pl.col("x0") > 2).then(None).otherwise(pl.col("who")))
    with pytest.raises(ValueError, match="missing"):
        opened(written(tmp_path / "rows", table), tmp_path / "index").units("who")
    lists = frame().with_columns(who=pl.concat_list("who", "who"))
    with pytest.raises(ValueError, match="draw='rows'"):
        nn_run(opened(written(tmp_path / "several", lists), tmp_path / "other"), groups="who")


def test_a_chunk_of_many_rows_is_found_without_a_list_of_them():
    tracemalloc.start()
    try:
        found = sampling.Chunks(10**8, 1000).draw(Key(bytes(32)), 99_999, 10**8)
        assert tracemalloc.get_traced_memory()[1] < 1e6
    finally:
        tracemalloc.stop()
    assert (found == np.arange(99_999_000, 10**8)).all()


def nn_run(data, **more):
    model = nn.Linear(3, 2)
    return sgd.Training(
        model, torch.optim.SGD(model.parameters(), lr=0.5), nn.CrossEntropyLoss(reduction="none"), data,
        batch_size=20, steps=2, noise_multiplier=1.0, delta=1e-5, compile=False, **more,
    )  # fmt: skip


@pytest.mark.parametrize("when", ["copied", "read"])
def test_files_that_change_while_they_are_read_are_refused(tmp_path, monkeypatch, when):
    file, table, plain = tmp_path / "f.parquet", frame(), stored._frames
    table.write_parquet(file)

    def frames(path, columns=None):
        yield from plain(path, columns)
        if columns is not None or when == "copied":
            table[::-1].write_parquet(file)

    if when == "read":
        there = opened(file, tmp_path / "index")
    monkeypatch.setattr(stored, "_frames", frames)
    with pytest.raises(ValueError, match="changed since its rows were copied"):
        opened(file, tmp_path / "index") if when == "copied" else there.column("who")


def test_ids_have_one_type_in_all_files(tmp_path):
    source = written(tmp_path / "rows", frame(), parts=2)
    frame(20).with_columns(pl.col("who").cast(pl.String)).write_parquet(source / "part-2.parquet")
    there = opened(source, tmp_path / "index")
    with pytest.raises(ValueError, match=r"column 'who' is Int64 in part-0\.parquet and String in part-2\.parquet"):
        nn_run(there, groups="who")


def test_a_shard_without_rows_has_no_say_in_the_type_of_ids(tmp_path):
    table = frame()
    source = written(tmp_path / "rows", table, parts=2, kind="file")
    empty = table[:0].with_columns(who=pl.Series([], dtype=pl.Null)).to_arrow().combine_chunks()
    batch = pa.RecordBatch.from_arrays([column.combine_chunks() for column in empty.columns], schema=empty.schema)
    with pa.OSFile(str(source / "part-0a.arrow"), "wb") as sink, pa.ipc.new_file(sink, empty.schema) as writer:
        writer.write_batch(batch)
    there = opened(source, tmp_path / "index")
    assert (there.column("who") == table["who"].to_numpy()).all()


def test_caches_beside_a_data_set_on_disk_are_no_rows(tmp_path):
    """``datasets`` keeps what ``map`` made in the folder of ``save_to_disk``: whoever is there would count twice."""
    table = frame()
    source = written(tmp_path / "rows", table, kind="stream")
    listed = [{"filename": file.name} for file in sorted(source.iterdir())]
    (source / "state.json").write_text(json.dumps({"_data_files": listed, "_fingerprint": "1"}))
    written(source, table.with_columns(x0=-pl.col("x0")), parts=1, kind="stream")
    (source / "part-0.arrow").rename(source / "cache-0.arrow")
    written(source, table, kind="stream")
    assert len(opened(source, tmp_path / "index").records) == 500
    with pytest.raises(ValueError, match=r"cache-0\.arrow is no part of the data set"):
        opened(str(source / "*.arrow"), tmp_path / "other")


def test_no_file_is_copied_twice_under_two_names(tmp_path):
    source = written(tmp_path / "rows", frame(), parts=2)
    for names in (["part-0.parquet"] * 2, ["part-0.parquet", "../rows/part-0.parquet"]):
        with pytest.raises(ValueError, match="are one file"):
            opened([source / name for name in names], tmp_path / "index")
    (source / "latest.parquet").symlink_to(source / "part-1.parquet")
    with pytest.raises(ValueError, match=r"latest\.parquet and part-1\.parquet are one file"):
        opened(source, tmp_path / "index")


def test_a_stream_that_was_copied_is_sampled_by_person(tmp_path, monkeypatch):
    """Nothing but the copy has the ids of a stream."""
    monkeypatch.setattr(stored, "AT_ONCE", 90)
    table = frame()
    parts = [table[start : start + 37] for start in range(0, 500, 37)]

    def broken():
        yield from (part.with_columns(who=pl.lit(7)) for part in parts[:6])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        opened(broken(), tmp_path / "index")
    for stream in (parts, []):  # the second time the index is there
        there = opened(iter(stream), tmp_path / "index")
        assert (there.column("who") == table["who"].to_numpy()).all()
        assert nn_run(there, groups="who").plan.sampler.size == len(set(table["who"].to_list()))
    assert all(stat.S_IMODE(os.stat(file).st_mode) == 0o600 for file in (tmp_path / "index").iterdir())
    frame(500, seed=1).write_parquet(tmp_path / "index" / "aside-00000.parquet")
    with pytest.raises(ValueError, match="changed since its rows were copied"):
        opened(iter([]), tmp_path / "index").column("who")
    other = opened(iter([table, table.with_columns(pl.col("who").cast(pl.String))]), tmp_path / "other")
    with pytest.raises(ValueError, match=r"column 'who' is Int64 in .* and String in"):
        other.column("who")


def test_a_stream_is_read_once_and_a_column_of_tokens_is_a_feature(tmp_path):
    tokens = np.random.default_rng(0).integers(0, 900, (70, 12)).astype(np.int32)
    one = pl.DataFrame({"ids": tokens.tolist(), "y": [0, 1] * 35}, schema={"ids": pl.List(pl.Int32), "y": pl.Int64})
    parts = [one[:30], one[30:30], one[30:]]
    found = sgd.table(iter(parts), target="y", index=tmp_path / "index").records
    x, y = found.take(np.arange(70))
    assert x.dtype == y.dtype == torch.int64
    assert (x.numpy() == tokens).all()
    left = iter(parts)
    sgd.table(left, target="y", index=tmp_path / "index")
    assert next(left).height == 30  # the index is there
    pictures = pl.DataFrame({"ids": (tokens % 256).astype(np.uint8), "y": [0.5] * 70})
    x, y = sgd.table(iter([pictures]), target="y", index=tmp_path / "pictures").records.take(np.array([3, 1]))
    assert (x.dtype, y.dtype) == (torch.uint8, torch.float32)
    assert (x.numpy() == tokens[[3, 1]] % 256).all()
    uneven = one.with_columns(pl.when(pl.col("y") == 1).then(pl.col("ids").list.head(3)).otherwise(pl.col("ids")))
    with pytest.raises(ValueError, match="differ in length"):
        sgd.table(iter([uneven]), target="y", index=tmp_path / "uneven")


def test_what_no_run_may_read_is_refused_when_it_is_copied(tmp_path):
    table = frame(20)
    for change, match in (
        (pl.lit(None).alias("x1"), "missing values"),
        (pl.lit(float("nan")).alias("x1"), "NaN or infinite"),
        (pl.lit("a").alias("x1"), "does not hold numbers"),
        (pl.lit(0.5).alias("ill"), "give all one type"),
    ):
        other = table.with_columns(change.cast(pl.Float64) if match == "missing values" else change)
        with pytest.raises(ValueError, match=match):
            opened(iter([table, other]), tmp_path / match[:3])
    with pytest.raises(ValueError, match="no column 'sick'"):
        sgd.table(iter([table]), target="sick", index=tmp_path / "a")
    with pytest.raises(FileNotFoundError, match="no Parquet or Arrow"):
        opened(tmp_path / "nothing-*.parquet", tmp_path / "b")
    with pytest.raises(ValueError, match="the data are empty"):
        opened(iter([table[:0]]), tmp_path / "c")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "letters.txt").write_text("mine")
    with pytest.raises(ValueError, match="something else"):
        opened(iter([table]), tmp_path / "d")
    with pytest.raises(ValueError, match=r"letters\.txt is a file"):
        opened(iter([table]), tmp_path / "d" / "letters.txt")
    there = opened(iter([table]), tmp_path / "e")
    with open(there.records.path, "ab") as file:
        file.truncate(100)
    with pytest.raises(ValueError, match="not as long"):
        opened(iter([table]), tmp_path / "e")


def test_the_index_is_for_its_owner_and_a_ledger_knows_its_rows(tmp_path):
    table = frame()
    there = opened(iter([table]), tmp_path / "index")
    for place in (tmp_path / "index", *(tmp_path / "index").iterdir()):
        assert stat.S_IMODE(os.stat(place).st_mode) & 0o077 == 0
    ledger = Ledger()
    known = sgd.table(table[::-1], target="ill", exclude=["who"]).records
    assert there.records.registered_as(ledger.secret()) == known.registered_as(ledger.secret())
    assert there.records.labels().tolist() == [0, 1]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda s: s.name)
def test_a_draw_in_pieces_is_the_draw_of_the_whole(sampler, monkeypatch):
    key = Key(bytes([5]) * 32)
    whole = [sampler.draw(key, step, 1000) for step in range(12)]
    monkeypatch.setattr(sampling, "AT_ONCE", 37)
    monkeypatch.setattr(draws, "_LISTED", 41)
    for step, expected in enumerate(whole):
        found = sampler.draw(key, step, 1000)
        assert found.dtype == np.int64
        assert (found == expected).all()
    assert len(sampler.draw(key, 0, 0)) == 0


@pytest.mark.parametrize("kind", [Poisson, RandomBins, CyclicPoisson, TruncatedPoisson])
def test_memory_of_a_draw_does_not_grow_with_the_number_of_records(kind):
    """One word for each record would be 256 MB here; untouched pages of the list of those drawn are none."""
    units = 1 << 25
    more = {"groups": 8} if kind is CyclicPoisson else {}
    sampler = kind(units, 1000, **more)
    key = Key(bytes(32))
    tracemalloc.start()
    try:
        chosen = sampler.draw(key, 3, units)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 700 < len(chosen) < 1300
    assert peak < (draws._LISTED + 6 * sampling.AT_ONCE) * 8 < units * 8
