"""What the monitor's kernel side answers to a page that cannot reach the server."""

from pathlib import Path
from typing import Any

import pytest

import nbgen
from nbgen.notebook import session
from nbgen.notebook.private_server import PrivateServer
from tests.conftest import wait_for


class Heard(list[dict[str, Any]]):
    """The messages that a widget sent."""

    def wait(self, kind: str) -> dict[str, Any]:
        return wait_for(lambda: next((message for message in self if message["type"] == kind), None), kind)


@pytest.fixture
def heard(connected: PrivateServer, monkeypatch: pytest.MonkeyPatch) -> Heard:
    messages = Heard()
    monkeypatch.setattr("nbgen.notebook.monitor.Monitor.send", lambda self, message: messages.append(message))
    return messages


def test_a_look_is_answered_with_the_model(heard: Heard) -> None:
    monitor = nbgen.monitor(transport="comm")
    monitor._receive({"type": "look"})
    assert heard.wait("model")["model"]["state"] == "ready"
    assert "ready" in repr(monitor)


@pytest.mark.parametrize("message", ["look", "unload", "stop"])
def test_a_look_starts_no_server_where_one_was_stopped(
    heard: Heard, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monitor = nbgen.monitor()
    monkeypatch.setattr(session, "_client", None)
    monkeypatch.setattr(session, "_start", lambda *_: pytest.fail("a server was started"))
    monitor._receive({"type": message})
    error = heard.wait("error")
    assert (error["asked"], "no nbgen server found" in error["message"]) == (message, True)
    assert "no nbgen server found" in repr(monitor)


def test_answers_that_nobody_can_reach_are_stopped(heard: Heard, connected: PrivateServer) -> None:
    params = {"max_new_tokens": 15_000, "ignore_eos": True}
    events = connected.client.run({"id": "left", "prompt": "hi", "params": params, "attached": False})
    next(events)
    events.close()
    nbgen.monitor()._receive({"type": "stop"})
    state = wait_for(lambda: (run := connected.client.snapshot("left"))["finish_reason"] and run, "the end")
    assert state["finish_reason"]["type"] == "abort"


def test_a_server_that_is_gone_is_said(heard: Heard, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = nbgen.monitor()
    monkeypatch.setattr("nbgen.notebook.session._client", nbgen.Client("http://127.0.0.1:9/"))
    monitor._receive({"type": "look"})
    assert "nothing answers" in heard.wait("error")["message"]
