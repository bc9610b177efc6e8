"""What did training cost? One accountant under the names of Opacus' three.

ε is the upper end of an interval certified to hold the true value (docs/accounting.md), so all three give the same
number, which is never above the one of Opacus' accountant of that name for the same steps.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from tacit import accounting as acc
from tacit.sgd.draws import PoissonAtRate, Spent, priced
from tacit.sgd.sampling import Sampler, make_sampler

History = list[tuple[float, float, int]]


class IAccountant:
    """Steps noted one by one (``step``), and the runs of a ``PrivacyEngine``.

    >>> accountant = create_accountant("prv")
    >>> for _ in range(300):
    ...     accountant.step(noise_multiplier=1.0, sample_rate=0.01)
    >>> round(accountant.get_epsilon(delta=1e-5), 2), len(accountant)
    (1.07, 300)
    """

    name = "prv"

    def __init__(self) -> None:
        self._noted: History = []
        self._runs: list[Spent] = []

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
        """(noise multiplier, sampling rate, steps), as Opacus shows it; steps of several draws at the rate of one."""
        found = list(self._noted)
        for run in self._runs:
            rate = _rate(run.sampler) or run.sampler.batch_size / run.sampler.size
            found += [(noise, rate, times) for noise, _, times in run.releases]
        return found

    @history.setter
    def history(self, value: History) -> None:
        self._runs.clear()
        self._noted = [(float(noise), float(rate), int(times)) for noise, rate, times in value]

    def __len__(self) -> int:
        return sum(times for _, _, times in self.history)

    @property
    def spent(self) -> acc.Mechanism:
        """All that happened to the data, as a mechanism of :mod:`tacit.accounting`."""
        total: acc.Mechanism = acc.nothing()
        for noise, rate, times in self._noted:
            total = total + acc.PoissonSampled(acc.Gaussian(noise), rate) * times
        for run in self._runs:
            total = total + run.mechanism
        return total

    def bound(self, delta: float) -> acc.Bound:
        """The interval that ε lies in, with adjacency and unit."""
        if not (isinstance(delta, int | float) and 0 < delta < 1):
            raise ValueError(f"delta must lie strictly between 0 and 1, not {delta!r}")
        spent = self.spent
        adjacency = "add-remove" if "add-remove" in spent.adjacencies() else "zero-out"
        releases = [(noise, draws, times) for run in self._runs for noise, draws, times in run.releases]
        releases += [(noise, 1, times) for noise, _, times in self._noted]
        elements = max((run.elements for run in self._runs), default=0)
        return priced(spent, releases, elements, float(delta), adjacency)

    def get_epsilon(self, delta: float, *, alphas: Any = None, eps_error: Any = None, **kwargs: Any) -> float:
        """The ε spent so far: the certified upper end. ``alphas`` and ``eps_error`` have no meaning here."""
        if set(kwargs) - {"poisson", "delta_error"}:
            raise TypeError(f"get_epsilon has no argument {next(iter(set(kwargs)))!r}")
        return float(self.bound(delta).upper)

    def get_optimizer_hook_fn(self, sample_rate: float) -> Callable[[Any], None]:
        """A step hook for an optimizer that was built by hand."""

        def hook(optimizer: Any) -> None:
            self.step(noise_multiplier=optimizer.noise_multiplier, sample_rate=sample_rate)

        return hook

    def state_dict(self, destination: MutableMapping[str, Any] | None = None) -> MutableMapping[str, Any]:
        """Plain values for a checkpoint."""
        state = OrderedDict() if destination is None else destination
        state["history"] = self.history
        state["mechanism"] = self.mechanism()
        state["tacit"] = {
            "noted": list(self._noted),
            "runs": [
                {
                    "name": run.name,
                    "sampler": [run.sampler.name, run.sampler.size, run.sampler.batch_size],
                    "rate": _rate(run.sampler),
                    "releases": list(run.releases),
                    "passes": dict(run.passes),
                    "elements": run.elements,
                }
                for run in self._runs
                if run.releases
            ],
        }
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what a checkpoint says was spent; runs that are under way are added to it."""
        if not state_dict or "history" not in state_dict or "mechanism" not in state_dict:
            raise ValueError("this is not the state of a privacy accountant: it has no history or no mechanism")
        if state_dict["mechanism"] not in ACCOUNTANTS:
            raise ValueError(f"the state is of an unknown accountant, {state_dict['mechanism']!r}")
        if "tacit" not in state_dict:  # written by Opacus
            self._noted = [(float(a), float(b), int(c)) for a, b, c in state_dict["history"]]
            return
        own = state_dict["tacit"]
        self._noted = [(float(a), float(b), int(c)) for a, b, c in own["noted"]]
        live = {run.name for run in self._runs}
        for kept in own["runs"]:
            if kept["name"] in live:
                continue  # its own earlier state: what was released since stays released
            name, size, batch = kept["sampler"]
            rate = kept.get("rate")
            sampler = make_sampler(name, size, batch) if rate is None else PoissonAtRate(size, batch, float(rate))
            run = Spent(sampler, kept["elements"])
            run.name = kept["name"]
            run.releases = [(float(a), int(b), int(c)) for a, b, c in kept["releases"]]
            run.passes = {int(k): float(v) for k, v in kept["passes"].items()}
            self._runs.append(run)

    def follow(self, run: Spent) -> None:
        """Count what this run releases from now on."""
        self._runs.append(run)


def _rate(sampler: Sampler) -> float | None:
    """The rate of a sampler that has one which is no whole number of records out of all."""
    return sampler.rate if isinstance(sampler, PoissonAtRate) else None


class PRVAccountant(IAccountant):
    """Opacus' name for numerical composition."""

    name = "prv"


class RDPAccountant(IAccountant):
    """Opacus' name for Rényi accounting."""

    name = "rdp"


class GaussianAccountant(IAccountant):
    """Opacus' name for the central-limit approximation (which can be too small: here nothing is approximated)."""

    name = "gdp"


ACCOUNTANTS: dict[str, type[IAccountant]] = {
    kind.name: kind for kind in (PRVAccountant, RDPAccountant, GaussianAccountant)
}


def create_accountant(mechanism: str) -> IAccountant:
    """The accountant of this name.

    >>> create_accountant("rdp").mechanism()
    'rdp'
    """
    if mechanism not in ACCOUNTANTS:
        raise ValueError(f"Unexpected accounting mechanism: {mechanism}; choose one of {', '.join(ACCOUNTANTS)}")
    return ACCOUNTANTS[mechanism]()


def register_accountant(mechanism: str, accountant: Any, force: bool = False) -> None:
    """Refused: what is claimed here is certified, and stays so."""
    raise NotImplementedError(
        "tacit claims what its own accounting certifies; use tacit.accounting for other mechanisms"
    )
