"""Which rows are public is decided by each row itself, so that one person more changes one side only."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.schema import Boolean, Encoded, Numeric, Schema, SchemaError, Unit

ROWS = st.lists(st.tuples(st.integers(0, 40), st.booleans(), st.integers(0, 9)), min_size=1, max_size=40)
COLUMNS = (Numeric("age", 0, 40), Boolean("works", target=True))


def encoded(rows, unit, dtype=np.float64):
    table = {name: [row[i] for row in rows] for i, name in enumerate(("age", "works", "id"))}
    return Schema(COLUMNS, unit).encode(table, dtype=dtype)[0]


@settings(deadline=None, max_examples=60)
@given(ROWS, st.integers(0, 40), st.sampled_from([0.1, 0.5, 0.9]), st.booleans())
def test_the_side_of_a_row_depends_on_nobody_else(rows, place, share, owned):
    unit = Unit("person", column="id") if owned else Unit("person")
    whole = encoded(rows, unit).public_rows(share)
    alone = [bool(encoded([row], unit).public_rows(share)[0]) for row in rows]
    assert whole.tolist() == alone
    place %= len(rows)
    fewer = encoded(rows[:place] + rows[place + 1 :], unit).public_rows(share) if len(rows) > 1 else []
    assert [*fewer] == [*whole[:place], *whole[place + 1 :]]


@settings(deadline=None, max_examples=40)
@given(ROWS, st.sampled_from([0.2, 0.5]))
def test_all_rows_of_a_unit_and_equal_rows_are_on_one_side(rows, share):
    for unit, name in ((Unit("person", column="id"), lambda row: row[2]), (Unit("person"), lambda row: row[:2])):
        side: dict[object, bool] = {}
        for row, public in zip(rows, encoded(rows, unit).public_rows(share).tolist(), strict=True):
            assert side.setdefault(name(row), public) == public


def test_the_share_is_about_what_was_asked_for_and_the_split_is_the_same_wherever_it_is_made():
    ids = np.arange(20_000)
    numbers = Encoded(np.zeros((len(ids), 1)), None, ("a",), ids).public_rows(0.2)
    assert abs(numbers.mean() - 0.2) < 0.015  # five standard deviations; the key is fixed, so that it cannot vary
    assert (Encoded(np.zeros((len(ids), 1)), None, ("a",), ids.astype(str)).public_rows(0.2) == numbers).all()
    wider = Encoded(np.zeros((len(ids), 1)), None, ("a",), ids).public_rows(0.3)
    assert (wider | ~numbers).all()  # who is public at a share is so at every larger one
    rows = [(a, b, 0) for a in range(41) for b in (False, True)]
    unit = Unit("record")
    assert (encoded(rows, unit).public_rows(0.5) == encoded(rows, unit, np.float32).public_rows(0.5)).all()


@pytest.mark.parametrize("share", [0, 1, -0.1, float("nan"), 5])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(SchemaError, match="between 0 and 1"):
        encoded([(1, True, 1)], Unit("record")).public_rows(share)
