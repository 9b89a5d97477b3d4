"""Feed-forwards of many experts, and what chooses among them, where families' code is known (`known_code`)."""

from typing import Any, NamedTuple

import torch

from nbgen.engine.common_parts import NormParts
from nbgen.engine.known_code import like
from nbgen.engine.native_experts import NativeExperts
from nbgen.engine.native_linear import suits

#: Whose experts have norms of their own, as what chooses them has: a layer has them beside its feed-forward.
APART = "gemma4.Gemma4TextDecoderLayer"
#: Feed-forwards of many experts, and what is called what chooses them.
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
    APART: "router",
}
APART_NORMS = ("pre_feedforward_layernorm_2", "post_feedforward_layernorm_2", "post_feedforward_layernorm_1")
#: What an expert counts: its share of a softmax over those chosen or over all, or the logistic of its score, by itself
#: or as a share of those chosen.
OF_CHOSEN, OF_ALL, LOGISTIC, LOGISTIC_OF_CHOSEN = range(4)
#: What chooses them: what each counts, unless that is told to be a share of those chosen, and whether it is rounded.
ROUTERS = {
    "mixtral.MixtralTopKRouter": (OF_CHOSEN, False),
    "qwen3_moe.Qwen3MoeTopKRouter": (OF_ALL, True),
    "granitemoe.GraniteMoeTopKRouter": (OF_CHOSEN, True),
    "gpt_oss.GptOssTopKRouter": (OF_CHOSEN, True),
    "lfm2_moe.Lfm2MoeTopKRouter": (LOGISTIC, True),
    "qwen3_5_moe.Qwen3_5MoeTopKRouter": (OF_CHOSEN, True),
    "gemma4.Gemma4TextRouter": (OF_CHOSEN, False),
}


class RouterParts(NamedTuple):
    """A row goes to `each` of the experts of which `weight` `[experts, in]`, and a `bias`, make most.

    Without a weight, that is one of the layer's products. Of logistics, each expert is done a `favour` when they are
    chosen. What they count is multiplied by a `factor`, or by each one's `counts`, and rounded if that `rounds`. What
    goes in may have a `norm` of its own, and counts `scale` times then.
    """

    weight: torch.Tensor | None
    bias: torch.Tensor | None
    favour: torch.Tensor | None
    each: int
    rounds: bool
    counting: int
    factor: float
    counts: torch.Tensor | None = None
    norm: NormParts | None = None
    scale: float = 1.0

    @classmethod
    def of(cls, block: Any, router: Any) -> "RouterParts":
        """Of what a block chooses with. Raises ValueError for another way."""
        kind = like(router, ROUTERS)
        if kind is None or not (hasattr(router, "proj") or suits(router.weight)):
            raise ValueError(f"what chooses among its experts ({type(router).__name__}) is not known")
        counting, rounds = ROUTERS[kind]
        if hasattr(router, "proj"):
            counts, norm = router.per_expert_scale.float(), NormParts(router.scale, router.eps, rounds=True)
            each, scale = router.config.top_k_experts, router.scalar_root_size
            return cls(None, None, None, each, rounds, counting, 1.0, counts, norm, scale)
        if getattr(router, "norm_topk_prob", False):
            counting = {OF_ALL: OF_CHOSEN, LOGISTIC: LOGISTIC_OF_CHOSEN}.get(counting, counting)
        favour, factor = getattr(block, "expert_bias", None), getattr(router, "routed_scaling_factor", 1.0)
        bias = getattr(router, "bias", None)
        return cls(
            router.weight, bias, None if favour is None else favour.float(), router.top_k, rounds, counting, factor
        )


class Mixture(NamedTuple):
    """A feed-forward of many `experts`, of which a `router` chooses a few.

    Where these stand apart, there are `norms` of what goes into them, of what comes out, and of what comes out of the
    feed-forward beside them.
    """

    experts: NativeExperts
    router: RouterParts
    norms: list[NormParts | None]

    @classmethod
    def of(cls, block: Any) -> "Mixture":
        """Raises ValueError for experts that are not ours, or chosen in another way."""
        kind = like(block, MIXTURES)
        if kind is None or not isinstance(block.experts, NativeExperts):
            raise ValueError(f"its experts ({type(block).__name__}) are not known")
        names = APART_NORMS if kind == APART else ()
        norms = [NormParts.of(getattr(block, name)) for name in names]
        return cls(block.experts, RouterParts.of(block, getattr(block, MIXTURES[kind])), norms)
