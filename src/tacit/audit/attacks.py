"""Can somebody tell from a trained model who was in its data? Membership attacks: loss threshold, RMIA, LiRA.

They look at real records, members and others, so their results are for the operator: an
:class:`~tacit.ledger.OperatorView`, never part of a release.

- *Loss threshold* (Yeom et al. 2018): members have a smaller loss.
- *LiRA* (Carlini et al. 2022): compares the loss of a record with its losses under reference models that were trained
  with it and without it, each modelled as a normal distribution with one variance for all records ("online, fixed
  variance").
- *RMIA* (Zarifzadeh, Liu and Shokri 2024): how often the record's likelihood ratio, relative to reference models,
  exceeds that of other records.

The auditor trains the reference models on random halves of the same pool. A few dozen suffice for small models.
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
#: False positive rates at which true positive rates are reported.
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

    ``target`` holds one logit confidence per record, ``references`` one row per reference model, and ``inside`` which
    records each reference model was trained on. All records share one variance, because few reference models do not
    give one for each.
    """
    scores, refs, had = np.asarray(target, np.float64), np.asarray(references, np.float64), np.asarray(inside, bool)
    if refs.shape != had.shape or refs.shape[1:] != scores.shape:
        raise ValueError(
            f"target, references and inside have shapes {scores.shape}, {refs.shape} and {had.shape}, which do not "
            "belong together: give (records,), (models, records) and (models, records)"
        )
    mean_in, mean_out = _means(refs, had)
    with_it, without = np.where(had, refs, np.nan), np.where(had, np.nan, refs)
    spread_in = math.sqrt(np.nanmean((with_it - mean_in) ** 2)) + 1e-9
    spread_out = math.sqrt(np.nanmean((without - mean_out) ** 2)) + 1e-9
    near_in, near_out = (scores - mean_in) / spread_in, (scores - mean_out) / spread_out
    return np.asarray((near_out**2 - near_in**2) / 2 + math.log(spread_out / spread_in))


def _means(references: Floats, inside: Masks) -> tuple[Floats, Floats]:
    """The mean of each record over the models that were trained with it, and over the others."""
    if not (inside.any(0).all() and (~inside).any(0).all()):
        raise ValueError(
            "every record must be in one reference model or more, and out of one or more: train more of them"
        )
    return (references * inside).sum(0) / inside.sum(0), (references * ~inside).sum(0) / (~inside).sum(0)


def rmia(target: Any, references: Any, inside: Any, population: Any, population_references: Any) -> Floats:
    """The share of population records whose likelihood ratio is smaller than that of a record.

    ``target`` and ``references`` hold probabilities of the right class here. ``population`` and
    ``population_references`` hold those of records that are certainly not members, for the target and for every
    reference model.
    """
    p, refs, had = np.asarray(target, np.float64), np.asarray(references, np.float64), np.asarray(inside, bool)
    # The prior of a record: half the mean over models with it plus half the mean over models without it.
    with_it, without = _means(refs, had)
    ratio = p / np.maximum((with_it + without) / 2, 1e-12)
    others = np.asarray(population, np.float64) / np.maximum(
        np.asarray(population_references, np.float64).mean(0), 1e-12
    )
    return np.asarray(np.searchsorted(np.sort(others), ratio, side="left") / len(others))


@dataclasses.dataclass(frozen=True, eq=False)
class Membership:
    """How well one membership attack did, and how well the claim allows it to do.

    Args:
        attack: Name of the attack: ``loss threshold``, ``LiRA`` or ``RMIA``.
        curve: The ROC curve of its scores, as :func:`tacit.audit.roc` makes it.
        epsilon: The ε that the model claims; None if it claims nothing.
        delta: The δ of that claim.

    Example:
        >>> from tacit.audit import roc
        >>> found = Membership("loss threshold", roc([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1]), epsilon=1.0)
        >>> round(found.allowed(0.01), 4), found.exceeds
        (0.0272, False)
    """

    attack: str
    curve: Roc
    epsilon: float | None = None
    delta: float = 0.0

    def allowed(self, rate: float) -> float:
        """The largest true positive rate that (ε, δ)-DP allows at a false positive rate.

        Args:
            rate: The false positive rate, between 0 and 1.

        Returns:
            The true positive rate; 1 if nothing is claimed.
        """
        if self.epsilon is None or not math.isfinite(self.epsilon):
            return 1.0
        return min(
            1.0, math.exp(self.epsilon) * rate + self.delta, 1 - math.exp(-self.epsilon) * (1 - rate - self.delta)
        )

    @property
    def exceeds(self) -> bool:
        """Whether the attack did better than the claim allows, beyond chance, at a false positive rate of 0.1% or 1%.

        Both rates are uncertain. The claim is refuted if the lower end of the true positive rate exceeds what the claim
        allows at the upper end of the false positive rate; each end may be wrong with probability 0.5%.
        """
        for rate in RATES:
            alarms = math.floor(rate * self.curve.others)
            upper = bounds.clopper_pearson(alarms, self.curve.others, 0.01 / len(RATES))[1]
            _, low, _ = self.curve.at(rate, 0.02 / len(RATES))
            if low > self.allowed(upper):
                return True
        return False

    def view(self) -> OperatorView:
        """Area, rates and intervals, for the operator's log; cards and reports refuse this type."""
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
    """Attack a trained model through the probability that it gives to the right class of each record.

    ``target`` and ``member`` suffice for the loss threshold. LiRA needs ``references`` and ``inside`` as well, RMIA
    also ``population`` and ``population_references``.

    Guarantee:
        None: the result is computed from private records without noise. It is an operator view, and cards and reports
        refuse it.

    Args:
        target: The model's probability of the right class of each record, between 0 and 1.
        member: One boolean per record: whether the model was trained on it.
        references: The same probabilities under reference models of your own, models × records; None leaves LiRA out.
        inside: Which records each reference model was trained on, in the same shape.
        population: The target's probabilities for records that are certainly not members; None leaves RMIA out.
        population_references: The same for each reference model, models × records.
        epsilon: The ε that the model claims, to compare with; None if it claims nothing.
        delta: The δ of that claim.

    Returns:
        The attacks by name: ``loss threshold``, and ``LiRA`` and ``RMIA`` if their inputs are given.

    Raises:
        ValueError: If probabilities lie outside [0, 1], shapes do not match, or a record is in all reference models or
            in none.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> member = rng.random(500) < 0.5
        >>> membership(np.where(member, 0.9, 0.6) + 0.05 * rng.random(500), member)["loss threshold"].curve.area
        1.0
    """
    p, coins = np.asarray(target, dtype=np.float64), np.asarray(member, dtype=bool)
    if p.min() < 0 or p.max() > 1:
        raise ValueError("target must hold probabilities of the right class, between 0 and 1")

    def made(name: str, scores: Floats) -> Membership:
        return Membership(name, roc(scores, coins), epsilon, delta)

    found = {"loss threshold": made("loss threshold", p)}
    if references is not None:
        refs = np.asarray(references, dtype=np.float64)
        found["LiRA"] = made("LiRA", lira(logit_confidence(p), logit_confidence(refs), inside))
        if population is not None:
            found["RMIA"] = made("RMIA", rmia(p, refs, inside, population, population_references))
    return found
