"""Quantizes the weights of linear layers to `int8` or `int4`; the rest of the model stays as it is.

The layer that makes scores always has 8 bits, and so has any layer whose shape 4 bits do not suit. On a CPU the layers
are replaced by our own; on a GPU torchao changes their weights. Activations keep the model's type. Does not know how
files store weights (`quantized_checkpoint`).
"""

import logging
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from nbgen.engine import memory, native, native_experts, native_linear, shared_linear
from nbgen.engine.checkpoint import Report
from nbgen.engine.int4_linear import Int4Linear
from nbgen.engine.int8_linear import Int8Linear
from nbgen.engine.linear import FEW, IDS, is_plain, run, shown_weights
from nbgen.engine.native_experts import NativeExperts
from nbgen.engine.native_float8_linear import NativeFloat8Linear
from nbgen.engine.native_half_linear import HalfEmbedding, NativeHalfLinear
from nbgen.engine.native_int4_linear import NativeInt4Linear, fits, int4_layer
from nbgen.engine.native_int8_linear import NativeInt8Linear, int8_layer
from nbgen.engine.native_linear import NativeLinear, NativeProduct
from nbgen.engine.native_scaled_linear import NativeScaledLinear
from nbgen.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: The kinds of linear layers in a transformers model.
Linear = nn.Linear | Conv1D | NativeHalfLinear

log = logging.getLogger(__name__)

KINDS = ("int8", "int4")
#: Our own layers, by the bits of their weights.
OURS = {
    "4": (Int4Linear, NativeInt4Linear, NativeScaledLinear),
    "8": (Int8Linear, NativeInt8Linear, NativeFloat8Linear),
}
#: How many weights share a scale in torchao's GPU kernel of 4 bits.
GPU_GROUP = 64


@torch.inference_mode()
def quantize(model: "PreTrainedModel", kind: str, report: Report) -> int:
    """Quantize the model's linear layers in place; returns the bytes of all weights then. `report` gets weights done.

    Raises ModelError if less than half of the weights are in linear layers, or if the model does not run afterwards.
    """
    if kind not in KINDS:
        raise ModelError(f"quantization is {kind!r}; it must be one of {', '.join(KINDS)}")
    _check_share(model, kind)
    device = next(model.parameters()).device
    try:
        report(f"rounding weights to {kind}", 0, 0)
        if device.type == "cuda":
            _by_torchao(model, kind)
        else:
            _by_ours(model, kind, report)
        run(model)
    except ModelError:
        raise
    except Exception as error:  # a model may do anything with its layers, and a GPU may be too old
        log.exception("trying %s in %s", type(model).__name__, kind)
        raise ModelError(f"{type(model).__name__} does not run with {kind} weights: load it without") from error
    return held_bytes(model)


def held_bytes(model: nn.Module) -> int:
    """The bytes of all the model's weights, in whatever kind of layer. Weights that layers share count once."""
    layers = _layers(model)
    layers += [layer.shared.linear for layer in layers if isinstance(layer, shared_linear.Part)]
    own = {id(layer): layer for layer in layers if isinstance(layer, (Int8Linear, Int4Linear, NativeProduct))}
    rounded = [layer for layer in own.values() if not isinstance(layer, NativeHalfLinear)]
    halves = [layer.halves for layer in layers if isinstance(layer, NativeHalfLinear)]
    halves += [layer.weight for layer in layers if isinstance(layer, HalfEmbedding)]
    lying = {weight.data_ptr(): weight.nbytes for weight in halves}
    return sum(layer.nbytes for layer in rounded) + sum(lying.values()) + sum(map(_nbytes, model.parameters()))


def _layers(model: nn.Module) -> list[nn.Module]:
    """All modules, and the products of mixtures of experts, which are not registered as submodules."""
    mixtures = [module for module in model.modules() if isinstance(module, NativeExperts)]
    return [*model.modules(), *(product for each in mixtures for product in each.products)]


def _by_ours(model: "PreTrainedModel", kind: str, report: Report) -> None:
    head, shown = model.get_output_embeddings(), shown_weights(model)
    rounded = [module for module in model.modules() if id(module) not in shown]
    done, total = 0, sum(weight.numel() for module in rounded for weight in _weights_of(module, ours=True))

    def layer(linear: Linear | NativeLinear, bits: str) -> Any:
        nonlocal done
        weight = _weight(linear).contiguous()
        four_bits = bits == "int4" and fits(weight)
        made = (int4_layer if four_bits else int8_layer)(weight.detach(), linear.bias)
        done += weight.numel()
        report(f"rounding weights to {kind}", done, total)
        return made

    def shares(module: nn.Module) -> bool:
        return suits(module) and module is not head and not native_linear.suits(_weight(module))

    for places in shared_linear.groups_with_same_input(model, IDS, shares):
        linears = [linear for _, _, linear in places]
        shared = shared_linear.SharedLinear(linears, lambda joined: layer(joined, kind))
        for index, (parent, name, linear) in enumerate(places):
            _put(parent, name, linear, shared_linear.Part(shared, index, linear))
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if suits(child) and id(child) not in shown:
                _put(parent, name, child, layer(child, "int8" if child is head else kind))
            elif native.rounds(model.dtype) and (experts := _experts(child)) is not None:
                setattr(parent, name, experts.remade(lambda product: _kept(product) or layer(product, kind)))
                memory.drop_pages(*_weights_of(child, ours=True))


