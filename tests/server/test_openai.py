"""OpenAI's endpoints with the real `openai` client, sync and async."""

import asyncio
import time
from typing import Any

import httpx
import openai
import pytest

from tests.server.conftest import BUSY, Server, wait_for

CHAT = [{"role": "user", "content": "hello"}]
GREEDY = {"temperature": 0, "max_tokens": 8, "extra_body": {"ignore_eos": True}}


def test_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert client.models.retrieve(model.id).id == model.id
    with pytest.raises(openai.NotFoundError) as refusal:
        client.models.retrieve("gpt-0")
    assert (refusal.value.code, refusal.value.param) == ("model_not_found", "model")
    assert refusal.value.request_id.startswith("req_")


def test_a_model_is_as_old_as_its_load(client: openai.OpenAI) -> None:
    before, _ = client.models.list().data[0].created, time.sleep(1.1)
    assert client.models.list().data[0].created == before
    assert 0 < time.time() - before < 3600


def test_each_answer_has_a_name_of_its_own(client: openai.OpenAI) -> None:
    asked = {"model": "any", "max_tokens": 1}
    routes = [
        lambda: client.chat.completions.create(messages=CHAT, **asked),
        lambda: client.completions.create(prompt="a", **asked),
        lambda: client.responses.create(model="any", input="a", max_output_tokens=1),
        lambda: client.embeddings.create(model="any", input="a", extra_body={"pooling": "mean"}),
    ]
    names = {answer()._request_id for answer in routes for _ in range(2)}
    assert len(names) == 8
    assert all(name.startswith("req_") for name in names)
    with client.completions.with_streaming_response.create(prompt="a", stream=True, **asked) as answer:
        assert answer.headers["x-request-id"].startswith("req_")


def test_a_completion_is_what_generate_answers(server: Server, client: openai.OpenAI) -> None:
    sampling = {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}
    native = server.http.post("generate", json={"text": "hello", "sampling_params": sampling}).json()
    answer = client.completions.create(model="any", prompt="hello", **GREEDY)
    assert answer.choices[0].text == native["text"]
    assert answer.choices[0].finish_reason == "length"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (5, 8, 13)


