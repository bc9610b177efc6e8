"""``tacit audit`` from the command line."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import stat

import numpy as np
import pytest
from typer.testing import CliRunner

from tacit.audit import runs
from tacit.cli import build
from tacit.ledger import Ledger
from tacit.report import read_card
from tacit.report.card import to_json, unaudited
from tacit.runs.claims import check_claims
from tacit.runs.settings import saved
from tacit.sgd import Training

RUNNER = CliRunner()


def tacit(*words: str):
    return RUNNER.invoke(build(), list(words))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("audited")
    told = tacit(
        "train", "labsup", "--epsilon", "2", "--delta", "1e-6", "--steps", "3", "--batch", "256", "--model", "mlp",
        "--public-share", "0.2", "--public-because", "published", "--runs", str(folder), "--name", "small", "--quiet",
    )  # fmt: skip
    assert told.exit_code == 0, told.output
    return folder / "small"


def audited(*words: str):
    """An audit of a right run, at levels at which its record fails less than once in a million times.

    The record stays the same when it is audited again; what the audit itself runs does not, and fails three times in a
    row with a probability of 1e-12.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "RECORD_ALARM", 1e-7)
        patch.setattr(runs, "SCORES_ALARM", 1e-7)
        for _ in range(3):
            told = tacit("audit", *words)
            if told.exit_code != 4:
                break
    return told


def test_a_run_is_audited_and_its_card_and_report_say_so(run):
    assert read_card(run / "privacy.json")["checks"]["audit"] == {"verdict": "not audited"}
    told = audited(str(run), "--canaries", "100", "--members", "--json")
    assert told.exit_code == 0, told.output
    found = json.loads(told.stdout)
    # The code is right, but nothing of this run's own noise was kept: no pass.
    assert found["verdict"] == "underpowered"
    assert not found["bound"]
    assert {"release": "not bound", "ε": "agrees"}.items() <= {c["name"]: c["result"] for c in found["claims"]}.items()
    printed = {p["lie"]: p["probability"] for p in found["powers"]}
    assert (printed["half the noise"], printed["other data than were charged"]) == (0.0, 0.0)
    assert found["best"] > 0
    # The number of people was counted, so the card states zero-out; the audit said add/remove.
    assert found["terms"] == read_card(run / "privacy.json")["guarantee"]["neighbours"]
    assert found["terms"].startswith("zero out one person")
    audit = read_card(run / "privacy.json")["checks"]["audit"]
    assert audit["verdict"] == found["verdict"]
    page = (run / "report.html").read_text()
    assert "half the noise" in page
    assert "could at best have certified" in page
    assert "loss threshold" not in page  # an attack with private rows is the operator's
    log = run / "private" / "operator.jsonl"
    assert "loss threshold" in log.read_text()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


# -- forged folders ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bound(tmp_path_factory):
    """A run with canaries, charged to a ledger that holds the hashes of its release."""
    folder = tmp_path_factory.mktemp("bound")
    rng = np.random.default_rng(1)
    rows = "".join(f"{age},{age // 50}\n" for age in rng.integers(18, 95, 300))
    (folder / "clinic.csv").write_text("age,back\n" + rows)
    (folder / "clinic.toml").write_text(
        '[unit]\nname = "patient"\n[columns.age]\nkind = "numeric"\nlower = 0\nupper = 100\n'
        '[columns.back]\nkind = "boolean"\ntarget = true\n'
    )
    ledger = Ledger(folder / "my.db")
    ledger.register("clinic", epsilon=9.0, delta=1e-4, unit="patient", adjacency="zero-out")
    for name in ("mine", "other"):
        told = tacit(
            "train", str(folder / "clinic.csv"), "--schema", str(folder / "clinic.toml"), "--model", "mlp", "--epsilon",
            "1", "--delta", "1e-5", "--steps", "40", "--batch", "250", "--audit-canaries", "200", "--runs", str(folder),
            "--name", name, "--ledger", str(folder / "my.db"), "--dataset", "clinic", "--quiet",
        )  # fmt: skip
        assert told.exit_code == 0, told.output
    return folder / "mine"


SENTENCE, AT_OTHERS = "the sentence of the guarantee", "ε at other δ and adjacencies"


