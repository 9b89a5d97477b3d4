"""Feed-forwards of many experts, and what chooses among them, where families' code is known (`known_code`)."""

from typing import Any, NamedTuple

import torch

from nbgen.engine.known_code import like
from nbgen.engine.native_experts import NativeExperts
from nbgen.engine.native_linear import suits

#: Feed-forwards of many experts, and what is called what chooses them.
MIXTURES = {
    "mixtral.MixtralSparseMoeBlock": "gate",
    "qwen3_moe.Qwen3MoeSparseMoeBlock": "gate",
    "olmoe.OlmoeSparseMoeBlock": "gate",
    "granitemoe.GraniteMoeMoE": "router",
    "gpt_oss.GptOssMLP": "router",
    "granitemoehybrid.GraniteMoeHybridMoE": "router",
    "qwen2_moe.Qwen2MoeSparseMoeBlock": "gate",
}
#: What chooses them: whether a softmax over all of them says what each counts, unless it is told to even them, and
#: whether that is rounded.
ROUTERS = {
    "mixtral.MixtralTopKRouter": (False, False),
    "qwen3_moe.Qwen3MoeTopKRouter": (True, True),
    "granitemoe.GraniteMoeTopKRouter": (False, True),
    "gpt_oss.GptOssTopKRouter": (False, True),
}


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
    """A feed-forward of many `experts`, of which a `router` chooses a few.

    What a feed-forward `beside` them makes counts as much as the logistic of a row's product with that `[in]` says.
    """

    experts: NativeExperts
    router: RouterParts
    beside: torch.Tensor | None

    @classmethod
    def of(cls, block: Any) -> "Mixture":
        """Raises ValueError for experts that are not ours, or chosen in another way."""
        kind = like(block, MIXTURES)
        router: Any = None if kind is None else getattr(block, MIXTURES[kind])
        chosen = None if router is None else like(router, ROUTERS)
        if chosen is None or not isinstance(block.experts, NativeExperts) or not suits(router.weight):
            raise ValueError(f"its experts, or what chooses them ({type(router).__name__}), are not known")
        among_all, rounds = ROUTERS[chosen]
        among_all &= not getattr(router, "norm_topk_prob", False)
        parts = RouterParts(router.weight, getattr(router, "bias", None), router.top_k, among_all, rounds)
        beside = getattr(block, "shared_expert_gate", None)
        return cls(block.experts, parts, None if beside is None else beside.weight[0])
