"""What a recurrent layer has in place of attention, where its family's code is known (`known_code`).

A convolution over a few tokens, and a rule by which states remember what comes of it, or none.
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
#: Whose queries, keys, values and what opens these are made group by group, and so are shares and steps.
JOINED = ("qwen3_next.Qwen3NextGatedDeltaNet",)
#: Norms whose result is opened, or whose input.
NORMS = {
    "qwen3_5.Qwen3_5RMSNormGated": False,
    "granitemoehybrid.GraniteMoeHybridRMSNormGated": True,
    "bamba.BambaRMSNormGated": True,
    "nemotron_h.NemotronHRMSNormGated": True,
    "zamba2.Zamba2RMSNormGated": True,  # which is that of Nemotron-H in older versions of transformers
    "qwen3_next.Qwen3NextRMSNormGated": False,
}
#: Tokens that a convolution sees at most.
MOST_TAPS = 8
#: How far a token may step, where that is not limited.
UNLIMITED = (0.0, float("inf"))


class RuleParts(NamedTuple):
    """`heads` of `rows` numbers each, and `groups` of heads that share `size` numbers.

    A head fades at its rate of `rates`, by steps with a bias of `step_bias` and within `limits`, and may go `direct`
    besides. What is made
    goes through a `norm` of every `normed` numbers, and is opened before that or after it.
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
        """Raises ValueError for one that the C++ does not know."""
        norm, rates = mixer.norm, -torch.exp(mixer.A_log.detach().float())
        if rule == DELTA_RULE:
            sizes = mixer.num_v_heads, mixer.num_k_heads, mixer.head_v_dim, mixer.head_k_dim
            direct, normed, lanes = None, mixer.head_v_dim, mixer.head_v_dim
        else:
            sizes = mixer.num_heads, mixer.n_groups, mixer.head_dim, mixer.ssm_state_size
            direct, lanes = mixer.D.detach().float().contiguous(), mixer.ssm_state_size
            normed = getattr(norm, "group_size", mixer.intermediate_size)  # which older versions norm as one
        kind, is_none = like(norm, NORMS), type(norm) is nn.Identity
        suits = lanes % LANES == 0 and sizes[0] % sizes[1] == 0 and mixer.dt_bias.dtype == mixer.conv1d.weight.dtype
        if not suits or (kind is None and not is_none):
            raise ValueError(f"the states of its layers ({type(mixer).__name__}) are of another kind")
        least, most = getattr(mixer, "time_step_limit", None) or UNLIMITED
        made = None if is_none else NormParts(norm.weight, norm.variance_epsilon, 0.0, True)
        steps = mixer.dt_bias.detach(), (least, most)
        return cls(*sizes, rates.contiguous(), *steps, direct, made, normed, kind is not None and NORMS[kind])


class RecurrentParts(NamedTuple):
    """The layer of this `number`: a `kernel` `[taps, channels]` with a `bias` or none, and the rule's own parts.

    What goes in may be made of groups that are `joined`.
    """

    number: int
    rule: int
    joined: bool
    kernel: torch.Tensor
    bias: torch.Tensor | None
    own: RuleParts | None

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of a sequence's states, by what transformers' cache calls them."""
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
    """Mixed numbers for the convolution, and for rules what opens their result, steps and shares; and output.

    Where groups are joined, mixed numbers have what opens the result among them, and steps the shares.
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
    """Where each output counts as much as its own number, and all as an input counts (Falcon-H1)."""
    if (counts := part(mixer, "mup_vector")) is None:
        return lambda product: product
    if mixer.in_proj.bias is not None and mixer.ssm_in_multiplier != 1.0:
        raise ValueError("what its recurrent layers add counts less than their inputs")
    every = counts.detach().float().flatten() * mixer.ssm_in_multiplier
    return lambda product: product._replace(counts=every[product.rows].contiguous())
