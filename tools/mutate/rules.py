"""Which changes would break a guarantee? Rules over the syntax tree that look only at what carries privacy.

A rule looks at one expression or statement and proposes another text for it. Whether a place carries privacy is read
off its names: a rule for noise looks at names of noise, a rule for counts at names of counts, and so on. Text for
people (``raise``, f-strings, ``__repr__``) is left alone. ``python -m tools.mutate list`` shows what comes out.
"""

from __future__ import annotations

import ast
import hashlib
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "tacit"

#: Parts of names by what they stand for. A name matches where one of its words, split at underscores, begins so.
NOISE = ("noise", "sigma", "std", "deviation", "scale", "draw", "gumbel", "laplace", "gaussian")
BOUND = (
    "clip",
    "norm",
    "bound",
    "sensitivity",
    "radius",
    "lower",
    "upper",
    "cap",
    "threshold",
    "limit",
    "max",
    "weight",
)
COUNT = (
    "count",
    "step",
    "row",
    "charge",
    "participation",
    "teacher",
    "vote",
    "query",
    "queries",
    "run",
    "draws",
    "times",
)
COUNT += ("group", "epoch", "rank", "number", "order", "record", "release")
PRICE = ("epsilon", "eps", "delta", "rho", "mu", "spent", "budget", "left", "price", "cost", "loss", "alpha", "gamma")
SAMPLE = ("rate", "sample", "probability", "share", "subset", "mask", "poisson", "batch", "expected")
SECRET = ("key", "seed", "secret", "nonce", "stream", "offset", "counter", "step", "index", "lot")
ADJACENCY = ("adjacency", "adjacent", "neighbour", "replace")
#: The names that a guarantee is written in, without those that any program counts with.
CORE = (
    "noise",
    "sigma",
    "clip",
    "sensitivity",
    "epsilon",
    "delta",
    "rho",
    "spent",
    "budget",
    "adjacency",
    "adjacent",
    "key",
)
CORE += (
    "secret",
    "nonce",
    "charge",
    "vote",
    "participation",
    "rate",
    "sampling",
    "threshold",
    "max_rows",
    "group",
    "weight",
)
CORE += ("ledger", "upper", "lower", "private", "public", "steps", "teacher", "canar", "runs", "gamma", "unit")
CHECKS = (
    "charge",
    "clip",
    "clamp",
    "check",
    "require",
    "confirm",
    "verify",
    "refuse",
    "burn",
    "forget",
    "guard",
    "forbid",
)
ALL = tuple(dict.fromkeys(NOISE + BOUND + COUNT + PRICE + SAMPLE + SECRET + ADJACENCY))

#: Text for people, and what only describes.
TEXT = re.compile(
    r"__repr__|__str__|describe|format|text|html|table|picture|plot|draw_page|_say|show|print|summary|words|sentence|diagnostics"
)
#: Not mutated: kernels that only a GPU runs, tools that make wrong versions themselves, and what only shows or fetches.
LEFT_OUT = ("sgd/kernels/", "selftest/", "cli/", "datasets/", "report/page", "report/html", "sgd/torch_compat.py")
LEFT_OUT += (
    "noise/cuda",
    "noise/gpu",
    "sgd/compile/",
    "sgd/gradients/planning",
    "sgd/gradients/memory",
    "runs/watch",
    "pate/augment",
    "pate/learner",  # teachers may learn in any way: the guarantee rests on their votes
    "pate/stacked",
    "prompts/gguf",  # reads a public model
    "tuning/defaults",  # hyper-parameters, out of public numbers
)


@dataclass(frozen=True)
class Mutant:
    """One wrong version of the source.

    Attributes:
        id: Where it is and what it does; the same as long as the changed text is the same.
        path: The file, from the root.
        function: The function it stands in.
        rule: The rule that made it.
        line: The first line of what is changed.
        statement: Whether it is a whole statement, and not an expression.
        digest: A hash of the text of the function.
        begin: Where in the file the changed text begins.
        end: Where it ends.
        old: The text.
        new: What stands there instead.
    """

    id: str
    path: str
    function: str
    rule: str
    line: int
    statement: bool
    digest: str
    begin: int
    end: int
    old: str
    new: str

    @property
    def room(self) -> str:
        """The room of the file."""
        return self.path.split("/")[2].removesuffix(".py")

    def apply(self, text: str) -> str:
        """The file with the change.

        Args:
            text: The file as it is.

        Returns:
            The wrong version.
        """
        if text[self.begin : self.end] != self.old:
            raise ValueError(f"{self.path} changed since {self.id} was made")
        return text[: self.begin] + self.new + text[self.end :]


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"_+|(?<=[a-z])(?=[A-Z])", name) if word]


