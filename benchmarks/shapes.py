"""Checkpoints of real shapes with random weights from a fixed seed: `python -m benchmarks.shapes NAME` makes one.

Random weights compute as slowly as trained ones; nothing that guesses at the next tokens may be judged on them.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from nbgen.engine_config import BUNDLED, BUNDLED_FOLDER

COMMON = {"max_position_embeddings": 4096, "bos_token_id": None, "eos_token_id": 0, "pad_token_id": 0}
SHAPES = {
    # A Llama of 28 million parameters.
    "m30": {
        "model_type": "llama",
        "hidden_size": 384,
        "num_hidden_layers": 8,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "intermediate_size": 2048,
        "vocab_size": 8192,
        "tie_word_embeddings": False,
    },
    # GPT-2, of 124 million.
    "g124": {"model_type": "gpt2", "vocab_size": 50257, "max_position_embeddings": 2048},
    # Qwen3-0.6B with a vocabulary cut from 151,936 to 32,768.
    "q06": {
        "model_type": "qwen3",
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 3072,
        "vocab_size": 32768,
        "tie_word_embeddings": True,
        "rope_theta": 1_000_000,
    },
    # Gemma-3-270M with a vocabulary cut from 262,144 to 32,768.
    "g270": {
        "model_type": "gemma3_text",
        "hidden_size": 640,
        "num_hidden_layers": 18,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "intermediate_size": 2048,
        "sliding_window": 512,
        "vocab_size": 32768,
        "tie_word_embeddings": True,
    },
    # 15 of Gemma-4-E2B's 35 layers with a vocabulary cut from 262,144 to 32,768: of the last 8, which share keys, the
    # feed-forward is twice as wide, and all have inputs of their own.
    "e09": {
        "model_type": "gemma4_text",
        "hidden_size": 1536,
        "num_hidden_layers": 15,
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "global_head_dim": 512,
        "intermediate_size": 6144,
        "use_double_wide_mlp": True,
        "num_kv_shared_layers": 8,
        "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 3,
        "sliding_window": 512,
        "final_logit_softcapping": 30.0,
        "hidden_size_per_layer_input": 256,
        "vocab_size": 32768,
        "vocab_size_per_layer_input": 32768,
        "tie_word_embeddings": True,
    },
    # Granite-3.1-1B-A400M with a vocabulary cut from 49,155 to 32,768: a mixture of 32 experts, of which a token has 8.
    "a400": {
        "model_type": "granitemoe",
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "intermediate_size": 512,
        "num_local_experts": 32,
        "num_experts_per_tok": 8,
        "vocab_size": 32768,
        "tie_word_embeddings": True,
    },
    # Qwen3.5-0.8B with a vocabulary cut from 248,320 to 32,768: three layers of four are linear attention.
    "d08": {
        "model_type": "qwen3_5_text",
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "intermediate_size": 3584,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "vocab_size": 32768,
        "tie_word_embeddings": True,
    },
    # Granite-4.0-H-350M with a vocabulary cut from 100,352 to 32,768: seven layers of eight are Mamba 2.
    "h350": {
        "model_type": "granitemoehybrid",
        "hidden_size": 768,
        "num_hidden_layers": 32,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "shared_intermediate_size": 2048,
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "layer_types": (["mamba"] * 7 + ["attention"]) * 4,
        "mamba_n_heads": 48,
        "mamba_d_head": 32,
        "mamba_d_state": 128,
        "mamba_n_groups": 1,
        "mamba_expand": 2,
        "vocab_size": 32768,
        "tie_word_embeddings": True,
    },
    # LFM2-350M with a vocabulary cut from 65,536 to 32,768: ten layers of sixteen are short convolutions.
    "l350": {
        "model_type": "lfm2",
        "hidden_size": 1024,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "intermediate_size": 6656,
        "full_attn_idxs": [2, 5, 8, 10, 12, 14],
        "vocab_size": 32768,
        "tie_word_embeddings": True,
    },
}


def checkpoint(name: str) -> Path:
    """The folder of a shape (made if it is not there), of the bundled model, or of any other model as named."""
    if name == BUNDLED:
        return BUNDLED_FOLDER
    if name not in SHAPES:
        return Path(name).expanduser()
    made = folder() / name
    if not (made / "model.safetensors").is_file():
        subprocess.run([sys.executable, "-m", "benchmarks.shapes", name], check=True)
    return made


def folder() -> Path:
    """Where checkpoints, and what peers convert them to, are kept."""
    return Path(os.environ.get("NBGEN_BENCH_MODELS", Path.home() / ".cache" / "nbgen-benchmarks"))


def make(made: Path, shape: dict[str, Any], device: str = "cpu") -> Path:
    """Write the checkpoint in bfloat16 with its tokenizer. Ids that are no text alone get no weight.

    A CPU takes minutes for billions of parameters: a GPU makes other numbers, faster.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from benchmarks import vocabulary

    made.mkdir(parents=True, exist_ok=True)
    never = vocabulary.save(made, shape["vocab_size"])
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**{**COMMON, **shape})).to(torch.bfloat16)
    with torch.no_grad():
        for embedding in (model.get_input_embeddings(), model.get_output_embeddings()):
            embedding.weight[never] = 0
        for module in model.modules():  # whose scores nothing scales, as random norms of keys would have to
            if getattr(module, "scaling", None) == 1.0 and hasattr(module, "k_norm"):
                module.k_norm.weight /= module.head_dim**0.5
    model.save_pretrained(made)
    return made


if __name__ == "__main__":
    make(folder() / sys.argv[1], SHAPES[sys.argv[1]])
