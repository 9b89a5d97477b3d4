"""A decoder's layers in C++ of our own. CPU only.

It knows layers like Llama's, Gemma's and others' (`decoder_parts`). Norms, products with what adapters add, rotary
positions, attention over a paged cache and the feed-forward of all layers are one call, without Python or a copy in
between; and so are embeddings, the last norm and scores, for who knows that the model has nothing else there
(`native_model`).
"""

import ctypes
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import c_int64, c_void_p
from typing import Any, cast

import torch
from torch import nn

from nbgen.engine import attention
from nbgen.engine.attention import Window
from nbgen.engine.attention_native import LayerFields, NativeAttention
from nbgen.engine.attention_plan import Plan
from nbgen.engine.decoder_parts import SAME_HALVES, LayerParts, Mixture, Product, products
from nbgen.engine.expert_routes import OWN
from nbgen.engine.kv_cache import KVCache
from nbgen.engine.lora import LoraLayers, LoraLinear, concerns
from nbgen.engine.native import function
from nbgen.engine.native_experts import ExpertsFields
from nbgen.engine.native_linear import ALL, OUTPUTS, LinearFields, NativeProduct
from nbgen.engine.native_step import (
    MADE,
    NormFields,
    OuterLayers,
    PreparedStep,
    Room,
    Scales,
    Scores,
    StepFields,
    finished,
)
from nbgen.engine.rotary_table import Rotary, RotaryTable
from nbgen.engine.scheduler import ScheduledSequence

LINEARS = ("query", "key", "value", "output", "gate", "up", "down")
NORMS = ("input_norm", "attended_norm", "feed_norm", "fed_norm", "query_norm", "key_norm")


class RouterFields(ctypes.Structure):
    """`Router` of the C++."""

    _fields_ = [("scores", LinearFields), *((name, c_int64) for name in ("each", "among_all", "rounds"))]


class SparseFeedFields(ctypes.Structure):
    """`SparseFeed` of the C++."""

    _fields_ = [("router", RouterFields), ("experts", ExpertsFields)]

    @classmethod
    def of(cls, mixture: Mixture, dtype: torch.dtype) -> "SparseFeedFields":
        """Where its experts lie, and what chooses them."""
        weight, bias, *told = mixture.router
        scores = LinearFields.of_table(weight, dtype)
        scores.bias = None if bias is None else bias.data_ptr()
        return cls(RouterFields(scores, *told), mixture.experts.fields)


class DecoderLayerFields(ctypes.Structure):
    """`DecoderLayer` of the C++."""

    _fields_ = [
        *((name, NormFields) for name in NORMS),
        *((name, LinearFields) for name in LINEARS),
        ("attention", LayerFields),
        *((name, c_void_p) for name in ("keys", "values", "batch")),
        *((name, c_int64) for name in ("activation", "all_heads", "turned", "turn", "rounds", "turns")),
        ("sparse", c_void_p),
    ]


