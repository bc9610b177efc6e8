"""What would 8, 64 and 1024 GPUs, and a billion rows, take? One step simulated from constants of one machine.

    python -m benchmarks projection [--svg docs/results/scale.svg]

Measured: the step of a model on one GPU, plain and private, with its memory (``benchmarks/results/h200-*.json`` and
``fsdp-h200-*.json``), and what a CPU core does to rows (``cluster-cpu-*.json``). Assumed: the links, by public figures
that are printed with their source. Computed: volumes of the collectives that tacit issues, and the time of a step, by
playing its computations and collectives on two queues, one for each, layer by layer. Nothing here was run on more than
one GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
WORLDS = (1, 8, 64, 1024)
GIB, GB = 2**30, 1e9


@dataclasses.dataclass(frozen=True)
class Links:
    """Machines of eight GPUs: a switch inside, a network card for each GPU outside."""

    inside: float = 450e9
    outside: float = 50e9
    efficiency: float = 0.84
    latency_inside: float = 5e-6
    latency_outside: float = 20e-6
    per_machine: int = 8

    ASSUMED = (
        ("inside a machine", "450 GB/s each way a GPU", "18 NVLink of the 4th generation, 900 GB/s both ways: MLPerf"
         " Inference 4.1, closed/NVIDIA/systems/H200-SXM-141GBx8_TRT_MaxQ.json"),
        ("between machines", "50 GB/s each way a GPU", "one 400 Gb/s InfiniBand card for each of 8 GPUs (the"
         " same file has 10)"),
        ("part of it that is reached", "0.84", "380 of 450 GB/s measured on H100: github.com/NVIDIA/nccl/issues/1264"),
        ("start of a collective", "5 µs inside, 20 µs a level of the tree outside", "our assumption"),
        ("memory of a GPU", "141 GB", "H200, the same MLPerf file"),
        ("volumes", "all-reduce 2(W-1)/W, all-gather and reduce-scatter (W-1)/W of the tensor",
         "github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md"),
        ("forward pass", "a third of a plain step", "our assumption: two products of matrices of three are backward"),
    )  # fmt: skip

    def _machines(self, world: int) -> tuple[int, int]:
        return min(world, self.per_machine), max(1, world // self.per_machine)

    def one_way(self, size: float, world: int) -> float:
        """Seconds of a reduce-scatter or an all-gather of ``size`` bytes: inside the machines, then between them."""
        if world == 1:
            return 0.0
        inside, machines = self._machines(world)
        seconds = self.latency_inside + size * (inside - 1) / inside / (self.inside * self.efficiency)
        if machines > 1:
            seconds += self.latency_outside * math.log2(machines)
            seconds += size / inside * (machines - 1) / machines / (self.outside * self.efficiency)
        return seconds

    def all_reduce(self, size: float, world: int) -> float:
        """Seconds of an all-reduce: a reduce-scatter and an all-gather."""
        return 2 * self.one_way(size, world)


@dataclasses.dataclass(frozen=True)
class Model:
    """A model as measured on one GPU: its step times, its memory, and how its parameters lie in layers."""

    name: str
    title: str
    layers: tuple[int, ...]
    largest: int
    weight_bytes: int
    rows: int
    tokens: int
    width: int
    plain: float | None
    private: float | None
    memory: float | None
    optimizer_bytes: int = 0

    @property
    def parameters(self) -> int:
        return sum(self.layers)

    @property
    def states(self) -> float:
        """Bytes of weights, of clipped sums (single precision) and of what the optimizer keeps."""
        return self.parameters * (self.weight_bytes + self.optimizer_bytes + 4.0)

    @property
    def activations(self) -> float:
        """What the measured step needs beside them."""
        return max((self.memory or 0.0) - self.states, 0.0)


class Queues:
    """Two queues of a GPU, one that computes and one that communicates; each does its work in order."""

    def __init__(self) -> None:
        self.computing = self.communicating = 0.0

    def compute(self, seconds: float, after: float = 0.0) -> float:
        self.computing = max(self.computing, after) + seconds
        return self.computing

    def communicate(self, seconds: float, after: float = 0.0) -> float:
        self.communicating = max(self.communicating, after) + seconds
        return self.communicating

    @property
    def end(self) -> float:
        return max(self.computing, self.communicating)


def step(model: Model, world: int, links: Links, *, sharded: bool, kind: str) -> float:
    """Seconds of one step, each rank with the rows that were measured.

    ``kind``: ``"plain"`` (gradients leave while the backward pass goes on, as torch does it), ``"private"`` (as tacit
    is built: norms first, then clipped sums, and their collectives are waited for), ``"overlapped"`` (a private step
    whose sums would leave while the next ones are computed, which is not built).
    """
    assert model.plain is not None
    assert model.private is not None
    queues, share = Queues(), [count / model.parameters for count in model.layers]

    def gather(k: int) -> float:
        return queues.communicate(links.one_way(model.layers[k] * model.weight_bytes, world)) if sharded else 0.0

    def send(k: int, size: float, after: float) -> float:
        seconds = links.one_way(size, world) if sharded else links.all_reduce(size, world)
        return queues.communicate(seconds, after)

    order = range(len(share))
    for k in order:
        queues.compute(model.plain / 3 * share[k], gather(k))
    backward = list(reversed(order))
    here = gather(backward[0])
    for k in backward:
        # The next layer is fetched while this one runs, before anything of this one leaves.
        following = gather(k - 1) if k else 0.0
        if kind == "plain":
            done = queues.compute(2 * model.plain / 3 * share[k], here)
            send(k, model.layers[k] * 4.0, done)
        else:
            queues.compute(model.plain / 3 * share[k], here)
        here = following
    if kind == "plain":
        return queues.end
    rest = model.private - 2 * model.plain / 3  # norms, clipped sums and noise
    waiting = []
    for k in backward:
        done = queues.compute(rest * share[k])
        if kind == "overlapped":
            send(k, model.layers[k] * 4.0, done)
        elif sharded:
            queues.computing = send(k, model.layers[k] * 4.0, done)  # cut and added up before the next one is computed
        else:
            waiting.append(k)
    for k in waiting:  # data parallel: all sums first
        queues.computing = send(k, model.layers[k] * 4.0, queues.computing)
    return queues.end


def sent(model: Model, world: int, sharded: bool) -> float:
    """Bytes that a rank sends in one private step."""
    part = (world - 1) / world
    if not sharded:
        return 2 * part * 4.0 * model.parameters
    return part * model.parameters * (2.0 * model.weight_bytes + 4.0)


def held(model: Model, world: int, sharded: bool) -> float:
    """Bytes of memory that a rank needs at its peak."""
    if not sharded or world == 1:
        return model.states + model.activations
    gathered = 2 * max(model.layers) * model.weight_bytes  # the layer that runs and the one that is fetched
    return model.states / world + gathered + 4.0 * model.largest + model.activations


def tensor_parallel(model: Model, ways: int, links: Links) -> dict[str, float]:
    """One machine whose GPUs hold each a part of every matrix: two sums of activations a block, forward and back."""
    blocks = len(model.layers) - 1
    activation = 2.0 * model.rows * model.tokens * model.width
    norms = 3 * 4.0 * model.rows  # squares, and two bounds on their rounding
    part = 2 * (ways - 1) / ways
    return {
        "activations": 4 * blocks * part * activation,
        "norms": part * norms,
        "seconds": 4 * blocks * links.all_reduce(activation, ways) + links.all_reduce(norms, ways),
    }


# -- what was measured -------------------------------------------------------------------------------------------------


def latest(pattern: str) -> list[Path]:
    """Files of measured constants, oldest first."""
    return sorted(RESULTS.glob(pattern))


def sharded_row() -> dict[str, Any] | None:
    """The step of the large model under ``fully_shard`` on one GPU, with weights in bfloat16, where it was measured."""
    for path in reversed(latest("*fsdp*.json")):
        told = json.loads(path.read_text(encoding="utf-8"))
        for row in told if isinstance(told, list) else told.get("rows", told.get("results", [])):
            if "bf" in str(row.get("weights", "")) and "private extra GiB" in row:
                return dict(row)
    return None


def models() -> Iterator[Model]:
    """The models of the speed tables that have a step measured on a GPU, and the large one in any case."""
    import torch

    from benchmarks import _workloads as known

    found: dict[str, Any] = {}
    for path in latest(f"h200-*{latest('h200-2*.json')[-1].stem[-10:]}.json"):  # each method at its best of that day
        for name, rows in json.loads(path.read_text(encoding="utf-8"))["results"].items():
            best = found.setdefault(name, {})
            for method, row in rows.items():
                if "milliseconds" in (row if isinstance(row, dict) else {}):
                    before = best.get(method, row)
                    best[method] = min(before, row, key=lambda told: float(told["milliseconds"]))
    with torch.device("meta"):
        built = {"gpt2": known.GPT(), "vit": known.ViT(), "llama-1b": known.Llama()}
    shapes = {"gpt2": (256, 768), "vit": (197, 768), "llama-1b": (1024, 2048)}
    for name, model in built.items():
        workload, told = known.WORKLOADS[name], found.get(name, {})
        sizes = [sum(p.numel() for p in block.parameters()) for block in model.blocks]
        whole = sum(p.numel() for p in model.parameters())
        plain, private = (told.get(method, {}).get("milliseconds") for method in ("plain-compiled", "tacit-compiled"))
        memory = told.get("tacit-compiled", {}).get("mebibytes")
        kept = 0
        if name == "llama-1b" and (row := sharded_row()) is not None:
            plain, private, kept = 1e3 * row["plain"], 1e3 * row["private"], 2  # momentum in bfloat16, as the weights
            memory = 1024 * row["private extra GiB"] + whole * 4 / 2**20
        yield Model(
            name,
            known.TITLES[name],
            (*sizes, whole - sum(sizes)),
            max(p.numel() for p in model.parameters()),
            2 if workload.dtype == torch.bfloat16 else 4,
            workload.batch,
            *shapes[name],
            None if plain is None else plain / 1e3,
            None if private is None else private / 1e3,
            None if memory is None else memory * 2**20,
            kept,
        )


# -- tables ------------------------------------------------------------------------------------------------------------


def trained(model: Model, links: Links) -> list[dict[str, Any]]:
    """A row for every number of GPUs and each way to lay the model out."""
    rows = []
    for sharded in (False, True):
        for world in WORLDS:
            row: dict[str, Any] = {"layout": "FSDP2" if sharded else "data parallel", "world": world}
            row |= {
                "rows": world * model.rows,
                "sent": sent(model, world, sharded),
                "held": held(model, world, sharded),
            }
            if model.plain is not None and model.private is not None:
                for kind in ("plain", "private", "overlapped"):
                    row[kind] = step(model, world, links, sharded=sharded, kind=kind)
            rows.append(row)
    return rows


def show(model: Model, rows: list[dict[str, Any]]) -> None:
    """One table in Markdown."""
    print(f"\n### {model.title}: {model.parameters / 1e6:,.0f} million parameters, {model.rows} records a rank\n")
    if model.private is None:
        print("Not measured on a GPU yet: volumes and the memory of weights and sums only, no activations.\n")
    print(
        "| | GPUs | batch | sent a rank and step | memory a rank | plain step | private step | if overlapped | "
        "records/s |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        times = [f"{1e3 * row[k]:.1f} ms" if k in row else "" for k in ("plain", "private", "overlapped")]
        speed = f"{row['rows'] / row['private']:,.0f}" if "private" in row else ""
        print(
            f"| {row['layout']} | {row['world']:,} | {row['rows']:,} | {row['sent'] / GB:.2f} GB | "
            f"{row['held'] / GIB:.2f} GiB | {' | '.join(times)} | {speed} |"
        )


def billion(constants: dict[str, Any], rows: float = 1e9) -> list[tuple[str, str]]:
    """What a billion rows take: sums over a table, and drawing who takes part in a step."""
    table, coins, task = constants["table"], constants["sampling"], constants["task"]
    cpu = rows / table["rows_a_cpu_second"]
    tasks = rows / 2**22
    found = [
        ("read", f"{rows * table['bytes_a_row'] / GB:.0f} GB of Parquet with {table['columns'] + 1} columns"),
        (
            "CPU of the sums",
            f"{cpu:.0f} s; storage must give a core {table['bytes_a_row'] * rows / cpu / 1e6:.0f} MB/s",
        ),
        ("tasks of 2^22 rows, and what comes back", f"{tasks:.0f}, {tasks * table['bytes_back_a_task'] / 1e3:.0f} kB"),
    ]
    for cores in (2, 64, 1024):
        seconds = max(cpu / cores, tasks * task["milliseconds"] / 1e3, cpu / tasks)
        found.append((f"second moments on {cores:,} cores", f"{seconds:.1f} s"))
    drawn = rows / coins["coins_a_cpu_second"]
    found.append(
        ("Poisson draw of one step, on every rank", f"{drawn:.1f} s, {rows * coins['bytes_a_coin'] / GB:.0f} GB")
    )
    for world in WORLDS[1:]:
        found.append(
            (f"the same if each of {world:,} ranks drew for its records only", f"{1e3 * drawn / world:.1f} ms")
        )
    return found


def draw(path: Path, tables: dict[str, list[dict[str, Any]]], titles: dict[str, str]) -> None:
    """Step times and memory by the number of GPUs."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    timed = [name for name, rows in tables.items() if "private" in rows[0]]
    figure, axes = pyplot.subplots(1, len(timed) + 1, figsize=(4.2 * (len(timed) + 1), 3.6), layout="constrained")
    looks = {"plain": ("#555555", "-"), "private": ("#0072b2", "-"), "overlapped": ("#0072b2", ":")}
    words = {"plain": "plain", "private": "private, as built", "overlapped": "private, if overlapped"}
    for axis, name in zip(axes, timed, strict=False):
        rows = [row for row in tables[name] if row["layout"] == ("FSDP2" if "llama" in name else "data parallel")]
        for kind, (colour, style) in looks.items():
            axis.plot([r["world"] for r in rows], [1e3 * r[kind] for r in rows], style, color=colour, marker="o",
                      markersize=4, label=words[kind])  # fmt: skip
        axis.set_title(f"{titles[name]}\n{rows[0]['layout']}", fontsize=9)
        axis.set_ylabel("milliseconds a step")
        axis.set_ylim(bottom=0)
        axis.legend(frameon=False, fontsize=8)
    for name, colour in zip(tables, ("#e69f00", "#009e73", "#cc79a7"), strict=False):
        rows = [row for row in tables[name] if row["layout"] == "FSDP2"]
        label = titles[name].split(",")[0] + ("" if name in timed else ", no activations")
        axes[-1].plot([r["world"] for r in rows], [r["held"] / GIB for r in rows], color=colour, marker="o",
                      markersize=4, label=label)  # fmt: skip
    axes[-1].set_title("memory a rank, FSDP2", fontsize=9)
    axes[-1].set_ylabel("GiB")
    axes[-1].set_ylim(bottom=0)
    axes[-1].legend(frameon=False, fontsize=8)
    for axis in axes:
        axis.set_xscale("log", base=2)
        axis.set_xticks(WORLDS, [f"{w:,}" for w in WORLDS])
        axis.set_xlabel("GPUs (1: measured, others: projected)")
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main(argv: list[str]) -> int:
    """Print assumptions and tables; draw them where asked."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks projection", description=__doc__)
    parser.add_argument("--svg", type=Path, help="draw step times and memory there")
    options = parser.parse_args(argv)
    links = Links()
    print("| assumed | value | source |\n|---|---|---|")
    for row in links.ASSUMED:
        print(f"| {' | '.join(row)} |")
    tables, titles = {}, {}
    for model in models():
        tables[model.name], titles[model.name] = trained(model, links), model.title
        show(model, tables[model.name])
        over = tensor_parallel(model, 8, links)
        print(
            f"\nTensor parallel over 8: {over['activations'] / 1e6:,.0f} MB of activations and "
            f"{over['norms']:,.0f} bytes of norms sent a rank and step, {1e3 * over['seconds']:.1f} ms."
        )
    files = latest("cluster-cpu-*.json")
    if not files:
        print("\nno benchmarks/results/cluster-cpu-*.json: python -m benchmarks cluster --json …", file=sys.stderr)
        return 1
    told = json.loads(files[-1].read_text(encoding="utf-8"))
    print(
        f"\n### A billion rows, from {told['about']['device']}, {told['about']['date']}, load {told['about']['load']}\n"
    )
    print("| | |\n|---|---|")
    for name, value in billion(told["results"]):
        print(f"| {name} | {value} |")
    if options.svg is not None:
        draw(options.svg, tables, titles)
    return 0
