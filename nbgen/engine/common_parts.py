"""Parts that all kinds of layers have: norms, products, activations. Does not know where these stand in a layer."""

from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from torch import nn

from nbgen.engine.known_code import like
from nbgen.engine.native_experts import GATES

#: Offset added to a norm's weights; whether numbers are rounded before they are multiplied; whether it centers them.
NORMS = {
    "llama.LlamaRMSNorm": (0.0, True, False),
    "gemma2.Gemma2RMSNorm": (1.0, False, False),
    "gemma3.Gemma3RMSNorm": (1.0, False, False),
    "olmo2.Olmo2RMSNorm": (0.0, False, False),
    "olmo3.Olmo3RMSNorm": (0.0, False, False),
    "nemotron.NemotronLayerNorm1P": (1.0, False, True),
    "gemma3n.Gemma3nRMSNorm": (0.0, False, False),
    "gemma4.Gemma4RMSNorm": (0.0, False, False),
    "nemotron_h.NemotronHRMSNorm": (0.0, False, False),
    "cohere.CohereLayerNorm": (0.0, False, True),
    "olmo.OlmoLayerNorm": (1.0, False, True),
    "helium.HeliumRMSNorm": (0.0, False, False),
    "nanochat.NanoChatRMSNorm": (1.0, False, False),
}
#: For norms with the epsilon in their code only.
EPSILON = 1e-5
#: Norms of heads that have a module for each head, in `norms`.
EACH_HEAD = ("stablelm.StableLmLayerNormPerHead",)


class NormParts(NamedTuple):
    """An RMS norm whose factor is `weight + offset`, or `offset` alone without a weight.

    One that `centers` is a layer norm (Ba et al. 2016), perhaps with a `bias`. A norm of heads may have `[heads, dim]`.
    """

    weight: torch.Tensor | None
    epsilon: float
    offset: float = 0.0
    rounds: bool = False
    bias: torch.Tensor | None = None
    centers: bool = False

    @classmethod
    def of(cls, norm: Any) -> "NormParts | None":
        """Raises ValueError for an unknown norm."""
        if norm is None or type(norm) is nn.Identity:
            return None
        if type(norm) is nn.LayerNorm and norm.weight is not None:
            return cls(norm.weight, norm.eps, bias=norm.bias, centers=True)
        if like(norm, EACH_HEAD):
            weight = torch.stack([each.weight.detach() for each in norm.norms])
            return cls(weight, norm.norms[0].eps, centers=True)
        name = like(norm, NORMS)
        if name is None:
            raise ValueError(f"its norm ({type(norm).__name__}) is not known")
        offset, rounds, centers = NORMS[name]
        own, bias = (getattr(norm, name, None) for name in ("weight", "bias"))
        epsilon = part(norm, "variance_epsilon", "eps")
        return cls(own, EPSILON if epsilon is None else epsilon, offset, rounds, bias, centers)


class Product(NamedTuple):
    """The `rows` of a `linear` layer's weight for one purpose; `counts` are factors of its outputs, if any."""

    linear: Any
    rows: slice
    counts: torch.Tensor | None = None

    @property
    def outputs(self) -> int:
        return len(range(self.linear.out_features)[self.rows])


def counted(products: dict[str, Product], by: dict[str, float]) -> dict[str, Product]:
    """The products, with all outputs multiplied by the factor of their name in `by`."""
    return {
        name: product._replace(counts=torch.full((product.outputs,), by[name])) if by.get(name, 1.0) != 1.0 else product
        for name, product in products.items()
    }


def cut(linear: Any, *sizes: int) -> list[Product]:
    """Consecutive products of `sizes` outputs, and one of all that are left."""
    ends = [*accumulate(sizes, initial=0), linear.out_features]
    return [Product(linear, slice(start, end)) for start, end in pairwise(ends)]


class Xielu(NamedTuple):
    """A layer's learned parameters of xIELU (Huang and Schlag 2024), in the C++'s form."""

    above: float
    below: float
    line: float
    edge: float

    @classmethod
    def of(cls, function: Any) -> "Xielu | None":
        """None for any other function."""
        if not all(hasattr(function, name) for name in ("alpha_p", "alpha_n", "beta", "eps")):
            return None
        above, below = nn.functional.softplus(function.alpha_p), nn.functional.softplus(function.alpha_n)
        return cls(*(float(number) for number in (above, function.beta + below, function.beta, function.eps)))

    def __call__(self, numbers: torch.Tensor) -> torch.Tensor:
        power = numbers.clamp(max=self.edge).expm1()
        bent = torch.where(numbers > 0, self.above * numbers * numbers, (power - numbers) * self.below)
        return bent + self.line * numbers


class Activation(NamedTuple):
    """The activation with this `number` in `GATES`; the number after the last is an `xielu`."""

    number: int
    xielu: Xielu | None = None

    @classmethod
    @torch.no_grad()
    def of(cls, function: Any) -> "Activation":
        """Raises ValueError for an unknown function."""
        numbers = torch.linspace(-12, 12, 49)
        made, all_through = function(numbers), torch.ones_like(numbers)
        for number, gate in enumerate(GATES):
            if torch.allclose(made, gate(numbers, all_through), 1e-5, 1e-6):
                return cls(number)
        if (xielu := Xielu.of(function)) is not None and torch.allclose(made, xielu(numbers), 1e-5, 1e-5):
            return cls(len(GATES), xielu)
        raise ValueError("the activation of its feed-forward is not known")


def part(module: Any, *names: str) -> Any:
    """The module's first attribute of these names that exists and is not None, if any."""
    return next((found for name in names if (found := getattr(module, name, None)) is not None), None)