class NativeDecoder(nn.Module):
    """Stands for all layers of a model's decoder while a step runs.

    Raises ValueError where it does not know the model's layers.
    """

    def __init__(self, model: Any, lora: LoraLayers) -> None:
        super().__init__()
        self._decoder = model.get_decoder()
        found = getattr(self._decoder, "layers", None)
        run = function("run_layers", model.dtype)
        if run is None or not found:
            raise ValueError("no layers of our own for this model")
        layers = [LayerParts.of(layer) for layer in found]
        self.rotary = RotaryTable(self._decoder.rotary_emb, model.dtype)
        self._run, self._dtype, self._lora = run, model.dtype, lora
        _check_products(layers)
        self._scales = Scales(1.0, _residual(layers), 1.0, 0.0)
        self._stock, self._instead = list(found), nn.ModuleList([self])
        self._numbers = [layer.attention.layer_idx for layer in layers]
        #: What the layers point to of adapters, and besides.
        self._adapted: list[torch.Tensor] = []
        self._kept: list[Any] = []
        self._fields = (DecoderLayerFields * len(found))(*map(self._of, layers))
        self._alike: dict[tuple[Window, int], list[DecoderLayerFields]] = {}
        for layer, fields in zip(layers, self._fields, strict=True):
            group = fields.attention.heads // fields.attention.kv_heads
            self._shape_of_last = layer.window, group
            self._alike.setdefault(self._shape_of_last, []).append(fields)
        self._sizes, self._experts = _sizes(layers), _experts(layers)
        shapes = [fields.attention for fields in self._fields]
        self._most = max(shape.heads * (shape.value_dim + 2) for shape in shapes)
        #: The first layer's, in the cache that the layers point to.
        self._keys: weakref.ref[torch.Tensor] | None = None
        self._planned: attention.Step | None = None
        self._columns = lora.columns
        self._current: tuple[attention.Step, torch.Tensor | None] | None = None

    def suits(self, step: attention.Step) -> bool:
        """Whether the step's attention and cache are what the layers read."""
        return isinstance(step.attention, NativeAttention) and self._point(step.cache)

    @contextmanager
    def of(self, step: attention.Step, items: Sequence[ScheduledSequence]) -> Iterator[None]:
        """Take the layers' place around the forward of `step`, which computes `items` and must be one that `suits`."""
        modules = self._decoder._modules
        stock, modules["layers"], self._current = modules["layers"], self._instead, (step, self._adapt(items))
        try:
            yield
        finally:
            modules["layers"], self._current = stock, None

    def forward(
        self, hidden_states: torch.Tensor, position_embeddings: tuple[torch.Tensor, torch.Tensor], **more: Any
    ) -> torch.Tensor:
        """`[…, hidden]` before the first layer and after the last."""
        assert self._current is not None
        step, adapters = self._current
        hidden = hidden_states.clone(memory_format=torch.contiguous_format)
        if len(self.rotary.kinds) > 1:  # of which the model gives those of its first layer
            rotary = self.rotary.at(more["position_ids"].flatten().tolist())
        else:
            turns = [part.float().expand(*hidden.shape[:-1], -1).contiguous() for part in position_embeddings]
            rotary = Rotary(torch.arange(len(step.slots)), *turns)
        room = self._room(step, None, self._scales)
        self._walk(room.fields(step, adapters, rotary), hidden)
        return hidden

    def compute(
        self, step: attention.Step, items: Sequence[ScheduledSequence], rotary: Rotary, outer: OuterLayers
    ) -> torch.Tensor:
        """Scores `[rows, vocab]` of a step that `suits` and computes `items`.

        Those of decodes and of prompts' last tokens alone are made in the same call, as float32, where nobody looks at
        what goes into the head.
        """
        prepared = self.prepare(step, items, rotary, outer)
        self.walk(prepared)
        return prepared.made.scores if prepared.made else finished(outer.head(prepared.states), outer.parts)

    def prepare(
        self, step: attention.Step, items: Sequence[ScheduledSequence], rotary: Rotary, outer: OuterLayers
    ) -> PreparedStep:
        """All that the C++ needs to compute the step, as `walk` does."""
        adapters, wanted = self._adapt(items), outer.wanted
        last = None if wanted is None else step.of_last(wanted)
        parts = outer.parts
        room = self._room(step, last, Scales(outer.scale, self._scales.residual, parts.divisor, parts.cap))
        fields = ending = room.fields(step, adapters, rotary)
        table = LinearFields.of_table(outer.embeddings, self._dtype)
        fields.ids, fields.embeddings = outer.ids.data_ptr(), ctypes.addressof(table)
        index = None if wanted is None else torch.tensor(wanted, dtype=torch.long)
        if last is not None and index is not None:
            left = rotary._replace(positions=rotary.positions[index])
            ending = room.fields(last, None if adapters is None else adapters[index], left)
            fields.last, fields.wanted = ctypes.addressof(ending), index.data_ptr()
        norm = NormFields.of(parts.norm)
        ending.norm = ctypes.addressof(norm)
        few = last is not None or (wanted is None and not step.prefills)
        made = None
        if few and isinstance(outer.head, NativeProduct) and not outer.head._forward_pre_hooks:
            made = Scores(ending, outer.head, self._dtype)
        hidden = torch.empty(fields.rows, outer.embeddings.shape[1], dtype=self._dtype)
        states = room.normed(ending.rows, hidden.shape[1])
        chosen = index if last is None else None
        return PreparedStep(step, fields, hidden, states, made, chosen, (room, ending, norm, index, last, outer, table))

    def walk(self, prepared: PreparedStep) -> None:
        """Compute a step that this prepared, or took up, last."""
        self._walk(prepared.fields, prepared.hidden)

    def _room(self, step: attention.Step, last: attention.Step | None, scales: Scales) -> Room:
        floats = self._plan(step, last) * self._most
        return Room(len(step.slots), self._sizes, floats, scales, self._dtype, self._experts)

    def _of(self, layer: LayerParts) -> DecoderLayerFields:
        """All of a layer but where its cache is."""
        kinds, width = self.rotary.kinds, self.rotary.width
        kind = kinds.index(self._decoder.config.layer_types[layer.attention.layer_idx]) if len(kinds) > 1 else 0
        turned = width * (2 if layer.way == SAME_HALVES else 1) if layer.turns else 0
        given = layer.activation, layer.norms_all_heads, turned, kind * width, layer.rounds, layer.way
        linears = [_linear_fields(product, self._adapted) for product in layer.products]
        none = [LinearFields()] * (len(LINEARS) - len(linears))
        norms, shape = map(NormFields.of, layer.norms), _shape(layer)
        if layer.sinks is not None:
            self._kept.append(layer.sinks)
            shape.sinks = layer.sinks.data_ptr()
        fields = DecoderLayerFields(*norms, *linears, *none, shape, None, None, None, *given)
        if layer.mixture:
            self._kept.append(sparse := SparseFeedFields.of(layer.mixture, self._dtype))
            fields.sparse = ctypes.addressof(sparse)
        return fields

    def _walk(self, fields: StepFields, hidden: torch.Tensor) -> None:
        self._run(ctypes.byref(fields), self._fields, len(self._fields), hidden.data_ptr())

    def _plan(self, step: attention.Step, last: attention.Step | None) -> int:
        """Point every layer to the plan of its attention, the last one to that of the step `last`; the most chunks."""
        self._planned = step
        plans = [(plan, self._alike[shape]) for shape, plan in self.plans(step).items()]
        if last is not None:
            native = cast(NativeAttention, last.attention)
            plans.append((native.plan(last, *self._shape_of_last), [self._fields[-1]]))
        for plan, layers in plans:
            for fields in layers:
                fields.batch = ctypes.addressof(plan.fields)
        return max(plan.chunks for plan, _ in plans)

    @property
    def has_experts(self) -> bool:
        """Whether some layers' weights are not all read for a row."""
        return self._experts is not None

    @property
    def has_windows(self) -> bool:
        """Whether some layers see a part of what came before only."""
        return any(window != Window() for window, _ in self._alike)

    def plans(self, step: attention.Step) -> dict[tuple[Window, int], Plan]:
        """How the attention of layers is computed, for each window and number of heads that share a key head."""
        native = cast(NativeAttention, step.attention)
        return {shape: native.plan(step, *shape) for shape in self._alike}

    def takes_up(self, prepared: PreparedStep) -> bool:
        """Have `walk` compute that step again, if adapters and cache are still as it was prepared for."""
        if self._columns is not self._lora.columns or not self.suits(prepared.step):
            return False
        if self._planned is not prepared.step:
            self._plan(prepared.step, None)
        return True

    def _adapt(self, items: Sequence[ScheduledSequence]) -> torch.Tensor | None:
        """Point to the adapters' matrices; each row's own columns `[rows, 2]` of them, if any has some."""
        columns = self._lora.columns
        if columns is not self._columns:
            self._adapted = []
            for layer, fields in zip(self._stock, self._fields, strict=True):
                for name, product in zip(LINEARS, products(layer), strict=False):
                    setattr(fields, name, _linear_fields(product, self._adapted))
            self._columns = columns
        if not concerns(items):
            return None
        own = [(columns.get(item.sequence.adapter, slice(0, 0)), item.num_tokens) for item in items]
        return torch.tensor([(part.start, part.stop) for part, count in own for _ in range(count)])

    def _point(self, cache: KVCache) -> bool:
        """Whether there is a cache of the model's own kind of numbers, which the layers then point to."""
        first = cache.layer(self._numbers[0])
        if first is not None and self._keys is not None and self._keys() is first[0]:
            return True
        pairs = [pair for number in self._numbers if (pair := cache.layer(number)) is not None]
        if len(pairs) < len(self._numbers) or any(tensor.dtype != self._dtype for pair in pairs for tensor in pair):
            return False
        for (keys, values), fields in zip(pairs, self._fields, strict=True):
            fields.keys, fields.values, fields.attention.slots = keys.data_ptr(), values.data_ptr(), len(keys)
        self._keys = weakref.ref(pairs[0][0])
        return True


