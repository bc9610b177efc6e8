"""How the documentation is built: MyST pages, API pages from docstrings, the furo theme."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import tacit

project = "tacit"
author = "The tacit authors"
release = version = tacit.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "dollarmath", "deflist"]
myst_heading_anchors = 3

napoleon_custom_sections = ["Guarantee"]
autosummary_generate = True
# The public names of a room are imported into its __init__; that is where people find them.
autosummary_imported_members = False
autosummary_ignore_module_all = False
autodoc_typehints = "description"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}

templates_path = ["_templates"]
html_theme = "furo"
html_title = f"tacit {release}"


def _write_api_index() -> None:
    """One page of the reference for each room that is in the tree; the pages themselves are made by autosummary."""
    source = Path(tacit.__file__).parent
    rooms = sorted(path.parent.name for path in source.glob("*/__init__.py") if path.parent.name != "cli")
    modules = sorted(path.stem for path in source.glob("*.py") if not path.stem.startswith("__"))
    lines = [
        "API reference",
        "=============",
        "",
        "Made from the docstrings; the examples in them are run as tests.",
        "",
    ]
    lines += [".. autosummary::", "   :toctree:", ""] + [f"   tacit.{name}" for name in rooms + modules]
    target = Path(__file__).parent / "api" / "index.rst"
    target.parent.mkdir(exist_ok=True)
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")


_write_api_index()


def _bars_are_absolute_values(app: Any, what: str, name: str, obj: object, options: Any, lines: list[str]) -> None:
    """``|x|`` in a docstring is an absolute value, which reStructuredText would take for a substitution."""
    for i, line in enumerate(lines):
        pieces = line.split("``")
        pieces[::2] = [re.sub(r"(?<!\\)\|(\S[^|]*?)\|", r"\\|\1\\|", piece) for piece in pieces[::2]]
        lines[i] = "``".join(pieces)


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", _bars_are_absolute_values)
