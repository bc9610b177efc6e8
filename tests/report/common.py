"""What the tests of the card and the report share: a real run, charged to a ledger, evaluated on public data."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import nn

from tacit.ledger import EvaluationData, Ledger, charged
from tacit.report import Evaluation, PublicSource, Run, Statement, describe
from tacit.sgd import Training

ROWS = 300


def trained(ledger: Ledger | None = None, **settings: Any) -> Training:
    """A small private training run that has ended."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, 4, generator=generator)
    y = (x[:, 0] > 0).long()
    model = nn.Linear(4, 2)
    named: dict[str, Any] = {"unit": "person", "groups": range(ROWS)}
    if ledger is not None:
        if "people" not in ledger.datasets():
            ledger.register("people", epsilon=5.0, delta=1e-5, unit="person", fingerprint=(x, y))
        named |= {"ledger": ledger, "dataset": "people"}
    usual = {"batch_size": 30, "steps": 20, "epsilon": 2.0, "delta": 1e-6, "purpose": "who works?"}
    training = Training(
        model,
        torch.optim.SGD(model.parameters(), lr=0.5),
        nn.CrossEntropyLoss(reduction="none"),
        (x, y),
        **(usual | named | settings),
    )
    for batch in training:
        training.step(batch)
    return training


def run(ledger: Ledger | None = None, **rest: Any) -> Run:
    """The description of such a run, with everything that a user can state."""
    training = trained(ledger)
    test = EvaluationData.declared_public([0, 1], because="a published benchmark")
    stated: dict[str, Any] = {
        "tuning": "on public data only",
        "uncovered": (),
        "public_sources": (PublicSource("benchmark", "evaluation", "no"),),
        "pretrained": (),
        "data": "people",
        "evaluations": (
            Evaluation("accuracy", test.metric("accuracy", 0.8125), rows=640),
            Evaluation("accuracy", test.metric("accuracy", 0.84375), "non-private reference", rows=640),
            Evaluation("accuracy", test.metric("accuracy", 0.75), group="sex = <female>", rows=320),
        ),
        "statement": Statement("central: the office holds the data", "the weights, to everybody", "dpo@example.org"),
    }
    if training.charge is not None:
        stated["model_file"] = charged("ab" * 32, training.charge)
    return describe(training, "test <run>", **(stated | rest))


NUMBER = re.compile(r"(?<![\w.])-?\d+\.\d+(?:[eE][-+]?\d+)?")


def shown(value: float, text: str, digits: int = 6) -> bool:
    """Is `value` written anywhere in `text`, in full or rounded to `digits` significant digits or more?

    Each number of the text is compared at its own precision: 0.168 is not "in" 0.16833576, whose every digit is another
    number's. Fewer digits than six would find values by luck.
    """
    for found in NUMBER.findall(text):
        figures = len(re.split("[eE]", found)[0].replace(".", "").lstrip("-0"))
        if figures >= digits and float(f"{value:.{figures}g}") == float(found):
            return True
    return False