def _check_products(layers: list[LayerParts]) -> None:
    """Raises ValueError for those that are not ours."""
    every = [product for layer in layers for product in layer.products]
    if not all(isinstance(each.linear, NativeProduct) and each.outputs % OUTPUTS == 0 for each in every):
        raise ValueError("its linear layers are not ours")


def _residual(layers: list[LayerParts]) -> float:
    """By what all layers multiply what they add. Raises ValueError where they differ."""
    residual, *others = {layer.residual for layer in layers}
    if others:
        raise ValueError("its layers multiply by more than one number")
    return residual


def _shape(layer: LayerParts) -> LayerFields:
    query, key, *_ = layer.products
    dim = layer.attention.head_dim
    return LayerFields(
        query.outputs // dim, key.outputs // dim, dim, dim, 0, layer.attention.scaling, layer.softcap, None
    )


def _linear_fields(product: Product, kept: list[torch.Tensor]) -> LinearFields:
    """Matrices of adapters that are cut for it go to those that are `kept`."""
    linear, rows = product
    if not isinstance(linear, LoraLinear):
        return linear.fields(rows)
    down, up = linear.matrices
    if rows is not ALL:
        up = up[:, rows].contiguous()
        kept.append(up)
    base: Any = linear.base
    return cast(LinearFields, base.fields(rows, (down, up)))


def _sizes(layers: list[LayerParts]) -> dict[str, int]:
    """Numbers of one row in each of what a step makes meanwhile, in the widest layer."""
    most: Counter[str] = Counter()
    for layer in layers:
        query, key, value, output, *fed = layer.products
        outputs = (query.outputs, key.outputs, value.outputs, output.linear.in_features, output.outputs)
        most |= Counter(dict(zip(MADE, (query.linear.in_features, *outputs), strict=False)))
        most |= Counter({name: product.outputs for name, product in zip(("gates", "ups"), fed, strict=False)})
        if layer.mixture:
            experts, router = layer.mixture
            most |= Counter(experts.sizes(router.each)) | Counter(routing=experts.num_experts)
    return {name: most[name] for name in (*MADE, *OWN)}


def _experts(layers: list[LayerParts]) -> tuple[int, int] | None:
    """To how many of how many a row goes. Raises ValueError where layers differ."""
    found = {(each.mixture.router.each, each.mixture.experts.num_experts) for each in layers if each.mixture}
    if len(found) > 1:
        raise ValueError("its layers have more than one number of experts")
    return next(iter(found), None)
