"""What did training cost? One accountant under the names of Opacus' three.

ε is the upper end of an interval certified to hold the true value (docs/explanation/prices.md), so all three give
the same number, which is never above the one of Opacus' accountant of that name for the same steps.
"""

from __future__ import annotations

import math
import numbers
import uuid
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any

from tacit import accounting as acc
from tacit.noise.tensor import GENERATOR
from tacit.opacus.accountants.analysis import gdp, rdp
from tacit.opacus.accountants.history import Entry, History
from tacit.sgd.hooked.draws import PoissonAtRate, Spent, priced
from tacit.sgd.training.plan import size_in_words
from tacit.sgd.training.sampling import Sampler, make_sampler


class IAccountant:
    """Steps noted one by one (``step``), and the runs of a ``PrivacyEngine``.

    >>> accountant = create_accountant("prv")
    >>> for _ in range(300):
    ...     accountant.step(noise_multiplier=1.0, sample_rate=0.01)
    >>> round(accountant.get_epsilon(delta=1e-5), 2), len(accountant)
    (1.07, 300)
    """

    name = "prv"
    #: the Rényi orders that Opacus looks at
    DEFAULT_ALPHAS: Sequence[float] = [1 + x / 10.0 for x in range(1, 100)] + list(range(12, 64))

    def __init__(self) -> None:
        self._noted: list[Entry] = []
        self._runs: list[Spent] = []
        #: tells an accountant from its own saved state
        self._name = uuid.uuid4().hex
        #: which noted steps of other accountants were taken over
        self._taken_over: dict[str, Counter[tuple[float, float]]] = {}

    @classmethod
    def mechanism(cls) -> str:
        """The name that was asked for."""
        return cls.name

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Note one step of Poisson sampling at ``sample_rate``."""
        acc.PoissonSampled(acc.Gaussian(noise_multiplier), sample_rate)  # an error now rather than later
        self._note(float(noise_multiplier), float(sample_rate), 1)

    def _note(self, noise: float, rate: float, times: int) -> None:
        if self._noted and self._noted[-1][:2] == (noise, rate):
            times += self._noted.pop()[2]
        self._noted.append((noise, rate, times))

    @property
    def history(self) -> History:
        """(noise multiplier, sampling rate, steps), as Opacus shows it; steps of several draws at the rate of one.

        What is put into this list, or assigned to it, is counted. What a run of the engine released stays counted:
        entries that show those steps stand for them, and leaving them out takes nothing back.
        """
        return History(self, [*self._noted, *self._released()])

    @history.setter
    def history(self, value: Iterable[Entry]) -> None:
        released: Counter[tuple[float, float]] = Counter()
        for noise, rate, times in self._released():
            released[noise, rate] += times
        noted = []
        for noise, rate, some in value:
            times = math.ceil(some)
            acc.PoissonSampled(acc.Gaussian(noise), rate) * times  # an error now rather than later
            shown = min(times, released[noise, rate])
            released[noise, rate] -= shown
            if times > shown:
                noted.append((float(noise), float(rate), times - shown))
        self._noted = noted
        if any(released.values()):
            warnings.warn(
                f"{sum(released.values())} steps of a run under this accountant are missing from its new history. They "
                "were released, so they stay counted. Use a new PrivacyEngine for other data",
                acc.PrivacyWarning,
                stacklevel=2,
            )

    def _released(self) -> list[Entry]:
        """The steps of the engine's runs."""
        found = []
        for run in self._counted():
            rate = _rate(run.sampler) or run.sampler.batch_size / run.sampler.size
            found += [(noise, rate, times) for noise, _, times in run.releases]
        return found

    def _counted(self) -> list[Spent]:
        """Every run once: where it was also loaded from a checkpoint, the state with more steps."""
        found: dict[str, Spent] = {}
        for run in self._runs:
            if run.name not in found or len(found[run.name]) < len(run):
                found[run.name] = run
        return list(found.values())

    def __len__(self) -> int:
        return sum(times for _, _, times in self.history)

    @property
    def spent(self) -> acc.Mechanism:
        """All that happened to the data, as a mechanism of :mod:`tacit.accounting`."""
        return self._spent(poisson=True)

    def _spent(self, poisson: bool) -> acc.Mechanism:
        runs = self._counted()
        total = acc.nothing(runs[0].unit if runs and not self._noted else "record")
        for noise, rate, times in self._noted:
            step = acc.PoissonSampled(acc.Gaussian(noise), rate) if poisson else gdp.uniform(noise, rate)
            total = total + step * times
        for run in runs:
            total = total + run.mechanism
        return total

    def bound(self, delta: float, *, poisson: bool = True) -> acc.Bound:
        """The interval that ε lies in, with adjacency and unit.

        ``poisson=False`` says that noted steps had batches of fixed size; runs of the engine know how they sampled.
        """
        return self._priced(delta, poisson=poisson, counted=False).interval

    def privacy(self, delta: float) -> acc.Privacy:
        """The guarantee of what was spent so far. The rate was made of the number of records, which is then public."""
        found = self._priced(delta, poisson=True, counted=True)
        size = size_in_words(found.unit, given=False)
        return found.with_details(steps_executed=len(self), size=size, noise=GENERATOR)

    def _priced(self, delta: float, *, poisson: bool, counted: bool) -> acc.Privacy:
        if not (isinstance(delta, numbers.Real) and 0 < delta < 1):
            raise ValueError(f"delta must lie strictly between 0 and 1, not {delta!r}")
        spent = self._spent(poisson)
        adjacency = acc.stated_adjacency(_adjacency(spent), counted=counted)
        runs = self._counted()
        releases = [(noise, draws, times) for run in runs for noise, draws, times in run.releases]
        releases += [(noise, 1, times) for noise, _, times in self._noted]
        elements = max((run.elements for run in runs), default=0)
        return priced(spent, releases, elements, float(delta), adjacency)

    def get_epsilon(
        self,
        delta: float,
        *,
        alphas: Any = None,
        eps_error: Any = None,
        delta_error: Any = None,
        poisson: bool = True,
    ) -> float:
        """The ε spent so far: the certified upper end. ``alphas`` and the errors asked for have no meaning here."""
        return float(self.bound(delta, poisson=poisson).upper)

    def get_privacy_spent(self, *, delta: float, alphas: Sequence[float] | None = None) -> tuple[float, float]:
        """:meth:`get_epsilon`, and the order of ``alphas`` at which a Rényi curve of the same steps is at its best.

        The ε that the curve proves is larger, or the same: it is ``analysis.rdp.get_privacy_spent`` of it.
        """
        epsilon = self.get_epsilon(delta)
        if not len(self):
            return 0.0, 0.0
        spent, orders = self.spent, self.DEFAULT_ALPHAS if alphas is None else alphas
        curve = acc.renyi(spent, orders, adjacency=_adjacency(spent))
        return epsilon, rdp.get_privacy_spent(orders=orders, rdp=curve, delta=delta)[1]

    def get_optimizer_hook_fn(self, sample_rate: float) -> Callable[[Any], None]:
        """A step hook for an optimizer that was built by hand."""

        def hook(optimizer: Any) -> None:
            self.step(noise_multiplier=optimizer.noise_multiplier, sample_rate=sample_rate)

        return hook

    def state_dict(self, destination: MutableMapping[str, Any] | None = None) -> MutableMapping[str, Any]:
        """Plain values for a checkpoint."""
        state = OrderedDict() if destination is None else destination
        state["history"] = list(self.history)
        state["mechanism"] = self.mechanism()
        state["tacit"] = {
            "name": self._name,
            "noted": list(self._noted),
            "runs": [
                {
                    "name": run.name,
                    "sampler": [run.sampler.name, run.sampler.size, run.sampler.batch_size],
                    "groups": getattr(run.sampler, "groups", None),
                    "rate": _rate(run.sampler),
                    "releases": list(run.releases),
                    "passes": dict(run.passes),
                    "elements": run.elements,
                    "unit": run.unit,
                }
                for run in self._counted()
                if run.releases
            ],
        }
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Add what a checkpoint says was spent. What is counted here stays counted; the same steps are counted once."""
        if not state_dict or "history" not in state_dict or "mechanism" not in state_dict:
            raise ValueError("state_dict is not the state of a privacy accountant: 'history' or 'mechanism' is missing")
        if state_dict["mechanism"] not in ACCOUNTANTS:
            raise ValueError(f"state_dict belongs to an unknown accountant, {state_dict['mechanism']!r}")
        if state_dict["mechanism"] != self.mechanism():
            raise ValueError(
                f"state_dict is that of the accountant {state_dict['mechanism']!r}, and this one is "
                f"{self.mechanism()!r}: load it into PrivacyEngine(accountant={state_dict['mechanism']!r})"
            )
        if "tacit" not in state_dict:  # written by Opacus
            self._take_over(None, state_dict["history"])
            return
        own = state_dict["tacit"]
        self._take_over(own.get("name"), own["noted"])
        for kept in own["runs"]:
            rate, groups = kept.get("rate"), kept.get("groups")
            name, size, batch = kept["sampler"]
            sampler = make_sampler(name, size, batch, groups=groups)
            if rate is not None:
                sampler = PoissonAtRate(sampler.size, sampler.batch_size, float(rate))
            run = Spent(sampler, kept["elements"], kept.get("unit", "record"))
            run.name = kept["name"]
            run.releases = [(float(a), int(b), int(c)) for a, b, c in kept["releases"]]
            run.passes = {int(k): float(v) for k, v in kept["passes"].items()}
            self._runs.append(run)

    def _take_over(self, name: str | None, entries: Iterable[Entry]) -> None:
        """Note the steps of another accountant, or of this one's earlier state, that are not noted here yet."""
        saved = _tally(entries)
        known = _tally(self._noted) if name == self._name else self._taken_over.get(name or "", Counter())
        for (noise, rate), times in (saved - known).items():
            self._note(noise, rate, times)
        if name is not None and name != self._name:
            self._taken_over[name] = saved | known

    def follow(self, run: Spent) -> None:
        """Count what this run releases from now on."""
        self._runs.append(run)


