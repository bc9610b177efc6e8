"""What is a run asked to do? Six small frozen values, each of which refuses at once what cannot be right.

    Training(model, optimizer, loss, data, batch_size=1024, epochs=20, epsilon=3.0, delta=1e-5)
    Training(model, optimizer, loss, data, Sampling(batch_size=1024, epochs=20), PrivacyTarget(epsilon=3.0, delta=1e-5))

The two lines say the same. Plain keywords are the everyday way; a value can be made once and used for many runs.
:class:`RunSettings` puts keywords and values together.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, TypeVar

import numpy as np

from tacit.accounting.base import check_adjacency, unit_of
from tacit.ledger import Ledger
from tacit.noise.keys import Key
from tacit.sgd.clip import Check, Compile, Method, compiled_by
from tacit.sgd.gradients.bounds import check_kind
from tacit.sgd.gradients.verify import check_when
from tacit.sgd.release import AdaptiveClipping
from tacit.sgd.training.augment import Augment
from tacit.sgd.training.plan import Schedule
from tacit.sgd.training.sampling import Sampler, check_length, check_sampler, make_sampler

F = TypeVar("F", bound=Callable[..., Any])


def _positive(**values: int | None) -> None:
    for name, value in values.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ValueError(f"{name} is a positive whole number, not {value!r}")


class _Plain:
    """A value whose numbers are Python's: those out of numpy could not be written to a card or a checkpoint."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, np.generic):
                object.__setattr__(self, field.name, value.item())


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacyTarget(_Plain):
    """What the run may cost, or how much noise it has: each decides the other.

    ``epsilon`` or ``noise_multiplier`` (a number, a list or a function of the step), one of the two; ``delta`` is the
    probability that the guarantee leaves open. ``noise_schedule`` is the noise of each step relative to that.
    ``mechanism="laplace"`` clips in L1 norm and gives pure ε, on small models. ``adjacency``: who is a neighbour.

    >>> PrivacyTarget(epsilon=3.0, delta=1e-5).mechanism
    'gaussian'
    """

    epsilon: float | None = None
    delta: float | None = None
    noise_multiplier: Schedule | None = None
    noise_schedule: Schedule = 1.0
    mechanism: str = "gaussian"
    adjacency: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mechanism not in ("gaussian", "laplace"):
            raise ValueError(f"mechanism must be 'gaussian' or 'laplace', not {self.mechanism!r}")
        if self.adjacency is not None:
            check_adjacency(self.adjacency)
        epsilon, noise, delta = self.epsilon, self.noise_multiplier, self.delta
        if (epsilon is None) == (noise is None):
            raise ValueError("give epsilon= or noise_multiplier=, one of the two: each decides the other")
        if epsilon is not None and not (isinstance(epsilon, int | float) and 0 < epsilon < math.inf):
            raise ValueError(f"epsilon must be positive and finite, not {epsilon!r}")
        if isinstance(noise, int | float) and not 0 <= noise < math.inf:
            raise ValueError(f"noise_multiplier must be finite and not negative, not {noise!r}")
        if self.mechanism == "laplace" and (delta is None or delta == 0):
            delta = 0.0
        elif delta is None:
            raise ValueError("give delta=, the probability the guarantee leaves open: well below 1 / number of records")
        elif not (isinstance(delta, int | float) and 0 < delta < 1):
            raise ValueError(f"delta must lie strictly between 0 and 1, not {delta!r}")
        object.__setattr__(self, "delta", float(delta))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Sampling(_Plain):
    """Who takes part in a step, how many steps there are, and whose data are protected together.

    ``batch_size`` is the expected number of units in a step, ``epochs`` or ``steps`` the length of the run.
    ``sampler`` is a name or a :class:`~tacit.sgd.training.sampling.Sampler`; ``max_batch`` cuts the batches of
    ``"truncated"``. ``size`` is a public number of records (or units) in place of the true one.

    ``groups`` holds one id for each record (an array, or the name of a table's column): units are sampled, each gives
    at most ``max_rows`` records a step, whose gradients are averaged and then clipped once. ``unit`` is the word for
    what they are; a word without ids is refused, because it would protect one record and say more.

    >>> Sampling(batch_size=100, epochs=5).unit
    'record'
    """

    batch_size: int
    epochs: int | None = None
    steps: int | None = None
    sampler: str | Sampler = "poisson"
    max_batch: int | None = None
    size: int | None = None
    unit: str | None = None
    groups: Any = dataclasses.field(default=None, repr=False)  # ids are private
    max_rows: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_length(self.steps, self.epochs)
        _positive(batch_size=self.batch_size, max_batch=self.max_batch, size=self.size, max_rows=self.max_rows)
        if isinstance(self.sampler, str):
            check_sampler(self.sampler, self.max_batch)
        elif not isinstance(self.sampler, Sampler):
            raise TypeError(f"sampler must be a name or a Sampler, not {self.sampler!r}")
        if self.unit is not None and not isinstance(self.unit, str):
            raise TypeError(
                "unit= is the word for what is protected; the ids, one for each record, are groups= (an array or the "
                "name of a column)"
            )
        if self.groups is None and self.max_rows != 1:
            raise ValueError("max_rows needs groups=: which records belong together")
        owned = self.groups is not None
        word = unit_of(self.unit, owned=owned, ids="Pass groups=, one id for each record, with unit=")
        object.__setattr__(self, "unit", word)

    def sampler_of(self, units: int) -> Sampler:
        """The sampler for data of so many units."""
        size = units if self.size is None else self.size
        made = self.sampler
        if isinstance(made, str):
            made = make_sampler(made, size, self.batch_size, self.max_batch)
        elif (made.batch_size, made.size) != (self.batch_size, size):
            raise ValueError(f"batch_size and size are not those of {made}")
        made.check(units)
        return made


