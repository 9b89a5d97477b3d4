"""Where recurrent layers in C++ find the states of a step's sequences: in the pool, where they lie. CPU only."""

import ctypes

import torch

from nbgen.engine.attention import Span, Step
from nbgen.engine.native_layers import NativeLayers
from nbgen.engine.state_fields import SequenceFields
from nbgen.engine.state_pool import StateKey, StatePool

#: What a pointer to states of a kind is called, and their type where that is not the model's own.
POINTERS = {"conv_states": ("past", None), "recurrent_states": ("states", torch.float32)}


class NativeStates:
    """Of `layers`, in a `pool` that may move them as it grows."""

    def __init__(self, layers: NativeLayers, pool: StatePool, dtype: torch.dtype) -> None:
        self._pool, self._dtype = pool, dtype
        pairs = zip(layers.parts, layers.recurrences, strict=True)
        self._layers = [(parts.recurrence, fields) for parts, fields in pairs if parts.recurrence]
        self._pointed: tuple[int, int] | None = None

    def point(self, step: Step) -> None:
        """Have the layers point to states of all the step's sequences."""
        most = 1 + max(map(_slot, (*step.decodes, *step.prefills)))
        if self._pointed is not None and self._pointed[0] == self._pool.moves and most <= self._pointed[1]:
            return
        for parts, fields in self._layers:
            for kind, shape in parts.shapes.items():
                name, dtype = POINTERS[kind]
                key = StateKey(parts.number, kind, 0)
                setattr(fields, name, self._pool.states(key, most, shape, dtype or self._dtype).data_ptr())
        self._pointed = self._pool.moves, most


def sequences_of(step: Step) -> "ctypes.Array[SequenceFields]":
    """Of a step, in the order of their rows; one without anything computed begins."""
    spans = [*step.decodes, *step.prefills]
    made = ((0, span.start, span.stop - span.start, _slot(span), span.begins) for span in spans)
    return (SequenceFields * len(spans))(*(SequenceFields(*each) for each in made))


def _slot(span: Span) -> int:
    assert span.state is not None
    return span.state
