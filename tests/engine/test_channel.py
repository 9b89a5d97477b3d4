"""Messages arrive whole and in order however slowly they are read; reading ends with the server, however it ends."""

import queue
import socket
import threading

import pytest

from nbgen.engine.channel import Channel
from nbgen.engine_state import LoadProgress
from nbgen.frames import FRAME_HEADER, Unreadable, encode_frame, frame_length, from_engine_decoder
from nbgen.messages import AbortRequest, GenerateRequest
from nbgen.sampling_params import SamplingParams
from tests.conftest import PATIENCE

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


def test_what_cannot_be_read_is_sent_back_and_the_next_is_read() -> None:
    server, engine = socket.socketpair()
    channel = Channel(engine.detach(), on_lost=lambda: None)
    wrong = SamplingParams(min_new_tokens="many")  # type: ignore[arg-type]  # which no parser lets through
    server.sendall(encode_frame(GenerateRequest(rid="wrong", params=wrong)) + FRAME)
    messages = channel.messages()
    assert next(messages).rid == "a"
    with server.makefile("rb") as file:
        answer = from_engine_decoder.decode(file.read(frame_length(file.read(FRAME_HEADER))))
    assert answer == Unreadable(rid="wrong", error="Expected `int`, got `str` - at `$.params.min_new_tokens`")
    server.close()
    assert list(messages) == []
    channel.close()


def test_a_slow_reader_gets_everything_in_order_and_keeps_no_sender_waiting() -> None:
    """Far more than the socket holds, by several threads at once, before the first byte is read."""
    server, engine = socket.socketpair()
    channel = Channel(engine.detach(), on_lost=lambda: None)
    senders = [threading.Thread(target=_send, args=(channel, str(number))) for number in range(3)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join(PATIENCE)
        assert not sender.is_alive()
    closing = threading.Thread(target=channel.close)
    closing.start()
    with server, server.makefile("rb") as file:
        found = [
            from_engine_decoder.decode(file.read(frame_length(header))) for header in iter(lambda: file.read(4), b"")
        ]
    closing.join()
    for number in range(3):
        assert [each.done for each in found if each.stage[0] == str(number)] == list(range(100))


def test_a_message_is_with_the_system_before_its_sender_goes_on() -> None:
    server, engine = socket.socketpair()
    channel = Channel(engine.detach(), on_lost=lambda: None)
    server.setblocking(False)
    with server:
        for done in range(100):
            channel.send(LoadProgress(stage="a", done=done))
            assert server.recv(1000) == encode_frame(LoadProgress(stage="a", done=done))
        channel.close()


def test_who_closes_ends_the_reading_of_another_thread_and_the_server_hears_it() -> None:
    server, engine = socket.socketpair()
    channel = Channel(engine.detach(), on_lost=lambda: None)
    heard: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        for message in channel.messages():
            heard.put(message.rid)
        heard.put("the end")

    reader = threading.Thread(target=read)
    reader.start()
    server.sendall(FRAME)
    assert heard.get(timeout=PATIENCE) == "a"
    channel.close()
    server.settimeout(PATIENCE)
    with server:
        assert server.recv(1) == b""
    assert heard.get(timeout=PATIENCE) == "the end"
    reader.join()


def _send(channel: Channel, name: str) -> None:
    for done in range(100):
        channel.send(LoadProgress(stage=name * 50_000, done=done))
