"""Models that call tools in ways of their own, in Python's syntax or as gpt-oss or Gemma: all over a real server."""

import json
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from transformers import AutoTokenizer, GenerationConfig

from nbgen.engine.python_calls import PAIR
from tests.chat_templates import CALLS, CHANNELS, template
from tests.conftest import save_model
from tests.server.conftest import Server, events
from tests.server.test_tools import ASK, TOOLS, arguments_of, ask, checked, name_of
from tests.soak import seldom

MARKS = ("<|return|>", "<|call|>", "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>")
#: A template, the special tokens of its model, and those that end an answer.
MODELS = {
    "python": (template(""), PAIR, ("<|end|>",)),
    "channels": (CHANNELS, MARKS, MARKS[:2]),
    "marked": (template(CALLS["marked"]), ("<|tool_call>", "<tool_call|>", "<|'|>"), ("<|end|>",)),
}
#: What a model says that calls the first tool, and how it ends.
SAID = {
    "python": (f"Well.{PAIR[0]}[get_weather(city='Oslo', days=3), get_time()]{PAIR[1]}", "<|end|>"),
    "channels": (
        "<|channel|>analysis<|message|>Oslo, 3<|end|><|start|>assistant<|channel|>commentary<|message|>Well.<|end|>"
        '<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Oslo", '
        '"days": 3}',
        "<|call|>",
    ),
    "marked": ("Well.<|tool_call>call:get_weather{city:<|'|>Oslo<|'|>,days:3}<tool_call|>", "<|end|>"),
}
#: How the template, or what is written in its place, shows calls of it.
SHOWN = {
    "python": '<|tool_call_start|>[get_weather(city="Oslo", days=3)]<|tool_call_end|>',
    "channels": ' to=functions.get_weather<|channel|>commentary json<|message|>{"city": "Oslo", "days": 3}<|call|>',
    "marked": "<|tool_call>call:get_weather{city:<|'|>Oslo<|'|>,days:3}<tool_call|>",
}
WEATHER = ("get_weather", {"city": "Oslo", "days": 3})


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {way: saved(tmp_path_factory.mktemp("models") / way, *each) for way, each in MODELS.items()}


def saved(folder: Path, source: str, tokens: tuple[str, ...], ends: tuple[str, ...]) -> Path:
    """A random model with this template and these special tokens."""
    save_model(folder, vocab_size=300, max_position_embeddings=2048)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": list(tokens)})
    tokenizer.eos_token, tokenizer.chat_template = ends[0], source
    tokenizer.save_pretrained(folder)
    GenerationConfig(eos_token_id=tokenizer.convert_tokens_to_ids(list(ends))).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, folders: dict[str, Path]) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("formats"), f"--model={folders['python']}")
    yield server.ready()
    server.stop()


@pytest.fixture(scope="module", params=seldom(MODELS, {"marked", "channels"}))
def way(request: pytest.FixtureRequest, server: Server, folders: dict[str, Path]) -> str:
    server.serving(folders[request.param])
    return request.param


@pytest.mark.usefixtures("way")
def test_a_required_call_comes_whole_and_streamed(client: openai.OpenAI) -> None:
    asked = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "seed": 1}
    choice = ask(client, **asked).choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    (call,) = choice.message.tool_calls
    checked(call)
    deltas = [chunk.choices[0].delta for chunk in ask(client, stream=True, **asked) if chunk.choices]
    streamed = [call for delta in deltas for call in delta.tool_calls or ()]
    assert (name_of(streamed, 0), arguments_of(streamed, 0)) == (call.function.name, call.function.arguments)
    named = ask(client, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "get_time"}})
    (call,) = named.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_time", {})


def test_what_the_model_says_is_read(server: Server, folders: dict[str, Path], way: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folders[way])
    text, end = SAID[way]
    # After the text that is given the model can only end.
    params = {"max_new_tokens": 600, "logit_bias": {str(tokenizer.convert_tokens_to_ids(end)): 100}}
    body = {"messages": ASK, "tools": TOOLS, "prefix_ids": tokenizer.encode(text), "params": params}
    whole = server.http.post("api/v1/runs", json=body | {"stream": False}).json()
    streamed = events(server.http, "POST", "api/v1/runs", json=body)
    deltas = [json.loads(event.data) for event in streamed if event.event == "delta"]
    for parts in ([whole], deltas):
        calls = [
            (call["name"], json.loads(call["arguments"])) for part in parts for call in part.get("tool_calls") or ()
        ]
        assert calls == ([WEATHER, ("get_time", {})] if way == "python" else [WEATHER])
        assert "".join(part.get("text") or "" for part in parts) == "Well."
        assert "".join(part.get("reasoning") or "" for part in parts) == ("Oslo, 3" if way == "channels" else "")


def test_calls_and_their_results_go_back(client: openai.OpenAI, server: Server, way: str) -> None:
    function = {"name": WEATHER[0], "arguments": json.dumps(WEATHER[1])}
    calls = [{"id": "a", "type": "function", "function": function}]
    asked = {"role": "assistant", "content": "Well.", "reasoning_content": "Oslo!", "tool_calls": calls}
    turns = [*ASK, asked, {"role": "tool", "tool_call_id": "a", "content": "sunny"}]
    ask(client, turns, tools=TOOLS, max_tokens=1)
    tokens = client.post("/tokenize", body={"messages": turns, "tools": TOOLS}, cast_to=object)["tokens"]
    text = client.post("/detokenize", body={"tokens": tokens, "skip_special_tokens": False}, cast_to=object)["text"]
    assert SHOWN[way] in text
    assert all(each in text for each in ("Well.", "sunny", "Oslo!" if way == "channels" else ""))
