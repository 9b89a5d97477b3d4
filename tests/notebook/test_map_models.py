"""The rows of a map are one model's: what a file keeps of another is not taken for its, and no other goes on."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import nbgen
from nbgen.errors import InvalidRequest
from nbgen.notebook import session
from nbgen.notebook.private_server import PrivateServer
from tests.adapters import save_adapter
from tests.chat_templates import CALLS, THOUGHT, template
from tests.conftest import save_model, wait_for

OPTIONS = {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True, "complete": True, "progress": False}
LONG = {**OPTIONS, "max_new_tokens": 40, "concurrency": 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a model that thinks where it is told to."""
    folder = save_model(tmp_path_factory.mktemp("models") / "mine")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = template(CALLS["objects"], THOUGHT)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def own(folder: Path) -> Iterator[PrivateServer]:
    server = PrivateServer(str(folder), options={"standby": False, "autoload": False})
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def used(own: PrivateServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The helpers of this process use it, with the model as it is in its folder."""
    monkeypatch.setattr(session, "_client", own.client)
    nbgen.load(folder, quantization="none")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "rows.jsonl"


def weights(folder: Path, factor: float) -> None:
    """Write others of the same sizes."""
    path = folder / "model.safetensors"
    save_file({name: weight * factor for name, weight in load_file(path).items()}, path, {"format": "pt"})


def test_a_cache_holds_answers_of_each_model_of_a_name(own: PrivateServer, folder: Path, cache: Path) -> None:
    def answer() -> str:
        alone = nbgen.generate("a", **{name: value for name, value in OPTIONS.items() if name != "progress"}).text
        assert nbgen.map(["a"], cache=cache, **OPTIONS).text[0] == alone
        return str(alone)

    first = answer()
    nbgen.load(quantization="int4")
    rounded = answer()
    weights(folder, 2)
    nbgen.load(folder, quantization="none")
    other = answer()
    assert len({first, rounded, other}) == len(cache.read_text().splitlines()) == 3
    assert answer() == other


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")
def test_and_of_each_adapter_of_a_name(folder: Path, cache: Path, tmp_path: Path) -> None:
    found = []
    for seed in (1, 2, 2):
        if seed != len(found):
            nbgen.load_adapter("poet", save_adapter(tmp_path / "adapter", folder, seed))
        found.append(nbgen.map(["a"], adapter="poet", cache=cache, **OPTIONS).text[0])
        if seed == 1:
            nbgen.unload_adapter("poet")
    nbgen.unload_adapter("poet")
    assert found[0] != found[1] == found[2]
    assert len(cache.read_text().splitlines()) == 2


def test_thoughts_of_a_map_are_those_of_one_answer() -> None:
    thinks = {"template_options": {"thinks": True}, "max_new_tokens": 12, "temperature": 0}
    alone = nbgen.generate("hi", **thinks)
    assert alone.reasoning
    answers = nbgen.map(["hi"], progress=False, **thinks)
    assert (answers.text[0], answers.reasoning[0]) == (alone.text, alone.reasoning)


def during(cache: Path, act: Any) -> threading.Thread:
    """Have somebody do it once some rows have been answered."""

    def wait() -> None:
        wait_for(lambda: cache.exists() and cache.read_text().count("\n") > 20, "some rows are answered")
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_who_unloads_the_model_ends_the_map_with_what_is_done(
    own: PrivateServer, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unloading = during(cache, own.client.unload)
    answers = nbgen.map([f"row {number}" for number in range(1000)], cache=cache, **LONG)
    unloading.join()
    done = answers.error.isna()
    assert 20 < done.sum() < 1000
    assert answers[done].finish_reason.eq("length").all()
    assert answers[~done].error.eq("the model was unloaded meanwhile").all()
    words = f"Stopped with {(~done).sum()} of 1000 rows to do, as the model was unloaded meanwhile: pass this"
    said = capsys.readouterr().out
    assert said.startswith(words)
    assert said.count("\n") == 1
    row = done.idxmax()
    assert nbgen.map([f"row {row}"], cache=cache, **LONG).text[0] == answers.text[row]
    assert own.client.model()["state"] == "stopped", "what is known needs no model"
    rest = nbgen.map([f"row {number}" for number in range(40)], resume=answers, **LONG)
    assert rest.error.isna().all()


@pytest.mark.soak
def test_who_loads_another_model_does_so_too(own: PrivateServer, cache: Path, folder: Path) -> None:
    loading = during(cache, lambda: list(own.client.load("bundled")))
    answers = nbgen.map([f"line {number}" for number in range(1000)], cache=cache, **LONG)
    loading.join()
    assert own.client.model()["name"] == "bundled"
    left = answers.error.notna()
    assert answers[left].error.eq("another model was loaded meanwhile: 'bundled'").all()
    assert 20 < left.sum() < 1000
    nbgen.load(folder, quantization="none")
    texts = nbgen.map([f"line {number}" for number in range(1000)][:5], **LONG).text
    assert answers.text[:5].tolist() == texts.tolist()


@pytest.mark.soak
def test_an_engine_that_comes_back_with_other_weights_is_another_model(
    own: PrivateServer, cache: Path, folder: Path
) -> None:
    def crash() -> None:
        weights(folder, 1.5)
        psutil.Process(own.client.model()["engine_pid"]).kill()

    crashing = during(cache, crash)
    answers = nbgen.map([f"word {number}" for number in range(1000)], cache=cache, **LONG)
    crashing.join()
    assert answers.error.dropna().eq("another model answers now than answered first").all()
    assert 20 < answers.error.notna().sum() < 1000


def test_answers_of_a_model_that_is_being_trained_are_not_kept(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_private", None)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with nbgen.serve(model, AutoTokenizer.from_pretrained(folder)):
        with pytest.raises(InvalidRequest, match=r"cache: 'live' is trained here, .* resume="):
            nbgen.map(["a"], cache=cache, **OPTIONS)
        assert nbgen.map(["a"], **OPTIONS).error.isna().all()
    assert not cache.exists()
