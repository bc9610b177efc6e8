"""How are the headline picture and its table renewed? ``python -m experiments.gallery [FOLDER ...]``

Rows of the experiments behind them are looked for below each folder (``**/NAME/rows.jsonl``) and added to those kept in
``rows/NAME.jsonl``; a row that is already there, with the same key, is not taken twice, and a row of a
run that failed (no memory, say) is not taken. Then
``docs/results/headline.png`` and ``headline.txt``, which docs/results/index.md includes, are made from what is kept.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from experiments import headline
from experiments.__main__ import reproduce

ROOT = Path(__file__).parents[1]
KEY = ("part", "data", "epsilon", "method", "candidate", "columns", "trial", "seed")


def merged(kept: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The kept rows and those of the new ones that did not fail and whose key is not among them.

    >>> merged([{"seed": 0, "accuracy": 0.9}], [{"seed": 0, "accuracy": 0.8}, {"seed": 1, "accuracy": 0.7}])
    [{'seed': 0, 'accuracy': 0.9}, {'seed': 1, 'accuracy': 0.7}]
    """
    found = list(kept)
    known = {tuple(json.dumps(row.get(name)) for name in KEY) for row in kept}
    for row in new:
        key = tuple(json.dumps(row.get(name)) for name in KEY)
        if key not in known and "error" not in row:
            known.add(key)
            found.append(row)
    return found


def _rows(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.endswith("}")]


def main(argv: list[str]) -> int:
    """Collect rows, then draw."""
    for name in headline.SOURCES:
        target = headline.KEPT / f"{name}.jsonl"
        before = _rows(target)
        rows = before
        for folder in argv:
            for file in sorted(Path(folder).glob(f"**/{name}/rows.jsonl")):
                rows = merged(rows, _rows(file))
        print(f"{name}: {len(before)} rows kept, {len(rows) - len(before)} new")
        if rows:
            lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            target.write_text(lines, encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        table = reproduce("headline", Path(folder), 1, size="full")
        shutil.copy(table.folder / "headline.png", ROOT / "docs" / "results" / "headline.png")
        shutil.copy(table.folder / "table.md", ROOT / "docs" / "results" / "headline.txt")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
