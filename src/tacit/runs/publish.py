"""How does a release leave a run? Model, card and report are staged together, and one rename decides them."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tacit.ledger import OperatorLog, OperatorView, Release
from tacit.ledger.release import Charged, Public, public
from tacit.report import Run, make_card, write_card, write_page
from tacit.report.files import write_whole
from tacit.runs.journal import Journal

#: The files of a release that every run has, as they are told.
SHOWN = {"card": "privacy.json", "report": "report.html"}


def save_weights(path: Path, state: Mapping[str, Tensor]) -> bytes:
    """Write a state dict, whole or not at all; its bytes."""
    buffer = io.BytesIO()
    torch.save({name: t.detach().cpu() for name, t in state.items()}, buffer)
    write_whole(path, buffer.getvalue())
    return buffer.getvalue()


def vouched(
    content: bytes, dataset: str | None, charge: str | None, what: str = "the released weights"
) -> Charged | Public:
    """The hash of what a mechanism released, charged where its charge is known."""
    name = hashlib.sha256(content).hexdigest()
    if dataset is not None and charge is not None:
        return Charged(name, dataset, charge)
    return public(name, f"hash of {what}, which the stated guarantee covers")


def stage(
    journal: Journal,
    run: Run,
    views: Iterable[OperatorView] = (),
    page: Callable[[Release, Path], Any] = write_page,
) -> Release:
    """Card and report beside what is staged already; what only the operator may see goes to the operator's log."""
    card = make_card(run)
    write_card(card, journal.staged / "privacy.json")
    page(card, journal.staged / "report.html")
    for view in views:
        OperatorLog(journal.private / "operator.jsonl").write(view)
    return card


def summary(card: Release) -> dict[str, Any]:
    """What a card claims and shows, in plain values."""
    guarantee, results = card["guarantee"], card["evaluation"]
    return {
        "epsilon": guarantee["epsilon"]["claimed"],
        "delta": guarantee["delta"],
        "neighbours": guarantee["neighbours"],
        "claim": guarantee["claim"],
        "results": [results[key].to_dict() for key in results],
    }
