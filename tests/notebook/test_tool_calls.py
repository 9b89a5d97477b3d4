"""Functions of the notebook that a real model calls: by the helpers, in conversations, in cells."""

import json
from typing import Any, Literal

import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

import nbgen
from nbgen.notebook import session
from nbgen.notebook.openai_backend import OpenAIReader
from nbgen.notebook.private_server import PrivateServer
from nbgen.notebook.tools import Tools
from nbgen.sse import Event
from tests.notebook.test_tools import get_weather, locate

CHOICE = {"tool_choice": "get_weather", "temperature": 0.5, "sampling_seed": 1}
OPTIONS = {"max_new_tokens": 300, **CHOICE}


@pytest.mark.usefixtures("calling_client")
def test_generate_calls_what_the_model_wants_called_and_tells_it() -> None:
    seen: list[str] = []

    def get_weather(city: Literal["Rom", "Oslo"]) -> str:
        seen.append(city)
        return "rain"

    result = nbgen.generate("What is the weather?", tools=[get_weather, locate], **OPTIONS)
    asked, said, told, answer = result.turns[:4]
    assert len(seen) >= 1
    assert (asked["content"], told["role"], told["content"]) == ("What is the weather?", "tool", "rain")
    (call,) = said["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": seen[0]}
    assert told["tool_call_id"] == call["id"]
    assert answer["role"] == "assistant"
    assert "**Tool**\n\nrain" in result.to_markdown()
    assert "`get_weather({" in result.to_markdown()


@pytest.mark.usefixtures("calling_client")
def test_a_conversation_calls_them_too() -> None:
    talk = nbgen.chat(tools=get_weather, max_new_tokens=300, temperature=0.5, sampling_seed=1)
    talk("What is the weather?", tool_choice="required")
    roles = [turn["role"] for turn in talk.messages]
    assert (roles[:3], roles[-1]) == (["user", "assistant", "tool"], "assistant")
    assert set(json.loads(talk.messages[2]["content"])) == {"city", "days", "unit"}
    assert "`get_weather(" in talk._repr_mimebundle_()["text/plain"]
    turns = list(talk.messages)
    talk("And then?", tools=[locate])
    assert len(talk) >= len(turns) + 2
    while len(talk) > len(turns):
        talk.undo()
    assert talk.messages == turns
    talk.undo()
    assert len(talk) == 0


@pytest.mark.usefixtures("calling_client")
def test_others_tools_are_left_to_whoever_asked() -> None:
    (given,) = Tools(get_weather).json
    result = nbgen.generate("What is the weather?", tools=[given], **OPTIONS)
    (call,) = result.tool_calls
    assert call["name"] == "get_weather"
    assert "`get_weather(" in result._repr_mimebundle_()[0]["text/markdown"]
    assert result.to_openai()[-1]["tool_calls"][0]["id"] == call["id"]


def test_options_of_the_template_reach_it(caller: PrivateServer, calling_client: Any) -> None:
    plain, thinking = (
        nbgen.generate("hi", max_new_tokens=2, template_options=options).usage["prompt_tokens"]
        for options in (None, {"thinks": True})
    )
    assert thinking > plain


def test_pieces_of_calls_of_other_servers_are_put_together() -> None:
    def chunk(**delta: Any) -> Event:
        return Event(data=json.dumps({"choices": [{"index": 0, "delta": delta}]}), event="message")

    reader = OpenAIReader()
    pieces = [{"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}}]
    pieces += [{"index": 0, "function": {"arguments": text}} for text in ('{"x"', ": 1}")]
    found = [event for piece in pieces for event in reader.feed(chunk(tool_calls=[piece]))]
    found += reader.feed(chunk(reasoning="hm"))
    (thought, calls, done) = [*found, *reader.done("tool_calls")]
    assert thought[1]["reasoning"] == "hm"
    assert calls[1]["tool_calls"] == [{"id": "a", "name": "f", "arguments": '{"x": 1}'}]
    assert done[1]["finish_reason"] == {"type": "tool_calls"}


def test_a_cell_shows_each_answer(
    caller: PrivateServer, shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(session, "_client", caller.client)
    chosen = iter([CHOICE])
    asked = session.stream
    monkeypatch.setattr(session, "stream", lambda prompt, **more: asked(prompt, **{**next(chosen, {}), **more}))
    shell.user_ns["get_weather"] = get_weather
    shell.run_cell_magic("nbgen", "--tool get_weather --max-new-tokens 300 --out result", "What is the weather?")
    roles = [turn["role"] for turn in shell.user_ns["result"].turns]
    assert roles[:4] == ["user", "assistant", "tool", "assistant"]
    assert "tokens" in capsys.readouterr().out
    with pytest.raises(UsageError, match="--tool needs whole answers"):
        shell.run_cell_magic("nbgen", "--tool get_weather --background", "hi")
