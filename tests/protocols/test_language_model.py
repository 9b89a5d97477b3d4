"""What Triton's parameters ask of the engine, without one."""

from __future__ import annotations

import json

import pytest

from nbgen.bytes_elements import pack_bytes
from nbgen.errors import InvalidRequest
from nbgen.messages import GenerateRequest, Tensor
from nbgen.protocols import language_model
from nbgen.protocols.inference import Inference, Parameter
from nbgen.protocols.triton_options import UNSUPPORTED
from nbgen.word_lists import WordLists

TEXT = Tensor(name="text_input", datatype="BYTES", shape=(1,), data=pack_bytes([b"abc"]))


def asked(**parameters: Parameter) -> GenerateRequest:
    (call,) = language_model.parse(Inference(inputs={"text_input": TEXT}, parameters=parameters))
    return call.request


def test_the_first_priority_comes_before_the_second_and_the_default_last() -> None:
    priorities = [asked(priority=priority).priority for priority in (1, 2, 100, 2**40)]
    assert priorities == sorted(priorities, reverse=True)
    assert priorities[-1] > asked(priority=0).priority == asked().priority == 0


def test_words_and_adapters_reach_the_engine() -> None:
    assert asked().words is None
    assert asked(bad_words="x", lora_name="a").words == WordLists(bad=["x"])
    assert asked(lora_name="a").adapter == "a"


def test_the_engine_knows_which_requests_are_streamed() -> None:
    assert (asked(stream=True).streamed, asked(stream=False).streamed, asked().streamed) == (True, False, False)


@pytest.mark.parametrize("shape", [(4 * 2**20,), (1, 2**22)])
def test_more_than_any_prompt_is_refused_unread(shape: tuple[int, ...]) -> None:
    ids = Tensor(name="input_ids", datatype="INT64", shape=shape, data=memoryview(bytes(2**25)))
    with pytest.raises(InvalidRequest, match="input_ids has 33554432 bytes; at most"):
        language_model.parse(Inference(inputs={"input_ids": ids}))


@pytest.mark.parametrize("name", ["text_input", "stop", "lora_name"])
def test_text_is_utf8_on_every_wire(name: str) -> None:
    given = Tensor(name=name, datatype="BYTES", shape=(1,), data=pack_bytes([b"ab\xff"]))
    with pytest.raises(InvalidRequest, match=rf"^{name} is not UTF-8 \(byte 2 of an element\)"):
        language_model.parse(Inference(inputs={"text_input": TEXT, name: given}))


def test_vllms_options_within_sampling_parameters_are_done() -> None:
    options = {"logit_bias": {"262": 50}, "allowed_token_ids": [262, 7], "spaces_between_special_tokens": False}
    request = asked(sampling_parameters=json.dumps(options))
    assert request.params.logit_bias == {262: 50.0}
    assert not request.params.spaces_between_special_tokens
    assert json.loads(request.logit_processor or "") == {"name": "allowed_tokens", "args": {"token_ids": [262, 7]}}
    assert asked().logit_processor is None


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_is_not_served_is_refused_unless_unset(name: str) -> None:
    for unset in UNSUPPORTED[name]:
        asked(sampling_parameters=json.dumps({name: unset}))
    for options in ({name: 3}, {f"sampling_param_{name}": 3}, {"sampling_parameters": json.dumps({name: 3})}):
        with pytest.raises(InvalidRequest, match=f"{name} is not supported"):
            asked(**options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"best_of": 3}, "best_of is 3, and n is 1"),
        ({"best_of": 3, "n": 1}, "best_of is 3, and n is 1"),
        ({"n": 2, "best_of": 1}, "best_of is 1, and n is 2"),
        ({"max_tokens": 3, "request_output_len": 4}, "max_tokens and request_output_len are names of one option"),
        ({"seed": 3, "random_seed": 4}, "seed and random_seed"),
        ({"stop_words": "a", "stop": "b"}, "stop_words and stop"),
        ({"max_tokens": -1}, "^max_tokens must be at least 0"),
        ({"runtime_top_k": 1e308}, "^runtime_top_k must be an integer, got"),
        ({"end_id": 2**64 - 1}, "^end_id must be an integer, got"),
        ({"seed": 2**64}, "^seed must be an integer, got"),
        ({"stop_token_ids": [2**40]}, "^stop_token_ids must be at least"),
        ({"guided_decoding_guide_type": True}, "the kind 'true' is not supported"),
        ({"sampling_parameters": "[]"}, "^sampling_parameters must be a JSON object as text$"),
        ({"sampling_parameters": "{"}, "^sampling_parameters must be a JSON object as text: it is not JSON"),
        ({"request_output_len": -1}, "^request_output_len must be at least 0"),
        ({"min_length": 30}, r"^min_length must be at most max_tokens \(16\)"),
        ({"sampling_param_max_tokens": 2, "min_tokens": 3}, r"^min_tokens must be at most sampling_param_max_tokens"),
    ],
)
def test_refusals_name_what_the_caller_wrote(options: dict[str, Parameter], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        asked(**options)


def test_prompts_that_exclude_each_other_are_named() -> None:
    with pytest.raises(InvalidRequest, match=r"^text_input and prompt exclude each other"):
        asked(prompt="a")


def test_the_same_said_twice_is_said_once() -> None:
    assert asked(n=2, best_of=2, max_tokens="3", request_output_len=3).params.n == 2
    assert asked(stop_words="x", stop=False, stop_sequences="").params.stop == ("x",)
    assert asked(stop=False, stop_words="x").params.stop == ("x",)
    assert asked(sampling_parameters='{"max_tokens": 5}', request_output_len=3).params.max_new_tokens == 5


def test_what_several_prompts_share_is_read_once() -> None:
    texts = Tensor(name="text_input", datatype="BYTES", shape=(3,), data=pack_bytes([b"a", b"b", b"c"]))
    image = Tensor(name="image", datatype="BYTES", shape=(1,), data=pack_bytes([b"aGVsbG8="]))
    calls = language_model.parse(Inference(inputs={"text_input": texts, "image": image}))
    assert [(call.request.text, call.echo) for call in calls] == [("a", "a"), ("b", "b"), ("c", "c")]
    assert len({call.request.rid for call in calls}) == 3
    assert len({id(call.request.media[0].data) for call in calls}) == 1


def test_more_prompts_than_one_request_may_have_are_refused() -> None:
    texts = Tensor(name="prompt", datatype="BYTES", shape=(257,), data=pack_bytes([b"a"] * 257))
    with pytest.raises(InvalidRequest, match=r"^prompt has 257 prompts; at most 256 in a request"):
        language_model.parse(Inference(inputs={"prompt": texts}))
