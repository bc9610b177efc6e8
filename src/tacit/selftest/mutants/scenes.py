"""Which mistakes do the scenes of the other rooms have to catch? At least one for each scene, as patches of our own."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from tacit import accounting as acc
from tacit.selftest.mutants.base import adding, mutant, replaced

# -- noise and prices --------------------------------------------------------------------------------------------------


@mutant("the first element of every parameter has no noise", "noise", scenes=("noise",))
def first_element() -> Iterator[None]:
    """A loop begins at 1."""
    from tacit.noise.tensor import add_normal_many_

    def add(tensors: Any, key: Any, step: int, names: Any, scale: float) -> None:
        kept = [tensor.flatten()[:1].clone() for tensor in tensors]
        add_normal_many_(tensors, key, step, names, scale)
        for tensor, first in zip(tensors, kept, strict=True):
            tensor.view(-1)[:1] = first

    with adding(add):
        yield


@mutant("noise is clamped at three deviations", "noise", scenes=("noise",))
def clamped() -> Iterator[None]:
    """Outliers in the noise look like mistakes, and somebody took them off."""
    import torch

    from tacit.noise.tensor import add_normal_many_

    def add(tensors: Any, key: Any, step: int, names: Any, scale: float) -> None:
        fresh = [torch.zeros_like(tensor) for tensor in tensors]
        add_normal_many_(fresh, key, step, names, 1.0)
        for tensor, noise in zip(tensors, fresh, strict=True):
            tensor += noise.clamp(-3, 3) * scale

    with adding(add):
        yield


@mutant("the tail of exact normal noise is cut", "noise", room="noise")
def cut_tail() -> Iterator[None]:
    """Deviates beyond three are drawn again."""
    from tacit.noise import deviates

    plain = deviates.normal

    def without(count: int, source: Any) -> Any:
        found = plain(count, source)
        for _ in range(60):
            far = np.flatnonzero(found.integer >= 3)
            if not len(far):
                break
            other = plain(len(far), source)
            found.integer[far], found.fraction[far] = other.integer, other.fraction
        return found

    with replaced(deviates, "normal", without):
        yield


@mutant("a group's δ is k times δ", "accounting", room="accounting")
def group_delta() -> Iterator[None]:
    """Group privacy multiplies δ by the size of the group, and forgets the factors e^ε between its steps."""
    plain = acc.ApproxDP.pair

    def pair(self: Any, adjacency: str, direction: str, group: int = 1) -> Any:
        if group == 1:
            return plain(self, adjacency, direction, 1)
        wide = acc.ApproxDP(self.epsilon * group, min(self.delta * group, 1.0), adjacency=self.adjacency)
        return plain(wide, adjacency, direction, 1)

    with replaced(acc.ApproxDP, "pair", pair):
        yield


@mutant("the Rényi divergence of a bounded range is halved", "accounting", room="accounting")
def half_range() -> Iterator[None]:
    """ε²/8 of a bounded range is taken for ε²/16."""
    plain = acc.ExponentialMechanism.renyi

    def renyi(self: Any, adjacency: str, orders: Any, group: int = 1) -> Any:
        found = plain(self, adjacency, orders, group)
        return None if found is None else np.asarray(found) / 2

    with replaced(acc.ExponentialMechanism, "renyi", renyi):
        yield


# -- schema and ledger -------------------------------------------------------------------------------------------------


@mutant("values beyond the bounds of a schema are kept", "sensitivity", room="schema")
def unclipped() -> Iterator[None]:
    """A column is scaled by its bounds and not clipped to them."""
    from tacit.schema import encoding

    def scale(column: Any, values: Any, missing: Any, tally: Any) -> Any:
        filled = np.where(np.isnan(values) | missing, 0.0 if column.fill is None else column.fill, values)
        return (filled - column.middle) / column.half_width

    with replaced(encoding, "scale_to_bounds", scale):
        yield


@mutant("the ledger does not sum δ", "accounting", room="ledger")
def delta_free() -> Iterator[None]:
    """Only ε is compared with the budget."""
    from tacit.ledger import entries
    from tacit.ledger.rules import SumRule

    def within(self: Any, totals: Any) -> bool:
        return bool(entries.value(totals.epsilon) <= self.epsilon)

    with replaced(SumRule, "within", within):
        yield


@mutant("a charge is priced under add-remove whatever the terms are", "accounting", room="ledger")
def one_adjacency() -> Iterator[None]:
    """The adjacency of a data set is a word on its registration."""
    from tacit.ledger import rules

    plain = rules.certified

    def certified(mechanism: Any, delta: float, adjacency: str) -> Any:
        return plain(mechanism, delta, "add-remove")

    with replaced(rules, "certified", certified):
        yield


# -- tables ------------------------------------------------------------------------------------------------------------


@mutant("a regression's target is not clipped", "sensitivity", room="linear_model")
def target_unclipped() -> Iterator[None]:
    """One person's y is as large as it is."""
    from tacit.linear_model import base, bounds

    def target(self: Any, y: Any) -> Any:
        middle, half_width = bounds.target_of(self.target_bounds, self.bounds)
        return (np.asarray(y, dtype=np.float64) - middle) / half_width

    with replaced(base.PrivateEstimator, "scale_target", target):
        yield


