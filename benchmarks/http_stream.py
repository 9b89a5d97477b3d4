"""Streams over HTTP, read as bytes: when each event came. The client's own work stays small beside the server's."""

import asyncio
import json
import random
import time
from typing import Any, NamedTuple

EVENT = b"data: {"
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
    events, last, whole = [], b"", False
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
        sent = time.perf_counter()
        writer.write(head.encode() + content)
        async for line in reader:
            if line.startswith(EVENT):
                events.append(time.perf_counter())
            whole = whole or any(end in line for end in ENDS)
            last = line.strip() or last
        writer.close()
    except ConnectionError as error:
        raise StreamFailed(str(error)) from None
    if not events or not whole:
        raise StreamFailed(last.decode(errors="replace")[:200])
    return Arrivals(sent, events)
