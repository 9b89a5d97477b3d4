"""The five fields that ask for log-probabilities, and the lists that answer."""

import json
from typing import Any

import pytest

from nbgen.errors import InvalidRequest
from nbgen.messages import GenerateOutput, GenerateRequest, LogprobOptions, TokenLogprobs
from nbgen.protocols.sample import Sample
from nbgen.protocols.sglang import ContractError, SchemaError, parse_generate
from nbgen.protocols.sglang_answer import Answer


def options(**body: Any) -> list[LogprobOptions | None]:
    return [request.logprobs for request in parse_generate(json.dumps({"text": "a", **body}).encode()).requests]


def test_nothing_is_asked_for_by_default() -> None:
    assert options(logprob_start_len=-9, top_logprobs_num=5) == [None]
    assert options(return_logprob=True) == [LogprobOptions()]


def test_scalars_hold_for_every_prompt_and_lists_for_one_each() -> None:
    batch = options(
        text=["a", "b"],
        return_logprob=[True, False],
        logprob_start_len=0,
        top_logprobs_num=[2, 3],
        token_ids_logprob=[7],
    )
    assert batch == [LogprobOptions(start=0, top=2, token_ids=[7]), None]
    nested = options(text=["a", "b"], return_logprob=True, token_ids_logprob=[[1], [2, 3]])
    assert [o.token_ids for o in nested] == [[1], [2, 3]]


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        ({"return_logprob": "yes"}, ContractError, "return_logprob"),
        ({"return_text_in_logprobs": 1}, ContractError, "return_text_in_logprobs"),
        ({"top_logprobs_num": 1.5}, SchemaError, "top_logprobs_num"),
        ({"logprob_start_len": "x"}, SchemaError, "logprob_start_len"),
        ({"token_ids_logprob": 3}, SchemaError, "token_ids_logprob"),
        ({"return_logprob": True, "token_ids_logprob": [[1]]}, InvalidRequest, "flat list of integers"),
        ({"return_logprob": True, "token_ids_logprob": [None]}, InvalidRequest, "flat list of integers"),
        ({"return_logprob": True, "logprob_start_len": -2}, InvalidRequest, "logprob_start_len"),
        ({"return_logprob": True, "top_logprobs_num": -1}, InvalidRequest, "0 to 1024"),
        ({"return_logprob": [True]}, InvalidRequest, "one for each prompt"),
        ({"text": ["a", "b"], "return_logprob": [True]}, InvalidRequest, "one for each prompt"),
        ({"text": ["a", "b"], "sampling_params": {"n": 2}, "return_logprob": [True, True]}, InvalidRequest, "`n`"),
    ],
)
def test_what_does_not_fit_is_refused(body: dict[str, Any], kind: type[InvalidRequest], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as refusal:
        options(**body)
    assert type(refusal.value) is kind


def test_the_lists_follow_sglangs_layout() -> None:
    asked = LogprobOptions(start=0, top=1, token_ids=[4])
    request = GenerateRequest(rid="r", text="a", logprobs=asked)
    prompt = [
        TokenLogprobs((None, 1, None)),
        TokenLogprobs((-0.5, 2, None), [(-0.1, 9, None)], [(float("-inf"), 4, None)]),
    ]
    sample = Sample()
    sample.add(
        GenerateOutput(rid="r", token_ids=[3], prompt_logprobs=prompt, logprobs=[TokenLogprobs((-1.0, 3, None))])
    )
    sample.add(GenerateOutput(rid="r", token_ids=[5], logprobs=[TokenLogprobs((-2.0, 5, "x"))]))
    meta = json.loads(Answer(request).chunk(sample, 0.0)[len(b"data: ") :])["meta_info"]
    assert meta["input_token_logprobs"] == [[None, 1, None], [-0.5, 2, None]]
    assert meta["input_top_logprobs"] == [None, [[-0.1, 9, None]]]
    assert meta["input_token_ids_logprobs"] == [None, [[None, 4, None]]], "what cannot be is null, never NaN"
    assert meta["output_token_logprobs"] == [[-1.0, 3, None], [-2.0, 5, "x"]]
    assert meta["output_token_logprobs_length"] == 2


def test_keys_that_nobody_asked_for_are_not_there() -> None:
    sample = Sample()
    sample.add(GenerateOutput(rid="r", token_ids=[3]))
    plain = json.loads(Answer(GenerateRequest(rid="r", text="a")).chunk(sample, 0.0)[len(b"data: ") :])
    assert not [key for key in plain["meta_info"] if "logprob" in key]
