"""Nobody waits, runs or reads for ever: limits of some seconds, and what each answer says."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.conftest import BUSY, PATIENCE, Server, events, slow_reader, wait_for
from tests.soak import soaking

SHORT = {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory, long_model: Path) -> Iterator[Server]:
    """A server that runs one sequence at a time and has little patience."""
    limits = {"max_running": 1, "queue_seconds": 2, "run_seconds": 5, "reader_seconds": 1}
    options = [f"--NbgenApp.{name}={value}" for name, value in limits.items()]
    options += ["--NbgenApp.incremental_streaming_output=True", "--NbgenApp.stream_interval=3"]
    server = Server(tmp_path_factory.mktemp("strict"), f"--model={long_model}", "--dtype=float32", *options)
    yield server.ready()
    server.stop()
    assert "Traceback" not in server.log.read_text()


class Call(threading.Thread):
    """A request of its own thread; `answer` and `seconds` are there when it has ended."""

    def __init__(self, server: Server, **body: Any) -> None:
        super().__init__()
        self._server, self._body = server, body
        self.answer: httpx.Response
        self.start()

    def run(self) -> None:
        started = time.monotonic()
        self.answer = self._server.http.post("generate", json=self._body)
        self.seconds = time.monotonic() - started


def busy(server: Server) -> Call:
    """Nothing of it can be guessed, so that it takes longer than it may."""
    call = Call(server, text="a", sampling_params=BUSY | {"temperature": 1})
    wait_for(lambda: (server.model()["status"] or {}).get("running"), "the request runs")
    return call


def test_who_waits_too_long_is_told_to_try_again_and_who_runs_too_long_keeps_the_text(strict: Server) -> None:
    first = busy(strict)
    waiting = Call(strict, text="b", sampling_params=SHORT)
    waiting.join(PATIENCE)
    assert waiting.answer.status_code == 503
    assert waiting.answer.headers["retry-after"]
    body = waiting.answer.json()
    assert (body["object"], body["code"]) == ("error", 503)
    assert "waited 2 seconds" in body["message"]
    first.join(PATIENCE)
    assert first.answer.status_code == 200
    reason = first.answer.json()["meta_info"]["finish_reason"]
    assert reason["type"] == "abort"
    assert "timeout" in reason["message"]
    assert len(first.answer.json()["output_ids"]) > 10
    assert first.seconds > 4.5
    strict.idle()


def test_tritons_clients_are_told_as_well_that_a_run_took_too_long(strict: Server) -> None:
    """Where no part of an answer is one: by a status for which nobody is at fault."""
    body = {"text_input": "a", "max_tokens": BUSY["max_new_tokens"], "ignore_eos": True, "temperature": 1}
    answer = strict.http.post("v2/models/long-llama/generate", json=body)
    words = "timeout: the request ran 5 seconds, as long as one may"
    assert (answer.status_code, answer.json()) == (503, {"error": words})
    strict.idle()


def test_health_is_told_while_all_places_are_taken(strict: Server) -> None:
    first = busy(strict)
    assert strict.http.get("health_generate").status_code == 200
    strict.http.post("abort_request", json={"abort_all": True})
    first.join(PATIENCE)
    strict.idle()


def test_a_batch_may_take_longer_than_one_may_wait(strict: Server) -> None:
    options = {**SHORT, "max_new_tokens": 150}
    answer = strict.http.post("generate", json={"text": list("abcdefghijklmnop"), "sampling_params": options})
    assert answer.status_code == 200, answer.text
    assert [len(item["output_ids"]) for item in answer.json()] == [150] * 16


def test_who_has_priority_is_served_first(strict: Server) -> None:
    strict.http.post("pause_generation", json={"mode": "in_place"})
    calls = []
    for priority in (-1, 0, 7):
        calls.append(Call(strict, text="b", sampling_params=SHORT, priority=priority))
        wait_for(lambda: strict.model()["status"]["waiting"] == len(calls), "it waits")
    time.sleep(2.5)  # a pause does not count as waiting
    strict.http.post("continue_generation")
    for call in calls:
        call.join(PATIENCE)
        assert call.answer.status_code == 200, call.answer.text
    ended = [call.answer.json()["meta_info"]["response_sent_to_client_ts"] for call in calls]
    assert ended == sorted(ended, reverse=True)


def test_streams_may_hold_only_what_is_new(strict: Server) -> None:
    body = {"text": "a", "sampling_params": {**SHORT, "max_new_tokens": 10}, "return_logprob": True}
    whole = strict.http.post("generate", json=body).json()
    found = events(strict.http, "POST", "generate", json={**body, "stream": True})
    chunks = [json.loads(event.data) for event in found[:-1]]
    assert "".join(chunk["text"] for chunk in chunks) == whole["text"]
    assert [token for chunk in chunks for token in chunk["output_ids"]] == whole["output_ids"]
    logprobs = [entry for chunk in chunks for entry in chunk["meta_info"]["output_token_logprobs"]]
    assert logprobs == whole["meta_info"]["output_token_logprobs"]
    assert [chunk["meta_info"]["completion_tokens"] for chunk in chunks][-1] == 10
    assert all(len(chunk["output_ids"]) >= 3 for chunk in chunks[1:-1])
    info = strict.http.get("server_info").json()
    assert (info["incremental_streaming_output"], info["stream_interval"]) == (True, 3)


#: 36 kB a token, as a stream; megabytes of a prompt, in SGLang's dialect and in Triton's.
LARGE: list[Any] = [
    (
        "generate",
        {
            "text": "a",
            "stream": True,
            "return_logprob": True,
            "top_logprobs_num": 260,
            "token_ids_logprob": [5] * 1024,
            "sampling_params": {**BUSY, "max_new_tokens": 3000},
        },
    ),
    (
        "generate",
        {
            "input_ids": [5] * 4000,
            "return_logprob": True,
            "top_logprobs_num": 100,
            "logprob_start_len": 0,
            "sampling_params": {"max_new_tokens": 1},
        },
    ),
    soaking("v2/models/long-llama/generate", {"input_ids": [5] * 4000, "return_context_logits": True, "max_tokens": 1}),
]


@pytest.mark.parametrize(("path", "body"), LARGE)
def test_a_reader_who_never_reads_is_cut_off_and_slows_nobody(strict: Server, path: str, body: dict[str, Any]) -> None:
    with slow_reader(strict, body, path):
        wait_for(lambda: "took nothing for 1 seconds" in strict.log.read_text(), "the reader is cut off")
    strict.log.write_text("")
    strict.idle()
    assert strict.http.post("generate", json={"text": "a", "sampling_params": SHORT}).status_code == 200
