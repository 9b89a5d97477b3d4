"""What comes of runs on a server of another kind that falls silent, breaks off, or says what nobody understands."""

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

import nbgen
from nbgen.errors import NbgenError, Unavailable
from nbgen.notebook import session
from nbgen.notebook.remote import RemoteClient
from tests.conftest import LOOKS, PATIENCE, wait_for


class Scripted(BaseHTTPRequestHandler):
    """OpenAI's API: the last message says what is answered."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"data": [{"id": "m"}]}')

    def do_POST(self) -> None:
        messages = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"]
        self.server.heard.append(messages)
        wanted = messages[-1]["content"]
        if wanted == "silence":
            self.rfile.read()  # until the client has left
            self.server.left.set()
            return
        self.send_response(200)
        self.end_headers()
        for text in ("Hel", "lo"):
            self.tell({"choices": [{"index": 0, "delta": {"content": text}}]})
        if wanted == "a list":
            self.tell({"choices": [{"index": 0, "delta": {"content": ["!"]}}]})
        elif wanted == "no choice":
            self.tell({"choices": ["!"]})
        elif wanted != "half":
            self.tell({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})

    def tell(self, chunk: Any) -> None:
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The helpers use such a server: what it has `heard`, and whether its reader has `left`."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Scripted) as server:
        server.daemon_threads = True
        server.heard, server.left = [], threading.Event()
        threading.Thread(target=server.serve_forever, args=(LOOKS,)).start()
        monkeypatch.setattr(session, "_client", None)
        with closing(nbgen.connect(f"http://127.0.0.1:{server.server_port}/", kind="openai")) as client:
            yield SimpleNamespace(client=client, heard=server.heard, left=server.left)
        server.shutdown()


@pytest.mark.parametrize(
    ("asked", "words"), [("half", "complete"), ("a list", "another shape"), ("no choice", "another shape")]
)
def test_an_answer_that_is_none_is_an_error_wherever_it_is_read(
    remote: SimpleNamespace, asked: str, words: str
) -> None:
    with pytest.raises(NbgenError, match=words):
        nbgen.generate(asked)
    with closing(nbgen.Chat()) as chat:
        chat.ask(asked)
        with pytest.raises(NbgenError, match=words):
            chat.wait()
        assert chat.messages[-1]["content"] == "Hello", "what has come stays"


def test_a_fault_of_our_own_ends_the_run_for_who_waits(
    remote: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RemoteClient, "run", lambda self, body: 1 / 0)
    with closing(nbgen.Chat()) as chat:
        chat.ask("hi")
        with pytest.raises(NbgenError, match="ZeroDivisionError"):
            chat.wait()


def test_a_chat_remembers_what_its_server_does_not(remote: SimpleNamespace) -> None:
    with closing(nbgen.Chat(system="Be brief")) as chat:
        for text in ("My name is Anna", "What is my name?"):
            chat.ask(text)
        result = chat.wait()
        system, asked, said, again = remote.heard[-1]
        assert (system["content"], asked["content"], said["content"]) == ("Be brief", "My name is Anna", "Hello")
        assert again["content"] == "What is my name?"
        assert result is not None
        assert chat.messages == result.turns == [*remote.heard[-1], said]
        chat.chat = "another"
        assert chat.messages == []


def test_a_run_that_is_silent_is_stopped_at_once(remote: SimpleNamespace) -> None:
    with closing(nbgen.Chat()) as chat:
        chat.ask("silence")
        wait_for(lambda: remote.heard, "it was asked")
        chat.stop()
        assert remote.left.wait(PATIENCE), "the connection is closed"
        assert wait_for(chat.wait, "the end").finish_reason == "abort"
        chat.ask("silence")
        chat.stop()  # which may be before the server has heard of it
        assert wait_for(chat.wait, "the end").finish_reason == "abort"
        chat.stop()
        assert remote.client._reading == {}


async def test_both_ways_of_reading_tell_the_same(remote: SimpleNamespace) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "params": {}}
    told = list(remote.client.run(body))
    assert told == [event async for event in remote.client.arun(body)]
    assert (told[0], told[-1][0]) == (("run", {"model": "m"}), "done")
    with pytest.raises(Unavailable, match="complete"):
        await nbgen.stream("half")
