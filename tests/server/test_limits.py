"""Bodies that are too much or malformed: refused early, in words, and nothing breaks."""

import gzip
import json
import socket

import psutil
import pytest

from nbgen.server.base_handler import NbgenHandler
from tests.server.conftest import PATIENCE, TOKEN, Server

MALFORMED = [
    b"{",
    b"[]",
    b"\xff",
    b'{"text": NaN}',
    b'{"text": "a", "text": "b"}',
    b'{"text": "\\ud800"}',
    b'{"input_ids": [' + b"9" * 401 + b"]}",
    b'{"text": ' + b"[" * 250_000 + b"]" * 250_000 + b"}",
]


def raw(server: Server, head: str, body: bytes = b"") -> bytes:
    """What the server says to bytes that no well-behaved client sends."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection:
        connection.sendall(head.replace("\n", "\r\n").encode() + b"\r\n\r\n")
        answer = b""
        try:
            connection.sendall(body)
            while chunk := connection.recv(65536):
                answer += chunk
                if b"\r\n\r\n" in answer and b"}" in answer:
                    break
        except ConnectionError:
            pass
        return answer


@pytest.mark.parametrize("body", MALFORMED)
@pytest.mark.parametrize("path", ["generate", "api/v1/runs", "abort_request", "api/v1/model/load"])
def test_malformed_bodies_are_400(server: Server, path: str, body: bytes) -> None:
    answer = server.http.post(path, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400, answer.text
    assert "Traceback" not in answer.text


def test_a_body_over_the_limit_is_413_before_it_is_read(server: Server) -> None:
    head = f"POST /nbgen/generate HTTP/1.1\nHost: localhost\nAuthorization: token {TOKEN}\n"
    answer = raw(server, head + "Content-Type: application/json\nContent-Length: 100000000")
    assert b"413" in answer.split(b"\r\n")[0]
    for said in ("51,51", "-5", "many"):
        answer = raw(server, head + f"Content-Type: application/json\nContent-Length: {said}")
        assert b"400" in answer.split(b"\r\n")[0], answer
    for said in ("9" * 5000, "0" * 5000 + "2"):
        answer = raw(server, f"POST /nbgen/generate HTTP/1.1\nHost: localhost\nContent-Length: {said}")
        assert b"401" in answer.split(b"\r\n")[0], answer
        answer = raw(server, head + f"Content-Type: application/json\nContent-Length: {said}")
        assert b"413" in answer.split(b"\r\n")[0], answer
        assert said[:20].encode() + b"\xe2\x80\xa6 bytes; at most" in answer or b"\\u2026 bytes; at most" in answer
    small = server.http.post("abort_request", content=b" " * (2**20 + 1), headers={"Content-Type": "application/json"})
    assert small.status_code == 413


@pytest.mark.parametrize("said", [str(2**31 + 1), "9" * 20, "9" * 5000, "5,5", "+5"])
def test_a_length_that_no_route_of_tritons_reads_to_its_end_is_answered_in_its_shape(server: Server, said: str) -> None:
    head = f"POST /nbgen/v2/models/simple/infer HTTP/1.1\nHost: localhost\nAuthorization: token {TOKEN}\n"
    answer = raw(server, head + f"Content-Length: {said}")
    words = b"exceeds the maximum allowed" if said.isdigit() else b"is not a length in bytes"
    assert (answer.split(b" ")[1], words in answer.partition(b'{"error":"')[2]) == (b"400", True), answer


@pytest.mark.parametrize(
    ("path", "size"), [("abort_request", 20 * 2**16), ("v1/completions", 24 * 2**20), ("generate", 80 * 2**20)]
)
@pytest.mark.parametrize("chunk", [2**16, 2**30])
def test_a_chunked_body_over_the_limit_is_413(server: Server, path: str, size: int, chunk: int) -> None:
    """However large the chunks are, and however much is over it."""
    chunk = min(chunk, size)
    parts = (b" " * chunk for _ in range(size // chunk))
    answer = server.http.post(path, content=parts, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json() != {}) == (413, True)


@pytest.mark.parametrize("path", ["v1/completions", "generate", "api/v1/runs"])
def test_a_body_may_say_that_nothing_is_encoded_and_else_is_refused_for_that(server: Server, path: str) -> None:
    name = {"generate": "text"}.get(path, "prompt")
    body, headers = {name: "a", "stream": False}, {"Content-Type": "application/json"}
    for encoding in ("identity", "Identity", ""):
        assert server.http.post(path, json=body, headers=headers | {"Content-Encoding": encoding}).status_code == 200
    packed = gzip.compress(json.dumps(body).encode())
    answer = server.http.post(path, content=packed, headers=headers | {"Content-Encoding": "gzip"})
    assert (answer.status_code, "Content-Encoding gzip is not supported" in answer.text) == (415, True)


def test_an_unknown_caller_cannot_make_the_server_hold_a_body(server: Server) -> None:
    process = psutil.Process(server.process.pid)
    before = process.memory_info().rss
    head = "POST /nbgen/generate HTTP/1.1\nHost: localhost\nContent-Type: application/json\nContent-Length: 100000000"
    raw(server, head, b"x" * 100_000_000)
    assert process.memory_info().rss - before < 16 * 2**20


class Unconnected(NbgenHandler):
    """A handler of no connection, which has received a body."""

    def __init__(self, body: bytes) -> None:
        self._body = bytearray(body)


async def test_a_body_is_let_go_once_it_is_read() -> None:
    """A handler lives as long as its answer, which may be an hour's stream."""
    handler = Unconnected(b"{}" * 2**20)
    assert await handler.parsed(len) == 2**21
    assert handler.body == b""


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_to_http_1_0_ends_with_its_connection(server: Server, stream: bool) -> None:
    body = json.dumps({"text": "a", "stream": stream, "sampling_params": {"max_new_tokens": 2}}).encode()
    head = f"POST /generate HTTP/1.0\nHost: localhost\nAuthorization: token {TOKEN}\nConnection: keep-alive\n"
    head += f"Content-Type: application/json\nContent-Length: {len(body)}\n\n"
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection,
        connection.makefile("rb") as answer,
    ):
        connection.sendall(head.replace("\n", "\r\n").encode() + body)
        headers = dict(line.lower().strip().partition(b": ")[::2] for line in iter(answer.readline, b"\r\n"))
        if stream:
            assert headers[b"connection"] == b"close"
            assert answer.read().endswith(b"data: [DONE]\n\n")
        else:
            assert headers[b"connection"] == b"keep-alive"
            assert b"meta_info" in answer.read(int(headers[b"content-length"]))


def test_bodies_just_within_the_limit_are_read(server: Server) -> None:
    padding = " " * (64 * 2**20 - 100)
    body = b'{"text": "a", "sampling_params": {"max_new_tokens": 1}}' + padding.encode()
    answer = server.http.post("generate", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 200
