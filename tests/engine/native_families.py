"""Families whose layers run in C++ of our own, and what makes each a small one that shows what is special about it."""

from tests.conftest import at_least
from tests.engine.architectures import FAMILIES

#: Older versions leave scores of Gemma 2's attention as they are: so high, no cap shows.
CAP = 2.0 if at_least("transformers", "5.24") else 5000.0
#: Older ones have no way round tokens that are in one table of embeddings and not in the other.
SMALLER = 200 if at_least("transformers", "5.24") else 264
#: Widths that every type of number suits, some of them others than the rest.
LATENT = {"kv_lora_rank": 32, "q_lora_rank": 32, "v_head_dim": 16}
#: Families of such layers, and what else is special about them.
TAKEN = {
    "llama": {"attention_bias": True},
    "mistral": {"sliding_window": 8, "head_dim": 32},
    "qwen2": {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    "qwen3": {"head_dim": 16, "num_key_value_heads": 1},
    "gemma": {"head_dim": 16},
    "gemma2": {"head_dim": 16, "sliding_window": 8, "attn_logit_softcapping": CAP, "final_logit_softcapping": 3.0},
    "gemma3_text": {
        "head_dim": 16,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 8,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0},
        },
    },
    "gemma3n_text": {
        **FAMILIES["gemma3n_text"].changes,
        "hidden_size_per_layer_input": 32,
        "vocab_size_per_layer_input": SMALLER,
        "laurel_rank": 32,
        "altup_num_inputs": 4,
        "activation_sparsity_pattern": [0.8, 0.0, 0.0, 0.5],
        "final_logit_softcapping": 3.0,
    },
    "gemma4_text": {
        "head_dim": 16,
        "global_head_dim": 32,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "use_double_wide_mlp": True,
        "hidden_size_per_layer_input": 32,
        "vocab_size_per_layer_input": 264,
        "final_logit_softcapping": 3.0,
    },
    "gemma4_text without values": {
        "head_dim": 16,
        "global_head_dim": 32,
        "num_global_key_value_heads": 1,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"],
        "attention_k_eq_v": True,
        "hidden_size_per_layer_input": 0,
    },
    "gemma4_text with experts": {
        "head_dim": 16,
        "global_head_dim": 32,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 8,
        "hidden_size_per_layer_input": 0,
        "enable_moe_block": True,
        "num_experts": 8,
        "top_k_experts": 3,
        "moe_intermediate_size": 32,
    },
    "granite": {
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.3,
        "logits_scaling": 4.0,
        "attention_multiplier": 0.1,
    },
    "olmo": {"clip_qkv": 1.0},
    "olmo2": {"num_key_value_heads": 2},
    "olmo3": {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8},
    "smollm3": {"no_rope_layers": [1, 0]},
    "phi3": {"partial_rotary_factor": 0.5, "head_dim": 16},
    "glm4": {"partial_rotary_factor": 0.5, "head_dim": 16},
    "ernie4_5": {"use_bias": True},
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 3},
    "qwen3_moe": {
        "head_dim": 16,
        "num_experts": 8,
        "moe_intermediate_size": 32,
        "mlp_only_layers": [1],
        "norm_topk_prob": False,
    },
    "olmoe": {"num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": True, "clip_qkv": 1.0},
    "gpt_oss": {**FAMILIES["gpt_oss"].changes, "num_local_experts": 8},
    "granitemoe": {"num_local_experts": 8, "num_experts_per_tok": 2, "residual_multiplier": 0.3, "logits_scaling": 4.0},
    "qwen2_moe": {"num_experts": 8, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64},
    "glm4_moe": {
        **FAMILIES["glm4_moe"].changes,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "n_group": 4,
        "topk_group": 2,
        "use_qk_norm": True,
        "routed_scaling_factor": 1.5,
    },
    "deepseek_v2": {**FAMILIES["deepseek_v2"].changes, **LATENT, "q_lora_rank": None, "routed_scaling_factor": 1.5},
    "deepseek_v2 by groups": {
        **FAMILIES["deepseek_v2"].changes,
        **LATENT,
        "n_routed_experts": 8,
        "n_group": 4,
        "topk_group": 2,
        "topk_method": "group_limited_greedy",
    },
    "deepseek_v3": {**FAMILIES["deepseek_v3"].changes, **LATENT, "rope_interleave": False},
    "ernie4_5_moe": {**FAMILIES["ernie4_5_moe"].changes, "moe_num_experts": 8, "use_bias": True},
    "hunyuan_v1_moe": {**FAMILIES["hunyuan_v1_moe"].changes, "num_experts": 8},
    "minimax_m2": {
        **FAMILIES["minimax_m2"].changes,
        "num_local_experts": 8,
        "num_experts_per_tok": 3,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5},
    },
    "phimoe": {"num_local_experts": 8, "num_experts_per_tok": 3, "router_jitter_noise": 0.3},
    "flex_olmo": FAMILIES["flex_olmo"].changes,
    "exaone4": {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
    "arcee": {},
    "nemotron": {"head_dim": 16},
    "starcoder2": {"sliding_window": 8},
    "stablelm": {},
    "stablelm beside attention": {"use_parallel_residual": True, "use_qkv_bias": True},
    "stablelm with norms of heads": {"qk_layernorm": True},
    "phi": {"qk_layernorm": True},
    "gpt_neox": {"rotary_pct": 0.5},
    "gpt_neox after attention": {"use_parallel_residual": False, "hidden_act": "relu"},
    "opt": {"word_embed_proj_dim": 64, "ffn_dim": 128},
    "gpt2": {"vocab_size": 267},
    "hunyuan_v1_dense": {"head_dim": 16},
    "seed_oss": {"head_dim": 32, "attention_out_bias": True, "mlp_bias": True},
    "cwm": FAMILIES["cwm"].changes,
    "ministral": {**FAMILIES["ministral"].changes, "layer_types": ["sliding_attention", "full_attention"]},
    "ministral3": {
        "head_dim": 16,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10_000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "max_position_embeddings": 64,
            "llama_4_scaling_beta": 0.5,
        },
    },
    "mellum": {
        **FAMILIES["mellum"].changes,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 8,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0},
        },
    },
    "persimmon": {"qk_layernorm": True},
    "gpt_bigcode": FAMILIES["gpt_bigcode"].changes,
    "gptj": FAMILIES["gptj"].changes,
    "codegen": {**FAMILIES["codegen"].changes, "num_attention_heads": 8},
    "apertus": {},
    "apertus1p5_text": {"output_vocab_size": 256},
    "helium": {"head_dim": 16},
    "nanochat": {},
    "cohere": {"use_qk_norm": True, "logit_scale": 0.25},
    "cohere2": {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8, "logit_scale": 0.25},
}
#: Whose code is others' alone.
ALIKE = (
    "biogpt",
    "dots1",
    "exaone_moe",
    "glm4_moe_lite",
    "granite_swa",
    "granitemoe_swa",
    "granitemoeshared",
    "hy_v3",
    "hyperclovax",
    "sarvam_mla",
    "sarvam_moe",
    "vaultgemma",
)
#: Whose decoder does not tell one layer of ours all: positions are added to embeddings, or layers have own inputs.
TOLD_BEFORE = ["gpt2", "opt", "gemma3n_text", "gemma4_text", "gptj", "codegen", "gpt_bigcode"]
SCAN = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "num_hidden_layers": 3,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "mamba_n_groups": 2,
    "mamba_chunk_size": 8,
    "mamba_proj_bias": True,
    "shared_intermediate_size": 64,
    "residual_multiplier": 0.3,
    "embedding_multiplier": 3.0,
    "logits_scaling": 4.0,
}
DELTA = {
    "layer_types": ["linear_attention", "linear_attention", "full_attention"],
    "num_hidden_layers": 3,
    "head_dim": 16,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 32,
    # Or else the norm of a head whose numbers cancel out would raise what rounding has left of them.
    "rms_norm_eps": 1e-4,
}
CONVOLUTION = {"layer_types": ["conv", "full_attention", "conv"], "num_hidden_layers": 3, "conv_bias": True}
#: The same with layers that remember, some of them the last ones: two of a family have a variant's name behind its own.
REMEMBERING = {
    "qwen3_5_text": DELTA,
    "qwen3_5_moe_text": {
        **DELTA,
        "num_experts": 8,
        "moe_intermediate_size": 32,
        "num_experts_per_tok": 2,
        "shared_expert_intermediate_size": 64,
    },
    "qwen3_next": {
        **DELTA,
        "num_experts": 8,
        "moe_intermediate_size": 32,
        "num_experts_per_tok": 3,
        "shared_expert_intermediate_size": 64,
        "mlp_only_layers": [1],
    },
    "granitemoehybrid": {**SCAN, "num_local_experts": 8, "num_experts_per_tok": 2},
    "granitemoehybrid with positions, without experts": {
        **SCAN,
        "position_embedding_type": "rope",
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
    },
    "bamba": {
        "attn_layer_indices": [1],
        "num_hidden_layers": 3,
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
        "mamba_d_state": 16,
        "mamba_chunk_size": 8,
    },
    "falcon_h1": {
        "head_dim": 16,
        "mamba_d_ssm": 128,
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
        "mamba_d_state": 16,
        "mamba_n_groups": 2,
        "mamba_chunk_size": 8,
        "embedding_multiplier": 3.0,
        "lm_head_multiplier": 0.25,
        "key_multiplier": 0.6,
        "attention_in_multiplier": 1.2,
        "attention_out_multiplier": 0.9,
        "ssm_in_multiplier": 1.25,
        "ssm_out_multiplier": 0.8,
        "ssm_multipliers": [0.35, 0.25, 0.4, 0.5, 0.7],
        "mlp_multipliers": [0.9, 0.6],
    },
    "nemotron_h": {
        "head_dim": 16,
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "ssm_state_size": 16,
        "n_groups": 2,
        "layers_block_type": ["mlp", "attention", "mamba", "moe", "mamba"],
        "chunk_size": 8,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "moe_shared_expert_intermediate_size": 64,
        "time_step_min": 1e-9,  # which transformers knows of in prompts alone
    },
    "lfm2": CONVOLUTION,
    "lfm2_moe": {
        **CONVOLUTION,
        "num_dense_layers": 1,
        "num_experts": 8,
        "moe_intermediate_size": 32,
        "num_experts_per_tok": 2,
        "routed_scaling_factor": 1.5,
    },
}
TAKEN.update(REMEMBERING)


def _is_here(name: str) -> bool:
    family = FAMILIES[name.partition(" ")[0]]
    return at_least("transformers", family.since) and at_least("transformers", family.tier_since)


TAKEN = {name: changes for name, changes in TAKEN.items() if _is_here(name)}

#: Families whose layers are computed as another's that is tested each time: these are tested when soaking.
COPIES = {
    *("mistral", "gemma", "olmo3", "smollm3", "ernie4_5", "arcee", "seed_oss", "cwm", "ministral"),
    *("hunyuan_v1_dense", "helium", "mellum", "persimmon", "exaone4", "glm4", "apertus1p5_text", "gpt_bigcode"),
    *("granitemoe", "glm4_moe", "ernie4_5_moe", "hunyuan_v1_moe", "flex_olmo", "lfm2_moe", "qwen3_5_moe_text"),
    *("gpt_neox after attention", "stablelm with norms of heads", "gemma4_text without values"),
    "granitemoehybrid with positions, without experts",
}
