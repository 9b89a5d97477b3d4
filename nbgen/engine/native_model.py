"""From ids to logits around a decoder's layers in C++ (`native_decoder`), without transformers' own forward. CPU only.

That forward costs a small model half as much as its layers. For models whose code is known (`model_parts`), it does
nothing that is not done here.
"""

from collections.abc import Sequence
from typing import Any

import torch

from nbgen.engine import attention, prompt_embeds
from nbgen.engine.attention import ReferenceAttention
from nbgen.engine.decode_row import DecodeRow
from nbgen.engine.forward import Decoded, is_text_only
from nbgen.engine.kv_cache import KVCache
from nbgen.engine.model_parts import ModelParts
from nbgen.engine.native_decoder import NativeDecoder
from nbgen.engine.native_decodes import NativeDecodes, step_of
from nbgen.engine.native_linear import NativeProduct
from nbgen.engine.native_states import NativeStates
from nbgen.engine.native_step import OuterLayers
from nbgen.engine.sampled_tokens import SampledTokens
from nbgen.engine.scheduler import ScheduledSequence

#: The most rows of a step that is kept beside others: each step has logits `[rows, vocab]`.
KEPT_ROWS = 8


class NativeModel:
    """Raises ValueError where the model does more than is known here."""

    layers_in = "C++"

    def __init__(self, model: Any, layers: NativeDecoder, cache: KVCache, attention: ReferenceAttention) -> None:
        self._model, self._decoder, self._layers = model, model.get_decoder(), layers
        self._cache, self._attention = cache, attention
        self._parts, self._rotary = ModelParts.of(model), layers.rotary
        #: Steps of decodes that may go on, by number of rows, as long as their first row is the same sequence's.
        self._kept: dict[int, NativeDecodes] = {}
        self._first: list[int] | None = None

    @property
    def has_experts(self) -> bool:
        """Whether a row may read weights that the row beside it does not (experts)."""
        return self._layers.has_experts

    def suits(self, step: attention.Step, items: Sequence[ScheduledSequence]) -> bool:
        """Whether the step is text alone, and the C++ layers can use its attention and cache."""
        return is_text_only(items) and not self._parts.media.embeds(items) and self._layers.suits(step)

    def computes(self, cache: KVCache, items: Sequence[ScheduledSequence]) -> bool:
        """The same for a step over `cache` that is not made yet."""
        suits = is_text_only(items) and not self._parts.media.embeds(items)
        return suits and self._layers.suits_over(self._attention, cache)

    def selects(self, _: Sequence[ScheduledSequence]) -> bool:
        """Always: logits are made only of the rows that are wanted."""
        return True

    def scores(
        self,
        step: attention.Step,
        items: Sequence[ScheduledSequence],
        ids: torch.Tensor,
        positions: list[int],
        rows: list[int],
    ) -> torch.Tensor:
        """`[rows, vocab]` of the packed tokens `ids` `[T]` of `items`, of a step that suits the layers.

        Where a prompt is given as embeddings, these replace the model's own.
        """
        ids = self._parts.media.padded(ids)
        outer = self._outer(ids, None if rows == list(range(len(ids))) else rows)
        if any(map(prompt_embeds.begins, items)):
            embeddings = prompt_embeds.merge(self._model, ids[None], items)[0]
            outer = outer._replace(ids=torch.arange(len(ids)), embeddings=embeddings, scale=self._parts.hidden)
        return self._layers.compute(step, items, self._rotary.at(positions), outer)

    def decode(self, rows: Sequence[DecodeRow], newest: SampledTokens | None = None) -> Decoded | None:
        """Logits of the next tokens, without adapters; None where each step has to be prepared anew."""
        if newest is not None or any(row.token >= self._parts.media.apart for row in rows):
            return None
        if any(not row.index for row in rows):  # whose states begin, where a step that goes on would find another's
            return None
        if self._first is not rows[0].block_table:
            self._first = rows[0].block_table
            self._kept.clear()
        batch = self._kept.get(len(rows))
        if batch is None or not self._layers.takes_up(batch.prepared) or not batch.goes_on(rows):
            batch = self._begun(rows)
            self._keep(len(rows), batch)
        if batch is None or (made := batch.prepared.made) is None:
            return None
        made.renew()
        self._layers.walk(batch.prepared)
        return Decoded(made.scores)

    @property
    def states(self) -> NativeStates | None:
        """The states of recurrent layers, if there are any."""
        return self._layers.states

    def _keep(self, rows: int, batch: NativeDecodes | None) -> None:
        """Keep this step; others are kept beside it only if they and it have few rows."""
        others = {count: kept for count, kept in self._kept.items() if max(count, rows) <= KEPT_ROWS}
        self._kept = others if batch is None else {**others, rows: batch}

    def _begun(self, rows: Sequence[DecodeRow]) -> NativeDecodes | None:
        if len(self._parts.media.ids):  # placeholders of media
            return None
        if not self._rotary.keeps or self._layers.has_windows or not isinstance(self._head, NativeProduct):
            return None
        step = step_of(rows, self._cache, self._attention)
        if not self._layers.suits(step):
            return None
        ids, rotary = torch.tensor([row.token for row in rows]), self._rotary.at([row.position for row in rows])
        prepared = self._layers.prepare(step, [], rotary, self._outer(ids, None))
        return NativeDecodes(rows, prepared, ids, rotary, self._layers.plans(step).values()) if prepared.made else None

    def _outer(self, ids: torch.Tensor, wanted: list[int] | None) -> OuterLayers:
        table, parts = self._decoder.get_input_embeddings().weight, self._parts
        return OuterLayers(ids, table, parts.embedding * parts.hidden, parts, self._head, wanted)

    @property
    def _head(self) -> Any:
        """The LM head as it is now: it may be wrapped for adapters."""
        return self._model.get_output_embeddings()
