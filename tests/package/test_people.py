"""One person with thirty extreme rows in loops: what cards and ledgers say, and wrong versions that are seen.

Everybody takes part in the step (rate 1), the sum is looked at before there is noise, and the data differ in that
person alone. Without a cap the thirty rows move it by thirty clip norms. The right versions are in
``test_every_entry.py``.
"""

from __future__ import annotations

import warnings

import lightning.pytorch as pl
import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.prompts import tiny
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import Trainer, TrainingArguments

import tacit
from tacit import accounting as acc
from tacit.accounting.base import owner_numbers
from tacit.integrations.lightning import PrivateTraining
from tacit.integrations.transformers import make_private
from tacit.ledger import Ledger, TermsError
from tacit.noise import Key
from tacit.opacus import PrivacyEngine
from tacit.prompts import Template, tune
from tacit.report import card, describe, make_card
from tacit.report.page import make_page
from tacit.runs.claims import check_claims, contradicted
from tacit.schema import Boolean, Numeric, Schema, Unit
from tacit.sgd import Classifier, Regressor, Sampling, Training, release
from tacit.sgd.hooked import owners as owned
from tacit.sgd.hooked.draws import PrivateBatches
from tacit.sgd.training import kept
from tacit.sgd.training.data import Units
from tacit.sgd.training.kept import KeptRows
from tacit.sgd.training.sampling import Poisson
from tacit.tuning import PrivateSearchCV, cv

OTHERS, OWN, CLIP = 40, 30, 0.5


@pytest.fixture(autouse=True)
def _quiet(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    for name, value in {"POINTS": 2, "COUNTS": 1, "DELTAS": ()}.items():
        monkeypatch.setattr(card, name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def people(person):
    """Forty people with a row each, and with ``person`` one more, who owns thirty extreme rows."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (OTHERS, 3)).astype(np.float32)
    y, ids = (x[:, 0] > 0).astype(np.int64), np.arange(OTHERS)
    if person:
        x = np.r_[x, np.full((OWN, 3), 1.0, np.float32)]
        y, ids = np.r_[y, np.zeros(OWN, np.int64)], np.r_[ids, np.full(OWN, OTHERS)]
    return x, y, ids


def network():
    """A model that is sure of the wrong class for the person's rows, so that their gradients are long and alike."""
    model = nn.Linear(3, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-9.0] * 3, [9.0] * 3]))
        model.bias.zero_()
    return model


def of_training(x, y, ids, rows=1, **more):
    model = network()
    usual = {"steps": 1, "noise_multiplier": 1.0, "delta": 1e-9, "clip_norm": CLIP, "compile": False}
    if "batch_size" not in more:
        usual["batch_size"] = len(set(ids))
    training = Training(
        model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(reduction="none"),
        (torch.from_numpy(x), torch.from_numpy(y)), groups=ids, max_rows=rows, **{**usual, **more},
    )  # fmt: skip
    for batch in training:
        training.step(batch)
    return training


def of_estimator(kind, x, y, ids, rows=1):
    made = kind(1.0, 1e-9, epochs=1, batch_size=len(set(ids)), bounds=(-1, 1), clip_norm=CLIP, max_rows=rows)
    made.fit(x, y if kind is Classifier else 100.0 * y - 50, groups=ids)


def of_search(x, y, ids, monkeypatch):
    """The first five people are set aside, so that both searches train on the same others."""
    monkeypatch.setattr(cv, "bernoulli", lambda rate, count: np.arange(count) < 5)
    count = len(set(ids)) - 5
    made = Classifier(epochs=1, batch_size=count, bounds=(-1, 1), clip_norm=CLIP, classes=[0, 1])
    search = PrivateSearchCV(
        made, {"learning_rate": [1.0]}, epsilon=3.0, delta=1e-4, method="exponential", score_noise=1.0
    )  # fmt: skip
    search.fit(x, y, groups=ids)


