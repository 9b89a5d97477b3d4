"""Prompts, ids and options one by one and in lists: a batch answers what each of its prompts answers alone."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.server.conftest import Server, events

GREEDY = {"temperature": 0, "max_new_tokens": 5, "ignore_eos": True}
TEXTS = ["hello", "a", "one two"]
IDS = [list(text.encode("latin-1")) for text in TEXTS]


def ask(server: Server, stream: bool, **body: Any) -> list[dict[str, Any]]:
    """The objects of the answer, in the order of their places; one for a single prompt."""
    body = {"sampling_params": GREEDY, **body, "stream": stream}
    if not stream:
        answer = server.http.post("generate", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json() if isinstance(answer.json(), list) else [answer.json()]
    *found, done = [event.data for event in events(server.http, "POST", "generate", json=body)]
    assert done == "[DONE]"
    last = [chunk for chunk in map(json.loads, found) if chunk["meta_info"]["finish_reason"]]
    return sorted(last, key=lambda chunk: chunk.get("index", 0))


def outcome(item: dict[str, Any], number: Callable[[str], Any] = float) -> tuple[Any, ...]:
    """What may not depend on company: the tokens, and the log-probabilities, each made of its digits by `number`."""
    meta = item["meta_info"]
    lists = {name: meta[name] for name in sorted(meta) if name.endswith("_logprobs")}
    numbers = json.loads(json.dumps(lists), parse_float=number)
    return item["text"], item["output_ids"], meta["finish_reason"], numbers


def close(digits: str) -> Any:
    """Equal to whatever is the same to three digits."""
    return pytest.approx(float(digits), abs=5e-4)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompts", [{"text": TEXTS}, {"input_ids": IDS}])
def test_every_option_may_be_a_list_with_an_entry_for_each_prompt(
    server: Server, prompts: dict[str, Any], stream: bool
) -> None:
    options: dict[str, list[Any]] = {
        "sampling_params": [GREEDY, {**GREEDY, "max_new_tokens": 2}, {**GREEDY, "logit_bias": {"70": 100}}],
        "rid": [f"first-{stream}", f"second-{stream}", f"third-{stream}"],
        "return_logprob": [True, False, True],
        "logprob_start_len": [0, -1, 2],
        "top_logprobs_num": [2, 0, 1],
        "token_ids_logprob": [[1], None, [2, 3]],
    }
    batch = ask(server, stream, **prompts, **options)
    assert [item["meta_info"]["id"] for item in batch] == options["rid"]
    ((name, values),) = prompts.items()
    for place, item in enumerate(batch):
        (alone,) = ask(server, stream, **{name: values[place]}, **{key: each[place] for key, each in options.items()})
        assert outcome(item) == outcome(alone, close)
        assert ("index" in item, "index" in alone) == (stream, False)


@pytest.mark.parametrize("stream", [False, True])
def test_text_and_its_ids_are_one_and_ids_win(server: Server, stream: bool) -> None:
    tokens = server.http.post("tokenize", json={"prompt": "hello"}).json()["tokens"]
    (text,), (ids,) = ask(server, stream, text="hello"), ask(server, stream, input_ids=tokens)
    (both,) = ask(server, stream, text="something else", input_ids=tokens)
    assert text["text"] == ids["text"] == both["text"]
    (listed,) = ask(server, stream, text=["hello"])
    assert listed["text"] == text["text"]
    assert ("index" in listed) == stream


@pytest.mark.parametrize("stream", [False, True])
def test_samples_come_prompt_by_prompt_with_seeds_that_count_up(server: Server, stream: bool) -> None:
    sampling = {"temperature": 1.0, "max_new_tokens": 6, "ignore_eos": True, "sampling_seed": 40}
    batch = ask(server, stream, text=["a", "bb"], sampling_params={**sampling, "n": 3}, rid="mine")
    assert [item["meta_info"]["prompt_tokens"] for item in batch] == [1, 1, 1, 2, 2, 2]
    ids = [item["meta_info"]["id"] for item in batch]
    assert len(set(ids)) == 6
    assert not any(name.startswith("mine") for name in ids)
    for place, item in enumerate(batch):
        seeded = {**sampling, "sampling_seed": 40 + place % 3}
        (alone,) = ask(server, stream, text=["a", "bb"][place // 3], sampling_params=seeded)
        assert item["output_ids"] == alone["output_ids"]


def test_ids_of_requests(server: Server) -> None:
    def ids(**body: Any) -> list[str]:
        return [item["meta_info"]["id"] for item in ask(server, False, **body)]

    assert ids(text="a", rid="x") == ["x"]
    assert ids(text="a", rid="x") == ["x"], "free again"
    assert ids(text=["a", "b"], rid="x") == ["x_0", "x_1"]
    assert ids(text=["a", "b"], rid=["y", "x"]) == ["y", "x"]
    (own,) = ids(text="a")
    assert len(own) == 32


def test_no_prompts_are_an_empty_answer(server: Server) -> None:
    assert ask(server, False, text=[]) == []
    assert ask(server, True, text=[]) == []


def test_no_new_tokens_is_a_prompt_alone(server: Server) -> None:
    for stream in (False, True):
        (item,) = ask(server, stream, text="hello", sampling_params={"max_new_tokens": 0})
        assert (item["text"], item["output_ids"]) == ("", [])
        assert item["meta_info"]["finish_reason"] == {"type": "length", "length": 0}
        assert item["meta_info"]["completion_tokens"] == 0


def test_an_answer_as_long_as_the_context_allows(server: Server) -> None:
    ids = [5] * 16_300
    (item,) = ask(server, False, input_ids=ids, sampling_params={"max_new_tokens": None, "ignore_eos": True})
    assert item["meta_info"]["finish_reason"] == {"type": "length", "length": 16_384 - 2 - 16_300}
