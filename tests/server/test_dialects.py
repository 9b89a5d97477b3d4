"""What an option means in one dialect it means in all of them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.conftest import Server, events

MESSAGES = [{"role": "user", "content": "hello"}]
#: path, what is asked, what the limit is called
DIALECTS: list[tuple[str, dict[str, Any], str]] = [
    ("v1/chat/completions", {"messages": MESSAGES}, "max_tokens"),
    ("v1/completions", {"prompt": "hello"}, "max_tokens"),
    ("v2/models/long-llama/generate", {"text_input": "hello"}, "max_tokens"),
    ("generate", {"text": "hello", "sampling_params": {}}, "max_new_tokens"),
    ("api/v1/runs", {"prompt": "hello", "stream": False, "params": {}}, "max_new_tokens"),
]


def asked(question: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """The body, with its options where the dialect has them."""
    nested = next((name for name in ("sampling_params", "params") if name in question), None)
    return {**question, nested: options} if nested else question | options


def tokens(answer: dict[str, Any], path: str) -> int:
    """Of all choices."""
    match path:
        case "generate":
            return answer["meta_info"]["completion_tokens"]
        case "v2/models/long-llama/generate":
            return int(answer["num_output_tokens"])
    return answer["usage"]["completion_tokens"]


@pytest.mark.parametrize(("path", "question", "limit"), DIALECTS)
def test_no_samples_are_one(server: Server, path: str, question: dict[str, Any], limit: str) -> None:
    options = {"n": 0, limit: 3, "temperature": 0, "ignore_eos": True}
    more = {"return_num_output_tokens": True} if path.startswith("v2") else {}
    answer = server.http.post(path, json=asked(question | more, options))
    assert answer.status_code == 200, answer.text
    assert tokens(answer.json(), path) == 3


@pytest.mark.parametrize("stop", ["", [""]])
@pytest.mark.parametrize(("path", "question", "limit"), DIALECTS)
def test_an_empty_stop_string_stops_nothing_but_in_sglangs_own_dialect(
    server: Server, path: str, question: dict[str, Any], limit: str, stop: Any
) -> None:
    more = {"return_num_output_tokens": True} if path.startswith("v2") else {}
    options = {"stop": stop, limit: 3, "temperature": 0, "ignore_eos": True}
    answer = server.http.post(path, json=asked(question | more, options))
    assert (answer.status_code, tokens(answer.json(), path)) == (200, 1 if path == "generate" else 3)


@pytest.mark.parametrize(("path", "question", "limit"), DIALECTS[:2])
def test_a_stream_of_no_samples_is_one(server: Server, path: str, question: dict[str, Any], limit: str) -> None:
    body = question | {"n": 0, limit: 3, "stream": True, "stream_options": {"include_usage": True}}
    found = [event.data for event in events(server.http, "POST", path, json=body)]
    assert found[-1] == "[DONE]"
    assert '"index":0' in found[0]
