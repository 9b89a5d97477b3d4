"""Finds which layers of a checkpoint hold numbers of 8 or 4 bits with scales beside them, from its files' tensors.

Knows FP8 (E4M3) and int8, with scales for a whole weight, its outputs or its blocks, NVFP4 and MXFP4. DeepSeek,
Mistral, FBGEMM, ModelOpt, Quark and compressed-tensors write these alike, under different names. Knows nothing of
torch.
"""

from typing import Any

import msgspec

from nbgen.errors import ModelError
from nbgen.safetensors_file import Entry

#: Checkpoints' names for formats with such layers.
METHODS = {"compressed-tensors", "fbgemm_fp8", "fp8", "modelopt", "mxfp8", "quark"}
#: Names of a layer's tensors, after the layer's own name: numbers, scales, a factor and a divisor of the scales, and
#: scales for rounding inputs, which are not used: inputs stay exact.
NUMBERS = ("weight", "weight_packed")
SCALES = ("weight_scale_inv", "weight_scale")
TIMES, BY = "weight_scale_2", "weight_global_scale"
OF_INPUTS = ("input_scale", "activation_scale", "input_global_scale", "input_scale_ub")
#: Tensors that change inputs before they are multiplied by the weight.
CHANGING = (".pre_quant_scale", ".input_rotation")
#: Types of floats and integers of 8 bits, and of pairs of 4 bits; by the type of scales, how many such pairs share one.
EIGHT, WHOLE, TWO_OF_FOUR = "F8_E4M3", "I8", "U8"
OF_A_SCALE = {"F8_E4M3": 8, "F8_E8M0": 16, "U8": 16}
#: Types of scales for integers.
PLAIN = ("F32", "F16", "BF16")
#: Types of quantized tensors: their numbers are not the weights themselves.
ROUNDED = ("F8_E4M3", "F8_E5M2", "F8_E8M0", "U8", "I8", "I32")


def bits(held: dict[str, Entry], name: str) -> dict[str, int] | None:
    """The bits of a number in each layer; None if anything is rounded in another way. `held` are the files' tensors.

    Raises ModelError if some layers have scales and others lack them.
    """
    scales = {each.rpartition(".")[0]: each for each in held if each.rpartition(".")[2] in SCALES}
    numbers = {layer: f"{layer}.{part}" for layer in scales for part in NUMBERS if f"{layer}.{part}" in held}
    found = {layer: _bits(held[each], held[scales[layer]]) for layer, each in numbers.items()}
    rounded = {each for each, entry in held.items() if entry.dtype in ROUNDED}
    rest = rounded - set(numbers.values()) - set(scales.values())
    absent = sorted(each for each in rest if each.endswith(".weight") and held[each].dtype == EIGHT)
    if absent and found:
        raise ModelError(f"the weights of {name} lack the scales of {absent[0]}: download them again")
    if rest or scales.keys() - numbers.keys() or 0 in found.values() or any(each.endswith(CHANGING) for each in held):
        return None
    return found or None


class Weights(msgspec.Struct):
    block_structure: tuple[int, int] | None = None


class Group(msgspec.Struct):
    weights: Weights | None = None


class Described(msgspec.Struct):
    """The fields of a description that are read here: one block for all, or those of compressed-tensors' groups."""

    weight_block_size: tuple[int, int] | None = None
    config_groups: dict[str, Group] = {}


def block(described: dict[str, Any]) -> tuple[int, int]:
    """How many outputs and inputs share a scale, as the description says; (0, 0) if it does not."""
    try:
        told = msgspec.convert(described, Described)
    except msgspec.ValidationError:
        return 0, 0
    groups = [each.weights for each in told.config_groups.values() if each.weights]
    sizes = [told.weight_block_size, *(each.block_structure for each in groups)]
    return next((each for each in sizes if each), (0, 0))


def _bits(numbers: Entry, scales: Entry) -> int:
    """The bits of a layer's numbers; 0 if they are of an unknown kind."""
    if len(numbers.shape) != 2:
        return 0
    if numbers.dtype == EIGHT or (numbers.dtype == WHOLE and scales.dtype in PLAIN):
        return 8
    outputs, half = numbers.shape
    of_a_scale = OF_A_SCALE.get(scales.dtype, 0) if numbers.dtype == TWO_OF_FOUR else 0
    return 4 if of_a_scale and scales.shape == (outputs, half / of_a_scale) else 0
