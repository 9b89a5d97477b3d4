"""What outputs add up to: text and its parts, ids, counts, tensors."""

import msgspec
import numpy as np

from nbgen.messages import AnswerPart, FinishReason, GenerateOutput, TensorPiece, TokenLogprobs, ToolCall
from nbgen.protocols.sample import Sample, usage

CALL = ToolCall(id="1", name="f", arguments="{}")


def sample(*outputs: GenerateOutput) -> Sample:
    found = Sample()
    for output in outputs:
        found.add(output)
    return found


def piece(name: str, data: bytes) -> TensorPiece:
    return TensorPiece(rid="r", name=name, data=memoryview(data))


def test_what_is_new_is_added_and_what_is_a_total_takes_its_place() -> None:
    found = sample(
        GenerateOutput(
            rid="r",
            text="a",
            token_ids=(5,),
            prompt_tokens=3,
            completion_tokens=1,
            cached_tokens=2,
            media_tokens={"image": 4},
            prompt_text="p",
            prompt_ids=[7, 8],
        ),
        GenerateOutput(
            rid="r", text="b", token_ids=(6, 7), completion_tokens=3, finish_reason=FinishReason(type="stop")
        ),
    )
    assert (found.text, found.content, found.output_ids) == ("ab", "ab", [5, 6, 7])
    assert (found.prompt_tokens, found.completion_tokens, found.cached_tokens) == (3, 3, 2)
    assert (found.media_tokens, found.prompt_text, found.prompt_ids) == ({"image": 4}, "p", [7, 8])
    assert found.finish_reason == FinishReason(type="stop")
    assert (found.reasoning, found.tool_calls, found.reasoning_tokens) == ("", [], 0)


def test_a_prompt_s_log_probabilities_may_come_in_several_outputs() -> None:
    first, *more = (TokenLogprobs((-float(place), place, None)) for place in range(4))
    found = sample(GenerateOutput(rid="r", prompt_logprobs=[first]))
    before = found.snapshot()
    for output in (GenerateOutput(rid="r", prompt_logprobs=more, token_ids=(5,)), GenerateOutput(rid="r")):
        found.add(output)
    assert (before.prompt_logprobs, found.prompt_logprobs) == ([first], [first, *more])


def test_thoughts_and_calls_stand_apart_from_what_is_said() -> None:
    found = sample(
        GenerateOutput(rid="r", text="<think>hm", parts=[AnswerPart(reasoning="hm")]),
        GenerateOutput(rid="r", text="</think>yes", parts=[AnswerPart(reasoning="."), AnswerPart(content="yes")]),
        GenerateOutput(rid="r", text="<call>", parts=[AnswerPart(tool_call=CALL)]),
    )
    assert (found.content, found.reasoning, found.tool_calls) == ("yes", "hm.", [CALL])


def test_tokens_of_thoughts_are_counted_with_those_before_that_had_no_text() -> None:
    found = sample(
        GenerateOutput(rid="r", token_ids=(1, 2), parts=[]),
        GenerateOutput(rid="r", token_ids=(3,), parts=[AnswerPart(reasoning="a")]),
        GenerateOutput(rid="r", token_ids=(4, 5), parts=[AnswerPart(reasoning="b")]),
        GenerateOutput(rid="r", token_ids=(6,), parts=[AnswerPart(reasoning="c"), AnswerPart(content="d")]),
        GenerateOutput(rid="r", token_ids=(7,), parts=[AnswerPart(content="e")]),
    )
    assert found.reasoning_tokens == 5


def test_tokens_of_a_call_are_none_of_the_thought_before_it() -> None:
    thought = GenerateOutput(rid="r", token_ids=(1, 2), parts=[AnswerPart(reasoning="a")])
    nothing = GenerateOutput(rid="r", token_ids=(3, 4), parts=[])
    call = GenerateOutput(rid="r", token_ids=(5,), parts=[AnswerPart(tool_call=CALL)])
    end = GenerateOutput(rid="r", token_ids=(6,), parts=[], finish_reason=FinishReason(type="length"))
    assert sample(thought, nothing, call, end).reasoning_tokens == 2
    assert sample(thought, nothing, thought).reasoning_tokens == 6
    assert sample(thought, nothing, end).reasoning_tokens == 5


def test_rows_of_tensors_follow_one_another_and_of_the_last_state_one_is_kept() -> None:
    found = sample(
        GenerateOutput(rid="r", tensors=[piece("logits", b"ab"), piece("last_hidden_state", b"x")]),
        GenerateOutput(rid="r", tensors=[piece("logits", b"c"), piece("last_hidden_state", b"y")]),
    )
    kept = {name: b"".join(pieces) for name, pieces in found.tensors.items()}
    assert kept == {"logits": b"abc", "last_hidden_state": b"y"}


def test_a_prompt_counts_once_and_its_answers_all() -> None:
    samples = [
        sample(GenerateOutput(rid="r", prompt_tokens=9, completion_tokens=count, cached_tokens=cached))
        for count, cached in ((2, 4), (5, 8))
    ]
    assert usage(samples) == {"prompt_tokens": 9, "completion_tokens": 7, "cached_tokens": 4}


def test_its_size_is_about_that_of_its_json() -> None:
    entry = TokenLogprobs(token=(-1.234567890123456, 200, None), top=[(-1.234567890123456, 200, None)] * 99)
    numbers = np.random.default_rng(0).standard_normal(1000, np.float32)
    for given, written in (
        ({"text": "x" * 1000, "token_ids": (200,) * 1000}, ["x" * 1000, (200,) * 1000]),
        ({"prompt_logprobs": [entry] * 10, "logprobs": [entry] * 10}, [[entry.token, entry.top]] * 20),
        ({"tensors": [piece("hidden_states", numbers.tobytes())]}, numbers.tolist()),
    ):
        size = sample(GenerateOutput(rid="r", **given)).size
        assert 0.5 < size / len(msgspec.json.encode(written)) < 2


def test_a_snapshot_does_not_grow() -> None:
    first = GenerateOutput(
        rid="r",
        text="a",
        token_ids=(5,),
        logprobs=[TokenLogprobs((-0.5, 5, None))],
        tensors=[piece("hidden_states", b"1234")],
        parts=[AnswerPart(content="a")],
    )
    growing, same = sample(first), sample(first)
    found = growing.snapshot()
    growing.add(first)
    assert vars(found) == vars(same)
    assert len(growing.output_ids) == 2
