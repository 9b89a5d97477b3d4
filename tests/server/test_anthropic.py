"""Anthropic's messages with the real `anthropic` client, sync and async, and as Claude Code sends them."""

import json
from collections.abc import Iterator
from typing import Any, Literal

import anthropic
import httpx
import jsonschema
import pytest
from pydantic import BaseModel

from tests.server.conftest import TOKEN, Server, events
from tests.server.test_limits import raw
from tests.server.test_tools import CITY, NOTHING

CHAT = [{"role": "user", "content": "hello"}]
#: What Anthropic's newer models are not asked for, and so no argument of the client's.
OPTIONS = {"temperature": 0, "ignore_eos": True}
GREEDY = {"model": "any", "max_tokens": 8, "messages": CHAT, "extra_body": OPTIONS}
WEATHER = {"name": "get_weather", "description": "the weather", "input_schema": CITY}
TOOLS = [WEATHER, {"name": "get_time", "input_schema": NOTHING, "type": "custom"}]
#: A random model thinks without end where it may.
TOGETHER = {"separate_reasoning": False}
THINKS = {"chat_template_kwargs": {"thinks": True}, **OPTIONS}
CALL = {"model": "any", "max_tokens": 1200, "messages": CHAT, "tools": TOOLS, "extra_body": TOGETHER | {"seed": 1}}
ONE = {"type": "any", "disable_parallel_tool_use": True}
LETTERS = {"text": {"type": "string", "pattern": "^[a-z]{900}$"}}
WRITE = {"name": "write", "input_schema": NOTHING | {"properties": LETTERS, "required": ["text"]}}


def connected(server: Server, **options: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=f"{server.root}nbgen", max_retries=0, **options)


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[anthropic.Anthropic]:
    with connected(server.ready(), api_key=server.key) as client:
        yield client


@pytest.fixture(scope="module")
def caller(calling_server: Server) -> Iterator[anthropic.Anthropic]:
    with connected(calling_server, api_key=TOKEN) as client:
        yield client


def test_a_message_says_what_a_chat_says(server: Server, client: anthropic.Anthropic) -> None:
    turns = [{"role": "system", "content": "be brief"}, *CHAT]
    body = {"messages": turns, "temperature": 0, "max_tokens": 8, "ignore_eos": True}
    chat = server.http.post("v1/chat/completions", json=body).json()
    message = client.messages.create(**GREEDY, system=[{"type": "text", "text": "be brief"}])
    assert [block.text for block in message.content] == [chat["choices"][0]["message"]["content"]]
    assert (message.type, message.role, message.model) == ("message", "assistant", chat["model"])
    assert (message.stop_reason, message.stop_sequence) == ("max_tokens", None)
    assert (message.id[:4], message._request_id[:4]) == ("msg_", "req_")
    tokens = message.usage.input_tokens + message.usage.cache_read_input_tokens
    assert (tokens, message.usage.output_tokens) == (chat["usage"]["prompt_tokens"], 8)
    count = client.messages.count_tokens(model="any", messages=CHAT, system="be brief")
    assert count.input_tokens == tokens


def test_input_is_what_was_not_in_the_cache(client: anthropic.Anthropic) -> None:
    long = GREEDY | {"messages": [{"role": "user", "content": "Once upon a time. " * 20}]}
    client.messages.create(**long)
    usage = client.messages.create(**long).usage
    assert usage.cache_read_input_tokens > 300
    assert 0 < usage.input_tokens < 100
    assert usage.cache_creation_input_tokens == 0


