"""Who takes an answer slowly is waited for; who takes nothing is not."""

import asyncio
import random
import socket

from tornado.iostream import IOStream

from nbgen.server.patience import all_taken, taken


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
