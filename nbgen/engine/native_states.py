"""Points recurrent layers in C++ to the states of a step's sequences, which stay in the pool. CPU only.

A state cannot be rolled back. So guesses, which may be wrong, do not change it at first: what is needed to add them is
held beside it, until it is known which of them have come true.
"""

import ctypes
from collections.abc import Mapping

import torch

from nbgen.engine.attention import Span, Step
from nbgen.engine.native import function
from nbgen.engine.native_layers import NativeLayers
from nbgen.engine.recurrent_parts import DELTA_RULE, RecurrentParts
from nbgen.engine.state_fields import SequenceFields
from nbgen.engine.state_pool import StateKey, StatePool

#: For each kind of state, the name of its pointer, and its dtype where that is not the model's own.
POINTERS = {"conv_states": ("past", None), "recurrent_states": ("states", torch.float32)}


class NativeStates:
    """The states of `layers`, in a `pool` that may move them as it grows."""

    def __init__(self, layers: NativeLayers, pool: StatePool, dtype: torch.dtype) -> None:
        self._all, self._pool, self._dtype = layers.fields, pool, dtype
        pairs = zip(layers.parts, layers.recurrences, strict=True)
        self._layers = [(parts.recurrence, fields) for parts, fields in pairs if parts.recurrence]
        self._pointed: tuple[int, int] | None = None
        self._sequences: ctypes.Array[SequenceFields] = (SequenceFields * 0)()
        #: For how many guesses there is room to hold what goes into the layers.
        self._most_held = 0
        self._held: list[torch.Tensor] = []

    def point(self, sequences: "ctypes.Array[SequenceFields]") -> None:
        """Point the layers to the states of the next step's sequences."""
        self._sequences = sequences
        most = 1 + max(each.state for each in self._sequences)
        if self._pointed is None or self._pointed[0] != self._pool.moves or most > self._pointed[1]:
            self._point(most)
        if (guesses := sum(each.tokens - each.certain for each in self._sequences)) > self._most_held:
            self._hold(guesses)

    def remember(self, accepted: Mapping[int, int]) -> None:
        """Advance states, by their numbers, past so many accepted guesses of the last step."""
        true = [each for each in self._sequences if each.state in accepted]
        made = ((0, each.held, accepted[each.state], each.state, False, accepted[each.state], 0) for each in true)
        sequences = (SequenceFields * len(true))(*(SequenceFields(*each) for each in made))
        rules = [parts.own for parts, _ in self._layers if parts.own]
        scratch = torch.empty(self._most_held, max((2 * rule.heads for rule in rules), default=0))
        widest = max((rule.heads * rule.rows for rule in rules), default=0)
        output = torch.empty(self._most_held, widest, dtype=self._dtype)
        counts = len(self._all), sequences, len(true), self._most_held, torch.get_num_threads()
        remember_held = function("remember_held", self._dtype)
        assert remember_held is not None
        remember_held(self._all, *counts, scratch.data_ptr(), output.data_ptr())

    def _point(self, most: int) -> None:
        """Point the layers to the first `most` states of the pool."""
        for parts, fields in self._layers:
            for kind, shape in parts.shapes.items():
                name, dtype = POINTERS[kind]
                key = StateKey(parts.number, kind, 0)
                setattr(fields, name, self._pool.states(key, most, shape, dtype or self._dtype).data_ptr())
        self._pointed = self._pool.moves, most

    def _hold(self, guesses: int) -> None:
        """Make room to hold so many guesses."""
        self._most_held, self._held = guesses, []
        for parts, fields in self._layers:
            for name, width in _held(parts).items():
                self._held.append(torch.empty(guesses, width, dtype=self._dtype))
                setattr(fields, name, self._held[-1].data_ptr())


def sequences_of(step: Step) -> "ctypes.Array[SequenceFields]":
    """A step's sequences in the order of their rows, each with its guesses; those with nothing computed begin."""
    made: list[SequenceFields] = []
    guesses = 0
    for span in (*step.decodes, *step.prefills):
        tokens, state = span.stop - span.start, _slot(span)
        if made and made[-1].state == state:
            made[-1].tokens += tokens
            guesses += tokens
        else:
            made.append(SequenceFields(0, span.start, tokens, state, span.begins, tokens, guesses))
    return (SequenceFields * len(made))(*made)


def _held(parts: RecurrentParts) -> dict[str, int]:
    """How many numbers are held for one token, by their names in the C++."""
    widths = {"held": parts.kernel.shape[1]}
    if parts.own is not None:
        widths["held_steps"] = parts.own.heads
    if parts.own is not None and parts.rule == DELTA_RULE:
        widths["held_shares"] = parts.own.heads
    return widths


def _slot(span: Span) -> int:
    assert span.state_slot is not None
    return span.state_slot
