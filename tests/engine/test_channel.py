"""Reading ends with the server, however it ends."""

import socket

import pytest

from nbgen.engine.channel import Channel
from nbgen.engine_state import LoadProgress
from nbgen.frames import FRAME_HEADER, encode_frame
from nbgen.messages import AbortRequest

FRAME = encode_frame(AbortRequest(rid="a"))


@pytest.mark.parametrize("cut", [0, FRAME_HEADER - 1, FRAME_HEADER, len(FRAME) - 1])
def test_a_server_that_goes_within_a_frame_ends_the_messages(cut: int) -> None:
    server, engine = socket.socketpair()
    channel = Channel(engine.detach(), on_lost=lambda: None)
    server.sendall(FRAME + FRAME[:cut])
    server.close()
    assert [message.rid for message in channel.messages()] == ["a"]
    channel.close()


def test_a_server_that_goes_without_reading_what_was_sent_ends_them_too() -> None:
    server, engine = socket.socketpair()
    channel = Channel(engine.detach(), on_lost=lambda: None)
    channel.send(LoadProgress(stage="starting torch"))
    assert server.recv(1, socket.MSG_PEEK)
    server.close()
    assert list(channel.messages()) == []
    channel.close()
