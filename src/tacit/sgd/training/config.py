"""What is a run asked to do? Six small frozen values; each checks itself when it is made.

    Training(model, optimizer, loss, data, batch_size=1024, epochs=20, epsilon=3.0, delta=1e-5)
    Training(model, optimizer, loss, data, Sampling(batch_size=1024, epochs=20), PrivacyTarget(epsilon=3.0, delta=1e-5))

The two lines mean the same. Keywords are the everyday way; a value can be made once and used for many runs.
:class:`RunSettings` puts keywords and values together. Each keyword is described once, in the ``Args:`` of its value:
:func:`describes_keywords` copies the descriptions into the docstrings of :class:`~tacit.sgd.Training` and
:func:`~tacit.sgd.fit`.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict, TypeVar

import numpy as np

from tacit.accounting.base import check_adjacency, unit_of
from tacit.ledger import Ledger
from tacit.noise.keys import Key
from tacit.sgd.clip import Check, Compile, Method, compiled_by
from tacit.sgd.correlation import NoiseKind
from tacit.sgd.gradients.bounds import check_kind
from tacit.sgd.gradients.verify import check_when
from tacit.sgd.release import AdaptiveClipping
from tacit.sgd.training.augment import Augment
from tacit.sgd.training.plan import Schedule
from tacit.sgd.training.sampling import Sampler, check_length, check_sampler, make_sampler

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def _positive(**values: int | None) -> None:
    for name, value in values.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ValueError(f"{name} must be a positive whole number, not {value!r}")


class _Plain:
    """A value whose numbers are Python's: those out of numpy could not be written to a card or a checkpoint."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, np.generic):
                object.__setattr__(self, field.name, value.item())


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacyTarget(_Plain):
    """What a run may cost, or how much noise it has.

    Give ``epsilon`` or ``noise_multiplier``: each determines the other.

    Args:
        epsilon: The ε that the run may cost; the noise is calibrated to it. Leave it out if you give
            ``noise_multiplier``.
        delta: The δ of the guarantee, between 0 and 1: choose it well below one over the number of units. Required,
            except with ``mechanism="laplace"``, where it is 0 by default.
        noise_multiplier: The standard deviation of the noise divided by the clip norm (for Laplace noise: its scale
            divided by the clip norm). A number, a list with one value per step, or a function of the step. 0 means no
            noise and ε = ∞, with a warning.
        noise_schedule: The noise of each step relative to the multiplier: a positive number, a list or a function of
            the step, evaluated before training. Default: 1, the same noise at every step.
        mechanism: ``"gaussian"`` (default), or ``"laplace"``: gradients are clipped in L1 norm and the guarantee holds
            at δ = 0. Laplace noise is for small models.
        adjacency: Which data sets are neighbours: ``"add-remove"``, ``"replace-one"`` or ``"zero-out"``. Default: that
            of the ledger's data set; without a ledger, that of the sampler.
        noise: A :class:`~tacit.sgd.Banded` or :class:`~tacit.sgd.BandedInverse`: the noise of a step takes back noise
            of earlier ones, which gives more accuracy at the same ε where data are many and passes few. Default:
            independent noise.

    Raises:
        TypeError: If ``noise`` is something else.
        ValueError: If both or neither of ``epsilon`` and ``noise_multiplier`` are given, or a value is out of range.

    Example:
        >>> PrivacyTarget(epsilon=3.0, delta=1e-5).mechanism
        'gaussian'
    """

    epsilon: float | None = None
    delta: float | None = None
    noise_multiplier: Schedule | None = None
    noise_schedule: Schedule = 1.0
    mechanism: str = "gaussian"
    adjacency: str | None = None
    noise: NoiseKind | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.noise, NoiseKind | None):
            raise TypeError(f"noise must be a Banded() or a BandedInverse(), not {self.noise!r}")
        if self.mechanism not in ("gaussian", "laplace"):
            raise ValueError(f"mechanism must be 'gaussian' or 'laplace', not {self.mechanism!r}")
        if self.adjacency is not None:
            check_adjacency(self.adjacency)
        epsilon, noise, delta = self.epsilon, self.noise_multiplier, self.delta
        if (epsilon is None) == (noise is None):
            raise ValueError("give either epsilon= or noise_multiplier=: each determines the other")
        if epsilon is not None and not (isinstance(epsilon, int | float) and 0 < epsilon < math.inf):
            raise ValueError(f"epsilon must be positive and finite, not {epsilon!r}")
        if isinstance(noise, int | float) and not 0 <= noise < math.inf:
            raise ValueError(f"noise_multiplier must be finite and not negative, not {noise!r}")
        if self.mechanism == "laplace" and (delta is None or delta == 0):
            delta = 0.0
        elif delta is None:
            raise ValueError("delta= is missing: choose it well below 1 / number of records")
        elif not (isinstance(delta, int | float) and 0 < delta < 1):
            raise ValueError(f"delta must lie strictly between 0 and 1, not {delta!r}")
        object.__setattr__(self, "delta", float(delta))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Sampling(_Plain):
    """Who takes part in each step, how long the run is, and whom it protects.

    Args:
        batch_size: The expected number of units in a step. Required. The noisy sum is divided by it.
        epochs: The length of the run in passes over the data. Give ``epochs`` or ``steps``.
        steps: The length of the run in steps.
        sampler: How batches are drawn: ``"poisson"`` (default), ``"truncated"``, ``"fixed"``, ``"shuffle"``,
            ``"chunks"``, ``"balls-in-bins"``, or a sampler object. See docs/howto/sampler.md.
        max_batch: The largest batch of ``sampler="truncated"``, in units. Default: eight standard deviations above the
            expected batch.
        size: A public number of units to use in place of the true one, if that is private. Default: the true number,
            which then counts as public.
        unit: The name of what is protected, such as ``"patient"``. It needs ``groups``. Default: ``"record"``, and
            ``"person"`` with ``groups``.
        groups: Whom each record belongs to: one id per record, or the name of a column of a :func:`tacit.sgd.table`.
            Units are sampled, and the gradients of a unit are averaged and clipped once. Default: every record is its
            own unit.
        max_rows: The most records that a unit contributes to a step, or with ``draw="rows"`` to the whole run. If it
            has more, they are drawn at random. Default: 1. More than 1 needs ``groups``.
        draw: ``"units"`` (default) draws units for a step; the gradients of a unit's rows are averaged and clipped
            once. ``"rows"`` draws rows and clips each; a unit is priced as a group of ``max_rows`` rows, and a row may
            have several owners: ``groups`` then has a list of ids for each. See docs/howto/people.md.

    Raises:
        TypeError: If ``unit`` is not a string, or ``sampler`` is neither a name nor a sampler.
        ValueError: If both or neither of ``epochs`` and ``steps`` are given, or a value is out of range.
        tacit.accounting.UnitError: If ``unit`` names something other than a record, without ``groups``.

    Example:
        >>> Sampling(batch_size=100, epochs=5).unit
        'record'
        >>> Sampling(batch_size=2, epochs=5, groups=["ann", "ann", "bob"], max_rows=2).unit
        'person'
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
    draw: str = "units"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.draw not in ("units", "rows"):
            raise ValueError(f"draw must be 'units' or 'rows', not {self.draw!r}")
        check_length(self.steps, self.epochs)
        _positive(batch_size=self.batch_size, max_batch=self.max_batch, size=self.size, max_rows=self.max_rows)
        if isinstance(self.sampler, str):
            check_sampler(self.sampler, self.max_batch)
        elif not isinstance(self.sampler, Sampler):
            raise TypeError(f"sampler must be a name or a Sampler, not {self.sampler!r}")
        if self.unit is not None and not isinstance(self.unit, str):
            raise TypeError(
                "unit= is the name of what is protected, a string. The ids, one per record, are groups= (an array, or "
                "the name of a column)"
            )
        if self.groups is None and (self.max_rows != 1 or self.draw != "units"):
            name = "max_rows" if self.max_rows != 1 else "draw='rows'"
            raise ValueError(f"{name} needs groups=, one id per record, which says which records belong together")
        owned = self.groups is not None
        word = unit_of(self.unit, owned=owned, ids="Pass groups=, one id per record, with unit=")
        object.__setattr__(self, "unit", word)

    @property
    def drawn(self) -> str:
        """What is drawn for a step, in a word: the unit, or rows of it."""
        assert self.unit is not None
        return self.unit if self.draw == "units" else "row"

    @property
    def caps(self) -> dict[str, int]:
        """The most rows of a unit, as a :class:`Plan` has them: in a step, and where rows are drawn, in the run."""
        if self.draw == "units":
            return {"records_per_unit": self.max_rows, "kept": 1}
        return {"records_per_unit": 1, "kept": self.max_rows}

    def sampler_of(self, units: int) -> Sampler:
        """Make the sampler for a data set.

        Args:
            units: The number of units in the data. ``size``, if given, takes its place in rate and price.

        Returns:
            The sampler, which draws the batches and states the mechanism that they cost.

        Raises:
            ValueError: If a sampler object with another batch size or size was given, or these data cannot be sampled
                as it describes.
        """
        size = units if self.size is None else self.size
        made = self.sampler
        if isinstance(made, str):
            made = make_sampler(made, size, self.batch_size, self.max_batch)
        elif (made.batch_size, made.size) != (self.batch_size, size):
            raise ValueError(f"batch_size and size differ from those of the sampler, {made}")
        made.check(units)
        return made


@dataclasses.dataclass(frozen=True, kw_only=True)
class GradientClipping(_Plain):
    """How the gradient of each unit is bounded.

    Args:
        clip_norm: The most by which a unit's gradient may change the sum, in L2 norm (L1 for Laplace noise): a positive
            number, a list with one value per step, or a function of the step, evaluated before training. Default: 1.
        clipping: ``"flat"`` (default) bounds the whole gradient, ``"per_layer"`` each module's, ``"automatic"`` scales
            every gradient to about ``clip_norm``, and a mapping from patterns of parameter names to bounds gives each
            group its own.
        adaptive: An :class:`~tacit.sgd.AdaptiveClipping`: the clip norm then starts at ``clip_norm`` and follows a
            quantile of the gradient norms. Default: the clip norm does not follow the data.

    Raises:
        TypeError: If ``adaptive`` is not an :class:`~tacit.sgd.AdaptiveClipping`.
        ValueError: If ``clip_norm`` is not positive, or ``clipping`` is unknown.

    Example:
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
    """How a step is computed. Nothing here changes its price.

    Args:
        physical_batch: How many units run through the model at a time. Default: enough for nearly every batch, at most
            2,048 on a CPU; on a GPU it is halved when memory runs out.
        augment: A function from one example to a random view of it, mapped over the batch. Default: none.
        views: How many random views ``augment`` makes of each example. Their gradients are averaged before clipping.
            Default: 1.
        check: When the clipped gradients are compared with autograd's: ``"first"`` (default: the first step of each
            shape), ``"always"``, ``"never"``, or a number of steps between two checks.
        method: ``"operations"`` (default), or ``"examples"``: one backward pass per example, slow, for models that the
            default refuses although they treat examples separately.
        compile: ``"auto"`` (default) begins at once, and traces or compiles the step while the run goes on, if that
            pays for what is left of it. A run whose ``key`` is given stays as it began. ``True`` traces and compiles
            the step at the start, ``"traced"`` only traces it, which takes seconds, ``False`` does neither. A model
            that cannot be compiled runs as it is; if you asked for it, with a warning.
        distributed: ``False``: this process trains alone. ``True``: all ranks train together. Default: together if
            ``torch.distributed`` is initialised.

    Raises:
        ValueError: If ``views`` is given without ``augment``, or a value is out of range.

    Example:
        >>> Execution(physical_batch=64).views
        1
    """

    physical_batch: int | None = None
    augment: Augment | None = None
    views: int = 1
    check: Check = "first"
    method: Method = "operations"
    compile: Compile | Literal["auto"] = "auto"
    distributed: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive(physical_batch=self.physical_batch, views=self.views)
        if self.views > 1 and self.augment is None:
            raise ValueError("views must be a positive whole number, and more than 1 needs augment=, which makes them")
        check_when(self.check)
        if self.compile != "auto":
            compiled_by(self.compile)
        if self.distributed not in (True, False, None):
            raise ValueError(f"distributed must be True, False or None, not {self.distributed!r}")
        if self.method not in ("operations", "examples"):
            raise ValueError(f"method must be 'operations' or 'examples', not {self.method!r}")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Persistence(_Plain):
    """How a run survives the end of its process.

    Args:
        checkpoint: The path where the run is saved. If something is saved there already, the run resumes from it.
            Default: the run is not saved.
        checkpoint_every: Save after every so many steps. Default: 100.
        key: The secret key of the run, a :class:`tacit.noise.Key`; you keep it and destroy it. Default: a new key from
            the operating system, which tacit destroys at the end.
        key_file: Where the key of a run with a checkpoint is kept until the run ends. Default: a file in the user's
            state folder that only its owner can read.

    Raises:
        TypeError: If ``key`` is not a :class:`tacit.noise.Key`.
        ValueError: If ``checkpoint_every`` is not a positive whole number.

    Example:
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
    """Which ledger the plan is charged to, before the first step.

    Args:
        ledger: The ledger that is charged. Default: none; the run then states its price and no budget is checked.
        dataset: The name under which the data are registered in the ledger. Required with ``ledger``.
        purpose: What the charge is for. It is public, and the ledger keeps it. Default: ``"private training"``.
        source: The data as they are registered (a path, a table or a fingerprint), where the records are made of them.
            The charge and the card state its fingerprint. Default: the records themselves.

    Raises:
        TypeError: If ``ledger`` is not a :class:`tacit.Ledger`.
        ValueError: If only one of ``ledger`` and ``dataset`` is given.

    Example:
        >>> Charging().purpose
        'private training'
    """

    ledger: Ledger | None = None
    dataset: str | None = None
    purpose: str = "private training"
    source: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.ledger, Ledger | None):
            raise TypeError("ledger must be a tacit.Ledger: open one with tacit.Ledger(path)")
        if (self.ledger is None) != (self.dataset is None):
            raise ValueError(
                "give ledger= and dataset= together: the ledger, and the name under which the data are registered in it"
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
    noise: NoiseKind | None
    batch_size: int
    epochs: int | None
    steps: int | None
    sampler: str | Sampler
    max_batch: int | None
    size: int | None
    unit: str | None
    groups: Any
    max_rows: int
    draw: str
    clip_norm: Schedule
    clipping: str | Mapping[str, float]
    adaptive: AdaptiveClipping | None
    physical_batch: int | None
    augment: Augment | None
    views: int
    check: Check
    method: Method
    compile: Compile | Literal["auto"]
    distributed: bool | None
    checkpoint: str | os.PathLike[str] | None
    checkpoint_every: int
    key: Key | None
    key_file: str | os.PathLike[str] | None
    ledger: Ledger | None
    dataset: str | None
    purpose: str
    source: Any


@dataclasses.dataclass(frozen=True, eq=False)
class RunSettings:
    """All settings of a run: the six values, checked against each other."""

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
                raise ValueError("adaptive clipping needs one number as clip_norm, Gaussian noise and flat clipping")
            if clipping.adaptive.count_noise == 0:
                told = dataclasses.replace(clipping.adaptive, count_noise=self.sampling.batch_size / 20)
                object.__setattr__(self, "clipping", dataclasses.replace(clipping, adaptive=told))
        if mechanism == "laplace" and clipping.clipping != "flat":
            raise ValueError("mechanism='laplace' clips the whole gradient in L1 norm: use clipping='flat'")

    @property
    def values(self) -> tuple[Value, ...]:
        """The six values."""
        return self.target, self.sampling, self.clipping, self.execution, self.persistence, self.charging

    @staticmethod
    def of(values: Sequence[Value], keywords: Mapping[str, Any]) -> RunSettings:
        """Settings from values and keywords; nothing may be said twice.

        >>> RunSettings.of([Sampling(batch_size=10, steps=5)], {"epsilon": 1.0, "delta": 1e-5}).target.epsilon
        1.0
        """
        given: dict[type, Value] = {}
        for value in values:
            if type(value) not in VALUES:
                names = ", ".join(kind.__name__ for kind in VALUES)
                raise TypeError(f"after the data come values of {names}, not a {type(value).__name__}")
            if type(value) in given:
                raise TypeError(f"two {type(value).__name__} values were given: give one")
            given[type(value)] = value
        refuse_unknown(keywords)
        parts: list[Any] = []
        for kind in VALUES:
            own = {f.name: keywords[f.name] for f in dataclasses.fields(kind) if f.name in keywords}
            if kind in given and own:
                raise TypeError(
                    f"{next(iter(own))}= was given beside a {kind.__name__}, which already sets it: give one"
                )
            if kind is Sampling and kind not in given and "batch_size" not in own:
                raise TypeError("batch_size= is missing: the expected number of records in a step")
            parts.append(given[kind] if kind in given else kind(**own))
        return RunSettings(*parts)


VALUES: tuple[type[Any], ...] = (PrivacyTarget, Sampling, GradientClipping, Execution, Persistence, Charging)
_NAMES = [field.name for kind in VALUES for field in dataclasses.fields(kind)]


def refuse_unknown(keywords: Mapping[str, Any]) -> None:
    """Refuse a keyword that does not exist, and suggest one that does."""
    for name in keywords:
        if name not in _NAMES:
            close = difflib.get_close_matches(name, _NAMES, 1)
            raise TypeError(f"there is no keyword {name!r}" + (f": did you mean {close[0]!r}?" if close else ""))


def shows_keywords(function: F) -> F:
    """Let the signature and the ``Args:`` that people see name every keyword of the six values."""
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
    return describes_keywords(function)


def describes_keywords(thing: T) -> T:
    """Let the ``Args:`` of a docstring continue with those of the six values, so that each keyword is described once.

    >>> def run(**keywords):
    ...     '''Run.
    ...
    ...     Args:
    ...         **keywords: Those of the six values.
    ...
    ...     Returns:
    ...         Nothing.
    ...     '''
    >>> text = describes_keywords(run).__doc__
    >>> text.index("batch_size: The expected number") < text.index("Returns:")
    True
    """
    if thing.__doc__:  # python -OO leaves none
        lines = inspect.cleandoc(thing.__doc__).splitlines()
        _, end = _section(lines)
        if end:
            more = [line for kind in VALUES for line in _described(kind)]
            thing.__doc__ = "\n".join(lines[:end] + more + lines[end:])
    return thing


def _described(kind: type) -> list[str]:
    lines = inspect.cleandoc(kind.__doc__ or "").splitlines()
    start, end = _section(lines)
    return lines[start:end]


def _section(lines: list[str]) -> tuple[int, int]:
    """Where the text under ``Args:`` begins and ends; (0, 0) without one."""
    if "Args:" not in lines:
        return 0, 0
    start = end = lines.index("Args:") + 1
    for number in range(start, len(lines)):
        if lines[number] and not lines[number].startswith(" "):
            break
        end = number + 1 if lines[number] else end
    return start, end
