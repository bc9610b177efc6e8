"""How fast is tacit's noise? Tensor noise as a ratio to torch.randn in the same run, exact noise in draws per second.

    PYTHONPATH=src python benchmarks/noise.py [--check] [--rounds] [--json FILE] [--largest N]

Needs torch and numpy only. Each size is timed in turns (ours, torch's, ours, …) and the best of the turns is compared,
so that other work on the machine touches both alike. ``--check`` first compares CPU and GPU bit for bit; ``--rounds``
also times 8 and 20 rounds of ChaCha (the library uses 12).
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tacit import noise
from tacit.noise import Key, native, stream, tensor

KEY = Key(bytes(range(32)))
TARGET = 1.5
CPU_SIZES = (1_000_000, 3_000_000, 10_000_000)
GPU_SIZES = (1_000_000, 10_000_000, 100_000_000)


def seconds(work: Callable[[], object], device: str, repeat: int) -> float:
    """Time of one call; on a GPU the mean of several between two events, so that launches overlap as in training."""
    if device == "cpu":
        start = time.perf_counter()
        for _ in range(repeat):
            work()
        return (time.perf_counter() - start) / repeat
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(repeat):
        work()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / repeat


def compare(
    ours: Callable[[], object], theirs: Callable[[], object], device: str, turns: int = 9
) -> tuple[float, float]:
    """Best times of both, taken in turns after a warm-up."""
    repeat = 1 if device == "cpu" else 20
    for work in (ours, theirs):
        seconds(work, device, 3)
    times = [(seconds(ours, device, repeat), seconds(theirs, device, repeat)) for _ in range(turns)]
    return min(t[0] for t in times), min(t[1] for t in times)


def fill_with_rounds(out: torch.Tensor, rounds: int) -> None:
    """The stream with another number of rounds, which the public functions do not offer."""
    words = KEY.stream("normal", 0, "benchmark")
    if out.is_cuda:
        from tacit.noise import cuda

        cuda.fill(words, 0, out, rounds=rounds)
    else:
        library, why = native.load(rounds)
        if library is None:
            raise SystemExit(f"no compiled code: {why}")
        library.normal(words, 0, out.numel(), out.data_ptr(), threads=torch.get_num_threads())


def tensor_rows(device: str, sizes: Sequence[int], threads: int, rounds: bool) -> list[dict[str, Any]]:
    rows = []
    step = iter(range(10**9))
    for size in sizes:
        out = torch.zeros(size, device=device)

        # Each call draws the noise of a new step, as training does: the key of the step is part of the time.
        def draw(size: int = size) -> object:
            return tensor.normal(KEY, next(step), "benchmark", size, device=device)

        def add(out: torch.Tensor = out) -> object:
            return tensor.add_normal_(out, KEY, next(step), "benchmark", 0.5)

        def add_randn(out: torch.Tensor = out) -> object:
            return out.add_(torch.randn(out.numel(), device=device), alpha=0.5)

        randn = functools.partial(torch.randn, size, device=device)
        rows.append(row("normal", device, threads, size, *compare(draw, randn, device)))
        rows.append(row("add_normal_", device, threads, size, *compare(add, add_randn, device)))
        for count in (8, 12, 20) if rounds else ():
            times = compare(functools.partial(fill_with_rounds, out, count), out.normal_, device)
            rows.append(row(f"in place, {count} rounds", device, threads, size, *times))
    return rows


def model_rows(device: str, threads: int) -> list[dict[str, Any]]:
    """All parameters of a ViT-B/16-like model in one step: 150 tensors, 86 million elements (a tenth of it on CPU)."""
    width = 768 if device == "cuda" else 240
    shapes: list[tuple[int, ...]] = [(width, width), (1000, width)]
    for _ in range(12):
        shapes += [(3 * width, width), (3 * width,), (width, width), (width,), (4 * width, width), (4 * width,)]
        shapes += [(width, 4 * width), (width,), (width,), (width,), (width,), (width,)]
    tensors = [torch.zeros(shape, device=device) for shape in shapes]
    names = [f"parameter{i}" for i in range(len(shapes))]
    step = iter(range(10**9))

    def ours() -> object:
        return tensor.add_normal_many_(tensors, KEY, next(step), names, 0.5)

    def theirs() -> object:
        for t in tensors:
            t.add_(torch.randn(t.shape, device=device), alpha=0.5)
        return None

    return [row("add_normal_many_", device, threads, sum(t.numel() for t in tensors), *compare(ours, theirs, device))]


def row(what: str, device: str, threads: int, size: int, ours: float, theirs: float) -> dict[str, Any]:
    return {
        "what": what,
        "device": device,
        "threads": threads,
        "elements": size,
        "tacit_ns_per_element": ours / size * 1e9,
        "torch_ns_per_element": theirs / size * 1e9,
        "ratio": ours / theirs,
    }


def exact_rows() -> list[dict[str, Any]]:
    zeros = np.zeros(500_000)
    work: dict[str, Callable[[], object]] = {
        "add_laplace": lambda: noise.add_laplace(zeros, 1.0),
        "add_gaussian": lambda: noise.add_gaussian(zeros, 1.0),
        "discrete_laplace": lambda: noise.discrete_laplace(10.0, zeros.size),
        "discrete_gaussian": lambda: noise.discrete_gaussian(10.0, zeros.size),
    }
    return [
        {"what": name, "draws_per_second": zeros.size / min(seconds(call, "cpu", 1) for _ in range(3))}
        for name, call in work.items()
    ]


def check() -> None:
    """CPU and GPU bit for bit, with ranges that begin and end inside tiles, long counters, tails, all types."""
    for offset, size in ((0, 1), (0, 4096), (511, 33), (77, 1_000_003), (2**33 + 5, 100_000), (2**41 - 3, 9999)):
        cpu, gpu = (tensor.normal(KEY, 1, "check", size, offset=offset, device=d) for d in ("cpu", "cuda"))
        assert torch.equal(cpu.view(torch.int32), gpu.cpu().view(torch.int32)), (offset, size)
    tails = 0
    for start in range(0, 200_000_000, 20_000_000):
        cpu, gpu = (tensor.normal(KEY, 2, "check", 20_000_000, offset=start, device=d) for d in ("cpu", "cuda"))
        assert torch.equal(cpu.view(torch.int32), gpu.cpu().view(torch.int32)), start
        tails += int((cpu.abs() > 5).sum())
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        start_values = torch.linspace(-3, 3, 100_003).to(dtype)
        cpu = tensor.add_normal_(start_values.clone(), KEY, 3, "check", 0.7, offset=9)
        gpu = tensor.add_normal_(start_values.cuda(), KEY, 3, "check", 0.7, offset=9)
        assert torch.equal(cpu, gpu.cpu()), dtype
    whole = tensor.normal(KEY, 4, "check", (300, 1000), device="cuda")
    part = tensor.normal(KEY, 4, "check", (300, 77), offset=123, strides=(1000, 1), device="cuda")
    assert torch.equal(part, whole[:, 123:200])
    names, scales = [f"p{i}" for i in range(5)], [0.1 + i for i in range(5)]
    cpus, gpus = ([torch.ones(n, device=d) for n in (77_000, 77, 1, 0, 20_480)] for d in ("cpu", "cuda"))
    for group in (cpus, gpus):
        tensor.add_normal_many_(group, KEY, 5, names, scales)
    assert all(torch.equal(one, other.cpu()) for one, other in zip(cpus, gpus, strict=True))
    print(f"CPU and GPU agree bit for bit on 200 million elements ({tails} of them beyond 5 sigma) and in all types")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark, prints a table and JSON; 1 where the tensor target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare CPU and GPU bit for bit first")
    parser.add_argument("--rounds", action="store_true", help="also time 8 and 20 rounds")
    parser.add_argument("--json", type=Path, help="write the figures to a file as well")
    parser.add_argument("--largest", type=int, default=GPU_SIZES[-1], help="leave out larger tensors")
    options = parser.parse_args(argv)
    has_gpu = torch.cuda.is_available()
    if options.check and not has_gpu:
        print("no CUDA device: nothing to compare the CPU with", file=sys.stderr)
    elif options.check:
        check()

    rows: list[dict[str, Any]] = []
    threads_before = torch.get_num_threads()
    for threads in sorted({1, threads_before}):
        torch.set_num_threads(threads)
        rows += tensor_rows("cpu", [s for s in CPU_SIZES if s <= options.largest], threads, options.rounds)
        rows += model_rows("cpu", threads)
    torch.set_num_threads(threads_before)
    if has_gpu:
        rows += tensor_rows("cuda", [s for s in GPU_SIZES if s <= options.largest], 0, options.rounds)
        rows += model_rows("cuda", 0)

    print(f"{'what':<22}{'device':<7}{'threads':>7}{'elements':>12}{'tacit ns':>10}{'torch ns':>10}{'ratio':>7}")
    for r in rows:
        print(
            f"{r['what']:<22}{r['device']:<7}{r['threads'] or '':>7}{r['elements']:>12,}"
            f"{r['tacit_ns_per_element']:>10.4f}{r['torch_ns_per_element']:>10.4f}{r['ratio']:>7.2f}"
        )
    exact = exact_rows()
    for r in exact:
        print(f"{r['what']:<22}{r['draws_per_second']:>12,.0f} exact draws per second")
    result = {
        "generator": tensor.GENERATOR,
        "backend": {"cpu": tensor.backend(), **({"cuda": tensor.backend("cuda")} if has_gpu else {})},
        "device": torch.cuda.get_device_name() if has_gpu else None,
        "torch": torch.__version__,
        "chacha_rounds": stream.ROUNDS,
        "tensor": rows,
        "exact": exact,
    }
    text = json.dumps(result)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")
    worst = max(r["ratio"] for r in rows if r["what"] in ("normal", "add_normal_", "add_normal_many_"))
    return 0 if worst <= TARGET else 1


if __name__ == "__main__":
    raise SystemExit(main())
