"""Tokens and states of recurrent layers, as the C++ takes them. CPU only. Knows nothing of how layers remember."""

import ctypes
from ctypes import c_int64, c_void_p

import torch

#: Of a state's row there are whole registers, whatever the processor.
LANES = 16


class TokensFields(ctypes.Structure):
    """`Tokens` of the C++."""

    _fields_ = [("numbers", c_void_p), ("strides", c_int64 * 2)]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "TokensFields":
        """Where a tensor with its `heads_together` lies, as long as it lies there."""
        return cls(tensor.data_ptr(), (c_int64 * 2)(*tensor.stride()[:2]))


class SequenceFields(ctypes.Structure):
    """`Sequence` of the C++."""

    _fields_ = [(name, c_int64) for name in ("batch", "first", "tokens", "state", "begins", "certain", "held")]


def whole_batch(batch: int, tokens: int) -> "ctypes.Array[SequenceFields]":
    """A sequence for each of a batch, with all its tokens, which goes on from a state of its own."""
    return (SequenceFields * batch)(*(SequenceFields(i, 0, tokens, i, 0, tokens, 0) for i in range(batch)))


def heads_together(tensor: torch.Tensor) -> torch.Tensor:
    """`[batch, tokens, heads, dim]` with a token's heads one after the other."""
    return tensor if tensor.stride()[2:] == (tensor.shape[3], 1) else tensor.contiguous()


def is_cpu_inference(*tensors: torch.Tensor) -> bool:
    """Whether they are on a CPU, of one type, and nothing is to be learned of them."""
    kinds = {(tensor.device.type, tensor.dtype) for tensor in tensors}
    return not torch.is_grad_enabled() and len(kinds) == 1 and tensors[0].device.type == "cpu"


def is_state(tensor: torch.Tensor | None) -> bool:
    """Whether a state is kept as ours are, or there is none yet."""
    return tensor is None or (tensor.dtype == torch.float32 and tensor.is_contiguous())