def test_a_stream_joins_to_the_whole(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="any", messages=CHAT, **GREEDY)
    options = {"include_usage": True}
    chunks = list(
        client.chat.completions.create(model="any", messages=CHAT, stream=True, stream_options=options, **GREEDY)
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == ["length"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 8


def test_choices_are_numbered_prompt_by_prompt(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="any", prompt=["a", "bb"], n=2, temperature=1, max_tokens=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage.prompt_tokens == 3
    stream = client.completions.create(model="any", prompt=["a", "bb"], n=2, stream=True, max_tokens=3)
    ended = [c.choices[0].index for c in stream if c.choices[0].finish_reason]
    assert sorted(ended) == [0, 1, 2, 3]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["hello", [75, 76]])
@pytest.mark.parametrize("logprobs", [None, 2])
def test_echo_with_and_without_logprobs(client: openai.OpenAI, stream: bool, prompt, logprobs) -> None:
    plain = client.completions.create(model="any", prompt=prompt, logprobs=logprobs, **GREEDY).choices[0]
    asked = {"model": "any", "prompt": prompt, "logprobs": logprobs, "echo": True, **GREEDY}
    answer = client.completions.create(**asked, stream=stream)
    choices = [chunk.choices[0] for chunk in answer] if stream else [answer.choices[0]]
    text = "".join(choice.text for choice in choices)
    assert text.endswith(plain.text)
    assert len(text) > len(plain.text)
    if isinstance(prompt, str):
        assert text == prompt + plain.text
    if logprobs is None:
        assert all(choice.logprobs is None for choice in choices)
        return
    values = [v for choice in choices if choice.logprobs for v in choice.logprobs.token_logprobs]
    assert len(values) == len(prompt) + 8
    assert values[0] is None
    assert values[-8:] == pytest.approx(plain.logprobs.token_logprobs, abs=1e-4)


@pytest.mark.parametrize("logprobs", [None, 0])
@pytest.mark.parametrize("stream", [False, True])
def test_ids_are_echoed_in_whole_characters_and_one_that_the_answer_ends_comes_once(
    server: Server, client: openai.OpenAI, stream: bool, logprobs: int | None
) -> None:
    (*ids, last) = server.http.post("tokenize", json={"prompt": "hé 🙂"}).json()["tokens"]
    asked = {"prompt": [0, *ids], "echo": True, "max_tokens": 1, "logit_bias": {str(last): 100}}
    answer = client.completions.create(model="any", logprobs=logprobs, stream=stream, **asked)
    choices = [chunk.choices[0] for chunk in answer] if stream else [answer.choices[0]]
    assert "".join(choice.text for choice in choices) == "hé 🙂"
    places = [at for choice in choices if choice.logprobs for at in choice.logprobs.text_offset]
    assert places == ([] if logprobs is None else [0, 0, 1, 1, 2, 3, 3, 3, 3])
    of_triton = {"input_ids": [0, *ids], "max_tokens": 1, "logit_bias": f'{{"{last}": 100}}'}
    assert server.http.post("v2/models/long-llama/generate", json=of_triton).json()["text_output"] == "hé 🙂"


def test_chat_logprobs(client: openai.OpenAI) -> None:
    choice = client.chat.completions.create(model="a", messages=CHAT, logprobs=True, top_logprobs=2, **GREEDY).choices[
        0
    ]
    assert len(choice.logprobs.content) == 8
    for token in choice.logprobs.content:
        assert token.logprob == token.top_logprobs[0].logprob
        assert len(token.top_logprobs) == 2


#: Letters of one, two and four bytes, each byte a token of the tests' vocabulary.
LETTERS = {"temperature": 0, "max_tokens": 20, "extra_body": {"regex": "aé🙂b"}}


def test_the_bytes_of_a_chats_tokens_join_to_its_text(client: openai.OpenAI) -> None:
    asked = {"model": "a", "messages": CHAT, "logprobs": True, "top_logprobs": 2, **LETTERS}
    choice = client.chat.completions.create(**asked).choices[0]
    entries = choice.logprobs.content
    assert [entry.bytes for entry in entries[:8]] == [[byte] for byte in "aé🙂b".encode()]
    assert [entry.top_logprobs[0].bytes for entry in entries] == [entry.bytes for entry in entries]


@pytest.mark.parametrize("end", [{}, {"stop": "b"}], ids=str)
def test_a_streams_tokens_write_its_text_and_the_end_comes_with_the_last_chunk(client: openai.OpenAI, end) -> None:
    options = {"model": "a", "logprobs": True, "stream": True, **LETTERS, **end, "extra_body": {"regex": "acab"}}
    choices = [chunk.choices[0] for chunk in client.chat.completions.create(messages=CHAT, **options)]
    for choice in choices[:-1]:
        tokens = choice.logprobs.content if choice.logprobs else []
        assert "".join(token.token for token in tokens) == choice.delta.content
    assert (choices[-1].finish_reason, len(choices[-1].logprobs.content)) == ("stop", 1)
    found = [*client.completions.create(prompt="a", **options | {"logprobs": 1})]
    assert [len(each.choices[0].logprobs.tokens) for each in found[-1:]] == [1]


def test_logprobs_are_numbers_where_a_grammar_leaves_no_choice(client: openai.OpenAI) -> None:
    asked = {"model": "a", "messages": CHAT, "logprobs": True, "top_logprobs": 5, **LETTERS}
    entries = client.chat.completions.create(**asked).choices[0].logprobs.content
    values = [each.logprob for entry in entries for each in (entry, *entry.top_logprobs)]
    assert all(isinstance(value, float) for value in values)
    assert [len(entry.top_logprobs) for entry in entries[:8]] == [1] * 8
    found = client.completions.create(model="a", prompt="a", logprobs=5, **LETTERS).choices[0].logprobs
    assert all(isinstance(value, float) for top in found.top_logprobs for value in top.values())
    own = {"include": ["message.output_text.logprobs"], "top_logprobs": 5, "extra_body": LETTERS["extra_body"]}
    (item,) = client.responses.create(model="a", input="a", max_output_tokens=20, **own).output
    assert [len(entry.top_logprobs) for entry in item.content[0].logprobs[:8]] == [1] * 8


def test_the_sampled_token_is_among_those_of_a_completions_logprobs(client: openai.OpenAI) -> None:
    asked = {"model": "a", "prompt": "a", "logprobs": 1, "temperature": 2, "seed": 1, "max_tokens": 20}
    found = client.completions.create(**asked, extra_body={"ignore_eos": True}).choices[0].logprobs
    assert all(token in top for token, top in zip(found.tokens, found.top_logprobs, strict=True))
    assert {len(top) for top in found.top_logprobs} == {1, 2}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["hé ", [75, 76]])
def test_text_offsets_are_where_tokens_begin_in_the_text(client: openai.OpenAI, prompt, stream: bool) -> None:
    def offsets(**options) -> list[int]:
        answer = client.completions.create(model="a", prompt=prompt, logprobs=1, stream=stream, **LETTERS, **options)
        choices = [chunk.choices[0] for chunk in answer] if stream else [answer.choices[0]]
        assert "".join(choice.text for choice in choices).endswith("aé🙂b")
        return [at for choice in choices if choice.logprobs for at in choice.logprobs.text_offset]

    own = [0, 1, 1, 2, 2, 2, 2, 3]
    echoed, start = ([0, 1, 1, 2], 3) if prompt == "hé " else ([0, 1], 2)
    assert offsets()[:8] == own
    assert offsets(echo=True)[: len(echoed) + 8] == [*echoed, *(start + at for at in own)]


def test_tokens_that_are_not_in_the_text_take_no_room_in_it(client: openai.OpenAI) -> None:
    def answer(**extra):
        extra = {"extra_body": {"ignore_eos": True, **extra}}
        bias = {"logit_bias": {"2": 100}, "temperature": 0, "max_tokens": 3, "logprobs": 1}
        return client.completions.create(model="a", prompt="a", **bias, **extra).choices[0]

    skipped, shown = answer(), answer(skip_special_tokens=False)
    assert (skipped.text, skipped.logprobs.text_offset) == ("", [0, 0, 0])
    assert (shown.text, shown.logprobs.text_offset) == ("<|user|>" * 3, [0, 8, 16])


@pytest.mark.parametrize("stream", [False, True])
def test_refusals_are_real_statuses_and_name_the_field(client: openai.OpenAI, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError, match="top_p") as refusal:
        client.chat.completions.create(model="any", messages=CHAT, top_p=5, stream=stream)
    assert refusal.value.param == "top_p"
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    with pytest.raises(openai.BadRequestError, match="tools"):
        client.chat.completions.create(model="any", messages=CHAT, tools=[tool], stream=stream)
    with pytest.raises(openai.BadRequestError, match="context length"):
        client.completions.create(model="any", prompt="a", max_tokens=10**6, stream=stream)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("options", "param", "words"),
    [
        ({"logit_bias": {"999999": 1}}, "logit_bias", "out-of-vocabulary"),
        ({"response_format": {"type": "json_object", "schema": {"type": 7}}}, "response_format", "Failed to compile"),
        ({"extra_body": {"guided_regex": "("}}, "guided_regex", "Failed to compile"),
        ({"extra_body": {"regex": "("}}, "regex", "Failed to compile"),
        ({"extra_body": {"allowed_token_ids": [999999]}}, "allowed_token_ids", "allowed_token_ids"),
        (
            {"n": 128, "logprobs": True, "top_logprobs": 20, "max_tokens": 9000},
            "top_logprobs",
            r"400 - top_logprobs for up to 9000 new tokens, 128 times.*\(max_tokens, n\)",
        ),
    ],
)
def test_what_the_engine_refuses_is_named_as_the_caller_wrote_it(
    client: openai.OpenAI, options: dict[str, Any], param: str, words: str, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError, match=words) as refusal:
        client.chat.completions.create(model="any", messages=CHAT, stream=stream, **options)
    assert refusal.value.param == param


