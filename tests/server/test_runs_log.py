"""Runs without an engine: what is kept, and for how long."""

import gc
import logging
import time
import weakref
from collections.abc import Iterator
from itertools import chain, repeat

import pytest

from nbgen.engine_config import EngineConfig
from nbgen.engine_state import EngineStatus
from nbgen.errors import Conflict, InvalidRequest, NotFound, Unavailable
from nbgen.messages import AnswerPart, ChatMessage, FinishReason, GenerateOutput, GenerateRequest, Media
from nbgen.protocols.native import Message
from nbgen.sampling_params import SamplingParams
from nbgen.server import chats as chats_module
from nbgen.server import runs as runs_module
from nbgen.server.engine_client import EngineClient
from nbgen.server.metrics import Metrics
from nbgen.server.run_events import RunEvents, take
from nbgen.server.runs import Run, Runs

DONE = FinishReason(type="stop", matched=0)


class SilentEngine(EngineClient):
    """Takes requests and never answers."""

    def __init__(self) -> None:
        super().__init__(EngineConfig(), logging.getLogger("test"))
        self.aborted: list[str] = []

    def submit(self, request: GenerateRequest, listener: object) -> None:
        pass

    def abort(self, rid: str) -> None:
        self.aborted.append(rid)


@pytest.fixture
def engine() -> SilentEngine:
    return SilentEngine()


@pytest.fixture
def runs(engine: SilentEngine) -> Iterator[Runs]:
    return Runs(engine, lambda: None)


def start(runs: Runs, id: str, *, kept: bool = True, chat: str | None = None, n: int = 1) -> Run:
    run = Run(GenerateRequest(rid=id, text="a", params=SamplingParams(n=n)), kept=kept, chat=chat)
    runs.start(run)
    return run


def end(run: Run) -> None:
    for index in range(len(run.samples)):
        run.add(
            GenerateOutput(rid=run.id, index=index, text="x", token_ids=[1], completion_tokens=1, finish_reason=DONE)
        )


def test_activity_is_told_while_runs_are_alive() -> None:
    told: list[int] = []
    runs = Runs(SilentEngine(), lambda: told.append(len(runs)))
    run = start(runs, "r")
    runs.sweep()
    end(run)
    runs.sweep()
    assert told == [1, 1, 0], "at its start, while it lives, at its end, and no more"


def tokens(run: Run, *counts: int) -> list[GenerateOutput]:
    """Outputs with one token each, after which there are so many."""
    return [GenerateOutput(rid=run.id, index=0, token_ids=[1], completion_tokens=count) for count in counts]


