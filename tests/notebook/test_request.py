"""What a person writes becomes the body of a run, or an error before anything is sent."""

import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from openai.types.chat import ChatCompletionMessage

from nbgen.errors import InvalidRequest
from nbgen.notebook.request import run_body


def body(prompt: Any, **options: Any) -> dict[str, Any]:
    complete, system = options.pop("complete", False), options.pop("system", None)
    return run_body(prompt, complete=complete, system=system, options=options)


def test_a_text_is_a_users_message() -> None:
    assert body("hi", system="be short") == {
        "messages": [{"role": "system", "content": "be short"}, {"role": "user", "content": "hi"}],
        "params": {"max_new_tokens": None},
    }


@pytest.mark.parametrize("given", [{"content": None}, {}])
def test_a_turn_that_only_calls_tools_needs_no_text(given: dict[str, Any]) -> None:
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls": calls, **given}]
    assert body(talk)["messages"][1] == {"role": "assistant", "tool_calls": calls, "content": ""}


def test_messages_may_come_from_openais_client() -> None:
    dumped = ChatCompletionMessage(role="assistant", content="Hello", annotations=[]).model_dump()
    assert {"refusal", "annotations", "tool_calls"} < set(dumped)
    talk = [{"role": "developer", "content": "be short"}, {"role": "user", "content": "hi"}, dumped]
    assert body(talk)["messages"] == [*talk[:2], {"role": "assistant", "content": "Hello"}]


def test_a_completion_keeps_the_apis_own_limit() -> None:
    assert body("Once", complete=True) == {"prompt": "Once", "params": {}}


def test_defaults_that_were_asked_for_are_kept() -> None:
    assert body("hi", max_new_tokens=128, sampling_seed=7)["params"] == {"max_new_tokens": 128, "sampling_seed": 7}


def test_numbers_and_arrays_of_other_libraries_are_options_too() -> None:
    given = {"temperature": np.float64(0.5), "sampling_seed": np.int64(3), "top_k": torch.tensor(4)}
    lists = {"stop_token_ids": np.array([1, 2]), "logit_bias": {np.int64(7): np.float32(0.5)}}
    assert body("hi", **given, **lists)["params"] == {
        **{"max_new_tokens": None, "temperature": 0.5, "sampling_seed": 3, "top_k": 4},
        **{"stop_token_ids": (1, 2), "logit_bias": {"7": 0.5}},
    }


@pytest.mark.parametrize(
    ("prompt", "options", "words"),
    [
        ("hi", {"temprature": 1}, "did you mean 'temperature'?"),
        ("hi", {"zzz": 1}, "there are "),
        ("hi", {"max_tokens": 1}, "did you mean 'max_new_tokens'?"),
        ("hi", {"seed": 1}, "did you mean 'sampling_seed'?"),
        ("hi", {"temperature": -1}, "temperature must be at least 0"),
        ("hi", {"temperature": "hot"}, "temperature: Expected `float | None`, got `str`"),
        ("hi", {"stop_token_ids": {}}, "stop_token_ids: Expected `list`, got `dict`"),
        ("hi", {"stop": object()}, "stop must be text or a list of text, got <object object at"),
        ("hi", {"max_new_tokens": 1.5}, "max_new_tokens must be an integer"),
        (" \n", {}, "the prompt is empty"),
        ("hi", {"stop": ""}, "no place to stop at"),
        ("hi", {"stop": ["a", ""]}, "no place to stop at"),
        ([], {}, "the prompt is empty"),
        ([{"role": "user"}], {}, "a message is"),
        ([{"role": "user", "content": None}], {}, "a message is"),
        ([{"role": "bot", "content": "x"}], {}, "its role one of system, developer, user, assistant, tool; got"),
        ([{"role": ["user"], "content": "x"}], {}, "its role one of"),
        ([5], {}, "got a list with int"),
        (None, {}, "a list of messages, got NoneType"),
        (5, {}, "a list of messages, got int"),
        ({"role": "user", "content": "x"}, {}, "put a message alone into a list"),
        (["a", "b"], {}, "got 2 texts: one at a time, or nbgen.map for answers"),
        ([{"role": "user", "content": "x"}], {"complete": True}, "complete=True continues one text"),
        (pd.DataFrame({"text": ["x"]}), {}, "got DataFrame: nbgen.map asks for each of its rows"),
    ],
)
def test_mistakes_are_named(prompt: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        body(prompt, **options)
    assert words in str(caught.value)


@pytest.mark.skipif(sys.version_info < (3, 14), reason="this Python has no t-strings")
def test_a_t_string_is_no_text() -> None:
    with pytest.raises(InvalidRequest, match="got Template: an f-string is a text"):
        body(eval("t'{1} and {2}'"))
