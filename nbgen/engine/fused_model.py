"""A model from ids to scores on a GPU, in a fraction of the kernels that transformers' forward launches.

Serves models whose code is Llama's (`llama_like`). Weights with the same input are joined; the model's own layers get
views of them, for steps that are not served here. Needs triton: import it only where there is a GPU.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from nbgen.engine.attention import Scores, Step
from nbgen.engine.forward import is_ids_only
from nbgen.engine.fused_attention import Heads, attend
from nbgen.engine.fused_rows import ManyRows, Norm, OneRow, Product
from nbgen.engine.linear import is_plain
from nbgen.engine.llama_like import check_layer, check_model, is_norm, linears, window
from nbgen.engine.lora import concerns
from nbgen.engine.rotary_table import BY_LENGTH, Rotary, rotary_of
from nbgen.engine.scheduler import ScheduledSequence
from nbgen.engine.shared_linear import joined
from nbgen.engine.upload import upload

#: Positions for which cosines and sines are made at first, and at most at once.
FIRST, PART = 1024, 65_536


class FusedLayer(NamedTuple):
    """A layer's weights, and how it attends."""

    input_norm: Norm
    projection: Product
    heads: Heads
    output: Product
    post_norm: Norm
    gate_and_up: Product
    down: Product


class FusedModel:
    """Raises ValueError if the model does more than is known here, and then leaves it unchanged."""

    layers_in = "Triton"

    def __init__(self, model: Any) -> None:
        decoder = model.get_decoder()
        check_model(model)
        for layer in decoder.layers:
            check_layer(layer)
        _check_types(model)
        self._model, self._embeddings = model, decoder.embed_tokens.weight
        self._norm, self._head = Norm.of(decoder.norm), Product(model.lm_head.weight, model.lm_head.bias)
        self._cosines, self._sines = _rotary(model, FIRST)
        self._layers = [_fused(layer) for layer in decoder.layers]

    def reach(self, positions: int) -> None:
        """Allow sequences of `positions` tokens. Call it before capturing graphs: they keep the tables of that time."""
        if positions > (known := len(self._cosines)):
            self._cosines, self._sines = _rotary(self._model, max(positions, 2 * known))

    def suits(self, step: Step, items: Sequence[ScheduledSequence]) -> bool:
        """Whether the step is of ids without adapters, and its cache has the model's own dtype."""
        if not is_ids_only(items) or concerns(items):
            return False
        pairs = (step.cache.layer(layer.heads.number) for layer in self._layers)
        return all(pair and pair[0].dtype == self._embeddings.dtype for pair in pairs)

    def selects(self, _: Sequence[ScheduledSequence]) -> bool:
        """True: it computes the scores of wanted rows only."""
        return True

    def scores(
        self,
        step: Step,
        _: Sequence[ScheduledSequence],
        ids: torch.Tensor,
        positions: list[int],
        rows: list[int],
    ) -> torch.Tensor:
        """`[rows, vocab]` of the packed tokens `ids` `[T]`, of a step that `suits`."""
        self.reach(1 + max(positions))
        places = upload(positions, ids.device, torch.long)
        if len(ids) == 1 and not self._model.lm_head._forward_pre_hooks:
            return self.decode(step, ids, places)
        many = ManyRows(nn.functional.embedding(ids, self._embeddings))
        self._walk(many, step, places)
        if not rows:  # a chunk of a prompt that is not its last
            return self._embeddings.new_empty(0, len(self._head.weight))
        if rows != list(range(len(ids))):
            many.pick(upload(rows, ids.device, torch.long))
        return self._model.lm_head(many.normed(self._norm))

    def decode(self, step: Step, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Scores `[B, vocab]` of one token each, `ids` and `positions` `[B]`, without reading host memory."""
        hidden = nn.functional.embedding(ids, self._embeddings)
        rows = OneRow(hidden) if len(ids) == 1 else ManyRows(hidden)
        self._walk(rows, step, positions)
        return rows.product(self._norm, self._head)

    def _walk(self, rows: ManyRows | OneRow, step: Step, positions: torch.Tensor) -> None:
        rotary = Rotary(positions, self._cosines, self._sines)
        for layer in self._layers:
            projected = rows.product(layer.input_norm, layer.projection)
            rows.add(attend(projected, layer.heads, step, rotary).flatten(1), layer.output)
            rows.add(rows.gated(layer.post_norm, layer.gate_and_up), layer.down)


def _check_types(model: Any) -> None:
    products = [linear for layer in model.get_decoder().layers for linear in linears(layer)]
    if not all(is_plain(linear) and linear.weight.dtype == model.dtype for linear in [*products, model.lm_head]):
        raise ValueError("its linear layers are not plain ones, or of several types")
    if any(norm.weight.dtype != model.dtype for norm in filter(is_norm, model.modules())):
        raise ValueError("its norms are of another type")
    if model.get_decoder().rotary_emb.rope_type in BY_LENGTH:
        raise ValueError("its rotary positions depend on a sequence's length")


def _rotary(model: Any, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of the first `count` positions, by the model's own module; equal for both halves of a head."""
    decoder, positions = model.get_decoder(), torch.arange(count, device=model.device)
    parts = [rotary_of(decoder.rotary_emb, decoder.embed_tokens.weight[:0], part) for part in positions.split(PART)]
    halves = [torch.cat(table).chunk(2, dim=-1) for table in zip(*parts, strict=True)]
    if not all(torch.equal(left, right) for left, right in halves):
        raise ValueError("its rotary positions are not Llama's")
    cosines, sines = (left.contiguous() for left, _ in halves)
    return cosines, sines


def _fused(layer: Any) -> FusedLayer:
    attention = layer.self_attn
    query, key, value, output, gate, up, down = linears(layer)
    dim, norms = attention.head_dim, [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
    heads = Heads(
        attention.layer_idx,
        None if None in norms else (Norm.of(norms[0]), Norm.of(norms[1])),
        query.out_features // dim,
        key.out_features // dim,
        dim,
        window(attention),
        Scores(attention.scaling),
    )
    return FusedLayer(
        Norm.of(layer.input_layernorm),
        _join([query, key, value]),
        heads,
        Product(output.weight, output.bias),
        Norm.of(layer.post_attention_layernorm),
        _join([gate, up]),
        Product(down.weight, down.bias),
    )


@torch.no_grad()
def _join(linears: list[nn.Linear]) -> Product:
    """One weight for all of them, of which each layer's weight becomes a view."""
    together = joined(linears)
    parts = together.weight.split([linear.out_features for linear in linears])
    for linear, weight in zip(linears, parts, strict=True):
        linear.weight = nn.Parameter(weight, requires_grad=False)
    if together.weight.device.type == "cuda":
        torch.cuda.empty_cache()  # the next layer's joined weight would not fit into the parts' freed memory
    return Product(together.weight, together.bias)