def speaks_of(node: ast.AST, stems: tuple[str, ...]) -> bool:
    """Whether a name in an expression begins, in one of its words, with one of the stems.

    Args:
        node: Any part of the tree.
        stems: Beginnings of words.

    Returns:
        Whether one is there.

    >>> speaks_of(ast.parse("noise_multiplier * 2"), NOISE), speaks_of(ast.parse("pages * 2"), NOISE)
    (True, False)
    """
    return any(word.startswith(stems) for word in _spoken(node))


def _spoken(node: ast.AST) -> frozenset[str]:
    """The words of all names in a node, kept with the node."""
    kept: frozenset[str] | None = getattr(node, "spoken", None)
    if kept is None:
        name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
        name = node.arg or "" if isinstance(node, (ast.keyword, ast.arg)) else name
        words = {word.lower() for word in _words(name)}
        kept = frozenset(words.union(*(_spoken(child) for child in ast.iter_child_nodes(node))))
        node.spoken = kept  # type: ignore[attr-defined]
    return kept


def _called(node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    return (
        node.func.attr
        if isinstance(node.func, ast.Attribute)
        else node.func.id
        if isinstance(node.func, ast.Name)
        else ""
    )


def _is(node: ast.AST, *values: float) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float) and node.value in values


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _only_on_a_gpu(node: ast.AST) -> bool:
    return isinstance(node, ast.With) and any("torch.cuda" in ast.unparse(one) for one in node.items)


Change = tuple[ast.AST, str]
Rule = Callable[[ast.AST, Callable[[ast.AST], str]], Iterator[Change]]


def factor_two(node: ast.AST, text: Callable[[ast.AST], str]) -> Iterator[Change]:
    """``2 * x`` and ``x / 2`` without the 2, ``x ** 2`` as ``x``."""
    if isinstance(node, ast.BinOp) and speaks_of(node, ALL):
        if isinstance(node.op, ast.Mult) and _is(node.left, 2, 0.5):
            yield node, f"({text(node.right)})"
        elif isinstance(node.op, (ast.Mult, ast.Div, ast.FloorDiv)) and _is(node.right, 2, 0.5):
            yield node, f"({text(node.left)})"


def squared(node: ast.AST, text: Callable[[ast.AST], str]) -> Iterator[Change]:
    """``sigma ** 2`` as ``sigma``, and ``sqrt(rho)`` as ``rho``."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and _is(node.right, 2):
        if speaks_of(node.left, NOISE + BOUND + PRICE):
            yield node, f"({text(node.left)})"
    elif _called(node) == "sqrt" and isinstance(node, ast.Call) and len(node.args) == 1 and speaks_of(node, ALL):
        yield node, f"({text(node.args[0])})"


def scaled(node: ast.AST, text: Callable[[ast.AST], str]) -> Iterator[Change]:
    """Half the noise where noise is passed on or kept; twice a clip norm or another bound."""
    half = "(lambda _v: _v if _v is None else _v * 0.5)({})"
    twice = "(lambda _v: _v if _v is None else _v * 2.0)({})"
    sigma = ("noise", "sigma", "std", "scale", "deviation")
    bounds = ("clip", "sensitivity", "radius")

    def change(name: str, value: ast.AST) -> Iterator[Change]:
        if isinstance(value, (ast.Constant, ast.Lambda, ast.Dict, ast.List, ast.Tuple, ast.ListComp, ast.JoinedStr)):
            return
        words = [word.lower() for word in _words(name)]
        if any(word in ("noises", "draws", "key", "type", "kind", "file", "path") for word in words):
            return
        if any(word.startswith(sigma) for word in words):
            yield value, half.format(text(value))
        elif any(word.startswith(bounds) for word in words):
            yield value, twice.format(text(value))

    if isinstance(node, ast.keyword) and node.arg:
        yield from change(node.arg, node.value)
    elif isinstance(node, ast.Assign) and isinstance(node.value, (ast.BinOp, ast.Call)):
        for target in node.targets:
            if isinstance(target, ast.Name):
                yield from change(target.id, node.value)


def factor(node: ast.AST, text: Callable[[ast.AST], str]) -> Iterator[Change]:
    """A product without its sensitivity, clip norm, noise, count or rate."""
    stems = (
        "sensitivity",
        "clip",
        "sigma",
        "noise",
        "scale",
        "group",
        "steps",
        "max",
        "rate",
        "count",
        "bound",
        "times",
        "order",
    )
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div)):
        if (
            isinstance(node.right, (ast.Name, ast.Attribute))
            and speaks_of(node.right, stems)
            and not _is(node.left, 1, 2, 0.5)
        ):
            yield node, f"({text(node.left)})"
        elif (
            isinstance(node.op, ast.Mult)
            and isinstance(node.left, (ast.Name, ast.Attribute))
            and speaks_of(node.left, stems)
        ):
            yield node, f"({text(node.right)})"


def unnoised(node: ast.AST, text: Callable[[ast.AST], str]) -> Iterator[Change]:
    """A value without the noise that is added to it."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and not _is_text(node.left):
        left, right = (speaks_of(part, NOISE) for part in (node.left, node.right))
        if right and not left:
            yield node, f"({text(node.left)})"
        elif left and not right and not isinstance(node.right, ast.Constant):
            yield node, f"({text(node.right)})"
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and speaks_of(node.value, NOISE):
        yield node, "pass"
    if (
        isinstance(node, ast.Expr)
        and _called(node.value) in ("add_", "add", "normal_")
        and speaks_of(node.value, NOISE)
    ):
        yield node, "pass"


