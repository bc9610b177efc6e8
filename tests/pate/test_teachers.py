"""Teachers: disjoint people, every kind of model, and a vote from each whatever happens."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import csr_array
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.tree import DecisionTreeClassifier

import tacit.pate
from tacit.ledger import OperatorView
from tacit.noise import Key
from tacit.pate import ConfidentGNMax, Teachers, TeacherWarning, VoteCounts
from tacit.pate.partition import contents, keyed

KEY = Key(bytes(range(32)))


def data(rows=600, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, rows)
    return (rng.normal(size=(rows, 4)) + 3 * np.eye(classes, 4)[y]).astype(np.float32), y


def network():
    return torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(8, 3)
    )


def centroids(x, y):
    """Any callable: trained by a call, it gives a callable."""
    found = {c: x[y == c].mean(axis=0) for c in set(y.tolist())}
    return lambda rows: np.array([min(found, key=lambda c: ((row - found[c]) ** 2).sum()) for row in rows])


@pytest.mark.parametrize("make_model", [network, LogisticRegression, DecisionTreeClassifier(max_depth=3), centroids])
def test_any_kind_of_model_teaches_and_the_example_of_the_guide_runs_as_it_stands(make_model):
    train, (public_x, public_y) = data(), data(rows=200, seed=1)
    teachers = tacit.pate.Teachers(make_model, train, n=12)
    votes = teachers.fit(steps=80).vote(public_x)
    answers = ConfidentGNMax(threshold=8, check_noise=2, vote_noise=2, classes=3).answer(votes, queries=120)
    student = answers.fit(LogisticRegression())
    assert (student.predict(public_x) == public_y).mean() > 0.65
    assert votes.counts.sum(axis=1).tolist() == [12] * 200
    assert "not publishable" in repr(answers)


def test_adding_one_person_changes_one_part_only_and_a_person_is_whole():
    rng = np.random.default_rng(0)
    people = rng.integers(0, 300, 2000)
    parts = keyed(people, 20, KEY)
    for person in (7, 150):
        assert len(set(parts[people == person].tolist())) == 1
    without = people != 150
    assert (keyed(people[without], 20, KEY) == parts[without]).all()
    text, number = keyed(["1", 1], 10**6, KEY)
    assert text != number  # two people


@pytest.mark.parametrize("make_model", [network, centroids])
def test_one_person_more_moves_at_most_one_vote_a_query(make_model):
    (x, y), (public_x, _) = data(rows=300), data(rows=60, seed=2)
    people = np.arange(300) // 3

    def counts(rows):
        teachers = Teachers(make_model, (x[rows], y[rows]), n=8, groups=people[rows], key=KEY, classes=3)
        return teachers.fit(steps=30).vote(public_x)

    full = counts(np.arange(300))
    assert (full.partition, full.unit) == ("keyed", "person")
    for person in (3, 60):
        fewer = counts(np.flatnonzero(people != person))
        moved = np.abs(full.counts - fewer.counts).sum(axis=1)
        assert moved.max() <= 2


def test_a_person_with_a_label_nobody_else_has_moves_no_vote_of_teachers_without_data():
    (x, y), (public_x, _) = data(rows=30, classes=2), data(rows=50, seed=2)
    tree = DecisionTreeClassifier()  # no classes=: the columns follow from the votes
    before = Teachers(tree, (x, y), n=60, key=KEY).fit().vote(public_x)
    after = Teachers(tree, (np.append(x, x[:1] + 9, axis=0), np.append(y, 9)), n=60, key=KEY).fit().vote(public_x)
    first, second = np.zeros((2, 50, 10), int)
    first[:, : before.classes], second[:, : after.classes] = before.counts, after.counts
    assert after.classes == 10
    assert np.abs(first - second).sum(axis=1).max() <= 2


class DrawsByItsRows(torch.nn.Module):
    """Its rows decide how many random numbers it draws, and vmap cannot run it."""

    def __init__(self):
        super().__init__()
        self.last = torch.nn.Linear(4, 3)

    def forward(self, x):
        return self.last(x if float(x.sum()) > 1e9 else torch.nn.functional.dropout(x, 0.3, self.training))


def test_what_one_model_draws_changes_no_other_teacher():
    x, y = data(rows=60)
    before = Teachers(DrawsByItsRows, (x, y), n=6, key=KEY).fit(steps=10)
    far = np.full((1, 4), 1e12, np.float32)
    after = Teachers(DrawsByItsRows, (np.append(x, far, axis=0), np.append(y, 0)), n=6, key=KEY).fit(steps=10)
    pairs = zip(before._fitted[0].models, after._fitted[0].models, strict=True)
    assert sum(not torch.equal(one.last.weight, other.last.weight) for one, other in pairs) == 1


def test_records_without_identifiers_are_dealt_out_by_what_they_hold():
    x, y = data(rows=400)
    one = Teachers(centroids, (x, y), n=7, key=KEY)
    other = Teachers(centroids, (x[1:], y[1:]), n=7, key=KEY)
    changed = sum(not np.array_equal(x[a], x[1:][b]) for a, b in zip(one._parts, other._parts, strict=True))
    assert changed == 1


def test_how_a_table_keeps_a_record_does_not_move_anybody():
    count = 100
    texts, labels = np.array([f"t{i}" for i in range(count)]), np.array(["no", "yes"] * (count // 2))
    whole, both = pd.DataFrame({"a": range(count)}), pd.DataFrame({"a": range(count), "b": texts})
    for x, added in (
        (texts, np.append(texts, "a much longer text")),
        (whole, pd.concat([whole, pd.DataFrame({"a": [np.nan]})])),  # whole numbers become floating-point ones
        (both, pd.concat([both, pd.DataFrame({"a": [0.5], "b": ["z"]})])),
        (whole, pd.concat([whole.astype(object), pd.DataFrame({"a": ["?"]})])),
        (np.arange(count).astype("M8[D]"), np.arange(count + 1).astype("M8[D]")),
        (both.to_records(), np.append(both.to_records(), both.to_records()[:1])),
    ):
        for more in ("no", "perhaps"):  # a longer label too
            before = contents(x, labels)
            assert contents(added, np.append(labels, more))[:count] == before
            assert len(set(before)) == count
    ids = np.arange(count)
    assert (keyed(np.append(ids.astype(float), np.nan), 20, KEY)[:count] == keyed(ids, 20, KEY)).all()


def test_parts_by_position_are_equal_and_say_that_only_replacing_is_covered():
    x, y = data(rows=103)
    teachers = Teachers(centroids, (x, y), n=10, partition="positions", classes=3)
    seen = teachers.diagnostics()
    assert (seen.smallest_part, seen.largest_part) == (10, 11)
    votes = teachers.fit().vote(x[:5])
    answers = ConfidentGNMax(threshold=5, check_noise=2, vote_noise=2, classes=3).answer(votes, queries=5)
    assert "replace one record" in repr(answers)


def test_more_teachers_than_people_and_a_missing_class_are_no_trouble():
    x, y = data(rows=6, classes=2)
    votes = Teachers(LogisticRegression, (x, y), n=40, classes=3).fit().vote(x)
    assert votes.counts.shape == (6, 3)
    assert votes.counts.sum(axis=1).tolist() == [40] * 6  # also those without anybody vote
    stacked = Teachers(network, (x, y), n=10).fit(steps=5).vote(x)
    assert stacked.counts.shape == (6, 3)
    one_label = Teachers(LogisticRegression, (x, np.zeros(6, int)), n=2, classes=2).fit().vote(x)
    assert (one_label.counts[:, 0] >= 1).all()


def test_a_teacher_that_fails_is_tried_again_and_reported():
    x, y = data(rows=300)
    tries = []

    def shaky(rows, labels):
        tries.append(len(rows))
        if len(tries) in (1, 2):
            raise RuntimeError("out of luck")
        return centroids(rows, labels)

    teachers = Teachers(shaky, (x, y), n=5, classes=3).fit()
    assert len(tries) == 7  # five teachers, the first at its third try
    assert teachers.diagnostics().failed == {}

    part = Teachers(centroids, (x, y), n=5, classes=3, key=KEY)._parts[2]

    def never(rows, labels):
        if len(rows) == len(part) and np.array_equal(rows, x[part]):
            raise RuntimeError("never works")
        return centroids(rows, labels)

    with pytest.warns(TeacherWarning, match="1 of 5 teachers failed"):
        teachers = Teachers(never, (x, y), n=5, classes=3, key=KEY).fit()
    assert list(teachers.diagnostics().failed) == [2]
    assert teachers.vote(x).counts.sum(axis=1).tolist() == [5] * 300

    def broken(rows, labels):
        raise RuntimeError("a mistake in the model")

    with pytest.raises(RuntimeError, match=r"every teacher failed, the first of them with \w+Error; diagnostics"):
        Teachers(broken, (x, y), n=5).fit()


def test_stacked_teachers_learn_what_each_would_alone():
    (x, y), (public_x, public_y) = data(rows=400), data(rows=200, seed=3)
    together = Teachers(network, (x, y), n=6, key=KEY).fit(steps=150, learning_rate=1e-2)
    seen = together.diagnostics(public_x, public_y)
    assert seen.accuracy_least > 0.7
    assert isinstance(seen, OperatorView)

    class Odd(torch.nn.Module):
        """Looks at values, which vmap cannot."""

        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 3)

        def forward(self, rows):
            return self.layer(rows) if rows.sum().item() > -1e9 else self.layer(-rows)

    alone = Teachers(Odd, (x, y), n=4, key=KEY).fit(steps=100, learning_rate=5e-2)
    assert alone.diagnostics(public_x, public_y).accuracy_mean > 0.8


def test_labels_of_any_kind_are_mapped_by_the_public_list():
    x, y = data(rows=200, classes=2)
    names = np.array(["no", "yes"])[y]
    votes = Teachers(LogisticRegression, (x, names), n=5, classes=["no", "yes"]).fit().vote(x)
    assert (votes.counts.argmax(axis=1) == y).mean() > 0.8
    with pytest.raises(ValueError, match="public list"):
        Teachers(LogisticRegression, (x, names), n=5)
    with pytest.raises(ValueError, match="not among"):
        Teachers(LogisticRegression, (x, names), n=5, classes=["no", "perhaps"])


def test_a_torch_data_set_is_data_too():
    x, y = data(rows=90)
    pairs = [(torch.as_tensor(a), int(b)) for a, b in zip(x, y, strict=True)]

    class Pairs(torch.utils.data.Dataset):
        def __len__(self):
            return len(pairs)

        def __getitem__(self, i):
            return pairs[i]

    tensors = torch.utils.data.TensorDataset(torch.as_tensor(x), torch.as_tensor(y))
    found = [Teachers(centroids, given, n=4, key=KEY).fit().vote(x).counts for given in ((x, y), tensors, Pairs())]
    assert (found[0] == found[1]).all()
    assert (found[0] == found[2]).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": [1, 2, 3]}, "records and as many labels"),
        ({"n": 0}, "number of teachers"),
        ({"groups": [1, 2]}, "one id for each row"),
        ({"unit": "person"}, r"only a word.*groups=, the id of every row's owner"),
        ({"partition": "random"}, "partition"),
        ({"data": (np.zeros((0, 2)), np.zeros(0, int))}, "no records"),
    ],
)
def test_bad_input_says_what_to_do(change, message):
    x, y = data(rows=20)
    arguments = {"data": (x, y), "n": 3} | change
    with pytest.raises(ValueError, match=message):
        Teachers(LogisticRegression, **arguments)


@pytest.mark.slow
def test_estimators_are_trained_in_processes():
    x, y = data(rows=120)
    one = Teachers(DecisionTreeClassifier, (x, y), n=4, key=KEY, classes=3).fit()
    many = Teachers(DecisionTreeClassifier, (x, y), n=4, key=KEY, classes=3).fit(n_jobs=2)
    assert (one.vote(x).counts == many.vote(x).counts).all()


def test_unlabelled_rows_do_not_hurt_a_torch_student():
    rng = np.random.default_rng(5)
    y = rng.integers(0, 2, 1500)
    angle = rng.uniform(0, np.pi, 1500)
    moons = np.stack([np.cos(angle) + y, np.where(y == 1, 0.4 - np.sin(angle), np.sin(angle))], 1)
    moons = (moons + 0.1 * rng.normal(size=moons.shape)).astype(np.float32)
    votes = VoteCounts(np.where(np.arange(2) == y[:, None], 1000, 0), teachers=1000, x=moons)
    answers = ConfidentGNMax(threshold=10, check_noise=1, vote_noise=1, classes=2).answer(votes, queries=12)

    def net():
        return torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))

    options = {"steps": 250, "batch_size": 32, "learning_rate": 1e-2, "sure": 0.8}

    def noisy(rows):
        return rows + 0.15 * torch.randn_like(rows)

    def accuracy(method):
        torch.manual_seed(0)
        student = answers.fit(net, **options, method=method, weak=lambda rows: rows, strong=noisy)
        with torch.no_grad():
            return float((student(torch.as_tensor(moons)).argmax(1).numpy() == y).mean())

    plain, lifted = accuracy("supervised"), accuracy("semi-supervised")
    assert plain > 0.7
    assert lifted >= plain - 0.01


def test_answers_that_are_all_alike_make_a_student_that_says_so():
    rows = np.random.default_rng(0).normal(size=(20, 2))
    answers = tacit.pate.GNMax(vote_noise=1, classes=2).answer([[0, 100]] * 20, queries=15)
    assert answers.fit(LogisticRegression(), rows).predict(rows).tolist() == [1] * 20


def test_frames_stay_frames_for_teachers_and_student():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"size": rng.normal(size=400), "kind": rng.choice(["a", "b"], 400)})
    named = make_column_transformer((OneHotEncoder(), ["kind"]), remainder="passthrough")
    model = make_pipeline(named, LogisticRegression())
    votes = Teachers(model, (frame, (frame["size"] > 0).astype(int)), n=8, classes=2).fit().vote(frame[:60])
    student = tacit.pate.GNMax(vote_noise=0.1, classes=2).answer(votes, queries=60).fit(model)
    assert (student.predict(frame[:60]) == (frame["size"][:60] > 0)).mean() > 0.8
    with pytest.raises(TypeError, match="sparse"):
        Teachers(model, (csr_array(np.eye(3)), [0, 1, 0]), n=2)


def test_a_student_needs_an_answer():
    votes = VoteCounts(np.array([[5, 5]] * 4), teachers=10, x=np.zeros((4, 2)))
    answers = ConfidentGNMax(threshold=1e6, check_noise=1, vote_noise=1, classes=2).answer(votes, queries=4)
    with pytest.raises(ValueError, match="no query was answered"):
        answers.fit(LogisticRegression())
