"""The gated delta rule of linear attention (Yang et al. 2024) in C++ of our own, for families that have it. CPU only.

transformers has a function for one token and one for many, in the module of each family; both become this one, which
leaves to them what it does not know: other devices, training, sequences packed into one.
"""

import ctypes
from ctypes import c_int64, c_void_p
from typing import Any

import torch
from torch import nn

from nbgen.engine import family_functions
from nbgen.engine.family_functions import Function
from nbgen.engine.linear import Swap
from nbgen.engine.native import function
from nbgen.engine.state_fields import LANES, TokensFields, heads_together, is_cpu_inference, is_state, whole_batch

#: Functions of a family's module.
NAMES = ("torch_recurrent_gated_delta_rule", "torch_chunk_gated_delta_rule")


class DeltaFields(ctypes.Structure):
    """`Delta` of the C++."""

    _fields_ = [
        *((name, c_int64) for name in ("count", "tokens", "key_heads", "value_heads", "key_dim", "value_dim")),
        *((name, c_int64) for name in ("normalizes", "threads")),
        ("sequences", c_void_p),
        *((name, TokensFields) for name in ("queries", "keys", "values")),
        *((name, c_void_p) for name in ("decays", "shares", "states", "output")),
    ]


def replace(model: nn.Module) -> list[Swap]:
    """Replace the functions of the model's family."""
    return family_functions.replace(model, dict.fromkeys(NAMES, _instead_of))


def _instead_of(stock: Function) -> Function:
    def rule(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        initial_state: torch.Tensor | None = None,
        output_final_state: bool = False,
        use_qk_l2norm_in_kernel: bool = False,
        **more: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Like transformers' own, which documents shapes; the final state overwrites an initial one."""
        suits = more.get("cu_seqlens") is None and _suits(query, key, value, initial_state)
        remember = function("remember", query.dtype) if suits else None
        if remember is None:
            given: dict[str, Any] = {"initial_state": initial_state, "output_final_state": output_final_state, **more}
            return stock(query, key, value, g=g, beta=beta, use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel, **given)
        batch, tokens, key_heads, key_dim = key.shape
        value_heads, value_dim = value.shape[2:]
        queries, keys, values = map(heads_together, (query, key, value))
        state, decays, shares = initial_state, g.float().contiguous(), beta.float().contiguous()
        if state is None:
            state = torch.zeros(batch, value_heads, key_dim, value_dim)
        output, sequences = torch.empty(value.shape, dtype=query.dtype), whole_batch(batch, tokens)
        fields = DeltaFields(
            *(batch, tokens, key_heads, value_heads, key_dim, value_dim),
            *(use_qk_l2norm_in_kernel, torch.get_num_threads(), ctypes.addressof(sequences)),
            *map(TokensFields.of, (queries, keys, values)),
            *(each.data_ptr() for each in (decays, shares, state, output)),
        )
        remember(ctypes.byref(fields))
        return output, state if output_final_state else None

    return rule


def _suits(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, state: torch.Tensor | None) -> bool:
    """Whether this is inference, with one dtype and shapes that the C++ knows."""
    if query.shape != key.shape or value.shape[2] % key.shape[2] or value.shape[3] % LANES:
        return False
    return is_cpu_inference(query, key, value) and is_state(state)
