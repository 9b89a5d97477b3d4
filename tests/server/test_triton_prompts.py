"""What Triton's language models take beyond one plain prompt: several prompts, structured output, word lists."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pytest
from tritonclient.http import InferRequestedOutput
from tritonclient.utils import InferenceServerException

from tests.server.conftest import Server
from tests.server.triton import client, tensor

MODEL = "long-llama"
PROMPTS = ["abc", "Once upon a time", "The fox"]
OPTIONS = {"max_tokens": 5, "temperature": 0, "ignore_eos": True}


def texts(*prompts: str) -> Any:
    return tensor("text_input", np.array([prompt.encode() for prompt in prompts], np.object_))


def generate(server: Server, **options: Any) -> Any:
    return server.http.post(f"v2/models/{MODEL}/generate", json={"text_input": "abc", "temperature": 0, **options})


def words_of(server: Server, **options: Any) -> str:
    answer = generate(server, exclude_input_in_output=True, **options)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["text_output"])


def test_several_prompts_are_answered_as_each_alone(server: Server) -> None:
    flags = {"return_cumulative_logprob": True, "return_num_input_tokens": True, "return_finish_reason": True}
    before = server.http.get(f"v2/models/{MODEL}/stats").json()["model_stats"][0]
    with client(server) as found:
        together = found.infer(MODEL, [texts(*PROMPTS)], parameters={**OPTIONS, **flags})
        alone = [found.infer(MODEL, [texts(prompt)], parameters={**OPTIONS, **flags}) for prompt in PROMPTS]
    for name in ("text_output", "finish_reason", "num_input_tokens"):
        assert together.as_numpy(name).tolist() == [result.as_numpy(name)[0] for result in alone]
    summed = [result.as_numpy("cumulative_logprob")[0] for result in alone]
    np.testing.assert_allclose(together.as_numpy("cumulative_logprob"), summed, atol=1e-3)
    after = server.http.get(f"v2/models/{MODEL}/stats").json()["model_stats"][0]
    assert after["inference_count"] - before["inference_count"] == 2 * len(PROMPTS)
    assert after["inference_stats"]["success"]["count"] - before["inference_stats"]["success"]["count"] == 4


def test_several_samples_of_several_prompts_stand_prompt_by_prompt(server: Server) -> None:
    with client(server) as found:
        result = found.infer(MODEL, [texts("abc", "xyz")], parameters={"n": 2, "max_tokens": 2, "seed": 1})
    assert [text[:3] for text in result.as_numpy("text_output")] == [b"abc", b"abc", b"xyz", b"xyz"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"return_log_probs": True}, "has 2 prompts, and output_log_probs holds one sample"),
        ({"max_tokens": -1}, "max_tokens must be"),
    ],
)
def test_what_several_prompts_cannot_have_is_refused(server: Server, options: dict[str, Any], words: str) -> None:
    with client(server) as found, pytest.raises(InferenceServerException, match=words):
        found.infer(MODEL, [texts("a", "b")], parameters=options)
    with client(server) as found, pytest.raises(InferenceServerException, match="at most 256"):
        found.infer(MODEL, [texts(*["a"] * 257)], parameters=OPTIONS)


@pytest.mark.parametrize(
    "asked",
    [
        {"guided_decoding_guide_type": "regex", "guided_decoding_guide": "yes|no"},
        {"structured_outputs": '{"regex": "yes|no"}'},
        {"structured_outputs": '{"choice": ["yes", "no"]}'},
        {"sampling_parameters": '{"structured_outputs": {"choice": ["yes", "no"]}}'},
        {"guided_decoding_guide_type": "ebnf_grammar", "guided_decoding_guide": 'root ::= "yes" | "no"'},
        {"structured_outputs": '{"json": {"enum": ["yes", "no"]}}'},
    ],
)
def test_structured_output_in_both_spellings(server: Server, asked: dict[str, Any]) -> None:
    assert words_of(server, max_tokens=12, **asked).strip('"') in ("yes", "no")


def test_an_object_of_json(server: Server) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    asked = {"guided_decoding_guide_type": "json_schema", "guided_decoding_guide": json.dumps(schema)}
    assert json.loads(words_of(server, max_tokens=40, **asked))["a"] in (True, False)


def test_word_lists_of_ids_end_the_text(server: Server) -> None:
    whole = words_of(server, max_tokens=4, ignore_eos=True)
    with client(server) as found:
        outputs = [InferRequestedOutput("output_ids")]
        first = found.infer(MODEL, [texts("abc")], outputs=outputs, parameters=OPTIONS).as_numpy("output_ids")[0, 0]
    assert words_of(server, max_tokens=4, stop_words_list=[int(first), 0, 1, -1]) == ""
    for empty in ([0, -1], [0, 0, -1, -1]):
        assert words_of(server, max_tokens=4, ignore_eos=True, bad_words_list=empty, stop_words_list=empty) == whole


#: Five letters, so that tokens are text.
LETTERS = {
    "max_tokens": 5,
    "temperature": 0,
    "guided_decoding_guide_type": "regex",
    "guided_decoding_guide": "[a-z]{5}",
}


def letters(server: Server, **options: Any) -> str:
    return words_of(server, **LETTERS, **options)


@pytest.fixture(scope="module")
def plain(server: Server) -> tuple[str, list[int]]:
    """The five letters that the model writes after `abc`, greedily, and their ids."""
    with client(server) as found:
        outputs = [InferRequestedOutput("output_ids")]
        result = found.infer(MODEL, [texts("abc")], outputs=outputs, parameters=LETTERS)
    return letters(server), result.as_numpy("output_ids")[0, :5].tolist()


def test_a_word_of_several_tokens_ends_the_text_where_it_is_whole(server: Server, plain: tuple[str, list[int]]) -> None:
    whole, ids = plain
    assert letters(server, stop_words_list=[*ids[1:3], 2, -1]) == whole[: whole.index(whole[1:3])]


def test_bad_words_never_come(server: Server, plain: tuple[str, list[int]]) -> None:
    """As text and as ids; of several tokens only the last is held back, and only after the others."""
    whole, ids = plain
    without = letters(server, bad_words=[whole[0]])
    assert whole[0] not in without
    assert without == letters(server, bad_words_list=[ids[0], 1]) == letters(server, bad_words=f" {whole[0]}")
    pair = letters(server, bad_words_list=[*ids[:2], 2, -1])
    assert pair == letters(server, bad_words=[whole[:2], "zebra"])
    assert pair[0] == whole[0]
    assert pair[1] != whole[1]
    assert letters(server, bad_words="", bad_words_list=[0, -1]) == whole


def test_biases_and_allowed_tokens_choose_the_text(server: Server) -> None:
    asked = {"max_tokens": 4, "ignore_eos": True}
    (letter,) = server.http.post("tokenize", json={"prompt": "k", "add_special_tokens": False}).json()["tokens"]
    assert words_of(server, **asked, allowed_token_ids=[letter]) == "kkkk"
    assert words_of(server, **asked, sampling_parameters=json.dumps({"logit_bias": {letter: 100}})) == "kkkk"


def test_times_of_a_request(server: Server) -> None:
    before = time.time_ns()
    answer = generate(server, max_tokens=5, ignore_eos=True, return_perf_metrics=True).json()
    times = [answer[f"{name}_time_ns"] for name in ("arrival", "first_token", "last_token")]
    assert before - 10**7 < times[0] <= times[1] < times[2] < time.time_ns() + 10**7


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"allowed_token_ids": [10**8]}, "allowed_token_ids: token_ids must be a list of integers from 0 to"),
        ({"allowed_token_ids": [10**8]}, "got 100000000"),
        ({"bad_words_list": [10**6, 1]}, "bad_words_list has the id 1000000, which is out-of-vocabulary"),
        ({"stop_words_list": [1, 10**6, 2, -1]}, "stop_words_list has the id 1000000, which is out-of-vocabulary"),
        ({"stop_words_list": [0, 0, 2, -1]}, "is no text"),
    ],
)
def test_what_is_not_there_is_refused_by_name(server: Server, asked: dict[str, Any], words: str) -> None:
    answer = generate(server, max_tokens=2, **asked)
    assert answer.status_code == 400, answer.text
    assert words in answer.json()["error"]
