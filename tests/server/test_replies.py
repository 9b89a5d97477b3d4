"""Answers find who asked."""

import asyncio

import pytest

from nbgen.errors import EngineStopped
from nbgen.server.replies import Replies


async def test_each_answer_goes_to_who_asked_for_it() -> None:
    replies = Replies[int]()
    first, second = replies.ask("first"), replies.ask("second")
    replies.answer("second", 2)
    replies.answer("first", 1)
    assert (await first, await second) == (1, 2)
    assert not replies


async def test_who_has_gone_is_not_answered() -> None:
    replies = Replies[int]()
    replies.ask("gone").cancel()
    assert replies
    replies.answer("gone", 1)
    replies.ask("forgotten")
    replies.forget("forgotten")
    assert not replies


async def test_what_is_asked_after_others_were_taken_is_not_lost_with_them() -> None:
    replies = Replies[int]()
    before = replies.ask("before")
    replies.ask("gone").cancel()
    taken, after = replies.taken(), replies.ask("after")
    taken.lost(EngineStopped("the engine stopped"))
    replies.answer("after", 1)
    with pytest.raises(EngineStopped):
        await before
    assert await asyncio.wait_for(after, 1) == 1
