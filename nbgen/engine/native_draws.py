"""Draws random tokens in C++ of our own, the same ones as `draws` with torch. CPU only. Knows no penalties, no text."""

import ctypes
from collections.abc import Callable
from ctypes import c_double, c_int64

import torch

from nbgen.engine.draws import temperature
from nbgen.engine.native import function
from nbgen.engine.sequence import Sequence


class DrawFields(ctypes.Structure):
    """`Draw` of the C++."""

    _fields_ = [
        *((name, c_int64) for name in ("row", "seed", "position", "top_k")),
        *((name, c_double) for name in ("temperature", "top_p", "min_p")),
    ]

    @classmethod
    def of(cls, row: int, sequence: Sequence) -> "DrawFields":
        """For the sequence's next token, whose scores are in this row."""
        params = sequence.params
        top_k = 1 if params.greedy else params.top_k
        return cls(row, sequence.seed, len(sequence), top_k, temperature(sequence), params.top_p, params.min_p)


class NativeDraws:
    """The draws of one library."""

    def __init__(self, library_draw: Callable[..., None]) -> None:
        self._draw = library_draw

    @classmethod
    def of(cls, dtype: torch.dtype) -> "NativeDraws | None":
        """The draws of the library for `dtype`, None if this machine has none; scores are float32 in any case."""
        found = function("draw", dtype)
        return None if found is None else cls(found)

    def draw(self, scores: torch.Tensor, rows: list[int], sequences: list[Sequence]) -> torch.Tensor:
        """A token `[rows]` for each of the `rows` of float32 `scores` `[…, vocab]`, whose greatest score is finite."""
        scores, tokens = scores.contiguous(), torch.empty(len(rows), dtype=torch.long)
        fields = (DrawFields * len(rows))(*map(DrawFields.of, rows, sequences))
        threads, vocab = torch.get_num_threads(), scores.shape[-1]
        self._draw(fields, len(rows), threads, scores.data_ptr(), vocab, tokens.data_ptr())
        return tokens