@mutant("AdaSSP's eigenvalue has no noise", "noise", room="linear_model", scenes=("table: regressions",))
def exact_eigenvalue() -> Iterator[None]:
    """The smallest eigenvalue decides the ridge, as it is."""
    from tacit.linear_model import linear, releases

    plain = releases.gaussian_sum

    class Exact:
        """The module with one function changed."""

        def __getattr__(self, name: str) -> Any:
            return getattr(releases, name)

        @staticmethod
        def gaussian_sum(exact: Any, sensitivity: float, multiplier: float) -> Any:
            if np.ndim(exact) == 0:
                return np.asarray(exact)
            return plain(exact, sensitivity, multiplier)

    with replaced(linear, "releases", Exact()):
        yield


@mutant("objective perturbation without its factor of two", "accounting", room="linear_model", scenes=("table: obj",))
def one_function() -> Iterator[None]:
    """δ is that of one linear function of the noise, where the gradient may point either way."""
    from tacit.linear_model.objective import Slope

    with replaced(Slope, "log_functions", property(lambda self: self.slots * math.log(self.classes - 1))):
        yield


@mutant("every row of a person takes part", "sensitivity", room="linear_model", scenes=("table: people",))
def every_row() -> Iterator[None]:
    """max_rows is a word: all rows are summed, with noise for that many."""
    from tacit.linear_model import rows

    with replaced(rows, "kept_rows", lambda groups, count, max_rows: np.arange(count)):
        yield


@mutant("edges of curves are not paid for", "accounting", room="additive", scenes=("curves: neighbours",))
def edges_unpaid() -> Iterator[None]:
    """The histogram has its noise, and is left out of the price."""
    from tacit.additive.estimators import CurveBudget

    plain = CurveBudget.mechanism

    def rest(self: Any, unit: str) -> acc.Mechanism:
        return plain(dataclasses.replace(self, counts=False), unit)

    with replaced(CurveBudget, "mechanism", rest), replaced(CurveBudget, "count", property(lambda self: self.noise)):
        yield


@mutant("a pair of columns makes no row longer", "sensitivity", room="additive", scenes=("curves: neighbours",))
def pairs_free() -> Iterator[None]:
    """Products of columns are added to a row, whose length is taken without them."""
    from tacit.additive.basis import Basis

    plain = Basis.shape

    with replaced(Basis, "shape", lambda self, rows: plain(dataclasses.replace(self, pairs=()), rows)):
        yield


@mutant("a person's rows count once in the bins", "sensitivity", room="additive", scenes=("curves: people",))
def bins_once() -> Iterator[None]:
    """The histogram's noise is that of one row, whatever a person owns."""
    from tacit.additive import estimators
    from tacit.linear_model.sensitivity import Shape

    with replaced(estimators, "Shape", lambda *args, **more: Shape(*args, **(more | {"rows": 1}))):
        yield


# -- votes -------------------------------------------------------------------------------------------------------------


@mutant("teachers without data vote with the majority", "sensitivity", room="pate", scenes=("votes: people",))
def followers() -> Iterator[None]:
    """Who has nobody to learn from repeats what the others say, and one person moves them all."""
    from tacit.pate import Teachers

    plain = Teachers.vote

    def vote(self: Any, x: Any) -> Any:
        found = plain(self, x)
        silent = [i for i, part in enumerate(self._parts) if not len(part)]
        if not silent or not len(found):
            return found
        said = self._predict(x)
        busy = [i for i in range(self.n) if i not in silent]
        counts = np.zeros_like(found.counts)
        rows = np.arange(len(found))
        for i in busy:
            counts[rows, said[i]] += 1
        counts[rows, counts.argmax(1)] += len(silent)
        return dataclasses.replace(found, counts=counts)

    with replaced(Teachers, "vote", vote):
        yield


@mutant("local instead of smooth sensitivity", "sensitivity", room="pate", scenes=("votes: sanitised",))
def local_only() -> Iterator[None]:
    """The noise of a sanitised release follows the votes as they are, which it tells."""
    from tacit.pate import smooth

    with replaced(smooth, "smooth_sensitivity", lambda local, beta: float(local[0]) if len(local) else 0.0):
        yield


