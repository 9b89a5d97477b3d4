"""What a decoder's layers are made of, for code that computes whole layers in place of transformers.

Families differ in where their norms stand, which activation is between gate and up, what they multiply, and whether
layers have attention or a recurrence. A family is known if its code equals that of a class named here (`known_code`).
Knows nothing of what replaces the layers.
"""

import math
from typing import Any, NamedTuple

import torch

from nbgen.engine import attention_parts, recurrent_parts, stream_parts
from nbgen.engine.attention_parts import AttentionParts
from nbgen.engine.common_parts import Activation, NormParts, Product, counted, cut, part
from nbgen.engine.known_code import like
from nbgen.engine.mixture_parts import LINEAR, Mixture
from nbgen.engine.native_linear import ALL
from nbgen.engine.recurrent_parts import RecurrentParts
from nbgen.engine.stream_parts import MixingParts

#: Norms before attention and after it, before the feed-forward and after it, where families have them.
BEFORE = ("input_layernorm", None, "post_attention_layernorm", None)
AFTER = (None, "post_attention_layernorm", None, "post_feedforward_layernorm")
BOTH = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
ALONE = ("input_layernorm", None, None, None)
OPT = ("self_attn_layer_norm", None, "final_layer_norm", None)
GPT2, GPTJ = ("ln_1", None, "ln_2", None), ("ln_1", None, None, None)
#: A layer with attention and a recurrence over the same input, and factors for the results of both.
SIDE_BY_SIDE = "falcon_h1.FalconH1DecoderLayer"
#: The names of a layer's norms, in the order of `LayerParts.norms`.
LAYERS = {
    "llama.LlamaDecoderLayer": BEFORE,
    "mixtral.MixtralDecoderLayer": BEFORE,
    "gpt_oss.GptOssDecoderLayer": BEFORE,
    "granite.GraniteDecoderLayer": BEFORE,
    "granitemoe.GraniteMoeDecoderLayer": BEFORE,
    "phi3.Phi3DecoderLayer": BEFORE,
    "gemma2.Gemma2DecoderLayer": BOTH,
    "gemma3.Gemma3DecoderLayer": BOTH,
    "gemma3n.Gemma3nTextDecoderLayer": BOTH,
    "gemma4.Gemma4TextDecoderLayer": BOTH,
    "vaultgemma.VaultGemmaDecoderLayer": ("input_layernorm", None, "pre_feedforward_layernorm", None),
    "hyperclovax.HyperCLOVAXDecoderLayer": ("input_layernorm", "post_norm1", "post_attention_layernorm", "post_norm2"),
    "olmo2.Olmo2DecoderLayer": AFTER,
    "olmo3.Olmo3DecoderLayer": AFTER,
    "glm4.Glm4DecoderLayer": (
        "input_layernorm",
        "post_self_attn_layernorm",
        "post_attention_layernorm",
        "post_mlp_layernorm",
    ),
    "granitemoehybrid.GraniteMoeHybridDecoderLayer": BEFORE,
    "bamba.BambaDecoderLayer": ("input_layernorm", None, "pre_ff_layernorm", None),
    "lfm2.Lfm2DecoderLayer": ("operator_norm", None, "ffn_norm", None),
    "qwen2_vl.Qwen2VLDecoderLayer": BEFORE,
    "qwen2_5_vl.Qwen2_5_VLDecoderLayer": BEFORE,
    "qwen3_vl.Qwen3VLTextDecoderLayer": BEFORE,
    "qwen3_5.Qwen3_5DecoderLayer": BEFORE,
    "qwen3_5_moe.Qwen3_5MoeDecoderLayer": BEFORE,
    "starcoder2.Starcoder2DecoderLayer": BEFORE,
    "apertus.ApertusDecoderLayer": ("attention_layernorm", None, "feedforward_layernorm", None),
    "nemotron.NemotronDecoderLayer": BEFORE,
    "gpt2.GPT2Block": GPT2,
    "gpt_bigcode.GPTBigCodeBlock": GPT2,
    "gpt_neox.GPTNeoXLayer": BEFORE,
    "persimmon.PersimmonDecoderLayer": BEFORE,
    "stablelm.StableLmDecoderLayer": BEFORE,
    "opt.OPTDecoderLayer": OPT,
    "biogpt.BioGptDecoderLayer": OPT,
    "phi.PhiDecoderLayer": ALONE,
    "gptj.GPTJBlock": GPTJ,
    "codegen.CodeGenBlock": GPTJ,
    "cohere.CohereDecoderLayer": ALONE,
    "cohere2.Cohere2DecoderLayer": ALONE,
    "granitemoeshared.GraniteMoeSharedDecoderLayer": BEFORE,
    "granitemoe_swa.GraniteMoeSWADecoderLayer": BEFORE,
    "flex_olmo.FlexOlmoDecoderLayer": AFTER,
    "qwen3_next.Qwen3NextDecoderLayer": BEFORE,
    "nemotron_h.NemotronHBlock": ("norm", None, None, None),
    SIDE_BY_SIDE: ("input_layernorm", None, "pre_ff_layernorm", None),
}
#: Layers whose feed-forward always runs beside attention; others have an attribute that says so.
BESIDE_ATTENTION = (
    "phi.PhiDecoderLayer",
    "cohere.CohereDecoderLayer",
    "cohere2.Cohere2DecoderLayer",
    "gptj.GPTJBlock",
    "codegen.CodeGenBlock",
)
#: Feed-forwards, and the attribute that holds the activation; None where the activation is in the code.
FEEDS = {
    "llama.LlamaMLP": "act_fn",
    "phi3.Phi3MLP": "activation_fn",
    "granitemoehybrid.GraniteMoeHybridMLP": "activation",
    "granitemoeshared.GraniteMoeSharedMLP": "activation",
    "granitemoe_swa.GraniteMoeSWAMLP": "activation",
    "gemma3n.Gemma3nTextMLP": "act_fn",
    "nemotron_h.NemotronHMLP": "act_fn",
    "falcon_h1.FalconH1MLP": "act_fn",
    "lfm2.Lfm2MLP": None,
    "gpt2.GPT2MLP": "act",
    "gpt_bigcode.GPTBigCodeMLP": "act",
    "gpt_neox.GPTNeoXMLP": "act",
    "persimmon.PersimmonMLP": "act",
    "phi.PhiMLP": "activation_fn",
    "starcoder2.Starcoder2MLP": "act",
    "stablelm.StableLmMLP": "act_fn",
    "opt.OPTDecoderLayer": "activation_fn",
    "biogpt.BioGptDecoderLayer": "activation_fn",
    "arcee.ArceeMLP": "act_fn",
    "nemotron.NemotronMLP": "act_fn",
    "apertus.ApertusMLP": "act_fn",
    "seed_oss.SeedOssMLP": "act_fn",
    "nanochat.NanoChatMLP": "activation_fn",
    "gptj.GPTJMLP": "act",
    "codegen.CodeGenMLP": "act",
}
#: Name of a product: the gate of a shared expert, which has a single output.
BESIDE = "beside"
#: … the two products for a layer's own input for each token: its gate, and its output.
GIVEN = ("given_gate", "given_output")
#: … and the router, which chooses a row's experts, where that is a linear layer of its own.
ROUTER = "router"
#: Attribute names of attention, and of the first and the last product of a feed-forward without a gate.
ATTENDING = ("self_attn", "attention", "attn")
OPENS, CLOSES = ("c_fc", "dense_h_to_4h", "fc1", "fc_in"), ("c_proj", "dense_4h_to_h", "fc2", "fc_out")
#: Attribute names of the feed-forward beside experts, which every row uses.
SHARED = ("shared_expert", "shared_experts", "shared_mlp")
#: Attribute names of what recurrent layers have in place of attention.
MIXERS = ("linear_attn", "mamba", "conv")
#: Attribute name of the only part of a layer that is nothing but attention, a recurrence or a feed-forward.
SINGLE = "mixer"