def of_drop_in(x, y, ids, poisson=True, **more):
    model = network()
    engine = PrivacyEngine(**{"groups": ids, **more})
    model, optimizer, loader = engine.make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), noise_multiplier=1.0, max_grad_norm=CLIP,
        data_loader=DataLoader(
            TensorDataset(torch.from_numpy(x), torch.from_numpy(y)), batch_size=len(set(ids)), shuffle=True
        ),
        poisson_sampling=poisson, **({"steps": 1, "target_delta": 1e-9} if "ledger" in more else {}),
    )  # fmt: skip
    for some, targets in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(some), targets).backward()
        optimizer.step()
    return engine


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = network()

    def training_step(self, batch, index):
        return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def of_lightning(x, y, ids, **more):
    private = PrivateTraining(target_delta=1e-9, noise_multiplier=1.0, max_grad_norm=CLIP, **{"groups": ids, **more})
    trainer = pl.Trainer(
        max_steps=1, accelerator="cpu", callbacks=[private], logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False,
    )  # fmt: skip
    data = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    trainer.fit(Module(), DataLoader(data, batch_size=len(set(ids))))
    return private


class Columns(torch.utils.data.Dataset):
    """A data set with columns, as those of Hugging Face are."""

    column_names = ("x", "labels", "who")

    def __init__(self, x, y, ids):
        self.x, self.y, self.ids = x, y, ids

    def __len__(self):
        return len(self.x)

    def __getitem__(self, k):
        return self.ids if k == "who" else {"x": self.x[k], "labels": self.y[k]}


class Wrapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = network()

    def forward(self, x, labels=None):
        return {"logits": self.model(x)}


def of_trainer(x, y, ids, **more):
    arguments = TrainingArguments(
        "out", per_device_train_batch_size=len(set(ids)), max_steps=1, report_to=[], use_cpu=True, disable_tqdm=True,
        remove_unused_columns=False, save_strategy="no",
    )  # fmt: skip
    trainer = Trainer(Wrapped(), arguments, train_dataset=Columns(x, y, ids))

    def loss(model, inputs):
        return nn.functional.cross_entropy(model(inputs["x"])["logits"], inputs["labels"], reduction="none")

    terms = {"groups": "who", **more}
    make_private(trainer, target_delta=1e-9, noise_multiplier=1.0, max_grad_norm=CLIP, loss=loss, **terms)
    trainer.train()
    return trainer


def of_run(x, y, ids):
    """``tacit train`` on a table whose schema names a column of ids."""
    columns = tuple(Numeric(f"x{k}", -1, 1) for k in range(3))
    schema = Schema((*columns, Boolean("ill", target=True)), Unit("patient", column="who"), "clinic")
    frame = polars.DataFrame({**{f"x{k}": x[:, k] for k in range(3)}, "ill": y > 0, "who": ids})
    count = len(set(ids))
    torch.manual_seed(0)
    tacit.run(
        frame, schema=schema, epsilon=3.0, delta=1e-9, steps=1, batch=count, model="linear", clip_norm=CLIP,
        quiet=True, name=f"run-{count}",
    )  # fmt: skip


