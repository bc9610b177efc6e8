"""Does training keep its promises? Sums, noise, sampling, prices, charges and resumed runs, on small models.

The checks see the library from outside: they build runs, watch what these hand over, and compare it with computations
of their own.
"""

from __future__ import annotations

import math
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import special, stats

from tacit import accounting as acc
from tacit.audit import bounds, statistics
from tacit.audit import implementation as look
from tacit.audit.findings import Finding, holds
from tacit.audit.pipeline import Pipeline, chosen, joined
from tacit.ledger import BudgetExceeded, Ledger
from tacit.noise.keys import Key
from tacit.selftest import models as scenes
from tacit.selftest.laws import check_law
from tacit.selftest.scene import SIGNIFICANCE, Check, Scene
from tacit.sgd import clip as clip_module
from tacit.sgd.errors import BatchMixing, ClippingError
from tacit.sgd.training.data import Records

#: The δ at which prices are simulated: large enough to be seen.
LARGE_DELTA = 0.02


def _named(scene: str, findings: list[Finding]) -> list[Finding]:
    return [Finding(f"{f.check} ({scene})", f.p_value, f.detail, f.best, f.powered) for f in findings]


# -- sensitivity -------------------------------------------------------------------------------------------------------


def _bounded(name: str, make: Callable[[int], Pipeline]) -> Check:
    def check(seed: int) -> list[Finding]:
        pipeline = make(seed)
        raw = pipeline.gradients()
        return _named(name, [look.check_sensitivity(pipeline, raw), look.check_sum(pipeline, raw)])

    return check


def other_ways_of_clipping(seed: int) -> list[Finding]:
    """Batches in pieces, views made in training, automatic clipping: each gives the sum that it should."""
    found = []
    for name, make in (("pieces", scenes.in_pieces), ("augmented", scenes.augmented), ("automatic", scenes.automatic)):
        found += _named(name, [look.check_sum(make(seed))])
    return found


def laplace_is_right(seed: int) -> list[Finding]:
    """Pure ε: one record moves the sum by at most the clip norm in L1, and the noise is Laplace of the stated scale."""
    scene = scenes.laplace(seed)
    raw = scene.gradients()
    lengths = np.abs(raw).sum(1)
    scale = scene.settings["noise_multiplier"]

    def shortened(clip: float) -> np.ndarray:
        return np.asarray(raw * np.minimum(1.0, clip / lengths)[:, None])

    clip = float(np.median(lengths) / 2)
    rows = list(range(8))
    sums = [look.released_sum(scene, chosen(scene.records, r), clip, 8, delta=None) for r in (rows, rows[1:])]
    moved = float(np.abs(sums[0] - sums[1]).sum()) / clip
    away = float(np.abs(sums[0] - shortened(clip)[rows].sum(0)).sum()) / clip
    seen = scene.watch(scene.build(steps=60))
    own = shortened(scene.settings["clip_norm"])
    left = [(step.released - own[step.rows].sum(0)) / (scale * scene.settings["clip_norm"]) for step in seen.steps]
    flat = np.concatenate(left)
    total = float(np.abs(flat).sum())
    normal = special.ndtri(np.clip(stats.laplace.cdf(flat), 1e-300, 1 - 1e-16))
    both = 2 * min(special.gammainc(len(flat), total), special.gammaincc(len(flat), total))
    return [
        holds("sensitivity (Laplace)", moved <= 1 + look.ROUNDING, f"one record moved the sum by {moved:.4f} in L1"),
        holds("sum (Laplace)", away <= look.ROUNDING * 8, f"the sum is {away:.2g} clip norms from what it should be"),
        Finding("noise scale (Laplace)", float(min(1.0, both)), f"mean size {np.abs(flat).mean():.4f} of the scale"),
        Finding("noise used once (Laplace)", statistics.repetition_p_value(normal), "largest correlation with itself"),
    ]


