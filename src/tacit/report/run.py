"""What has to be known about a run before its card can be written?

The accountant knows what the mechanism costs, and the ledger what was charged. The rest is here: what ran and how far,
which accesses to the data the number covers, what else was used, and what the user states about trust and release.
Nothing in a :class:`Run` may be computed from private data. Results enter through :class:`Evaluation`, which takes
what :meth:`tacit.ledger.EvaluationData.metric` returns.
"""

from __future__ import annotations

import dataclasses
import math
import re
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tacit import accounting as acc
from tacit.ledger import Ledger, OperatorView, PrivateValueError
from tacit.ledger.release import Charged, Public, public
from tacit.report import words
from tacit.schema import Boolean, Date, Numeric, Schema

if TYPE_CHECKING:
    from tacit.linear_model.base import PrivateEstimator
    from tacit.linear_model.bounds import Features
    from tacit.sgd import Training

#: What may be said about the choice of hyper-parameters.
TUNING = ("none", "charged", "on public data only", "not charged", "not stated")
#: Whether public data or a pre-trained model may contain the people who are protected.
OVERLAP = ("yes", "no", "unknown")
NOT_STATED = "not stated"


@dataclasses.dataclass(frozen=True)
class Statement:
    """What the user states in their own words, for the card.

    Args:
        trust_model: Who is trusted with the raw data.
        release: What is released, and to whom.
        contact: Whom to ask about the run.

    Example:
        >>> Statement(trust_model="central: the statistics office holds the data").release
        'not stated'
    """

    trust_model: str = NOT_STATED
    release: str = NOT_STATED
    contact: str = NOT_STATED


