"""How do I fine-tune with Hugging Face's ``Trainer`` privately? Two more lines.

    from tacit.integrations.transformers import make_private
    make_private(trainer, target_epsilon=3.0, target_delta=1e-5, max_grad_norm=1.0)
    trainer.train()

The trainer stays the same object, with PEFT, gradient accumulation, bf16, evaluation and resuming. Each update draws
one Poisson batch of ``per_device_train_batch_size * gradient_accumulation_steps`` expected records, handed out in as
many pieces as the trainer accumulates. Each example has the mean loss over its own tokens
(:mod:`tacit.integrations.losses`).

Loss, gradient norm and token counts of training batches are private values: they are taken out of what the trainer
logs, and ε is put in. What else a callback or a subclass logs is left out too, unless it is declared public.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tacit import accounting as acc
from tacit.accounting.errors import PrivacyWarning
from tacit.integrations.losses import per_example_loss
from tacit.integrations.run import PrivateRun
from tacit.integrations.trackers import record
from tacit.ledger import Ledger
from tacit.ledger.surroundings import count_or_refuse
from tacit.opacus.data_loader import DPDataLoader
from tacit.sgd.gradients import company
from tacit.sgd.gradients.engine import remember
from tacit.sgd.hooked.draws import PrivateBatches
from tacit.sgd.hooked.loop import warn_about_noise
from tacit.sgd.training.sampling import Poisson

try:
    from transformers import Trainer, TrainerCallback
    from transformers.trainer_callback import ExportableState
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "tacit.integrations.transformers needs transformers and accelerate: pip install 'tacit[transformers]'",
        name=error.name,
    ) from error

Loss = Callable[[nn.Module, Mapping[str, Any]], Tensor]
#: What a trainer logs that was computed from training batches without noise.
PRIVATE_LOGS = ("loss", "train_loss", "grad_norm", "num_input_tokens_seen", "total_flos", "train_tokens_per_second")
#: What a trainer logs that does not depend on the data.
PUBLIC_LOGS = (
    "epoch",
    "learning_rate",
    "step",
    "train_runtime",
    "train_samples_per_second",
    "train_steps_per_second",
)
#: Settings of a trainer that decide the weights after a step; with others a run is not the same.
LEARNING = (
    "learning_rate",
    "lr_scheduler_type",
    "lr_scheduler_kwargs",
    "warmup_steps",
    "warmup_ratio",
    "weight_decay",
    "optim",
    "optim_args",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "neftune_noise_alpha",
    "seed",
)


class PrivacyCallback(TrainerCallback, ExportableState):  # type: ignore[misc]
    """The private half of a trainer's run: it begins with the run, is saved in its checkpoints, and ends with it."""

    def __init__(self, trainer: Any = None, run: PrivateRun | None = None, loss: Loss | None = None) -> None:
        self.trainer, self.run, self.loss = trainer, run, loss or per_example_loss
        self.private: DPDataLoader | None = None

    def loader(self, plain: Any, batch_size: int, parts: int) -> DPDataLoader:
        """The trainer's own loader with private batches, each in ``parts`` pieces."""
        assert self.run is not None
        dataset = plain.dataset
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise ValueError("records must be reachable by number: an iterable data set cannot be sampled privately")
        sampler = Poisson(len(dataset), min(batch_size * parts, len(dataset)))
        # The key comes when the run begins: only then it is known whether it is a resumed one.
        batches = self.run.batches = PrivateBatches(sampler, None, len(dataset), parts=parts)
        self.private = DPDataLoader.from_data_loader(plain, batches=batches)
        return self.private

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Choose the noise, take up or make the key, and stand at the model's border."""
        run, trainer = self.run, self.trainer
        assert run is not None
        assert run.batches is not None
        if trainer.model_wrapped is not trainer.model:
            kind = type(trainer.model_wrapped).__name__
            raise NotImplementedError(
                f"{kind} is not supported: private training with Trainer runs in one process; tacit.sgd.Training runs "
                "on several (docs/howto/distributed.md)"
            )
        if state.is_hyper_param_search:
            count_or_refuse(run.ledger, "a private Trainer", scored=True)
        run.leave()
        saved = state.stateful_callbacks.get(type(self).__name__)
        run.resume(saved.get("attributes") if isinstance(saved, dict) else None, state.global_step)
        learning = [str(getattr(args, name, None)) for name in LEARNING]
        # The length too: learning rates that follow a schedule depend on it.
        told = {"learning": learning, "bf16": args.bf16, "steps": state.max_steps}
        assert self.private is not None
        optimizer, schedule = kwargs["optimizer"], kwargs.get("lr_scheduler")
        optimizer = getattr(optimizer, "optimizer", optimizer)
        told |= {"loss": self.loss, "optimizer": optimizer, "schedule": getattr(schedule, "scheduler", schedule)}
        run.take_key(run.stamp(trainer.model, self.private.dataset, self.private.collate_fn, **told))
        run.begin(trainer.model, optimizer, state.max_steps, summed=True)
        if state.global_step and not args.ignore_data_skip:
            # The trainer itself will pass over this many batches.
            run.batches.behind = (state.global_step % run.batches.steps) * (run.batches.parts or 1)

    def step(self, model: nn.Module, inputs: Any, context: Any) -> Tensor:
        """Forward and backward on one piece; the loss for the operator's eyes."""
        assert self.run is not None
        loop, batches = self.run.loop, self.run.batches
        assert loop is not None
        assert batches is not None
        if not batches.handed:
            raise RuntimeError("the batch did not come from the private data loader")
        loop.settle()
        piece = loop.current = batches.handed.popleft()
        if self.private is not None and self.private.padded:
            piece.padded = self.private.padded.popleft()
        if piece.real == 0:
            loop.took(piece)
            return torch.zeros((), device=self.trainer.args.device)
        with context:
            if piece.padded is not None:
                with loop.watch.off():
                    company.unfelt(self.loss, model, dict(inputs), piece.rows, piece.padded)
            rewind = remember(self.trainer.args.device)
            losses = self.loss(model, inputs)
            if losses.shape != (piece.rows,):
                raise ValueError("the loss must return one value per example, a vector as long as the batch")
            if self.loss is not per_example_loss and piece.rows > 1:  # what it does with the batch is not known
                with loop.watch.off():
                    company.of_loss(self.loss, model, dict(inputs), losses, rewind)
        losses.sum().backward()
        return losses.detach().mean()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The run has ended, by its plan or before."""
        assert self.run is not None
        self.run.end()

    def state(self) -> dict[str, Any]:
        """For the trainer's checkpoint."""
        return {"args": {}, "attributes": self.run.state() if self.run is not None else {}}


