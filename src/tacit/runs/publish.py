"""How does a release leave a run? Model, card and report are staged together, one rename decides them, and the entry of
their charge in the ledger gets their hashes before they are published."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tacit.ledger import Ledger, OperatorLog, OperatorView, Release
from tacit.ledger.release import Charged, Public, public
from tacit.report import Run, Statement, make_card, read_card, write_card, write_page
from tacit.report.files import write_whole
from tacit.runs.journal import Journal
from tacit.runs.settings import SCHEMA

#: Coins, scores and record of a run's canaries, in the private part of its folder.
CANARIES = "canaries.npz"
#: The files of a release that every run has, as they are told.
SHOWN = {"card": "privacy.json", "report": "report.html"}


def stated(given: Mapping[str, Any]) -> dict[str, Any]:
    """What the user says about a run, for its card: its purpose, its tuning, what else was released, the statement."""
    words = {key: str(given[key]) for key in ("trust_model", "release", "contact") if given.get(key)}
    said = {key: str(given[key]) for key in ("purpose", "tuning") if given.get(key)}
    beside = {"uncovered": tuple(given["uncovered"])} if given.get("uncovered") else {}
    return said | beside | {"statement": Statement(**words)}


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
    name = digest(content)
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


def digest(content: bytes) -> str:
    """SHA-256, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def bind(journal: Journal, config: str, ledger: str | None) -> str | None:
    """Write the hash of every file of a decided release into the entry of its charge; the hash of the release.

    Settings and schema belong to the release, and so does what the run's canaries left, which is not published: its
    file holds random bytes, so that its hash tells nothing. A run without a ledger or a charge is not bound: None.

    Guarantee: nothing is charged, and a run that goes on after it was killed is bound once.
    """
    release = journal.private / "release" / "files"
    if ledger is None or not (release / "privacy.json").exists():
        return None
    paid = read_card(release / "privacy.json")["ledger"]
    if paid is None or paid["charge"] is None:
        return None
    files = {str(path.relative_to(release)): path for path in release.rglob("*") if path.is_file()}
    begun = {name: journal.folder / name for name in (config, SCHEMA) if (journal.folder / name).exists()}
    kept = {f"private/{CANARIES}": journal.private / CANARIES} if (journal.private / CANARIES).exists() else {}
    hashes = {name: digest(path.read_bytes()) for name, path in (begun | files | kept).items()}
    return Ledger(ledger).bind(paid["dataset"], paid["charge"], hashes)


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
