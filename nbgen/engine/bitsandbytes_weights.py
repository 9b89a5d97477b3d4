"""Reads a layer's tensors as bitsandbytes saves them: 4 bits with each block's maximum, or 8 bits with each row's.

Maxima that are quantized themselves (double quantization) are decoded. Knows nothing of models.
"""

from collections.abc import Callable

import msgspec
import torch

from nbgen.engine.coded_weight import CodedWeight
from nbgen.engine.packed_layers import STATES
from nbgen.engine.packed_weight import PackedWeight

#: The step of LLM.int8 (Dettmers et al. 2022), as a share of a row's maximum.
STEP = 1 / 127
#: XORed with a word, this turns its four signed bytes into unsigned ones, in which 128 is zero.
SIGNS = -0x7F7F7F80


class State(msgspec.Struct):
    """bitsandbytes' description of a quantized weight."""

    shape: tuple[int, int]
    blocksize: int
    nested_blocksize: int = 0
    nested_offset: float = 0.0


def taken(bits: int, take: Callable[[str], torch.Tensor | None], dtype: torch.dtype) -> CodedWeight | PackedWeight:
    """The weight of a layer that computes in `dtype`; `take` returns a tensor by its name below the layer's."""
    words = _there(take("weight"))
    if bits == 8:
        if (laid_out := take("weight_format")) is not None and int(laid_out):
            raise ValueError("a layer of bitsandbytes lies as old GPUs read it, and not row after row")
        rows = _there(take("SCB"))[:, None] * STEP
        return PackedWeight("compressed-tensors", 8, 0, words.view(torch.int32) ^ SIGNS, rows, None, None, dtype)
    told = next(found for each in STATES if (found := take(f"weight.{each}")) is not None)
    state = msgspec.json.decode(told.numpy().tobytes(), type=State)
    numbers, largest = (_there(take(f"weight.{each}")) for each in ("quant_map", "absmax"))
    levels, outer = (take(f"weight.nested_{each}") for each in ("quant_map", "absmax"))
    if levels is not None and outer is not None:
        inner = levels[largest.int()]
        largest = inner * outer.repeat_interleave(state.nested_blocksize)[: len(inner)] + state.nested_offset
    return CodedWeight(words.view(torch.uint8), numbers.float(), largest.float(), state.blocksize, state.shape, dtype)


def _there(tensor: torch.Tensor | None) -> torch.Tensor:
    if tensor is None:
        raise ValueError("a layer of bitsandbytes lacks one of its tensors")
    return tensor
