"""What does an audit say? A verdict, the claim, what was certified, and the best that it could have certified."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from tacit.audit.evidence import Evidence, Roc, histogram, roc
from tacit.audit.findings import FAMILY_WISE, Finding
from tacit.audit.findings import verdict as verdict_of
from tacit.ledger import OperatorView, PrivateValueError


@dataclasses.dataclass(frozen=True, eq=False)
class Audit:
    """The result of an audit of one claim.

    ``evidence`` is that of an attack on canaries or worlds, ``findings`` those of the implementation audit; either may
    be missing. ``scores`` and ``member`` are kept where there are any, for the curves. ``operator_only`` says that the
    figures must not be published: see :func:`tacit.audit.audit_run`.
    """

    kind: str
    claimed: float
    delta: float
    terms: str
    evidence: Evidence | None = None
    findings: tuple[Finding, ...] = ()
    scores: Any = None
    member: Any = None
    significance: float = FAMILY_WISE
    operator_only: bool = False

    @property
    def verdict(self) -> str:
        """``fail``, ``underpowered`` or ``pass``: the worst of the parts."""
        parts = []
        if self.evidence is not None:
            parts.append(self.evidence.verdict(self.claimed))
        if self.findings:
            parts.append(verdict_of(self.findings, self.significance))
        return next((v for v in ("fail", "underpowered", "pass") if v in parts), "underpowered")

    @property
    def roc(self) -> Roc | None:
        """The ROC curve of the scores, where there are any."""
        return None if self.scores is None else roc(self.scores, self.member)

    @property
    def sentence(self) -> str:
        """The result in one sentence, always with the best bound that was within reach."""
        parts = [f"{self.verdict}: claimed ε = {self.claimed:.4g} at δ = {self.delta:g} ({self.terms})"]
        found = self.evidence
        if found is not None:
            parts.append(
                f"the attack certifies ε ≥ {found.certified:.3g} with confidence {1 - found.significance:.4g}, "
                f"and could at best have certified {found.best:.3g}"
            )
        if self.findings:
            failed = [f for f in self.findings if not f.passes(self.significance / len(self.findings))]
            told = f"{len(failed)} of {len(self.findings)} checks of the implementation failed"
            parts.append(told + ("" if not failed else ": " + "; ".join(f"{f.check}: {f.detail}" for f in failed)))
        return "; ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a card: figures, curves and counts; no score of a single record.

        Refused where the audit is for the operator only.
        """
        if self.operator_only:
            raise PrivateValueError(
                "these figures hold the noise of a run on private data: beside its weights they would undo the noise. "
                "They are for the operator (audit.view()). To publish an audit, attack a repetition of the run on "
                "made-up records (tacit audit RUN --canaries 1000), or plant input canaries"
            )
        plain: dict[str, Any] = {
            "verdict": self.verdict,
            "kind": self.kind,
            "sentence": self.sentence,
            "claimed": self.claimed,
            "delta": self.delta,
            "terms": self.terms,
        }
        if self.evidence is not None:
            plain |= {
                "method": self.evidence.method,
                "certified": _rounded_down(self.evidence.certified),
                "best": _rounded_down(self.evidence.best),
                "confidence": 1 - self.evidence.significance,
                "figures": {name: _rounded_down(value) for name, value in self.evidence.figures.items()},
                "estimates": list(self.evidence.estimates),
                "details": self.evidence.details,
            }
        if self.findings:
            plain["findings"] = [f.to_dict() for f in self.findings]
            plain["significance"] = self.significance
        curve = self.roc
        if curve is not None:
            plain["roc"] = _thinned(curve) | {"area": curve.area, "interval": list(curve.interval)}
            plain["histogram"] = histogram(self.scores, self.member)
        return plain

    def view(self) -> OperatorView:
        """For the operator's log."""
        figures = dict(self.evidence.figures) if self.evidence is not None else {}
        return OperatorView(audit=self.kind, verdict=self.verdict, sentence=self.sentence, figures=figures)

    def __repr__(self) -> str:
        return f"<Audit{', operator view' if self.operator_only else ''}: {self.sentence}>"


def _rounded_down(value: float) -> float:
    """Three significant digits, downwards: what is stated was proven."""
    if not (math.isfinite(value) and value > 0):
        return value
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return float(f"{math.floor(value / unit + 1e-9) * unit:.3g}")


def _thinned(curve: Roc, points: int = 200) -> dict[str, list[float]]:
    """The curve at few enough points for a page, denser where rates are small."""
    count = len(curve.false_positive)
    if count > points:
        spread = np.unique(np.concatenate([np.geomspace(1, count, points // 2), np.linspace(1, count, points // 2)]))
        index = np.unique(np.clip(spread.astype(int) - 1, 0, count - 1))
    else:
        index = np.arange(count)
    return {
        "false_positive": curve.false_positive[index].tolist(),
        "true_positive": curve.true_positive[index].tolist(),
    }