def claims(run, ledger=None):
    return {c.name: c for c in check_claims(run, read_card(run / "privacy.json"), saved(run), ledger)}


def wrong(run, ledger=None):
    return {name for name, claim in claims(run, ledger).items() if claim.result == "CONTRADICTED"}


def test_a_release_is_bound_and_stays_so_after_its_audit(bound, tmp_path):
    charged = Ledger(bound.parent / "my.db").history("clinic")[0]
    names = {"config.toml", "model.pt", "privacy.json", "report.html", "private/canaries.npz"}
    assert set(charged.files) == names
    before = (bound / "privacy.json").read_bytes()
    run = shutil.copytree(bound, tmp_path / "mine")
    told = audited(str(run), "--json")
    assert told.exit_code == 0, told.output
    found = json.loads(told.stdout)
    assert (found["verdict"], found["bound"]) == ("pass", True)
    assert all(power["probability"] >= 0.95 for power in found["powers"] if power["needed"])
    assert {p["lie"]: p["probability"] for p in found["powers"]}["other data than were charged"] == 1.0
    assert (run / "privacy.json").read_bytes() != before
    assert to_json(unaudited(read_card(run / "privacy.json"))).encode() == before
    assert {c.result for c in claims(run).values()} == {"agrees"}
    seen = json.loads((run / "private" / "operator.jsonl").read_text().splitlines()[-1])
    assert {"noise size", "noise tails", "participation", "claimed curve"} <= {f["check"] for f in seen["findings"]}


def test_a_forged_folder_fails_and_no_verdict_is_written_into_its_card(bound, tmp_path):
    """ε changed from 1 to 0.1, the model replaced by a text, the canaries deleted."""
    run = shutil.copytree(bound, tmp_path / "mine")
    card = json.loads((run / "privacy.json").read_text())
    card["guarantee"]["epsilon"] |= {"lower": 0.0999, "upper": 0.1, "claimed": 0.1}
    (run / "privacy.json").write_text(json.dumps(card, indent=2, ensure_ascii=False) + "\n")
    (run / "model.pt").write_text("no weights")
    (run / "private" / "canaries.npz").unlink()
    before = [(path, path.read_bytes()) for path in run.rglob("*") if path.is_file()]
    told = tacit("audit", str(run))
    assert told.exit_code == 4, told.output
    assert "contradict" in told.output
    assert {"ε", "model", "weights", "release"} <= wrong(run)
    assert [(path, path.read_bytes()) for path in run.rglob("*") if path.is_file()] == before


def change(run, **parts):
    """The card with other values: keys with __ for a dot."""
    card = json.loads((run / "privacy.json").read_text())
    for place, value in parts.items():
        inner, *names = card, *place.split("__")
        for name in names[:-1]:
            inner = inner[name]
        inner[names[-1]] = value
    (run / "privacy.json").write_text(json.dumps(card, indent=2, ensure_ascii=False) + "\n")


def _epsilon(run):
    change(run, guarantee__epsilon__claimed=0.1)


def _other_delta(run):
    rows = json.loads((run / "privacy.json").read_text())["guarantee"]["epsilon_of_delta"]
    change(run, guarantee__epsilon_of_delta=[{**row, "upper": row["upper"] / 2} for row in rows])


def _sentence(run):
    text = json.loads((run / "privacy.json").read_text())["guarantee"]["claim"]
    change(run, guarantee__claim=text.replace("2.7183", "1.1052"))


def _more_noise(run):
    """Another mechanism with its right price, from a search of nobody: the card by itself is whole."""
    card = json.loads((run / "privacy.json").read_text())
    plan = json.dumps(card["mechanism"]["description"])
    z = card["mechanism"]["parameters"]["noise"][0][0]
    change(
        run,
        mechanism__description=json.loads(plan.replace(repr(z), repr(2 * z))),
        mechanism__parameters__noise=[[2 * z, 40]],
    )


def _other_model(run):
    shutil.copy(run.parent / "other" / "model.pt", run / "model.pt")
    change(run, run__model=hashlib.sha256((run / "model.pt").read_bytes()).hexdigest())


def _other_canaries(run):
    shutil.copy(run.parent / "other" / "private" / "canaries.npz", run / "private" / "canaries.npz")


def _report(run):
    (run / "report.html").write_text((run / "report.html").read_text().replace("one in 100,000", "one in 900,000"))


