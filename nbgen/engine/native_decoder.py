"""A decoder's layers in C++ of our own. CPU only.

It knows the layers of Llama, Gemma and other families (`layer_parts`). One call computes norms, products with what
adapters add, rotary positions, attention over a paged cache and the feed-forward of all layers, without Python or a
copy in between. The same call can compute embeddings, the last norm and logits, for a caller that knows that the model
does nothing else there (`native_model`).
"""

import ctypes
import inspect
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import nn

from nbgen.engine import attention, stream_parts
from nbgen.engine.attention_native import NativeAttention, reads
from nbgen.engine.attention_plan import Plan
from nbgen.engine.attention_window import Window
from nbgen.engine.common_parts import part
from nbgen.engine.kv_cache import KVCache
from nbgen.engine.layer_fields import DecoderLayerFields
from nbgen.engine.layer_parts import LayerParts, products
from nbgen.engine.lora import LoraLayers, concerns
from nbgen.engine.model_parts import ModelParts
from nbgen.engine.native import function
from nbgen.engine.native_layers import NativeLayers, linear_fields
from nbgen.engine.native_linear import LinearFields, NativeProduct
from nbgen.engine.native_states import NativeStates, sequences_of
from nbgen.engine.native_step import (
    AlternatingFields,
    NormFields,
    OuterLayers,
    PerLayerFields,
    PreparedStep,
    Room,
    Scales,
    Scores,
    StepFields,
    finished,
)
from nbgen.engine.per_layer_parts import projection
from nbgen.engine.rotary_table import Rotary, RotaryTable, Stretch
from nbgen.engine.scheduler import ScheduledSequence
from nbgen.engine.state_pool import StatePool


