"""What comes of an HTTP request, of which nothing is kept but what was read.

An httpx response and its stream know each other, and the request: else all that was sent, media too, stays until Python
next looks for such circles. Knows no routes.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx


@contextmanager
def answered(http: httpx.Client, *request: Any, **options: Any) -> Iterator[httpx.Response]:
    """As `http.stream`."""
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