@mutant("the filter of votes counts answers only", "accounting", room="pate", scenes=("votes: check",))
def checks_free() -> Iterator[None]:
    """A query whose check failed is taken for free."""
    from tacit.pate import ConfidentGNMax

    plain = ConfidentGNMax.check_mechanism

    def cheap(self: Any, partition: str = "any", unit: str = "record") -> Any:
        found = plain(self, partition, unit)
        assert isinstance(found, acc.VoteCheck)
        return dataclasses.replace(found, noise=found.noise * 1e3)

    with replaced(ConfidentGNMax, "check_mechanism", cheap):
        yield


@mutant("a record's prompt teacher follows its place", "sensitivity", room="prompts", scenes=("prompts: teachers",))
def dealt_by_place() -> Iterator[None]:
    """Demonstrations are dealt out in turn: a record more at the top moves everybody to another teacher."""
    from tacit.pate import partition as dealing

    def by_place(who: Any, parts: int, key: Any) -> Any:
        return np.arange(len(who)) % parts

    with replaced(dealing, "keyed", by_place):
        yield


# -- choosing ----------------------------------------------------------------------------------------------------------


@mutant("an exponential choice ignores replace-one", "sensitivity", room="tuning", scenes=("selection: adj",))
def replace_ignored() -> Iterator[None]:
    """The sensitivity of adding a record is used where one is replaced, and the 2 is left out."""
    from tacit.tuning import PrivateSearch

    plain = PrivateSearch._choose

    def choose(self: Any, finished: Any) -> Any:
        kept, self.adjacency = self.adjacency, "add-remove"
        try:
            return plain(self, finished)
        finally:
            self.adjacency = kept

    with replaced(PrivateSearch, "_choose", choose):
        yield


@mutant("failed runs of a search are tried again", "accounting", room="tuning", scenes=("selection: failed",))
def tried_again() -> Iterator[None]:
    """A run that fails is repeated until it ends: the number of looks at the data is not the one that is priced."""
    from tacit.tuning import runs

    plain = runs.run_one

    def again(*given: Any) -> Any:
        for _ in range(3):
            found = plain(*given)
            if not found.error:
                break
        return found

    with replaced(runs, "run_one", again):
        yield


@mutant("bounded losses are not cut below zero", "sensitivity", room="tuning", scenes=("selection: scores",))
def below_zero() -> Iterator[None]:
    """A loss of minus a million counts as it is."""
    from tacit.tuning import scores

    def call(self: Any, model: Any) -> float:
        each = np.asarray(self.losses(model), dtype=np.float64)
        cut = np.minimum(np.nan_to_num(each / self.bound, nan=1.0, posinf=1.0, neginf=1.0), 1.0)
        return -scores.bounded_total(cut.reshape(-1), self.owner) * float(self.bound)

    with replaced(scores._CutLosses, "__call__", call):
        yield


@mutant("an exponential choice is twice as sharp", "accounting", room="tuning", scenes=("selection: choices",))
def twice_as_sharp() -> Iterator[None]:
    """The 2 in exp(εu/2) is forgotten."""
    from tacit.tuning import exponential

    plain = exponential._rate

    def rate(scores: Any, epsilon: float, sensitivity: float, *, monotone: bool) -> Fraction:
        return plain(scores, epsilon, sensitivity, monotone=True)

    with replaced(exponential, "_rate", rate):
        yield


# -- the drop-in and its like ------------------------------------------------------------------------------------------


@mutant("the drop-in's adaptive count is not paid for", "noise", room="opacus", scenes=("drop-in: adaptive",))
def unpaid_count() -> Iterator[None]:
    """The gradient has the stated noise, and the count of clipped gradients comes on top."""
    from tacit.sgd.release import AdaptiveClipping

    with replaced(AdaptiveClipping, "gradient_noise", lambda self, noise_multiplier: noise_multiplier):
        yield


@mutant("a stale clip norm in the drop-in's loop", "noise", room="opacus", scenes=("drop-in: adaptive",))
def stale_norm() -> Iterator[None]:
    """The noise is scaled by the first clip norm, and gradients are clipped by the newest."""
    from tacit.sgd import release

    plain, first = release.noisy_gradients, [0.0]

    def stale(sums: Any, parameters: Any, key: Any, step: int, noise: Any, *rest: Any) -> Any:
        first[0] = noise.scale if step == 0 else first[0]
        return plain(sums, parameters, key, step, dataclasses.replace(noise, scale=first[0]), *rest)

    with replaced(release, "noisy_gradients", stale):
        yield