def unclipped(node: ast.AST, text: Callable[[ast.AST], str]) -> Iterator[Change]:
    """A value as it is instead of clipped, clamped or cut at a bound."""
    called = _called(node)
    if isinstance(node, ast.Call) and called in ("clip", "clamp", "clamp_", "minimum", "clip_", "nan_to_num"):
        values = [one for one in node.args if not isinstance(one, ast.Starred)]
        if isinstance(node.func, ast.Attribute) and text(node.func.value) not in ("np", "torch", "numpy", "math"):
            yield node, text(node.func.value)
        elif values:
            yield node, f"({text(values[0])})"
    elif isinstance(node, ast.Call) and called == "min" and len(node.args) == 2 and speaks_of(node, CORE):
        yield node, f"({text(node.args[0])})"


def left_out(node: ast.AST, text: Callable[[ast.AST], str]) -> Iterator[Change]:
    """A charge, a check or a clip that is not made."""
    called = _called(node.value) if isinstance(node, ast.Expr) else ""
    if any(word.lower().startswith(CHECKS) for word in _words(called)) and speaks_of(node, CORE):
        yield node, "pass"


def unguarded(node: ast.AST, text: Callable[[ast.AST], str]) -> Iterator[Change]:
    """A refusal that is not made."""
    if isinstance(node, ast.If) and node.body and isinstance(node.body[-1], ast.Raise) and speaks_of(node.test, CORE):
        yield node.test, "False"


def one_off(node: ast.AST, text: Callable[[ast.AST], str]) -> Iterator[Change]:
    """One step, row, charge or vote too few."""
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "range"
        and len(node.args) == 1
    ):
        if speaks_of(node.args[0], COUNT):
            yield node.args[0], f"({text(node.args[0])}) - 1"
    elif (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, (ast.Add, ast.Sub))
        and _is(node.right, 1)
        and speaks_of(node.left, COUNT)
    ):
        yield node, f"({text(node.left)})"
    elif (
        isinstance(node, ast.AugAssign)
        and isinstance(node.op, ast.Add)
        and _is(node.value, 1)
        and speaks_of(node.target, COUNT)
    ):
        yield node, "pass"
    elif isinstance(node, ast.keyword) and isinstance(node.value, (ast.Name, ast.Attribute, ast.Call)):
        less = "(lambda _v: _v - 1 if isinstance(_v, int) and not isinstance(_v, bool) else _v)({})"
        if (node.arg or "") in ("steps", "count", "times", "max_rows", "group", "records", "draws", "participations"):
            yield node.value, less.format(text(node.value))


def swapped(node: ast.AST, text: Callable[[ast.AST], str]) -> Iterator[Change]:
    """``min`` for ``max`` and the other way round, ``floor`` for ``ceil``."""
    other = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "ceil": "floor", "amax": "amin"}
    if isinstance(node, ast.Call) and _called(node) in other and speaks_of(node, CORE) and (node.args or node.keywords):
        if isinstance(node.func, ast.Attribute):
            yield node.func, f"{text(node.func.value)}.{other[node.func.attr]}"
        elif isinstance(node.func, ast.Name):
            yield node.func, other[node.func.id]