def test_a_run_on_rows_with_several_owners_says_so_and_stands_up_to_an_audit():
    x, y, owners = jointly(True)
    columns = tuple(Numeric(f"x{k}", -1, 1) for k in range(3))
    schema = Schema((*columns, Boolean("ill", target=True)), Unit("patient", column="who"), "clinic")
    frame = polars.DataFrame({**{f"x{k}": x[:, k] for k in range(3)}, "ill": y > 0, "who": owners})
    terms = {"schema": schema, "noise": 20.0, "delta": 1e-5, "steps": 2, "batch": 5, "model": "linear", "quiet": True}
    with pytest.raises(ValueError, match="draw='rows'"):
        tacit.run(frame, **terms)
    with pytest.raises(ValueError, match="cannot be parted by owner"):
        tacit.run(frame, **terms, draw="rows", public_share=0.2, public_because="they agreed")
    done = tacit.run(frame, **terms, draw="rows", max_rows=4, name="chats")
    details = done.privacy.details
    assert (done.privacy.adjacency, details["max_rows"]) == ("zero-out", 4)
    assert details["size"] == "number of rows treated as public"
    guarantee, public = done.card["guarantee"], "number of rows that take part is treated as public"
    assert guarantee["neighbours"] == f"zero out one patient; the {public}"
    assert guarantee["claim"].endswith(f"The {public}.")
    german = make_page(done.card, "de")
    assert "number of patients" not in str(done.card)
    assert german.count("Zahl der Zeilen, die teilnehmen, gilt") >= 2
    page = done.report.read_text()
    assert "A row may have several owners. Who owns what is public" in page
    assert "At most 4 rows of one patient take part." in page
    assert not contradicted(check_claims(done.folder, done.card, done.settings, None))


def of_prompt(x, y, ids):
    """Thirty texts of one person, who says the same in each."""
    texts = [("a dull film" if row[0] < 0 else "a great film", "yes" if row[0] >= 0 else "no") for row in x[:OTHERS]]
    texts += [("terrible terrible plot", "yes")] * (len(x) - OTHERS)
    tune(
        tiny.llama(), tiny.tokenizer(), Template("review: {text} . sentiment :", instruction="which sentiment is it?"),
        {"no": "bad", "yes": "good"}, texts, method="soft", epsilon=None, noise_multiplier=1.0, delta=1e-9, steps=1,
        batch_size=len(set(ids)), clip_norm=CLIP / 100, groups=ids, max_rows=3, compile=False,
    )  # fmt: skip


def moved(run, monkeypatch, people=people):
    """How far the person moves the first sum, before there is noise."""
    found = []
    for person in (True, False):
        sums = []
        plain = release.noisy_gradients

        def look(given, *rest, plain=plain, sums=sums, **named):
            sums.append(torch.cat([value.detach().double().reshape(-1) for value in given.values()]))
            return plain(given, *rest, **named)

        with monkeypatch.context() as patch:
            patch.setattr(release, "noisy_gradients", look)
            torch.manual_seed(0)
            run(*people(person))
        found.append(sums[0])
    return float((found[0] - found[1]).norm()) / CLIP


ENTRIES = {
    "Training": of_training,
    "Training, 7 rows": lambda *data: of_training(*data, rows=7),
    "Training, all rows": lambda *data: of_training(*data, rows=OWN),
    "balls in bins": lambda *data: of_training(*data, rows=2, sampler="balls-in-bins"),
    "Classifier": lambda *data: of_estimator(Classifier, *data, rows=3),
    "Regressor": lambda *data: of_estimator(Regressor, *data),
    "drop-in": of_drop_in,
    "drop-in, passes": lambda *data: of_drop_in(*data, poisson=False),
    "Lightning": of_lightning,
    "Trainer": of_trainer,
    "tacit train": of_run,
}
LOOPS = {"drop-in": of_drop_in, "Lightning": of_lightning, "Trainer": of_trainer}


def jointly(person):
    """Chats that people own together: the thirty of one are with others, and say something extreme or nothing."""
    x, y, ids = people(True)
    x[OTHERS:] = 1.0 if person else -1.0
    owners = [[int(k)] for k in ids[:OTHERS]] + [[OTHERS, 100 + k] for k in range(OWN)]
    return x, y, owners


def of_rows(x, y, ids, rows=4, **more):
    count = len(KeptRows.of(ids, len(x), rows))
    return of_training(x, y, ids, rows=rows, **{"draw": "rows", "batch_size": count, "noise_multiplier": 8.0, **more})