def people_are_bounded(seed: int) -> list[Finding]:
    """Adding a person with several records moves the sum by at most the clip norm; the sum is that of clipped means."""
    scene = scenes.people(seed)
    raw = scene.gradients()
    means = raw.reshape(scenes.PEOPLE, scenes.EACH, -1).mean(1)
    clip = float(np.median(np.linalg.norm(means, axis=1)) / 2)
    size, each, worst = scenes.PEOPLE, scenes.EACH, 0.0
    ids = scene.settings["groups"]

    def total(persons: list[int]) -> np.ndarray:
        rows = [p * each + k for p in persons for k in range(each)]
        return look.released_sum(scene, chosen(scene.records, rows), clip, size, groups=np.repeat(persons, each))

    everybody = total(list(range(size)))
    for person in range(size):
        without = total([p for p in range(size) if p != person])
        worst = max(worst, float(np.linalg.norm(everybody - without)) / clip)
    true = scene.clipped(means, clip).sum(0)
    away = float(np.linalg.norm(everybody - true)) / clip
    assert len(ids) == size * each
    return [
        holds(
            "sensitivity (people)", worst <= 1 + look.ROUNDING, f"one person moved the sum by {worst:.4f} clip norms"
        ),
        holds("sum (people)", away <= look.ROUNDING * size, f"the sum is {away:.2g} clip norms from clipped means"),
    ]


def views_are_bounded(seed: int) -> list[Finding]:
    """Augmented views of one record are one record."""
    scene = scenes.network(seed)
    raw = scene.gradients()
    longest, views = int(np.argmax(np.linalg.norm(raw, axis=1))), 4
    clip = float(np.linalg.norm(raw[longest]) / 2)
    rows = chosen(scene.records, [longest] * views).tree
    sums, _ = clip_module.clipped_grad(scene.model, scene.loss, rows, clip, views=views, check="never")
    size = float(torch.cat([s.flatten() for s in sums.values()]).double().norm()) / clip
    return [holds("sensitivity (views)", size <= 1 + look.ROUNDING, f"{views} views of one record weigh {size:.4f}")]


def overflow_is_bounded(seed: int) -> list[Finding]:
    """A record whose gradient is not finite counts as zero."""
    scene = scenes.network(seed)
    clip, base = 0.2, chosen(scene.records, [0, 1, 2])
    before = look.released_sum(scene, base, clip, 4)
    bad = scene.records.take(np.array([3], dtype=np.int64))
    found = []
    for value in (float("nan"), float("inf")):
        poisoned = joined(base, Records(tree=(torch.full_like(bad[0], value), bad[1])))
        items = [tuple(leaf[i] for leaf in poisoned.tree) for i in range(len(poisoned))]
        after = look.released_sum(scene, Records(items=items, scan=False), clip, 4)
        moved = float(np.linalg.norm(after - before)) / clip
        found.append(
            holds(
                f"not finite ({value})",
                bool(moved <= 1 + look.ROUNDING),
                f"a record of {value} moved the sum by {moved:.3g}",
            )
        )
    return found


