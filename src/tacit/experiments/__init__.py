"""What do published results give here? Known experiments, run again with real data and honest accounting.

An experiment is a module of this folder with ``ABOUT`` (one line), ``SEEDS`` (how many by default), ``run(table)``,
which measures rows one by one, ``summary(rows)``, which puts them in a table, and where a picture says more,
``plot(rows, folder)``. ``tacit reproduce NAME`` and ``python -m tacit.experiments NAME`` run one; the second needs only
torch, numpy and scipy, so that it also runs on a bare machine with a GPU. Rows are kept as they are measured: a run
that was cut short goes on where it stopped.
"""

from __future__ import annotations

import importlib
from types import ModuleType

#: name on the command line -> module of this folder
EXPERIMENTS = {
    "abadi-mnist": "abadi",
    "accountants": "accountants",
    "census": "census",
    "education-income": "education_income",
    "functional": "functional",
    "logit": "logit",
    "pate-adult": "pate_adult",
    "pate-mnist": "pate_mnist",
    "prompts": "prompts",
    "records": "records",
    "records-tables": "records_tables",
    "records-trials": "records_trials",
}


def names() -> list[str]:
    """The experiments that can be run.

    >>> "accountants" in names()
    True
    """
    return sorted(EXPERIMENTS)


def load(name: str) -> ModuleType:
    """The module of one experiment, with an error that lists them all."""
    if name not in EXPERIMENTS:
        raise ValueError(f"there is no experiment {name!r}; there are {', '.join(names())}")
    return importlib.import_module(f"tacit.experiments.{EXPERIMENTS[name]}")
