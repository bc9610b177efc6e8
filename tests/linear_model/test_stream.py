"""A file is gone through once, in batches, and gives the very sums that the table in memory gives."""

from __future__ import annotations

import traceback

import numpy as np
import polars as pl
import pytest

from tacit.ledger import Ledger
from tacit.linear_model import FunctionalLinearRegression, LinearRegression, LogisticRegression, releases, stream
from tacit.schema import Boolean, Categorical, Numeric, Schema, SchemaError, Unit
from tests.linear_model.common import COEFFICIENTS, labels, numbers

NAMES = ["a", "b", "c"]
SETTINGS = {"bounds": dict.fromkeys(NAMES, (0, 10)), "target_bounds": (-20, 35)}


@pytest.fixture
def table():
    x, y = numbers(30_000)
    return pl.DataFrame({name: x[:, i] for i, name in enumerate(NAMES)} | {"y": y, "unused": y})


@pytest.fixture(params=["parquet", "csv", "arrow", "folder", "lazy", "reader", "dataset", "table"])
def source(request, table, tmp_path):
    kind = request.param
    if kind in ("reader", "dataset", "table"):
        pytest.importorskip("pyarrow")
    if kind == "parquet":
        table.write_parquet(tmp_path / "t.parquet", row_group_size=1000)
        return tmp_path / "t.parquet"
    if kind == "csv":
        table.write_csv(tmp_path / "t.csv")
        return str(tmp_path / "t.csv")
    if kind == "arrow":
        table.write_ipc(tmp_path / "t.arrow")
        return tmp_path / "t.arrow"
    if kind in ("folder", "dataset"):
        table.head(10_000).write_parquet(tmp_path / "1.parquet")
        table.tail(20_000).write_parquet(tmp_path / "2.parquet")
        if kind == "folder":
            return tmp_path
        from pyarrow.dataset import dataset

        return dataset(tmp_path, format="parquet")
    if kind == "lazy":
        return table.lazy()
    arrow = table.to_arrow()
    return arrow.to_reader(max_chunksize=5000) if kind == "reader" else arrow


def test_every_source_gives_the_sums_of_the_table_in_memory(source, table, monkeypatch):
    seen = []
    real = releases.moments
    monkeypatch.setattr(releases, "moments", lambda *a, **k: seen.append(real(*a, **k)) or seen[-1])
    private = LinearRegression(20.0, **SETTINGS).fit(source, "y")
    in_memory = LinearRegression(20.0, method="sufficient-statistics", **SETTINGS).fit(table[NAMES], table["y"])
    assert (seen[0] == seen[1]).all()
    assert private.coef_ == pytest.approx(COEFFICIENTS, abs=0.1)
    assert private.privacy_.upper == pytest.approx(in_memory.privacy_.upper, abs=1e-4)
    assert private.feature_names_in_.tolist() == NAMES
    assert private.predict(table[NAMES]).shape == (30_000,)


def test_small_batches_and_single_precision_change_nothing_that_matters(table, tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "BATCH", 777)
    monkeypatch.setattr(stream, "PIECE", 100)
    table.cast(pl.Float32).write_parquet(tmp_path / "t.parquet")
    private = FunctionalLinearRegression(50.0, **SETTINGS).fit(tmp_path / "t.parquet", "y")
    assert private.coef_ == pytest.approx(COEFFICIENTS, abs=0.1)


def test_the_other_methods_read_a_file_several_times(table, tmp_path):
    table.write_parquet(tmp_path / "t.parquet")
    descent = LinearRegression(20.0, method="gradient-descent", **SETTINGS).fit(tmp_path / "t.parquet", "y")
    assert descent.coef_ == pytest.approx(COEFFICIENTS, abs=0.1)
    x, y = labels(5000)
    frame = pl.DataFrame({name: x[:, i] for i, name in enumerate(NAMES)} | {"y": y})
    frame.write_parquet(tmp_path / "l.parquet")
    logistic = LogisticRegression(5.0, bounds=SETTINGS["bounds"]).fit(tmp_path / "l.parquet", "y")
    assert logistic.score(frame[NAMES], y) > 0.8
    replaced = LogisticRegression(5.0, bounds=SETTINGS["bounds"], adjacency="replace-one").fit(frame.lazy(), "y")
    assert replaced.score(frame[NAMES], y) > 0.8


