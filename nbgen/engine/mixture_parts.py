"""Feed-forwards of many experts, and their routers, for families whose code is known (`known_code`)."""

from typing import Any, NamedTuple

import torch
from torch import nn

from nbgen.engine.common_parts import NormParts, part
from nbgen.engine.known_code import like
from nbgen.engine.native_experts import NativeExperts
from nbgen.engine.native_linear import suits

#: A layer with experts beside its feed-forward; they and their router have norms of their own.
APART = "gemma4.Gemma4TextDecoderLayer"
#: Feed-forwards of many experts, and the attribute that holds the router.
MIXTURES = {
    "mixtral.MixtralSparseMoeBlock": "gate",
    "qwen3_moe.Qwen3MoeSparseMoeBlock": "gate",
    "olmoe.OlmoeSparseMoeBlock": "gate",
    "granitemoe.GraniteMoeMoE": "router",
    "gpt_oss.GptOssMLP": "router",
    "granitemoehybrid.GraniteMoeHybridMoE": "router",
    "qwen2_moe.Qwen2MoeSparseMoeBlock": "gate",
    "qwen3_5_moe.Qwen3_5MoeSparseMoeBlock": "gate",
    "lfm2_moe.Lfm2MoeSparseMoeBlock": "gate",
    "glm4_moe.Glm4MoeMoE": "gate",
    "ernie4_5_moe.Ernie4_5_MoeSparseMoeBlock": "gate",
    "hunyuan_v1_moe.HunYuanMoEV1Moe": "gate",
    "minimax_m2.MiniMaxM2SparseMoeBlock": "gate",
    "flex_olmo.FlexOlmoSparseMoeBlock": "gate",
    "qwen3_next.Qwen3NextSparseMoeBlock": "gate",
    "phimoe.PhimoeSparseMoeBlock": "router",
    "hy_v3.HYV3MoE": "gate",
    "nemotron_h.NemotronHMoE": "gate",
    APART: "router",
}
APART_NORMS = ("pre_feedforward_layernorm_2", "post_feedforward_layernorm_2", "post_feedforward_layernorm_1")
#: An expert's weight: its share of a softmax over the chosen ones or over all; the sigmoid of its score, by itself or
#: as a share of the chosen ones' sum; or, one after another, its share of a softmax over near ones that are left.
OF_CHOSEN, OF_ALL, LOGISTIC, LOGISTIC_OF_CHOSEN, OF_NEAR = range(5)
#: What a weight becomes if a router makes it a share of the chosen ones' sum (`norm_topk_prob`).
SHARED = {OF_ALL: OF_CHOSEN, LOGISTIC: LOGISTIC_OF_CHOSEN}
#: The `groups` of a router without groups: one, which is always open.
ALL_GROUPS = 1, 1, 1


class Kind(NamedTuple):
    """How a router chooses: an expert's weight is by `counting`, unless it is made a share of the chosen ones' sum.

    Weights are rounded if it `rounds`; scores are not, if they are `exact`. `least` is added to the sum of the chosen
    weights; for `OF_NEAR` it says what is near.
    """

    counting: int
    rounds: bool
    exact: bool = False
    least: float = 0.0


ROUTERS = {
    "mixtral.MixtralTopKRouter": Kind(OF_CHOSEN, rounds=False),
    "qwen3_moe.Qwen3MoeTopKRouter": Kind(OF_ALL, rounds=True),
    "granitemoe.GraniteMoeTopKRouter": Kind(OF_CHOSEN, rounds=True),
    "gpt_oss.GptOssTopKRouter": Kind(OF_CHOSEN, rounds=True),
    "lfm2_moe.Lfm2MoeTopKRouter": Kind(LOGISTIC, rounds=True, least=1e-6),
    "qwen3_5_moe.Qwen3_5MoeTopKRouter": Kind(OF_CHOSEN, rounds=True),
    "qwen3_vl_moe.Qwen3VLMoeTextTopKRouter": Kind(OF_CHOSEN, rounds=True),
    "gemma4.Gemma4TextRouter": Kind(OF_CHOSEN, rounds=False),
    "glm4_moe.Glm4MoeTopkRouter": Kind(LOGISTIC, rounds=False, exact=True, least=1e-20),
    "deepseek_v2.DeepseekV2TopkRouter": Kind(OF_ALL, rounds=False, exact=True),
    "ernie4_5_moe.Ernie4_5_MoeTopKRouter": Kind(OF_CHOSEN, rounds=True, exact=True, least=1e-12),
    "hunyuan_v1_moe.HunYuanMoEV1Gate": Kind(OF_CHOSEN, rounds=True),
    "minimax_m2.MiniMaxM2TopKRouter": Kind(LOGISTIC_OF_CHOSEN, rounds=False),
    "hy_v3.HYV3TopKRouter": Kind(LOGISTIC_OF_CHOSEN, rounds=False, exact=True, least=1e-20),
    "phimoe.PhimoeTopKRouter": Kind(OF_NEAR, rounds=True),
}
#: Attributes of routers that hold a linear layer.
LINEAR = ("proj", "wg")
#: A lower limit of the sum up to this is as good as adding it to the sum.
MOST_ADDED = 1e-6
#: By a router's `topk_method`: how many of a group's best experts make the group's score; 0 where there are no groups.
BEST = {None: 2, "greedy": 0, "group_limited_greedy": 1}
#: Attributes that hold what is added to experts' scores for choosing alone.
FAVOURS = ("expert_bias", "e_score_correction_bias")


