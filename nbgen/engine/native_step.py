"""A step as the C++ takes it: its inputs, where its rows go, and buffers for intermediate results. CPU only.

Knows nothing of models.
"""

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import c_float, c_int64, c_void_p
from typing import Any, NamedTuple

import torch
from torch import nn

from nbgen.engine import attention
from nbgen.engine.common_parts import NormParts
from nbgen.engine.expert_routes import RouteRoom, laid_out
from nbgen.engine.model_parts import ModelParts
from nbgen.engine.native import function
from nbgen.engine.native_linear import LinearFields, NativeProduct
from nbgen.engine.per_layer_parts import PerLayerParts
from nbgen.engine.rotary_table import Rotary
from nbgen.engine.state_fields import SequenceFields

#: A step's buffers for intermediate results, in the order of the C++.
MADE = (
    *("normed", "queries", "new_keys", "new_values", "attended", "projected", "gates", "ups", "routing", "given"),
    "streams",
)


class NormFields(ctypes.Structure):
    """`Norm` of the C++."""

    _fields_ = [
        *((name, c_void_p) for name in ("weight", "bias")),
        *((name, c_float) for name in ("epsilon", "offset")),
        *((name, c_int64) for name in ("rounds", "centers")),
    ]

    @classmethod
    def of(cls, norm: NormParts | None) -> "NormFields":
        """Where its weight lies; without a norm, no weight and no offset."""
        if norm is None:
            return cls()
        weight, bias = (None if tensor is None else tensor.data_ptr() for tensor in (norm.weight, norm.bias))
        return cls(weight, bias, norm.epsilon, norm.offset, norm.rounds, norm.centers)


class Scales(ctypes.Structure):
    """`Scales` of the C++: of embeddings, of what layers add, and of scores."""

    _fields_ = [(name, c_float) for name in ("embedding", "residual", "divisor", "cap")]


class PerLayerFields(ctypes.Structure):
    """`PerLayer` of the C++."""

    _fields_ = [
        *((name, LinearFields) for name in ("embeddings", "projection")),
        ("norm", NormFields),
        ("width", c_int64),
        *((name, c_float) for name in ("embedding", "projected", "both")),
    ]

    @classmethod
    def of(cls, parts: PerLayerParts, projection: LinearFields, dtype: torch.dtype) -> "PerLayerFields":
        """Where its embeddings and its norm lie, for layers of type `dtype`."""
        table = LinearFields.of_table(parts.embeddings, dtype)
        scales = parts.embedding, parts.projected, parts.both
        return cls(table, projection, NormFields.of(parts.norm), parts.width, *scales)


class AlternatingFields(ctypes.Structure):
    """`Alternating` of the C++."""

    _fields_ = [("count", c_int64), ("width", c_int64), ("begins", c_void_p), ("ends", c_void_p)]

    @classmethod
    def of(cls, begins: list[LinearFields], ends: list[LinearFields]) -> "AlternatingFields":
        """Where tables of products are that begin and end each stream but the first; the result keeps the tables."""
        tables = [(LinearFields * len(linears))(*linears) for linears in (begins, ends)]
        made = cls(1 + len(begins), begins[0].inputs, *map(ctypes.addressof, tables))
        made.tables = tables
        return made


class StepFields(ctypes.Structure):
    """`Step` of the C++."""

    _fields_ = [
        *((name, c_int64) for name in ("rows", "threads", "turns")),
        *((name, c_void_p) for name in ("slots", "adapters", "positions", "cosines", "sines", "sequences")),
        ("count", c_int64),
        *((name, c_void_p) for name in (*MADE, "scratch")),
        ("routes", c_void_p),
        *((name, c_void_p) for name in ("last", "wanted", "ids", "embeddings", "places", "per_layer", "alternating")),
        *((name, c_void_p) for name in ("embedded", "norm", "head", "rounded_scores", "scores")),
        ("scales", Scales),
    ]


class OuterLayers(NamedTuple):
    """What is before and after the layers: `ids` `[rows]` with `embeddings` `[vocab, hidden]`, each times `scale`.

    The `head` makes logits of the rows `wanted`, or of all if None; `parts` says what else the model does.
    """

    ids: torch.Tensor
    embeddings: torch.Tensor
    scale: float
    parts: ModelParts
    head: nn.Module
    wanted: Sequence[int] | None


