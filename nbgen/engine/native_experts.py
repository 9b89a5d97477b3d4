"""Experts of a mixture in C++ of our own, over weights as they lie in their file or of fewer bits. CPU only.

transformers tells for every family's experts how their weights are laid out (`use_experts_implementation`). The router
has chosen a token's experts before. A row's result never depends on the rows beside it, to the last bit.
"""

import ctypes
from collections.abc import Callable, Iterator
from ctypes import c_int64, c_void_p
from typing import Any

import torch
from torch import nn

from nbgen.engine import memory
from nbgen.engine.expert_routes import RouteRoom, laid_out
from nbgen.engine.linear import Swap, swap
from nbgen.engine.native import function
from nbgen.engine.native_half_linear import NativeHalfLinear, as_float32
from nbgen.engine.native_linear import LinearFields, NativeLinear, NativeProduct, suits

#: Inputs by which an activation is recognised: every pair of a gate value and an up value.
TRIED = torch.cartesian_prod(torch.linspace(-12, 12, 49), torch.linspace(-12, 12, 49)).T
#: The rows of gate and of up in a weight in which they alternate.
EVEN, ODD = slice(0, None, 2), slice(1, None, 2)
#: Limit and slope of gpt-oss's gate.
LIMIT, SLOPE = 7.0, 1.702


class ExpertsFields(ctypes.Structure):
    """`Experts` of the C++."""

    _fields_ = [*((name, c_void_p) for name in ("gates", "ups", "downs")), ("count", c_int64), ("activation", c_int64)]


class NativeExperts(nn.Module):
    """Replaces a family's experts: each has products for gate, up and down, or for gate and down."""

    def __init__(self, experts: list[list[NativeProduct]], activation: int, dtype: torch.dtype) -> None:
        """`dtype` is that of rows; `activation` is an index of `GATES`."""
        super().__init__()
        if (mix := function("mix", dtype)) is None:
            raise ValueError(f"no experts of our own for {dtype}")
        self._mix, self.dtype, self._activation = mix, dtype, activation
        self.num_experts, self._experts = len(experts), experts
        self.within, self.width = experts[0][0].out_features, experts[0][0].in_features
        table = LinearFields * len(experts)
        self._linears = [table(*(product.fields() for product in each)) for each in zip(*experts, strict=True)]
        gates, *ups, downs = map(ctypes.addressof, self._linears)
        self.fields = ExpertsFields(gates, ups[0] if ups else None, downs, self.num_experts, activation)

    @property
    def products(self) -> Iterator[NativeProduct]:
        """The products of all experts."""
        return (product for expert in self._experts for product in expert)

    def remade(self, make: Callable[[Any], Any]) -> "NativeExperts":
        """The same experts with other products, each made from one of these by `make`."""
        made = [[make(each) for each in expert] for expert in self._experts]
        return NativeExperts(made, self._activation, self.dtype)

    def sizes(self, each: int) -> dict[str, int]:
        """How many numbers a row that goes to `each` experts needs in each buffer (`expert_routes`)."""
        within, width = each * self.within, each * self.width
        return {"gathered": width, "gates": within, "ups": within, "made": width}

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """`[rows, hidden]` from as many rows, each row's experts `[rows, each]`, and their weights in the sum."""
        if hidden_states.dtype != self.dtype:
            raise RuntimeError(f"expected rows of {self.dtype}, and got {hidden_states.dtype}")
        rows, each = top_k_index.shape
        hidden = hidden_states.contiguous()
        _room, at = laid_out(rows, self.sizes(each), self.dtype)
        routes, output = RouteRoom(rows, each, self.num_experts, at), torch.empty_like(hidden)
        routes.chosen.copy_(top_k_index)
        routes.shares.copy_(top_k_weights)
        self._mix(ctypes.byref(self.fields), ctypes.byref(routes.fields), hidden.data_ptr(), output.data_ptr())
        return output


def replace(model: nn.Module) -> list[Swap]:
    """Replace the model's experts whose weights can be read as they are.

    Weights with another layout are copied, and their file's pages dropped, if there is memory for all of them.
    """
    others = [module for module in model.modules() if known(module) and not _is_here(module)]
    copied = others if others and _may_be_copied([weight for module in others for weight in stored(module)]) else []

    def ours(module: nn.Module) -> nn.Module | None:
        if module not in copied:
            return of(module) if known(module) and _is_here(module) else None
        made = of(module)
        memory.drop_pages(*stored(module))
        return made

    return swap(model, ours)


