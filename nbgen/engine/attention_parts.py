"""What a layer's attention is made of, where its family's code is known (`known_code`)."""

from typing import Any, NamedTuple

import torch

from nbgen.engine.attention_window import Window, cached_by
from nbgen.engine.common_parts import NormParts, Product, cut, part
from nbgen.engine.known_code import like, turns_like
from nbgen.engine.llama_like import LIKE, window
from nbgen.engine.native_linear import ALL
from nbgen.engine.rotary_table import Stretch

#: Whose queries bring what opens the result.
OPENED = ("qwen3_5.Qwen3_5Attention", "qwen3_next.Qwen3NextAttention")
#: Of whose heads query, key and value are made one behind the other: of each by itself, or of each of so many parts.
JOINED = ("gpt_neox.GPTNeoXAttention", "persimmon.PersimmonAttention", "codegen.CodeGenAttention")
#: … and values before keys.
VALUES_FIRST = ("codegen.CodeGenAttention",)
#: Whose positions are added to embeddings, or who have none.
STILL = (
    "gpt2.GPT2Attention",
    "opt.OPTAttention",
    "gpt_bigcode.GPTBigCodeAttention",
    "biogpt.BioGptAttention",
    "nemotron_h.NemotronHAttention",
)
#: Whose positions turn heads in layers with windows alone, where there are some.
OF_WINDOWS = ("exaone4.Exaone4Attention", "exaone_moe.ExaoneMoeAttention")
#: … and those whose other layers never have positions.
OF_WINDOWS_ALONE = ("cohere2.Cohere2Attention",)
#: Whose queries are multiplied by what their position says.
STRETCHED = ("ministral3.Ministral3Attention",)
#: Whose queries, keys and values have limits (`clip_qkv`), where a configuration says so.
CLIPPED = ("olmo.OlmoAttention", "olmoe.OlmoeAttention")
#: Whose heads are turned before they are normed.
TURNED_FIRST = (
    "hunyuan_v1_dense.HunYuanDenseV1Attention",
    "hunyuan_v1_moe.HunYuanMoEV1Attention",
    "nanochat.NanoChatAttention",
)
#: Whose values are normed, too, and of whose layers some have no keys of their own, or no values but these.
SHARING = ("gemma3n.Gemma3nTextAttention", "gemma4.Gemma4TextAttention")
#: Whose keys and values are made of one small vector for all heads.
COMPRESSED = (
    "deepseek_v2.DeepseekV2Attention",
    "deepseek_v3.DeepseekV3Attention",
    "glm4_moe_lite.Glm4MoeLiteAttention",
    "youtu.YoutuAttention",
)
#: Products that make that, and another for queries.
LATENT = ("compressed", "narrow")
#: Whose scores are bent.
BENT = ("gemma2.Gemma2Attention",)
ATTENTION = (
    *LIKE["attention"],
    *BENT,
    "gemma3.Gemma3Attention",
    "olmo2.Olmo2Attention",
    "olmo3.Olmo3Attention",
    "smollm3.SmolLM3Attention",
    "phi3.Phi3Attention",
    "olmoe.OlmoeAttention",
    "gpt_oss.GptOssAttention",
    "granitemoehybrid.GraniteMoeHybridAttention",
    "lfm2.Lfm2Attention",
    "qwen2_vl.Qwen2VLAttention",
    "qwen2_5_vl.Qwen2_5_VLAttention",
    "qwen3_vl.Qwen3VLTextAttention",
    "phi.PhiAttention",
    "stablelm.StableLmAttention",
    "starcoder2.Starcoder2Attention",
    "nemotron.NemotronAttention",
    "cohere.CohereAttention",
    "olmo.OlmoAttention",
    "gptj.GPTJAttention",
    "apertus.ApertusAttention",
    "seed_oss.SeedOssAttention",
    "glm4_moe.Glm4MoeAttention",
    "hy_v3.HYV3Attention",
    "falcon_h1.FalconH1Attention",
    "granite_swa.GraniteSWAAttention",
    "granitemoe_swa.GraniteMoeSWAAttention",
    *OF_WINDOWS,
    *OF_WINDOWS_ALONE,
    *TURNED_FIRST,
    *STRETCHED,
    *SHARING,
    *STILL,
    *JOINED,
    *OPENED,
    *COMPRESSED,
)
#: What of a head is turned against each other: halves or neighbours (pairs), by numbers of their own or by the same; or
#: halves the other way round; or pairs, which stand in halves then.
HALVES, SAME_PAIRS, SAME_HALVES, PAIRS, HALVES_BACK, PAIRS_TO_HALVES = range(6)
#: Whose way to turn heads: whether it rounds on the way, and what it turns.
TURNS = {
    "llama": (True, HALVES),
    "phi3": (True, HALVES),
    "olmo2": (False, HALVES),
    "glm4": (True, SAME_PAIRS),
    "ernie4_5": (False, SAME_PAIRS),
    "gpt_oss": (True, SAME_HALVES),
    "qwen3_5": (True, HALVES),
    "nemotron": (True, HALVES),
    "gemma3n": (True, HALVES),
    "gemma4": (True, HALVES),
    "cohere": (False, PAIRS),
    "gptj": (True, SAME_PAIRS),
    "codegen": (False, SAME_PAIRS),
    "glm4_moe": (True, HALVES),
    "minimax_m2": (True, HALVES),
    "qwen3_next": (True, HALVES),
    "helium": (True, SAME_PAIRS),
    "nanochat": (True, HALVES_BACK),
    "deepseek_v2": (False, SAME_PAIRS),
}