class Room:
    """Buffers for so many rows: `sizes` tells each one's numbers per row, by the names of `MADE`; and scratch `floats`.

    `experts` tells how many experts a row goes to, and how many there are: `sizes` then includes their buffers. A room
    keeps alive what the fields of its steps point to.
    """

    def __init__(
        self,
        rows: int,
        sizes: Mapping[str, int],
        floats: int,
        scales: Scales,
        dtype: torch.dtype,
        experts: tuple[int, int] | None = None,
    ) -> None:
        self._made, at = laid_out(rows, sizes, dtype)
        self._scratch = torch.empty(floats, dtype=torch.float32)
        self._given: list[Any] = []
        self._scales = scales
        self._routes = None if experts is None else RouteRoom(rows, *experts, at)
        routes = None if self._routes is None else ctypes.addressof(self._routes.fields)
        self._pointers = [*(at[name] for name in MADE), self._scratch.data_ptr(), routes]

    def fields(
        self,
        step: attention.Step,
        adapters: torch.Tensor | None,
        rotary: Rotary,
        sequences: "ctypes.Array[SequenceFields] | None",
    ) -> StepFields:
        """The fields of a step in these buffers, without its outer layers; `sequences` are for recurrent layers."""
        given = [step.slots, adapters, *rotary]
        self._given += [*given, sequences]
        at = [None if tensor is None else tensor.data_ptr() for tensor in given]
        sizes = len(step.slots), torch.get_num_threads(), rotary.cosines.shape[-1]
        whose = (None, 0) if sequences is None else (ctypes.addressof(sequences), len(sequences))
        return StepFields(*sizes, *at, *whose, *self._pointers, scales=self._scales)

    def normed(self, rows: int, width: int) -> torch.Tensor:
        """`[rows, width]`"""
        return self._made[: rows * width].view(rows, width)


class Scores:
    """The logits that `head` makes of the rows of `ending`, a step or the last part of one, in the step's own call."""

    def __init__(self, ending: StepFields, head: NativeProduct, dtype: torch.dtype) -> None:
        shape = ending.rows, head.out_features
        self._shape, self._ending, self._linear = shape, ending, head.fields()
        self._rounded = None if dtype == torch.float32 else torch.empty(shape, dtype=dtype)
        ending.head = ctypes.addressof(self._linear)
        self.renew()

    def renew(self) -> None:
        """Take new memory for the next step's logits: whoever holds the last ones keeps them."""
        self.scores = torch.empty(self._shape, dtype=torch.float32)
        self._ending.scores = self.scores.data_ptr()
        self._ending.rounded_scores = (self.scores if self._rounded is None else self._rounded).data_ptr()


def finished(scores: torch.Tensor, parts: ModelParts) -> torch.Tensor:
    """The head's `scores` `[rows, vocab]` after the model's divisor and cap, as float32; unchanged without these."""
    finish = function("finish", scores.dtype)
    if finish is None or (parts.divisor == 1.0 and not parts.cap):
        return scores
    scales, made = Scales(1.0, 1.0, parts.divisor, parts.cap), torch.empty(scores.shape, dtype=torch.float32)
    scores = scores.contiguous()
    finish(ctypes.byref(scales), made.numel(), torch.get_num_threads(), scores.data_ptr(), made.data_ptr())
    return made


class PreparedStep(NamedTuple):
    """A `step` that the C++ can compute, and room for its `hidden` states `[T, hidden]`.

    Once it is computed there are logits, if they are `made` with it, or else `states` to make them from.
    """

    step: attention.Step
    fields: StepFields
    hidden: torch.Tensor
    normed: torch.Tensor
    made: Scores | None
    chosen: torch.Tensor | None
    #: Only for recurrent layers.
    sequences: "ctypes.Array[SequenceFields] | None"
    #: What else `fields` points to, kept alive here.
    kept: tuple[Any, ...]

    @property
    def states(self) -> torch.Tensor:
        """`[rows, hidden]` behind the logits that are wanted."""
        return self.normed if self.chosen is None else self.normed[self.chosen]
