"""Do the files of a release agree with each other, with the accountant and with the ledger? Claim by claim.

A folder can be forged: a smaller ε on the card, another model, no canaries. Hashes inside the folder prove nothing,
because whoever changes a file can change its hash. So a release is *bound* if the entry of its charge in the ledger
holds the hashes of its files (:meth:`tacit.ledger.Ledger.bind`), and *not bound* otherwise. Everything here is computed
from files that may be published, and from the ledger.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import pickle
import re
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tacit import __version__
from tacit import accounting as acc
from tacit.accounting.correlated import INDEPENDENT, Correlation
from tacit.ledger import Ledger, LedgerError, Release
from tacit.ledger.views import ChargeRecord
from tacit.report import make_page, words
from tacit.report.card import to_json, unaudited
from tacit.runs.models import build
from tacit.runs.publish import CANARIES, digest
from tacit.runs.read import Form, schema_of
from tacit.runs.settings import CONFIG, SCHEMA, Settings, SettingsError
from tacit.sgd.training.canaries import Planted
from tacit.sgd.training.plan import Plan
from tacit.sgd.training.sampling import make_sampler, run_length

AGREES, CONTRADICTED, NOT_BOUND, NOT_CHECKED = "agrees", "CONTRADICTED", "not bound", "not checked"
#: Another version of the accountant may be a little tighter or looser.
PRICE = 1e-3
#: The most bytes of a file that is read as a whole, and of what a file of weights holds beside them.
LARGEST, BESIDE = 1 << 28, 1 << 20
#: What reading a file that holds no weights may raise.
UNREADABLE = (
    RuntimeError, OSError, EOFError, LookupError, ValueError, TypeError, AttributeError, AssertionError,
    ArithmeticError, MemoryError, pickle.UnpicklingError, zipfile.BadZipFile,
)  # fmt: skip


def check_files(path: Path) -> None:
    """Refuse what is no file, or too large to be one of a run, before anything is read.

    Raises:
        ValueError: For a device, a pipe, a folder or a file of more than 256 MB where a run has a small file.
    """
    for name in (CONFIG, SCHEMA, "privacy.json", "report.html", "model.pt", f"private/{CANARIES}"):
        file = path / name
        if file.exists() and not file.is_file():
            raise ValueError(f"{file} is not a file: this is not the folder of a run")
        if file.exists() and name != "model.pt" and file.stat().st_size > LARGEST:
            raise ValueError(f"{file} holds {file.stat().st_size:,} bytes, which is no such file of a run")


@dataclasses.dataclass(frozen=True)
class Claim:
    """One claim of a release: what was checked, how, and what came of it.

    Args:
        name: What is claimed.
        result: ``agrees``, ``CONTRADICTED``, ``not bound`` or ``not checked``.
        how: How it was checked.
        detail: What was seen.
    """

    name: str
    result: str
    how: str
    detail: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, eq=False)
class Folder:
    """What is compared: the folder of a run, its card, its settings, and the ledger's entry where there is one."""

    path: Path
    card: Release
    settings: Settings
    entry: ChargeRecord | None
    unbound: str
    planted: Planted | None
    plan: Plan | None


def check_claims(path: Path, card: Release, settings: Settings, ledger: str | None) -> list[Claim]:
    """Every claim of a release, checked; a contradiction anywhere means that the folder is not what it says it is.

    Args:
        path: The folder of the run.
        card: Its card.
        settings: Its settings.
        ledger: The ledger to look the charge up in; None takes the one that the settings name.

    Returns:
        The claims in the order of the card.
    """
    found: list[Claim] = []
    entry, unbound = None, "the run was charged to no ledger"
    if card["ledger"] is not None:
        entry, unbound, about = _entry(card, ledger or settings.ledger)
        found += about
    planted, kept = None, path / "private" / CANARIES
    if kept.exists():
        try:
            planted = Planted.load(kept)
        except ValueError as error:
            found.append(Claim("canaries", CONTRADICTED, f"private/{CANARIES}", str(error)))
    folder = Folder(path, card, settings, entry, unbound, planted, _plan(card))
    checks = [_settings, _model, _report, _canaries, _charge, _release]
    mechanism = list(_mechanism(folder))
    if not contradicted(mechanism):  # else the price of what is described says nothing about this run
        checks = [_price, _words, _curves, *checks]
    return [*mechanism, *(claim for check in checks for claim in check(folder)), *found]


