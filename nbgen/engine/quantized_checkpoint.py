"""Checkpoints whose weights were quantized before: which of them can be read here, said before anything is read.

transformers reads them, most with a library of the format's own. Knows nothing of torch.
"""

from importlib.util import find_spec
from pathlib import Path

from nbgen.engine import checkpoint
from nbgen.errors import ModelError

#: By the format's name in config.json: the module that reads it, and what to install for it.
READERS = {
    "aqlm": ("aqlm", "aqlm"),
    "auto-round": ("auto_round", "auto-round"),
    "awq": ("gptqmodel", "gptqmodel"),
    "bitsandbytes": ("bitsandbytes", "bitsandbytes"),
    "compressed-tensors": ("compressed_tensors", "compressed-tensors"),
    "gptq": ("gptqmodel", "gptqmodel"),
    "hqq": ("hqq", "hqq"),
    "quanto": ("optimum", "optimum-quanto"),
    "quark": ("quark", "amd-quark"),
    "torchao": ("torchao", "torchao"),
    "vptq": ("vptq", "vptq"),
}
#: Formats that transformers reads by itself.
BUILT_IN = {"fp8", "mxfp4", "mxfp8"}


def check(folder: Path, name: str, quantization: str | None) -> None:
    """Raises ModelError for a format that is not read here, or that is to be quantized again."""
    config = checkpoint.read_json(folder / "config.json", name)
    described = config.get("quantization_config") or (config.get("text_config") or {}).get("quantization_config")
    if not isinstance(described, dict):
        return
    method = str(described.get("quant_method") or "bitsandbytes")  # the one that older files do not name
    if method not in READERS.keys() | BUILT_IN:
        known = ", ".join(sorted(READERS.keys() | BUILT_IN))
        raise ModelError(f"{name} is quantized as {method!r:.80}, which is not read here; these are: {known}")
    if quantization is not None:
        raise ModelError(f"{name} is quantized already ({method}): leave out quantization={quantization!r}")
    module, package = READERS.get(method, (None, None))
    if module is not None and find_spec(module) is None:
        raise ModelError(
            f"{name} is quantized as {method}, which is read by a package of its own: pip install {package}"
        )