def _settings(run):
    (run / "config.toml").write_text((run / "config.toml").read_text().replace("clip_norm = 1.0", "clip_norm = 9.0"))


@pytest.mark.parametrize(
    ("forge", "alone", "bound_too"),
    [
        (_epsilon, {"ε", "report"}, {"ε", "report", "release"}),
        (_other_delta, {AT_OTHERS, "report"}, {AT_OTHERS, "report", "release"}),
        (_sentence, {SENTENCE, "report"}, {SENTENCE, "report", "release"}),
        (_more_noise, {SENTENCE, "canaries", "report"}, {SENTENCE, "canaries", "charge", "report", "release"}),
        (_other_model, {"weights of this run", "report"}, {"weights of this run", "report", "release"}),
        (_other_canaries, {"weights of this run"}, {"weights of this run", "release"}),
        (_report, {"report"}, {"report", "release"}),
        (_settings, {"settings"}, {"settings", "release"}),
    ],
)
def test_every_forgery_is_found_by_what_it_contradicts(bound, tmp_path, forge, alone, bound_too):
    for name in ("mine", "other"):
        shutil.copytree(bound.parent / name, tmp_path / name)
    run = tmp_path / "mine"
    forge(run)
    assert wrong(run) == bound_too
    nowhere = {n: c for n, c in claims(run, str(tmp_path / "gone.db")).items()}
    assert {name for name, claim in nowhere.items() if claim.result == "CONTRADICTED"} == alone
    assert nowhere["release"].result == "not bound"


def card(place, value):
    """A forgery of one value of the card."""
    return lambda run: change(run, **{place: value(run) if callable(value) else value})


def file(name, content):
    return lambda run: (run / name).write_bytes(content)


def canaries(**parts):
    """Other canaries in the file, by name; None leaves one out."""

    def forge(run):
        path = run / "private" / "canaries.npz"
        with np.load(path) as found:
            kept = {name: found[name] for name in found.files if parts.get(name, 0) is not None}
        with path.open("wb") as out:
            np.savez(out, **(kept | {name: value for name, value in parts.items() if value is not None}))

    return forge


def instead(name, make):
    """Something that is no file of its own in the place of one."""

    def forge(run):
        (run / name).unlink()
        make(run / name)

    return forge


def _curve(run):
    shown = json.loads((run / "privacy.json").read_text())["guarantee"]["profile"]
    return shown | {"upper": [0.0] * len(shown["upper"])}


def _entry_of_another(run):
    other = json.loads((run.parent / "other" / "privacy.json").read_text())["ledger"]
    change(run, ledger__charge=other["charge"], ledger__head=other["head"])


def _sparse(path):
    with path.open("wb") as out:
        out.truncate(1 << 33)


#: Where the ledger is not at hand. 4: refuted; 1: refused, nothing can be said; 0: what is said is true.
OUTSIDE = {
    "ε that is not a number": (card("guarantee__epsilon__upper", float("nan")), 1, "NaN"),
    "ends of ε the wrong way round": (card("guarantee__epsilon__lower", 50.0), 4, SENTENCE),
    "smaller δ": (card("guarantee__delta", 1e-9), 4, "ε:"),
    "δ of 2": (card("guarantee__delta", 2), 1, "above 1"),
    "other adjacency": (card("guarantee__adjacency", "add-remove"), 4, "public number"),
    "other unit": (card("guarantee__unit", "hospital"), 4, "mechanism:"),
    "neighbours in other words": (card("guarantee__neighbours", "any number of patients"), 4, "neighbours"),
    "what an attacker finds": (card("guarantee__attacker", "Nobody finds anything."), 4, "attacker"),
    "profile of zeros": (card("guarantee__profile", _curve), 4, "δ at each ε"),
    "mechanism in other words": (card("mechanism__words", "no data were used"), 4, SENTENCE),
    "fewer steps": (card("mechanism__steps_executed", 20), 4, "canaries"),
    "10¹² steps": (card("mechanism__parameters__noise", [[3.0, 10**12]]), 4, "mechanism"),
    "a mechanism of nobody": (card("mechanism__description", {"kind": "nothing"}), 4, "mechanism"),
    "a key of nobody": (card("boast", "best"), 1, "unknown key"),
    "brackets": (file("privacy.json", b"[" * 100_000), 1, "not JSON"),
    "no model": (lambda run: (run / "model.pt").unlink(), 4, "there is no model.pt"),
    "half a model": (lambda run: file("model.pt", (run / "model.pt").read_bytes()[:900])(run), 4, "weights"),
    "a pipe": (instead("model.pt", os.mkfifo), 1, "not a file"),
    "a device": (instead("model.pt", lambda path: path.symlink_to("/dev/zero")), 1, "not a file"),
    "a folder": (instead("report.html", lambda path: path.mkdir()), 1, "not a file"),
    "8 GB": (instead("privacy.json", _sparse), 1, "8,589,934,592 bytes"),
    "torn settings": (file("config.toml", b"[[["), 1, "not valid TOML"),
    "torn canaries": (file("private/canaries.npz", b"PK no"), 4, "canaries"),
    "canaries of another shape": (canaries(member=np.zeros(7, bool)), 4, "canaries"),
    "scores that are not numbers": (canaries(scores=np.full(200, np.nan)), 4, "canaries"),
    "places outside the model": (canaries(places=np.full(200, -5)), 4, "weights of this run"),
}


