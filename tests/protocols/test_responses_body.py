"""Bodies and queries of OpenAI's responses become a chat's call, or refusals that name the field as it was written."""

import json
import time
from typing import Any

import pytest

from nbgen.errors import InvalidRequest
from nbgen.messages import ChatMessage, LogprobOptions
from nbgen.protocols.responses import ResponseCall, parse_count, parse_response
from nbgen.protocols.responses_body import LOGPROBS, UNSUPPORTED
from nbgen.protocols.responses_query import Page, Retrieval, parse_query

SAID = {"type": "message", "role": "user", "content": "before"}
TOOLS = [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in "fg"]


def allowed(*names: Any) -> dict[str, Any]:
    tools = [{"type": "function", "name": name} for name in names]
    return {"type": "allowed_tools", "mode": "auto", "tools": tools}


class Memory:
    """Earlier responses, of which there is one."""

    def history(self, id: str) -> list[dict[str, Any]]:
        return [SAID] if id == "resp_1" else []

    def conversation(self, id: str) -> list[dict[str, Any]]:
        return [SAID] * 2 if id == "conv_1" else []

    def item(self, id: str) -> dict[str, Any]:
        return {"id": id, "type": "message", "role": "user", "content": f"item {id}"}


def response(**fields: Any) -> ResponseCall:
    return parse_response(json.dumps({"input": "hi", **fields}).encode(), Memory())


def turns(asked: ResponseCall) -> list[tuple[str, Any]]:
    messages = asked.call.requests[0].messages
    assert messages is not None
    return [(message.role, message.content) for message in messages]


def test_what_the_model_reads() -> None:
    asked = response(instructions="short", previous_response_id="resp_1")
    assert turns(asked) == [("system", "short"), ("user", "before"), ("user", "hi")]
    assert (len(asked.input), len(asked.items)) == (1, 2)
    assert asked.call.requests[0].rid == asked.id
    for given in ("conv_1", {"id": "conv_1"}):
        asked = response(conversation=given)
        assert turns(asked) == [("user", "before"), ("user", "before"), ("user", "hi")]
        assert (len(asked.said), asked.body.conversation_id) == (2, "conv_1")
    assert turns(response(input=[{"type": "item_reference", "id": "x"}])) == [("user", "item x")]
    assert turns(response(input=[{"id": "x"}, {"id": "y", "type": None}])) == [("user", "item x"), ("user", "item y")]


@pytest.mark.parametrize("earlier", [{"previous_response_id": "resp_1"}, {"conversation": "conv_1"}])
def test_what_was_said_may_be_all_that_there_is(earlier: dict[str, Any]) -> None:
    asked = response(input=None, **earlier)
    assert (asked.input, turns(asked)) == ([], turns(response(**earlier))[:-1])
    counted = parse_count(json.dumps(earlier).encode(), Memory())
    assert counted.messages == asked.call.requests[0].messages


def test_the_options_are_a_chats() -> None:
    asked = response(max_output_tokens=7, temperature=0.5, reasoning={"effort": "none"}, text={"verbosity": "high"})
    (request,) = asked.call.requests
    assert (request.params.max_new_tokens, request.params.temperature) == (7, 0.5)
    thoughts = {"reasoning_effort": "none", "thinking": False, "enable_thinking": False}
    assert request.template_options == thoughts | {"verbosity": "high"}
    assert (request.logprobs, asked.body.kept, asked.body.background) == (None, True, None)
    assert not request.drop_oldest
    assert response(truncation="auto").call.requests[0].drop_oldest
    assert response(include=[LOGPROBS]).call.requests[0].logprobs == LogprobOptions(top=0, text=True)
    assert response(top_logprobs=2).call.requests[0].logprobs == LogprobOptions(top=2, text=True)
    format = {"type": "json_schema", "name": "x", "schema": {"type": "object"}}
    assert response(text={"format": format}).call.requests[0].params.grammar == ("json_schema", '{"type": "object"}')
    loose = response(text={"format": {**format, "strict": False}}).call.requests[0].params.json_schema
    assert loose == '{"type": "object", "x-guidance": {"lenient": true}}'
    unset = response(text={"format": None, "verbosity": None}, logprobs=False, messages=None)
    assert (unset.body.text.format.type, unset.call.requests[0].logprobs) == ("text", None)
    own = response(text={"verbosity": "high"}, chat_template_kwargs={"verbosity": "low"}).call.requests[0]
    assert own.template_options == {"verbosity": "low"}