def test_how_fast_tokens_come_is_told_only_where_they_took_time(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = chain([0.0, 10.0, 10.004, 10.5], repeat(12.0))
    monkeypatch.setattr(runs_module.time, "monotonic", lambda: next(clock))
    run = start(runs, "r")
    assert run.tokens_per_s is None
    run.add(*tokens(run, 1, 2, 3))
    assert run.tokens_per_s is None, "all came at once"
    run.add(*tokens(run, 4))
    assert run.tokens_per_s is None, "nearly so"
    run.add(*tokens(run, 5))
    assert run.tokens_per_s == 2 / 0.5, "those that came first took nobody knows how long"
    run.add(GenerateOutput(rid="r", index=0, completion_tokens=5, finish_reason=DONE))
    assert (run.ttft_s, run.tokens_per_s) == (10.0, 4.0), "the end brings no token"


def test_an_id_in_flight_is_a_conflict_and_free_after_its_end(runs: Runs) -> None:
    run = start(runs, "r", kept=False)
    with pytest.raises(Conflict):
        start(runs, "r")
    end(run)
    start(runs, "r")


def test_only_kept_runs_are_found_after_their_end(runs: Runs) -> None:
    end(start(runs, "kept"))
    end(start(runs, "other", kept=False))
    assert runs.get("kept").samples[0].text == "x"
    with pytest.raises(NotFound):
        runs.get("other")


def test_a_run_ends_when_all_its_samples_have(runs: Runs) -> None:
    run = start(runs, "r", n=2)
    run.add(GenerateOutput(rid="r", index=0, finish_reason=DONE))
    assert run.ended is None
    run.add(GenerateOutput(rid="r", index=1, finish_reason=DONE))
    assert runs.state(run) == "done"


def test_an_error_of_the_engine_is_the_runs_error(runs: Runs) -> None:
    run = start(runs, "r")
    reason = FinishReason(type="error", message="too long", status=400)
    run.add(GenerateOutput(rid="r", finish_reason=reason))
    assert isinstance(run.error, InvalidRequest)
    assert runs.state(run) == "error"


def test_where_one_sample_fails_the_others_end(runs: Runs, engine: SilentEngine) -> None:
    run = start(runs, "r", n=3)
    run.add(GenerateOutput(rid="r", index=0, token_ids=[1]))
    run.add(GenerateOutput(rid="r", index=1, finish_reason=FinishReason(type="error", message="no token is allowed")))
    assert (run.error is not None, engine.aborted) == (True, ["r"])
    end(start(runs, "well", n=3))
    assert engine.aborted == ["r"]


def test_what_is_kept_is_bounded_in_number_and_size(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs_module, "KEEP_RUNS", 3)
    for number in range(5):
        end(start(runs, f"r{number}", chat=f"c{number}"))
    assert [number for number in range(5) if runs.find(f"r{number}")] == [2, 3, 4]
    assert runs.chats.open("c0").newest is None
    monkeypatch.setattr(runs_module, "KEEP_OUTPUTS", 1)
    runs.sweep()
    assert [number for number in range(5) if runs.find(f"r{number}")] == [4]


def test_what_is_kept_is_bounded_in_what_was_asked(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs_module, "KEEP_BYTES", 10_000)
    asked = Message(role="assistant", content="a", reasoning_content="x" * 4000)
    for number in range(4):
        run = Run(GenerateRequest(rid=f"r{number}", text="a"), kept=True, messages=[asked])
        runs.start(run)
        end(run)
    assert [number for number in range(4) if runs.find(f"r{number}")] == [2, 3]


def test_what_is_kept_is_bounded_in_time(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    end(start(runs, "r"))
    monkeypatch.setattr(runs_module, "KEEP_SECONDS", 0.0)
    runs.sweep()
    assert runs.find("r") is None


def test_a_run_that_nobody_keeps_any_more_is_freed_at_once(engine: SilentEngine) -> None:
    """Garbage in a cycle would wait for a full collection, which hardly ever comes."""
    runs = Runs(engine, lambda: None, Metrics(engine).follow)
    gc.disable()
    try:
        run = start(runs, "r", kept=False)
        alive = weakref.ref(run)
        end(run)
        del run
        assert alive() is None
    finally:
        gc.enable()


def test_a_run_that_is_refused_is_freed_at_once(engine: SilentEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(request: GenerateRequest, listener: object) -> None:
        raise Unavailable("the server is stopping")

    monkeypatch.setattr(engine, "submit", refuse)
    runs = Runs(engine, lambda: None, Metrics(engine).follow)
    gc.disable()
    try:
        run = Run(GenerateRequest(rid="r", text="a"))
        alive = weakref.ref(run)
        with pytest.raises(Unavailable):
            runs.start(run)
        del run
        assert alive() is None
        assert not len(runs)
    finally:
        gc.enable()


def test_a_watchers_fault_is_its_own(runs: Runs, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise ValueError("ours")

    run, called = start(runs, "r"), []
    run.watchers |= {fail, lambda: called.append("told")}
    run.end_watchers |= {fail, lambda: called.append("ended")}
    end(run)
    assert (called, len(runs), len(caplog.records)) == (["told", "ended"], 0, 2)


def test_too_many_alive_are_refused(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs_module, "MAX_LIVE", 1)
    start(runs, "r")
    with pytest.raises(Unavailable, match="queue is full"):
        start(runs, "s")


def test_images_of_all_runs_have_a_limit_and_are_let_go_with_their_run(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs_module, "MAX_MEDIA_BYTES", 1000)

    def seeing(id: str) -> Run:
        image = Media(type="image", data=memoryview(bytes(600)))
        return Run(GenerateRequest(rid=id, messages=[ChatMessage(role="user", content="a")], media=[image]))

    first = seeing("first")
    runs.start(first)
    with pytest.raises(Unavailable, match="images and sounds in it have 600 bytes"):
        runs.start(seeing("second"))
    start(runs, "text")
    end(first)
    assert (first.request.media, first.request.messages) == ([], None)
    runs.start(seeing("second"))


def test_a_chat_that_is_full_takes_no_question(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chats_module, "KEEP_CHARACTERS", 10)
    messages = [Message(role="user", content="a question")]
    request = GenerateRequest(rid="one", text="a")
    runs.start(Run(request, kept=True, chat="c", messages=messages))
    with pytest.raises(InvalidRequest, match="'c' has 10 characters, and all chats keep 10: begin another") as refused:
        start(runs, "two", chat="c")
    assert refused.value.field == "chat"
    assert (len(runs), runs.chats.find("c").messages()) == (1, messages)
    start(runs, "three", chat="other")


def test_the_places_of_many_in_the_queue_are_counted_at_once(runs: Runs, engine: SilentEngine) -> None:
    engine.status = EngineStatus(waiting=2000)
    started = [start(runs, str(number)) for number in range(2000)]
    followed = [RunEvents(run, 0, runs, engine) for run in started[-500:]]
    assert b'"place":1500,' in take(followed, runs)

    def seconds() -> float:
        began = time.process_time()
        assert take(followed, runs) == b""
        return time.process_time() - began

    assert min(seconds() for _ in range(3)) < 0.1, "not so where garbage is looked for just then"
    end(started[0])
    assert b'"place":1499,' in take(followed, runs)


def test_the_end_of_a_thought_that_was_held_back_comes_without_a_token(runs: Runs, engine: SilentEngine) -> None:
    run = start(runs, "r")
    run.add(GenerateOutput(rid="r", text="<think>h", token_ids=(5,), parts=[AnswerPart(reasoning="h")]))
    events = RunEvents(run, 0, runs, engine)
    assert b'"reasoning":"h"' in take([events], runs)
    aborted = FinishReason(type="abort")
    run.add(GenerateOutput(rid="r", text="<", parts=[AnswerPart(reasoning="<")], finish_reason=aborted))
    assert b'"reasoning":"<"' in take([events], runs)
