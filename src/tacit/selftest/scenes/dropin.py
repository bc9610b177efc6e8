"""Does the drop-in for Opacus keep its promises? Loops that somebody else writes: sums, noise, counts and charges.

The weights stand still (a learning rate of 0), the batches carry the numbers of their rows, and what a step leaves in
``p.grad`` is compared with gradients by plain backward passes.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tacit.audit import bounds, statistics
from tacit.audit import implementation as look
from tacit.audit.findings import Finding, holds
from tacit.audit.pipeline import Pipeline
from tacit.ledger import BudgetExceeded, ChargeError, Ledger
from tacit.opacus import GradSampleModule, PrivacyEngine
from tacit.opacus.accountants import create_accountant
from tacit.opacus.accountants.analysis import gdp, rdp
from tacit.opacus.accountants.utils import get_noise_multiplier
from tacit.opacus.schedulers import ExponentialGradClip, ExponentialNoise, LambdaNoise, StepNoise
from tacit.opacus.utils.batch_memory_manager import BatchMemoryManager
from tacit.opacus.utils.uniform_sampler import UniformWithReplacementSampler
from tacit.opacus.validators import ModuleValidator
from tacit.opacus.validators.errors import UnsupportedModuleError
from tacit.selftest import models
from tacit.selftest.laws import check_law
from tacit.selftest.scene import Scene, charged, refused

Floats = npt.NDArray[np.float64]
CRITERION = nn.CrossEntropyLoss()
ROWS, BATCH, NOISE, CLIP = models.ROWS, models.BATCH, models.NOISE, 0.5
DELTA, LARGE_DELTA = 1e-5, 0.02


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """One step of a loop: the rows that were in it, the sum that it released, and what it was released with."""

    rows: npt.NDArray[np.int64]
    released: Floats
    clip_norm: float
    noise: float
    after: float


class OwnLoop:
    """A model, data and an engine, as somebody's own loop has them."""

    def __init__(self, seed: int, *, batch: int = BATCH, engine: PrivacyEngine | None = None, **options: Any) -> None:
        self.pipeline = models.network(seed, clipping=options.get("clipping", "flat"))
        self.model = copy.deepcopy(self.pipeline.model).train()
        x, y = models.table(seed)
        self.data = TensorDataset(x, y, torch.arange(ROWS))
        self.engine = engine or PrivacyEngine()
        usual: dict[str, Any] = {"noise_multiplier": NOISE, "max_grad_norm": CLIP}
        make: Callable[..., Any] = self.engine.make_private
        if "target_epsilon" in options:
            usual, make = {"max_grad_norm": CLIP}, self.engine.make_private_with_epsilon
        made = make(
            module=self.model,
            optimizer=torch.optim.SGD(self.model.parameters(), lr=0.0),
            data_loader=DataLoader(self.data, batch_size=batch),
            **(usual | options),
        )
        self.optimizer, self.loader = made[1], made[-1]
        self.criterion = made[2] if len(made) == 4 else CRITERION
        if options.get("loss_reduction") == "sum":
            self.criterion = nn.CrossEntropyLoss(reduction="sum")
            self.divisor = 1.0
        else:
            self.divisor = float(batch)

    def backward(self, x: Tensor, y: Tensor) -> None:
        self.criterion(self.model(x), y).backward()

    def gradient(self) -> Floats:
        """What the step left for the optimizer."""
        left = []
        for p in self.model.parameters():
            assert p.grad is not None
            left.append(p.grad.double().flatten())
        return torch.cat(left).numpy()

    def steps(self, count: int, set_noise: Callable[[int], None] | None = None) -> Iterator[Step]:
        """Make steps, pass after pass."""
        made = 0
        while made < count:
            for x, y, rows in self.loader:
                if set_noise is not None:
                    set_noise(made)
                clip, noise = float(self.optimizer.max_grad_norm), float(self.optimizer.noise_multiplier)
                self.optimizer.zero_grad()
                self.backward(x, y)
                self.optimizer.step()
                after = float(self.optimizer.max_grad_norm)
                yield Step(rows.numpy(), self.gradient() * self.divisor, clip, noise, after)
                made += 1
                if made == count:
                    return

    def residuals(self, steps: list[Step], raw: Floats, noise: Callable[[Step], float] | None = None) -> list[Floats]:
        """What each step released beside the sum that it should have, in deviations of its noise."""
        found = []
        for step in steps:
            true = self.pipeline.clipped(raw[step.rows], step.clip_norm).sum(0) if len(step.rows) else 0.0
            scale = (noise(step) if noise else step.noise) * self.pipeline.sensitivity(step.clip_norm)
            found.append((step.released - true) / scale)
        return found