class LayerParts(NamedTuple):
    """`norms` are before attention and after it, before the feed-forward and after it.

    A layer has `attention`, a `recurrence` in its place, or both side by side. It has a feed-forward with an
    `activation`, or a `mixture` without products for gate, up and down, or both. Some layers have only one of all
    these. Results are multiplied by `residual` before they are added. A feed-forward `beside_attention` reads the
    layer's input, through its own norm or attention's. The result of a layer's own input for each token
    (`per_layer_parts`) has the norm `given`. The layer's output is multiplied by `leaves`. A layer may compute one of
    several streams (`mixing`). If `sparsity` is finite, the activation gets what exceeds mean + `sparsity` * deviation.
    """

    attention: AttentionParts | None
    recurrence: RecurrentParts | None
    products: dict[str, Product]
    norms: list[NormParts | None]
    activation: Activation
    residual: float
    mixture: Mixture | None
    beside_attention: bool
    given: NormParts | None
    leaves: float
    mixing: MixingParts | None
    sparsity: float

    @classmethod
    def of(cls, layer: Any) -> "LayerParts":
        """Raises ValueError for a layer that does anything else."""
        attend, remembers, feed, sparse = _attending(layer), _remembering(layer), _feed(layer), _sparse(layer)
        places, fed = like(layer, LAYERS), None if feed is None else like(feed, FEEDS)
        mixture = None if sparse is None else Mixture.of(sparse)
        alone = hasattr(layer, SINGLE)
        if places is None or not (mixture or fed or alone) or (feed is not None and not fed):
            raise ValueError(f"its layers ({type(layer).__name__}) are not known")
        if attend and remembers and places != SIDE_BY_SIDE:
            raise ValueError("it attends and remembers in a way that is not known")
        if not getattr(layer, "do_layer_norm_before", True):
            raise ValueError("its norms stand behind")
        gives = FEEDS[fed] if fed else None
        return cls(
            attention=None if attend is None else AttentionParts.of(attend),
            recurrence=None if remembers is None else RecurrentParts.of(remembers),
            products=products(layer),
            norms=[NormParts.of(name and getattr(layer, name)) for name in LAYERS[places]],
            activation=Activation.of(getattr(feed, gives)) if gives else Activation(0),
            residual=getattr(layer, "residual_multiplier", 1.0),
            mixture=mixture,
            beside_attention=places in BESIDE_ATTENTION or getattr(layer, "use_parallel_residual", False),
            given=NormParts.of(getattr(layer, "post_per_layer_input_norm", None)),
            leaves=float(getattr(layer, "layer_scalar", 1.0)),
            mixing=MixingParts.of(layer),
            sparsity=_sparsity(feed),
        )


