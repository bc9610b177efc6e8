"""How does a configuration of ``transformers`` become tiny? By the names of its parameters."""

from __future__ import annotations

import inspect
from typing import Any

import transformers as hf

VOCAB, LABELS, WIDTH, HEADS, HEAD, WIDE, LAYERS, IMAGE = 64, 3, 16, 2, 8, 32, 2, 32

_VALUES = (
    (
        VOCAB,
        "vocab_size src_vocab_size tgt_vocab_size entity_vocab_size char_vocab_size t2u_vocab_size "
        "codebook_size vocab_size_per_layer_input audio_vocab_size unit_hifi_gan_vocab_size "
        "max_position_embeddings n_positions n_ctx max_seq_len max_source_positions max_target_positions "
        "max_2d_position_embeddings context_length max_encoder_position_embeddings "
        "max_decoder_position_embeddings t2u_max_position_embeddings tpu_short_seq_length "
        "ngram_vocab_size_base encoder_hash_byte_group_vocab pronunciation_vocab_size shape_vocab_size "
        "num_hash_buckets position_embedding_size",
    ),
    (
        WIDTH,
        "hidden_size d_model n_embd dim emb_dim embed_dim embedding_size word_embed_proj_dim entity_emb_size "
        "projection_dim classifier_proj_size xvector_output_dim input_embedding_size output_embedding_size "
        "pronunciation_embed_dim shape_embed_dim decoder_hidden_size out_hidden_size backbone_hidden_size "
        "moe_intermediate_size shared_expert_intermediate_size moe_shared_expert_intermediate_size "
        "expert_ffn_hidden_size hidden_size_global intra_bottleneck_size router_hidden_size d_latents "
        "hidden_size_per_layer_input projector_input_dim projector_output_dim vision_output_dim embedding_dim "
        "prediction_head_size mm_embed_dim output_proj_dims audio_embed_dim sequence_dim lang_embed_dim "
        "unit_embed_dim spkr_embed_dim hidden_channels base_channels coordinate_size shape_size "
        "xpath_unit_hidden_size codevector_dim proj_codevector_dim output_hidden_size lru_width",
    ),
    (
        WIDE,
        "intermediate_size d_ff ffn_dim n_inner encoder_ffn_dim decoder_ffn_dim d_inner dim_ff dff hidden_dim "
        "ffn_hidden_size shared_intermediate_size intermediate_size_mlp dense_intermediate_size "
        "feed_forward_size mlp_dim prompt_mid_dim speech_encoder_intermediate_size t2u_encoder_ffn_dim "
        "t2u_decoder_ffn_dim inner_dim mamba_d_ssm input_size",
    ),
    (
        LAYERS,
        "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_decoder_layers "
        "num_encoder_layers speech_encoder_layers t2u_encoder_layers t2u_decoder_layers num_global_layers "
        "conf_num_hidden_layers num_self_attends_per_block encoder_depth",
    ),
    (
        HEADS,
        "num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads "
        "attention_heads num_encoder_attention_heads num_decoder_attention_heads "
        "speech_encoder_attention_heads t2u_encoder_attention_heads t2u_decoder_attention_heads "
        "num_self_attention_heads num_cross_attention_heads swa_num_attention_heads conf_num_attention_heads "
        "linear_num_key_heads linear_num_value_heads linear_num_heads num_experts_per_tok moe_topk moe_k "
        "top_k_experts n_groups o_groups index_n_heads num_conv_pos_embedding_groups num_dense_layers "
        "prompt_length hc_count mamba_ngroups num_codebooks heads_per_ngram mamba_n_heads n_mamba_heads "
        "mamba_num_heads",
    ),
    (
        1,
        "num_key_value_heads swa_num_key_value_heads n_group topk_group first_k_dense_replace num_blocks "
        "kv_n_heads num_sparse_encoder_layers num_sparse_decoder_layers encoder_sparse_step "
        "decoder_sparse_step moe_layer_start_index num_query_groups mm_tokens_per_image",
    ),
    (
        HEAD,
        "head_dim d_kv kv_channels q_lora_rank kv_lora_rank v_head_dim linear_key_head_dim "
        "linear_value_head_dim dim_head attention_head_size d_head index_head_dim swa_head_dim "
        "linear_head_dim query_pre_attn_scalar laurel_rank adapter_rank o_lora_rank embedding_rank "
        "gated_norm_rank num_landmarks segment_means_seq_len num_latents hc_lowrank num_mel_bins input_dim "
        "feature_projection_input_dim num_conv_pos_embeddings "
        "mamba_head_dim state_size ssm_state_size mamba_d_state chunk_size mamba_chunk_size index_topk "
        "sliding_window sliding_window_size global_head_dim attention_window_size local_attention "
        "attention_chunk_size attention_window local_radius num_patches",
    ),
    (
        4,
        "num_experts num_local_experts n_routed_experts moe_num_experts qk_rope_head_dim qk_nope_head_dim "
        "window_size time_step_rank block_size global_block_size num_global_tokens position_buckets num_hash "
        "num_centroids rotary_dim min_depth depth_divisible_by num_buckets",
    ),
)
#: What a parameter of this name becomes.
SMALL: dict[str, Any] = {name: value for value, names in _VALUES for name in names.split()}
#: Lists: every element becomes this, and there are as many as before.
LISTS = {
    "depths": 1,
    "depth": 1,
    "hidden_sizes": WIDTH,
    "embed_dims": WIDTH,
    "conv_dim": WIDTH,
    "num_block_repeats": 1,
    "stage_num_blocks": 1,
    "stage_numb_of_layers": 1,
    "num_attention_heads": HEADS,
    "num_heads": HEADS,
    "tdnn_dim": WIDTH,
}
TOKENS = {"pad": 0, "bos": 1, "eos": 2, "decoder_start": 1}
#: What one type needs beyond the rule.
MORE: dict[str, dict[str, Any]] = {
    "bit": {"num_groups": 4, "embedding_size": 16},
    "codegen": {"n_head": 4, "rotary_dim": 4},
    "convbert": {"conv_kernel_size": 3},
    "efficientnet": {"width_coefficient": 0.25, "depth_coefficient": 0.3, "hidden_dim": 320},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "gemma4_assistant": {"hidden_size_per_layer_input": 0},
    "esmc": {"num_key_value_heads": 2},
    "diffllama": {"num_key_value_heads": 2},
    "dots1": {"n_shared_experts": 1},
    "swin": {"window_size": 2},
    "donut-swin": {"window_size": 2},
    "swinv2": {"window_size": 2},
    "layoutlmv3": {"coordinate_size": 2, "shape_size": 4},
    "lilt": {"hidden_size": 24},
    "levit": {"patch_size": 16},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 4, "head_dim": 8},
    "mobilevitv2": {"image_size": 128},
    "reformer": {"axial_pos_embds": False},
    "xmod": {"default_language": "en_XX"},
    "zaya": {"num_experts_per_tok": 1},
}


