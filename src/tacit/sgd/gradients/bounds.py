"""How are per-example gradients bounded, and what sensitivity follows? Clip norms, clip factors and clipped sums.

:class:`Gradients` are per-example gradients of every parameter, as contributions; :func:`clip` makes norms and factors
of them, and :meth:`Clipped.settled` the clipped sums that may be used.
"""

from __future__ import annotations

import fnmatch
import math
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tacit.sgd.errors import ClippingError, GradientsLost
from tacit.sgd.gradients.contributions import Group, Norms, clean, wide
from tacit.sgd.gradients.frames import Frame
from tacit.sgd.kernels.products import full_precision
from tacit.sgd.sharding.shards import ShardedParameters


@dataclass(frozen=True)
class Clipping:
    """How per-example gradients are bounded, and the sensitivity that follows.

    Args:
        kind: ``"flat"``, ``"per_layer"``, ``"automatic"``, ``"groups"`` or ``"per_parameter"``.
        groups: The names of the parameters that are bounded together, group by group.
        bounds: The bound of each group, in L2 norm.
        stabiliser: The constant γ of automatic clipping. Default: 0, plain clipping.

    Example:
        >>> Clipping("per_layer", (("a.weight",), ("b.weight",)), (3.0, 4.0)).sensitivity
        5.0
    """

    kind: str
    groups: tuple[tuple[str, ...], ...]
    bounds: tuple[float, ...]
    stabiliser: float = 0.0

    @property
    def sensitivity(self) -> float:
        """How far adding or removing one example can move the clipped sum, in L2 norm.

        It is the root of the sum of squared bounds; replacing one example can move the sum twice as far.
        """
        return self.bounds[0] if len(self.bounds) == 1 else math.sqrt(sum(c * c for c in self.bounds))

    @staticmethod
    def of(kind: Any, clip_norm: float, names: list[str], stabiliser: float = 0.01) -> Clipping:
        """Make the clipping that a user asked for.

        Args:
            kind: ``"flat"`` bounds the whole gradient. ``"per_layer"`` bounds the parameters of each module together
                by ``clip_norm / sqrt(number of modules)``, so that the total is ``clip_norm``. ``"automatic"`` scales
                every gradient to nearly ``clip_norm``, long or short. A mapping from patterns of names to bounds gives
                each group its own.
            clip_norm: The bound, positive; not used with a mapping.
            names: The names of the trainable parameters.
            stabiliser: The constant γ of automatic clipping. Default: 0.01.

        Returns:
            The clipping of these parameters.

        Raises:
            ValueError: If ``kind`` is unknown, a bound is not positive, or the patterns do not cover the parameters.
            ClippingError: If there is no trainable parameter.

        Example:
            >>> Clipping.of({"head.*": 0.3, "*": 0.4}, 1.0, ["body.weight", "head.weight"]).sensitivity
            0.5
        """
        check_kind(kind)
        clip_norm = float(clip_norm)
        if not (math.isfinite(clip_norm) and clip_norm > 0):
            raise ValueError(f"clip_norm must be positive and finite, not {clip_norm}")
        if not names:
            raise ClippingError("the model has no trainable parameters")
        if isinstance(kind, Mapping):
            return _by_pattern(kind, names)
        if kind == "per_layer":
            layers: dict[str, list[str]] = {}
            for name in names:
                layers.setdefault(name.rpartition(".")[0], []).append(name)
            bound = clip_norm / math.sqrt(len(layers))
            # Rounded down, so that the bounds do not add up to more than clip_norm.
            bound = math.nextafter(bound, 0.0)
            return Clipping("per_layer", tuple(map(tuple, layers.values())), (bound,) * len(layers))
        if kind == "flat":
            return Clipping("flat", (tuple(names),), (clip_norm,))
        return Clipping("automatic", (tuple(names),), (clip_norm,), stabiliser)


def check_kind(kind: Any) -> None:
    """Refuse a way of clipping that there is not."""
    if not isinstance(kind, Mapping) and kind not in ("flat", "per_layer", "automatic"):
        raise ValueError(f"clipping must be 'flat', 'per_layer', 'automatic' or a mapping of patterns, not {kind!r}")


def _by_pattern(kind: Mapping[str, float], names: list[str]) -> Clipping:
    groups: dict[str, list[str]] = {pattern: [] for pattern in kind}
    for name in names:
        pattern = next((p for p in kind if fnmatch.fnmatchcase(name, p)), None)
        if pattern is None:
            raise ValueError(f"no pattern in clipping covers parameter {name!r}, which would be unbounded: add one")
        groups[pattern].append(name)
    empty = [pattern for pattern, members in groups.items() if not members]
    if empty:
        raise ValueError(f"clipping has a pattern {empty[0]!r} that no parameter matches: remove or correct it")
    bounds = tuple(float(kind[p]) for p in groups)
    if not all(math.isfinite(c) and c > 0 for c in bounds):
        raise ValueError("every bound in clipping must be positive and finite")
    return Clipping("groups", tuple(map(tuple, groups.values())), bounds)


