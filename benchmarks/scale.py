"""Do many ranks train the model that one process would have trained, with the same noise, in less memory each?

    python -m benchmarks scale [--only same memory resume killed] [--steps 20] [--models cnn gpt lora]

On this machine: processes over the loopback interface (gloo). *same*: three models on 1, 2 and 4 ranks, data
parallel, ``fully_shard`` and tensor parallel, against one process; the largest difference of a clipped sum and of the
weights, and whether the noise has the same bits. *memory*: what a rank needs at its peak beyond what it had before, for
a model whose parameters dominate. *resume*: 4 ranks, then 2, then one process, from one checkpoint. *killed*: kill -9
of one of four workers under torchrun, which starts them again; the ledger has one charge and the weights are those of a
run that was left alone.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import io
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.ledger import Ledger
from tacit.noise.keys import Key
from tacit.noise.tensor import normal
from tacit.selftest.ranks import on_ranks
from tacit.sgd import Training
from tacit.sgd.sharding.shards import add_noise_

SECRET = bytes(range(32))
STEPS = 20
#: rows of the table: how the model lies on ranks, and on how many
LAYOUTS = (
    *(("data parallel", world) for world in (1, 2, 4)),
    *(("fully_shard", world) for world in (1, 2, 4)),
    ("tensor parallel", 2),
    ("tensor parallel", 4),
    ("fully_shard + tensor parallel", 4),
)


# -- three models ------------------------------------------------------------------------------------------------------


class CNN(nn.Module):
    """Two convolutions, group norm, two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.two = nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.Conv2d(8, 7, 3)
        self.up, self.down = nn.Linear(7 * 9, 32), nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm(self.one(x)))
        return self.down(F.relu(self.up(F.avg_pool2d(F.relu(self.two(h)), 2).flatten(1))))


class Attention(nn.Module):
    """Attention and a feed-forward layer; as many heads as a rank has of the projections."""

    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.before, self.between, self.size = nn.LayerNorm(d), nn.LayerNorm(d), d // heads
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))
        self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        h = self.before(x)
        q, k, v = (f(h).view(b, t, -1, self.size).transpose(1, 2) for f in (self.q, self.k, self.v))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, -1))
        return x + self.down(F.gelu(self.up(self.between(x))))


class GPT(nn.Module):
    """A small GPT whose head is its token embedding."""

    def __init__(self, d: int = 16, depth: int = 2, vocab: int = 31, length: int = 6) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(length, d)
        self.blocks = nn.ModuleList(Attention(d, 4) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, vocab, bias=False)
        self.head.weight = self.tok.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.tok(x) + self.pos(torch.arange(x.shape[1]))
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


