"""Which way to norms and weighted sums is the fastest for each shape of the speed table, and is the answer right?

    python -m benchmarks tiles [--only gpt2 vit] [--seconds 60] [--json FILE]

What :mod:`tacit.sgd.choices` measures at first use, for all shapes of some workloads at once: each way with its time,
next to a plain product of the same size. The winners go into the record that later runs read
(``TACIT_CHOICES``), so that many processes that share a GPU need not measure next to each other.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
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


def main(argv: list[str] | None = None) -> int:
    """Measure what the record does not hold yet, and print every way of every shape."""
    from tacit.sgd import choices, kernels, weighted

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
    path = choices.place()
    began = time.perf_counter()
    timer = choices.on_device if not small else lambda run, seconds: (run(), 1e-6)[1]
    chooser = choices.Chooser(choices.Record.read(path), timer, seconds=options.seconds)
    told: list[dict[str, Any]] = []
    for name in options.only:
        for batch, tokens, p, q in SHAPES[name]:
            if time.perf_counter() - began > options.seconds:
                print(f"no time left for {name} {(batch, tokens, p, q)}")
                continue
            if small:
                batch, tokens, p, q = 2, max(2, tokens // 64), max(2, p // 64), max(2, q // 64)
            left, right = (torch.randn(batch, tokens, n, device=options.device).bfloat16() for n in (p, q))
            scale = torch.rand(batch, device=options.device) + 0.1
            flat = left.flatten(0, 1), right.flatten(0, 1)
            plain = timer(lambda flat=flat: torch.mm(flat[0].mT, flat[1]), 0.01)  # type: ignore[misc]
            for kind, ways, plain_way, check, tensors in (
                ("norms", kernels.norm_ways(left, right), "by products", kernels.agreement(left, right), (left, right)),
                ("sum", weighted.sum_ways(left, right), "two products", weighted.agreement(left), (left, right, scale)),
            ):
                reference = next((n for n in ways if plain_way in n), [*ways][-1])
                way = chooser.pick(kind, ways, reference, check, tensors)
                entry = next(
                    (e for k, e in (chooser.record.entries if chooser.record else {}).items()
                     if k.startswith(kind) and k.endswith(choices._told(choices._alike(tensors)))),
                    {},
                )  # fmt: skip
                row = {
                    "workload": name,
                    "kind": kind,
                    "shape": [batch, tokens, p, q],
                    "plain_us": plain * 1e6,
                    "way": way,
                }
                told.append({**row, **entry})
                rate = 2e-12 * batch * tokens * p * q
                print(f"{name} {kind} {batch}x{tokens} {p} {q}: a plain product {plain * 1e6:.1f} us", flush=True)
                for other, us in sorted(entry.get("microseconds", {}).items(), key=lambda item: float(item[1])):
                    print(f"   {us:9.1f} us {rate / max(us, 1e-9) * 1e6:7.0f} TFLOP/s  {other}", flush=True)
                for other, why in entry.get("left_out", {}).items():
                    print(f"   left out: {other}: {why}", flush=True)
                if options.json:
                    Path(options.json).write_text(json.dumps(told, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
