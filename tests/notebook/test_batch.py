"""Many rows in flight, without a server: their order, their failures and what is tried again."""

import _thread
import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from nbgen.errors import Conflict, InvalidRequest, Unavailable
from nbgen.notebook import batch as module
from nbgen.notebook.batch import TRIES, Batch
from nbgen.notebook.result import Result

Event = tuple[str, dict[str, Any]]


def said(text: str) -> list[Any]:
    usage = {"completion_tokens": len(text)}
    return [("delta", {"text": text}), ("done", {"finish_reason": {"type": "stop"}, "usage": usage})]


class Asked:
    """A client that answers each body with what `answer` gives: events, and errors to be raised."""

    def __init__(self, answer: Callable[[dict[str, Any]], list[Any]] = lambda body: said(body["prompt"])) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.together = self.most = self.connections = 0
        self._answer = answer

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        self.connections += 1
        try:
            yield
        finally:
            self.connections -= 1

    async def arun(self, body: dict[str, Any]) -> AsyncGenerator[Event]:
        self.bodies.append(body)
        self.together += 1
        self.most = max(self.most, self.together)
        try:
            for event in self._answer(body):
                await asyncio.sleep(0)
                if isinstance(event, asyncio.Event):
                    await event.wait()
                elif isinstance(event, Exception):
                    raise event
                else:
                    yield event
        finally:
            self.together -= 1


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.0)


def rows(*prompts: str) -> list[tuple[int, Result]]:
    return [(number, Result(prompt=prompt)) for number, prompt in enumerate(prompts)]


def run(client: Any, asked: list[tuple[int, Result]], concurrency: int = 2, **extras: str) -> tuple[Batch, list[int]]:
    ended: list[int] = []
    batch = Batch(client, concurrency, extras)
    assert batch.run(asked, ended.append, lambda: None)
    return batch, ended


def test_every_row_is_asked_once_and_told_when_it_ends() -> None:
    client = Asked()
    asked = rows(*"abcde")
    batch, ended = run(client, asked)
    assert [result.text for _, result in asked] == list("abcde")
    assert sorted(ended) == [0, 1, 2, 3, 4]
    assert sorted(body["prompt"] for body in client.bodies) == list("abcde")
    assert (batch.answered, batch.failed, batch.tokens, client.connections) == (5, 0, 5, 0)


@pytest.mark.parametrize("concurrency", [1, 2, 7])
def test_as_many_are_in_flight_as_may_be(concurrency: int) -> None:
    full = asyncio.Event()

    def answer(body: dict[str, Any]) -> list[Any]:
        if client.together == concurrency:
            full.set()
        return [full, *said("x")]

    client = Asked(answer)
    run(client, rows(*"abcdefghij"), concurrency)
    assert client.most == concurrency


