"""A run's events become text and a result, whatever way the run ends."""

import asyncio
import copy
import pickle
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import Any

import pytest

from nbgen import sse
from nbgen.errors import Unavailable
from nbgen.notebook.client import Client
from nbgen.notebook.connection import Call
from nbgen.notebook.remote import RemoteClient
from nbgen.notebook.result import Result
from nbgen.notebook.text_stream import AWAITED, TextStream
from nbgen.notebook.triton_backend import TritonBackend
from tests.conftest import PATIENCE

DONE = {"finish_reason": {"type": "stop"}, "usage": {"completion_tokens": 2}, "ttft_s": 0.1, "tokens_per_s": 9.0}


def delta(text: str, index: int = 0) -> tuple[str, dict[str, Any]]:
    return "delta", {"text": text, "tokens": 1, "index": index}


def stream(*events: tuple[str, dict[str, Any]], steps: list[Any] | None = None) -> TextStream:
    return TextStream(iter(events), Result(), None if steps is None else steps.append)


def test_an_answer_is_its_deltas_and_its_end() -> None:
    events = [("run", {"model": "m", "state": "running"}), delta("a"), delta("", 0), delta("b"), ("done", DONE)]
    answer = stream(*events)
    assert repr(answer).startswith("<stream, not read yet: ")
    assert next(answer) == "a"
    assert repr(answer) == "<stream, open: 'a'>"
    assert list(answer) == ["b"]
    assert repr(answer) == "<stream, stop: 'ab'>"
    result = answer.result
    assert (result.text, result.model, result.finish_reason) == ("ab", "m", "stop")
    assert (result.usage, result.ttft_s, result.tokens_per_s) == ({"completion_tokens": 2}, 0.1, 9.0)


def test_tokens_that_came_at_once_have_no_rate() -> None:
    for done in ({**DONE, "tokens_per_s": None}, {key: DONE[key] for key in ("finish_reason", "usage")}):
        answer = stream(delta("a"), delta("b"), ("done", done))
        assert list(answer) == ["a", "b"]
        assert answer.result.tokens_per_s is None


def test_further_samples_are_not_mixed_into_the_text() -> None:
    answer = stream(delta("a"), delta("x", 2), delta("b"), delta("y", 2), ("done", DONE))
    assert list(answer) == ["a", "b"]
    assert answer.result.texts == ["ab", "", "xy"]
    assert answer.result.to_df().text.tolist() == ["ab", "", "xy"]


def test_progress_is_told_until_text_comes() -> None:
    steps: list[Any] = []
    events = [("run", {"model": "m"}), ("progress", {"stage": "weights"}), delta("a"), delta("b"), ("done", DONE)]
    list(stream(*events, steps=steps))
    assert steps == [{"model": "m", "stage": "weights"}, None, None]


def test_a_model_that_thinks_is_named_with_how_much_it_has_thought() -> None:
    steps: list[Any] = []
    thought = ("delta", {"text": "", "tokens": 3, "reasoning": "so"})
    list(stream(("run", {"model": "m"}), thought, delta("a"), ("done", DONE), steps=steps))
    assert steps == [{"model": "m", "stage": "thinking, 3 tokens"}, None, None]


@pytest.mark.parametrize(
    ("last", "words"),
    [
        ([("error", {"error": {"message": "the engine stopped", "code": 503}})], "the engine stopped"),
        ([], "before it was complete"),
    ],
)
def test_a_run_that_breaks_off_raises_and_keeps_its_text(last: list[Any], words: str) -> None:
    answer = stream(delta("a"), *last)
    with pytest.raises(Unavailable, match=words):
        list(answer)
    assert (answer.result.text, answer.result.finish_reason) == ("a", "error")
    assert list(answer) == []


