"""Texts as arrays: embeddings in either encoding, and the hidden states of a model that has none."""

import base64
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AutoModelForCausalLM

import nbgen
from nbgen.errors import InvalidRequest
from nbgen.notebook import session
from nbgen.notebook.embeddings import MOST, MOST_STATES, array, bodies
from nbgen.notebook.private_server import PrivateServer
from nbgen.notebook.remote import RemoteClient
from nbgen.notebook.sglang_backend import SGLangBackend


def test_many_texts_go_in_several_calls_in_order() -> None:
    calls = list(bodies([str(i) for i in range(MOST + 1)]))
    assert [len(call["input"]) for call in calls] == [MOST, 1]
    assert calls[1]["input"] == [str(MOST)]


def test_either_encoding_is_an_array_in_the_texts_order() -> None:
    written = base64.b64encode(np.array([1, 2], "<f4").tobytes()).decode()
    first = {"data": [{"index": 1, "embedding": [3.0, 4.0]}, {"index": 0, "embedding": written}]}
    found = array([first, {"data": [{"index": 0, "embedding": [5.0, 6.0]}]}])
    assert found.dtype == np.float32
    assert found.tolist() == [[1, 2], [3, 4], [5, 6]]


def test_hidden_states_are_those_of_transformers(connected: PrivateServer, tiny_model: Path) -> None:
    text = "what the model makes of it"
    found = nbgen.hidden_states(text)
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    with torch.no_grad():
        outputs = model(torch.tensor([nbgen.tokenize(text)]), output_hidden_states=True)
    expected = outputs.hidden_states[-1][0].numpy()
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-4)
    messages = [{"role": "user", "content": "hi"}]
    assert len(nbgen.hidden_states(messages)) == len(nbgen.tokenize(messages))


def expected(folder: Path, text: str, pooling: str) -> np.ndarray:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        outputs = model(torch.tensor([nbgen.tokenize(text)]), output_hidden_states=True)
    states = outputs.hidden_states[-1][0].numpy()
    return states.mean(axis=0) if pooling == "mean" else states[-1]


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_pooled_states_come_as_one_vector_a_text(
    connected: PrivateServer, tiny_model: Path, pooling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "what the model makes of it"
    client = session.default_client()
    with monkeypatch.context() as patched:
        patched.setattr(client, "generate", None)  # which would bring the states of all tokens
        found = nbgen.embed([text, "b"] * (MOST // 2 + 1), pooling=pooling)
    assert found.dtype == np.float32
    assert len(found) == MOST + 2
    np.testing.assert_allclose(found[0], expected(tiny_model, text, pooling), atol=1e-4)
    np.testing.assert_allclose(found[-1], expected(tiny_model, "b", pooling), atol=1e-4)
    alone = nbgen.embed(text, pooling=pooling)
    np.testing.assert_allclose(alone, found[0], atol=1e-5)
    sglang = RemoteClient(client.url, client.token, SGLangBackend("m"))
    monkeypatch.setattr(session, "default_client", lambda: sglang)
    np.testing.assert_allclose(nbgen.embed([text] * (MOST_STATES + 1), pooling=pooling)[-1], alone, atol=1e-5)
    sglang.close()


@pytest.mark.parametrize("pooling", [None, "mean"])
def test_what_is_no_text_is_named_before_anything_is_sent(pooling: str | None) -> None:
    for wrong in (None, float("nan"), 3, ["a"]):
        with pytest.raises(InvalidRequest, match="number 1, counted from 0, is"):
            nbgen.embed(["a", wrong], pooling=pooling)
    for other in ({"a": "b"}, 5, b"a"):
        with pytest.raises(InvalidRequest, match="a list of texts, got"):
            nbgen.embed(other, pooling=pooling)
    with pytest.raises(InvalidRequest, match="one column of a DataFrame: choose it"):
        nbgen.embed(pd.DataFrame({"text": ["a"]}), pooling=pooling)
    assert nbgen.embed([], pooling=pooling).shape == (0, 0)


def test_many_texts_have_a_line_that_tells_how_many_are_done(
    connected: PrivateServer, capsys: pytest.CaptureFixture[str]
) -> None:
    nbgen.embed(["a"] * MOST, pooling="last")
    assert capsys.readouterr().err == ""
    assert len(nbgen.embed(["a"] * (MOST + 1), pooling="last")) == MOST + 1
    assert capsys.readouterr().err == f"0 of {MOST + 1} texts · 0%\n{MOST + 1} of {MOST + 1} texts · 100%\n"


def test_a_model_without_embeddings_says_so_and_a_wrong_pooling_too(connected: PrivateServer) -> None:
    with pytest.raises(InvalidRequest, match=r'embedding model.*pooling="mean"'):
        nbgen.embed("a")
    with pytest.raises(InvalidRequest, match="texts: the text number 1, counted from 0, is empty"):
        nbgen.embed(["a", ""])
    with pytest.raises(InvalidRequest, match="texts: the text is empty"):
        nbgen.embed("", pooling="mean")
    with pytest.raises(InvalidRequest, match="pooling is 'mean' or 'last'"):
        nbgen.embed("a", pooling="max")
