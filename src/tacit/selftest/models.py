"""On which small models and data does tacit test itself? Scenes, each of which shows a fault that others hide.

A tied weight, a soft prompt, several records of one person, clipping by layer: a wrong bound shows only where the
model or the setting has the thing that is bounded wrongly. All data are drawn from a seed and belong to nobody.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tacit.audit.pipeline import Pipeline
from tacit.sgd import AdaptiveClipping

ROWS, FEATURES, CLASSES = 30, 20, 5
BATCH, NOISE = 10, 1.3
VOCABULARY, WIDTH, TOKENS, PROMPT = 24, 8, 4, 3


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _drawn(model: nn.Module, seed: int) -> nn.Module:
    """The model with weights from the seed, without touching torch's own generator."""
    generator = _seeded(seed + 77)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) / max(p.shape[-1], 1) ** 0.5)
    return model


def table(seed: int, rows: int = ROWS) -> tuple[Tensor, Tensor]:
    generator = _seeded(seed)
    return (
        torch.randn(rows, FEATURES, generator=generator),
        torch.randint(CLASSES, (rows,), generator=generator),
    )


CRITERION = nn.CrossEntropyLoss(reduction="none")


def network(seed: int, **settings: Any) -> Pipeline:
    """Two layers on numbers."""
    model = nn.Sequential(nn.Linear(FEATURES, 64), nn.Tanh(), nn.Linear(64, CLASSES))
    usual: dict[str, Any] = {
        "batch_size": BATCH,
        "noise_multiplier": NOISE,
        "clip_norm": 0.5,
        "delta": 1e-5,
        "check": "never",
    }
    return Pipeline(_drawn(model, seed), CRITERION, table(seed), **(usual | settings))


class Tied(nn.Module):
    """A language model of bags of words whose head is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(VOCABULARY, WIDTH))

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = torch.tanh(nn.functional.embedding(tokens, self.table).mean(1)) @ self.table.T
        return found


class Prompted(nn.Module):
    """A soft prompt, one for the whole batch, before frozen word vectors; a trained head."""

    words: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("words", torch.linspace(-1, 1, VOCABULARY * WIDTH).sin().view(VOCABULARY, WIDTH))
        self.prompt = nn.Parameter(torch.zeros(PROMPT, WIDTH))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        prompt = self.prompt.unsqueeze(0).expand(len(tokens), -1, -1)
        whole = torch.cat([prompt, self.words[tokens]], 1)
        weights = torch.softmax(whole.sum(2), 1)
        found: Tensor = self.head(torch.tanh((whole * weights.unsqueeze(2)).sum(1)))
        return found


def _tokens(seed: int) -> tuple[Tensor, Tensor]:
    generator = _seeded(seed)
    return (
        torch.randint(VOCABULARY, (ROWS, TOKENS), generator=generator),
        torch.randint(VOCABULARY, (ROWS,), generator=generator),
    )


def _words(model: nn.Module, seed: int) -> Pipeline:
    settings: dict[str, Any] = {"batch_size": BATCH, "noise_multiplier": NOISE, "clip_norm": 0.3}
    return Pipeline(_drawn(model, seed), CRITERION, _tokens(seed), delta=1e-5, check="never", **settings)


def tied(seed: int) -> Pipeline:
    """A weight that is used twice."""
    return _words(Tied(), seed)


def prompted(seed: int) -> Pipeline:
    """A parameter that the whole batch shares."""
    return _words(Prompted(), seed)


def by_layer(seed: int) -> Pipeline:
    """Clipping by layer."""
    return network(seed, clipping="per_layer")


def scheduled(seed: int, steps: int = 24) -> Pipeline:
    """A clip norm that grows and noise that shrinks."""
    return network(
        seed,
        steps=steps,
        clip_norm=[0.2 + 0.05 * t for t in range(steps)],
        noise_schedule=[(1.5, 1.0, 0.7)[3 * t // steps] for t in range(steps)],
    )


def line(inputs: int, outputs: int) -> nn.Module:
    """A model as somebody's own factory makes it."""
    return nn.Linear(inputs, outputs)


class _Keeping(nn.Linear):
    """Keeps the last rows that it saw in a buffer, which reaches no result."""

    seen: Tensor

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.register_buffer("seen", torch.zeros(inputs))

    def forward(self, x: Tensor) -> Tensor:
        if len(x):
            self.seen.copy_(x.detach().abs().sum(0))
        return super().forward(x)


def keeping(inputs: int, outputs: int) -> nn.Module:
    """A model that keeps private rows in its state."""
    return _Keeping(inputs, outputs)


def in_pieces(seed: int) -> Pipeline:
    """Batches that do not fit into memory at once."""
    return network(seed, physical_batch=3)


def _same(example: Any) -> Any:
    """A view of an example that is the example: what is averaged is then known."""
    return example


def augmented(seed: int) -> Pipeline:
    """Three views of each record, made during training."""
    return network(seed, augment=_same, views=3)


def automatic(seed: int) -> Pipeline:
    """Gradients that are scaled to the clip norm, long or short."""
    return network(seed, clipping="automatic")


def laplace(seed: int) -> Pipeline:
    """Gradients clipped in L1 norm, Laplace noise, pure ε."""
    model = nn.Linear(FEATURES, CLASSES)
    settings: dict[str, Any] = {"batch_size": BATCH, "noise_multiplier": 2.0, "clip_norm": 0.5, "check": "never"}
    return Pipeline(_drawn(model, seed), CRITERION, table(seed), mechanism="laplace", **settings)


COUNT_NOISE = 0.9


def adaptive(seed: int, steps: int = 60) -> Pipeline:
    """A clip norm that follows a quantile, whose count costs something."""
    return network(seed, steps=steps, adaptive=AdaptiveClipping(0.5, 0.1, COUNT_NOISE))


def sparse(seed: int, steps: int = 80) -> Pipeline:
    """Batches of one record on average: a third of them are empty."""
    return network(seed, steps=steps, batch_size=1)


PEOPLE, EACH = 10, 3


def people(seed: int) -> Pipeline:
    """Three records of each person; the person is the unit."""
    ids = np.repeat(np.arange(PEOPLE), EACH)
    made = network(seed, groups=ids, max_rows=EACH, batch_size=4)
    made.unit_of = ids
    return made
