"""OpenAI's chunks of several choices, which come as their sequences do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nbgen.messages import FinishReason, GenerateOutput, TokenLogprobs
from nbgen.protocols.openai import parse_chat, parse_completion
from nbgen.protocols.openai_answer import Answer
from nbgen.protocols.sample import Sample
from nbgen.sse import Decoder


def first_output(*prompt: str) -> GenerateOutput:
    """The first of two tokens, with what there is of the prompt."""
    entries = [TokenLogprobs((-0.5, i, text)) for i, text in enumerate(prompt)]
    return GenerateOutput(
        rid="r", text="x", token_ids=(9,), logprobs=[TokenLogprobs((-0.1, 9, "x"))], prompt_logprobs=entries
    )


LAST = GenerateOutput(
    rid="r",
    text="y",
    token_ids=(8,),
    logprobs=[TokenLogprobs((-0.2, 8, "y"))],
    finish_reason=FinishReason(type="length"),
)


def choices(answer: Answer, samples: list[list[Sample]]) -> list[dict[str, Any]]:
    return [json.loads(event.data)["choices"][0] for event in Decoder().feed(answer.chunks(samples))]


@pytest.mark.parametrize("asked", [{"logprobs": 1}, {}])
@pytest.mark.parametrize("prompt", [["ab", "ab"], [[1, 2], [1, 2]]])
def test_the_echo_of_a_choice_comes_with_its_first_output(prompt: list[Any], asked: dict[str, Any]) -> None:
    call = parse_completion(json.dumps({"prompt": prompt, "echo": True, "stream": True, **asked}).encode())
    answer, samples, found = Answer(call, "m"), [Sample(), Sample()], []
    early, late = samples
    for sample, output in (
        (early, first_output("a", "b")),
        (early, LAST),
        (late, first_output("a", "b")),
        (late, LAST),
    ):
        sample.add(output)
        found += choices(answer, [[each] for each in samples])
    for index in (0, 1):
        own = [choice for choice in found if choice["index"] == index]
        assert "".join(choice["text"] for choice in own) == "abxy"
        tokens = [token for choice in own if choice["logprobs"] for token in choice["logprobs"]["tokens"]]
        assert tokens == (["a", "b", "x", "y"] if asked else [])


def test_a_choice_without_output_says_nothing() -> None:
    body = {"messages": [{"role": "user", "content": "a"}], "n": 2, "stream": True}
    answer, samples = Answer(parse_chat(json.dumps(body).encode()), "m"), [Sample(), Sample()]
    samples[0].add(first_output())
    assert {choice["index"] for choice in choices(answer, [samples])} == {0}
    samples[1].add(LAST)
    assert [choice["delta"].get("role") for choice in choices(answer, [samples])] == ["assistant", None, None]