@dataclass(frozen=True)
class ClippedGradients:
    """What :func:`tacit.sgd.clipped_grad` returns. It unpacks as ``sums, norms``.

    Nothing in it has noise yet. Add noise to ``sums`` before they are used; never release ``norms``, ``losses`` and
    ``scale``.

    Attributes:
        sums: The clipped sum of each parameter, by name, in float32 (float64 for float64 parameters).
        norms: The norms before clipping, shape ``(B,)``, or ``(B, groups)`` with several groups.
        clipping: The bounds that were used.
        losses: The loss of each example, shape ``(B,)``.
        scale: The factor that each example was multiplied by.

    Example:
        >>> from tacit.sgd import clipped_grad
        >>> model, batch = torch.nn.Linear(3, 1), torch.ones(4, 3)
        >>> found = clipped_grad(model, lambda model, x: model(x)[:, 0], batch, clip_norm=0.5)
        >>> found.sensitivity, found.losses.shape
        (0.5, torch.Size([4]))
    """

    sums: dict[str, Tensor]
    norms: Tensor
    clipping: Clipping
    losses: Tensor
    scale: Tensor

    def __iter__(self) -> Iterator[Any]:
        yield self.sums
        yield self.norms

    @property
    def sensitivity(self) -> float:
        """The L2 sensitivity of ``sums`` for adding or removing one example, rounding included."""
        return self.clipping.sensitivity


@dataclass
class Gradients:
    """Per-example gradients of every parameter, held as contributions; index ``k`` is the ``k``-th parameter."""

    batch: int
    parameters: list[Tensor]
    groups: list[list[tuple[Frame, Group]]]

    def norms(self, k: int) -> Norms:
        """Squared norms of the ``k``-th parameter's per-example gradients, with their margins."""
        parts = [group.norms() for _, group in self.groups[k]]
        if not parts:
            p = self.parameters[k]
            return Norms(torch.zeros(self.batch, dtype=wide(p.dtype), device=p.device))
        total = parts[0]
        for part in parts[1:]:
            total = Norms(total.squared + part.squared, total.gram + part.gram, total.product + part.product)
        return total

    def balanced(self) -> Gradients:
        """The same gradients, of factors that are nearly as long as each other."""
        groups = [[(frame, group.balanced()) for frame, group in some] for some in self.groups]
        return Gradients(self.batch, self.parameters, groups)

    def weighted_sum(self, k: int, scale: Tensor, *, sanitise: bool = False, positive: bool = False) -> Tensor:
        """``sum_b scale_b G_b`` for the ``k``-th parameter; ``positive`` says that no factor is zero."""
        parameter = self.parameters[k]
        if len(self.groups[k]) == 1 and self.groups[k][0][0].index is None:
            whole = self.groups[k][0][1].weighted_sum(scale, sanitise=sanitise, positive=positive)
            return whole.reshape(parameter.shape).to(wide(parameter.dtype)).contiguous()
        total = torch.zeros(parameter.shape, dtype=wide(parameter.dtype), device=parameter.device)
        for frame, group in self.groups[k]:
            piece = group.weighted_sum(scale, sanitise=sanitise, positive=positive)
            if frame.index is None:
                total = total + piece.reshape(parameter.shape)
            else:
                flat = total.flatten().index_add(0, frame.index.flatten(), piece.flatten().to(total.dtype))
                total = flat.reshape(parameter.shape)
        return total


