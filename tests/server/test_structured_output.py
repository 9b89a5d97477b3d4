"""Constrained answers over HTTP, in every dialect: they parse, or say why not; what cannot be is refused in time."""

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import openai
import pytest

from tests.server.conftest import PATIENCE, TOKEN, Server, events, wait_for

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
#: Of the tokens "a" and "b" of the tests' tokenizer.
LETTERS = {"68": 100, "69": 50}
KINDS: list[dict[str, Any]] = [
    {"json_schema": json.dumps(SCHEMA)},
    {"regex": r"\d{3}-[a-f]{4}"},
    {"ebnf": 'root ::= "yes" | "no, " reason\nreason ::= [a-z]{1,9}'},
    {},
]
#: A machine is busy for as many attempts at most; what it then says.
TRIES = 5
BUSY = "computed for less than half"
#: Minutes to compile, on any machine.
SLOW = "(" + "|".join(f"a{{0,{9000 - i}}}b{{0,{9000 - i}}}" for i in range(300)) + ")*"


def post(server: Server, **body: Any) -> Any:
    return server.http.post("generate", json={"text": "hello", **body}, timeout=120)


def test_forty_mixed_requests_at_once(server: Server) -> None:
    def one(number: int) -> Any:
        sampling = {"max_new_tokens": 150, "sampling_seed": number, **KINDS[number % 4]}
        return post(server, sampling_params=sampling).json()

    with ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(one, range(40)))
    for number, answer in enumerate(answers):
        reason = answer["meta_info"]["finish_reason"]
        if reason["type"] == "length":
            assert reason["length"] == 150
        elif number % 4 == 0:
            jsonschema.validate(json.loads(answer["text"]), SCHEMA)
        elif number % 4 == 1:
            assert re.fullmatch(r"\d{3}-[a-f]{4}", answer["text"])
        elif number % 4 == 2:
            assert re.fullmatch("yes|no, [a-z]{1,9}", answer["text"])
    server.idle()


def test_a_stream_is_constrained_and_so_is_each_of_n(server: Server) -> None:
    sampling = {"regex": "[ab]{6}", "n": 3, "max_new_tokens": 20}
    found = events(server.http, "POST", "generate", json={"text": "x", "sampling_params": sampling, "stream": True})
    final = [json.loads(e.data) for e in found[:-1] if json.loads(e.data)["meta_info"]["finish_reason"]]
    assert len(final) == 3
    assert all(re.fullmatch("[ab]{6}", chunk["text"]) for chunk in final)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("sampling", "words"),
    [
        ({"json_schema": '{"type": "strin"}'}, "Failed to compile json grammar"),
        ({"json_schema": '{"type": "array", "uniqueItems": true}'}, "uniqueItems"),
        ({"regex": "(a)\\1"}, "Failed to compile regex grammar"),
        ({"ebnf": "root ::= "}, "Failed to compile ebnf grammar"),
        ({"structural_tag": "{}"}, "Failed to compile structural_tag grammar"),
        ({"regex": "a", "ebnf": 'root ::= "a"'}, "Only one of"),
        ({"regex": "a\0"}, "NUL"),
        ({"regex": "a" * 70_000}, "65536"),
        ({"stop_regex": "(?=a)b"}, "linear time"),
    ],
)
def test_a_bad_grammar_is_a_400_before_a_token_is_made(
    server: Server, sampling: dict[str, str], words: str, stream: bool
) -> None:
    answer = post(server, sampling_params=sampling, stream=stream)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


def test_an_object_where_text_belongs_is_the_strict_layers(server: Server) -> None:
    answer = post(server, sampling_params={"json_schema": {"type": "object"}})
    assert answer.status_code == 400
    assert isinstance(answer.json()["error"], str)


def test_a_grammar_that_takes_too_long_holds_up_nobody_and_who_waits_for_it_can_be_aborted(server: Server) -> None:
    slow: list[Any] = []
    aborted: list[Any] = []
    sampling = {"regex": SLOW}

    def ask() -> None:
        while not slow or (slow[-1].status_code == 503 and len(slow) < TRIES):  # the machine was busy: ask again
            slow.append(post(server, sampling_params=sampling))

    caller = threading.Thread(target=ask)
    other = threading.Thread(target=lambda: aborted.append(post(server, sampling_params=sampling, rid="slow")))
    caller.start()
    other.start()
    for _ in range(5):
        assert post(server, sampling_params={"max_new_tokens": 4}).status_code == 200
    while other.is_alive():
        server.http.post("abort_request", json={"rid": "slow"})
        other.join(0.1)
    caller.join()
    assert aborted[0].status_code in (200, 400, 503)
    if aborted[0].status_code == 200:
        assert aborted[0].json()["meta_info"]["finish_reason"]["type"] == "abort"
    reasons = ("longer than 10 s", "too much memory") if slow[-1].status_code == 400 else (BUSY,)
    assert slow[-1].status_code == 400 or len(slow) == TRIES
    assert any(reason in slow[-1].text for reason in reasons)
    assert post(server, sampling_params={"regex": "ab"}).json()["text"] == "ab"
    server.idle()


def test_a_stop_regex_ends_the_answer(server: Server) -> None:
    answer = post(server, sampling_params={"regex": "[ab]{30}", "stop_regex": "ab|ba"}).json()
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": "ab|ba"} or "ab" not in answer["text"]
    assert answer["text"].endswith(("ab", "ba")) or len(answer["text"]) == 30


