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

#: Between the first text and the end; in less time nothing is told of how fast tokens come.
RATE_SECONDS = 0.01

Events = Iterator[Event]
#: In place of an event that did not come.
LOST: Event = ("lost", {})
Progress = Callable[[dict[str, Any] | None], None]
#: Streams that are awaited at once; others wait for them to end.
AWAITED = 128
_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
#: Of an answer that has no end.
INCOMPLETE = "the server ended the answer before it was complete"
#: Between two lines that say how long the model has been thinking.
LINE_SECONDS = 0.2


class TextStream:
    """Iterate for new text, by `for` or `async for`; `await` it for the result.

    Leaving a loop early (break, an exception, Ctrl-C, a cancelled task) stops the run on the server, and what has come
    stays in `result`. To read some and more of it later, use `next(…)` or `await anext(…)`; then `close`, `aclose`, or
    the end of a `with` or `async with` stops it. `aevents` are the same events awaited; whichever is not used is never
    opened.
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
        #: What reads the awaited ones, and whose turn it is, where several await the same stream.
        self._task: EventTask | None = None
        self._turn = asyncio.Lock()
        self._progress = progress or (lambda step: None)
        self.on_end: Callable[[Result], None] = lambda result: None
        self._failure: Exception | None = None
        self._open = True
        #: Whether it has ended by itself.
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
            raise TypeError("this stream is read with `async for` or `await` already")
        self._aevents = None
        try:
            while self._open:
                event = next(self._events, LOST)
                if self._open and (text := self._apply(*event)):
                    return text
            self._close_events()  # another thread may have left that to this one
        except BaseException as error:  # Ctrl-C, too, must end the run.
            self._break(error)
            if isinstance(error, EXPECTED):
                raise shortened(error) from None
            raise
        raise StopIteration

    def __aiter__(self) -> AsyncIterator[str]:
        return _Loop(self)

    async def __anext__(self) -> str:
        __tracebackhide__ = True  # from IPython and pytest, where another error has this one for its cause
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
        """As to await it, as a coroutine, which tasks want. Raises what ended it, another time as well."""
        __tracebackhide__ = True
        with waking():
            async with _places() if self._open else nullcontext():
                return await self.read_at_once()

    async def read_at_once(self) -> Result:
        """The same, however many others are awaited."""
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
        """The next text that is awaited; none at the end."""
        __tracebackhide__ = True
        try:
            while self._open:
                event = await anext(events, None) or LOST
                if self._open and (text := self._apply(*event)):
                    return text
        except BaseException as error:  # A cancelled task, too, ends the run.
            self._break(error)
            if not isinstance(error, GeneratorExit):  # after which nothing may be awaited
                await self._left()  # the loop may stand still soon
            if isinstance(error, (*EXPECTED, asyncio.CancelledError)):
                raise shortened(error) from None
            raise
        return ""

    def _awaited(self) -> AsyncGenerator[Event]:
        if self._aevents is None:
            raise TypeError("this stream can only be read with a plain `for`")
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
        """Stop reading, and with it the run; text that has come stays in `result`."""
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
        """With them the connection; where another thread reads it, that one does so when the next event comes."""
        close = getattr(self._events, "close", None)
        if close:
            with suppress(ValueError):  # a generator that is executing
                close()

    def __reduce__(self) -> Any:
        raise TypeError("a stream cannot be copied or pickled: its connection has one reader")

    async def aclose(self) -> None:
        """As `close`, but the connection is closed as well when it returns: who awaits the stream has left it."""
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
        """Only sample 0 is text to read along; further samples of `n` grow beside it."""
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
        """Say that the model thinks, as long as nothing else comes."""
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
        """As seen from here, for servers that do not say."""
        tokens, first = self.result.usage.get("completion_tokens", 0), self.result.ttft_s
        seconds = 0.0 if first is None else time.monotonic() - self._started - first
        return (tokens - 1) / seconds if tokens > 1 and seconds >= RATE_SECONDS else None

    def _fail(self, error: dict[str, Any]) -> None:
        self.result.finish_reason = "error"
        raise from_status(int(error.get("code", 500)), error["message"], error.get("field"))


class _Loop:
    """One loop over a stream. Who leaves it, however, lets go of it, and so ends the run."""

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
    """Those of the streams that are awaited at once; each is a connection, of which systems allow a thousand or so."""
    return _loops.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(AWAITED))


async def _read_out(events: AsyncGenerator[Any, None]) -> None:
    """To the end of the connection, where httpx closes its own generators; those that are left are the collector's."""
    with suppress(NbgenError):
        async for _ in events:
            pass
