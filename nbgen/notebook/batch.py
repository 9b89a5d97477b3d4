"""Many prompts at once: all in flight together, so that the engine batches them; results in the order of the rows.

One thread of its own runs the event loop, for a kernel's main thread has a loop already and must hear Ctrl-C. Knows
bodies of runs and rows by number; nothing of templates or tables.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nbgen.errors import NbgenError, in_words
from nbgen.notebook.remote import AnyClient
from nbgen.notebook.result import Result
from nbgen.notebook.task_thread import TaskThread
from nbgen.notebook.text_stream import TextStream

#: Tries of a row that the server cannot take just now, and the first pause between them.
TRIES = 4
PAUSE_SECONDS = 1.0


class Batch:
    """The rows of one job. `results` fills as they end; `errors` says in words why a row has none.

    `extras` go with every run.
    """

    def __init__(self, client: AnyClient, concurrency: int, extras: Mapping[str, str]) -> None:
        self.results: dict[int, Result] = {}
        self.errors: dict[int, str] = {}
        self.tokens = 0
        self._client = client
        self._concurrency = concurrency
        self._extras = extras

    def run(self, rows: list[tuple[int, Result]], ended: Callable[[int], None], tick: Callable[[], None]) -> bool:
        """Do `rows`: numbers and the results to fill. False if Ctrl-C stopped it; what had ended then stays.

        `ended` is told each row on the loop's thread; `tick` is called now and then on this one.
        """
        open_rows = iter(rows)
        thread = TaskThread(lambda: self._all(open_rows, ended))
        try:
            thread.start()
            while thread.running:
                thread.wait(0.1)
                tick()
        except KeyboardInterrupt:
            thread.cancel()  # ends every run on the server: each is attached to a connection that closes now
            thread.wait()
            return False
        if thread.failure is not None:
            failure = thread.failure
            raise failure.exceptions[0] if isinstance(failure, BaseExceptionGroup) else failure
        return True

    async def _all(self, rows: Iterator[tuple[int, Result]], ended: Callable[[int], None]) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self._concurrency):
                group.create_task(self._worker(rows, ended))

    async def _worker(self, rows: Iterator[tuple[int, Result]], ended: Callable[[int], None]) -> None:
        async with self._client.kept():
            for number, result in rows:
                try:
                    self.results[number] = await self._answer(result)
                    self.tokens += result.usage.get("completion_tokens", 0)
                except Exception as error:  # Whatever is wrong with a row, the others are answered.
                    self.errors[number] = in_words(error)
                ended(number)

    async def _answer(self, result: Result) -> Result:
        for tries in range(1, TRIES + 1):
            try:
                return await TextStream(iter(()), result, None, self._client.arun(self._body(result))).read()
            except NbgenError as error:
                # What broke off in its middle may be what breaks the engine: it gets one more try.
                if not error.retryable or tries == TRIES or (result.text and tries > 1):
                    raise
                await asyncio.sleep(PAUSE_SECONDS * 2 ** (tries - 1))
                result.clear()
        raise AssertionError("unreachable")

    def _body(self, result: Result) -> dict[str, Any]:
        asked: dict[str, Any] = {"prompt": result.prompt} if result.messages is None else {"messages": result.messages}
        asked |= {"media": result.media} if result.media else {}
        return {**asked, **self._extras, "params": result.params, "stream": False}
