"""Which shape of a tile is fastest in the kernels for norms and weighted sums, and is the answer right?

    python -m benchmarks tiles [--what sum gram] [--json FILE]

Each configuration on the shapes of GPT-2, ViT-B/16 and a billion-parameter Llama, in bfloat16, next to cuBLAS. What is
fastest goes into ``EVEN`` and ``UNEVEN`` of :mod:`tacit.sgd.weighted`, and into ``gram_norms``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SHAPES = (
    (32, 256, 768, 3072),
    (32, 256, 768, 768),
    (64, 197, 768, 3072),
    (4, 2048, 768, 3072),
    (4, 1024, 2048, 5632),
    (32, 256, 768, 50304),
)
# Rows, columns, depth, warps, stages, programs on a processor.
SUMS = (
    *((128, 128, 64, 4, 3, 2), (128, 128, 64, 8, 3, 2), (128, 128, 64, 8, 4, 1), (128, 256, 64, 8, 3, 1)),
    *((128, 256, 64, 8, 4, 1), (64, 256, 64, 4, 3, 2), (128, 128, 32, 4, 5, 2), (128, 256, 32, 8, 5, 1)),
)
# Tokens, depth, warps, stages.
GRAMS = ((64, 64, 4, 3), (64, 64, 8, 4), (128, 64, 8, 3), (128, 64, 8, 4), (128, 128, 8, 3))


def microseconds(run: Callable[[], Any]) -> float:
    """The median over some 60 ms."""
    import triton  # type: ignore[import-not-found, unused-ignore]

    return float(triton.testing.do_bench(run, warmup=10, rep=60, return_mode="median")) * 1e3


def sums(left: Tensor, right: Tensor, scale: Tensor) -> list[dict[str, Any]]:
    """The weighted sum by each configuration, by two rounded parts, and the plain product it is compared with."""
    from tacit.sgd import kernels, weighted

    flat = left.flatten(0, 1), right.flatten(0, 1)
    wanted = torch.mm((left.float() * scale[:, None, None]).flatten(0, 1).mT, flat[1].float())
    found: list[dict[str, Any]] = [
        {"what": "plain product, cuBLAS", "us": microseconds(lambda: torch.mm(flat[0].mT, flat[1]))},
        {"what": "two parts, cuBLAS", "us": microseconds(lambda: kernels.weighted_product(left, right, scale))},
    ]
    for rows, columns, depth, warps, stages, each in SUMS:
        programs = weighted.processors(left.device) * each
        shape = {"BP": rows, "BQ": columns, "BK": depth, "num_warps": warps, "num_stages": stages}

        def run(programs: int = programs, shape: dict[str, int] = shape) -> Tensor:
            return weighted.launch(left, right, scale, programs, **shape)

        error = float((run() - wanted).norm() / wanted.norm())
        found.append({"what": "scaled sum", "tile": [*shape.values(), each], "us": microseconds(run), "error": error})
    return found


def grams(left: Tensor, right: Tensor, scale: Tensor) -> list[dict[str, Any]]:
    """Gram norms by each configuration and by cuBLAS."""
    from tacit.sgd import kernels

    def plain() -> Tensor:
        one, two = (torch.bmm(t, t.mT, out_dtype=torch.float32) for t in (left, right))
        return (one * two).sum((1, 2))

    wanted = plain()
    found: list[dict[str, Any]] = [{"what": "cuBLAS", "us": microseconds(plain)}]
    (batch, tokens, p), q = left.shape, right.shape[2]
    for block, depth, warps, stages in GRAMS:
        tiles = -(-tokens // block)
        pairs = tiles * (tiles + 1) // 2
        out = torch.empty((batch, pairs, 3), device=left.device)

        def run(block: int = block, tiles: int = tiles, pairs: int = pairs, out: Tensor = out) -> None:
            kernels._gram_kernel[(pairs, batch)](
                left, right, out, tokens, p, q, *left.stride(), *right.stride(),
                TILES=tiles, BT=block, BK=depth, PRECISION="tf32", num_warps=warps, num_stages=stages,  # noqa: B023
            )  # fmt: skip

        run()
        error = float((out.sum(1)[:, 0] - wanted).norm() / wanted.norm())
        row = {"what": "gram", "tile": [block, depth, warps, stages], "us": microseconds(run), "error": error}
        found.append(row)
    return found


def main(argv: list[str] | None = None) -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--what", nargs="*", default=["sum", "gram"], choices=["sum", "gram"])
    parser.add_argument("--json", default=None)
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("no GPU here: nothing is measured")
        return 0
    told: list[dict[str, Any]] = []
    for batch, tokens, p, q in SHAPES:
        torch.manual_seed(0)
        left, right = (torch.randn(batch, tokens, n, device="cuda").bfloat16() for n in (p, q))
        scale = torch.rand(batch, device="cuda") * 0.9 + 0.1
        for what in options.what:
            for row in (sums if what == "sum" else grams)(left, right, scale):
                told.append({"shape": [batch, tokens, p, q], **row})
                print(*(f"{value}" for value in told[-1].values()), flush=True)
        if options.json:
            Path(options.json).write_text(json.dumps(told, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
