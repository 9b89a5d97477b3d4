"""Which experts rows go to, in the C++'s form, and buffers for the experts' intermediate results. CPU only.

Knows nothing of models.
"""

import ctypes
from collections.abc import Mapping
from ctypes import c_int64, c_void_p
from itertools import accumulate

import torch

NAMES = ("chosen", "shares", "places", "ends", "used")
#: The buffers of experts' intermediate results, and those of them that only experts use.
MADE = ("gathered", "gates", "ups", "made")
OWN = ("gathered", "made")


def laid_out(rows: int, sizes: Mapping[str, int], dtype: torch.dtype) -> tuple[torch.Tensor, dict[str, int]]:
    """Memory for each name's number of values (`sizes`) a row, and the address where each name begins."""
    room = torch.empty(rows * sum(sizes.values()), dtype=dtype)
    starts = accumulate(sizes.values(), initial=0)
    step = rows * room.element_size()
    return room, {name: room.data_ptr() + start * step for name, start in zip(sizes, starts, strict=False)}


class RoutesFields(ctypes.Structure):
    """`Routes` of the C++."""

    _fields_ = [
        *((name, c_int64) for name in ("rows", "each", "threads")),
        *((name, c_void_p) for name in (*NAMES, *MADE)),
    ]


class RouteRoom:
    """For `rows` that each go to `each` of `count` experts: the `chosen` ones `[rows, each]`, with their `shares`.

    `at` has the addresses of the buffers named in `MADE`.
    """

    def __init__(self, rows: int, each: int, count: int, at: Mapping[str, int]) -> None:
        self.chosen, self._places = torch.empty(2, rows, each, dtype=torch.long)
        self.shares = torch.empty(rows, each)
        self._ends, self._used = torch.empty(2, count + 1, dtype=torch.long)
        own = (self.chosen, self.shares, self._places, self._ends, self._used)
        pointers = {name: tensor.data_ptr() for name, tensor in zip(NAMES, own, strict=True)}
        self.fields = RoutesFields(rows, each, torch.get_num_threads(), **pointers, **{name: at[name] for name in MADE})
