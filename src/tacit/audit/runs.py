"""Does this run keep its promise? The implementation audit of a user's own model, and what the canaries of a run prove.

The implementation audit needs a few records, which may be made up. If they are, what it finds may be published. So may
what *input* canaries prove, because their scores come from released weights. *Gradient* canaries are scored by the
noise of the run itself: next to private data their result is for the operator only, as are the attacks of
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
from tacit.audit import bounds, record, statistics
from tacit.audit import implementation as look
from tacit.audit.evidence import one_run_evidence
from tacit.audit.findings import FAMILY_WISE, RECORD_ALARM, SCORES_ALARM, Finding, Power, holds
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

#: How many records the implementation audit looks at.
FEW = 24
#: Settings of a real run that have no bearing on what is checked here.
NOT_HERE = ("groups", "max_rows", "augment", "views", "checkpoint", "checkpoint_every", "key_file", "key")
#: How many choices of the sampler are looked at, over records and steps.
CHOICES = 2_000_000
#: The most steps whose privacy loss is simulated, and the δ at which it is.
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

    The audit runs short trainings of its own and compares each step with gradients that it computes itself, one plain
    backward pass per record in double precision. The model is not changed, and no ledger is charged.

    Guarantee:
        If the implementation is right, the verdict is ``fail`` with probability at most ``significance``. The findings
        are computed from ``data`` without noise: publish them only if these records are made up or public.

    Args:
        model: The model of the run; a copy of it is used.
        loss: Its loss, with one value per record (``reduction="none"``).
        data: A few records of the right shape, 4 or more. Make them up with :func:`crafted`; the first 24 are used.
        tell: Called with the name of each part before it is checked.
        significance: Probability that any check raises a false alarm, 1e-4 by default.
        settings: The settings of :class:`tacit.sgd.Training` for the real run (``batch_size``, ``epsilon``, …), with
            ``size=`` for its number of records. A ledger, units, views and checkpoints are left out.

    Returns:
        The audit, with one finding per check.

    Raises:
        ValueError: If there are fewer than 4 records.

    Example:
        >>> net = nn.Sequential(nn.Linear(6, 200), nn.Tanh(), nn.Linear(200, 3))
        >>> made_up = crafted((torch.zeros(1, 6), torch.zeros(1, dtype=torch.long)), 24, classes=3)
        >>> audit = audit_implementation(net, nn.CrossEntropyLoss(reduction="none"), made_up, batch_size=100, size=1000,
        ...                              steps=50, epsilon=3.0, delta=1e-5)
        >>> audit.verdict
        'pass'
    """
    source = records(data)
    few = Records(tree=source.take(np.arange(min(FEW, len(source)), dtype=np.int64)))
    if len(few) < 4:
        raise ValueError("data: the implementation audit needs 4 records or more; tacit.audit.crafted makes some up")
    settings.setdefault("size", len(source))
    if settings.pop("ledger", None) is not None:
        settings.pop("dataset", None)  # what is audited is the code: nothing of it is released or charged
    # Units, random views and checkpoints belong to the real run; here each record is a unit and is seen as it is.
    for name in (*NOT_HERE, "ema", "scheduler", "purpose", "compile", "noise"):
        settings.pop(name, None)
    # The self-check is one of the checks here, and must not stop the others.
    settings["check"] = "never"
    pipeline = Pipeline(model, loss, few, **settings)
    tell("the plan")
    # Truncated batches are priced for the number that is counted, unless neighbours differ in it.
    counted = settings.get("sampler") == "truncated" and settings.get("adjacency", "add-remove") != "add-remove"
    size = None if counted else settings["size"]
    plan = pipeline.build(Records(items=_Repeated(few, settings["size"]), scan=False), size=size).plan
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
    """A few records, repeated up to the number that the real run has: some samplers need the true number."""

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
    """Who takes part over many steps, drawn by the run's own sampler with a key that is thrown away."""
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
    """Compare the price of the plan, or of as many of its steps as can be simulated, with simulated privacy losses."""
    noise, rng = min(plan.noise), np.random.default_rng()
    if plan.kind != "gaussian" or noise == 0 or plan.earlier is not None:
        return Finding("price", 1.0, "not simulated for this kind of run", powered=False)
    truncated = look.priced(plan.mechanism, acc.TruncatedPoissonSampled)
    poisson = look.priced(plan.mechanism, acc.PoissonSampled) + truncated
    if not poisson:
        passes = sum(times for part, times in plan.mechanism.parts() if not isinstance(part, acc.ApproxDP))
        shift = 2.0 if plan.adjacency == "replace-one" else 1.0
        fixed = look.priced(plan.mechanism, acc.FixedSizeSampled)
        if fixed:  # if the record is drawn, another one is not: the sum moves by two clip norms
            steps, part = min(plan.steps, SIMULATED_STEPS), fixed[0][0]
            claimed = acc.epsilon(part * steps, SIMULATED_DELTA).upper
            return look.check_price(claimed, SIMULATED_DELTA, part.batch / part.examples, noise / 2, steps, rng)
        bins = look.priced(plan.mechanism, acc.BallsInBins)
        if bins and plan.adjacency != "replace-one":
            part, times = bins[0][0], min(bins[0][1], max(1, SIMULATED_STEPS // bins[0][0].bins))
            draws = int(max(2000, min(20_000, 4e6 / (times * part.bins))))
            claimed = acc.epsilon(part * times, SIMULATED_DELTA, adjacency=plan.adjacency).upper
            z = part.mechanism.noise_multiplier
            seen = statistics.simulated_pass_delta(part.bins, z, times, claimed, draws, rng)
            return look.price_finding(claimed, SIMULATED_DELTA, *seen)
        exact = bounds.gaussian_epsilon(shift * math.sqrt(passes) / max(plan.noise), plan.delta)
        claimed = plan.price().upper
        return holds("price", claimed >= exact * (1 - 1e-6), f"claimed {claimed:.4f}, closed form {exact:.4f}")
    steps, rate = min(plan.steps, SIMULATED_STEPS), float(poisson[0][0].rate)
    step: acc.Mechanism = acc.PoissonSampled(acc.Gaussian(noise), rate)
    if truncated:  # batches that are cut cost more than those that are not
        step = truncated[0][0]
    claimed = acc.epsilon(step * steps, SIMULATED_DELTA, adjacency=plan.adjacency if truncated else "add-remove").upper
    draws = int(max(20_000, min(100_000, 2e7 / steps)))
    return look.check_price(claimed, SIMULATED_DELTA, rate, noise, steps, rng, draws)


# -- canaries ----------------------------------------------------------------------------------------------------------


def audit_run(
    run: Fit | Planted,
    significance: float = 0.05,
    *,
    made_up: bool = False,
    mechanism: acc.Mechanism | None = None,
    claimed: acc.Bound | None = None,
) -> Audit:
    """Read what the canaries of a run prove: ``audit_run(fit(..., audit_canaries=1000))``.

    The score of a gradient canary is the noisy sum minus the exact sum of the real records, that is, the noise of the
    run and a coin. Anyone who had the weights and the noise would have the exact sum. So the result is for the operator
    only, unless the run saw no private record. Scores of input canaries come from released weights.

    The noise that the run put on its canaries is tested for its size, its law and repeats, the sampler's record of
    canary slots against the claimed sampler, and the scores against (ε, δ) and against the trade-off curve of the
    mechanism. ``powers`` says how probably some lies would have been found. A whole program is in
    ``examples/audit_a_run.py``.

    Guarantee:
        If the run keeps its claim, the certified bound exceeds ε with probability at most ``significance``, and the
        verdict is ``fail`` with probability at most 0.0024. Unit and adjacency are those of the run. The result of
        gradient canaries is not protected: see ``made_up``.

    Args:
        run: A run with canaries: what :func:`tacit.sgd.fit` returned, or the ``canaries`` it holds.
        significance: Probability that the certified bound is wrong; 0.05 gives 95% confidence.
        made_up: Whether the run saw made-up records only, so that the result of gradient canaries may be published.
        mechanism: The mechanism that is claimed for the run; None takes the one that the run itself recorded.
        claimed: The claimed price; None takes the one that the run itself recorded.

    Returns:
        The audit. Its ``operator_only`` is True if the figures must not be published.

    Raises:
        ValueError: If the run has no canaries.

    Example:
        >>> from tacit.sgd import fit
        >>> model = nn.Linear(20, 2)
        >>> made_up = crafted((torch.zeros(1, 20), torch.zeros(1, dtype=torch.long)), 100, classes=2)
        >>> done = fit(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(reduction="none"),
        ...            made_up, audit_canaries=40, batch_size=100, steps=2, noise_multiplier=1.0, delta=1e-3)
        >>> audit = audit_run(done, made_up=True)
        >>> audit.operator_only, audit.evidence.details["canaries"], audit.evidence.certified <= audit.claimed
        (False, 40, True)
    """
    planted = run.canaries if isinstance(run, Fit) else run
    if planted is None:
        raise ValueError("this run has no canaries: train it with fit(..., audit_canaries=1000)")
    claim = claimed or acc.Bound(
        planted.epsilon, planted.epsilon, given=planted.delta, adjacency=planted.adjacency, unit=planted.unit
    )
    planted = dataclasses.replace(planted, epsilon=claim.upper, delta=claim.given)
    gradient = planted.kind == "gradient"
    evidence = one_run_evidence(
        planted.scores, planted.member, planted.delta, significance, claimed=planted.epsilon, alarm=SCORES_ALARM
    )
    evidence = dataclasses.replace(evidence, method=f"one-run, {planted.kind} canaries")
    findings: list[Finding] = []
    powers: list[Power] = []
    priced = mechanism or record.mechanism_of(planted)
    if priced is not None:
        findings += record.check_record(planted, priced)
        curve = record.claimed_curve(planted, priced, claim.adjacency) if math.isfinite(claim.upper) else None
        findings += [curve] if curve is not None else []
    if gradient and priced is not None:
        powers += record.powers(planted, priced, RECORD_ALARM / len(findings), SCORES_ALARM)
    return Audit(
        "one run",
        planted.epsilon,
        planted.delta,
        claim.terms,
        evidence,
        tuple(findings),
        scores=planted.scores,
        member=planted.member,
        significance=RECORD_ALARM,
        operator_only=gradient and not made_up,
        powers=tuple(powers),
    )


def crafted(like: Any, count: int, *, classes: int | None = None, seed: int | None = None) -> Any:
    """Make up records that belong to nobody: random numbers and random labels in a given shape.

    Guarantee:
        Only the shapes and types of ``like`` are used, so the result depends on no private value.

    Args:
        like: One record or more, as a tensor or a tuple, list or dict of tensors.
        count: How many records to make up.
        classes: Integers, labels and inputs alike, are drawn from 0 to ``classes - 1``; may be None if there are none.
        seed: Seed of the generator; None takes a fresh one.

    Returns:
        ``count`` records in the structure of ``like``. Floating-point numbers are standard normal.

    Raises:
        ValueError: If there are integers and ``classes`` is None.

    Example:
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
            raise ValueError("like holds integers, which are drawn from 0 to classes - 1: pass classes=")
        return torch.randint(classes, shape, generator=generator).to(leaf.dtype)

    return pytree.tree_map(draw, rows.take(np.zeros(1, dtype=np.int64)))


def mislabelled(data: tuple[Any, Any], classes: int, *, seed: int | None = None) -> tuple[Any, Any]:
    """Give public examples wrong labels, so that they can serve as canaries.

    They must not be private records: their owners would be in the data twice.

    Args:
        data: ``(x, y)`` of public examples, with integer labels.
        classes: The number of classes, 2 or more.
        seed: Seed of the generator; None takes a fresh one.

    Returns:
        The same ``x``, and for each example a label other than its own, drawn uniformly.

    Raises:
        ValueError: If there are fewer than 2 classes.

    Example:
        >>> x, y = mislabelled((torch.zeros(5, 2), torch.tensor([0, 1, 2, 0, 1])), classes=3, seed=0)
        >>> bool((y != torch.tensor([0, 1, 2, 0, 1])).all())
        True
    """
    if classes < 2:
        raise ValueError(f"classes: a label can only be wrong if there are 2 classes or more, not {classes}")
    x, y = data
    rng = np.random.default_rng(seed)
    labels = torch.as_tensor(y)
    return x, (labels + torch.from_numpy(rng.integers(1, classes, len(labels)))) % classes
