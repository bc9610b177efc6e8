"""Learn from teachers' noisy votes: hospitals that cannot pool their patients label public rows together."""

from __future__ import annotations

import numpy as np
from sklearn.linear_model import LogisticRegression

from tacit import pate
from tacit.ledger import Ledger

CLASSES = 3


def patients(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Made up: four measurements, a diagnosis, and who the row is about (some have several rows)."""
    rng = np.random.default_rng(seed)
    diagnosis = rng.integers(0, CLASSES, rows)
    measured = rng.normal(size=(rows, 4)) + 2.5 * np.eye(CLASSES, 4)[diagnosis]
    return measured, diagnosis, rng.integers(0, rows // 2, rows)


def main() -> None:
    """Train teachers, vote, answer under a ledger, publish a student."""
    x, y, person = patients(6000, seed=0)
    public_x, truth, _ = patients(1500, seed=1)
    ledger = Ledger()
    ledger.register("patients", unit="person", epsilon=4.0, delta=1e-5, charges=2)

    teachers = pate.Teachers(LogisticRegression, (x, y), n=100, groups=person, classes=CLASSES)
    votes = teachers.fit().vote(public_x)  # one histogram a query; prints without a number
    print(votes)
    aggregator = pate.ConfidentGNMax(threshold=70, check_noise=40, vote_noise=20, classes=CLASSES)
    answers = aggregator.answer(votes, epsilon=2.0, delta=5e-6, ledger=ledger, dataset="patients")
    student = answers.fit(LogisticRegression())
    print(answers.privacy)  # three accounts, and which of them may be published
    print(f"the student is right on {(student.predict(public_x) == truth).mean():.1%} of public rows")
    print(answers.release().to_json())


if __name__ == "__main__":
    main()
