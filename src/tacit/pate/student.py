"""How is a student trained on a few answers and many public rows without one? Supervised, or semi-supervised.

Semi-supervised for torch modules: FixMatch (Sohn et al. 2020). The student labels an unlabelled row that was changed a
little; where it is sure, it is trained to give that label to the same row changed a lot. What labels, and what is kept,
is the average of its weights over time. For estimators: self-training, in rounds, on the rows that it is surest about.

All of it is post-processing of released answers and public rows, and costs no privacy.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
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
        return fit_torch(model, x, labels, unlabelled, semi=method == METHODS[0], **options)
    if hasattr(model, "fit") and hasattr(model, "predict"):
        return fit_estimator(model, x, labels, unlabelled, classes=classes, semi=method == METHODS[0], **options)
    raise TypeError(f"a student is a torch module or an estimator with fit and predict, not {type(model).__name__}")


def fit_torch(
    model: Any,
    x: Any,
    labels: NDArray[np.int64],
    unlabelled: Any,
    *,
    semi: bool = True,
    steps: int = 1500,
    batch_size: int = 64,
    ratio: int = 4,
    learning_rate: float = 2e-3,
    weight_decay: float = 5e-4,
    alone: float = 0.15,
    sure: float = 0.95,
    average: float = 0.99,
    weak: Callable[[Any], Any] | None = None,
    strong: Callable[[Any], Any] | None = None,
    device: str | None = None,
    seed: int = 0,
) -> Any:
    """FixMatch with ``ratio`` unlabelled rows to a labelled one; without ``semi`` the labelled ones alone.

    The first share ``alone`` of the steps learns from the answers only: what is believed later should not be what a
    beginner believed. ``sure`` is the probability from which a row's own label is believed, by the average of the
    weights over time (decay ``average``), which is also what the student ends with. ``weak`` and ``strong`` change a
    batch a little and a lot (default: :mod:`tacit.pate.augment`).
    """
    import torch
    from torch.nn import functional

    from tacit.pate import augment

    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    small, large = weak or augment.weak, strong or augment.strong
    known = _tensor(x).to(place)
    # Rows with an answer are also rows: they take part in both losses.
    everything = torch.cat([known, _tensor(unlabelled).to(place)]) if semi and len(unlabelled) else known
    target = torch.as_tensor(np.asarray(labels), device=place)
    model = model.to(place).train()
    kept = copy.deepcopy(model).eval()
    fused = place.type == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=weight_decay, fused=fused)
    generator = torch.Generator(device=place)
    generator.manual_seed(seed)
    pairs = list(zip(kept.parameters(), model.parameters(), strict=True))
    means, nows = [mean.data for mean, _ in pairs], [now.data for _, now in pairs]
    with torch.random.fork_rng(devices=[place] if place.type == "cuda" else []):
        torch.manual_seed(seed)
        for step in range(steps):
            for group in optimizer.param_groups:
                warm = min(1.0, (step + 1) / max(1, steps // 30))
                group["lr"] = learning_rate * warm * 0.5 * (1 + math.cos(math.pi * step / steps))
            chosen = torch.randint(len(known), (batch_size,), generator=generator, device=place)
            if not semi or step < alone * steps:
                loss = functional.cross_entropy(model(large(known[chosen])), target[chosen])
            else:
                other = torch.randint(len(everything), (ratio * batch_size,), generator=generator, device=place)
                rows = everything[other]
                with torch.no_grad():
                    belief, guess = kept(small(rows)).softmax(1).max(1)
                logits = model(large(torch.cat([known[chosen], rows])))
                first = functional.cross_entropy(logits[:batch_size], target[chosen])
                second = functional.cross_entropy(logits[batch_size:], guess, reduction="none")
                loss = first + (second * (belief >= sure)).mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                torch._foreach_lerp_(means, nows, 1 - min(average, (1 + step) / (10 + step)))
                for mean, now in zip(kept.buffers(), model.buffers(), strict=True):
                    mean.copy_(now)
    model.load_state_dict(kept.state_dict())
    return model.eval()


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
