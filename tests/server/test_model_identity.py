"""Which model answers, told apart from others of its name, and whether it is still the one that was asked for."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nbgen.engine_config import EngineConfig
from nbgen.server.model_identity import of_model, with_adapter
from tests.adapters import save_adapter
from tests.conftest import save_model
from tests.server.conftest import Server

RUN = {"prompt": "hello", "stream": False, "params": {"temperature": 0, "max_new_tokens": 2, "ignore_eos": True}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "mine")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"), f"--model={folder}", "--NbgenApp.autoload=False", standby=True)
    yield server
    server.stop()


def told(server: Server) -> dict[str, Any]:
    return dict(server.http.get("api/v1/hello").json()["model"])


def answered(server: Server, **body: Any) -> str:
    answer = server.http.post("api/v1/runs", json={**RUN, **body})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["identity"])


def load(server: Server, **wanted: Any) -> None:
    assert "event: ready" in server.http.post("api/v1/model/load", json=wanted).text


def test_it_is_told_before_the_model_is_loaded_and_with_each_answer(server: Server) -> None:
    before = told(server)
    assert before["state"] == "stopped"
    assert answered(server) == before["identity"] == told(server)["identity"]


def test_it_changes_with_what_computes_and_with_that_alone(server: Server, folder: Path) -> None:
    plain = answered(server)
    load(server, quantization="int8")
    rounded = answered(server)
    os.utime(folder / "model.safetensors")
    assert told(server)["identity"] == rounded, "it answers as it was loaded"
    load(server)
    changed = answered(server)
    load(server, quantization="none")
    assert len({plain, rounded, changed, answered(server)}) == 4


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")
def test_an_adapter_is_told_apart_by_its_files(server: Server, folder: Path, tmp_path: Path) -> None:
    load(server, model=str(folder))
    seen = [answered(server)]
    for seed in (1, 2):
        adapter = save_adapter(tmp_path / "adapter", folder, seed)
        server.http.post("load_lora_adapter", json={"lora_name": "poet", "lora_path": str(adapter)})
        seen.append(answered(server, adapter="poet"))
        assert told(server)["adapters"] == {"poet": seen[-1]}
        server.http.post("unload_lora_adapter", json={"lora_name": "poet"})
        assert told(server)["adapters"] == {"poet": seen[-1]}, "it would be loaded again"
    assert len(set(seen)) == 3


def test_a_run_may_be_for_the_model_of_then_alone(server: Server, folder: Path) -> None:
    load(server, model=str(folder))
    changes = told(server)["changes"]
    load(server)
    identity = answered(server, changes=changes)
    server.http.post("api/v1/model/unload")
    assert told(server)["identity"] == identity
    for change, words in (
        ({}, "the model was unloaded meanwhile"),
        ({"model": "bundled"}, "another model was loaded meanwhile: 'bundled'"),
        ({"quantization": "int8"}, "loaded anew meanwhile, from other files or with another quantization"),
    ):
        if change:
            load(server, **change)
        refused = server.http.post("api/v1/runs", json={**RUN, "changes": changes})
        assert (refused.status_code, words in refused.json()["error"]["message"]) == (409, True)
    assert server.model()["state"] == "ready"
    server.http.post("api/v1/model/unload")
    server.http.post("api/v1/runs", json={**RUN, "changes": changes})
    assert told(server)["state"] == "stopped", "what was unloaded is not loaded for it"


def test_what_cannot_be_looked_at_is_told_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    hub, nowhere = (EngineConfig(model=name) for name in ("some/model", "/nowhere at all"))
    nothing = frozenset[tuple[str, int, int]]()
    before = of_model(hub, nothing)
    assert before != of_model(nowhere, nothing)
    (tmp_path / "models--some--model" / "refs").mkdir(parents=True)
    (tmp_path / "models--some--model" / "refs" / "main").write_text("0a1b")
    assert of_model(hub, nothing) not in (before, with_adapter(before, "/nowhere", nothing))