def _tally(entries: Iterable[Entry]) -> Counter[tuple[float, float]]:
    found: Counter[tuple[float, float]] = Counter()
    for noise, rate, times in entries:
        found[float(noise), float(rate)] += int(times)
    return found


def _adjacency(spent: acc.Mechanism) -> str:
    """What a neighbour is: passes over shuffled data have no price for an added record."""
    return "add-remove" if "add-remove" in spent.adjacencies() else "zero-out"


def _rate(sampler: Sampler) -> float | None:
    """The rate of a sampler that has one which is no whole number of records out of all."""
    return sampler.rate if isinstance(sampler, PoissonAtRate) else None


class PRVAccountant(IAccountant):
    """Opacus' name for numerical composition."""

    name = "prv"


class RDPAccountant(IAccountant):
    """Opacus' name for Rényi accounting."""

    name = "rdp"

    def get_epsilon(self, delta: float, alphas: Any = None, **kwargs: Any) -> float:
        """As :meth:`IAccountant.get_epsilon`; ``alphas`` may come second."""
        return super().get_epsilon(delta, alphas=alphas, **kwargs)


class GaussianAccountant(IAccountant):
    """Opacus' name for the central-limit approximation (which can be too small: here nothing is approximated)."""

    name = "gdp"

    def get_epsilon(self, delta: float, poisson: bool = True, **kwargs: Any) -> float:
        """As :meth:`IAccountant.get_epsilon`; ``poisson`` may come second."""
        return super().get_epsilon(delta, poisson=poisson, **kwargs)


ACCOUNTANTS: dict[str, type[IAccountant]] = {
    kind.name: kind for kind in (PRVAccountant, RDPAccountant, GaussianAccountant)
}


def create_accountant(mechanism: str) -> IAccountant:
    """The accountant of this name.

    >>> create_accountant("rdp").mechanism()
    'rdp'
    """
    if mechanism not in ACCOUNTANTS:
        raise ValueError(f"accountant must be one of {', '.join(ACCOUNTANTS)}, not {mechanism!r}")
    return ACCOUNTANTS[mechanism]()


def register_accountant(mechanism: str, accountant: Any, force: bool = False) -> None:
    """Refused: what is claimed here is certified, and stays so."""
    raise NotImplementedError(
        "tacit claims what its own accounting certifies; use tacit.accounting for other mechanisms"
    )
