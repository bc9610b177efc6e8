"""The same program with Opacus and with tacit: accuracy over seeds, ε, time and memory, in one run.

``python -m benchmarks opacus`` runs both halves; ``--only accuracy`` or ``--only time`` one. Where Opacus is not
installed, ours is measured beside plain training. ``--device cuda`` takes larger sizes.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import math
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from benchmarks.clipping import forget_peak, peak_memory

PROGRAMS = ("mnist", "char_lstm", "text", "lora")
#: Student's t for a 95% interval of a mean, by degrees of freedom (tables, e.g. NIST handbook 1.3.6.7.2).
STUDENT = {2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}


def has_opacus() -> bool:
    """Whether there is something to compare with."""
    return importlib.util.find_spec("opacus") is not None


# -- accuracy --------------------------------------------------------------------------------------------------------


def interval(values: list[float]) -> tuple[float, float]:
    """Mean and half the width of its 95% interval."""
    half = STUDENT[len(values) - 1] * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.mean(values), half


def accuracy(seeds: int, quick: bool) -> list[dict[str, Any]]:
    """Every program with every engine, over seeds."""
    sizes = {"mnist": {"records": 4000, "epochs": 4}, "char_lstm": {"epochs": 8}, "text": {"records": 3000}, "lora": {}}
    small = {"mnist": {"records": 1500}}
    rows = []
    for program in PROGRAMS:
        module = importlib.import_module(f"examples.opacus_{program}")
        for engine in ("tacit", "opacus") if has_opacus() else ("tacit",):
            size = small.get(program, {}) if quick else sizes[program]
            found = [module.train(engine, seed=s, **size) for s in range(seeds)]
            mean, half = interval([a for a, _ in found])
            rows.append({"program": program, "engine": engine, "accuracy": mean, "half": half, "epsilon": found[0][1]})
            print(f"{program:10} {engine:7} accuracy {mean:.3f} ± {half:.3f}   ε = {found[0][1]:.3f}", flush=True)
    return rows


# -- time and memory -------------------------------------------------------------------------------------------------


class Rows(Dataset):  # type: ignore[misc]
    """Records that are read many at a time, so that reading costs next to nothing."""

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = tensors

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, k: int) -> Any:
        return tuple(t[k] for t in self.tensors)

    def __getitems__(self, rows: list[int]) -> Any:
        index = torch.tensor(rows, dtype=torch.int64, device=self.tensors[0].device)
        return tuple(t[index] for t in self.tensors)


def collate(batch: Any) -> Any:
    """What :class:`Rows` gives is a batch already; a list of records is stacked."""
    return batch if isinstance(batch, tuple) else tuple(torch.stack(column) for column in zip(*batch, strict=True))


def workload(name: str, device: str, private: str) -> tuple[nn.Module, tuple[Tensor, ...], int]:
    """A model, records and the expected batch size."""
    large = device == "cuda"
    torch.manual_seed(0)
    if name == "mnist":
        from examples.opacus_mnist import network

        count, batch = (60000, 2048) if large else (6000, 128)
        data: tuple[Tensor, ...] = (torch.randn(count, 1, 28, 28), torch.randint(10, (count,)))
        return network(), data, batch
    if name == "char_lstm":
        from examples.opacus_char_lstm import CharLSTM

        count, batch = (20000, 512) if large else (4000, 64)
        recurrent = nn.LSTM
        if private.startswith("opacus"):
            from opacus.layers import DPLSTM as recurrent
        return CharLSTM(recurrent), (torch.randint(27, (count, 14)), torch.randint(4, (count,))), batch
    if name == "text":
        count, batch = (60000, 2048) if large else (10000, 128)
        model = nn.Sequential(nn.Embedding(1000, 64), Mean(), nn.Linear(64, 4))
        return model, (torch.randint(1000, (count, 40)), torch.randint(4, (count,))), batch
    from peft import LoraConfig, get_peft_model
    from transformers import BertConfig, BertForSequenceClassification

    count, batch, width, tokens = (10000, 256, 512, 128) if large else (2000, 32, 128, 32)
    config = BertConfig(
        vocab_size=1000,
        hidden_size=width,
        num_hidden_layers=4,
        num_attention_heads=8,
        intermediate_size=4 * width,
        num_labels=2,
    )
    lora = LoraConfig(r=8, target_modules=["query", "value"], task_type="SEQ_CLS")
    model = get_peft_model(BertForSequenceClassification(config), lora).train()
    return Logits(model), (torch.randint(1000, (count, tokens)), torch.randint(2, (count,))), batch


class Mean(nn.Module):
    """The mean over tokens."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


