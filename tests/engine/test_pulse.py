"""An engine's status is sent again while its thread computes, and only then."""

import math
import threading
import time

import pytest

from nbgen.engine import pulse
from nbgen.engine_state import EngineStatus, LoadProgress

pytestmark = pytest.mark.usefixtures("little_garbage")  # looking for it takes a processor, too


@pytest.fixture(autouse=True)
def looks_when_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not by itself, where the machine takes seconds for the test."""
    monkeypatch.setattr(pulse.Pulse, "_run", lambda beating: None)


def compute() -> None:
    """Use as much of a processor as who computes does."""
    end = time.thread_time() + 2 * pulse.USED_SECONDS
    while time.thread_time() < end:
        pass


def test_all_threads_of_a_process_that_loads_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "USED_SECONDS", 0.05)
    said: list[object] = []
    with pulse.Pulse(said.append, whole=True) as beating:
        beating.say(progress := LoadProgress("reading weights", 1, 2))
        for work in (lambda: None, compute):
            beating._said -= pulse.LOOK_SECONDS
            beating.look()
            del said[:]
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        beating.look()
    assert said == [progress]


@pytest.mark.parametrize("clock", ["thread's", "process's"])
@pytest.mark.parametrize(
    ("device", "run_seconds", "longest"),
    [("cpu", None, math.inf), ("cpu", 1.0, pulse.LONGEST), ("cpu", 900.0, 900.0), ("cuda", 900.0, pulse.LONGEST)],
)
def test_who_waits_falls_silent(
    device: str, run_seconds: float | None, longest: float, clock: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And who computes without end: on a GPU whoever waits for it seems to, on a CPU nobody waits so long."""
    if clock == "process's":
        monkeypatch.delattr(time, "pthread_getcpuclockid", raising=False)
    monkeypatch.setattr(pulse, "USED_SECONDS", 0.05)
    status, said = EngineStatus(running=1), []
    with pulse.Pulse(said.append, device, run_seconds) as beating:
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
        beating._said = time.monotonic() - min(longest, 1e6) + 60
        compute()
        beating.look()
        assert said == [status] * 3, "that may be so long"
        beating._said -= 60
        compute()
        beating.look()
        assert said == [status] * (4 if longest == math.inf else 3)
