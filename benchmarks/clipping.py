"""What does one clipped gradient cost next to a plain backward pass, and next to the peers?

    python -m benchmarks clipping [--models cnn gpt] [--methods tacit opacus] [--repeat 5] [--threads 1]

Every pair of model and method runs in a process of its own: median time of a step (forward, backward, clipped sum)
after two warm-up steps, and the peak of resident memory above what the process holds between steps (Linux only). A
method that cannot run a model says why. Opacus is used as its documentation does: hooks (``GradSampleModule``) and
ghost clipping (two backward passes); ``vmap`` is ``torch.func.vmap(grad)`` over ``functional_call``.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks._workloads import Block, cnn, mlp

CLIP_NORM = 1.0


class ViT(nn.Module):
    def __init__(self, d: int = 128, depth: int = 4) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, d, 4, 4)
        self.cls, self.pos = nn.Parameter(torch.zeros(1, 1, d)), nn.Parameter(0.02 * torch.randn(1, 65, d))
        self.blocks, self.head = nn.Sequential(*(Block(d, 4, False) for _ in range(depth))), nn.Linear(d, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patch(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.cls.expand(len(h), -1, -1), h], 1) + self.pos
        return self.head(self.blocks(h)[:, 0])


class GPT(nn.Module):
    """``tied`` is how such models are built; the untied one is there for peers that cannot do it."""

    def __init__(self, tied: bool, d: int = 128, depth: int = 4, vocab: int = 2000) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(64, d)
        self.blocks, self.norm = nn.Sequential(*(Block(d, 4, True) for _ in range(depth))), nn.LayerNorm(d)
        self.head = nn.Linear(d, vocab, bias=False)
        if tied:
            self.head.weight = self.tok.weight

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1]).expand(len(x), -1)
        return self.head(self.norm(self.blocks(self.tok(x) + self.pos(positions)))).transpose(1, 2)


class Residual(nn.Module):
    def __init__(self, a: int, b: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(16, a), nn.GroupNorm(16, b)
        self.conv1, self.conv2 = nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.Conv2d(b, b, 3, 1, 1, bias=False)
        self.skip = nn.Conv2d(a, b, 1, stride, bias=False) if a != b else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm1(x))
        return self.conv2(F.relu(self.norm2(self.conv1(h)))) + self.skip(h)


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb, self.out = nn.Embedding(500, 64), nn.Linear(128, 20)
        self.lstm = nn.LSTM(64, 128, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(self.emb(x))[0]).transpose(1, 2)


def _wrn() -> nn.Module:
    blocks = [Residual(16, 32, 1), Residual(32, 32, 1), Residual(32, 64, 2), Residual(64, 64, 1)]
    head = [nn.GroupNorm(16, 64), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    return nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1), *blocks, *head)


def _text() -> tuple[Tensor, Tensor]:
    return torch.randint(2000, (16, 64)), torch.randint(2000, (16, 64))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, Tensor]]]] = {
    "mlp, batch 2048": (mlp, lambda: (torch.randn(2048, 64), torch.randint(2, (2048,)))),
    "cnn, batch 512": (cnn, lambda: (torch.randn(512, 1, 28, 28), torch.randint(10, (512,)))),
    "wrn-gn, batch 64": (_wrn, lambda: (torch.randn(64, 3, 32, 32), torch.randint(10, (64,)))),
    "vit, batch 32": (ViT, lambda: (torch.randn(32, 3, 32, 32), torch.randint(10, (32,)))),
    "gpt tied, batch 16": (lambda: GPT(True), _text),
    "gpt untied, batch 16": (
        lambda: GPT(False),
        lambda: (torch.randint(2000, (16, 64)), torch.randint(2000, (16, 64))),
    ),
    "lstm, batch 64": (Tagger, lambda: (torch.randint(500, (64, 32)), torch.randint(20, (64, 32)))),
}


def per_example(outputs: Tensor, targets: Tensor) -> Tensor:
    losses = F.cross_entropy(outputs, targets, reduction="none")
    return losses.flatten(1).mean(1) if losses.dim() > 1 else losses


Step = Callable[[], dict[str, Tensor]]


def plain(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    named = dict(model.named_parameters())

    def step() -> dict[str, Tensor]:
        found = torch.autograd.grad(per_example(model(x), y).sum(), list(named.values()))
        return dict(zip(named, found, strict=True))

    return step


def tacit(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    from tacit.sgd import clipped_grad

    return lambda: clipped_grad(model, lambda m, b: per_example(m(b[0]), b[1]), (x, y), CLIP_NORM).sums


def vmap(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    named = dict(model.named_parameters())

    def loss(params: dict[str, Tensor], one: Tensor, target: Tensor) -> Tensor:
        return per_example(torch.func.functional_call(model, params, (one[None],)), target[None])[0]

    gradients = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))

    def step() -> dict[str, Tensor]:
        found = gradients({n: p.detach() for n, p in named.items()}, x, y)
        return _clip(found)

    return step


def _clip(found: dict[str, Tensor]) -> dict[str, Tensor]:
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in found.values()]).norm(dim=0)
    scale = (CLIP_NORM / norms).clamp(max=1.0)
    return {n: torch.tensordot(scale, g, 1) for n, g in found.items()}


def opacus(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    from opacus.grad_sample import GradSampleModule
    from opacus.validators import ModuleValidator

    model = ModuleValidator.fix(model)
    wrapped = GradSampleModule(model, loss_reduction="sum")

    def step() -> dict[str, Tensor]:
        per_example(wrapped(x), y).sum().backward()
        clipped = _clip({n: p.grad_sample for n, p in model.named_parameters()})
        wrapped.zero_grad(set_to_none=True)
        for p in model.parameters():
            p.grad_sample = None  # type: ignore[attr-defined]
        return clipped

    return step


def ghost(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.validators import ModuleValidator

    model = ModuleValidator.fix(model)
    wrapped = GradSampleModuleFastGradientClipping(
        model, max_grad_norm=CLIP_NORM, use_ghost_clipping=True, loss_reduction="sum"
    )

    def step() -> dict[str, Tensor]:
        losses = per_example(wrapped(x), y)
        losses.sum().backward(retain_graph=True)
        scale = wrapped.get_clipping_coef().detach()
        wrapped.zero_grad(set_to_none=True)
        wrapped.disable_hooks()
        (losses * scale).sum().backward()
        wrapped.enable_hooks()
        clipped = {n: p.grad for n, p in model.named_parameters()}
        wrapped.zero_grad(set_to_none=True)
        return clipped  # type: ignore[return-value]

    return step


METHODS: dict[str, Callable[[nn.Module, Tensor, Tensor], Step]] = {
    "plain": plain,
    "tacit": tacit,
    "opacus": opacus,
    "ghost": ghost,
    "vmap": vmap,
}


def _status(key: str) -> float:
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(key))


def resident_memory() -> float:
    """Mebibytes this process holds now."""
    return _status("VmRSS")


def peak_memory() -> float:
    """The most mebibytes it held since the peak was last forgotten."""
    return _status("VmHWM")


def forget_peak() -> float:
    """Start a new peak; returns what is held now."""
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")
    return resident_memory()


def measure(model_name: str, method: str, repeat: int, threads: int) -> dict[str, Any]:
    """Time, memory and a fingerprint of the result of one method on one model, in this process."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    build, data = MODELS[model_name]
    model, (x, y) = build(), data()
    step = METHODS[method](model, x, y)
    for _ in range(2):
        result = step()
    first = peak_memory() - resident_memory()
    del result
    gc.collect()
    base = forget_peak()
    times: list[float] = []
    plain_times: list[float] = []
    for _ in range(repeat):
        start = time.perf_counter()
        result = step()
        times.append(time.perf_counter() - start)
    peak = peak_memory()
    if repeat > 2:
        # In turns with a plain step, so that other work on the machine touches both alike.
        reference = plain(build(), x, y)
        reference()
        times.clear()
        for _ in range(repeat):
            for one, found in ((reference, plain_times), (step, times)):
                start = time.perf_counter()
                one()
                found.append(time.perf_counter() - start)
    norm = torch.stack([v.norm() for v in result.values()]).norm().item()
    seconds, reference_seconds = statistics.median(times), statistics.median(plain_times or times)
    return {
        "seconds": seconds,
        "ratio": seconds / reference_seconds,
        "mebibytes": peak - base,
        "first": first,
        "norm": norm,
    }


