"""A lock so that weights are never read by generation while training changes them: each waits for the other's end.

A training step may end without a call (it raised, or was interrupted): this is seen from its frame, which is no longer
on its thread's stack. Changes do not exclude each other. Knows no tensors.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

#: How often a waiting reader looks whether a change has ended without a call.
LOOK_SECONDS = 0.2


class WeightLock:
    """A lock between one reader and any number of changes. A waiting change goes before the next reading."""

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._reading = False
        self._blocks = 0
        #: For each training step in progress: its thread, and the frame whose end also ends the step.
        self._steps: list[tuple[int, FrameType]] = []

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Enter it around a change; waits until the current reading is over."""
        with self._turn:
            self._blocks += 1
        try:
            self._wait_for_reader()
            yield
        finally:
            with self._turn:
                self._blocks -= 1
                self._turn.notify_all()

    def begin_step(self, frame: FrameType) -> None:
        """Begin a change that lasts until `end_step`, or until `frame` has left its thread's stack."""
        with self._turn:
            self._steps.append((threading.get_ident(), frame))
        self._wait_for_reader()

    def end_step(self, frame: FrameType) -> None:
        """End the step that began with this frame."""
        with self._turn:
            self._steps = [step for step in self._steps if step[1] is not frame]
            self._turn.notify_all()

    @contextmanager
    def reading(self, seconds: float) -> Iterator[bool]:
        """Enter it around a reading. Yields whether it is allowed: False if a change lasts longer than `seconds`."""
        with self._turn:
            left = seconds
            while (changing := self._changing()) and left > 0:
                self._turn.wait(min(left, LOOK_SECONDS))
                left -= LOOK_SECONDS
            self._reading = not changing
        try:
            yield not changing
        finally:
            with self._turn:
                self._reading = False
                self._turn.notify_all()

    def _wait_for_reader(self) -> None:
        with self._turn:
            self._turn.wait_for(lambda: not self._reading)

    def _changing(self) -> bool:
        if self._steps:
            stacks = sys._current_frames()
            self._steps = [(thread, frame) for thread, frame in self._steps if _runs(frame, stacks.get(thread))]
        return bool(self._blocks or self._steps)


def _runs(frame: FrameType, innermost: FrameType | None) -> bool:
    """Whether the frame is on the stack that ends with `innermost`."""
    while innermost is not None and innermost is not frame:
        innermost = innermost.f_back
    return innermost is not None