def later_batches_are_bounded(seed: int) -> list[Finding]:
    """What a first batch has shown is not believed of the next: order, company and padding are looked at again."""
    model = torch.nn.Linear(5, 3)
    generator = torch.Generator().manual_seed(seed)

    def batch(lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        inside = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
        return torch.randn(*inside.shape, 5, generator=generator) * inside.unsqueeze(2), torch.tensor(lengths)

    def sorted_by_length(model: Any, some: Any) -> torch.Tensor:
        order = sorted(range(len(some[1])), key=lambda k: int(some[1][k]))
        losses: torch.Tensor = model(some[0][order]).square().sum((1, 2))
        return losses[np.argsort(order).tolist()]

    def over_all_tokens(model: Any, some: Any) -> torch.Tensor:
        inside = torch.arange(some[0].shape[1]) < some[1].unsqueeze(1)
        losses: torch.Tensor = (model(some[0]).square().sum(2) * inside).sum(1) * len(inside) / inside.sum()
        return losses

    def over_padding(model: Any, some: Any) -> torch.Tensor:
        losses: torch.Tensor = model(some[0]).mean(1).square().sum(1)
        return losses

    uneven = [6, 1, 1, 1]
    clip_module.clipped_grad(model, sorted_by_length, batch([3, 4, 5, 6]))
    later = batch(uneven)
    try:
        norms = clip_module.clipped_grad(model, sorted_by_length, later).norms
        true = clip_module.clipped_grad(model, sorted_by_length, later, method="examples").norms
        right = bool(torch.allclose(norms, true, rtol=1e-3))
    except ClippingError:
        right = True
    found = [holds("order of examples", right, "an order that a first batch did not show")]
    for name, loss, first in (
        ("company", over_all_tokens, [6, 6, 6, 6]),
        ("padding", over_padding, [7, 7, 7, 7]),
    ):
        clip_module.clipped_grad(model, loss, batch(first))
        refused = False
        try:
            clip_module.clipped_grad(model, loss, batch(uneven))
        except BatchMixing:
            refused = True
        found.append(holds(f"examples reach each other ({name})", refused, "a first batch did not show it"))
    return found


# -- noise -------------------------------------------------------------------------------------------------------------


def noise_is_right(seed: int) -> list[Finding]:
    """Two plain runs: size, shape, tails and freshness of the noise in every place, in one run and between the two."""
    scene = scenes.network(seed)
    raw = scene.gradients()
    runs = []
    for _ in range(2):
        seen = scene.watch(scene.build(steps=look.steps_needed(scene) // 2 + 1))
        runs.append(scene.residuals(seen, raw, lambda step: scenes.NOISE))
    return [*check_law([*runs[0], *runs[1]]), look.check_fresh_keys(*(np.concatenate(parts) for parts in runs))]


def noise_follows_the_schedule(seed: int) -> list[Finding]:
    """With a clip norm and noise that change from step to step, and with clipping by layer."""
    found = []
    scene = scenes.scheduled(seed)
    schedule = scene.settings["noise_schedule"]
    parts = scene.residuals(scene.watch(scene.build()), scene.gradients(), lambda step: scenes.NOISE * schedule[step])
    found += _named("schedules", [look.check_noise(parts, SIGNIFICANCE)[0]])
    scene = scenes.by_layer(seed)
    parts = scene.residuals(scene.watch(scene.build(steps=24)), scene.gradients(), lambda step: scenes.NOISE)
    found += _named("by layer", [look.check_noise(parts, SIGNIFICANCE)[0]])
    scene = scenes.people(seed)
    means = scene.gradients().reshape(scenes.PEOPLE, scenes.EACH, -1).mean(1)
    parts = scene.residuals(scene.watch(scene.build(steps=16)), means, lambda step: scenes.NOISE)
    return found + _named("people", [look.check_noise(parts, SIGNIFICANCE)[0]])


def adaptive_noise_pays_for_the_count(seed: int) -> list[Finding]:
    """Where the clip norm follows a count, gradient and count together have the stated noise multiplier."""
    scene = scenes.adaptive(seed)
    raw = scene.gradients()
    seen = scene.watch(scene.build())
    count, stated = scenes.COUNT_NOISE, scenes.NOISE
    gradient = (stated**-2 - (2 * count) ** -2) ** -0.5
    found = _named("adaptive", [look.check_noise(scene.residuals(seen, raw, lambda s: gradient), SIGNIFICANCE)[0]])
    norms = np.linalg.norm(raw, axis=1)
    norms_at = [step.clip_norm for step in seen.steps] + [seen.clip_after]
    left = []
    for number, step in enumerate(seen.steps):
        fraction = 0.5 - np.log(norms_at[number + 1] / norms_at[number]) / 0.1
        inside = ((norms[step.rows] <= step.clip_norm) - 0.5).sum()
        left.append(((fraction - 0.5) * scenes.BATCH - inside) / count)
    return [*found, Finding("noise variance (count)", statistics.variance_p_value(left), "noise of the count")]


def every_step_is_released(seed: int) -> list[Finding]:
    """Empty batches release noise; as many steps are released as are planned and priced."""
    steps = 80
    scene = scenes.sparse(seed, steps)
    training = scene.build()
    parts = scene.residuals(scene.watch(training), scene.gradients(), lambda step: scenes.NOISE)
    counted = sum(times for _, times in look.priced(training.plan.mechanism, acc.PoissonSampled))
    silent = sum(not np.abs(part).max() > 1e-9 for part in parts)
    return [
        look.check_noise(parts, SIGNIFICANCE)[0],
        holds("steps released", scene.releases == steps == len(parts), f"{scene.releases} of {steps} steps released"),
        holds("steps priced", counted == steps, f"{counted} of {steps} steps priced"),
        holds("empty batches", silent == 0, f"{silent} steps released no noise"),
    ]


# -- sampling ----------------------------------------------------------------------------------------------------------


def sampling_is_as_priced(seed: int) -> list[Finding]:
    """Who takes part, over many steps, against the law that the price assumes; batches are those of the loop."""
    rows, steps, batch = 410, 400, 60  # the batch does not divide the data: 1 / len(loader) is another number
    x = torch.zeros(rows, 3)
    scene = Pipeline(torch.nn.Linear(3, 2), scenes.CRITERION, (x, torch.zeros(rows, dtype=torch.long)))
    training = scene.build(
        batch_size=batch, steps=steps, noise_multiplier=2.0, delta=1e-5, check="never", key=_key(seed)
    )
    masks = np.zeros((steps, rows), dtype=bool)
    for step in range(steps):
        masks[step, training.draw(step).rows] = True
    found = look.check_sampling(masks, training.plan.mechanism, training.plan.sampler.steps_per_epoch)
    same = True
    for number, handed in zip(range(3), training, strict=False):
        same = same and bool(np.array_equal(np.flatnonzero(masks[number]), np.unique(handed.rows)))
        training.step(handed)
    poisson = look.priced(training.plan.mechanism, acc.PoissonSampled)
    stated = bool(poisson) and poisson[0][0].rate >= batch / rows * (1 - 1e-9)
    return [
        *found,
        holds("batches of the loop", same, "the loop hands out what the sampler draws"),
        holds("priced rate", stated, f"{batch} of {rows} records are expected in a batch, and priced"),
    ]


def _key(seed: int) -> Key:
    return Key(seed.to_bytes(8, "little") * 4, repeatable=True)


# -- accounting --------------------------------------------------------------------------------------------------------


def prices_hold(seed: int) -> list[Finding]:
    """The claim of a run against a simulation of its privacy loss."""
    rng = np.random.default_rng(seed)
    found = []
    for noise, steps, batch in ((0.8, 12, 6), (1.5, 40, 10)):
        scene = scenes.network(seed)
        training = scene.build(noise_multiplier=noise, steps=steps, batch_size=batch, delta=LARGE_DELTA)
        claimed = training.privacy.upper
        rate = batch / scenes.ROWS
        found.append(look.check_price(claimed, LARGE_DELTA, rate, noise, steps, rng))
    calibrated = scenes.network(seed).build(
        noise_multiplier=None, epsilon=1.5, steps=20, batch_size=BATCH_FOR_TARGET, delta=LARGE_DELTA
    )
    found.append(look.check_price(1.5, LARGE_DELTA, BATCH_FOR_TARGET / scenes.ROWS, calibrated.plan.noise[0], 20, rng))
    found += _other_prices(seed, rng)
    for mechanism, mu in ((acc.Gaussian(2.0) * 9, 1.5), (acc.Gaussian(1.0, replace=2.0), 1.0)):
        found.append(
            holds(
                "price (Gaussian)",
                acc.epsilon(mechanism, 1e-5).upper >= bounds.gaussian_epsilon(mu, 1e-5) * (1 - 1e-6),
                f"{mechanism!r} against the closed form",
            )
        )
    return found


BATCH_FOR_TARGET = 12


def _other_prices(seed: int, rng: np.random.Generator) -> list[Finding]:
    """Noise that changes from step to step, batches of fixed size, shuffled passes."""
    rate = scenes.BATCH / scenes.ROWS
    levels = [0.9] * 6 + [2.0] * 6
    claimed = scenes.network(seed).build(noise_multiplier=levels, steps=12, delta=LARGE_DELTA).privacy.upper
    found = _named("schedule", [look.check_price(claimed, LARGE_DELTA, rate, levels, 12, rng)])
    settings = {"sampler": "fixed", "noise_multiplier": 3.0, "steps": 12, "delta": LARGE_DELTA}
    plan = scenes.network(seed).build(**settings, adjacency="add-remove")
    # Where the record is drawn another is not, so that the sum moves by two clip norms under add/remove. What is stated
    # is zero-out, because the size is public: a blank moves it by one.
    for name, claimed, noise in (("added", plan.plan.price().upper, 1.5), ("blank", plan.privacy.upper, 3.0)):
        found += _named(f"fixed size, {name}", [look.check_price(claimed, LARGE_DELTA, rate, noise, 12, rng)])
    passes = scenes.network(seed).build(sampler="shuffle", noise_multiplier=2.0, steps=12)
    exact = bounds.gaussian_epsilon(math.sqrt(4) / 2.0, 1e-5)  # 12 steps are 4 passes of 3 batches
    text = f"claimed {passes.privacy.upper:.4f} for 4 passes, closed form {exact:.4f}"
    return [*found, holds("price (shuffled)", passes.privacy.upper >= exact * (1 - 1e-6), text)]


def stopping_is_priced(seed: int) -> list[Finding]:
    """Who stops after looking at results pays for the plan."""
    scene = scenes.network(seed)
    whole = scene.build(steps=30)
    planned = whole.privacy.upper
    for batch in whole:
        whole.step(batch)
        if whole.steps_executed == 3:
            whole.stop("the metric was good")
            break
    return [
        holds(
            "early stop",
            whole.privacy.upper >= planned * (1 - 1e-9),
            f"stopped after looking: claims {whole.privacy.upper:.4f}, the plan {planned:.4f}",
        )
    ]


def ledgers_are_charged(seed: int) -> list[Finding]:
    """The plan is charged before the first batch is drawn, for what it is; a copy of an estimator charges as well."""
    ledger = Ledger()
    ledger.register("people", epsilon=100.0, delta=1e-3)
    scene = scenes.network(seed)
    training = scene.build(steps=10, ledger=ledger, dataset="people")
    first = next(iter(training))
    before = ledger.budget("people")
    price = acc.epsilon(training.plan.mechanism, 1e-5).upper
    found = [
        holds("charged first", before.charges == 1, f"{before.charges} charges when the first batch was handed out"),
        holds(
            "charged in full",
            before.spent_epsilon >= price * 0.999 or before.charges != 1,
            f"spent {before.spent_epsilon:.4f} for a run of {price:.4f}",
        ),
    ]
    training.step(first)
    return [*found, *_charges_add_up(), *_clones_charge(seed), *_searches_are_refused(seed)]


def _charges_add_up() -> list[Finding]:
    """Several charges on the same data compose, and what does not fit is refused."""
    ledger = Ledger()
    ledger.register("people", epsilon=3.0, delta=1e-5)
    granted = 0
    for _ in range(12):
        try:
            ledger.charge("people", acc.Gaussian(3.0), delta=1e-6, purpose="one of several").confirm()
        except BudgetExceeded:
            break
        granted += 1
    spent = ledger.budget("people").spent_epsilon
    exact = bounds.gaussian_epsilon(math.sqrt(granted) / 3.0, 1e-5)
    over = bounds.gaussian_epsilon(math.sqrt(granted) / 3.0, 1e-5) > 3.0
    return [
        holds("charges add up", spent >= exact * (1 - 1e-6), f"{granted} charges: spent {spent:.4f}, true {exact:.4f}"),
        holds("budget holds", not over and 0 < granted < 12, f"{granted} charges of ε = {exact:.4f} fit a budget of 3"),
    ]


def _clones_charge(seed: int) -> list[Finding]:
    from sklearn.base import clone

    from tacit.sgd import Classifier

    ledger = Ledger()
    ledger.register("people", epsilon=100.0, delta=1e-3)
    x, y = scenes.table(seed, 60)
    settings: dict[str, Any] = {
        "epsilon": 1.0,
        "delta": 1e-5,
        "epochs": 1,
        "batch_size": 20,
        "ledger": ledger,
        "dataset": "people",
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        clone(Classifier(**settings)).fit(x.numpy(), y.numpy())
    charges = ledger.budget("people").charges
    return [holds("clone charges", charges == 1, f"{charges} charges after a copy of an estimator was fitted")]


def _searches_are_refused(seed: int) -> list[Finding]:
    from sklearn.model_selection import cross_val_score

    from tacit.ledger.surroundings import SearchRefused
    from tacit.sgd import Classifier

    x, y = scenes.table(seed, 60)
    refused = False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cross_val_score(Classifier(epochs=1), x.numpy(), y.numpy(), cv=2, error_score="raise")
    except SearchRefused:
        refused = True
    return [holds("searches refused", refused, "a cross-validation around an estimator that no ledger counts")]


def resuming_repeats_nothing(seed: int) -> list[Finding]:
    """Killed and resumed, a run draws the noise that it would have drawn."""
    scene = scenes.network(seed)
    steps, key = 10, _key(seed + 5)
    whole = scene.watch(scene.build(steps=steps, key=key)).steps
    with tempfile.TemporaryDirectory() as folder:
        settings = {"steps": steps, "key": key, "checkpoint": Path(folder) / "run.ckpt", "checkpoint_every": 1}
        first = scene.build(**settings)
        for batch in first:
            first.step(batch)
            if first.steps_executed == 4:
                break
        rest = scene.watch(scene.build(**settings)).steps
    same = len(rest) == steps - 4 and all(
        np.allclose(a.released, b.released, atol=1e-6) for a, b in zip(whole[4:], rest, strict=False)
    )
    return [holds("resume", same, "a resumed run goes on with the noise of the run that was not interrupted")]


#: Every scene of this file, quick ones first.
SCENES = (
    Scene("bounded: network", "sgd", _bounded("network", scenes.network)),
    Scene("bounded: tied weight", "sgd", _bounded("tied weight", scenes.tied)),
    Scene("bounded: soft prompt", "sgd", _bounded("soft prompt", scenes.prompted), long=True),
    Scene("bounded: by layer", "sgd", _bounded("by layer", scenes.by_layer), long=True),
    Scene("bounded: people", "sgd", people_are_bounded),
    Scene("bounded: other ways", "sgd", other_ways_of_clipping),
    Scene("bounded: Laplace", "sgd", laplace_is_right),
    Scene("bounded: views", "sgd", views_are_bounded),
    Scene("bounded: overflow", "sgd", overflow_is_bounded),
    Scene("bounded: later batches", "sgd", later_batches_are_bounded),
    Scene("noise", "sgd", noise_is_right),
    Scene("noise: schedules", "sgd", noise_follows_the_schedule, long=True),
    Scene("noise: adaptive", "sgd", adaptive_noise_pays_for_the_count),
    Scene("steps", "sgd", every_step_is_released),
    Scene("sampling", "sgd", sampling_is_as_priced),
    Scene("prices", "sgd", prices_hold),
    Scene("stopping", "sgd", stopping_is_priced),
    Scene("charges", "sgd", ledgers_are_charged, long=True),
    Scene("resume", "sgd", resuming_repeats_nothing),
)
