"""Every command teaches: its help has an example, the page of commands has it, and help loads nothing heavy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tacit.cli import COMMAND_FILES, build

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")


def _commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, child in getattr(command, "commands", {}).items():
        if hasattr(child, "commands"):
            yield from _commands(child, (*words, name))
        else:
            yield (*words, name)


COMMANDS = [" ".join(words) for words in _commands(typer.main.get_command(build()))]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example(command):
    told = CliRunner().invoke(build(), [*command.split(), "--help"], env={"COLUMNS": "200"})
    assert told.exit_code == 0
    assert f"$ tacit {command}" in told.output


@pytest.mark.parametrize("command", COMMANDS)
def test_the_page_of_the_command_has_it(command):
    assert re.search(rf"tacit {command.split()[0]}\b", "\n".join(re.findall(r"^## .*", PAGE, re.MULTILINE)))
    assert re.search(rf"\$ tacit {command}\b", PAGE)


def test_every_file_of_commands_is_registered():
    files = {path.stem for path in (ROOT / "src" / "tacit" / "cli").glob("*.py")}
    with_commands = {name for name in files if "def register(" in (ROOT / f"src/tacit/cli/{name}.py").read_text()}
    assert with_commands - {"common"} == set(COMMAND_FILES)
