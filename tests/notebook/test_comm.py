"""The transport through the kernel: runs in numbered pieces, a model's memory, and failures in words."""

from contextlib import closing
from pathlib import Path
from typing import Any

import nbgen
from nbgen.notebook.comm import CommRuns, RunPieces
from nbgen.notebook.connection import Call
from nbgen.notebook.private_server import PrivateServer
from tests.conftest import wait_for


def collected(runs: list[dict[str, Any]], run: str) -> str:
    return "".join(message["text"] for message in runs if message["type"] == "delta" and message["run"] == run)


def test_runs_go_through_the_kernel_in_numbered_pieces(connected: PrivateServer) -> None:
    sent: list[dict[str, Any]] = []
    runs = CommRuns(lambda: connected.client, sent.append)
    body = {"id": "comm-1", "chat": "comm", "messages": [{"role": "user", "content": "x"}], "prefix_ids": [65]}
    runs.receive({"type": "start", "body": {**body, "params": {"max_new_tokens": 60, "temperature": 0}}})
    wait_for(lambda: sent[-1].get("event") == "done", "the run ended")
    assert [message["type"] for message in sent[:2]] == ["heard", "started"]
    assert sent[1]["prefix_ids"] == [65], "other views know what the answer begins with"
    snapshot = connected.client.snapshot("comm-1")
    assert collected(sent, "comm-1") == snapshot["text"]
    deltas = [message for message in sent if message["type"] == "delta"]
    assert [message["from"] for message in deltas] == [0, *(message["to"] for message in deltas[:-1])]
    assert sent[-1]["to"] == deltas[-1]["to"]
    before = len(sent)
    runs.receive({"type": "need", "run": "comm-1", "from": 0})
    assert collected(sent[before:], "comm-1") == snapshot["text"]
    assert sent[-1]["event"] == "done"


def told(sent: list[dict[str, Any]]) -> int:
    """How many messages there are beside those of progress."""
    return sum(message["type"] != "progress" for message in sent)


def test_released_memory_is_resumed_through_the_kernel(connected: PrivateServer) -> None:
    sent: list[dict[str, Any]] = []
    runs = CommRuns(lambda: connected.client, sent.append)
    connected.client.json(Call("POST", "release_memory_occupation", {}))
    for number, (kind, expected) in enumerate([("model", "released"), ("load", None), ("model", "ready")], 1):
        runs.receive({"type": kind})
        wait_for(lambda count=2 * number: told(sent) == count, "it is answered")
        assert sent[-1]["type"] == kind
        assert sent[-1].get("state") == expected
        assert sent[-1]["error"] is None


def test_failures_reach_the_panel_in_words(tmp_path: Path) -> None:
    dead = nbgen.Client("http://127.0.0.1:9/")
    sent: list[dict[str, Any]] = []
    runs = CommRuns(lambda: dead, sent.append)
    runs.receive({"type": "start", "body": {"id": "r", "messages": []}})
    runs.receive({"type": "cancel", "run": "r"})
    runs.receive({"type": "chat", "chat": "c"})
    runs.receive({"type": "model"})
    runs.receive({"type": "load"})
    wait_for(lambda: len(sent) == 11, "all is answered")
    failures = [message for message in sent if message["type"] not in ("heard", "started")]
    assert len(failures) == 5
    assert all("nothing answers" in str(message) for message in failures)
    dead.close()


def test_pieces_are_sent_again_from_where_they_are_missing() -> None:
    sent: list[dict[str, Any]] = []
    pieces = RunPieces("r", sent.append, lambda: nbgen.Client("http://127.0.0.1:9/"))
    for letter in "abcd":
        pieces.add("delta", {"text": letter, "tokens": 1, "tool_call_deltas": [letter]})
    pieces.add("done", {"usage": {}})
    assert collected(sent, "r") == "abcd"
    assert [each for message in sent for each in message.get("tool_call_deltas", ())] == list("abcd")
    assert sent[-1]["data"] == {"usage": {}, "run": "r"}, "the panel knows whose end it is, whatever the server's kind"
    assert pieces.turn() == {"role": "assistant", "run": "r", "content": "abcd", "usage": {}}
    sent.clear()
    pieces.send_from(2)
    assert [message.get("text") or message["event"] for message in sent] == ["cd", "done"]


def test_a_page_that_is_new_hears_of_a_run_whose_server_keeps_no_chats(connected: PrivateServer) -> None:
    with closing(nbgen.connect(connected.url.removesuffix("nbgen/"), connected.client.token, kind="openai")) as other:
        sent: list[dict[str, Any]] = []
        hears_of_a_run(CommRuns(lambda: other, sent.append), sent)


def hears_of_a_run(runs: CommRuns, sent: list[dict[str, Any]]) -> None:
    question = {"role": "user", "content": "What is 3 + 4?"}
    params = {"max_new_tokens": 40, "temperature": 0, "ignore_eos": True}

    def told() -> dict[str, Any]:
        before = sum(message["type"] == "chat" for message in sent)
        runs.receive({"type": "chat", "chat": "moved"})
        wait_for(lambda: sum(message["type"] == "chat" for message in sent) > before, "it is answered")
        return [message["snapshot"] for message in sent if message["type"] == "chat"][-1]

    assert told()["turns"] == []
    runs.start({"id": "r1", "chat": "moved", "messages": [question], "params": params})
    begun = told()
    assert begun["run"]["run"] == "r1"
    asked, answer = begun["turns"]
    assert asked == {**question, "parent": None}
    assert (answer["run"], answer["parent"]) == ("r1", 0)
    wait_for(lambda: any(message.get("event") == "done" for message in sent), "the run ended")
    ended = told()
    assert ended["run"]["state"] == "done"
    assert ended["turns"][1]["content"] == collected(sent, "r1") != ""
    assert ended["turns"][1]["finish_reason"]["type"] == "length"
