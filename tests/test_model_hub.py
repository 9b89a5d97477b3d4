"""Whether a model's name can be loaded, told before another model is given up for it."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from nbgen import model_hub
from nbgen.errors import ModelError
from tests.conftest import LOOKS, free_port


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return tmp_path


class Hub(BaseHTTPRequestHandler):
    """Knows of each model by its name what to answer."""

    def do_HEAD(self) -> None:
        self.send_response(int(self.path.split("/")[1]))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    server = HTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, args=(LOOKS,), daemon=True).start()
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    "name", ["Owner/Na me", "Owner/a--b", "a/..", "a/b.git", "a/b/c", "a", "/a/b", "-a/b", "a/" + "b" * 96]
)
def test_what_is_no_id_of_the_hub_is_refused(name: str) -> None:
    with pytest.raises(ModelError, match="not a hub id"):
        model_hub.check(name)


def test_what_is_not_here_is_refused_where_the_hub_is_not_either(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE"):
        model_hub.check("meta-llama/Llama-3")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(ModelError, match="the hub cannot be reached"):
        model_hub.check("meta-llama/Llama-3")
    here = cache / "models--meta-llama--Llama-3" / "snapshots" / "0a1b"
    here.mkdir(parents=True)
    (here / "config.json").write_text("{}")
    (refs := here.parents[1] / "refs").mkdir()
    (refs / "main").write_text("0a1b")
    model_hub.check("meta-llama/Llama-3")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError, match="the local copy of meta-llama/Llama-3 has no model_type"):
        model_hub.check("meta-llama/Llama-3")


def test_what_the_hub_does_not_have_is_refused(hub: None, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(cache))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    for status in (200, 500):
        model_hub.check(f"{status}/model")
    for status in (401, 403, 404):
        with pytest.raises(ModelError, match="no such model"):
            model_hub.check(f"{status}/model")


def test_who_is_logged_in_may_have_more(hub: None, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(cache))
    (cache / "token").touch()
    model_hub.check("401/model")
    with pytest.raises(ModelError, match="no such model"):
        model_hub.check("404/model")


def test_an_encoder_and_decoder_is_refused_by_its_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "t5", "is_encoder_decoder": true}', encoding="utf-8")
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ModelError, match=r"encoder-decoder model \(t5\)"):
        model_hub.check(str(tmp_path))
