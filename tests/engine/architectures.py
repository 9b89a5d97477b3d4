"""Every family of models that is tried: what makes it small besides common sizes, and what becomes of it."""

from typing import NamedTuple

from tests.conftest import at_least


class Family(NamedTuple):
    """`tier` is A, B, C, or a word of the sentence with which loading is refused; `changes` make the family small.

    `chunked` says whether its prompts may be cut.
    """

    tier: str
    changes: dict[str, object]
    chunked: bool = True
    #: The transformers that has it, as a causal model.
    since: str = "5.17"
    #: The one from which on it is in this tier, and not in C.
    tier_since: str = "5.17"


MIXED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
SHARED_EXPERT = {**EXPERTS, "shared_expert_intermediate_size": 32}
ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 1}
SCALED = {"embedding_multiplier": 3.0, "residual_multiplier": 0.3, "logits_scaling": 0.25}
SWA = {**SCALED, "layer_rope_theta": [100.0, 0]}
GEMMA = {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16}
GEMMA_SHARED = {
    "head_dim": 16,
    "sliding_window": 8,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 16,
    "vocab_size_per_layer_input": 264,
}
LATENT_SIZES = {
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
    "num_key_value_heads": 4,
}
LATENT = {**ROUTED, **LATENT_SIZES, "q_lora_rank": 16, "n_group": 1, "topk_group": 1}
INDEXED = {**LATENT, "index_head_dim": 16, "index_n_heads": 2, "index_topk": 8}
DELTA = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
CONVOLUTION = {"num_hidden_layers": 4, "layer_types": ["conv", "full_attention"] * 2}
MAMBA2 = {"mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_chunk_size": 8}
GPT = {"n_embd": 64, "n_head": 4, "n_layer": 2}

