"""Thoughts and calls over SGLang's routes: grammars that begin after a thought, and texts split into their parts."""

import json
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import openai
import pytest
from transformers import AutoTokenizer

from tests.conftest import save_model
from tests.server.conftest import Server
from tests.server.test_tools import ASK, CITY, TOOLS, ask

GREEDY = {"temperature": 0, "max_new_tokens": 400}
CALL = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
ANSWER = f"<think>\nHm.\n</think>\n\nLet me see.\n{CALL}"


def text_of(server: Server, **body: Any) -> str:
    answer = server.http.post("generate", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["text"])


def ending(model: Path) -> dict[str, Any]:
    """Options with which the model ends its thought as soon as it may, and then answers by a schema."""
    end = AutoTokenizer.from_pretrained(model).convert_tokens_to_ids("</think>")
    return {**GREEDY, "logit_bias": {str(end): 100}, "json_schema": json.dumps(CITY)}


def test_a_grammar_begins_after_the_thought_that_is_required(calling_server: Server, calling_model: Path) -> None:
    params = ending(calling_model)
    plain = text_of(calling_server, text="a", sampling_params=params)
    jsonschema.validate(json.loads(plain), CITY)
    for prompt, opening in (("a", "<think>"), ("a<think>\n", "")):
        told = text_of(calling_server, text=prompt, sampling_params=params, require_reasoning=True)
        before, closing, form = told.partition("</think>")
        assert (before.strip(), closing) == (opening, "</think>")
        jsonschema.validate(json.loads(form), CITY)
    asked = {"text": ["a", "b"], "sampling_params": params, "require_reasoning": True}
    for each in calling_server.http.post("generate", json=asked).json():
        assert each["text"].startswith("<think></think>")


def test_the_tokens_of_a_thought_are_counted(calling_server: Server) -> None:
    body = {"text": "a<think>\n", "sampling_params": {**GREEDY, "max_new_tokens": 9, "ignore_eos": True}}
    plain, told = (
        calling_server.http.post("generate", json=body | more).json() for more in ({}, {"require_reasoning": True})
    )
    assert plain["output_ids"] == told["output_ids"], "without a grammar the model may do as it likes"
    assert [each["meta_info"]["reasoning_tokens"] for each in (plain, told)] == [0, 9]


def test_tags_that_are_special_tokens_stay_out_of_the_text(changing: Server, tmp_path: Path) -> None:
    from tests.chat_templates import THOUGHT, template

    folder = save_model(tmp_path / "model", vocab_size=300)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<think>", "</think>"]})
    tokenizer.chat_template = template("", THOUGHT)
    tokenizer.save_pretrained(folder)
    tags = [tokenizer.convert_tokens_to_ids(tag) for tag in ("<think>", "</think>")]
    server, params = changing.serving(folder), ending(folder)
    params["logit_bias"][str(tags[0])] = 50
    body = {"text": "a", "sampling_params": params, "require_reasoning": True}
    answer = server.http.post("generate", json=body).json()
    assert answer["output_ids"][:2] == tags
    jsonschema.validate(json.loads(answer["text"]), CITY)
    shown = text_of(server, **{**body, "sampling_params": {**params, "skip_special_tokens": False}})
    assert shown.startswith("<think></think>")


def refused(answer: httpx.Response, *words: str) -> None:
    assert answer.status_code == 400, answer.text
    assert all(word in answer.text for word in words), answer.text


def test_a_model_without_thoughts_or_calls_says_so(server: Server) -> None:
    refused(
        server.http.post("generate", json={"text": "a", "require_reasoning": True}), "require_reasoning", "thoughts"
    )
    refused(
        server.http.post("separate_reasoning", json={"text": "a", "reasoning_parser": "qwen3"}), "load a model that"
    )
    refused(
        server.http.post("parse_function_call", json={"text": "a", "tools": TOOLS}), "load a model that calls tools"
    )


