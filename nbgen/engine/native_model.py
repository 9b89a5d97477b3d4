"""From ids to scores around a decoder's layers in C++ (`native_decoder`), without transformers' own forward. CPU only.

That forward costs a small model half as much as its layers, and does no more for it than is done here where its code
is Llama's (`llama_like`).
"""

from collections.abc import Sequence

import torch
from torch import nn

from nbgen.engine import attention
from nbgen.engine.llama_like import check_model
from nbgen.engine.native_decoder import NativeDecoder
from nbgen.engine.native_step import Ends
from nbgen.engine.scheduler import ScheduledSequence
from nbgen.engine.turns import TurnTable


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
