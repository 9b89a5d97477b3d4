"""Prompts given as embeddings: puts their rows in place of the model's own embeddings of the placeholder ids.

Knows nothing of caches. `width` says which models can take such prompts.
"""

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from nbgen.engine.known_code import like
from nbgen.engine.scheduler import ScheduledSequence, packed
from nbgen.messages import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: Decoders that multiply the embeddings that they look up, but not those that they are given.
IDS_ALONE = ("falcon_h1.FalconH1Model",)


def width(model: "PreTrainedModel") -> int:
    """The width of an input embedding; 0 if the model takes no embeddings, or needs ids beside them."""
    if "inputs_embeds" not in inspect.signature(model.forward).parameters:
        return 0
    if getattr(model.config.get_text_config(), "hidden_size_per_layer_input", 0):
        return 0
    return int(getattr(model.get_input_embeddings(), "embedding_dim", 0))


def begins(item: ScheduledSequence) -> bool:
    """Whether the item's first token is one of a prompt given as embeddings."""
    sequence = item.sequence
    return sequence.embeds is not None and sequence.num_computed < sequence.embeds.shape[0]


def merge(model: "PreTrainedModel", ids: torch.Tensor, items: Sequence[ScheduledSequence]) -> torch.Tensor:
    """The embeddings `[B, T, width]` of packed `ids` `[B, T]`; rows of prompts given as embeddings are those given."""
    embedded = _looked_up(model, ids)
    rows = embedded.flatten(0, 1)
    for start, item in packed(items):
        sequence = item.sequence
        if begins(item) and sequence.embeds is not None:
            _replace(rows[start : start + item.num_tokens], sequence.embeds, sequence.num_computed)
    return embedded


def fill(model: "PreTrainedModel", ids: torch.Tensor, embeds: Tensor, known: int) -> torch.Tensor:
    """`merge` for the `ids` `[1, T]` of one sequence, from the position `known` on."""
    embedded = _looked_up(model, ids)
    _replace(embedded[0], embeds, known)
    return embedded


def _looked_up(model: "PreTrainedModel", ids: torch.Tensor) -> torch.Tensor:
    """A copy of the embeddings that the model itself would make of these `ids`."""
    decoder: Any = model.get_decoder()
    multiplies = decoder is not None and like(decoder, IDS_ALONE)
    return model.get_input_embeddings()(ids) * (decoder.embedding_multiplier if multiplies else 1.0)


def _replace(rows: torch.Tensor, embeds: Tensor, position: int) -> None:
    """Overwrite `rows` `[tokens, width]` with the embeddings given for `position` and after."""
    width, count = embeds.shape[1], min(len(rows), embeds.shape[0] - position)
    if count > 0:
        given = embeds.data[4 * width * position : 4 * width * (position + count)]
        rows[:count] = torch.frombuffer(bytearray(given), dtype=torch.float32).view(count, width).to(rows)
