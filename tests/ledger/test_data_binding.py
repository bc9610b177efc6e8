"""A charge and a card state which data were read, and other data than the registered ones are refused."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from tacit import accounting as acc
from tacit import opacus, sgd
from tacit.ledger import FingerprintMismatch, Ledger, TermsError
from tacit.linear_model import LinearRegression
from tacit.report import make_card
from tacit.report.run import describe, describe_fit

RNG = np.random.default_rng(7)
X, Y = RNG.random((60, 3)), RNG.random(60)


@pytest.fixture
def frame():
    return pl.DataFrame({"age": X[:, 0], "city": ["a", "b", None] * 20, "n": list(range(60))})


def test_rows_columns_formats_and_types_do_not_matter(frame, tmp_path):
    ledger = Ledger()
    same = ledger.fingerprint(frame)
    frame.write_csv(tmp_path / "people.csv")
    frame.write_parquet(tmp_path / "people.parquet")
    shuffled = frame.sample(fraction=1, shuffle=True, seed=3).select("n", "city", "age")
    shuffled.write_csv(tmp_path / "other.csv")
    for form in (tmp_path / "people.csv", tmp_path / "people.parquet", tmp_path / "other.csv", shuffled):
        assert ledger.fingerprint(form) == same
    assert (
        ledger.fingerprint(shuffled.to_pandas() if hasattr(shuffled, "to_pandas") and _pandas() else shuffled) == same
    )
    table = ledger.fingerprint(X.astype("f4"))
    assert ledger.fingerprint(torch.from_numpy(X.astype("f4"))[torch.randperm(60)][:, [2, 0, 1]]) == table
    assert ledger.fingerprint(np.arange(60)) == ledger.fingerprint(np.arange(60.0, dtype="f2")[::-1])


def test_a_folder_is_its_files(frame, tmp_path):
    ledger = Ledger()
    for folder in ("parts", "[a-b]", "pictures/x"):
        (tmp_path / folder).mkdir(parents=True)
    frame[40:].write_parquet(tmp_path / "parts" / "1.parquet")
    frame[:40].write_parquet(tmp_path / "parts" / "2.parquet")
    frame.write_parquet(tmp_path / "[a-b]" / "all.parquet")
    assert ledger.fingerprint(tmp_path / "parts") == ledger.fingerprint(frame) == ledger.fingerprint(tmp_path / "[a-b]")
    frame[:1].write_parquet(tmp_path / "parts" / "3.parquet")
    assert ledger.fingerprint(tmp_path / "parts") != ledger.fingerprint(frame)
    seen = {ledger.fingerprint(tmp_path / "pictures"), ledger.fingerprint(tmp_path / "parts")}
    picture = tmp_path / "pictures" / "x" / "1.png"
    for content in (b"one", b"two"):
        picture.write_bytes(content)
        seen.add(ledger.fingerprint(tmp_path / "pictures"))
    picture.rename(picture.with_name("2.png"))
    seen.add(ledger.fingerprint(tmp_path / "pictures"))
    assert len(seen) == 5
    ledger.register("old", fingerprint="blake2b-keyed:" + "0" * 32, epsilon=1.0, delta=1e-6)
    with pytest.raises(FingerprintMismatch):
        ledger.recognise("old", tmp_path / "parts")


def _pandas():
    try:
        import pandas  # noqa: F401
        import pyarrow  # noqa: F401
    except ImportError:
        return False
    return True


def test_one_value_one_row_more_one_column_less_and_another_pairing_matter(frame):
    ledger = Ledger()
    same = ledger.fingerprint(frame)
    assert ledger.fingerprint(frame.with_columns(pl.col("n") + (pl.col("n") == 5))) != same
    assert ledger.fingerprint(pl.concat([frame, frame[:1]])) != same
    assert ledger.fingerprint(frame.drop("n")) != same
    assert ledger.fingerprint(frame.rename({"n": "m"})) != same
    assert ledger.fingerprint((X, Y)) != ledger.fingerprint((X, Y[::-1].copy()))
    assert ledger.fingerprint((X, Y)) == ledger.fingerprint((X[::-1].copy(), Y[::-1].copy()))
    big = np.array([2**60, 2**60 + 1])
    assert ledger.fingerprint(big) != ledger.fingerprint(big + 1)


def test_a_text_is_not_data():
    with pytest.raises(TermsError, match=r"pathlib.Path\('people.csv'\)"):
        Ledger().register("people", epsilon=1.0, delta=0.0, fingerprint="people.csv")


def training(ledger, x, y, **more):
    """Whole batches, whose card is priced by a closed form and so in no time."""
    model = nn.Linear(3, 1)
    loss = nn.MSELoss(reduction="none")
    data = (torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)[:, None])
    return sgd.Training(
        model, torch.optim.SGD(model.parameters(), lr=0.1), loss, data,
        batch_size=60, steps=2, noise_multiplier=5.0, delta=1e-6, ledger=ledger, dataset="people", **more,
    )  # fmt: skip


def test_training_charges_and_shows_the_data_it_reads():
    ledger = Ledger()
    ledger.register("people", epsilon=5.0, delta=1e-5)
    run = training(ledger, X, Y)
    for batch in run:
        run.step(batch)
    card = make_card(describe(run, "mean"))
    [record] = ledger.history("people")
    assert card["data"]["fingerprint"] == record.data is not None
    other = training(ledger, X + 1, Y)
    for batch in other:
        other.step(batch)
    assert make_card(describe(other, "mean"))["data"]["fingerprint"] != record.data


def test_training_on_other_data_is_refused_until_the_owner_says_that_they_are_the_same_people():
    ledger = Ledger()
    ledger.register("people", epsilon=5.0, delta=1e-5, fingerprint=(X.astype("f4"), Y.astype("f4")[:, None]))
    training(ledger, X[::-1].copy(), Y[::-1].copy())
    with pytest.raises(FingerprintMismatch, match="their owner says so once"):
        training(ledger, X * 2, Y)
    assert ledger.history("people") == []
    ledger.accept("people", (np.asarray(X * 2, "f4"), Y.astype("f4")[:, None]), because="scaled by 2")
    training(ledger, X * 2, Y)
    source = ledger.fingerprint((X.astype("f4"), Y.astype("f4")[:, None]))
    assert training(ledger, X * 3, Y, source=source).data_name == source
    assert ledger.verify().ok


class Anew(Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, i):
        return torch.rand(3), torch.rand(1)


def test_data_that_are_drawn_anew_need_their_source():
    ledger = Ledger()
    ledger.register("people", epsilon=5.0, delta=1e-5, fingerprint=X)
    model = nn.Linear(3, 1)
    rest = {"batch_size": 10, "steps": 2, "noise_multiplier": 5.0, "delta": 1e-6, "ledger": ledger, "dataset": "people"}
    start = (model, torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss(reduction="none"), Anew())
    with pytest.raises(FingerprintMismatch, match="source="):
        sgd.Training(*start, **rest)
    assert sgd.Training(*start, **rest, source=X).data_name == ledger.dataset("people").fingerprint


def test_an_estimator_charges_and_shows_the_table_it_reads(tmp_path):
    frame = pl.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": Y})
    frame.write_csv(tmp_path / "people.csv")
    ledger = Ledger()
    ledger.register("people", epsilon=50.0, delta=1e-5, fingerprint=tmp_path / "people.csv")
    fit = LinearRegression(epsilon=1.0, bounds=(0, 1), target_bounds=(0, 1), ledger=ledger)
    fitted = fit.fit(frame[["a", "b"]], frame["y"])
    assert make_card(describe_fit(fitted, "slope"))["data"]["fingerprint"] == ledger.dataset("people").fingerprint
    with pytest.raises(FingerprintMismatch):
        fit.fit(frame[["a", "b"]], frame["y"] * 0.5)
    assert ledger.budget("people").charges == 1


def test_a_hooked_loop_is_bound_too():
    ledger = Ledger()
    data = TensorDataset(torch.tensor(X, dtype=torch.float32), torch.tensor(Y, dtype=torch.float32)[:, None])
    ledger.register("people", epsilon=50.0, delta=1e-5, fingerprint=tuple(data.tensors))

    def made(data):
        model = nn.Linear(3, 1)
        engine = opacus.PrivacyEngine(ledger=ledger, dataset="people")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return engine.make_private(
            module=model, optimizer=optimizer, data_loader=DataLoader(data, batch_size=10), noise_multiplier=2.0,
            max_grad_norm=1.0, epochs=1, target_delta=1e-6,
        )  # fmt: skip

    made(data)
    with pytest.raises(FingerprintMismatch):
        made(TensorDataset(data.tensors[0] + 1, data.tensors[1]))


def test_a_charge_by_hand_names_registered_data_only():
    ledger = Ledger()
    ledger.register("people", epsilon=1.0, delta=0.0, fingerprint=X)
    with pytest.raises(FingerprintMismatch, match="not registered under this name"):
        ledger.charge("people", acc.PureDP(0.1), data=ledger.fingerprint(Y))
    assert ledger.charge("people", acc.PureDP(0.1), data=ledger.recognise("people", X)).confirmed is False
    ledger.register("others", epsilon=1.0, delta=0.0, fingerprint=Y)
    for unnamed in (Y, ledger.fingerprint(Y), None):  # registered, but under another name
        with pytest.raises(FingerprintMismatch):
            ledger.recognise("people", unnamed)


@pytest.mark.parametrize("kind", ["Classifier", "Regressor"])
def test_an_estimator_of_sgd_is_bound_to_the_table_as_it_was_given(kind):
    """The wrong version compared the rows after scaling: the registered table itself was refused."""
    ledger, frame = Ledger(), pl.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": (Y > 0.5).astype(int)})
    ledger.register("people", epsilon=50.0, delta=1e-3, fingerprint=frame)
    estimator = getattr(sgd, kind)(1.0, 1e-6, epochs=1, bounds=(0, 2), ledger=ledger, dataset="people")
    estimator.fit(frame[["a", "b"]], frame["y"])
    [record] = ledger.history("people")
    assert record.data == ledger.dataset("people").fingerprint
    with pytest.raises(FingerprintMismatch):
        estimator.fit(frame[["a", "b"]] * 0.5, frame["y"])
    with pytest.raises(FingerprintMismatch):
        estimator.fit(frame[["a", "b"]], 1 - frame["y"])
    assert len(ledger.history("people")) == 1
