"""The parts and variants of a layer's attention, for families whose code is known (`known_code`)."""

from typing import Any, NamedTuple

import torch

from nbgen.engine.attention_window import Window, cached_by
from nbgen.engine.common_parts import NormParts, Product, cut, part
from nbgen.engine.known_code import like, turns_like
from nbgen.engine.llama_like import LIKE, window
from nbgen.engine.native_linear import ALL
from nbgen.engine.rotary_table import Stretch

#: Attention whose query projection also makes a gate for the result.
OPENED = ("qwen3_5.Qwen3_5Attention", "qwen3_next.Qwen3NextAttention")
#: Attention with one projection that makes query, key and value one after the other: head by head, or part by part.
JOINED = ("gpt_neox.GPTNeoXAttention", "persimmon.PersimmonAttention", "codegen.CodeGenAttention")
#: Those of them that make values before keys.
VALUES_FIRST = ("codegen.CodeGenAttention",)
#: Attention without rotary positions: the model adds positions to embeddings, or has none.
STILL = (
    "gpt2.GPT2Attention",
    "opt.OPTAttention",
    "gpt_bigcode.GPTBigCodeAttention",
    "biogpt.BioGptAttention",
    "nemotron_h.NemotronHAttention",
)
#: Attention with rotary positions only in layers with a window, if the model has such layers.
OF_WINDOWS = ("exaone4.Exaone4Attention", "exaone_moe.ExaoneMoeAttention")
#: The same, but without any rotary positions if the model has no such layers.
OF_WINDOWS_ALONE = ("cohere2.Cohere2Attention",)
#: Attention that scales queries by a factor that depends on their position.
STRETCHED = ("ministral3.Ministral3Attention",)
#: Attention that clips queries, keys and values if the configuration says so (`clip_qkv`).
CLIPPED = ("olmo.OlmoAttention", "olmoe.OlmoeAttention")
#: Attention that rotates heads before it norms them.
TURNED_FIRST = (
    "hunyuan_v1_dense.HunYuanDenseV1Attention",
    "hunyuan_v1_moe.HunYuanMoEV1Attention",
    "nanochat.NanoChatAttention",
)
#: Attention that norms values, too; some layers have no keys and values of their own, or use their keys as values.
SHARING = ("gemma3n.Gemma3nTextAttention", "gemma4.Gemma4TextAttention")
#: Attention that makes all heads' keys and values from one small vector (multi-head latent attention).
COMPRESSED = (
    "deepseek_v2.DeepseekV2Attention",
    "deepseek_v3.DeepseekV3Attention",
    "glm4_moe_lite.Glm4MoeLiteAttention",
    "youtu.YoutuAttention",
)
#: The products that make this vector, and the small vector of the queries.
LATENT = ("compressed", "narrow")
#: Attention with a soft cap on scores.
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
#: What a rotation combines: a head's halves, or neighbours (pairs); both members have angles of their own or the same
#: (SAME); halves may turn the other way round (BACK); pairs may be stored as halves afterwards (TO_HALVES).
HALVES, SAME_PAIRS, SAME_HALVES, PAIRS, HALVES_BACK, PAIRS_TO_HALVES = range(6)
#: By family, how its code rotates heads: whether it rounds between the steps, and what it combines.
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
    """Latent attention: the `norm` of the vector that makes keys and values; `narrow_norm` is the queries', if any.

    The first `still` numbers of a head are not rotated. A head's values have `value_dim` numbers.
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
    """Attention over the cache of layer `number`; `norms` are those of queries, keys and values, None where absent.

    That layer is this one, or an earlier one: then this one makes no keys and values. `group` heads share a key head.
    `softcap` limits scores unless it is 0; `sinks` are additional scores. `turns`: heads are rotated by position;
    `rounds`: the rotation rounds between its steps; `way`: what it combines (HALVES …). `opened`: the projection has a
    gate behind each query head. `joined`: how many heads' queries stand together in a joint projection, before their
    keys and values (`values_first`: values, keys); 0: not joint. `turned_first`: heads are rotated, then normed.
    `clip` limits queries, keys and values unless it is 0. `stretch` scales queries by position; `latent`: see there.
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
        """Whether the norms of queries and keys go over all heads together."""
        query = self.norms[0]
        return query is not None and query.weight is not None and query.weight.shape[-1] != self.head_dim

    @property
    def norms_each_head(self) -> bool:
        """Whether the norms of queries and keys have weights of their own for each head, `[heads, dim]`."""
        query = self.norms[0]
        return query is not None and query.weight is not None and query.weight.dim() > 1

    @classmethod
    def of(cls, attend: Any) -> "AttentionParts":
        """Raises ValueError for attention that does anything not described here."""
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
    """The linear layers of query, key, value and output; the first three may be one, perhaps joined head by head.

    Value is absent if it is the key before its norm; both are if they are another layer's (`cached_by`).
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
    """The values' norm, which has no weights."""
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
