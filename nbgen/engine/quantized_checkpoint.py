"""Checkpoints that are already quantized: tells, before any weight is read, whether they can be read here.

Those packed in a way that `packed_layers` knows are read without transformers' help; it reads the others, most of them
with a library of the format's own. Knows nothing of torch.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nbgen.engine import packed_layers, scaled_layers
from nbgen.engine.packed_layers import Packing
from nbgen.errors import ModelError
from nbgen.model_files import read_json
from nbgen.safetensors_file import Entry

#: By the format's name in config.json: the module that reads it, and the package to install for that.
READERS = {
    "aqlm": ("aqlm", "aqlm"),
    "auto-round": ("auto_round", "auto-round"),
    "awq": ("gptqmodel", "gptqmodel"),
    "bitsandbytes": ("bitsandbytes", "bitsandbytes"),
    "compressed-tensors": ("compressed_tensors", "compressed-tensors"),
    "fp8": ("accelerate", "accelerate"),
    "gptq": ("gptqmodel", "gptqmodel"),
    "hqq": ("hqq", "hqq"),
    "mxfp8": ("accelerate", "accelerate"),
    "quanto": ("optimum", "optimum-quanto"),
    "quark": ("quark", "amd-quark"),
    "torchao": ("torchao", "torchao"),
    "vptq": ("vptq", "vptq"),
}
#: The file that describes the format in older checkpoints of ModelOpt, in place of config.json.
OF_MODELOPT = "hf_quant_config.json"
#: Formats that transformers unpacks to the model's type where it has no kernel for them.
WRITTEN_OUT = {"fp8", "mxfp4", "mxfp8"}


def description(folder: Path, name: str) -> dict[str, Any] | None:
    """A checkpoint's description of how it is quantized; None if it is not. Raises ModelError for a damaged file."""
    config = read_json(folder / "config.json", name)
    text = config.get("text_config")
    found = config.get("quantization_config") or (isinstance(text, dict) and text.get("quantization_config"))
    if isinstance(found, dict):
        return found
    older = read_json(folder / OF_MODELOPT, name).get("quantization")
    return {"quant_method": "modelopt", **older} if isinstance(older, dict) and older.get("quant_algo") else None


def check(folder: Path, held: dict[str, Entry], name: str, quantization: str | None, *, on_cpu: bool) -> Packing | None:
    """How its layers are packed; None if transformers is to read them. `held` are its tensors.

    Raises ModelError for a format that cannot be read here, or that `quantization` cannot quantize again.
    """
    if (described := description(folder, name)) is None:
        _refuse_numbers(held, name)
        return None
    method = packed_layers.method_of(described)
    packing = packed_layers.read(described, held, name) if on_cpu else None
    if packing is None and method not in READERS.keys() | WRITTEN_OUT:
        known = ", ".join(sorted(READERS.keys() | WRITTEN_OUT))
        raise ModelError(f"{name} is quantized as {method!r:.80}, which is not read here; these are: {known}")
    if quantization is not None and not (packing.is_scaled if packing else method in WRITTEN_OUT):
        raise ModelError(f"{name} is quantized already ({method}): leave out quantization={quantization!r}")
    if packing is not None:
        return packing
    module, package = READERS.get(method, (None, None))
    if module is not None and find_spec(module) is None:
        raise ModelError(f"{name} is quantized as {method}, which is read with another package: pip install {package}")
    if method == "torchao" and not isinstance(described.get("quant_type"), dict):
        raise ModelError(f"{name} was quantized by an old torchao, in a way that is no longer read: quantize it again")
    if method in ("fp8", "mxfp8"):
        _check_scales(held, name)
        _check_blocks(held, name, described.get("weight_block_size"))
    return None


def kept_as(folder: Path, name: str, packing: Packing | None, bits: str | None) -> str | None:
    """The format of a quantized checkpoint, and the `bits` that its weights are kept in, or that they are written out.

    The latter is left out if `bits` is None, or if the format's own package may keep the weights quantized.
    """
    if (described := description(folder, name)) is None:
        return None
    method = packed_layers.method_of(described)
    known = bits is not None and (packing is not None or method in WRITTEN_OUT | {"compressed-tensors", "torchao"})
    return f"{method} ({bits or 'written out'})" if known else method


def _refuse_numbers(held: dict[str, Entry], name: str) -> None:
    """Raise ModelError for rounded numbers without a description: they would be taken for the weights themselves."""
    scaled = {each.rpartition(".")[0] for each in held if each.rpartition(".")[2] in scaled_layers.SCALES}
    for tensor, entry in held.items():
        layer, _, part = tensor.rpartition(".")
        kinds = ("I", "U", "F8") if layer in scaled else ("I", "U")
        if part == "weight" and entry.dtype.startswith(kinds):
            raise ModelError(
                f"{name} holds rounded numbers ({entry.dtype}) for {tensor}, and its config.json has no "
                "quantization_config that says what they stand for"
            )


def _check_scales(held: dict[str, Entry], name: str) -> None:
    """Raise ModelError for scales of a name that transformers does not know: it would ignore them."""
    if other := next((each for each in held if each.endswith(".weight_scale")), None):
        raise ModelError(f"{name} has its scales as {other}: as such they are read on a CPU alone")


def _check_blocks(held: dict[str, Entry], name: str, block: Any) -> None:
    """Raise ModelError for a weight that ends with part of a block: transformers would take all blocks for smaller."""
    if not isinstance(block, list):
        return
    shapes = {tensor: found.shape for tensor, found in held.items()}
    for scale, counts in shapes.items():
        sizes = shapes.get(scale.removesuffix("_scale_inv")) if scale.endswith("_scale_inv") else None
        for size, count, each in zip((sizes or ())[-2:], counts[-2:], block, strict=False):
            if count > 1 and size != count * each:
                raise ModelError(
                    f"{name} holds a weight of {list(sizes or ())} in blocks of {block}, and parts of blocks are not "
                    "read here: take the model as it was before"
                )
