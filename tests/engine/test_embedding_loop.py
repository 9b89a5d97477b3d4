"""The loop of an embedding model: what it is told beside texts, and where its model fails or takes long."""

import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from nbgen.commands import AdapterState, ContinueGeneration, LoadAdapter, PauseGeneration
from nbgen.engine import embedding_loop
from nbgen.engine.embedding_loop import EmbeddingLoop
from nbgen.engine_state import EngineStatus
from nbgen.messages import AbortRequest, EmbedOutput, EmbedRequest, StepOutputs
from nbgen.tokenizer_messages import DetokenizeRequest, TokenizerAnswer, TokenizeRequest
from tests.conftest import PATIENCE
from tests.engine.conftest import tokenizer_of
from tests.engine.test_loop import PROMPT, Lasting, Served, fails


def test_texts_are_tried_alone_once_what_their_batch_computed_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding_loop.log, "disabled", True)  # pytest keeps what is logged, with its frames
    layers: list[weakref.ref] = []
    held = []

    def encode(prompts: list[list[int]], _types: list[list[int]]) -> torch.Tensor:
        held.append(sum(layer() is not None for layer in layers))
        layer = torch.zeros(len(prompts), 2)
        layers.append(weakref.ref(layer))
        if len(prompts) > 1 or prompts == [[3]]:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return layer

    info = SimpleNamespace(name="zeros", vocab_size=100, context_length=100)
    model = SimpleNamespace(model=info, device=torch.device("cpu"), encode=encode)
    served = Served(lambda channel: EmbeddingLoop(channel, model, max_waiting=9, run_seconds=None))
    asked = [EmbedRequest(rid=f"r{i}", input_ids=[i]) for i in (3, 4, 5)]
    served.send(PauseGeneration(mode="retract"), *asked, ContinueGeneration())
    assert served.outputs("r3")["r3"][-1].finish_reason.status == 500
    heard = served.until(lambda message: isinstance(message, EmbedOutput) and message.rid == "r5")
    served.close()
    assert [message.rid for message in heard if isinstance(message, EmbedOutput)] == ["r4", "r5"]
    assert held == [0, 0, 0, 0]


@pytest.fixture
def embedding() -> Iterator[Served]:
    """A model that embeds everything as zeros."""
    info = SimpleNamespace(name="zeros", vocab_size=100, context_length=100)
    model = SimpleNamespace(model=info, device=torch.device("cpu"), encode=lambda ids, _: torch.zeros(len(ids), 2))
    served = Served(lambda channel: EmbeddingLoop(channel, model, max_waiting=9, run_seconds=None))
    yield served
    served.close()


def test_an_embedding_model_says_that_it_takes_no_adapter(embedding: Served) -> None:
    embedding.send(LoadAdapter(rid="a", name="x", folder="y"))
    answer = embedding.until(lambda message: isinstance(message, AdapterState))[-1]
    assert "takes no adapters" in answer.error


def test_an_embedding_model_says_what_its_tokens_are_and_mean(tmp_path: Path) -> None:
    info = SimpleNamespace(name="zeros", vocab_size=300, context_length=100)
    model = SimpleNamespace(model=info, device=torch.device("cpu"), tokenizer=tokenizer_of(tmp_path))
    served = Served(lambda channel: EmbeddingLoop(channel, model, max_waiting=9, run_seconds=None))
    served.send(TokenizeRequest(rid="t", texts=["Hello", "you"]))
    ids = served.until(lambda message: isinstance(message, TokenizerAnswer))[-1].token_ids
    served.send(DetokenizeRequest(rid="d", token_ids=ids))
    assert served.until(lambda message: isinstance(message, TokenizerAnswer))[-1].texts == ["Hello", "you"]
    served.send(DetokenizeRequest(rid="u", token_ids=[[300]]))
    assert fails(served.outputs("u")["u"], "out-of-vocabulary")
    served.close()


@pytest.mark.parametrize("mode", ["abort", "retract"])
def test_an_embedding_model_pauses(mode: str, embedding: Served) -> None:
    embedding.send(PauseGeneration(mode=mode))
    embedding.until(lambda message: isinstance(message, EngineStatus) and message.paused)
    embedding.send(EmbedRequest(rid="r", input_ids=PROMPT))
    heard = embedding.until(lambda message: isinstance(message, EngineStatus) and message.waiting == 1)
    assert not any(isinstance(message, EmbedOutput) for message in heard)
    embedding.send(PauseGeneration(mode=mode))
    if mode == "abort":
        assert embedding.outputs("r")["r"][-1].finish_reason.type == "abort"
    embedding.send(EmbedRequest(rid="s", input_ids=PROMPT))
    embedding.send(ContinueGeneration())
    heard = embedding.until(lambda message: isinstance(message, EmbedOutput) and message.rid == "s")
    assert any(isinstance(each, EmbedOutput) and each.rid == "r" for each in heard) == (mode != "abort")


