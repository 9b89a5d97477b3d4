"""What a decoder's layers are made of, and what a model does around them: for what computes all of it otherwise.

Families differ in where their norms stand, what these are, which activation is between gate and up, and what they
multiply. Those are known whose code is that of a part named here (`known_code`). Knows nothing of what replaces them.
"""

from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from torch import nn

from nbgen.engine.attention import Window
from nbgen.engine.known_code import like, turns_like
from nbgen.engine.llama_like import LIKE, window
from nbgen.engine.native_experts import GATES, NativeExperts
from nbgen.engine.native_half_linear import HalfEmbedding, scale_of
from nbgen.engine.native_linear import ALL, suits

#: Norms before attention and after it, before the feed-forward and after it, where families have them.
BEFORE = ("input_layernorm", None, "post_attention_layernorm", None)
AFTER = (None, "post_attention_layernorm", None, "post_feedforward_layernorm")
BOTH = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
#: Where norms stand in a layer.
LAYERS = {
    "llama.LlamaDecoderLayer": BEFORE,
    "mixtral.MixtralDecoderLayer": BEFORE,
    "gpt_oss.GptOssDecoderLayer": BEFORE,
    "granite.GraniteDecoderLayer": BEFORE,
    "granitemoe.GraniteMoeDecoderLayer": BEFORE,
    "phi3.Phi3DecoderLayer": BEFORE,
    "gemma2.Gemma2DecoderLayer": BOTH,
    "gemma3.Gemma3DecoderLayer": BOTH,
    "olmo2.Olmo2DecoderLayer": AFTER,
    "olmo3.Olmo3DecoderLayer": AFTER,
    "glm4.Glm4DecoderLayer": (
        "input_layernorm",
        "post_self_attn_layernorm",
        "post_attention_layernorm",
        "post_mlp_layernorm",
    ),
}
#: Their attention, and whether it bends scores.
ATTENTION = {
    **dict.fromkeys(LIKE["attention"], False),
    "gemma2.Gemma2Attention": True,
    "gemma3.Gemma3Attention": False,
    "olmo2.Olmo2Attention": False,
    "olmo3.Olmo3Attention": False,
    "smollm3.SmolLM3Attention": False,
    "phi3.Phi3Attention": False,
    "olmoe.OlmoeAttention": False,
    "gpt_oss.GptOssAttention": False,
}
#: What a norm's weights have besides, and whether numbers are rounded before they are weighed.
NORMS = {
    "llama.LlamaRMSNorm": (0.0, True),
    "gemma2.Gemma2RMSNorm": (1.0, False),
    "gemma3.Gemma3RMSNorm": (1.0, False),
    "olmo2.Olmo2RMSNorm": (0.0, False),
    "olmo3.Olmo3RMSNorm": (0.0, False),
}
#: Their feed-forward, and what its activation is called.
FEEDS = {"llama.LlamaMLP": "act_fn", "phi3.Phi3MLP": "activation_fn"}
#: What of a head is turned against each other: halves, by numbers of their own or by the same; or neighbours.
HALVES, PAIRS, SAME_HALVES = range(3)
#: Whose way to turn heads: whether it rounds on the way, and what it turns.
TURNS = {
    "llama": (True, HALVES),
    "phi3": (True, HALVES),
    "olmo2": (False, HALVES),
    "glm4": (True, PAIRS),
    "ernie4_5": (False, PAIRS),
    "gpt_oss": (True, SAME_HALVES),
}
#: Feed-forwards of many experts, and what is called what chooses them.
MIXTURES = {
    "mixtral.MixtralSparseMoeBlock": "gate",
    "qwen3_moe.Qwen3MoeSparseMoeBlock": "gate",
    "olmoe.OlmoeSparseMoeBlock": "gate",
    "granitemoe.GraniteMoeMoE": "router",
    "gpt_oss.GptOssMLP": "router",
}
#: What chooses them: whether a softmax over all of them says what each counts, unless it is told to even them, and
#: whether that is rounded.
ROUTERS = {
    "mixtral.MixtralTopKRouter": (False, False),
    "qwen3_moe.Qwen3MoeTopKRouter": (True, True),
    "granitemoe.GraniteMoeTopKRouter": (False, True),
    "gpt_oss.GptOssTopKRouter": (False, True),
}
DECODERS = (
    *LIKE["decoder"],
    "gemma.GemmaModel",
    "gemma2.Gemma2Model",
    "gemma3.Gemma3TextModel",
    "granite.GraniteModel",
    "olmo3.Olmo3Model",
    "mixtral.MixtralModel",
    "qwen3_moe.Qwen3MoeModel",
    "olmoe.OlmoeModel",
    "gpt_oss.GptOssModel",
    "granitemoe.GraniteMoeModel",
)
#: What a model makes of its scores: nothing, it divides them, or it bends them.
PLAIN, DIVIDED, BENT = range(3)
MODELS = {
    **dict.fromkeys(LIKE["model"], PLAIN),
    "mixtral.MixtralForCausalLM": PLAIN,
    "qwen3_moe.Qwen3MoeForCausalLM": PLAIN,
    "olmoe.OlmoeForCausalLM": PLAIN,
    "gpt_oss.GptOssForCausalLM": PLAIN,
    "granite.GraniteForCausalLM": DIVIDED,
    "granitemoe.GraniteMoeForCausalLM": DIVIDED,
    "gemma2.Gemma2ForCausalLM": BENT,
    "gemma3.Gemma3ForCausalLM": BENT,
}


