"""Do all kinds of training keep their promises? Samplers, forms of data, canaries, estimators, pure ε and settings."""

from __future__ import annotations

import math
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from scipy import stats
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

import tacit.sgd.training.estimators as estimators_module
from tacit import accounting as acc
from tacit import sgd
from tacit.audit import bounds
from tacit.audit.findings import Finding, holds
from tacit.ledger import EvaluationData
from tacit.noise.keys import Key
from tacit.selftest import models
from tacit.selftest.laws import check_law
from tacit.selftest.mutants.base import replaced
from tacit.selftest.scene import Scene, refused
from tacit.sgd.training.augment import crops
from tacit.sgd.training.canaries import AuditedTraining, Planted
from tacit.sgd.training.sampling import SAMPLERS, CyclicPoisson, make_sampler

ROWS, BATCH, DELTA = models.ROWS, models.BATCH, 1e-5
#: Steps that are drawn of each sampler, a multiple of the steps of a pass.
DRAWS = 1500
#: Batches that are cut hold no more than this.
CUT = 11


def _spread(counts: Any) -> float:
    """χ²: whether records take part equally often; each count may vary no more than that of a fair coin."""
    expected = counts.mean()
    return float(stats.chi2.sf(((counts - expected) ** 2 / max(expected, 1e-9)).sum(), len(counts) - 1))


