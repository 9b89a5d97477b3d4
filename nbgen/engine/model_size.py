"""Whether a model's files and the machine's memory are what its configuration asks for, before anything is read.

transformers makes all that a configuration describes, and what no file has at random, before it says what is missing:
a configuration of another model may take all memory there is. Knows nothing of how weights are read.
"""

import copy
import math
from pathlib import Path
from typing import Any

import torch

from nbgen.engine import memory
from nbgen.engine.checkpoint import tensors, weight_bytes
from nbgen.engine.quantized_checkpoint import description
from nbgen.errors import ModelError

#: A model that is so many times its files belongs to others: what is missing in nearer ones is said by name.
OTHERS = 2
#: The fewest bits of a weight that a checkpoint quantized before has, and those of rounded ones.
FEWEST_BITS = 2
BITS = {"int8": 8, "int4": 4}
#: … of which files have so many at most.
WIDEST = 32


def check(architecture: Any, auto: Any, folder: Path, name: str) -> None:
    """Raises ModelError for a configuration that describes a far larger model than the files hold.

    `auto` is the class of transformers that makes the model.
    """
    described, held = _parameters(architecture, auto), _held(folder, name)
    if described > OTHERS * held:
        raise ModelError(
            f"config.json of {name} describes a model of {described:,} weights, and its files hold {int(held):,}: "
            "it belongs to another model, or says too little of this one"
        )


def check_memory(folder: Path, quantization: str | None, device: torch.device, name: str) -> None:
    """Raises ModelError for weights that do not fit into the memory, were nothing else in it. A GPU says so itself."""
    _, total = memory.device_memory(device)
    least = weight_bytes(folder) * BITS.get(quantization or "", WIDEST) / WIDEST
    if device.type == "cpu" and least > total:
        smaller = "" if quantization == "int4" else ", or fewer bits (quantization='int4')"
        raise ModelError(
            f"the weights of {name} take {least / 1e9:.1f} GB, and there are {total / 1e9:.1f} GB of memory here: "
            f"use a smaller model{smaller}"
        )


def _parameters(architecture: Any, auto: Any) -> int:
    """Of the model that transformers would make; 0 where it cannot be made without numbers."""
    try:
        with torch.device("meta"):
            model = auto.from_config(copy.deepcopy(architecture))
    except (RuntimeError, NotImplementedError):
        return 0
    return sum(parameter.numel() for parameter in model.parameters())


def _held(folder: Path, name: str) -> float:
    """Weights in the files, or as many as there may be. Damaged files are the reader's to tell of."""
    found = tensors(folder)
    if not found:
        return math.inf
    if description(folder, name) is None:
        return sum(tensor.parameter_count for tensor in found.values())
    size = sum(tensor.data_offsets[1] - tensor.data_offsets[0] for tensor in found.values())
    return size * 8 / FEWEST_BITS
