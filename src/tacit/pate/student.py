"""How is a student trained on a few answers and many public rows without one?

Torch modules learn by FixMatch (:mod:`tacit.pate.learner`), one student or a committee. Estimators learn by
self-training: in rounds, on the rows that they are surest about. ``"supervised"`` uses the answers alone.

All of it is post-processing of released answers and public rows, and costs nothing.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.pate.teachers import ConstantTeacher

METHODS = ("semi-supervised", "supervised", "committee")


def fit(
    student: Any,
    x: Any,
    labels: NDArray[np.int64],
    unlabelled: Any,
    *,
    classes: int,
    method: str = "semi-supervised",
    **options: Any,
) -> Any:
    """Train ``student`` and return it: a torch module, an estimator, or a callable that makes one of them."""
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, not {method!r}")
    if len(labels) == 0:
        raise ValueError(
            "no query was answered, so there is nothing to learn from: ask more queries, or lower threshold="
        )
    model = student
    if not (hasattr(model, "fit") and hasattr(model, "predict")) and not hasattr(model, "state_dict"):
        model = student()
    if isinstance(student, type):
        model = student()
    if hasattr(model, "state_dict") and hasattr(model, "forward"):
        made = student if method == "committee" else model
        return fit_torch(made, x, labels, unlabelled, method=method, **options)
    if method == "committee":
        raise ValueError("method='committee' needs torch modules; use 'semi-supervised' for estimators")
    if hasattr(model, "fit") and hasattr(model, "predict"):
        return fit_estimator(model, x, labels, unlabelled, classes=classes, semi=method == METHODS[0], **options)
    raise TypeError(f"student must be a torch module or an estimator with fit and predict, not {type(model).__name__}")


def fit_torch(
    student: Any,
    x: Any,
    labels: NDArray[np.int64],
    unlabelled: Any,
    *,
    method: str = "semi-supervised",
    members: int = 4,
    rounds: int = 2,
    crossed: bool = False,
    device: str | None = None,
    seed: int = 0,
    weak: Callable[[Any], Any] | None = None,
    strong: Callable[[Any], Any] | None = None,
    **options: Any,
) -> Any:
    """Train a torch student by FixMatch with :class:`tacit.pate.learner.StudentOptions`.

    ``"supervised"`` uses the labelled rows alone. ``"committee"`` trains ``members`` students, which ``student()``
    makes; each further one of ``rounds`` trains as many new ones, on all rows with the mean probabilities of the round
    before. The result is one module. ``crossed`` gives each of the first members half of the labels, so that wrong ones
    stand out (:func:`tacit.pate.learner.committee`). ``weak`` and ``strong`` change a batch a little and a lot
    (default: :mod:`tacit.pate.augment`).
    """
    import torch

    from tacit.pate import learner

    if weak is not None:
        options["weak"] = weak
    if strong is not None:
        options["strong"] = strong
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    known = _tensor(x).to(place)
    # Rows with an answer are also rows: they take part in both losses.
    everything = None
    if method != "supervised" and len(unlabelled):
        everything = torch.cat([known, _tensor(unlabelled).to(place)])
    target = torch.as_tensor(np.asarray(labels), device=place)
    chosen = learner.StudentOptions(**options)
    if method == "committee":
        if hasattr(student, "state_dict") and not isinstance(student, type):
            raise ValueError("a committee has several students: give a function that makes one, not a finished module")
        if crossed and (members < 2 or rounds < 2):
            raise ValueError("crossed=True needs at least two members, who see half of the labels each, and two rounds")
        if members < 1 or rounds < 1:
            raise ValueError(f"members and rounds must be positive whole numbers, not {members} and {rounds}")
        return learner.committee(student, known, target, everything, chosen, members=members, rounds=rounds, seed=seed)[
            -1
        ]
    return learner.learn([learner.Learner(student, known, target, everything, chosen)], seed)[0]


def fit_estimator(
    model: Any,
    x: Any,
    labels: NDArray[np.int64],
    unlabelled: Any,
    *,
    classes: int,
    semi: bool = True,
    rounds: int = 3,
    sure: float = 0.9,
) -> Any:
    """Train an estimator by self-training: in each round the rows that it is ``sure`` about get its own label.

    Added rows keep the shares of the labels among the answers, so that an easy class does not crowd out the others. An
    estimator without ``predict_proba`` is trained on the answers alone. One that refuses answers that are all the same
    becomes a :class:`~tacit.pate.teachers.ConstantTeacher`.
    """
    x, unlabelled = _array(x), _array(unlabelled)
    if (labels == labels[0]).all():
        # Many estimators refuse a single label; what the answers say is that it is always this one.
        try:
            return model.fit(x, labels)
        except ValueError:
            return ConstantTeacher(int(labels[0]))
    model.fit(x, labels)
    if not semi or not len(unlabelled) or not hasattr(model, "predict_proba"):
        return model
    shares = np.bincount(labels, minlength=classes) / len(labels)
    for _ in range(rounds):
        chance = np.asarray(model.predict_proba(unlabelled))
        guess = np.asarray(model.classes_)[chance.argmax(axis=1)]
        belief = chance.max(axis=1)
        confident = belief >= sure
        counts = np.bincount(guess[confident].astype(np.int64), minlength=classes)
        present = (shares > 0) & (counts > 0)
        if not present.any():
            break
        total = float((counts[present] / shares[present]).min())
        added = [
            np.flatnonzero(confident & (guess == c))[np.argsort(-belief[confident & (guess == c)], kind="stable")][
                : int(total * shares[c])
            ]
            for c in np.flatnonzero(present)
        ]
        rows = np.concatenate(added)
        model.fit(_joined(x, unlabelled, rows), np.concatenate([labels, guess[rows]]))
    return model


def _tensor(data: Any) -> Any:
    import torch

    return data if torch.is_tensor(data) else torch.as_tensor(np.asarray(data))


def _array(data: Any) -> Any:
    """Arrays; frames stay frames, because an estimator may name their columns."""
    if hasattr(data, "detach"):
        return data.detach().cpu().numpy()
    return data if hasattr(data, "to_numpy") else np.asarray(data)


def _joined(x: Any, more: Any, rows: NDArray[np.intp]) -> Any:
    """``x`` and below it some rows of ``more``."""
    if not hasattr(x, "to_numpy"):
        return np.concatenate([x, more[rows]])
    frames = importlib.import_module(type(x).__module__.partition(".")[0])  # pandas or polars
    return frames.concat([x, more.iloc[rows] if hasattr(more, "iloc") else more[rows]])
