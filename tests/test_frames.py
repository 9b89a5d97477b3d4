"""Frames between server and engine: what cannot be read is told to whom it concerns."""

import msgspec
import pytest

from nbgen import frames
from nbgen.messages import EmbedOutput, GenerateOutput, StepOutputs


class NoMemory:
    def decode(self, body: bytes) -> None:
        raise MemoryError


def test_answers_that_no_memory_is_left_for_are_refused_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    step = StepOutputs([GenerateOutput(rid="one"), GenerateOutput(rid="other"), GenerateOutput(rid="one", index=1)])
    vector = EmbedOutput(rid="vector", prompt_tokens=1, data=b"")
    answered = {msgspec.msgpack.encode(step): ["one", "other"], msgspec.msgpack.encode(vector): ["vector"]}
    assert [message for body in answered for message in frames.read_by_server(body)] == [step, vector]
    monkeypatch.setattr(frames, "from_engine_decoder", NoMemory())
    for body, rids in answered.items():
        refused = frames.read_by_server(body)
        assert [each.rid for each in refused if isinstance(each, frames.Unreadable) and each.status == 503] == rids
