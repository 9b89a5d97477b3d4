"""A server whose owner has it cut what the context does not hold, asked as clients do that send limits of their own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.server.conftest import Server

CONTEXT = 512
GREEDY: dict[str, Any] = {"model": "any", "temperature": 0, "extra_body": {"ignore_eos": True}}
TITLE: list[Any] = [{"role": "user", "content": "### Task:\nGenerate a concise title summarizing the chat history."}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("cutting"), f"--model={tiny_model}", "--allow-auto-truncate")
    yield server.ready()
    server.stop()


@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
def test_a_chat_gets_what_is_left_of_the_context(client: openai.OpenAI, limit: str) -> None:
    asked: dict[str, Any] = GREEDY | {limit: 1000}
    usage = client.chat.completions.create(messages=TITLE, **asked).usage
    assert CONTEXT - 8 <= usage.total_tokens < CONTEXT


@pytest.mark.parametrize("limit", [50, 1000, None])
def test_the_oldest_turns_of_a_chat_make_room_for_its_answer(client: openai.OpenAI, limit: int | None) -> None:
    rounds: list[Any] = [{"role": role, "content": "hello " * 10} for _ in range(9) for role in ("user", "assistant")]
    turns = [{"role": "system", "content": "be brief"}, *rounds, *TITLE]
    usage = client.chat.completions.create(messages=turns, max_tokens=limit, **GREEDY).usage
    assert usage.completion_tokens >= min(limit or CONTEXT, CONTEXT // 4 - 8)
    assert usage.prompt_tokens > CONTEXT // 2
    with pytest.raises(openai.BadRequestError, match="longer than the model's context length"):
        client.chat.completions.create(messages=[{"role": "user", "content": "hello " * 200}], **GREEDY)


def test_a_response_gets_what_is_left_and_says_itself_whether_turns_are_dropped(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = GREEDY | {"max_output_tokens": 1000}
    usage = client.responses.create(input=TITLE, **asked).usage
    assert CONTEXT - 8 <= usage.total_tokens < CONTEXT
    turns: list[Any] = [{"role": "user", "content": "hello " * 30}] * 4
    with pytest.raises(openai.BadRequestError, match="longer than the model's context length"):
        client.responses.create(input=turns, **asked)
    assert client.responses.create(input=turns, truncation="auto", **asked).usage.input_tokens > CONTEXT // 3


def test_a_completions_prompt_is_cut_at_its_end(client: openai.OpenAI) -> None:
    text = "Once upon a time " * 100
    answer = client.completions.create(prompt=text, max_tokens=1000, echo=True, **GREEDY)
    assert CONTEXT - 8 <= answer.usage.prompt_tokens < CONTEXT
    assert answer.choices[0].text.startswith(text[: CONTEXT - 8])
