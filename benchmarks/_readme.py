"""Is the speed table of the README that of docs/results/speed.md? ``python -m benchmarks._readme`` copies it there.

The first table of the page that has a column "private, compiled" is taken, with the columns that a reader of the README
needs. A test compares the two, so that a new measurement cannot leave an old table behind.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
COLUMNS = ("workload (rows)", "plain, compiled", "private, compiled", "to eager", "to compiled", "best to best")
MARKS = re.compile(r"(<!-- speed -->\n).*?(<!-- /speed -->)", re.DOTALL)


def speed_table(page: str) -> str:
    """The table in Markdown, without marks of footnotes.

    >>> print(speed_table("| workload (rows) | plain, compiled | private, compiled | to eager | to compiled | "
    ...                   "best to best | x |\\n|---|---|---|---|---|---|---|\\n"
    ...                   "| MLP ¹ | 1 ms | 2 ms | 1.3 | 2.0 | 2.1 | 5 |\\n\\n"))
    | workload (rows) | plain, compiled | private, compiled | to eager | to compiled | best to best |
    |---|---|---|---|---|---|
    | MLP | 1 ms | 2 ms | 1.3 | 2.0 | 2.1 |
    """
    for table in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
        rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in table.splitlines()]
        if all(name in rows[0] for name in COLUMNS):
            places = [rows[0].index(name) for name in COLUMNS]
            kept = [[re.sub(r"[ ¹²³⁴⁵]+$", "", row[place]) for place in places] for row in rows]
            lines = ["| " + " | ".join(row) + " |" for row in kept]
            return "\n".join([lines[0], "|" + "---|" * len(places), *lines[2:]])
    raise ValueError(f"docs/results/speed.md has no table with the columns {', '.join(COLUMNS)}")


def renewed(readme: str, page: str) -> str:
    """The README with the table of the page."""
    return MARKS.sub(lambda found: found[1] + speed_table(page) + "\n" + found[2], readme)


def main(argv: list[str]) -> int:
    """Write the README."""
    readme = ROOT / "README.md"
    page = (ROOT / "docs" / "results" / "speed.md").read_text(encoding="utf-8")
    readme.write_text(renewed(readme.read_text(encoding="utf-8"), page), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