@pytest.mark.parametrize(
    ("choice", "names", "required", "function"),
    [
        (None, "fg", False, ""),
        ("required", "fg", True, ""),
        ({"type": "function", "name": "g"}, "fg", False, "g"),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"name": "g"}]}, "g", True, ""),
    ],
)
def test_what_may_be_called(choice: Any, names: str, required: bool, function: str) -> None:
    options = response(tools=TOOLS, tool_choice=choice).call.requests[0].tools
    assert options is not None
    assert [tool["function"]["name"] for tool in options.tools] == list(names)
    assert (options.required, options.function) == (required, function)


SPACE = {"type": "namespace", "name": "mail", "description": "letters", "tools": [*TOOLS, {**TOOLS[0], "name": "h"}]}


def test_a_namespaces_functions_are_called_by_both_names() -> None:
    described = {**SPACE, "tools": [{**SPACE["tools"][0], "description": "writes"}, *SPACE["tools"][1:]]}
    options = response(tools=[TOOLS[0], described], tool_choice={"type": "function", "name": "mail.g"}).call.requests[0]
    assert options.tools is not None
    found = [(tool["function"]["name"], tool["function"].get("description")) for tool in options.tools.tools]
    assert found == [("f", None), ("mail.f", "writes\n\nmail: letters"), ("mail.g", None), ("mail.h", None)]
    assert options.tools.function == "mail.g"


