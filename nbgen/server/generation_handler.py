"""The base of all routes that generate, in any dialect: starts runs, waits, and answers whole or as a stream.

A subclass parses the body and renders the answer; only it knows the dialect.
"""

from __future__ import annotations

import time
from functools import partial

import msgspec

from nbgen import sse
from nbgen.errors import Conflict, InvalidRequest, ModelError, NbgenError, Unavailable, anew
from nbgen.messages import GenerateRequest
from nbgen.server.base_handler import GENERATE_BODY, KEEP_ALIVE_SECONDS, NbgenHandler
from nbgen.server.off_loop import off_loop
from nbgen.server.runs import Run, ended

#: Bytes per second of a stream whose events have more bytes than SMALL, so that other streams get their turn.
STREAM_RATE = 50e6
SMALL = 2**14
#: The headers of a stream wait this long for its first token: many proxies cut a connection after a silent minute.
HEADER_SECONDS = 30.0


class ModelNeededHandler(NbgenHandler):
    """A route that loads the configured model if need be."""

    body_limit = GENERATE_BODY

    def as_ours(self, status: int, error: BaseException | None) -> NbgenError:
        """A failed load is the server's error here, a 503: the caller named no model."""
        ours = super().as_ours(status, error)
        return Unavailable(ours.message) if isinstance(ours, ModelError) else ours


class GenerationHandler(ModelNeededHandler):
    """Runs that are aborted when their caller disconnects, unless they are `detached`."""

    #: When the next event may be sent after a large one; 0 if the last one was small.
    _rests_until = 0.0
    #: When a stream last sent something.
    _sent = 0.0

    def whole(self, runs: list[Run]) -> bytes:
        """The answer to a call without streaming, once all runs have ended well."""
        raise NotImplementedError

    def chunk(self, runs: list[Run]) -> bytes:
        """Events for what the runs have produced since the last call."""
        raise NotImplementedError

    def sign_of_life(self, runs: list[Run]) -> bytes:
        """What a stream without news sends to stay open; not every dialect's clients know SSE comments."""
        return sse.KEEP_ALIVE

    async def next_chunk(self, runs: list[Run]) -> bytes:
        """As `chunk`; a dialect whose events may be large renders them off the event loop."""
        return self.chunk(runs)

    def end(self, runs: list[Run], error: NbgenError | None) -> bytes:
        """The last events of a stream, with the `error` of one that failed after it began."""
        raise NotImplementedError

    async def generate(self, requests: list[GenerateRequest], *, stream: bool) -> None:
        """Serve the requests of one call."""
        for request in requests:
            self.check_code(request)
        runs: list[Run] = []
        try:
            for request in requests:
                runs.append(self.start(msgspec.structs.replace(request, batch=len(requests))))
            await (self._stream(runs) if stream else self._answer(runs))
        finally:
            for run in runs if not self.detached else ():
                self.runs.leave(run)

    def start(self, request: GenerateRequest) -> Run:
        """Start a run of the request."""
        run = Run(request)
        try:
            self.runs.start(run)
        except Conflict as error:
            raise InvalidRequest(error.message, field="rid") from None
        return run

    async def _answer(self, runs: list[Run]) -> None:
        await ended(runs, self.reader)
        if not self.reader.gone:
            _raise_first_error(runs)
            size = sum(sample.size for run in runs for sample in run.samples)
            await self.write_whole(await off_loop(size, self.whole, runs))

    async def _stream(self, runs: list[Run]) -> None:
        """Send events. After a large one the next waits and takes in all outputs until then; the last never waits."""
        for run in runs:
            self.reader.watch(run.watchers)
        await self._until_first_token(runs)
        while not self.reader.gone:
            error = next((run.error for run in runs if run.error), None)
            over = error is not None or all(run.ended is not None for run in runs)
            if over or time.monotonic() >= self._rests_until:
                chunk = await self.next_chunk(runs) + (self.end(runs, error) if over else b"")
                if chunk := self._in_time(runs, chunk):
                    await self.write_event(chunk)
            if over:
                self.end_events()
                return
            rest = self._rests_until - time.monotonic()
            await self.reader.wait(rest if rest > 0 else KEEP_ALIVE_SECONDS, at_once=partial(self._go_on, runs))
            await self.catch_up()

    async def _until_first_token(self, runs: list[Run]) -> None:
        """Hold back the headers until the first token, so that a refusal can still set the status; but not too long."""
        seconds = HEADER_SECONDS
        while runs and not self.reader.gone and not any(run.first_token or run.ended for run in runs):
            if not await self.reader.wait(seconds):
                await self.write_event(self.sign_of_life(runs))
                seconds = KEEP_ALIVE_SECONDS
        if not self._headers_written:
            _raise_first_error(runs)
        self._sent = time.monotonic()

    def _go_on(self, runs: list[Run]) -> bool:
        """Send new outputs without waking the handler's task; False if it must wake, as for an end or a large event."""
        alone = not self._rests_until and all(run.ended is None for run in runs)
        return alone and self.write_at_once(partial(self._small_chunk, runs))

    def _small_chunk(self, runs: list[Run]) -> bytes:
        return self._in_time(runs, self.chunk(runs))

    def _in_time(self, runs: list[Run], chunk: bytes) -> bytes:
        """The chunk, or a sign of life if nothing was sent for long. After a large chunk the stream rests."""
        now = time.monotonic()
        if not chunk and now - self._sent < KEEP_ALIVE_SECONDS:
            return b""
        self._sent = now
        self._rests_until = now + len(chunk) / STREAM_RATE if len(chunk) > SMALL else 0.0
        return chunk or self.sign_of_life(runs)


def _raise_first_error(runs: list[Run]) -> None:
    for run in runs:
        if run.error is not None:
            raise anew(run.error)