@dataclasses.dataclass(frozen=True)
class PublicSource:
    """Public data or a pre-trained model that the run used.

    Args:
        name: What it is.
        use: What it was used for, such as ``"evaluation"``.
        may_overlap: Whether the protected people may be in it too: ``"yes"``, ``"no"`` or ``"unknown"``.
        note: Anything else that a reader should know.

    Raises:
        ValueError: If ``may_overlap`` is something else.

    Example:
        >>> PublicSource("the published test split", use="evaluation", may_overlap="no").may_overlap
        'no'
    """

    name: str
    use: str
    may_overlap: str = "unknown"
    note: str = ""

    def __post_init__(self) -> None:
        if self.may_overlap not in OVERLAP:
            raise ValueError(f"may_overlap is one of {', '.join(OVERLAP)}, not {self.may_overlap!r}")


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """One result that may be released: a metric of a model on public data, or a charged one.

    Guarantee:
        Only a value that is charged or public is accepted; a result on private rows that nobody charged is refused.

    Args:
        metric: The name of the metric.
        value: What :meth:`tacit.ledger.EvaluationData.metric` returned.
        model: Which model it is about; ``"private"`` is the one that was trained.
        group: The subgroup of rows it is about; empty for all rows.
        rows: How many public rows it was measured on; None leaves the number out.
        note: Anything else that a reader should know.

    Raises:
        PrivateValueError: If ``value`` is an operator view, or is not marked as charged or public.

    Example:
        >>> from tacit.ledger import EvaluationData
        >>> test = EvaluationData.declared_public([0, 1], because="published benchmark")
        >>> Evaluation("accuracy", test.metric("accuracy", 0.5), rows=2).model
        'private'
    """

    metric: str
    value: Charged | Public | OperatorView
    model: str = "private"
    group: str = ""
    rows: int | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.value, OperatorView):
            raise PrivateValueError(
                f"{self.metric!r} was computed on private data and not charged: it stays with the operator"
            )
        if not isinstance(self.value, Charged | Public):
            raise PrivateValueError(
                f"{self.metric!r} is a bare {type(self.value).__name__}; pass what EvaluationData.metric returns"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """A run as its card describes it.

    If the number of records is treated as public, neighbours must have the same number: replace-one or zero-out. Under
    add/remove, a card with the exact number, or with a rate computed from it, would tell whether one record is there.

    Args:
        name: The name of the run.
        mechanism: What ran on the private data. Its unit is whom the guarantee protects.
        delta: The δ at which ε is claimed.
        adjacency: What a neighbour is: ``"add-remove"``, ``"replace-one"`` or ``"zero-out"``.
        epsilon: The price of ``mechanism`` at ``delta`` if it is known already; None computes it.
        after: A function from a number of steps to the price of that many, for the curve of ε against steps.
        method: The method in words.
        purpose: What the run is for.
        parameters: Every public parameter of the run, by name.
        sampler: How batches are drawn, in words.
        steps_planned: How many steps were planned; None if the method has no steps.
        steps_executed: How many steps ran.
        basis: Whether the claim is for the plan or for what ran, in words.
        generator: How noise was drawn, in words.
        covered: The accesses to the private data that ε covers.
        uncovered: What was released beside them without cover. None means that nothing was stated, ``()`` or the word
            ``"nothing"`` that there is nothing.
        assumed: What was assumed about the data and not checked.
        tuning: How hyper-parameters were chosen: ``"none"``, ``"charged"``, ``"on public data only"``,
            ``"not charged"`` or ``"not stated"``.
        tuning_note: A sentence about that.
        records_public: Whether the number of records is treated as public; None means not stated.
        records: The number of records, only if it is treated as public.
        public_sources: Public data that the run used; None means not stated.
        pretrained: Pre-trained models that the run used; None means not stated.
        self_checks: Checks of the implementation that passed during the run.
        audit: The result of an audit, as :meth:`tacit.audit.Audit.to_dict` gives it; None if there was none.
        data: The name of the data.
        schema: The name of the public schema.
        columns: The columns with their public bounds or categories, as :func:`columns_of` lists them; None if they are
            not known.
        released: The coefficients that were released, with intervals, marked as charged or public; None if there are
            none.
        fingerprint: The keyed fingerprint of the data. Empty takes the ledger's.
        ledger: The ledger that the run was charged to; None if it was not charged.
        dataset: The data's name in the ledger.
        charge: The number of the charge.
        model_file: The file of the model, marked as charged or public.
        evaluations: Results to show.
        statement: What the user states about trust, release and contact.

    Raises:
        ValueError: If these contradict each other.

    Example:
        >>> Run("count", acc.Laplace(10.0), delta=0.0).adjacency
        'add-remove'
    """

    name: str = dataclasses.field(kw_only=False)
    mechanism: acc.Mechanism = dataclasses.field(kw_only=False)
    delta: float
    adjacency: str = "add-remove"
    epsilon: acc.Bound | None = None
    after: Callable[[int], acc.Bound] | None = None
    method: str = NOT_STATED
    purpose: str = NOT_STATED
    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    sampler: str = "none: every record takes part"
    steps_planned: int | None = None
    steps_executed: int | None = None
    basis: str = "as planned"
    generator: str = NOT_STATED
    covered: tuple[str, ...] = ()
    uncovered: tuple[str, ...] | None = None
    assumed: tuple[str, ...] = ()
    tuning: str = NOT_STATED
    tuning_note: str = ""
    records_public: bool | None = None
    records: int | None = None
    public_sources: tuple[PublicSource, ...] | None = None
    pretrained: tuple[PublicSource, ...] | None = None
    self_checks: tuple[str, ...] = ()
    audit: Mapping[str, Any] | None = None
    data: str = NOT_STATED
    schema: str = ""
    columns: tuple[Mapping[str, Any], ...] | None = None
    released: Charged | Public | None = None
    fingerprint: str = ""
    ledger: Ledger | None = None
    dataset: str | None = None
    charge: str | None = None
    model_file: Charged | Public | None = None
    evaluations: tuple[Evaluation, ...] = ()
    statement: Statement = Statement()

    def __post_init__(self) -> None:
        if self.uncovered is not None:
            object.__setattr__(self, "uncovered", tuple(one for one in self.uncovered if one != "nothing"))
        if self.tuning not in TUNING:
            raise ValueError(f"tuning is one of {', '.join(TUNING)}, not {self.tuning!r}")
        if self.records is not None and self.records_public is not True:
            raise ValueError("records: the card shows the number only if it is public: set records_public=True")
        if self.records_public and self.adjacency == "add-remove":
            raise ValueError(
                "the number of records is treated as public, and add/remove neighbours differ in it: state "
                "adjacency='zero-out' or 'replace-one', or price with a number that was chosen without the data "
                "(records_public=False)"
            )
        if self.epsilon is not None and (self.epsilon.adjacency, self.epsilon.unit) != (self.adjacency, self.unit):
            raise ValueError(
                f"epsilon is the price for {self.epsilon.terms}, but the run is stated for {self.adjacency} of one "
                f"{self.unit}: price it under the same adjacency and unit"
            )
        if (self.ledger is None) != (self.dataset is None) or (self.charge is not None and self.ledger is None):
            raise ValueError("give ledger and dataset together, and charge only with both")

    @property
    def unit(self) -> str:
        """Whom the guarantee protects."""
        return self.mechanism.unit

    def price(self) -> acc.Bound:
        """The certified ε at :attr:`delta`."""
        if self.epsilon is not None:
            return self.epsilon
        return acc.epsilon(self.mechanism, self.delta, adjacency=self.adjacency)


def describe(training: Training, name: str, **rest: Any) -> Run:
    """Describe a :class:`tacit.sgd.Training` for its card.

    Guarantee:
        If the training was not given ``size=``, the card shows the number of units and the sampling rate computed from
        it. The guarantee is then stated and priced for neighbours with the same number of units: zero-out, if the run
        was planned under add/remove (docs/howto/report.md).

    Args:
        training: The training, at any point of its run.
        name: The name of the run.
        rest: Fields of :class:`Run` that only the user knows, such as ``uncovered`` and ``statement``. They replace
            what the training says.

    Returns:
        The run, ready for :func:`make_card`.

    Example:
        >>> import torch
        >>> from tacit.sgd import Training
        >>> model = torch.nn.Linear(2, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> data = torch.randn(50, 2), torch.randint(2, (50,))
        >>> training = Training(model, optimizer, torch.nn.CrossEntropyLoss(reduction="none"), data,
        ...                     batch_size=10, steps=3, noise_multiplier=1.0, delta=1e-5)
        >>> describe(training, "small").steps_planned
        3
    """
    from tacit.sgd.training.canaries import AuditedTraining  # torch is there where a training run is

    plan, privacy = training.plan, training.privacy
    said = privacy.details
    hidden = ("mechanism", "earlier", "steps", "delta", "adjacency", "unit", "size", "generator")
    sampler = dict(plan.sampler.to_dict())
    parameters = {key: value for key, value in plan.to_dict().items() if key not in hidden}
    if plan.size_given:
        parameters["size"] = "a public number that was given in place of the true one"
    parameters["sampler"] = sampler
    if training.settings.sampling.draw == "rows":
        parameters["draw"] = "rows"
    parameters["optimizer"] = type(training.optimizer).__name__
    if training.layout:
        parameters["ranks"] = training.layout
    planted = 0
    if isinstance(training, AuditedTraining):
        planted = training.canaries.count
        parameters["canaries"] = {"kind": training.canaries.kind, "count": planted}
    parameters["learning_rate"] = [float(g.get("initial_lr", g["lr"])) for g in training.optimizer.param_groups]
    checked = plan.kind == "gaussian" and training.settings.execution.check != "never" and training.steps_executed > 0
    usual: dict[str, Any] = {
        "adjacency": privacy.adjacency,
        "epsilon": privacy.interval,
        "after": plan.stated.price,
        "method": "DP-SGD: per-example gradients are clipped and summed, noise is added to the sum (Abadi et al. 2016)"
        if plan.kind == "gaussian"
        else "DP-SGD with Laplace noise: per-example gradients are clipped in L1 norm",
        "purpose": training.settings.charging.purpose,
        "parameters": parameters,
        "sampler": said["sampler"],
        "steps_planned": said["steps_planned"],
        "steps_executed": said["steps_executed"],
        "basis": said["basis"],
        "generator": said["noise"],
        "covered": ("the weights after every step, and everything computed from them",),
        "assumed": (
            *((f"{words.UNREACHED}{said['probes']}.",) if said.get("probes") else ()),
            *_capped(training),
            *rest.pop("assumed", ()),
        ),
        "records_public": plan.counted,
        "records": plan.sampler.size - planted if plan.counted else None,
        "self_checks": (
            "sum of the captured gradients against autograd's own",
            "gradient norms of single examples against their own backward pass",
        )
        if checked
        else (),
        "ledger": training.ledger,
        "charge": training.charge_number,
        "dataset": training.dataset,
    }
    return Run(name, privacy.mechanism, delta=plan.delta, **(usual | rest))


def _capped(training: Training) -> tuple[str, ...]:
    """What a run takes of a unit with many rows."""
    plan, owners = training.plan, training.units
    if owners is None:
        return ()
    several = bool(getattr(owners, "several", False))
    arriving = training.records.arriving
    kept = plan.kept if training.settings.sampling.draw == "rows" else 0
    return (words.cap(plan.unit, plan.records_per_unit, kept, several=several, arriving=arriving),)


def describe_fit(fitted: PrivateEstimator, name: str, **rest: Any) -> Run:
    """Describe a fitted estimator of :mod:`tacit.linear_model` for its card.

    Args:
        fitted: The estimator, after ``fit``.
        name: The name of the run.
        rest: Fields of :class:`Run` that only the user knows. They replace what the estimator says, and ``uncovered``
            adds to it.

    Returns:
        The run, ready for :func:`make_card`.

    Example:
        >>> import numpy as np
        >>> from tacit.linear_model import LinearRegression
        >>> x = np.linspace(0, 1, 200)[:, None]
        >>> fitted = LinearRegression(epsilon=1.0, bounds=(0, 1), target_bounds=(0, 2)).fit(x, x[:, 0])
        >>> describe_fit(fitted, "slope").method
        'linear regression: second moments, then more of them or gradient steps'
    """
    privacy, said = fitted.privacy_, fitted.privacy_.details
    hidden = ("ledger", "dataset", "backend", "bounds", "epsilon", "delta", "adjacency", "unit")
    given = {key: value for key, value in fitted.get_params().items() if key not in hidden and value is not None}
    scaled = fitted.features_
    parameters = {
        **{key: value.tolist() if hasattr(value, "tolist") else value for key, value in given.items()},
        "bounds": _bounds(scaled),
        "max_rows": said["max_rows"] or 1,
        "assumed": list(said["assumptions"]),
    }
    uncovered = tuple(note for note in said["assumptions"] if note.startswith("NOT covered"))
    counted = any("public" in note and "number of" in note for note in said["assumptions"])
    usual: dict[str, Any] = {
        "adjacency": privacy.adjacency,
        "epsilon": privacy.interval,
        "method": f"{_spaced(type(fitted).__name__)}: {said['method']}",
        "parameters": parameters,
        "generator": said["noise"],
        "covered": ("the coefficients with their covariance, and everything computed from them",),
        "uncovered": uncovered or None,
        "assumed": tuple(f"{note[:1].upper()}{note[1:]}." for note in said["assumptions"] if note not in uncovered),
        "records_public": counted,
        "schema": scaled.schema.name if scaled.schema is not None else "",
        "columns": _columns_of_fit(fitted),
        "released": _coefficients(fitted, said["charge"]),
    }
    if "sampling" in said["method"]:  # DP-SGD; every other method uses all rows
        usual["sampler"] = said["method"].rpartition(", ")[2]
    if rest.get("uncovered") is not None:
        rest["uncovered"] = (*uncovered, *rest["uncovered"])
    return Run(name, privacy.mechanism, delta=privacy.delta, **(usual | _charged_to(fitted, said["charge"]) | rest))


def _spaced(name: str) -> str:
    """The name of a class as words."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()


def _charged_to(fitted: PrivateEstimator, charge: str | None) -> dict[str, Any]:
    """Where a fit was charged, or nothing where it was not."""
    if charge is None or fitted.ledger is None:
        return {}
    names = [fitted.dataset] if fitted.dataset is not None else fitted.ledger.datasets()
    owner = next((n for n in names if fitted.ledger.mentions(n, charge)), None)
    return {} if owner is None else {"ledger": fitted.ledger, "dataset": owner, "charge": charge, "data": owner}


def _bounds(scaled: Features) -> dict[str, Any]:
    """The public bounds of every column, or its public labels."""
    if scaled.schema is not None:
        columns = scaled.schema.features
        return {
            c.name: [c.lower, c.upper] if isinstance(c, Numeric) else list(getattr(c, "labels", ())) for c in columns
        }
    middle, half_width = scaled.centre or (scaled.middle, scaled.half_width)
    ends = zip(scaled.names, (middle - half_width).tolist(), (middle + half_width).tolist(), strict=True)
    return {name: [low, high] for name, low, high in ends}


def columns_of(schema: Schema, *, target: bool = True) -> tuple[dict[str, Any], ...]:
    """The columns of a schema as a card lists them: bounds or categories, what missing values become, and why.

    Args:
        schema: The public schema.
        target: Whether the target is listed too (default).

    Returns:
        One entry for each column.

    Example:
        >>> from tacit.schema import Unit
        >>> found = columns_of(Schema((Numeric("age", 0, 100, description="the form allows no more"),), Unit("person")))
        >>> found[0]["bounds"], found[0]["why"]
        ([0.0, 100.0], 'the form allows no more')
    """
    return tuple(
        _column(
            column.name,
            column.kind,
            role="target" if column.target else "feature",
            bounds=[float(column.lower), float(column.upper)] if isinstance(column, Numeric) else None,
            labels=[str(label) for label in getattr(column, "labels", ())] or None,
            missing=_filled(column),
            why=column.description or ("in days since 1970-01-01" if isinstance(column, Date) else ""),
        )
        for column in schema.columns
        if target or not column.target
    )


def _filled(column: Any) -> str:
    fill = getattr(column, "fill", None)
    if fill is None:
        return "refused"
    return str(fill).lower() if isinstance(column, Boolean) else str(fill)


def _column(name: str, kind: str, *, role: str = "feature", **rest: Any) -> dict[str, Any]:
    return {"name": name, "kind": kind, "role": role, "bounds": None, "labels": None, "missing": "refused"} | rest


def _columns_of_fit(fitted: PrivateEstimator) -> tuple[dict[str, Any], ...]:
    """The columns of a fit: those of its schema, or what its parameters said about each."""
    scaled = fitted.features_
    if scaled.schema is not None:
        return columns_of(scaled.schema)
    why = "given to the estimator; no reason is stated"
    found = [_column(str(name), "numeric", bounds=ends, why=why) for name, ends in _bounds(scaled).items()]
    if (target := getattr(fitted, "target_bounds", None)) is not None:
        found.append(_column("y", "numeric", role="target", bounds=[float(end) for end in target], why=why))
    if (classes := getattr(fitted, "classes_", None)) is not None:
        found.append(_column("y", "categorical", role="target", labels=[str(c) for c in classes], why=why))
    return tuple(found)


def _coefficients(fitted: PrivateEstimator, charge: str | None, level: float = 0.95) -> Charged | Public | None:
    """The released coefficients with their intervals. They are outputs of the mechanism that the card prices."""
    rows = np.atleast_2d(getattr(fitted, "coef_", np.zeros((0, 0))))
    if not rows.size:
        return None
    firsts = np.broadcast_to(np.atleast_1d(fitted.intercept_), len(rows))
    ends, note = None, "this method states no intervals"
    if len(rows) == 1 and hasattr(fitted, "confidence_interval"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", acc.PrivacyWarning)  # the report says it: hidden by the noise
            try:
                ends = fitted.confidence_interval(level, intercept=True)
                note = "intervals cover the uncertainty of the sample and of the noise; they are normal approximations"
            except ValueError as error:
                note = str(error).split(". ")[0]  # what to do instead is for the programmer, and was said there
    classes = [str(c) for c in getattr(fitted, "classes_", ())]
    listed = []
    for k, (first, row) in enumerate(zip(firsts, rows, strict=True)):
        of = f" ({classes[k]})" if len(rows) > 1 else ""
        values = [first, *row] if fitted.fit_intercept else list(row)
        names = ["intercept", *map(str, fitted.features_.names)][-len(values) :]
        pairs = ends[-len(values) :] if ends is not None else [(math.inf, math.inf)] * len(values)
        for name, value, (low, high) in zip(names, values, pairs, strict=True):
            known = math.isfinite(low) and math.isfinite(high)
            interval = {"lower": float(low), "upper": float(high)} if known else {"lower": None, "upper": None}
            listed.append({"name": name + of, "value": float(value), **interval})
    told = {"level": level if ends is not None else None, "note": note, "coefficients": listed}
    if hasattr(fitted, "prediction_noise_"):
        told["noise"] = fitted.noise_in_words_
    dataset = _charged_to(fitted, charge).get("dataset")
    if charge is not None and dataset is not None:
        return Charged(told, dataset, charge)
    return public(told, "output of the mechanism that the stated guarantee covers")
