"""What Triton's parameters ask of the engine, without one."""

from __future__ import annotations

import pytest

from nbgen.bytes_elements import pack_bytes
from nbgen.errors import InvalidRequest
from nbgen.messages import GenerateRequest, Tensor
from nbgen.protocols import language_model
from nbgen.protocols.inference import Inference, Parameter
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