def parameters(cls: type) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(cls.__init__).parameters)  # type: ignore[misc]


def small(cls: type) -> dict[str, Any]:
    """The parameters of a configuration that the rule changes, with their values."""
    known = parameters(cls)
    found: dict[str, Any] = {}
    for name, parameter in known.items():
        default = parameter.default
        if isinstance(default, bool):
            continue
        if isinstance(default, tuple | list):
            if name in LISTS and all(isinstance(v, int) for v in default):
                found[name] = [LISTS[name]] * len(default)
        elif name.endswith(("token_id", "token_index", "_index")) and "ignore" not in name:
            if (isinstance(default, int) and default > 0) or name == "pad_token_id":
                found[name] = TOKENS.get(name.rpartition("_token_")[0], 3)
        elif name == "image_size":
            found[name] = 64 if any(k in known for k in ("depths", "hidden_sizes", "depth")) else IMAGE
        elif name == "patch_size":
            found[name] = min(default, 8) if isinstance(default, int) else default
        elif name == "num_kv_shared_layers":
            found[name] = 0
        elif name in SMALL and (default is None or isinstance(default, int)):
            found[name] = SMALL[name]
        elif isinstance(default, float) and ("drop" in name or "jitter" in name or name.startswith("mask_")):
            found[name] = 0.0
    heads, pairs = (getattr(known.get(k), "default", 0) for k in ("num_attention_heads", "num_key_value_heads"))
    if "num_key_value_heads" in found and pairs in (None, heads):
        found["num_key_value_heads"] = HEADS  # as many as heads: attention without groups
    if "head_dim" in found and "num_attention_heads" not in found:
        found.pop("head_dim")
    return found


def tiny(kind: str, task: str = "") -> Any:
    """The tiny configuration of a model type."""
    return _tiny(type(hf.AutoConfig.for_model(kind)), kind, task)


def _tiny(cls: Any, kind: str, task: str) -> Any:
    given, known = small(cls), parameters(cls)
    parts = {n: p for n, p in (getattr(cls, "sub_configs", None) or {}).items() if n in known}
    if parts:
        usual = cls()
        for name in parts:
            part = type(getattr(usual, name, None))
            if issubclass(part, hf.PretrainedConfig):
                given[name] = _tiny(part, f"{kind}.{name}", "")
    if task:
        given["num_labels"] = LABELS
    if task == "next" and "is_decoder" in known:
        given["is_decoder"] = True
    given |= MORE.get(kind, {})
    config = cls(**given)
    kinds = getattr(cls(), "layer_types", None) if "layer_types" in known else None
    if kinds and set(kinds) - set(config.layer_types or ()):
        distinct = list(dict.fromkeys(kinds))
        given |= {"layer_types": distinct, "num_hidden_layers": len(distinct)}
        config = cls(**given)
    return config
