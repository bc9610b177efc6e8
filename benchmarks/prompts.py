"""What does privacy cost in time when a language model is adapted? A private step against a plain one, and teachers.

    python -m benchmarks prompts [--model FOLDER | --shape FOLDER] [--device cuda] [--batch 128] [--dtype bfloat16]

The private step draws a batch, clips every example and adds noise; the plain one is a backward pass and Adam on as many
examples. Teachers are scored with their prefix encoded once, and with the prefix run again for every query. Times
do not depend on the weights: ``--shape`` takes random ones for a folder's ``config.json`` and tokenizer, and without
either a Llama with 6 layers is timed.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

METHODS = ("lora", "soft", "prefix")
WORDS = [
    *("good", "bad", "review", "sentiment", "is", "the", "a", "film", "plot", "slow", "bright", "sharp", "warm"),
    *("cold", "long", "short", "and", "of", "it", "was"),
]


def _random_model() -> Any:
    import transformers as hf
    from tokenizers import Tokenizer, models, pre_tokenizers

    from tacit.prompts import LanguageModel

    pieces = ["[UNK]", ":", ".", "?", *WORDS]
    made = Tokenizer(models.WordLevel({w: i for i, w in enumerate(pieces)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    config = hf.LlamaConfig(
        vocab_size=len(pieces),
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=2,
    )
    torch.manual_seed(0)
    return LanguageModel(hf.LlamaForCausalLM(config), hf.PreTrainedTokenizerFast(tokenizer_object=made))


def _shaped(folder: str) -> Any:
    """A model of random weights, with the configuration and the tokenizer of a folder."""
    import transformers as hf

    from tacit.prompts import LanguageModel

    torch.manual_seed(0)
    model = hf.AutoModelForCausalLM.from_config(hf.AutoConfig.from_pretrained(folder))
    return LanguageModel(model, hf.AutoTokenizer.from_pretrained(folder))


def _texts(count: int) -> list[tuple[str, str]]:
    import random

    draw = random.Random(0)
    return [(" ".join(draw.choices(WORDS, k=draw.randrange(8, 40))), draw.choice(["no", "yes"])) for _ in range(count)]


def _both(ours: Callable[[], object], theirs: Callable[[], object], device: str, turns: int) -> tuple[float, float]:
    """The best times of both, taken in turns after a warm-up: other work on the machine touches both alike."""

    def once(work: Callable[[], object]) -> float:
        began = time.perf_counter()
        work()
        if device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    for _ in range(2):
        once(ours), once(theirs)
    times = [(once(ours), once(theirs)) for _ in range(turns)]
    return min(t[0] for t in times), min(t[1] for t in times)


def steps(language: Any, method: str, batch: int, device: str, turns: int) -> dict[str, float]:
    """Seconds of a private and of a plain step on the same examples."""
    from tacit.prompts import Template, Verbalizer
    from tacit.prompts.adapters import Trained, adapt
    from tacit.prompts.models import LanguageModel
    from tacit.prompts.tuning import LabelLoss, labelled
    from tacit.sgd import Training

    ask, words = Template("review : {text} . sentiment :"), Verbalizer({"no": "bad", "yes": "good"})
    fresh = LanguageModel(copy.deepcopy(language.model), language.tokenizer)
    asking = LanguageModel(adapt(fresh, method, start="is the film good ? it was the film", rank=4), language.tokenizer)
    rows = labelled(asking, ask, words, _texts(batch))
    loss = LabelLoss(tuple(asking.check(ask, words)))
    model = Trained(asking.model)
    weights = [p for p in model.parameters() if p.requires_grad]
    on_device = {k: v.to(device) for k, v in rows.items()}
    optimizer = torch.optim.Adam(weights, lr=0.0)

    def plain() -> None:
        loss(model, on_device).mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    training = Training(
        model, torch.optim.Adam(weights, lr=0.0), loss, rows, batch_size=batch, sampler="fixed",
        steps=turns + 4, noise_multiplier=1.0, delta=1e-5, physical_batch=batch,
    )  # fmt: skip
    batches = iter(training)

    def private() -> None:
        training.step(next(batches))

    ours, theirs = _both(private, plain, device, turns)
    return {"private_s": ours, "plain_s": theirs, "ratio": ours / theirs}


def teachers(language: Any, queries: int, shots: int, device: str, turns: int) -> dict[str, float]:
    """Queries a second that one teacher scores, with the prefix kept and without."""
    from tacit.prompts import Template, Verbalizer

    ask, words = Template("review : {text} . sentiment :"), Verbalizer({"no": "bad", "yes": "good"})
    texts, shown = [text for text, _ in _texts(queries)], _texts(2 * shots)

    def score(kept: bool) -> Callable[[], object]:
        return lambda: language.log_probabilities(ask, words, texts, shown, cached=kept)

    kept, again = _both(score(True), score(False), device, turns)
    return {"kept_per_s": queries / kept, "again_per_s": queries / again, "speed_up": again / kept}


def ensemble(language: Any, queries: int, shots: int, count: int, device: str, turns: int) -> dict[str, float]:
    """Queries a second that many teachers score together, as they vote, and one after another with whole prompts."""
    from tacit.prompts import Template, Verbalizer

    ask, words = Template("review : {text} . sentiment :"), Verbalizer({"no": "bad", "yes": "good"})
    examples, each = _texts(2 * shots * count), 2 * shots
    texts, shown = [t for t, _ in _texts(queries)], [examples[k * each : (k + 1) * each] for k in range(count)]

    def together() -> object:
        return language.log_probabilities_of(ask, words, texts, shown)

    def again() -> object:
        return [language.log_probabilities(ask, words, texts, some, cached=False) for some in shown]

    ours, theirs = _both(together, again, device, turns)
    return {"kept_per_s": count * queries / ours, "again_per_s": count * queries / theirs, "speed_up": theirs / ours}


def main(arguments: list[str] | None = None) -> None:
    """Time it and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks prompts", description=__doc__)
    parser.add_argument("--model", help="a folder, a name on the hub, or smollm2; default: random weights")
    parser.add_argument("--shape", help="a folder with config.json and a tokenizer; random weights")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--queries", type=int, default=64)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args(arguments)
    from tacit.prompts import load

    torch.set_float32_matmul_precision("high")
    if chosen.model:
        language = load(chosen.model)
    else:
        language = _shaped(chosen.shape) if chosen.shape else _random_model()
    language.model.to(chosen.device, getattr(torch, chosen.dtype))
    language.batch_size = min(chosen.queries, 256)
    found: dict[str, Any] = {"torch": torch.__version__, **vars(chosen), "json": str(chosen.json)}
    for method in METHODS:
        found[method] = steps(language, method, chosen.batch, chosen.device, chosen.turns)
        print(f"{method:<8} private {found[method]['private_s']:.3f} s, plain {found[method]['plain_s']:.3f} s, "
              f"ratio {found[method]['ratio']:.2f}", flush=True)  # fmt: skip
    for shots in (1, 4):
        found[f"teachers, {shots} a class"] = row = teachers(
            language, chosen.queries, shots, chosen.device, chosen.turns
        )
        print(f"teacher with {shots} shots a class: {row['kept_per_s']:.1f} queries a second with the prefix kept, "
              f"{row['again_per_s']:.1f} without, {row['speed_up']:.2f} times faster", flush=True)  # fmt: skip
    several = max(2, chosen.queries // 16)
    found["ensemble"] = row = ensemble(language, 32, 1, several, chosen.device, chosen.turns)
    print(f"{several} teachers, 32 queries: {row['kept_per_s']:.1f} a second together, {row['again_per_s']:.1f} one by "
          f"one with whole prompts, {row['speed_up']:.2f} times faster", flush=True)  # fmt: skip
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
