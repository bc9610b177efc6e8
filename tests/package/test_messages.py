"""An error, a warning or a message never shows a value or a count of private rows."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tacit import accounting as acc
from tacit.ledger import Ledger
from tacit.linear_model import LinearRegression, LogisticRegression
from tacit.pate import Teachers
from tacit.prompts import Endpoint, PromptTeachers, Template, Verbalizer
from tacit.runs.read import read_table
from tacit.schema import Categorical, Numeric, Schema, SchemaError, Unit
from tacit.sgd import Classifier, Regressor, Training, clipped_grad
from tacit.tuning import PrivateSearch, bounded_loss, correct_count

COUNT, VALUE = 3001, 987654.25
#: The count and the value in any form in which a message could show them, one off or rounded included.
MARKED = re.compile(r"300[0-2]|3,00[0-2]|98765|987,65|0\.00033")
X = np.full((COUNT, 2), VALUE)
Y = np.arange(COUNT) % 2
T = torch.ones(COUNT, 2)
SCHEMA = Schema(
    (Numeric("age", 0, 100), Categorical("ward", ("north",), other=False), Numeric("hours", 0, 80)), Unit("record")
)


def train(loss: Any = None, data: Any = None, **settings: Any) -> None:
    model = nn.Linear(2, 2)
    usual = {"batch_size": 30, "steps": 1, "noise_multiplier": 9.0, "delta": 1e-6}
    training = Training(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        loss or nn.CrossEntropyLoss(reduction="none"),
        (T, torch.from_numpy(Y)) if data is None else data,
        **(usual | settings),
    )
    for batch in training:
        training.step(batch)


def wrong_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return model(batch[0])


def everybody(**settings: Any) -> None:
    """A loss of the wrong shape on a batch that holds everybody."""
    train(wrong_loss, batch_size=COUNT, check="never", **settings)


def fails(*_: Any) -> Any:
    raise ValueError(f"could not convert {VALUE} of {COUNT} rows")


def column(name: str, value: Any) -> dict[str, list[Any]]:
    table: dict[str, list[Any]] = {"age": [1.0] * COUNT, "ward": ["north"] * COUNT, "hours": [1.0] * COUNT}
    table[name] = table[name][:-1] + ([] if value is None else [value])
    return table


def table(folder: Any) -> None:
    """A CSV file with a text in a column of numbers."""
    path = folder / "people.csv"
    path.write_text("age,ward,hours\n" + "1,north,1\n" * (COUNT - 1) + f"x{VALUE},north,1\n")
    read_table(path, SCHEMA)


def linear(y: Any = Y, **more: Any) -> None:
    LinearRegression(epsilon=1.0, bounds=(0, 10), target_bounds=(0, 1), max_rows=1, max_weight=1.0).fit(X, y, **more)


def broken(rows: Any, labels: Any) -> Any:
    return fails()


def teach(model: Any = broken, y: Any = Y, **settings: Any) -> None:
    Teachers(model, (X, y), n=5, **settings).fit()


def _noise(candidate: Any, noise: float) -> acc.Mechanism:
    return acc.Gaussian(noise)


def search() -> None:
    PrivateSearch({"a": [1]}, fails, correct_count(X, Y), epsilon=5.0, delta=1e-5, mechanism=_noise).run()


def prompts(rows: int, **settings: Any) -> None:
    words = Verbalizer({"a": "x", "b": "y"})
    model, private = Endpoint("http://localhost", "m"), [("t", "a"), ("u", "b")] * (rows // 2)
    PromptTeachers(model, Template("{text}:"), words, private, 1, **settings)


FAILING: dict[str, Callable[[], Any]] = {
    "the number is not the one given (shuffle)": lambda: train(sampler="shuffle", size=2900),
    "the number is not the one given (fixed)": lambda: train(sampler="fixed", size=2900),
    "more than the size": lambda: train(sampler="truncated", size=2900),
    "a batch of more than all": lambda: train(batch_size=9000),
    "delta is large": lambda: train(delta=0.01),
    "arrays of different lengths": lambda: train(data=(T, torch.zeros(COUNT - 1).long())),
    "labels that are none": lambda: train(data=(T, torch.full((COUNT,), 987654))),
    "not finite": lambda: train(data=(T / 0, torch.from_numpy(Y))),
    "ids of too few": lambda: train(groups=np.arange(COUNT - 1)),
    "a loss of another shape": everybody,
    "a mask of another shape": lambda: clipped_grad(nn.Linear(2, 2), wrong_loss, (T, T), mask=torch.ones(COUNT - 1)),
    "a batch of different lengths": lambda: clipped_grad(nn.Linear(2, 2), wrong_loss, (T, T[1:])),
    "no whole number of views": lambda: clipped_grad(nn.Linear(2, 2), wrong_loss, (T, T), views=2),
    "y is shorter": lambda: linear(Y[1:]),
    "y has two columns": lambda: linear(X),
    "y is shorter (by DP-SGD)": lambda: Classifier().fit(X, Y[1:]),
    "a text among numbers (by DP-SGD)": lambda: Regressor(target_bounds=(0, 1)).fit([["x987654.25"]] * COUNT, Y),
    "groups are fewer": lambda: linear(groups=Y[1:]),
    "weights are fewer": lambda: linear(sample_weight=np.ones(COUNT - 1)),
    "an array that does not fit": lambda: LinearRegression(bounds=SCHEMA, target_bounds=(0, 1)).fit(X, Y),
    "labels of two columns": lambda: LogisticRegression(bounds=(0, 1), classes=(0, 1)).fit(X, X),
    "a text among numbers": lambda: SCHEMA.encode(column("age", "987654.25")),
    "a category that is none": lambda: SCHEMA.encode(column("ward", "987654.25")),
    "a list among categories": lambda: SCHEMA.encode(column("ward", [VALUE])),
    "columns of different lengths": lambda: SCHEMA.encode(column("age", None)),
    "every teacher fails": lambda: teach(),
    "people of too few rows": lambda: teach(groups=list(range(COUNT - 1))),
    "a label that is no class": lambda: teach(y=np.full(COUNT, 987654), classes=[0, 1]),
    "a label beyond the classes": lambda: teach(y=np.full(COUNT, 987654), classes=2),
    "every run of a search fails": search,
    "targets of two columns": lambda: correct_count(X, X),
    "ids of fewer than are scored": lambda: correct_count(X, Y, groups=Y[1:], unit="person"),
    "answers of another shape": lambda: correct_count(X, Y, predict=lambda model, x: Y[1:]).exact(None),
    "losses of two columns": lambda: bounded_loss(lambda model: X).exact(None),
    "too few records for the teachers": lambda: prompts(COUNT - 1, n=5000),
    "owners of too few": lambda: prompts(COUNT - 1, n=2, groups=list(range(COUNT))),
    "other data than registered": lambda: _ledger().check_data("people", X[1:]),
}


def test_a_text_in_a_table_is_told_without_its_row(tmp_path):
    with pytest.raises(SchemaError, match="'age' holds text") as told:
        table(tmp_path)
    assert not MARKED.search(str(told.value))


def _ledger() -> Ledger:
    ledger = Ledger()
    ledger.register("people", epsilon=1.0, delta=0.0, fingerprint=X)
    return ledger


@pytest.mark.parametrize("call", FAILING.values(), ids=list(FAILING))
def test_no_message_shows_a_value_or_a_count_of_private_rows(call, capfd):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            call()
            said = ""
        except Exception as error:  # noqa: BLE001 - whatever it is, its text is looked at
            told = error.__cause__, None if error.__suppress_context__ else error.__context__
            said = "\n".join(f"{type(e).__name__}: {e}" for e in (error, *told) if e is not None)
    out = capfd.readouterr()
    said = "\n".join([said, *(str(w.message) for w in caught), out.out, out.err])
    assert said.strip(), "nothing was said: the call does not fail as it should"
    assert not MARKED.search(said), said
