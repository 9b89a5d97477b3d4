"""Calls over connections that do not carry them: every way of asking says so in words."""

import copy
import json
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import numpy as np
import pytest

from nbgen import keepalive
from nbgen.errors import InvalidRequest
from nbgen.notebook import client as client_module
from nbgen.notebook import connection, session
from nbgen.notebook.client import Client
from nbgen.notebook.comm import CommRuns
from nbgen.notebook.connection import Call, NoAnswer
from nbgen.notebook.openai_backend import OpenAIBackend
from nbgen.notebook.remote import RemoteClient, open_client
from tests.conftest import LOOKS, PATIENCE, wait_for


@pytest.fixture
def closed() -> Client:
    """The client of a server that `stop` has ended."""
    client = Client("http://127.0.0.1:9/")
    client.close()
    return client


@pytest.mark.parametrize(
    "ask",
    [
        lambda client, call: client.json(call),
        lambda client, call: client.framed(call),
        lambda client, call: next(client.stream(call)),
    ],
)
def test_a_closed_connection_is_said(closed: Client, ask: Callable[[Client, Call], Any]) -> None:
    with pytest.raises(NoAnswer, match="has been closed"):
        ask(closed, Call("GET", "api/v1/hello"))
    assert closed.lost


def test_a_token_is_what_a_header_can_have() -> None:
    with closing(Client("http://127.0.0.1:9/", "from-a-file\n")) as client:
        assert client.headers == {"Authorization": "Bearer from-a-file"}
    for token in ("tök", "a\nb", 5):
        with pytest.raises(InvalidRequest, match="a token is of"):
            open_client("http://127.0.0.1:9/", token)  # type: ignore[arg-type]


def test_a_copy_would_read_the_same_connection(closed: Client) -> None:
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"in another process, nbgen\.connect"):
            copied(closed)


@pytest.mark.parametrize("value", [float("nan"), np.int64(3), {1}])
def test_what_json_has_not_is_refused_in_words(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="the request cannot be sent as JSON: "):
        Call("POST", "", {"messages": [{"content": [{"type": "text", "weight": value}]}]}).sent()


@pytest.fixture
def told(closed: Client) -> Callable[..., dict[str, Any]]:
    """What a panel hears of a message, after `heard`, where the server is gone."""
    said: list[dict[str, Any]] = []
    runs = CommRuns(lambda: closed, said.append)

    def answer(message: dict[str, Any], kind: str) -> dict[str, Any]:
        runs.receive(message)
        return wait_for(lambda: next((each for each in said if each["type"] == kind), None), kind)

    return answer


def test_a_panel_hears_of_it_whatever_it_asks(told: Callable[..., dict[str, Any]]) -> None:
    words = "has been closed"
    run = told({"type": "start", "body": {"id": "r", "prompt": "x"}}, "event")
    assert (run["event"], words in run["data"]["error"]["message"]) == ("error", True)
    assert words in told({"type": "chat", "chat": "c"}, "chat")["error"]
    assert words in told({"type": "model"}, "model")["error"]
    assert words in told({"type": "load"}, "load")["error"]


def in_a_fork(ask: Callable[[], Any]) -> Any:
    """What a forked child of this process finds out."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.write(writer, json.dumps(ask()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    with os.fdopen(reader) as told:
        return json.load(told)


class Answers(BaseHTTPRequestHandler):
    """Whole ones, over connections that stay."""

    protocol_version = "HTTP/1.1"

    def answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(handler: type[Answers]) -> Iterator[str]:
    """The address of a server of such answers."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        server.handle_error = lambda *_: None  # its reader may have gone
        threading.Thread(target=server.serve_forever, args=(LOOKS,)).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


class TellsWhoAsks(Answers):
    """Answers with the port that its reader asks from: each connection has another."""

    def do_GET(self) -> None:
        self.answer(json.dumps(self.client_address[1]).encode())


@pytest.fixture
def telling() -> Iterator[str]:
    """The address of such a server."""
    with serving(TellsWhoAsks) as address:
        yield address


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_connections_of_its_own(telling: str, closed: Client) -> None:
    client, call = Client(telling), Call("GET", "")
    port = client.json(call)
    assert in_a_fork(lambda: client.json(call)) != port
    assert client.json(call) == port
    assert in_a_fork(lambda: closed._http.is_closed)
    client.close()


