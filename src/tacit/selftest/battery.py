"""What does tacit test about itself? The battery: every scene of every room, in the order in which they are run.

The scenes see the library from outside: they build runs, measure what these release, and compare it with computations
of their own, with what is charged and with what is refused. None of them repeats the library's own formulas.
"""

from __future__ import annotations

from tacit.selftest.scene import Scene
from tacit.selftest.scenes import (
    accounting,
    correlated,
    curves,
    dropin,
    filters,
    integrations,
    kinds,
    ledger,
    loops,
    noise,
    organisation,
    pate,
    prompts,
    ranks,
    reports,
    resume,
    rules,
    schema,
    tables,
    training,
    tuning,
)

#: The files of scenes, lower rooms first.
FILES = (
    noise,
    accounting,
    schema,
    ledger,
    organisation,
    filters,
    training,
    kinds,
    correlated,
    resume,
    rules,
    ranks,
    tables,
    curves,
    pate,
    prompts,
    tuning,
    dropin,
    loops,
    integrations,
    reports,
)


def battery() -> dict[str, Scene]:
    """Every scene by its name."""
    return {scene.name: scene for file in FILES for scene in file.SCENES}