def contradicted(claims: Iterable[Claim]) -> list[Claim]:
    """The claims that do not hold."""
    return [claim for claim in claims if claim.result == CONTRADICTED]


def _said(name: str, true: bool, how: str, detail: str) -> Claim:
    return Claim(name, AGREES if true else CONTRADICTED, how, detail)


# -- the card by itself ------------------------------------------------------------------------------------------------


def _price(folder: Folder) -> Iterator[Claim]:
    """Every ε on the card is at least what the accountant asks for the mechanism that the card describes."""
    guarantee = folder.card["guarantee"]
    mechanism, how = mechanism_on(folder.card), "the mechanism on the card, priced again"
    adjacency, delta = guarantee["adjacency"], float(guarantee["delta"])
    bound = _priced(mechanism, delta, adjacency)
    stated = {"upper end": guarantee["epsilon"]["upper"], "claim": guarantee["epsilon"]["claimed"]}
    low = [f"{name} {_number(e):.6g}" for name, e in stated.items() if _number(e) < bound.upper * (1 - PRICE) - 1e-9]
    seen = f"ε = {_number(guarantee['epsilon']['claimed']):.6g} at δ = {delta:g} ({adjacency}), "
    yield _said("ε", not low, how, f"{seen}the accountant asks {bound.upper:.6g}")
    beside = [(row["upper"], row["delta"], adjacency) for row in guarantee["epsilon_of_delta"]]
    beside += [(row["upper"], delta, row["adjacency"]) for row in guarantee["other_adjacencies"]]
    wrong = [d for e, d, a in beside if _number(e) < _priced(mechanism, float(d), a).upper * (1 - PRICE) - 1e-9]
    told = f"{len(beside) - len(wrong)} of {len(beside)} prices are not below what the accountant asks"
    yield _said("ε at other δ and adjacencies", not wrong, how, told)


def _words(folder: Folder) -> Iterator[Claim]:
    """The sentences of the guarantee say what its numbers say; of another version of tacit, their numbers do."""
    guarantee, card, how = folder.card["guarantee"], folder.card, "written again from the price"
    ends = (_number(guarantee["epsilon"]["lower"]), _number(guarantee["epsilon"]["upper"]))
    counted, drawn = bool(card["accesses"]["records_public"]), card["mechanism"]["parameters"].get("draw", "units")
    if not 0 <= ends[0] <= ends[1] or (counted and guarantee["adjacency"] == "add-remove"):
        told = "ε is no interval" if not ends[0] <= ends[1] else "add/remove neighbours have no public number in common"
        yield Claim("the sentence of the guarantee", CONTRADICTED, how, told)
        return
    terms = {"adjacency": guarantee["adjacency"], "unit": guarantee["unit"]}
    shown = acc.Bound(*ends, given=float(guarantee["delta"]), tight=bool(guarantee["epsilon"]["tight"]), **terms)
    curve = None
    if guarantee["tradeoff"] is not None:
        alpha, lower, upper = (np.asarray(guarantee["tradeoff"][name]) for name in ("alpha", "lower", "upper"))
        curve = acc.Tradeoff(alpha, lower, upper, **terms, orders=np.array([[lower, upper]] * 2))
    texts = {
        "claim": words.claim(shown, counted=counted, drawn=drawn),
        "formula": words.formula(shown, counted=counted, drawn=drawn),
        "neighbours": words.neighbours(shown, counted=counted, drawn=drawn),
        "attacker": words.attacker(curve),
    }
    same = card["card"]["library"] == f"tacit {__version__}"
    seen = {name: (guarantee[name], text) for name, text in texts.items()}
    seen["mechanism"] = (card["mechanism"]["words"], repr(mechanism_on(card)))
    differ = [n for n, (a, b) in seen.items() if (a != b if same else _numbers(a) != _numbers(b))]
    if mechanism_on(card).unit != guarantee["unit"]:
        differ.append("unit")
    told = "its words, numbers and unit are those of the price" if not differ else f"not so: {', '.join(differ)}"
    yield _said("the sentence of the guarantee", not differ, how, told)


