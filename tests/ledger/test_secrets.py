"""The password of a ledger is written nowhere, and a run that lacks it says where it may come from."""

from __future__ import annotations

import json
import os
import signal
import traceback
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tacit.cli import build
from tacit.ledger import Ledger, StorageError
from tacit.ledger.sql import public_address
from tacit.runs.pate import VotesRun
from tacit.runs.progress import Live
from tacit.runs.prompt import PromptRun
from tacit.runs.search import SearchRun
from tacit.runs.settings import Settings

SECRET = "correct-horse-7"
#: Every way in which an address of PostgreSQL can hold a secret.
ADDRESSES = (
    f"postgresql://team:{SECRET}@localhost:1/people",
    f"postgresql://team@localhost:1/people?password={SECRET}",
    f"postgresql://team@localhost:1/people?password=other&password={SECRET}",
    f"postgresql://team@localhost:1/people?service=people&sslpassword={SECRET}&passfile=mine",
    f"postgresql://team@localhost:1/people?oauth_client_secret={SECRET}",
    f"postgresql+psycopg2://team:{SECRET}@localhost:1/people?scram_client_key={SECRET}",
)
SCHEMA = """
name = "clinic"
[unit]
name = "record"
[columns.age]
kind = "numeric"
lower = 0
upper = 100
[columns.back]
kind = "boolean"
target = true
"""


def _settings(address: str) -> Settings:
    return Settings(data="clinic.csv", epsilon=1.0, delta=1e-5, epochs=1, ledger=address, dataset="people")


@pytest.mark.parametrize("address", ADDRESSES)
def test_no_file_text_or_error_holds_the_password(address):
    pytest.importorskip("psycopg")
    settings, ledger = _settings(address), Ledger(address)
    told = [settings.to_toml(), repr(settings), repr(ledger), str(vars(ledger._store)["_url"])]
    told.append(SearchRun(settings, {"batch": [64, 128]}, {}).to_toml())
    told.append(json.dumps(PromptRun("tune", {"data": "clinic.csv", "ledger": address}).files()))
    told.append(json.dumps(VotesRun({"source": "clinic.csv", "ledger": address}).files()))
    with pytest.raises(StorageError) as error:
        ledger.datasets()
    told += ["".join(traceback.format_exception(error.value)), repr(ledger._store._engine())]
    assert SECRET not in "".join(told)
    assert public_address(address) in settings.to_toml()


def test_the_end_of_a_password_is_not_taken_for_the_host():
    with pytest.raises(StorageError, match="%40") as told:
        Ledger("postgresql://team:correct@horse-7@localhost/people")
    assert "horse" not in str(told.value)


@pytest.mark.postgres
def test_a_run_is_resumed_with_the_password_given_again(postgres, tmp_path, monkeypatch):
    for name in ("PGPASSWORD", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PGPASSFILE", "/nonexistent")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    address = postgres.new_database()
    Ledger(address).register("people", epsilon=9.0, delta=1e-3)
    rng = np.random.default_rng(1)
    rows = [
        f"{age},{str(back).lower()}" for age, back in zip(rng.integers(0, 99, 200), rng.random(200) < 0.5, strict=True)
    ]
    Path("clinic.csv").write_text("\n".join(["age,back", *rows]) + "\n")
    Path("schema.toml").write_text(SCHEMA)

    def tacit(*words: str):
        return CliRunner().invoke(build(), ["train", *words, "-q"])

    usual = ("--epsilon", "3", "--delta", "1e-5", "--epochs", "1", "--batch", "50", "--model", "linear")
    shown = Live.update
    monkeypatch.setattr(Live, "update", lambda *rest: os.kill(os.getpid(), signal.SIGINT))  # Ctrl-C after a step
    told = tacit("clinic.csv", "--schema", "schema.toml", *usual, "--ledger", address, "--dataset", "people")
    assert told.exit_code == 130, told.output
    run = Path("runs/clinic-1")
    assert f"team@127.0.0.1:{postgres.port}" in (run / "config.toml").read_text()
    for path in [p for p in tmp_path.rglob("*") if p.is_file()]:
        assert SECRET.encode() not in path.read_bytes(), path

    refused = tacit("--resume", str(run))
    assert refused.exit_code == 1
    assert "with --resume give --ledger again, or set PGPASSWORD" in refused.output
    other = tacit("--resume", str(run), "--ledger", address + "x")
    assert other.exit_code == 2
    assert "a resumed run keeps its ledger" in other.output
    assert tacit("--resume", str(run), "--ledger", address).exit_code == 130
    monkeypatch.setattr(Live, "update", shown)
    monkeypatch.setenv("PGPASSWORD", SECRET)
    assert tacit("--resume", str(run)).exit_code == 0
    assert SECRET not in told.output + refused.output + other.output