@pytest.mark.parametrize("name", ["text", "usage", "value", "to_df"])
def test_who_forgot_to_read_it_is_told_where_the_answer_will_be(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"'{name}'; once it is read, its result has: \.result\.{name}$"):
        getattr(stream(delta("a")), name)
    with pytest.raises(AttributeError, match=r"no attribute 'txt'$"):
        stream(delta("a")).txt  # noqa: B018


def test_leaving_closes_the_connection() -> None:
    closed: list[bool] = []

    def events() -> Iterator[tuple[str, dict[str, Any]]]:
        try:
            yield delta("a")
            yield delta("b")
        finally:
            closed.append(True)

    for _ in TextStream(events(), Result()):
        break
    assert closed == [True]
    with TextStream(events(), Result()) as answer:
        next(answer)
    assert answer.result.finish_reason == "abort"
    assert closed == [True, True]


async def later(*events: tuple[str, dict[str, Any]]) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    for event in events:
        yield event


async def test_a_stream_is_read_by_async_for_and_by_await() -> None:
    events = [("run", {"model": "m"}), delta("a"), delta("b"), ("done", DONE)]
    answer = TextStream(iter(()), Result(), None, later(*events))
    assert [text async for text in answer] == ["a", "b"]
    assert answer.result.finish_reason == "stop"
    assert (await TextStream(iter(()), Result(), None, later(*events))).text == "ab"


async def test_a_stream_that_has_ended_can_be_awaited_again() -> None:
    events = [delta("a"), delta("b"), ("done", DONE)]
    answer = TextStream(iter(()), Result(), None, later(*events))
    assert await anext(answer) == "a"
    assert [text async for text in answer] == ["b"]
    assert [await answer, await answer] == [answer.result] * 2
    plain = TextStream(iter(events), Result(), None, later(*events))
    assert list(plain) == ["a", "b"]
    assert (await plain).text == "ab"
    one = TextStream(iter(()), Result(), None, later(*events))
    assert await asyncio.gather(one, one) == [one.result] * 2
    assert one.result.text == "ab"


async def test_tasks_take_a_stream_that_is_read_as_a_coroutine() -> None:
    events = [delta("a"), ("done", DONE)]
    answer = TextStream(iter(()), Result(), None, later(*events))
    with pytest.raises(TypeError, match=r"coroutine was expected.* asyncio's tasks take its \.read\(\)"):
        await asyncio.create_task(answer)  # type: ignore[arg-type]
    async with asyncio.TaskGroup() as group:
        task = group.create_task(answer.read())
    assert task.result() is answer.result
    assert answer.result.text == "a"


async def test_what_broke_a_stream_is_raised_as_often_as_it_is_awaited() -> None:
    answer = TextStream(iter(()), Result(), None, later(delta("a")))
    with pytest.raises(Unavailable, match="before it was complete"):
        [text async for text in answer]
    with pytest.raises(Unavailable, match="before it was complete"):
        await answer


def test_a_stream_goes_on_in_no_other_loop_than_its_own() -> None:
    async def events() -> AsyncGenerator[tuple[str, dict[str, Any]]]:
        yield delta("a")
        await asyncio.sleep(60)

    async def first(answer: TextStream) -> str:
        return await anext(answer)

    async def whole(answer: TextStream) -> Result:
        return await answer

    answer = TextStream(iter(()), Result(), None, events())
    assert asyncio.run(first(answer)) == "a"
    assert asyncio.run(whole(answer)).finish_reason == "abort"


async def test_a_stream_is_read_in_one_way() -> None:
    both = [TextStream(iter([delta("a")]), Result(), None, later(delta("a"))) for _ in range(2)]
    assert (next(both[0]), await anext(both[1])) == ("a", "a")
    with pytest.raises(TypeError, match="plain `for`"):
        await both[0]
    with pytest.raises(TypeError, match="`async for`"):
        next(both[1])


async def test_an_awaited_stream_reads_its_connection_to_the_end() -> None:
    ended: list[str] = []

    async def events(error: Exception | None) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        yield delta("a")
        yield "done", DONE
        ended.append("read out")
        if error is not None:
            raise error

    for error in (None, Unavailable("lost after the last word")):
        assert (await TextStream(iter(()), Result(), None, events(error))).text == "a"
    assert len(ended) == 2


