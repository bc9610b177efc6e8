"""How much of Opacus' own test suite passes with ``tacit.opacus``? ``python -m tools.opacus_suite CHECKOUT``

The tests of a checkout of https://github.com/pytorch/opacus are copied to a temporary folder and import
``tacit.opacus`` where they imported ``opacus``. Nothing else is changed. A name that tacit does not have becomes an
object that fails where it is used, so that one missing name does not fail a whole file. What each test did is kept in
``benchmarks/results/opacus-suite.json``, from which ``docs/results/opacus-suite.md`` is made.
"""

from __future__ import annotations

import argparse
import ast
import collections
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
STATE = ROOT / "benchmarks" / "results" / "opacus-suite.json"
PAGE = ROOT / "docs" / "results" / "opacus-suite.md"
BEGIN, END = "<!-- the tables are made by python -m tools.opacus_suite -->", "<!-- end of the tables -->"
COLUMNS = ("passed", "skipped", "no network", "internals", "on purpose", "open", "not run")
#: Where a test that fails belongs: words of its name and error. The first that matches counts; the rest is open.
GROUPS = (
    ("no network", r"URLError"),
    ("internals", r"has no attribute 'summed_grad'"),
    ("on purpose", r"'Parameter' object has no attribute 'grad_sample'"),
    ("internals", r"NotHere|_ACCOUNTANTS|KeyError: <class 'torch.nn.modules|has no attribute '_(?!module)\w+'"),
    ("internals", r"has no attribute '(GRAD_SAMPLERS|autograd_grad_sample_hooks|hooks_enabled|add_hooks|to_standard)"),
    ("on purpose", r"NotImplementedError|does not wrap the model|one process only|is not supported"),
    ("on purpose", r"AccountingTest::test_(gdp|rdp|prv|get_noise_multiplier)\w*"),
    ("on purpose", r"randomness_test.*(DataLoader|data_seed|_seed)"),
    ("on purpose", r"test_(deterministic_run|equivalent_to_one_batch)"),  # noise comes from a secret key, not a seed
    ("on purpose", r"test_noise_level.*FlakyFailure"),  # so a hundred draws of a squared norm are not within 15%
    ("on purpose", r"test_(checkpoints|accountant_load_state_dict)"),  # loading adds to what was spent
    ("on purpose", r"test_privacy_engine_zero_grad"),  # a forgotten zero_grad is harmless
    ("on purpose", r"test_(privacy_engine_(no_)?poisson_accumulation|batch_splitter_zero_grad)"),  # priced, not refused
    ("on purpose", r"test_is_valid_non_learnable_bn"),  # batch normalisation mixes also without weights
    ("on purpose", r"test_(unsupported|extra_param)_ew"),  # served, where Opacus refuses
    ("on purpose", r"Text\w*::test_make_private_with_epsilon"),  # it forgets batch_first=False: its examples are words
    ("on purpose", r'does not match "the optimizer holds'),  # refused, in other words
    ("internals", r"triggered on opacus|test_(custom_linear|extra_param|unsupported)_hooks|per_sample_gradients_utils"),
)
CONFTEST = """
import sys
sys.path.insert(0, {root!r})
from tests.sgd import zoo_wide  # torchvision without its compiled operators
"""
HERE = '''
import importlib


class NotHere(Exception):
    """tacit has no such name."""


def here(module, name):
    try:
        found = importlib.import_module(module)
        return getattr(found, name) if hasattr(found, name) else importlib.import_module(f"{module}.{name}")
    except ImportError:
        words = f"{module}.{name}"

    class Missing(type):
        def __call__(cls, *args, **kwargs):
            raise NotHere(words)

        def __getattr__(cls, key):
            if key.startswith("__") or key == "pytestmark":
                raise AttributeError(key)
            raise NotHere(words)

    return Missing(name, (), {})
'''


class Imports(ast.NodeTransformer):
    """Imports of ``opacus`` become those of ``tacit.opacus``, name by name."""

    def visit_Import(self, node: ast.Import) -> Any:
        """``import opacus``."""
        for alias in node.names:
            if alias.name == "opacus":
                alias.name, alias.asname = "tacit.opacus", alias.asname or "opacus"
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> Any:
        """``from opacus.layers import DPLSTM``."""
        module = node.module or ""
        if module.startswith("opacus.tests"):
            node.module = module.replace("opacus.tests", "opacus_tests")
        elif module.partition(".")[0] == "opacus" and not node.level:
            lines = ["from opacus_tests.here import here"]
            lines += [f"{a.asname or a.name} = here({'tacit.' + module!r}, {a.name!r})" for a in node.names]
            return ast.parse("\n".join(lines)).body
        return node


def changed(text: str) -> str:
    """A test with other imports.

    >>> print(changed("from opacus.layers import DPLSTM"))
    from opacus_tests.here import here
    DPLSTM = here('tacit.opacus.layers', 'DPLSTM')
    """
    return ast.unparse(Imports().visit(ast.parse(text)))


def copied(checkout: Path, folder: Path, change: bool) -> None:
    """Copy the tests of a checkout into a folder of their own.

    Args:
        checkout: The checkout of Opacus.
        folder: Where to.
        change: Whether they import tacit, or Opacus as before.
    """
    shutil.copytree(checkout / "opacus" / "tests", folder / "opacus_tests")
    (folder / "conftest.py").write_text(CONFTEST.format(root=str(ROOT)), encoding="utf-8")
    for file in (folder / "opacus_tests").rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        file.write_text(changed(text) if change else text.replace("opacus.tests", "opacus_tests"), encoding="utf-8")
    (folder / "opacus_tests" / "here.py").write_text(HERE, encoding="utf-8")


