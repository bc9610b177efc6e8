"""How do I fine-tune privately with Hugging Face's ``Trainer``? Add one import and one call of :func:`make_private`.

The trainer stays the same object; PEFT, gradient accumulation, bf16, evaluation and resuming work as before. Each
update draws one Poisson batch of ``per_device_train_batch_size * gradient_accumulation_steps`` expected records and
hands it out in as many pieces as the trainer accumulates. The loss of an example is the mean over its own tokens
(:mod:`tacit.integrations.losses`).

Loss, gradient norm and token counts of training batches are private, so they are removed from what the trainer logs,
and ε is added. Anything else that a callback or a subclass logs is withheld too, unless it is declared public.
docs/howto/trainer.md has a complete example.
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
from tacit.sgd.correlation import Banded
from tacit.sgd.gradients import company
from tacit.sgd.gradients.randomness import remember
from tacit.sgd.hooked.loop import warn_about_noise

try:
    from transformers import Trainer, TrainerCallback
    from transformers.trainer_callback import ExportableState
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "tacit.integrations.transformers needs transformers and accelerate: pip install 'tacit[transformers]'. "
        "See: tacit explain missing-extra",
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
    """The private part of a trainer's run, which :func:`make_private` adds to the trainer as a callback.

    Args:
        trainer: The trainer it belongs to. Default: none, as ``transformers`` builds it when it loads a checkpoint.
        run: Noise, key and accounting of the run.
        loss: A function ``(model, inputs)`` that returns one loss per example. Default: :func:`per_example_loss`.

    Example:
        >>> PrivacyCallback().state()
        {'args': {}, 'attributes': {}}
    """

    def __init__(self, trainer: Any = None, run: PrivateRun | None = None, loss: Loss | None = None) -> None:
        self.trainer, self.run, self.loss = trainer, run, loss or per_example_loss
        self.private: DPDataLoader | None = None

    def loader(self, plain: Any, batch_size: int, parts: int) -> DPDataLoader:
        """Replace the trainer's loader by one with private batches.

        Args:
            plain: The trainer's own data loader.
            batch_size: Expected records in a piece.
            parts: Pieces of each batch: the trainer's ``gradient_accumulation_steps``.

        Returns:
            The private loader over the same data set.

        Raises:
            ValueError: If the data set has no length or no records by index.
        """
        assert self.run is not None
        dataset = plain.dataset
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise ValueError(
                "an iterable train_dataset cannot be sampled privately: it needs a length and records by index. "
                "See: tacit explain unsupported-loader"
            )
        # The key comes when the run begins: only then it is known whether it is a resumed one. The trainer takes
        # columns out of the loader's data set that the model does not read, such as ids.
        whole = self.trainer.train_dataset if isinstance(self.run.groups, str) else None
        batches = self.run.draw_from(dataset, batch_size * parts, parts=parts, named=whole)
        self.private = DPDataLoader.from_data_loader(plain, batches=batches)
        return self.private

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Choose the noise, make the key or take over the saved one, and hook into the model.

        Args:
            args: The trainer's ``TrainingArguments``.
            state: The trainer's ``TrainerState``.
            control: Not used.
            **kwargs: What else the trainer passes to callbacks.

        Raises:
            NotImplementedError: If the model is wrapped for several processes.
            SearchRefused: If the run is a trial of ``hyperparameter_search`` and there is no ledger.
            BudgetExceeded: If the ledger's budget does not cover the planned steps.
            CheckpointError: If the run is resumed from a checkpoint that does not fit.
        """
        run, trainer = self.run, self.trainer
        assert run is not None
        assert run.batches is not None
        if trainer.model_wrapped is not trainer.model:
            kind = type(trainer.model_wrapped).__name__
            raise NotImplementedError(
                f"{kind} is not supported: private training with Trainer runs in one process. For several use "
                "tacit.sgd.Training (docs/howto/distributed.md)"
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
        run.begin(trainer.model, optimizer, state.max_steps, schedule=told["schedule"], summed=True)
        if state.global_step and not args.ignore_data_skip:
            # The trainer itself will pass over this many batches.
            run.batches.behind = (state.global_step % run.batches.steps) * (run.batches.parts or 1)

    def step(self, model: nn.Module, inputs: Any, context: Any) -> Tensor:
        """Run forward and backward on one piece of a batch.

        Args:
            model: The model.
            inputs: The piece, as the private loader handed it out.
            context: The trainer's context manager for the forward pass (autocast).

        Returns:
            The mean loss of the piece. It is private: only the operator may see it.

        Raises:
            RuntimeError: If the batch did not come from the private data loader.
            ValueError: If ``loss`` does not return one value per example.
        """
        assert self.run is not None
        loop, batches = self.run.loop, self.run.batches
        assert loop is not None
        assert batches is not None
        if not batches.handed:
            raise RuntimeError(
                "the batch did not come from the private data loader, so its price is unknown: do not override "
                "get_train_dataloader. See: tacit explain private-steps"
            )
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
                raise ValueError(
                    "loss= must return one value per example, a vector as long as the batch. "
                    "See: tacit explain mixed-loss"
                )
            if self.loss is not per_example_loss and piece.rows > 1:  # what it does with the batch is not known
                with loop.watch.off():
                    company.of_loss(self.loss, model, dict(inputs), losses, rewind)
        losses.sum().backward()
        return losses.detach().mean()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Close the run, whether it ended as planned or early.

        Args:
            args: The trainer's ``TrainingArguments``.
            state: The trainer's ``TrainerState``.
            control: Not used.
            **kwargs: What else the trainer passes to callbacks.
        """
        assert self.run is not None
        self.run.end()

    def state(self) -> dict[str, Any]:
        """Return what the trainer's checkpoint stores: plain values, never the key."""
        return {"args": {}, "attributes": self.run.state() if self.run is not None else {}}


class PrivateMixin:
    """What :func:`make_private` changes about a ``Trainer``: where batches come from, what a step does, what is logged.

    Example:
        ``examples/trainer_lora.py`` makes a trainer private and reads its ``privacy``.
    """

    private_run: PrivateRun
    privacy_callback: PrivacyCallback
    show_private: bool
    public_logs: frozenset[str]
    #: how the metrics that are being computed begin, where they are not those of the private records
    measured: str | None = None

    @property
    def privacy(self) -> acc.Privacy:
        """The guarantee of all calls of ``train()`` together. Whole plans are claimed unless ``private_run.stop`` says
        why a run was shorter."""
        return self.private_run.privacy

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train as ``Trainer.train`` does. If the run breaks off, key and charge stay for a run that resumes it.

        Args:
            *args: Passed to ``Trainer.train``.
            **kwargs: Passed to ``Trainer.train``.

        Returns:
            The trainer's ``TrainOutput``, without the training loss unless ``show_private`` is set.
        """
        try:
            return super().train(*args, **kwargs)  # type: ignore[misc]
        except BaseException:
            self.private_run.interrupted()
            raise

    def hyperparameter_search(self, *args: Any, **kwargs: Any) -> Any:
        """Search as ``Trainer.hyperparameter_search`` does, if a ledger charges every trial.

        Args:
            *args: Passed to ``Trainer.hyperparameter_search``.
            **kwargs: Passed to ``Trainer.hyperparameter_search``.

        Returns:
            The best trial.

        Raises:
            SearchRefused: If there is no ledger: every trial spends ε again. docs/howto/tuning.md has private tuning.
        """
        count_or_refuse(self.private_run.ledger, "a private Trainer", scored=True)
        return super().hyperparameter_search(*args, **kwargs)  # type: ignore[misc]

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval", **kwargs: Any
    ) -> Any:
        """Evaluate as ``Trainer.evaluate`` does. Metrics on the private records are returned but not logged.

        Args:
            eval_dataset: The data to evaluate on. Default: the trainer's ``eval_dataset``.
            ignore_keys: Passed to ``Trainer.evaluate``.
            metric_key_prefix: How the names of the metrics begin.
            **kwargs: Passed to ``Trainer.evaluate``.

        Returns:
            The metrics by name. Those on ``train_dataset`` are private.
        """
        rows = eval_dataset if eval_dataset is not None else self.eval_dataset  # type: ignore[attr-defined]
        before, self.measured = self.measured, metric_key_prefix
        if rows is self.train_dataset:  # type: ignore[attr-defined]
            self.measured = None
        try:
            return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix, **kwargs)  # type: ignore[misc]
        finally:
            self.measured = before

    def get_train_dataloader(self) -> Any:
        """Return the private data loader.

        Raises:
            NotImplementedError: If the trainer uses several processes or devices.
            ValueError: If ``train_dataset`` has no length or no records by index.
        """
        args = self.args  # type: ignore[attr-defined]
        if args.world_size > 1 or args.n_gpu > 1:
            raise NotImplementedError(
                "private training with Trainer runs in one process, on one device. For several use tacit.sgd.Training "
                "(docs/howto/distributed.md)"
            )
        plain = super().get_train_dataloader()  # type: ignore[misc]
        size: int = self._train_batch_size  # type: ignore[attr-defined]
        return self.privacy_callback.loader(plain, size, args.gradient_accumulation_steps)

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Run forward and backward on one piece of a private batch.

        Args:
            model: The model.
            inputs: The piece.
            num_items_in_batch: Not used: counts over the batch have no part in a per-example loss.

        Returns:
            The mean loss with ``show_private``, else zero.
        """
        model.train()
        inputs = self._prepare_inputs(inputs)  # type: ignore[attr-defined]
        context = self.compute_loss_context_manager()  # type: ignore[attr-defined]
        loss = self.privacy_callback.step(model, inputs, context)
        return loss if self.show_private else torch.zeros_like(loss)

    def _get_num_items_in_batch(self, *args: Any, **kwargs: Any) -> None:
        """Return nothing: counts of tokens in the batch have no part in a per-example loss."""
        return None

    def _clip_grad_norm(self, model: nn.Module) -> None:
        """Do nothing: gradients are already clipped per example."""
        return None

    def _get_grad_norm(self, *args: Any, **kwargs: Any) -> None:
        return None

    def _track_num_input_tokens(self, inputs: Any) -> None:
        """Do nothing: the number of tokens in a batch is private."""

    def floating_point_ops(self, inputs: Any) -> int:
        """Return 0, because a count of operations would show the sizes of batches, which are private.

        Args:
            inputs: Not used.

        Returns:
            Always 0.
        """
        return 0

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log as ``Trainer.log`` does, without private values and with ``epsilon`` and ``signal_to_noise``.

        Args:
            logs: Values by name. Names that are neither known to be public nor in ``public_logs`` are withheld, with a
                warning.
            *args: Passed to ``Trainer.log``.
            **kwargs: Passed to ``Trainer.log``.
        """
        if not self.show_private:
            logs = self._public(logs)
        if self.private_run.loop is not None and len(self.private_run.loop.spent):
            told = record(self.private_run)
            logs.update({name: value for name, value in told.items() if name in ("epsilon", "signal_to_noise")})
        super().log(logs, *args, **kwargs)  # type: ignore[misc]

    def _public(self, logs: Mapping[str, float]) -> dict[str, float]:
        """Keep what may be in logs and trackers that others read."""
        known = {*PUBLIC_LOGS, *self.public_logs}
        prefix = f"{self.measured}_" if self.measured is not None else None
        kept = {k: v for k, v in logs.items() if k in known or (prefix is not None and k.startswith(prefix))}
        unknown = [name for name in logs if name not in kept and name not in PRIVATE_LOGS]
        if unknown:
            warnings.warn(
                f"withheld from the logs: {', '.join(unknown)}. Logs hold charged or public values only. Name values "
                "that do not depend on private records in make_private(public_logs=…). show_private=True is for logs "
                "that only the operator sees",
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
    unit: str | None = None,
    groups: Any = None,
    noise: Banded | None = None,
) -> Trainer:
    """Make a ``Trainer`` private. Call it before ``train()``.

    Guarantee:
        Everything computed from the weights is (``trainer.privacy.claim``, ``target_delta``)-DP for zeroing out one
        record of ``train_dataset`` (with ``groups``, one person with all their records), over all calls of ``train()``.
        The whole plan is claimed, whatever stops a run, unless
        ``trainer.private_run.stop(reason, looked_at_results=False)`` says otherwise. Metrics on a private evaluation
        set are not covered.

    Args:
        trainer: The trainer. It stays the same object and gets a private subclass of its class.
        target_delta: The δ of the guarantee, strictly between 0 and 1.
        noise_multiplier: Standard deviation of the noise divided by ``max_grad_norm``. Give this or ``target_epsilon``.
        target_epsilon: The ε of one whole run; the least noise that keeps it is chosen. Give this or
            ``noise_multiplier``.
        max_grad_norm: The L2 bound on each example's gradient. The trainer's own ``max_grad_norm`` has no effect.
        loss: A function ``(model, inputs)`` that returns one loss per example. Default:
            :func:`~tacit.integrations.losses.per_example_loss`.
        key_file: Where the secret key is kept until the run ends, so that it can be resumed. Default: a file in the
            user's state folder.
        show_private: Leave training loss and other private values in the logs. For logs that only the operator sees.
        public_logs: Names of values that callbacks log and that do not depend on private records.
        ledger: Where all planned steps are charged, before the first one. Default: no ledger.
        dataset: The name under which the data are registered in ``ledger``. Give both or neither.
        purpose: A public note that is stored with the charge.
        unit: The name of what is protected, such as ``"patient"``. It needs ``groups``. Default: ``"record"``, and
            ``"person"`` with ``groups``.
        groups: Whose each record of ``train_dataset`` is: one id per record, or the name of a column of the data set.
            People are then drawn, batch sizes count people, and each shows one record a step. Default: every record is
            its own unit.
        noise: A :class:`tacit.sgd.Banded`: the noise of a step takes back noise of earlier ones, and groups of records
            take turns (``docs/howto/correlated-noise.md``). Default: each step's noise is its own.

    Returns:
        The same trainer.

    Raises:
        ValueError: If not exactly one of ``noise_multiplier`` and ``target_epsilon`` is given, the trainer is private
            already, uses fp16, ``auto_find_batch_size`` or label smoothing without ``loss``, or has a loss of its own
            while ``loss`` is not given.
        UnitError: If ``unit`` names something other than a record, without ``groups``.
        TermsError: If the ledger is registered for another unit or adjacency.

    Example:
        ``examples/trainer_lora.py`` fine-tunes a small GPT-2 with LoRA.
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
        groups=groups,
        noise=noise,
    )
    if isinstance(trainer, PrivateMixin):
        raise ValueError("the trainer is private already")
    args = trainer.args
    if args.fp16:
        raise ValueError("fp16 is not supported, because its loss scale changes with the data: use bf16=True")
    if args.auto_find_batch_size:
        raise ValueError("auto_find_batch_size would change the sampling rate during the run: choose the batch size")
    if getattr(args, "label_smoothing_factor", 0) and loss is None:
        raise ValueError(
            "label_smoothing_factor has no per-example loss here: pass loss=, a function (model, inputs) that returns "
            "one value per example. See: tacit explain mixed-loss"
        )
    by_function = getattr(trainer, "compute_loss_func", None) is not None
    if loss is None and (by_function or type(trainer).compute_loss is not Trainer.compute_loss):
        raise ValueError(
            "the trainer has a loss of its own (compute_loss or compute_loss_func), which is one number for the whole "
            "batch: pass loss=, a function (model, inputs) that returns one value per example, or the usual "
            "loss=tacit.integrations.losses.per_example_loss. See: tacit explain mixed-loss"
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
