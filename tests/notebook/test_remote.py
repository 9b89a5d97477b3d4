"""Servers of other kinds: found out or named, asked in their own dialect."""

import json
import socket
import threading
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import nbgen
from nbgen import sse
from nbgen.errors import InvalidRequest, ServerNotFound, Unauthorized
from nbgen.notebook.connection import Call
from nbgen.notebook.openai_backend import OpenAIBackend, OpenAIReader
from nbgen.notebook.private_server import PrivateServer
from nbgen.notebook.remote import open_client, server_root
from nbgen.notebook.schema import Schema
from nbgen.notebook.sglang_backend import SGLangBackend, SGLangReader
from nbgen.notebook.triton_backend import TritonBackend, TritonReader
from nbgen.sampling_params import DEFAULT_NEW_TOKENS
from tests.notebook.hello_server import greeting, greeting_on_socket

OPTIONS = {"max_new_tokens": 6, "temperature": 0}


def place(server: PrivateServer) -> tuple[str, str]:
    """The server's root, where it speaks the other dialects, and its key."""
    token = server.client._http.headers["Authorization"].removeprefix("Bearer ")
    return server.url.removesuffix("nbgen/"), token


@pytest.mark.parametrize("kind", ["openai", "sglang"])
async def test_the_same_answers_in_every_dialect(
    connected: PrivateServer, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    chat = nbgen.generate("hi", **OPTIONS)
    text = nbgen.generate("Once", complete=True, **OPTIONS)
    monkeypatch.setattr("nbgen.notebook.session._client", None)
    client = nbgen.connect(*place(connected), kind=kind)
    assert client.models()
    again = nbgen.generate("hi", **OPTIONS)
    assert (again.text, again.finish_reason) == (chat.text, "length")
    assert again.usage["completion_tokens"] == 6
    monkeypatch.setattr("nbgen.notebook.text_stream.RATE_SECONDS", 0.0)
    assert nbgen.generate("hi", **OPTIONS).tokens_per_s > 0
    assert (await nbgen.stream("Once", complete=True, **OPTIONS)).text == text.text
    rows = nbgen.map(["hi"], progress=False, **OPTIONS)
    assert rows.text.tolist() == [chat.text]
    assert nbgen.status().state == "ready"
    with pytest.raises(InvalidRequest, match="needs an nbgen server"):
        nbgen.load()
    client.close()


def test_logprobs_need_a_dialect_that_tells_them(connected: PrivateServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nbgen.notebook.session._client", None)
    client = nbgen.connect(*place(connected), kind="sglang")
    assert len(nbgen.logprobs("ab")) == 2
    client.close()
    client = nbgen.connect(*place(connected), kind="openai")
    with pytest.raises(InvalidRequest, match="speaks OpenAI"):
        nbgen.logprobs("ab")
    client.close()


def test_nbgen_is_recognised_first_and_errors_are_told_apart(connected: PrivateServer) -> None:
    url, token = place(connected)
    client = open_client(url, token)
    assert type(client) is nbgen.Client
    client.close()
    with pytest.raises(Unauthorized):
        open_client(url, "wrong", "openai")
    with pytest.raises(InvalidRequest, match="kind is auto"):
        open_client(url, token, "other")
    with pytest.raises(ServerNotFound, match="nothing answers"):
        open_client("http://127.0.0.1:9/v1")


def test_an_address_is_taken_as_people_write_it() -> None:
    assert server_root("http://a:1/v1") == server_root("http://a:1") == "http://a:1/"
    assert server_root("http://a/x/v2/models?token=b") == "http://a/x/"


@pytest.mark.parametrize("base", ["/", "/lab/", "/nbgen/", "/user/tree/", "/notebooks/lab/"])
@pytest.mark.parametrize("page", ["", "nbgen/", "lab", "lab/tree/lab/a.ipynb?token=t", "tree#top"])
def test_folders_of_a_base_url_may_be_named_as_pages_are(base: str, page: str) -> None:
    with greeting(base) as url, closing(open_client(url + base + page)) as client:
        assert client.url == f"{url}{base}nbgen/"


def test_a_model_that_a_server_of_nbgen_has_not_loaded_is_refused() -> None:
    with greeting(model={"name": "here"}) as url:
        open_client(url, model="here").close()
        with pytest.raises(InvalidRequest, match="has 'here' loaded: connect without model="):
            open_client(url, model="elsewhere")


def test_a_server_without_tls_is_told_from_none() -> None:
    with greeting() as url, pytest.raises(ServerNotFound, match=r"nothing answers at .* with TLS: is it http:// there"):
        open_client(url.replace("http:", "https:"))


async def test_a_unix_socket_is_an_address(tmp_path: Path) -> None:
    path = tmp_path / "J.sock"
    with greeting_on_socket(path), closing(open_client(f"http+unix://{quote(str(path), safe='')}/")) as client:
        assert client.hello() == await client.afields(Call("GET", "api/v1/hello")) == {"server_id": "s"}
        async with client.kept():
            assert "server_id" in await client.afields(Call("GET", "api/v1/hello"))


def read(reader: Any, *chunks: Any) -> list[Any]:
    data = [chunk if isinstance(chunk, str) else json.dumps(chunk) for chunk in chunks]
    return [event for text in data for event in reader.feed(sse.Event(text))] + reader.end()


def test_an_address_without_a_scheme_is_one_of_http(connected: PrivateServer) -> None:
    url, token = place(connected)
    client = open_client(url.removeprefix("http://"), token)
    assert client.url == connected.client.url
    client.close()
    for wrong in ("", "ftp://127.0.0.1/", "http://", "http://a:b/", 5):
        with pytest.raises(InvalidRequest, match="address is like"):
            open_client(wrong)
    with pytest.raises(ServerNotFound, match="nothing answers"):
        open_client("127.0.0.1:9")


def test_what_does_not_speak_http_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def greet() -> None:
            there, _ = listening.accept()
            with there:
                there.sendall(b"SSH-2.0-OpenSSH\r\n")

        threading.Thread(target=greet, daemon=True).start()
        with pytest.raises(ServerNotFound, match="does not answer as a web server"):
            open_client(f"http://127.0.0.1:{listening.getsockname()[1]}/")


def test_triton_is_asked_for_text_and_answers_in_pieces() -> None:
    call = TritonBackend("a b").run({"prompt": "x", "params": {"max_new_tokens": 5, "sampling_seed": 1}})
    assert call.path == "v2/models/a%20b/generate_stream"
    assert call.body == {"text_input": "x", "stream": True, "parameters": {"max_tokens": 5, "seed": 1}}
    long = TritonBackend("m").run({"prompt": "x", "params": {}})
    assert long.body["parameters"] == {"max_tokens": DEFAULT_NEW_TOKENS}
    events = read(TritonReader(), {"model_name": "m", "text_output": "a"}, {"text_output": "b"})
    assert [data["text"] for name, data in events if name == "delta"] == ["a", "b"]
    assert events[-1][0] == "done"
    assert read(TritonReader()) == []
    assert read(TritonReader(), {"error": "no such model"})[0][1]["error"]["message"] == "no such model"
    with pytest.raises(InvalidRequest, match="complete=True"):
        TritonBackend("m").run({"messages": [], "params": {}})
    with pytest.raises(InvalidRequest, match="no option for n"):
        TritonBackend("m").run({"prompt": "x", "params": {"n": 2}})


def test_openais_options_have_its_names() -> None:
    params = {"max_new_tokens": None, "sampling_seed": 3, "json_schema": Schema({"type": "object"}).json, "stop": ["x"]}
    call = OpenAIBackend("m").run({"messages": [{"role": "user", "content": "x"}], "params": params})
    assert call.path == "v1/chat/completions"
    assert "max_tokens" not in call.body
    assert call.body["seed"] == 3
    assert call.body["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert SGLangBackend("m").run({"prompt": "x", "params": {"max_new_tokens": None}}).body["sampling_params"] == {}


@pytest.mark.parametrize(
    ("name", "text", "vllms"), [("regex", "yes|no", "regex"), ("ebnf", 'root ::= "no"', "grammar")]
)
def test_a_grammar_has_sglangs_name_and_vllms(
    connected: PrivateServer, monkeypatch: pytest.MonkeyPatch, name: str, text: str, vllms: str
) -> None:
    body = OpenAIBackend("m").run({"prompt": "x", "params": {name: text}}).body
    assert (body[name], body["structured_outputs"]) == (text, {vllms: text})
    monkeypatch.setattr("nbgen.notebook.session._client", None)
    with closing(nbgen.connect(*place(connected), kind="openai")):
        assert nbgen.generate("Is it?", **{name: text}).text in ("yes", "no")


@pytest.mark.parametrize("kind", ["openai", "sglang"])
def test_a_text_is_continued_for_as_long_in_every_dialect(
    connected: PrivateServer, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("nbgen.notebook.session._client", None)
    client = nbgen.connect(*place(connected), kind=kind)
    result = nbgen.generate("Once", complete=True, ignore_eos=True)
    assert result.usage["completion_tokens"] == DEFAULT_NEW_TOKENS
    assert result.caption.endswith(f"cut off at max_new_tokens={DEFAULT_NEW_TOKENS}")
    client.close()


def test_an_openai_stream_ends_once_with_its_last_word_or_without() -> None:
    said = {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]}
    assert [name for name, _ in read(OpenAIReader(), said)] == ["delta", "done"]
    assert [name for name, _ in read(OpenAIReader(), said, "[DONE]")] == ["delta", "done"]
    assert read(OpenAIReader(), "[DONE]")[0][1]["finish_reason"] == {"type": "stop"}
    assert read(OpenAIReader(), {"choices": []}) == []
    assert read(OpenAIReader(), {"error": {"message": "full", "code": 503}})[0][1]["error"]["code"] == 503


def test_sglangs_chunks_are_cumulative() -> None:
    meta = {"prompt_tokens": 1, "completion_tokens": 1, "finish_reason": None}
    end = {**meta, "completion_tokens": 3, "finish_reason": {"type": "stop", "matched": 2}}
    events = read(SGLangReader(), {"text": "ab", "meta_info": meta}, {"text": "abcd", "meta_info": end}, "[DONE]")
    assert [(data["text"], data["tokens"]) for name, data in events if name == "delta"] == [("ab", 1), ("cd", 2)]
    assert events[2][1]["finish_reason"] == {"type": "stop", "matched": 2}
    assert events[2][1]["usage"]["completion_tokens"] == 3