class Adapted(nn.Module):
    """A frozen linear layer and a trainable product of low rank beside it."""

    def __init__(self, inner: nn.Linear, rank: int) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.a, self.b = (
            nn.Linear(inner.in_features, rank, bias=False),
            nn.Linear(rank, inner.out_features, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + self.b(self.a(x))


def lora() -> nn.Module:
    """The GPT, frozen, with adapters on its feed-forward layers."""
    model = GPT().requires_grad_(False)
    for block in model.blocks:
        block.up, block.down = Adapted(block.up, 4), Adapted(block.down, 4)
    return model


def next_token(model: nn.Module, batch: Any) -> Tensor:
    """The loss of each sequence."""
    x, y = batch
    return F.cross_entropy(model(x).transpose(1, 2), y, reduction="none").mean(1)


def images() -> Any:
    draw = torch.Generator().manual_seed(1)
    return torch.randn(300, 1, 8, 8, generator=draw), torch.randint(5, (300,), generator=draw)


def texts() -> Any:
    draw = torch.Generator().manual_seed(2)
    words = torch.randint(31, (300, 7), generator=draw)
    return words[:, :-1].clone(), words[:, 1:].clone()


MODELS: dict[str, tuple[Callable[[], nn.Module], Any, Callable[[], Any]]] = {
    "cnn": (CNN, nn.CrossEntropyLoss(reduction="none"), images),
    "gpt": (GPT, next_token, texts),
    "lora": (lora, next_token, texts),
}


def lay_out(model: nn.Module, layout: str) -> nn.Module:
    """ShardedParameters a model over the ranks of the process group."""
    if layout == "data parallel":
        return model
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    inside: dict[str, Any] = {}
    if "tensor" in layout:
        mesh = init_device_mesh("cpu", (torch.distributed.get_world_size() // 2, 2), mesh_dim_names=("data", "tensor"))
        inside["mesh"] = mesh["data"]
        # The first of two layers by columns and the second by rows; of an adapter the factor on that side.
        columns = ("q", "k", "v", "up", "up.inner", "up.b")
        rows = ("o", "down", "down.inner", "down.a")
        for block in [model] if isinstance(model, CNN) else model.blocks:
            named = {n: ColwiseParallel() for n in columns} | {n: RowwiseParallel() for n in rows}
            linear = {n for n, m in block.named_modules() if isinstance(m, nn.Linear)}
            parallelize_module(block, mesh["tensor"], {n: style for n, style in named.items() if n in linear})
    if "fully_shard" in layout:
        for module in list(model.modules()):
            if isinstance(module, Attention | nn.Conv2d) or (isinstance(model, CNN) and isinstance(module, nn.Linear)):
                fully_shard(module, **inside)
        fully_shard(model, **inside)
    return model


# -- the same model, the same noise ------------------------------------------------------------------------------------


def make(name: str, layout: str, **settings: Any) -> Training:
    """A private run of one of the models, in a layout."""
    build, loss, data = MODELS[name]
    torch.manual_seed(0)
    model = lay_out(build(), layout)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.3, momentum=0.9)
    usual: dict[str, Any] = {"batch_size": 6, "steps": STEPS, "noise_multiplier": 1.0, "delta": 1e-5, "clip_norm": 0.5}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Training(model, optimizer, loss, data(), **({"key": Key(SECRET, repeatable=True)} | usual | settings))


def whole(training: Training, pieces: dict[str, Tensor]) -> dict[str, np.ndarray]:
    """Whole tensors from the pieces of all ranks."""
    spread = training.shards
    found = {n: t if spread is None else spread.gradient(n, t) for n, t in pieces.items()}
    return {n: (t.full_tensor() if hasattr(t, "full_tensor") else t).numpy().copy() for n, t in found.items()}


def look(rank: int, name: str, layout: str, steps: int) -> dict[str, Any]:
    """One run: its first clipped sum, the noise of its first step, its draws, and its weights at the end."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    training = make(name, layout, steps=steps)
    began = time.perf_counter()
    found: dict[str, Any] = {"layout": training.layout, "rows": [], "empty": 0}
    for batch in training:
        if batch.step == 0:
            sums, inside = training.clipped_sums(batch, training.clip_at(0))
            training.add_up(sums, inside)
            found["sum"] = whole(training, sums)
            found["noise"] = noise_of(training, 0)
        found["rows"].append(np.array(batch.rows))
        found["empty"] += len(batch) == 0
        training.step(batch)
    with torch.no_grad():
        weights = {n: p.detach() for n, p in training.model.named_parameters()}
        found["weights"] = {
            n: (p.full_tensor() if hasattr(p, "full_tensor") else p).numpy().copy() for n, p in weights.items()
        }
    found["seconds"] = time.perf_counter() - began
    return found


def noise_of(training: Training, step: int) -> dict[str, np.ndarray]:
    """What a step adds to the sums, by the functions that add it."""
    spread, key = training.shards, training.keys.noise
    if spread is None:
        return {n: normal(key, step, n, p.shape).numpy() for n, p in training.parameters.items()}
    zeros = {n: torch.zeros(spread.shape(n)) for n in training.parameters}
    add_noise_(spread, zeros, key, step, 1.0)
    return whole(training, zeros)


def apart(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    """The largest difference of two sets of arrays."""
    return max(float(np.abs(one[n] - other[n]).max()) for n in other)


def same(models: list[str], steps: int, layouts: tuple[tuple[str, int], ...] = LAYOUTS) -> list[dict[str, Any]]:
    """Every layout of every model against one process without a process group."""
    rows = []
    for name in models:
        (alone,) = on_ranks(1, lambda rank, n=name: look(rank, n, "data parallel", steps), group=False, timeout=600)
        draws = [np.sort(r) for r in alone["rows"]]
        for layout, world in layouts:
            ranks = on_ranks(world, lambda rank, n=name, how=layout: look(rank, n, how, steps), timeout=600)
            # Ranks at the same place of their data group have the same records.
            teams = {tuple(np.concatenate([*r["rows"], [-1]]).tolist()): r for r in ranks}
            together = [
                np.sort(np.concatenate(parts)) for parts in zip(*(r["rows"] for r in teams.values()), strict=True)
            ]
            rows.append(
                {
                    "model": name,
                    "layout": layout,
                    "ranks": world,
                    "sum": max(apart(r["sum"], alone["sum"]) for r in ranks),
                    "weights": max(apart(r["weights"], alone["weights"]) for r in ranks),
                    "noise": all(
                        all(r["noise"][n].tobytes() == alone["noise"][n].tobytes() for n in alone["noise"])
                        for r in ranks
                    ),
                    "draws": all(np.array_equal(a, b) for a, b in zip(together, draws, strict=True)),
                    "empty": sum(r["empty"] for r in ranks),
                    "seconds": max(r["seconds"] for r in ranks),
                }
            )
            tell(rows[-1])
    return rows


def tell(row: dict[str, Any]) -> None:
    """One line of the table."""
    print(
        f"{row['model']:<5} {row['layout']:<30} {row['ranks']} ranks  sum {row['sum']:.1e}  "
        f"weights {row['weights']:.1e}  noise {'same bits' if row['noise'] else 'DIFFERS'}  "
        f"draws {'same' if row['draws'] else 'DIFFER'}  "
        f"({row['empty']} empty shares, {row['seconds']:.1f} s)",
        flush=True,
    )


# -- memory ------------------------------------------------------------------------------------------------------------


class Deep(nn.Module):
    """Square layers: 4 x width² bytes each."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x[:, :4]


def _status(field: str) -> float:
    """A line of /proc/self/status, in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise OSError(f"/proc/self/status has no {field}")


def peak(rank: int, width: int, depth: int, steps: int = 3) -> dict[str, float]:
    """What a rank needs at its peak, beyond what it had before there was a model, in MiB."""
    from torch.distributed.fsdp import fully_shard

    gc.collect()
    before = _status("VmRSS")
    torch.manual_seed(0)
    with torch.device("meta"):
        model = Deep(width, depth)
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    model.to_empty(device="cpu")
    with torch.no_grad():
        for p in model.parameters():
            p.to_local().normal_(0, width**-0.5)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x, y = torch.randn(64, width), torch.randint(4, (64,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        training = Training(
            model,
            optimizer,
            nn.CrossEntropyLoss(reduction="none"),
            (x, y),
            batch_size=4,
            steps=steps,
            noise_multiplier=1.0,
            delta=1e-5,
            physical_batch=4,
        )
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins again
    for batch in training:
        training.step(batch)
    return {"peak": _status("VmHWM") - before, "parameters": width * width * depth * 4 / 2**20}


def measured(rank: int, width: int, depth: int) -> dict[str, float]:
    """:func:`peak` in a process that has loaded all it needs, and gives memory back when it is free."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).mallopt(-3, 1 << 16)  # M_MMAP_THRESHOLD: what is freed does not stay in the heap
    peak(rank, 64, 2)
    return peak(rank, width, depth)


def memory(width: int = 1024, depth: int = 48) -> list[dict[str, float]]:
    """The peak of the worst rank on 1, 2 and 4 ranks."""
    rows = []
    for world in (1, 2, 4):
        found = on_ranks(world, lambda rank: measured(rank, width, depth), timeout=900)
        worst = max(f["peak"] for f in found)
        rows.append({"ranks": world, "peak": worst, "parameters": found[0]["parameters"]})
        share = worst / rows[0]["peak"]
        print(
            f"fully_shard + Adam, {found[0]['parameters']:.0f} MiB of parameters, {world} ranks: peak {worst:.0f} MiB "
            f"a rank ({share:.2f} of one rank's)",
            flush=True,
        )
    return rows


# -- going on ----------------------------------------------------------------------------------------------------------


def leg(rank: int, name: str, layout: str, folder: Path, until: int) -> dict[str, np.ndarray]:
    """Train up to a step and leave without a word, as a killed process does."""
    training = make(name, layout, key=None, checkpoint=folder / "run", key_file=folder / "key", checkpoint_every=1)
    for batch in training:
        training.step(batch)
        if training.steps_executed >= until:
            break
    weights = {n: p.detach() for n, p in training.model.named_parameters()}
    return {n: (p.full_tensor() if hasattr(p, "full_tensor") else p).numpy().copy() for n, p in weights.items()}


def resume(name: str = "gpt", steps: int = STEPS) -> float:
    """4 ranks, then 2, then one process alone; how far the weights are from those of one process throughout."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        Key(SECRET).save(folder / "given")

        def go(world: int, layout: str, until: int, group: bool = True) -> Any:
            return on_ranks(world, lambda rank: leg(rank, name, layout, folder, until), timeout=600, group=group)[0]

        with _given_key():
            go(4, "fully_shard", steps // 3)
            go(2, "fully_shard", 2 * steps // 3)
            last = go(1, "data parallel", steps, group=False)
        alone = on_ranks(1, lambda rank: look(rank, name, "data parallel", steps), group=False, timeout=600)[0]
        difference = apart(last, alone["weights"])
    print(
        f"{name}: 4 ranks, then 2, then one process, from one checkpoint: weights differ by {difference:.1e}",
        flush=True,
    )
    return difference


@contextlib.contextmanager
def _given_key() -> Any:
    """Runs that make a key of their own make a known one, so that they can be compared."""
    made = Key.generate
    Key.generate = classmethod(lambda cls: cls(SECRET))  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Key.generate = made  # type: ignore[method-assign]


# -- killed ------------------------------------------------------------------------------------------------------------


def worker(folder: Path, kill_at: int) -> None:
    """What torchrun starts: a private run with a ledger, one of whose ranks is killed once."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ledger = Ledger(folder / "ledger.db")
    settings = {"key": None, "checkpoint": folder / "run", "key_file": folder / "key", "checkpoint_every": 1}
    with _given_key(), contextlib.redirect_stderr(io.StringIO()):
        training = make("gpt", "fully_shard", ledger=ledger, dataset="people", **settings)
        for batch in training:
            training.step(batch)
            if training.steps_executed == kill_at and dist.get_rank() == 2 and not (folder / "killed").exists():
                (folder / "killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)
    weights = {n: p.detach().full_tensor() for n, p in training.model.named_parameters()}
    if dist.get_rank() == 0:
        torch.save(weights, folder / "weights.pt")
    dist.destroy_process_group()


def killed(kill_at: int = 7) -> tuple[float, int]:
    """kill -9 of one of four workers under torchrun; the difference of the weights, and the charges in the ledger."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        ledger = Ledger(folder / "ledger.db")
        ledger.register("people", epsilon=100.0, delta=1e-3)
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=4",
            "--max-restarts=1",
        ]
        command += ["-m", "benchmarks.scale", "--worker", str(folder), "--kill-at", str(kill_at)]
        loopback = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform.startswith("linux") else {}
        # Otherwise workers that are started again find the addresses of those before them in the launcher's store.
        loopback["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        told = subprocess.run(
            command, capture_output=True, text=True, timeout=900, check=False, env=os.environ | loopback
        )
        if told.returncode or not (folder / "killed").exists():
            raise RuntimeError(told.stderr[-20000:])
        weights = {n: t.numpy() for n, t in torch.load(folder / "weights.pt").items()}
        alone = on_ranks(1, lambda rank: look(rank, "gpt", "data parallel", STEPS), group=False, timeout=600)[0]
        difference, charges = apart(weights, alone["weights"]), ledger.budget("people").charges
    print(
        f"gpt: one of 4 workers killed (-9) after step {kill_at} and started again by torchrun: weights differ by "
        f"{difference:.1e} from an undisturbed run; {charges} charge in the ledger",
        flush=True,
    )
    return difference, charges


PARTS = ("same", "memory", "resume", "killed")


def main(argv: list[str]) -> int:
    """Print the whole table; the exit status says whether all of it is as it should be."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks scale", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=tuple(MODELS))
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--kill-at", type=int, default=7, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.worker is not None:
        worker(given.worker, given.kill_at)
        return 0
    torch.set_num_threads(1)
    fine = True
    if "same" in given.only:
        rows = same(given.models, given.steps)
        fine &= all(r["sum"] <= 1e-5 and r["weights"] <= 1e-5 and r["noise"] and r["draws"] for r in rows)
    if "memory" in given.only:
        peaks = [row["peak"] for row in memory()]
        fine &= peaks[1] < 0.65 * peaks[0] and peaks[2] < 0.4 * peaks[0]
    if "resume" in given.only:
        fine &= resume(steps=given.steps) <= 1e-5
    if "killed" in given.only:
        difference, charges = killed(given.kill_at)
        fine &= difference <= 1e-5 and charges == 1
    print("all as it should be" if fine else "NOT all as it should be", flush=True)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