@mutant(
    "a noise level that returns overwrites earlier steps", "accounting", room="opacus", scenes=("drop-in: noise l",)
)
def overwritten() -> Iterator[None]:
    """Steps are kept by their noise, and a level that comes back begins to count anew."""
    from tacit.sgd.hooked.draws import Spent

    plain = Spent.add

    def add(self: Any, noise_multiplier: float, draws: int = 1, times: int = 1, passes: Any = ()) -> None:
        if self.releases and self.releases[-1][0] != noise_multiplier:
            self.releases[:] = [release for release in self.releases if release[0] != noise_multiplier]
        plain(self, noise_multiplier, draws, times, passes)

    with replaced(Spent, "add", add):
        yield


@mutant(
    "empty batches that a loop leaves out are not counted", "accounting", room="opacus", scenes=("drop-in: pieces",)
)
def left_out() -> Iterator[None]:
    """A loop that skips an empty draw behaves by it, for free."""
    from tacit.sgd.hooked.loop import Loop

    with replaced(Loop, "_count_left_out", lambda self: None):
        yield


@mutant(
    "each piece of an accumulated Trainer batch is drawn alone",
    "sampling",
    room="integrations",
    scenes=("Trainer: draws",),
    needs=("transformers", "accelerate"),
)
def drawn_alone() -> Iterator[None]:
    """A record can be in several pieces of one step, which is priced as one draw."""
    from tacit.sgd.hooked.draws import PrivateBatches

    plain = PrivateBatches._pieces

    def pieces(self: Any, number: int, chosen: Any) -> Any:
        rng = np.random.default_rng()
        for rows in plain(self, number, chosen):
            alone = (self.parts or 1) > 1
            yield sorted(rng.choice(self.sampler.size, len(rows), replace=False).tolist()) if alone else rows

    with replaced(PrivateBatches, "_pieces", pieces):
        yield


@mutant(
    "Lightning's steps have half their noise", "noise", room="integrations", scenes=("Lightning",), needs=("lightning",)
)
def half_in_loops() -> Iterator[None]:
    """The loop of another library is released with half the noise."""
    from tacit.sgd import release

    plain = release.noisy_gradients

    def half(sums: Any, parameters: Any, key: Any, step: int, noise: Any, *rest: Any) -> Any:
        return plain(sums, parameters, key, step, dataclasses.replace(noise, scale=noise.scale / 2), *rest)

    with replaced(release, "noisy_gradients", half):
        yield


# -- runs --------------------------------------------------------------------------------------------------------------


@mutant("a resumed run ignores changed data", "accounting", scenes=("resume: forks",))
def changed_data() -> Iterator[None]:
    """The data's digest is not part of what a run is."""
    from tacit.sgd.training.resume import Resumable

    with replaced(Resumable, "_name_of_data", lambda self, key: "the data"):
        yield


@mutant("a card states ε of one step", "accounting", room="report", scenes=("report: cards",))
def one_step_card() -> Iterator[None]:
    """The card reads the price of a step for that of the run."""
    from tacit.report import Run

    plain = Run.price

    def price(self: Any, *given: Any, **named: Any) -> Any:
        bound = plain(self, *given, **named)
        return dataclasses.replace(bound, lower=bound.lower / 2, upper=bound.upper / 2)

    with replaced(Run, "price", price):
        yield


@mutant("a run's ledger is charged for half its steps", "accounting", room="runs", scenes=("runs: folders",))
def half_charged() -> Iterator[None]:
    """The charge is computed from another number of steps than the run."""
    from tacit.ledger import Ledger

    plain = Ledger.charge

    def charge(self: Any, dataset: str, mechanism: Any, **more: Any) -> Any:
        parts = mechanism.parts()
        cheaper = parts[0][0] * max(1, parts[0][1] // 2)
        for part, times in parts[1:]:
            cheaper = cheaper + part * times
        return plain(self, dataset, cheaper, **more)

    with replaced(Ledger, "charge", charge):
        yield


@mutant("a convolution's norm leaves out its groups", "sensitivity", scenes=("rules: layers",))
def half_norm() -> Iterator[None]:
    """The norm of a gradient with four dimensions is half of what it is."""
    from tacit.sgd.gradients.bounds import Gradients
    from tacit.sgd.gradients.contributions import Norms

    plain = Gradients.norms

    def norms(self: Gradients, k: int) -> Norms:
        found = plain(self, k)
        return Norms(found.squared / 4) if self.parameters[k].dim() == 4 else found

    with replaced(Gradients, "norms", norms):
        yield
