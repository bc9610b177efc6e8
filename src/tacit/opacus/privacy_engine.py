"""How do I train privately, in the words of Opacus? ``PrivacyEngine`` with ``make_private`` and ``get_epsilon``.

privacy_engine = PrivacyEngine()
model, optimizer, data_loader = privacy_engine.make_private(
    module=model, optimizer=optimizer, data_loader=data_loader, noise_multiplier=1.0, max_grad_norm=0.5)
# the ordinary loop
privacy_engine.get_epsilon(delta=1e-5)
"""

from __future__ import annotations

import copy
import math
import os
import warnings
from typing import IO, Any, BinaryIO

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from tacit import accounting as acc
from tacit.accounting.errors import PrivacyWarning
from tacit.ledger import Ledger, OperatorView
from tacit.opacus.accountants import IAccountant, create_accountant
from tacit.opacus.data_loader import DPDataLoader, _key, sampler_of
from tacit.opacus.layers.saved import as_torch
from tacit.opacus.optimizers import (
    AdaClipDPOptimizer,
    DPOptimizer,
    DPOptimizerFastGradientClipping,
    DPPerLayerOptimizer,
)
from tacit.opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from tacit.opacus.validators import ModuleValidator
from tacit.sgd.hooked.draws import PrivateBatches
from tacit.sgd.hooked.loop import Loop, warn_about_noise
from tacit.sgd.hooked.prepaid import Asked, Prepaid, check_charged, check_terms, planned
from tacit.sgd.release import AdaptiveClipping
from tacit.sgd.training.checkpoint import CheckpointError
from tacit.sgd.training.plan import Plan, make_plan
from tacit.sgd.training.sampling import Poisson, Sampler, run_length

Path = str | os.PathLike[str] | BinaryIO | IO[bytes]
MODES = ("hooks", "ew", "functorch", "ghost", "ghost_fsdp", "no_op", "tp")
_ADAPTIVE = (
    "target_unclipped_quantile",
    "clipbound_learning_rate",
    "max_clipbound",
    "min_clipbound",
    "unclipped_num_std",
)


