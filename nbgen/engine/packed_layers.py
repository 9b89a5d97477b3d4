"""Which layers of a checkpoint are packed into words of 32 bits, and how: what its files say, before anything is read.

GPTQ (Frantar et al. 2022), AWQ (Lin et al. 2023), AutoRound, which writes in either's way, compressed-tensors'
`pack-quantized`, and bitsandbytes; or by `scaled_layers`. Knows nothing of torch.
"""

from typing import Any, NamedTuple

import msgspec

from nbgen.engine import scaled_layers
from nbgen.errors import ModelError
from nbgen.safetensors_file import Entry

#: Bits of a number that are read here.
BITS = (4, 8)
#: Of a word.
WORD = 32


class Names(NamedTuple):
    """What a layer's tensors are called, behind its own name: words, scales, zeros, and the group of each input."""

    words: str
    scales: str
    zeros: str
    groups: str


GPTQ = Names("qweight", "scales", "qzeros", "g_idx")
COMPRESSED = Names("weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx")
#: Beside these, of which the words tell the same.
SHAPE = "weight_shape"

#: What zeros were lowered by, by how checkpoints call the format.
GPTQ_FORMATS = {"gptq": ("gptq", 1), "gptq_v2": ("gptq", 0)}
#: AutoRound's own names for how it packs, without what they begin with.
AUTO_ROUND = {"gptq": ("gptq", 1), "awq": ("awq", 0), "gptqmodel": ("gptq", 0), "round": ("gptq", 0)}
#: By which descriptions tell that a layer's inputs are rotated before they meet its weight.
TURNED = ("rotation_config", "spinquant_config", "transform_config")
#: How AutoRound calls what a layer rounds its inputs by: its weight is packed in another way then.
ROUNDED = ".act_scales"
#: What bitsandbytes calls a tensor that tells of a layer's 4 bits, behind `weight`, and one of rows of 8 bits.
STATES = ("quant_state.bitsandbytes__nf4", "quant_state.bitsandbytes__fp4")
ROWS = "SCB"
#: How compressed-tensors calls words, and whole numbers of 8 bits, which it packs, too, where inputs are not rounded.
PACKED = {"pack-quantized", "int-quantized"}
#: The form of what `scaled_layers` knows.
SCALED = "scaled"


class Packing(NamedTuple):
    """How all layers of a checkpoint are packed.

    `form` is `gptq`, `awq`, `compressed-tensors`, `bitsandbytes` or `scaled`; `less` is what zeros were lowered by
    before they were packed, and `bits` are those of each layer. A group is of `group` inputs where nothing else tells,
    or 0, and a block of floats of as many outputs and inputs.
    """

    form: str
    less: int
    bits: dict[str, int]
    group: int = 0
    block: tuple[int, int] = (0, 0)

    @property
    def is_scaled(self) -> bool:
        """Which may be rounded."""
        return self.form == SCALED

    @property
    def names(self) -> Names:
        return COMPRESSED if self.form == "compressed-tensors" else GPTQ


def read(described: dict[str, Any], held: dict[str, Entry], name: str) -> Packing | None:
    """None for what is packed in another way, or not at all; `held` are the files' tensors.

    Raises ModelError for a layer of which the files lack something.
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
        return None  # what else is scaled is another way
    group = described.get("group_size")
    return Packing(form, less, bits, group if isinstance(group, int) else 0)


def method_of(described: dict[str, Any]) -> str:
    """The format's name."""
    return str(described.get("quant_method") or "bitsandbytes")  # as older files of its do not say


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
    """What it says under the first of these names that it has; "" where it has none of them."""
    return str(next(filter(None, map(described.get, names)), "")).lower()


class Weights(msgspec.Struct):
    num_bits: int | None = None
    type: str = "int"


class Group(msgspec.Struct):
    """How compressed-tensors packed some layers."""

    weights: Weights | None = None
    format: str | None = None


class Sparsity(msgspec.Struct):
    format: str = "dense"


class Compressed(msgspec.Struct):
    """What is asked of its description here."""

    format: str
    config_groups: dict[str, Group]
    sparsity_config: Sparsity | None = None


def _told_bits(described: dict[str, Any]) -> int | None:
    """What compressed-tensors says of all groups of layers alike; None where they are not packed whole numbers."""
    try:
        told = msgspec.convert(described, Compressed)
    except msgspec.ValidationError:
        return None
    groups, sparsity = told.config_groups.values(), told.sparsity_config or Sparsity()
    forms = {told.format, *(group.format or told.format for group in groups)}
    bits = {each.num_bits if each.type == "int" else None for each in (group.weights or Weights() for group in groups)}
    return bits.pop() if forms <= PACKED and sparsity.format == "dense" and len(bits) == 1 else None


def _bits(layer: str, form: str, held: dict[str, Entry]) -> int:
    """By the shapes of zeros, of which each output has one; 0 where they do not tell."""
    scales, zeros = (held.get(f"{layer}.{each}") for each in (GPTQ.scales, GPTQ.zeros))
    if scales is None or zeros is None or len(scales.shape) != 2 or len(zeros.shape) != 2 or not scales.shape[1]:
        return 0
    bits, rest = divmod(zeros.shape[1] * WORD, scales.shape[1])
    return 0 if rest or zeros.dtype != "I32" or (form == "awq" and bits != 4) else bits
