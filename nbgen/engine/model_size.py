"""Whether a model's files and the machine's memory are what its configuration asks for, before anything is read.

transformers first makes all weights that a configuration describes, at random if no file has them, and then says what
is missing: the configuration of another model may take all memory there is. Knows nothing of how weights are read.
"""

import copy
from pathlib import Path
from typing import Any

import torch

from nbgen.engine import memory
from nbgen.engine.quantized_checkpoint import description
from nbgen.engine.shape_functions import import_shape_functions
from nbgen.engine_config import EngineConfig
from nbgen.errors import ModelError
from nbgen.safetensors_file import Entry

#: A model more than so many times as large as its files belongs to others; below that, missing weights are named later.
OTHERS = 2
#: The fewest bits of a weight in a quantized checkpoint, and the bits of a weight by `quantization`.
FEWEST_BITS = 2
BITS = {"int8": 8, "int4": 4}
#: The most bits of a weight.
WIDEST = 32


def check(architecture: Any, auto: Any, folder: Path, held: dict[str, Entry], name: str) -> None:
    """Raises ModelError for a configuration that describes a far larger model than its files hold.

    `auto` is the class of transformers that makes the model. `held` are the files' tensors; damaged files have none,
    which the reader reports.
    """
    layers = getattr(architecture.get_text_config(), "num_hidden_layers", None) or 0
    if held and layers > len(held):  # to make them would take minutes, even without numbers
        raise ModelError(
            f"config.json of {name} describes {layers:,} layers, and its files hold {len(held):,} tensors: "
            "it belongs to another model, or says too little of this one"
        )
    described, most = _parameters(architecture, auto), _most_weights(held, description(folder, name) is not None)
    if held and described > OTHERS * most:
        raise ModelError(
            f"config.json of {name} describes a model of {described:,} weights, and its files hold {most:,}: "
            "it belongs to another model, or says too little of this one"
        )


def check_memory(
    config: EngineConfig, architecture: Any, held: dict[str, Entry], dtype: torch.dtype | str, device: torch.device
) -> None:
    """Raises ModelError for weights that would not fit into the memory even if it were empty. A GPU says so itself.

    `dtype` is the type to load in, or "auto" for the checkpoint's own, as `architecture` tells it.
    """
    if device.type != "cpu":
        return
    name, quantization, (_, total) = config.model, config.quantization, memory.device_memory(device)
    own = dtype if isinstance(dtype, torch.dtype) else architecture.get_text_config().dtype
    bits = BITS.get(quantization or "") or (8 * own.itemsize if isinstance(own, torch.dtype) else WIDEST)
    least = sum(min(tensor.nbytes, tensor.numel * bits / 8) for tensor in held.values())
    if least > total:
        smaller = "" if quantization == "int4" else ", or fewer bits (quantization='int4')"
        raise ModelError(
            f"the weights of {name} take {least / 1e9:.1f} GB, and there are {total / 1e9:.1f} GB of memory here: "
            f"use a smaller model{smaller}"
        )


def _parameters(architecture: Any, auto: Any) -> int:
    """The number of weights of the model that transformers would make; 0 where it cannot be made without numbers."""
    try:
        try:
            model = _without_numbers(architecture, auto)
        except NotImplementedError:  # an operation whose shape torch does not know in C++
            import_shape_functions()
            model = _without_numbers(architecture, auto)
    except RuntimeError:
        return 0
    return sum(parameter.numel() for parameter in model.parameters())


def _without_numbers(architecture: Any, auto: Any) -> torch.nn.Module:
    with torch.device("meta"):
        model: torch.nn.Module = auto.from_config(copy.deepcopy(architecture))
    return model


def _most_weights(held: dict[str, Entry], quantized: bool) -> int:
    """The most weights that these tensors may hold."""
    if quantized:
        return sum(tensor.nbytes for tensor in held.values()) * 8 // FEWEST_BITS
    return sum(tensor.numel for tensor in held.values())
