"""The structs by which the C++ knows a decoder's layers: where weights lie, and what is done with them. CPU only.

Knows nothing of models.
"""

import ctypes
from ctypes import c_float, c_int64, c_void_p
from typing import ClassVar

import torch

from nbgen.engine.attention_native import LayerFields
from nbgen.engine.attention_parts import LATENT
from nbgen.engine.layer_parts import BESIDE, GIVEN
from nbgen.engine.mixture_parts import Mixture, RouterParts
from nbgen.engine.native_experts import ExpertsFields
from nbgen.engine.native_linear import LinearFields
from nbgen.engine.native_step import NormFields
from nbgen.engine.recurrent_parts import RecurrentParts
from nbgen.engine.stream_parts import MIXING, MixingParts

NORMS = (
    *("input_norm", "attended_norm", "feed_norm", "fed_norm", "query_norm", "key_norm", "value_norm", "given_norm"),
    *("compressed_norm", "narrow_norm"),
)
#: Names of a layer's products, and of those that a recurrence has in place of attention's.
LINEARS = ("query", "key", "value", "output", "gate", "up", "down", BESIDE, *GIVEN, *LATENT)
REMEMBERING = ("mixed", "opening", "steps", "shares", "result")


class CountedFields(LinearFields):
    """`Counted` of the C++."""

    _fields_: ClassVar = [("counts", c_void_p)]

    @classmethod
    def of(cls, linear: LinearFields, counts: torch.Tensor | None) -> "CountedFields":
        """A product whose outputs are multiplied by `counts`, one factor for each."""
        return cls(*(getattr(linear, name) for name, *_ in LinearFields._fields_), place(counts))


class RouterFields(ctypes.Structure):
    """`Router` of the C++."""

    _fields_ = [
        ("scores", LinearFields),
        *((name, c_void_p) for name in ("exact", "favour", "counts")),
        *((name, c_int64) for name in ("each", "groups", "open", "best", "rounds", "counting")),
        *((name, c_float) for name in ("least", "factor", "scale")),
        ("norm", NormFields),
    ]

    @classmethod
    def of(cls, router: RouterParts, dtype: torch.dtype) -> "RouterFields":
        """Where the router's weight lies, for rows of type `dtype`."""
        fields = cls(each=router.each, rounds=router.kind.rounds, counting=router.kind.counting)
        if router.weight is not None:
            experts, inputs = router.weight.shape
            if router.weight.dtype == dtype:
                fields.scores = LinearFields.of_table(router.weight, dtype)
            else:
                fields.scores, fields.exact = LinearFields(inputs=inputs, outputs=experts), place(router.weight)
        fields.scores.bias = place(router.bias)
        fields.favour, fields.counts = place(router.favour), place(router.counts)
        fields.open, fields.groups, fields.best = router.groups
        fields.least, fields.factor, fields.scale = router.kind.least, router.factor, router.scale
        fields.norm = NormFields.of(router.norm)
        return fields


class SparseFeedFields(ctypes.Structure):
    """`SparseFeed` of the C++."""

    _fields_ = [
        *(("router", RouterFields), ("experts", ExpertsFields)),
        *((name, NormFields) for name in ("input_norm", "mixed_norm", "beside_norm")),
    ]

    @classmethod
    def of(cls, mixture: Mixture, dtype: torch.dtype) -> "SparseFeedFields":
        """Where its experts lie, and what chooses them."""
        router = RouterFields.of(mixture.router, dtype)
        return cls(router, mixture.experts.fields, *map(NormFields.of, mixture.norms))


class RecurrenceFields(ctypes.Structure):
    """`Recurrence` of the C++."""

    _fields_ = [
        *((name, CountedFields) for name in REMEMBERING),
        *((name, c_int64) for name in ("rule", "taps", "channels")),
        *((name, c_int64) for name in ("heads", "groups", "rows", "size", "normed", "opens_first", "joined")),
        *((name, c_void_p) for name in ("kernel", "bias", "rates", "direct", "step_bias")),
        *((name, c_float) for name in ("least", "most")),
        ("norm", NormFields),
        *((name, c_void_p) for name in ("past", "states", "held", "held_steps", "held_shares")),
    ]

    @classmethod
    def of(cls, parts: RecurrentParts) -> "RecurrenceFields":
        """All but its products and states."""
        taps, channels = parts.kernel.shape
        fields = cls(rule=parts.rule, taps=taps, channels=channels, kernel=parts.kernel.data_ptr())
        fields.bias, fields.joined = place(parts.bias), parts.joined
        if (own := parts.own) is not None:
            fields.heads, fields.groups, fields.rows, fields.size = own[:4]
            fields.rates, fields.step_bias, fields.direct = map(place, (own.rates, own.step_bias, own.direct))
            fields.least, fields.most = own.limits
            fields.norm, fields.normed, fields.opens_first = NormFields.of(own.norm), own.normed, own.opens_first
        return fields


class MixingFields(ctypes.Structure):
    """`Mixing` of the C++."""

    _fields_ = [
        *((name, LinearFields) for name in MIXING),
        *((name, NormFields) for name in ("routed_norm", "beside_norm")),
        ("scale", c_float),
        ("scales", c_void_p),
    ]

    @classmethod
    def of(cls, parts: MixingParts) -> "MixingFields":
        """All but its products."""
        norms = {"routed_norm": NormFields.of(parts.routed), "beside_norm": NormFields.of(parts.beside)}
        return cls(**norms, scale=parts.scale, scales=place(parts.scales))


class DecoderLayerFields(ctypes.Structure):
    """`DecoderLayer` of the C++."""

    _fields_ = [
        *((name, NormFields) for name in NORMS),
        *((name, CountedFields) for name in LINEARS),
        ("attention", LayerFields),
        *((name, c_void_p) for name in ("keys", "values", "batch")),
        ("activation", c_int64),
        ("xielu", c_float * 4),
        *((name, c_int64) for name in ("all_heads", "each_head")),
        *((name, c_int64) for name in ("turned_first", "still", "turned", "turn", "rounds", "turns")),
        *((name, c_int64) for name in ("opened", "joined", "values_first", "stretch", "beside_attention")),
        *((name, c_void_p) for name in ("recurrence", "sparse", "mixing")),
        ("first_given", c_int64),
        *((name, c_float) for name in ("leaves", "clip", "sparsity")),
    ]


def place(tensor: torch.Tensor | None) -> int | None:
    """The address of the tensor's numbers."""
    return None if tensor is None else tensor.data_ptr()