def sums_and_noise(seed: int) -> list[Finding]:
    """Every way of clipping: the clipped sum, with noise of the stated size, over the expected size of a batch."""
    found, left = [], []
    cases: dict[str, dict[str, Any]] = {
        "flat": {},
        "by layer": {"clipping": "per_layer"},
        "automatic": {"clipping": "automatic"},
        "summed losses": {"loss_reduction": "sum"},
        "ghost": {"grad_sample_mode": "ghost", "criterion": nn.CrossEntropyLoss()},
        "shuffled": {"poisson_sampling": False},
    }
    for name, options in cases.items():
        run = OwnLoop(seed, **options)
        raw = run.pipeline.gradients()
        parts = run.residuals(list(run.steps(6)), raw)
        left += parts
        exact = OwnLoop(seed, **(options | {"noise_multiplier": 0.0}))
        away = 0.0
        for step in exact.steps(4):
            true = exact.pipeline.clipped(raw[step.rows], step.clip_norm).sum(0) if len(step.rows) else 0.0
            away = max(away, float(np.linalg.norm(step.released - true)) / exact.pipeline.sensitivity(step.clip_norm))
        found.append(holds(f"drop-in: sum ({name})", away < 0.02, f"{away:.2g} clip norms from the clipped sum"))
    bounds_each = [0.1 * (k + 1) for k in range(4)]
    run = OwnLoop(seed, clipping="per_layer", max_grad_norm=bounds_each)
    raw = run.pipeline.gradients()
    sizes = [p.numel() for p in run.model.parameters()]
    places = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    for x, y, rows in run.loader:
        run.optimizer.zero_grad()
        run.backward(x, y)
        run.optimizer.step()
        own = raw[rows.numpy()]
        for place, bound in zip(places, bounds_each, strict=True):
            norms = np.linalg.norm(own[:, place], axis=1, keepdims=True)
            own[:, place] *= np.minimum(1.0, bound / np.maximum(norms, 1e-300))
        scale = NOISE * math.sqrt(sum(b * b for b in bounds_each))
        left.append((run.gradient() * BATCH - own.sum(0)) / scale)
    return [*found, *check_law(left, "drop-in")]


def people_move_by_the_clip_norm(seed: int) -> list[Finding]:
    """One record, however long its gradient, moves the sum by at most the clip norm; not a number counts as none."""
    worst = {"flat": 0.0, "per_layer": 0.0, "automatic": 0.0}
    for clipping in worst:
        run = OwnLoop(seed, batch=ROWS, clipping=clipping, noise_multiplier=0.0)
        x, y = models.table(seed)
        limit = run.pipeline.sensitivity(CLIP)
        sums = []
        for factor in (0.0, 1.0, 1e3, -1e4, math.nan, 1e25):
            changed = x.clone()
            changed[3] *= factor
            next(iter(run.loader))  # the batch that is in hand
            if factor == 0.0:
                changed[3] = 0.0
            run.optimizer.zero_grad()
            run.backward(changed, y)
            run.optimizer.step()
            sums.append(run.gradient() * ROWS)
        # What is not a number counts as no record at all: against that, each is one record more.
        for total in sums:
            worst[clipping] = max(worst[clipping], float(np.linalg.norm(total - sums[4])) / limit)
    return [
        holds(f"drop-in: sensitivity ({name})", moved <= 1 + look.ROUNDING, f"a record moved the sum by {moved:.4f}")
        for name, moved in worst.items()
    ]