def _curves(folder: Folder) -> Iterator[Claim]:
    """No curve on the card promises more than the mechanism keeps."""
    guarantee, plan = folder.card["guarantee"], folder.plan
    shown, errors, steps = guarantee["profile"], guarantee["tradeoff"], guarantee["over_steps"]
    if shown is None or errors is None:
        return
    own = acc.profile(mechanism_on(folder.card), shown["epsilon"], adjacency=guarantee["adjacency"], accuracy=0.01)
    low = {
        "δ at each ε": bool((np.asarray(shown["upper"]) < own.lower * (1 - PRICE)).any()),
        "errors of an attacker": bool(
            (np.asarray(errors["lower"]) > own.tradeoff(errors["alpha"]).upper + PRICE).any()
        ),
    }
    if steps is not None and plan is not None:
        places = sorted({0, len(steps["steps"]) // 2, len(steps["steps"]) - 1})
        asked = [dataclasses.replace(plan, adjacency=guarantee["adjacency"]).price(steps["steps"][i]) for i in places]
        pairs = zip(asked, (steps["upper"][i] for i in places), strict=True)
        low["ε after some steps"] = any(stated < price.lower * (1 - PRICE) for price, stated in pairs)
    wrong = [name for name, true in low.items() if true]
    told = "none promises more than the accountant finds" if not wrong else f"too much is promised: {', '.join(wrong)}"
    yield _said("curves", not wrong, "the mechanism on the card, priced again", told)


def mechanism_on(card: Release) -> acc.Mechanism:
    """The mechanism that a card describes."""
    try:
        return acc.from_dict(card["mechanism"]["description"])
    except (acc.AccountingError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the card describes a mechanism that cannot be read: {error}") from None


def _priced(mechanism: acc.Mechanism, delta: float, adjacency: str) -> acc.Bound:
    return acc.epsilon(mechanism, delta, adjacency=adjacency)


def _number(value: Any) -> float:
    return float(value)


def _numbers(text: str) -> list[str]:
    return re.findall(r"\d[\d.,]*(?:e-?\d+)?", text)


def _mechanism(folder: Folder) -> Iterator[Claim]:
    """The description that is priced is that of the parameters that are shown."""
    mechanism, plan = folder.card["mechanism"], folder.plan
    how = "made again from sampler, noise and steps on the card"
    if plan is None:
        yield Claim("mechanism", CONTRADICTED, how, "the parameters on the card are no plan")
        return
    same = plan.mechanism.to_dict() == mechanism["description"]
    same &= plan.steps == mechanism["steps_planned"] and mechanism["steps_executed"] <= plan.steps
    told = f"{mechanism['words']}; sampler {plan.sampler.name}, {plan.steps:,} steps"
    yield _said("mechanism", same, how, told)


def _plan(card: Release) -> Plan | None:
    """The plan that the parameters on the card describe; None if they describe none."""
    guarantee, shown = card["guarantee"], card["mechanism"]["parameters"]
    try:
        given = dict(shown["sampler"])
        sampler = make_sampler(
            given["name"], given["size"], given["batch_size"], given.get("max_batch"), given.get("groups")
        )
        planned = int(card["mechanism"]["steps_planned"])
        if any(sum(int(times) for _, times in shown[name]) != planned for name in ("noise", "clip")):
            return None
        noise = tuple(itertools.chain.from_iterable(itertools.repeat(z, int(times)) for z, times in shown["noise"]))
        clip = tuple(itertools.chain.from_iterable(itertools.repeat(c, int(times)) for c, times in shown["clip"]))
        terms = {"unit": guarantee["unit"], "kind": shown["kind"], "tail": float(shown["tail_delta"])}
        terms["kept"] = int(shown.get("kept", 1))
        if shown.get("correlation") is not None:
            terms["correlation"] = Correlation(**shown["correlation"])
        return Plan(sampler, noise, clip, float(guarantee["delta"]), **terms)
    except (KeyError, TypeError, ValueError, MemoryError, OverflowError):
        return None


# -- settings and model ------------------------------------------------------------------------------------------------


def _settings(folder: Folder) -> Iterator[Claim]:
    """What the run was told to do is what the card says it did."""
    chosen, plan = folder.settings, folder.plan
    if plan is None:
        return
    planted = chosen.audit_canaries or 0
    shown = folder.card["mechanism"]["parameters"]
    claimed = _number(folder.card["guarantee"]["epsilon"]["upper"])
    pairs = {
        "delta": (chosen.delta, plan.delta),
        "batch": (chosen.batch, plan.sampler.batch_size),
        "sampler": (chosen.sampler, "poisson" if plan.sampler.name == "cyclic" else plan.sampler.name),
        "correlated": (chosen.correlated is not None, chosen.correlated is not None or plan.correlation != INDEPENDENT),
        "steps": (run_length(chosen.steps, chosen.epochs, plan.sampler), plan.steps),
        "clip_norm": ([chosen.clip_norm], sorted(set(plan.clip))),
        "size": (plan.sampler.size if chosen.size is None else chosen.size + planted, plan.sampler.size),
        "audit_canaries": (planted, shown.get("canaries", {}).get("count", 0)),
        "max_rows": (chosen.max_rows, shown["kept" if plan.kept > 1 else "records_per_unit"]),
        "dataset": (chosen.dataset, folder.card["ledger"] and folder.card["ledger"]["dataset"]),
    }
    if chosen.noise is not None:
        pairs["noise"] = ([chosen.noise], sorted(set(plan.noise)))
    differ = [f"{name} ({a} in {CONFIG}, {b} on the card)" for name, (a, b) in pairs.items() if a != b]
    if chosen.epsilon is not None and claimed > chosen.epsilon * (1 + PRICE):
        differ.append(f"epsilon ({chosen.epsilon} in {CONFIG}, {claimed:.6g} on the card)")
    told = f"{len(pairs)} settings agree" if not differ else f"these differ: {'; '.join(differ)}"
    yield _said("settings", not differ, f"{CONFIG} against the card", told)


def _model(folder: Folder) -> Iterator[Claim]:
    """The model file is the one on the card, and a model of the kind that the settings name."""
    path, stated = folder.path / "model.pt", folder.card["run"]["model"]
    if stated is None or not path.exists():
        yield Claim("model", NOT_CHECKED if stated is None else CONTRADICTED, "hash", f"there is no {path.name}")
        return
    same = _hash(path) == stated
    yield _said("model", same, "SHA-256 against the card", f"model.pt is {'' if same else 'not '}the file on the card")
    how = "loaded into the model that the settings name"
    try:
        model = build(folder.settings.model, Form.of(schema_of(folder.settings)))
        held = sum(value.nbytes for value in model.state_dict().values())
        if path.stat().st_size > 2 * held + BESIDE:
            raise ValueError(f"{path.stat().st_size:,} bytes for {held:,} of weights")
        model.load_state_dict(torch.load(path, weights_only=True))
    except SettingsError as error:
        yield Claim("weights", NOT_CHECKED, how, str(error))
        return
    except UNREADABLE as error:
        yield Claim("weights", CONTRADICTED, how, f"model.pt holds no such weights ({type(error).__name__})")
        return
    flat = [p.detach().reshape(-1).double() for p in model.parameters() if p.requires_grad]
    finite = all(bool(torch.isfinite(values).all()) for values in flat)
    yield _said("weights", finite, how, "finite numbers in the right shapes" if finite else "not finite")
    if folder.planted is not None and folder.planted.weights is not None and folder.planted.places is not None:
        seen = torch.cat(flat).numpy()
        places = folder.planted.places
        inside = bool(((places >= 0) & (places < len(seen))).all())
        right = inside and bool((seen[places] == folder.planted.weights).all())
        how = "weights where the run's canaries point, as the run recorded them"
        yield _said("weights of this run", right, how, f"{len(places):,} weights {'agree' if right else 'differ'}")


def _report(folder: Folder) -> Iterator[Claim]:
    """The page for people is the one that the card makes."""
    path, how = folder.path / "report.html", "made again from the card"
    if not path.exists() or folder.card["card"]["library"] != f"tacit {__version__}":
        told = "there is none" if not path.exists() else "another version of tacit wrote it"
        yield Claim("report", NOT_CHECKED, how, told)
        return
    pages = (make_page(folder.card), make_page(unaudited(folder.card)))
    same = path.read_bytes() in [page.encode("utf-8") for page in pages]
    yield _said("report", same, how, "it says what the card says" if same else "it is another page")


def _canaries(folder: Folder) -> Iterator[Claim]:
    """Canaries that the run held are there, and claim what the card claims."""
    wanted = folder.settings.audit_canaries
    planted, how = folder.planted, f"private/{CANARIES} against the card"
    if planted is None:
        if wanted is not None and not (folder.path / "private" / CANARIES).exists():
            told = f"the run held {wanted:,} canaries, but private/{CANARIES} is not here"
            yield Claim("canaries", NOT_CHECKED, how, told)
        return
    guarantee, plan = folder.card["guarantee"], folder.plan
    pairs = {
        "count": (len(planted.member), wanted),
        "epsilon": (planted.epsilon, _number(guarantee["epsilon"]["upper"])),
        "delta": (planted.delta, float(guarantee["delta"])),
        "unit": (planted.unit, guarantee["unit"]),
        "adjacency": (planted.adjacency, guarantee["adjacency"]),
        "steps": (planted.steps, folder.card["mechanism"]["steps_executed"]),
    }
    differ = [name for name, (a, b) in pairs.items() if a != b]
    if plan is not None and planted.noise is not None and tuple(planted.noise.tolist()) != plan.noise[: planted.steps]:
        differ.append("noise")
    told = f"{len(planted.member):,} canaries" if not differ else f"these differ: {', '.join(differ)}"
    yield _said("canaries", not differ, how, told)


# -- the ledger --------------------------------------------------------------------------------------------------------


def _entry(card: Release, where: str | None) -> tuple[ChargeRecord | None, str, list[Claim]]:
    """The entry of the card's charge, why there is none, and what the chain of the ledger says."""
    stated = card["ledger"]
    if where is None:
        return None, "the card names a charge, but no ledger is at hand: give it with --ledger", []
    if "://" not in where and not Path(where).exists():
        return None, f"the ledger {where} is not here: give it with --ledger", []
    try:
        ledger = Ledger(where)
        verified = ledger.verify(stated["dataset"], heads=[stated["head"]])
        known = stated["charge"] is not None and ledger.mentions(stated["dataset"], stated["charge"])
        record = ledger.record(stated["dataset"], stated["charge"]) if known else None
    except LedgerError as error:
        return None, f"the ledger cannot be read: {error}", []
    how = "hash chain of the ledger, with the head on the card"
    found = [_said("ledger", verified.ok, how, "; ".join(verified.problems) or "every entry follows the one before")]
    read = card["data"]["fingerprint"]
    if record is not None and (read is not None or record.data is not None):
        same = read == record.data
        told = "the data that the charge was made for" if same else "other data than those that were charged"
        found.append(_said("data", same, "fingerprint on the card against the charge in the ledger", told))
    if record is None:
        told = f"the ledger has no charge {stated['charge']} on {stated['dataset']!r}"
        found.append(Claim("charge", CONTRADICTED, "looked up in the ledger", told))
    return record, "" if record is not None else "there is no such charge", found


def _charge(folder: Folder) -> Iterator[Claim]:
    """What was charged is what the card describes."""
    if folder.entry is None:
        return
    how, stated = "the ledger's entry against the card", folder.card["mechanism"]["description"]
    same = folder.entry.description == stated and folder.entry.confirmed
    told = f"charge {folder.entry.charge[:8]}, ε = {folder.entry.price.epsilon:.6g} at δ = {folder.entry.price.delta:g}"
    if folder.entry.description != stated:
        told += "; it is for another mechanism"
    yield _said("charge", same, how, told + ("" if folder.entry.confirmed else "; it was never confirmed"))


def _release(folder: Folder) -> Iterator[Claim]:
    """The files are those whose hashes stand in the entry of the charge."""
    how = "SHA-256 of every file against the entry of its charge"
    if folder.entry is None or folder.entry.release is None:
        why = folder.unbound or "the entry of the charge holds no release"
        yield Claim("release", NOT_BOUND, how, f"{why}. Hashes inside a folder prove nothing")
        return
    wrong = [told for name, bound in folder.entry.files.items() if (told := _differs(folder, name, bound))]
    published = (CONFIG, SCHEMA, "model.pt", "privacy.json", "report.html")
    wrong += [f"{n} (not released)" for n in published if (folder.path / n).exists() and n not in folder.entry.files]
    told = f"{len(folder.entry.files)} files are those of release {folder.entry.release[:12]}"
    yield _said("release", not wrong, how, told if not wrong else f"these are not: {', '.join(wrong)}")


def _differs(folder: Folder, name: str, bound: str) -> str:
    """Why a file is not the one that was released; empty if it is."""
    path = folder.path / name
    if not path.exists():
        # Private files are not published, and are deleted after an audit.
        return "" if name.startswith("private/") else f"{name} (missing)"
    if name == "privacy.json":
        return "" if digest(to_json(unaudited(folder.card)).encode("utf-8")) == bound else name
    same = _hash(path) == bound
    if name == "report.html" and not same:  # an audit writes it again, from the card
        same = path.read_bytes() == make_page(folder.card).encode("utf-8")
    return "" if same else name


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