def test_what_can_be_read_once_is_not_read_several_times(table):
    pytest.importorskip("pyarrow")
    with pytest.raises(ValueError, match="once"):
        LinearRegression(20.0, method="gradient-descent", **SETTINGS).fit(table.to_arrow().to_reader(), "y")


def test_a_schema_reads_a_file_with_its_target():
    schema = Schema(
        (Numeric("age", 0, 100, fill=50), Categorical("sex", ["f", "m"]), Numeric("pay", 0, 200, target=True)),
        Unit("person"),
    )
    generator = np.random.default_rng(0)
    age = generator.integers(0, 101, 20_000)
    frame = pl.DataFrame({"age": age, "sex": generator.choice(["f", "m"], 20_000), "pay": 1.5 * age})
    frame = frame.with_columns(age=pl.when(pl.int_range(20_000) % 9 == 0).then(None).otherwise(pl.col("age")))
    private = LinearRegression(20.0, bounds=schema).fit(frame.lazy())
    assert private.coef_[0] == pytest.approx(1.5, abs=0.1)


def test_a_mistake_with_a_file_is_named_and_nothing_is_charged_for_it(table, tmp_path):
    ledger = Ledger()
    ledger.register("people", epsilon=5.0, delta=1e-3)
    table.write_parquet(tmp_path / "t.parquet")
    path = tmp_path / "t.parquet"
    with pytest.raises(ValueError, match="name of the target's column"):
        LinearRegression(ledger=ledger, **SETTINGS).fit(path)
    with pytest.raises(ValueError, match="'z' is not in the data"):
        LinearRegression(ledger=ledger, **SETTINGS).fit(path, "z")
    with pytest.raises(ValueError, match="format"):
        LinearRegression(ledger=ledger, **SETTINGS).fit(tmp_path / "t.xlsx", "y")
    with pytest.raises(ValueError, match="sample_weight and groups"):
        LinearRegression(ledger=ledger, **SETTINGS).fit(path, "y", groups=np.zeros(30_000))
    assert ledger.budget("people").charges == 0
    holes = table.with_columns(b=pl.when(pl.col("a") > 9).then(None).otherwise(pl.col("b")))
    with pytest.raises(SchemaError, match="'b' has missing values"):
        LinearRegression(**SETTINGS).fit(holes.lazy(), "y")
    filled = LinearRegression(20.0, fill={"b": 5.0}, **SETTINGS).fit(holes.lazy(), "y")
    assert filled.coef_[0] == pytest.approx(2.0, abs=0.1)
    with pytest.raises(ValueError, match="NaN"):
        LinearRegression(**SETTINGS).fit(table.with_columns(b=pl.lit(float("nan"))).lazy(), "y")


def test_the_first_rows_of_a_text_file_do_not_decide_how_the_others_are_read(tmp_path):
    """Whole numbers, or digits as codes, in the first rows; then fractions and letters."""
    path = tmp_path / "people.csv"
    path.write_text("age,ward,cost,sick\n" + "30,01,5,1\n40,02,7,0\n" * 300 + "30.5,1A,6.25,1\n")
    private = LinearRegression(1.0, bounds={"age": (0, 90)}, target_bounds=(0, 10)).fit(path, "cost")
    assert private.feature_names_in_.tolist() == ["age"]
    columns = (Numeric("age", 0, 90), Categorical("ward", ["01", "02"]))
    for target in (Numeric("cost", 0, 10, target=True), Boolean("sick", target=True)):
        schema = Schema((*columns, target), Unit("person"))
        kind = LinearRegression if target.name == "cost" else LogisticRegression
        fitted = kind(500.0, bounds=schema, method="gradient-descent").fit(path)
        assert fitted.predict({"age": [30, 40], "ward": ["01", "02"]}).tolist() == (
            pytest.approx([5, 7], abs=0.3) if target.name == "cost" else [True, False]
        )
    by_number = LogisticRegression(500.0, bounds={"age": (0, 90)}, classes=[0, 1], method="gradient-descent")
    assert by_number.fit(path, "sick").classes_.tolist() == [0, 1]
    path.write_text("age,cost\n" + "30,5\n" * 300 + "thirty,5\n")
    with pytest.raises(SchemaError, match="declared as numeric") as caught:
        LinearRegression(1.0, bounds={"age": (0, 90)}, target_bounds=(0, 10)).fit(path, "cost")
    assert "thirty" not in "".join(traceback.format_exception(caught.value))