def noise_levels_are_priced(seed: int) -> list[Finding]:
    """Levels that change and come back, with all records in every batch: the price has a closed form."""
    found = []
    for name, levels in {
        "a level": [2.0] * 5,
        "levels that return": [2.0, 1.0, 2.0, 1.0, 3.0, 2.0],
        "a level that grows": [0.8, 1.6, 3.2],
    }.items():
        run = OwnLoop(seed, batch=ROWS)
        raw = run.pipeline.gradients()

        def level(step: int, run: OwnLoop = run, levels: list[float] = levels) -> None:
            run.optimizer.noise_multiplier = levels[step]

        parts = run.residuals(list(run.steps(len(levels), level)), raw)
        exact = bounds.gaussian_epsilon(math.sqrt(sum(s**-2 for s in levels)), DELTA)
        for kind in ("prv", "rdp", "gdp"):
            run.engine.accountant = _copied(run.engine, kind)
            claimed = run.engine.get_epsilon(DELTA)
            text = f"{kind}: claimed {claimed:.4f}, closed form {exact:.4f}"
            found.append(holds(f"drop-in: price of {name} ({kind})", claimed >= exact * (1 - 1e-6), text))
        p = statistics.variance_p_value(np.concatenate(parts))
        found.append(Finding(f"drop-in: noise of {name}", p, "noise follows the level"))
    rate = BATCH / ROWS
    run = OwnLoop(seed)
    levels = [0.9, 2.0] * 6

    def alternate(step: int) -> None:
        run.optimizer.noise_multiplier = levels[step]

    list(run.steps(12, alternate))
    rng = np.random.default_rng(seed)
    price = look.check_price(run.engine.get_epsilon(LARGE_DELTA), LARGE_DELTA, rate, levels, 12, rng)
    shuffled = OwnLoop(seed, poisson_sampling=False, noise_multiplier=2.0)
    list(shuffled.steps(7))  # three batches a pass: two passes and a part of the third
    claimed, exact = shuffled.engine.get_epsilon(DELTA), bounds.gaussian_epsilon(math.sqrt(3) / 2.0, DELTA)
    return [
        *found,
        Finding("drop-in: simulated price", price.p_value, price.detail),
        holds("drop-in: shuffled passes", claimed >= exact * (1 - 1e-6), f"claimed {claimed:.4f}, true {exact:.4f}"),
        holds(
            "drop-in: terms of shuffled passes",
            shuffled.engine.privacy(DELTA).interval.adjacency == "zero-out",
            "no amplification, zero-out",
        ),
    ]


def _copied(engine: PrivacyEngine, kind: str) -> Any:
    made = create_accountant(kind)
    for loop in engine.loops:
        made.follow(loop.spent)
    return made


def adaptive_counts_are_paid(seed: int) -> list[Finding]:
    """The clip norm follows a noisy count, for which the gradient has more noise than is stated for both together."""
    count, rate, target, steps = 0.9, 0.1, 0.5, 60
    run = OwnLoop(
        seed,
        clipping="adaptive",
        target_unclipped_quantile=target,
        clipbound_learning_rate=rate,
        unclipped_num_std=count,
        min_clipbound=1e-3,
        max_clipbound=1e3,
    )
    run.pipeline.settings["clipping"] = "flat"
    raw = run.pipeline.gradients()
    norms = np.linalg.norm(raw, axis=1)
    seen = list(run.steps(steps))
    # Gradient and count together are one release of the stated noise; the count moves by a half.
    own = (NOISE**-2 - (2 * count) ** -2) ** -0.5
    left = []
    for step in seen:
        fraction = target - math.log(step.after / step.clip_norm) / rate
        inside = ((norms[step.rows] <= step.clip_norm) - 0.5).sum()
        left.append(((fraction - 0.5) * BATCH - inside) / count)
    moved = len({step.clip_norm for step in seen})
    return [
        *check_law(run.residuals(seen, raw, lambda step: own), "drop-in, adaptive"),
        Finding("drop-in: noise of the count", statistics.variance_p_value(left), f"over {steps} steps"),
        holds("drop-in: the clip norm moves", moved == steps, f"{moved} clip norms in {steps} steps"),
    ]