def boundary(node: ast.AST, text: Callable[[ast.AST], str]) -> Iterator[Change]:
    """``<`` for ``<=`` and the other way round, where counts or budgets are compared."""
    other = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
    stems = ("spent", "budget", "charge", "participation", "threshold", "max_rows")
    if not (isinstance(node, ast.Compare) and len(node.ops) == 1 and speaks_of(node, stems)):
        return
    if type(node.ops[0]) in other:
        yield node, f"{text(node.left)} {other[type(node.ops[0])]} {text(node.comparators[0])}"


def adjacency(node: ast.AST, text: Callable[[ast.AST], str]) -> Iterator[Change]:
    """Another adjacency priced as add-remove."""
    if (
        isinstance(node, ast.Compare)
        and len(node.ops) == 1
        and isinstance(node.ops[0], (ast.Eq, ast.NotEq, ast.Is, ast.In))
    ):
        sides = (node.left, node.comparators[0])
        if any(speaks_of(side, ADJACENCY) for side in sides) and any(
            isinstance(s, (ast.Constant, ast.Tuple, ast.Set)) for s in sides
        ):
            yield node, "False" if isinstance(node.ops[0], (ast.Eq, ast.In)) else "True"
    elif isinstance(node, ast.keyword) and node.arg == "adjacency" and not isinstance(node.value, ast.Constant):
        yield node.value, '"add-remove"'


def reused(node: ast.AST, text: Callable[[ast.AST], str]) -> Iterator[Change]:
    """The same key, stream or step again: the number that tells one draw from another is always 0."""
    if not isinstance(node, ast.Call):
        return
    if any(
        word.lower().startswith(
            ("derive", "stream", "normal", "words", "fill", "child", "key", "subkey", "draw", "noise")
        )
        for word in _words(_called(node))
    ):
        for argument in [*node.args, *(one.value for one in node.keywords if one.arg)]:
            if isinstance(argument, (ast.Name, ast.Attribute)) and speaks_of(
                argument, ("step", "index", "offset", "counter", "lot", "number", "rank")
            ):
                yield argument, "0"


def unsummed(node: ast.AST, text: Callable[[ast.AST], str]) -> Iterator[Change]:
    """One part of a price instead of the sum, the largest instead of the sum."""
    priced = ("epsilon", "eps", "delta", "rho", "mu", "spent", "price", "cost", "extra", "loss", "weight")
    if (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Add)
        and speaks_of(node.left, priced)
        and speaks_of(node.right, priced)
    ):
        yield node, f"({text(node.left)})"
    elif (
        isinstance(node, ast.Call)
        and _called(node) in ("sum", "fsum")
        and len(node.args) == 1
        and speaks_of(node, priced)
    ):
        if isinstance(node.func, ast.Name) or text(node.func).startswith("math"):
            yield node, f"max(list({text(node.args[0])}) or [0])"
    elif (
        isinstance(node, ast.AugAssign)
        and isinstance(node.op, ast.Add)
        and speaks_of(node.target, priced)
        and not _is(node.value, 1)
    ):
        yield node, f"{text(node.target)} = {text(node.value)}"


RULES: dict[str, Rule] = {
    "factor-two": factor_two,
    "squared": squared,
    "scaled": scaled,
    "factor": factor,
    "unnoised": unnoised,
    "unclipped": unclipped,
    "left-out": left_out,
    "unguarded": unguarded,
    "one-off": one_off,
    "swapped": swapped,
    "boundary": boundary,
    "adjacency": adjacency,
    "reused": reused,
    "unsummed": unsummed,
}


Function = ast.FunctionDef | ast.AsyncFunctionDef