def _pytest(folder: Path, path: Path, *words: str) -> str:
    paths = os.pathsep.join([str(path), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "--continue-on-collection-errors"]
    command += ["-c", os.devnull, "--rootdir", str(folder), "opacus_tests", *words]
    env = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=3400).stdout


def listed(checkout: Path) -> list[str]:
    """Every test of the suite, found with the checkout's own package.

    Args:
        checkout: The checkout of Opacus.

    Returns:
        Their names, as ``file::Class::name``.
    """
    with tempfile.TemporaryDirectory() as name:
        copied(checkout, Path(name), change=False)
        lines = _pytest(Path(name), checkout, "--collect-only").splitlines()
    return sorted(line.strip().removeprefix("opacus_tests/") for line in lines if "::" in line and " " not in line)


def outcomes(checkout: Path, only: str = "") -> dict[str, tuple[str, str]]:
    """What each test does with ``tacit.opacus``.

    Args:
        checkout: The checkout of Opacus.
        only: Run only tests that match this expression of pytest's ``-k``.

    Returns:
        Result and message by ``file::Class::name``.
    """
    found = {}
    with tempfile.TemporaryDirectory() as name:
        copied(checkout, Path(name), change=True)
        _pytest(Path(name), ROOT / "src", "--junitxml", f"{name}/report.xml", *(("-k", only) if only else ()))
        for case in ET.parse(f"{name}/report.xml").iter("testcase"):
            owner = case.get("classname") or case.get("name") or ""
            file, _, kind = owner.removeprefix("opacus_tests.").rpartition(".")
            if not re.match(r"[A-Z]", kind):
                file, kind = f"{file}.{kind}".strip("."), ""
            label = "::".join(w for w in (f"{file.replace('.', '/')}.py", kind, case.get("name") or "") if w)
            bad = next((e for k in ("failure", "error", "skipped") if (e := case.find(k)) is not None), None)
            if bad is None:
                found[label] = ("passed", "")
            else:
                words = " ".join(f"{bad.get('message') or ''} {(bad.text or '')[-600:]}".split())
                found[label] = ("skipped" if bad.tag == "skipped" else "failed", words)
    return found


def group(label: str, result: str, message: str) -> str:
    """The column that a test belongs to."""
    if result != "failed":
        return result
    return next((name for name, words in GROUPS if re.search(words, f"{label} {message}")), "open")


def tables(known: dict[str, Any]) -> str:
    """The tables of the page.

    Args:
        known: What ``opacus-suite.json`` holds.

    Returns:
        Their lines.
    """
    classes: dict[str, collections.Counter[str]] = {}
    opened = []
    for label, one in known["tests"].items():
        column = group(label, one["result"], one["message"])
        file, _, rest = label.partition("::")
        name = f"`{Path(file).stem}::{rest.partition('::')[0]}`"
        classes.setdefault(name, collections.Counter())[column] += 1
        if column == "open":
            opened.append((label, one["message"]))
    total = sum(classes.values(), collections.Counter())
    lines = [f"| test class | tests | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 2) + "|"]
    for name, counts in [*sorted(classes.items()), ("**all**", total)]:
        lines.append(f"| {name} | {counts.total()} | {' | '.join(str(counts[c]) for c in COLUMNS)} |")
    lines += ["", f"Opacus at commit {known['opacus']}, tacit at {known['commit']}.", ""]
    if opened:
        lines += ["## Open", "", "| test | what happens |", "|---|---|"]
        for label, message in sorted(opened):
            plain = re.sub(r"[^\w\s.,:;()=/'-]", "", message)[:140].replace("_", r"\_")
            lines.append(f"| `{label.partition('::')[2]}` | {plain} |")
    return "\n".join(lines).rstrip()


def _commit(folder: Path) -> str:
    words = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(words, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def _version(checkout: Path) -> str:
    """The commit of a checkout; of an unpacked source release its number."""
    if (checkout / ".git").exists():
        return _commit(checkout)
    found = re.search(r'__version__ = "(.+)"', (checkout / "opacus" / "version.py").read_text(encoding="utf-8"))
    return f"of release {found[1]}" if found else "unknown"


def main() -> int:
    """Do what the command line says.

    Returns:
        0.
    """
    parser = argparse.ArgumentParser(prog="python -m tools.opacus_suite", description=__doc__.split("\n")[0])
    parser.add_argument(
        "checkout",
        nargs="?",
        type=Path,
        help="a checkout or unpacked source release of Opacus; without it only the table",
    )
    parser.add_argument("--only", default="", help="run only tests that match this (pytest -k) and keep the others")
    wish = parser.parse_args()
    if wish.checkout is not None:
        commit = _commit(ROOT)  # of the source that runs, whatever happens to it meanwhile
        names, found = listed(wish.checkout), outcomes(wish.checkout, wish.only)
        lost = ("failed", "its file cannot be imported")
        tests = {n: dict(zip(("result", "message"), found.get(n, lost), strict=True)) for n in names}
        if wish.only:
            kept = json.loads(STATE.read_text(encoding="utf-8"))
            later = {"result": "not run", "message": ""}
            tests = {n: one if n in found else kept["tests"].get(n, later) for n, one in tests.items()}
            commit = ", ".join(dict.fromkeys([*kept["commit"].split(", "), commit]))
        known = {"opacus": _version(wish.checkout), "commit": commit, "tests": tests}
        for one in tests.values():
            one["message"] = one["message"].replace(str(ROOT), "")[:300]
        STATE.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    known = json.loads(STATE.read_text(encoding="utf-8"))
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{tables(known)}\n\n{END}{rest.split(END)[1]}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