def products(layer: Any) -> dict[str, Product]:
    """A layer's products by name: attention's or a recurrence's; gate, up and down, or gate and down; not the experts.

    A layer with an input of its own for each token has a gate and an output for it (`GIVEN`). The result of gate, up
    and down beside experts may be scaled by the sigmoid of a single output (`BESIDE`). The router is a product, too,
    where it is a linear layer of its own (`ROUTER`).
    """
    attend, remembers, feed = _attending(layer), _remembering(layer), _feed(layer)
    found = recurrent_parts.products(remembers) if remembers else {}
    if attend and remembers:
        found["result"] = found.pop("output")
    found |= attention_parts.products(attend) if attend else {}
    found |= stream_parts.products(layer) if hasattr(layer, "altup") else {}
    if (opens := part(layer, "per_layer_input_gate")) is not None:
        found |= {GIVEN[0]: Product(opens, ALL), GIVEN[1]: Product(layer.per_layer_projection, ALL)}
    if (chooses := part(part(layer, "router") or part(_fed_by(layer), "gate"), *LINEAR)) is not None:
        found[ROUTER] = Product(chooses, ALL)
    if feed is None:
        return found
    says = part(_fed_by(layer), "shared_expert_gate")
    beside = {} if says is None else {BESIDE: Product(says, ALL)}
    return counted({**found, **_feed_products(feed), **beside}, _counts(layer))


def _counts(layer: Any) -> dict[str, float]:
    """The factors of products' outputs, where attention and recurrence are side by side."""
    if not hasattr(layer, "attention_in_multiplier"):
        return {}
    attend, feed, comes = layer.self_attn, layer.feed_forward, layer.attention_in_multiplier
    if comes != 1.0 and any(linear.bias is not None for linear in (attend.q_proj, attend.k_proj, attend.v_proj)):
        raise ValueError("what its attention adds counts less than its inputs")
    made = {"query": comes, "key": comes * attend.key_multiplier, "value": comes}
    results = {"output": layer.attn_out_multiplier, "result": layer.ssm_out_multiplier}
    return {**made, **results, "gate": feed.gate_multiplier, "down": feed.down_multiplier}


def _feed_products(feed: Any) -> dict[str, Product]:
    down = Product(part(feed, "down_proj", "output_linear", "w2", *CLOSES), ALL)
    if (joined := part(feed, "gate_up_proj", "input_linear")) is not None:
        gate, up = cut(joined, joined.out_features // 2)
    elif (gated := part(feed, "gate_proj", "w1")) is not None:
        gate, up = Product(gated, ALL), Product(part(feed, "up_proj", "w3"), ALL)
    else:
        return {"gate": Product(part(feed, "up_proj", *OPENS), ALL), "down": down}
    return {"gate": gate, "up": up, "down": down}


def _attending(layer: Any) -> Any:
    return part(layer, *ATTENDING) or _alone(layer, "q_proj")


def _remembering(layer: Any) -> Any:
    return part(layer, *MIXERS) or _alone(layer, "conv1d")


def _fed_by(layer: Any) -> Any:
    if (fed := part(layer, "mlp", "feed_forward", "block_sparse_moe")) is not None:
        return fed
    return layer if hasattr(layer, "fc1") else _alone(layer, "up_proj", "experts")


def _alone(layer: Any, *names: str) -> Any:
    """The only part of a layer (`SINGLE`), if that part has one of these attributes."""
    found = part(layer, SINGLE)
    return found if part(found, *names) is not None else None


def _sparsity(feed: Any) -> float:
    """The standard deviations from the mean below which a share `activation_sparsity` of a normal distribution lies."""
    if not (share := getattr(feed, "activation_sparsity", 0.0)):
        return -math.inf
    return float(torch.distributions.Normal(0, 1).icdf(torch.tensor(share, dtype=torch.float32)))


def _feed(layer: Any) -> Any:
    """The dense feed-forward, which may stand beside experts, if the layer has one."""
    fed = part(layer, "shared_mlp") or _fed_by(layer)
    return part(fed, *SHARED) if hasattr(fed, "experts") else fed


def _sparse(layer: Any) -> Any:
    """The module that holds the experts, if there are any: the feed-forward, or the layer itself."""
    return next((each for each in (_fed_by(layer), layer) if hasattr(each, "experts")), None)
