"""Those who wait for an engine's answers: listeners of requests, and commands with one answer. Knows no message."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any, Generic, Protocol, TypeVar

from nbgen.errors import NbgenError

T = TypeVar("T")


class Listener(Protocol):
    """Gets every output of a request (or its one answer) as it comes, or the error that ends the request."""

    def add(self, *outputs: Any) -> None: ...
    def fail(self, error: NbgenError) -> None: ...


class Replies(Generic[T]):
    """The pending answers of one kind, by request id."""

    def __init__(self) -> None:
        self._asked: dict[str, asyncio.Future[T]] = {}

    def __contains__(self, rid: str) -> bool:
        return rid in self._asked

    def __len__(self) -> int:
        return len(self._asked)

    def values(self) -> Collection[asyncio.Future[T]]:
        """The futures of all pending answers."""
        return self._asked.values()

    def ask(self, rid: str) -> asyncio.Future[T]:
        """A new pending answer, to be awaited."""
        reply = self._asked[rid] = asyncio.get_running_loop().create_future()
        return reply

    def answer(self, rid: str, value: T) -> None:
        """Resolve the pending answer; nothing happens where none is pending, or its waiter was cancelled."""
        reply = self._asked.pop(rid, None)
        if reply is not None and not reply.done():
            reply.set_result(value)

    def forget(self, rid: str) -> None:
        """Drop the pending answer."""
        self._asked.pop(rid, None)

    def taken(self) -> Replies[T]:
        """Move all pending answers into a new object: what is asked from now on goes to another process."""
        taken = Replies[T]()
        taken._asked, self._asked = self._asked, {}
        return taken

    def lost(self, error: NbgenError) -> None:
        """Fail all pending answers with this error."""
        for reply in self.taken()._asked.values():
            if not reply.done():
                reply.set_exception(error)
