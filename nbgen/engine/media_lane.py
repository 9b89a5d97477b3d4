"""Requests whose media take a while to decode, admitted one after the other beside all others. Knows no media."""

import queue
import threading
from collections.abc import Callable

from nbgen.messages import AbortRequest, GenerateRequest

Item = GenerateRequest | AbortRequest


class MediaLane:
    """A thread that calls `admit` with each request put into it, and `abort` with what came for it meanwhile."""

    def __init__(self, admit: Callable[[GenerateRequest], None], abort: Callable[[AbortRequest], None]) -> None:
        self._admit = admit
        self._abort = abort
        self._items: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._rids: set[str] = set()
        self._thread: threading.Thread | None = None

    def holds(self, rid: str) -> bool:
        """Whether a request is not admitted yet: what ends it has to wait behind it."""
        return rid in self._rids

    def put(self, item: Item) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="media", daemon=True)
            self._thread.start()
        if isinstance(item, GenerateRequest):
            self._rids.add(item.rid)
        self._items.put(item)

    def close(self) -> None:
        """End the thread once it has admitted what it holds."""
        self._items.put(None)

    def _run(self) -> None:
        while (item := self._items.get()) is not None:
            if isinstance(item, AbortRequest):
                self._abort(item)
            else:
                self._admit(item)
                self._rids.discard(item.rid)
