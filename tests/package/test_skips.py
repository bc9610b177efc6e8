"""A test cannot look away: where submissions are judged, a skip that is not listed fails the run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests import skips

ROOT = Path(__file__).parents[2]
LISTED = tomllib.loads(skips.FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", [name for name in LISTED if name != "*"])
def test_what_may_be_skipped_is_there_and_says_why(name):
    file, function = name.split("::")
    assert re.search(rf"^def {function}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
    assert LISTED[name]["reason"]
    assert LISTED[name]["why"]


def test_another_reason_another_test_and_data_that_are_there_are_not_excused():
    test = "tests/noise/test_stream.py::test_the_gpu_kernel_gives_the_same_bits_when_interpreted"
    assert not skips.unlisted({test: "Skipped: could not import 'triton': no such module"}, {})
    assert skips.unlisted({test: "Skipped: numpy: the compiled code does not agree with the definition"}, {})
    assert skips.unlisted({"tests/noise/test_stream.py::another": "Skipped: could not import 'triton'"}, {})
    data = {"tests/any.py::test[1]": "Skipped: TACIT_DATA does not name a folder with the real data sets"}
    assert not skips.unlisted(data, {})
    assert skips.unlisted(data, {"TACIT_DATA": "somewhere"})


@pytest.mark.parametrize(("ci", "status"), [("true", 1), ("", 0)])
def test_a_skip_fails_a_run_that_judges_a_submission(tmp_path, ci, status):
    hooks = "from tests.skips import pytest_collectreport, pytest_runtest_logreport, pytest_sessionfinish"
    (tmp_path / "conftest.py").write_text(hooks)
    (tmp_path / "test_it.py").write_text("import pytest\n\ndef test_it():\n    pytest.skip('the noise is wrong')\n")
    told = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, str(tmp_path)],
        env=os.environ | {"CI": ci, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == status, told.stdout + told.stderr
    assert ("not in tests/skips.toml" in told.stdout) == bool(status)