def test_openai_response_format(server: Server) -> None:
    messages: Any = [{"role": "user", "content": "hello"}]
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
    with server.openai() as ask:
        choice = ask.chat.completions.create(
            model="x", messages=messages, response_format=wanted, max_tokens=200, seed=1
        ).choices[0]
        if choice.finish_reason == "stop":
            jsonschema.validate(json.loads(choice.message.content or ""), SCHEMA)
        anything = ask.chat.completions.create(
            model="x", messages=messages, response_format={"type": "json_object"}, max_tokens=20
        ).choices[0]
        assert (anything.message.content or "").startswith("{")
        extra = ask.completions.create(model="x", prompt="a", max_tokens=9, extra_body={"regex": "[xy]{4}"}).choices[0]
        assert re.fullmatch("[xy]{4}", extra.text)
        for wrong in ({"type": "json_schema"}, {"type": "yaml"}, {"type": "json_schema", "json_schema": {"name": "x"}}):
            with pytest.raises(openai.BadRequestError):
                ask.chat.completions.create(model="x", messages=messages, response_format=wrong, max_tokens=9)


def test_a_schema_that_is_not_strict_is_followed_as_far_as_can_be(server: Server) -> None:
    letters = {"type": "array", "items": {"pattern": "^[ab]$"}, "maxItems": 3}

    def ask(strict: bool) -> Any:
        schema: Any = {**letters, "uniqueItems": True}
        with server.openai() as to:
            return to.chat.completions.create(
                model="x",
                messages=[{"role": "user", "content": "hello"}],
                response_format={
                    "type": "json_schema",
                    "json_schema": {"name": "letters", "schema": schema, "strict": strict},
                },
                max_tokens=200,
            ).choices[0]

    with pytest.raises(openai.BadRequestError, match="the keyword `uniqueItems` is not supported"):
        ask(strict=True)
    jsonschema.validate(json.loads(ask(strict=False).message.content or ""), letters)


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_cut_says_so(server: Server, stream: bool) -> None:
    def finish(sampling: dict[str, Any]) -> dict[str, Any]:
        body = {"text": "a", "sampling_params": sampling, "stream": stream}
        if not stream:
            return server.http.post("generate", json=body).json()["meta_info"]
        return json.loads(events(server.http, "POST", "generate", json=body)[-2].data)["meta_info"]

    cut = finish({"regex": "[ab]{30}", "max_new_tokens": 5})
    assert cut["finish_reason"] == {"type": "length", "length": 5}
    assert cut["incomplete"] is True
    for whole in ({"regex": "[ab]{5}", "max_new_tokens": 5}, {"regex": "[ab]{5}"}, {"max_new_tokens": 2}):
        assert "incomplete" not in finish(whole)


def test_a_processor_by_name_needs_no_code(server: Server) -> None:
    processor = json.dumps({"name": "allowed_tokens", "args": {"token_ids": [70, 71]}})
    free, held = post(
        server, text=["a", "b"], custom_logit_processor=[None, processor], sampling_params={"max_new_tokens": 6}
    ).json()
    assert set(held["output_ids"]) <= {70, 71}
    assert len(free["output_ids"]) <= 6


def test_memory_may_be_released_while_a_grammar_is_compiled(server: Server) -> None:
    answers: list[Any] = []
    sampling = {"regex": SLOW + "d"}
    caller = threading.Thread(target=lambda: answers.append(post(server, sampling_params=sampling)))
    caller.start()
    wait_for(lambda: server.model()["status"]["waiting"] == 1, "the grammar's request waits")
    assert server.http.post("release_memory_occupation", json={"tags": ["kv_cache"]}).status_code == 200
    caller.join(PATIENCE)
    assert answers[0].status_code == 503
    assert server.http.get("server_info").json()["max_total_num_tokens"] == 0
    assert server.http.post("resume_memory_occupation", json={}).status_code == 200
    server.ready().idle()
    assert server.http.get("server_info").json()["max_total_num_tokens"] > 0


def test_a_custom_logit_processor_needs_the_owners_word(server: Server) -> None:
    deep = post(server, custom_logit_processor="[" * 200_000)
    assert deep.status_code == 400
    assert deep.json()["error"]["message"] == "custom_logit_processor cannot be loaded: it is nested too deep"
    answer = post(server, custom_logit_processor='{"callable": "00"}')
    assert answer.status_code == 400
    assert "not configured to enable custom logit processor" in answer.json()["error"]["message"]
    assert TOKEN not in answer.text


@pytest.mark.parametrize("path", ["v1/chat/completions", "v1/completions"])
@pytest.mark.parametrize(
    "options",
    [
        {"structured_outputs": {"choice": ["yes", "no"]}},
        {"guided_choice": ["yes", "no"]},
        {"guided_regex": "yes|no"},
        {"guided_grammar": 'root ::= "yes" | "no"'},
        {"guided_json": {"enum": ["yes", "no"]}},
    ],
    ids=str,
)
def test_vllms_fields_constrain_on_openais_routes(server: Server, path: str, options: dict[str, Any]) -> None:
    prompt = {"messages": [{"role": "user", "content": "?"}]} if "chat" in path else {"prompt": "?"}
    (choice,) = server.http.post(path, json=prompt | options | {"max_tokens": 9}).json()["choices"]
    assert (choice.get("text") or choice["message"]["content"]).strip('"') in ("yes", "no")


def test_bad_words_never_come_on_openais_routes(server: Server) -> None:
    def text(**options: Any) -> str:
        body = {"prompt": "hello", "temperature": 0, "max_tokens": 8, "ignore_eos": True, "logit_bias": LETTERS}
        return server.http.post("v1/completions", json=body | options).json()["choices"][0]["text"]

    assert (text(), text(bad_words=["a"])) == ("a" * 8, "b" * 8)
    refused = server.http.post("v1/completions", json={"prompt": "x", "regex": "a+", "bad_words": ["a"]})
    assert refused.status_code == 400
    assert "bad_words" in refused.json()["message"]
