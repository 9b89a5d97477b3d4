"""From ids to scores around a decoder's layers in C++ (`native_decoder`), without transformers' own forward. CPU only.

That forward costs a small model half as much as its layers, and does no more for it than is done here where its code
is the very code of `LIKE`.
"""

import torch
from torch import nn
from transformers.models.llama import modeling_llama as llama
from transformers.models.mistral import modeling_mistral as mistral
from transformers.models.qwen2 import modeling_qwen2 as qwen2
from transformers.models.qwen3 import modeling_qwen3 as qwen3

from nbgen.engine.native_decoder import LIKE as LAYERS_LIKE
from nbgen.engine.native_decoder import NativeDecoder, same_code

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
        rotary = self._decoder.rotary_emb
        self._turns = Turns(rotary, model.dtype) if rotary.rope_type not in BY_LENGTH else None

    def scores(self, ids: torch.Tensor, positions: list[int], rows: list[int]) -> torch.Tensor:
        """`[rows, vocab]` of the packed tokens `ids` `[T]`, within the layers' step."""
        hidden = self._decoder.embed_tokens(ids)
        if self._turns is not None:
            turns = self._turns.at(positions)
        else:
            turns = torch.cat(self._decoder.rotary_emb(hidden, torch.tensor([positions])))
        wanted = None if rows == list(range(len(ids))) else rows
        return self._model.lm_head(self._layers.compute(hidden, turns, self._decoder.norm, wanted))


class Turns:
    """Cosines and sines of positions, computed once by the model's own module."""

    def __init__(self, rotary: nn.Module, dtype: torch.dtype) -> None:
        self._rotary, self._dtype = rotary, dtype
        self._table = torch.empty(0)
        self._length = 0

    def at(self, positions: list[int]) -> torch.Tensor:
        """`[2, positions, dim]`"""
        if (longest := max(positions)) >= self._length:
            self._length = max(1024, 2 * longest)
            found = self._rotary(torch.empty(0, dtype=self._dtype), torch.arange(self._length)[None])
            self._table = torch.cat(found)
        return self._table.index_select(1, torch.tensor(positions))