def test_a_stream_builds_the_message(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(**GREEDY)
    with client.messages.stream(**GREEDY) as stream:
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
    assert (message.content[0].text, text) == (whole.content[0].text, whole.content[0].text)
    assert message.usage.output_tokens == whole.usage.output_tokens
    assert stream.request_id.startswith("req_")
    told = [event.type for event in client.messages.create(**GREEDY, stream=True)]
    assert (told[:2], told[-3:]) == (
        ["message_start", "content_block_start"],
        ["content_block_stop", "message_delta", "message_stop"],
    )
    assert set(told[2:-3]) == {"content_block_delta"}


async def test_the_async_client(server: Server) -> None:
    async with anthropic.AsyncAnthropic(base_url=f"{server.root}nbgen", auth_token=server.key) as client:
        whole = await client.messages.create(**GREEDY)
        async with client.messages.stream(**GREEDY) as stream:
            assert [text async for text in stream.text_stream]
            assert (await stream.get_final_message()).content[0].text == whole.content[0].text


def test_stop_sequences_are_told(client: anthropic.Anthropic) -> None:
    asked = GREEDY | {"extra_body": {"regex": "acab", "temperature": 0}, "max_tokens": 20}
    message = client.messages.create(**asked, stop_sequences=["x", "b"])
    assert (message.stop_reason, message.stop_sequence, message.content[0].text) == ("stop_sequence", "b", "aca")
    ended = client.messages.create(**asked)
    assert (ended.stop_reason, ended.content[0].text) == ("end_turn", "acab")


class Place(BaseModel):
    city: Literal["Rom", "Oslo"]


def test_models_are_listed(client: anthropic.Anthropic) -> None:
    (model,) = client.models.list()
    assert model == client.models.retrieve(model.id)
    assert (model.type, model.display_name) == ("model", model.id)
    assert model.created_at.tzinfo


def test_an_answer_has_the_form_that_is_asked_for(client: anthropic.Anthropic) -> None:
    message = client.messages.parse(model="any", max_tokens=99, messages=CHAT, output_format=Place)
    assert isinstance(message.parsed_output, Place)


def test_an_answer_goes_on_with_the_last_message(client: anthropic.Anthropic) -> None:
    begun = [*CHAT, {"role": "assistant", "content": "It is"}]
    count = client.messages.count_tokens(model="any", messages=begun).input_tokens
    usage = client.messages.create(**GREEDY | {"messages": begun}).usage
    assert usage.input_tokens + usage.cache_read_input_tokens == count
    more = [*begun, {"role": "user", "content": ""}]
    assert count < client.messages.count_tokens(model="any", messages=more).input_tokens


@pytest.mark.soak
def test_an_answer_may_fill_the_context(caller: anthropic.Anthropic) -> None:
    long = [{"role": "user", "content": "x" * 2000}]
    with caller.messages.stream(**GREEDY | {"max_tokens": 64_000, "messages": long}) as stream:
        assert stream.get_final_message().stop_reason == "model_context_window_exceeded"
    with pytest.raises(anthropic.BadRequestError, match="the prompt is too long"):
        caller.messages.create(model="any", max_tokens=1, messages=[{"role": "user", "content": "x" * 3000}])


def checked(block: Any) -> None:
    """The block is a call of one of the tools, as its schema allows."""
    assert block.type == "tool_use"
    jsonschema.validate(block.input, {tool["name"]: tool["input_schema"] for tool in TOOLS}[block.name])


def test_calls_are_blocks_whose_input_grows(caller: anthropic.Anthropic) -> None:
    whole = caller.messages.create(**CALL, tool_choice=ONE)
    (block,) = whole.content
    checked(block)
    assert whole.stop_reason == "tool_use"
    long = CALL | {"tools": [WRITE], "tool_choice": {"type": "tool", "name": "write"}}
    with caller.messages.stream(**long) as stream:
        grown = [event.partial_json for event in stream if event.type == "input_json"]
        message = stream.get_final_message()
    (block,) = message.content
    assert len(grown) > 1, "what has come by the time that a busy machine looks is one event"
    assert (json.loads("".join(grown)), block.name) == (block.input, "write")
    assert [each.input for each in caller.messages.create(**long).content] == [block.input]
    assert caller.messages.create(**CALL | {"max_tokens": 3}, tool_choice={"type": "none"}).stop_reason == "max_tokens"


def test_results_go_back_as_a_chats_do(calling_server: Server, caller: anthropic.Anthropic) -> None:
    (block,) = caller.messages.create(**CALL, tool_choice=ONE).content
    result = {"type": "tool_result", "tool_use_id": block.id, "content": [{"type": "text", "text": "sunny"}]}
    messages = [*CHAT, {"role": "assistant", "content": [block]}, {"role": "user", "content": [result]}]
    function = {"name": block.name, "arguments": json.dumps(block.input)}
    called = {"role": "assistant", "tool_calls": [{"id": block.id, "type": "function", "function": function}]}
    turns = [*CHAT, called, {"role": "tool", "tool_call_id": block.id, "content": "sunny"}]
    tools = [{"type": "function", "function": {**tool, "parameters": tool["input_schema"]}} for tool in TOOLS]
    body = {"messages": turns, "tools": tools}
    expected = calling_server.http.post("tokenize", json=body).json()["count"]
    assert caller.messages.count_tokens(model="any", messages=messages, tools=TOOLS).input_tokens == expected
    usage = caller.messages.create(**CALL | {"messages": messages, "max_tokens": 2}).usage
    assert usage.input_tokens + usage.cache_read_input_tokens == expected


@pytest.mark.parametrize("stream", [False, True])
def test_the_clients_own_loop_calls_functions(caller: anthropic.Anthropic, stream: bool) -> None:
    """It asks for a conversation that the server keeps, and goes on without when it is told that there is none."""
    asked: list[tuple[str, int]] = []

    @anthropic.beta_tool(name="get_weather", description="the weather", input_schema=CITY)
    def weather(city: str, days: int) -> str:
        asked.append((city, days))
        return "sunny"

    options = CALL | {"tools": [weather], "tool_choice": ONE}
    turns = caller.beta.messages.tool_runner(**options, max_iterations=2, stream=stream)
    said = [turn.get_final_message() if stream else turn for turn in turns]
    assert [message.stop_reason for message in said] == ["tool_use"] * 2
    calls = [block.input for message in said for block in message.content]
    assert [tuple(call.values()) for call in calls][: len(asked)] == asked != []


def test_thoughts_are_blocks_with_a_signature(caller: anthropic.Anthropic) -> None:
    asked = GREEDY | {"extra_body": THINKS, "max_tokens": 9}
    whole = caller.messages.create(**asked)
    (block,) = whole.content
    assert (block.type, bool(block.thinking), bool(block.signature)) == ("thinking", True, True)
    with caller.messages.stream(**asked) as stream:
        thoughts = "".join(event.thinking for event in stream if event.type == "thinking")
        (streamed,) = stream.get_final_message().content
    assert (streamed.thinking, thoughts, bool(streamed.signature)) == (block.thinking, block.thinking, True)
    kept = [*CHAT, {"role": "assistant", "content": [block, {"type": "text", "text": "so"}]}, *CHAT]
    counted = [caller.messages.count_tokens(model="any", messages=each).input_tokens for each in (kept, CHAT)]
    assert counted[0] > counted[1] + len(block.thinking)
    left_out = caller.messages.create(**asked, thinking={"type": "adaptive", "display": "omitted"})
    assert (left_out.content[0].thinking, bool(left_out.content[0].signature)) == ("", True)


def test_claude_codes_own_request_is_served(calling_server: Server) -> None:
    """As it was seen on the wire: fields of betas, an account's line, and instructions behind the question."""
    cached = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    body = {
        "model": "claude-opus-4-8",
        "max_tokens": 32_000,
        "stream": True,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "metadata": {"user_id": "user_0_account_1_session_2"},
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.232; cch=00000;"},
            {"type": "text", "text": "You are Claude Code.", **cached},
        ],
        "tools": [WEATHER | cached | {"eager_input_streaming": True}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hello", **cached}]},
            {"role": "system", "content": [{"type": "text", "text": "Available agents: none"}]},
        ],
        "temperature": 1,
    }
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "effort-2025-11-24", "x-api-key": TOKEN}
    calling_server.idle()
    with calling_server.anonymous(**headers) as claude:
        found = events(claude, "POST", "v1/messages?beta=true", json=body | {"seed": 1, "max_tokens": 20})
    assert [event.event for event in (found[0], found[-2], found[-1])] == [
        "message_start",
        "message_delta",
        "message_stop",
    ]