def test_a_limit_over_the_context_is_named_as_the_caller_wrote_it(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="max_completion_tokens is too large") as refusal:
        client.chat.completions.create(model="any", messages=CHAT, max_completion_tokens=10**6)
    assert refusal.value.param == "max_completion_tokens"
    with pytest.raises(openai.BadRequestError, match="max_tokens or max_completion_tokens is too large") as refusal:
        client.chat.completions.create(model="any", messages=CHAT, max_tokens=10**6)
    assert (refusal.value.param, refusal.value.code) == ("max_tokens", "context_length_exceeded")
    with pytest.raises(openai.BadRequestError, match="max_tokens is too large"):
        client.completions.create(model="any", prompt="a", max_tokens=10**6)


def test_vllms_ways_to_bound_an_answer(client: openai.OpenAI) -> None:
    asked = {"model": "a", "prompt": "a", "temperature": 0, "max_tokens": 9}
    only = {"allowed_token_ids": [70, 71], "ignore_eos": True}
    assert set(client.completions.create(**asked, extra_body=only).choices[0].text) <= {"c", "d"}
    ended = client.completions.create(**asked, stop="b", extra_body={"regex": "ab", "include_stop_str_in_output": True})
    assert ended.choices[0].text == "ab"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("size", [20_000, 300_000])
