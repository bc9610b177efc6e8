"""What does a plan that was made for one batch say about a batch of another size, and about several calls on one batch?

Poisson batches have another size at every step, and padded text another length. Where the examples are in an output is
a fact about the model's code: what was found once holds where shapes agree with it.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
from torch import Tensor

from tacit.sgd.gradients.capture import Use
from tacit.sgd.gradients.contributions import Group, Layout, wide
from tacit.sgd.gradients.engine import Gradients, Pass, Plan, UsePlan
from tacit.sgd.gradients.frames import Frame, chain_key, chain_tensors


class Template:
    """A plan as what it says about batches of other sizes."""

    def __init__(self, plan: Plan, uses: list[Use]) -> None:
        self.plan = plan
        self.shapes = [use.shapes for use in uses]
        self.derived = [[(d.tensor.shape, chain_key(d)) for d in use.derived] for use in uses]

    def same(self, k: int, use: Use) -> bool:
        """Whether the values made of parameters that a use consumes are those of the plan."""
        if [(d.tensor.shape, chain_key(d)) for d in use.derived] != self.derived[k]:
            return False
        now, known = [t for d in use.derived for t in chain_tensors(d)], self.plan.uses[k].guards
        return len(now) == len(known) and all(torch.equal(a, b) for a, b in zip(now, known, strict=True))


def rescaled(layout: Layout, old: torch.Size, new: torch.Size, batch: int) -> Layout | None:
    """Where the examples are in an output of another size, if that is certain."""
    size = new[layout.dim]
    if size % batch:
        return None
    rest, before = size // batch, layout.outer * layout.inner
    if layout.outer > 1 and layout.inner > 1:
        # Folded on both sides: only if nothing but the batch has changed.
        others = all(a == b for k, (a, b) in enumerate(zip(old, new, strict=True)) if k != layout.dim)
        fits = others and before == rest
        return Layout(layout.dim, layout.outer, batch, layout.inner) if fits else None
    if rest > before and rest % before == 0:
        # Something of size one may have grown on the other side: the tokens of sequences that had a single one.
        return None
    if layout.outer > 1:
        return Layout(layout.dim, rest, batch, 1)
    return Layout(layout.dim, 1, batch, rest)


def guards(use: Use) -> list[Tensor]:
    """Copies of the indices that a use's frames rest on."""
    return [t.clone() for d in use.derived for t in chain_tensors(d)]


def outline(context: Any, run: Pass, grads: list[list[Tensor | None]]) -> Any:
    """A signature without sizes: what has to be the same for layouts to be those of another batch size."""
    return (
        context,
        tuple(
            (
                use.name,
                tuple(len(shape) for shape in use.shapes),
                tuple(g is None for g in grad),
                tuple((tuple(sorted(d.params)), d.tensor.dim()) for d in use.derived),
            )
            for use, grad in zip(run.uses, grads, strict=True)
        ),
    )


def adapted(known: Template | None, run: Pass) -> tuple[Plan | None, bool]:
    """The plan for this batch size, from where the examples were found in a batch of another size.

    Poisson batches have another size at every step. Layouts are facts about the model's code: the dimension, and
    on which side of the examples it is folded, stay. Rules and frames stay too where the values made of parameters
    are the same (second result); else they are found anew.
    """
    if known is None or (run.batch > 1 and any(use.rearranged for use in run.uses)):
        return None, False
    same = all(known.same(k, use) for k, use in enumerate(run.uses))
    uses: list[UsePlan] = []
    for plan, before, use in zip(known.plan.uses, known.shapes, run.uses, strict=True):
        layouts: list[Layout | None] = []
        for layout, old, new in zip(plan.layouts, before, use.shapes, strict=True):
            moved = rescaled(layout, old, new, run.batch) if layout is not None else None
            if layout is not None and moved is None:
                return None, False
            layouts.append(moved)
        if same:
            notes = {name: note for name, note in plan.notes.items() if note is None}
            uses.append(UsePlan(layouts, plan.by_rule, notes, plan.frames, plan.guards))
        else:
            uses.append(UsePlan(layouts, guards=guards(use)))
    return Plan(uses, set(known.plan.materialised) if same else set(), True, checked=True), same


def merged(found: list[Gradients], rows: int, parameters: list[Tensor]) -> Gradients:
    """The gradients of several calls on the same examples: those of a parameter that several of them use add up."""
    if len(found) == 1:
        return found[0]
    groups: list[list[tuple[Frame, Group]]] = []
    for k, parameter in enumerate(parameters):
        having = [g for g in found if g.groups[k]]
        if len(having) <= 1:
            groups.append(having[0].groups[k] if having else [])
            continue
        one = torch.eye(rows, dtype=wide(parameter.dtype), device=parameter.device)
        dense = torch.stack([reduce(torch.add, [g.weighted_sum(k, row) for g in having]) for row in one])
        groups.append([(Frame("root"), Group(parameter.shape, dense=dense))])
    return Gradients(rows, parameters, groups)
