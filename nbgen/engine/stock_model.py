"""A model's forward in transformers' own code, over the paged cache. It computes the steps that nothing faster can.

A step of decodes only is `[B, 1]`; one with prefills is packed into `[1, T]`, never padded. The model gets no KV cache
and no mask: `attention` has both.
"""

import inspect
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from nbgen.engine import attention, media_encoder, prompt_embeds
from nbgen.engine.cache_argument import cache_argument
from nbgen.engine.compiled import CompiledDecoder
from nbgen.engine.forward import is_ids_only
from nbgen.engine.lora import LoraLayers
from nbgen.engine.model_parts import MediaTokens
from nbgen.engine.native_decoder import NativeDecoder
from nbgen.engine.routed_experts import asks
from nbgen.engine.scheduler import ScheduledSequence
from nbgen.engine.upload import upload

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class StockModel:
    """The model, whose decoder may be `compiled`, or use `layers` of our own in place of transformers'.

    Recurrent layers go on from `states`, a cache as transformers has it.
    """

    def __init__(self, model: "PreTrainedModel", lora: LoraLayers) -> None:
        self.layers: NativeDecoder | None = None
        self.compiled: CompiledDecoder | None = None
        self.states: Any = None
        self._model, self._lora = model, lora
        names = inspect.signature(model.forward).parameters
        self._keeps_logits = "logits_to_keep" in names
        self._takes_positions = "position_ids" in names
        self._cache_name = cache_argument(names)
        model.config.get_text_config()._attn_implementation = attention.IMPLEMENTATION

    @cached_property
    def _media(self) -> MediaTokens:
        return MediaTokens.of(self._model)

    @property
    def layers_in(self) -> str:
        """Whose code the layers are (`ModelInfo`)."""
        return "C++" if self.layers else "transformers"

    def suits(self, step: attention.Step, items: Sequence[ScheduledSequence]) -> bool:
        """Whether it can compute the step: it can compute any."""
        return True

    def selects(self, items: Sequence[ScheduledSequence]) -> bool:
        """Whether the model itself picks the rows whose scores are wanted."""
        return self._keeps_logits and (len(items) == 1 or any(item.num_tokens > 1 for item in items))

    def scores(
        self,
        step: attention.Step,
        items: Sequence[ScheduledSequence],
        ids: torch.Tensor,
        positions: list[int],
        rows: list[int],
    ) -> torch.Tensor:
        """Scores `[rows, vocab]` at these `rows` of the packed tokens `ids` `[T]` of `items`."""
        if self.compiled:
            self.compiled.active = is_ids_only(items) and not self._lora.wraps
        shape = (len(items), 1) if all(item.num_tokens == 1 for item in items) else (1, -1)
        with attention.current(step), self._layers_of(step, items):
            places = upload(positions, ids.device, torch.long).view(shape)
            inputs = self._inputs(ids.view(shape), items)
            if self.selects(items):
                return self._run(inputs, places, logits_to_keep=upload(rows, ids.device, torch.long))[0]
            return self._run(inputs, places).flatten(0, 1)[upload(rows, ids.device, torch.long)]

    def decode(self, step: attention.Step, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Scores `[B, vocab]` of one token each, `ids` and `positions` `[B, 1]`. Copies nothing from the host."""
        with attention.current(step):
            return self._run({"input_ids": ids}, positions)[:, -1]

    def _layers_of(self, step: attention.Step, items: Sequence[ScheduledSequence]) -> AbstractContextManager[None]:
        """Use our layers, unless a request asks for its experts, or media embeddings enter between layers."""
        if self.layers is None or any(map(asks, items)) or not self.layers.suits(step):
            return nullcontext()
        if any(map(media_encoder.begins, items)) and not self.layers.takes_media:
            return nullcontext()
        return self.layers.of(step, items)

    def _inputs(self, ids: torch.Tensor, items: Sequence[ScheduledSequence]) -> dict[str, torch.Tensor]:
        """The model's inputs for `ids` `[B, T]`: these, or embeddings if any prompt is given as embeddings."""
        if any(map(prompt_embeds.begins, items)):
            return {"inputs_embeds": prompt_embeds.merge(self._model, self._media.padded(ids), items)}
        return {"input_ids": ids}

    def _run(self, tokens: dict[str, torch.Tensor], positions: torch.Tensor, **selection: torch.Tensor) -> torch.Tensor:
        """Scores `[B, T, vocab]` of the current step's tokens `[B, T]`, or of those that `logits_to_keep` selects."""
        cache = {"use_cache": False} if self.states is None else {self._cache_name: self.states, "use_cache": True}
        inputs: dict[str, Any] = {**tokens, **cache, **selection}
        if self._takes_positions:
            inputs["position_ids"] = positions
        return self._model(**inputs).logits