def test_calls_are_found_in_a_text(calling_server: Server) -> None:
    def parsed(**body: Any) -> Any:
        answer = calling_server.http.post("parse_function_call", json={"tool_call_parser": "qwen25", **body})
        assert answer.status_code == 200, answer.text
        return answer.json()

    found = parsed(text=ANSWER, tools=TOOLS)
    assert found["normal_text"].endswith("Let me see.")
    assert found["calls"] == [{"tool_index": 1, "name": "get_time", "parameters": "{}"}]
    assert parsed(text=ANSWER, tools=[]) == {"normal_text": ANSWER, "calls": []}
    other = ANSWER.replace("get_time", "get_other")
    assert parsed(text=other, tools=TOOLS)["calls"] == []
    assert parsed(text="plain", tools=TOOLS, tool_call_parser=None) == {"normal_text": "plain", "calls": []}


def test_thoughts_are_separated_from_a_text(calling_server: Server) -> None:
    def separated(text: str, **body: Any) -> Any:
        answer = calling_server.http.post("separate_reasoning", json={"text": text, "reasoning_parser": "x", **body})
        assert answer.status_code == 200, answer.text
        return answer.json()

    assert separated("<think>Hm.</think>Yes.") == {"reasoning_text": "Hm.", "text": "Yes."}
    assert separated("Hm.</think>Yes.") == {"reasoning_text": "Hm.", "text": "Yes."}
    assert separated("Yes.") == {"reasoning_text": "", "text": "Yes."}
    assert separated("") == {"reasoning_text": "", "text": ""}
    assert separated("<think>Hm.</think>Yes.", return_blocks=True) == {
        "reasoning_text": "Hm.",
        "text": "Yes.",
        "reasoning_blocks": ["Hm."],
        "text_blocks": ["Yes."],
        "blocks": [{"type": "reasoning", "text": "Hm."}, {"type": "text", "text": "Yes."}],
    }


def test_what_is_written_is_what_is_read(calling_server: Server, caller: openai.OpenAI) -> None:
    chosen = {"type": "function", "function": {"name": "get_weather"}}
    (call,) = ask(caller, tools=TOOLS, tool_choice=chosen, seed=1).choices[0].message.tool_calls
    written = json.dumps({"name": "get_weather", "arguments": json.loads(call.function.arguments)})
    body = {"text": f"<tool_call>\n{written}\n</tool_call>", "tools": TOOLS}
    (read,) = calling_server.http.post("parse_function_call", json=body).json()["calls"]
    assert json.loads(read["parameters"]) == json.loads(call.function.arguments)


@pytest.mark.parametrize(
    ("route", "body", "words"),
    [
        ("parse_function_call", {}, "text"),
        ("parse_function_call", {"text": 5}, "text"),
        ("parse_function_call", {"text": "a", "tools": [{"function": {}}]}, "name"),
        ("parse_function_call", {"text": "a", "tools": TOOLS * 2}, "two functions are called"),
        ("parse_function_call", {"text": "a" * (2**17 + 1), "tools": TOOLS}, "131073 characters; at most 131072"),
        ("separate_reasoning", {"text": "a", "return_blocks": "yes"}, "return_blocks"),
        ("separate_reasoning", {"text": "a", "reasoning_parser": 5}, "reasoning_parser"),
    ],
)
def test_what_cannot_be_split_is_refused_in_words(
    calling_server: Server, route: str, body: dict[str, Any], words: str
) -> None:
    refused(calling_server.http.post(route, json=body), words)


def test_a_long_text_holds_up_nobody(calling_server: Server) -> None:
    text = "<think>" + "<tool_call> </thin" * 7_000
    found = calling_server.http.post("separate_reasoning", json={"text": text, "reasoning_parser": "x"}, timeout=20)
    assert found.json()["text"] == ""


def test_amazons_name_of_a_chat_is_one(calling_server: Server) -> None:
    body = {"model": "m", "messages": ASK, "temperature": 0, "max_tokens": 5}
    one, other = (calling_server.http.post(path, json=body).json() for path in ("v1/chat/completions", "invocations"))
    assert one["choices"] == other["choices"]
