"""Every refusal of `/generate` in its documented shape and status, streaming and not, and the server goes on."""

import json
from typing import Any

import pytest

from nbgen.logit_processor import allowed_tokens
from tests.server.conftest import Server

#: Where the fault lies decides the shape, as in SGLang 0.5.23.
A, B, C = "schema", "contract", "value"
#: Log-probabilities of a prompt that come in several outputs, before the first token.
MANY = {"text": "x" * 200, "return_logprob": True, "logprob_start_len": 0, "token_ids_logprob": [5] * 1024}


def sampling(**options: Any) -> dict[str, Any]:
    return {"text": "a", "sampling_params": options}


#: body, shape, words that must be there
CASES: list[tuple[Any, str, str]] = [
    # The body does not fit the types at all.
    ([], A, "object"),
    ({"text": 5}, A, "text"),
    ({"input_embeds": [["0"] * 64]}, A, "rows of numbers alone"),
    # The strict layer: nothing is turned into the right type, no name is unknown.
    ({"text": "a", "stream": "true"}, B, "stream"),
    (sampling(no_such=1), B, "unknown field"),
    (sampling(temperature="hot"), B, "temperature"),
    # What no request may ask.
    ({}, C, "Either text, input_ids or input_embeds"),
    (sampling(temperature=-0.1), C, "temperature"),
    (sampling(beam_width=4), C, "not supported"),
    ({"text": "a", "session_params": {"id": "x"}}, C, "session_params"),
    # What this model cannot do.
    ({"input_ids": [10**6]}, C, "out-of-vocabulary"),
    ({"text": ""}, C, "no tokens"),
    (sampling(logit_bias={"1000000": 1}), C, "logit_bias"),
    (sampling(logit_bias={"-1": 1}), C, "logit_bias"),
    ({"text": "a", "return_logprob": True, "token_ids_logprob": [10**6]}, C, "out-of-vocabulary"),
    ({"text": ["a", "b"], "return_logprob": True, "token_ids_logprob": [[1], [10**6]]}, C, "out-of-vocabulary"),
    ({"text": "a", "return_logprob": True, "logprob_start_len": 2}, C, "logprob_start_len"),
    (
        {"text": "a" * 10_000, "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 1000},
        C,
        "at most 4194304",
    ),
    (
        {**sampling(n=16, max_new_tokens=900), "return_logprob": True, "top_logprobs_num": 500},
        C,
        "are 7200000 log-probabilities",
    ),
    ({"text": "x" * 20_000}, C, "is longer than the model's context length"),
    ({"text": "x" * 300_000}, C, "is longer than the model's context length"),
    (sampling(max_new_tokens=16_384), C, "exceeds the model's maximum context length"),
    ({"text": ["x", "y" * 20_000]}, C, "context length"),
    ({**MANY, "custom_logit_processor": allowed_tokens([])}, C, "no token is allowed"),
    ({"text": "a", "lora_path": "x"}, C, "lora_path"),
    ({"input_embeds": [[0.0]]}, C, "rows of 1 numbers; the embeddings of this model have 64"),
    ({"text": "a", "return_routed_experts": True}, C, "no experts"),
]


def message(answer: dict[str, Any], shape: str) -> str:
    """The words of an error, after its shape has been checked."""
    if shape == A:
        words = answer.pop("message")
        assert answer == {"object": "error", "type": "Bad Request", "param": None, "code": 400}
        return words
    if shape == B:
        assert isinstance(answer["error"], str)
        return answer["error"]
    assert isinstance(answer["error"], dict)
    return answer["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("body", "shape", "words"), CASES, ids=lambda value: str(value)[:60])
def test_a_refusal_has_its_shape(server: Server, body: Any, shape: str, words: str, stream: bool) -> None:
    if stream and isinstance(body, dict) and "stream" not in body:
        body = {**body, "stream": True}
    answer = server.http.post("generate", json=body)
    if answer.status_code == 200:  # a batch whose first prompt had begun to stream
        assert stream
        *_, error, done = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
        assert (json.loads(error)["error"]["code"], done) == (400, "[DONE]")
        assert words in error
        return
    assert answer.status_code == 400, answer.text
    said = message(answer.json(), shape)
    assert words in said
    assert "\n" not in said


@pytest.mark.parametrize("body", [b"", b'"x"', b'{"text": 1e999}'])
def test_what_is_no_object_is_a_schema_error(server: Server, body: bytes) -> None:
    answer = server.http.post("generate", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert message(answer.json(), A)


@pytest.mark.parametrize(
    "body",
    [
        {"text": "a", "no_such": 1, "model": "x", "stream_options": {}},
        {"text": "a", "logprob_start_len": 10**6},
        {"text": "a", "return_logprob": None, "token_ids_logprob": []},
        {"text": "b", "input_ids": [104, 105]},
        {"text": "a", "sampling_params": None},
        sampling(n=0),
        sampling(n=None, temperature=1, top_p=1, stop=None, logit_bias={"1": 1, "01": 2}),
        sampling(stop_token_ids=[10**9], stop=["x"], stop_regex="", json_schema=""),
    ],
    ids=str,
)
def test_what_is_only_unusual_is_served(server: Server, body: dict[str, Any]) -> None:
    options = {**(body.get("sampling_params") or {}), "max_new_tokens": 2}
    answer = server.http.post("generate", json={**body, "sampling_params": options})
    assert answer.status_code == 200, answer.text
    assert answer.json()["meta_info"]["completion_tokens"] <= 2


@pytest.mark.parametrize("method", ["GET", "FOO"])
def test_another_method_has_its_shape(server: Server, method: str) -> None:
    alone = {"Connection": "close"}  # a server may end a connection after a method that it has never heard of
    answer = server.http.request(method, "generate", headers=alone)
    assert (answer.status_code, answer.json()) == (405, {"detail": "Method Not Allowed"})
    assert server.http.request("FOO", "v2", headers=alone).json() == {"error": "Method Not Allowed"}
