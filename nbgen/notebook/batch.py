"""Many prompts at once: all in flight together, so that the engine batches them; results in the order of the rows.

One thread of its own runs the event loop, for a kernel's main thread has a loop already and must hear Ctrl-C. Knows
bodies of runs and rows by number; nothing of templates or tables.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from nbgen.errors import NbgenError, in_words
from nbgen.notebook.remote import AnyClient
from nbgen.notebook.result import Result
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
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        #: Joining the thread would not do: before Python 3.13 one that is interrupted takes the thread for ended.
        self._over = threading.Event()
        self._failure: BaseException | None = None

    def run(self, rows: list[tuple[int, Result]], ended: Callable[[int], None], tick: Callable[[], None]) -> bool:
        """Do `rows`: numbers and the results to fill. False if Ctrl-C stopped it; what had ended then stays.

        `ended` is told each row on the loop's thread; `tick` is called now and then on this one.
        """
        threading.Thread(target=self._work, args=(iter(rows), ended), daemon=True).start()
        try:
            while not self._over.is_set():
                self._over.wait(0.1)
                tick()
        except KeyboardInterrupt:
            self._cancel()
            self._over.wait()
            return False
        if self._failure is not None:
            raise self._failure
        return True

    def _work(self, rows: Iterator[tuple[int, Result]], ended: Callable[[int], None]) -> None:
        try:
            asyncio.run(self._all(rows, ended))
        except asyncio.CancelledError:
            pass
        except BaseExceptionGroup as failures:
            self._failure = failures.exceptions[0]
        except BaseException as failure:  # Raised again on the thread that waits.
            self._failure = failure
        finally:
            self._over.set()

    async def _all(self, rows: Iterator[tuple[int, Result]], ended: Callable[[int], None]) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
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
                return await TextStream(iter(()), result, None, self._client.arun(self._body(result)))
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

    def _cancel(self) -> None:
        """Ends every run on the server: each is attached to a connection that closes now."""
        deadline = time.monotonic() + 1
        while self._task is None and time.monotonic() < deadline:
            time.sleep(0.01)
        if self._loop is not None and self._task is not None:
            with suppress(RuntimeError):  # the loop is closed: all have ended
                self._loop.call_soon_threadsafe(self._task.cancel)
