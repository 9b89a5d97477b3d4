"""Tokens and states of recurrent layers, as the C++ takes them. CPU only. Knows nothing of what layers compute."""

import ctypes
from ctypes import c_int64, c_void_p

import torch

#: The length of a state's row must be a multiple of this: so it fills whole registers on every processor.
LANES = 16


class TokensFields(ctypes.Structure):
    """`Tokens` of the C++."""

    _fields_ = [("numbers", c_void_p), ("strides", c_int64 * 2)]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "TokensFields":
        """Points to a tensor whose `heads_together`. It is valid only while the tensor lives."""
        return cls(tensor.data_ptr(), (c_int64 * 2)(*tensor.stride()[:2]))


class SequenceFields(ctypes.Structure):
    """`Sequence` of the C++."""

    _fields_ = [(name, c_int64) for name in ("batch", "first", "tokens", "state", "begins", "certain", "held")]


def whole_batch(batch: int, tokens: int) -> "ctypes.Array[SequenceFields]":
    """One sequence for each row of a batch, with all its tokens and a state of its own to go on from."""
    return (SequenceFields * batch)(*(SequenceFields(i, 0, tokens, i, 0, tokens, 0) for i in range(batch)))


def heads_together(tensor: torch.Tensor) -> torch.Tensor:
    """`[batch, tokens, heads, dim]`, copied if a token's heads do not lie one after the other in memory."""
    return tensor if tensor.stride()[2:] == (tensor.shape[3], 1) else tensor.contiguous()


def is_cpu_inference(*tensors: torch.Tensor) -> bool:
    """Whether the tensors are on a CPU, of one type, and need no gradients."""
    kinds = {(tensor.device.type, tensor.dtype) for tensor in tensors}
    return not torch.is_grad_enabled() and len(kinds) == 1 and tensors[0].device.type == "cpu"


def is_state(tensor: torch.Tensor | None) -> bool:
    """Whether the C++ can use this state: FP32 and contiguous, or None where there is none yet."""
    return tensor is None or (tensor.dtype == torch.float32 and tensor.is_contiguous())