@pytest.mark.parametrize("forgery", OUTSIDE)
def test_every_forgery_ends_without_a_traceback_and_leaves_the_folder_as_it_was(bound, tmp_path, forgery):
    for name in ("mine", "other"):
        shutil.copytree(bound.parent / name, tmp_path / name)
    run, (forge, code, said) = tmp_path / "mine", OUTSIDE[forgery]
    forge(run)

    def there():
        return {p: p.read_bytes() for p in run.rglob("*") if p.is_file() and p.stat().st_size < 1 << 30}

    before = there()
    told = tacit("audit", str(run), "--ledger", str(tmp_path / "gone.db"), "--json")
    assert told.exception is None or isinstance(told.exception, SystemExit), told.exception
    assert told.exit_code == code, told.output
    assert said in told.output
    assert there() == before


def test_a_charge_of_another_run_or_of_a_forged_ledger_is_found(bound, tmp_path):
    for name in ("mine", "other"):
        shutil.copytree(bound.parent / name, tmp_path / name)
    forged = Ledger(tmp_path / "forged.db")
    forged.register("clinic", epsilon=9.0, delta=1e-4, unit="patient", adjacency="zero-out")
    assert {"charge", "ledger"} <= wrong(tmp_path / "mine", str(tmp_path / "forged.db"))
    _entry_of_another(tmp_path / "mine")
    assert "release" in wrong(tmp_path / "mine")


def test_what_may_be_published_can_be_audited_without_the_private_part(bound, tmp_path):
    run = shutil.copytree(bound, tmp_path / "mine")
    shutil.rmtree(run / "private")
    told = audited(str(run), "--json")
    assert told.exit_code == 0, told.output
    found = json.loads(told.stdout)
    assert found["verdict"] == "underpowered"
    assert {c["name"]: c["result"] for c in found["claims"]}["canaries"] == "not checked"
    assert not (run / "private").exists()


def test_a_run_with_half_its_noise_fails_and_its_card_stays_as_it_was(bound, tmp_path, monkeypatch):
    noise_at = Training.noise_at

    def thin(self, step):
        noise = noise_at(self, step)
        return dataclasses.replace(noise, scale=noise.scale / 2)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "noise_at", thin)
        told = tacit(
            "train", "--config", str(bound / "config.toml"), "--runs", str(tmp_path), "--name", "half", "--quiet"
        )
    assert told.exit_code == 0, told.output
    run = tmp_path / "half"
    assert wrong(run) == set()  # every file agrees: only the noise can tell
    before = (run / "privacy.json").read_bytes()
    told = tacit("audit", str(run))
    assert told.exit_code == 4, told.output
    assert "own canaries refute" in told.output
    assert (run / "privacy.json").read_bytes() == before


def test_what_is_no_run_is_refused(run, tmp_path):
    assert tacit("audit", str(tmp_path)).exit_code == 2
    (tmp_path / "config.toml").write_text("")
    assert tacit("audit", str(tmp_path)).exit_code == 1
    assert tacit("audit", str(run), "--confidence", "2").exit_code == 2