FORK = """
import os, sys
from nbgen.notebook.client import Client
from nbgen.notebook.connection import Call
client = Client(sys.argv[1])
client.json(Call("GET", ""))
if os.fork():
    os.wait()
else:
    client.json(Call("GET", ""))
client.close()
"""


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_waits_for_no_thread_of_its_parent_that_uses_a_connection(
    telling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, call = Client(telling), Call("GET", "")
    client.json(call)
    monkeypatch.setattr(connection, "LET_GO_SECONDS", 0.1)
    monkeypatch.setattr(client._own, "close", threading.Event().wait)
    assert in_a_fork(lambda: client.json(call))
    monkeypatch.undo()
    client.close()


def test_a_forked_child_says_nothing_of_its_parents_connections(telling: str) -> None:
    ran = subprocess.run([sys.executable, "-W", "error", "-c", FORK, telling], capture_output=True, check=True)
    assert ran.stderr == b""


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_waits_for_no_thread_of_its_parent() -> None:
    held, over = threading.Event(), threading.Event()

    def start_a_server() -> None:
        with session._lock:
            held.set()
            over.wait()

    starting = threading.Thread(target=start_a_server)
    starting.start()
    held.wait()
    try:
        assert in_a_fork(lambda: session._lock.acquire(blocking=False))
    finally:
        over.set()
        starting.join()


class Late(Answers):
    """Says nothing for some time, and then all; where nobody is to wait for it, only as its test is over."""

    SECONDS = 0.6
    over: threading.Event

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def do_GET(self) -> None:
        self.over.wait(PATIENCE if self.path.endswith(("model", "runs")) else self.SECONDS)
        whole = self.path.endswith(("generate", "model"))
        self.answer(b"{}" if whole else b'data: {"choices": [{"index": 0, "text": "a", "finish_reason": "stop"}]}\n\n')


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of such a server, which is silent for longer than a stream of nbgen's may be."""
    monkeypatch.setattr(client_module, "SILENCE_SECONDS", Late.SECONDS / 3)
    monkeypatch.setattr(connection.Connection, "silence", Late.SECONDS / 3)
    Late.over = threading.Event()
    with serving(Late) as address:
        yield address
        Late.over.set()


def test_an_answer_that_comes_as_a_whole_is_waited_for(late: str) -> None:
    with closing(Client(late)) as client:
        assert client.generate({}) == {}
        with pytest.raises(NoAnswer, match="did not answer in time"):
            client.model()
        with pytest.raises(NoAnswer, match="did not answer in time"):
            next(client.run({}))


async def test_a_server_of_another_kind_may_be_silent(late: str) -> None:
    body = {"prompt": "a", "params": {}}
    with closing(RemoteClient(late, "", OpenAIBackend("m"))) as client:
        assert [name for name, _ in client.run(body)] == ["run", "delta", "done"]
        assert [name async for name, _ in client.arun(body)] == ["run", "delta", "done"]


class Endless(Answers):
    """Begins an answer and says no more."""

    def do_POST(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b": begun\n\nevent: delta\ndata: {}\n\n")
        self.rfile.read()


def test_a_kernel_has_as_many_streams_as_it_opens() -> None:
    with serving(Endless) as address, closing(Client(address)) as client:
        streams = [client.run({}) for _ in range(110)]
        assert [next(stream) for stream in streams] == [("delta", {})] * 110
        for stream in streams:
            stream.close()


def asks(stream: Any) -> bool:
    """Whether the system asks for a sign of the other end of a connection that is silent."""
    there: socket.socket = stream.get_extra_info("socket")
    return there.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0 and (
        there.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == keepalive.INTERVAL
    )


async def test_a_server_that_is_gone_without_a_word_is_noticed() -> None:
    with serving(Endless) as address, closing(Client(address)) as client:
        with client._http.stream("POST", "x") as response:
            assert asks(response.extensions["network_stream"])
        async with client._async() as http, http.stream("POST", "x") as response:
            assert asks(response.extensions["network_stream"])


@pytest.mark.parametrize(
    ("names", "through"),
    [
        ({}, False),
        ({"http_proxy": "http://127.0.0.1:9"}, True),
        ({"all_proxy": "http://127.0.0.1:9"}, True),
        ({"https_proxy": "http://127.0.0.1:9"}, False),
        ({"no_proxy": "far.example"}, False),
        ({"http_proxy": "http://127.0.0.1:9", "no_proxy": "near.example,far.example"}, False),
    ],
)
def test_it_is_noticed_wherever_no_proxy_stands_between(
    monkeypatch: pytest.MonkeyPatch, names: dict[str, str], through: bool
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    with closing(Client("http://far.example:8888/")) as client:
        assert (client._transport(httpx.HTTPTransport) is None) == through