class NormParts(NamedTuple):
    """A norm of root mean squares over `weight`, which has an `offset` besides."""

    weight: torch.Tensor
    epsilon: float
    offset: float
    rounds: bool

    @classmethod
    def of(cls, norm: Any) -> "NormParts | None":
        """Raises ValueError for another norm."""
        if norm is None:
            return None
        name = like(norm, NORMS)
        if name is None:
            raise ValueError(f"its norm ({type(norm).__name__}) is not known")
        epsilon = norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps
        return cls(norm.weight, epsilon, *NORMS[name])


class Product(NamedTuple):
    """Those `rows` of a `linear` layer's weight that make one thing."""

    linear: Any
    rows: slice

    @property
    def outputs(self) -> int:
        return len(range(self.linear.out_features)[self.rows])


class RouterParts(NamedTuple):
    """A row goes to `each` of the experts of which `weight` `[experts, in]`, and a `bias`, make most.

    What each counts is a softmax over them, or `among_all`, and is rounded if that `rounds`.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None
    each: int
    among_all: bool
    rounds: bool


class Mixture(NamedTuple):
    """A feed-forward of many `experts`, of which a `router` chooses a few."""

    experts: NativeExperts
    router: RouterParts

    @classmethod
    def of(cls, block: Any) -> "Mixture | None":
        """None for a feed-forward of one. Raises ValueError for experts that are not ours, or chosen in another way."""
        if (kind := like(block, MIXTURES)) is None:
            return None
        router: Any = getattr(block, MIXTURES[kind])
        chosen = like(router, ROUTERS)
        if chosen is None or not isinstance(block.experts, NativeExperts) or not suits(router.weight):
            raise ValueError(f"its experts, or what chooses them ({type(router).__name__}), are not known")
        among_all, rounds = ROUTERS[chosen]
        among_all &= not getattr(router, "norm_topk_prob", False)
        return cls(
            block.experts, RouterParts(router.weight, getattr(router, "bias", None), router.top_k, among_all, rounds)
        )


class LayerParts(NamedTuple):
    """`norms` are before attention and after it, before the feed-forward and after it, of queries and of keys.

    Scores of attention are bent by `softcap`, if it is not 0, and may have `sinks` beside them. `turns` says whether
    positions turn heads, `rounds` whether that rounds on the way, and `way` what they turn; `activation` which of
    `GATES` it has, `residual` by what the results are multiplied that are added. Where there is a `mixture`, there
    are no products for gate, up and down.
    """

    attention: Any
    products: list[Product]
    norms: list[NormParts | None]
    window: Window
    softcap: float
    sinks: torch.Tensor | None
    turns: bool
    rounds: bool
    way: int
    activation: int
    residual: float
    mixture: Mixture | None

    @property
    def norms_all_heads(self) -> bool:
        """Whether the norms of queries and keys are of all heads together."""
        query = self.norms[4]
        return query is not None and len(query.weight) != self.attention.head_dim

    @classmethod
    def of(cls, layer: Any) -> "LayerParts":
        """Raises ValueError for a layer that does anything else."""
        attend, feed = layer.self_attn, _feed(layer)
        places, attention, fed = like(layer, LAYERS), like(attend, ATTENTION), like(feed, FEEDS)
        mixture = None if fed else Mixture.of(feed)  # which imports families that others have nothing of
        clips = getattr(getattr(attend, "config", None), "clip_qkv", None) is not None
        if places is None or attention is None or clips or not (mixture or fed):
            raise ValueError(f"its layers ({type(layer).__name__}) are not known")
        found = [name and getattr(layer, name) for name in LAYERS[places]]
        heads = [getattr(attend, name, None) for name in ("q_norm", "k_norm")]
        softcap = attend.attn_logit_softcapping if ATTENTION[attention] else None
        residual = layer.residual_multiplier if places.startswith("granite") else 1.0
        return cls(
            attend,
            products(layer),
            [NormParts.of(norm) for norm in (*found, *heads)],
            window(attend),
            softcap or 0.0,
            attend.sinks.detach().float().contiguous() if hasattr(attend, "sinks") else None,
            bool(getattr(attend, "use_rope", True)),
            *_turns(attend),
            _activation(getattr(feed, FEEDS[fed])) if fed else 0,
            residual,
            mixture,
        )


class ModelParts(NamedTuple):
    """Embeddings are multiplied by `embedding` where they are looked up, and wherever they come from by `hidden`.

    Scores are divided by `divisor` and bent by `cap`, if that is not 0.
    """

    norm: NormParts | None
    embedding: float
    hidden: float
    divisor: float
    cap: float

    @classmethod
    def of(cls, model: Any) -> "ModelParts":
        """Raises ValueError for a model that does anything else around its layers."""
        decoder, config = model.get_decoder(), model.config.get_text_config()
        ends, around = _ends(model), like(decoder, DECODERS)
        if ends is None or around is None:
            raise ValueError(f"what {type(model).__name__} does around its layers is not known")
        embeddings = decoder.embed_tokens
        scale, dtype = scale_of(embeddings, model.dtype), embeddings.weight.dtype
        if scale is None or (dtype != model.dtype and type(embeddings) is not HalfEmbedding):
            raise ValueError("its embeddings are not known, or of another type than the layers")
        if len(embeddings.weight) < max(config.vocab_size, model.lm_head.out_features):
            raise ValueError("some ids have no embedding")
        hidden = decoder.embedding_multiplier if around.startswith("granite") else 1.0
        divisor = config.logits_scaling if ends == DIVIDED else 1.0
        cap = config.final_logit_softcapping if ends == BENT else None
        return cls(NormParts.of(decoder.norm), scale, hidden, divisor, cap or 0.0)


def _ends(model: Any) -> int | None:
    """What it makes of its scores. One that sees or hears has code of its own, and makes nothing of those of text."""
    if model.config.get_text_config() is not model.config:
        return PLAIN
    kind = like(model, MODELS)
    return None if kind is None else MODELS[kind]


def products(layer: Any) -> list[Product]:
    """Query, key, value and output; gate, up and down: of layers of their own, or of one for what has one input.

    Experts are none of these.
    """
    attend, feed = layer.self_attn, _feed(layer)
    if (joined := getattr(attend, "qkv_proj", None)) is not None:
        heads = attend.o_proj.in_features
        found = _cut(joined, heads, (joined.out_features - heads) // 2)
    else:
        found = [Product(attend.get_submodule(f"{name}_proj"), ALL) for name in "qkv"]
    if hasattr(feed, "experts"):
        return [*found, Product(attend.o_proj, ALL)]
    if (joined := getattr(feed, "gate_up_proj", None)) is not None:
        fed = _cut(joined, joined.out_features // 2)
    else:
        fed = [Product(feed.gate_proj, ALL), Product(feed.up_proj, ALL)]
    return [*found, Product(attend.o_proj, ALL), *fed, Product(feed.down_proj, ALL)]


def _feed(layer: Any) -> Any:
    return layer.mlp if hasattr(layer, "mlp") else layer.block_sparse_moe


def _cut(linear: Any, *sizes: int) -> list[Product]:
    """Products of so many outputs, one after the other, and of all that are left."""
    ends = [*accumulate(sizes, initial=0), linear.out_features]
    return [Product(linear, slice(start, end)) for start, end in pairwise(ends)]


def _turns(attend: nn.Module) -> tuple[bool, int]:
    for family, ways in TURNS.items():
        if turns_like(attend, family):
            return ways
    raise ValueError("its rotary positions are not known")


def _activation(function: Any) -> int:
    numbers = torch.linspace(-8, 8, 33)
    made, all_through = function(numbers), torch.ones_like(numbers)
    for number, gate in enumerate(GATES):
        if torch.equal(made, gate(numbers, all_through)):
            return number
    raise ValueError("the activation of its feed-forward is not known")
