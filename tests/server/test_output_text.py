"""The text of an answer is what its tokens say, and ends where it was told to."""

import json
from typing import Any

import pytest
from transformers import AutoTokenizer

from tests.server.conftest import Server, events


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("between", [True, False])
def test_text_is_what_the_tokenizer_says_of_the_ids(server: Server, skip: bool, between: bool) -> None:
    tokenizer = AutoTokenizer.from_pretrained(server.model()["name"])
    options = {
        "logit_bias": {str(token): 60 for token in (1, 2, 70, 71)},
        "skip_special_tokens": skip,
        "spaces_between_special_tokens": between,
        "max_new_tokens": 12,
        "sampling_seed": 2,
        "temperature": 5.0,
    }
    item = server.http.post("generate", json={"text": "a", "sampling_params": options}).json()
    assert {1, 2} & set(item["output_ids"])
    flags = {"skip_special_tokens": skip, "spaces_between_special_tokens": between}
    assert item["text"] == tokenizer.decode(item["output_ids"], **flags)


@pytest.mark.parametrize("stream", [False, True])
def test_what_ended_the_text_is_trimmed_unless_told_otherwise(server: Server, stream: bool) -> None:
    def ask(**options: Any) -> dict[str, Any]:
        forced = {"logit_bias": {"70": 90}, "temperature": 0, "max_new_tokens": 6, **options}
        body = {"text": "a", "sampling_params": forced, "stream": stream}
        if not stream:
            return server.http.post("generate", json=body).json()
        return json.loads(events(server.http, "POST", "generate", json=body)[-2].data)

    letter = ask()["text"][0]
    assert ask()["text"] == letter * 6
    assert ask()["meta_info"]["finish_reason"] == {"type": "length", "length": 6}
    for keep in (False, True):
        string = ask(stop=[letter * 3], no_stop_trim=keep)
        assert string["text"] == (letter * 3 if keep else "")
        assert string["meta_info"]["finish_reason"] == {"type": "stop", "matched": letter * 3}
        assert string["output_ids"] == [70] * 3
        token = ask(stop_token_ids=[70], min_new_tokens=0, no_stop_trim=keep)
        assert (token["text"], token["output_ids"]) == (letter if keep else "", [70])
        assert token["meta_info"]["finish_reason"] == {"type": "stop", "matched": 70}
    held = ask(stop_token_ids=[70], min_new_tokens=2)
    assert 70 not in held["output_ids"][:2]
    assert held["output_ids"][2:] == [70]
    assert ask(stop_token_ids=[70], ignore_eos=True)["output_ids"] == [70] * 6
