"""Callers of all kinds at once, for a while: each gets its own answer, and nothing is left of any of them."""

import json
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.adapters import save_adapter
from tests.server.conftest import Server, wait_for
from tests.soak import TIMES

SECONDS = 3 * TIMES
CALLERS = 6
TEXTS = ["a", "The same beginning, and then one. ", "The same beginning, and then another. ", "x" * 300]
ADAPTERS = ["a", "b"]
#: Each with the adapter that answers it.
PROMPTS = [(text, adapter) for text in TEXTS for adapter in (None, *ADAPTERS)]
GREEDY = {"temperature": 0, "ignore_eos": True}
MOST_GROWTH = 1.2

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")  # peft asks for it

Prompt = tuple[str, str | None]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, long_model: Path) -> Iterator[Server]:
    """A server whose cache holds less than its callers ask for."""
    options = ["--dtype=float32", "--NbgenApp.kv_cache_bytes=300000", "--NbgenApp.max_running=5"]
    place = tmp_path_factory.mktemp("adapters")
    for seed, name in enumerate(ADAPTERS):
        options.append(f"--adapters={name}={save_adapter(place / name, long_model, seed, r=seed + 2)}")
    server = Server(tmp_path_factory.mktemp("small"), f"--model={long_model}", *options)
    yield server.ready()
    server.stop()
    log = server.log.read_text()
    assert not any(word in log for word in ("Traceback", "Uncaught", "never retrieved")), log


class Caller(threading.Thread):
    """Asks for whatever chance says, until told to stop; what was wrong is kept."""

    def __init__(self, server: Server, alone: dict[Prompt, dict[str, Any]], seed: int) -> None:
        super().__init__()
        self.asked, self.wrong = 0, ""
        self._server, self._alone, self._chance = server, alone, random.Random(seed)
        self._until = time.monotonic() + SECONDS
        self.start()

    def run(self) -> None:
        while (time.monotonic() < self._until or self.asked < 2) and not self.wrong:
            asks = [self._whole, self._streamed, self._samples, self._shaped, self._left, self._refused, self._ended]
            ask = self._chance.choice([*asks, self._flushed, self._paused, self._reloaded])
            try:
                ask(self._chance.choice(PROMPTS), self._chance.randint(1, 60))
            except Exception as error:
                self.wrong = f"{ask.__name__}: {error!r}"
            self.asked += 1

    def _generate(self, prompt: Prompt, new: int, **more: Any) -> Any:
        text, adapter = prompt
        return generated(self._server, text, new, lora_path=adapter, priority=self._chance.randint(0, 1), **more)

    def _whole(self, prompt: Prompt, new: int) -> None:
        found = self._generate(prompt, new, return_logprob=True)
        ids = self._alone[prompt]["output_ids"][:new]
        assert found["output_ids"] == ids, "another answer than alone"
        assert [entry[1] for entry in found["meta_info"]["output_token_logprobs"]] == ids

    def _streamed(self, prompt: Prompt, new: int) -> None:
        with self._server.http.stream("POST", "generate", json=self._body(prompt, new)) as answer:
            lines = [line for line in answer.iter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        assert json.loads(lines[-2].removeprefix("data: "))["output_ids"] == self._alone[prompt]["output_ids"][:new]

    def _samples(self, prompt: Prompt, new: int) -> None:
        found = self._generate(prompt, new, sampling_params={"n": 3, "temperature": 1.0, "top_p": 0.9})
        assert [each["meta_info"]["completion_tokens"] for each in found] == [new] * 3

    def _shaped(self, prompt: Prompt, new: int) -> None:
        found = self._generate(prompt, 20, sampling_params={"regex": "(yes|no) [0-9]{3}", "ignore_eos": False})
        assert found["text"][-3:].isdigit()

    def _left(self, prompt: Prompt, new: int) -> None:
        with self._server.asking("generate", self._body(prompt, 400)):
            time.sleep(new / 1000)

    def _ended(self, prompt: Prompt, new: int) -> None:
        rid = f"{self.name}-{self.asked}"
        with self._server.http.stream("POST", "generate", json={**self._body(prompt, 400), "rid": rid}) as answer:
            lines = (line for line in answer.iter_lines() if line)
            first = next(lines)
            self._post("abort_request", rid=rid)
            *_, last, done = first, *lines
        assert done == "data: [DONE]"
        found = json.loads(last.removeprefix("data: "))
        assert found["meta_info"]["finish_reason"]["type"] in ("abort", "length"), "the latter where it was over before"
        assert found["output_ids"][:60] == self._alone[prompt]["output_ids"][: len(found["output_ids"])]

    def _refused(self, prompt: Prompt, new: int) -> None:
        answer = self._server.http.post("generate", json={"text": prompt[0], "sampling_params": {"top_p": -new}})
        assert answer.status_code == 400
        assert "top_p" in answer.text

    def _flushed(self, prompt: Prompt, new: int) -> None:
        assert self._post("flush_cache").status_code in (200, 400), "the latter while somebody is served"

    def _paused(self, prompt: Prompt, new: int) -> None:
        paused = self._post("pause_generation", mode=self._chance.choice(["in_place", "retract"]))
        continued = self._post("continue_generation")
        assert (paused.status_code, continued.status_code) == (200, 200)

    def _reloaded(self, prompt: Prompt, new: int) -> None:
        """Whoever asks for an adapter that is away has it loaded again."""
        self._post("unload_lora_adapter", lora_name=self._chance.choice(ADAPTERS))

    def _post(self, path: str, **body: Any) -> httpx.Response:
        return self._server.http.post(path, json=body)

    @staticmethod
    def _body(prompt: Prompt, new: int) -> dict[str, Any]:
        sampling = {**GREEDY, "max_new_tokens": new}
        return {"text": prompt[0], "lora_path": prompt[1], "sampling_params": sampling, "stream": True}


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


@pytest.mark.soak
def test_those_that_had_to_give_way_get_the_answer_that_they_would_get_alone(small: Server) -> None:
    texts, new = ["a", "b", "c", "d"], 400
    alone = [generated(small, text, new)["output_ids"] for text in texts]
    small.idle()
    before = small.model()["status"]["preemptions"]
    together = [each["output_ids"] for each in generated(small, texts, new)]
    assert together == alone
    wait_for(lambda: small.model()["status"]["preemptions"] > before, "it is told that some had to give way")


def test_everybody_gets_the_answer_that_they_would_get_alone(small: Server) -> None:
    alone = {(text, adapter): generated(small, text, lora_path=adapter) for text, adapter in PROMPTS}
    assert len({tuple(each["output_ids"]) for each in alone.values()}) == len(PROMPTS)
    callers = [Caller(small, alone, seed) for seed in range(CALLERS)]
    callers[0].join(SECONDS / 2)
    before = held(small)
    for caller in callers:
        caller.join()
    assert not [caller.wrong for caller in callers if caller.wrong]
    small.idle()
    wait_for(lambda: all_free(small.model()["status"]), "every block is free")
    assert held(small) < MOST_GROWTH * before
