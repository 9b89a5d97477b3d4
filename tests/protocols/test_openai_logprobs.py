"""OpenAI's log-probabilities: numbers, bytes that are a token's own, and places in the text that is there."""

import math

import pytest

from nbgen.messages import TokenLogprobs
from nbgen.protocols.openai_logprobs import chat_logprobs, completion_logprobs, prompt_offsets


def entries(*tokens: str | bytes) -> list[TokenLogprobs]:
    """Of texts, and of bytes that are part of a character."""
    return [
        TokenLogprobs((-1.0, id, "\ufffd"), raw={id: token})
        if isinstance(token, bytes)
        else TokenLogprobs((-1.0, id, token))
        for id, token in enumerate(tokens)
    ]


@pytest.mark.parametrize(
    ("text", "tokens", "offsets"),
    [
        ("a bc", ["a", " b", "c"], [0, 1, 3]),
        ("a bc", ["<s>", "a", " b", "c"], [0, 0, 1, 3]),
        ("one two", ["<s>", "one", "two"], [0, 0, 4]),
        ("é!", [b"\xc3", b"\xa9", "!"], [0, 0, 1]),
        ("a🙂b", ["a", b"\xf0\x9f", b"\x99", b"\x82", "b"], [0, 1, 1, 1, 2]),
        ("a b", ["a", "\ufffd", " b"], [0, 1, 1]),
        ("a", ["a", b"\xf0", b"\x9f"], [0, 1, 1]),
        ("\ufffd:\ufffdé", [b"\xf0\x9f", ":", b"\xe2", b"\xc3", b"\xa9"], [0, 1, 2, 3, 3]),
        ("", [], []),
    ],
)
def test_a_prompts_tokens_are_where_its_text_has_them(text: str, tokens: list, offsets: list[int]) -> None:
    assert prompt_offsets(text, entries(*tokens)) == offsets


def test_bytes_are_the_tokens_own_or_none() -> None:
    found = chat_logprobs(entries("é", b"\xc3", "\ufffd", ""))["content"]
    assert [token["bytes"] for token in found] == [[0xC3, 0xA9], [0xC3], None, []]
    top = TokenLogprobs((-1.0, 0, "a"), [(-1.0, 0, "a"), (-2.0, 7, "\ufffd"), (-3.0, 8, "\ufffd")], raw={7: b"\x80"})
    assert [token["bytes"] for token in chat_logprobs([top])["content"][0]["top_logprobs"]] == [[97], [0x80], None]


def test_what_is_impossible_is_left_out_and_what_came_all_the_same_has_a_number() -> None:
    never = [(-0.5, 1, "b"), (-math.inf, 2, "c"), (math.nan, 3, "d")]
    entry = TokenLogprobs((-math.inf, 0, "a"), never)
    (token,) = chat_logprobs([entry])["content"]
    assert (token["logprob"], [(each["token"], each["logprob"]) for each in token["top_logprobs"]]) == (
        -9999.0,
        [("b", -0.5)],
    )
    found = completion_logprobs([TokenLogprobs((None, 9, "z")), entry], [0, 1])
    assert found["token_logprobs"] == [None, -9999.0]
    assert found["top_logprobs"] == [None, {"b": -0.5, "a": -9999.0}]


def test_the_token_that_came_is_among_the_likeliest_of_a_completion() -> None:
    seldom = TokenLogprobs((-7.0, 0, "a"), [(-0.5, 1, "b"), (-1.5, 2, "c")])
    often = TokenLogprobs((-0.5, 1, "b"), [(-0.5, 1, "b"), (-1.5, 2, "c")])
    found = completion_logprobs([seldom, often], [0, 1])["top_logprobs"]
    assert found == [{"b": -0.5, "c": -1.5, "a": -7.0}, {"b": -0.5, "c": -1.5}]


def test_tokens_of_one_text_have_the_number_of_the_likeliest() -> None:
    top = [(-0.5, 1, "\ufffd"), (-1.5, 2, "\ufffd"), (-2.5, 3, "c")]
    found = completion_logprobs([TokenLogprobs((-9.0, 4, "\ufffd"), top), TokenLogprobs(top[0], top)], [0, 0])
    assert found["top_logprobs"] == [{"\ufffd": -0.5, "c": -2.5}] * 2
    assert found["token_logprobs"] == [-9.0, -0.5], "so that who compares them sees which was the likeliest"
