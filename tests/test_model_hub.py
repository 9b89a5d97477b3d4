"""Whether a model's name can be loaded, told before another model is given up for it."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from nbgen import model_hub
from nbgen.errors import ModelError
from tests.conftest import free_port


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return tmp_path


@pytest.fixture
def hub() -> Iterator[str]:
    """A hub that knows no model."""
    server = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
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
    model_hub.check("meta-llama/Llama-3")


def test_what_a_hub_that_answers_may_have_is_left_to_loading(hub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", hub)
    model_hub.check("meta-llama/Llama-3")
