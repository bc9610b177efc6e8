"""Which tests may be skipped where submissions are judged? Those in ``skips.toml``. With CI=true any other skip fails.

The hooks are taken over by ``conftest.py``.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).with_name("skips.toml")
_skipped: dict[str, str] = {}


def unlisted(skipped: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> list[str]:
    """The skips that nothing in ``skips.toml`` allows.

    Args:
        skipped: The reason of each skipped test.
        environment: The environment variables.

    Returns:
        One line for each of the others.
    """
    listed = tomllib.loads(FILE.read_text(encoding="utf-8"))

    def allowed(test: str, reason: str) -> bool:
        for name, entry in listed.items():
            words = [entry["reason"]] if isinstance(entry["reason"], str) else entry["reason"]
            if name in ("*", test.split("[")[0]) and any(word in reason for word in words):
                return entry.get("unless", "") not in environment
        return False

    return [f"{test}: {reason}" for test, reason in sorted(skipped.items()) if not allowed(test, reason)]


def note(report: Any) -> None:
    """Keep the reason of a skip."""
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        _skipped[report.nodeid] = reason


pytest_runtest_logreport = note
pytest_collectreport = note


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: Any) -> None:
    """Fail where something was skipped that may not be."""
    if not os.environ.get("CI") or hasattr(session.config, "workerinput"):
        return
    found = unlisted(_skipped)
    if found:
        print("\nskipped, and not in tests/skips.toml:", *found, sep="\n    ")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
