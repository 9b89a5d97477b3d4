"""The parts of a recurrent layer that stand in place of attention, where its family's code is known (`known_code`).

They are a convolution over a few tokens, and in most families a rule that updates a state with its results.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from nbgen.engine.common_parts import NormParts, Product, cut, part
from nbgen.engine.known_code import like
from nbgen.engine.native_linear import ALL
from nbgen.engine.state_fields import LANES

#: The gated delta rule, a selective state space, or a convolution alone.
DELTA_RULE, STATE_SPACE, CONVOLUTION_ALONE = range(3)
RULES = {
    "qwen3_5.Qwen3_5GatedDeltaNet": DELTA_RULE,
    "granitemoehybrid.GraniteMoeHybridMambaLayer": STATE_SPACE,
    "bamba.BambaMixer": STATE_SPACE,
    "lfm2.Lfm2ShortConv": CONVOLUTION_ALONE,
    "qwen3_next.Qwen3NextGatedDeltaNet": DELTA_RULE,
    "nemotron_h.NemotronHMamba2Mixer": STATE_SPACE,
    "falcon_h1.FalconH1Mixer": STATE_SPACE,
}
#: Families whose products give queries, keys, values and gates group by group; steps and shares (decay, beta) likewise.
JOINED = ("qwen3_next.Qwen3NextGatedDeltaNet",)
#: Gated norms: whether the gate multiplies the norm's input (True) or its result.
NORMS = {
    "qwen3_5.Qwen3_5RMSNormGated": False,
    "granitemoehybrid.GraniteMoeHybridRMSNormGated": True,
    "bamba.BambaRMSNormGated": True,
    "nemotron_h.NemotronHRMSNormGated": True,
    "zamba2.Zamba2RMSNormGated": True,  # Nemotron-H uses it in older versions of transformers
    "qwen3_next.Qwen3NextRMSNormGated": False,
}
#: The most tokens that a convolution may see.
MOST_TAPS = 8
#: The limits of a token's step size where the model sets none.
UNLIMITED = (0.0, float("inf"))


class RuleParts(NamedTuple):
    """`heads` of `rows` numbers each, and `groups` of heads that share `size` numbers.

    A head's state decays at its rate in `rates`; a token's step size has the bias `step_bias` and stays in `limits`.
    `direct` weighs a head's input that is added to its output (Mamba's D). `norm` norms every `normed` numbers of the
    result, which its gate multiplies before (`opens_first`) or after that.
    """

    heads: int
    groups: int
    rows: int
    size: int
    rates: torch.Tensor
    step_bias: torch.Tensor
    limits: tuple[float, float]
    direct: torch.Tensor | None
    norm: NormParts | None
    normed: int
    opens_first: bool

    @classmethod
    def of(cls, mixer: Any, rule: int) -> "RuleParts":
        """Raises ValueError for a rule that the C++ does not know."""
        norm, rates = mixer.norm, -torch.exp(mixer.A_log.detach().float())
        if rule == DELTA_RULE:
            sizes = mixer.num_v_heads, mixer.num_k_heads, mixer.head_v_dim, mixer.head_k_dim
            direct, normed, lanes = None, mixer.head_v_dim, mixer.head_v_dim
        else:
            sizes = mixer.num_heads, mixer.n_groups, mixer.head_dim, mixer.ssm_state_size
            direct, lanes = mixer.D.detach().float().contiguous(), mixer.ssm_state_size
            normed = getattr(norm, "group_size", mixer.intermediate_size)  # older versions norm all as one group
        kind, is_none = like(norm, NORMS), type(norm) is nn.Identity
        suits = lanes % LANES == 0 and sizes[0] % sizes[1] == 0 and mixer.dt_bias.dtype == mixer.conv1d.weight.dtype
        if not suits or (kind is None and not is_none):
            raise ValueError(f"the states of its layers ({type(mixer).__name__}) are of another kind")
        least, most = getattr(mixer, "time_step_limit", None) or UNLIMITED
        made = None if is_none else NormParts(norm.weight, norm.variance_epsilon, 0.0, True)
        steps = mixer.dt_bias.detach(), (least, most)
        return cls(*sizes, rates.contiguous(), *steps, direct, made, normed, kind is not None and NORMS[kind])


class RecurrentParts(NamedTuple):
    """Those of layer `number`: the convolution's `kernel` `[taps, channels]` and `bias`, and the `rule` with its parts.

    `joined`: its products give their numbers group by group (`JOINED`).
    """

    number: int
    rule: int
    joined: bool
    kernel: torch.Tensor
    bias: torch.Tensor | None
    own: RuleParts | None

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of one sequence's states, by their names in transformers' cache."""
        taps, channels = self.kernel.shape
        found: dict[str, tuple[int, ...]] = {"conv_states": (channels, taps)}
        if self.own is not None:
            heads, _, rows, size, *_ = self.own
            found["recurrent_states"] = (heads, rows, size) if self.rule == STATE_SPACE else (heads, size, rows)
        return found

    @classmethod
    def of(cls, mixer: Any) -> "RecurrentParts":
        """Raises ValueError for a layer that does anything else."""
        if (kind := like(mixer, RULES)) is None:
            raise ValueError(f"its recurrent layers ({type(mixer).__name__}) are not known")
        rule = RULES[kind]
        convolution = mixer.conv if rule == CONVOLUTION_ALONE else mixer.conv1d
        if rule != CONVOLUTION_ALONE and mixer.activation not in ("silu", "swish"):
            raise ValueError(f"the activation of its convolutions ({mixer.activation}) is not known")
        kernel, bias = convolution.weight.detach()[:, 0].T.float().contiguous(), convolution.bias
        if len(kernel) > MOST_TAPS:
            raise ValueError(f"its convolutions see {len(kernel)} tokens")
        own = None if rule == CONVOLUTION_ALONE else RuleParts.of(mixer, rule)
        bias = None if bias is None else bias.detach().float()
        return cls(mixer.layer_idx, rule, kind in JOINED, kernel, bias, own)