def test_what_the_context_does_not_hold_has_the_code_that_clients_look_for(
    client: openai.OpenAI, size: int, stream: bool
) -> None:
    def refusal(route: Any, **asked: Any) -> tuple[Any, Any]:
        with pytest.raises(openai.BadRequestError, match="This model's maximum context length is 16384 tokens") as told:
            route.create(model="any", stream=stream, **asked)
        assert {"max_tokens", "max_output_tokens"} & asked.keys() or "prompt is too long" in told.value.message
        return told.value.code, told.value.param

    code, text = "context_length_exceeded", "x" * size
    assert refusal(client.chat.completions, messages=[{"role": "user", "content": text}]) == (code, "messages")
    assert refusal(client.completions, prompt=text) == (code, "prompt")
    ids = {"prompt": [5] * size}  # the client itself looks at each for as long as all else here takes
    assert refusal(client.completions, prompt="", extra_body=ids) == (code, "prompt")
    assert refusal(client.responses, input=text) == (code, "input")
    assert refusal(client.chat.completions, messages=CHAT, max_tokens=size) == (code, "max_tokens")
    assert refusal(client.responses, input="x", max_output_tokens=size) == (code, "max_output_tokens")


@pytest.mark.parametrize("stream", [False, True])
def test_the_extra_fields_of_such_servers(server: Server, client: openai.OpenAI, stream: bool) -> None:
    extra = {"top_k": 1, "min_p": 0.1, "repetition_penalty": 1.2, "min_tokens": 3, "ignore_eos": True, "priority": 2}
    extra |= {"rid": f"mine-{stream}", "cache_salt": "x", "skip_special_tokens": False, "no_stop_trim": True}
    answer = client.chat.completions.create(
        model="any", messages=CHAT, max_tokens=5, stop=["never"], seed=3, stream=stream, extra_body=extra
    )
    options = {"top_k": 1, "min_p": 0.1, "repetition_penalty": 1.2, "max_new_tokens": 5, "ignore_eos": True}
    tokens = server.http.post("tokenize", json={"messages": CHAT}).json()["tokens"]
    body = {"input_ids": tokens, "sampling_params": {**options, "skip_special_tokens": False}}
    native = server.http.post("generate", json=body).json()
    text = "".join(c.choices[0].delta.content or "" for c in answer) if stream else answer.choices[0].message.content
    assert text == native["text"]


def test_an_answer_that_goes_on_has_the_tokens_that_are_told(server: Server, client: openai.OpenAI) -> None:
    chat = [*CHAT, {"role": "assistant", "content": "It is"}]
    asked = {"continue_final_message": True, "add_generation_prompt": False}
    told = server.http.post("tokenize", json={"messages": chat, **asked}).json()["count"]
    answer = client.chat.completions.create(model="any", messages=chat, max_tokens=1, extra_body=asked)
    assert told == answer.usage.prompt_tokens < server.http.post("tokenize", json={"messages": chat}).json()["count"]


def test_usage_in_every_chunk_and_choices_that_end_once(client: openai.OpenAI) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    stream = client.chat.completions.create(
        model="any", messages=CHAT, n=3, stream=True, stream_options=options, temperature=1, max_tokens=4
    )
    chunks = list(stream)
    assert all(chunk.usage for chunk in chunks)
    assert sorted(c.choices[0].index for c in chunks if c.choices and c.choices[0].finish_reason) == [0, 1, 2]
    tokens = [chunk.usage.completion_tokens for chunk in chunks]
    assert tokens == sorted(tokens)


def test_hidden_tools_are_no_tools(client: openai.OpenAI) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    answer = client.chat.completions.create(model="any", messages=CHAT, tools=[tool], tool_choice="none", **GREEDY)
    assert answer.choices[0].message.content


def test_a_wrong_key_is_401(server: Server) -> None:
    with server.openai("wrong") as stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()


def test_leaving_a_stream_stops_the_engine(server: Server, client: openai.OpenAI) -> None:
    server.idle()
    before, tokens = server.generated(), BUSY["max_new_tokens"]
    stream = client.completions.create(
        model="any", prompt="a", max_tokens=tokens, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    wait_for(lambda: server.model()["status"]["running"], "the engine has said that it runs")
    stream.close()
    server.idle()
    assert 0 < server.generated() - before < tokens


async def test_the_async_client_and_many_at_once(server: Server) -> None:
    async with openai.AsyncOpenAI(
        base_url=f"{server.root}nbgen/v1", api_key=server.key, http_client=httpx.AsyncClient()
    ) as client:

        async def ask() -> str:
            answer = await client.chat.completions.create(model="any", messages=CHAT, **GREEDY)
            return answer.choices[0].message.content

        answers = await asyncio.gather(*(ask() for _ in range(8)))
    assert len(set(answers)) == 1
