"""An answer as it arrives: an iterator of text, plain or asynchronous, whose `result` holds everything so far.

Turns a run's events into a Result. Knows neither HTTP nor displays.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import aclosing, nullcontext, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from nbgen.errors import NbgenError, Unavailable, from_status, in_words
from nbgen.notebook.client import Event
from nbgen.notebook.event_task import EventTask
from nbgen.notebook.interrupts import waking
from nbgen.notebook.result import Result
from nbgen.notebook.short_traceback import EXPECTED, shortened

#: Least time between the first token and the end for which tokens per second are given.
RATE_SECONDS = 0.01

Events = Iterator[Event]
#: Stands for the next event where the events ended without `done` or `error`.
LOST: Event = ("lost", {})
Progress = Callable[[dict[str, Any] | None], None]
#: Most streams that one event loop awaits at once; others wait for one of them to end.
AWAITED = 128
_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
#: The error of an answer whose events end without `done` or `error`.
INCOMPLETE = "the server ended the answer before it was complete"
#: Between two updates of the line that counts the tokens of the model's thinking.
LINE_SECONDS = 0.2


class TextStream:
    """Iterate for new text, by `for` or `async for`; `await` it for the result.

    Leaving a loop early (break, an exception, Ctrl-C, a cancelled task) stops the run on the server, and the text so
    far stays in `result`. To read a part now and more later, use `next(…)` or `await anext(…)`; then `close`, `aclose`,
    or the end of a `with` or `async with` stops the run. `aevents` yields the same events as `events`, awaited; the one
    that is not used is never started.
    """

    def __init__(
        self,
        events: Events,
        result: Result,
        progress: Progress | None = None,
        aevents: AsyncGenerator[Event] | None = None,
    ) -> None:
        self.result = result
        self._events = events
        self._aevents = aevents
        #: The task that reads `aevents`, and a lock between tasks that await the same stream.
        self._task: EventTask | None = None
        self._turn = asyncio.Lock()
        self._progress = progress or (lambda step: None)
        self.on_end: Callable[[Result], None] = lambda result: None
        self._failure: Exception | None = None
        self._open = True
        #: Whether `done` has come.
        self._whole = False
        self._started = time.monotonic()
        self._next_line = 0.0
        #: Whether no text has come.
        self._silent = True

    def __repr__(self) -> str:
        if not (self.result.text or self.result.finish_reason):
            return (
                "<stream, not read yet: `for text in …` reads it, and nbgen.generate gives the whole at once; "
                "asyncio's tasks take its .read()>"
            )
        return f"<stream, {self.result.finish_reason or 'open'}: {self.result.text[-60:]!r}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            known = name in Result.__dataclass_fields__ or (hasattr(Result, name) and not name.startswith("_"))
            meant = f"; once it is read, its result has: .result.{name}" if known else ""
            raise shortened(AttributeError(f"'TextStream' object has no attribute {name!r}{meant}"))

    def __iter__(self) -> Iterator[str]:
        return _Loop(self)

    def __next__(self) -> str:
        if self._task is not None and self._open:
            raise shortened(TypeError("this stream is read with `async for` or `await` already"))
        self._aevents = None
        try:
            while self._open:
                event = next(self._events, LOST)
                if self._open and (text := self._apply(*event)):
                    return text
            self._close_events()  # `close` on another thread may have left that to this one
        except BaseException as error:  # Ctrl-C, too, must end the run.
            self._break(error)
            if isinstance(error, EXPECTED):
                raise shortened(error) from None
            raise
        raise StopIteration

    def __aiter__(self) -> AsyncIterator[str]:
        return _Loop(self)

    async def __anext__(self) -> str:
        __tracebackhide__ = True  # IPython and pytest leave this frame out, also under another error
        async with self._turn:
            if self._open and self._task is None:
                self._task = EventTask(self._awaited())
            with waking():
                if self._task is not None and (text := await self._text(self._task)):
                    return text
        await self._left()
        raise StopAsyncIteration

    def __await__(self) -> Generator[Any, None, Result]:
        return self.read().__await__()

    async def read(self) -> Result:
        """Like awaiting the stream, but a coroutine, which asyncio's tasks need. Each call raises what ended it."""
        __tracebackhide__ = True
        with waking():
            async with _places() if self._open else nullcontext():
                return await self.read_at_once()

    async def read_at_once(self) -> Result:
        """Like `read`, but without waiting while `AWAITED` others are awaited."""
        __tracebackhide__ = True
        async with self._turn:
            if self._task is not None:
                await self._rest(self._task)
            elif self._open:
                async with aclosing(self._awaited()) as events:
                    await self._rest(events)
                    if self._whole:
                        await _read_out(events)
        await self._left()
        if self._failure is not None:
            raise shortened(self._failure) from None
        return self.result

    async def _rest(self, events: AsyncIterator[Event]) -> None:
        __tracebackhide__ = True
        while await self._text(events):
            pass

    async def _text(self, events: AsyncIterator[Event]) -> str:
        """The next text of awaited events; empty at the end."""
        __tracebackhide__ = True
        try:
            while self._open:
                event = await anext(events, None) or LOST
                if self._open and (text := self._apply(*event)):
                    return text
        except BaseException as error:  # A cancelled task, too, ends the run.
            self._break(error)
            if not isinstance(error, GeneratorExit):  # after it a coroutine may not await
                await self._left()  # close at once: the event loop may stop soon
            if isinstance(error, (*EXPECTED, asyncio.CancelledError)):
                raise shortened(error) from None
            raise
        return ""

    def _awaited(self) -> AsyncGenerator[Event]:
        if self._aevents is None:
            raise shortened(TypeError("this stream can only be read with a plain `for` or `next`"))
        return self._aevents

    def _break(self, error: BaseException) -> None:
        if isinstance(error, Exception):
            self._failure = self._failure or error
            self.result.error = in_words(self._failure)
        self.close("error" if isinstance(error, Exception) else "abort")

    async def _left(self) -> None:
        if self._task is not None:
            await self._task.ended()

    def close(self, reason: str = "abort") -> None:
        """Stop reading, which also stops the run; the text so far stays in `result`."""
        if not self._open:
            return
        self._open = False
        self.result.finish_reason = self.result.finish_reason or reason
        self._progress(None)
        self.on_end(self.result)
        self._close_events()
        if self._task is not None:
            self._task.stop()

    def _close_events(self) -> None:
        """Close the events and their connection. A thread that is reading them does so itself at the next event."""
        close = getattr(self._events, "close", None)
        if close:
            with suppress(ValueError):  # the generator is running
                close()

    def __reduce__(self) -> Any:
        raise shortened(TypeError("a stream cannot be copied or pickled: its connection has one reader"))

    async def aclose(self) -> None:
        """Like `close`, but returns only when the connection is closed and no task awaits the stream any more."""
        self.close()
        async with self._turn:
            await self._left()

    def __enter__(self) -> TextStream:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.close()

    async def __aenter__(self) -> TextStream:
        return self

    async def __aexit__(self, kind: type | None, error: BaseException | None, where: TracebackType | None) -> None:
        await self.aclose()

    def __del__(self) -> None:
        self.close()

    def _apply(self, name: str, data: dict[str, Any]) -> str:
        if name == "delta":
            return self._delta(data)
        if name == "run":
            self.result.model = data.get("model")
        elif name == "progress":
            self._progress({"model": self.result.model, **data})
        elif name == "done":
            self._done(data)
        elif name == "error":
            self._fail(data["error"])
        elif name == "lost":
            raise Unavailable(INCOMPLETE)
        elif name == "left":
            self.close()
        return ""

    def _delta(self, data: dict[str, Any]) -> str:
        """Add a delta to the result. Returns the new text of sample 0 alone; further samples of `n` go to `others`."""
        usage = self.result.usage
        usage["completion_tokens"] = usage.get("completion_tokens", 0) + data.get("tokens", 0)
        self._think(data)
        if self.result.ttft_s is None:
            self.result.ttft_s = time.monotonic() - self._started
        index: int = data.get("index", 0)
        text: str = data["text"]
        if index:
            self.result.add_other(index, text)
            return ""
        self.result.text += text
        self.result.reasoning += data.get("reasoning", "")
        self.result.tool_calls += data.get("tool_calls", ())
        return text

    def _think(self, data: dict[str, Any]) -> None:
        """Show that the model is thinking, as long as nothing but reasoning comes."""
        if data["text"] or not data.get("reasoning"):
            if self._silent:
                self._progress(None)
            self._silent = False
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_SECONDS
            stage = f"thinking, {self.result.usage['completion_tokens']} tokens"
            self._progress({"model": self.result.model, "stage": stage})

    def _done(self, data: dict[str, Any]) -> None:
        self.result.finish_reason = data["finish_reason"]["type"]
        self.result.usage = data["usage"]
        self.result.identity = data.get("identity", "")
        self.result.ttft_s = data.get("ttft_s", self.result.ttft_s)
        self.result.tokens_per_s = data["tokens_per_s"] if "tokens_per_s" in data else self._rate()
        self._whole = True
        self.close()

    def _rate(self) -> float | None:
        """Tokens per second as measured here, for servers that do not report them."""
        tokens, first = self.result.usage.get("completion_tokens", 0), self.result.ttft_s
        seconds = 0.0 if first is None else time.monotonic() - self._started - first
        return (tokens - 1) / seconds if tokens > 1 and seconds >= RATE_SECONDS else None

    def _fail(self, error: dict[str, Any]) -> None:
        self.result.finish_reason = "error"
        raise from_status(int(error.get("code", 500)), error["message"], error.get("field"))


class _Loop:
    """One loop over a stream. However the loop is left, this object is deleted then, which ends the run."""

    def __init__(self, stream: TextStream) -> None:
        self._stream = stream

    def __iter__(self) -> _Loop:
        return self

    def __next__(self) -> str:
        return next(self._stream)

    def __aiter__(self) -> _Loop:
        return self

    def __anext__(self) -> Awaitable[str]:
        return self._stream.__anext__()

    def __del__(self) -> None:
        self._stream.close()


def _places() -> asyncio.Semaphore:
    """Limits how many streams this loop awaits at once: each is a connection, and systems allow a thousand or so."""
    return _loops.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(AWAITED))


async def _read_out(events: AsyncGenerator[Any, None]) -> None:
    """Read to the connection's end: there httpx closes its generators, else left to the garbage collector."""
    with suppress(NbgenError):
        async for _ in events:
            pass
