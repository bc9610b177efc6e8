"""Which benchmarks are there, and how fast are we today?

``python -m benchmarks`` runs every one, each in a process of its own; ``python -m benchmarks list`` lists them;
``python -m benchmarks NAME [options]`` runs one, and its ``--help`` shows its options.
"""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent


def names() -> dict[str, str]:
    """Every benchmark with the first line of what it says about itself."""
    found = {}
    for path in sorted(FOLDER.glob("*.py")):
        if not path.stem.startswith("_"):
            text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            found[path.stem] = text.splitlines()[0] if text else ""
    return found


def main(argv: list[str]) -> int:
    """List, run one, or run all; the exit status is that of the worst."""
    known = names()
    if not argv or argv[0] == "list":
        for name, text in known.items():
            print(f"{name:<12} {text}")
        print("\nmake bench ARGS=NAME runs one.", flush=True)
        if argv:
            return 0
        worst = 0
        for name in known:
            print(f"\n== {name}", flush=True)
            worst = max(worst, abs(subprocess.call([sys.executable, "-m", "benchmarks", name])))
        return worst
    if argv[0] not in known:
        print(f"no benchmark {argv[0]!r}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    status = importlib.import_module(f"benchmarks.{argv[0]}").main(argv[1:])
    return int(status or 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
