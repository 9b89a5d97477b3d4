"""Who waits for what an engine answers: one future for each question, by the id that its answer names."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Generic, TypeVar

from nbgen.errors import NbgenError

T = TypeVar("T")


class Replies(Generic[T]):
    """Questions of one kind that were asked and not answered; true while there is any."""

    def __init__(self) -> None:
        self._asked: dict[str, asyncio.Future[T]] = {}

    def __contains__(self, rid: str) -> bool:
        return rid in self._asked

    def __len__(self) -> int:
        return len(self._asked)

    def values(self) -> Collection[asyncio.Future[T]]:
        """The answers to come."""
        return self._asked.values()

    def ask(self, rid: str) -> asyncio.Future[T]:
        """The answer to come."""
        reply = self._asked[rid] = asyncio.get_running_loop().create_future()
        return reply

    def answer(self, rid: str, value: T) -> None:
        """It has come. Whoever asked may have gone."""
        reply = self._asked.pop(rid, None)
        if reply is not None and not reply.done():
            reply.set_result(value)

    def forget(self, rid: str) -> None:
        """Nobody waits for it any more."""
        self._asked.pop(rid, None)

    def taken(self) -> Replies[T]:
        """All of them, which are no longer in here: those asked from now on are another process's."""
        taken = Replies[T]()
        taken._asked, self._asked = self._asked, {}
        return taken

    def lost(self, error: NbgenError) -> None:
        """None of them will be answered."""
        for reply in self.taken()._asked.values():
            if not reply.done():
                reply.set_exception(error)