@dataclasses.dataclass(frozen=True, kw_only=True)
class GradientClipping(_Plain):
    """How each unit's gradient is bounded.

    ``clip_norm`` may be a number, a list or a function of the step, fixed in advance. ``clipping`` is ``"flat"``,
    ``"per_layer"``, ``"automatic"`` or a mapping from patterns of parameter names to bounds. ``adaptive`` lets the clip
    norm follow a quantile of the norms.

    >>> GradientClipping().clip_norm
    1.0
    """

    clip_norm: Schedule = 1.0
    clipping: str | Mapping[str, float] = "flat"
    adaptive: AdaptiveClipping | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.clip_norm, int | float) and not 0 < self.clip_norm < math.inf:
            raise ValueError(f"clip_norm must be positive and finite, not {self.clip_norm!r}")
        check_kind(self.clipping)
        if not isinstance(self.adaptive, AdaptiveClipping | None):
            raise TypeError(f"adaptive must be an AdaptiveClipping, not {self.adaptive!r}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Execution(_Plain):
    """How a step is computed; nothing here changes what it costs.

    ``physical_batch`` is how many units run at a time (default: as many as fit). ``augment`` makes a random view of one
    example; ``views`` of them are averaged before clipping, at no further cost. ``check`` says when gradients are
    compared with autograd's own. ``method="examples"`` is for models that clipping refuses: one backward pass for each
    example. ``compile=True`` compiles the step where it can, ``compile="traced"`` traces it only, which takes seconds.
    ``distributed=False``: this process trains alone, whatever ``torch.distributed`` says.

    >>> Execution(physical_batch=64).views
    1
    """

    physical_batch: int | None = None
    augment: Augment | None = None
    views: int = 1
    check: Check = "first"
    method: Method = "operations"
    compile: Compile = False
    distributed: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive(physical_batch=self.physical_batch, views=self.views)
        if self.views > 1 and self.augment is None:
            raise ValueError("views is how many random views augment= makes of each example: a positive whole number")
        check_when(self.check)
        compiled_by(self.compile)
        if self.distributed not in (True, False, None):
            raise ValueError(f"distributed must be True, False or None, not {self.distributed!r}")
        if self.method not in ("operations", "examples"):
            raise ValueError(f"method must be 'operations' or 'examples', not {self.method!r}")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Persistence(_Plain):
    """How a run survives its process.

    With ``checkpoint`` it is saved there every ``checkpoint_every`` steps, and resumed where the file exists. The
    secret key is kept in ``key_file`` (default: the user's state folder) until the end, or is given as ``key``.

    >>> Persistence().checkpoint_every
    100
    """

    checkpoint: str | os.PathLike[str] | None = None
    checkpoint_every: int = 100
    key: Key | None = None
    key_file: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive(checkpoint_every=self.checkpoint_every)
        if not isinstance(self.key, Key | None):
            raise TypeError("key must be a tacit.noise.Key: read one from its file with Key.load(path)")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Charging(_Plain):
    """Where the plan is charged before the first step: in ``ledger``, on the data registered there as ``dataset``.

    ``purpose`` is public and stands beside the charge.

    >>> Charging().purpose
    'private training'
    """

    ledger: Ledger | None = None
    dataset: str | None = None
    purpose: str = "private training"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.ledger, Ledger | None):
            raise TypeError("ledger must be a tacit.Ledger: open one with tacit.Ledger(path)")
        if (self.ledger is None) != (self.dataset is None):
            raise ValueError(
                "give ledger= and dataset= together: the ledger, and the name the data are registered under"
            )


Value = PrivacyTarget | Sampling | GradientClipping | Execution | Persistence | Charging


