"""Which server a session uses: its own, another's, one that is gone, or none that could not be started."""

import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

import nbgen
from nbgen.errors import InvalidRequest, ModelError, ServerNotFound
from nbgen.notebook import passed_on, session
from nbgen.notebook.client import Client
from nbgen.notebook.private_server import PrivateServer
from tests.conftest import gone, wait_for


def test_a_private_server_loads_unloads_and_ends(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("nbgen.notebook.session._client", None)
    monkeypatch.setattr("nbgen.notebook.session._private", None)
    server = nbgen.serve(tiny_model)
    (engine,) = psutil.Process(server._process.pid).children()
    assert engine.cmdline()[-1] == "early", "it was begun before the server was imported"
    assert "running" in repr(server)
    assert f"log {server._log}" in repr(server)
    assert f"log: {server._log}" in str(nbgen.status())
    assert nbgen.unload().state == "stopped", "also in the middle of its start"
    assert nbgen.load().state == "ready"
    assert f"{tiny_model.name}: " in capsys.readouterr().err, "each stage that was met while waiting"
    with pytest.raises(ModelError):
        nbgen.load("no-such-folder")
    assert nbgen.unload().state == "stopped"
    server.stop()
    assert not server.running
    with pytest.raises(ServerNotFound):
        session.default_client(start=False)


@pytest.fixture
def served(connected: PrivateServer, monkeypatch: pytest.MonkeyPatch) -> PrivateServer:
    """The server is one that the user has started with `serve`."""
    monkeypatch.setattr(session, "_private", connected)
    monkeypatch.setattr(session, "_chosen", True)
    return connected


def test_a_serve_that_cannot_be_leaves_the_server_that_works(
    served: PrivateServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PrivateServer, "stop", lambda self: pytest.fail("it was stopped"))
    (tmp_path / "config.json").write_text("{")
    for model, options in (
        ("nothere", {}),
        ("Owner/Na me", {}),
        (str(tmp_path), {}),
        (None, {"context_length": "long"}),
        (None, {"kv_cache_bytes": -1}),
        (None, {"name": "mine"}),
        (object(), {}),
        (object(), {"tokenizer": object()}),
    ):
        with pytest.raises((ModelError, InvalidRequest)):
            nbgen.serve(model, **options)
    assert session.default_client() is served.client
    assert nbgen.status().state == "ready"


def test_whose_server_is_gone_hears_which_one_is_used(
    served: PrivateServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = Client("http://127.0.0.1:9/")
    gone.lost = True
    monkeypatch.setattr(session, "_client", gone)
    monkeypatch.setattr(session, "find_server", lambda **_: served.client)
    for _ in range(2):
        assert session.default_client() is served.client
    said = f"the server at {gone.url} is gone; the one at {served.url} is used from now on\n"
    assert capsys.readouterr().out == said
    gone.close()


def test_who_gets_a_server_of_their_own_hears_why(
    served: PrivateServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in passed_on.NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(session, "_client", None)
    monkeypatch.setattr(session, "_start", lambda words, server, **_: print(words) or served)
    assert session.default_client() is served.client
    monkeypatch.setattr(session, "_client", None)
    monkeypatch.setenv("NBGEN_URL", "http://127.0.0.1:9/")
    with pytest.raises(ServerNotFound):
        session.default_client(start=False)
    assert session.default_client() is served.client
    why = "your nbgen server cannot be used: nothing answers at http://127.0.0.1:9/nbgen/"
    assert capsys.readouterr().out.splitlines() == [session.NONE_FOUND, why, session.STARTING]


@pytest.mark.parametrize("own", [True, False])
def test_a_server_that_was_out_of_reach_for_a_moment_stays(
    served: PrivateServer, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    """One that the user named, if it answers again; this kernel's own, which has every answer, as it is."""
    monkeypatch.setattr(session, "_private", served if own else None)
    monkeypatch.setattr(session, "_find", lambda start: pytest.fail("another was looked for"))
    monkeypatch.setattr(served.client, "lost", True)
    served._process.send_signal(signal.SIGSTOP if own else signal.SIGCONT)
    try:
        assert session.default_client() is served.client
    finally:
        served._process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("asked", [True, False])
def test_a_private_server_that_nobody_asked_for_ends_when_another_is_named(
    served: PrivateServer, monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    stopped: list[str] = []
    other = SimpleNamespace(url="http://127.0.0.1:9/nbgen/", stop=lambda: stopped.append(other.url))
    monkeypatch.setattr(session, "_private", other)
    monkeypatch.setattr(session, "_asked", asked)
    nbgen.connect(served.url, served.client.token).close()
    assert stopped == ([] if asked else [other.url])
    assert session._private is (other if asked else None)


@pytest.mark.soak
def test_the_server_ends_with_its_kernel(own_jupyter: Path) -> None:
    script = "import nbgen, os; server = nbgen.serve(); print(server._process.pid, flush=True); os._exit(1)"
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
    pid = int(done.stdout)
    wait_for(lambda: gone(pid), "it is gone")
