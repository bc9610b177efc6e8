"""What does a whole private step cost on a GPU next to plain SGD, eager and compiled, and next to the peers?

    python -m benchmarks.gpu [--only gpt2 vit] [--methods plain tacit-compiled] [--growth] [--profile] [--json FILE]

A private step is everything: Poisson sampling, gathering and padding the batch, clipped sums, keyed noise, the
optimizer, the step counter of the guarantee. A plain step gathers random rows, and runs forward, backward and the same
optimizer. Both have the same number of rows: the physical batch. All workloads are built and compiled side by side,
each in a process of its own; then they are measured one after another, methods in turns, and the median is told. Memory
is the peak above what is held between steps, with the weights. Needs torch, numpy and scipy; Opacus where importable.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from benchmarks._methods import METHODS, Step, prepare
from benchmarks._workloads import GROWTH, WORKLOADS, Workload, small


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def worker(options: argparse.Namespace) -> int:
    """Build and compile one workload, say so, and measure when told to."""
    device = torch.device(options.device)
    work = find(options.worker)
    if options.small:
        work = small(work)
    torch.backends.cuda.matmul.allow_tf32 = work.tf32
    torch.manual_seed(0)
    data = work.records(4 * work.batch)
    data = tuple(t.to(device) if not t.is_floating_point() else t.to(device, work.dtype) for t in data)  # type: ignore[assignment]
    steps: dict[str, Step] = {}
    told: dict[str, Any] = {"rows": work.batch}
    for method in options.methods:
        began = time.perf_counter()
        try:
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                step = prepare(method, work, device, data)
                for _ in range(8 if method in ("tacit-traced", "tacit-compiled") else 3):
                    step()
                synchronize(device)
            steps[method] = step
            told[method] = {"ready": time.perf_counter() - began}
            why = [str(w.message) for w in seen if w.category.__name__ == "NotCompiled"]
            if why:
                told[method]["fallback"] = why[0]
        except Exception as error:  # a method that cannot run a model says why
            text = str(error).strip().splitlines() or [""]
            told[method] = {"error": f"{type(error).__name__}: {text[0][:160]}"}
            if options.trace:
                raise
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    print("READY", flush=True)
    sys.stdin.readline()
    measure(steps, told, device, options.repeat)
    if options.profile and "tacit-compiled" in steps and device.type == "cuda":
        told["profile"] = {m: profile(steps[m]) for m in steps if m in ("plain-compiled", "tacit-compiled")}
    if "tacit-compiled" in steps:
        told["tacit-compiled"] |= program_of(steps["tacit-compiled"])
    print("RESULT " + json.dumps(told), flush=True)
    return 0


def program_of(step: Any) -> dict[str, Any]:
    from tacit.sgd.gradients.engine import Engine

    programs = [p for p in Engine.of(step.training.model).programs.values() if p is not None]
    if not programs:
        return {}
    program = programs[-1]
    return {
        "trace_seconds": program.trace_seconds,
        "compile_seconds": program.compile_seconds,
        "cuda_graph": program.replay is not None,
        "split": program.split,
        "pieces": program.pieces,
        "operations": program.operations,
    }


def measure(steps: dict[str, Step], told: dict[str, Any], device: torch.device, repeat: int) -> None:
    times: dict[str, list[float]] = {m: [] for m in steps}
    counts: dict[str, int] = {}
    for method, step in steps.items():
        synchronize(device)
        began = time.perf_counter()
        step()
        synchronize(device)
        # Several steps in a row, as in training: the host works ahead of the GPU.
        counts[method] = max(4, min(50, int(0.1 / max(1e-6, time.perf_counter() - began))))
    for _ in range(repeat):
        for method, step in steps.items():
            synchronize(device)
            began = time.perf_counter()
            for _ in range(counts[method]):
                step()
            synchronize(device)
            times[method].append((time.perf_counter() - began) / counts[method])
    for method, step in steps.items():
        told[method]["milliseconds"] = statistics.median(times[method]) * 1e3
        told[method]["spread"] = (max(times[method]) - min(times[method])) * 1e3
        if device.type == "cuda":
            told[method]["mebibytes"] = memory(step)


def memory(step: Any) -> float:
    """Peak of a step above what is held between steps, in MiB; a CUDA graph is measured as the program it records."""
    replays = []
    if hasattr(step, "training"):
        from tacit.sgd.gradients.engine import Engine

        for program in Engine.of(step.training.model).programs.values():
            if program is not None:
                replays.append((program, program.replay))
                program.replay = None
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - held
    for program, replay in replays:
        program.replay = replay
    return peak / 2**20


def profile(step: Step, rows: int = 40, steps: int = 3) -> str:
    """How long a step keeps the GPU busy, and the kernels that take most of it."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as watch

    with watch(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    # Ranges that torch marks for optimizers span the kernels inside them, which are listed themselves.
    events = [e for e in seen.events() if e.device_type.name == "CUDA" and not e.name.startswith("Optimizer.")]
    # Kernels may run side by side: what counts is when at least one does.
    busy, end = 0.0, 0.0
    for begin, stop in sorted((e.time_range.start, e.time_range.end) for e in events):
        busy += max(0.0, stop - max(begin, end))
        end = max(end, stop)
    totals: dict[str, list[float]] = {}
    for e in events:
        totals.setdefault(e.name, []).append(e.time_range.end - e.time_range.start)
    lines = [f"{busy / steps / 1e3:.3f} ms on the device a step, {len(events) // steps} kernels"]
    for name, times in sorted(totals.items(), key=lambda item: -sum(item[1]))[:rows]:
        lines.append(f"{sum(times) / steps / 1e3:8.3f} ms {len(times) // steps:5d}x {name[:110]}")
    return "\n".join(lines)


def find(name: str) -> Workload:
    if name in WORKLOADS:
        return WORKLOADS[name]
    curve, _, value = name.rpartition("@")
    return GROWTH[curve][int(value)]


def run(names: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """All workloads, prepared side by side and measured one after another."""
    flags = ["--device", options.device, "--repeat", str(options.repeat)]
    flags += ["--small"] if options.small else []
    flags += ["--profile"] if options.profile else []
    flags += ["--trace"] if options.trace else []
    # Several compilers share the machine.
    environment = os.environ | {
        "OMP_NUM_THREADS": "4",
        "TORCHINDUCTOR_COMPILE_THREADS": str(max(1, (os.cpu_count() or 4) // 3)),
    }
    found = measured_before(options.json) if options.resume and options.json else {}
    names = [name for name in names if name not in found]
    for start in range(0, len(names), options.together):
        workers = {
            name: Worker(name, flags, options.methods, environment) for name in names[start : start + options.together]
        }
        deadline = time.monotonic() + options.patience
        for worker in workers.values():
            worker.ready.wait(max(0.0, deadline - time.monotonic()))
        late = [w for w in workers.values() if not w.ready.is_set()]
        for worker in late:
            worker.process.kill()
            found[worker.name] = {"error": f"not compiled after {options.patience:g} s"}
        for name, worker in workers.items():
            if worker not in late:
                found[name] = worker.measure(options.limit)
            show(name, found[name])
            if options.json:
                Path(options.json).write_text(json.dumps({"about": about(options), "results": found}), encoding="utf-8")
    return found


def measured_before(path: str) -> dict[str, Any]:
    """The workloads of an earlier run, cut short, of which at least one method was timed."""
    try:
        told = json.loads(Path(path).read_text(encoding="utf-8"))["results"]
    except (OSError, ValueError, KeyError):
        return {}
    return {
        name: row
        for name, row in told.items()
        if any(isinstance(v, dict) and "milliseconds" in v for v in row.values())
    }


class Worker:
    """A workload in a process of its own: it says when it is ready, and measures when told to."""

    def __init__(self, name: str, flags: list[str], methods: list[str], environment: dict[str, str]) -> None:
        command = [sys.executable, "-m", "benchmarks.gpu", "--worker", name, *flags, "--methods", *methods]
        self.name, self.ready, self.done = name, threading.Event(), threading.Event()
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.result: dict[str, Any] = {"error": "ended without a result"}
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("READY"):
                self.ready.set()
            if line.startswith("RESULT "):
                self.result = json.loads(line[7:])
        self.ready.set()
        self.done.set()

    def measure(self, patience: float) -> dict[str, Any]:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write("GO\n")
            self.process.stdin.flush()
        if not self.done.wait(patience):
            self.process.kill()
        return self.result


def about(options: argparse.Namespace) -> dict[str, str]:
    """The machine, the versions and the date."""
    device = torch.cuda.get_device_name() if options.device == "cuda" else f"{os.cpu_count()} CPU cores"
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": device,
        "date": time.strftime("%Y-%m-%d"),
    }


def show(name: str, told: dict[str, Any]) -> None:
    """One workload, in a few lines."""
    print(f"== {name} {told.get('error', '')}".rstrip(), flush=True)
    times = {m: told.get(m, {}).get("milliseconds") for m in ("plain", "plain-compiled", "plain-graphs")}
    base, best = times["plain"], min((t for t in times.values() if t), default=None)
    for method, values in told.items():
        if not isinstance(values, dict) or method == "profile":
            continue
        if "milliseconds" not in values:
            print(f"  {method:15s} {values.get('error', values)}")
            continue
        ms = values["milliseconds"]
        text = f"  {method:15s} {ms:9.3f} ms ±{values['spread']:.2f} {values.get('mebibytes', 0):8.0f} MiB"
        text += f" {ms / base:6.2f}x of eager" if base else ""
        text += f" {ms / best:6.2f}x of the best" if best else ""
        more = {k: v for k, v in values.items() if k not in ("milliseconds", "spread", "mebibytes")}
        print(text, {k: round(v, 1) if isinstance(v, float) else v for k, v in more.items()}, flush=True)
    for method, text in told.get("profile", {}).items():
        print(f"  profile of {method}: " + text.replace("\n", "\n    "), flush=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--only", nargs="*", default=[], help="only these workloads")
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=METHODS)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--device", default="cuda", help="cpu tries the benchmark out, with --small")
    parser.add_argument("--together", type=int, default=6, help="how many workloads are compiled side by side")
    parser.add_argument("--patience", type=float, default=150.0, help="seconds to wait for a workload to be compiled")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds to measure one workload, compiled already")
    parser.add_argument("--resume", action="store_true", help="leave out what the file of --json holds already")
    parser.add_argument("--growth", action="store_true", help="the growth curves in place of the table")
    parser.add_argument("--profile", action="store_true", help="also tell the longest kernels")
    parser.add_argument("--small", action="store_true", help="small batches, to try it out")
    parser.add_argument("--trace", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", default=None, help="also write everything here")
    parser.add_argument("--worker", default=None, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.worker:
        return worker(options)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("no GPU here: nothing is measured (python -m benchmarks steps measures on the CPU)")
        return 0
    names = (
        [f"{curve}@{value}" for curve, points in GROWTH.items() for value in points] if options.growth else [*WORKLOADS]
    )
    if options.only:  # in the order in which they were asked for
        names = [n for part in options.only for n in names if part in (n, n.rpartition("@")[0])]
    found = run(names, options)
    if options.json:
        Path(options.json).write_text(json.dumps({"about": about(options), "results": found}), encoding="utf-8")
    print(about(options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
