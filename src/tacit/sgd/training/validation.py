"""Can this run start? Everything that can be checked before the first step, with a clear error.

Some errors depend on the data (NaN, labels out of range, empty data). They are for the operator, who has the data
anyway. The guarantee does not cover an error text: it must not be published.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tacit.accounting.correlated import INDEPENDENT
from tacit.accounting.errors import PrivacyWarning
from tacit.ledger import FingerprintMismatch, Ledger
from tacit.sgd.gradients.outside import Attributes
from tacit.sgd.gradients.verify import trainable
from tacit.sgd.sharding.ranks import DistributedError, Ranks
from tacit.sgd.sharding.shards import ShardedParameters
from tacit.sgd.training.data import Records
from tacit.sgd.training.plan import Plan

ONLY_OPERATOR = "(This message is about private data: it is for the operator and must not be published.)"


def check_parameters(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The trainable parameters, which must be those that the optimizer updates."""
    parameters = trainable(model)
    if not parameters:
        raise ValueError("the model has no trainable parameters: set requires_grad_(True) on those to train")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("LBFGS evaluates the loss several times a step, each time another release: use SGD or Adam")
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise ValueError("SparseAdam needs sparse gradients, and noise falls on every element: use Adam")
    known = {id(p) for p in parameters.values()}
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.requires_grad and id(p) not in known:
                raise ValueError(
                    "the optimizer holds a trainable parameter that is not the model's, which would be updated without "
                    "noise: make the optimizer from model.parameters(). See: tacit explain unnoised-parameters"
                )
    left = [name for name, p in parameters.items() if id(p) not in held]
    if left:
        raise ValueError(
            f"parameter {left[0]!r} is trainable but not in the optimizer, and would take noise for nothing: freeze it "
            "with requires_grad_(False), or give it to the optimizer. See: tacit explain unnoised-parameters"
        )
    return parameters


def check_ranks(ranks: Ranks, shards: ShardedParameters | None, mechanism: str, compile: bool | str) -> None:
    """Refuse what cannot be right on parameters that are spread over ranks."""
    if shards is None:
        return
    if not ranks.active:
        raise DistributedError(
            f"the model's parameters are {shards.words}, over ranks that train together: leave out distributed=False"
        )
    if mechanism != "gaussian":
        raise ValueError("Laplace noise is for small models, which every rank holds whole: leave out fully_shard")
    if compile not in ("auto", False):
        raise ValueError(
            f"compile=True traces a whole step, and the parameters of this model are {shards.words} and gathered layer "
            "by layer while it runs: leave out compile"
        )
    shards.check(ranks.world)


def check_method(method: str, mechanism: str, shards: ShardedParameters | None) -> None:
    """Refuse one backward pass for each example where it cannot be right."""
    if method == "examples" and (mechanism != "gaussian" or shards is not None):
        raise ValueError("method='examples' needs Gaussian noise and a model that every rank holds whole")


def check_labels(model: nn.Module, loss: Any, records: Records, device: torch.device) -> None:
    """Class numbers outside the model's outputs, where loss and data show what the classes are."""
    if not isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss):
        return
    targets = records.labels()
    if targets is None:
        return
    inputs = records.take(np.zeros(1, dtype=np.int64))[0]
    if not isinstance(inputs, Tensor):
        return
    training = model.training
    model.eval()
    try:
        # On a blank of the same shape: a model that writes what it sees into a buffer must not see a record here.
        blank = torch.zeros_like(inputs).to(device)
        buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
        with torch.no_grad(), Attributes(model):
            classes = model(blank).shape[1]
            for buffer, before in buffers:
                buffer.copy_(before)
    finally:
        model.train(training)
    wrong = (targets != loss.ignore_index) & ((targets < 0) | (targets >= classes))
    if bool(wrong.any()):
        raise ValueError(f"labels must lie between 0 and {classes - 1}, the outputs of the model. {ONLY_OPERATOR}")


def check_ledger(
    ledger: Ledger | None, dataset: str | None, adjacency: str | None, unit: str, size: int | None
) -> str | None:
    """The adjacency of the ledger's terms, where there is one; it must be the one asked for."""
    if ledger is None or dataset is None:
        return adjacency
    terms = ledger.dataset(dataset)
    if adjacency is not None and adjacency != terms.adjacency:
        raise ValueError(f"{dataset!r} is registered for {terms.adjacency}, not {adjacency}")
    if unit != terms.unit:
        raise ValueError(
            f"{dataset!r} is registered for one {terms.unit}, and this run protects one {unit}: pass groups=, one id "
            f"per record, with unit={terms.unit!r}. If every record is another {terms.unit}, number them: "
            "groups=range(number of records). See: tacit explain unit-without-groups"
        )
    if not terms.size_public and size is None:
        raise ValueError(
            f"the number of {terms.unit}s in {dataset!r} is private: give size=, a number chosen without looking at it"
        )
    return terms.adjacency


def recognised(ledger: Ledger | None, dataset: str | None, data: Records, source: Any) -> str | None:
    """The fingerprint of what a run reads, after comparing it with the one that is registered."""
    if ledger is None or dataset is None:
        return None
    if source is not None:
        return ledger.recognise(dataset, source)
    found = data.registered_as(ledger.secret())
    if found is None and ledger.dataset(dataset).fingerprint is not None:
        raise FingerprintMismatch(
            f"{dataset!r} is registered with a fingerprint, and this data set draws its items anew each time or is not "
            "scanned, so it has none: give the data that it is made of, source= (a path, a table or a fingerprint). "
            "See: tacit explain fingerprint"
        )
    return None if found is None else ledger.recognise(dataset, found)


def warn_unnamed(parts: Mapping[str, tuple[str, bytes | None]], level: int = 3) -> None:
    """Warn about what keeps a run from being resumed."""
    unnamed = [f"{part} ({word})" for part, (word, name) in parts.items() if name is None]
    if unnamed:
        warnings.warn(
            f"{', '.join(unnamed)} cannot be recognised in a later process: if this run is killed, it cannot be "
            "resumed, and whatever continues from its checkpoint is a fork, which is charged again. "
            "See: tacit explain resume-differs",
            PrivacyWarning,
            stacklevel=level,
        )


def warn_about(plan: Plan, units: int, level: int) -> None:
    """Warn about what weakens the guarantee."""
    if min(plan.noise) == 0:
        warnings.warn(
            "noise_multiplier is 0: ε=inf, this run has NO privacy guarantee", PrivacyWarning, stacklevel=level
        )
    if plan.delta >= 1 / plan.sampler.size:
        warnings.warn(
            f"δ={plan.delta:g} is not below 1 / number of {plan.unit}s: it would allow one {plan.unit}, chosen at "
            "random, to be released in full. Choose a δ well below. See: tacit explain delta-too-large",
            PrivacyWarning,
            stacklevel=level,
        )
    if plan.sampler.name in ("shuffle", "chunks") and plan.correlation == INDEPENDENT:
        warnings.warn(
            f"sampler={plan.sampler.name!r} is priced without amplification: the price is that against an attacker who "
            "knows which batch a record is in. sampler='balls-in-bins' has passes too, and as sampler='poisson' a far "
            "smaller ε for the same noise",
            PrivacyWarning,
            stacklevel=level,
        )