def pieces_and_draws(seed: int) -> list[Finding]:
    """Pieces of a draw are one step; several draws in a step are priced as several; what is skipped is counted.

    Many branches: one loop for each way in which draws and steps differ in number.
    """
    run = OwnLoop(seed, batch=ROWS, noise_multiplier=0.0)
    raw = run.pipeline.gradients()
    own = run.pipeline.clipped(raw, CLIP).sum(0)
    before, released = len(run.engine.accountant), []
    with BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=7, optimizer=run.optimizer) as pieces:
        sizes = []
        for x, y, _ in pieces:
            sizes.append(len(x))
            run.optimizer.zero_grad()
            run.backward(x, y)
            run.optimizer.step()
            if next(run.model.parameters()).grad is not None:
                released.append(run.gradient() * ROWS)
    away = float(np.abs(released[-1] - own).max()) / CLIP if released else math.inf
    made = len(run.engine.accountant) - before
    twice = OwnLoop(seed, batch=ROWS, noise_multiplier=2.0)
    for _ in range(3):
        twice.optimizer.zero_grad()
        for _ in range(2):
            for x, y, _rows in twice.loader:
                twice.backward(x, y)
        twice.optimizer.step()
    # A record is in both draws of each of three steps and moves their sum by two clip norms, with noise for one.
    claimed, exact = twice.engine.get_epsilon(DELTA), bounds.gaussian_epsilon(math.sqrt(3) * 2 / 2.0, DELTA)
    sparse = OwnLoop(seed, batch=1)
    drawn, left_out = 0, 0
    for _ in range(2):
        for x, y, _ in sparse.loader:
            drawn += 1
            if not len(x):
                left_out += 1
                continue
            sparse.optimizer.zero_grad()
            sparse.backward(x, y)
            sparse.optimizer.step()
    counted = len(sparse.engine.accountant)
    # A batch of nobody may come as a blank row, which gives nothing.
    blanks = OwnLoop(seed, batch=1, rand_on_empty=True, noise_multiplier=0.0)
    nobody = [
        float(np.abs(step.released).max()) for step in blanks.steps(60) if len(step.rows) == 1 and not step.rows[0]
    ]
    zeros = sum(size == 0.0 for size in nobody)
    whole = OwnLoop(seed, batch=1)
    silent = sum(not np.abs(step.released).max() > 0 for step in whole.steps(30))
    skipped = OwnLoop(seed, batch=ROWS, noise_multiplier=2.0)
    for number, (x, y, _) in enumerate(batch for _ in range(6) for batch in skipped.loader):
        skipped.backward(x, y)
        if number % 2:
            skipped.optimizer.signal_skip_step(False)
        else:
            skipped.optimizer.signal_skip_step(True)
        skipped.optimizer.step()
        skipped.optimizer.zero_grad()
    skipping, true = skipped.engine.get_epsilon(DELTA), bounds.gaussian_epsilon(math.sqrt(3) * 2 / 2.0, DELTA)
    return [
        holds("drop-in: pieces are one step", made == 1 and len(sizes) == 5 and away < 1e-3, f"{made} steps, {sizes}"),
        holds("drop-in: several draws", claimed >= exact * (1 - 1e-6), f"claimed {claimed:.4f}, true {exact:.4f}"),
        holds("drop-in: skipped steps", skipping >= true * (1 - 1e-6), f"claimed {skipping:.4f}, true {true:.4f}"),
        holds("drop-in: batches left out", counted == drawn, f"{counted} of {drawn} counted, {left_out} were empty"),
        # Row 0 itself is in one of thirty batches; a blank carries its number in more than ten of sixty.
        holds("drop-in: blank rows", zeros > 4, f"{zeros} of {len(nobody)} batches of row 0 gave nothing"),
        holds("drop-in: empty batches", silent == 0, f"{silent} steps of 30 released no noise"),
    ]


