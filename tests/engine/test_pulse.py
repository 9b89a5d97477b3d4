"""An engine's status is sent again while its thread computes, and only then."""

import time

import pytest

from nbgen.engine import pulse
from nbgen.engine_state import EngineStatus


def compute() -> None:
    """Use as much of a processor as who computes does."""
    end = time.thread_time() + 2 * pulse.USED_SECONDS
    while time.thread_time() < end:
        pass


@pytest.mark.parametrize("clock", ["thread's", "process's"])
@pytest.mark.parametrize(("device", "forever"), [("cpu", True), ("cuda", False)])
def test_who_waits_falls_silent(device: str, forever: bool, clock: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And who seems to compute on a GPU without end, for whoever waits for a GPU uses a processor."""
    if clock == "process's":
        monkeypatch.delattr(time, "pthread_getcpuclockid", raising=False)
    monkeypatch.setattr(pulse, "USED_SECONDS", 0.05)
    status, said = EngineStatus(running=1), []
    with pulse.Pulse(said.append, device) as beating:
        beating.say(status)
        compute()
        beating.look()
        assert said == [status], "it has just been said"
        beating._said -= pulse.LOOK_SECONDS
        beating.look()
        assert said == [status], "nothing has been computed since the last look"
        compute()
        beating.look()
        assert said == [status] * 2
        beating._said -= pulse.LONGEST_ON_GPU
        compute()
        beating.look()
        assert said == [status] * (3 if forever else 2)