def products(mixer: Any) -> dict[str, Product]:
    """The layer's products: `mixed` feeds the convolution, `opening` is the gate, `steps` and `shares` feed the rule.

    Where groups are `joined`, `mixed` contains the gate and `steps` contains the shares.
    """
    output = Product(mixer.out_proj, ALL)
    if hasattr(mixer, "in_proj_qkvz"):
        made = {"mixed": Product(mixer.in_proj_qkvz, ALL), "steps": Product(mixer.in_proj_ba, ALL)}
    elif hasattr(mixer, "in_proj_qkv"):
        names = {"mixed": "qkv", "opening": "z", "steps": "a", "shares": "b"}
        made = {of: Product(mixer.get_submodule(f"in_proj_{name}"), ALL) for of, name in names.items()}
    elif hasattr(mixer, "conv1d"):
        parts = cut(mixer.in_proj, mixer.intermediate_size, mixer.conv_dim)
        made = dict(zip(("opening", "mixed", "steps"), map(_counted(mixer), parts), strict=True))
    else:
        made = {"mixed": Product(mixer.in_proj, ALL)}
    return {**made, "output": output}


def _counted(mixer: Any) -> Callable[[Product], Product]:
    """Scales products by the model's multipliers, if any: one for each output, one for the input (Falcon-H1)."""
    if (counts := part(mixer, "mup_vector")) is None:
        return lambda product: product
    if mixer.in_proj.bias is not None and mixer.ssm_in_multiplier != 1.0:
        raise ValueError("what its recurrent layers add counts less than their inputs")
    every = counts.detach().float().flatten() * mixer.ssm_in_multiplier
    return lambda product: product._replace(counts=every[product.rows].contiguous())
