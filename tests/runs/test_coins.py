"""How the coins of a search fell is private, and so is all that follows from it."""

from __future__ import annotations

import random

from tacit.runs import search
from tacit.schema import Boolean, Numeric, Schema, Unit

SETTINGS = """data = "{folder}/people.csv"
schema = "{folder}/schema.toml"
model = "linear"
epsilon = 3.0
delta = 1e-5
steps = 2
batch = 20
[space]
learning_rate = [0.1]
[search]
runs = 2
validation_every = 3
"""


class Uncalibrated:
    """A search whose noise nobody has looked for, which takes many seconds."""

    def __init__(self, space, train, score, **settings):
        self.train = train


def test_a_search_without_a_size_is_priced_alike_however_its_coins_fall(tmp_path, monkeypatch):
    monkeypatch.setattr(search, "PrivateSearch", Uncalibrated)
    rows = [f"{random.Random(k).random()},{k % 2}" for k in range(40)]
    (tmp_path / "people.csv").write_text("\n".join(["a,b", *rows]))
    schema = Schema((Numeric("a", 0, 1), Boolean("b", true="1", false="0", target=True)), Unit("record"))
    (tmp_path / "schema.toml").write_text(schema.to_toml())
    (tmp_path / "tune.toml").write_text(SETTINGS.format(folder=tmp_path))
    run = search.read(tmp_path / "tune.toml")
    records = run.read()
    keys = [bytes([0] * 16), bytes([2] * 16)]
    assert len({len(search.parted(records, 3, key)[0][0]) for key in keys}) == 2
    runs = [run.over(records, tmp_path / "private", key).train({"learning_rate": 0.1}, 2.0) for key in keys]
    assert runs[0].plan.mechanism == runs[1].plan.mechanism
