"""Many prompts at once: all in flight together, so that the engine batches them; results in the order of the rows.

A thread of its own runs the event loop, for a kernel's main thread has a loop already and must notice Ctrl-C. Prompts
are made on the caller's thread, a few ahead of those in flight, and dropped when their rows end. Knows bodies of runs
and rows by number; nothing of templates or tables.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from nbgen.errors import Conflict, NbgenError, in_words
from nbgen.notebook.interrupts import TICK_SECONDS
from nbgen.notebook.remote import AnyClient
from nbgen.notebook.result import Result
from nbgen.notebook.room import Room, characters_in
from nbgen.notebook.task_thread import TaskThread
from nbgen.notebook.text_stream import TextStream

#: How often a row is tried that the server cannot take just now, and the first pause between tries.
TRIES = 4
PAUSE_SECONDS = 1.0
#: Rows that are prepared ahead, so that no connection waits for one.
AHEAD = 16
#: Most characters in texts and media of all rows prepared or in flight: each is in memory twice.
MOST_CHARACTERS = 2**27
#: How long cancelled rows may take to end.
CANCEL_SECONDS = 10.0

Row = tuple[int, Result]


class Batch:
    """Sends the rows of one job to the server, and counts those `answered` and those `failed` (with an `error`).

    One model answers all of them. If another model takes its place, the job ends, and `change` says so. `extras` are
    added to the body of every run.
    """

    def __init__(self, client: AnyClient, concurrency: int, extras: Mapping[str, Any]) -> None:
        self.answered = self.failed = self.tokens = 0
        self.change = ""
        self._client = client
        self._concurrency = concurrency
        self._extras = extras
        self._models: dict[str, str] = {}
        self._made: asyncio.Queue[Row | None] = asyncio.Queue()
        ahead = min(concurrency, AHEAD)
        self._room = Room(concurrency + ahead, max(1, ahead // 2), MOST_CHARACTERS)

    def run(
        self,
        rows: Iterable[Row],
        ended: Callable[[int], None],
        tick: Callable[[], None],
        over: Callable[[], None] = lambda: None,
    ) -> bool:
        """Answer `rows`, pairs of a number and the result to fill. False if Ctrl-C or a `change` ended it early.

        The next of `rows` is taken when there is room for it. `ended` is called with the number of each row, on the
        event loop's thread; `tick` now and then on this thread; `over` once no more rows are waited for, before those
        that are left are cancelled.
        """
        thread = TaskThread(lambda: self._all(ended))
        try:
            thread.start()
            self._hand_over(rows, thread, tick)
            while thread.running:
                thread.wait(TICK_SECONDS)
                tick()
        except KeyboardInterrupt:
            return False
        finally:
            over()
            if thread.running:
                thread.cancel()  # also ends the runs on the server: each is attached to a connection, which closes
                thread.wait(CANCEL_SECONDS)
        if (failure := thread.failure) is not None:
            failure = failure.exceptions[0] if isinstance(failure, BaseExceptionGroup) else failure
            if not isinstance(failure, Conflict):
                raise failure
            self.change = failure.message
        return not self.change

    @property
    def model(self) -> str:
        """The identity of the model of all rows; empty until a row has been answered or `is_of` has been called."""
        return self._models.get("", "")

    def is_of(self, model: str) -> bool:
        """Whether this is the identity of all rows' model. The first call decides which it is. Any thread may call."""
        return self._models.setdefault("", model) == model

    def _hand_over(self, rows: Iterable[Row], thread: TaskThread, tick: Callable[[], None]) -> None:
        for row in rows:
            tick()
            size = _size(row[1])
            while not self._room.take(size, TICK_SECONDS):
                if not thread.running:
                    return
                tick()
            thread.call(self._made.put_nowait, row)
        thread.call(self._made.put_nowait, None)

    async def _all(self, ended: Callable[[int], None]) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self._concurrency):
                group.create_task(self._worker(ended))

    async def _worker(self, ended: Callable[[int], None]) -> None:
        async with self._client.kept():
            while (row := await self._made.get()) is not None:
                number, result = row
                try:
                    await self._answer(result)
                    self._check(result)
                    self.answered += 1
                    self.tokens += result.usage.get("completion_tokens", 0)
                except Conflict:  # not an error of the row
                    result.clear()
                    raise
                except Exception as error:  # Whatever is wrong with one row, the others go on.
                    result.error = in_words(error)
                    self.failed += 1
                ended(number)
                self._room.give_back(_size(result))
                result.let_go()
        self._made.put_nowait(None)  # for the next worker

    def _check(self, result: Result) -> None:
        """Raise Conflict for the answer of another model, where the server identifies its model."""
        if result.identity and not self.is_of(result.identity):
            raise Conflict("another model answers now than answered first")

    async def _answer(self, result: Result) -> None:
        for tries in range(1, TRIES + 1):
            try:
                await TextStream(iter(()), result, None, self._client.arun(self._body(result))).read_at_once()
                return
            except NbgenError as error:
                # A row that broke off after some text may be what breaks the engine: it gets only one more try.
                if not error.retryable or tries == TRIES or (result.text and tries > 1):
                    raise
                result.clear()
                await asyncio.sleep(PAUSE_SECONDS * 2 ** (tries - 1))

    def _body(self, result: Result) -> dict[str, Any]:
        asked: dict[str, Any] = {"prompt": result.prompt} if result.messages is None else {"messages": result.messages}
        asked |= {"media": result.media} if result.media else {}
        return {**asked, **self._extras, "params": result.params, "stream": False}


def _size(result: Result) -> int:
    return characters_in([result.messages or result.prompt, result.media])
