"""Which mistakes have been made with tables, votes and selection? Bounds taken from data, noise of the wrong size, and
looks at the data that nobody paid for."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from tacit import accounting as acc
from tacit.selftest.mutants.base import mutant, replaced


@mutant("bounds of a schema's column are taken from the data", "sensitivity", room="schema")
def schema_bounds_from_data() -> Iterator[None]:
    """A column is scaled by its own smallest and largest value, which are two people's."""
    from tacit.schema import encoding

    scale = encoding.scale_to_bounds

    def fitted(column: Any, values: Any, missing: Any, tally: Any) -> Any:
        known = values[np.isfinite(values)] if np.isfinite(values).any() else np.zeros(1)
        lower, upper = float(known.min()), float(known.max())
        scaled = dataclasses.replace(
            column, lower=lower, upper=max(upper, lower + 1e-9 * max(1.0, abs(lower))), fill=None
        )
        filled = np.where(np.isnan(values) | missing, lower if column.fill is None else column.fill, values)
        return scale(scaled, filled, np.zeros_like(missing), tally)

    with replaced(encoding, "scale_to_bounds", fitted):
        yield


@mutant("public rows are taken by their number", "sensitivity", room="schema")
def public_by_number() -> Iterator[None]:
    """Every so-many-th row is declared public: a row more at the top moves all others to another side."""
    from tacit.schema import Encoded

    def numbered(self: Any, share: float) -> Any:
        return np.arange(len(self)) % round(1 / share) == 0

    with replaced(Encoded, "public_rows", numbered):
        yield


@mutant("bounds of a regression are taken from the data", "sensitivity", room="linear_model")
def regression_bounds_from_data() -> Iterator[None]:
    """The smallest and largest values of each feature stand in for public bounds."""
    from tacit.linear_model import bounds

    def encode(self: Any, table: Any, columns: Any = None) -> Any:
        x = np.asarray(table, dtype=np.float64)
        lower, upper = x.min(0), x.max(0)
        return bounds.scale(x, (lower + upper) / 2, np.maximum(upper - lower, 1e-9) / 2)

    with replaced(bounds.Features, "encode", encode):
        yield


@mutant("the target's scale is fitted on private data", "sensitivity", room="linear_model")
def target_scale_fitted() -> Iterator[None]:
    """y is standardised before the fit, with its own mean and deviation."""
    from tacit.linear_model import base, bounds

    def fitted(self: Any, y: Any) -> Any:
        values = np.asarray(y, dtype=np.float64)
        return bounds.scale(values, float(values.mean()), 3 * float(values.std()))

    with replaced(base.PrivateEstimator, "scale_target", fitted):
        yield


@mutant("the functional mechanism takes one entry's sensitivity for the whole", "sensitivity", room="linear_model")
def functional_sensitivity() -> Iterator[None]:
    """The noise on Σxxᵀ is scaled for one coefficient, although one row moves all of them."""
    from tacit.linear_model.sensitivity import Shape

    def joint(self: Any, adjacency: str, quadratic_scale: float, linear_scale: float) -> float:
        return 1.0 / quadratic_scale + float(self.linear(adjacency)) / linear_scale

    with (
        replaced(Shape, "quadratic", lambda self, adjacency, triangle=True: 1.0),
        replaced(Shape, "joint", joint),
    ):
        yield


@mutant("second moments forget that the target moves too", "sensitivity", room="linear_model")
def moments_without_target() -> Iterator[None]:
    """The Frobenius sensitivity counts the features and not y."""
    from tacit.linear_model.sensitivity import Shape

    frobenius = Shape.frobenius
    with replaced(Shape, "frobenius", lambda self, adjacency, target=0.0: frobenius(self, adjacency, 0.0)):
        yield


@mutant("noise beside the diagonal is halved", "noise", room="linear_model")
def thin_off_diagonal() -> Iterator[None]:
    """A symmetric matrix gets s on its diagonal and s/2 beside it, where s/√2 is needed."""
    from tacit.linear_model import releases
    from tacit.noise import add_gaussian as plain

    def symmetric(exact: Any, scale: float) -> Any:
        size = len(exact)
        noisy = np.diag(plain(np.diag(exact), scale))
        upper = np.triu_indices(size, 1)
        noisy[upper] = plain(exact[upper], scale / 2)
        noisy.T[upper] = noisy[upper]
        return noisy

    with replaced(releases, "symmetric_gaussian", symmetric):
        yield


@mutant("the check of Confident-GNMax is not charged", "accounting", room="pate")
def check_free() -> Iterator[None]:
    """Only answered queries are paid for; asking whether the teachers agree is a look as well."""
    from tacit.pate import Aggregator

    def plan(
        self: Any, queries: int, answers: int | None = None, *, partition: str = "any", unit: str = "record"
    ) -> Any:
        return self.vote_mechanism(partition, unit) * (queries if answers is None else min(answers, queries))

    with replaced(Aggregator, "plan", plan):
        yield


@mutant("the wrong noise is charged in PATE", "accounting", room="pate")
def wrong_noise_charged() -> Iterator[None]:
    """The votes are priced with the noise of the check, which is larger."""
    from tacit.pate import GNMax

    def priced(self: Any, partition: str = "any", unit: str = "record") -> acc.Mechanism:
        noise = max(self.vote_noise, getattr(self, "check_noise", 0.0))
        return acc.Votes(noise, partition=partition, unit=unit)

    with replaced(GNMax, "vote_mechanism", priced):
        yield


@mutant("votes get half their noise", "noise", room="pate")
def thin_votes() -> Iterator[None]:
    """The standard deviation is taken for twice what it is."""
    from tacit import noise
    from tacit.pate import GNMax

    def labels(self: Any, counts: Any, source: Any) -> Any:
        noisy = np.asarray(noise.add_gaussian(counts, self.vote_noise / 2, source=source))
        return noisy.argmax(axis=1).astype(np.int64)

    with replaced(GNMax, "noisy_labels", labels):
        yield


@mutant("private selection is not charged", "accounting", room="tuning")
def selection_free() -> Iterator[None]:
    """The best of many runs is priced like one run."""
    from tacit.tuning import PrivateSearch

    def one_run(self: Any, noise: float) -> acc.Mechanism:
        total: acc.Mechanism = self.describe(self._examples[0], noise) + self.score.mechanism
        return total

    def calibrate(self: Any) -> list[float]:
        found = acc.calibrate(lambda noise: one_run(self, noise), epsilon=self.epsilon, delta=self.delta)
        return [found] * len(self._examples)

    def price(self: Any, mechanism: acc.Mechanism) -> acc.Bound:
        return acc.epsilon(one_run(self, self.noises[0]), self.delta, adjacency=self.adjacency)

    with replaced(PrivateSearch, "calibrated_noise", calibrate), replaced(PrivateSearch, "price", price):
        yield


@mutant("scores are compared without noise", "noise", room="tuning")
def exact_scores() -> Iterator[None]:
    """The validation score of the best candidate is released as it is."""
    from tacit.tuning import Score

    with replaced(Score, "__call__", lambda self, model: self.exact(model)):
        yield


@mutant("every record of a person counts for itself in a score", "sensitivity", room="tuning")
def person_relabelled() -> Iterator[None]:
    """The unit is a word on the price: the score adds up records, and one person moves it by as many as they have."""
    from tacit.tuning import scores

    total = scores.bounded_total
    with replaced(scores, "bounded_total", lambda each, owner: total(each, None)):
        yield