def every_sampler_draws_what_it_prices(seed: int) -> list[Finding]:
    """Sizes, frequencies, passes and independence of draws; and the price of noise that differs between steps."""
    key, found = Key(bytes([seed % 251 + 1] * 32)), []
    for name in SAMPLERS:
        sampler = make_sampler(name, ROWS, BATCH, CUT if name == "truncated" else None)
        each = sampler.steps_per_epoch
        masks = np.zeros((DRAWS, ROWS), dtype=bool)
        for step in range(DRAWS):
            masks[step, sampler.draw(key, step, ROWS)] = True
        sizes, counts = masks.sum(1), masks.sum(0)
        passes = masks.reshape(-1, each, ROWS)
        once = name in ("chunks", "shuffle", "balls-in-bins")
        right = {
            "poisson": sizes.max() > CUT and sizes.min() < BATCH,
            "truncated": sizes.max() == CUT,
            "fixed": bool((sizes == BATCH).all()),
            "chunks": bool((passes == passes[0]).all())
            and bool((passes[0].argmax(0) == np.arange(ROWS) // BATCH).all()),
            "shuffle": bool((sizes == BATCH).all()),
            "balls-in-bins": len(np.unique(sizes)) > 5,
        }[name] and (bool((passes.sum(1) == 1).all()) or not once)
        found.append(
            holds(f"sampler: {name}", bool(right), f"batches of {sizes.min()} to {sizes.max()}, {each} a pass")
        )
        if name == "chunks":
            continue
        if not once:
            found.append(
                Finding(f"sampler: frequencies ({name})", _spread(counts), f"{counts.min()} to {counts.max()}")
            )
        # Where a record fell in one pass says nothing about the next: whether a pair is together is a coin.
        together = (passes[:-1] & passes[1:]).any(1) if once else masks[:-1] & masks[1:]
        chance = 1 / each if once else float(counts.sum()) ** 2 / (DRAWS * ROWS) ** 2
        p = float(stats.binomtest(int(together.sum()), together.size, chance).pvalue)
        found.append(Finding(f"sampler: drawn anew ({name})", p, f"{together.mean():.3f} again, {chance:.3f} expected"))
    return [*found, *_levels_are_priced()]


def _levels_are_priced() -> list[Finding]:
    """Noise that changes within a pass: the weakest of a pass is what an unlucky record met."""
    levels, low = [3.0, 1.5, 3.0, 2.0, 2.0, 4.0], []
    steps = [acc.Gaussian(level) for level in levels]
    weakest = bounds.gaussian_epsilon(math.sqrt(1.5**-2 + 2.0**-2), DELTA)
    for name in ("chunks", "shuffle"):
        claimed = acc.epsilon(make_sampler(name, ROWS, BATCH).describe(steps), DELTA, adjacency="zero-out").upper
        if not claimed >= weakest * (1 - 1e-6):
            low.append(f"{name} {claimed:.4f} of {weakest:.4f}")
    plain = acc.epsilon(acc.Composed(tuple((acc.PoissonSampled(s, BATCH / ROWS), 1) for s in steps)), DELTA).lower
    for name in ("poisson", "truncated", "fixed", "balls-in-bins"):
        made = make_sampler(name, ROWS, BATCH, ROWS if name == "truncated" else None)
        claimed = acc.epsilon(made.describe(steps), DELTA, adjacency="add-remove").upper
        least = plain if name != "balls-in-bins" else acc.epsilon(acc.BallsInBins(acc.Gaussian(1.5), 3), DELTA).lower
        if not claimed >= least * (1 - 1e-6):
            low.append(f"{name} {claimed:.4f} of {least:.4f}")
    return [holds("sampler: noise levels", not low, "; ".join(low) or "no pass is priced above its weakest step")]


# -- forms of data -----------------------------------------------------------------------------------------------------


class _Items(Dataset[Any]):
    """Records by index."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        return self.x[place], self.y[place]


def forms_of_data_are_one(seed: int) -> list[Finding]:
    """The same records as tensors, arrays, items, a table: with the same key the same releases, and the same name."""
    scene, key = models.network(seed), Key(bytes(range(32)), repeatable=True)
    x, y = models.table(seed)
    frame = pl.DataFrame({f"x{k}": x[:, k].numpy() for k in range(models.FEATURES)} | {"y": y.numpy()})
    forms: dict[str, Any] = {
        "tensors": (x, y),
        "arrays": (x.numpy(), y.numpy()),
        "doubles": [x.double().numpy(), y.numpy()],
        "a TensorDataset": TensorDataset(x, y),
        "items": _Items(x, y),
        "a table": sgd.table(frame, target="y").records,
        "a table without a column": sgd.table(frame.with_columns(z=pl.lit(1.0)), target="y", exclude=("z",)).records,
    }
    kept: dict[str, Any] = {}
    names: dict[str, str] = {}
    for name, data in forms.items():
        run = scene.build(data, steps=4, key=key)
        names[name] = run.records.fingerprint(bytes(32))
        kept[name] = np.concatenate([step.released for step in scene.watch(run).steps])
    away = {name: float(np.abs(released - kept["tensors"]).max()) for name, released in kept.items()}
    changed = x.clone()
    changed[ROWS - 2, 3] += 1e-3
    apart = [
        sgd.records(make(changed, y)).fingerprint(bytes(32)) != sgd.records(make(x, y)).fingerprint(bytes(32))
        for make in (lambda a, b: (a, b), _Items)
    ]
    hole = x.clone()
    hole[0, 0] = math.nan
    cases: dict[str, tuple[Callable[[], object], Any]] = {
        "a hole": (lambda: scene.build((hole, y)), ValueError),
        "a hole in items": (lambda: scene.build(_Items(hole, y)), ValueError),
        "different lengths": (lambda: scene.build((x, y[:-1])), ValueError),
        "a stream": (lambda: sgd.records(iter([1])), TypeError),
        "a data loader": (lambda: sgd.records(torch.utils.data.DataLoader(TensorDataset(x, y))), TypeError),
        "a frame without a target": (lambda: sgd.records(frame), TypeError),
        "texts": (lambda: sgd.records((np.array(["a", "b"]), y[:2])), TypeError),
        "no rows": (lambda: sgd.records((x[:0], y[:0])), ValueError),
        "a column that there is not": (lambda: sgd.table(frame, target="z"), ValueError),
        "a feature that there is not": (lambda: sgd.table(frame, target="y", features=("z",)), ValueError),
        "a column of texts": (lambda: sgd.table(frame.with_columns(z=pl.lit("a")), target="y"), ValueError),
        "a column with holes": (
            lambda: sgd.table(frame.with_columns(z=pl.lit(None, pl.Float64)), target="y"),
            ValueError,
        ),
    }
    return [
        holds("data: releases", max(away.values()) < 1e-4, f"at most {max(away.values()):.2g} apart"),
        holds("data: names", len({names[n] for n in ("tensors", "arrays", "a TensorDataset", "a table")}) == 1, "one"),
        holds("data: a change is seen", all(apart), "another number, another fingerprint"),
        refused("data: refusals", cases),
    ]


# -- canaries ----------------------------------------------------------------------------------------------------------


def canaries_are_records(seed: int) -> list[Finding]:
    """Canaries take part as records do, each moves the sum by one clip norm, and their slots hold the stated noise."""
    scene, count, steps = models.network(seed), 400, 24
    x, y = models.table(seed)

    def made(canaries: Any, **more: Any) -> AuditedTraining:
        model = nn.Sequential(nn.Linear(models.FEATURES, 64), nn.Tanh(), nn.Linear(64, models.CLASSES))
        usual: dict[str, Any] = {"batch_size": BATCH, "steps": steps, "noise_multiplier": 1.5, "delta": DELTA}
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        return AuditedTraining(model, optimizer, models.CRITERION, (x, y), canaries=canaries, **(usual | more))

    run = made(count)
    early = refused("canaries: early", {"before the end": (run.planted, RuntimeError)})
    for batch in run:
        run.step(batch)
    seen = run.planted()
    assert seen.residuals is not None
    choices = seen.choices
    assert choices is not None
    rate = BATCH / (ROWS + count)
    silent = made(count, noise_multiplier=0.0)
    for batch in silent:
        silent.step(batch)
    exact = silent.planted().residuals
    assert exact is not None
    moved = float(np.abs(exact).max())
    with tempfile.TemporaryDirectory() as folder:
        path = seen.save(Path(folder) / "canaries.npz")
        closed, back = path.stat().st_mode & 0o077 == 0, Planted.load(path)
    planted = made((torch.randn(20, models.FEATURES), torch.zeros(20, dtype=torch.int64)), steps=4)
    for batch in planted:
        planted.step(batch)
    found = planted.planted()
    people = made(20, groups=np.arange(ROWS) // 3, steps=3, batch_size=3)
    for batch in people:
        people.step(batch)
    claim = scene.build(steps=steps, noise_multiplier=1.5, batch_size=BATCH, size=ROWS + count).privacy.upper
    cases: dict[str, tuple[Callable[[], object], Any]] = {
        "one": (lambda: made(1), ValueError),
        "more than there are places": (lambda: made(10_000), ValueError),
        "a checkpoint": (lambda: made(20, checkpoint="nowhere"), ValueError),
        "rows of another shape": (lambda: made((torch.zeros(20, 3), torch.zeros(20, dtype=torch.int64))), ValueError),
        "rows and people": (lambda: made((x[:5], y[:5]), groups=np.arange(ROWS)), ValueError),
    }
    return [
        *check_law(list(np.asarray(seen.residuals, dtype=np.float64)), "canaries"),
        Finding("canaries: coins", float(stats.binomtest(int(seen.member.sum()), count, 0.5).pvalue), "half are in"),
        Finding(
            "canaries: draws", float(stats.binomtest(int(choices.sum()), choices.size, rate).pvalue), "as records are"
        ),
        holds("canaries: one clip norm", moved < 1e-3, f"{moved:.2g} beside what the canaries put there"),
        holds(
            "canaries: claim", abs(seen.epsilon - claim) < 1e-6 * claim, f"{seen.epsilon:.4f}, of records {claim:.4f}"
        ),
        holds("canaries: file", closed and np.array_equal(back.scores, seen.scores), "read back, and closed to others"),
        holds("canaries: of records", len(found.scores) == 20 and bool(np.isfinite(found.scores).all()), "scored"),
        holds("canaries: of people", people.planted().unit == "person", "each is a person of their own"),
        early,
        refused("canaries: refusals", cases),
    ]


# -- estimators, pure ε, settings --------------------------------------------------------------------------------------


def estimators_bound_their_rows(seed: int) -> list[Finding]:
    """What estimators train on is bounded, whatever comes in; what they claim is what was asked for."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(60, 3)), rng.uniform(-1, 1, 60)
    x[0], y[0] = 1e9, 1e9
    x[1], y[1] = 1e300, -1e300
    given: list[tuple[Any, Any]] = []
    plain = sgd.Training

    def spy(model: Any, optimizer: Any, loss: Any, data: Any, **more: Any) -> Any:
        given.append((np.asarray(data[0]), np.asarray(data[1])))
        return plain(model, optimizer, loss, data, **more)

    usual: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-4, "epochs": 2, "batch_size": 20}
    with replaced(estimators_module, "Training", spy), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        line = sgd.Regressor(**usual, target_bounds=(-2.0, 2.0), hidden=(4,)).fit(x, y)
        boxed = sgd.Regressor(**usual, bounds=(-1.0, 1.0)).fit(x, y)
        classes = sgd.Classifier(**usual, classes=[0, 1, 2]).fit(x, (y > 0).astype(int), groups=np.arange(60) // 2)
    rows = max(float(np.linalg.norm(given[k][0], axis=1).max()) for k in (0, 2))
    box, targets = float(np.abs(given[1][0]).max()), max(float(np.abs(given[k][1]).max()) for k in (0, 1))
    answers = np.abs(line.predict(x)).max()
    chances = classes.predict_proba(x)
    claims = [made.privacy_.upper for made in (line, boxed, classes)]
    cases: dict[str, tuple[Callable[[], object], Any]] = {
        "bounds in reverse": (lambda: sgd.Regressor(**usual, bounds=(1.0, -1.0)).fit(x, y), ValueError),
        "target bounds in reverse": (lambda: sgd.Regressor(**usual, target_bounds=(1.0, -1.0)).fit(x, y), ValueError),
        "a label beside the classes": (
            lambda: sgd.Classifier(**usual, classes=[0, 1]).fit(x, np.arange(60)),
            ValueError,
        ),
        "one class": (lambda: sgd.Classifier(**usual).fit(x, np.zeros(60, int)), ValueError),
        "people without ids": (lambda: sgd.Classifier(**usual, unit="person").fit(x, y > 0), ValueError),
    }
    return [
        holds("estimators: rows", rows <= 1 + 1e-5 and box <= 1 + 1e-6, f"lengths to {rows:.4f}, numbers to {box:.4f}"),
        holds("estimators: targets", targets <= 1 + 1e-6 and answers <= 2 + 1e-6, f"targets to {targets:.4f}"),
        holds("estimators: claims", max(claims) <= 1 + 1e-6 and min(claims) > 0, f"{claims}"),
        holds("estimators: unit", classes.privacy_.unit == "person", classes.privacy_.unit),
        holds("estimators: answers", bool(np.allclose(chances.sum(1), 1)) and chances.shape == (60, 3), "chances"),
        refused("estimators: refusals", cases),
    ]


def settings_mean_what_they_say(seed: int) -> list[Finding]:
    """Pure ε for a target, settings as values, patterns of bounds, views, checks: each against its own meaning."""
    scene = models.laplace(seed)
    pure = scene.build(noise_multiplier=None, epsilon=2.0, steps=6)
    rate = BATCH / ROWS
    exact = 6 * math.log1p(rate * math.expm1(1 / pure.plan.noise[0]))
    claimed = pure.privacy.upper
    x, y = models.table(seed)
    patterned = models.network(seed, clipping={"0.*": 0.2, "*": 0.4})
    raw = patterned.gradients()
    bound = math.hypot(0.2, 0.4)
    run = patterned.watch(patterned.build(batch_size=ROWS, steps=1, noise_multiplier=0.0, delta=DELTA)).steps[0]
    away = float(np.linalg.norm(run.released - patterned.clipped(raw, 1.0).sum(0))) / bound
    model = nn.Linear(models.FEATURES, models.CLASSES)
    told = sgd.Training(
        model,
        torch.optim.SGD(model.parameters(), lr=0.0),
        models.CRITERION,
        (x, y),
        sgd.PrivacyTarget(noise_multiplier=2.0, delta=DELTA),
        sgd.Sampling(batch_size=ROWS, steps=4),
        sgd.GradientClipping(clip_norm=0.5),
    )
    four = bounds.gaussian_epsilon(math.sqrt(4) / 2.0, DELTA)
    checked = sgd.check(model, models.CRITERION, (x, y))
    adam = nn.Linear(4, 1, bias=False)
    twin = nn.Linear(4, 1, bias=False)
    twin.load_state_dict(adam.state_dict())
    ours, theirs = sgd.DPAdam(adam.parameters(), lr=0.1), torch.optim.Adam(twin.parameters(), lr=0.1)
    for k in range(3):
        adam.weight.grad = twin.weight.grad = torch.tensor([[1.0, -2.0, 0.5, float(k)]])
        ours.step()
        theirs.step()
    same = float((adam.weight - twin.weight).abs().max())
    images = crops(1, flips=True)((torch.arange(16.0).view(1, 4, 4), 3))
    fitted = _fitted(seed)
    noisy: dict[str, Any] = {"noise_multiplier": 1.0, "delta": DELTA}

    def with_(**more: Any) -> Callable[[], object]:
        return lambda: models.network(seed).build(**more)

    def values(*given: Any, **more: Any) -> Callable[[], object]:
        return lambda: sgd.Training(
            model, torch.optim.SGD(model.parameters()), models.CRITERION, (x, y), *given, **more
        )

    cases: dict[str, tuple[Callable[[], object], Any]] = {
        "a target and its noise": (with_(epsilon=1.0), ValueError),
        "ε below 0": (with_(noise_multiplier=None, epsilon=-1.0), ValueError),
        "δ of 1": (with_(delta=1.0), ValueError),
        "noise below 0": (with_(noise_multiplier=-1.0), ValueError),
        "a clip norm of 0": (with_(clip_norm=0.0), ValueError),
        "a schedule of another length": (with_(steps=3, noise_multiplier=[1.0]), ValueError),
        "a schedule with a 0": (with_(steps=2, noise_schedule=[1.0, 0.0]), ValueError),
        "no length": (with_(), ValueError),
        "two lengths": (with_(steps=2, epochs=1), ValueError),
        "a batch above the data": (with_(steps=2, batch_size=ROWS + 1), ValueError),
        "an unknown sampler": (with_(steps=2, sampler="best"), ValueError),
        "a cut for another sampler": (with_(steps=2, max_batch=3), ValueError),
        "an unknown noise": (with_(steps=2, mechanism="uniform"), ValueError),
        "Laplace by layer": (with_(steps=2, mechanism="laplace", clipping="per_layer"), ValueError),
        "an unknown adjacency": (with_(steps=2, adjacency="near"), (ValueError, acc.AccountingError)),
        "a word that there is not": (with_(steps=2, cliping="flat"), TypeError),
        "rows of people without people": (with_(steps=2, max_rows=2), ValueError),
        "views of nothing": (with_(steps=2, views=2), ValueError),
        "an unknown way": (with_(steps=2, method="magic"), ValueError),
        "a pattern that misses a layer": (with_(steps=2, clipping={"0.*": 0.2}), ValueError),
        "a data set without a ledger": (with_(steps=2, dataset="people"), ValueError),
        "a ledger that is none": (with_(steps=2, ledger="books", dataset="people"), TypeError),
        "a key that is none": (with_(steps=2, key="secret"), TypeError),
        "a value twice": (values(sgd.Sampling(batch_size=2, steps=1), sgd.Sampling(batch_size=2, steps=1)), TypeError),
        "a value and its word": (values(sgd.Sampling(batch_size=2, steps=1), steps=1, **noisy), TypeError),
        "no value": (values(3), TypeError),
        "no batch size": (values(steps=1, **noisy), TypeError),
        "a sampler of another size": (with_(steps=2, sampler=make_sampler("fixed", 7, 2)), ValueError),
        "evaluation without a word": (lambda: _fitted(seed, evaluate=(x, y)), Exception),
        "a quantile above 1": (lambda: sgd.AdaptiveClipping(quantile=1.5), ValueError),
        "a model that mixes": (
            lambda: sgd.check(nn.Sequential(model, nn.BatchNorm1d(models.CLASSES)).train(), models.CRITERION, (x, y)),
            sgd.ClippingError,
        ),
        "a closure": (lambda: ours.step(lambda: None), ValueError),
    }
    return [
        holds(
            "settings: pure ε", exact <= 2.0 * (1 + 1e-6) and claimed >= exact * (1 - 1e-6), f"{claimed}, true {exact}"
        ),
        holds("settings: patterns", away < 1e-3, f"{away:.2g} bounds from the clipped sum"),
        holds("settings: values", told.privacy.upper >= four * (1 - 1e-6), f"{told.privacy.upper:.4f} of {four:.4f}"),
        holds("settings: check", checked.certain and set(checked.uses) == {"weight", "bias"}, f"{checked}"),
        holds("settings: Adam", same < 1e-5, f"{same:.2g} from Adam where there is no noise"),
        holds(
            "settings: crops", set(images[0].flatten().tolist()) <= set(range(16)) and images[1] == 3, "of the image"
        ),
        fitted,
        refused("settings: refusals", cases),
    ]


def _fitted(seed: int, evaluate: Any = None) -> Finding:
    """A fit evaluates on public rows only in what it shows, and stops by the clock without a word about results."""
    x, y = models.table(seed)
    model = nn.Linear(models.FEATURES, models.CLASSES)
    public = EvaluationData.declared_public((x, y), because="made up") if evaluate is None else evaluate
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = sgd.fit(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            models.CRITERION,
            (x, y),
            evaluate=public,
            progress=False,
            batch_size=ROWS,
            steps=5,
            noise_multiplier=2.0,
            delta=DELTA,
            clip_norm=0.5,
            ema=0.9,
        )
    whole = bounds.gaussian_epsilon(math.sqrt(5) / 2.0, DELTA)
    shown = len(done.metrics) == 5 and all("public" in str(release.to_dict()) or release for release in done.metrics)
    return holds("settings: fit", shown and done.privacy.upper >= whole * (1 - 1e-6), f"{done.privacy.upper:.4f}")


# -- correlated noise --------------------------------------------------------------------------------------------------


def correlated_noise_hides_a_unit(seed: int) -> list[Finding]:
    """What a unit costs that takes part as often as it can, by the covariance of the noise as it was released.

    The data are zeros, so what is released is noise. If S is the covariance of n draws, whose true covariance would
    hide a pattern p at the cost c, then n·c / (pᵀS⁻¹p) has a χ² law (of a Wishart matrix) or is larger.
    """
    steps, noise, clip, inputs, found = 8, 2.0, 0.5, 500, list[Finding]()
    kinds: dict[str, tuple[Any, dict[str, Any], int]] = {
        "bands": (sgd.Banded(bands=4), {}, 4),
        "uneven bands": (sgd.Banded(coefficients=(3.0, 2.0)), {}, 2),
        "chunks": (sgd.Banded(bands=4), {"sampler": "chunks"}, 8),
        "an inverse": (sgd.BandedInverse(bands=4), {"sampler": "chunks"}, 8),
    }
    for name, (kind, more, apart) in kinds.items():
        model = nn.Linear(inputs, models.CLASSES, bias=False)
        settings: dict[str, Any] = {"batch_size": 5, "steps": steps, "noise_multiplier": noise, "clip_norm": clip}
        optimizer, loss = torch.optim.SGD(model.parameters(), lr=1.0), nn.CrossEntropyLoss(reduction="none")
        rows = torch.zeros(8 * 5, inputs), torch.arange(8 * 5) % models.CLASSES
        run = sgd.Training(model, optimizer, loss, rows, delta=1e-5, noise=kind, **settings, **more)
        weights = [model.weight.detach().double().numpy().copy()]
        for batch in run:
            run.step(batch)
            weights.append(model.weight.detach().double().numpy().copy())
        drawn = np.diff(np.array(weights), axis=0).reshape(steps, -1) * 5 / clip
        covariance, worst = drawn @ drawn.T / drawn.shape[1], 1.0
        for first in range(min(apart, steps)):
            pattern = (np.arange(steps) % apart == first).astype(float)
            cost = float(pattern @ np.linalg.solve(covariance, pattern))
            share = drawn.shape[1] * pattern.sum() / noise**2 / cost
            worst = min(worst, float(stats.chi2.cdf(share, drawn.shape[1] - steps + 1)) * min(apart, steps))
        text = f"the pattern that is seen best, of {min(apart, steps)}, in {drawn.shape[1]} draws of {steps} steps"
        found.append(Finding(f"correlated: {name}", worst, text))
        least = bounds.gaussian_epsilon(1 / noise, 1e-5) if more else 0.0
        claim = run.privacy.upper
        found.append(holds(f"correlated: price ({name})", claim >= least * (1 - 1e-6), f"{claim:.4f} of {least:.4f}"))
    sampler, key = CyclicPoisson(size=ROWS, batch_size=3, groups=4), Key(bytes([seed % 251 + 1] * 32))
    masks = np.zeros((DRAWS, ROWS), dtype=bool)
    for step in range(DRAWS):
        masks[step, sampler.draw(key, step, ROWS)] = True
    near = sum(int((masks[k:] & masks[:-k]).sum()) for k in (1, 2, 3))
    hits = int(masks.sum())
    # Which group a record is in is drawn once, so each is drawn in every fourth step only, at four times the rate.
    p = float(stats.binomtest(hits, DRAWS // 4 * ROWS, 0.4).pvalue)
    return [
        *found,
        holds("correlated: apart", near == 0, f"{near} times a record came again before its turn"),
        Finding("correlated: frequency", p, f"{hits} participations"),
    ]


SCENES = (
    Scene("kinds: correlated noise", "sgd", correlated_noise_hides_a_unit),
    Scene("kinds: samplers", "sgd", every_sampler_draws_what_it_prices, long=True),
    Scene("kinds: data", "sgd", forms_of_data_are_one, long=True),
    Scene("kinds: canaries", "sgd", canaries_are_records, long=True),
    Scene("kinds: estimators", "sgd", estimators_bound_their_rows, long=True),
    Scene("kinds: settings", "sgd", settings_mean_what_they_say),
)
