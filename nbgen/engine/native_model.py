"""From ids to scores around a decoder's layers in C++ (`native_decoder`), without transformers' own forward. CPU only.

That forward costs a small model half as much as its layers, and does no more for it than is done here where its code
is the very code of `LIKE`.
"""

from collections.abc import Sequence

import torch
from torch import nn
from transformers.models.llama import modeling_llama as llama
from transformers.models.mistral import modeling_mistral as mistral
from transformers.models.qwen2 import modeling_qwen2 as qwen2
from transformers.models.qwen3 import modeling_qwen3 as qwen3

from nbgen.engine import attention
from nbgen.engine.native_decoder import LIKE as LAYERS_LIKE
from nbgen.engine.native_decoder import NativeDecoder, same_code
from nbgen.engine.native_step import Ends, Turns
from nbgen.engine.scheduler import ScheduledSequence

LIKE = {
    "model": [llama.LlamaForCausalLM, mistral.MistralForCausalLM, qwen2.Qwen2ForCausalLM, qwen3.Qwen3ForCausalLM],
    "decoder": [llama.LlamaModel, mistral.MistralModel, qwen2.Qwen2Model, qwen3.Qwen3Model],
    "norm": LAYERS_LIKE["norm"],
}
#: Rotary positions whose frequencies depend on how long a sequence is.
BY_LENGTH = {"dynamic", "longrope"}


class NativeModel:
    """Raises ValueError where the model does more than is known here."""

    def __init__(self, model: nn.Module, layers: NativeDecoder) -> None:
        self._model, self._decoder, self._layers = model, model.get_decoder(), layers
        for kind, part in (("model", model), ("decoder", self._decoder), ("norm", self._decoder.norm)):
            if not any(same_code(type(part).forward, known.forward) for known in LIKE[kind]):
                raise ValueError(f"its {kind} is not like Llama's")
        embeddings = self._decoder.embed_tokens
        if type(embeddings) is not nn.Embedding or embeddings.weight.dtype != model.dtype:
            raise ValueError("its embeddings are not torch's, or of another type than the layers")
        if len(embeddings.weight) < max(model.config.vocab_size, model.lm_head.out_features):
            raise ValueError("some ids have no embedding")
        self._turns = TurnTable(self._decoder.rotary_emb, model.dtype)

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
