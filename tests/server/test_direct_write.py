"""What goes to the system directly arrives once and in order, and what it does not take is said."""

import asyncio
import random
import socket
from collections.abc import AsyncIterator

import pytest
from tornado.iostream import IOStream, StreamClosedError

from nbgen.server import direct_write

Pair = tuple[IOStream, socket.socket]


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    """A connection's stream, and who reads it."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(10)
    stream = IOStream(ours)
    yield stream, theirs
    stream.close()
    theirs.close()


def received(reader: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size and (part := reader.recv(size)):
        parts += part
    return bytes(parts)


async def test_the_system_takes_it_at_once(pair: Pair) -> None:
    stream, reader = pair
    assert direct_write.send(stream, b"one") == 3
    assert direct_write.send(stream, b"two") == 3
    assert received(reader, 6) == b"onetwo"


async def test_what_a_slow_reader_leaves_goes_on_behind_it(pair: Pair) -> None:
    stream, reader = pair
    whole = random.Random(0).randbytes(4 * 2**20)
    sent = direct_write.send(stream, whole)
    assert 0 < sent < len(whole)
    assert direct_write.send(stream, whole[sent:]) == 0, "the system is full"
    rest = stream.write(whole[sent:])
    assert direct_write.send(stream, b"too soon") == 0, "others wait"
    assert await asyncio.to_thread(received, reader, len(whole)) == whole
    await rest
    assert direct_write.send(stream, b"!") == 1


async def test_of_a_reader_who_has_left_the_next_write_tells(pair: Pair) -> None:
    stream, reader = pair
    reader.close()
    assert direct_write.send(stream, b"lost") == 0
    with pytest.raises(StreamClosedError):
        await stream.write(b"lost")
    assert direct_write.send(stream, b"lost") == 0
