"""What all kinds of layers are made of: norms, products, activations. Knows nothing of where these stand."""

from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from torch import nn

from nbgen.engine.known_code import like
from nbgen.engine.native_experts import GATES

#: What a norm's weights have besides, whether numbers are rounded before they are weighed, and whether it centers them.
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
#: Of who has it in its code alone.
EPSILON = 1e-5
#: Of heads, each of which has one of its own among their `norms`.
EACH_HEAD = ("stablelm.StableLmLayerNormPerHead",)


class NormParts(NamedTuple):
    """A norm of root mean squares over `weight`, which has an `offset` besides, or is that alone.

    One that `centers` is a layer's (Ba et al. 2016), perhaps with a `bias`. Of heads, the weight may be `[heads, dim]`.
    """

    weight: torch.Tensor | None
    epsilon: float
    offset: float = 0.0
    rounds: bool = False
    bias: torch.Tensor | None = None
    centers: bool = False

    @classmethod
    def of(cls, norm: Any) -> "NormParts | None":
        """Raises ValueError for another norm."""
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
    """Those `rows` of a `linear` layer's weight that make one thing, each of which may count as `counts` say."""

    linear: Any
    rows: slice
    counts: torch.Tensor | None = None

    @property
    def outputs(self) -> int:
        return len(range(self.linear.out_features)[self.rows])


def counted(products: dict[str, Product], by: dict[str, float]) -> dict[str, Product]:
    """The products, all outputs of which count so much by their names."""
    return {
        name: product._replace(counts=torch.full((product.outputs,), by[name])) if by.get(name, 1.0) != 1.0 else product
        for name, product in products.items()
    }


def cut(linear: Any, *sizes: int) -> list[Product]:
    """Products of so many outputs, one after the other, and of all that are left."""
    ends = [*accumulate(sizes, initial=0), linear.out_features]
    return [Product(linear, slice(start, end)) for start, end in pairwise(ends)]


class Xielu(NamedTuple):
    """What a layer has learned of its xIELU (Huang and Schlag 2024), as the C++ has it."""

    above: float
    below: float
    line: float
    edge: float

    @classmethod
    def of(cls, function: Any) -> "Xielu | None":
        """None for another function."""
        if not all(hasattr(function, name) for name in ("alpha_p", "alpha_n", "beta", "eps")):
            return None
        above, below = nn.functional.softplus(function.alpha_p), nn.functional.softplus(function.alpha_n)
        return cls(*(float(number) for number in (above, function.beta + below, function.beta, function.eps)))

    def __call__(self, numbers: torch.Tensor) -> torch.Tensor:
        power = numbers.clamp(max=self.edge).expm1()
        bent = torch.where(numbers > 0, self.above * numbers * numbers, (power - numbers) * self.below)
        return bent + self.line * numbers


class Activation(NamedTuple):
    """That of so many `GATES`, or behind them an `xielu`."""

    number: int
    xielu: Xielu | None = None

    @classmethod
    @torch.no_grad()
    def of(cls, function: Any) -> "Activation":
        """Raises ValueError for another."""
        numbers = torch.linspace(-12, 12, 49)
        made, all_through = function(numbers), torch.ones_like(numbers)
        for number, gate in enumerate(GATES):
            if torch.allclose(made, gate(numbers, all_through), 1e-5, 1e-6):
                return cls(number)
        if (xielu := Xielu.of(function)) is not None and torch.allclose(made, xielu(numbers), 1e-5, 1e-5):
            return cls(len(GATES), xielu)
        raise ValueError("the activation of its feed-forward is not known")


def part(module: Any, *names: str) -> Any:
    """What the module has under the first of these names under which it has something, if any."""
    return next((found for name in names if (found := getattr(module, name, None)) is not None), None)