def misuse_is_refused(seed: int) -> list[Finding]:
    """A batch used twice, a step without one, models that mix examples, and loaders that cannot be sampled."""

    def used_twice() -> None:
        run = OwnLoop(seed)
        for x, y, _ in run.loader:
            if len(x):
                run.backward(x, y)
                run.optimizer.step()
                run.backward(x, y)
                run.optimizer.step()
                return

    def no_batch() -> None:
        OwnLoop(seed).optimizer.step()

    def evaluated() -> None:
        run = OwnLoop(seed)
        x, y = models.table(seed)
        run.backward(x, y)
        run.optimizer.step()

    def mixing() -> None:
        class Mixed(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(models.FEATURES, models.CLASSES)

            def forward(self, x: Tensor) -> Tensor:
                found: Tensor = self.layer(x - x.mean(0))
                return found

        model, (x, y) = Mixed(), models.table(seed)
        _, optimizer, loader = PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(TensorDataset(x, y), batch_size=20),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )
        for a, b in loader:
            CRITERION(model(a), b).backward()
            optimizer.step()

    def made(**options: Any) -> Callable[[], object]:
        return lambda: OwnLoop(seed, **options)

    def norms() -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(TensorDataset(torch.zeros(8, 4)), batch_size=4),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )

    from tacit.sgd.errors import ClippingError

    fixed = ModuleValidator.fix(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))
    private = OwnLoop(seed)
    return [
        refused(
            "drop-in: refusals",
            {
                "a batch used twice": (used_twice, RuntimeError),
                "a step without a batch": (no_batch, RuntimeError),
                "data beside the loader": (evaluated, (RuntimeError, ClippingError)),
                "examples that reach each other": (mixing, (ClippingError, RuntimeError)),
                "batch normalisation": (norms, UnsupportedModuleError),
                "an unknown mode": (made(grad_sample_mode="magic"), ValueError),
                "an unknown reduction": (made(loss_reduction="max"), ValueError),
                "an unknown way of clipping": (made(clipping="never"), ValueError),
                "a list for all": (made(max_grad_norm=[1.0] * 4), ValueError),
                "a list of another length": (made(clipping="per_layer", max_grad_norm=[1.0]), ValueError),
                "bounds below 0": (made(clipping="per_layer", max_grad_norm=[-1.0] * 4), ValueError),
                "an argument that there is not": (made(cliping=1), TypeError),
                "noise below 0": (made(noise_multiplier=-1.0), ValueError),
                "a count that costs too much": (made(clipping="adaptive", unclipped_num_std=0.1), ValueError),
                "a range in reverse": (made(clipping="adaptive", min_clipbound=2.0, max_clipbound=1.0), ValueError),
                "a length without a ledger": (made(steps=3), ValueError),
                "a ledger without a data set": (lambda: PrivacyEngine(ledger=Ledger()), ValueError),
                "an accountant that is none": (lambda: PrivacyEngine(accountant="best"), ValueError),
                "another library's accountant": (
                    lambda: setattr(PrivacyEngine(), "accountant", object()),
                    TypeError,
                ),
                "private twice": (
                    lambda: PrivacyEngine().make_private(
                        module=private.model,
                        optimizer=private.optimizer,
                        data_loader=private.loader,
                        noise_multiplier=1.0,
                        max_grad_norm=1.0,
                    ),
                    ValueError,
                ),
                "repeatable and secret": (
                    lambda: OwnLoop(
                        seed, engine=PrivacyEngine(secure_mode=True), noise_generator=torch.Generator().manual_seed(1)
                    ),
                    ValueError,
                ),
                "a wrapper without asking": (lambda: GradSampleModule(nn.Linear(2, 2)), NotImplementedError),
                "a parameter more": (lambda: private.optimizer.add_param_group({}), Exception),
            },
        ),
        holds("drop-in: fixed", not any(isinstance(m, nn.BatchNorm2d) for m in fixed.modules()), "no batch norm left"),
    ]


