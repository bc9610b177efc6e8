"""Which files and functions does one private training step walk through, and how deep?

    python tools/walk.py                 an MLP, a small CNN and a small transformer, uncompiled, on a CPU
    python tools/walk.py --compiled      the same steps as compiled programs
    python tools/walk.py cnn --functions the functions of one of them, by file, with how often each is called

The step is a steady one: plans are made, checked and compiled in the steps before it. Counted are frames of
``src/tacit``; a comprehension, a lambda or a generator expression counts as the function it stands in. Depth is how
many functions of ``src/tacit`` are on the stack at once: what lies between them (the model, torch) is not ours to
shorten. A file belongs to a layer of the house, which is its folder.
"""

from __future__ import annotations

import argparse
import collections
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tacit
from tacit.noise import Key
from tacit.sgd import Training

ROOT = Path(tacit.__file__).parent
#: Steps before the one that is looked at.
STEADY = 6


def mlp() -> tuple[nn.Module, Any]:
    """Two linear layers on rows of a table."""
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 5)), torch.randn(500, 20)


def cnn() -> tuple[nn.Module, Any]:
    """A convolution, a group normalisation and a linear layer on small images."""
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 14 * 14, 5))
    return model, torch.randn(500, 1, 16, 16)


class Transformer(nn.Module):
    """Embedded tokens with learned positions, one layer of attention, a linear head on the mean over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(50, 16), nn.Parameter(torch.randn(12, 16))
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.layer(self.tokens(x) + self.places).mean(1))
        return found


def transformer() -> tuple[nn.Module, Any]:
    """A small transformer on sequences of tokens."""
    return Transformer(), torch.randint(50, (500, 12))


MODELS: dict[str, Callable[[], tuple[nn.Module, Any]]] = {"mlp": mlp, "cnn": cnn, "transformer": transformer}


def loss(model: nn.Module, batch: Any) -> Tensor:
    """One cross entropy for each row."""
    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


class Walk:
    """The frames of the package that a call goes through."""

    def __init__(self) -> None:
        self.calls: collections.Counter[tuple[str, str]] = collections.Counter()
        self.deepest: list[tuple[str, str]] = []

    def of(self, call: Callable[[], None]) -> Walk:
        """Make the call, and look at every function that begins."""
        sys.setprofile(self._note)
        try:
            call()
        finally:
            sys.setprofile(None)
        return self

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(str(ROOT)):
            return
        stack: list[tuple[str, str]] = []
        above: FrameType | None = frame
        while above is not None:
            if above.f_code.co_filename.startswith(str(ROOT)) and not is_part(above):
                stack.append(named(above))
            above = above.f_back
        if not is_part(frame):
            self.calls[named(frame)] += 1
        if len(stack) > len(self.deepest):
            self.deepest = stack[::-1]


def is_part(frame: FrameType) -> bool:
    """Whether a frame counts as the function it stands in."""
    return frame.f_code.co_name in ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<lambda>")


def named(frame: FrameType) -> tuple[str, str]:
    """The file of a frame, from the package on, and its function."""
    return Path(frame.f_code.co_filename).relative_to(ROOT).as_posix(), frame.f_code.co_qualname


def steady_step(name: str, *, compiled: bool) -> Walk:
    """The walk of one step of a run that has made several."""
    torch.manual_seed(0)
    model, x = MODELS[name]()
    training = Training(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        loss,
        (x, torch.randint(5, (500,))),
        batch_size=50,
        steps=20,
        noise_multiplier=1.0,
        delta=1e-5,
        compile=compiled,
        key=Key(bytes(32), repeatable=True),  # of which the step is none that is probed
    )
    batches = iter(training)
    for _ in range(STEADY):
        training.step(next(batches))
    batch = next(batches)
    return Walk().of(lambda: training.step(batch))


def told(name: str, walk: Walk, *, functions: bool) -> str:
    """The walk in lines: its size, its files by layer, and its deepest stack."""
    layers: dict[str, dict[str, list[str]]] = {}
    for (file, function), count in sorted(walk.calls.items()):
        layer, _, rest = file.rpartition("/")
        layers.setdefault(layer, {}).setdefault(rest, []).append(f"{function} × {count}")
    files = sum(len(some) for some in layers.values())
    lines = [f"{name}: {files} files, {len(walk.calls)} functions, depth {len(walk.deepest)}"]
    for layer, some in layers.items():
        lines.append(f"  {layer}/: {', '.join(f'{file} ({len(found)})' for file, found in some.items())}")
        if functions:
            lines += [f"    {file}: {', '.join(found)}" for file, found in some.items()]
    return "\n".join([*lines, "  deepest: " + " > ".join(function for _, function in walk.deepest)])


def main() -> None:
    """Print the walks that were asked for."""
    told_about = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=told_about)
    parser.add_argument("models", nargs="*", help=f"which of {', '.join(MODELS)} (default: all)")
    parser.add_argument("--compiled", action="store_true", help="steps as compiled programs (takes minutes)")
    parser.add_argument("--functions", action="store_true", help="also every function, with how often it is called")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.models) - set(MODELS))
    if unknown:
        parser.error(f"no model {unknown[0]!r}: choose from {', '.join(MODELS)}")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name in arguments.models or MODELS:
        print(told(name, steady_step(name, compiled=arguments.compiled), functions=arguments.functions))


if __name__ == "__main__":
    main()
