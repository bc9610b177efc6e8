"""Every row has an owner: missing ids are refused wherever ids are taken, and one person is never two."""

from __future__ import annotations

import warnings
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch import nn

from tacit.accounting.base import owner_numbers
from tacit.linear_model import LinearRegression
from tacit.pate import Teachers
from tacit.sgd import Classifier, Sampling, Training
from tacit.tuning import correct_count

ROWS = 600
X = np.random.default_rng(0).uniform(-1, 1, (ROWS, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)


def ids(missing):
    """Four persons, as a table after a merge gives them: objects, some of which are missing."""
    found = np.array([0, 1, 2, 3] * (ROWS // 4), dtype=object)
    found[[5, 50, 77, 201, 402, 555]] = missing
    return found


def train(groups):
    model = nn.Linear(3, 2)
    return Training(
        model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(reduction="none"),
        (torch.from_numpy(X), torch.from_numpy(Y)), batch_size=2, steps=1, noise_multiplier=1.0, delta=1e-5,
        groups=groups,
    )  # fmt: skip


TAKERS = {
    "Training": train,
    "Classifier": lambda g: Classifier(epsilon=1.0).fit(X, Y, groups=g),
    "LinearRegression": lambda g: LinearRegression(
        epsilon=1.0, delta=1e-6, bounds=[(-1, 1)] * 3, target_bounds=(0, 1), max_rows=5, unit="person"
    ).fit(X, Y, groups=g),
    "Teachers": lambda g: Teachers(nn.Linear, (X, Y), n=2, classes=2, groups=g),
    "correct_count": lambda g: correct_count(X, Y, noise=20.0, groups=g),
}


@pytest.mark.parametrize("missing", [None, float("nan"), "float", "masked"], ids=str)
@pytest.mark.parametrize("taker", TAKERS)
def test_a_missing_id_is_refused(taker, missing):
    if missing == "masked":
        given = np.ma.masked_array(np.arange(ROWS) % 4, mask=np.arange(ROWS) == 5)
    else:
        given = ids(float("nan")).astype(float) if missing == "float" else ids(missing)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError, match="missing ids"):
            TAKERS[taker](given)


def test_rows_of_one_id_have_one_number_whatever_their_type_and_order():
    rng = np.random.default_rng(1)
    texts = rng.choice(["a", "b", "c"], 200)
    for given in (rng.integers(0, 9, 200), texts, texts.astype(object)):
        found = owner_numbers(given)
        assert len(set(found.tolist())) == len(set(given.tolist()))
        assert len(set(zip(given.tolist(), found.tolist(), strict=True))) == len(set(given.tolist()))
    assert owner_numbers([17, 17.0, np.int64(17)]).tolist() == [0, 0, 0]
    for mixed in ([17, "17"], [Decimal("0.1"), 0.1]):
        with pytest.raises(ValueError, match="groups mixes ids that are"):
            owner_numbers(np.array(mixed, dtype=object))


def test_ids_that_are_compared_by_object_are_never_taken_for_as_many_people():
    """Data sets give columns as lists of tensors, each of which is a key of its own to a dictionary."""
    assert owner_numbers(list(torch.tensor([7, 3, 7]))).tolist() == [1, 0, 1]
    assert owner_numbers([torch.tensor(7), 3, 7.0]).tolist() == [1, 0, 1]

    class Person:
        pass

    with pytest.raises(ValueError, match="one person would count as many"):
        owner_numbers([Person(), Person()])


NAN = float("nan")


@pytest.mark.parametrize(
    "ids",
    [
        [("ann", "bob"), ("ann",)],
        pd.MultiIndex.from_tuples([("a", NAN), ("a", NAN), ("b", 1)]),
        np.array([("a", NAN), ("a", NAN)], dtype=[("site", "U1"), ("number", "f8")]),
        [frozenset({"ann"}), frozenset({"ann", "bob"})],
    ],
    ids=["owners", "index", "records", "sets"],
)  # fmt: skip
def test_several_ids_in_one_row_are_never_taken_for_the_name_of_one_person(ids):
    """Ann would be as many people as she has company, and a missing part differs from itself."""
    with pytest.raises(ValueError, match="a list of ids for a row"):
        owner_numbers(ids)


@pytest.mark.parametrize(
    "ids",
    [
        list(pa.array(["a", None, "a"])),
        list(pa.array([1, None, 1])),
        np.array(["a", NAN, NAN], dtype=np.dtypes.StringDType(na_object=NAN)),
        np.array(["a", None], dtype=np.dtypes.StringDType(na_object=None)),
        np.array(["a", "", "b"]),
        ["a", "", "a"],
    ],
    ids=["arrow texts", "arrow numbers", "texts of numpy", "texts with None", "empty texts", "a list with one"],
)
def test_a_missing_id_of_any_library_is_missing(ids):
    with pytest.raises(ValueError, match="missing ids"):
        owner_numbers(ids)
    if isinstance(ids, list):
        assert owner_numbers([ids[0], ids[2]]).tolist() == [0, 0]


def test_what_holds_rows_or_ids_shows_none_of_them():
    assert "0." not in repr(correct_count(X, Y, noise=20, groups=np.arange(ROWS) % 4))
    assert "groups" not in repr(Sampling(batch_size=2, steps=1, groups=np.arange(4)))


def test_an_estimator_takes_several_rows_of_a_person_where_it_is_told_how_many():
    found = Classifier(epsilon=1.0, epochs=1, unit="person", max_rows=3).fit(X, Y, groups=np.arange(ROWS) % 200)
    assert (found.privacy_.unit, found.privacy_.details["max_rows"]) == ("person", 3)
    with pytest.raises(ValueError, match="max_rows needs groups"):
        Classifier(epsilon=1.0, epochs=1, max_rows=3).fit(X, Y)
