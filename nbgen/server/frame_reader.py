"""The reading end of a channel to an engine: decodes messages from the incoming bytes.

Messages are delivered inside the event loop's read callback, so that no task has to wake for a token. Does not know
what the messages mean.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from logging import Logger
from typing import Any

import msgspec

from nbgen.frames import FRAME_HEADER, FromEngine, frame_length, read_by_server

Receive = Callable[[list[FromEngine]], None]

#: Most bytes of one read.
READ_BYTES = 2**18


class FrameProtocol(asyncio.StreamReaderProtocol, asyncio.BufferedProtocol):
    """Reads always into the same buffer: to allocate one for each message takes longer than to read the message."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        super().__init__(reader)
        self._buffer = memoryview(bytearray(READ_BYTES))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        data: Any = self._buffer[:nbytes]  # a memoryview, not bytes: `FrameReader` copies it
        self.data_received(data)


class FrameReader(asyncio.StreamReader):
    """A stream's reader that passes on messages instead of keeping bytes."""

    def __init__(self, log: Logger) -> None:
        super().__init__()
        self._log = log
        self._receive: Receive | None = None
        self._held = bytearray()

    async def listen(self, receive: Receive) -> None:
        """Call `receive` with the messages that each read completes, until the channel closes.

        Also returns when the channel carries something that is no message. Raises what `receive` raises.
        """
        self._receive = receive
        self.feed_data(b"")
        with contextlib.suppress(ConnectionError):
            await self.read()

    def feed_data(self, data: Any) -> None:
        """Take in what the transport has read."""
        self._held += data
        if (receive := self._receive) is None:
            return
        try:
            receive(self._whole())
        except Exception as error:  # whatever it is, `listen` raises it
            self._receive = None
            self.set_exception(error)

    def _whole(self) -> list[FromEngine]:
        """Take the complete messages from the held bytes."""
        messages: list[FromEngine] = []
        try:
            while (end := self._end()) <= len(self._held):
                with memoryview(self._held) as view:
                    body = bytes(view[FRAME_HEADER:end])
                del self._held[:end]
                messages += read_by_server(body)
        except (ValueError, msgspec.DecodeError) as error:
            self._log.error("The engine sent something that is no message: %s", error)
            self._receive = None
            self.feed_eof()
        return messages

    def _end(self) -> int:
        """Where the first message ends, or its header while that is incomplete. Raises ValueError for a bad length."""
        if len(self._held) < FRAME_HEADER:
            return FRAME_HEADER
        return FRAME_HEADER + frame_length(self._held[:FRAME_HEADER])
