"""A privacy card and a report for something that is no training run: one noisy mean, charged to a ledger."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from tacit import accounting as acc
from tacit.ledger import EvaluationData, Ledger
from tacit.noise.exact import add_laplace
from tacit.report import Evaluation, Run, Statement, make_card, read_card, write_card, write_page

# Made up: whole hours of work a week, in [0, 80].
HOURS = np.clip(np.random.default_rng(0).normal(38, 12, 2000).round(), 0, 80)


def main() -> None:
    """Release a mean, say what that guarantees, and write both files."""
    ledger = Ledger()
    ledger.register("hours", epsilon=1.0, delta=0.0, unit="person")
    mechanism = acc.Laplace(160 / 80, unit="person")  # one person moves the sum by at most 80; noise of scale 160
    with ledger.charge("hours", mechanism, delta=0.0, purpose="mean hours of work") as charge:
        noisy = add_laplace(float(HOURS.sum()), 160.0) / len(HOURS)
    answer = EvaluationData.private(HOURS, dataset="hours").metric("mean hours", round(noisy, 2), charge)
    run = Run(
        "mean hours of work",
        mechanism,
        delta=1e-12,
        adjacency="zero-out",  # the number of people, by which the sum is divided, is public
        method="Laplace mechanism",
        parameters={"lower": 0, "upper": 80, "scale": 160.0},
        covered=("the noisy mean",),
        uncovered=(),
        tuning="none",
        records_public=True,
        records=len(HOURS),
        public_sources=(),
        pretrained=(),
        generator="operating system's randomness, exact sampling",
        ledger=ledger,
        dataset="hours",
        charge=charge.number,
        evaluations=(Evaluation("mean hours", answer, model="release"),),
        statement=Statement("central: the statistics office", "the mean, in a yearbook"),
    )
    card = make_card(run)
    print(card["guarantee"]["claim"])
    print(f"the mean may leave: {card['evaluation']['0'].source('value')}")
    with tempfile.TemporaryDirectory() as folder:
        path = write_card(card, Path(folder) / "privacy.json")
        page = write_page(read_card(path), Path(folder) / "report.html")
        print(f"privacy.json {path.stat().st_size:,} bytes, report.html {page.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
