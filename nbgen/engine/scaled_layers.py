"""Which layers of a checkpoint hold numbers of 8 or 4 bits beside what these are times: by its files' tensors.

FP8 (E4M3) and whole numbers of 8 bits, whose scales are for a weight, its outputs or its blocks, NVFP4 and MXFP4:
DeepSeek, Mistral, FBGEMM, ModelOpt, Quark and compressed-tensors write them alike, under other names. Knows nothing of
torch.
"""

from typing import Any

import msgspec

from nbgen.errors import ModelError
from nbgen.safetensors_file import Entry

#: How checkpoints call formats that have such layers.
METHODS = {"compressed-tensors", "fbgemm_fp8", "fp8", "modelopt", "mxfp8", "quark"}
#: What a layer's tensors are called behind its name: numbers, scales, what these are multiplied by or divided by, and
#: what was to round inputs, which are left exact.
NUMBERS = ("weight", "weight_packed")
SCALES = ("weight_scale_inv", "weight_scale")
TIMES, BY = "weight_scale_2", "weight_global_scale"
OF_INPUTS = ("input_scale", "activation_scale", "input_global_scale", "input_scale_ub")
#: … and what changes inputs before they meet the weight.
CHANGING = (".pre_quant_scale", ".input_rotation")
#: Types of numbers of 8 bits and of two of 4; and by the type of scales, how many bytes of the last have one.
EIGHT, WHOLE, TWO_OF_FOUR = "F8_E4M3", "I8", "U8"
OF_A_SCALE = {"F8_E4M3": 8, "F8_E8M0": 16, "U8": 16}
#: … and those of whole numbers.
PLAIN = ("F32", "F16", "BF16")
#: Types of which a tensor's own numbers are not what it stands for.
ROUNDED = ("F8_E4M3", "F8_E5M2", "F8_E8M0", "U8", "I8", "I32")


def bits(held: dict[str, Entry], name: str) -> dict[str, int] | None:
    """Of a number of each layer; None where something is rounded in another way. `held` are the files' tensors.

    Raises ModelError for numbers without scales where others have some.
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
    """What is asked of a description here: one block for all, or those of compressed-tensors' groups of layers."""

    weight_block_size: tuple[int, int] | None = None
    config_groups: dict[str, Group] = {}


def block(described: dict[str, Any]) -> tuple[int, int]:
    """Outputs and inputs that have a scale in common, where it says so; or else zeros."""
    try:
        told = msgspec.convert(described, Described)
    except msgspec.ValidationError:
        return 0, 0
    groups = [each.weights for each in told.config_groups.values() if each.weights]
    sizes = [told.weight_block_size, *(each.block_structure for each in groups)]
    return next((each for each in sizes if each), (0, 0))


def _bits(numbers: Entry, scales: Entry) -> int:
    """0 where they are of another kind."""
    if len(numbers.shape) != 2:
        return 0
    if numbers.dtype == EIGHT or (numbers.dtype == WHOLE and scales.dtype in PLAIN):
        return 8
    outputs, half = numbers.shape
    of_a_scale = OF_A_SCALE.get(scales.dtype, 0) if numbers.dtype == TWO_OF_FOUR else 0
    return 4 if of_a_scale and scales.shape == (outputs, half / of_a_scale) else 0
