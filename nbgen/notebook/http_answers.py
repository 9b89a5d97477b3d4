"""Responses to HTTP requests, whose memory is freed as soon as they have been read.

An httpx response and its stream refer to each other and to the request: without the `del` all that was sent, media too,
would stay in memory until Python's next collection of reference cycles. Knows no routes.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx


@contextmanager
def answered(http: httpx.Client, *request: Any, **options: Any) -> Iterator[httpx.Response]:
    """Like `http.stream`."""
    response = http.send(http.build_request(*request, **options), stream=True)
    try:
        yield response
    finally:
        response.close()
        del response.stream


@asynccontextmanager
async def aanswered(http: httpx.AsyncClient, *request: Any, **options: Any) -> AsyncIterator[httpx.Response]:
    """The same, awaited."""
    response = await http.send(http.build_request(*request, **options), stream=True)
    try:
        yield response
    finally:
        await response.aclose()
        del response.stream
