"""From ids to scores around a decoder's layers in C++ (`native_decoder`), without transformers' own forward. CPU only.

That forward costs a small model half as much as its layers, and does no more for it than is done here where its code
is Llama's (`llama_like`).
"""

from collections.abc import Sequence

import torch
from torch import nn

from nbgen.engine import attention
from nbgen.engine.llama_like import BY_LENGTH, check_model
from nbgen.engine.native_decoder import NativeDecoder
from nbgen.engine.native_step import Ends, Turns
from nbgen.engine.scheduler import ScheduledSequence


class NativeModel:
    """Raises ValueError where the model does more than is known here."""

    def __init__(self, model: nn.Module, layers: NativeDecoder) -> None:
        self._model, self._decoder, self._layers = model, model.get_decoder(), layers
        check_model(model)
        self._turns = TurnTable(self._decoder.rotary_emb, model.dtype)

    def suits(self, step: attention.Step, _: Sequence[ScheduledSequence]) -> bool:
        """Whether the step's attention and cache are what the layers read."""
        return self._layers.suits(step)

    def scores(
        self,
        step: attention.Step,
        items: Sequence[ScheduledSequence],
        ids: torch.Tensor,
        positions: list[int],
        rows: list[int],
    ) -> torch.Tensor:
        """`[rows, vocab]` of the packed tokens `ids` `[T]` of `items`, of a step that suits the layers."""
        wanted = None if rows == list(range(len(ids))) else rows
        decoder = self._decoder
        ends = Ends(ids, decoder.embed_tokens.weight, decoder.norm, self._model.lm_head, wanted)
        return self._layers.compute(step, items, self._turns.at(positions), ends)


class TurnTable:
    """Cosines and sines of positions, computed by the model's own module: once, where that can be."""

    def __init__(self, rotary: nn.Module, dtype: torch.dtype) -> None:
        self._rotary, self._like = rotary, torch.empty(0, dtype=dtype)
        self._keeps = rotary.rope_type not in BY_LENGTH
        self._table = torch.empty(0), torch.empty(0)

    def at(self, positions: list[int]) -> Turns:
        numbers = torch.tensor(positions)
        if not self._keeps:
            return Turns(torch.arange(len(positions)), *self._of(numbers))
        if (longest := max(positions)) >= len(self._table[0]):
            self._table = self._of(torch.arange(max(1024, 2 * longest)))
        return Turns(numbers, *self._table)

    def _of(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """`[positions, dim]` each."""
        cosines, sines = self._rotary(self._like, positions[None])
        return cosines[0].contiguous(), sines[0].contiguous()
