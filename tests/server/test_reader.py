"""Who wakes, and when nobody has to."""

import asyncio
import gc
import weakref
from collections.abc import Callable

import pytest

from nbgen.errors import Unavailable
from nbgen.messages import FinishReason, GenerateOutput, GenerateRequest
from nbgen.server.generation_handler import GenerationHandler
from nbgen.server.reader import Reader
from nbgen.server.runs import Run


async def asleep(reader: Reader, *, at_once: Callable[[], bool], seconds: float | None = None) -> asyncio.Task[bool]:
    """A task that waits."""
    waiting = asyncio.create_task(reader.wait(seconds, at_once))
    await asyncio.sleep(0)
    return waiting


async def test_nobody_wakes_for_what_is_dealt_with_at_once() -> None:
    reader, left = Reader(), [True, True, False]
    waiting = await asleep(reader, at_once=lambda: left.pop(0))
    for remaining in (2, 1):
        reader.wake()
        await asyncio.sleep(0)
        assert not waiting.done()
        assert len(left) == remaining
    reader.wake()
    assert await waiting
    assert not await reader.wait(0.001), "it is told once"


async def test_what_happens_between_two_waits_is_told_by_the_next() -> None:
    reader = Reader()
    reader.wake()
    assert await reader.wait(at_once=lambda: True)


async def test_a_fault_at_once_is_raised_where_it_is_waited() -> None:
    reader = Reader()

    def fail() -> bool:
        raise ValueError("ours")

    waiting = await asleep(reader, at_once=fail)
    reader.wake()
    with pytest.raises(ValueError, match="ours"):
        await waiting


async def test_who_leaves_within_it_wakes_the_writer() -> None:
    reader = Reader()

    def lose() -> bool:
        reader.leave()
        return False

    waiting = await asleep(reader, at_once=lose)
    reader.wake()
    assert await waiting
    assert reader.gone


async def test_a_quiet_time_ends_the_wait_whatever_was_dealt_with_before() -> None:
    reader = Reader()
    waiting = await asleep(reader, at_once=lambda: True, seconds=0.01)
    reader.wake()
    assert await waiting is False


async def test_a_closed_reader_holds_nobody() -> None:
    """A handler holds its reader: with a cycle its large body would wait for the collector."""
    reader = Reader()

    def go_on() -> bool:
        return False

    waiting, alive = await asleep(reader, at_once=go_on), weakref.ref(go_on)
    reader.wake()
    await waiting
    reader.close()
    del waiting, go_on
    assert alive() is None


class Whole(GenerationHandler):
    """A handler of no connection, which answers whole."""

    def __init__(self) -> None:
        self.reader, self.wakes = Reader(), 0
        self.wake, self.reader.wake = self.reader.wake, self._count

    def _count(self) -> None:
        self.wakes += 1
        self.wake()

    def whole(self, runs: list[Run]) -> bytes:
        return b" ".join(run.text.encode() for run in runs)

    async def write_whole(self, body: bytes) -> None:
        self.written = body


async def test_a_run_whose_error_was_raised_is_freed_with_it() -> None:
    """An error that a run keeps, and that kept its frames, would be garbage in a cycle."""
    handler, run = Whole(), Run(GenerateRequest(rid="a", text="a"))
    answer, alive = asyncio.create_task(handler._answer([run])), weakref.ref(run)
    await asyncio.sleep(0)
    run.fail(Unavailable("the engine was stopped"))
    gc.disable()
    try:
        await asyncio.wait([answer])
        assert "stopped" in str(answer.exception())
        del answer, run
        assert alive() is None
    finally:
        gc.enable()


async def test_who_is_answered_whole_wakes_for_ends_alone() -> None:
    handler, runs = Whole(), [Run(GenerateRequest(rid=rid, text="a")) for rid in "ab"]
    answer = asyncio.create_task(handler._answer(runs))
    await asyncio.sleep(0)
    for run in runs:
        for word in ("one", "two"):
            run.add(GenerateOutput(rid=run.id, text=word, token_ids=(1,)))
    assert handler.wakes == 0
    for run in runs:
        run.add(GenerateOutput(rid=run.id, text="!", finish_reason=FinishReason(type="stop")))
    await answer
    assert (handler.written, handler.wakes) == (b"onetwo! onetwo!", 2)
