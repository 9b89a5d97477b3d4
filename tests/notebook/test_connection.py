"""Calls over connections that do not carry them: every way of asking says so in words."""

from collections.abc import Callable
from typing import Any

import pytest

from nbgen.notebook.client import Client
from nbgen.notebook.comm import CommRuns
from nbgen.notebook.connection import Call, NoAnswer
from tests.conftest import wait_for


@pytest.fixture
def closed() -> Client:
    """The client of a server that `stop` has ended."""
    client = Client("http://127.0.0.1:9/")
    client.close()
    return client


@pytest.mark.parametrize(
    "ask",
    [
        lambda client, call: client.json(call),
        lambda client, call: client.framed(call),
        lambda client, call: next(client.stream(call)),
    ],
)
def test_a_closed_connection_is_said(closed: Client, ask: Callable[[Client, Call], Any]) -> None:
    with pytest.raises(NoAnswer, match="has been closed"):
        ask(closed, Call("GET", "api/v1/hello"))
    assert closed.lost


@pytest.fixture
def told(closed: Client) -> Callable[..., dict[str, Any]]:
    """What a panel hears of a message, after `heard`, where the server is gone."""
    said: list[dict[str, Any]] = []
    runs = CommRuns(lambda: closed, said.append)

    def answer(message: dict[str, Any], kind: str) -> dict[str, Any]:
        runs.receive(message)
        return wait_for(lambda: next((each for each in said if each["type"] == kind), None), kind)

    return answer


def test_a_panel_hears_of_it_whatever_it_asks(told: Callable[..., dict[str, Any]]) -> None:
    words = "has been closed"
    run = told({"type": "start", "body": {"id": "r", "prompt": "x"}}, "event")
    assert (run["event"], words in run["data"]["error"]["message"]) == ("error", True)
    assert words in told({"type": "chat", "chat": "c"}, "chat")["error"]
    assert words in told({"type": "model"}, "model")["error"]
    assert words in told({"type": "load"}, "load")["error"]
