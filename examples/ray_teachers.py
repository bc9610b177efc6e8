"""Train teachers on a Ray cluster, lose a worker on the way, and get the votes that one machine would have given."""

from __future__ import annotations

import importlib.util
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.naive_bayes import GaussianNB

from tacit.cluster import Ray
from tacit.noise import Key
from tacit.pate import ConfidentGNMax, Teachers

CLASSES, TEACHERS = 3, 64


def patients(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Made up: four measurements and a diagnosis."""
    rng = np.random.default_rng(seed)
    diagnosis = rng.integers(0, CLASSES, rows)
    return rng.normal(size=(rows, 4)) + 2.0 * np.eye(CLASSES, 4)[diagnosis], diagnosis


def main() -> None:
    """The same teachers here and on a cluster of two workers, one of which is killed."""
    if importlib.util.find_spec("ray") is None:
        print("Ray is not installed, so there is nothing to show: pip install 'tacit[ray]'")
        return
    driver, flag = os.getpid(), Path(tempfile.mkdtemp()) / "killed"

    class Bayes(GaussianNB):  # type: ignore[misc]
        def fit(self, x: Any, y: Any) -> Any:
            if os.getpid() != driver and not flag.exists():
                flag.touch()
                os.kill(os.getpid(), signal.SIGKILL)  # a machine that goes away in the middle of its work
            return super().fit(x, y)

    data, (public, truth) = patients(6400, seed=0), patients(500, seed=1)
    key = Key.generate()  # who goes to which teacher; the same key, to compare
    here = Teachers(Bayes, data, TEACHERS, classes=CLASSES, key=key).fit().vote(public)
    there = Teachers(Bayes, data, TEACHERS, classes=CLASSES, key=key, backend=Ray(num_cpus=1)).fit().vote(public)
    print(
        f"a worker was killed: {flag.exists()}; the same votes as on one machine: {(here.counts == there.counts).all()}"
    )

    aggregator = ConfidentGNMax(threshold=45, check_noise=30, vote_noise=15, classes=CLASSES)
    answers = aggregator.answer(there, queries=100)  # noise is added here, once, whoever counted the votes
    right = (answers.labels == truth[:100])[answers.answered].mean()
    print(f"{answers.privacy!r}: {right:.1%} of the answers are right")


if __name__ == "__main__":
    main()
