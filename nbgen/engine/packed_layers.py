"""Finds which layers of a checkpoint are packed into words of 32 bits, and how, from names and shapes in its files.

GPTQ (Frantar et al. 2022), AWQ (Lin et al. 2023), AutoRound (which writes in the way of either), compressed-tensors'
`pack-quantized`, and bitsandbytes; other formats are left to `scaled_layers`. Knows nothing of torch.
"""

from typing import Any, NamedTuple

import msgspec

from nbgen.engine import scaled_layers
from nbgen.errors import ModelError
from nbgen.safetensors_file import Entry

#: Bits of a packed number that can be read here.
BITS = (4, 8)
#: Bits of a word.
WORD = 32


class Names(NamedTuple):
    """Names of a layer's tensors, after the layer's own name: words, scales, zeros, and the group of each input."""

    words: str
    scales: str
    zeros: str
    groups: str


GPTQ = Names("qweight", "scales", "qzeros", "g_idx")
COMPRESSED = Names("weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx")
#: A tensor beside these that is not needed: the words have the same shape.
SHAPE = "weight_shape"

#: By a checkpoint's name for the format: our name, and how much zeros were lowered before packing.
GPTQ_FORMATS = {"gptq": ("gptq", 1), "gptq_v2": ("gptq", 0)}
#: The same by AutoRound's names for how it packs, without their prefixes.
AUTO_ROUND = {"gptq": ("gptq", 1), "awq": ("awq", 0), "gptqmodel": ("gptq", 0), "round": ("gptq", 0)}
#: Keys in a description of layers whose inputs are rotated before they are multiplied by the weight.
TURNED = ("rotation_config", "spinquant_config", "transform_config")
#: AutoRound's name for the scales that a layer rounds its inputs with. Such a layer's weight is packed in another way.
ROUNDED = ".act_scales"
#: bitsandbytes' names, after `weight`, for the tensor that describes 4 bits, and, after the layer, for 8 bits' scales.
STATES = ("quant_state.bitsandbytes__nf4", "quant_state.bitsandbytes__fp4")
ROWS = "SCB"
#: compressed-tensors' names for packed words, and for integers of 8 bits, packed as well where inputs are not rounded.
PACKED = {"pack-quantized", "int-quantized"}
#: The `form` of layers that `scaled_layers` knows.
SCALED = "scaled"


class Packing(NamedTuple):
    """How all layers of a checkpoint are packed.

    `form` is `gptq`, `awq`, `compressed-tensors`, `bitsandbytes` or `scaled`. `less` is how much zeros were lowered
    before they were packed. `bits` has the bits of each layer. `group` is how many inputs form a group, if no tensor
    says it (0: not known), and `block` how many outputs and inputs of scaled numbers share a scale.
    """

    form: str
    less: int
    bits: dict[str, int]
    group: int = 0
    block: tuple[int, int] = (0, 0)

    @property
    def is_scaled(self) -> bool:
        """Whether `scaled_layers` knows the layers; such weights may be quantized again."""
        return self.form == SCALED

    @property
    def names(self) -> Names:
        return COMPRESSED if self.form == "compressed-tensors" else GPTQ


def read(described: dict[str, Any], held: dict[str, Entry], name: str) -> Packing | None:
    """How the layers are packed; None if they are not, or in an unknown way. `held` are the files' tensors.

    Raises ModelError if the files lack the scales of a layer.
    """
    form, less = _form(described)
    if form is None or any(described.get(each) for each in TURNED) or any(each.endswith(ROUNDED) for each in held):
        return None
    if form == "bitsandbytes":
        return _of_bitsandbytes(held)
    if form == SCALED or (form == "compressed-tensors" and not any(each.endswith(COMPRESSED.words) for each in held)):
        found = scaled_layers.bits(held, name)
        return Packing(SCALED, 0, found, block=scaled_layers.block(described)) if found else None
    names = COMPRESSED if form == "compressed-tensors" else GPTQ
    layers = [each.removesuffix(f".{names.words}") for each in held if each.endswith(f".{names.words}")]
    scaled = {each.removesuffix(f".{names.scales}") for each in held if each.endswith(f".{names.scales}")}
    if absent := sorted(f"{layer}.{names.scales}" for layer in layers if layer not in scaled):
        raise ModelError(f"the weights of {name} lack {absent[0]}: download them again")
    told = _told_bits(described) if form == "compressed-tensors" else None
    bits = {layer: told or _bits(layer, form, held) for layer in layers}
    if not layers or scaled - set(layers) or any(each not in BITS for each in bits.values()):
        return None  # other tensors with scales: an unknown way of packing
    group = described.get("group_size")
    return Packing(form, less, bits, group if isinstance(group, int) else 0)


