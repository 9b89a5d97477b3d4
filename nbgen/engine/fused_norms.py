"""RMS norms as one of torch's kernels instead of transformers' six: for models that `fused_model` does not serve.

It recognizes norms whose code is Llama's, in whatever family. Knows nothing else of models.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from nbgen.engine.linear import Swap, swap
from nbgen.engine.llama_like import is_norm

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class FusedNorm(nn.Module):
    """Replaces transformers' norm, over the same weight (Zhang & Sennrich 2019)."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = norm.weight, norm.variance_epsilon

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return nn.functional.rms_norm(hidden_states, self.weight.shape, self.weight, self.variance_epsilon)


def replace(model: "PreTrainedModel") -> list[Swap]:
    """Replace the model's norms."""
    return swap(model, lambda m: FusedNorm(m) if is_norm(m) and m.weight.dtype == model.dtype else None)
