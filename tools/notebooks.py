"""How do the notebooks in examples/ come about? ``python tools/notebooks.py [NAME ...]`` (``make notebooks``).

A notebook is a tutorial of docs/tutorials/ in another form: its prose, its blocks as cells, run from top to bottom in
an empty folder, with what came out. ``tests/package/test_notebooks.py`` compares the two; the blocks themselves are run
by the tests of the pages.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TUTORIALS = sorted(page.stem for page in (ROOT / "docs" / "tutorials").glob("*.md"))
FENCE = re.compile(r"^```(\w+)\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
ROLE = re.compile(r"\{doc\}`(?:([^`<]*?)\s*<)?/?([\w/-]+)>?`")


def cells(page: str) -> list[tuple[str, str]]:
    """The kind (markdown or code) and the text of each cell.

    >>> cells("Look:\\n\\n```console\\n$ tacit data list\\n```\\nSee {doc}`/howto/ledger`.\\n")
    [('markdown', 'Look:'), ('code', '!tacit data list'), ('markdown', 'See [ledger](../docs/howto/ledger.md).')]
    """
    found = []
    parts = FENCE.split(page)
    for prose, kind, body in zip(parts[::3], [*parts[1::3], ""], [*parts[2::3], ""], strict=True):
        found.append(("markdown", ROLE.sub(_link, prose).strip()))
        if kind == "python":
            found.append(("code", body.strip()))
        elif kind == "console":
            lines = re.findall(r"^\$ (.*)$", body.replace("\\\n", " "), re.MULTILINE)
            found.append(("code", "\n".join("!" + " ".join(line.split()) for line in lines)))
        elif kind == "toml":
            found.append(("code", f"%%writefile {body.splitlines()[0].removeprefix('# ')}\n{body.strip()}"))
        elif kind and kind != "output":  # the notebook shows its own output
            found.append(("markdown", f"```{kind}\n{body}```"))
    return [(kind, text) for kind, text in found if text]


def _link(found: re.Match[str]) -> str:
    title, target = found[1] or found[2].rpartition("/")[2], found[2]
    return f"[{title}](../docs/{target}.md)"


def executed(name: str) -> dict[str, Any]:
    """The notebook of a tutorial, with its outputs."""
    import nbformat
    from nbclient import NotebookClient

    book = nbformat.v4.new_notebook(metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})
    page = (ROOT / "docs" / "tutorials" / f"{name}.md").read_text(encoding="utf-8")
    for number, (kind, text) in enumerate(cells(page)):
        make = nbformat.v4.new_code_cell if kind == "code" else nbformat.v4.new_markdown_cell
        book.cells.append(make(text, id=f"{name}-{number}"))
    with tempfile.TemporaryDirectory() as place:
        NotebookClient(book, timeout=600, resources={"metadata": {"path": place}}).execute()
    for cell in book.cells:
        cell.metadata.clear()  # times of this machine
        if cell.cell_type == "code":
            cell.outputs = _quiet(cell.outputs)
    book.metadata = {"kernelspec": book.metadata["kernelspec"], "language_info": {"name": "python"}}
    return dict(book)


def _quiet(outputs: list[Any]) -> list[Any]:
    """One stream without a live line: what the operator sees while a run goes on is not for others."""
    import nbformat

    text = "".join(out.text for out in outputs if out.output_type == "stream")
    lines = [re.split(r"\r|\x1b\[\d*K", line)[-1] for line in text.splitlines()]
    kept = [line for line in lines if "operator view" not in line]
    rest = [out for out in outputs if out.output_type != "stream"]
    stream = nbformat.v4.new_output("stream", name="stdout", text="\n".join(kept).strip("\n") + "\n")
    return ([stream] if any(kept) else []) + rest


if __name__ == "__main__":
    # ``!tacit`` in a cell is the command of this environment.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    os.environ |= {"COLUMNS": "110", "NO_COLOR": "1"}
    for name in sys.argv[1:] or TUTORIALS:
        target = ROOT / "examples" / f"{name}.ipynb"
        target.write_text(json.dumps(executed(name), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(target.relative_to(ROOT))
