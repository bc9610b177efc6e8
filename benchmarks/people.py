"""People drawn or rows drawn: accuracy at equal ε, and what averaging within a person costs in time.

    python -m benchmarks.people --part accuracy
    python -m benchmarks.people --part accuracy --data sst2 --encoder FOLDER
    python -m benchmarks.people --part time
    python -m benchmarks.people --part memory
    python -m benchmarks.people --part time --model 124M

Accuracy: a data set cut into synthetic people. Rows are sorted by something that people differ in, with some noise, so
that a person's rows are alike, and cut into runs of geometric length, 10 on average and 40 at most. A fifth of the
people is set aside. Every way puts as many rows a step through a linear model, 300 steps.

- labsup: the census table; people differ in age and schooling; 512 rows a step.
- sst2: sentences of film reviews as a public encoder sees them (a folder that transformers reads, such as that of
  all-MiniLM-L6-v2); authors differ in what they write about and in how much they like films; 256 rows a step.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import resource
import statistics
import time
from typing import Any

import numpy as np
import torch
from torch import nn

from tacit import datasets, sgd

ROWS, STEPS, DELTA, MOST = {"labsup": 512, "sst2": 256}, 300, 1e-6, 40
WAYS = [("units", 1, 1.0), ("units", 8, 1.0), ("units", 8, 0.5), ("rows", 4, 1.0), ("rows", 10, 1.0)]


def census(encoder: str | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features and target of the census table, and what people differ in."""
    data = datasets.load("labsup")
    encoded, _ = data.encode(None, dtype=np.float32)
    names = [column.name for column in data.schema.features]
    x = encoded.features
    return x, encoded.target.astype(np.int64), x[:, names.index("age")] + x[:, names.index("educ")]


