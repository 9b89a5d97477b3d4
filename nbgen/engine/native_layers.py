"""A decoder's layers as structs for the C++: where their weights lie, and what they do. CPU only.

Knows neither steps nor caches.
"""

import ctypes
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from nbgen.engine.attention_native import LayerFields
from nbgen.engine.attention_parts import LATENT, SAME_HALVES, AttentionParts
from nbgen.engine.common_parts import Product
from nbgen.engine.expert_routes import OWN
from nbgen.engine.layer_fields import (
    NORMS,
    REMEMBERING,
    CountedFields,
    DecoderLayerFields,
    MixingFields,
    RecurrenceFields,
    SparseFeedFields,
    place,
)
from nbgen.engine.layer_parts import BESIDE, GIVEN, ROUTER, LayerParts
from nbgen.engine.lora import LoraLinear
from nbgen.engine.native_half_linear import NativeHalfLinear
from nbgen.engine.native_linear import ALL, OUTPUTS, LinearFields, NativeLinear, NativeProduct
from nbgen.engine.native_step import MADE, NormFields
from nbgen.engine.rotary_table import RotaryTable
from nbgen.engine.stream_parts import FEW, MIXING

#: Tiles take so many rows at a time.
BLOCK = 32
#: The buffer of a step that each product's output goes to.
ROOMS = {
    "key": "new_keys",
    "value": "new_values",
    "output": "projected",
    "gate": "gates",
    "up": "ups",
    "mixed": "gates",
    "opening": "queries",
    "steps": "ups",
    "shares": "new_values",
    "result": "gates",
    LATENT[0]: "ups",
    LATENT[1]: "gates",
    GIVEN[0]: "gates",
    GIVEN[1]: "projected",
    "left": "ups",
    "right": "gates",
}


