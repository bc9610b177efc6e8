"""What does a private step of a mixture of experts cost, next to a plain one, and is it right?

``python -m benchmarks experts [--device cuda] [--width 256] [family ...]`` takes small configurations of ten families
of transformers with weights at random. It compares norms and sums with one example at a time on two batches of
different make-up, and times steps on other batches than the one that was planned for: CPU time, or time on a GPU.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tacit import sgd

WORDS, LAYERS, EXPERTS = 97, 2, 4


def family(name: str, width: int) -> nn.Module:
    """A model of a family, of a width."""
    import transformers

    shape = {
        "vocab_size": WORDS,
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "pad_token_id": 0,
    }
    narrow = {"moe_intermediate_size": width}
    shared = {**narrow, "shared_expert_intermediate_size": width}
    local = {"num_local_experts": EXPERTS, "num_experts_per_tok": 2}
    plain = {"num_experts": EXPERTS, "num_experts_per_tok": 2}
    heads = {"head_dim": width // 4}
    mixed = ["sliding_attention", "full_attention"]
    latent = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
    scan = {"mamba_d_state": 4, "mamba_dt_rank": 4, "attn_layer_period": 2, "attn_layer_offset": 1}
    linear = {f"linear_num_{k}_heads": 2 for k in ("key", "value")} | {
        f"linear_{k}_head_dim": width // 8 for k in ("key", "value")
    }
    chosen = {
        "num_key_value_heads": 4,
        "n_routed_experts": 8,
        "n_group": 2,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
        "n_shared_experts": 1,
    }
    switch = {"vocab_size": WORDS, "d_model": width, "d_kv": width // 4, "d_ff": 2 * width, "num_heads": 4}
    switch |= {"num_layers": LAYERS, "num_decoder_layers": LAYERS, "num_experts": EXPERTS, "expert_capacity": 128}
    switch |= {"num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1, "decoder_start_token_id": 0}
    switch |= {"dropout_rate": 0.0, "router_jitter_noise": 0.0}
    given: dict[str, tuple[str, dict[str, Any]]] = {
        "mixtral": ("MixtralForCausalLM", shape | local),
        "qwen2-moe": ("Qwen2MoeForCausalLM", shape | plain | shared),
        "qwen3-moe": ("Qwen3MoeForCausalLM", shape | plain | narrow | heads),
        "olmoe": ("OlmoeForCausalLM", shape | plain),
        "granitemoe": ("GraniteMoeForCausalLM", shape | local),
        "deepseek-v3": ("DeepseekV3ForCausalLM", shape | chosen | narrow | latent),
        "gpt-oss": ("GptOssForCausalLM", shape | local | heads | {"sliding_window": 8, "layer_types": mixed}),
        "jamba": ("JambaForCausalLM", shape | plain | scan | {"expert_layer_period": 2, "expert_layer_offset": 1}),
        "qwen3-next": (
            "Qwen3NextForCausalLM",
            shape | plain | shared | heads | linear | {"layer_types": ["linear_attention", "full_attention"]},
        ),
        "switch": ("SwitchTransformersForConditionalGeneration", switch),
    }
    model, options = given[name]
    kind = getattr(transformers, model)
    made: nn.Module = kind(kind.config_class(**options))
    return made.train()


FAMILIES = ["mixtral", "qwen2-moe", "qwen3-moe", "olmoe", "granitemoe", "deepseek-v3", "gpt-oss", "jamba"]
FAMILIES += ["qwen3-next", "switch"]


def loss(model: Any, ids: Tensor) -> Tensor:
    """The mean over an example's own tokens."""
    more = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    scores = model(input_ids=ids, use_cache=False, **more).logits[:, :-1]
    losses = nn.functional.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    return losses.view(len(ids), -1).mean(1)


def error(model: nn.Module, ids: Tensor) -> float:
    """The largest relative error of norms and clipped sums against one example at a time."""
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    singles = []
    for one in ids.split(1):
        grads = torch.autograd.grad(loss(model, one).sum(), list(named.values()), allow_unused=True)
        singles.append([torch.zeros_like(p) if g is None else g for p, g in zip(named.values(), grads, strict=True)])
    norms = [math.sqrt(sum(float(g.double().square().sum()) for g in one)) for one in singles]
    bound = sorted(norms)[len(norms) // 2] * 0.99
    got = sgd.clipped_grad(model, loss, ids, clip_norm=bound)
    off = size = 0.0
    for k, name in enumerate(named):
        wanted = sum(one[k].double() * min(1.0, bound / norm) for one, norm in zip(singles, norms, strict=True))
        off += float((wanted - got.sums[name].double()).square().sum())
        size += float(torch.as_tensor(wanted).square().sum())
    return max(math.sqrt(off / size), *(abs(a - b) / b for a, b in zip(got.norms.tolist(), norms, strict=True)))


def seconds(step: Callable[[Any], Any], batches: list[Any], *, gpu: bool = False) -> float:
    """The least time of a step, after one for each batch."""
    found = []
    for k, batch in enumerate([*batches, *batches]):
        if gpu:
            torch.cuda.synchronize()
        begin = time.perf_counter() if gpu else time.process_time()
        step(batch)
        if gpu:
            torch.cuda.synchronize()
        if k >= len(batches):
            found.append((time.perf_counter() if gpu else time.process_time()) - begin)
    return min(found)


def main(argv: list[str] | None = None) -> None:
    """Print a row for each family."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*", default=FAMILIES)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--examples", type=int, default=16)
    parser.add_argument("--length", type=int, default=64)
    asked = parser.parse_args(argv)
    for name in asked.families:
        torch.manual_seed(0)
        model = family(name, asked.width).to(asked.device)
        size = (asked.examples, asked.length)
        batches = [torch.randint(1, WORDS, size, device=asked.device) for _ in range(3)]
        unlike = batches[1][:5].clone()
        unlike[0], unlike[1, 3:] = 5, 7
        gpu = batches[0].is_cuda
        off = max(error(model, batches[0][:5]), error(model, unlike))
        trained = [p for p in model.parameters() if p.requires_grad]
        plain = seconds(
            lambda b, m=model, t=trained: torch.autograd.grad(loss(m, b).sum(), t, allow_unused=True),  # type: ignore[misc]
            batches,
            gpu=gpu,
        )
        private = seconds(lambda b, m=model: sgd.clipped_grad(m, loss, b, clip_norm=1.0), batches, gpu=gpu)  # type: ignore[misc]
        print(f"{name:12} error {off:.1e}  plain {plain * 1e3:6.0f} ms  private {private / plain:5.2f}x", flush=True)


if __name__ == "__main__":
    main()
