"""Which settings and data a run takes, and what it refuses before it begins."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from tacit.sgd import AdaptiveClipping, PrivacyWarning, Training, records
from tests.training.common import FEATURES, LOSS, ROWS, data, finish, network, run, same

X, Y = data()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"source": (X[:0], Y[:0])}, "empty"),
        ({"source": (torch.where(X > 2, torch.nan, X), Y)}, "NaN"),
        ({"source": (X, Y + 1)}, "labels must lie between 0 and 2"),
        ({"source": (X, Y[:-1])}, "the same number of rows"),
        ({"batch_size": ROWS + 1}, "larger than the number of units"),
        ({"batch_size": 0}, "batch_size"),
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"clip_norm": -1.0}, "clip_norm"),
        ({"epsilon": 0.0}, "epsilon must be positive"),
        ({"epsilon": -1.0}, "epsilon must be positive"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"noise_multiplier": None}, "give either"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.0}, "delta"),
        ({"delta": None}, "delta"),
        ({"steps": 0}, "steps"),
        ({"epochs": 3}, "epochs= or steps="),
        ({"sampler": "possion"}, "no sampler"),
        ({"physical_batch": 0}, "physical_batch"),
        ({"groups": [1, 2, 3]}, "one id for each"),
        ({"max_rows": 2}, "max_rows needs groups"),
        ({"adaptive": AdaptiveClipping(count_noise=0.4), "noise_multiplier": 1.0}, "choose count_noise above"),
    ],
)
def test_what_cannot_run_is_refused_before_training(settings, message):
    with pytest.raises(ValueError, match=message):
        run(**settings)


def test_both_epsilon_and_noise_are_refused():
    model = network()
    with pytest.raises(ValueError, match="give either"):
        Training(
            model, torch.optim.SGD(model.parameters(), lr=1.0), LOSS, data(), batch_size=4, steps=2, delta=1e-5,
            epsilon=1.0, noise_multiplier=1.0,
        )  # fmt: skip


def test_parameters_that_would_get_no_noise_are_refused():
    model, other = network(), nn.Linear(2, 2)
    with pytest.raises(ValueError, match="not the model's"):
        run(model, optimizer=torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.1))
    with pytest.raises(ValueError, match="not in the optimizer"):
        run(model, optimizer=torch.optim.SGD(list(model.parameters())[:2], lr=0.1))
    with pytest.raises(ValueError, match="LBFGS"):
        run(model, optimizer=torch.optim.LBFGS(model.parameters()))
    with pytest.raises(ValueError, match="SparseAdam"):
        run(model, optimizer=torch.optim.SparseAdam(list(model.parameters())))


def test_a_data_loader_is_refused():
    with pytest.raises(TypeError, match=r"loader\.dataset"):
        run(source=torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data())))


def test_no_noise_is_allowed_and_says_loudly_that_nothing_is_private():
    with pytest.warns(PrivacyWarning, match="ε=inf"):
        training = run(noise_multiplier=0)
    finish(training)
    assert training.privacy.upper == math.inf
    assert "inf" in repr(training.privacy)


def test_a_delta_that_allows_a_whole_record_is_warned_about():
    with pytest.warns(PrivacyWarning, match="Choose a δ well below"):
        run(delta=1 / ROWS)


def test_shuffling_warns_that_nothing_is_amplified():
    with pytest.warns(PrivacyWarning, match="without amplification"):
        run(sampler="shuffle")


class Items(torch.utils.data.Dataset):
    def __init__(self):
        self.x, self.y = data()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], int(self.y[index])


def test_tensors_arrays_data_sets_and_lists_give_the_same_run():
    x, y = data()
    expected = finish(run())
    for source in (
        torch.utils.data.TensorDataset(x, y),
        Items(),
        (x.numpy(), y.numpy()),
        [x, y],
        [(a, int(b)) for a, b in zip(x, y, strict=True)],
    ):
        assert same(expected, finish(run(source=source)), 1e-12)


class Counted(Items):
    """Counts how often each item is read."""

    def __init__(self):
        super().__init__()
        self.read = []

    def __getitem__(self, index):
        self.read.append(index)
        return super().__getitem__(index)


class Together(Counted):
    """Reads many items at once, as data sets of Hugging Face do."""

    def __getitems__(self, indices):
        return [self[i] for i in indices]


@pytest.mark.parametrize("kind", [Counted, Together])
def test_an_item_is_read_once_for_a_batch_however_many_places_it_fills(kind):
    source = kind()
    training = run(source=source, physical_batch=64)
    batch = next(iter(training))
    source.read.clear()
    pieces = list(batch.pieces(64))
    assert sorted(source.read) == sorted(batch.rows.tolist())
    assert [len(piece.data[0]) for piece in pieces] == [64]


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_frames_are_arrays_with_names(package):
    frames = pytest.importorskip(package)
    x, y = data(dtype=torch.float32)
    frame, column = frames.DataFrame(x.numpy()), frames.Series(y.numpy())
    arrays = finish(run(network(dtype=torch.float32), source=(x, y), steps=2))
    assert same(arrays, finish(run(network(dtype=torch.float32), source=(frame, column), steps=2)))
    with pytest.raises(TypeError, match="which columns are features"):
        run(source=frame)


def test_a_data_set_with_a_bad_item_is_refused_before_training():
    bad = Items()
    bad.x = bad.x.clone()
    bad.x[ROWS - 1, 0] = math.nan
    with pytest.raises(ValueError, match="NaN"):
        run(source=bad)
    bad = Items()
    bad.y = bad.y.clone()
    bad.y[ROWS // 2] = 7
    with pytest.raises(ValueError, match="labels must lie"):
        run(source=bad)


def test_records_of_different_sizes_are_to_be_padded():
    class Ragged(Items):
        def __getitem__(self, index):
            x, y = super().__getitem__(index)
            return x[: 1 + index % 3], y

    with pytest.raises(ValueError, match="pad them to one public length"):
        run(source=Ragged())


def test_a_data_set_is_known_again_by_all_its_items():
    class Drawn(Items):
        def __getitem__(self, index):
            x, y = super().__getitem__(index)
            return x + torch.randn_like(x), y

    other = Items()
    other.x = other.x.clone()
    other.x[17, 0] += 1
    secret = b"a secret"
    assert records(Items()).fingerprint(secret) == records(Items()).fingerprint(secret)
    assert records(Items()).fingerprint(secret) != records(other).fingerprint(secret)
    assert records(Drawn()).fingerprint(secret) == records(Drawn()).fingerprint(secret)
    unread = records(Items(), scan=False)
    unread.check_finite()
    assert unread._survey is None


def test_dictionaries_of_tensors_are_batches():
    x, y = data()
    model = network()
    training = Training(
        model, torch.optim.SGD(model.parameters(), lr=0.1),
        lambda net, batch: LOSS(net(batch["x"]), batch["y"]), {"x": x, "y": y},
        batch_size=20, steps=3, noise_multiplier=1.0, delta=1e-5,
    )  # fmt: skip
    finish(training)
    assert training.done


def test_a_parquet_file_is_trained_on(tmp_path):
    import polars as pl

    from tacit.sgd import table

    x, y = data()
    frame = pl.DataFrame(
        {f"x{i}": x[:, i].numpy() for i in range(FEATURES)} | {"y": y.numpy(), "who": np.arange(ROWS) // 2}
    )
    frame.write_parquet(tmp_path / "people.parquet")
    read = table(tmp_path / "people.parquet", target="y", exclude=["who"])
    assert read.features == ("x0", "x1", "x2", "x3")
    training = run(network(dtype=torch.float32), source=read, groups="who", max_rows=2)
    finish(training)
    assert training.plan.sampler.size == ROWS // 2
    with pytest.raises(ValueError, match="no column 'whom'"):
        run(network(dtype=torch.float32), source=read, groups="whom")
    with pytest.raises(ValueError, match="no column 'z'"):
        table(frame, target="z")