class RouterParts(NamedTuple):
    """A row goes to the `each` experts with the greatest scores, which `weight` `[experts, in]` and a `bias` make.

    Without a weight, the router is one of the layer's products. Scores of a float32 linear layer are not rounded.
    `kind` says how it chooses, with the `counting` of this very router. For choosing, `favour` is added to the scores,
    and only experts of the best groups are taken: `groups` are the number of open groups, of all groups, and of the
    experts that make a group's score. Experts' weights are multiplied by a `factor`, or by each one's `counts`. The
    input may have a `norm` of its own, and is then multiplied by `scale`.
    """

    weight: torch.Tensor | None
    bias: torch.Tensor | None
    favour: torch.Tensor | None
    each: int
    groups: tuple[int, int, int]
    kind: Kind
    factor: float
    counts: torch.Tensor | None = None
    norm: NormParts | None = None
    scale: float = 1.0

    @classmethod
    def of(cls, block: Any, router: Any) -> "RouterParts":
        """The parts of a block's `router`. Raises ValueError for one that is not known."""
        name = like(router, ROUTERS)
        weight = None if name is None else _weight(router, ROUTERS[name])
        if name is None or not (weight is None or suits(weight, any_outputs=True)):
            raise ValueError(f"what chooses among its experts ({type(router).__name__}) is not known")
        kind = ROUTERS[name]
        if getattr(router, "norm_min", 0.0) > MOST_ADDED:
            raise ValueError(f"its router divides by {router.norm_min} at least")
        if weight is not None and part(router, *LINEAR) is not None:
            kind = kind._replace(rounds=False)
        if hasattr(router, "per_expert_scale"):
            counts, norm = router.per_expert_scale.float(), NormParts(router.scale, router.eps, rounds=True)
            each, scale = router.config.top_k_experts, router.scalar_root_size
            return cls(weight, None, None, each, ALL_GROUPS, kind, 1.0, counts, norm, scale)
        if getattr(router, "norm_topk_prob", False):
            kind = kind._replace(counting=SHARED.get(kind.counting, kind.counting))
        each = router.top_k
        if kind.counting == OF_NEAR:  # its code takes two, whatever `top_k` is
            each, kind = 2, kind._replace(least=2 * router.router_jitter_noise)
        bias = getattr(router, "bias", None)
        factor = part(router, "routed_scaling_factor", "router_scaling_factor") or 1.0
        return cls(weight, bias, _favour(block, router), each, _groups(router), kind, factor)


def _weight(router: Any, kind: Kind) -> torch.Tensor | None:
    """The router's weight; None for a linear layer that rounds its scores: that is one of the layer's products."""
    linear = part(router, *LINEAR)
    weight: torch.Tensor | None = getattr(router if linear is None else linear, "weight", None)
    if weight is None or (linear is not None and weight.dtype != torch.float32):
        return None
    return weight.detach().float() if kind.exact else weight.detach()


def _favour(block: Any, router: Any) -> torch.Tensor | None:
    homes = block, router, getattr(router, "moe_statics", None)
    found = next((each for home in homes if (each := part(home, *FAVOURS)) is not None), None)
    return None if found is None else found.detach().float().flatten()


def _groups(router: Any) -> tuple[int, int, int]:
    """The router's `groups`. Raises ValueError where open groups have too few experts to choose from."""
    method = getattr(router, "topk_method", None)
    if method not in BEST:
        raise ValueError(f"its way to choose among experts ({method}) is not known")
    if BEST[method] == 0:
        return ALL_GROUPS
    groups, of = getattr(router, "topk_group", 1), getattr(router, "num_group", 1)
    if of > 1 and router.top_k * of > groups * router.num_experts:
        raise ValueError("it chooses more experts than its open groups have")
    return groups, of, BEST[method]


class Mixture(NamedTuple):
    """A feed-forward of many `experts`, of which a `router` chooses a few.

    Experts beside a feed-forward (`APART`) have `norms`: of their input, of their output, and of the feed-forward's
    output.
    """

    experts: NativeExperts
    router: RouterParts
    norms: list[NormParts | None]

    @classmethod
    def of(cls, block: Any) -> "Mixture":
        """Raises ValueError for experts that are not ours, or chosen in another way."""
        kind = like(block, MIXTURES)
        if type(getattr(block, "fc1_latent_proj", nn.Identity())) is not nn.Identity:
            raise ValueError("its experts see fewer numbers than its layers have")
        if kind is None or not isinstance(block.experts, NativeExperts):
            raise ValueError(f"its experts ({type(block).__name__}) are not known")
        names = APART_NORMS if kind == APART else ()
        norms = [NormParts.of(getattr(block, name)) for name in names]
        return cls(block.experts, RouterParts.of(block, getattr(block, MIXTURES[kind])), norms)
