"""A live model whose cache rests, or that is not loaded yet, while its owner trains it: nobody waits without an end."""

import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

import nbgen
from nbgen.engine.idle_release import IdleRelease
from nbgen.engine.occupation import Occupation
from nbgen.errors import ModelError, NbgenError
from nbgen.live import LiveServer
from tests.conftest import PATIENCE, wait_for
from tests.notebook.conftest import unserved
from tests.soak import soaking


@pytest.fixture(scope="module")
def live(model: torch.nn.Module, tokenizer: PreTrainedTokenizerBase) -> Iterator[LiveServer]:
    with unserved(), nbgen.serve(model, tokenizer) as server:
        yield server


@pytest.fixture
def stopped(tiny_model: Path, tokenizer: PreTrainedTokenizerBase) -> Iterator[LiveServer]:
    """One of its own, which the test may stop."""
    own = AutoModelForCausalLM.from_pretrained(tiny_model)
    with unserved(), nbgen.serve(own, tokenizer) as server:
        yield server


@pytest.fixture
def rests(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Can be acquired once for each time that the cache went to rest, which it does as soon as nobody asks."""
    rest, rests = Occupation.rest, threading.Semaphore(0)

    def told_of(occupation: Occupation) -> None:
        rest(occupation)
        rests.release()

    monkeypatch.setattr(Occupation, "rest", told_of)
    monkeypatch.setattr(IdleRelease, "_is_due", lambda _: True)
    return rests


def answer() -> str:
    return nbgen.generate("What the model says", complete=True, temperature=0, max_new_tokens=8, ignore_eos=True).text


class Asking(threading.Thread):
    """One who asks, and what they hear."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.said: str | NbgenError | None = None
        self.start()

    def run(self) -> None:
        try:
            self.said = answer()
        except NbgenError as error:
            self.said = error


def waits(live: LiveServer) -> bool:
    """Whether somebody waits until training ends, for an answer or for a model that can give one."""
    told = live.client.model()
    return "waiting for training" in str(told) or bool((told["status"] or {}).get("waiting"))


def test_who_asks_in_a_training_block_waits_and_the_engine_goes_on_to_tell_of_itself(
    rests: threading.Semaphore, live: LiveServer
) -> None:
    before = answer()
    assert rests.acquire(timeout=PATIENCE)
    with live.training():
        asking = [Asking(), Asking()]
        wait_for(lambda: live.client.model()["status"]["waiting"] == 2, "both wait")
    for each in asking:
        each.join(PATIENCE)
    assert [each.said for each in asking] == [before, before]


@pytest.mark.parametrize("loaded", [soaking(True), False])
def test_it_stops_in_a_training_block_while_somebody_waits(
    loaded: bool, rests: threading.Semaphore, stopped: LiveServer
) -> None:
    answer()
    assert rests.acquire(timeout=PATIENCE)
    if not loaded:
        nbgen.unload()
    twice = [threading.Thread(target=stopped.stop) for _ in range(2)]
    with stopped.training():
        asking = Asking()
        wait_for(lambda: waits(stopped), "somebody waits")
        for stopping in twice:
            stopping.start()
        for stopping in twice:
            stopping.join(PATIENCE)
            assert not stopping.is_alive()
    asking.join(PATIENCE)
    assert isinstance(asking.said, NbgenError)


def test_memory_is_taken_again_once_training_has_ended(live: LiveServer) -> None:
    """The weights are probed then, against which changes of them would speak."""
    before, headers = answer(), {"Authorization": f"Bearer {live.client.token}"}
    taking = threading.Thread(target=lambda: list(live.client.load()))
    with live.training():
        httpx.post(live.url + "release_memory_occupation", headers=headers).raise_for_status()
        taking.start()
        taking.join(2.0)
        assert taking.is_alive()
        assert live.client.model()["state"] == "released"
    taking.join(PATIENCE)
    assert answer() == before


def test_who_asks_before_it_is_loaded_learns_what_they_wait_for(live: LiveServer) -> None:
    nbgen.unload()
    with live.training():
        asking = Asking()
        wait_for(lambda: "waiting for training" in str(live.client.model()), "the server says so")
    asking.join(PATIENCE)
    assert asking.said == answer()


def test_who_unloads_it_while_it_waits_for_training_to_end_waits_for_nobody(live: LiveServer) -> None:
    nbgen.unload()
    with live.training():
        asking = Asking()
        wait_for(lambda: "waiting for training" in str(live.client.model()), "it is being loaded")
        nbgen.unload()
        wait_for(lambda: "pulse" not in [thread.name for thread in threading.enumerate()], "the engine has left it")
    asking.join(PATIENCE)
    assert isinstance(asking.said, NbgenError)


def test_who_asks_while_there_is_no_memory_is_refused_and_the_next_is_not(
    rests: threading.Semaphore, live: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(occupation: Occupation) -> None:
        raise ModelError("no memory")

    before = answer()
    assert rests.acquire(timeout=PATIENCE)
    with monkeypatch.context() as patch:
        patch.setattr(Occupation, "wake", fails)
        with pytest.raises(NbgenError, match="is not free now"):
            answer()
    assert answer() == before