def test_an_embedding_model_that_pauses_twice_ends_what_waits_once(embedding: Served) -> None:
    pause = PauseGeneration(mode="abort")
    embedding.send(pause, EmbedRequest(rid="r", input_ids=PROMPT), pause, pause, ContinueGeneration())
    embedding.send(EmbedRequest(rid="s", input_ids=PROMPT))
    heard = embedding.until(lambda message: isinstance(message, EmbedOutput))
    assert sum(isinstance(message, StepOutputs) for message in heard) == 1


def test_an_embedding_is_for_who_asked_last_under_an_id(embedding: Served) -> None:
    again = EmbedRequest(rid="r", input_ids=PROMPT)
    embedding.send(PauseGeneration(mode="retract"), again, AbortRequest(rid="r"), again, ContinueGeneration())
    embedding.send(EmbedRequest(rid="s", input_ids=PROMPT))
    heard = embedding.until(lambda message: isinstance(message, EmbedOutput) and message.rid == "s")
    assert sum(isinstance(message, EmbedOutput) and message.rid == "r" for message in heard) == 1


def test_texts_that_nobody_wants_any_more_leave_their_places_to_others(embedding: Served) -> None:
    asked = [EmbedRequest(rid=str(i), input_ids=PROMPT) for i in range(9)]
    embedding.send(PauseGeneration(mode="retract"), *asked, *(AbortRequest(rid=each.rid) for each in asked))
    embedding.send(EmbedRequest(rid="r", input_ids=PROMPT), ContinueGeneration())
    heard = embedding.until(lambda message: isinstance(message, EmbedOutput | StepOutputs))
    assert isinstance(heard[-1], EmbedOutput)
    assert heard[-1].rid == "r"


def test_a_text_that_waits_too_long_for_its_turn_is_told_and_a_pause_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passed = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed[0])
    monkeypatch.setattr(embedding_loop, "time", clock)

    def encode(prompts: list[list[int]], _types: list[list[int]]) -> torch.Tensor:
        if [3] in prompts:
            started.set()
            assert waits.acquire(timeout=PATIENCE)
            passed[0] += 100
        return torch.zeros(len(prompts), 2)

    started, waits = threading.Event(), threading.Semaphore(0)
    info = SimpleNamespace(name="zeros", vocab_size=100, context_length=100)
    model = SimpleNamespace(model=info, device=torch.device("cpu"), encode=encode)
    served = Served(lambda channel: EmbeddingLoop(channel, model, max_waiting=9, run_seconds=None, queue_seconds=60))
    served.send(EmbedRequest(rid="long", input_ids=[3]))
    assert started.wait(PATIENCE)
    served.send(EmbedRequest(rid="late", input_ids=[4]), LoadAdapter(rid="a", name="x", folder="y"))
    served.until(lambda message: isinstance(message, AdapterState))  # which is heard after that text
    waits.release()
    assert "waited 60 seconds" in served.outputs("late")["late"][-1].finish_reason.message
    served.send(PauseGeneration(mode="retract"), EmbedRequest(rid="paused", input_ids=[5]))
    served.until(lambda message: isinstance(message, EngineStatus) and message.waiting == 1)
    passed[0] += 100
    served.send(ContinueGeneration())
    assert served.until(lambda message: isinstance(message, EmbedOutput))[-1].rid == "paused"
    served.close()


def test_a_batch_of_texts_that_lasts_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    lasting = Lasting(monkeypatch)

    def encode(prompts: list[list[int]], _types: list[list[int]]) -> torch.Tensor:
        lasting()
        return torch.zeros(len(prompts), 2)

    info = SimpleNamespace(vocab_size=100, context_length=100)
    model = SimpleNamespace(model=info, device=torch.device("cpu"), encode=encode)
    lasting.served = served = Served(lambda channel: EmbeddingLoop(channel, model, max_waiting=9, run_seconds=None))
    served.send(EmbedRequest(rid="r", input_ids=PROMPT))
    lasting.is_heard()
    assert served.until(lambda message: isinstance(message, EmbedOutput))[-1].rid == "r"
    served.close()
