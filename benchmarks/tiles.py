"""Which way to norms and weighted sums is the fastest for each shape of the speed table, and is the answer right?

    python -m benchmarks tiles [--only gpt2 vit] [--seconds 60] [--json FILE]

What :mod:`tacit.sgd.kernels.autotune` measures at first use, for all shapes of some workloads at once: each way with
its time, next to a plain product of the same size. The winners go into the record that later runs read
(``TACIT_CHOICES``), so that many processes that share a GPU need not measure next to each other.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

#: Examples, tokens, width of the gradient, width of the input of every linear layer.
SHAPES: dict[str, tuple[tuple[int, int, int, int], ...]] = {
    "gpt2": tuple((32, 256, *pq) for pq in ((2304, 768), (768, 768), (3072, 768), (768, 3072), (50304, 768))),
    "vit": tuple((64, 197, *pq) for pq in ((2304, 768), (768, 768), (3072, 768), (768, 3072))),
    "gpt2-long": tuple((4, 2048, *pq) for pq in ((2304, 768), (768, 768), (3072, 768), (768, 3072), (50304, 768))),
    "llama-1b": tuple((4, 1024, *pq) for pq in ((2048, 2048), (5632, 2048), (2048, 5632), (32000, 2048))),
    "growth": tuple(
        (8192 // t, t, *pq)
        for t in (128, 512, 8192)
        for pq in ((2304, 768), (768, 768), (3072, 768), (768, 3072), (8192, 768))
    ),
}


Case = tuple[str, str, tuple[int, ...], Any, str, Any, tuple[torch.Tensor, ...]]


def cases(only: list[str], device: str) -> Iterator[Case]:
    """Workload, kind, shape, ways, plain way, check and factors of all that is to be measured, shape by shape."""
    from tacit.sgd.kernels import products, weighted

    for name in only:
        for batch, tokens, p, q in SHAPES[name]:
            if device == "cpu":
                batch, tokens, p, q = 2, max(2, tokens // 64), max(2, p // 64), max(2, q // 64)
            left, right = (torch.zeros(batch, tokens, n, dtype=torch.bfloat16, device=device) for n in (p, q))
            scale = torch.ones(batch, device=device)
            shape, norms = (batch, tokens, p, q), products.norm_ways(left, right)
            plain = next((n for n in norms if "by products" in n), [*norms][-1])
            yield name, "norms", shape, norms, plain, products.agreement(left, right), (left, right)
            ways = weighted.sum_ways(left, right)
            yield name, "sum", shape, ways, "two products", weighted.agreement(left), (left, right, scale)


def compile_all(only: list[str], device: str) -> None:
    """Every kernel that any shape may take, side by side."""
    from tacit.sgd.kernels import autotune, launch

    if device == "cuda" and launch.compiles_together():
        with launch.together(os.cpu_count()):
            for _, _, _, ways, _, _, tensors in cases(only, device):
                for name, way in ways.items():
                    if "products" not in name:
                        autotune._attempt(way, tensors)


def main(argv: list[str] | None = None) -> int:
    """Measure what the record does not hold yet, and print every way of every shape."""
    from tacit.sgd.kernels import autotune

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--only", nargs="*", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--seconds", type=float, default=120.0, help="no shape is begun after so long")
    parser.add_argument("--device", default="cuda", help="cpu tries it out on small shapes")
    parser.add_argument("--json", default=None)
    options = parser.parse_args(argv)
    small = options.device == "cpu"
    if not small and not torch.cuda.is_available():
        print("no GPU here: nothing is measured")
        return 0
    began = time.perf_counter()
    compile_all(options.only, options.device)
    print(f"compiled after {time.perf_counter() - began:.1f} s", flush=True)
    timer = autotune.on_device if not small else lambda run, seconds: (run(), 1e-6)[1]
    chooser = autotune.Chooser(autotune.TuningRecord.read(autotune.place()), timer, seconds=options.seconds)
    told: list[dict[str, Any]] = []
    plain: dict[tuple[int, ...], float] = {}
    for name, kind, shape, ways, reference, check, tensors in cases(options.only, options.device):
        if time.perf_counter() - began > options.seconds:
            print(f"no time left for {name} {kind} {shape}")
            continue
        if shape not in plain:
            one, two = autotune.made_up(*tensors[:2]) or tensors[:2]
            one, two = one.flatten(0, 1), two.flatten(0, 1)
            plain[shape] = timer(lambda one=one, two=two: torch.mm(one.mT, two), 0.005)  # type: ignore[misc]
        way = chooser.pick(kind, ways, reference, check, tensors)
        where = autotune._told(autotune._alike(tensors))
        known = chooser.record.entries if chooser.record else {}
        entry = next((e for k, e in known.items() if k.startswith(kind) and k.endswith(where)), {})
        row = {"workload": name, "kind": kind, "shape": list(shape), "plain_us": plain[shape] * 1e6, "way": way}
        told.append({**row, **entry})
        batch, tokens, p, q = shape
        rate = 2e-12 * batch * tokens * p * q
        print(f"{name} {kind} {batch}x{tokens} {p} {q}: a plain product {plain[shape] * 1e6:.1f} us", flush=True)
        for other, us in sorted(entry.get("microseconds", {}).items(), key=lambda item: float(item[1])):
            print(f"   {us:9.1f} us {rate / max(us, 1e-9) * 1e6:7.0f} TFLOP/s  {other}", flush=True)
        for other, why in entry.get("left_out", {}).items():
            print(f"   left out: {other}: {why}", flush=True)
        if options.json:
            Path(options.json).write_text(json.dumps(told, indent=1), encoding="utf-8")
    print(f"{len(told)} choices in {time.perf_counter() - began:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
