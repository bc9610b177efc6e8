"""How does an ordinary ``LightningModule`` train privately? With one callback.

    from tacit.integrations.lightning import PrivateTraining
    private = PrivateTraining(target_epsilon=3.0, target_delta=1e-5, max_grad_norm=1.0)
    Trainer(callbacks=[private], ...).fit(module, loader)

The train loader is replaced by one with Poisson batches of the same expected size (times ``accumulate_grad_batches``,
handed out in as many pieces), and the optimizer's step by a private one. ``training_step`` stays as it is, with its
mean over the batch; modules that it calls are watched one by one. Checkpoints carry what was spent, and
:class:`PrivateDDPStrategy` spreads a run over several processes.

What ``training_step`` logs itself (a training loss) is computed from private data without noise: progress bar and
callbacks see it, loggers and checkpoints do not. The callback logs ``epsilon``.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection
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
from tacit.sgd.hooked.draws import PrivateBatches
from tacit.sgd.hooked.loop import Loop, warn_about_noise
from tacit.sgd.training.sampling import Poisson

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
        "tacit.integrations.lightning needs Lightning: pip install 'tacit[lightning]'", name=error.name
    ) from error


class PrivateDDPStrategy(DDPStrategy):  # type: ignore[misc, unused-ignore]
    """Several processes, one private run: each takes its share of every draw, and one noise is added to the whole sum.

    The model is not wrapped in ``DistributedDataParallel``: there are no weight gradients to average before noise.
    Clipped sums are added up over processes instead, and every process adds the same keyed noise.
    """

    def configure_ddp(self) -> None:
        """Start from the weights of the first process."""
        assert self.model is not None
        with torch.no_grad():
            for tensor in [*self.model.parameters(), *self.model.buffers()]:
                dist.broadcast(tensor.data, 0)


class PrivateTraining(pl.Callback):  # type: ignore[misc, unused-ignore]
    """Makes the run of a ``Trainer`` private; give ``noise_multiplier`` or ``target_epsilon``.

    ``key_file`` is where the secret key is kept for resuming until the run ends (default: the user's state folder).
    ``batch_first=False`` is for modules with the examples in the second dimension. ``ledger`` and ``dataset`` (its name
    there) say where all planned steps are charged, before the first one. ``purpose`` is public and stands beside the
    charge. ``unit`` is ``"record"``; another one is refused.

    What is logged during training is withheld from loggers and checkpoints, except the names in ``public_logs``, which
    do not depend on private records; ``show_private=True`` is for logs that nobody but the operator sees.

    Guarantee: everything computed from the weights is (``privacy.claim``, ``target_delta``)-DP for zeroing out
    one record of the train loader's data set, over all runs of this callback. The plan is claimed, whatever stops a
    run, unless :meth:`stop` declares otherwise. Metrics on a private validation set are not covered.
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
        unit: str = "record",
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
        )
        self.batch_first = batch_first
        self.show_private, self.public_logs = show_private, frozenset(public_logs)
        self._withheld: set[str] = set()
        self._plain_log: Any = None
        self._state: dict[str, Any] | None = None
        self._loader: DPDataLoader | None = None
        if noise_multiplier is not None:
            warn_about_noise(noise_multiplier, level=3)

    # -- setting up -------------------------------------------------------------------------------------------------

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Refuse what cannot be right, and stand where the train loader passes."""
        if stage != "fit":
            return
        strategy = trainer.strategy
        if not isinstance(strategy, SingleDeviceStrategy | PrivateDDPStrategy):
            raise NotImplementedError(
                f"{type(strategy).__name__} averages gradients before noise is added: use one device, or "
                "Trainer(strategy=tacit.integrations.lightning.PrivateDDPStrategy())"
            )
        if trainer.gradient_clip_val is not None:
            raise ValueError("gradients are clipped per example: leave gradient_clip_val out")
        if trainer.precision in ("16-mixed", "16-true", "16"):
            raise ValueError("fp16 scales losses by a factor that changes with the data: use precision='bf16-mixed'")
        if any(isinstance(c, LearningRateFinder | BatchSizeFinder) for c in trainer.callbacks):
            raise SearchRefused(
                "a tuner trains on the private records without privacy, and chooses by what it sees: choose learning "
                "rate and batch size with private tuning (tacit.tuning) or on public data"
            )
        if not self.show_private and any(isinstance(c, ThroughputMonitor) for c in trainer.callbacks):
            raise ValueError(
                "ThroughputMonitor writes the sizes of batches, which are private, into loggers: leave it out"
            )
        ModuleValidator.validate(pl_module, strict=True)
        self._watch_logs(trainer, pl_module)
        plain = type(strategy).process_dataloader

        def process(loader: Any) -> Any:
            loader = plain(strategy, loader)
            return self._private(trainer, loader) if trainer.training else loader

        strategy.__dict__["process_dataloader"] = process

    def _watch_logs(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stand where values are logged, by the module and by callbacks."""
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
        """Say once that a value stays here; refuse what would write it into files, or train by it."""
        if name in self._withheld:
            return
        names = {name, f"{name}_step", f"{name}_epoch"}
        instead = "take a metric on public data, or a value that does not depend on the data (public_logs=)"
        for saver in trainer.checkpoint_callbacks:
            in_name = any(f"{{{n}" in str(getattr(saver, "filename", "")) for n in names)
            if getattr(saver, "monitor", None) in names or in_name:
                raise ValueError(f"{type(saver).__name__} writes {name!r}, a private value, into its files: {instead}")
        for config in trainer.lr_scheduler_configs:
            if config.reduce_on_plateau and config.monitor in names:
                raise ValueError(
                    f"the learning rate follows {name!r}, a private value that no noise covers, and the weights with "
                    f"it: {instead}, or a schedule that is fixed in advance"
                )
        self._withheld.add(name)
        warnings.warn(
            f"{name!r} is logged during training and withheld from loggers and checkpoints, which hold charged or "
            "public values only (progress bar and callbacks see it). Name what does not depend on private records in "
            "PrivateTraining(public_logs=…); show_private=True is for logs that nobody but the operator sees",
            PrivacyWarning,
            stacklevel=4,
        )

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Best scores of what was withheld are no part of a file."""
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
        """Leave trainer and module as they were."""
        self._let_go(trainer, pl_module)

    def _private(self, trainer: pl.Trainer, loader: Any) -> DPDataLoader:
        if not isinstance(loader, DataLoader):
            raise ValueError(f"the train loader must be a torch DataLoader, not {type(loader).__name__}")
        if getattr(trainer, "overfit_batches", 0):
            raise ValueError("overfit_batches repeats the same batch, which no price covers")
        dataset, parts = loader.dataset, trainer.accumulate_grad_batches
        if not hasattr(dataset, "__len__"):
            raise ValueError("records must be reachable by number: an iterable data set cannot be sampled privately")
        rank, world = trainer.global_rank, trainer.world_size
        expected = batch_size_of(loader) * parts * world
        sampler = Poisson(len(dataset), min(expected, len(dataset)))
        self.run.batches = PrivateBatches(sampler, None, len(dataset), parts=parts, share=(rank, world))
        self._loader = DPDataLoader.from_data_loader(loader, batches=self.run.batches, batch_first=self.batch_first)
        return self._loader

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Choose the noise, take up or make the key, and stand at the module's border."""
        run = self.run
        if len(trainer.optimizers) != 1:
            raise ValueError(f"a private run has one optimizer, not {len(trainer.optimizers)}")
        if run.batches is None or self._loader is None:
            raise RuntimeError("the train loader was not seen: pass it to fit, or return it from train_dataloader")
        run.leave()
        state, self._state = self._state, None
        run.resume(state, trainer.global_step)
        planned = trainer.estimated_stepping_batches
        if not 1 <= planned < float("inf"):
            raise ValueError("give max_epochs= or max_steps=: the noise depends on how many steps there will be")
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
        loop = run.begin(pl_module, optimizer, steps, batch_dim=0 if self.batch_first else 1)
        # Lightning divides the loss by the number of batches it accumulates.
        loop.watch.scale = float(trainer.accumulate_grad_batches)
        if trainer.world_size > 1:
            loop.reduce = _all_reduce(loop)  # type: ignore[method-assign]
        self._loader.loop = loop

    # -- the run ----------------------------------------------------------------------------------------------------

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Dropout follows from (key, step) as the noise does.

        Lightning's checkpoints do not hold the state of torch's generators. A resumed run would draw other masks, and
        the difference of two releases with the same noise has none.
        """
        assert self.run.key is not None
        place = f"{trainer.global_step} {batch_idx % trainer.accumulate_grad_batches} {trainer.global_rank}"
        torch.manual_seed(int.from_bytes(self.run.key.derive("masks " + place).reveal()[:8], "big") >> 1)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """ε so far, and what else may leave, for loggers."""
        several = trainer.world_size > 1
        for name, value in record(self).items():
            if isinstance(value, float):
                if name == "epsilon":  # loggers keep binary32, which must not round it down
                    value = float(np.nextafter(np.float32(value), np.float32(np.inf)))
                self._plain_log(name, value, rank_zero_only=several)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """The run has ended, by its plan or before."""
        self.run.end()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Leave the module alone; key and charge stay where a checkpoint holds the run, so that it can be resumed."""
        savers = trainer.checkpoint_callbacks
        late = any(isinstance(c, OnExceptionCheckpoint) or getattr(c, "save_on_exception", False) for c in savers)
        self.run.interrupted(to_be_saved=late)
        self._let_go(trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        """For Lightning's checkpoint."""
        return self.run.state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """From Lightning's checkpoint."""
        self._state = dict(state_dict)

    @property
    def privacy(self) -> acc.Privacy:
        """The guarantee of all runs of this callback; plans are claimed unless :meth:`stop` says why."""
        return self.run.privacy

    def stop(self, reason: str, *, looked_at_results: bool = True) -> None:
        """Say why a run ends, or ended, before its plan (:meth:`tacit.integrations.run.PrivateRun.stop`)."""
        self.run.stop(reason, looked_at_results=looked_at_results)

    def diagnostics(self) -> OperatorView:
        """Clipped fraction and norms of the last step: for the operator, not covered by the guarantee."""
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