def test_rows_that_are_drawn_and_not_left_out_are_seen(monkeypatch):
    with monkeypatch.context() as patch:
        for kind in (kept.RowsOfUnits, kept.SharedRows):
            patch.setattr(kind, "rows", lambda self, key: np.arange(self.there))
            patch.setattr(kind, "__len__", lambda self: self.there)
        assert moved(of_rows, monkeypatch) > 25
        assert moved(of_rows, monkeypatch, jointly) > 25


def test_rows_are_priced_as_a_group_and_the_card_says_so():
    run = of_rows(*jointly(True), steps=5, batch_size=20)
    mechanism = run.plan.mechanism
    step = acc.PoissonSampled(acc.Gaussian(8.0, unit="person"), 20 / run.plan.sampler.size)
    group = acc.epsilon(step * 5, 1e-6, adjacency="zero-out", group=4)
    price = acc.epsilon(mechanism, 1e-6, adjacency="zero-out")  # with the tail of the noise generator
    assert group.lower <= price.upper <= group.upper * (1 + 1e-4)
    assert (run.privacy.adjacency, run.privacy.unit, run.privacy.details["max_rows"]) == ("zero-out", "person", 4)
    shown = make_card(describe(run, "chats"))
    said = " ".join(shown["accountant"]["assumptions"])
    assert "Who owns what is public" in said
    assert "At most 4 rows of one person are in the run" in said
    left = run.units.diagnostics()
    assert left.left_out == 26
    assert "operator view" in repr(left)
    with pytest.raises(ValueError, match="who owns what is public and neighbours differ"):
        of_rows(*jointly(True), adjacency="add-remove")
    with pytest.raises(ValueError, match="rows have several owners"):
        of_training(*jointly(True)[:2], [tuple(own) for own in jointly(True)[2]], draw="units")
    with pytest.raises(ValueError, match="priced for Poisson sampling"):
        of_rows(*people(True), sampler="balls-in-bins")
    with pytest.raises(ValueError, match="draw='rows' needs groups"):
        Sampling(batch_size=2, steps=1, draw="rows")
    with pytest.raises(ValueError, match="draw must be 'units' or 'rows'"):
        Sampling(batch_size=2, steps=1, draw="people")


LISTS = [["ann", "bob"], ["ann"], ["bob", "bob"]] * 20
LISTED = {
    "polars": lambda: polars.Series(LISTS),
    "polars, of one length": lambda: polars.Series(
        [own[:1] * 2 for own in LISTS], dtype=polars.Array(polars.String, 2)
    ),
    "pandas": lambda: pd.Series(LISTS, index=range(5, 65)),
    "arrow": lambda: pa.array(LISTS),
    "arrow, in pieces": lambda: pa.chunked_array([LISTS[:30], LISTS[30:]]),
    "numpy": lambda: polars.Series(LISTS).to_numpy(),
    "sets": lambda: [set(own) for own in LISTS],
}


@pytest.mark.parametrize("form", LISTED)
def test_lists_of_owners_are_taken_from_any_library(form):
    ids = LISTED[form]()
    owners = [own[:1] for own in LISTS] if "length" in form else LISTS
    found, known = KeptRows.of(ids, 60, most=4), KeptRows.of(owners, 60, most=4)
    assert found.several
    assert found.rows(Key(bytes(32))).tolist() == known.rows(Key(bytes(32))).tolist()
    with pytest.raises(ValueError, match="people cannot be drawn one by one"):
        of_training(*people(True)[:2], ids, draw="units", batch_size=5)
    with pytest.raises(ValueError, match=r"a list of ids for a row|must be one-dimensional"):
        owner_numbers(ids)


def test_a_row_without_a_list_beside_rows_with_one_is_refused():
    for some in ("ann", None, 3):
        with pytest.raises(ValueError, match="for some rows and not for others"):
            KeptRows.of([["ann"], some], 2, most=1)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sets(st.integers(0, 8), min_size=1, max_size=4), min_size=1, max_size=40), st.integers(1, 5))