def charges_come_first(seed: int) -> list[Finding]:
    """With a ledger the whole run is charged before its first step, and no step goes beyond what is charged."""

    def ledger(epsilon: float = 50.0) -> Ledger:
        made = Ledger()
        made.register("people", epsilon=epsilon, delta=1e-4, size_public=True)
        return made

    books = ledger()
    run = OwnLoop(seed, engine=PrivacyEngine(ledger=books, dataset="people"), steps=4, target_delta=DELTA)
    steps = run.steps(4)
    next(steps)
    first, spent = books.budget("people").charges, charged(books, DELTA)
    list(steps)
    done = run.engine.get_epsilon(DELTA)

    def one_more() -> None:
        list(run.steps(1))

    def less_noise() -> None:
        other = OwnLoop(seed, engine=PrivacyEngine(ledger=ledger(), dataset="people"), steps=4)
        other.optimizer.noise_multiplier = NOISE / 2
        list(other.steps(1))

    def several_draws() -> None:
        other = OwnLoop(seed, engine=PrivacyEngine(ledger=ledger(), dataset="people"), steps=4)
        for x, y, _ in other.loader:
            other.backward(x, y)
        other.optimizer.step()

    def too_much() -> None:
        OwnLoop(seed, engine=PrivacyEngine(ledger=ledger(0.01), dataset="people"), steps=400)

    found = [
        holds("drop-in: charged first", first == 1, f"{first} charges after the first step"),
        holds("drop-in: charged in full", spent >= done * (1 - 1e-3), f"charged {spent:.4f}, spent {done:.4f}"),
        refused(
            "drop-in: beyond the charge",
            {
                "a step more": (one_more, ChargeError),
                "less noise": (less_noise, ChargeError),
                "several draws": (several_draws, ChargeError),
                "more than the budget": (too_much, BudgetExceeded),
                "no length": (
                    lambda: OwnLoop(seed, engine=PrivacyEngine(ledger=ledger(), dataset="people")),
                    ValueError,
                ),
            },
        ),
    ]
    target = OwnLoop(seed, target_epsilon=1.0, target_delta=LARGE_DELTA, epochs=4)
    sigma = float(target.optimizer.noise_multiplier)
    list(target.steps(12))
    rng = np.random.default_rng(seed)
    price = look.check_price(1.0, LARGE_DELTA, BATCH / ROWS, sigma, 12, rng)
    kept = target.engine.get_epsilon(LARGE_DELTA)
    return [
        *found,
        Finding("drop-in: noise for a target", price.p_value, price.detail),
        holds("drop-in: target kept", kept <= 1.0 * (1 + 1e-6), f"ε = {kept:.5f} of 1 after what was asked for"),
    ]


def checkpoints_remember(seed: int) -> list[Finding]:
    """What a checkpoint had spent is counted on, the noise after it is new, and a charge serves one run."""
    books = Ledger()
    books.register("people", epsilon=80.0, delta=1e-4, size_public=True)
    whole = bounds.gaussian_epsilon(math.sqrt(4) / 2.0, DELTA)

    def begun(**more: Any) -> OwnLoop:
        return OwnLoop(seed, batch=ROWS, noise_multiplier=2.0, **more)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.pt"
        run = begun()
        first = [step.released for step in run.steps(2)]
        run.engine.save_checkpoint(path=path, module=run.model, optimizer=run.optimizer)
        other = begun()
        other.engine.load_checkpoint(path=path, module=other.model, optimizer=other.optimizer)
        later = [step.released for step in other.steps(2)]
        claimed = other.engine.get_epsilon(DELTA)
        fresh = not any(np.allclose(a, b) for a in first for b in later)
        paid = begun(engine=PrivacyEngine(ledger=books, dataset="people"), steps=4)
        list(paid.steps(2))
        paid.engine.save_checkpoint(path=path, module=paid.model, optimizer=paid.optimizer)
        on = begun(engine=PrivacyEngine(ledger=books, dataset="people"), steps=4)
        on.engine.load_checkpoint(path=path, module=on.model, optimizer=on.optimizer)
        list(on.steps(2))
        once = books.budget("people").charges
        again = begun(engine=PrivacyEngine(ledger=books, dataset="people"), steps=4)
        again.engine.load_checkpoint(path=path, module=again.model, optimizer=again.optimizer)
        list(again.steps(2))
        twice = books.budget("people").charges
        strange = refused(
            "drop-in: checkpoints",
            {
                "not charged": (
                    lambda: begun().engine.load_checkpoint(path=path, module=run.model),
                    Exception,
                ),
            },
        )
    return [
        holds("drop-in: resumed", claimed >= whole * (1 - 1e-6), f"claimed {claimed:.4f}, closed form {whole:.4f}"),
        holds("drop-in: new noise after a checkpoint", fresh, "no release is made twice"),
        holds("drop-in: one charge, one run", (once, twice) == (1, 2), f"{once} charges, then {twice}"),
        strange,
    ]


