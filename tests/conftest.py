"""What every test may use."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import hypothesis
import pytest

from tests.skips import pytest_collectreport, pytest_runtest_logreport, pytest_sessionfinish  # noqa: F401

# One core of a shared machine can be slow: a property is judged by its result, not by the time of one example.
# Contributors draw new examples every time; a submission is judged on the same ones each time.
hypothesis.settings.register_profile("tacit", deadline=None, print_blob=True, derandomize=bool(os.environ.get("CI")))
hypothesis.settings.load_profile("tacit")

# Large libraries are imported once and live to the end: the collector of cycles need not look at them again and again,
# which took 8% of the time of tests of training and more of others.
gc.set_threshold(10_000, 20, 20)


def pytest_collection_finish() -> None:
    """What is there before the first test lives to the end."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder with the real data sets; the test is skipped where there is none."""
    folder = os.environ.get("TACIT_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("TACIT_DATA does not name a folder with the real data sets")
    return Path(folder)


@pytest.fixture
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No data anywhere: an empty cache folder and no TACIT_DATA."""
    monkeypatch.delenv("TACIT_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path
