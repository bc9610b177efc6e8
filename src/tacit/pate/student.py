"""How is a student trained on a few answers and many public rows without one? Supervised, or semi-supervised.

Semi-supervised for torch modules: self-training by a committee (in the manner of Xie et al., "Self-training with noisy
student", 2020). A few models learn the answers on rows that are changed at random; together they label the public rows;
they learn on from those they are sure of. For estimators: self-training, in rounds, on the rows that the student is
surest about.

All of it is post-processing of released answers and public rows, and costs no privacy.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

METHODS = ("semi-supervised", "supervised")


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
        raise ValueError(f"method is one of {', '.join(METHODS)}, not {method!r}")
    if len(labels) == 0:
        raise ValueError("no query was answered, so there is nothing to learn from: ask more, or lower the threshold")
    model = student
    if not (hasattr(model, "fit") and hasattr(model, "predict")) and not hasattr(model, "state_dict"):
        model = student()
    if isinstance(student, type):
        model = student()
    if hasattr(model, "state_dict") and hasattr(model, "forward"):
        return fit_torch(model, x, labels, unlabelled, classes=classes, semi=method == METHODS[0], **options)
    if hasattr(model, "fit") and hasattr(model, "predict"):
        return fit_estimator(model, x, labels, unlabelled, classes=classes, semi=method == METHODS[0], **options)
    raise TypeError(f"a student is a torch module or an estimator with fit and predict, not {type(model).__name__}")


def fit_torch(
    model: Any,
    x: Any,
    labels: NDArray[np.int64],
    unlabelled: Any,
    *,
    classes: int,
    semi: bool = True,
    **options: Any,
) -> Any:
    """One student by :func:`fit_committees`; ``model`` itself is trained and returned."""
    import torch

    known, rest = _tensor(x), _tensor(unlabelled) if len(unlabelled) else None
    everything = known if rest is None or not semi else torch.cat([known, rest])
    found = fit_committees(
        lambda: _fresh(model), everything, [(np.arange(len(known)), labels)], classes=classes, semi=semi, **options
    )[0]
    model.load_state_dict(found.state_dict())
    return model.to(next(found.parameters()).device).eval()


def fit_committees(
    make: Callable[[], Any],
    x: Any,
    answers: Sequence[tuple[NDArray[np.intp], NDArray[np.int64]]],
    *,
    classes: int,
    semi: bool = True,
    committee: int = 3,
    rounds: int = 2,
    steps: int = 600,
    batch_size: int = 64,
    learning_rate: float = 2e-3,
    weight_decay: float = 1e-3,
    sure: float = 0.8,
    average: float = 0.99,
    looks: int = 3,
    weak: Callable[[Any], Any] | None = None,
    strong: Callable[[Any], Any] | None = None,
    device: str | None = None,
    seed: int = 0,
) -> list[Any]:
    """A student for each set of (rows, labels) on the same public rows ``x``, all of them trained in one stack.

    A student is a ``committee`` of models that start from different weights. They learn the answers on rows that are
    changed at random (``strong``); then, in each of ``rounds``, they label all public rows together, by their mean
    over ``looks`` slightly changed copies (``weak``), and learn on from the rows that they are ``sure`` about, with a
    quarter of every batch from the answers themselves. The first member is the student. Without ``semi``: one model,
    the answers.
    """
    import torch

    from tacit.pate import augment
    from tacit.pate.stacked import StackedTeachers

    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    small, large = weak or augment.weak, strong or augment.elastic_or_noise
    rows = _tensor(x).to(place)
    members = committee if semi else 1
    whose = [i for i in range(len(answers)) for _ in range(members)]
    targets = torch.zeros(len(whose), len(rows), classes, device=place)
    for t, i in enumerate(whose):
        where, given = (torch.as_tensor(part, device=place) for part in answers[i])
        targets[t, where, given] = 1.0
    parts = [answers[i][0] for i in whose]
    stacked = StackedTeachers(make, len(whose), seed)
    options: dict[str, Any] = {"batch_size": batch_size, "weight_decay": weight_decay, "augment": large}
    options |= {"average": average, "device": place, "together": len(whose)}
    with torch.random.fork_rng(devices=[place] if place.type == "cuda" else []):
        torch.manual_seed(seed)
        stacked.fit(rows, targets, parts, steps=steps, learning_rate=learning_rate, seed=seed, **options)
        for number in range(1, rounds + 1 if semi else 1):
            seen = sum(stacked.scores(small(rows), together=len(whose), device=place) for _ in range(looks)) / looks
            belief = seen.reshape(len(answers), members, len(rows), classes).mean(dim=1)
            believed = []
            for i, (where, _) in enumerate(answers):
                certain = (belief[i].max(dim=1).values >= sure).cpu().numpy()
                certain[where] = True
                believed.append(np.flatnonzero(certain))
            for t, i in enumerate(whose):
                kept = targets[t, torch.as_tensor(answers[i][0], device=place)].clone()
                targets[t] = torch.nn.functional.one_hot(belief[i].argmax(dim=1), classes).float()
                targets[t, torch.as_tensor(answers[i][0], device=place)] = kept
            stacked.fit(
                rows, targets, [believed[i] for i in whose], anchors=parts, steps=steps,
                learning_rate=learning_rate / 2, seed=seed + number, **options,
            )  # fmt: skip
    return [stacked.models[i * members].eval() for i in range(len(answers))]


def _fresh(module: Any) -> Any:
    """A copy of a module with weights drawn anew."""
    fresh = copy.deepcopy(module)
    for part in fresh.modules():
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()
    return fresh


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
    """Self-training: in each round the unlabelled rows that the student is ``sure`` about get its label.

    Shares of the labels among the added rows are kept as they are among the answers, so that an easy class does not
    crowd out the others. An estimator without ``predict_proba`` is trained on the answers alone.
    """
    x, unlabelled = _array(x), _array(unlabelled)
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
        model.fit(np.concatenate([x, unlabelled[rows]]), np.concatenate([labels, guess[rows]]))
    return model


def _tensor(data: Any) -> Any:
    import torch

    return data if torch.is_tensor(data) else torch.as_tensor(np.asarray(data))


def _array(data: Any) -> Any:
    if hasattr(data, "detach"):
        return data.detach().cpu().numpy()
    return data.to_numpy() if hasattr(data, "to_numpy") else np.asarray(data)
