"""A table in a text file is read by its public schema: no row decides how another is read."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.runs.read import read_table
from tacit.schema import Boolean, Categorical, Numeric, Schema, SchemaError, Unit

SCHEMA = Schema(
    (Categorical("ward", ["01", "02"]), Numeric("age", 0, 100, fill=50), Boolean("left", target=True)),
    Unit("patient", column="id"),
)


def encoded(path, *rows):
    path.write_text("\n".join(["id,ward,age,left,remark", *rows]) + "\n")
    return SCHEMA.encode(read_table(path, SCHEMA))[0]


@pytest.mark.parametrize("odd", ["x9,1A,7.5,True,text", "1.5,true,NaN,1,", "9999999999999999999999,,,0,3"])
def test_one_row_does_not_decide_how_the_others_are_read(tmp_path, odd):
    rows = ["007,01,30,true,1", "7,02, 40,false,2", "8,01,,TRUE,3", "9,2,1e1,1,4"]
    with_ward = odd.replace(",,,", ",01,,")
    alone, beside = encoded(tmp_path / "a.csv", *rows), encoded(tmp_path / "b.csv", *rows, with_ward)
    assert np.array_equal(alone.features, beside.features[:4])
    assert alone.target.tolist() == beside.target[:4].tolist() == [1, 0, 1, 1]
    assert alone.units.tolist() == beside.units[:4].tolist() == ["007", "7", "8", "9"]
    assert alone.features[:, :3].tolist() == [[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 1, 0]]
    assert alone.features[:, 3].tolist() == pytest.approx([-0.4, -0.2, 0.0, -0.8])


def test_text_among_numbers_is_named_by_its_column_and_not_shown(tmp_path):
    with pytest.raises(SchemaError, match="'age' holds text") as caught:
        encoded(tmp_path / "a.csv", "1,01,30,true,1", "2,01,thirty,true,1")
    assert not {"thirty", "1"} & set(str(caught.value).split())


def test_texts_and_labels_for_prompts_are_read_as_they_are_written(tmp_path):
    """Whatever the other rows hold: types guessed from all of them would let one row change everybody's."""
    from tacit.runs.prompt import _frame

    for last in ("7", "seven"):
        path = tmp_path / "texts.csv"
        path.write_text(f"text,label\n01,1\n2.50,0\n{last},1\n")
        frame = _frame(str(path), None)
        assert frame["text"].to_list()[:2] == ["01", "2.50"]
        assert frame["label"].to_list() == ["1", "0", "1"]