class PrivateMixin:
    """What is different about a private ``Trainer``: where batches come from, what a step does, what is logged."""

    private_run: PrivateRun
    privacy_callback: PrivacyCallback
    show_private: bool
    public_logs: frozenset[str]
    #: how the metrics that are being computed begin, where they are not those of the private records
    measured: str | None = None

    @property
    def privacy(self) -> acc.Privacy:
        """The guarantee of all calls of ``train()``; plans are claimed unless ``private_run.stop`` says why."""
        return self.private_run.privacy

    def train(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().train(*args, **kwargs)  # type: ignore[misc]
        except BaseException:
            self.private_run.interrupted()
            raise

    def hyperparameter_search(self, *args: Any, **kwargs: Any) -> Any:
        count_or_refuse(self.private_run.ledger, "a private Trainer", scored=True)
        return super().hyperparameter_search(*args, **kwargs)  # type: ignore[misc]

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval", **kwargs: Any
    ) -> Any:
        """As ever; what is measured on the private records is returned, and not logged."""
        rows = eval_dataset if eval_dataset is not None else self.eval_dataset  # type: ignore[attr-defined]
        before, self.measured = self.measured, metric_key_prefix
        if rows is self.train_dataset:  # type: ignore[attr-defined]
            self.measured = None
        try:
            return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix, **kwargs)  # type: ignore[misc]
        finally:
            self.measured = before

    def get_train_dataloader(self) -> Any:
        args = self.args  # type: ignore[attr-defined]
        if args.world_size > 1 or args.n_gpu > 1:
            raise NotImplementedError(
                "private training with Trainer runs in one process, on one device; tacit.sgd.Training runs on several "
                "(docs/howto/distributed.md)"
            )
        plain = super().get_train_dataloader()  # type: ignore[misc]
        size: int = self._train_batch_size  # type: ignore[attr-defined]
        return self.privacy_callback.loader(plain, size, args.gradient_accumulation_steps)

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        model.train()
        inputs = self._prepare_inputs(inputs)  # type: ignore[attr-defined]
        context = self.compute_loss_context_manager()  # type: ignore[attr-defined]
        loss = self.privacy_callback.step(model, inputs, context)
        return loss if self.show_private else torch.zeros_like(loss)

    def _get_num_items_in_batch(self, *args: Any, **kwargs: Any) -> None:
        """Counts of tokens in the batch have no part in a per-example loss."""
        return None

    def _clip_grad_norm(self, model: nn.Module) -> None:
        """Gradients are clipped per example already."""
        return None

    def _get_grad_norm(self, *args: Any, **kwargs: Any) -> None:
        return None

    def _track_num_input_tokens(self, inputs: Any) -> None:
        """The number of tokens of a batch is private."""

    def floating_point_ops(self, inputs: Any) -> int:
        """Computed from the sizes of batches, which are private."""
        return 0

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if not self.show_private:
            logs = self._public(logs)
        if self.private_run.loop is not None and len(self.private_run.loop.spent):
            told = record(self.private_run)
            logs.update({name: value for name, value in told.items() if name in ("epsilon", "signal_to_noise")})
        super().log(logs, *args, **kwargs)  # type: ignore[misc]

    def _public(self, logs: Mapping[str, float]) -> dict[str, float]:
        """What of this may stand in logs and trackers that others read."""
        known = {*PUBLIC_LOGS, *self.public_logs}
        prefix = f"{self.measured}_" if self.measured is not None else None
        kept = {k: v for k, v in logs.items() if k in known or (prefix is not None and k.startswith(prefix))}
        unknown = [name for name in logs if name not in kept and name not in PRIVATE_LOGS]
        if unknown:
            warnings.warn(
                f"{', '.join(unknown)}: withheld from the logs, which hold charged or public values only. Name what "
                "does not depend on private records in make_private(public_logs=…); show_private=True is for logs that "
                "nobody but the operator sees",
                PrivacyWarning,
                stacklevel=3,
            )
        return kept