def test_far_too_many_tools_are_refused_soon() -> None:
    tools = [{"type": "function", "name": f"f{i}"} for i in range(30_000)]
    choice = {"type": "allowed_tools", "mode": "auto", "tools": tools[::-1]}
    started = time.thread_time()
    with pytest.raises(InvalidRequest, match="there are 30000 tools"):
        response(tools=tools, tool_choice=choice)
    assert time.thread_time() - started < 3


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_what_is_not_served_is_refused_unless_unset(name: str) -> None:
    for unset in UNSUPPORTED[name]:
        response(**{name: unset})
    with pytest.raises(InvalidRequest, match=f"`{name}` is not supported") as refusal:
        response(**{name: "auto"})
    assert refusal.value.field == name


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"include": ["all"]}, "include", "include has 'all'"),
        ({"background": True, "store": False}, "background", "background needs store"),
        ({"conversation": "conv_1", "previous_response_id": "resp_1"}, "conversation", "mutually exclusive"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata", "at most 16 entries"),
        ({"metadata": {"x" * 65: ""}}, "metadata", "names of 64"),
        ({"metadata": {"x": "x" * 513}}, "metadata", "texts of 512"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format", "needs a schema"),
        ({"tools": TOOLS, "tool_choice": {"type": "file_search"}}, "tool_choice", "'file_search' is not supported"),
        ({"max_output_tokens": 0}, "max_output_tokens", "max_output_tokens must be at least 1"),
        ({"input": None, "instructions": "x"}, "input", "give `input`, or what is to go on"),
        ({"input": []}, "input", "input must hold 1 to"),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_url": "x"}]}]}, "input", "is not read"),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]}, "input", "uploaded"),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "content": "x"}]}]}, "input", "needs `text`"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input", "needs `image_url`"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input", r"^input\[0\].role: Invalid enum value 'tool'$"),
        ({"input": [{"id": "x", "content": "y"}]}, "input", "has the type None"),
        ({"input": [{"type": "computer_call"}]}, "input", r"input\[0\].*'computer_call'"),
        ({"input": [{"role": "user"}]}, "input", r"input\[0\].*content"),
        ({"tool_choice": "required"}, "tool_choice", "no tools"),
        ({"temperature": -1}, "temperature", "at least 0"),
        ({"top_logprobs": 21}, "top_logprobs", "0 to 20"),
        ({"max_tool_calls": 0}, "max_tool_calls", "max_tool_calls"),
        ({"reasoning": {"summary": "short"}}, "reasoning.summary", 'leave it out, or give "auto"'),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation", "not supported"),
        ({"tools": [TOOLS[0], TOOLS[1] | {"defer_loading": True}]}, "tools[1].defer_loading", "not supported"),
        (
            {"tools": [TOOLS[0], {"type": "web_search"}]},
            "tools[1].type",
            "'web_search' is not supported: there is only",
        ),
        (
            {"tools": [SPACE | {"tools": [TOOLS[0], {"type": "custom", "name": "h"}]}]},
            "tools[0].tools[1].type",
            "'custom'",
        ),
        ({"tools": [SPACE | {"tools": [TOOLS[0] | {"async": True}]}]}, "tools[0].tools[0].async", "not supported"),
        ({"tools": [SPACE | {"tools": None}]}, "tools[0].tools", "array"),
        ({"tools": [SPACE, TOOLS[0] | {"name": "mail.g"}]}, "tools", "two functions are called 'mail.g'"),
        ({"truncation": "middle"}, "truncation", "'middle'"),
        ({"messages": [{"role": "user", "content": "x"}]}, "messages", "here it is input"),
        ({"max_completion_tokens": 5}, "max_completion_tokens", "here it is max_output_tokens"),
        ({"max_tokens": 5}, "max_tokens", "here it is max_output_tokens"),
        ({"response_format": {"type": "json_object"}}, "response_format", "here it is text.format"),
        ({"reasoning_effort": "low"}, "reasoning_effort", "here it is reasoning.effort"),
        ({"verbosity": "low"}, "verbosity", "here it is text.verbosity"),
        ({"logprobs": True}, "logprobs", "here it is top_logprobs, or message.output_text.logprobs in include"),
        ({"return_hidden_states": True}, "return_hidden_states", "not supported"),
        ({"tools": TOOLS, "tool_choice": allowed("z")}, "tool_choice", "names 'z', which is no tool here"),
        ({"tools": TOOLS, "tool_choice": allowed("g", ["f"])}, "tool_choice.allowed_tools.tools", "Expected `str`"),
        ({"tools": [TOOLS[0] | {"name": "list_messages"}] * 2}, "tools", "two functions are called 'list_messages'"),
        ({"tools": [TOOLS[0] | {"name": "messages"}] * 2}, "tools", "two functions are called 'messages'"),
    ],
)
def test_what_cannot_work_is_refused_by_the_callers_name(fields: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as refusal:
        response(**fields)
    assert refusal.value.field == field


def test_what_reaches_a_limit_is_taken() -> None:
    metadata = {f"{number:064}": "x" * 512 for number in range(16)}
    assert response(metadata=metadata, include=[LOGPROBS]).body.metadata == metadata
    assert response(background=True).body.kept


def test_a_prompt_is_counted_with_its_tools_and_without_media() -> None:
    counted = parse_count(json.dumps({"input": "hi", "tools": TOOLS}).encode(), Memory())
    assert counted.messages == [ChatMessage(role="user", content="hi")]
    assert len(counted.tools) == 2
    with pytest.raises(InvalidRequest, match="leave truncation out"):
        parse_count(b'{"input": "hi", "truncation": "auto"}', Memory())
    image = {"type": "input_image", "image_url": "data:image/png;base64,aGk="}
    with pytest.raises(InvalidRequest, match="this route takes no image") as refusal:
        parse_count(json.dumps({"input": [{"role": "user", "content": [image]}]}).encode(), Memory())
    assert refusal.value.field == "input"


def test_queries_say_which_items_and_from_where() -> None:
    assert parse_query({}, Page) == Page(limit=20, order="desc", after="")
    assert parse_query({"limit": [b"1", b"100"], "order": [b"asc"], "other": [b"x"]}, Page) == Page(
        limit=100, order="asc"
    )
    assert parse_query({"stream": [b"true"], "starting_after": [b"3"]}, Retrieval) == Retrieval(
        stream=True, starting_after=3
    )
    assert parse_query({}, Retrieval) == Retrieval(stream=False, starting_after=-1)
    for wrong in ({"limit": [b"0"]}, {"limit": [b"101"]}, {"order": [b"up"]}, {"limit": [b"\xff"]}):
        with pytest.raises(InvalidRequest, match=r"^(limit|order) in the query: [^$]*$") as refusal:
            parse_query(wrong, Page)
        assert refusal.value.field == next(iter(wrong))
    assert parse_query({"include[]": [LOGPROBS.encode()]}, Page) == Page()
    for name in ("include", "include[]"):
        with pytest.raises(InvalidRequest, match="include has 'all'"):
            parse_query({name: [LOGPROBS.encode(), b"all"]}, Page)