class NativeDecoder(nn.Module):
    """Stands for all layers of a model's decoder while a step runs.

    Raises ValueError where it does not know the model's layers.
    """

    def __init__(self, model: Any, lora: LoraLayers, pool: StatePool | None = None) -> None:
        """`pool` holds the states of recurrent layers."""
        super().__init__()
        self._decoder = model.get_decoder()
        found = part(self._decoder, "layers", "h")
        run = function("run_layers", model.dtype)
        if run is None or not found:
            raise ValueError("no layers of our own for this model")
        parts = [LayerParts.of(layer) for layer in found]
        self.rotary = RotaryTable(_rotary(self._decoder, parts), model.dtype, _stretch(parts))
        self._run, self._dtype, self._lora = run, model.dtype, lora
        gives = getattr(self._decoder, "hidden_size_per_layer_input", 0)  # whether layers have inputs of their own
        begins, ends = stream_parts.around(self._decoder)
        if not all(isinstance(product.linear, NativeProduct) for product in (*begins, *ends)):
            raise ValueError("what its streams of states begin as, or end as, is not ours")
        #: Whether it can take the place of all `layers` in the decoder's forward, which then passes it the positions.
        self.stands_in = hasattr(self._decoder, "layers") and self.rotary.turns and not gives
        self.stands_in &= not hasattr(self._decoder, "rotary_embs")  # in which some layers have none
        #: Whether media enter the model only before the layers, not between them.
        self.takes_media = "deepstack_visual_embeds" not in inspect.signature(self._decoder.forward).parameters
        kinds = getattr(self._decoder.config, "layer_types", [])
        self._layers = NativeLayers(parts, self.rotary, kinds, model.dtype, 1 + len(begins) if begins else 0)
        self.states = None if pool is None else NativeStates(self._layers, pool, model.dtype)
        if pool is None and any(self._layers.recurrences):
            raise ValueError("there is no room for the states of its layers")
        self._fields, self._sizes = self._layers.fields, self._layers.sizes
        self._scales = Scales(1.0, self._layers.residual, 1.0, 0.0)
        self._stock, self._instead = list(found), nn.ModuleList([self])
        self._alike = _alike(self._layers.parts, self._fields)
        #: The last layer that writes keys or states: from its attention on, only rows with wanted logits are computed.
        leaving = max(i for i, layer in enumerate(self._layers.parts) if _brings(layer))
        self._left = _alike(self._layers.parts[leaving:], self._fields[leaving:])
        #: The numbers of the layers with attention.
        self._numbers = [layer.attention.number for layer in self._layers.parts if layer.attention]
        self._most = max(each.attention.heads * (each.attention.value_dim + 2) for each in self._fields)
        #: The first layer's keys in the cache that the layers point to.
        self._keys: weakref.ref[torch.Tensor] | None = None
        self._planned: attention.Step | None = None
        self._columns = lora.columns
        self._current: tuple[attention.Step, torch.Tensor | None] | None = None

    def suits(self, step: attention.Step) -> bool:
        """Whether the C++ layers can use the step's attention and cache."""
        return self.suits_over(step.attention, step.cache)

    def suits_over(self, attends: attention.ReferenceAttention, cache: KVCache) -> bool:
        """The same for a step that is still to be made with this attention and cache."""
        return isinstance(attends, NativeAttention) and self._reads(cache)

    @contextmanager
    def of(self, step: attention.Step, items: Sequence[ScheduledSequence]) -> Iterator[None]:
        """Replace the layers during the forward of `step`, which computes `items` and must be one that `suits`."""
        modules = self._decoder._modules
        stock, modules["layers"], self._current = modules["layers"], self._instead, (step, self._adapt(items))
        try:
            yield
        finally:
            modules["layers"], self._current = stock, None

    def forward(
        self,
        hidden_states: torch.Tensor,
        *_: None,
        position_embeddings: tuple[torch.Tensor, torch.Tensor] | torch.Tensor,
        **more: Any,
    ) -> torch.Tensor:
        """Compute all layers, from `[…, hidden]` before the first to the same shape after the last."""
        assert self._current is not None
        step, adapters = self._current
        hidden = hidden_states.clone(memory_format=torch.contiguous_format)
        is_complex = isinstance(position_embeddings, torch.Tensor)
        if is_complex or len(self.rotary.kinds) > 1 or self.rotary.stretch:  # else only the first layer's are given
            rotary = self.rotary.at(more["position_ids"].flatten().tolist())
        else:
            turns = [part.float().expand(*hidden.shape[:-1], -1).contiguous() for part in position_embeddings]
            rotary = Rotary(torch.arange(len(step.slots)), *turns)
        room = self._room(step, None, self._scales)
        self._walk(room.fields(step, adapters, rotary, None), hidden)
        return hidden

    def compute(
        self, step: attention.Step, items: Sequence[ScheduledSequence], rotary: Rotary, outer: OuterLayers
    ) -> torch.Tensor:
        """Logits `[rows, vocab]` of a step that `suits` and computes `items`.

        If only decodes' and prompts' last tokens want logits, and no hook watches the head's input, the same call
        makes them, as float32.
        """
        prepared = self.prepare(step, items, rotary, outer)
        self.walk(prepared)
        return prepared.made.scores if prepared.made else finished(outer.head(prepared.states), outer.parts)

    def prepare(
        self, step: attention.Step, items: Sequence[ScheduledSequence], rotary: Rotary, outer: OuterLayers
    ) -> PreparedStep:
        """Prepare all that the C++ needs to compute the step in `walk`."""
        adapters, wanted = self._adapt(items), outer.wanted
        last = None if wanted is None else step.of_last(wanted)
        parts = outer.parts
        room = self._room(step, last, Scales(outer.scale, self._scales.residual, parts.divisor, parts.cap))
        sequences = None
        if self.states is not None:
            self.states.point(sequences := sequences_of(step))
        fields = ending = room.fields(step, adapters, rotary, sequences)
        table = LinearFields.of_table(outer.embeddings, self._dtype)
        fields.ids, fields.embeddings = outer.ids.data_ptr(), ctypes.addressof(table)
        fields.places = None if parts.places is None else parts.places.data_ptr()
        index = None if wanted is None else torch.tensor(wanted, dtype=torch.long)
        if last is not None and index is not None:
            left = rotary._replace(positions=rotary.positions[index])
            ending = room.fields(last, None if adapters is None else adapters[index], left, None)
            fields.last, fields.wanted = ctypes.addressof(ending), index.data_ptr()
        norm, embedded, per_layer = NormFields.of(parts.norm), NormFields.of(parts.embedded), self._per_layer(parts)
        ending.norm, fields.embedded = ctypes.addressof(norm), ctypes.addressof(embedded)
        if (alternating := self._alternating()) is not None:
            fields.alternating = ending.alternating = ctypes.addressof(alternating)
        if per_layer is not None:
            fields.per_layer = ending.per_layer = ctypes.addressof(per_layer)
        few = last is not None or (wanted is None and not step.prefills)
        made = None
        if few and isinstance(outer.head, NativeProduct) and not outer.head._forward_pre_hooks:
            made = Scores(ending, outer.head, self._dtype)
        hidden = torch.empty(fields.rows, outer.embeddings.shape[1], dtype=self._dtype)
        states = room.normed(ending.rows, hidden.shape[1])
        chosen = index if last is None else None
        kept = (room, ending, norm, embedded, per_layer, alternating, index, last, outer, table)
        return PreparedStep(step, fields, hidden, states, made, chosen, sequences, kept)

    def walk(self, prepared: PreparedStep) -> None:
        """Compute the step that `prepare` made, or `takes_up` took, last."""
        self._walk(prepared.fields, prepared.hidden)

    def _per_layer(self, parts: ModelParts) -> PerLayerFields | None:
        if parts.per_layer is None:
            return None
        made = linear_fields(projection(self._decoder), [])  # it uses all rows, so no part is copied
        return PerLayerFields.of(parts.per_layer, made, self._dtype)

    def _alternating(self) -> AlternatingFields | None:
        begins, ends = (
            [linear_fields(each, []) for each in products] for products in stream_parts.around(self._decoder)
        )
        return AlternatingFields.of(begins, ends) if begins else None

    def _room(self, step: attention.Step, last: attention.Step | None, scales: Scales) -> Room:
        rows = len(step.slots)
        floats = max(self._plan(step, last) * self._most, self._layers.scratch(rows))
        return Room(rows, self._sizes, floats, scales, self._dtype, self._layers.experts)

    def _walk(self, fields: StepFields, hidden: torch.Tensor) -> None:
        self._run(ctypes.byref(fields), self._fields, len(self._fields), hidden.data_ptr())

    def _plan(self, step: attention.Step, last: attention.Step | None) -> int:
        """Point layers to their attention plans, those in `_left` to that of `last`; returns the most chunks."""
        self._planned = step
        plans = [(plan, self._alike[shape]) for shape, plan in self.plans(step).items()]
        if last is not None:
            native = cast(NativeAttention, last.attention)
            plans += [(native.plan(last, *shape), layers) for shape, layers in self._left.items()]
        for plan, layers in plans:
            for fields in layers:
                fields.batch = ctypes.addressof(plan.fields)
        return max((plan.chunks for plan, _ in plans), default=0)

    @property
    def has_experts(self) -> bool:
        """Whether some layers have experts, so that a row does not read all weights."""
        return self._layers.experts is not None

    @property
    def has_windows(self) -> bool:
        """Whether some layers see only a part of the context."""
        return any(window != Window() for window, _ in self._alike)

    def plans(self, step: attention.Step) -> dict[tuple[Window, int], Plan]:
        """The plans of the layers' attention, by window and by the number of heads that share a key head."""
        native = cast(NativeAttention, step.attention)
        return {shape: native.plan(step, *shape) for shape in self._alike}

    def takes_up(self, prepared: PreparedStep) -> bool:
        """Have `walk` compute this step again, if adapters and cache are still those that it was prepared for."""
        if self._columns is not self._lora.columns or not self.suits(prepared.step):
            return False
        if self._planned is not prepared.step:
            self._plan(prepared.step, None)
        if self.states is not None and prepared.sequences is not None:
            self.states.point(prepared.sequences)
        return True

    def _adapt(self, items: Sequence[ScheduledSequence]) -> torch.Tensor | None:
        """Point to the adapters' matrices; returns each row's range of columns `[rows, 2]`, if any has an adapter."""
        columns = self._lora.columns
        if columns is not self._columns:
            self._layers.adapt(map(products, self._stock))
            self._columns = columns
        if not concerns(items):
            return None
        own = [(columns.get(item.sequence.adapter, slice(0, 0)), item.num_tokens) for item in items]
        return torch.tensor([(part.start, part.stop) for part, count in own for _ in range(count)])

    def _reads(self, cache: KVCache) -> bool:
        """Whether all layers have a cache whose dtype the C++ reads; if so, the layers point to it from now on."""
        first = cache.layer(self._numbers[0]) if self._numbers else None
        if first is not None and self._keys is not None and self._keys() is first[0]:
            return True
        pairs = [pair for number in self._numbers if (pair := cache.layer(number)) is not None]
        if len(pairs) < len(self._numbers) or not all(reads(pair, self._dtype) for pair in pairs):
            return False
        attends = [fields for layer, fields in zip(self._layers.parts, self._fields, strict=True) if layer.attention]
        for (keys, values), fields in zip(pairs, attends, strict=True):
            fields.keys, fields.values, fields.attention.slots = keys.data_ptr(), values.data_ptr(), len(keys)
            fields.attention.halves = keys.dtype != self._dtype
        self._keys = weakref.ref(pairs[0][0]) if pairs else None
        return True


