"""What do published results give here? Known experiments, run again with real data and honest accounting.

An experiment is a module of this folder with ``ABOUT`` (one line), ``FACTS`` (paper, what is the same, what differs,
the published figure and how to read ours from the kept rows), ``SEEDS`` (how many by default), ``run(table)``,
which measures rows one by one, ``summary(rows)``, which puts them in a table, and where a picture says more,
``plot(rows, folder)``. In a clone, ``tacit reproduce NAME`` and ``python -m experiments NAME`` run one; the second
needs only torch, numpy and scipy (and ``PYTHONPATH=src`` where tacit is not installed), so that it also runs on a bare
machine with a GPU. Rows are kept as they are measured: a run that was cut short goes on where it stopped. The rows
behind the documentation are in ``rows/``. None of this is part of the installed package.
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

from experiments.table import Facts

#: name on the command line -> module of this folder
EXPERIMENTS = {
    "abadi-mnist": "abadi",
    "accountants": "accountants",
    "census": "census",
    "education-income": "education_income",
    "fashion": "fashion",
    "functional": "functional",
    "headline": "headline",
    "logit": "logit",
    "pate-adult": "pate_adult",
    "pate-mnist": "pate_mnist",
    "pate-recipe": "pate_recipe",
    "prompts": "prompts",
    "records": "records",
    "records-cifar10": "records_cifar",
    "records-tables": "records_tables",
    "tuning": "tuning",
}

#: name on the command line -> experiments that it runs one after the other
GROUPS = {"pate": ("pate-mnist", "pate-adult")}


def names() -> list[str]:
    """The experiments that can be run.

    >>> "accountants" in names()
    True
    """
    return sorted(EXPERIMENTS)


def about(name: str) -> str:
    """One line on an experiment or a group, read from its file: nothing heavy is imported.

    >>> about("pate")
    'pate-mnist, then pate-adult'
    """
    if name in GROUPS:
        return ", then ".join(GROUPS[name])
    return str(ast.literal_eval(_constant(name, "ABOUT")))


def facts(name: str) -> Facts:
    """What a person wants to know of an experiment before it is run, read from its file in the same way.

    >>> facts("accountants").paper
    'Abadi et al. 2016, figure 2'
    """
    call = _constant(name, "FACTS")
    if not isinstance(call, ast.Call):
        raise ValueError(f"FACTS of the experiment {name!r} must be Facts(...), of constants")
    given: dict[str, Any] = {word.arg: ast.literal_eval(word.value) for word in call.keywords if word.arg}
    return Facts(**given)


def _constant(name: str, wanted: str) -> ast.expr:
    text = (Path(__file__).parent / f"{EXPERIMENTS[name]}.py").read_text(encoding="utf-8")
    for statement in ast.parse(text).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=found)], value=value) if found == wanted:
                return value
    raise ValueError(f"the experiment {name!r} has no {wanted}")


def members(name: str) -> tuple[str, ...]:
    """The experiments that a name on the command line stands for, with an error that lists what there is."""
    plain = name.lower().replace("_", "-")
    if plain in GROUPS:
        return GROUPS[plain]
    if plain in EXPERIMENTS:
        return (plain,)
    about_it = found(name)
    if about_it:
        raise ValueError(f"there is no experiment {name!r}; about it: {', '.join(about_it)}. See: tacit reproduce")
    raise ValueError(f"there is no experiment {name!r}; there are {', '.join(sorted([*EXPERIMENTS, *GROUPS]))}")


def found(words: str) -> list[str]:
    """The experiments whose description has all of these words.

    >>> found("Abadi")
    ['abadi-mnist', 'accountants', 'headline']
    """
    wanted = words.lower().replace("-", " ").replace("_", " ").split()

    def text(name: str) -> str:
        known = facts(name)
        return " ".join((name, about(name), known.paper, known.same, known.differs)).lower()

    return [name for name in names() if wanted and all(word in text(name) for word in wanted)]


def load(name: str) -> ModuleType:
    """The module of one experiment."""
    return importlib.import_module(f"experiments.{EXPERIMENTS[name]}")
