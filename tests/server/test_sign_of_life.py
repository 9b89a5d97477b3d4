"""Streams that have nothing to tell for long, which proxies would cut: every dialect's clients read over the signs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from nbgen import sse
from nbgen.protocols.anthropic_answer import PING
from tests.server.conftest import TOKEN, Server, events_until
from tests.soak import soaking

#: Started as a module of its folder.
IMPATIENT = """
from nbgen.server import base_handler

base_handler.KEEP_ALIVE_SECONDS = 0.2

from nbgen.server import generation_handler

generation_handler.HEADER_SECONDS = 0.5

from nbgen.server.app import NbgenApp

NbgenApp.launch_instance()
"""
CHAT: Any = [{"role": "user", "content": "hello"}]
GREEDY = {"temperature": 0, "ignore_eos": True}
TOKENS = 600
LIMIT = {"max_tokens": TOKENS, "stream": True, **GREEDY}
SAMPLING = {"max_new_tokens": TOKENS, **GREEDY}
NOTHING = b'"choices":[{"index":0,%b,"logprobs":null,"finish_reason":null,"matched_stop":null}]'

STREAMS: list[Any] = [
    ("generate", {"text": "a", "stream": True, "sampling_params": SAMPLING}, 2 * sse.EMPTY),
    soaking("v1/completions", {"prompt": "a", **LIMIT}, NOTHING % b'"text":""'),
    ("v1/chat/completions", {"messages": CHAT, **LIMIT}, NOTHING % b'"delta":{}'),
    ("v1/messages", {"messages": CHAT, "model": "m", **LIMIT}, PING),
    soaking("v1/responses", {"input": "a", "stream": True, "max_output_tokens": TOKENS, **GREEDY}, sse.KEEP_ALIVE),
]


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory, long_model: Path) -> Iterator[Server]:
    """A server that keeps silent for parts of a second only."""
    folder = tmp_path_factory.mktemp("impatient")
    (folder / "impatient.py").write_text(IMPATIENT)
    server = Server(folder, f"--model={long_model}", "--dtype=float32", app="impatient")
    yield server.ready()
    server.stop()
    assert "Traceback" not in server.log.read_text()


@contextmanager
def paused(server: Server) -> Iterator[None]:
    """The engine computes nothing meanwhile."""
    server.http.post("pause_generation", json={"mode": "in_place"}).raise_for_status()
    try:
        yield
    finally:
        server.http.post("continue_generation", json={}).raise_for_status()


@contextmanager
def paused_for_long(server: Server) -> Iterator[None]:
    """It computes again by itself, once who asks has waited for long."""
    server.http.post("pause_generation", json={"mode": "in_place"}).raise_for_status()
    go_on = threading.Timer(1.5, lambda: server.http.post("continue_generation", json={}))
    go_on.start()
    yield
    go_on.join()


def until(chunks: Iterator[bytes], sign: bytes) -> bytes:
    """All that comes up to this."""
    found = b""
    while sign not in found:
        found += next(chunks)
    return found


@pytest.mark.parametrize(("path", "body", "sign"), STREAMS)
def test_a_stream_that_has_nothing_to_tell_says_so(
    impatient: Server, path: str, body: dict[str, Any], sign: bytes
) -> None:
    with impatient.http.stream("POST", path, json=body) as answer:
        chunks = answer.iter_raw()
        until(chunks, b"data: ")
        with paused(impatient):
            until(chunks, sign)
        assert b"data: " in b"".join(chunks)


def test_who_is_told_nothing_of_what_comes_is_told_that_it_does(impatient: Server) -> None:
    params = {"max_new_tokens": 3000, "stream_interval": 10_000, **GREEDY}
    body = {"text": "a", "stream": True, "sampling_params": params}
    with impatient.http.stream("POST", "generate", json=body) as answer:
        assert 2 * sse.EMPTY in b"".join(answer.iter_raw())


def test_a_response_that_is_followed_again_does_so_too(impatient: Server) -> None:
    body = {"input": "a", "background": True, "stream": True, "max_output_tokens": TOKENS, **GREEDY}
    with impatient.http.stream("POST", "v1/responses", json=body) as made:
        id = json.loads(events_until(made, bool)[0].data)["response"]["id"]
    with paused(impatient), impatient.http.stream("GET", f"v1/responses/{id}?stream=true") as followed:
        until(followed.iter_raw(), sse.KEEP_ALIVE)
    impatient.http.delete(f"v1/responses/{id}").raise_for_status()


@pytest.mark.soak
def test_clients_read_over_it(impatient: Server) -> None:
    """Before the first token, which is where they would fail, and behind it the text is that of any other stream."""
    with impatient.openai() as client, anthropic.Anthropic(base_url=f"{impatient.root}nbgen", api_key=TOKEN) as other:
        readers = {
            "chat": lambda: chat(client),
            "chat that is put together": lambda: chat_put_together(client),
            "completion": lambda: completion(client),
            "response": lambda: response(client),
            "message": lambda: message(other),
            "lines": lambda: benchmark(impatient, "generate", {"text": "a", "sampling_params": SAMPLING}, "text"),
        }
        for name, read in readers.items():
            told = read()
            assert told, name
            with paused_for_long(impatient):
                assert read() == told, name


def chat(client: openai.OpenAI) -> str:
    stream = client.chat.completions.create(model="m", messages=CHAT, max_tokens=8, extra_body=GREEDY, stream=True)
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream)


def chat_put_together(client: openai.OpenAI) -> str | None:
    with client.chat.completions.stream(model="m", messages=CHAT, max_tokens=8, extra_body=GREEDY) as stream:
        stream.until_done()
    said = stream.current_completion_snapshot.choices[0].message
    assert said.role == "assistant"
    return said.content


def completion(client: openai.OpenAI) -> str:
    stream = client.completions.create(model="m", prompt="a", max_tokens=8, extra_body=GREEDY, stream=True)
    return "".join(chunk.choices[0].text for chunk in stream)


def response(client: openai.OpenAI) -> str:
    stream = client.responses.create(model="m", input="a", max_output_tokens=16, extra_body=GREEDY, stream=True)
    return "".join(event.delta for event in stream if event.type == "response.output_text.delta")


def message(client: anthropic.Anthropic) -> str:
    with client.messages.stream(model="m", messages=CHAT, max_tokens=8, extra_body=GREEDY) as stream:
        final = stream.get_final_message()
    assert final.usage.input_tokens + (final.usage.cache_read_input_tokens or 0) > 0
    return stream.get_final_text()


def benchmark(server: Server, path: str, body: dict[str, Any], field: str) -> Any:
    """As benchmarks of servers read them: each line that is not empty is JSON."""
    with server.http.stream("POST", path, json=body | {"stream": True}) as answer:
        lines = [line.removeprefix("data: ") for line in map(str.strip, answer.iter_lines()) if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines][-1][field]


def test_what_ends_in_an_error_after_that_says_so_in_its_last_event(impatient: Server) -> None:
    """Where the headers are gone no status tells it."""
    impatient.http.post("pause_generation", json={"mode": "in_place"}).raise_for_status()
    release = threading.Timer(1.5, lambda: impatient.http.post("release_memory_occupation", json={}))
    release.start()
    try:
        with impatient.openai() as client, pytest.raises(openai.APIError, match="memory") as failed:
            chat(client)
        assert failed.value.code == "503"
    finally:
        release.join()
        impatient.http.post("resume_memory_occupation", json={}).raise_for_status()
        impatient.http.post("continue_generation", json={}).raise_for_status()


def test_a_stream_of_tritons_is_its_events_and_nothing_else(impatient: Server, long_model: Path) -> None:
    """Its clients take whatever comes for one."""
    body = {"text_input": "a", "stream": True, "max_tokens": 3, **GREEDY}
    with (
        paused_for_long(impatient),
        impatient.http.stream("POST", f"v2/models/{long_model.name}/generate_stream", json=body) as answer,
    ):
        *told, rest = b"".join(answer.iter_raw()).split(b"\n\n")
    assert rest == b""
    assert all(each.startswith(b"data: {") for each in told)
