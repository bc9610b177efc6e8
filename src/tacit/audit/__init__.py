"""Does it really leak no more than it claims? Attacks on tacit's own runs, and on other people's code.

- :func:`audit_implementation`: does the pipeline do what it says, on this model? Takes seconds.
- :func:`audit_run`: what do the canaries of a run prove? (``fit(audit_canaries=1000)``)
- :func:`audit_two_worlds`, :func:`audit_estimator`, :func:`audit_one_run`: does any code keep the ε that it declares?
- :func:`membership`: can an attacker tell who was in the data of a trained model? For the operator only.

>>> from tacit.audit import one_run
>>> round(one_run(1000, 1000, 1000, delta=1e-5), 2)  # every guess is right: 1,000 canaries certify no more than this
5.78
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tacit.audit.attacks import Membership, membership
    from tacit.audit.bounds import gaussian, one_run, one_run_f, two_worlds
    from tacit.audit.evidence import Evidence, one_run_evidence, roc, two_world_evidence
    from tacit.audit.findings import Finding
    from tacit.audit.foreign import audit_estimator, audit_one_run, audit_two_worlds
    from tacit.audit.result import Audit
    from tacit.audit.runs import audit_implementation, audit_run, crafted, mislabelled

#: Where each name lives. Audits of other code need numpy and scipy only, so nothing is imported before it is used.
_WHERE = {
    "Audit": "result",
    "Evidence": "evidence",
    "Finding": "findings",
    "Membership": "attacks",
    "audit_estimator": "foreign",
    "audit_implementation": "runs",
    "audit_one_run": "foreign",
    "audit_run": "runs",
    "audit_two_worlds": "foreign",
    "crafted": "runs",
    "gaussian": "bounds",
    "membership": "attacks",
    "mislabelled": "runs",
    "one_run": "bounds",
    "one_run_evidence": "evidence",
    "one_run_f": "bounds",
    "roc": "evidence",
    "two_world_evidence": "evidence",
    "two_worlds": "bounds",
}

__all__ = [
    "Audit",
    "Evidence",
    "Finding",
    "Membership",
    "audit_estimator",
    "audit_implementation",
    "audit_one_run",
    "audit_run",
    "audit_two_worlds",
    "crafted",
    "gaussian",
    "membership",
    "mislabelled",
    "one_run",
    "one_run_evidence",
    "one_run_f",
    "roc",
    "two_world_evidence",
    "two_worlds",
]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(f"tacit.audit.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