def _walk(
    node: ast.AST, names: tuple[str, ...], function: Function | None
) -> Iterator[tuple[ast.AST, tuple[str, ...], Function]]:
    """Every node in the body of a function that may be changed, with the names around it and its function."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Raise, ast.JoinedStr, ast.Assert)) or _only_on_a_gpu(child):
            continue
        if function is not None:
            yield child, names, function
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield from _walk(child, names, function)
            continue
        inner = (*names, child.name)
        if isinstance(child, ast.ClassDef):
            yield from _walk(child, inner, None)
        elif not TEXT.search(child.name):
            # Its body only: defaults and decorators are computed when the module is imported.
            yield from _walk(ast.Module(body=child.body, type_ignores=[]), inner, child)


def _draw(mutant: Mutant) -> str:
    return hashlib.sha256(mutant.id.encode()).hexdigest()


def mutants_of(path: Path, every: bool = False) -> list[Mutant]:
    """The mutants of a file.

    Args:
        path: A file of the source.
        every: Every place. Otherwise one in each function, chosen by a hash of its text.

    Returns:
        In the order of the file.
    """
    return mutants_in(path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix(), every)


def mutants_in(source: str, name: str, every: bool = False) -> list[Mutant]:
    """The mutants of a text.

    Args:
        source: The text of a file.
        name: The path of the file from the root.
        every: Every place, and not one in each function.

    Returns:
        In the order of the text.
    """
    tree = ast.parse(source)
    starts = [0]
    for one in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(one))
    rows = source.splitlines()

    def place(line: int, column: int) -> int:  # columns are counted in bytes
        return starts[line - 1] + len(rows[line - 1].encode()[:column].decode())

    def text(node: ast.AST) -> str:
        return source[place(node.lineno, node.col_offset) : place(node.end_lineno, node.end_col_offset)]  # type: ignore[attr-defined]

    found: dict[str, list[Mutant]] = {}
    seen: dict[str, int] = {}
    short = name.removeprefix("src/tacit/").removesuffix(".py")
    for node, names, around in _walk(tree, (), None):
        function = ".".join(names)
        for rule, propose in RULES.items():
            for changed, new in propose(node, text):
                old = text(changed)
                if old == new:
                    continue
                digest = hashlib.sha256(f"{old} {new}".encode()).hexdigest()[:6]
                key = f"{short}:{function}:{rule}:{digest}"
                seen[key] = seen.get(key, 0) + 1
                unique = key if seen[key] == 1 else f"{key}.{seen[key]}"
                begin = place(changed.lineno, changed.col_offset)  # type: ignore[attr-defined]
                end = place(changed.end_lineno, changed.end_col_offset)  # type: ignore[attr-defined]
                made = Mutant(
                    id=unique,
                    path=name,
                    function=function,
                    rule=rule,
                    line=changed.lineno,  # type: ignore[attr-defined]
                    statement=isinstance(changed, ast.stmt),
                    digest=hashlib.sha256(text(around).encode()).hexdigest()[:12],
                    begin=begin,
                    end=end,
                    old=old,
                    new=new,
                )
                found.setdefault(function, []).append(made)
    chosen = [one for group in found.values() for one in (group if every else [min(group, key=_draw)])]
    return sorted(chosen, key=lambda one: (one.begin, one.id))


def files(rooms: list[str] | None = None) -> list[Path]:
    """The files that are mutated.

    Args:
        rooms: Of these rooms only.

    Returns:
        Their paths.
    """
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        short = path.relative_to(SOURCE).as_posix()
        if "/" in short and not short.startswith(LEFT_OUT) and (not rooms or short.split("/")[0] in rooms):
            found.append(path)
    return found


WRITTEN = Path(__file__).with_name("written.toml")


def written() -> list[Mutant]:
    """The mutants that people wrote, in sets: ``written.toml`` names a function, a text in it and what replaces it.

    Returns:
        In the order of the file, without those whose text is no longer there. The rule is the name of the set.
    """
    found = []
    for one in tomllib.loads(WRITTEN.read_text(encoding="utf-8"))["fault"]:
        name = f"src/tacit/{one['path']}"
        source = (ROOT / name).read_text(encoding="utf-8")
        around = _named(ast.parse(source), one["function"].split("."))
        lines = source.splitlines(keepends=True)
        first = sum(map(len, lines[: around.lineno - 1])) if around else 0
        body = "".join(lines[around.lineno - 1 : around.end_lineno]) if around else ""
        if around is None or body.count(one["old"]) != 1:
            continue
        for part in () if one.get("statement") else (one["old"], one["new"]):
            ast.parse(part, mode="eval")  # anything else would break the file that holds all mutants
        begin = first + body.index(one["old"])
        key = hashlib.sha256(f"{one['old']} {one['new']}".encode()).hexdigest()[:6]
        found.append(
            Mutant(
                id=f"{one['path'].removesuffix('.py')}:{one['function']}:{one['set']}:{key}",
                path=name,
                function=one["function"],
                rule=one["set"],
                line=source.count("\n", 0, begin) + 1,
                statement=one.get("statement", False),
                digest=hashlib.sha256(body.strip().encode()).hexdigest()[:12],
                begin=begin,
                end=begin + len(one["old"]),
                old=one["old"],
                new=one["new"],
            )
        )
    return found


def _named(node: ast.AST, names: list[str]) -> Function | None:
    """The function that these names lead to: of classes and functions, each inside the one before."""
    for child in ast.walk(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and child.name == names[0]:
            if len(names) > 1:
                return _named(ast.Module(body=child.body, type_ignores=[]), names[1:])
            return None if isinstance(child, ast.ClassDef) else child
    return None
