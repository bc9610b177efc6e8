"""How much of each room did the selftest run? Statements inside functions, counted while the scenes run.

What a module does when it is imported proves nothing, so only statements inside functions count. Python 3.12 tells
each line once and at no further cost (:mod:`sys.monitoring`); on 3.11 a trace function follows a function until its
lines are known. Processes that a scene starts are not followed.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import tacit.selftest.scene

SOURCE = Path(tacit.selftest.scene.__file__).parents[1]

#: Rooms on which a guarantee rests.
ROOMS = (
    "accounting",
    "noise",
    "schema",
    "ledger",
    "sgd",
    "linear_model",
    "additive",
    "pate",
    "prompts",
    "tuning",
    "opacus",
    "integrations",
    "report",
    "runs",
)

#: What is not counted, and why. Everything else in a room is.
LEFT_OUT = {
    "integrations/trackers.py": "passes released numbers on to experiment trackers",
    "prompts/endpoint.py": "asks a language model over HTTP",
    "prompts/gguf.py": "reads the files of public models",
    "report/audited.py": "shows what an audit found",
    "runs/audit.py": "audits a run; releases nothing of it",
    "runs/claims.py": "audits a run; releases nothing of it",
    "runs/check.py": "shows the operator how a table differs from its schema; releases nothing",
    "report/pdf.py": "prints a page with a browser",
    "runs/progress.py": "shows progress on a terminal",
    "noise/cuda.py": "runs on a GPU",
    "noise/native.py": "compiles a library; its numbers are compared with the definition when it is loaded",
    "linear_model/cluster_moments.py": "runs on a cluster; its sums are those of the table to the last bit",
    "sgd/kernels": "runs on a GPU",
    "sgd/compile": "compiles programs and keeps them; each is compared with the step it replaces",
    "sgd/sharding": "runs in processes of its own; the scene `ranks` looks at what they release",
    "sgd/training/prefetch.py": "draws batches beside a GPU; which records take part is drawn by the same function",
    "sgd/training/config.py:shows_keywords": "describes keywords when it is imported",
    "sgd/training/config.py:describes_keywords": "describes keywords when it is imported",
    "sgd/training/config.py:_described": "describes keywords when it is imported",
    "sgd/training/config.py:_section": "describes keywords when it is imported",
    "sgd/gradients/contributions.py:rule": "lists rules when it is imported",
    "sgd/gradients/contributions.py:rule.register": "lists rules when it is imported",
    "sgd/gradients/contributions.py:Outer._aligned": "runs on a GPU",
    "sgd/gradients/contributions.py:_sums_tokens": "runs on a GPU",
    "sgd/gradients/planning.py:_give_back": "runs where the memory of a GPU does not suffice",
    "sgd/gradients/rules/convolution.py:ConvOuter.kernel_norms": "runs on a GPU",
    "sgd/gradients/rules/convolution.py:ConvOuter._image_gram": "runs on a GPU",
    "sgd/gradients/rules/convolution.py:ConvOuter._grad_gram": "runs on a GPU",
    "sgd/gradients/contributions.py:Outer.kernel_norms": "runs on a GPU",
    "sgd/gradients/contributions.py:_kernel_margins": "runs on a GPU",
    "sgd/gradients/planning.py:_for_whole": "runs where the memory of a GPU does not suffice",
    "sgd/gradients/planning.py:_from_part": "runs where the memory of a GPU does not suffice",
    "integrations/lightning.py:PrivateDDPStrategy.configure_ddp": "runs in several processes",
    "integrations/lightning.py:_share_key": "runs in several processes",
    "integrations/lightning.py:_all_reduce.reduce": "runs in several processes",
    "ledger/sql.py:SqlStore._postgres_error": "answers of a PostgreSQL server",
    "prompts/models.py:_smollm2": "fetches a public model",
    "prompts/models.py:prepare": "fetches a public model",
    "accounting/attacks.py:plot": "draws a picture",
    "additive/curves.py:draw": "draws a picture",
    "additive/estimators.py:AdditiveModel.plot": "draws a picture",
    "additive/estimators.py:AdditiveModel._axis": "draws a picture",
    "additive/estimators.py:AdditiveRegressor._axis": "draws a picture",
}

#: Calls of a function that are followed to the end, in each ``with`` block and after each new line; after that every
#: sixteenth.
FOLLOWED = 64


@dataclasses.dataclass(frozen=True)
class Reach:
    """How many statements inside the functions of a room were run.

    Args:
        run: Statements that were run.
        count: Statements in all.

    Example:
        >>> round(Reach(8, 10).share, 2)
        0.8
    """

    run: int
    count: int

    @property
    def share(self) -> float:
        """The share that was run."""
        return self.run / max(self.count, 1)


class Tracer:
    """Notes which lines of tacit are run inside its ``with`` blocks."""

    def __init__(self) -> None:
        self.lines: dict[str, set[int]] = defaultdict(set)
        self._codes: dict[int, tuple[CodeType, set[int] | None, list[int]]] = {}

    # -- Python 3.11 ---------------------------------------------------------------------------------------------------

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        known = self._codes.get(id(code))
        if known is None:
            ours = code.co_filename.startswith(str(SOURCE))
            left = {line for _, _, line in code.co_lines() if line} if ours else None
            known = self._codes[id(code)] = (code, left, [0])
        _, left, calls = known
        if not left:
            return None
        calls[0] += 1
        if calls[0] > FOLLOWED and calls[0] % 16:
            return None
        seen = self.lines[code.co_filename]

        def line(frame: FrameType, event: str, arg: Any) -> Any:
            if event == "line":
                if frame.f_lineno in left:
                    calls[0] = 0  # news: there may be more of it
                seen.add(frame.f_lineno)
                left.discard(frame.f_lineno)
            return line if left else None

        return line

    # -- Python 3.12 and later -----------------------------------------------------------------------------------------

    def _line(self, code: CodeType, number: int) -> Any:
        if code.co_filename.startswith(str(SOURCE)):
            self.lines[code.co_filename].add(number)
        return self._monitoring.DISABLE

    @property
    def _monitoring(self) -> Any:
        return getattr(sys, "monitoring", None)

    def __enter__(self) -> Tracer:
        watch = self._monitoring
        if watch is None:
            for _, _, calls in self._codes.values():
                calls[0] = 0
            self._before = sys.gettrace()
            if self._before is None:  # a debugger or a coverage tool keeps its place
                threading.settrace(self._call)
                sys.settrace(self._call)
            return self
        watch.use_tool_id(watch.PROFILER_ID, "tacit selftest")
        watch.register_callback(watch.PROFILER_ID, watch.events.LINE, self._line)
        watch.set_events(watch.PROFILER_ID, watch.events.LINE)
        watch.restart_events()
        return self

    def __exit__(self, *_: Any) -> None:
        watch = self._monitoring
        if watch is None:
            if self._before is None:
                sys.settrace(None)
                threading.settrace(None)
            return
        watch.set_events(watch.PROFILER_ID, 0)
        watch.register_callback(watch.PROFILER_ID, watch.events.LINE, None)
        watch.free_tool_id(watch.PROFILER_ID)

    def by_file(self) -> dict[str, tuple[list[int], list[int]]]:
        """For each file: the first lines of statements that were run, and of those that were not."""
        found = {}
        for room in ROOMS:
            for path in sorted((SOURCE / room).rglob("*.py")):
                name = path.relative_to(SOURCE).as_posix()
                if any(name == out or name.startswith(f"{out}/") for out in LEFT_OUT):
                    continue
                seen = self.lines.get(str(path), set())
                ran: list[int] = []
                missed: list[int] = []
                without = frozenset(out.partition(":")[2] for out in LEFT_OUT if out.startswith(f"{name}:"))
                for first, last in statements(path.read_text(encoding="utf-8"), without):
                    (ran if any(line in seen for line in range(first, last + 1)) else missed).append(first)
                found[name] = (ran, missed)
        return found

    def reach(self) -> dict[str, Reach]:
        """The share of the statements of each room that were run."""
        files = self.by_file()
        found = {}
        for room in ROOMS:
            both = [lines for name, lines in files.items() if name.startswith(f"{room}/")]
            run = sum(len(ran) for ran, _ in both)
            found[room] = Reach(run, run + sum(len(missed) for _, missed in both))
        return found


@functools.cache
def statements(text: str, without: frozenset[str] = frozenset()) -> tuple[tuple[int, int], ...]:
    """First and last line of each statement inside a function, without what is inside of it.

    >>> statements("def f(x):\\n    'text'\\n    if x:\\n        return (\\n            1)\\n    return 2\\n")
    ((3, 3), (4, 5), (6, 6))
    """
    found: list[tuple[int, int]] = []
    for name, node in functions(ast.parse(text)):
        if name not in without and not _declared_only(node):
            found += _inside(node.body)
    return tuple(sorted(set(found)))


def functions(tree: ast.AST, path: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function, named with the classes and functions that it stands in."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from functions(node, path)
            continue
        name = f"{path}.{node.name}" if path else node.name
        if not isinstance(node, ast.ClassDef):
            yield name, node
        yield from functions(node, name)


def _declared_only(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function says what others must do: a text, an ellipsis, or that it is not implemented."""
    last = node.body[-1]
    if isinstance(last, ast.Raise) and "NotImplementedError" in ast.unparse(last):
        return len(node.body) <= 2
    return all(isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant) for part in node.body)


def _inside(body: list[ast.stmt]) -> Iterator[tuple[int, int]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue  # walked to by itself
        if isinstance(node, ast.Pass | ast.Global | ast.Nonlocal):
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        parts = [part for name in ("body", "orelse", "finalbody") for part in getattr(node, name, [])]
        parts += [part for handler in getattr(node, "handlers", []) for part in handler.body]
        parts += [part for case in getattr(node, "cases", []) for part in case.body]
        inner = [part.lineno for part in parts]
        last = min([node.end_lineno or node.lineno, *(line - 1 for line in inner)])
        if not isinstance(node, ast.Try | ast.ClassDef):
            yield node.lineno, max(node.lineno, last)
        if not isinstance(node, ast.ClassDef):
            yield from _inside(parts)
