"""The completion panel's Python side."""

import pytest

import nbgen
from nbgen.errors import InvalidRequest
from nbgen.notebook.private_server import PrivateServer
from tests.conftest import wait_for


def test_options_and_the_number_of_alternatives_are_checked(connected: PrivateServer) -> None:
    stream = nbgen.Stream("Once", max_new_tokens=5, alternatives=3)
    assert (stream.prompt, stream.alternatives, stream.params) == ("Once", 3, {"max_new_tokens": 5})
    with pytest.raises(InvalidRequest, match="did you mean 'temperature'"):
        nbgen.Stream("Once", temprature=1)
    with pytest.raises(InvalidRequest):
        nbgen.Stream("Once", alternatives=21)
    stream.close()


def test_its_text_is_the_prompt_and_what_came_of_it(connected: PrivateServer) -> None:
    stream = nbgen.Stream("Once", max_new_tokens=5, temperature=0)
    assert stream.text == ""
    body = {"id": "stream-1", "chat": stream.chat, "prompt": "Once", "params": stream.params, "logprobs": 2}
    stream._receive({"type": "start", "body": body})
    run = wait_for(
        lambda: (run := connected.client.chat(stream.chat)["run"]) and run["state"] == "done" and run, "it ended"
    )
    assert stream.text == "Once" + run["text"]
    assert len(run["text"]) > 0
    stream.close()


def test_its_text_is_known_where_the_server_keeps_none(
    connected: PrivateServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = nbgen.generate("Once", complete=True, max_new_tokens=5, temperature=0).text
    monkeypatch.setattr("nbgen.notebook.session._client", None)
    client = nbgen.connect(connected.url.removesuffix("nbgen/"), connected.client.token, kind="openai")
    stream = nbgen.Stream("Once", max_new_tokens=5, temperature=0)
    assert stream.text == ""
    stream._receive({"type": "start", "body": {"id": "a", "prompt": "Once", "params": stream.params}})
    wait_for(lambda: not stream._runs.live(), "it ended")
    assert stream.text == f"Once{whole}"
    stream.close()
    client.close()
