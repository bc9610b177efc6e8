"""How long is one whole pass over MNIST, with sampler, noise, optimizer and accounting?

    python -m benchmarks epoch --data-dir DIR [--device cuda] [--batch 512] [--methods plain tacit] [--json FILE]

The CNN of the speed tables on the 60,000 images of ``DIR/mnist``. A private pass draws Poisson batches, pads and masks
them, clips, adds keyed noise, steps, and states its ε at the end; a plain pass shuffles. Compiling is told apart: the
first pass is left out, and the median of the others is told.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks._methods import CLIP_NORM, COMPILE, METHODS, prepare
from benchmarks._workloads import Workload, cnn, images
from benchmarks.gpu import about, synchronize


def mnist(folder: Path, device: torch.device) -> tuple[Tensor, Tensor]:
    """Images in [-1, 1] and their digits."""
    with gzip.open(folder / "train-images-idx3-ubyte.gz") as file:
        x = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 1, 28, 28)
    with gzip.open(folder / "train-labels-idx1-ubyte.gz") as file:
        y = np.frombuffer(file.read(), np.uint8, offset=8)
    inputs = torch.from_numpy(x.astype(np.float32) / 127.5 - 1)
    return inputs.to(device), torch.from_numpy(y.astype(np.int64)).to(device)


def private(data: tuple[Tensor, Tensor], batch: int, passes: int, compiled: Any, device: torch.device) -> Any:
    """Seconds of each pass and ε."""
    from tacit.sgd import Training

    torch.manual_seed(0)
    model = cnn().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    training = Training(
        *(model, optimizer, F.cross_entropy, data),
        batch_size=batch,
        epochs=passes,
        noise_multiplier=1.0,
        delta=1e-5,
        clip_norm=CLIP_NORM,
        physical_batch=int(batch + 4 * batch**0.5),
        compile=compiled,
    )
    each, seconds = len(training) // passes, []
    began = time.perf_counter()
    for k, drawn in enumerate(training):
        training.step(drawn)
        if (k + 1) % each == 0:
            synchronize(device)
            seconds.append(time.perf_counter() - began)
            began = time.perf_counter()
    priced = time.perf_counter()
    privacy = training.privacy
    return seconds, {"epsilon": privacy.claim, "pricing_seconds": time.perf_counter() - priced}


def other(method: str, data: tuple[Tensor, Tensor], batch: int, passes: int, device: torch.device) -> Any:
    """Seconds of each pass of as many steps."""
    work = Workload(cnn, images(1, 28, 10), batch)
    step, seconds = prepare(method, work, device, data), []
    for _ in range(passes):
        began = time.perf_counter()
        for _ in range(len(data[0]) // batch):
            step()
        synchronize(device)
        seconds.append(time.perf_counter() - began)
    return seconds, {}


def main(argv: list[str] | None = None) -> int:
    """Print seconds of a pass by each method."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--data-dir", default=None, help="the folder that holds mnist/")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--passes", type=int, default=4)
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=METHODS)
    parser.add_argument("--json", default=None)
    options = parser.parse_args(argv)
    folder = Path(options.data_dir or ".") / "mnist"
    if not (folder / "train-images-idx3-ubyte.gz").exists():
        print(f"no MNIST in {folder}: give --data-dir; nothing is measured")
        return 0
    device = torch.device(options.device)
    data = mnist(folder, device)
    found: dict[str, Any] = {}
    for method in options.methods:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if method in COMPILE:
                    seconds, more = private(data, options.batch, options.passes, COMPILE[method], device)
                else:
                    seconds, more = other(method, data, options.batch, options.passes, device)
        except Exception as error:  # noqa: BLE001 a peer that is absent, or cannot run the model, says why
            found[method] = {"error": f"{type(error).__name__}: {str(error)[:160]}"}
            print(f"{method:15s} {found[method]['error']}", flush=True)
            continue
        found[method] = {"seconds": statistics.median(seconds[1:]), "first": seconds[0], **more}
        print(f"{method:15s} {found[method]['seconds']:.3f} s a pass, the first {seconds[0]:.1f} s {more}", flush=True)
        if options.json:
            told = {"about": about(options), "batch": options.batch, "results": found}
            Path(options.json).write_text(json.dumps(told, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
