"""Streams over HTTP, read as bytes: when each event came. The client's own work stays small beside the server's."""

import asyncio
import json
import random
import time
from typing import Any, NamedTuple

EVENT = b"data: {"
#: Bytes of a stream's end that tell whether it is whole, and more than an event's beginning.
TAIL = 1000
#: What the last event of a whole stream has in it: transformers' server sends no [DONE].
ENDS = (b"[DONE]", b'"finish_reason":"', b'"finish_reason": "')


class Arrivals(NamedTuple):
    """When one request was sent and when each of its events came, in seconds of one clock."""

    sent: float
    events: list[float]

    @property
    def first_token_seconds(self) -> float:
        return self.events[0] - self.sent

    @property
    def gaps(self) -> list[float]:
        """Seconds between one event and the next."""
        return [later - earlier for earlier, later in zip(self.events, self.events[1:], strict=False)]


class StreamFailed(Exception):
    """The server did not answer with a whole stream."""


def complete(port: int, bodies: list[dict[str, Any]]) -> list[Arrivals]:
    """Stream all completions at once. Raises StreamFailed."""
    return asyncio.run(_all(port, bodies))


def prompt(digits: int, chance: random.Random) -> str:
    """A text of `digits` tokens: no tokenizer used here joins digits."""
    return "".join(chance.choices("0123456789", k=digits))


async def _all(port: int, bodies: list[dict[str, Any]]) -> list[Arrivals]:
    return await asyncio.gather(*(_one(port, body) for body in bodies))


async def _one(port: int, body: dict[str, Any]) -> Arrivals:
    content = json.dumps({**body, "stream": True}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    )
    loop = asyncio.get_running_loop()
    try:
        transport, stream = await loop.create_connection(_Stream, "127.0.0.1", port)
        sent = time.perf_counter()
        transport.write(head.encode() + content)
        await stream.closed
    except ConnectionError as error:
        raise StreamFailed(str(error)) from None
    if not stream.events or not any(end in stream.tail for end in ENDS):
        raise StreamFailed(stream.tail[-200:].decode(errors="replace"))
    return Arrivals(sent, stream.events)


class _Stream(asyncio.BufferedProtocol):
    """When the events of one connection came, and its last bytes. All connections read into one buffer."""

    _buffer = memoryview(bytearray(2**16))

    def __init__(self) -> None:
        self.events: list[float] = []
        self.tail = b""
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        now, begun = time.perf_counter(), self.tail[1 - len(EVENT) :]
        text = begun + self._buffer[:nbytes]
        self.events += [now] * text.count(EVENT)
        self.tail = (self.tail + text[len(begun) :])[-TAIL:]

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)
