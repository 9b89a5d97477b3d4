"""Whether a model's transformers code is the same as Llama's: what replaces it then needs to do only what Llama does.

Many families share it. Code is compared, not the names of classes. Knows nothing of what replaces it.
"""

from typing import Any

import torch
from torch import nn

from nbgen.engine.attention_window import Window, seen_window
from nbgen.engine.known_code import like, turns_like

#: For each part of a model, the classes whose code it may have.
LIKE = {
    "model": [
        "llama.LlamaForCausalLM",
        "mistral.MistralForCausalLM",
        "qwen2.Qwen2ForCausalLM",
        "qwen3.Qwen3ForCausalLM",
    ],
    "decoder": ["llama.LlamaModel", "mistral.MistralModel", "qwen2.Qwen2Model", "qwen3.Qwen3Model"],
    "layer": ["llama.LlamaDecoderLayer"],
    "attention": ["llama.LlamaAttention", "mistral.MistralAttention", "qwen2.Qwen2Attention", "qwen3.Qwen3Attention"],
    "feed-forward": ["llama.LlamaMLP"],
    "norm": ["llama.LlamaRMSNorm"],
}


def check_layer(layer: Any) -> None:
    """Raises ValueError for a layer that does anything else than Llama's."""
    attend, feed = layer.self_attn, layer.mlp
    norms = [layer.input_layernorm, layer.post_attention_layernorm]
    norms += [getattr(attend, name) for name in ("q_norm", "k_norm") if hasattr(attend, name)]
    parts = [("layer", layer), ("attention", attend), ("feed-forward", feed), *(("norm", norm) for norm in norms)]
    for kind, part in parts:
        _check(kind, part)
    if not turns_like(attend, "llama"):
        raise ValueError("its rotary positions are not Llama's")
    numbers = torch.linspace(-8, 8, 33)
    if not torch.equal(feed.act_fn(numbers), nn.functional.silu(numbers)):
        raise ValueError("its feed-forward has another activation than silu")
    window(attend)


def check_model(model: Any) -> None:
    """Raises ValueError for a model that does more before or after its layers than Llama."""
    decoder = model.get_decoder()
    for kind, part in (("model", model), ("decoder", decoder), ("norm", decoder.norm)):
        _check(kind, part)
    embeddings = decoder.embed_tokens
    if type(embeddings) is not nn.Embedding or embeddings.weight.dtype != model.dtype:
        raise ValueError("its embeddings are not torch's, or of another type than the layers")
    if len(embeddings.weight) < max(model.config.vocab_size, model.lm_head.out_features):
        raise ValueError("some ids have no embedding")


def is_norm(module: nn.Module) -> bool:
    """Whether it is an RMS norm as Llama's is."""
    return hasattr(module, "variance_epsilon") and _is_like("norm", module)


def linears(layer: Any) -> list[Any]:
    """Query, key, value and output; gate, up and down."""
    attend, feed = layer.self_attn, layer.mlp
    products = [attend.q_proj, attend.k_proj, attend.v_proj, attend.o_proj]
    return [*products, feed.gate_proj, feed.up_proj, feed.down_proj]


def window(module: nn.Module) -> Window:
    """The window that was found when the layer's attention last ran. Raises ValueError where it has not run here."""
    if (seen := seen_window(module)) is None:
        raise ValueError("its attention is not like that of other models")
    return seen


def _check(kind: str, part: nn.Module) -> None:
    if not _is_like(kind, part):
        raise ValueError(f"its {kind} is not like Llama's")


def _is_like(kind: str, part: nn.Module) -> bool:
    return like(part, LIKE[kind]) is not None
