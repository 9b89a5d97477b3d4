"""Runs work that would block the event loop in a worker thread. Knows no route and no wire."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

#: Up to so many bytes are handled on the event loop itself, within a millisecond or two.
INLINE_BYTES = 2**17


async def off_loop(size: int, function: Callable[..., T], *arguments: Any) -> T:
    """The function's result, computed in a worker thread if `size` bytes would block the event loop."""
    if size <= INLINE_BYTES:
        return function(*arguments)
    return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)
