"""Every refusal of `/generate` in its documented shape and status, streaming and not, and the server goes on."""

import json
from typing import Any

import pytest

from tests.server.conftest import Server

#: Where the fault lies decides the shape, as in SGLang 0.5.23.
A, B, C = "schema", "contract", "value"


def sampling(**options: Any) -> dict[str, Any]:
    return {"text": "a", "sampling_params": options}


#: body, shape, words that must be there
CASES: list[tuple[Any, str, str]] = [
    # The body does not fit the types at all.
    ([], A, "object"),
    ({"text": 5}, A, "text"),
    ({"text": ["a", None]}, A, "text"),
    ({"input_ids": "abc"}, A, "input_ids"),
    ({"input_ids": [1, "a"]}, A, "input_ids"),
    ({"input_ids": [1.5]}, A, "input_ids"),
    ({"input_ids": [True]}, A, "input_ids"),
    ({"text": "a", "sampling_params": "x"}, A, "sampling_params"),
    ({"text": "a", "top_logprobs_num": 1.5}, A, "top_logprobs_num"),
    ({"text": "a", "logprob_start_len": "0"}, A, "logprob_start_len"),
    ({"text": "a", "token_ids_logprob": "1"}, A, "token_ids_logprob"),
    ({"text": "a", "rid": 5}, A, "rid"),
    ({"text": "a", "lora_path": 5}, A, "lora_path"),
    ({"text": "a", "image_data": 5}, A, "image_data"),
    ({"text": "a", "custom_logit_processor": 5}, A, "custom_logit_processor"),
    ({"text": "a", "stream": None}, A, "stream"),
    ({"text": "a", "priority": "high"}, A, "priority"),
    # The strict layer: nothing is turned into the right type, no name is unknown.
    ({"text": "a", "stream": "true"}, B, "stream"),
    ({"text": "a", "stream": 1}, B, "stream"),
    ({"text": "a", "return_logprob": "yes"}, B, "return_logprob"),
    ({"text": "a", "return_hidden_states": "last"}, B, "return_hidden_states"),
    ({"text": "a", "return_text_in_logprobs": 1}, B, "return_text_in_logprobs"),
    (sampling(no_such=1), B, "unknown field"),
    (sampling(temperature="hot"), B, "temperature"),
    (sampling(max_new_tokens=8.0), B, "max_new_tokens"),
    (sampling(max_new_tokens=True), B, "max_new_tokens"),
    (sampling(top_k="1"), B, "top_k"),
    (sampling(ignore_eos=1), B, "ignore_eos"),
    (sampling(stop=5), B, "stop"),
    (sampling(stop=["a", None]), B, "stop"),
    (sampling(stop_token_ids=5), B, "stop_token_ids"),
    (sampling(stop_token_ids=[None]), B, "stop_token_ids"),
    (sampling(logit_bias=[1]), B, "logit_bias"),
    (sampling(logit_bias={"1": "x"}), B, "logit_bias"),
    (sampling(sampling_seed="x"), B, "sampling_seed"),
    (sampling(stream_interval="x"), B, "stream_interval"),
    # What no request may ask.
    ({}, C, "Either text, input_ids or input_embeds"),
    ({"input_ids": []}, C, "input_ids cannot be empty"),
    ({"input_ids": [[1], []]}, C, "input_ids cannot be empty"),
    ({"input_ids": [10**6]}, C, "out-of-vocabulary"),
    ({"input_ids": [-1]}, C, "out-of-vocabulary"),
    ({"text": ""}, C, "no tokens"),
    (sampling(max_new_tokens=-1), C, "max_new_tokens"),
    (sampling(min_new_tokens=-1), C, "min_new_tokens"),
    (sampling(min_new_tokens=200), C, "min_new_tokens"),
    (sampling(temperature=-0.1), C, "temperature"),
    (sampling(top_p=0), C, "top_p"),
    (sampling(top_p=1.1), C, "top_p"),
    (sampling(top_k=0), C, "top_k"),
    (sampling(top_k=-2), C, "top_k"),
    (sampling(min_p=-0.1), C, "min_p"),
    (sampling(min_p=1.1), C, "min_p"),
    (sampling(frequency_penalty=2.1), C, "frequency_penalty"),
    (sampling(presence_penalty=-2.1), C, "presence_penalty"),
    (sampling(repetition_penalty=0), C, "repetition_penalty"),
    (sampling(repetition_penalty=2.1), C, "repetition_penalty"),
    (sampling(n=129), C, "n must be"),
    (sampling(n=-1), C, "n must be"),
    (sampling(sampling_seed=2**63), C, "sampling_seed"),
    (sampling(stop=["x"] * 33), C, "stop"),
    (sampling(stop="x" * 1025), C, "stop"),
    (sampling(stop_token_ids=list(range(257))), C, "stop_token_ids"),
    (sampling(logit_bias={"1000000": 1}), C, "logit_bias"),
    (sampling(logit_bias={"-1": 1}), C, "logit_bias"),
    (sampling(logit_bias={"a": 1}), C, "logit_bias"),
    (sampling(logit_bias={"1": 101}), C, "logit_bias"),
    (sampling(stream_interval=0), C, "stream_interval"),
    (sampling(beam_width=4), C, "not supported"),
    ({"text": ["a", "b"], "sampling_params": [{}]}, C, "sampling_params"),
    ({"text": ["a", "b"], "sampling_params": []}, C, "sampling_params"),
    ({"text": ["a", "b"], "sampling_params": [{"n": 1}, {"n": 2}]}, C, "same `n`"),
    ({"text": ["a", "b"], "return_logprob": [True]}, C, "return_logprob"),
    ({"text": ["a", "b"], "top_logprobs_num": [1, 2], "sampling_params": {"n": 2}}, C, "top_logprobs_num"),
    ({"text": "a", "return_logprob": True, "token_ids_logprob": [10**6]}, C, "out-of-vocabulary"),
    ({"text": ["a", "b"], "return_logprob": True, "token_ids_logprob": [[1], [10**6]]}, C, "out-of-vocabulary"),
    ({"text": "a", "return_logprob": True, "token_ids_logprob": [[1]]}, C, "flat list of integers"),
    ({"text": "a", "return_logprob": True, "logprob_start_len": 2}, C, "logprob_start_len"),
    ({"text": "a", "return_logprob": True, "logprob_start_len": -2}, C, "logprob_start_len"),
    ({"text": "a", "return_logprob": True, "top_logprobs_num": -1}, C, "top_logprobs_num"),
    ({"text": "a", "return_logprob": True, "top_logprobs_num": 1025}, C, "top_logprobs_num"),
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
    ({"text": ["a"] * 1025}, C, "at most 1024"),
    ({"text": ["a", "b"], "rid": ["x", "x"]}, C, "Duplicate request ID"),
    ({"text": ["a", "b"], "rid": ["x"]}, C, "mismatch"),
    ({"text": "a", "rid": "x y"}, C, "rid"),
    ({"text": "a", "lora_path": "x"}, C, "lora_path"),
    ({"input_embeds": [[0.0]]}, C, "rows of 1 numbers; the embeddings of this model have 64"),
    ({"input_embeds": [[0.0] * 64, [0.0] * 63]}, C, "rows of different lengths"),
    ({"input_embeds": [["0"] * 64]}, A, "rows of numbers alone"),
    ({"input_embeds": [[None] * 64]}, A, "rows of numbers alone"),
    ({"input_embeds": "abc"}, A, "a list of rows of numbers"),
    ({"input_embeds": [[1e300] * 64]}, C, "beyond float32"),
    ({"input_embeds": [0.5]}, A, "rows of numbers"),
    ({"input_embeds": [[]]}, C, "rows of numbers"),
    ({"input_embeds": []}, C, "rows of numbers"),
    ({"text": "a", "input_ids": [5], "input_embeds": [[0.0]]}, C, "Either text, input_ids or input_embeds"),
    ({"text": "a", "return_routed_experts": True}, C, "no experts"),
    ({"text": "a", "session_params": {"id": "x"}}, C, "session_params"),
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


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[1]", b'"x"', b'{"text": NaN}', b'{"text": 1e999}', b'{"a": ' + b"9" * 30 + b"}", b"\xff"]
)
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


def test_the_server_is_well_after_all_this(server: Server) -> None:
    assert server.http.get("health_generate").status_code == 200
    server.idle()