class NativeLayers:
    """The `fields` of all layers for the C++, and those of recurrences beside them.

    Raises ValueError for layers whose products are not ours, or that differ where a step has one value for all.
    """

    def __init__(
        self, layers: list[LayerParts], rotary: RotaryTable, kinds: list[str], dtype: torch.dtype, streams: int
    ) -> None:
        """`kinds` are the layers' kinds, for which `rotary` may differ. A row has `streams` streams of states, or 0."""
        _check_products(layers, dtype)
        self.parts, self._streams = layers, streams
        self.experts, self.residual = _experts(layers), _residual(layers)
        self._rotary, self._kinds, self._dtype = rotary, kinds, dtype
        #: Tensors that the layers point to, made for `adapt` and kept alive here.
        self._adapted: list[torch.Tensor] = []
        self.fields = (DecoderLayerFields * len(layers))()
        self.recurrences: list[RecurrenceFields | None] = []
        self._sparse: list[SparseFeedFields | None] = []
        self._mixing: list[MixingFields | None] = []
        #: How many numbers the layers' own inputs for one token have, in all layers so far.
        self._given = 0
        for layer, fields in zip(layers, self.fields, strict=True):
            self._fill(layer, fields)
        self.adapt([layer.products for layer in layers])
        own = (layer.recurrence.own for layer in layers if layer.recurrence)
        self._scratch = max([self.experts[1] if self.experts else 0, *(2 * rule.heads for rule in own if rule)])
        self._widest = max(product.linear.in_features for layer in layers for product in layer.products.values())

    @property
    def sizes(self) -> dict[str, int]:
        """How many numbers one row needs in each buffer of a step, in the widest layer."""
        most: Counter[str] = Counter()
        for layer in self.parts:
            most |= Counter(_sizes(layer))
        most["given"] = self._given
        most["streams"] = self._streams * most["normed"]
        return {name: most[name] for name in (*MADE, *OWN)}

    def scratch(self, rows: int) -> int:
        """How many floats of scratch so many rows need: for recurrences, for experts, or to be laid out for tiles."""
        return max(rows * self._scratch, -(-rows // BLOCK) * BLOCK * self._widest * self._dtype.itemsize // 4)

    def adapt(self, products: Iterable[dict[str, Product]]) -> None:
        """Point to each layer's products, with what adapters add to them now."""
        self._adapted = []
        rows = zip(self.fields, self.recurrences, self._sparse, self._mixing, products, strict=True)
        for fields, recurrence, sparse, mixing, of in rows:
            for name, product in of.items():
                made = linear_fields(product, self._adapted)
                if name == ROUTER and sparse:
                    sparse.router.scores = made
                elif name in MIXING:
                    setattr(mixing, name, made)
                else:
                    counted = CountedFields.of(made, product.counts)
                    setattr(recurrence if name in REMEMBERING else fields, name, counted)

    def _fill(self, layer: LayerParts, fields: DecoderLayerFields) -> None:
        """Fill in all of a layer except its products and the places of its cache and states."""
        recurrence = None
        if layer.attention:
            self._fill_attention(layer, layer.attention, fields)
        if layer.recurrence:
            recurrence = RecurrenceFields.of(layer.recurrence)
            fields.recurrence = ctypes.addressof(recurrence)
        self.recurrences.append(recurrence)
        for name, norm in zip(NORMS, layer.norms, strict=False):
            setattr(fields, name, NormFields.of(norm))
        fields.activation, xielu = layer.activation
        fields.xielu, fields.beside_attention = xielu or (), layer.beside_attention
        fields.given_norm, fields.first_given, fields.leaves = NormFields.of(layer.given), self._given, layer.leaves
        self._given += layer.products[GIVEN[0]].outputs if layer.given else 0
        self._sparse.append(sparse := SparseFeedFields.of(layer.mixture, self._dtype) if layer.mixture else None)
        fields.sparse = ctypes.addressof(sparse) if sparse else None
        self._mixing.append(mixing := MixingFields.of(layer.mixing) if layer.mixing else None)
        fields.mixing, fields.sparsity = ctypes.addressof(mixing) if mixing else None, layer.sparsity

    def _fill_attention(self, layer: LayerParts, attention: AttentionParts, fields: DecoderLayerFields) -> None:
        kinds = self._rotary.kinds
        turn = self._rotary.parts[kinds.index(self._kinds[attention.number]) if len(kinds) > 1 else 0]
        turned = (turn.stop - turn.start) * (2 if attention.way == SAME_HALVES else 1) if attention.turns else 0
        fields.turned, fields.turn = turned, turn.start
        fields.all_heads, fields.each_head = attention.norms_all_heads, attention.norms_each_head
        fields.turned_first, fields.opened = attention.turned_first, attention.opened
        fields.joined, fields.values_first = attention.joined, attention.values_first
        fields.stretch = self._rotary.parts[-1].stop if attention.stretch else 0
        fields.rounds, fields.turns, fields.clip = attention.rounds, attention.way, attention.clip
        fields.query_norm, fields.key_norm, fields.value_norm = map(NormFields.of, attention.norms)
        if latent := attention.latent:
            fields.still = latent.still
            fields.compressed_norm, fields.narrow_norm = NormFields.of(latent.norm), NormFields.of(latent.narrow_norm)
        fields.attention = _shape(layer.products, attention)
        fields.attention.sinks = place(attention.sinks)


def _check_products(layers: list[LayerParts], dtype: torch.dtype) -> None:
    """Raises ValueError for products that are not ours; the small ones need only a weight that is not quantized."""
    named = [each for layer in layers for each in layer.products.items()]
    few = [product.linear for name, product in named if name in (BESIDE, *FEW)]
    if not all(_is_whole(each, dtype) for each in few):
        raise ValueError("what its shared experts count, or streams of its states, is not known")
    every = [product for name, product in named if name not in (BESIDE, *FEW)]
    if not all(isinstance(each.linear, NativeProduct) and each.outputs % OUTPUTS == 0 for each in every):
        raise ValueError("its linear layers are not ours")


def _is_whole(linear: Any, dtype: torch.dtype) -> bool:
    """Whether its weight is not quantized, and it has no bias."""
    if type(linear) is nn.Linear:
        return linear.bias is None and linear.weight.dtype == dtype
    return type(linear) in (NativeLinear, NativeHalfLinear) and linear.bias is None


def _residual(layers: list[LayerParts]) -> float:
    """The factor of what all layers add to the hidden states. Raises ValueError where they differ."""
    residual, *others = {layer.residual for layer in layers}
    if others:
        raise ValueError("its layers multiply by more than one number")
    return residual


def _experts(layers: list[LayerParts]) -> tuple[int, int] | None:
    """How many experts a row goes to, and how many there are. Raises ValueError where layers differ."""
    found = {(each.mixture.router.each, each.mixture.experts.num_experts) for each in layers if each.mixture}
    if len(found) > 1:
        raise ValueError("its layers have more than one number of experts")
    return next(iter(found), None)


def _shape(products: dict[str, Product], attention: AttentionParts) -> LayerFields:
    dim, latent = attention.head_dim, attention.latent
    width = latent.value_dim if latent else dim
    heads = products["query"].outputs // (dim * (1 + attention.opened + 2 * bool(attention.joined)))
    return LayerFields(heads, heads // attention.group, dim, width, 0, 0, attention.scaling, attention.softcap, None)


def linear_fields(product: Product, kept: list[torch.Tensor]) -> LinearFields:
    """Where the product's weight and adapters' matrices lie. Tensors that must live as long are appended to `kept`."""
    linear, rows, counts = product
    if counts is not None:
        kept.append(counts)
    adapted = linear.matrices if isinstance(linear, LoraLinear) else None
    base: Any = linear.base if isinstance(linear, LoraLinear) else linear
    if adapted and rows is not ALL:
        adapted = adapted[0], adapted[1][:, rows].contiguous()
        kept.append(adapted[1])
    if isinstance(base, NativeProduct):
        return base.fields(rows, adapted)
    fields = LinearFields.of_table(base.weight, base.weight.dtype)
    fields.down, fields.up = map(place, adapted or (None, None))
    return fields


def _width(layer: LayerParts) -> int:
    if layer.mixture:
        return layer.mixture.experts.width
    return layer.products["output" if "output" in layer.products else "down"].outputs


def _sizes(layer: LayerParts) -> dict[str, int]:
    products, width = layer.products, _width(layer)
    output = products.get("output")
    made = output.linear.in_features if output else 0
    apart = layer.attention is not None and not (layer.attention.opened or layer.attention.joined)
    most = Counter(normed=width, projected=width, attended=made)
    for name, product in products.items():
        if name in ROOMS:
            most |= Counter({ROOMS[name]: product.outputs})
    if layer.recurrence and "result" in products:
        most |= Counter(attended=products["result"].linear.in_features)
    if layer.recurrence and layer.recurrence.joined and (own := layer.recurrence.own):
        channels = layer.recurrence.kernel.shape[1]
        most |= Counter(attended=products["mixed"].outputs, projected=products["steps"].outputs)
        most |= Counter(gates=channels, queries=made, ups=own.heads, new_values=own.heads)
    if layer.attention:
        most |= Counter({"queries" if apart else "gates": products["query"].outputs})
        most |= Counter(queries=made)
        if layer.attention.latent:
            most |= Counter(new_values=products["key"].linear.in_features)
    if layer.mixture:
        experts, router, _ = layer.mixture
        most |= Counter(experts.sizes(router.each)) | Counter(routing=experts.num_experts)
        most |= Counter(attended=width)
    return dict(most)
