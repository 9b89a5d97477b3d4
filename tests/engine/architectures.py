"""Every family of models that is tried: what makes it small besides common sizes, and what becomes of it."""

from typing import NamedTuple


class Family(NamedTuple):
    """`tier` is A, B, C, or a word of the sentence with which loading is refused; `changes` make the family small.

    `chunked` says whether its prompts may be cut.
    """

    tier: str
    changes: dict[str, object]
    chunked: bool = True


MIXED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
SHARED_EXPERT = {**EXPERTS, "shared_expert_intermediate_size": 32}
ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 1}
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
LATENT = {
    **ROUTED,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
    "n_group": 1,
    "topk_group": 1,
    "num_key_value_heads": 4,
}
DELTA = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
CONVOLUTION = {"num_hidden_layers": 4, "layer_types": ["conv", "full_attention"] * 2}
MAMBA2 = {"mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 8}
GPT = {"n_embd": 64, "n_head": 4, "n_layer": 2}

FAMILIES: dict[str, Family] = {
    "apertus": Family("A", {}),
    "arcee": Family("A", {}),
    "biogpt": Family("A", {}),
    "bitnet": Family("A", {}),
    "cohere": Family("A", {}),
    "cohere2": Family("A", MIXED),
    "cwm": Family("A", {"head_dim": 16, "bos_token_id": 0, "sliding_window": 8}),
    "deepseek_v2": Family("A", {**LATENT, "head_dim": 8}),
    "deepseek_v3": Family("A", LATENT),
    "ernie4_5": Family("A", {"head_dim": 16}),
    "exaone4": Family("A", MIXED),
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
    "gpt2": Family("A", GPT),
    "gpt_bigcode": Family("A", GPT),
    "gpt_neox": Family("A", {}),
    "gpt_oss": Family("A", {"head_dim": 16, "num_local_experts": 4, "sliding_window": 8, "rope_parameters": None}),
    "granite": Family("A", {}),
    "granitemoe": Family("A", {"num_local_experts": 4}),
    "helium": Family("A", {"head_dim": 16}),
    "hunyuan_v1_dense": Family("A", {"head_dim": 16}),
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
    "ministral": Family("A", {"head_dim": 16, "sliding_window": 8}),
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
    "qwen2": Family("A", {}),
    "qwen2_moe": Family(
        "A", {**SHARED_EXPERT, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2}
    ),
    "qwen3": Family("A", {"head_dim": 16}),
    "qwen3_moe": Family("A", {**EXPERTS, "head_dim": 16}),
    "seed_oss": Family("A", {"head_dim": 16}),
    "smollm3": Family("A", {"no_rope_layers": [1, 0]}),
    "stablelm": Family("A", {}),
    "starcoder2": Family("A", {"sliding_window": 8}),
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
            "layers_block_type": ["mamba", "attention"],
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
    "codegen": Family("C", {**GPT, "rotary_dim": 8, "n_positions": 512}),
    "diffllama": Family("C", {}),
    "doge": Family("C", {}),
    "falcon": Family("C", {}),
    "gpt_neo": Family(
        "C", {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 8}
    ),
    "gptj": Family("C", {**GPT, "rotary_dim": 8, "n_positions": 512}),
    "minimax": Family("C", {}),
    "mpt": Family("C", {"d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 512}),
    "openai-gpt": Family("C", GPT),
    "phimoe": Family("C", {"num_local_experts": 4, "sliding_window": 8}),
    "recurrent_gemma": Family(
        "C", {"head_dim": 16, "lru_width": 64, "attention_window_size": 8, "num_hidden_layers": 3}
    ),
    "rwkv": Family("C", {"attention_hidden_size": 64}),
    "xglm": Family("C", {"d_model": 64, "ffn_dim": 128, "num_layers": 2, "attention_heads": 4}),
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
    "bert": Family("both directions", {}),
    "roberta": Family("both directions", {}),
}
