"""A model from the hub: how far it is, and what is said where it does not come. The hub is one of these tests."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import LOOKS

STATE = "0a" * 20
FILES = {"config.json": b"{}", "model-1.safetensors": bytes(3_000_000), "model-2.safetensors": bytes(2_000_000)}
#: Prints each report, then why there is no model, if so.
DOWNLOAD = """
import gc, json
from nbgen.engine import checkpoint
from nbgen.errors import ModelError

said = []
try:
    checkpoint._download("owner/name", lambda *step: said.append(step))
    before = len(said)
    gc.collect()
    print(json.dumps([said, len(said) - before]))
except ModelError as error:
    print(json.dumps(error.message))
"""


class Hub(BaseHTTPRequestHandler):
    """Has one model, or answers everything with the same page."""

    portal = False

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        data, headers = FILES.get(path.rpartition("/")[2], b""), {"ETag": path, "X-Repo-Commit": STATE}
        if "/tree/" in path:
            found = [{"type": "file", "path": name, "size": len(each), "oid": STATE} for name, each in FILES.items()]
            data = json.dumps(found).encode()
        elif path.startswith("/api/"):
            data = json.dumps({"id": "owner/name", "sha": STATE}).encode()
        if self.portal:
            data = b"<html>Log in to this network</html>"
        self.send_response(200)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data if self.command == "GET" else b"")

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, args=(LOOKS,), daemon=True).start()
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield
    server.shutdown()
    server.server_close()


def download() -> Any:
    """In a process of its own, for the hub's library looks at the environment once."""
    done = subprocess.run([sys.executable, "-c", DOWNLOAD], env=os.environ, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_a_download_is_told_in_bytes(hub: None) -> None:
    """The library has bars of files beside those of bytes, and shows them again when it has long ended."""
    said, late = download()
    done = [step[1] for step in said]
    assert done == sorted(done)
    assert said[-1] == ["downloading owner/name", sum(map(len, FILES.values())), sum(map(len, FILES.values()))]
    assert late == 0


def test_what_the_network_answers_in_the_place_of_the_hub_is_no_model(
    hub: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hub, "portal", True)
    said = download()
    assert "'owner/name' is not in the local cache and could not be downloaded" in str(said)
    assert "check the name, the network" in str(said)