def failure(answer: httpx.Response) -> tuple[int, str]:
    """Its status and type, once it is in Anthropic's shape."""
    body = answer.json()
    assert (body["type"], body.keys()) == ("error", {"type", "error", "request_id"})
    assert body["request_id"] == answer.headers["request-id"]
    assert body["error"]["message"]
    return answer.status_code, body["error"]["type"]


def test_every_refusal_is_in_anthropics_shape(server: Server) -> None:
    body = {"model": "any", "max_tokens": 1, "messages": CHAT}
    for path in ("v1/messages", "v1/messages/count_tokens", f"{server.root}v1/messages"):
        send = server.http.post
        assert failure(send(path, content=b"{", headers={"Content-Type": "application/json"})) == (
            400,
            "invalid_request_error",
        )
        assert failure(send(path, content=b"{}", headers={"Content-Type": "text/plain"}))[0] == 415
        assert failure(send(path, json=body | {"messages": []})) == (400, "invalid_request_error")
        assert failure(server.http.get(path)) == (405, "invalid_request_error")
        for shown in ({}, {"x-api-key": "wrong"}, {"Authorization": "Bearer wrong", "x-api-key": TOKEN}):
            with server.anonymous(**shown) as nobody:
                answer = nobody.post(path, json=body)
            assert failure(answer) == (401, "authentication_error")
            assert "x-api-key" in answer.text
    assert failure(server.http.get("v1/messages/batches")) == (404, "not_found_error")
    assert failure(server.http.post("v1/messages", json=body, headers={"Host": "evil.example"}))[0] == 403
    head = f"POST /v1/messages HTTP/1.1\nHost: localhost\nx-api-key: {TOKEN}\nContent-Type: application/json\n"
    assert b'"type":"request_too_large"' in raw(server, head + "Content-Length: 100000000")


def test_refusals_are_the_clients_own_errors(server: Server, client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.AuthenticationError):
        connected(server, api_key="wrong").messages.create(**GREEDY)
    with pytest.raises(anthropic.NotFoundError, match="v1/messages/batches"):
        client.messages.batches.list()
    with pytest.raises(anthropic.BadRequestError, match="top_p") as refusal:
        client.messages.create(**GREEDY | {"extra_body": {"top_p": 5}}, stream=True)
    assert refusal.value.request_id.startswith("req_")
    search = {"type": "web_search_20250305", "name": "web_search"}
    with pytest.raises(anthropic.BadRequestError, match="'web_search_20250305' is not supported"):
        client.messages.create(**GREEDY, tools=[search])
    with pytest.raises(anthropic.BadRequestError, match="shows no way to call tools"):
        client.messages.create(**GREEDY, tools=TOOLS)
    pixel = {"type": "image", "source": {"type": "url", "url": "http://localhost/a.png"}}
    with pytest.raises(anthropic.APIStatusError, match=r"allow-media-host|media_hosts|reads text only"):
        client.messages.create(**GREEDY | {"messages": [{"role": "user", "content": [pixel]}]})