def test_the_greedy_bound_holds_and_leaves_out_no_more_than_it_must(owners, most):
    ids = [sorted(own) for own in owners]
    found = KeptRows.of(ids, len(ids), most)
    kept = found.rows(Key(bytes(32))).tolist()
    counts = {who: sum(who in ids[row] for row in kept) for who in range(9)}
    assert max(counts.values()) <= most
    assert len(found) == len(kept)
    for row in set(range(len(ids))) - set(kept):
        assert any(counts[who] == most for who in ids[row])


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.integers(1, 5), st.binary(min_size=32, max_size=32))
def test_a_person_keeps_as_many_rows_as_the_cap_allows_whatever_the_key(ids, most, secret):
    found = KeptRows.of(ids, len(ids), most)
    kept = found.rows(Key(secret))
    assert len(found) == len(set(kept.tolist())) == len(kept)
    for who in set(ids):
        assert sum(ids[row] == who for row in kept) == min(most, ids.count(who))


@pytest.mark.parametrize("entry", LOOPS)
def test_a_cap_that_is_not_applied_is_seen(entry, monkeypatch):
    """Wrong versions: every row of a person is taken, or a person is drawn twice."""

    def every(self, chosen, key, draw):
        return np.concatenate([self.units.order[self.units.starts[u] : self.units.starts[u + 1]] for u in chosen])

    plain = owned.Owners.records
    for wrong, least in ((every, 25), (lambda self, chosen, *rest: plain(self, np.repeat(chosen, 2), *rest), 1.9)):
        with monkeypatch.context() as patch:
            patch.setattr(owned.Owners, "records", lambda self, *rest, wrong=wrong: (
                wrong(self, *rest) if self.units is not None else rest[0]
            ))  # fmt: skip
            assert moved(LOOPS[entry], monkeypatch) > least


def test_wrong_versions_of_a_run_are_seen(monkeypatch):
    """A person with more rows than the cap is split over places, and ids are made of what the rows say."""
    plain = Units.choose

    def apart(self, chosen, most, key, step):
        rows, weights = plain(self, np.repeat(chosen, 2), most, key, step)
        return rows, weights

    monkeypatch.setattr(Units, "choose", apart)
    assert moved(of_training, monkeypatch) > 1.9
    monkeypatch.undo()

    def by_content(x, y, ids):
        jitter = x + np.linspace(0, 0.01, len(x), dtype=np.float32)[:, None]
        of_training(jitter, y, [hash(row.tobytes()) for row in jitter])

    assert moved(by_content, monkeypatch) > 25


@pytest.mark.parametrize("entry", LOOPS)
def test_a_ledger_for_persons_takes_a_loop_with_ids_and_no_other(entry):
    ledger = Ledger()
    ledger.register("clinic", unit="patient", adjacency="add-remove", epsilon=50.0, delta=1e-6)
    data = people(True)
    with pytest.raises(TermsError, match=r"one patient, and this loop protects one record: give groups="):
        LOOPS[entry](*data, ledger=ledger, dataset="clinic", groups=None)
    with pytest.raises(TermsError, match=r"protects one person: give groups=.*unit='patient'"):
        LOOPS[entry](*data, ledger=ledger, dataset="clinic")
    done = LOOPS[entry](*data, ledger=ledger, dataset="clinic", unit="patient")
    (charge,) = ledger.history("clinic")
    assert charge.mechanism.unit == "patient"
    said = done.privacy(1e-9) if entry == "drop-in" else done.privacy
    assert (said.unit, said.details["max_rows"]) == ("patient", 1)
    assert said.details["size"] == "number of patients treated as public"


def test_a_run_that_resumes_or_goes_on_counts_people(tmp_path):
    engine = of_drop_in(*people(True))
    again = PrivacyEngine(groups=people(True)[2])
    again.accountant.load_state_dict(engine.accountant.state_dict())
    assert again.accountant.privacy(1e-9).unit == "person"
    assert again.accountant.get_epsilon(1e-9) == engine.get_epsilon(1e-9)


