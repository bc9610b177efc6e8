"""What does an audit say? A verdict, the claim, the certified bound, and the best bound that was possible."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from tacit.audit.evidence import Evidence, Roc, histogram, roc
from tacit.audit.findings import FAMILY_WISE, Finding, Power
from tacit.audit.findings import verdict as verdict_of
from tacit.ledger import OperatorView, PrivateValueError


@dataclasses.dataclass(frozen=True, eq=False)
class Audit:
    """The result of an audit of one claim.

    Args:
        kind: What was done: ``implementation``, ``one run`` or ``two worlds``.
        claimed: The ε that is claimed.
        delta: The δ of the claim.
        terms: Unit and adjacency of the claim, in words.
        evidence: What an attack on canaries or on two worlds showed; None if there was no attack.
        findings: What the checks of the implementation found; empty if there were none.
        scores: The attacker's scores, for the curves; None if there are none.
        member: Which of the scores belong to records that took part; None if there are no scores.
        significance: Probability that any of the findings is a false alarm, 1e-4 by default.
        operator_only: Whether the figures must not be published; see :func:`tacit.audit.audit_run`.
        powers: With which probability each of some named lies would have been found.

    Example:
        >>> from tacit.audit import Evidence
        >>> audit = Audit("one run", 4.0, 1e-5, "add/remove one record", Evidence("one-run", 1.2, 5.2, 1e-5, 0.05, {}))
        >>> audit.verdict
        'pass'
        >>> print(audit.sentence)
        pass: claimed ε = 4 at δ = 1e-05 (add/remove one record); the attack certifies ε ≥ 1.2 with confidence 0.95,
        and could at best have certified 5.2
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
    powers: tuple[Power, ...] = ()

    @property
    def verdict(self) -> str:
        """``fail``, ``underpowered`` or ``pass``: the worst verdict of evidence and findings.

        ``fail`` refutes the claim. ``underpowered`` means that the claim is not refuted, and that this audit could not
        have refuted it: of an audit that states its powers, that a lie which matters would have been found with a
        probability below 95%. An audit without evidence and findings is ``underpowered``.
        """
        parts = []
        if self.evidence is not None:
            found = self.evidence.verdict(self.claimed)
            # Where powers are known they say what the audit could have shown, and the scores are a part of it.
            parts.append("pass" if self.powers and found == "underpowered" else found)
        if self.findings:
            parts.append(verdict_of(self.findings, self.significance))
        if any(power.needed and not power.enough for power in self.powers):
            parts.append("underpowered")
        return next((v for v in ("fail", "underpowered", "pass") if v in parts), "underpowered")

    @property
    def roc(self) -> Roc | None:
        """The ROC curve of the scores; None if there are none."""
        return None if self.scores is None else roc(self.scores, self.member)

    @property
    def sentence(self) -> str:
        """The result in one sentence, always with the best bound that the attack could have certified."""
        parts = [f"{self.verdict}: claimed ε = {self.claimed:.4g} at δ = {self.delta:g} ({self.terms})"]
        found = self.evidence
        if found is not None:
            parts.append(
                f"the attack certifies ε ≥ {found.certified:.3g} with confidence {1 - found.significance:.4g}, "
                f"and could at best have certified {found.best:.3g}"
            )
            if self.verdict == "underpowered" and not self.findings and found.best <= self.claimed < math.inf:
                parts.append(found.needed(self.claimed))
        if self.findings:
            failed = [f for f in self.findings if not f.passes(self.significance / len(self.findings))]
            told = f"{len(failed)} of {len(self.findings)} checks failed"
            parts.append(told + ("" if not failed else ": " + "; ".join(f"{f.check}: {f.detail}" for f in failed)))
        # Where there are no findings, the powers are all that says what a pass is worth.
        parts += [str(power) for power in self.powers if power.needed and not (self.findings and power.enough)]
        return "; ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a card: figures, curves and counts, but no score of a single record.

        Raises:
            PrivateValueError: If the audit is for the operator only.
        """
        if self.operator_only:
            raise PrivateValueError(
                "this audit must not be published: its figures reveal the noise of a run on private data, and together "
                "with the weights they would undo the noise. Show it to the operator with audit.view(). To publish an "
                "audit, attack a repeat of the run on made-up records (tacit audit RUN --canaries 1000) or plant "
                "input canaries (audit_canaries=(x, y))"
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
        if self.powers:
            plain["powers"] = [power.to_dict() for power in self.powers]
        curve = self.roc
        if curve is not None:
            plain["roc"] = _thinned(curve) | {"area": curve.area, "interval": list(curve.interval)}
            plain["histogram"] = histogram(self.scores, self.member)
        return plain

    def view(self) -> OperatorView:
        """Verdict, sentence and figures, for the operator's log; cards and reports refuse this type."""
        figures = dict(self.evidence.figures) if self.evidence is not None else {}
        return OperatorView(
            audit=self.kind,
            verdict=self.verdict,
            sentence=self.sentence,
            figures=figures,
            findings=[f.to_dict() for f in self.findings],
            powers=[power.to_dict() for power in self.powers],
        )

    def __repr__(self) -> str:
        return f"<Audit{', operator view' if self.operator_only else ''}: {self.sentence}>"


def _rounded_down(value: float) -> float:
    """Three significant digits, rounded down, so that what is stated was proven."""
    if not (math.isfinite(value) and value > 0):
        return value
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return float(f"{math.floor(value / unit + 1e-9) * unit:.3g}")


def _thinned(curve: Roc, points: int = 200) -> dict[str, list[float]]:
    """The curve at few enough points for a page; more of them where rates are small."""
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
