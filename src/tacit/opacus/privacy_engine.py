"""How do I train privately with the interface of Opacus? Build a ``PrivacyEngine`` and call ``make_private``.

The training loop stays as it was written for Opacus; ``get_epsilon`` says what it cost.
docs/howto/coming-from-opacus.md has a complete example.
"""

from __future__ import annotations

import os
import warnings
from typing import IO, Any, BinaryIO

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from tacit import accounting as acc
from tacit.accounting.base import unit_of
from tacit.accounting.errors import PrivacyWarning
from tacit.ledger import Ledger, OperatorView
from tacit.opacus.accountants import IAccountant, create_accountant
from tacit.opacus.arguments import (
    Hooks,
    adaptive_clipping,
    by_both_names,
    check_clipping,
    check_module,
    check_words,
    elements,
    say_how_it_draws,
    say_what_is_kept,
)
from tacit.opacus.data_loader import DPDataLoader, _key, sampler_of
from tacit.opacus.layers.saved import unwrapped
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
from tacit.sgd.hooked.owners import GIVE, Owners
from tacit.sgd.hooked.prepaid import Asked, Prepaid, check_charged, check_terms, planned
from tacit.sgd.training.checkpoint import CheckpointError
from tacit.sgd.training.plan import Plan, make_plan
from tacit.sgd.training.sampling import Poisson, RandomBins, Sampler, run_length

Path = str | os.PathLike[str] | BinaryIO | IO[bytes]


