"""The loop of an embedding model, where its model fails."""

import weakref
from types import SimpleNamespace

import pytest
import torch

from nbgen.commands import ContinueGeneration, PauseGeneration
from nbgen.engine import embedding_loop
from nbgen.engine.embedding_loop import EmbeddingLoop
from nbgen.messages import EmbedOutput, EmbedRequest
from tests.engine.test_loop import Served


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