def reviews(encoder: str | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Embeddings and sentiment of all sentences, and what authors differ in: theme and mildness."""
    from transformers import AutoModel, AutoTokenizer

    if encoder is None:
        raise SystemExit("--data sst2 needs --encoder, a folder with a public encoder of sentences")
    frames = list(datasets.load("sst2").splits.values())
    texts = [text for frame in frames for text in frame["text"].to_list()]
    y = np.array([label == "positive" for frame in frames for label in frame["label"].to_list()], dtype=np.int64)
    tokenizer, model = AutoTokenizer.from_pretrained(encoder), AutoModel.from_pretrained(encoder).eval()
    x = np.zeros((len(texts), model.config.hidden_size), dtype=np.float32)
    order = sorted(range(len(texts)), key=lambda k: len(texts[k]))  # little padding
    for start in range(0, len(order), 64):
        some = order[start : start + 64]
        given = tokenizer([texts[k] for k in some], padding=True, truncation=True, return_tensors="pt")
        with torch.no_grad():
            words = model(**given).last_hidden_state
        mask = given["attention_mask"].unsqueeze(-1)
        x[some] = nn.functional.normalize((words * mask).sum(1) / mask.sum(1), dim=1).numpy()
    centred = x - x.mean(0)
    theme = centred @ np.linalg.svd(centred, full_matrices=False)[2][0]
    return x, y, theme / theme.std() + y


DATA = {"labsup": census, "sst2": reviews}


@functools.cache
def rows_of(name: str, encoder: str | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The data set, read once."""
    return DATA[name](encoder)


def people(alike: np.ndarray, seed: int) -> np.ndarray:
    """The synthetic person of each row."""
    rng = np.random.default_rng(seed)
    order = np.argsort(alike + 0.05 * rng.normal(size=len(alike)))
    lengths = np.minimum(rng.geometric(1 / 10, len(alike)), MOST)
    ids = np.empty(len(alike), dtype=np.int64)
    ids[order] = np.repeat(np.arange(len(lengths)), lengths)[: len(alike)]
    return ids


def accuracy(name: str, encoder: str | None, draw: str, most: int, clip: float, epsilon: float, seed: int) -> float:
    """The share of right answers on the people who were set aside."""
    x, y, alike = rows_of(name, encoder)
    ids, rows = people(alike, seed), ROWS[name]
    aside = np.random.default_rng(1000 + seed).random(ids.max() + 1)[ids] < 0.2
    torch.manual_seed(seed)
    model = nn.Linear(x.shape[1], 2)
    training = sgd.Training(
        model, torch.optim.SGD(model.parameters(), lr=2.0, momentum=0.9), nn.CrossEntropyLoss(reduction="none"),
        (torch.from_numpy(x[~aside]), torch.from_numpy(y[~aside])), groups=ids[~aside], draw=draw, max_rows=most,
        batch_size=rows // most if draw == "units" else rows, steps=STEPS, epsilon=epsilon, delta=DELTA,
        clip_norm=clip, ema=0.95, compile=False,
    )  # fmt: skip
    for batch in training:
        training.step(batch)
    with training.averaged(), torch.no_grad():
        return float((model(torch.from_numpy(x[aside])).argmax(1).numpy() == y[aside]).mean())


def step_times(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, loss: Any, rows: int, most: int, steps: int,
    ways: tuple[str, ...] = ("rows", "people"),
) -> dict[str, float]:  # fmt: skip
    """Median seconds of a processor for a step that draws rows, and for one that draws people, of as many rows."""
    ids = np.arange(len(x)) // most
    runs = {}
    for name in ways:
        people: dict[str, Any] = {"groups": ids, "max_rows": most, "batch_size": rows // most}
        terms = people if name == "people" else {"batch_size": rows}
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.0)
        runs[name] = sgd.Training(
            model, optimizer, loss, (x, y), steps=steps, noise_multiplier=1.0, delta=1e-6, sampler="fixed",
            compile=False, **terms,
        )  # fmt: skip
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for batches in zip(*runs.values(), strict=True):
        for (name, run), batch in zip(runs.items(), batches, strict=True):
            began = time.process_time()
            run.step(batch)
            taken[name].append(time.process_time() - began)
    return {name: statistics.median(values[2:] or values) for name, values in taken.items()}


def language_model(**shape: int) -> nn.Module:
    """GPT-2 with random weights, of 124 million of them unless a shape is given, with LoRA on its attention."""
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(**shape, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    return get_peft_model(GPT2LMHeadModel(config), LoraConfig(r=8, target_modules=["c_attn"], fan_in_fan_out=True))


def next_words(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """The mean loss of the words of each sequence."""
    tokens, _ = batch
    logits = model(input_ids=tokens).logits[:, :-1]
    return nn.functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none").mean(1)


Case = tuple[nn.Module, torch.Tensor, torch.Tensor, Any, int]


def network() -> Case:
    """A network of two layers."""
    model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10))
    return model, torch.randn(4096, 784), torch.randint(10, (4096,)), nn.CrossEntropyLoss(reduction="none"), 512


def transformer() -> Case:
    """A transformer that classifies sequences."""
    tokens, labels = torch.randint(1000, (512, 64)), torch.randint(2, (512,))
    return Words(), tokens, labels, nn.CrossEntropyLoss(reduction="none"), 64


def small_gpt2() -> Case:
    """GPT-2 of four layers and 256 dimensions."""
    model = language_model(vocab_size=2000, n_positions=64, n_embd=256, n_layer=4, n_head=4)
    return model, torch.randint(1000, (512, 64)), torch.zeros(512), next_words, 64


def gpt2() -> Case:
    """GPT-2 as it was published, of twelve layers and 768 dimensions."""
    return language_model(), torch.randint(50257, (128, 64)), torch.zeros(128), next_words, 16


#: What makes each model, its data, its loss and how many rows a step has; how many steps, of which two are not timed.
CASES = {
    "network, 512 rows": (network, 62),
    "transformer, 64 sequences": (transformer, 22),
    "LoRA on GPT-2 of 4 layers, 64 sequences": (small_gpt2, 22),
    "LoRA on GPT-2 of 124M, 16 sequences": (gpt2, 12),
}


def peak(case: str, way: str) -> float:
    """The most memory of three steps above that of the model and the data, in MiB; in a process of its own."""
    torch.manual_seed(0)
    model, x, y, loss, rows = CASES[case][0]()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step_times(model, x, y, loss, rows, 8, 3, (way,))
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


class Words(nn.Module):
    """A small transformer that classifies sequences of 64 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
        self.layers, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(128, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The logits of each sequence."""
        return self.head(self.layers(self.embed(tokens)).mean(1))


def main() -> None:
    """Print a table of one of the parts."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--part", choices=("accuracy", "time", "memory"), required=True)
    options.add_argument("--seeds", type=int, nargs="+", default=list(range(5)))
    options.add_argument("--epsilon", type=float, nargs="+", default=[0.5, 2.0])
    options.add_argument("--data", choices=list(DATA), default="labsup")
    options.add_argument("--encoder")
    options.add_argument("--model", default="", help="only models whose name has this in it, for time and memory")
    chosen = options.parse_args()
    models = {name: case for name, case in CASES.items() if chosen.model in name}
    if chosen.part == "time":
        for name, (make, steps) in models.items():
            torch.manual_seed(0)
            found = step_times(*make(), 8, steps)
            one, other = (found[kind] * 1e3 for kind in ("rows", "people"))
            print(f"{name:<40} rows {one:7.1f} ms, people of 8 rows {other:7.1f} ms: x {other / one:.3f}", flush=True)
        return
    if chosen.part == "memory":
        context = multiprocessing.get_context("spawn")
        for name in models:
            found = {}
            for way in ("rows", "people"):
                with context.Pool(1) as own:
                    found[way] = own.apply(peak, (name, way))
            print(f"{name:<40} rows {found['rows']:6.0f} MiB, people of 8 rows {found['people']:6.0f} MiB", flush=True)
        return
    for epsilon in chosen.epsilon:
        for draw, most, clip in WAYS:
            given = chosen.data, chosen.encoder, draw, most, clip, epsilon
            found = [100 * accuracy(*given, seed) for seed in chosen.seeds]
            told = f"ε {epsilon:<4g} {draw:<6} max_rows {most:<3} clip {clip:<4g} {statistics.mean(found):6.2f}"
            print(told, " ".join(f"{value:.2f}" for value in found), flush=True)


if __name__ == "__main__":
    main()