def test_the_card_says_unit_and_cap():
    shown = make_card(describe(of_training(*people(True), rows=7), "visits"))
    assert shown["guarantee"]["unit"] == "person"
    assert any("at most 7 rows of one person: of more, 7 are drawn" in s for s in shown["accountant"]["assumptions"])
    plain = make_card(describe(of_training(*people(False)), "visits"))  # a row each: no cap to speak of
    assert not any("at most" in s for s in plain["accountant"]["assumptions"])


def test_the_card_says_that_one_row_is_kept_for_the_run_where_rows_are_drawn():
    plain, several = people(True), jointly(True)
    for data, said in ((plain, "of more, 1 is kept"), (several, "others are left out")):
        shown = make_card(describe(of_rows(*data, rows=1), "visits"))
        assert any(
            f"At most 1 row of one person is in the run: {said}" in s for s in shown["accountant"]["assumptions"]
        )


def test_ranks_that_share_a_draw_take_the_records_of_one_process():
    """Wrong version: each rank chooses for its own people, by the words that the others use for theirs."""
    ids = np.repeat(np.arange(50), np.arange(1, 51))
    owners = owned.Owners.of(ids, None, ids)

    def drawn(rank, world):
        sampler = Poisson(50, 40)
        return list(PrivateBatches(sampler, Key(bytes(32)), 50, parts=1, share=(rank, world), owners=owners))

    parts = [drawn(rank, 3) for rank in range(3)]
    for whole, *shared in zip(drawn(0, 1), *parts, strict=True):
        assert sorted(whole) == sorted(k for part in shared for k in part)
        assert len({ids[k] for k in whole}) == len(whole)


class Formatted(Columns):
    """With a format that leaves columns out, as Hugging Face's data sets may have."""

    whole = None

    def with_format(self, kind):
        return self.whole

    def __getitem__(self, k):
        return {"x": self.x[k], "labels": self.y[k]}[k] if isinstance(k, str) else super().__getitem__(k)


def test_a_column_of_a_data_set_holds_the_ids_of_a_training():
    x, y, ids = people(True)
    data = Formatted(x, y, ids)
    data.whole = Columns(x, y, ids)

    def loss(model, batch):
        return nn.functional.cross_entropy(model(batch["x"]), batch["labels"], reduction="none")

    for some in (data, data.whole):
        model = network()
        terms = {"groups": "who", "batch_size": 5, "steps": 1, "noise_multiplier": 1.0, "delta": 1e-9}
        made = Training(model, torch.optim.SGD(model.parameters(), lr=0.1), loss, some, compile=False, **terms)
        assert made.plan.sampler.size == OTHERS + 1
        with pytest.raises(ValueError, match="names a column"):
            Training(model, made.optimizer, loss, some, **{**terms, "groups": "nobody"})


def test_a_column_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="names a column"):
        of_drop_in(*people(True)[:2], "who")


def test_of_each_person_rows_are_drawn_alike_and_anew_in_each_step():
    ids = np.r_[np.repeat(np.arange(20), 5), np.arange(20, 30)]
    units, key, seen = Units.of(ids, len(ids)), Key(bytes(32)), np.zeros(len(ids))
    for step in range(500):
        rows, weights = units.choose(np.arange(30), 2, key, step)
        assert (ids[rows] == np.arange(30)[:, None]).all()
        assert (rows[:20, 0] < rows[:20, 1]).all()
        assert (weights[20:] == [2, 0]).all()
        np.add.at(seen, rows[:20].ravel(), 1)
    assert (np.abs(seen[:100] - 200) < 10 * np.sqrt(500 * 0.4 * 0.6)).all()
    assert units.choose(np.zeros(0, np.int64), 2, key, 0)[0].shape == (0, 2)
