"""Callers of all kinds at once, for a while: each gets its own answer, and nothing is left of any of them."""

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import Server, wait_for
from tests.soak import TIMES

SECONDS = 3 * TIMES
CALLERS = 6
PROMPTS = ["a", "The same beginning, and then one. ", "The same beginning, and then another. ", "x" * 300]
GREEDY = {"temperature": 0, "ignore_eos": True}
MOST_GROWTH = 1.2


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, long_model: Path) -> Iterator[Server]:
    """A server whose cache holds less than its callers ask for."""
    options = ["--dtype=float32", "--NbgenApp.kv_cache_bytes=300000", "--NbgenApp.max_running=5"]
    server = Server(tmp_path_factory.mktemp("small"), f"--model={long_model}", *options)
    yield server.ready()
    server.stop()
    log = server.log.read_text()
    assert not any(word in log for word in ("Traceback", "Uncaught", "never retrieved")), log


class Caller(threading.Thread):
    """Asks for whatever chance says, until told to stop; what was wrong is kept."""

    def __init__(self, server: Server, alone: dict[str, dict[str, Any]], seed: int) -> None:
        super().__init__()
        self.asked, self.wrong = 0, ""
        self._server, self._alone, self._chance = server, alone, random.Random(seed)
        self._until = time.monotonic() + SECONDS
        self.start()

    def run(self) -> None:
        while time.monotonic() < self._until and not self.wrong:
            kinds = [self._whole, self._streamed, self._samples, self._shaped, self._left, self._refused]
            ask = self._chance.choice(kinds)
            try:
                ask(self._chance.choice(PROMPTS), self._chance.randint(1, 60))
            except Exception as error:
                self.wrong = f"{ask.__name__}: {error!r}"
            self.asked += 1

    def _generate(self, text: str, new: int, **more: Any) -> Any:
        return generated(self._server, text, new, **more)

    def _whole(self, text: str, new: int) -> None:
        found = self._generate(text, new, return_logprob=True)
        ids = self._alone[text]["output_ids"][:new]
        assert found["output_ids"] == ids, "another answer than alone"
        assert [entry[1] for entry in found["meta_info"]["output_token_logprobs"]] == ids

    def _streamed(self, text: str, new: int) -> None:
        body = {"text": text, "sampling_params": {**GREEDY, "max_new_tokens": new}, "stream": True}
        with self._server.http.stream("POST", "generate", json=body) as answer:
            lines = [line for line in answer.iter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        assert len(lines) > 1

    def _samples(self, text: str, new: int) -> None:
        found = self._generate(text, new, sampling_params={"n": 3, "temperature": 1.0, "top_p": 0.9})
        assert [each["meta_info"]["completion_tokens"] for each in found] == [new] * 3

    def _shaped(self, text: str, new: int) -> None:
        found = self._generate(text, 20, sampling_params={"regex": "(yes|no) [0-9]{3}", "ignore_eos": False})
        assert found["text"][-3:].isdigit()

    def _left(self, text: str, new: int) -> None:
        body = {"text": text, "sampling_params": {**GREEDY, "max_new_tokens": 400}, "stream": True}
        with self._server.asking("generate", body):
            time.sleep(new / 1000)

    def _refused(self, text: str, new: int) -> None:
        answer = self._server.http.post("generate", json={"text": text, "sampling_params": {"top_p": -new}})
        assert answer.status_code == 400
        assert "top_p" in answer.text


def generated(server: Server, text: str | list[str], new: int = 60, **more: Any) -> Any:
    sampling = {**GREEDY, "max_new_tokens": new, **more.pop("sampling_params", {})}
    answer = server.http.post("generate", json={"text": text, "sampling_params": sampling, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


def all_free(status: dict[str, Any]) -> bool:
    return status["blocks_free"] == status["blocks_total"]


def held(server: Server) -> int:
    """Bytes of the engine's process."""
    return server.engine().memory_info().rss


def test_those_that_had_to_give_way_get_the_answer_that_they_would_get_alone(small: Server) -> None:
    texts, new = ["a", "b", "c", "d"], 400
    alone = [generated(small, text, new)["output_ids"] for text in texts]
    small.idle()
    before = small.model()["status"]["preemptions"]
    together = [each["output_ids"] for each in generated(small, texts, new)]
    assert together == alone
    wait_for(lambda: small.model()["status"]["preemptions"] > before, "it is told that some had to give way")


def test_everybody_gets_the_answer_that_they_would_get_alone(small: Server) -> None:
    alone = {text: generated(small, text) for text in PROMPTS}
    callers = [Caller(small, alone, seed) for seed in range(CALLERS)]
    callers[0].join(SECONDS / 2)
    before = held(small)
    for caller in callers:
        caller.join()
    assert not [caller.wrong for caller in callers if caller.wrong]
    assert sum(caller.asked for caller in callers) > CALLERS
    small.idle()
    wait_for(lambda: all_free(small.model()["status"]), "every block is free")
    assert held(small) < MOST_GROWTH * before
