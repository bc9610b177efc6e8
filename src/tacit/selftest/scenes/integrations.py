"""Do Hugging Face's Trainer and Lightning train as they are priced? One draw a step, however it is cut into pieces.

The weights stand still, the batches carry the numbers of their rows, and what reaches the optimizer is compared with
gradients by plain backward passes.
"""

from __future__ import annotations

import contextlib
import copy
import math
import tempfile
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tacit.audit import bounds, statistics
from tacit.audit import implementation as look
from tacit.audit.findings import Finding, holds
from tacit.ledger import BudgetExceeded, Ledger
from tacit.selftest import models
from tacit.selftest.laws import check_law
from tacit.selftest.scene import Scene, charged, refused

ROWS, NOISE, CLIP = models.ROWS, 1.3, 0.5
DELTA, LARGE_DELTA = 1e-5, 0.02


class Watched(nn.Module):
    """A network whose result has a name, as in transformers."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, labels: Tensor | None = None, index: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.inner(x)
        return {"logits": logits} | ({} if labels is None else {"loss": nn.functional.cross_entropy(logits, labels)})


class SeenSteps:
    """What reached the optimizer, and the rows since the last time."""

    def __init__(self, optimizer: torch.optim.Optimizer, seen: list[npt.NDArray[np.int64]]) -> None:
        self.released: list[npt.NDArray[np.float64]] = []
        self.pieces: list[list[npt.NDArray[np.int64]]] = []
        self._seen = seen
        optimizer.register_step_post_hook(self._look)  # after whatever else waits for the step

    def _look(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        given = [p.grad for group in optimizer.param_groups for p in group["params"]]
        self.released.append(torch.cat([g.detach().double().flatten() for g in given]).numpy())
        self.pieces.append(list(self._seen))
        self._seen.clear()

    def rows(self) -> list[npt.NDArray[np.int64]]:
        """The rows of each step."""
        return [np.concatenate(pieces) if pieces else np.zeros(0, np.int64) for pieces in self.pieces]


def _sum(name: str, steps: SeenSteps, seed: int, batch: int) -> Finding:
    """What reached the optimizer in a run with nearly no noise, against the clipped sum."""
    scene = models.network(seed)
    own = scene.clipped(scene.gradients(), CLIP)
    away = max(
        float(np.linalg.norm(g * batch - own[r].sum(0))) / CLIP
        for g, r in zip(steps.released, steps.rows(), strict=True)
    )
    return holds(f"{name}: sum", away < 0.02, f"{away:.2g} clip norms from the clipped sum")


#: So little noise that the sum is seen.
LITTLE = 1e-6


def _findings(name: str, steps: SeenSteps, seed: int, batch: int) -> list[Finding]:
    """Sums, noise and draws of a run of the network of :func:`tacit.selftest.models.network`."""
    scene = models.network(seed)
    raw = scene.gradients()
    own = scene.clipped(raw, CLIP)
    rows = steps.rows()
    twice = sum(len(np.unique(r)) != len(r) for r in rows)
    left = [(g * batch - own[r].sum(0)) / (NOISE * CLIP) for g, r in zip(steps.released, rows, strict=True)]
    sizes = [len(r) for r in rows]
    rate = batch / ROWS
    return [
        *check_law(left, name),
        holds(f"{name}: one draw a step", twice == 0, f"in {twice} of {len(rows)} steps a record was twice"),
        Finding(f"{name}: sizes of draws", statistics.dispersion_p_value(sizes, ROWS, rate), f"sizes {sizes}"),
    ]


# -- Trainer -----------------------------------------------------------------------------------------------------------


def _losses(model: Any, inputs: Any) -> Tensor:
    logits = model(inputs["x"])["logits"]
    found: Tensor = nn.functional.cross_entropy(logits, inputs["labels"], reduction="none")
    return found


class _Noisy(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Records that are read with noise of their own each time, as augmented pictures are."""

    def __init__(self, rows: list[dict[str, torch.Tensor]]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = self.rows[index]
        return row | {"x": row["x"] + 0.01 * torch.randn_like(row["x"])}


def _trainer(seed: int, folder: str, *, batch: int = 5, pieces: int = 2, steps: int = 16, **more: Any) -> Any:
    from transformers import Trainer, TrainingArguments

    model = Watched(copy.deepcopy(models.network(seed).model)).train()
    x, y = models.table(seed)
    data = [{"x": x[i], "labels": y[i], "index": torch.tensor(i)} for i in range(ROWS)]
    usual: dict[str, Any] = {
        "per_device_train_batch_size": batch,
        "gradient_accumulation_steps": pieces,
        "max_steps": steps,
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "dataloader_pin_memory": False,
        "logging_strategy": "no",
        "save_strategy": "no",
        "max_grad_norm": 0.0,
    }
    change = more.pop("change", "")
    if change == "other":
        data[3]["x"] = data[3]["x"] + 1.0
    arguments = TrainingArguments(folder, **(usual | more))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    given = _Noisy(data) if change == "random" else data
    made = Trainer(model, arguments, train_dataset=given, optimizers=(optimizer, None))
    return made, model, optimizer


def _note_rows(trainer: Any) -> list[npt.NDArray[np.int64]]:
    """Where each piece that the trainer trains on leaves the numbers of its rows."""
    step, seen = trainer.training_step, list[npt.NDArray[np.int64]]()

    def noted(model: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
        seen.append(inputs["index"].numpy().copy())
        return step(model, inputs, *rest, **named)

    trainer.training_step = noted
    return seen


def trainer_steps_are_draws(seed: int) -> list[Finding]:
    """Batches that are accumulated are pieces of one draw; the sum is clipped, noisy and priced as that draw."""
    from tacit.integrations.transformers import make_private

    found = []
    for pieces in (1, 3):
        with tempfile.TemporaryDirectory() as folder:
            made, model, optimizer = _trainer(seed, folder, batch=12 // pieces, pieces=pieces, steps=14)
            # What a trainer counts operations by, in models of transformers.
            model.main_input_name, model.num_parameters = "x", lambda **_: 100
            private = make_private(
                made,
                loss=_losses,
                noise_multiplier=NOISE,
                max_grad_norm=CLIP,
                target_delta=LARGE_DELTA,
                key_file=Path(folder) / "run.key",
            )
            steps = SeenSteps(optimizer, _note_rows(private))
            private.train()
            claimed = private.privacy.upper
        name = f"Trainer, {pieces} pieces"
        kept = {count: getattr(private.state, count) for count in ("total_flos", "num_input_tokens_seen")}
        found.append(
            holds(f"{name}: state", not any(kept.values()), f"sizes of batches that a checkpoint keeps: {kept}")
        )
        found += _findings(name, steps, seed, 12)
        rng = np.random.default_rng(seed)
        price = look.check_price(claimed, LARGE_DELTA, 12 / ROWS, NOISE, 14, rng)
        found.append(Finding(f"{name}: price", price.p_value, price.detail))
        found.append(holds(f"{name}: steps", len(steps.released) == 14, f"{len(steps.released)} of 14 steps"))
        with tempfile.TemporaryDirectory() as folder:
            made, _, optimizer = _trainer(seed, folder, batch=12 // pieces, pieces=pieces, steps=3)
            key = Path(folder) / "run.key"
            private = make_private(
                made, loss=_losses, noise_multiplier=LITTLE, max_grad_norm=CLIP, target_delta=DELTA, key_file=key
            )
            steps = SeenSteps(optimizer, _note_rows(private))
            private.train()
        found.append(_sum(name, steps, seed, 12))
    return found


def trainer_pays(seed: int) -> list[Finding]:
    """The whole run is charged before its first step; what does not fit the budget or the arguments is refused."""
    from tacit.integrations.transformers import make_private

    books, poor = Ledger(), Ledger()
    books.register("people", epsilon=80.0, delta=1e-4)
    poor.register("people", epsilon=0.01, delta=1e-6)
    first: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        made, _, optimizer = _trainer(seed, folder, batch=ROWS, pieces=1, steps=4)
        made.eval_dataset = _trainer(seed + 1, folder)[0].train_dataset
        private = make_private(
            made,
            loss=_losses,
            noise_multiplier=2.0,
            max_grad_norm=CLIP,
            target_delta=DELTA,
            ledger=books,
            dataset="people",
            key_file=Path(folder) / "run.key",
        )
        optimizer.register_step_post_hook(lambda *_: first.append(books.budget("people").charges))
        private.train()
        exact, spent = bounds.gaussian_epsilon(math.sqrt(4) / 2.0, DELTA), charged(books, DELTA)
        claimed = private.privacy.upper
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of metrics that are withheld
            measured = [private.evaluate(), private.evaluate(private.train_dataset, metric_key_prefix="seen")]
        told = {name for entry in private.state.log_history for name in entry if "loss" in name}

        def again(**options: Any) -> Any:
            other = _trainer(seed, folder, batch=ROWS, pieces=1, steps=4)[0]
            usual: dict[str, Any] = {"noise_multiplier": 2.0, "target_delta": DELTA, "loss": _losses}
            return make_private(other, **(usual | {"key_file": Path(folder) / "other.key"} | options))

        target = again(noise_multiplier=None, target_epsilon=1.0)
        target.train()
        kept = target.privacy.upper
        cases = refused(
            "Trainer: refusals",
            {
                "more than the budget": (
                    lambda: again(ledger=poor, dataset="people").train(),
                    BudgetExceeded,
                ),
                "a ledger without a data set": (lambda: again(ledger=books), ValueError),
                "neither noise nor ε": (lambda: again(noise_multiplier=None), ValueError),
                "both noise and ε": (lambda: again(target_epsilon=1.0), ValueError),
                "noise below 0": (lambda: again(noise_multiplier=-1.0).train(), ValueError),
                "a clip norm of 0": (lambda: again(max_grad_norm=0.0).train(), ValueError),
                "not a trainer": (
                    lambda: make_private(object(), noise_multiplier=1.0, target_delta=DELTA),
                    Exception,
                ),
            },
        )
    return [
        holds("Trainer: charged first", set(first) == {1}, f"charges at the steps: {first}"),
        holds("Trainer: charged in full", spent >= exact * (1 - 1e-6), f"charged {spent:.4f} of {exact:.4f}"),
        holds("Trainer: claim", claimed >= exact * (1 - 1e-6), f"claimed {claimed:.4f} of {exact:.4f}"),
        holds("Trainer: logs", len(measured) == 2 and told == {"eval_loss"}, f"logged: {sorted(told)}"),
        holds("Trainer: target", 0.5 < kept <= 1.0 * (1 + 1e-6), f"ε = {kept:.4f} of 1"),
        cases,
    ]


class _Cut(Exception):
    """The power is cut."""


def trainers_go_on(seed: int) -> list[Finding]:
    """Cut off and resumed, a run makes the rest of its steps with noise of their own; other data are another run."""
    from transformers import TrainerCallback

    from tacit.integrations.transformers import make_private

    class Cut(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            if state.global_step == 3:
                raise _Cut

    class Look(TrainerCallback):  # type: ignore[misc]
        """Keeps what reached the optimizer, without a hook on it: that would be another optimizer."""

        def __init__(self, seen: list[Any]) -> None:
            self.seen = seen

        def on_optimizer_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            given = [p.grad.double().flatten() for p in more["model"].parameters()]
            self.seen.append(torch.cat(given).numpy().copy())

    found = []
    for name, change, clip in (
        ("the same data", "", CLIP),
        ("other data", "other", CLIP),
        ("records read at random", "random", CLIP),
        ("another clip norm", "", CLIP / 2),
    ):
        fork = change != "" or clip != CLIP
        books, seen = Ledger(), list[Any]()
        books.register("people", epsilon=80.0, delta=1e-4)
        with tempfile.TemporaryDirectory() as folder:

            def made(clip: float = CLIP, **more: Any) -> Any:
                kept = {"save_strategy": "steps", "save_steps": 2, "save_only_model": False}
                trainer = _trainer(seed, folder, batch=ROWS, pieces=1, steps=5, **kept, **more)[0]
                private = make_private(
                    trainer,
                    loss=_losses,
                    noise_multiplier=2.0,
                    max_grad_norm=clip,
                    target_delta=DELTA,
                    ledger=books,  # noqa: B023
                    dataset="people",
                    key_file=Path(folder) / "run.key",
                )

                private.add_callback(Look(seen))  # noqa: B023
                return private

            first = made(change=change if change == "random" else "")
            first.add_callback(Cut())
            with contextlib.suppress(_Cut):
                first.train()
            rest = made(clip, change=change)
            rest.train(resume_from_checkpoint=True)
            claimed, charges, spent = rest.privacy.upper, books.budget("people").charges, charged(books, DELTA)
        # Saved after two steps and cut after three: the third is made again, with the same noise on the same data.
        again = sum(np.allclose(a, b) for k, a in enumerate(seen) for b in seen[:k])
        true = bounds.gaussian_epsilon(math.sqrt(6 if fork else 5) / 2.0, DELTA)
        right = (len(seen), again, charges) == ((6, 0, 2) if fork else (6, 1, 1))
        text = f"{len(seen)} steps, {again} made twice, {charges} charges"
        found += [
            holds(f"Trainer: resumed ({name})", right, text),
            holds(
                f"Trainer: claim of a resumed run ({name})",
                claimed >= true * (1 - 1e-6),
                f"{claimed:.4f} of {true:.4f}",
            ),
            holds(
                f"Trainer: charge of a resumed run ({name})", spent >= true * (1 - 1e-6), f"{spent:.4f} of {true:.4f}"
            ),
        ]
    return found


def losses_are_of_one_example(seed: int) -> list[Finding]:
    """The loss of an example is the same in any company, and that of the plain formula."""
    from tacit.integrations.losses import blank, per_example_loss

    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randn(6, 5, 7, generator=generator)
    labels = torch.randint(7, (6, 5), generator=generator)
    labels[0, 2:], labels[1] = -100, -100
    classes, whole = torch.randn(6, 7, generator=generator), torch.randint(7, (6,), generator=generator)
    where = torch.tensor([0, 4, 2, -1, 5, 3])

    def head(name: str, **fixed: Any) -> Any:
        def forward(self: Any, **given: Any) -> dict[str, Tensor]:
            return {key: given[key] for key in ("logits", "start_logits", "end_logits") if key in given}

        kind = type(name, (nn.Module,), {"forward": forward, "config": SimpleNamespace(**fixed)})
        return kind()

    entropy = nn.functional.cross_entropy
    cases: dict[str, tuple[Any, dict[str, Tensor], Any]] = {
        "causal": (
            head("AForCausalLM"),
            {"logits": tokens, "labels": labels},
            lambda k: entropy(tokens[k, :-1], labels[k, 1:]),
        ),
        "tokens": (
            head("AForTokenClassification"),
            {"logits": tokens, "labels": labels},
            lambda k: entropy(tokens[k], labels[k]),
        ),
        "classes": (
            head("AForSequenceClassification", problem_type=None),
            {"logits": classes, "labels": whole},
            lambda k: entropy(classes[k], whole[k]),
        ),
        "numbers": (
            head("AForSequenceClassification", problem_type=None),
            {"logits": classes[:, :1], "labels": classes[:, 1]},
            lambda k: (classes[k, 0] - classes[k, 1]).square(),
        ),
        "several labels": (
            head("AForSequenceClassification", problem_type=None),
            {"logits": classes, "labels": (tokens[:, 0] > 0).float()},
            lambda k: nn.functional.binary_cross_entropy_with_logits(classes[k], (tokens[k, 0] > 0).float()),
        ),
        "spans": (
            head("AForQuestionAnswering"),
            {
                "start_logits": tokens[:, :, 0],
                "end_logits": tokens[:, :, 1],
                "start_positions": where,
                "end_positions": whole.clamp(max=4),
            },
            lambda k: (
                (
                    (entropy(tokens[k, :, 0], where[k]) if 0 <= where[k] < 5 else 0.0)
                    + entropy(tokens[k, :, 1], whole[k].clamp(max=4))
                )
                / 2
            ),
        ),
    }
    found = []
    for name, (model, batch, plain) in cases.items():
        together = per_example_loss(model, batch)
        alone = torch.stack([per_example_loss(model, {n: v[k : k + 1] for n, v in batch.items()})[0] for k in range(6)])
        wanted = torch.tensor([float(torch.nan_to_num(torch.as_tensor(plain(k)), nan=0.0)) for k in range(6)])
        away = max(float((together - alone).abs().max()), float((together - wanted).abs().max()))
        found.append(holds(f"losses: {name}", together.shape == (6,) and away < 1e-5, f"{away:.2g} from one by one"))
    return [
        *found,
        refused(
            "losses: refusals",
            {
                "an unknown head": (lambda: per_example_loss(head("AModel"), {}), ValueError),
                "no labels": (lambda: per_example_loss(head("AForCausalLM"), {"logits": tokens}), ValueError),
            },
        ),
        holds("losses: of nobody", float(blank()) == 0.0, "an empty batch"),
    ]


# -- Lightning ---------------------------------------------------------------------------------------------------------


def _lightning(
    seed: int, *, batch: int, epochs: int, pieces: int = 1, folder: Path, saver: Any = None, **options: Any
) -> Any:
    import lightning.pytorch as pl
    from lightning.pytorch.loggers import Logger

    from tacit.integrations.lightning import PrivateTraining

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = copy.deepcopy(models.network(seed).model)
            self.seen: list[npt.NDArray[np.int64]] = []
            self.steps: SeenSteps | None = None

        def training_step(self, batch: Any, index: int) -> Tensor:
            x, y, rows = batch
            self.seen.append(rows.numpy().copy())
            loss: Tensor = nn.functional.cross_entropy(self.inner(x), y)
            self.log("train_loss", loss)
            self.log("given", 1.0)
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.0)
            self.steps = SeenSteps(optimizer, self.seen)
            return optimizer

    class Book(Logger):  # type: ignore[misc]
        """Keeps what is logged."""

        name, version, experiment = "book", 0, None

        def __init__(self) -> None:
            super().__init__()
            self.told: dict[str, float] = {}

        def log_metrics(self, metrics: Any, step: int | None = None) -> None:
            self.told |= dict(metrics)

        def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
            pass

    x, y = models.table(seed)
    module = Module()
    usual: dict[str, Any] = {"target_delta": LARGE_DELTA, "noise_multiplier": NOISE, "max_grad_norm": CLIP}
    private = PrivateTraining(**(usual | {"key_file": folder / "run.key"} | options))
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        callbacks=[private, *([saver] if saver is not None else [])],
        logger=Book(),
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=saver is not None,
        default_root_dir=folder,
        num_sanity_val_steps=0,
        accumulate_grad_batches=pieces,
        gradient_clip_val=None,
    )
    trainer.fit(module, DataLoader(TensorDataset(x, y, torch.arange(ROWS)), batch_size=batch, shuffle=True))
    private.told = trainer.logger.told
    return private, module.steps


def lightning_steps_are_draws(seed: int) -> list[Finding]:
    """One draw a step: the clipped sum, noise of the stated size, and the price of that; what loggers are told."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    books = Ledger()
    books.register("people", epsilon=80.0, delta=0.05)
    with tempfile.TemporaryDirectory() as folder:
        private, steps = _lightning(seed, batch=10, epochs=5, folder=Path(folder))
        count = len(steps.released)
        found = _findings("Lightning", steps, seed, 10)
        rng = np.random.default_rng(seed)
        price = look.check_price(private.privacy.upper, LARGE_DELTA, 10 / ROWS, NOISE, count, rng)
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"noise_multiplier": 2.0, "target_delta": DELTA, "ledger": books, "dataset": "people"}
        whole, again = _lightning(seed, batch=ROWS, epochs=4, folder=Path(folder), **options)
        exact = bounds.gaussian_epsilon(math.sqrt(len(again.released)) / 2.0, DELTA)
        spent = charged(books, DELTA)
    with tempfile.TemporaryDirectory() as folder:
        told = _lightning(seed, batch=ROWS, epochs=1, folder=Path(folder), public_logs=("given",))[0].told
    with tempfile.TemporaryDirectory() as folder:
        exactly = _lightning(seed, batch=10, epochs=1, folder=Path(folder), noise_multiplier=LITTLE)[1]
        found.append(_sum("Lightning", exactly, seed, 10))
    with tempfile.TemporaryDirectory() as folder:
        poor = Ledger()
        poor.register("people", epsilon=0.01, delta=1e-6)

        def begun(**more: Any) -> Any:
            return lambda: _lightning(seed, batch=ROWS, epochs=2, folder=Path(folder), **more)

        cases = refused(
            "Lightning: refusals",
            {
                "more than the budget": (begun(ledger=poor, dataset="people", target_delta=1e-7), BudgetExceeded),
                "neither noise nor ε": (begun(noise_multiplier=None), ValueError),
                "a ledger without a data set": (begun(ledger=poor), ValueError),
                "noise below 0": (begun(noise_multiplier=-1.0), ValueError),
                "a file named by a private value": (
                    begun(saver=ModelCheckpoint(folder, filename="{train_loss:.3f}")),
                    ValueError,
                ),
                "the best by a private value": (begun(saver=ModelCheckpoint(folder, monitor="train_loss")), ValueError),
                "people": (begun(unit="person"), Exception),
            },
        )
    return [
        *found,
        holds(
            "Lightning: private values",
            "train_loss" not in told and "given" in told and "epsilon" in told,
            f"logged: {sorted(told)}",
        ),
        Finding("Lightning: price", price.p_value, price.detail),
        holds("Lightning: steps", count == 15, f"{count} of 15 steps"),
        holds("Lightning: closed form", whole.privacy.upper >= exact * (1 - 1e-6), f"{whole.privacy.upper:.4f}"),
        holds("Lightning: charged", spent >= exact * (1 - 1e-6), f"charged {spent:.4f} of {exact:.4f}"),
        cases,
    ]


def lightning_goes_on(seed: int) -> list[Finding]:
    """Cut off and resumed, a model with dropout makes a step again as it was: other masks would show its noise."""
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import ModelCheckpoint

    from tacit.integrations.lightning import PrivateTraining

    seen: list[npt.NDArray[np.float64]] = []

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Dropout(0.5), copy.deepcopy(models.network(seed).model))

        def training_step(self, batch: Any, index: int) -> Tensor:
            loss: Tensor = nn.functional.cross_entropy(self.inner(batch[0]), batch[1])
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.0)

    class Cut(pl.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, trainer: Any, module: Any, *args: Any) -> None:
            given = [p.grad.double().flatten() for p in module.parameters()]
            seen.append(torch.cat(given).numpy().copy())
            if trainer.global_step == 3 and len(seen) == 3:
                raise _Cut

    books = Ledger()
    books.register("people", epsilon=80.0, delta=1e-4)
    with tempfile.TemporaryDirectory() as folder:
        saver = {"dirpath": folder, "filename": "{step}", "every_n_train_steps": 2, "save_top_k": -1}
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        for after in (None, f"{folder}/step=2.ckpt"):
            private = PrivateTraining(
                noise_multiplier=2.0,
                max_grad_norm=CLIP,
                target_delta=DELTA,
                key_file=Path(folder) / "run.key",
                ledger=books,
                dataset="people",
            )
            calls = [private, ModelCheckpoint(**saver), Cut()]
            trainer = pl.Trainer(max_epochs=5, accelerator="cpu", devices=1, callbacks=calls, **quiet)
            loader = DataLoader(TensorDataset(*models.table(seed)), batch_size=ROWS, shuffle=True)
            with contextlib.suppress(_Cut):
                trainer.fit(Module(), loader, ckpt_path=after)
        claimed = private.privacy.upper
    again = len(seen) == 6 and bool(np.allclose(seen[2], seen[3]))
    true, charges = bounds.gaussian_epsilon(math.sqrt(5) / 2.0, DELTA), books.budget("people").charges
    text = f"{len(seen)} steps, the third again: {again}; {charges} charge, claimed {claimed:.4f} of {true:.4f}"
    return [holds("Lightning: resumed", again and charges == 1 and claimed >= true * (1 - 1e-6), text)]


SCENES = (
    Scene("Lightning: resumed", "integrations", lightning_goes_on, ("lightning",), long=True),
    Scene("Trainer: draws", "integrations", trainer_steps_are_draws, ("transformers", "accelerate")),
    Scene("Trainer: charges", "integrations", trainer_pays, ("transformers", "accelerate"), long=True),
    Scene("Trainer: resumed", "integrations", trainers_go_on, ("transformers", "accelerate"), long=True),
    Scene("Trainer: losses", "integrations", losses_are_of_one_example),
    Scene("Lightning", "integrations", lightning_steps_are_draws, ("lightning",), long=True),
)