def _may_be_copied(weights: list[torch.Tensor]) -> bool:
    free, _ = memory.device_memory(torch.device("cpu"))
    return sum(each.nbytes for each in weights) < free and memory.are_mapped(*weights)


def of(module: nn.Module, *, in_float32: bool = False) -> NativeExperts:
    """Experts of our own over the weights of a family's `known` ones, which are copied if their layout is another.

    Weights of 16 bits may compute `in_float32`.
    """
    experts: Any = module
    layer: Callable[..., NativeProduct] = NativeHalfLinear if in_float32 else NativeLinear
    made = [[layer(*each) for each in _weights(experts, index)] for index in range(len(experts.down_proj))]
    return with_products(module, made, torch.float32 if in_float32 else experts.down_proj.dtype)


def with_products(module: nn.Module, products: list[list[NativeProduct]], dtype: torch.dtype) -> NativeExperts:
    """Experts of our own in place of `module`, with these products for each expert, which take rows of `dtype`."""
    activation = _activation(module)
    assert activation is not None
    return NativeExperts(products, activation, dtype)


def known(module: nn.Module, *, in_float32: bool = False) -> bool:
    """Whether these are experts that compute just what ours do, with weights that the C++ has a product for."""
    if _activation(module) is None or module.down_proj.device.type != "cpu":
        return False
    shapes = (as_float32(weight) if in_float32 else weight for weight, _ in _weights(module, 0))
    return all(map(suits, shapes))


def names(module: Any) -> tuple[str, str]:
    """What the weights of a family's experts are called."""
    return "gate_up_proj" if module.has_gate else "up_proj", "down_proj"


def stored(module: Any) -> list[torch.Tensor]:
    """The weights of a family's experts, `[experts, …]` each."""
    return [getattr(module, name).detach() for name in names(module)]


def _activation(module: Any) -> int | None:
    """The index in `GATES` of experts' activation; None for other modules, and experts that compute more than ours."""
    told = hasattr(module, "has_gate") and not getattr(module, "has_post_expert_norm", False)
    if not told or not isinstance(getattr(module, names(module)[0], None), nn.Parameter):
        return None
    gates, ups = TRIED if module.has_gate else (TRIED[0], torch.ones_like(TRIED[0]))
    made = module._apply_gate(_joined(module, gates, ups)[None])[0] if module.has_gate else module.act_fn(gates)
    found = (number for number, gate in enumerate(GATES) if torch.allclose(made, gate(gates, ups), 1e-5, 1e-5))
    return next(found, None)


def _joined(module: Any, gates: torch.Tensor, ups: torch.Tensor) -> torch.Tensor:
    return torch.cat([gates, ups]) if module.is_concatenated else torch.stack([gates, ups], -1).flatten()


def lies_well(module: Any) -> bool:
    """Whether the weights are laid out like ours, `[out, in]` with gate before up, and without bias."""
    return not module.is_transposed and module.is_concatenated and not module.has_bias


def _is_here(module: Any) -> bool:
    """Whether none of its weights must be copied."""
    weights = [weight for weight in stored(module) if weight.device.type == "cpu" and weight.is_contiguous()]
    return lies_well(module) and len(weights) == len(stored(module))


def _weights(module: Any, index: int) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
    """Weight `[out, in]` and bias of one expert's gate, up and down, or of gate and down."""
    both, down = (weight[index].T if module.is_transposed else weight[index] for weight in stored(module))
    bias = getattr(module, f"{names(module)[0]}_bias")[index] if module.has_bias else None
    halves = (slice(None, len(both) // 2), slice(len(both) // 2, None)) if module.is_concatenated else (EVEN, ODD)
    for part in halves if module.has_gate else (slice(None),):
        yield both[part].contiguous(), None if bias is None else bias[part].contiguous()
    yield down.contiguous(), module.down_proj_bias[index] if module.has_bias else None


def _clamped(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    gate = gate.clamp(max=LIMIT)
    return (up.clamp(-LIMIT, LIMIT) + 1) * gate * torch.sigmoid(gate * SLOPE)


#: The activations, by their numbers in the C++.
GATES: tuple[Callable[[torch.Tensor, torch.Tensor], torch.Tensor], ...] = (
    lambda gate, up: nn.functional.silu(gate) * up,
    lambda gate, up: nn.functional.gelu(gate, approximate="tanh") * up,
    _clamped,
    lambda gate, up: nn.functional.gelu(gate) * up,
    lambda gate, up: nn.functional.relu(gate) * up,
    lambda gate, up: nn.functional.relu(gate).square() * up,
)