class Logits(nn.Module):
    """A model of transformers that returns its logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(input_ids=x).logits


def _forget_peak(device: str) -> float:
    """Start a new peak after warming up; returns what is held between steps."""
    if device != "cuda":
        return forget_peak()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated() / 2**20


def measure(name: str, private: str, device: str, steps: int) -> dict[str, Any]:
    """Median milliseconds of a step after warming up, and the peak of memory above what is held between steps."""
    warnings.simplefilter("ignore")
    model, data, batch = workload(name, device, private)
    model = model.to(device).train()
    loader = DataLoader(Rows(*(t.to(device) for t in data)), batch_size=batch, collate_fn=collate, shuffle=True)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)
    criterion: Callable[..., Tensor] = nn.CrossEntropyLoss()
    if private != "plain":
        engine = importlib.import_module("opacus" if private.startswith("opacus") else "tacit.opacus").PrivacyEngine()
        mode = "ghost" if private == "opacus ghost" else "hooks"
        made = engine.make_private(
            module=model,
            optimizer=optimizer,
            data_loader=loader,
            criterion=criterion,
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            grad_sample_mode=mode,
        )
        model, optimizer, loader = made[0], made[1], made[-1]
        criterion = made[2] if mode == "ghost" else criterion
    times: list[float] = []
    warm, base = max(5, steps // 4), 0.0
    # One thread: its own time, which others on the machine do not lengthen.
    clock = time.perf_counter if device == "cuda" else time.process_time
    while len(times) < steps + warm:
        for x, y in loader:
            if len(times) == warm:
                base = _forget_peak(device)
            if device == "cuda":
                torch.cuda.synchronize()
            start = clock()
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
            if device == "cuda":
                torch.cuda.synchronize()
            times.append(clock() - start)
            if len(times) >= steps + warm:
                break
    peak = torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else peak_memory()
    return {
        "program": name,
        "engine": private,
        "device": device,
        "batch": batch,
        "ms": 1000 * statistics.median(times[warm:]),
        "first_ms": 1000 * times[0],
        "mb": peak - base,
    }


def timing(device: str, steps: int) -> list[dict[str, Any]]:
    """Every program with every engine, each in a process of its own on a CPU."""
    engines = ["plain", "tacit"] + (["opacus", "opacus ghost"] if has_opacus() else [])
    rows = []
    for name in PROGRAMS:
        for private in engines:
            if device == "cuda":
                gc.collect()
                torch.cuda.empty_cache()
                try:
                    rows.append(measure(name, private, device, steps))
                except RuntimeError as error:
                    print(f"{name:10} {private:13} failed: {error}", flush=True)
                    continue
            else:
                command = [sys.executable, "-m", "benchmarks", "opacus", "--one", name, private, "--steps", str(steps)]
                told = subprocess.run(command, capture_output=True, text=True, check=False)
                if told.returncode:
                    print(f"{name:10} {private:13} failed: {told.stderr.strip().splitlines()[-1]}", flush=True)
                    continue
                rows.append(json.loads(told.stdout.splitlines()[-1]))
            row = rows[-1]
            print(
                f"{name:10} {private:13} batch {row['batch']:5}  {row['ms']:8.2f} ms a step  {row['mb']:8.1f} MiB"
                f"  (first step {row['first_ms']:.0f} ms)",
                flush=True,
            )
    return rows


def main(argv: list[str]) -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks opacus", description=__doc__)
    parser.add_argument("--only", choices=["accuracy", "time"])
    parser.add_argument("--seeds", type=int, default=5, choices=range(3, 11))
    parser.add_argument("--quick", action="store_true", help="small sizes for accuracy")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--json", help="write all figures to this file")
    parser.add_argument("--one", nargs=2, metavar=("PROGRAM", "ENGINE"), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    if options.one:
        torch.set_num_threads(1)
        print(json.dumps(measure(*options.one, options.device, options.steps)))
        return 0
    found: dict[str, Any] = {"torch": torch.__version__, "opacus": has_opacus()}
    if options.only != "time":
        found["accuracy"] = accuracy(options.seeds, options.quick)
    if options.only != "accuracy":
        found["time"] = timing(options.device, options.steps)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)
    return 0
