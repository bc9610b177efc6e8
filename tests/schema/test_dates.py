"""A date is a number of days between two public dates, however a table holds it, each row by itself."""

from __future__ import annotations

import datetime

import numpy as np
import pandas as pd
import polars as pl
import pytest

from tacit.linear_model import LinearRegression
from tacit.runs.check import check
from tacit.runs.read import read_table
from tacit.schema import Date, Numeric, Schema, SchemaError, Unit

SCHEMA = Schema(
    (Date("came", "2020-01-01", datetime.date(2020, 12, 31), fill="2020-07-01"), Numeric("cost", 0, 10, target=True)),
    Unit("patient"),
)
DAYS = ["2020-01-01", "2020-12-31", "2020-07-01", "2025-01-01", "1999-01-01"]
ENCODED = [-1.0, 1.0, -0.002740, 1.0, -1.0]


@pytest.mark.parametrize(
    "values",
    [
        DAYS,
        [f"{day}T23:59:59" for day in DAYS],
        [datetime.date.fromisoformat(day) for day in DAYS],
        [datetime.datetime.fromisoformat(f"{day}T12:30:00+02:00") for day in DAYS],
        np.array(DAYS, dtype="datetime64[s]"),
        pd.Series(pd.to_datetime(DAYS)),
        lambda: pl.Series(DAYS).str.to_date(),
        lambda: pl.Series(DAYS).str.to_datetime(),
        [18262, 18627, 18444, 20089.0, 10592],
    ],
)
def test_every_way_to_hold_a_date_is_the_same_number(values):
    encoded, view = SCHEMA.encode({"came": values() if callable(values) else values, "cost": np.zeros(5)})
    assert encoded.features[:, 0].tolist() == pytest.approx(ENCODED, abs=1e-5)
    assert view.clipped == {"came": 2}


def test_a_missing_date_is_filled_and_another_text_is_refused_without_showing_it():
    encoded, view = SCHEMA.encode({"came": ["", None, np.datetime64("NaT"), float("nan")], "cost": [0, 0, 0, 0]})
    assert encoded.features[:, 0].tolist() == pytest.approx([ENCODED[2]] * 4, abs=1e-5)
    assert view.filled == {"came": 4}
    for wrong in ("31.12.2020", "2020-13-01", b"2020-01-01", (1,)):
        with pytest.raises(SchemaError, match="'came' holds values that are no dates") as caught:
            SCHEMA.encode({"came": ["2020-01-01", wrong], "cost": [0, 0]})
        assert "13" not in str(caught.value)
        assert "31.12" not in str(caught.value).replace("2024-12-31", "")


def test_a_schema_with_dates_is_written_and_read():
    text = SCHEMA.to_toml()
    assert 'kind = "date"\nlower = 2020-01-01\nupper = 2020-12-31\nfill = 2020-07-01' in text
    assert Schema.parse_toml(text) == SCHEMA


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"lower": "yesterday"}, "must be a date such as"),
        ({"lower": True}, "must be a date such as"),
        ({"lower": "2021-01-01"}, "must be below"),
        ({"fill": "2019-01-01"}, "must lie between"),
        ({"target": True}, "cannot be the target"),
        ({"shape": (2,)}, "has no shape"),
    ],
)
def test_mistakes_in_a_date_are_named(wrong, said):
    with pytest.raises(SchemaError, match=said):
        Date(**({"name": "came", "lower": "2020-01-01", "upper": "2020-12-31"} | wrong))
    with pytest.raises(SchemaError, match="a target can be cost"):
        SCHEMA.predicting("came")


def test_a_table_with_dates_is_checked_and_fitted_in_memory_and_as_a_file(tmp_path):
    generator = np.random.default_rng(0)
    days = generator.integers(0, 366, 20_000)
    came = [str(datetime.date(2020, 1, 1) + datetime.timedelta(days=int(day))) for day in days]
    table = pl.DataFrame({"came": came, "cost": 1 + days / 50 + generator.uniform(-0.5, 0.5, 20_000)})
    file = tmp_path / "visits.csv"
    table.write_csv(file)
    assert not check(file, SCHEMA).reveal()["findings"]
    for source in (read_table(file, SCHEMA), table.lazy()):
        slope = LinearRegression(2.0, bounds=SCHEMA).fit(source).coef_[0]
        assert slope == pytest.approx(1 / 50, abs=0.004)
    table.with_columns(came=pl.lit("1.2.2020")).write_csv(file)
    (finding,) = check(file, SCHEMA).reveal()["findings"]
    assert finding.refused
    assert "no dates" in finding.text
