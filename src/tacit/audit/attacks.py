"""Can somebody tell from a trained model who was in its data? Membership attacks: loss threshold, RMIA, LiRA.

They look at real records, members and others, so their results are for the operator: an
:class:`~tacit.ledger.OperatorView`, never part of a release.

- *loss threshold* (Yeom et al. 2018): a member's loss is smaller.
- *LiRA* (Carlini et al. 2022): the loss of a record against the losses of reference models that had it and that did
  not, as two normal laws with a common variance ("online, fixed variance").
- *RMIA* (Zarifzadeh, Liu and Shokri 2024): how often the record's likelihood ratio, against reference models, exceeds
  that of other records.

Reference models are trained by the auditor on random halves of the same pool; a few dozen suffice for small models.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.audit import bounds
from tacit.audit.evidence import Roc, roc
from tacit.ledger import OperatorView

Floats = npt.NDArray[np.float64]
Masks = npt.NDArray[np.bool_]
#: False positive rates at which true positive rates are told.
RATES = (0.001, 0.01)


def logit_confidence(probability: Any) -> Floats:
    """log(p / (1 - p)) of the probability of the right class: close to normal over models (Carlini et al. 2022).

    >>> float(logit_confidence([0.5])[0])
    0.0
    """
    p = np.clip(np.asarray(probability, dtype=np.float64), 1e-12, 1 - 1e-12)
    return np.asarray(np.log(p) - np.log1p(-p))


def lira(target: Any, references: Any, inside: Any) -> Floats:
    """Log likelihood ratio of each record's confidence between reference models with and without it.

    ``target`` holds one logit confidence a record, ``references`` one row a reference model, ``inside`` which records
    each reference model was trained on. The variance is common to all records, as with few reference models it must be.
    """
    scores, refs, had = np.asarray(target, np.float64), np.asarray(references, np.float64), np.asarray(inside, bool)
    if refs.shape != had.shape or refs.shape[1:] != scores.shape:
        raise ValueError(f"shapes {scores.shape}, {refs.shape} and {had.shape} do not belong together")
    mean_in, mean_out = _means(refs, had)
    with_it, without = np.where(had, refs, np.nan), np.where(had, np.nan, refs)
    spread_in = math.sqrt(np.nanmean((with_it - mean_in) ** 2)) + 1e-9
    spread_out = math.sqrt(np.nanmean((without - mean_out) ** 2)) + 1e-9
    near_in, near_out = (scores - mean_in) / spread_in, (scores - mean_out) / spread_out
    return np.asarray((near_out**2 - near_in**2) / 2 + math.log(spread_out / spread_in))


def _means(references: Floats, inside: Masks) -> tuple[Floats, Floats]:
    """The mean of each record over models that had it, and over those that had not."""
    if not (inside.any(0).all() and (~inside).any(0).all()):
        raise ValueError("every record must be in some reference model and out of some other: train more of them")
    return (references * inside).sum(0) / inside.sum(0), (references * ~inside).sum(0) / (~inside).sum(0)


def rmia(target: Any, references: Any, inside: Any, population: Any, population_references: Any) -> Floats:
    """The share of population records whose likelihood ratio a record's exceeds.

    ``target`` and ``references`` hold probabilities of the right class here, ``population`` those of records that are
    certainly not members, for the target and for every reference model.
    """
    p, refs, had = np.asarray(target, np.float64), np.asarray(references, np.float64), np.asarray(inside, bool)
    # The prior of a record: the mean over models that had it and that did not, each counting half.
    with_it, without = _means(refs, had)
    ratio = p / np.maximum((with_it + without) / 2, 1e-12)
    others = np.asarray(population, np.float64) / np.maximum(
        np.asarray(population_references, np.float64).mean(0), 1e-12
    )
    return np.asarray(np.searchsorted(np.sort(others), ratio, side="left") / len(others))


@dataclasses.dataclass(frozen=True, eq=False)
class Membership:
    """One attack's success: its curve, and what a model that keeps its (ε, δ) would allow at each rate."""

    attack: str
    curve: Roc
    epsilon: float | None = None
    delta: float = 0.0

    def allowed(self, rate: float) -> float:
        """The largest true positive rate at a false positive rate that (ε, δ)-DP allows; 1 where nothing is claimed."""
        if self.epsilon is None or not math.isfinite(self.epsilon):
            return 1.0
        return min(
            1.0, math.exp(self.epsilon) * rate + self.delta, 1 - math.exp(-self.epsilon) * (1 - rate - self.delta)
        )

    @property
    def exceeds(self) -> bool:
        """Whether the attack did better than the claim allows, beyond chance, at any of :data:`RATES`.

        Both rates are uncertain: the claim is refuted where the lower end of the one exceeds what the upper end of the
        other allows, each end at 1% over the number of rates.
        """
        for rate in RATES:
            alarms = math.floor(rate * self.curve.others)
            upper = bounds.clopper_pearson(alarms, self.curve.others, 0.01 / len(RATES))[1]
            _, low, _ = self.curve.at(rate, 0.02 / len(RATES))
            if low > self.allowed(upper):
                return True
        return False

    def view(self) -> OperatorView:
        """For the operator's log and page."""
        told: dict[str, Any] = {
            "attack": self.attack,
            "auc": self.curve.area,
            "auc_interval": list(self.curve.interval),
        }
        for rate in RATES:
            rate_name = f"tpr_at_{rate:g}"
            found, low, high = self.curve.at(rate)
            told |= {rate_name: found, f"{rate_name}_interval": [low, high], f"{rate_name}_allowed": self.allowed(rate)}
        return OperatorView(**told, exceeds_the_claim=self.exceeds)

    def __repr__(self) -> str:
        parts = [f"AUC {self.curve.area:.3f} [{self.curve.interval[0]:.3f}, {self.curve.interval[1]:.3f}]"]
        for rate in RATES:
            found, low, high = self.curve.at(rate)
            parts.append(f"TPR {found:.2%} [{low:.2%}, {high:.2%}] at {rate:.1%} FPR")
        return f"<{self.attack}: {', '.join(parts)} (operator's eyes only)>"


def membership(
    target: Any,
    member: Any,
    references: Any = None,
    inside: Any = None,
    *,
    population: Any = None,
    population_references: Any = None,
    epsilon: float | None = None,
    delta: float = 0.0,
) -> dict[str, Membership]:
    """Attack a model by the probabilities it gives to the right class of each record.

    ``target`` (records) and ``member`` (which of them it was trained on) suffice for the loss threshold; with
    ``references`` (models × records) and ``inside`` (the same shape) LiRA is run too, with ``population`` and
    ``population_references`` RMIA.

    >>> rng = np.random.default_rng(0)
    >>> member = rng.random(500) < 0.5
    >>> membership(np.where(member, 0.9, 0.6) + 0.05 * rng.random(500), member)["loss threshold"].curve.area
    1.0
    """
    p, coins = np.asarray(target, dtype=np.float64), np.asarray(member, dtype=bool)
    if p.min() < 0 or p.max() > 1:
        raise ValueError("the attacks take probabilities of the right class, between 0 and 1")

    def made(name: str, scores: Floats) -> Membership:
        return Membership(name, roc(scores, coins), epsilon, delta)

    found = {"loss threshold": made("loss threshold", p)}
    if references is not None:
        refs = np.asarray(references, dtype=np.float64)
        found["LiRA"] = made("LiRA", lira(logit_confidence(p), logit_confidence(refs), inside))
        if population is not None:
            found["RMIA"] = made("RMIA", rmia(p, refs, inside, population, population_references))
    return found
