"""The base of nbgen's handlers: bodies with a limit, errors in the dialect's shape, and streams of events.

Knows no route: a subclass says how errors look (`error_body`) and how long a body may be.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from http.client import responses
from typing import Any, TypeVar

from jupyter_server.prometheus.log_functions import prometheus_log_method
from tornado import web
from tornado.iostream import StreamClosedError

from nbgen.errors import (
    BodyTooLarge,
    Forbidden,
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    NbgenError,
    Unavailable,
    UnsupportedMedia,
    from_status,
)
from nbgen.keepalive import keep_alive
from nbgen.logit_processor import may_be_code
from nbgen.messages import GenerateRequest
from nbgen.protocols import native
from nbgen.protocols.media import Item
from nbgen.server.auth import METHODS, AuthenticatedHandler
from nbgen.server.connections import BODY_SECONDS
from nbgen.server.engine_client import EngineClient
from nbgen.server.off_loop import off_loop
from nbgen.server.reader import Reader
from nbgen.server.runs import Runs
from nbgen.server.sending import all_taken, framed, send, taken

SMALL_BODY = 2**20
GENERATE_BODY = 8 * 2**20
#: Limit of a route whose prompts may be embeddings, or have images.
MEDIA_BODY = 64 * 2**20
#: The most of a refused body that is read and dropped before the answer.
DISCARDED_BYTES = 2**31
#: Most digits of a Content-Length.
MAX_DIGITS = 20
KEEP_ALIVE_SECONDS = 10.0
T = TypeVar("T")
#: A handler's function for one HTTP method; its arguments are the groups of the path.
Method = Callable[..., Awaitable[None]]

RETRY_AFTER = "5"


@web.stream_request_body
class NbgenHandler(AuthenticatedHandler):
    """Reads a body only from admitted callers, and answers every error in one place."""

    body_limit = SMALL_BODY
    #: Whether what is asked is done even if the caller leaves.
    detached = False
    error_body: Callable[[NbgenError], bytes] = staticmethod(native.error_body)

    def initialize(self) -> None:
        super().initialize()
        if self.request.method == "OPTIONS":  # a preflight has no body, and is answered to who shows no token
            self.body_limit = 0
        self.reader = Reader()
        self._body = bytearray()
        self._error_id = ""
        self._unread = False
        self._written: asyncio.Future[None] | None = None
        self._serving: asyncio.Task[Any] | None = None

    @property
    def engine(self) -> EngineClient:
        return self.app.engine

    @property
    def runs(self) -> Runs:
        return self.app.runs

    @property
    def body(self) -> bytes:
        """The whole body."""
        return bytes(self._body)

    async def parsed(self, parse: Callable[[bytes], T]) -> T:
        """Parse the body, and free it. A large one is parsed off the event loop."""
        body, self._body = self.body, bytearray()
        return await off_loop(len(body) + self.read_besides, parse, body)

    @property
    def read_besides(self) -> int:
        """Bytes of other data that `parse` may read, however short the body."""
        return 0

    # --- the request

    async def prepare(self, **_: Any) -> None:
        connection: Any = self.request.connection
        if not connection.stream.closed():
            keep_alive(connection.stream.socket, self.app.reader_seconds)
        connection.set_max_body_size(self.body_limit + SMALL_BODY)
        length = self._body_length()
        connection.set_body_timeout(  # one second more per megabyte
            BODY_SECONDS + (length if 0 <= length < self.body_limit else self.body_limit) / 2**20
        )
        try:
            await self.admit()
            self._check_body()
            if self._body_length() < 0:  # a chunked body's size is checked while it is read
                connection.set_max_body_size(DISCARDED_BYTES)
        except (NbgenError, web.HTTPError) as error:
            self._refuse(error)

    async def _no_method(self, *_: str) -> None:
        raise MethodNotAllowed(f"{self.request.method} is not a method of this route")

    get: Method = _no_method
    head: Method = _no_method
    post: Method = _no_method
    put: Method = _no_method
    patch: Method = _no_method
    delete: Method = _no_method

    def data_received(self, chunk: bytes) -> None:
        self._body += chunk
        if len(self._body) > self.body_limit:
            self._body.clear()
            self._refuse_after_body(self.too_large(f"more than {self.body_limit}"))

    def too_large(self, size: str) -> NbgenError:
        """The error for a body of `size` bytes."""
        return BodyTooLarge(f"the body has {size} bytes; at most {self.body_limit}")

    def on_connection_close(self) -> None:
        super().on_connection_close()
        self.reader.leave()
        if self._serving is not None:
            self._serving.cancel()

    def on_finish(self) -> None:
        self.reader.close()

    def _check_length(self) -> None:
        length, said = self._body_length(), self.request.headers.get("Content-Length", "0")
        if length > self.body_limit and not _is_length(said):
            raise InvalidRequest(f"Content-Length {said[:80]!r} is not a length in bytes")
        if length > self.body_limit:
            raise self.too_large(said if len(said) <= MAX_DIGITS else f"{said[:MAX_DIGITS]}…")

    def _check_body(self) -> None:
        self._check_length()
        if self._body_length() == 0:
            return
        kind = self.request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise UnsupportedMedia(f"send JSON as Content-Type: application/json, not {kind[:80] or 'nothing'}")
        encoding = self.request.headers.get("Content-Encoding", "").strip().lower()
        if encoding not in ("", "identity"):
            raise UnsupportedMedia(f"Content-Encoding {encoding[:80]} is not supported here: send the JSON as it is")

    def _body_length(self) -> int:
        """The announced length in bytes; -1 for a chunked body, which announces none."""
        if "Transfer-Encoding" in self.request.headers:
            return -1
        digits = self.request.headers.get("Content-Length", "0")
        return int(digits) if _is_length(digits) and len(digits) <= MAX_DIGITS else DISCARDED_BYTES + 1

    def _refuse(self, error: NbgenError | web.HTTPError) -> None:
        """Answer `error`. Read a short body first, since a client that is still sending may never read the answer."""
        self._unread = not 0 <= self._body_length() <= SMALL_BODY
        if self._unread:
            raise error
        self._refuse_after_body(error)

    def _refuse_after_body(self, error: NbgenError | web.HTTPError) -> None:
        async def refuse(*_: str) -> None:
            raise error

        self.data_received = lambda chunk: None  # type: ignore[method-assign]
        setattr(self, (self.request.method or "GET").lower(), refuse)

    # --- answers

    async def serve(self, work: Coroutine[Any, Any, T]) -> T | None:
        """What the work returns. It is cancelled, and there is nothing, if the caller disconnects before its end."""
        self._serving = serving = asyncio.create_task(work)
        if self.reader.gone:  # while the body was read
            serving.cancel()
        try:
            return await serving
        except asyncio.CancelledError:
            if not self.reader.gone:
                raise
            return None

    async def write_event(self, chunk: bytes) -> None:
        """Send part of an event stream. A reader who has left, or takes nothing for too long, is `gone`."""
        if not self._headers_written:
            self.set_header("Content-Type", "text/event-stream; charset=utf-8")
            self.set_header("Cache-Control", "no-cache, no-transform")
            self.set_header("X-Accel-Buffering", "no")
        await self.write_patiently(chunk)

    def write_at_once(self, render: Callable[[], bytes]) -> bool:
        """Send the next part of a started answer without waiting. False if it is not written: await `catch_up` then."""
        if self._written is None or self.application.transforms:
            return False
        if chunk := render():  # `write` and `flush` are needed for headers and transforms only
            self._send(chunk)
        return self._written.done() and self._written.exception() is None

    def _send(self, chunk: bytes) -> None:
        """Write to the socket directly as much as the system takes, and the rest through Tornado."""
        connection: Any = self.request.connection
        chunked = self._headers.get("Transfer-Encoding") == "chunked"
        data = framed(chunk) if chunked else chunk
        sent = send(connection.stream, data)
        if not sent:
            self._written = connection.write(chunk)
        elif sent < len(data):
            self._written = connection.stream.write(data[sent:])

    async def catch_up(self) -> None:
        """Wait until everything sent so far is written to the socket."""
        if self._written is not None:
            await self._taken(self._written)

    async def write_patiently(self, chunk: bytes) -> None:
        """Send part of an answer, and wait until it is written to the socket."""
        if self.request.version == "HTTP/1.0" and not self._headers_written:
            self._end_with_the_connection()
        self.write(chunk)
        self._written = self.flush()
        await self.catch_up()

    def _end_with_the_connection(self) -> None:
        """Close the connection after the answer: without chunked encoding nothing else marks its end."""
        connection: Any = self.request.connection
        connection._disconnect_on_finish = True
        self.request.headers.pop("Connection", None)  # or else Tornado answers that it keeps the connection
        self.set_header("Connection", "close")

    async def write_whole(self, body: bytes) -> None:
        """Send a whole answer, which may be large. A reader who leaves or stalls is `gone`, as for `write_event`."""
        await self._taken(self.finish(body))

    async def _taken(self, written: asyncio.Future[None]) -> None:
        connection: Any = self.request.connection
        seconds = self.app.reader_seconds
        try:
            # Where the system took it all there is nothing to wait for.
            if written.done() or await all_taken(written, lambda: taken(connection.stream), seconds):
                return written.result()
            self.log.warning("A reader took nothing for %g seconds: its connection is closed", seconds)
            connection.stream.close()
        except StreamClosedError:
            pass
        self.reader.leave()

    def check_code(self, request: GenerateRequest) -> None:
        """Raise Forbidden for a client's own code if the caller is authenticated by a cookie only."""
        processor = request.logit_processor
        if processor is not None and may_be_code(processor) and not self.token_authenticated:
            raise Forbidden("custom_logit_processor is code: send the server's token with it, a cookie is not enough")

    async def with_media(
        self, requests: Sequence[GenerateRequest], media: Sequence[list[Item]]
    ) -> list[GenerateRequest]:
        """The requests with their media, whether sent or named by URL or path. Raises an error for forbidden media, and
        Unavailable for a caller who has left meanwhile.
        """
        if not any(media):
            return list(requests)
        trusted = self.token_authenticated
        filling = self.app.media.fill(requests, media, trusted=trusted, model=self.engine.model)
        if (filled := await (filling if self.detached else self.serve(filling))) is None:
            raise Unavailable("the caller has left")
        return filled

    def end_events(self) -> None:
        """End a complete stream."""
        if not self._finished and not self.reader.gone:
            self.finish(set_content_type="text/event-stream; charset=utf-8")

    # --- errors

    def _log(self) -> None:
        """Log a 503 in one line: it happens to all callers at once, and Jupyter would write ten lines for each."""
        if self.get_status() != 503:
            super()._log()
            return
        self.log.warning("503 %s %s (%s)", self.request.method, self.request.path[:200], self.request.remote_ip)
        if self.serverapp is not None and self.serverapp.record_http_request_metrics:
            prometheus_log_method(self)  # type: ignore[no-untyped-call]

    def log_exception(self, typ: Any, value: BaseException | None, tb: Any) -> None:
        if isinstance(value, NbgenError | web.HTTPError | StreamClosedError):
            return
        self._error_id = secrets.token_hex(6)
        self.log.error("Internal error %s in %s", self._error_id, self.request.path, exc_info=value)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = self.as_ours(status_code, kwargs.get("exc_info", (None, None, None))[1])
        self.set_status(error.status)
        self.set_cors_headers()
        if error.status == 401:
            self.set_header("WWW-Authenticate", "Bearer")
        if error.status == 405:
            self.set_header("Allow", ", ".join(self._allowed()))
        if error.retryable:
            self.set_header("Retry-After", RETRY_AFTER)
        if self._unread:
            self.set_header("Connection", "close")
        self.finish(self.error_body(error))

    def as_ours(self, status: int, error: BaseException | None) -> NbgenError:
        """The error to show to the caller: never the message of a foreign exception."""
        if isinstance(error, NbgenError):
            return error
        if isinstance(error, web.HTTPError):
            return from_status(status, error.log_message or error.reason or responses.get(status, "refused"))
        return InternalError(f"internal error; the server's log has it under {self._error_id or 'this time'}")

    def _allowed(self) -> list[str]:
        return [name.upper() for name in METHODS if getattr(type(self), name) is not getattr(NbgenHandler, name)]


def _is_length(said: str) -> bool:
    return said.isascii() and said.isdigit()
