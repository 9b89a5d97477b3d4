"""Processes that a notebook starts use the notebook's server: they inherit where it is."""

import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

import nbgen
from nbgen.errors import ServerNotFound
from nbgen.notebook import passed_on, session
from nbgen.notebook.discovery import find_server
from nbgen.notebook.openai_backend import OpenAIBackend
from nbgen.notebook.private_server import PrivateServer
from nbgen.notebook.remote import RemoteClient

ASK = (
    "from nbgen.notebook import session; client = session.default_client();"
    "print(client.url, getattr(client, 'backend', None) and client.backend.kind, bool(client.models()))"
)


def told() -> Mapping[str, str]:
    return {name: os.environ[name] for name in passed_on.NAMES if name in os.environ}


def worker() -> str:
    """What another process has to say of the server that it found."""
    return subprocess.run([sys.executable, "-c", ASK], capture_output=True, check=True, encoding="utf-8").stdout.strip()


@pytest.fixture
def unchosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test chooses is forgotten after it."""
    for name in ("_client", "_chosen", "_private", "_asked"):
        monkeypatch.setattr(session, name, getattr(session, name))


@pytest.mark.usefixtures("unchosen")
def test_a_worker_uses_the_server_that_was_named(connected: PrivateServer) -> None:
    nbgen.connect(connected.url, connected.client.token).close()
    assert worker() == f"{connected.url} None True"


@pytest.mark.usefixtures("unchosen")
def test_so_it_does_where_that_is_of_another_kind(connected: PrivateServer) -> None:
    root = connected.url.removesuffix("nbgen/")
    nbgen.connect(root, connected.client.token, kind="openai").close()
    assert worker() == f"{root} openai True"


def test_a_server_of_another_kind_that_is_gone_is_not_replaced_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBGEN_URL", "http://127.0.0.1:9/")
    monkeypatch.setenv("NBGEN_KIND", "openai")
    monkeypatch.setattr(session, "_client", None)
    with pytest.raises(ServerNotFound, match="nothing answers"):
        session.default_client()


def test_this_process_looks_for_its_own_server_as_if_it_had_told_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    client = RemoteClient("http://127.0.0.1:9/", "secret", OpenAIBackend("m"))
    monkeypatch.setenv("NBGEN_URL", "http://127.0.0.1:7/nbgen/")
    before = dict(os.environ)
    passed_on.tell(client)
    assert list(told().values()) == [client.url, "secret", "openai", "m"]
    assert passed_on.own_environment() == before
    with pytest.raises(ServerNotFound, match=r"nothing answers at http://127\.0\.0\.1:7/nbgen/"):
        find_server()
    passed_on.take_back("http://127.0.0.1:8/")
    assert told()["NBGEN_URL"] == client.url
    passed_on.take_back(client.url)
    assert dict(os.environ) == before
    client.close()


def test_what_the_user_sets_in_between_stays(monkeypatch: pytest.MonkeyPatch, connected: PrivateServer) -> None:
    passed_on.tell(connected.client)
    monkeypatch.setenv("NBGEN_URL", "http://mine/")
    passed_on.tell(connected.client)
    passed_on.take_back()
    assert told() == {"NBGEN_URL": "http://mine/"}
