"""``tacit ledger keys``: what abandoned runs left can be listed and destroyed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tacit.cli import build
from tacit.noise import Key
from tacit.runs.folder import as_it_was
from tacit.runs.journal import Journal
from tacit.sgd.training.checkpoint import CheckpointError, key_folder


@pytest.fixture
def keys(tmp_path, monkeypatch):
    """The command, beside the keys of a training run and of a search that were killed."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    Key.generate().save(key_folder() / "0123456789abcdef.key")
    Journal.begin(Path("runs"), "search-1", "", {}, keyed=True).close()
    os.utime("runs/search-1/private/run.key", (0, time.time() - 40 * 86400))
    return lambda *words: CliRunner().invoke(build(), ["ledger", "keys", *words])


def names(told):
    return [tuple(line.split("\t")[::2]) for line in told.output.splitlines()]


def test_the_keys_of_training_and_of_searches_are_listed_and_destroyed(keys):
    """The wrong version knew the keys of training only: that of a search stayed where its noise was kept."""
    here = [
        ("search-1", "runs/search-1/private/run.key"),
        ("0123456789abcdef", str(key_folder() / "0123456789abcdef.key")),
    ]
    assert names(keys()) == here
    assert keys("--destroy", "nobody").exit_code == 1
    assert names(keys("--older-than", "30"))[0] == ("search-1", "destroyed")
    assert not list(Path("runs").rglob("run.key*"))
    assert names(keys("--destroy", "0123456789abcdef")) == [("0123456789abcdef", "destroyed")]
    assert not list(key_folder().iterdir())
    assert keys().output == ""


def test_a_key_that_a_kill_left_half_destroyed_is_listed_and_destroyed(keys):
    half = key_folder() / "0123456789abcdef.key"
    half.rename(f"{half}.gone")  # what destroy does first; the file still holds the key
    assert "0123456789abcdef" in keys().output
    keys("--destroy", "0123456789abcdef")
    assert not list(key_folder().iterdir())


def test_the_key_of_a_run_that_goes_on_and_a_file_that_is_no_key_are_left_alone_with_a_message(keys):
    with Journal(Path("runs/search-1")):
        told = keys("--destroy", "search-1")
    assert (told.exit_code, "another process is working on" in told.output) == (1, True)
    (key_folder() / "0123456789abcdef.key").write_text("a note")
    told = keys("--destroy", "0123456789abcdef")
    assert (told.exit_code, "is not a tacit key file" in told.output) == (1, True)
    assert len(names(keys())) == 2


def test_a_run_whose_key_was_destroyed_says_so(tmp_path):
    with pytest.raises(CheckpointError, match="does not continue: its key was destroyed"), as_it_was(tmp_path):
        raise CheckpointError("a fork", ["the key, which is gone"])