def method_of(described: dict[str, Any]) -> str:
    """The format's name."""
    return str(described.get("quant_method") or "bitsandbytes")  # its older files do not name it


def _form(described: dict[str, Any]) -> tuple[str | None, int]:
    method = method_of(described)
    if method == "gptq":
        return GPTQ_FORMATS.get(_first(described, "checkpoint_format", "format") or "gptq", (None, 0))
    if method == "awq":
        told = _first(described, "version", "format", "checkpoint_format") or "gemm"
        return ("awq" if told == "gemm" and described.get("backend") != "llm-awq" else None), 0
    if method == "auto-round":
        packed = _first(described, "packing_format") or "auto_round:auto_gptq"
        return AUTO_ROUND.get(packed.removeprefix("auto_round:").removeprefix("auto_"), (None, 0))
    if method == "bitsandbytes" or (method == "compressed-tensors" and _told_bits(described)):
        return method, 0
    return (SCALED if method in scaled_layers.METHODS else None), 0


def _of_bitsandbytes(held: dict[str, Entry]) -> Packing | None:
    four = {name.removesuffix(f".weight.{each}"): 4 for each in STATES for name in held if name.endswith(each)}
    eight = {name.removesuffix(f".{ROWS}"): 8 for name in held if name.endswith(f".{ROWS}")}
    return Packing("bitsandbytes", 0, four | eight) if four or eight else None


def _first(described: dict[str, Any], *names: str) -> str:
    """The value of the first of these names that has one, in lower case; "" if none has."""
    return str(next(filter(None, map(described.get, names)), "")).lower()


class Weights(msgspec.Struct):
    num_bits: int | None = None
    type: str = "int"


class Group(msgspec.Struct):
    """How compressed-tensors packed one group of layers."""

    weights: Weights | None = None
    format: str | None = None


class Sparsity(msgspec.Struct):
    format: str = "dense"


class Compressed(msgspec.Struct):
    """The fields of compressed-tensors' description that are read here."""

    format: str
    config_groups: dict[str, Group]
    sparsity_config: Sparsity | None = None


def _told_bits(described: dict[str, Any]) -> int | None:
    """The bits of all groups of layers in compressed-tensors; None if they differ or are not packed integers."""
    try:
        told = msgspec.convert(described, Compressed)
    except msgspec.ValidationError:
        return None
    groups, sparsity = told.config_groups.values(), told.sparsity_config or Sparsity()
    forms = {told.format, *(group.format or told.format for group in groups)}
    bits = {each.num_bits if each.type == "int" else None for each in (group.weights or Weights() for group in groups)}
    return bits.pop() if forms <= PACKED and sparsity.format == "dense" and len(bits) == 1 else None


def _bits(layer: str, form: str, held: dict[str, Entry]) -> int:
    """The bits of a number, from the shape of the zeros, one for each output; 0 if that does not tell."""
    scales, zeros = (held.get(f"{layer}.{each}") for each in (GPTQ.scales, GPTQ.zeros))
    if scales is None or zeros is None or len(scales.shape) != 2 or len(zeros.shape) != 2 or not scales.shape[1]:
        return 0
    bits, rest = divmod(zeros.shape[1] * WORD, scales.shape[1])
    return 0 if rest or zeros.dtype != "I32" or (form == "awq" and bits != 4) else bits
