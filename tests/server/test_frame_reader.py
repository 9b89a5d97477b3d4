"""Messages out of bytes, however these were cut."""

import asyncio
import logging
import socket

import pytest

from nbgen.engine_state import EngineStatus
from nbgen.frames import FromEngine, encode_frame
from nbgen.messages import GenerateOutput, StepOutputs, TensorPiece
from nbgen.server.frame_reader import READ_BYTES, FrameProtocol, FrameReader

MESSAGES: list[FromEngine] = [
    StepOutputs(outputs=[GenerateOutput(rid="a", text="é", token_ids=(1, 2))]),
    EngineStatus(running=1),
    TensorPiece(rid="a", name="x", data=memoryview(bytes(range(256)) * 40)),
    EngineStatus(),
]
BYTES = b"".join(encode_frame(message) for message in MESSAGES)


async def heard(*chunks: bytes) -> list[list[FromEngine]]:
    """What is told with each chunk until the end."""
    reader, told = FrameReader(logging.getLogger("test")), list[list[FromEngine]]()
    listening = asyncio.create_task(reader.listen(told.append))
    await asyncio.sleep(0)
    for chunk in chunks:
        reader.feed_data(chunk)
    reader.feed_eof()
    await listening
    return [messages for messages in told if messages]


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
async def test_messages_are_whole_wherever_their_bytes_are_cut(size: int) -> None:
    told = await heard(*(BYTES[at : at + size] for at in range(0, len(BYTES), size)))
    assert [message for messages in told for message in messages] == MESSAGES


async def test_messages_come_out_of_a_socket_whatever_is_read_at_once() -> None:
    large = TensorPiece(rid="a", name="x", data=memoryview(bytes(range(256)) * (READ_BYTES // 100)))
    sent = [*MESSAGES, large, *MESSAGES]
    reader, told = FrameReader(logging.getLogger("test")), list[FromEngine]()
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.setblocking(False)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_unix_connection(lambda: FrameProtocol(reader), sock=ours)
        listening = asyncio.create_task(reader.listen(told.extend))
        await loop.sock_sendall(theirs, b"".join(map(encode_frame, sent)))
    await listening
    transport.close()
    assert told == sent


async def test_what_comes_at_once_is_told_at_once() -> None:
    assert await heard(BYTES, BYTES[:-1]) == [MESSAGES, MESSAGES[:-1]]


async def test_what_came_before_anybody_listened_is_told_then() -> None:
    reader, told = FrameReader(logging.getLogger("test")), list[list[FromEngine]]()
    reader.feed_data(BYTES)
    reader.feed_eof()
    await reader.listen(told.append)
    assert told == [MESSAGES]


@pytest.mark.parametrize("broken", [b"\0\0\0\1\xc1", b"\xff\xff\xff\xff", encode_frame({"type": "Unknown"})])  # type: ignore[arg-type]
async def test_what_is_no_message_ends_the_channel(broken: bytes, caplog: pytest.LogCaptureFixture) -> None:
    assert await heard(BYTES + broken + BYTES, BYTES) == [MESSAGES]
    assert "no message" in caplog.text


async def test_a_fault_of_who_listens_is_raised_there() -> None:
    def fail(messages: list[FromEngine]) -> None:
        if messages:
            raise ValueError("ours")

    reader = FrameReader(logging.getLogger("test"))
    listening = asyncio.create_task(reader.listen(fail))
    await asyncio.sleep(0)
    reader.feed_data(BYTES)
    with pytest.raises(ValueError, match="ours"):
        await listening
