"""How do I fine-tune with Hugging Face's ``Trainer`` privately? Two more lines.

    from tacit.integrations.transformers import make_private
    make_private(trainer, target_epsilon=3.0, target_delta=1e-5, max_grad_norm=1.0)
    trainer.train()

The trainer stays the same object, with PEFT, gradient accumulation, bf16, evaluation and resuming. Each update draws
one Poisson batch of ``per_device_train_batch_size * gradient_accumulation_steps`` expected records, handed out in as
many pieces as the trainer accumulates. Each example has the mean loss over its own tokens
(:mod:`tacit.integrations.losses`).

Loss, gradient norm and token counts of training batches are private values: they are taken out of what the trainer
logs, and ε is put in.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tacit import accounting as acc
from tacit.integrations.losses import per_example_loss
from tacit.ledger import OperatorView
from tacit.noise.keys import Key
from tacit.opacus.data_loader import DPDataLoader
from tacit.sgd.checkpoint import CheckpointError, key_folder
from tacit.sgd.draws import PrivateBatches
from tacit.sgd.loop import Loop, warn_about_noise
from tacit.sgd.plan import PrivacyWarning, make_plan
from tacit.sgd.sampling import Poisson

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


class PrivacyCallback(TrainerCallback, ExportableState):  # type: ignore[misc]
    """The private half of a trainer's run: it begins with the run, is saved in its checkpoints, and ends with it."""

    def __init__(
        self,
        trainer: Any = None,
        *,
        noise_multiplier: float | None = None,
        target_epsilon: float | None = None,
        target_delta: float = 0.0,
        max_grad_norm: float = 1.0,
        loss: Loss | None = None,
        key_file: str | os.PathLike[str] | None = None,
    ) -> None:
        self.trainer, self.loss = trainer, loss or per_example_loss
        self.noise_multiplier, self.target_epsilon, self.delta = noise_multiplier, target_epsilon, target_delta
        self.max_grad_norm = max_grad_norm
        self.key_file = Path(key_file) if key_file is not None else None
        self.batches: PrivateBatches | None = None
        self.loop: Loop | None = None
        self._key: Key | None = None
        self._handle: Any = None
        self._stamp = ""

    # -- data -------------------------------------------------------------------------------------------------------

    def loader(self, plain: Any, batch_size: int, parts: int) -> DPDataLoader:
        """The trainer's own loader with private batches, each in ``parts`` pieces."""
        dataset = plain.dataset
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise ValueError("records must be reachable by number: an iterable data set cannot be sampled privately")
        sampler = Poisson(len(dataset), min(batch_size * parts, len(dataset)))
        # The key comes when the run begins: only then it is known whether it is a resumed one.
        self.batches = PrivateBatches(sampler, None, len(dataset), parts=parts)  # type: ignore[arg-type]
        return DPDataLoader.from_data_loader(plain, batches=self.batches)

    def stamp(self) -> str:
        """What decides the gradients: with anything of it changed, old noise must not be used again."""
        assert self.batches is not None
        args, dataset = self.trainer.args, self.trainer.train_dataset
        ends = [repr(dataset[k]) for k in (0, len(dataset) // 2, len(dataset) - 1)]
        told = {
            "sampler": self.batches.sampler.to_dict(),
            "parts": self.batches.parts,
            "clip": self.max_grad_norm,
            "learning": [args.learning_rate, str(args.lr_scheduler_type), args.weight_decay, args.seed, str(args.optim)],
            "precision": [args.bf16],
            "parameters": [[n, list(p.shape)] for n, p in self.trainer.model.named_parameters() if p.requires_grad],
            "loss": getattr(self.loss, "__qualname__", type(self.loss).__name__),
            "data": [getattr(dataset, "_fingerprint", None), ends],
        }
        return hashlib.blake2b(json.dumps(told, sort_keys=True, default=str).encode(), digest_size=16).hexdigest()

    # -- the run ----------------------------------------------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Choose the noise, take up or make the key, and stand at the model's border."""
        assert self.batches is not None
        self.finish()
        sampler = self.batches.sampler
        elements = sum(p.numel() for p in self.trainer.model.parameters() if p.requires_grad)
        saved = state.stateful_callbacks.get(type(self).__name__)
        saved = saved.get("attributes") if isinstance(saved, dict) and state.global_step else None
        if state.global_step and not saved:
            raise CheckpointError("this checkpoint was not written by a private run: what was spent on it is not known")
        noise = self.noise_multiplier
        if saved is not None and self.target_epsilon is not None:
            noise = saved["noise_multiplier"]
        if noise is None:
            assert self.target_epsilon is not None
            plan = make_plan(
                sampler,
                steps=int(state.max_steps),
                epsilon=self.target_epsilon,
                noise_multiplier=None,
                clip_norm=1.0,
                delta=self.delta,
                adjacency=sampler.adjacency,
                elements=elements,
            )
            noise = plan.noise[0]
        self._stamp = self.stamp()
        key = self._take_up(saved) if saved is not None else None
        if key is None:
            key = Key.generate()
            place = self.key_file or key_folder() / f"trainer-{key.fingerprint()}.key"
            key.save(place)
        self._key = key
        optimizer = kwargs["optimizer"]
        optimizer = getattr(optimizer, "optimizer", optimizer)
        self.loop = Loop(
            self.trainer.model,
            optimizer,
            self.batches,
            noise_multiplier=float(noise),
            clip_norm=float(self.max_grad_norm),
            summed=True,
            key=key.derive(self._stamp),
        )
        self.batches._key = key.derive("sampler " + self._stamp)
        if saved is not None:
            spent = self.loop.spent
            spent.releases = [(float(a), int(b), int(c)) for a, b, c in saved["releases"]]
            if len(spent) != state.global_step:
                raise CheckpointError(f"{state.global_step} steps were taken and {len(spent)} charged: damaged checkpoint")
            self.loop.steps = self.batches.next = len(spent)
            each, parts = self.batches.steps, self.batches.parts or 1
            self.batches.behind = 0 if args.ignore_data_skip else (len(spent) % each) * parts
        self._handle = optimizer.register_step_pre_hook(self._before)

    def _take_up(self, saved: Mapping[str, Any]) -> Key | None:
        """The key of the run that is resumed, where it is still there and nothing has changed."""
        place = Path(saved["key_file"])
        why = ""
        if saved["stamp"] != self._stamp:
            why = "the run is not the one that was saved (data, batch size, model, loss or learning rate changed)"
        elif not place.exists():
            why = "its key is gone"
        if why:
            warnings.warn(
                f"{why}: it goes on with a new key. Steps after the checkpoint that somebody saw in the earlier life "
                "are not counted here",
                PrivacyWarning,
                stacklevel=2,
            )
            return None
        key = Key.load(place)
        if key.fingerprint() != saved["key"]:
            raise CheckpointError(f"{place} is the key of another run")
        return key

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        assert self.loop is not None
        if not self.loop.finished():
            raise RuntimeError("the optimizer was stepped before all pieces of the batch were seen")
        self.loop.release()

    def step(self, model: nn.Module, inputs: Any, context: Any) -> Tensor:
        """Forward and backward on one piece; the loss for the operator's eyes."""
        assert self.loop is not None
        assert self.batches is not None
        if not self.batches.handed:
            raise RuntimeError("the batch did not come from the private data loader")
        piece = self.loop.current = self.batches.handed.popleft()
        self.loop.settle()
        if piece.real == 0:
            self.loop.took(piece)
            return torch.zeros((), device=self.trainer.args.device)
        with context:
            losses = self.loss(model, inputs)
        if losses.shape != (piece.rows,):
            raise ValueError(f"the loss must return one value per example, shape ({piece.rows},), not {losses.shape}")
        losses.sum().backward()
        return losses.detach().mean()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The key is of no more use."""
        if self._key is not None:
            self._key.destroy()
        self.finish()

    def finish(self) -> None:
        """Leave model and optimizer alone."""
        if self.loop is not None:
            self._handle.remove()
            self.loop.watch.close()

    # -- what was spent ---------------------------------------------------------------------------------------------

    def bound(self, delta: float | None = None) -> acc.Bound:
        """The interval that ε lies in so far."""
        if self.loop is None:
            raise RuntimeError("the run has not begun")
        delta = delta or self.delta
        if not delta:
            raise ValueError("give delta=")
        return self.loop.spent.price(delta)

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds: never the key, only where it lies."""
        if self.loop is None or self._key is None or self._key.destroyed:
            return {"args": {}, "attributes": {}}
        return {
            "args": {},
            "attributes": {
                "releases": [list(r) for r in self.loop.spent.releases],
                "noise_multiplier": self.loop.noise_multiplier,
                "key": self._key.fingerprint(),
                "key_file": self._key._path,
                "stamp": self._stamp,
            },
        }


class PrivateMixin:
    """What is different about a private ``Trainer``: where batches come from, what a step does, what is logged."""

    privacy: PrivacyCallback
    show_private: bool

    def get_train_dataloader(self) -> Any:
        args = self.args  # type: ignore[attr-defined]
        if args.world_size > 1 or args.n_gpu > 1:
            raise NotImplementedError("private training with Trainer runs in one process, on one device")
        plain = super().get_train_dataloader()  # type: ignore[misc]
        return self.privacy.loader(plain, self._train_batch_size, args.gradient_accumulation_steps)  # type: ignore[attr-defined]

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        model.train()
        inputs = self._prepare_inputs(inputs)  # type: ignore[attr-defined]
        loss = self.privacy.step(model, inputs, self.compute_loss_context_manager())  # type: ignore[attr-defined]
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
            logs = {k: v for k, v in logs.items() if k not in PRIVATE_LOGS}
        if self.privacy.loop is not None and self.privacy.delta and len(self.privacy.loop.spent):
            logs["epsilon"] = self.privacy.bound().upper
        super().log(logs, *args, **kwargs)  # type: ignore[misc]


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
) -> Trainer:
    """Make a ``Trainer`` private, before ``train()``; give ``noise_multiplier`` or ``target_epsilon``.

    ``loss(model, inputs)`` returns one loss per example (default: :func:`~tacit.integrations.losses.per_example_loss`).
    ``key_file`` is where the secret key is kept for resuming until the run ends (default: the user's state folder).
    ``show_private=True`` leaves training loss in the logs: for runs whose logs nobody but the operator sees.

    Guarantee: everything computed from the weights is (``trainer.privacy.bound().upper``, ``target_delta``)-DP for adding
    or removing one record of ``train_dataset``. Metrics on an evaluation set are not covered where that set is private.
    """
    if (noise_multiplier is None) == (target_epsilon is None):
        raise ValueError("give noise_multiplier= or target_epsilon=, one of the two: each decides the other")
    if not 0 < target_delta < 1:
        raise ValueError(f"target_delta must lie strictly between 0 and 1, not {target_delta!r}")
    if target_epsilon is not None and not 0 < target_epsilon < math.inf:
        raise ValueError(f"target_epsilon must be positive and finite, not {target_epsilon!r}")
    if isinstance(trainer, PrivateMixin):
        raise ValueError("the trainer is private already")
    args = trainer.args
    if args.fp16:
        raise ValueError("fp16 scales losses by a factor that changes with the data: use bf16=True")
    if args.auto_find_batch_size:
        raise ValueError("auto_find_batch_size would change the sampling rate in mid-run: choose the batch size")
    if getattr(args, "label_smoothing_factor", 0) and loss is None:
        raise ValueError("label smoothing needs a loss of its own: pass loss=")
    if noise_multiplier is not None:
        warn_about_noise(noise_multiplier, level=3)
    callback = PrivacyCallback(
        trainer,
        noise_multiplier=noise_multiplier,
        target_epsilon=target_epsilon,
        target_delta=target_delta,
        max_grad_norm=max_grad_norm,
        loss=loss,
        key_file=key_file,
    )
    kind = type(trainer)
    trainer.__class__ = type(f"Private{kind.__name__}", (PrivateMixin, kind), {"__module__": kind.__module__})
    trainer.privacy, trainer.show_private = callback, show_private
    trainer.add_callback(callback)
    return trainer


def diagnostics(trainer: Any) -> OperatorView:
    """Clipped fraction and norms of the last step: for the operator, not covered by the guarantee."""
    loop = trainer.privacy.loop
    return loop.diagnostics() if loop is not None else OperatorView(step=0, records=0)


__all__ = ["PrivacyCallback", "PrivateMixin", "diagnostics", "make_private", "per_example_loss"]
