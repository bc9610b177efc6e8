"""How do I train an ordinary ``LightningModule`` privately? Add the callback :class:`PrivateTraining`.

The callback replaces the train loader by one with Poisson batches of the same expected size (times
``accumulate_grad_batches``, handed out in as many pieces), and makes the optimizer's step private. ``training_step``
stays as it is, with its mean over the batch; the modules that it calls are watched one by one. Checkpoints carry what
was spent, and :class:`PrivateDDPStrategy` runs on several processes.

What ``training_step`` logs (such as a training loss) is computed from private data without noise: the progress bar and
callbacks see it, loggers and checkpoints do not. The callback logs ``epsilon``. docs/howto/lightning.md has a complete
example.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import warnings
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from tacit import accounting as acc
from tacit.accounting.errors import PrivacyWarning
from tacit.integrations.run import PrivateRun
from tacit.integrations.trackers import record
from tacit.ledger import Ledger, OperatorView
from tacit.ledger.surroundings import SearchRefused
from tacit.opacus.data_loader import DPDataLoader, batch_size_of
from tacit.opacus.validators import ModuleValidator
from tacit.sgd.correlation import Banded
from tacit.sgd.errors import BatchMixing
from tacit.sgd.gradients import company, verify
from tacit.sgd.gradients.company import picked
from tacit.sgd.gradients.outside import Attributes
from tacit.sgd.gradients.randomness import remember
from tacit.sgd.hooked.loop import Loop, warn_about_noise

try:
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import (
        BatchSizeFinder,
        LearningRateFinder,
        OnExceptionCheckpoint,
        ThroughputMonitor,
    )
    from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "tacit.integrations.lightning needs Lightning: pip install 'tacit[lightning]'. "
        "See: tacit explain missing-extra",
        name=error.name,
    ) from error


NO_SUM = (
    "training_step gives a loss that is no sum or mean over the examples of the batch: what one of them adds depends "
    "on the others (the variance of outputs, the largest loss, weights by counts, a mean over all tokens, mixed "
    "inputs), and no per-example bound exists. Compute one loss per example and return their mean. "
    "See: tacit explain mixing"
)
#: So many probes to one look at the loss, which takes four passes.
SELDOM = 2


class PrivateDDPStrategy(DDPStrategy):  # type: ignore[misc, unused-ignore]
    """Run one private training on several processes.

    Each process takes its share of every draw. Clipped sums are added up over the processes, and each adds the same
    keyed noise once, so the result is that of a single process. The model is not wrapped in
    ``DistributedDataParallel``, which would average gradients before there is noise.

    Example:
        >>> strategy = PrivateDDPStrategy()  # Trainer(devices=2, strategy=strategy, callbacks=[private])
        >>> isinstance(strategy, DDPStrategy)
        True
    """

    def configure_ddp(self) -> None:
        """Copy the weights of the first process to all others."""
        assert self.model is not None
        with torch.no_grad():
            for tensor in [*self.model.parameters(), *self.model.buffers()]:
                dist.broadcast(tensor.data, 0)


class PrivateTraining(pl.Callback):  # type: ignore[misc, unused-ignore]
    """Make the training of a Lightning ``Trainer`` private, as a callback.

    Guarantee:
        Everything computed from the weights is (``privacy.claim``, ``target_delta``)-DP for zeroing out one record of
        the train loader's data set (with ``groups``, one person with all their records), over all runs of this
        callback. The whole plan is claimed, whatever stops a run, unless :meth:`stop` says otherwise. Metrics on a
        private validation set are not covered.

    Args:
        target_delta: The δ of the guarantee, strictly between 0 and 1.
        noise_multiplier: Standard deviation of the noise divided by ``max_grad_norm``. Give this or ``target_epsilon``.
        target_epsilon: The ε of one whole run; the least noise that keeps it is chosen. Give this or
            ``noise_multiplier``.
        max_grad_norm: The L2 bound on each example's gradient.
        batch_first: Whether the first dimension of inputs and outputs counts the examples (default), or the second.
        show_private: Let loggers and checkpoints have the values logged during training. For logs that only the
            operator sees.
        public_logs: Names of logged values that do not depend on private records.
        key_file: Where the secret key is kept until the run ends, so that it can be resumed. Default: a file in the
            user's state folder.
        ledger: Where all planned steps are charged, before the first one. Default: no ledger.
        dataset: The name under which the data are registered in ``ledger``. Give both or neither.
        purpose: A public note that is stored with the charge.
        unit: The name of what is protected, such as ``"patient"``. It needs ``groups``. Default: ``"record"``, and
            ``"person"`` with ``groups``.
        groups: Whose each record of the train loader's data set is: one id per record, or the name of a column of the
            data set. People are then drawn, batch sizes count people, and each shows one record a step. Default: every
            record is its own unit.
        noise: A :class:`tacit.sgd.Banded`: the noise of a step takes back noise of earlier ones, and groups of records
            take turns (``docs/howto/correlated-noise.md``). Default: each step's noise is its own.

    Raises:
        ValueError: If not exactly one of ``noise_multiplier`` and ``target_epsilon`` is given, or ``target_delta`` is
            out of range.
        UnitError: If ``unit`` names something other than a record, without ``groups``.
        TermsError: If the ledger is registered for another unit or adjacency.

    Example:
        >>> private = PrivateTraining(target_epsilon=3.0, target_delta=1e-5, max_grad_norm=1.0)
        >>> private.run.target_epsilon  # then Trainer(callbacks=[private], ...).fit(module, loader)
        3.0
    """

    def __init__(
        self,
        *,
        target_delta: float,
        noise_multiplier: float | None = None,
        target_epsilon: float | None = None,
        max_grad_norm: float = 1.0,
        batch_first: bool = True,
        show_private: bool = False,
        public_logs: Collection[str] = (),
        key_file: str | os.PathLike[str] | None = None,
        ledger: Ledger | None = None,
        dataset: str | None = None,
        purpose: str = "",
        unit: str | None = None,
        groups: Any = None,
        noise: Banded | None = None,
    ) -> None:
        self.run = PrivateRun(
            noise_multiplier=noise_multiplier,
            target_epsilon=target_epsilon,
            target_delta=target_delta,
            max_grad_norm=max_grad_norm,
            key_file=key_file,
            ledger=ledger,
            dataset=dataset,
            purpose=purpose,
            unit=unit,
            groups=groups,
            noise=noise,
        )
        self.batch_first = batch_first
        self.show_private, self.public_logs = show_private, frozenset(public_logs)
        self._withheld: set[str] = set()
        self._plain_log: Any = None
        self._state: dict[str, Any] | None = None
        self._loader: DPDataLoader | None = None
        self._added_up = False
        if noise_multiplier is not None:
            warn_about_noise(noise_multiplier, level=3)

    # -- setting up -------------------------------------------------------------------------------------------------

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Refuse settings that break the guarantee, and take over the train loader.

        Args:
            trainer: The Lightning trainer.
            pl_module: The module that is trained.
            stage: Only ``"fit"`` is made private.

        Raises:
            NotImplementedError: If the strategy averages gradients before there is noise.
            ValueError: If ``gradient_clip_val``, fp16 or ``ThroughputMonitor`` is used.
            SearchRefused: If ``LearningRateFinder`` or ``BatchSizeFinder`` is used.
            UnsupportedModuleError: If the model has a layer that cannot be trained privately.
        """
        if stage != "fit":
            return
        strategy = trainer.strategy
        if not isinstance(strategy, SingleDeviceStrategy | PrivateDDPStrategy):
            raise NotImplementedError(
                f"{type(strategy).__name__} averages gradients before noise is added: use one device, or "
                "Trainer(strategy=PrivateDDPStrategy()) from tacit.integrations.lightning"
            )
        if trainer.gradient_clip_val is not None:
            raise ValueError("gradients are clipped per example already: leave gradient_clip_val out")
        if trainer.precision in ("16-mixed", "16-true", "16"):
            raise ValueError(
                "fp16 is not supported, because its loss scale changes with the data: use precision='bf16-mixed'"
            )
        if any(isinstance(c, LearningRateFinder | BatchSizeFinder) for c in trainer.callbacks):
            raise SearchRefused(
                "a tuner trains on the private records without privacy and chooses by what it sees: choose learning "
                "rate and batch size with private tuning (tacit.tuning) or on public data"
            )
        if not self.show_private and any(isinstance(c, ThroughputMonitor) for c in trainer.callbacks):
            raise ValueError(
                "ThroughputMonitor writes the sizes of batches, which are private, into loggers: remove it"
            )
        ModuleValidator.validate(pl_module, strict=True)
        self._watch_logs(trainer, pl_module)
        plain = type(strategy).process_dataloader

        def process(loader: Any) -> Any:
            loader = plain(strategy, loader)
            return self._private(trainer, loader) if trainer.training else loader

        strategy.__dict__["process_dataloader"] = process

    def _watch_logs(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Filter what the module and the callbacks log."""
        plain = self._plain_log = pl_module.log

        def log(
            name: str, value: Any, prog_bar: bool = False, logger: bool | None = None, *rest: Any, **more: Any
        ) -> None:
            if trainer.training and not self.show_private and name not in self.public_logs:
                self._withhold(trainer, name)
                logger = False
            plain(name, value, prog_bar, logger, *rest, **more)

        for holder in (pl_module, *trainer.callbacks):
            holder.log = log

    def _withhold(self, trainer: pl.Trainer, name: str) -> None:
        """Warn once that a value is withheld; refuse what would write it into files or train by it."""
        if name in self._withheld:
            return
        names = {name, f"{name}_step", f"{name}_epoch"}
        instead = "use a metric on public data, or a value that does not depend on the data (public_logs=)"
        for saver in trainer.checkpoint_callbacks:
            in_name = any(f"{{{n}" in str(getattr(saver, "filename", "")) for n in names)
            if getattr(saver, "monitor", None) in names or in_name:
                raise ValueError(f"{type(saver).__name__} writes {name!r}, a private value, into its files: {instead}")
        for config in trainer.lr_scheduler_configs:
            if config.reduce_on_plateau and config.monitor in names:
                raise ValueError(
                    f"the learning rate follows {name!r}, a private value without noise, and the weights would too: "
                    f"{instead}, or a schedule that is fixed in advance"
                )
        self._withheld.add(name)
        warnings.warn(
            f"{name!r} is logged during training and withheld from loggers and checkpoints, which hold charged or "
            "public values only. The progress bar and callbacks see it. Name values that do not depend on private "
            "records in PrivateTraining(public_logs=…). show_private=True is for logs that only the operator sees",
            PrivacyWarning,
            stacklevel=4,
        )

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Remove the best score of early stopping from the checkpoint if it is a private value.

        Args:
            trainer: The Lightning trainer.
            pl_module: Not used.
            checkpoint: What will be written, changed in place.
        """
        for callback in trainer.early_stopping_callbacks:
            kept = checkpoint["callbacks"].get(callback.state_key)
            if kept and callback.monitor.removesuffix("_step").removesuffix("_epoch") in self._withheld:
                kept["best_score"] = torch.full_like(
                    kept["best_score"], float("inf") if callback.mode == "min" else -float("inf")
                )

    def _let_go(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        trainer.strategy.__dict__.pop("process_dataloader", None)
        if self._plain_log is not None:
            pl_module.__dict__.pop("log", None)
            for callback in trainer.callbacks:
                callback.log = self._plain_log
            self._plain_log = None

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Give trainer and module back as they were.

        Args:
            trainer: The Lightning trainer.
            pl_module: The module that is trained.
            stage: Not used.
        """
        self._let_go(trainer, pl_module)

    def _private(self, trainer: pl.Trainer, loader: Any) -> DPDataLoader:
        if not isinstance(loader, DataLoader):
            raise ValueError(
                f"the train loader must be a torch DataLoader, not a {type(loader).__name__}. "
                "See: tacit explain unsupported-loader"
            )
        if getattr(trainer, "overfit_batches", 0):
            raise ValueError("overfit_batches repeats one batch, which the price does not cover: leave it out")
        dataset, parts = loader.dataset, trainer.accumulate_grad_batches
        if not hasattr(dataset, "__len__"):
            raise ValueError(
                "an iterable data set cannot be sampled privately: it needs a length and records by index. "
                "See: tacit explain unsupported-loader"
            )
        rank, world = trainer.global_rank, trainer.world_size
        expected = batch_size_of(loader) * parts * world
        batches = self.run.draw_from(dataset, expected, parts=parts, share=(rank, world))
        self._loader = DPDataLoader.from_data_loader(loader, batches=batches, batch_first=self.batch_first)
        return self._loader

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Choose the noise, make the key or take over the saved one, and hook into the module.

        Args:
            trainer: The Lightning trainer.
            pl_module: The module that is trained.

        Raises:
            ValueError: If there is more than one optimizer, or the number of steps is not known in advance.
            RuntimeError: If the train loader was not seen.
            BudgetExceeded: If the ledger's budget does not cover the planned steps.
            CheckpointError: If the run is resumed from a checkpoint that does not fit.
        """
        run = self.run
        if len(trainer.optimizers) != 1:
            raise ValueError(f"private training needs exactly one optimizer, not {len(trainer.optimizers)}")
        if run.batches is None or self._loader is None:
            raise RuntimeError("no train loader was found: pass it to fit, or return it from train_dataloader")
        run.leave()
        state, self._state, self._added_up = self._state, None, False
        run.resume(state, trainer.global_step)
        planned = trainer.estimated_stepping_batches
        if not 1 <= planned < float("inf"):
            raise ValueError("give max_epochs= or max_steps=: the noise depends on the number of steps")
        steps = int(planned)
        (optimizer,) = trainer.optimizers
        schedules = [config.scheduler for config in trainer.lr_scheduler_configs]
        told = {"optimizer": optimizer, "schedule": schedules[0] if schedules else None}
        told |= {"precision": str(trainer.precision), "hparams": repr(dict(pl_module.hparams))}
        stamp = run.stamp(pl_module, self._loader.dataset, self._loader.collate_fn, steps=steps, **told)
        if trainer.world_size > 1:
            _share_key(run, stamp, trainer.global_rank)
        else:
            run.take_key(stamp)
        each_step = [config.scheduler for config in trainer.lr_scheduler_configs if config.interval == "step"]
        schedule = each_step[0] if each_step else None
        loop = run.begin(pl_module, optimizer, steps, schedule=schedule, batch_dim=0 if self.batch_first else 1)
        # Lightning divides the loss by the number of batches it accumulates.
        loop.watch.scale = float(trainer.accumulate_grad_batches)
        if trainer.world_size > 1:
            loop.reduce = _all_reduce(loop)  # type: ignore[method-assign]
        self._loader.loop = loop

    # -- the run ----------------------------------------------------------------------------------------------------

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Seed dropout from the key and the step; with the first batch, and at keyed random ones, look at the loss.

        Lightning's checkpoints do not hold the state of torch's generators. A resumed run would draw other masks with
        the same noise, and the difference of the two releases would have no noise at all.

        Args:
            trainer: The Lightning trainer.
            pl_module: The module that is trained.
            batch: The batch, or a piece of it.
            batch_idx: The number of the batch in the epoch.

        Raises:
            BatchMixing: If the loss of ``training_step`` is no sum or mean over the examples of the batch.
        """
        assert self.run.key is not None
        place = f"{trainer.global_step} {batch_idx % trainer.accumulate_grad_batches} {trainer.global_rank}"
        torch.manual_seed(int.from_bytes(self.run.key.derive("masks " + place).reveal()[:8], "big") >> 1)
        loop = self.run.loop
        piece = loop.piece() if loop is not None else None
        if piece is None or not self.batch_first or piece.real < 3 or trainer.world_size > 1:
            return
        assert loop is not None
        number = trainer.global_step * trainer.accumulate_grad_batches + batch_idx % trainer.accumulate_grad_batches
        seldom = loop.probes and dataclasses.replace(loop.probes, every=SELDOM * loop.probes.every)
        probed = seldom is not None and seldom.at(self.run.key.derive("sums"), number) is not None
        if (probed or not self._added_up) and pl_module.automatic_optimization:
            self._added_up = True
            self._look_at_loss(trainer, pl_module, batch, batch_idx, loop)

    def _look_at_loss(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int, loop: Loop
    ) -> None:
        """Refuse a loss through which examples reach one another, which the calls of the model do not show."""
        piece = loop.piece()
        assert piece is not None
        parameters = inspect.signature(pl_module.training_step).parameters
        rest = {"batch_idx": batch_idx} if "batch_idx" in parameters else {}
        args = () if rest or len(parameters) < 2 else (batch_idx,)
        rewind, logged = remember(pl_module.device), pl_module.__dict__.get("log")

        def value(index: torch.Tensor) -> torch.Tensor | None:
            rewind()
            state = Attributes(pl_module)
            try:
                with trainer.precision_plugin.train_step_context():
                    out = pl_module.training_step(picked(batch, index, piece.rows), *args, **rest)
            finally:
                state.restore()
            found = out.get("loss") if isinstance(out, Mapping) else out
            return found if isinstance(found, torch.Tensor) else None

        dtypes = [p.dtype for p in pl_module.parameters()]
        tolerance = verify.TOLERANCE[verify.narrowest(dtypes, pl_module.device)]
        if "bf16" in str(trainer.precision):
            tolerance = verify.TOLERANCE[torch.bfloat16]
        pl_module.log = lambda *_, **__: None
        try:
            with loop.watch.off(), loop.watch.engine.protected_buffers():
                fine = company.adds_up(value, piece.rows, tolerance)
        finally:
            rewind()
            pl_module.__dict__.pop("log", None)
            if logged is not None:
                pl_module.__dict__["log"] = logged
        if not fine:
            raise BatchMixing(NO_SUM)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log ε and the other values that may be released.

        Args:
            trainer: The Lightning trainer.
            pl_module: Not used.
        """
        several = trainer.world_size > 1
        for name, value in record(self).items():
            if isinstance(value, float):
                if name == "epsilon":  # loggers keep binary32, which must not round it down
                    value = float(np.nextafter(np.float32(value), np.float32(np.inf)))
                self._plain_log(name, value, rank_zero_only=several)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Close the run, whether it ended as planned or early.

        Args:
            trainer: Not used.
            pl_module: Not used.
        """
        self.run.end()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Let go of the module. Key and charge stay if a checkpoint holds the run, so that it can be resumed.

        Args:
            trainer: The Lightning trainer.
            pl_module: The module that is trained.
            exception: Not used.
        """
        savers = trainer.checkpoint_callbacks
        late = any(isinstance(c, OnExceptionCheckpoint) or getattr(c, "save_on_exception", False) for c in savers)
        self.run.interrupted(to_be_saved=late)
        self._let_go(trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        """Return what Lightning's checkpoint stores: plain values, never the key."""
        return self.run.state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the state in Lightning's checkpoint when the run begins.

        Args:
            state_dict: What :meth:`state_dict` returned.
        """
        self._state = dict(state_dict)

    @property
    def privacy(self) -> acc.Privacy:
        """The guarantee of all runs of this callback. Whole plans are claimed unless :meth:`stop` says otherwise."""
        return self.run.privacy

    def stop(self, reason: str, *, looked_at_results: bool = True) -> None:
        """Say why a run ended before its plan.

        Args:
            reason: A public note, stated with the guarantee.
            looked_at_results: Whether results had a part in the decision (default). Only if False are the steps that
                were made claimed instead of the plan. The charge in a ledger stays.
        """
        self.run.stop(reason, looked_at_results=looked_at_results)

    def diagnostics(self) -> OperatorView:
        """Return clipped fraction and norms of the last step, for the operator. The guarantee does not cover them."""
        return self.run.diagnostics()


def _share_key(run: PrivateRun, stamp: str, rank: int) -> None:
    """One key for all processes, made or taken up by the first, which alone keeps it in a file."""
    box: list[Any] = [None]
    if rank == 0:
        run.take_key(stamp)
        assert run.key is not None
        box = [(run.key.reveal(), stamp, run._same_noise)]
    dist.broadcast_object_list(box, 0)
    if rank:
        secret, stamp, same = box[0]
        run.take_key(stamp, secret)
        run._same_noise = same


def _all_reduce(loop: Loop) -> Any:
    """Add clipped sums up over processes."""

    def reduce(sums: dict[str, torch.Tensor]) -> None:
        if isinstance(loop.inside, torch.Tensor) and loop.adaptive is not None:
            dist.all_reduce(loop.inside)
        for value in sums.values():
            dist.all_reduce(value)

    return reduce


__all__ = ["PrivateDDPStrategy", "PrivateTraining"]