class PrivacyEngine:
    """Make a model, an optimizer and a data loader private, and account for every step.

    Guarantee:
        Everything computed from the weights is (``get_epsilon(delta)``, ``delta``)-DP for adding or removing one
        record (with ``groups``, one person with all their records), at the sampling rate and number of steps that were
        used. With ``poisson_sampling=False`` and a loader that does not shuffle it is so for zeroing out one. The
        number of steps must not have been chosen by looking at results on the private data. The rate follows from the
        number of records (or people), so :meth:`privacy` treats that number as public and states zero-out.

    Args:
        accountant: ``"prv"`` (default), ``"rdp"`` or ``"gdp"``. All three give tacit's certified ε.
        secure_mode: Has no effect on the noise, which always comes from a secret key made of the operating system's
            entropy. If true, ``noise_generator`` is refused.
        ledger: Where each run is charged, in full, before its first step. Default: no ledger.
        dataset: The name under which the data are registered in ``ledger``. Give both or neither.
        purpose: A public note that is stored with the charge.
        unit: The name of what is protected, such as ``"patient"``. It needs ``groups``. Default: ``"record"``, and
            ``"person"`` with ``groups``.
        groups: Whose each record of the loader's data set is: one id per record, or the name of a column of the data
            set. People are then drawn, batch sizes count people, and each shows one record a step. Default: every
            record is its own unit.

    Raises:
        ValueError: If only one of ``ledger`` and ``dataset`` is given, or ``accountant`` is unknown.
        tacit.accounting.UnitError: If ``unit`` names something other than a record, without ``groups``.
        TypeError: If ``accountant`` is later set to something that is not a tacit accountant.

    Example:
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
        unit: str | None = None,
        groups: Any = None,
    ) -> None:
        self.unit, self.groups = unit_of(unit, owned=groups is not None, ids=GIVE), groups
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
        """The accountant that counts the steps. A new one that is assigned also counts the runs of this engine."""
        return self._accountant

    @accountant.setter
    def accountant(self, value: IAccountant) -> None:
        if not isinstance(value, IAccountant):
            raise TypeError(f"accountant must come from tacit.opacus.accountants, not be a {type(value).__name__}")
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
        """Make model, optimizer and data loader private with a given amount of noise.

        Args:
            module: The model, in training mode. It is not wrapped or copied.
            optimizer: An optimizer over the parameters of ``module``.
            criterion: The loss function, used by the ghost modes only. Default: ``nn.CrossEntropyLoss()``.
            data_loader: The data loader. Its data set and batch size are kept; its way of choosing batches is not.
            noise_multiplier: Standard deviation of the noise divided by the bound on an example's whole gradient. 0
                means ε = inf, with a warning.
            max_grad_norm: The L2 bound on each example's gradient. With ``clipping="per_layer"`` also a list with one
                bound for each trainable parameter.
            batch_first: Whether the first dimension of inputs and outputs counts the examples (default), or the second.
            loss_reduction: ``"mean"`` (default) if the loss is averaged over the batch, ``"sum"`` if it is summed.
            poisson_sampling: True (default) draws each record with probability batch size / number of records. False
                keeps passes: with a loader that shuffles, each record falls into one batch of each pass at random
                (balls in bins, at its own price), so that batches differ in size; without shuffling, batches keep
                their order and are priced without amplification by sampling, with a warning.
            clipping: ``"flat"`` (default), ``"per_layer"``, ``"automatic"`` (every gradient is scaled to nearly
                ``max_grad_norm``) or ``"adaptive"`` (the bound follows a quantile of the norms, by a noisy count that
                is part of the price).
            noise_generator: A seeded ``torch.Generator``, which makes a run repeatable and gives up its secrecy.
                Default: a fresh secret key.
            grad_sample_mode: Accepted in every spelling of Opacus; all mean the same engine. With a ghost mode a
                criterion is returned too.
            wrap_model: True (default) returns ``module``; False returns an object whose ``cleanup()`` ends watching it.
            rand_on_empty: Give an empty batch one row of zeros, which contributes nothing to the sum. For
                models that cannot take zero rows.
            epochs: With a ledger, the length of the whole run in passes. Give ``epochs`` or ``steps``.
            steps: With a ledger, the length of the whole run in steps.
            target_delta: With a ledger, the δ of the charge. Default: the share of δ that the ledger gives to a charge.
            **kwargs: For ``clipping="adaptive"``: ``target_unclipped_quantile`` (0.5), ``clipbound_learning_rate``
                (0.2), ``unclipped_num_std`` (a twentieth of the batch size), ``min_clipbound`` and ``max_clipbound``.
                Opacus' ``alphas`` and ``eps_error`` are accepted and have no effect.

        Returns:
            ``(module, optimizer, data_loader)``, or ``(module, optimizer, criterion, data_loader)`` with a ghost mode.

        Raises:
            ValueError: If the data loader cannot be sampled privately, an argument is out of range, or ``epochs``,
                ``steps`` and ``target_delta`` do not fit the presence of a ledger.
            NotImplementedError: If ``module`` is wrapped for several processes (DDP, FSDP).
            UnsupportedModuleError: If the model has a layer that cannot be trained privately, such as batch
                normalisation.
            BudgetExceeded: If the ledger's budget does not cover the run.
        """
        owners, sampler = self._drawn(data_loader, poisson_sampling)
        plan = self._plan(module, sampler, float(noise_multiplier), epochs, steps, target_delta)
        return self._make(
            module=module,
            optimizer=optimizer,
            criterion=criterion,
            data_loader=data_loader,
            sampler=sampler,
            owners=owners,
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
        """Call :meth:`make_private` with the least noise that keeps ε at ``target_epsilon``.

        A step beyond ``epochs`` passes, or with less noise, gets a warning. A checkpoint that has already spent too
        much is refused.

        Args:
            module: The model, in training mode. It is not wrapped or copied.
            optimizer: An optimizer over the parameters of ``module``.
            criterion: The loss function, used by the ghost modes only. Default: ``nn.CrossEntropyLoss()``.
            data_loader: The data loader. Its data set and batch size are kept; its way of choosing batches is not.
            target_epsilon: The ε after ``epochs`` passes.
            target_delta: The δ at which ``target_epsilon`` holds.
            epochs: The length of the whole run in passes over the data.
            max_grad_norm: The L2 bound on each example's gradient. With ``clipping="per_layer"`` also a list with one
                bound for each trainable parameter.
            batch_first: Whether the first dimension of inputs and outputs counts the examples (default), or the second.
            loss_reduction: ``"mean"`` (default) if the loss is averaged over the batch, ``"sum"`` if it is summed.
            poisson_sampling: True (default) draws each record with probability batch size / number of records. False
                keeps passes: with a loader that shuffles, each record falls into one batch of each pass at random
                (balls in bins, at its own price), so that batches differ in size; without shuffling, batches keep
                their order and are priced without amplification by sampling, with a warning.
            clipping: ``"flat"`` (default), ``"per_layer"``, ``"automatic"`` (every gradient is scaled to nearly
                ``max_grad_norm``) or ``"adaptive"`` (the bound follows a quantile of the norms, by a noisy count that
                is part of the price).
            noise_generator: A seeded ``torch.Generator``, which makes a run repeatable and gives up its secrecy.
                Default: a fresh secret key.
            grad_sample_mode: Accepted in every spelling of Opacus; all mean the same engine. With a ghost mode a
                criterion is returned too.
            wrap_model: True (default) returns ``module``; False returns an object whose ``cleanup()`` ends watching it.
            rand_on_empty: Give an empty batch one row of zeros, which contributes nothing to the sum. For
                models that cannot take zero rows.
            **kwargs: For ``clipping="adaptive"``: ``target_unclipped_quantile`` (0.5), ``clipbound_learning_rate``
                (0.2), ``unclipped_num_std`` (a twentieth of the batch size), ``min_clipbound`` and ``max_clipbound``.
                Opacus' ``alphas`` and ``eps_error`` are accepted and have no effect.

        Returns:
            ``(module, optimizer, data_loader)``, or ``(module, optimizer, criterion, data_loader)`` with a ghost mode.

        Raises:
            ValueError: As :meth:`make_private`, and if no noise reaches ``target_epsilon``.
            NotImplementedError: If ``module`` is wrapped for several processes (DDP, FSDP).
            BudgetExceeded: If the ledger's budget does not cover the run.
        """
        if len(self.accountant) > 0:
            warnings.warn(
                "this engine has spent privacy already. The noise is chosen for this run alone, so the total ε will be "
                "above target_epsilon",
                PrivacyWarning,
                stacklevel=2,
            )
        owners, sampler = self._drawn(data_loader, poisson_sampling)
        plan = make_plan(
            sampler,
            steps=sampler.steps_per_epoch * int(epochs),
            epsilon=target_epsilon,
            noise_multiplier=None,
            clip_norm=1.0,
            delta=target_delta,
            adjacency=sampler.adjacency,
            elements=elements(module),
            unit=self.unit,
        )
        return self._make(
            module=module,
            optimizer=optimizer,
            criterion=criterion,
            data_loader=data_loader,
            sampler=sampler,
            owners=owners,
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
        owners: Owners,
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
            raise ValueError("noise_generator= makes the noise repeatable: leave it out, or leave out secure_mode=True")
        check_words(grad_sample_mode, loss_reduction)
        check_module(module)
        if isinstance(optimizer, DPOptimizer):
            raise ValueError("the optimizer is private already: give make_private the original optimizer")
        adaptive, clip_range = adaptive_clipping(clipping, options, sampler, noise_multiplier)
        check_clipping(clipping, max_grad_norm)
        self.validate(module=module, optimizer=optimizer, data_loader=data_loader)
        self._same_data(data_loader)
        warn_about_noise(noise_multiplier, level=4)
        say_how_it_draws(sampler, data_loader)
        if noise_generator is not None:
            warnings.warn(
                "noise_generator makes noise and batches repeatable: whoever knows its seed can subtract the noise",
                PrivacyWarning,
                stacklevel=4,
            )
        paid = None
        if self.ledger is not None and self._registered is not None and plan is not None:
            paid = Prepaid(self.ledger, self._registered, plan, purpose=self.purpose, data=data_loader.dataset)
            paid.refuse_early()
        key = _key(noise_generator)
        blank = rand_on_empty and isinstance(sampler, Poisson | RandomBins)
        drop = data_loader.drop_last
        batches = PrivateBatches(
            sampler, key.derive("sampler"), owners.size, drop_last=drop, blank=blank, owners=owners
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
        returned = by_both_names(module) if wrap_model else Hooks(loop)
        if "ghost" in grad_sample_mode:
            loss = DPLossFastGradientClipping(criterion or nn.CrossEntropyLoss(), loss_reduction)
            return returned, private, loss, loader
        return returned, private, loader

    def _drawn(self, data_loader: DataLoader[Any], poisson: bool) -> tuple[Owners, Sampler]:
        """Whose each record is, and who is drawn."""
        sampler = sampler_of(data_loader, poisson=poisson)
        owners = Owners.of(self.groups, self.unit, data_loader.dataset)
        if owners.units is not None:
            sampler = sampler_of(data_loader, poisson=poisson, units=owners.size)
        return owners, sampler

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
                    "epochs=, steps= and target_delta= say what a ledger is charged for: give ledger= to "
                    "PrivacyEngine, or leave them out"
                )
            return None
        if epochs is None and steps is None:
            raise ValueError(
                "the ledger is charged for the whole run before its first step: say how long the run is, with epochs= "
                "or steps="
            )
        check_terms(self.ledger, self._registered, sampler.adjacency, self.unit)
        length = run_length(steps, epochs, sampler)
        share = self.ledger.dataset(self._registered).charge_delta if delta is None else float(delta)
        return planned(sampler, length, noise, share, elements(module), self.unit)

    def _same_data(self, data_loader: DataLoader[Any]) -> None:
        if self.dataset is not None and self.dataset is not data_loader.dataset:
            warnings.warn(
                "this engine is used with another data set than before, and ε is stated for one data set. Use a new "
                "PrivacyEngine for other data, or ignore this if it is the same data in another object",
                PrivacyWarning,
                stacklevel=5,
            )
        self.dataset = data_loader.dataset

    # -- the rest ---------------------------------------------------------------------------------------------------

    def is_compatible(
        self, *, module: nn.Module, optimizer: Optimizer | None = None, data_loader: DataLoader[Any] | None = None
    ) -> bool:
        """Say whether the model can be trained privately, as far as that is known without data.

        Args:
            module: The model, in training mode.
            optimizer: Not used.
            data_loader: Not used.

        Returns:
            True if no layer is known to stand in the way.
        """
        return ModuleValidator.is_valid(module)

    def validate(
        self, *, module: nn.Module, optimizer: Optimizer | None = None, data_loader: DataLoader[Any] | None = None
    ) -> None:
        """Raise an error if the model cannot be trained privately.

        Args:
            module: The model, in training mode.
            optimizer: Not used.
            data_loader: Not used.

        Raises:
            UnsupportedModuleError: Holding one error for each layer that stands in the way.
        """
        ModuleValidator.validate(module, strict=True)

    @classmethod
    def get_compatible_module(cls, module: nn.Module) -> nn.Module:
        """Copy a model and replace its batch normalisation by group normalisation.

        Args:
            module: The model. It is not changed.

        Returns:
            The copy, which can be trained privately.

        Raises:
            UnsupportedModuleError: If something else stands in the way.
        """
        return ModuleValidator.fix_and_validate(module)

    def get_epsilon(self, delta: float) -> float:
        """Return the ε spent so far: the upper end of the certified interval (:meth:`privacy` has both ends).

        Args:
            delta: The δ at which to state ε, strictly between 0 and 1.

        Returns:
            The ε that we claim for all steps made so far with this engine.

        Raises:
            ValueError: If ``delta`` is not strictly between 0 and 1.
        """
        return self.accountant.get_epsilon(delta)

    def privacy(self, delta: float) -> acc.Privacy:
        """Return the guarantee of the steps made so far: ε with its adjacency, unit and interval.

        Args:
            delta: The δ at which to state ε, strictly between 0 and 1.

        Returns:
            The guarantee. Its ``interval`` has both ends of ε; its ``claim`` is the upper end.

        Raises:
            ValueError: If ``delta`` is not strictly between 0 and 1.
        """
        rows = self.loops[-1].batches.max_rows if self.loops else None
        return self.accountant.privacy(delta).with_details(max_rows=rows)

    def diagnostics(self) -> OperatorView:
        """Return clipped fraction and norms of the last step, for the operator. The guarantee does not cover them."""
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
                f"target_epsilon={asked.epsilon:g} cannot be kept after this checkpoint: its "
                f"{done:,} steps have spent ε={spent:.4g} at δ={delta:g}, and the rest of the {asked.plan.steps:,} "
                f"steps of this run would bring it to ε={total:.4g}. Use the target_epsilon and epochs with which the "
                "checkpoint's run was begun, or call make_private with a noise_multiplier: get_epsilon then states the "
                "total"
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
        """Save the weights, what was spent, and the states of what is given.

        The secret key is never saved, so a resumed run draws new noise. With a ledger the file also names the charge
        and what it still covers; the first step after it is noted in the ledger, so that only one run can continue from
        here under that charge.

        Args:
            path: A file name, or an open binary file.
            module: The model whose weights are saved.
            optimizer: The private optimizer, whose state, noise and clip norm are saved. Default: not saved.
            noise_scheduler: A scheduler of the noise, whose state is saved. Default: none.
            grad_clip_scheduler: A scheduler of the clip norm, whose state is saved. Default: none.
            checkpoint_dict: Further values to save; the states are added to it. Default: an empty one.
            module_state_dict_kwargs: Passed to ``module.state_dict``.
            torch_save_kwargs: Passed to ``torch.save``.
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
        """Load the weights and states that :meth:`save_checkpoint`, or Opacus, wrote.

        With a ledger the run continues under the charge of the checkpoint. If another run already did, the steps from
        here on are charged anew.

        Guarantee:
            What the checkpoint had spent is added to what this engine counts. Noise and clip norm stay those that
            ``make_private`` was given, with a warning if the checkpoint had others; an adaptive clip norm continues
            where it was.

        Args:
            path: A file name, or an open binary file.
            module: The model that gets the weights.
            optimizer: The private optimizer that gets the saved state. Default: it is not loaded.
            noise_scheduler: A scheduler of the noise that gets the saved epoch. Default: none.
            grad_clip_scheduler: A scheduler of the clip norm that gets the saved epoch. Default: none.
            module_load_dict_kwargs: Passed to ``module.load_state_dict``.
            torch_load_kwargs: Passed to ``torch.load``. Only tensors and plain values are read unless it says
                ``weights_only=False``.

        Returns:
            What else the file holds, such as the values of ``checkpoint_dict``.

        Raises:
            CheckpointError: If the checkpoint's run and this one do not share the same ledger charge, or if
                ``target_epsilon`` of ``make_private_with_epsilon`` cannot be kept after it.
        """
        options = {"weights_only": True, **(torch_load_kwargs or {})}
        state: dict[str, Any] = torch.load(path, **options)
        entry = state.pop("tacit_ledger", None)
        if entry is not None:
            check_charged(entry, self.ledger, self._registered)
        elif self.ledger is not None and state["privacy_accountant_state_dict"]["history"]:
            raise CheckpointError(
                "the run of this checkpoint was not charged to a ledger, so this ledger does not know what it spent: "
                "load it with a PrivacyEngine that has no ledger"
            )
        loop = self._loop(optimizer)
        if loop is not None:
            self._take_over_budget(loop, state, entry)
        module.load_state_dict(unwrapped(module, state["module_state_dict"]), **(module_load_dict_kwargs or {}))
        self.accountant.load_state_dict(state["privacy_accountant_state_dict"])
        told = state.pop("optimizer_state_dict", None)
        if optimizer is not None and told is not None:
            optimizer.load_state_dict(told)
        elif (optimizer is None) != (told is None):
            held = "holds" if told is not None else "does not hold"
            given = "" if optimizer is not None else "not "
            warnings.warn(f"the checkpoint {held} the state of an optimizer, and one was {given}given", stacklevel=2)
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
            say_what_is_kept(loop, state)
        return state

    def _take_over_budget(self, loop: Loop, state: dict[str, Any], entry: dict[str, Any] | None) -> None:
        """Refuse a checkpoint after which the target cannot be kept; go on under its charge."""
        if loop.asked is not None:
            self._check_target(loop.asked, state["privacy_accountant_state_dict"])
        if loop.paid is not None:
            loop.paid.go_on(entry)


__all__ = ["PrivacyEngine"]