class LatentParts(NamedTuple):
    """Of a vector's `norm` keys and values are made, and queries perhaps of that of another (`narrow_norm`).

    Of a head's numbers, the first stay `still`. Values have so many (`value_dim`).
    """

    still: int
    value_dim: int
    norm: NormParts | None
    narrow_norm: NormParts | None

    @classmethod
    def of(cls, attend: Any) -> "LatentParts":
        """Raises ValueError where heads share keys."""
        if attend.num_key_value_groups != 1:
            raise ValueError("its heads share keys")
        norms = map(NormParts.of, (attend.kv_a_layernorm, attend.q_a_layernorm))
        return cls(attend.qk_nope_head_dim, attend.v_head_dim, *norms)


class AttentionParts(NamedTuple):
    """Attention over the cache of the layer of this `number`, whose `norms` are of queries, keys and values, or none.

    That layer is this one, or one before it: then it makes no keys and values. Of its heads, `group` share a key.
    Scores are bent by `softcap`, if it is not 0, and may have `sinks` beside them. `turns` says whether positions turn
    heads, `rounds` whether that rounds on the way, and `way` what they turn. Where the result is `opened`, queries have
    what opens it behind each head; where they are `joined`, their key and value: of so many heads one behind the other,
    and `values_first` perhaps. Heads that are `turned_first` are normed behind that. No query, key or value is beyond
    `clip`, if that is not 0. Queries may have a `stretch`, and keys and values be `latent`.
    """

    number: int
    group: int
    head_dim: int
    scaling: float
    norms: list[NormParts | None]
    window: Window
    softcap: float
    sinks: torch.Tensor | None
    opened: bool
    joined: int
    values_first: bool
    turns: bool
    rounds: bool
    way: int
    turned_first: bool
    clip: float
    stretch: Stretch | None
    latent: LatentParts | None

    @property
    def norms_all_heads(self) -> bool:
        """Whether the norms of queries and keys are of all heads together."""
        query = self.norms[0]
        return query is not None and query.weight is not None and query.weight.shape[-1] != self.head_dim

    @property
    def norms_each_head(self) -> bool:
        """Whether they have weights of their own for each head `[heads, dim]`."""
        query = self.norms[0]
        return query is not None and query.weight is not None and query.weight.dim() > 1

    @classmethod
    def of(cls, attend: Any) -> "AttentionParts":
        """Raises ValueError for attention that does anything else."""
        kind, config = like(attend, ATTENTION), getattr(attend, "config", None)
        head_dim = part(attend, "head_dim", "head_size", "qk_head_dim")
        if kind is None or not getattr(attend, "is_causal", True) or not getattr(attend, "multi_query", True):
            raise ValueError(f"its attention ({type(attend).__name__}) is not known")
        if head_dim % 2:
            raise ValueError("its heads have an odd number of dimensions")
        sinks = getattr(attend, "sinks", None)
        turns = kind not in STILL and getattr(config, "position_embedding_type", "rope") == "rope"
        turns = turns and bool(getattr(attend, "use_rope", True))
        if (bases := getattr(config, "layer_rope_theta", None)) is not None:
            turns = bool(bases[attend.layer_idx])
        if kind in OF_WINDOWS:
            turns = attend.sliding_window is None or attend.is_sliding
        if kind in OF_WINDOWS_ALONE:
            turns = attend.sliding_window is not None
        rounds, way = (False, HALVES) if kind in STILL else _turns(attend, kind)
        return cls(
            number=cached_by(attend),
            group=getattr(attend, "num_key_value_groups", 1),
            head_dim=head_dim,
            scaling=attend.scaling,
            norms=[*(NormParts.of(_norm(attend, of)) for of in ("query", "key")), _value_norm(attend)],
            window=window(attend),
            softcap=(attend.attn_logit_softcapping if kind in BENT else None) or 0.0,
            sinks=None if sinks is None else sinks.detach().float().contiguous(),
            opened=kind in OPENED,
            joined=_joined(attend, kind),
            values_first=kind in VALUES_FIRST,
            turns=turns,
            rounds=rounds,
            way=way,
            turned_first=kind in TURNED_FIRST,
            clip=(getattr(config, "clip_qkv", None) if kind in CLIPPED else None) or 0.0,
            stretch=_stretch(attend) if kind in STRETCHED else None,
            latent=LatentParts.of(attend) if kind in COMPRESSED else None,
        )