FAMILIES: dict[str, Family] = {
    "apertus": Family("A", {}),
    # As published: scores have no rows for images and sounds.
    "apertus1p5_text": Family("A", {"output_vocab_size": 250}, since="5.24"),
    "arcee": Family("A", {}),
    "biogpt": Family("A", {}),
    "bitnet": Family("A", {}),
    "codegen": Family("A", {**GPT, "rotary_dim": 8, "n_positions": 512}, tier_since="5.24"),
    "cohere": Family("A", {}),
    "cohere2": Family("A", MIXED),
    "ctrl": Family("A", {**GPT, "dff": 128, "n_positions": 512}),
    "cwm": Family("A", {"head_dim": 16, "bos_token_id": 0, "sliding_window": 8}),
    "dbrx": Family(
        "A",
        {
            "d_model": 64,
            "n_heads": 4,
            "n_layers": 2,
            "max_seq_len": 512,
            "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 10_000.0},
            "ffn_config": {"hidden_size": 64, "ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2},
        },
    ),
    "deepseek_v2": Family("A", {**LATENT, "head_dim": 8}),
    "deepseek_v3": Family("A", LATENT),
    "dots1": Family("A", {**ROUTED, **MIXED, "head_dim": 16, "n_shared_experts": 1}),
    "ernie4_5": Family("A", {"head_dim": 16}),
    "ernie4_5_moe": Family(
        "A", {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32, "moe_layer_start_index": 1}
    ),
    "exaone": Family("A", {}, since="5.24"),
    "exaone4": Family("A", MIXED),
    "exaone_moe": Family("A", {**EXPERTS, **MIXED, "head_dim": 16}),
    "flex_olmo": Family("A", {"num_experts": 5, "num_experts_per_tok": 2}),
    "gemma": Family("A", {"head_dim": 16}),
    "gemma2": Family("A", GEMMA),
    "gemma3_text": Family("A", GEMMA),
    "gemma3n_text": Family(
        "A",
        {
            **GEMMA_SHARED,
            "intermediate_size": [128] * 4,
            "laurel_rank": 8,
            "altup_num_inputs": 2,
            "activation_sparsity_pattern": [0.0] * 4,
        },
    ),
    "gemma4_text": Family("A", {**GEMMA_SHARED, "global_head_dim": 32}),
    "glm": Family("A", {"head_dim": 16}),
    "glm4": Family("A", {"head_dim": 16}),
    "glm4_moe": Family("A", {**ROUTED, "head_dim": 16}),
    "glm4_moe_lite": Family("A", LATENT),
    "gpt2": Family("A", GPT),
    "gpt_bigcode": Family("A", GPT),
    "gpt_neox": Family("A", {}),
    "gptj": Family("A", {**GPT, "rotary_dim": 8, "n_positions": 512}, tier_since="5.24"),
    "gpt_oss": Family("A", {"head_dim": 16, "num_local_experts": 4, "sliding_window": 8, "rope_parameters": None}),
    "granite": Family("A", {}),
    "granite_swa": Family("A", {**MIXED, **SWA}, since="5.24"),
    "granitemoe": Family("A", {"num_local_experts": 4}),
    "granitemoe_swa": Family(
        "A", {**MIXED, **SWA, "num_local_experts": 4, "shared_intermediate_size": 32}, since="5.24"
    ),
    "granitemoeshared": Family("A", {"num_local_experts": 4, "shared_intermediate_size": 32}),
    "helium": Family("A", {"head_dim": 16}),
    "hunyuan_v1_dense": Family("A", {"head_dim": 16}),
    "hunyuan_v1_moe": Family("A", {"head_dim": 16, "num_experts": 4, "moe_topk": 2}),
    "hy_v3": Family("A", {**EXPERTS, "num_hidden_layers": 3, "head_dim": 16}, since="5.24"),
    "hyperclovax": Family("A", SCALED, since="5.24"),
    "internlm3": Family("A", {"head_dim": 16}, since="5.23"),
    "jetmoe": Family("A", {"num_local_experts": 4, "num_experts_per_tok": 2, "kv_channels": 16}),
    "llama": Family("A", {}),
    "llama4_text": Family(
        "A",
        {
            "head_dim": 16,
            "num_hidden_layers": 4,
            "layer_types": ["chunked_attention", "full_attention"] * 2,
            "attention_chunk_size": 8,
            "no_rope_layers": [1, 0] * 2,
            "floor_scale": 8,
            "interleave_moe_layer_step": 2,
            "num_local_experts": 4,
            "num_experts_per_tok": 1,
            "intermediate_size_mlp": 128,
        },
    ),
    "minicpm3": Family("A", {**LATENT_SIZES, "q_lora_rank": 16}),
    "minimax_m2": Family("A", {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16}),
    "longcat_flash": Family(
        "A",
        {
            **LATENT_SIZES,
            "head_dim": 8,
            "q_lora_rank": 16,
            "num_layers": 2,
            "num_hidden_layers": 4,
            "ffn_hidden_size": 128,
            "n_routed_experts": 4,
            "zero_expert_num": 2,
            "moe_topk": 2,
            "expert_ffn_hidden_size": 32,
        },
    ),
    "mellum": Family("A", {**EXPERTS, "head_dim": 16}, since="5.24"),
    "ministral": Family("A", {"head_dim": 16, "sliding_window": 8}),
    "ministral3": Family("A", {"head_dim": 16}),
    "mistral": Family("A", {"sliding_window": 8}),
    "mixtral": Family("A", {"num_local_experts": 4}),
    "nanochat": Family("A", {}),
    "nemotron": Family("A", {}),
    "olmo": Family("A", {}),
    "olmo2": Family("A", {}),
    "olmo3": Family("A", MIXED),
    "olmoe": Family("A", {"num_experts": 4, "num_experts_per_tok": 2}),
    "opt": Family("A", {"ffn_dim": 128, "word_embed_proj_dim": 64}),
    "persimmon": Family("A", {}),
    "phi": Family("A", {}),
    "phi3": Family("A", {}),
    "phimoe": Family("A", {"num_local_experts": 4}),
    "qwen2": Family("A", {}),
    "qwen2_moe": Family(
        "A", {**SHARED_EXPERT, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2}
    ),
    "qwen3": Family("A", {"head_dim": 16}),
    "qwen3_moe": Family("A", {**EXPERTS, "head_dim": 16}),
    "sarvam_mla": Family("A", {**LATENT, "q_lora_rank": None}, since="5.24"),
    "sarvam_moe": Family("A", {**ROUTED, "head_dim": 16}, since="5.24"),
    "seed_oss": Family("A", {"head_dim": 16}),
    "smollm3": Family("A", {"no_rope_layers": [1, 0]}),
    "stablelm": Family("A", {}),
    "starcoder2": Family("A", {"sliding_window": 8}),
    "vaultgemma": Family("A", GEMMA),
    "bamba": Family("B", {**MAMBA2, "attn_layer_indices": [1]}),
    "falcon_h1": Family("B", {**MAMBA2, "head_dim": 16, "mamba_d_ssm": 128}),
    "falcon_mamba": Family("B", {"state_size": 8}, chunked=False),
    "granitemoehybrid": Family(
        "B",
        {
            **MAMBA2,
            "layer_types": ["linear_attention", "full_attention"],
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 32,
        },
    ),
    "jamba": Family(
        "B",
        {
            "mamba_d_state": 8,
            "mamba_dt_rank": 8,
            "num_experts": 2,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "use_mamba_kernels": False,
        },
        chunked=False,
    ),
    "kimi_linear": Family(
        "B",
        {
            **LATENT_SIZES,
            "layer_types": ["linear_attention", "full_attention"],
            "mlp_layer_types": ["dense", "sparse"],
            "num_experts": 4,
            "num_experts_per_token": 2,
            "moe_intermediate_size": 32,
            "linear_head_dim": 16,
            "linear_num_heads": 4,
        },
    ),
    "lara_mini": Family(
        "B",
        {
            **DELTA,
            **SHARED_EXPERT,
            "head_dim": 16,
            "num_hidden_layers": 3,
            "layer_types": ["linear_attention", "sliding_attention", "full_attention"],
            "sliding_window": 8,
        },
        since="5.24",
    ),
    "lfm2": Family("B", {**CONVOLUTION, "block_ff_dim": 64}),
    "lfm2_moe": Family("B", {**CONVOLUTION, **EXPERTS, "num_dense_layers": 1}),
    "mamba": Family("B", {"state_size": 8}, chunked=False),
    "mamba2": Family("B", {"num_heads": 8, "head_dim": 16, "state_size": 8, "n_groups": 1, "chunk_size": 8}),
    "nemotron_h": Family(
        "B",
        {
            "head_dim": 16,
            "mamba_num_heads": 4,
            "mamba_head_dim": 32,
            "ssm_state_size": 8,
            "n_groups": 1,
            "layers_block_type": ["mamba", "attention", "moe"],
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "moe_shared_expert_intermediate_size": 32,
            "chunk_size": 8,
        },
    ),
    "olmo_hybrid": Family("B", {**DELTA, "linear_num_value_heads": 2}),
    "qwen3_5_moe_text": Family("B", {**DELTA, **SHARED_EXPERT, "head_dim": 16}),
    "qwen3_5_text": Family("B", {**DELTA, "head_dim": 16}),
    "qwen3_next": Family("B", {**DELTA, **SHARED_EXPERT, "head_dim": 16}),
    "zamba2": Family(
        "B",
        {
            "mamba_ngroups": 1,
            "n_mamba_heads": 4,
            "mamba_headdim": 32,
            "mamba_d_state": 8,
            "layers_block_type": ["mamba", "hybrid"],
            "num_mem_blocks": 1,
            "use_mamba_kernels": False,
            "chunk_size": 8,
        },
    ),
    "bloom": Family("C", {"n_layer": 2, "n_head": 4}),
    "deepseek_v32": Family("C", INDEXED),
    # The sizes that it is published with: what sets it apart shows beyond 128 tokens.
    "deepseek_v4": Family(
        "C",
        {
            "head_dim": 16,
            "num_key_value_heads": 1,
            "q_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "partial_rotary_factor": 0.5,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "o_groups": 2,
            "o_lora_rank": 8,
        },
    ),
    "diffllama": Family("C", {}),
    "doge": Family("C", {}, since="5.18"),
    "dory": Family(
        "C",
        {
            "head_dim": 16,
            "num_hidden_layers": 4,
            "n_input_layers": 1,
            "n_output_layers": 1,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "sliding_window": 8,
        },
        since="5.24",
    ),
    "falcon": Family("C", {}),
    "glm_moe_dsa": Family("C", INDEXED),
    "gpt_neo": Family(
        "C", {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 8}
    ),
    "minimax": Family("C", {}),
    "minimax_m3_vl_text": Family(
        "C",
        {
            "head_dim": 16,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "dense_intermediate_size": 64,
            "shared_intermediate_size": 32,
            "rotary_dim": 8,
            "index_n_heads": 2,
            "index_head_dim": 16,
            "index_block_size": 4,
            "index_topk_blocks": 2,
            "layer_types": ["minimax_m3_sparse", "full_attention"],
        },
    ),
    "mpt": Family("C", {"d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 512}),
    "openai-gpt": Family("C", GPT),
    "recurrent_gemma": Family(
        "C", {"head_dim": 16, "lru_width": 64, "attention_window_size": 8, "num_hidden_layers": 3}
    ),
    "rwkv": Family("C", {"attention_hidden_size": 64}),
    "xglm": Family("C", {"d_model": 64, "ffn_dim": 128, "num_layers": 2, "attention_heads": 4}),
    "zamba": Family(
        "C",
        {
            "num_hidden_layers": 4,
            "layers_block_type": ["linear_attention", "hybrid"] * 2,
            "n_mamba_heads": 2,
            "mamba_d_state": 8,
            "mamba_dt_rank": 8,
            "use_mamba_kernels": False,
            "attention_hidden_size": 128,
            "attention_head_dim": 32,
            "num_key_value_heads": 4,
        },
    ),
    # transformers' own cache fails at these widths: every token is computed anew.
    "xlstm": Family("C", {"num_heads": 4, "qk_dim_factor": 0.5, "chunk_size": 16}),
    "bart": Family(
        "encoder-decoder",
        {
            "d_model": 64,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
        },
    ),
    "t5": Family("encoder-decoder", {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}),
    "bert": Family("both directions", {}),
    "roberta": Family("both directions", {}),
}
#: Those that the installed transformers has.
HERE = [name for name, family in FAMILIES.items() if at_least("transformers", family.since)]

#: Families that take the way of another here that is tested each time: these are when soaking.
COPIES = {
    *("lara_mini", "dory", "hy_v3", "apertus1p5_text", "hunyuan_v1_moe", "zamba", "falcon_mamba"),
    *("glm4_moe", "longcat_flash", "qwen3_5_moe_text", "olmo_hybrid", "granitemoeshared", "glm_moe_dsa", "glm"),
    *("lfm2_moe", "glm4_moe_lite", "minimax_m3_vl_text", "jetmoe", "dbrx", "granitemoe", "granite_swa"),
    *("hyperclovax", "internlm3", "minimax_m2", "openai-gpt", "helium", "ctrl", "xglm", "sarvam_moe"),
    *("gpt_neo", "sarvam_mla", "phimoe", "exaone_moe", "biogpt", "mellum", "codegen", "dots1", "arcee"),
    *("vaultgemma", "ministral3", "granitemoe_swa", "cohere", "ernie4_5_moe", "ministral", "persimmon"),
    *("seed_oss", "exaone", "nanochat", "cwm", "flex_olmo", "olmo", "hunyuan_v1_dense"),
}
