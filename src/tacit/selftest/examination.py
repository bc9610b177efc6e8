"""Does tacit as it is keep its promises here? Every scene once, what each found, and how much of each room was run."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import time
import warnings
from collections.abc import Callable
from typing import Any

from tacit.audit.findings import Finding
from tacit.selftest.battery import battery
from tacit.selftest.reach import Reach, Tracer
from tacit.selftest.scene import SIGNIFICANCE, Scene
from tacit.sgd.errors import ClippingError


@dataclasses.dataclass(frozen=True)
class Examination:
    """What the scenes found about the installed library.

    Args:
        findings: What each scene found, by its name.
        skipped: Scenes that could not run, with the reason.
        reach: How many statements of each room were run, and of how many.
        seconds: How long each scene took.

    Example:
        >>> examination = Examination({"noise": [Finding("noise variance", 0.4, "")]}, {}, {}, {"noise": 0.5})
        >>> examination.passes
        True
    """

    findings: dict[str, list[Finding]]
    skipped: dict[str, str]
    reach: dict[str, Reach]
    seconds: dict[str, float]

    @property
    def failures(self) -> list[Finding]:
        """The findings that raise an alarm."""
        return [f for found in self.findings.values() for f in found if not f.passes(SIGNIFICANCE)]

    @property
    def passes(self) -> bool:
        """Whether no check raised an alarm."""
        return bool(self.findings) and not self.failures

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "passes": self.passes,
            "findings": {name: [f.to_dict() for f in found] for name, found in self.findings.items()},
            "skipped": self.skipped,
            "reach": {room: dataclasses.asdict(reach) | {"share": reach.share} for room, reach in self.reach.items()},
            "seconds": self.seconds,
        }


def findings_of(scene: Scene, seed: int) -> list[Finding]:
    """What a scene finds; an exception that it did not expect is an alarm."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # what trainers tell their users
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            return scene.check(seed)
    except ClippingError as error:  # the library's own self-check stopped it
        return [Finding(f"self-check ({scene.name})", 0.0, str(error))]
    except Exception as error:  # noqa: BLE001 whatever it is, the scene did not end as it should
        return [Finding(f"error ({scene.name})", 0.0, f"{type(error).__name__}: {error}")]
    finally:
        logging.disable(level)


def examine(
    seed: int = 0,
    names: tuple[str, ...] | None = None,
    *,
    reach: bool = True,
    quick: bool = False,
    tell: Callable[[str], None] = lambda name: None,
) -> Examination:
    """Run every scene against tacit as it is.

    Args:
        seed: Seed of the made-up data; noise is always fresh.
        names: Parts of the names of scenes to run; None runs them all.
        quick: Whether to leave out the long scenes, which add least for their time. Every room keeps some.
        reach: Whether to count which statements are run. Counting takes some time on Python 3.11.
        tell: Called with the name of each scene before it is run.

    Returns:
        What was found, what was skipped, and what share of each room was run.

    Raises:
        ValueError: If no scene has one of ``names`` in its name.

    Example:
        >>> from tacit.selftest import examine
        >>> examine(names=("sampling",), reach=False).passes
        True
    """
    scenes = [s for s in battery().values() if names is None or any(n.lower() in s.name.lower() for n in names)]
    scenes = [s for s in scenes if not (quick and s.long)]
    if not scenes:
        raise ValueError(f"no scene has {' or '.join(names or ())} in its name; there are: {', '.join(battery())}")
    findings: dict[str, list[Finding]] = {}
    skipped, seconds = {}, {}
    tracer = Tracer() if reach else None
    for scene in scenes:
        absent = scene.missing()
        if absent:
            skipped[scene.name] = f"{', '.join(absent)} is not installed"
            continue
        tell(scene.name)
        began = time.monotonic()
        if tracer is None:
            findings[scene.name] = findings_of(scene, seed)
        else:
            with tracer:
                findings[scene.name] = findings_of(scene, seed)
        seconds[scene.name] = time.monotonic() - began
    return Examination(findings, skipped, tracer.reach() if tracer else {}, seconds)
