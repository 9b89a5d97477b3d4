"""Selective state spaces (Dao and Gu 2024: Mamba 2) in C++ of our own, for families that have them. CPU only.

transformers has a function for one token and one for many, in the module of each family. Ours leave to them what they
do not know: other devices, training, sequences packed into one, steps that differ within a head.
"""

import ctypes
from ctypes import c_float, c_int64, c_void_p
from typing import Any, NamedTuple

import torch
from torch import nn

from nbgen.engine import family_functions
from nbgen.engine.family_functions import Function
from nbgen.engine.linear import Swap
from nbgen.engine.native import function
from nbgen.engine.state_fields import LANES, TokensFields, heads_together, is_cpu_inference, is_state, whole_batch

#: The function for one token takes no limits of steps.
ALL = (float("-inf"), float("inf"))


class Steps(NamedTuple):
    """Step sizes (`dt`): `numbers` `[batch, tokens, heads]`, `bias` `[heads]`, whether softplus applies, and limits."""

    numbers: torch.Tensor
    bias: torch.Tensor | None
    positive: bool
    least: float
    most: float


class ScanFields(ctypes.Structure):
    """`Scan` of the C++."""

    _fields_ = [
        *((name, c_int64) for name in ("count", "tokens", "heads", "groups", "rows", "size", "threads")),
        ("sequences", c_void_p),
        *((name, TokensFields) for name in ("inputs", "into", "from")),
        *((name, c_void_p) for name in ("steps", "bias")),
        ("positive", c_int64),
        *((name, c_float) for name in ("least", "most")),
        *((name, c_void_p) for name in ("rates", "direct", "states", "wide", "output")),
    ]


def replace(model: nn.Module) -> list[Swap]:
    """Replace the functions of the model's family."""
    return family_functions.replace(
        model, {"mamba2_selective_state_update": _of_one_token, "mamba2_chunk_scan": _of_many_tokens}
    )


def _of_one_token(stock: Function) -> Function:
    def update(
        state: torch.Tensor,
        hidden_states: torch.Tensor,
        dt: torch.Tensor,
        A: torch.Tensor,
        B: torch.Tensor,
        C: torch.Tensor,
        D: torch.Tensor | None = None,
        dt_bias: torch.Tensor | None = None,
        dt_softplus: bool = False,
        z: torch.Tensor | None = None,
        **more: Any,
    ) -> torch.Tensor:
        """Like transformers' own, which also changes the state in place."""
        alike = (dt, A, A.transpose(-1, -2), *(each for each in (D, dt_bias) if each is not None))
        one_a_head = all(each.stride(-1) == 0 for each in alike)
        numbers = [each[:, None] for each in (hidden_states, B, C)]
        if z is not None or not one_a_head or dt.dtype != hidden_states.dtype or not _suits(numbers, state):
            return stock(state, hidden_states, dt, A, B, C, D, dt_bias, dt_softplus, z, **more)
        bias, direct = (None if each is None else each[:, 0] for each in (dt_bias, D))
        steps = Steps(dt[:, None, :, 0], bias, dt_softplus, *ALL)
        output = torch.empty_like(numbers[0], memory_format=torch.contiguous_format)
        _scan(numbers, steps, A[:, 0, 0], direct, state, output)
        return output[:, 0]

    return update


def _of_many_tokens(stock: Function) -> Function:
    def scan(
        hidden_states: torch.Tensor,
        dt: torch.Tensor,
        A: torch.Tensor,
        B: torch.Tensor,
        C: torch.Tensor,
        chunk_size: int,
        D: torch.Tensor | None = None,
        dt_bias: torch.Tensor | None = None,
        initial_states: torch.Tensor | None = None,
        dt_softplus: bool = False,
        dt_limit: tuple[float, float] = (0.0, float("inf")),
        return_final_states: bool = False,
        **more: Any,
    ) -> Any:
        """Like transformers' own, with float32 output as there; the final state overwrites an initial one."""
        numbers, packed = [hidden_states, B, C], more.get("cu_seqlens") is not None or more.get("seq_idx") is not None
        is_known = dt.dtype == hidden_states.dtype and (D is None or D.dim() == 1)
        if packed or not is_known or not _suits(numbers, initial_states):
            given: dict[str, Any] = {"initial_states": initial_states, "return_final_states": return_final_states}
            ways: dict[str, Any] = {"D": D, "dt_bias": dt_bias, "dt_softplus": dt_softplus, "dt_limit": dt_limit}
            return stock(hidden_states, dt, A, B, C, chunk_size, **ways, **given, **more)
        batch, _, heads, rows = hidden_states.shape
        state = torch.zeros(batch, heads, rows, B.shape[3]) if initial_states is None else initial_states
        output = torch.empty(hidden_states.shape)
        _scan(numbers, Steps(dt, dt_bias, dt_softplus, *dt_limit), A, D, state, output)
        return (output, state) if return_final_states else output

    return scan


def _suits(numbers: list[torch.Tensor], state: torch.Tensor | None) -> bool:
    """Whether the C++ knows such `numbers`, `[batch, tokens, heads or groups, …]` each, and such a state."""
    inputs, into, out = numbers
    if into.shape != out.shape or into.shape[3] % LANES or inputs.shape[2] % into.shape[2]:
        return False
    return is_cpu_inference(inputs, into, out) and is_state(state) and function("scan", inputs.dtype) is not None


def _scan(
    numbers: list[torch.Tensor],
    steps: Steps,
    rates: torch.Tensor,
    direct: torch.Tensor | None,
    state: torch.Tensor,
    output: torch.Tensor,
) -> None:
    inputs, into, out = map(heads_together, numbers)
    batch, tokens, heads, rows = inputs.shape
    scan, wide = function("scan", inputs.dtype), output.dtype != inputs.dtype
    assert scan is not None
    bias = None if steps.bias is None else steps.bias.to(inputs.dtype)
    given = steps.numbers, bias, rates.float(), None if direct is None else direct.float()
    kept = [None if each is None else each.contiguous() for each in given]
    at = [None if each is None else each.data_ptr() for each in kept]
    places = (output.data_ptr(), None) if wide else (None, output.data_ptr())
    sequences = whole_batch(batch, tokens)
    fields = ScanFields(
        *(batch, tokens, heads, into.shape[2], rows, into.shape[3], torch.get_num_threads()),
        ctypes.addressof(sequences),
        *map(TokensFields.of, (inputs, into, out)),
        *(*at[:2], steps.positive, steps.least, steps.most),
        *(*at[2:], state.data_ptr(), *places),
    )
    scan(ctypes.byref(fields))
