"""Do several ranks release what one process would have released? Real processes, over the loopback interface.

Two ranks train a network whose weights do not move, with so few records that shares of a draw are often empty; once
every rank holds the model whole, once ``fully_shard`` divides it. From outside it is seen what reaches the optimizer:
the sum of the records that all ranks drew together, and noise of the stated size, once, independent in every place.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import torch

from tacit.audit import statistics
from tacit.audit.findings import Finding, holds
from tacit.selftest import models as scenes
from tacit.selftest.ranks import RankFailed, on_ranks, possible
from tacit.selftest.scene import Scene
from tacit.sgd.training import training as training_module

RANKS, STEPS, BATCH = 2, 30, 2
#: Steps with nearly no noise, in which the sum itself is seen, and that noise.
PLAIN, LITTLE = 8, 1e-7
#: Seconds: for all ranks, for the others once one of them is through, and at one step, at which they meet.
PATIENCE, GRACE, EACH = 90.0, 10.0, 20.0


def _watched(seed: int, *, sharded: bool, **settings: Any) -> tuple[int, list[Any], list[Any]]:
    """On one rank: steps made, the rows of its shares, and what the optimizer was given, put together."""
    scene = scenes.network(seed)
    model = copy.deepcopy(scene.model)
    if sharded:
        assert isinstance(model, torch.nn.Sequential)
        from torch.distributed.fsdp import fully_shard

        for module in (model[0], model[2], model):
            fully_shard(module)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        training = training_module.Training(
            model, optimizer, scene.loss, scene.records, **(scene.settings | {"batch_size": BATCH} | settings)
        )
    pieces: list[Any] = []

    def look(optimizer: Any, args: Any, kwargs: Any) -> None:
        pieces.append([p.grad for p in training.parameters.values()])

    optimizer.register_step_pre_hook(look)
    rows, made = [], 0
    for batch in training:
        rows.append(np.array(batch.rows))
        before = len(pieces)
        training.step(batch)
        made += len(pieces) - before
    # Only now, so that a step holds no other collectives than its own.
    whole = [[g.full_tensor() if hasattr(g, "full_tensor") else g for g in given] for given in pieces]
    flat = [torch.cat([g.double().flatten() for g in given]).numpy() * BATCH for given in whole]
    return made, rows, flat


def _work(seed: int, sharded: bool) -> list[tuple[int, list[Any], list[Any]]]:
    return [
        _watched(seed, sharded=sharded, steps=STEPS),
        _watched(seed, sharded=sharded, steps=PLAIN, noise_multiplier=LITTLE),
    ]


def _findings(seed: int, *, sharded: bool) -> list[Finding]:
    name = "fully_shard" if sharded else "data parallel"
    try:
        both = on_ranks(RANKS, lambda rank: _work(seed, sharded), timeout=PATIENCE, grace=GRACE, each=EACH)
    except RankFailed as error:
        return [holds(f"ranks meet ({name})", False, str(error).splitlines()[0])]
    scene = scenes.network(seed)
    raw, clip = scene.gradients(), scene.settings["clip_norm"]
    own = raw * np.minimum(1.0, clip / np.linalg.norm(raw, axis=1))[:, None]
    alike, twice, empty, left = True, False, 0, []
    for ranks in zip(*both, strict=True):
        alike &= all(np.array_equal(a, b) for rank in ranks for a, b in zip(rank[2], ranks[0][2], strict=False))
        rest = []
        for step, released in enumerate(ranks[0][2]):
            shares = [rank[1][step] for rank in ranks]
            together = np.concatenate(shares)
            twice |= len(np.unique(together)) != len(together)
            empty += sum(len(share) == 0 for share in shares)
            rest.append(released - own[together].sum(0))
        left.append(np.concatenate(rest))
    made = sorted({(rank[0][0], rank[1][0]) for rank in both})
    noise = left[0] / (scene.settings["noise_multiplier"] * clip)
    away = float(np.abs(left[1]).max()) / clip
    return [
        holds(f"ranks meet ({name})", made == [(STEPS, PLAIN)] and alike, f"{made} steps, {empty} empty shares"),
        holds(f"ranks share a draw ({name})", not twice, f"{'a' if twice else 'no'} record is in two shares"),
        holds(f"ranks: sum ({name})", away < 1e-4, f"{away:.1e} clip norms from the sum over all ranks' records"),
        Finding(f"ranks: noise ({name})", statistics.variance_p_value(noise), f"{noise.std():.4f} of the stated size"),
        Finding(f"ranks: noise used once ({name})", statistics.repetition_p_value(noise), "correlation with itself"),
    ]


def ranks_train_as_one(seed: int) -> list[Finding]:
    """Several ranks are one run: one draw shared out, one sum, one noise, every step made by all."""
    if not possible():
        return []
    found = _findings(seed, sharded=False)
    if len(found) > 1:  # else ranks that wait in vain did so already
        found += _findings(seed, sharded=True)
    return found


SCENES = (Scene("ranks", "sgd", ranks_train_as_one, long=True),)