def test_rows_are_taken_as_there_is_room_for_them_and_let_go_when_they_end() -> None:
    """Of a large one no other is beside it, and of small ones a few are ready."""
    taken: list[Result] = []

    def written(*sizes: int) -> Iterator[tuple[int, Result]]:
        for number, size in enumerate(sizes):
            taken.append(Result(messages=[{"role": "user", "content": [{"url": "x" * size}]}]))
            yield number, taken[-1]

    def answer(body: dict[str, Any]) -> list[Any]:
        ahead.append(len(taken) - len(client.bodies) + 1)
        return said("x")

    for sizes, most in (([1] * 100, 2 + 2 + 1), ([module.MOST_CHARACTERS // 2 + 1] * 6, 1 + 1)):
        ahead: list[int] = []
        taken.clear()
        client = Asked(answer)
        batch = Batch(client, 2, {})
        assert batch.run(written(*sizes), lambda number: None, lambda: None)
        assert batch.answered == len(sizes)
        assert max(ahead) <= most
        assert not any(result.messages for result in taken)


def test_a_failure_where_rows_come_from_ends_what_is_in_flight() -> None:
    def written() -> Iterator[tuple[int, Result]]:
        yield from rows("a")
        raise LookupError("no more")

    client = Asked(lambda body: [asyncio.Event()])
    with pytest.raises(LookupError):
        Batch(client, 2, {}).run(written(), lambda number: None, lambda: None)
    assert (client.together, client.connections) == (0, 0)


def test_no_rows_are_none() -> None:
    batch, ended = run(Asked(), [])
    assert (batch.answered, batch.failed, ended) == (0, 0, [])


def test_what_a_row_asks_goes_with_what_all_ask() -> None:
    client = Asked(lambda body: said("x"))
    media, messages = [{"type": "image_url"}], [{"role": "user", "content": "hi"}]
    asked = [
        (0, Result(prompt="a", media=media, params={"top_k": 1})),
        (1, Result(messages=messages)),
    ]
    run(client, asked, 1, adapter="poet")
    common = {"adapter": "poet", "stream": False}
    assert client.bodies == [
        {"prompt": "a", "media": media, "params": {"top_k": 1}, **common},
        {"messages": messages, "params": {}, **common},
    ]


@pytest.mark.parametrize(
    ("error", "words", "tries"),
    [
        (InvalidRequest("too long"), "too long", 1),
        (Unavailable("full"), "full", TRIES),
        (KeyError("odd"), "KeyError: 'odd'", 1),
    ],
)
def test_a_row_that_fails_leaves_the_others_alone(error: Exception, words: str, tries: int) -> None:
    client = Asked(lambda body: [error] if body["prompt"] == "b" else said("x"))
    asked = rows(*"abc")
    batch, ended = run(client, asked)
    assert [result.error for _, result in asked] == [None, words, None]
    assert (batch.answered, batch.failed) == (2, 1)
    assert sorted(ended) == [0, 1, 2]
    assert sum(body["prompt"] == "b" for body in client.bodies) == tries


@pytest.mark.parametrize("failures", [1, TRIES - 1])
def test_a_server_that_cannot_just_now_is_asked_again(failures: int) -> None:
    left = [Unavailable("full")] * failures
    client = Asked(lambda body: [left.pop()] if left else said("ok"))
    ((_, result),) = asked = rows("a")
    batch, _ = run(client, asked)
    assert (result.text, result.finish_reason, result.error) == ("ok", "stop", None)
    assert (batch.failed, batch.tokens, len(client.bodies)) == (0, 2, failures + 1)


def test_what_broke_off_in_its_middle_is_asked_once_more_from_the_start() -> None:
    half: list[Any] = [("delta", {"text": "half"}), Unavailable("gone")]
    left = [half]
    ((_, result),) = asked = rows("a")
    run(Asked(lambda body: left.pop() if left else said("whole")), asked)
    assert result.text == "whole"
    client = Asked(lambda body: half)
    ((_, result),) = asked = rows("a")
    batch, _ = run(client, asked)
    assert (result.error, batch.answered, len(client.bodies)) == ("gone", 0, 2)


def test_a_failure_of_whoever_is_told_is_raised_as_it_is() -> None:
    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        Batch(Asked(), 4, {}).run(rows(*"abcdefgh"), full, lambda: None)


def test_what_is_asked_of_another_model_ends_all() -> None:
    client = Asked(lambda body: [Conflict("it was unloaded")] if body["prompt"] == "b" else said("x"))
    batch = Batch(client, 1, {})
    assert batch.run(rows(*"abc"), lambda number: None, lambda: None) is False
    assert (batch.answered, batch.failed, batch.change) == (1, 0, "it was unloaded")
    assert (client.together, client.connections, len(client.bodies)) == (0, 0, 2)


def test_all_answers_are_of_the_model_of_the_first() -> None:
    def answer(body: dict[str, Any]) -> list[Any]:
        (_, done) = said("x")
        return [("delta", {"text": "x"}), (done[0], {**done[1], "identity": body["prompt"]})]

    for prompts, known, count in (("mmnm", "", 2), ("mmm", "m", 3), ("mm", "n", 0), (["", "m", "", "n"], "", 3)):
        batch = Batch(Asked(answer), 1, {})
        assert not known or batch.is_of(known)
        whole = batch.run(rows(*prompts), lambda number: None, lambda: None)
        assert (batch.answered, whole) == (count, count == len(prompts))
        assert batch.change == ("" if whole else "another model answers now than answered first")
        assert batch.model == (known or "m")


def test_an_interrupt_ends_what_is_in_flight_and_keeps_what_had_ended() -> None:
    begun = threading.Event()

    def answer(body: dict[str, Any]) -> list[Any]:
        if body["prompt"] == "b":
            begun.set()
            return [asyncio.Event()]
        return said(body["prompt"])

    def tick() -> None:
        if begun.is_set():
            _thread.interrupt_main()

    client = Asked(answer)
    batch = Batch(client, 1, {})
    assert batch.run(rows(*"abc"), lambda number: None, tick) is False
    assert (batch.answered, batch.failed, client.together, client.connections) == (1, 0, 0, 0)


def test_an_interrupt_between_two_tries_leaves_a_row_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_SECONDS", 60.0)
    client = Asked(lambda body: [Unavailable("full")])
    asked = rows("a")

    def tick() -> None:
        if client.bodies and not client.together:
            _thread.interrupt_main()

    assert Batch(client, 1, {}).run(asked, lambda number: None, tick) is False
    assert (asked[0][1].error, asked[0][1].finish_reason) == (None, None)


def test_what_the_server_says_of_a_row_is_its_error() -> None:
    event = ("error", {"error": {"message": "no such adapter", "code": 404}})
    ((_, result),) = asked = rows("a")
    run(Asked(lambda body: [event]), asked)
    assert result.error == "no such adapter"