def _alike(
    parts: Iterable[LayerParts], fields: Iterable[DecoderLayerFields]
) -> dict[tuple[Window, int], list[DecoderLayerFields]]:
    """Layers with attention, by window and by the number of heads that share a key head."""
    found: dict[tuple[Window, int], list[DecoderLayerFields]] = {}
    for layer, each in zip(parts, fields, strict=True):
        if layer.attention:
            found.setdefault((layer.attention.window, layer.attention.group), []).append(each)
    return found


def _brings(layer: LayerParts) -> bool:
    """Whether a layer writes keys, or states."""
    joined = layer.attention is not None and layer.attention.joined > 0
    return layer.recurrence is not None or joined or "key" in layer.products


def _stretch(layers: list[LayerParts]) -> Stretch | None:
    """The stretch of queries that all layers share. Raises ValueError where they differ."""
    found = {layer.attention.stretch for layer in layers if layer.attention}
    if len(found) > 1:
        raise ValueError("its layers stretch queries by more than one number")
    return next(iter(found), None)


def _rotary(decoder: Any, layers: list[LayerParts]) -> nn.Module | None:
    """The decoder's rotary module, None where no layer rotates heads. Raises ValueError where there are several."""
    if not any(layer.attention and layer.attention.turns for layer in layers):
        return None
    found: Any = getattr(decoder, "rotary_embs", [part(decoder, "pos_emb", "rotary_emb")])
    if len(found) > 1:
        raise ValueError("its layers have several modules that turn heads")
    return next(iter(found))
