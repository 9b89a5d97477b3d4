"""What goes to the system directly arrives once and in order, and what it does not take is said.

Who takes an answer slowly is waited for; who takes nothing is not.
"""

import asyncio
import random
import socket
from collections.abc import AsyncIterator

import pytest
from tornado.iostream import IOStream, StreamClosedError

from nbgen.server.sending import all_taken, send, taken
from tests.conftest import PATIENCE

Pair = tuple[IOStream, socket.socket]


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    """A connection's stream, and who reads it."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(PATIENCE)
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
    assert send(stream, b"one") == 3
    assert send(stream, b"two") == 3
    assert received(reader, 6) == b"onetwo"


async def test_what_a_slow_reader_leaves_goes_on_behind_it(pair: Pair) -> None:
    stream, reader = pair
    whole = random.Random(0).randbytes(4 * 2**20)
    sent = send(stream, whole)
    assert 0 < sent < len(whole)
    assert send(stream, whole[sent:]) == 0, "the system is full"
    rest = stream.write(whole[sent:])
    assert send(stream, b"too soon") == 0, "others wait"
    assert await asyncio.to_thread(received, reader, len(whole)) == whole
    await rest
    assert send(stream, b"!") == 1


async def test_of_a_reader_who_has_left_the_next_write_tells(pair: Pair) -> None:
    stream, reader = pair
    reader.close()
    assert send(stream, b"lost") == 0
    with pytest.raises(StreamClosedError):
        await stream.write(b"lost")
    assert send(stream, b"lost") == 0


async def test_a_reader_is_waited_for_as_long_as_something_is_taken() -> None:
    written = asyncio.get_running_loop().create_future()
    counts = iter([1, 2, 3])

    def last_of_three() -> int:
        count = next(counts)
        if count == 3:
            written.set_result(None)
        return count

    assert await all_taken(written, last_of_three, 0.01)


async def test_nothing_taken_for_so_long_is_too_long() -> None:
    written = asyncio.get_running_loop().create_future()
    counts = iter([1, 2, 2])
    assert not await all_taken(written, lambda: next(counts), 0.01)
    assert not written.done()


async def test_what_leaves_the_systems_own_buffer_counts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        reader = socket.create_connection(listening.getsockname())
        stream = IOStream(listening.accept()[0])
    with reader:
        size = len(whole := random.Random(0).randbytes(64 * 2**20))
        stream.write(whole)
        before = taken(stream)
        assert taken(stream) == before
        left = stream._total_write_done_index // 2
        assert 0 < left < size // 2, "the system did not take all"
        while left > 0:
            left -= len(reader.recv(left))
        assert taken(stream) > before, "nothing was written meanwhile"
        stream.close()
        taken(stream)