async def test_an_awaited_stream_that_is_left_is_closed_down_to_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[bool] = []

    async def astream(call: Call) -> AsyncIterator[sse.Event]:
        try:
            while True:
                yield sse.Event('{"model_name": "m", "text_output": "a", "text": "a"}', "delta")
        finally:
            closed.append(True)

    clients = [Client("http://127.0.0.1:9/"), RemoteClient("http://127.0.0.1:9/", "", TritonBackend("m"))]
    for number, client in enumerate(clients, 1):
        monkeypatch.setattr(client, "astream", astream)
        async with aclosing(client.arun({"prompt": "x", "params": {}})) as events:
            while (await anext(events))[0] != "delta":
                pass
        assert len(closed) == number
        client.close()


def test_a_stream_cannot_be_copied_and_goes_on() -> None:
    answer = stream(delta("a"), delta("b"), ("done", DONE))
    for make in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="one reader"):
            make(answer)
    assert list(answer) == ["a", "b"]


def test_who_closes_a_stream_that_another_thread_reads_ends_it() -> None:
    reading, go_on, closed = threading.Event(), threading.Event(), threading.Event()

    def events() -> Iterator[tuple[str, dict[str, Any]]]:
        try:
            yield delta("a")
            reading.set()
            go_on.wait()
            yield delta("b")
        finally:
            closed.set()

    answer, said = TextStream(events(), Result()), list[str]()
    reader = threading.Thread(target=lambda: said.extend(answer))
    reader.start()
    reading.wait()
    answer.close()
    go_on.set()
    reader.join()
    assert closed.is_set()
    assert (said, answer.result.text, answer.result.finish_reason) == (["a"], "a", "abort")


@pytest.mark.parametrize("read", [TextStream.read, TextStream.read_at_once])
async def test_who_closes_a_stream_that_another_task_awaits_ends_it(read: Callable[..., Any]) -> None:
    said, closed = asyncio.Event(), list[bool]()

    async def events() -> AsyncGenerator[tuple[str, dict[str, Any]]]:
        try:
            while True:
                yield delta("a")
                said.set()
                await asyncio.sleep(0.01)
        finally:
            closed.append(True)

    answer = TextStream(iter(()), Result(), None, events())
    reader = asyncio.create_task(read(answer))
    await said.wait()
    await answer.aclose()
    text = answer.result.text
    assert closed == [True]
    assert await asyncio.wait_for(reader, PATIENCE) is answer.result
    assert (answer.result.text, answer.result.finish_reason) == (text, "abort")


async def test_an_awaited_stream_that_breaks_off_raises() -> None:
    answer = TextStream(iter(()), Result(), None, later(delta("a")))
    with pytest.raises(Unavailable, match="before it was complete"):
        await answer
    assert (answer.result.text, answer.result.finish_reason) == ("a", "error")
    assert answer.result.error == "the server ended the answer before it was complete"
    with pytest.raises(TypeError, match="plain `for`"):
        await stream(delta("a"))


async def test_no_more_are_awaited_at_once_than_servers_have_connections() -> None:
    most, reading = 0, 0

    async def events() -> AsyncGenerator[tuple[str, dict[str, Any]]]:
        nonlocal most, reading
        reading += 1
        most = max(most, reading)
        await asyncio.sleep(0.01)
        yield delta("a")
        reading -= 1
        yield "done", DONE

    def several() -> list[TextStream]:
        return [TextStream(iter(()), Result(), None, events()) for _ in range(3 * AWAITED)]

    found = await asyncio.gather(*several())
    assert [result.text for result in found] == ["a"] * 3 * AWAITED
    assert most == AWAITED
    await asyncio.gather(*(answer.read_at_once() for answer in several()))
    assert most == 3 * AWAITED
