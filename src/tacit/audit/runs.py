"""Does this run keep its promise? The implementation audit of a user's own model, and what canaries of a run prove.

The implementation audit works on a few records that may be made up, and reads no private one: what it finds may be
published. So may what *input* canaries prove, which is computed from released weights. *Gradient* canaries are scored
by the noise of the run itself, and beside private data that is for the operator alone, as is
:mod:`tacit.audit.attacks`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tacit import accounting as acc
from tacit.audit import bounds
from tacit.audit import implementation as look
from tacit.audit.evidence import one_run_evidence
from tacit.audit.findings import FAMILY_WISE, Finding, holds
from tacit.audit.pipeline import Pipeline
from tacit.audit.result import Audit
from tacit.noise.keys import Key
from tacit.sgd import Fit
from tacit.sgd.errors import ClippingError
from tacit.sgd.gradients.batches import Loss
from tacit.sgd.torch_compat import pytree
from tacit.sgd.training.canaries import Planted
from tacit.sgd.training.data import Records, records
from tacit.sgd.training.plan import Plan

#: Records that the implementation audit looks at.
FEW = 24
#: Settings of a real run that say nothing about what is checked here.
NOT_HERE = ("groups", "max_rows", "augment", "views", "checkpoint", "checkpoint_every", "key_file", "key")
#: Choices of the sampler that are looked at, over records and steps.
CHOICES = 2_000_000
#: Steps whose privacy loss is simulated at most, and the δ at which it is.
SIMULATED_STEPS, SIMULATED_DELTA = 200, 0.02


def audit_implementation(
    model: nn.Module,
    loss: Loss,
    data: Any,
    *,
    tell: Callable[[str], None] = lambda name: None,
    significance: float = FAMILY_WISE,
    **settings: Any,
) -> Audit:
    """Check clipping, noise, sampling and price of a training run of ``model``, in seconds.

    ``data`` are a few records of the right shape, real or made up (:func:`crafted`); ``settings`` are those of
    :class:`tacit.sgd.Training`, with ``size=`` for the number of records of the real run.

    >>> net = nn.Sequential(nn.Linear(6, 200), nn.Tanh(), nn.Linear(200, 3))
    >>> made_up = torch.randn(24, 6), torch.randint(3, (24,))
    >>> audit_implementation(net, nn.CrossEntropyLoss(reduction="none"), made_up,
    ...                      batch_size=100, size=1000, steps=50, epsilon=3.0, delta=1e-5).verdict
    'pass'
    """
    source = records(data)
    few = Records(tree=source.take(np.arange(min(FEW, len(source)), dtype=np.int64)))
    if len(few) < 4:
        raise ValueError("the implementation audit needs 4 records or more; they may be made up")
    settings.setdefault("size", len(source))
    if settings.pop("ledger", None) is not None:
        settings.pop("dataset", None)  # what is audited is the code: nothing of it is released or charged
    # Units, random views and checkpoints are settings of the real run; here a record is a unit, and is seen as it is.
    for name in (*NOT_HERE, "ema", "scheduler", "purpose", "compile"):
        settings.pop(name, None)
    # The self-check is one of the checks here, and must not stop the others.
    settings["check"] = "never"
    pipeline = Pipeline(model, loss, few, **settings)
    tell("the plan")
    plan = pipeline.build(Records(items=_Repeated(few, settings["size"]), scan=False)).plan
    findings = [*_self_check(pipeline), *_release(pipeline, plan, tell, significance)]
    tell("sampling")
    findings += look.check_sampling(_masks(plan), plan.mechanism, plan.sampler.steps_per_epoch)
    tell("price")
    findings.append(_price(plan))
    claim = plan.price()
    return Audit(
        "implementation", claim.upper, plan.delta, claim.terms, None, tuple(findings), significance=significance
    )


class _Repeated:
    """A few records again and again, as many as the real run has: some samplers need the true number."""

    def __init__(self, few: Records, size: int) -> None:
        self.few, self.size = few, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, i: int) -> Any:
        row = self.few.take(np.array([i % len(self.few)], dtype=np.int64))
        return pytree.tree_map(lambda leaf: leaf[0], row)


def _self_check(pipeline: Pipeline) -> list[Finding]:
    """The library's own comparison with autograd, on every record here."""
    clip = look.clip_norm_of(pipeline)
    try:
        look.released_sum(pipeline, pipeline.records, clip, len(pipeline.records), check="always")
    except ClippingError as error:
        return [holds("self-check", False, str(error))]
    return [holds("self-check", True, "captured gradients agree with autograd's own")]


