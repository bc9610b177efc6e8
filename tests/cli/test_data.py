"""What a person sees who types ``tacit data``."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from tacit.cli import build
from tacit.datasets.catalog import CATALOG


@pytest.fixture
def tacit():
    runner = CliRunner()
    return lambda *words: runner.invoke(build(), list(words))


def test_help_teaches_with_examples(tacit):
    told = tacit("--help").output
    assert "tacit data list" in told
    assert "tacit data get mnist --data-dir" in told
    for command in ("list", "get", "where"):
        assert f"$ tacit data {command}" in tacit("data", command, "--help").output


def test_help_and_version_load_nothing_heavy():
    code = (
        "import sys\n"
        "from tacit.cli import main\n"
        "sys.argv = ['tacit', *sys.argv[1:]]\n"
        "try: main()\n"
        "except SystemExit as leave: assert not leave.code\n"
        "print([m for m in ('torch', 'polars', 'scipy', 'sklearn', 'matplotlib', 'numpy') if m in sys.modules])"
    )
    for words in (["--help"], ["--version"], ["data", "--help"]):
        told = subprocess.check_output([sys.executable, "-c", code, *words], text=True)
        assert told.strip().splitlines()[-1] == "[]", words


def test_the_list_has_every_set_with_rows_unit_and_licence(tacit, empty_home):
    result = tacit("data", "list")
    assert result.exit_code == 0
    rows = [line.split("\t") for line in result.output.splitlines()]
    assert [row[0] for row in rows] == list(CATALOG)
    for name, count, unit, licence, place in rows:
        entry = CATALOG[name]
        assert (int(count), unit, licence) == (entry.total, entry.unit, entry.licence)
        if entry.package is not None:
            assert place.startswith("here: ")
        elif entry.download:
            assert place == "can be downloaded"
        else:
            assert place.startswith("missing")


def test_the_list_as_json_is_for_programs(tacit, empty_home):
    listed = json.loads(tacit("data", "list", "--json").output)
    embedded = {name: entry.package is not None for name, entry in CATALOG.items()}
    assert {row["name"]: row["here"] for row in listed} == embedded
    assert listed[1]["splits"] == {"train": 60_000, "test": 10_000}


@pytest.mark.skipif(sys.platform == "win32", reason="a pseudo-terminal is needed")
def test_on_a_terminal_the_list_is_a_table_that_fits():
    import pty

    leader, follower = pty.openpty()
    command = [sys.executable, "-c", "from tacit.cli import main; main()", "data", "list"]
    environment = os.environ | {"COLUMNS": "80", "TERM": "xterm"}
    subprocess.run(command, stdout=follower, env=environment, check=True, timeout=60)
    os.close(follower)
    told = os.read(leader, 1 << 16).decode()
    os.close(leader)
    assert "\x1b[" in told
    assert "fashion_mnist" in told
    assert "350,696" in told


@pytest.mark.data
def test_get_checks_a_set_and_says_where_it_is(tacit, data_folder):
    result = tacit("data", "get", "sms_spam", "--data-dir", str(data_folder))
    assert result.exit_code == 0
    assert "sms_spam: all 5,574 rows; unit message" in result.output
    assert str(data_folder / "text/sms-spam/sms.tsv") in result.output


def test_get_says_what_to_do_about_an_absent_set(tacit, empty_home):
    result = tacit("data", "get", "census1980", "--data-dir", str(empty_home))
    assert result.exit_code == 1
    assert "Where to get it" in result.stderr
    assert str(empty_home / "tables/census1980_ak80_329509.parquet") in result.stderr


def test_get_names_a_broken_file(tacit, empty_home):
    broken = empty_home / "tables/adult_48842.parquet"
    broken.parent.mkdir()
    broken.write_bytes(b"PAR1")
    result = tacit("data", "get", "adult", "--data-dir", str(empty_home))
    assert result.exit_code == 1
    assert str(broken) in result.stderr
    assert "Traceback" not in result.stderr


def test_an_unknown_name_is_told_with_the_known_ones(tacit):
    for command in ("get", "where"):
        result = tacit("data", command, "minst")
        assert result.exit_code == 1
        assert "there is no data set 'minst'; the known ones are labsup, mnist" in result.stderr


def test_where_shows_folders_and_files(tacit, empty_home, monkeypatch):
    monkeypatch.setenv("TACIT_DATA", "/somewhere")
    folders = tacit("data", "where", "--data-dir", "/first").output.splitlines()
    assert folders == ["/first", "/somewhere", str(empty_home / "cache" / "tacit")]
    assert tacit("data", "where", "labsup").output.strip().endswith("labsup.csv.bz2")
    assert json.loads(tacit("data", "where", "labsup", "--json").output)[0].endswith("labsup.csv.bz2")
    absent = tacit("data", "where", "mnist")
    assert absent.exit_code == 1
    assert "Where to get it" in absent.stderr