class PrivacyEngine:
    """Makes a model, an optimizer and a data loader private, and keeps count of what that costs.

    ``accountant`` is a name of Opacus' ("prv", "rdp", "gdp"); all stand for tacit's certified accounting.
    ``secure_mode`` changes nothing: noise and sampling always come from a secret key of the operating system's entropy.
    ``ledger`` and ``dataset`` (its name there) say where runs are charged: each whole, before its first step; a step
    beyond what was charged is refused. ``purpose`` is public and stands beside the charge.

    Guarantee: everything computed from the weights is (``get_epsilon(delta)``, ``delta``)-DP for adding or removing one
    record (for zero-out of one record with ``poisson_sampling=False``), as long as the moment to stop was not chosen by
    looking at results on the private data.

    >>> from torch.utils.data import TensorDataset
    >>> data = TensorDataset(torch.randn(100, 3), torch.randint(0, 2, (100,)))
    >>> model = nn.Linear(3, 2)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> engine = PrivacyEngine()
    >>> model, optimizer, loader = engine.make_private(
    ...     module=model, optimizer=optimizer, data_loader=DataLoader(data, batch_size=10),
    ...     noise_multiplier=1.0, max_grad_norm=1.0)
    >>> for x, y in loader:
    ...     optimizer.zero_grad()
    ...     nn.functional.cross_entropy(model(x), y).backward()
    ...     optimizer.step()
    >>> round(engine.get_epsilon(delta=1e-5), 2)
    2.8...
    """

    def __init__(
        self,
        *,
        accountant: str = "prv",
        secure_mode: bool = False,
        ledger: Ledger | None = None,
        dataset: str | None = None,
        purpose: str = "",
    ) -> None:
        if (ledger is None) != (dataset is None):
            raise ValueError("give ledger= and dataset= together: the ledger, and the name of the data in it")
        self.ledger, self.purpose = ledger, purpose
        self._registered = dataset
        self._accountant = create_accountant(mechanism=accountant)
        self.secure_mode = secure_mode
        self.dataset: Any = None
        self.loops: list[Loop] = []

    @property
    def accountant(self) -> IAccountant:
        """What counts. Another one may be put in its place: the runs of this engine are counted by it, too."""
        return self._accountant

    @accountant.setter
    def accountant(self, value: IAccountant) -> None:
        if not isinstance(value, IAccountant):
            raise TypeError(f"the accountant is one of tacit.opacus.accountants, not a {type(value).__name__}")
        for loop in self.loops:
            if not any(run is loop.spent for run in value._runs):
                value.follow(loop.spent)
        self._accountant = value

    # -- make private -----------------------------------------------------------------------------------------------

    def make_private(
        self,
        *,
        module: nn.Module,
        optimizer: Optimizer,
        criterion: Any = None,
        data_loader: DataLoader[Any],
        noise_multiplier: float,
        max_grad_norm: float | list[float],
        batch_first: bool = True,
        loss_reduction: str = "mean",
        poisson_sampling: bool = True,
        clipping: str = "flat",
        noise_generator: Any = None,
        grad_sample_mode: str = "hooks",
        wrap_model: bool = True,
        rand_on_empty: bool = False,
        epochs: int | None = None,
        steps: int | None = None,
        target_delta: float | None = None,
        **kwargs: Any,
    ) -> Any:
        """(module, optimizer, data_loader), or with a ghost mode (module, optimizer, criterion, data_loader).

        The module is the same object. The data loader draws each record with probability batch size / number of
        records (``poisson_sampling=False``: shuffled passes, priced without amplification). ``clipping`` is "flat",
        "per_layer" (``max_grad_norm`` a list with one bound per parameter, or one number for all together) or
        "adaptive". Every ``grad_sample_mode`` is the same engine.

        With a ledger, give ``epochs`` or ``steps``, the length of the whole run that is charged before its first step,
        at ``target_delta`` (default: the share of δ that the ledger gives to a charge).
        """
        sampler = sampler_of(data_loader, poisson=poisson_sampling)
        plan = self._plan(module, sampler, float(noise_multiplier), epochs, steps, target_delta)
        return self._make(
            module=module,
            optimizer=optimizer,
            criterion=criterion,
            data_loader=data_loader,
            sampler=sampler,
            noise_multiplier=noise_multiplier,
            max_grad_norm=max_grad_norm,
            batch_first=batch_first,
            loss_reduction=loss_reduction,
            clipping=clipping,
            noise_generator=noise_generator,
            grad_sample_mode=grad_sample_mode,
            wrap_model=wrap_model,
            rand_on_empty=rand_on_empty,
            options=kwargs,
            plan=plan,
        )

    def make_private_with_epsilon(
        self,
        *,
        module: nn.Module,
        optimizer: Optimizer,
        criterion: Any = None,
        data_loader: DataLoader[Any],
        target_epsilon: float,
        target_delta: float,
        epochs: int,
        max_grad_norm: float | list[float],
        batch_first: bool = True,
        loss_reduction: str = "mean",
        poisson_sampling: bool = True,
        clipping: str = "flat",
        noise_generator: Any = None,
        grad_sample_mode: str = "hooks",
        wrap_model: bool = True,
        rand_on_empty: bool = False,
        **kwargs: Any,
    ) -> Any:
        """:meth:`make_private` with the least noise that keeps ε at ``target_epsilon`` after ``epochs`` passes.

        A step beyond those, or with less noise, gets a warning. A checkpoint that has spent too much is refused.
        """
        if len(self.accountant) > 0:
            warnings.warn(
                "this engine has spent privacy already: the noise is chosen as if it had not, and the total will be "
                "above target_epsilon",
                PrivacyWarning,
                stacklevel=2,
            )
        sampler = sampler_of(data_loader, poisson=poisson_sampling)
        plan = make_plan(
            sampler,
            steps=sampler.steps_per_epoch * int(epochs),
            epsilon=target_epsilon,
            noise_multiplier=None,
            clip_norm=1.0,
            delta=target_delta,
            adjacency=sampler.adjacency,
            elements=_elements(module),
        )
        return self._make(
            module=module,
            optimizer=optimizer,
            criterion=criterion,
            data_loader=data_loader,
            sampler=sampler,
            noise_multiplier=plan.noise[0],
            max_grad_norm=max_grad_norm,
            batch_first=batch_first,
            loss_reduction=loss_reduction,
            clipping=clipping,
            noise_generator=noise_generator,
            grad_sample_mode=grad_sample_mode,
            wrap_model=wrap_model,
            rand_on_empty=rand_on_empty,
            options=kwargs,
            plan=plan,
            target=float(target_epsilon),
        )

    def _make(
        self,
        *,
        module: nn.Module,
        optimizer: Optimizer,
        criterion: Any,
        data_loader: DataLoader[Any],
        sampler: Sampler,
        noise_multiplier: float,
        max_grad_norm: float | list[float],
        batch_first: bool,
        loss_reduction: str,
        clipping: str,
        noise_generator: Any,
        grad_sample_mode: str,
        wrap_model: bool,
        rand_on_empty: bool,
        options: dict[str, Any],
        plan: Plan | None,
        target: float | None = None,
    ) -> Any:
        if noise_generator is not None and self.secure_mode:
            raise ValueError("Passing seed is prohibited in secure mode")
        _check_words(grad_sample_mode, loss_reduction)
        if type(module).__name__ in _DISTRIBUTED or type(module).__mro__[1].__name__ == "FSDPModule":
            raise NotImplementedError(
                f"{type(module).__name__} is not supported: its reducer waits for gradients that never come. Pass the "
                "model itself, in one process"
            )
        if isinstance(optimizer, DPOptimizer):
            raise ValueError("the optimizer is private already: make_private takes the original one")
        adaptive, clip_range = _adaptive(clipping, options, sampler, noise_multiplier)
        _check_clipping(clipping, max_grad_norm)
        self.validate(module=module, optimizer=optimizer, data_loader=data_loader)
        self._same_data(data_loader)
        warn_about_noise(noise_multiplier, level=4)
        self._say(sampler, data_loader)
        if noise_generator is not None:
            warnings.warn(
                "noise_generator makes noise and batches repeatable: whoever knows its seed can subtract the noise",
                PrivacyWarning,
                stacklevel=4,
            )
        paid = None
        if self.ledger is not None and self._registered is not None and plan is not None:
            paid = Prepaid(self.ledger, self._registered, plan, purpose=self.purpose)
            paid.refuse_early()
        key = _key(noise_generator)
        blank = rand_on_empty and isinstance(sampler, Poisson)
        records: Any = data_loader.dataset
        batches = PrivateBatches(
            sampler, key.derive("sampler"), len(records), drop_last=data_loader.drop_last, blank=blank
        )
        loop = Loop(
            module,
            optimizer,
            batches,
            noise_multiplier=float(noise_multiplier),
            clip_norm=max_grad_norm if isinstance(max_grad_norm, list | tuple) else float(max_grad_norm),
            clipping={"adaptive": "flat"}.get(clipping, clipping),
            adaptive=adaptive,
            clip_range=clip_range,
            mean=loss_reduction == "mean",
            batch_dim=0 if batch_first else 1,
            key=key,
        )
        loop.paid = paid
        if target is not None and plan is not None:
            loop.asked = Asked(target, plan)
        self.loops.append(loop)
        self.accountant.follow(loop.spent)
        loader = DPDataLoader.from_data_loader(
            data_loader, batch_first=batch_first, rand_on_empty=blank, batches=batches
        )
        loader.loop = loop
        flat = DPOptimizerFastGradientClipping if "ghost" in grad_sample_mode else DPOptimizer
        kind = {"per_layer": DPPerLayerOptimizer, "adaptive": AdaClipDPOptimizer}.get(clipping, flat)
        private = kind(optimizer, loop)
        returned = module if wrap_model else Hooks(loop)
        if "ghost" in grad_sample_mode:
            loss = DPLossFastGradientClipping(criterion or nn.CrossEntropyLoss(), loss_reduction)
            return returned, private, loss, loader
        return returned, private, loader

    def _plan(
        self,
        module: nn.Module,
        sampler: Sampler,
        noise: float,
        epochs: int | None,
        steps: int | None,
        delta: float | None,
    ) -> Plan | None:
        """What a ledger is to be charged for, where there is one."""
        if self.ledger is None or self._registered is None:
            if (epochs, steps, delta) != (None, None, None):
                raise ValueError(
                    "epochs=, steps= and target_delta= say what a ledger is charged for: give ledger= first"
                )
            return None
        if epochs is None and steps is None:
            raise ValueError(
                "a run that is charged to a ledger is charged before its first step: say how long it is, with epochs= "
                "or steps="
            )
        check_terms(self.ledger, self._registered, sampler.adjacency)
        length = run_length(steps, epochs, sampler)
        share = self.ledger.dataset(self._registered).charge_delta if delta is None else float(delta)
        return planned(sampler, length, noise, share, _elements(module))

    def _same_data(self, data_loader: DataLoader[Any]) -> None:
        if self.dataset is not None and self.dataset is not data_loader.dataset:
            warnings.warn(
                "this engine is used with another data set than before. ε is stated for one data set: take a new "
                "PrivacyEngine for other data (or ignore this if it is the same data in another object)",
                PrivacyWarning,
                stacklevel=5,
            )
        self.dataset = data_loader.dataset

    def _say(self, sampler: Sampler, data_loader: DataLoader[Any]) -> None:
        if not isinstance(sampler, Poisson):
            warnings.warn(
                "poisson_sampling=False is priced with no amplification by sampling: batches of a shuffled pass are "
                "not Poisson samples, and charging them as such states an ε that is not true. Expect a much larger ε; "
                "it holds for zero-out of one record",
                PrivacyWarning,
                stacklevel=5,
            )
        elif data_loader.drop_last:
            warnings.warn("drop_last has no meaning for Poisson batches, which differ in size", stacklevel=5)
        inner = getattr(data_loader.batch_sampler, "sampler", None)
        if isinstance(sampler, Poisson) and type(inner) not in (RandomSampler, SequentialSampler, type(sampler)):
            kind = type(inner or data_loader.batch_sampler).__name__
            warnings.warn(
                f"{kind} does not choose the batches of private training: each record is drawn with the same "
                "probability. Weigh the losses instead, if some are to count more",
                stacklevel=5,
            )

    # -- the rest ---------------------------------------------------------------------------------------------------

    def is_compatible(
        self, *, module: nn.Module, optimizer: Optimizer | None = None, data_loader: DataLoader[Any] | None = None
    ) -> bool:
        """Whether nothing is known to stand in the way of private training."""
        return ModuleValidator.is_valid(module)

    def validate(
        self, *, module: nn.Module, optimizer: Optimizer | None = None, data_loader: DataLoader[Any] | None = None
    ) -> None:
        """:meth:`is_compatible`, with an error instead of False."""
        ModuleValidator.validate(module, strict=True)

    @classmethod
    def get_compatible_module(cls, module: nn.Module) -> nn.Module:
        """A copy of the module in which batch normalisation is replaced by group normalisation."""
        return ModuleValidator.fix_and_validate(module)

    def get_epsilon(self, delta: float) -> float:
        """The ε spent so far: the upper end of the certified interval (:meth:`privacy` has both)."""
        return self.accountant.get_epsilon(delta)

    def privacy(self, delta: float) -> acc.Privacy:
        """The guarantee of the steps made so far: :meth:`get_epsilon` with its terms."""
        return self.accountant.privacy(delta)

    def diagnostics(self) -> OperatorView:
        """Clipped fraction and norms of the last step: for the operator, not covered by the guarantee."""
        return self.loops[-1].diagnostics() if self.loops else OperatorView(step=0, records=0)

    def _loop(self, optimizer: Any) -> Loop | None:
        if isinstance(optimizer, DPOptimizer):
            return optimizer.loop
        return self.loops[-1] if self.loops else None

    def _check_target(self, asked: Asked, state: dict[str, Any]) -> None:
        """Refuse to go on from a state after which the ε that was asked for cannot be kept."""
        whole = create_accountant(self.accountant.mechanism())
        for part in (self.accountant.state_dict(), state):
            whole.load_state_dict(part)
        done, delta = len(whole), asked.plan.delta
        spent = whole.get_epsilon(delta)
        whole.follow(asked.rest(done))
        total = whole.get_epsilon(delta)
        if total > asked.epsilon * (1 + 1e-6):
            raise CheckpointError(
                f"target_epsilon={asked.epsilon:g} was asked for, and with this checkpoint it cannot be kept: "
                f"{done:,} steps have spent ε={spent:.4g} at δ={delta:g}, and ε={total:.4g} with what is left of the "
                f"{asked.plan.steps:,} steps of this run. Ask for a target_epsilon (or epochs) with which the run of "
                "the checkpoint was begun, or use make_private, where noise_multiplier is given and get_epsilon states "
                "the total"
            )
        asked.taken = done

    def save_checkpoint(
        self,
        *,
        path: Path,
        module: nn.Module,
        optimizer: DPOptimizer | None = None,
        noise_scheduler: Any = None,
        grad_clip_scheduler: Any = None,
        checkpoint_dict: dict[str, Any] | None = None,
        module_state_dict_kwargs: dict[str, Any] | None = None,
        torch_save_kwargs: dict[str, Any] | None = None,
    ) -> None:
        """Weights, what was spent, and the states that are given. Never the key: a resumed run draws new noise.

        With a ledger also which charge pays for the run and what it still covers. The first step after this is noted
        in the ledger, so that only one run goes on from here under that charge.
        """
        state = checkpoint_dict if checkpoint_dict is not None else {}
        loop = self._loop(optimizer)
        if loop is not None and loop.paid is not None:
            state["tacit_ledger"] = loop.paid.saved()
        state["module_state_dict"] = module.state_dict(**(module_state_dict_kwargs or {}))
        state["privacy_accountant_state_dict"] = self.accountant.state_dict()
        for name, part in (
            ("optimizer_state_dict", optimizer),
            ("noise_scheduler_state_dict", noise_scheduler),
            ("grad_clip_scheduler_state_dict", grad_clip_scheduler),
        ):
            if part is not None:
                state[name] = part.state_dict()
        if optimizer is not None:
            state["noise_multiplier"] = optimizer.noise_multiplier
            state["max_grad_norm"] = (
                optimizer.loop.clip_norm if isinstance(optimizer, DPOptimizer) else optimizer.max_grad_norm
            )
            state["clip_norm_adapted"] = loop is not None and loop.adaptive is not None
        torch.save(state, path, **(torch_save_kwargs or {}))

    def load_checkpoint(
        self,
        *,
        path: Path,
        module: nn.Module,
        optimizer: DPOptimizer | None = None,
        noise_scheduler: Any = None,
        grad_clip_scheduler: Any = None,
        module_load_dict_kwargs: dict[str, Any] | None = None,
        torch_load_kwargs: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Take over weights, optimizer and place in the schedules that :meth:`save_checkpoint` wrote.

        Only tensors and plain values are read, unless ``torch_load_kwargs`` says otherwise. With a ledger the run goes
        on under the charge of the checkpoint, unless another run did before: then its steps are charged anew.

        Guarantee: what had been spent counts on. Noise and clip norm stay those that ``make_private`` was asked for
        (an adaptive clip norm goes on where it was); where the checkpoint has others, a warning says so. A run of
        ``make_private_with_epsilon`` refuses a checkpoint after which its ``target_epsilon`` cannot be kept.
        """
        options = {"weights_only": True, **(torch_load_kwargs or {})}
        state: dict[str, Any] = torch.load(path, **options)
        entry = state.pop("tacit_ledger", None)
        if entry is not None:
            check_charged(entry, self.ledger, self._registered)
        elif self.ledger is not None and state["privacy_accountant_state_dict"]["history"]:
            raise CheckpointError("the run of this checkpoint was not charged to a ledger: what it spent is in none")
        loop = self._loop(optimizer)
        if loop is not None:
            self._take_over_budget(loop, state, entry)
        module.load_state_dict(_unwrapped(module, state["module_state_dict"]), **(module_load_dict_kwargs or {}))
        self.accountant.load_state_dict(state["privacy_accountant_state_dict"])
        told = state.pop("optimizer_state_dict", None)
        if optimizer is not None and told is not None:
            optimizer.load_state_dict(told)
        elif (optimizer is None) != (told is None):
            held = "holds" if told is not None else "does not hold"
            warnings.warn(f"the checkpoint {held} the state of an optimizer", stacklevel=2)
        for name, part in (
            ("noise_scheduler_state_dict", noise_scheduler),
            ("grad_clip_scheduler_state_dict", grad_clip_scheduler),
        ):
            told = state.pop(name, None)
            if part is not None and told is not None:
                part.load_state_dict(told)
        adapted = state.pop("clip_norm_adapted", False)
        if loop is not None and adapted and loop.adaptive is not None:
            loop.clip_norm = min(max(float(state["max_grad_norm"]), loop.clip_range[0]), loop.clip_range[1])
        if loop is not None and optimizer is not None:
            _say_what_is_kept(loop, state)
        return state

    def _take_over_budget(self, loop: Loop, state: dict[str, Any], entry: dict[str, Any] | None) -> None:
        """Refuse a checkpoint after which the target cannot be kept; go on under its charge."""
        if loop.asked is not None:
            self._check_target(loop.asked, state["privacy_accountant_state_dict"])
        if loop.paid is not None:
            loop.paid.go_on(entry)


def _say_what_is_kept(loop: Loop, state: dict[str, Any]) -> None:
    """Say aloud where a checkpoint has another noise or clip norm than the run, which keeps its own."""
    for name, own in (("noise_multiplier", loop.noise_multiplier), ("max_grad_norm", loop.clip_norm)):
        if state.get(name, own) != own:
            warnings.warn(
                f"the checkpoint was saved with {name} {state[name]}; this run keeps its own, {own}, which "
                "make_private was asked for. What was spent before counts with the noise it had",
                PrivacyWarning,
                stacklevel=3,
            )


_DISTRIBUTED = (
    "DistributedDataParallel",
    "DataParallel",
    "FullyShardedDataParallel",
    "DifferentiallyPrivateDistributedDataParallel",
)


class Hooks:
    """What ``wrap_model=False`` returns: ``cleanup()`` leaves the model alone from then on."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def cleanup(self) -> None:
        """Take the hooks off the model."""
        self._loop.close()


def _unwrapped(module: nn.Module, weights: dict[str, Any]) -> dict[str, Any]:
    """The weights of a checkpoint, without the names of Opacus' wrapper and of the inner parts of its layers."""
    wrapper = "_module."
    own = copy.copy(weights)
    if not hasattr(module, "_module") and all(name.startswith(wrapper) for name in weights):
        own = {name.removeprefix(wrapper): value for name, value in weights.items()}
    as_torch(module, own)
    return own


def _check_words(grad_sample_mode: str, loss_reduction: str) -> None:
    if grad_sample_mode not in MODES:
        raise ValueError(f"grad_sample_mode is one of {', '.join(MODES)}, not {grad_sample_mode!r}")
    if loss_reduction not in ("mean", "sum"):
        raise ValueError(f"Unexpected value for loss_reduction: {loss_reduction}")


def _check_clipping(clipping: str, max_grad_norm: float | list[float]) -> None:
    if clipping not in ("flat", "per_layer", "adaptive", "automatic"):
        raise ValueError(f"clipping is 'flat', 'per_layer', 'adaptive' or 'automatic', not {clipping!r}")
    if isinstance(max_grad_norm, list | tuple) and clipping != "per_layer":
        raise ValueError("a list of bounds belongs to clipping='per_layer'")


def _elements(module: nn.Module) -> int:
    """Noise numbers of a step at most: one for each trainable number, and the count of adaptive clipping."""
    trained: int = sum(p.numel() for p in module.parameters() if p.requires_grad)
    return trained + 1


def _adaptive(
    clipping: str, options: dict[str, Any], sampler: Sampler, noise: float
) -> tuple[AdaptiveClipping | None, tuple[float | None, float | None]]:
    """Opacus' arguments of adaptive clipping, of which none is silently dropped."""
    known = _ADAPTIVE if clipping == "adaptive" else ()
    unknown = [name for name in options if name not in known and name not in ("alphas", "eps_error")]
    if unknown:
        belongs = " (it belongs to clipping='adaptive')" if unknown[0] in _ADAPTIVE else ""
        raise TypeError(f"make_private has no argument {unknown[0]!r}{belongs}")
    if clipping != "adaptive":
        return None, (None, None)
    low, high = (None if name not in options else float(options[name]) for name in ("min_clipbound", "max_clipbound"))
    if not 0 < (1e-300 if low is None else low) < (math.inf if high is None else high):
        raise ValueError("max_clipbound must be larger than min_clipbound, and that larger than 0")
    adaptive = AdaptiveClipping(
        quantile=float(options.get("target_unclipped_quantile", 0.5)),
        rate=float(options.get("clipbound_learning_rate", 0.2)),
        count_noise=float(options.get("unclipped_num_std", sampler.batch_size / 20)),
    )
    adaptive.gradient_noise(noise)  # refuses a count that costs more than the noise allows
    return adaptive, (low, high)


__all__ = ["PrivacyEngine"]