def kept_bits(model: "PreTrainedModel") -> str | None:
    """The bits of weights in our quantized layers: "4 bits", "4 and 8 bits"; "" if there are no such layers.

    None on a GPU, which never has them.
    """
    if model.device.type == "cuda":
        return None
    layers = _layers(model)
    found = [bits for bits, kinds in OURS.items() if any(isinstance(layer, kinds) for layer in layers)]
    return f"{' and '.join(found)} bits" if found else ""


def suits(module: nn.Module) -> TypeGuard[Linear]:
    """Whether to quantize the layer. Not subclasses, which may compute otherwise, nor small ones, which save little."""
    weight = _stored(module) if type(module) in (nn.Linear, Conv1D, NativeHalfLinear) else None
    return isinstance(weight, torch.Tensor) and weight.dtype.is_floating_point and min(weight.shape, default=0) >= FEW


def _weights_of(module: nn.Module, *, ours: bool) -> list[torch.Tensor]:
    """The weights of the module itself (not of its children) that are rounded; those of experts only if `ours`."""
    if suits(module):
        return [_stored(module)]
    if isinstance(module, NativeExperts):
        return [_stored(product) for product in module.products if not _kept(product)]
    return native_experts.stored(module) if ours and native_experts.known(module) else []


def _kept(product: nn.Module) -> nn.Module | None:
    """The product itself if its weight has 4 bits already, else None."""
    return product if isinstance(product, NativeScaledLinear) else None


def _experts(module: nn.Module) -> NativeExperts | None:
    if isinstance(module, NativeExperts):
        return module
    return native_experts.of(module) if native_experts.known(module) else None


def _stored(linear: Any) -> Any:
    return linear.halves if isinstance(linear, NativeHalfLinear) else linear.weight


def _weight(linear: Linear | NativeLinear) -> torch.Tensor:
    """The weight `[out, in]`, in the type that the layer computes in."""
    if isinstance(linear, NativeHalfLinear):
        return linear.halves.float()
    return linear.weight.T if isinstance(linear, Conv1D) else linear.weight


def _put(parent: nn.Module, name: str, linear: Linear, layer: nn.Module) -> None:
    setattr(parent, name, layer)
    memory.drop_pages(_stored(linear))


def _check_share(model: "PreTrainedModel", kind: str) -> None:
    """Raise ModelError if less than half of the weights are in linear layers (transformers' experts are not)."""
    ours = model.device.type == "cpu"
    inside = {weight.data_ptr(): weight for module in model.modules() for weight in _weights_of(module, ours=ours)}
    embedding = model.get_input_embeddings().weight
    outside = sum(p.numel() for p in model.parameters() if p.data_ptr() not in inside and p is not embedding)
    share = sum(weight.numel() for weight in inside.values())
    if share < outside:
        raise ModelError(
            f"quantization {kind!r} is for linear layers, and {outside:,} of this model's weights are elsewhere "
            f"({share:,} in linear layers), as in mixtures of experts: load it without"
        )


def _by_torchao(model: "PreTrainedModel", kind: str) -> None:
    try:
        from torchao.quantization import Int4WeightOnlyConfig, Int8WeightOnlyConfig, quantize_
    except ImportError:
        raise ModelError(f"quantization {kind!r} on a GPU needs torchao: pip install 'nbgen[quantization]'") from None
    own = {"set_inductor_config": False}  # that config belongs to the whole process
    head, eight = model.get_output_embeddings(), Int8WeightOnlyConfig(**own)
    _unflip(model)
    if kind == "int4":
        if model.dtype != torch.bfloat16:
            raise ModelError("quantization 'int4' on a GPU is for bfloat16: load with dtype='bfloat16', or take 'int8'")
        four = Int4WeightOnlyConfig(group_size=GPU_GROUP, int4_packing_format="tile_packed_to_4d", **own)
        fits = lambda module, _: is_plain(module) and module is not head and module.in_features % 1024 == 0  # noqa: E731
        quantize_(model, four, fits)
    quantize_(model, eight, lambda module, _: is_plain(module))


def _unflip(model: "PreTrainedModel") -> None:
    """Replace each `Conv1D`, which torchao does not know, by an `nn.Linear`."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is Conv1D:
                linear = nn.Linear(child.nx, child.nf, device="meta")
                linear.weight = nn.Parameter(child.weight.T.contiguous(), requires_grad=False)
                linear.bias = child.bias
                setattr(parent, name, linear)


def _nbytes(weight: torch.Tensor) -> int:
    """The bytes of a weight. A tensor of torchao reports the size before quantization, so its parts are counted."""
    if not hasattr(weight, "__tensor_flatten__"):
        return weight.nbytes
    return sum(getattr(weight, name).nbytes for name in weight.__tensor_flatten__()[0])