def factors(
    squared: Tensor, safe: Tensor, bounds: Tensor, good: Tensor, mask: Tensor | None, stabiliser: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Norms and clip factors, ``(B, groups)``, from squared norms and norms with their margins; which examples are bad,
    and which are mostly lost to their margin: some factor is less than half of what the norm alone would give.

    Guarantee: ``factor * norm <= bound`` for every example and group; an example that is masked, not ``good``, or not
    finite in any group, has factor zero in all of them.
    """
    good = good & torch.isfinite(safe).all(1)
    bad = ~good
    if mask is not None:
        good = good & mask.bool()
    kept = good.unsqueeze(1)
    # Rounding of the factor itself and of the product with it, four units at the most.
    below = 1.0 - 4 * torch.finfo(safe.dtype).eps
    safe = torch.where(kept, safe, 0.0)
    norms = squared.clamp(min=0).sqrt()
    if stabiliser:
        scale = bounds / (safe + stabiliser) * below
        lost = safe > 2 * norms + stabiliser
    else:
        scale = torch.where(safe > bounds, bounds / safe.clamp(min=torch.finfo(safe.dtype).tiny) * below, 1.0)
        lost = safe > 2 * torch.maximum(norms, bounds)
    norms = torch.where(bad.unsqueeze(1), torch.inf, norms)
    if mask is not None:
        norms = torch.where(mask.bool().unsqueeze(1), norms, 0.0)
    return norms, torch.where(kept, scale, 0.0), bad, (lost & kept).any(1)


#: Elements of a parameter whose gradients are laid beside others: a copy of larger ones would cost more than it saves.
SMALL = 1 << 14


@dataclass
class Side:
    """Per-example gradients of several parameters, one beside the other (B, elements); number and shape of each."""

    values: Tensor
    members: list[tuple[int, torch.Size]]

    def weighted_sums(self, scale: Tensor, *, sanitise: bool) -> list[tuple[int, Tensor]]:
        """The weighted sum of each, by its number."""
        values = clean(self.values) if sanitise else self.values
        whole = scale.to(values.dtype) @ values
        parts = whole.split([shape.numel() for _, shape in self.members])
        return [(k, part.reshape(shape)) for (k, shape), part in zip(self.members, parts, strict=True)]


#: Numbers of which a copy takes longer than a launch.
MANY = 1 << 20


def _place(tensor: Tensor) -> int:
    """Where a tensor begins in memory."""
    return int(tensor.data_ptr())


def _shifts(gradients: Gradients, group_of: list[int]) -> dict[int, int]:
    """Biases whose gradient is the very tensor that is a factor of their weight's, by their number; that of the weight.

    Of a layer with one token per example that is the gradient of its output: many numbers, kept for the weight anyway.
    """
    owners: dict[tuple[int, int], int] = {}
    for k, groups in enumerate(gradients.groups):
        if len(groups) == 1 and groups[0][0].index is None and groups[0][1].single_token:
            left = groups[0][1].parts[0].left
            if left.is_contiguous():  # the same place and size are then the same numbers in the same order
                owners[_place(left), left.numel()] = k
    found = {}
    for k, groups in enumerate(gradients.groups):
        dense = groups[0][1].dense if len(groups) == 1 and groups[0][0].index is None else None
        if dense is None or not dense.is_contiguous() or dense.numel() < MANY:
            continue
        owner = owners.pop((_place(dense), dense.numel()), None)
        if owner is not None and group_of[k] == group_of[owner]:
            found[k] = owner
    return found


def _side_by_side(gradients: Gradients, group_of: list[int], but: Collection[int]) -> dict[int, Side]:
    """The gradients that are at hand as they are, by clip group; those of one type, the usual one."""
    found: dict[int, list[tuple[int, Tensor]]] = {}
    for k, groups in enumerate(gradients.groups):
        if k not in but and len(groups) == 1 and groups[0][0].index is None:
            dense = groups[0][1].dense
            small = dense is not None and gradients.parameters[k].numel() <= SMALL
            if dense is not None and small and dense.dtype == torch.float32 == wide(gradients.parameters[k].dtype):
                found.setdefault(group_of[k], []).append((k, dense))
    return {
        g: Side(
            torch.cat([d.reshape(len(d), -1) for _, d in some], 1),
            [(k, gradients.parameters[k].shape) for k, _ in some],
        )
        for g, some in found.items()
        if len(some) > 1
    }


def _reads(gradients: Gradients, k: int, places: set[int]) -> bool:
    """Whether a factor of the ``k``-th parameter's gradients begins at one of these places."""
    parts = [part for _, group in gradients.groups[k] if group.single_token for part in group.parts]
    return any(_place(t) in places for part in parts for t in (part.left, part.right))


@dataclass
class Clipped:
    """Norms and factors (B, groups), which examples count as zero, which are mostly lost to rounding, and the clipped
    sums (a function: of what is left of the gradients when all norms are known)."""

    norms: Tensor
    scale: Tensor
    bad: Tensor
    lost: Tensor
    squared: Tensor
    sums: Callable[..., dict[str, Tensor]]
    mask: Tensor | None = None
    #: the same once more, of factors that are nearly as long as each other
    balanced: Callable[[], Clipped] | None = None

    def comparable(self, least: float, mask: Tensor | None) -> Tensor:
        """Whether every example that adds something has a factor above ``least`` times the largest: a traced truth.

        Then ``sums(sanitise=False, positive=True)`` may be asked for, in which the factors of the others are not zero
        but one. Examples that are masked add nothing: their gradients must be zero (their squared norms may hold what
        underflow hides).
        """
        used = (self.scale > 0) & (self.scale >= least * self.scale.amax())
        fine = used | (self.squared == 0)
        return (fine if mask is None else fine | ~mask.bool().unsqueeze(1)).all()

    def settled(self, *, early: bool) -> tuple[Clipped, dict[str, Tensor], str | None]:
        """Outside a program, where numbers may be looked at: what holds, its sums, and why examples are lost.

        Squares leave the range of float32 where the gradients themselves do not, when one factor is long and the other
        short. Norms that are not finite are therefore computed once more, of balanced factors. ``early``: sums are on
        their way to a GPU before the question is waited for, whose answer is nearly always no. Ranks add up their sums
        together: not before it is known which.

        Guarantee: that of :func:`clip`; an example that is bad after that counts as zero.
        """
        sums = self.sums(sanitise=False) if early else None
        bad, lost = torch.stack([self.bad.any(), self.lost.any()]).tolist()
        if not bad:
            return self, self.sums(sanitise=False) if sums is None else sums, HIDDEN if lost else None
        assert self.balanced is not None
        found = self.balanced()
        # An example counted as zero would poison a product with its infinities: only then are all factors cleaned.
        sums = found.sums(sanitise=True)
        real = found.bad if self.mask is None else found.bad[self.mask.bool()]
        if len(real) > 1 and bool(real.all()):
            return found, sums, NOTHING_FINITE
        return found, sums, HIDDEN if bool(found.lost.any()) else None


@dataclass
class _Totals:
    """Squared norms by clip group, and what rounding may take from them and add to a sum."""

    squared: list[Any]
    gram: list[Any]
    product: list[Any]

    def add(self, group: int, norms: Norms) -> None:
        gram, product = norms.gram, norms.product
        if isinstance(gram, Tensor):  # differences of large numbers: may come out below zero
            gram = gram - norms.squared.clamp(max=0)
        for totals, value in ((self.squared, norms.squared), (self.gram, gram), (self.product, product)):
            if isinstance(value, Tensor):
                totals[group] = value if totals[group] is None else totals[group] + value

    def stacked(self) -> tuple[Tensor, Tensor, Tensor]:
        """Squared norms, squared norms with their margin, and what rounding may add to a sum, each (B, groups)."""
        none = [torch.zeros_like(s) for s in self.squared]
        gram, product = (
            [z if v is None else v for v, z in zip(values, none, strict=True)] for values in (self.gram, self.product)
        )
        safe = [s + m for s, m in zip(self.squared, gram, strict=True)]
        return torch.stack(self.squared, 1), torch.stack(safe, 1), torch.stack(product, 1)


@dataclass
class Sums:
    """Clipped sums by parameter, from per-example gradients and their factors: which are taken together, and when."""

    gradients: Gradients
    names: list[str]
    group_of: list[int]
    scale: Tensor
    shards: ShardedParameters | None
    order: list[int]
    #: biases that are summed with a weight, by their number
    shifts: dict[int, int]
    sides: dict[int, Side]

    def __call__(self, told_BG: Tensor | None = None, *, sanitise: bool, positive: bool = False) -> dict[str, Tensor]:
        """``sanitise`` is for batches with bad examples: what they hold is cleaned of infinities before it is
        multiplied by their factor, zero. ``positive`` is for batches in which every example of factor zero has no
        gradient (:meth:`Clipped.comparable`): its factor is then as good as one, and all factors are positive.
        ``told_BG`` is the factors again, from where the sums are to wait for them."""
        used_BG = self.scale if told_BG is None else told_BG
        used_BG = torch.where(used_BG > 0, used_BG, 1.0) if positive else used_BG
        columns = [used_BG[:, g] for g in range(used_BG.shape[1])]
        found = dict.fromkeys((self.names[k] for k in self.order), used_BG)
        for g, side in self.sides.items():
            for k, total in side.weighted_sums(columns[g], sanitise=sanitise):
                found[self.names[k]] = total
        beside = {k for side in self.sides.values() for k, _ in side.members}
        bias_of = {} if sanitise else {weight: bias for bias, weight in self.shifts.items()}
        for k in self.order:
            if k in beside or k in bias_of.values():
                continue
            column = columns[self.group_of[k]]
            if k in bias_of:
                pair = self.gradients.groups[k][0][1].with_shift(column)
                for j, total in zip((k, bias_of[k]), pair, strict=True):
                    found[self.names[j]] = total.reshape(self.gradients.parameters[j].shape).contiguous()
                continue
            total = self.gradients.weighted_sum(k, column, sanitise=sanitise, positive=positive)
            found[self.names[k]] = total if self.shards is None else self.shards.place(self.names[k], total)
        return found


def clip(
    gradients: Gradients,
    names: list[str],
    clipping: Clipping,
    good: Tensor,
    mask: Tensor | None,
    bounds: Tensor | None = None,
    shards: ShardedParameters | None = None,
    lasting: Sequence[Tensor] = (),
    *,
    together: bool = False,
) -> Clipped:
    """Norms, factors and sums from per-example gradients; static shapes, no data-dependent Python.

    ``bounds`` are those of ``clipping`` as a tensor, where they are an input of a traced step. ``shards`` says where
    parameters lie on several ranks: norms are then those of the whole gradient, and sums are added up over ranks and
    cut to this rank's pieces. ``together``: small gradients that are at hand (biases, scales) are laid side by side
    first, for there are many, and large ones that are a factor of a weight's are summed with it. ``lasting`` are
    tensors that outlive the step: sums that they are a factor of come last.

    Guarantee: each example's part of the sums is at most as long as its bound in every group (:func:`factors`).
    """
    number = {name: g for g, members in enumerate(clipping.groups) for name in members}
    group_of = [number[n] for n in names]
    shifts = _shifts(gradients, group_of) if together and shards is None else {}
    sides = _side_by_side(gradients, group_of, shifts) if together else {}
    # A factor that outlives the step is copied to be scaled, and not given back: last, when the others are gone.
    places = {_place(t) for t in lasting}
    order = sorted(range(len(names)), key=lambda k: bool(places) and _reads(gradients, k, places))
    beside = {k for side in sides.values() for k, _ in side.members}
    totals = _Totals(*([None] * len(clipping.groups) for _ in range(3)))
    for g, side in sides.items():
        totals.add(g, Norms(side.values.square().sum(1)))
    for k, name in enumerate(names):
        if k not in beside:
            norms = gradients.norms(k)
            counted = shards is None or shards.counted(name)
            totals.add(group_of[k], norms if counted else Norms(torch.zeros_like(norms.squared)))
    squared_BG, safe_squared_BG, product_BG = totals.stacked()
    if shards is not None:
        squared_BG, safe_squared_BG, product_BG = shards.combine(squared_BG, safe_squared_BG, product_BG)
    safe_BG = safe_squared_BG.sqrt() + product_BG.sqrt()
    if bounds is None:
        bounds = torch.tensor(clipping.bounds, dtype=safe_BG.dtype, device=safe_BG.device)
    bounds = bounds.to(safe_BG.dtype)
    norms_BG, scale_BG, bad, lost = factors(squared_BG, safe_BG, bounds, good, mask, clipping.stabiliser)
    sums = Sums(gradients, names, group_of, scale_BG, shards, order, shifts, sides)
    return Clipped(
        norms_BG,
        scale_BG,
        bad,
        lost,
        squared_BG,
        sums,
        mask,
        lambda: clip(gradients.balanced(), names, clipping, good, mask, shards=shards),
    )


def exact_products(device: torch.device) -> AbstractContextManager[None]:
    """Norms and sums in full precision (:func:`~tacit.sgd.kernels.products.full_precision`), where that is not so."""
    return nullcontext() if device.type == "cpu" and _is_exact() else full_precision()


def _is_exact() -> bool:
    try:
        return bool(torch.get_float32_matmul_precision() == "highest")
    except RuntimeError:  # settings per backend that have no common name
        return False


#: Why training learns little, or nothing, from examples.
HIDDEN = (
    "rounding may hide the gradient of some example: it is a small difference of large terms, so its clip factor is "
    "less than half of what its norm alone gives, and training learns little from it. The bound still holds. Look for "
    "a division by a tiny number (such as the eps of a normalisation) or values of very different size, or train in "
    "float64 (model.double())"
)
NOTHING_FINITE = (
    "no example of a batch has a finite gradient: all count as zero, and training learns nothing from them. Look for a "
    "derivative that does not exist (a root or torch.linalg.norm at zero, attention with every key masked) or that "
    "overflows (tacit explain not-finite)"
)


def warn_once(why: str | None, said: set[str], kind: type[Warning] = GradientsLost) -> None:
    """Warn once, at the line that called tacit, why examples are lost; only once, because it is about private data."""
    if why is None or why in said:
        return
    said.add(why)
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("tacit."):
        frame, level = frame.f_back, level + 1
    warnings.warn(f"{why}. Said once, to the operator: not for release", kind, stacklevel=level)