def _release(pipeline: Pipeline, plan: Plan, tell: Callable[[str], None], significance: float) -> list[Finding]:
    """Sensitivity, sum, noise and steps."""
    tell("gradients")
    raw = pipeline.gradients()
    tell("sensitivity")
    found = [look.check_sensitivity(pipeline, raw), look.check_sum(pipeline, raw)]
    if plan.kind != "gaussian":
        return [*found, Finding("noise variance", 1.0, "Laplace noise is not looked at here", powered=False)]
    tell("noise")
    steps = look.steps_needed(pipeline)
    noise = plan.gradient_noise[0]
    flat, released = [], 0
    for _ in range(2):
        training = pipeline.build(
            size=len(pipeline.records),
            batch_size=max(1, len(pipeline.records) // 3),
            steps=steps // 2 + 1,
            epochs=None,
            epsilon=None,
            noise_multiplier=noise,
            noise_schedule=None,
            clip_norm=look.clip_norm_of(pipeline),
            adaptive=None,
            sampler="poisson",
            adjacency=None,
        )
        seen = pipeline.watch(training)
        released += pipeline.releases
        flat.append(np.concatenate(pipeline.residuals(seen, raw, lambda step: noise)))
    wanted = 2 * (steps // 2 + 1)
    found += look.check_noise([np.concatenate(flat)], significance / 20)
    found.append(look.check_fresh_keys(*flat))
    found.append(holds("steps released", released == wanted, f"{released} of {wanted} steps released noise"))
    return found


def _masks(plan: Plan) -> Any:
    """Who takes part over many steps, by the run's own sampler with a key that is thrown away."""
    size, per_pass = plan.sampler.size, plan.sampler.steps_per_epoch
    steps = max(20, min(400, CHOICES // size))
    if plan.mechanism.parts() and not look.priced(plan.mechanism, acc.PoissonSampled):
        steps = max(1, round(steps / per_pass)) * per_pass
    with Key.generate() as key:
        masks = np.zeros((steps, size), dtype=bool)
        for step in range(steps):
            masks[step, plan.sampler.draw(key, step, size)] = True
    return masks


def _price(plan: Plan) -> Finding:
    """The claim of the plan, or of as many of its steps as can be simulated, against what the losses say."""
    noise, rng = min(plan.noise), np.random.default_rng()
    if plan.kind != "gaussian" or noise == 0 or plan.earlier is not None:
        return Finding("price", 1.0, "not simulated for this kind of run", powered=False)
    poisson = look.priced(plan.mechanism, acc.PoissonSampled)
    if not poisson:
        passes = sum(times for part, times in plan.mechanism.parts() if not isinstance(part, acc.ApproxDP))
        shift = 2.0 if plan.adjacency == "replace-one" else 1.0
        fixed = look.priced(plan.mechanism, acc.FixedSizeSampled)
        if fixed:  # where the record is drawn another is not: the sum moves by two clip norms
            steps, part = min(plan.steps, SIMULATED_STEPS), fixed[0][0]
            claimed = acc.epsilon(part * steps, SIMULATED_DELTA).upper
            return look.check_price(claimed, SIMULATED_DELTA, part.batch / part.examples, noise / 2, steps, rng)
        exact = bounds.gaussian_epsilon(shift * math.sqrt(passes) / max(plan.noise), plan.delta)
        claimed = plan.price().upper
        return holds("price", claimed >= exact * (1 - 1e-6), f"claimed {claimed:.4f}, closed form {exact:.4f}")
    steps, rate = min(plan.steps, SIMULATED_STEPS), float(poisson[0][0].rate)
    claimed = acc.epsilon(acc.PoissonSampled(acc.Gaussian(noise), rate) * steps, SIMULATED_DELTA).upper
    draws = int(max(20_000, min(100_000, 2e7 / steps)))
    return look.check_price(claimed, SIMULATED_DELTA, rate, noise, steps, rng, draws)


# -- canaries ----------------------------------------------------------------------------------------------------------


def audit_run(run: Fit | Planted, significance: float = 0.05, *, made_up: bool = False) -> Audit:
    """What the canaries of a run prove: ``audit_run(fit(..., audit_canaries=1000))``.

    Guarantee: where the run keeps its (ε, δ), the certified bound exceeds ε with probability at most ``significance``.

    The score of a gradient canary is the noisy sum less the exact sum of the real records: the run's own noise, and a
    coin. Whoever had the weights and the noise would have the exact sum. So the result is for the operator only, unless
    ``made_up`` says that the run saw no private record. Scores of input canaries come from released weights.
    """
    planted = run.canaries if isinstance(run, Fit) else run
    if planted is None:
        raise ValueError("this run has no canaries: train with fit(..., audit_canaries=1000)")
    evidence = one_run_evidence(planted.scores, planted.member, planted.delta, significance)
    evidence = dataclasses.replace(evidence, method=f"one-run, {planted.kind} canaries")
    claim = acc.Bound(
        planted.epsilon, planted.epsilon, given=planted.delta, adjacency=planted.adjacency, unit=planted.unit
    )
    return Audit(
        "one run",
        planted.epsilon,
        planted.delta,
        claim.terms,
        evidence,
        scores=planted.scores,
        member=planted.member,
        operator_only=planted.kind == "gradient" and not made_up,
    )


def crafted(like: Any, count: int, *, classes: int | None = None, seed: int | None = None) -> Any:
    """Records of nobody: random numbers in the shape of ``like`` (a record or more), with random labels.

    Of ``like`` only shapes and types are used. Integer inputs are drawn below ``classes`` as well.

    >>> x, y = crafted((torch.zeros(1, 4), torch.zeros(1, dtype=torch.long)), 100, classes=3, seed=0)
    >>> x.shape, sorted(set(y.tolist()))
    (torch.Size([100, 4]), [0, 1, 2])
    """
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    rows = records(like)

    def draw(leaf: Tensor) -> Tensor:
        shape = (count, *leaf.shape[1:])
        if leaf.is_floating_point():
            return torch.randn(shape, generator=generator).to(leaf.dtype)
        if classes is None:
            raise ValueError("whole numbers are drawn below classes=: say how many there are")
        return torch.randint(classes, shape, generator=generator).to(leaf.dtype)

    return pytree.tree_map(draw, rows.take(np.zeros(1, dtype=np.int64)))


def mislabelled(data: tuple[Any, Any], classes: int, *, seed: int | None = None) -> tuple[Any, Any]:
    """Public examples with wrong labels, as canaries. They must not be private records: each would be used twice.

    >>> x, y = mislabelled((torch.zeros(5, 2), torch.tensor([0, 1, 2, 0, 1])), classes=3, seed=0)
    >>> bool((y != torch.tensor([0, 1, 2, 0, 1])).all())
    True
    """
    if classes < 2:
        raise ValueError(f"a label can be wrong where there are 2 classes or more, not {classes}")
    x, y = data
    rng = np.random.default_rng(seed)
    labels = torch.as_tensor(y)
    return x, (labels + torch.from_numpy(rng.integers(1, classes, len(labels)))) % classes
