"""What does a private step of a large model under ``fully_shard`` cost next to a plain one?

    python -m benchmarks fsdp [--small] [--steps 10] [--json FILE]

A Llama-style model of 1.0 billion parameters, every block sharded by ``fully_shard`` (FSDP2), weights and arithmetic in
bfloat16, then weights in float32 and arithmetic in bfloat16 by its policy; NCCL on a GPU, gloo without. Plain steps run
forward, backward, SGD with momentum; private ones everything (draw, clipped sums, noise, optimizer). One rank unless a
launcher starts more. Methods take turns, and the median is told; memory is the peak above what is held between steps.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from benchmarks._workloads import Llama, per_example
from tacit.sgd import Training


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    """One loss per sequence."""
    x, y = batch
    return per_example(model(x), y)


def sharded(small: bool, dtype: torch.dtype, device: torch.device) -> nn.Module:
    """The model, its weights in ``dtype``, each block and the rest a unit of ``fully_shard``."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    torch.manual_seed(0)
    with device:
        model = Llama(d=64, depth=3, heads=4, hidden=96, vocab=500) if small else Llama()
    model = model.to(dtype)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    return model


def methods(small: bool, dtype: torch.dtype, rows: int, device: torch.device) -> dict[str, Callable[[], None]]:
    """A plain and a private step, each with a model of its own."""
    length, vocab = (32, 500) if small else (1024, 32000)
    data = tuple(torch.randint(vocab, (64 * rows, length), device=device) for _ in range(2))

    def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def plain() -> Callable[[], None]:
        model = sharded(small, dtype, device)
        optimizer = optimizer_of(model)

        def step() -> None:
            chosen = torch.randint(len(data[0]), (rows,), device=device)
            loss_of(model, (data[0][chosen], data[1][chosen])).mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return step

    def private() -> Callable[[], None]:
        model = sharded(small, dtype, device)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            training = Training(
                model,
                optimizer_of(model),
                loss_of,
                data,
                batch_size=rows * dist.get_world_size(),
                sampler="fixed",
                steps=1000,
                noise_multiplier=1.0,
                delta=1e-6,
                physical_batch=rows,
            )
        batches = iter(training)
        return lambda: training.step(next(batches))

    return {"plain": plain(), "private": private()}


def measure(name: str, steps: dict[str, Callable[[], None]], count: int, device: torch.device) -> dict[str, Any]:
    """Medians of steps in turns, and the peak of each."""
    cuda = device.type == "cuda"

    def wait() -> float:
        if cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    row: dict[str, Any] = {"weights": name}
    for method, step in steps.items():
        began = wait()
        for _ in range(2):
            step()
        row[f"{method} first"] = wait() - began
        if cuda:
            torch.cuda.reset_peak_memory_stats()
            held = torch.cuda.memory_allocated()
            step()
            row[f"{method} extra GiB"] = (torch.cuda.max_memory_allocated() - held) / 2**30
    times: dict[str, list[float]] = {method: [] for method in steps}
    for _ in range(count):
        for method, step in steps.items():
            began = wait()
            step()
            times[method].append(wait() - began)
    for method, found in times.items():
        row[method] = statistics.median(found)
    row["ratio"] = row["private"] / row["plain"]
    if cuda:
        row["held GiB"] = held / 2**30
    return row


def main(argv: list[str]) -> int:
    """Print a row for each kind of weights."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks fsdp", description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a tiny model, to try it out")
    parser.add_argument("--rows", type=int, default=4, help="sequences of 1,024 tokens on each rank")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(argv)
    cuda = torch.cuda.is_available()
    small = given.small or not cuda
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    with tempfile.TemporaryDirectory() as place:
        if "RANK" in os.environ:
            dist.init_process_group("nccl" if cuda else "gloo")
        else:
            where = f"file://{place}/store"
            dist.init_process_group("nccl" if cuda else "gloo", init_method=where, rank=0, world_size=1)
        rows = []
        try:
            for name, dtype in (("bfloat16", torch.bfloat16), ("float32", torch.float32)):
                steps = methods(small, dtype, given.rows, device)
                rows.append(measure(name, steps, given.steps, device))
                del steps
                gc.collect()
                if cuda:
                    torch.cuda.empty_cache()
                if dist.get_rank() == 0:
                    print({k: round(v, 4) if isinstance(v, float) else v for k, v in rows[-1].items()}, flush=True)
                    if given.json is not None:
                        given.json.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1))
        finally:
            dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