def prices_of_the_analysis(seed: int) -> list[Finding]:
    """Opacus' functions and accountants state no less than closed forms; schedules set what they say."""
    sigma, steps = 2.0, 9
    exact = bounds.gaussian_epsilon(math.sqrt(steps) / sigma, DELTA)
    orders = [2.0, 8.0, 32.0]
    curve = rdp.compute_rdp(q=1.0, noise_multiplier=sigma, steps=steps, orders=orders)
    below = [order * steps / (2 * sigma**2) for order in orders]
    proved, _ = rdp.get_privacy_spent(
        orders=[float(o) for o in range(2, 60)], rdp=[o * steps / 8 for o in range(2, 60)], delta=DELTA
    )
    two = bounds.gaussian_epsilon(2 * math.sqrt(steps) / sigma, DELTA)
    named = {
        "Poisson": gdp.compute_eps_poisson(steps=steps, noise_multiplier=sigma, sample_rate=1.0, delta=DELTA) / exact,
        "fixed size": gdp.compute_eps_uniform(steps=steps, noise_multiplier=sigma, sample_rate=1.0, delta=DELTA)
        / bounds.gaussian_epsilon(math.sqrt(steps) / sigma, DELTA),
        "μ": gdp.compute_mu_poisson(steps=steps, noise_multiplier=sigma, sample_rate=1.0) / (math.sqrt(steps) / sigma),
        "μ, fixed size": gdp.compute_mu_uniform(steps=steps, noise_multiplier=sigma, sample_rate=0.5)
        / (2 * math.sqrt(steps) / sigma),
        "ε of μ": gdp.eps_from_mu(mu=2 * math.sqrt(steps) / sigma, delta=DELTA) / two,
        "δ of μ": gdp.delta_eps_mu(eps=exact, mu=math.sqrt(steps) / sigma) / DELTA,
        "Rényi": proved / exact,
        **{f"Rényi of order {o:g}": c / b for o, c, b in zip(orders, curve, below, strict=True)},  # type: ignore[arg-type]
    }
    for kind in ("prv", "rdp", "gdp"):
        accountant = create_accountant(kind)
        for _ in range(steps):
            accountant.step(noise_multiplier=sigma, sample_rate=1.0)
        kept = create_accountant(kind)
        kept.load_state_dict(accountant.state_dict())
        named[kind] = accountant.get_epsilon(DELTA) / exact
        named[f"{kind}, read back"] = kept.get_epsilon(DELTA) / exact
    noise = get_noise_multiplier(target_epsilon=exact, target_delta=DELTA, sample_rate=1.0, steps=steps)
    named["noise for a target"] = noise / sigma
    low = {name: ratio for name, ratio in named.items() if not ratio >= 1 - 1e-3}
    run = OwnLoop(seed, batch=ROWS)
    schedules = [
        ExponentialNoise(run.optimizer, gamma=0.5),
        StepNoise(run.optimizer, step_size=1, gamma=2.0),
        LambdaNoise(run.optimizer, noise_lambda=lambda epoch: 1.0 + epoch),
        ExponentialGradClip(run.optimizer, gamma=0.5),
    ]
    seen = []
    for schedule in schedules:
        schedule.step()
        seen.append((float(run.optimizer.noise_multiplier), float(run.optimizer.max_grad_norm)))
    wanted = [(NOISE / 2, CLIP), (NOISE, CLIP), (2 * NOISE, CLIP), (2 * NOISE, CLIP / 2)]
    right = bool(np.allclose(seen, wanted))
    step = next(run.steps(1))
    left = run.residuals([step], run.pipeline.gradients())
    sampler = UniformWithReplacementSampler(num_samples=400, sample_rate=0.1, steps=200)
    masks = np.zeros((200, 400), dtype=bool)
    for number, rows in enumerate(sampler):
        masks[number, rows] = True
    from tacit import accounting as acc

    taken = look.check_sampling(masks, acc.PoissonSampled(acc.Gaussian(1.0), 0.1) * 200)
    return [
        holds("drop-in: analysis", not low, f"below the closed form: {low}" if low else f"{len(named)} figures"),
        holds("drop-in: schedules", right, f"noise and clip norm {seen}"),
        Finding("drop-in: noise by schedule", statistics.variance_p_value(left), "follows noise and clip norm"),
        *(Finding(f"drop-in: {f.check}", f.p_value, f.detail) for f in taken),
    ]