class TrainingKeywords(TypedDict, total=False):
    """The fields of all six values as plain keywords, for type checkers and editors."""

    epsilon: float | None
    delta: float | None
    noise_multiplier: Schedule | None
    noise_schedule: Schedule
    mechanism: str
    adjacency: str | None
    batch_size: int
    epochs: int | None
    steps: int | None
    sampler: str | Sampler
    max_batch: int | None
    size: int | None
    unit: str | None
    groups: Any
    max_rows: int
    clip_norm: Schedule
    clipping: str | Mapping[str, float]
    adaptive: AdaptiveClipping | None
    physical_batch: int | None
    augment: Augment | None
    views: int
    check: Check
    method: Method
    compile: Compile
    distributed: bool | None
    checkpoint: str | os.PathLike[str] | None
    checkpoint_every: int
    key: Key | None
    key_file: str | os.PathLike[str] | None
    ledger: Ledger | None
    dataset: str | None
    purpose: str


@dataclasses.dataclass(frozen=True, eq=False)
class RunSettings:
    """All that a run is asked for: the six values together, and what one says about another."""

    target: PrivacyTarget
    sampling: Sampling
    clipping: GradientClipping
    execution: Execution
    persistence: Persistence
    charging: Charging

    def __post_init__(self) -> None:
        clipping, mechanism = self.clipping, self.target.mechanism
        if clipping.adaptive is not None:
            flat = clipping.clipping in ("flat", "automatic") and isinstance(clipping.clip_norm, int | float)
            if not flat or mechanism != "gaussian":
                raise ValueError("adaptive clipping starts from one clip norm, with Gaussian noise and flat clipping")
            if clipping.adaptive.count_noise == 0:
                told = dataclasses.replace(clipping.adaptive, count_noise=self.sampling.batch_size / 20)
                object.__setattr__(self, "clipping", dataclasses.replace(clipping, adaptive=told))
        if mechanism == "laplace" and clipping.clipping != "flat":
            raise ValueError("Laplace noise clips the whole gradient in L1 norm: clipping='flat'")

    @property
    def values(self) -> tuple[Value, ...]:
        """The six values."""
        return self.target, self.sampling, self.clipping, self.execution, self.persistence, self.charging

    @staticmethod
    def of(values: Sequence[Value], keywords: Mapping[str, Any]) -> RunSettings:
        """RunSettings from values and keywords, of which no two say the same thing.

        >>> RunSettings.of([Sampling(batch_size=10, steps=5)], {"epsilon": 1.0, "delta": 1e-5}).target.epsilon
        1.0
        """
        given: dict[type, Value] = {}
        for value in values:
            if type(value) not in VALUES:
                names = ", ".join(kind.__name__ for kind in VALUES)
                raise TypeError(f"after the data come values of {names}, not a {type(value).__name__}")
            if type(value) in given:
                raise TypeError(f"two values of {type(value).__name__} were given")
            given[type(value)] = value
        refuse_unknown(keywords)
        parts: list[Any] = []
        for kind in VALUES:
            own = {f.name: keywords[f.name] for f in dataclasses.fields(kind) if f.name in keywords}
            if kind in given and own:
                raise TypeError(f"{next(iter(own))}= was given beside a {kind.__name__}, which says it already")
            if kind is Sampling and kind not in given and "batch_size" not in own:
                raise TypeError("batch_size= is missing: the expected number of records in a step")
            parts.append(given[kind] if kind in given else kind(**own))
        return RunSettings(*parts)


VALUES: tuple[type[Any], ...] = (PrivacyTarget, Sampling, GradientClipping, Execution, Persistence, Charging)
_NAMES = [field.name for kind in VALUES for field in dataclasses.fields(kind)]


def refuse_unknown(keywords: Mapping[str, Any]) -> None:
    """A keyword that there is not gets an error that suggests one that there is."""
    for name in keywords:
        if name not in _NAMES:
            close = difflib.get_close_matches(name, _NAMES, 1)
            raise TypeError(f"there is no keyword {name!r}" + (f": did you mean {close[0]!r}?" if close else ""))


def shows_keywords(function: F) -> F:
    """Let the signature that people see name every keyword of the six values, with type and default."""
    plain = inspect.signature(function)
    known = [p for p in plain.parameters.values() if p.kind is not p.VAR_KEYWORD]
    kind = inspect.Parameter.KEYWORD_ONLY
    own = {p.name for p in known}
    for value in VALUES:
        for field in dataclasses.fields(value):
            default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
            if field.name not in own:
                known.append(inspect.Parameter(field.name, kind, default=default, annotation=field.type))
    function.__signature__ = plain.replace(parameters=known)  # type: ignore[attr-defined]
    return function