def run(model_name: str, method: str, repeat: int, threads: int) -> dict[str, Any]:
    """The same in processes of its own, one for time and one for memory; what went wrong where it cannot."""
    found: dict[str, Any] = {}
    for keys, steps, extra in (
        (("seconds", "ratio", "norm"), max(3, repeat), {}),
        # Every tensor is given back to the system when it is freed: slower, but the peak then means something.
        (("mebibytes", "first"), 2, {"MALLOC_MMAP_THRESHOLD_": "65536"}),
    ):
        command = [sys.executable, "-m", "benchmarks.clipping", "--one", model_name, method]
        command += ["--repeat", str(steps), "--threads", str(threads)]
        told = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | extra)
        if told.returncode:
            return {"error": told.stderr.strip().splitlines()[-1][:110] if told.stderr.strip() else "failed"}
        values = json.loads(told.stdout.strip().splitlines()[-1])
        found |= {key: values[key] for key in keys}
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", default=[], help="only models whose name contains one of these")
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "METHOD"), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.one:
        print(json.dumps(measure(*options.one, options.repeat, options.threads)))
        return 0
    methods = ["plain", *(m for m in options.methods if m != "plain")]
    print(
        f"torch {torch.__version__}, CPU, {options.threads} thread(s); a step's time and peak memory, ratio to plain\n"
    )
    print("| model | " + " | ".join(methods) + " |")
    print("|---|" + "---|" * len(methods))
    for name in MODELS:
        if options.models and not any(part in name for part in options.models):
            continue
        found = {m: run(name, m, options.repeat, options.threads) for m in methods}
        base = found["plain"]
        cells = [f"{base['seconds'] * 1e3:.0f} ms, {base['mebibytes']:.0f} MiB"]
        for m in methods[1:]:
            if "error" in found[m]:
                cells.append(f"cannot: {found[m]['error']}")
                continue
            ratio = found[m]["ratio"]
            memory = found[m]["mebibytes"] / max(1.0, base["mebibytes"])
            first = found[m]["first"] / max(1.0, base["mebibytes"])
            same = abs(found[m]["norm"] / found.get("tacit", {}).get("norm", found[m]["norm"]) - 1) < 1e-3
            cells.append(
                f"{ratio:.2f}x, memory {memory:.2f}x (first step {first:.1f}x)" + ("" if same else " (another result)")
            )
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