def make_private(
    trainer: Trainer,
    *,
    target_delta: float,
    noise_multiplier: float | None = None,
    target_epsilon: float | None = None,
    max_grad_norm: float = 1.0,
    loss: Loss | None = None,
    key_file: str | os.PathLike[str] | None = None,
    show_private: bool = False,
    public_logs: Collection[str] = (),
    ledger: Ledger | None = None,
    dataset: str | None = None,
    purpose: str = "",
    unit: str = "record",
) -> Trainer:
    """Make a ``Trainer`` private, before ``train()``; give ``noise_multiplier`` or ``target_epsilon``.

    ``loss(model, inputs)`` returns one loss per example (default: :func:`~tacit.integrations.losses.per_example_loss`).
    ``key_file`` is where the secret key is kept for resuming until the run ends (default: the user's state folder).
    ``show_private=True`` leaves training loss in the logs: for runs whose logs nobody but the operator sees.
    ``public_logs`` names values that callbacks log and that do not depend on private records; others are withheld.
    ``ledger`` and ``dataset`` (its name there) say where all planned steps are charged, before the first one.
    ``purpose`` is public and stands beside the charge. ``unit`` is ``"record"``; another one is refused.

    Guarantee: everything computed from the weights is (``trainer.privacy.claim``, ``target_delta``)-DP for
    zeroing out one record of ``train_dataset``, over all calls of ``train()``. The plan is claimed, whatever
    stops a run, unless ``trainer.private_run.stop(reason, looked_at_results=False)`` declares otherwise. Metrics on an
    evaluation set that is private are not covered.
    """
    run = PrivateRun(
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
    if isinstance(trainer, PrivateMixin):
        raise ValueError("the trainer is private already")
    args = trainer.args
    if args.fp16:
        raise ValueError("fp16 scales losses by a factor that changes with the data: use bf16=True")
    if args.auto_find_batch_size:
        raise ValueError("auto_find_batch_size would change the sampling rate in mid-run: choose the batch size")
    if getattr(args, "label_smoothing_factor", 0) and loss is None:
        raise ValueError("label smoothing needs a loss of its own: pass loss=")
    by_function = getattr(trainer, "compute_loss_func", None) is not None
    if loss is None and (by_function or type(trainer).compute_loss is not Trainer.compute_loss):
        raise ValueError(
            "the trainer has a loss of its own (compute_loss or compute_loss_func), one number for the batch: pass "
            "loss=, a function (model, inputs) that returns one value per example, or the usual "
            "loss=tacit.integrations.losses.per_example_loss"
        )
    if noise_multiplier is not None:
        warn_about_noise(noise_multiplier, level=3)
    callback = PrivacyCallback(trainer, run, loss)
    kind = type(trainer)
    trainer.__class__ = type(f"Private{kind.__name__}", (PrivateMixin, kind), {"__module__": kind.__module__})
    trainer.private_run, trainer.privacy_callback, trainer.show_private = run, callback, show_private
    trainer.public_logs = frozenset(public_logs)
    trainer.add_callback(callback)
    return trainer


__all__ = ["PrivacyCallback", "PrivateMixin", "make_private", "per_example_loss"]