def layers_are_layers(seed: int) -> list[Finding]:
    """Recurrent layers and attention of the drop-in: gradients of single examples, and what a release of them is."""
    from tacit.opacus.layers import DPGRU, DPLSTM, DPRNN, DPMultiheadAttention

    class Sequence(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner, self.out = inner, nn.Linear(6, models.CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            states = self.inner(x, x, x)[0] if isinstance(self.inner, nn.MultiheadAttention) else self.inner(x)[0]
            found: Tensor = self.out(states.mean(1))
            return found

    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(12, 4, 6, generator=generator)
    y = torch.randint(models.CLASSES, (12,), generator=generator)
    found = []
    for name, inner in {
        "LSTM": DPLSTM(6, 6, batch_first=True, bidirectional=False),
        "GRU": DPGRU(6, 6, batch_first=True),
        "RNN": DPRNN(6, 6, batch_first=True),
        "attention": DPMultiheadAttention(6, 2, batch_first=True),
    }.items():
        model = Sequence(inner)
        pipeline = Pipeline(model, models.CRITERION, (x, y))
        raw = pipeline.gradients()
        kept = GradSampleModule(copy.deepcopy(model), keep_grad_sample=True)
        CRITERION(kept(x), y).backward()
        single = torch.cat([p.grad_sample.flatten(1) for p in kept.parameters()], 1).double().numpy()  # type: ignore[attr-defined]
        away = float(np.abs(single - raw).max()) / max(float(np.abs(raw).max()), 1e-9)
        kept.to_standard_module()
        made, optimizer, loader = _private(model, x, y)
        for a, b in loader:
            optimizer.zero_grad()
            CRITERION(made(a), b).backward()
            optimizer.step()
        total = torch.cat([p.grad.double().flatten() for p in made.parameters()]).numpy() * 12
        off = float(np.linalg.norm(total - pipeline.clipped(raw, 0.05).sum(0))) / 0.05
        found.append(
            holds(f"drop-in: {name}", away < 1e-3 and off < 0.05, f"single {away:.2g}, sum {off:.2g} norms off")
        )
    return found


def _private(model: nn.Module, x: Tensor, y: Tensor) -> Any:
    twin = copy.deepcopy(model)
    return PrivacyEngine().make_private(
        module=twin,
        optimizer=torch.optim.SGD(twin.parameters(), lr=0.0),
        data_loader=DataLoader(TensorDataset(x, y), batch_size=len(x)),
        noise_multiplier=0.0,
        max_grad_norm=0.05,
    )


SCENES = (
    Scene("drop-in: sums and noise", "opacus", sums_and_noise),
    Scene("drop-in: sensitivity", "opacus", people_move_by_the_clip_norm),
    Scene("drop-in: noise levels", "opacus", noise_levels_are_priced),
    Scene("drop-in: adaptive", "opacus", adaptive_counts_are_paid),
    Scene("drop-in: pieces and draws", "opacus", pieces_and_draws),
    Scene("drop-in: refusals", "opacus", misuse_is_refused),
    Scene("drop-in: charges", "opacus", charges_come_first, long=True),
    Scene("drop-in: checkpoints", "opacus", checkpoints_remember),
    Scene("drop-in: analysis", "opacus", prices_of_the_analysis),
    Scene("drop-in: layers", "opacus", layers_are_layers),
)