def products(attend: Any) -> dict[str, Product]:
    """Query, key, value and output: of layers of their own, or of one for what has one input, perhaps head by head.

    Values may be the keys before their norm, and both another layer's (`cached_by`).
    """
    output = part(attend, "o_proj", "out_proj", "c_proj", "dense")
    whole = part(attend, "query_key_value", *(["qkv_proj"] if hasattr(attend, "mp_num") else []))
    if whole is not None:
        return {"query": Product(whole, ALL), "output": Product(output, ALL)}
    if (joined := part(attend, "qkv_proj", "c_attn")) is not None:
        heads = output.in_features
        made = cut(joined, heads, (joined.out_features - heads) // 2)
        return dict(zip(("query", "key", "value"), made, strict=True), output=Product(output, ALL))
    own = {name: part(attend, f"{name[0]}_proj") for name in ("query", "key", "value")} | {"output": output}
    if (compressed := part(attend, "kv_a_proj_with_mqa")) is not None:
        own |= {"query": part(attend, "q_proj", "q_b_proj"), "key": attend.kv_b_proj}
        own |= dict(zip(LATENT, (compressed, attend.q_a_proj), strict=True))
    return {name: Product(linear, ALL) for name, linear in own.items() if linear is not None}


def _joined(attend: Any, kind: str) -> int:
    if kind not in JOINED:
        return 0
    if not hasattr(attend, "mp_num"):
        return 1
    if attend.num_attention_heads % attend.mp_num:
        raise ValueError("its heads stand across the parts of its projection")
    return attend.num_attention_heads // attend.mp_num


def _norm(attend: Any, of: str) -> Any:
    return part(attend, f"{of[0]}_norm", f"{of[0]}_layernorm", f"{of}_layernorm")


def _value_norm(attend: Any) -> NormParts | None:
    """One without weights of its own."""
    norm = getattr(attend, "v_norm", None)
    return norm and NormParts(None, norm.eps, offset=1.0)


def _stretch(attend: Any) -> Stretch:
    told = attend.config.rope_parameters
    return Stretch(told["llama_4_scaling_beta"], told["original_max_position_embeddings"])


def _turns(attend: Any, kind: str) -> tuple[bool, int]:
    home = type(attend).__module__
    if kind in COMPRESSED and turns_like(attend, "deepseek_v3"):
        return True, PAIRS_TO_HALVES if attend.config.rope_interleave else HALVES
    for family in sorted(TURNS, key=lambda family: f".{family}" not in home):  # its own first: asking imports others
        if turns_like(attend, family):
            return TURNS[family]
    raise ValueError("its rotary positions are not known")
