"""The server is found by what stands in the environment and in Jupyter's runtime folder."""

import json
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

import pytest

import nbgen
from nbgen.errors import InvalidRequest, ServerNotFound
from nbgen.notebook import discovery
from nbgen.notebook.client import Client, api_root
from nbgen.notebook.discovery import candidates, find_server
from nbgen.notebook.private_server import PrivateServer
from tests.certificates import Identity
from tests.notebook.hello_server import greeting, greeting_on_socket


def write(folder: Path, name: str, **entry: object) -> None:
    (folder / name).write_text(json.dumps(entry))


def environment(folder: Path, **more: str) -> dict[str, str]:
    return {"JUPYTER_RUNTIME_DIR": str(folder), **more}


@pytest.mark.parametrize(
    "url",
    [
        "http://h:1/user/x",
        "http://h:1/user/x/",
        "http://h:1/user/x/nbgen/",
        "http://h:1/user/x/lab/tree/a.ipynb?token=abc",
        "http://h:1/user/x/tree#top",
    ],
)
def test_any_address_of_a_server_leads_to_its_routes(url: str) -> None:
    assert api_root(url) == "http://h:1/user/x/nbgen/"


@pytest.mark.parametrize("url", ["http://", "/user/x", "ftp://h/", "http://[1", "http://h:port/"])
@pytest.mark.parametrize("token", ["", "t"])
def test_what_is_no_address_is_refused_in_words(tmp_path: Path, url: str, token: str) -> None:
    said: list[str] = []
    with pytest.raises(ServerNotFound, match=r"NBGEN_URL .*a server's address is like http://127"):
        find_server(environment(tmp_path, NBGEN_URL=url, NBGEN_TOKEN=token), said.append)
    assert said == [f"your nbgen server cannot be used: a server's address is like http://127.0.0.1:8888/, got {url!r}"]
    with pytest.raises(InvalidRequest, match="a server's address is like"):
        Client(url)


def test_an_address_may_leave_out_its_scheme(tmp_path: Path) -> None:
    with greeting() as url:
        found = find_server(environment(tmp_path, NBGEN_URL=url.removeprefix("http://")))
        assert found.url == f"{url}/nbgen/"
        found.close()
    with pytest.raises(ServerNotFound, match=r"nothing answers at http://nonsense\.invalid/nbgen/"):
        find_server(environment(tmp_path, NBGEN_URL="nonsense.invalid"))


def test_the_variable_without_a_secret_takes_the_key_of_the_runtime_file(tmp_path: Path) -> None:
    write(tmp_path, "nbgen-4000001.json", url="http://h:1/other/", key="wrong")
    write(tmp_path, "nbgen-4000002.json", url="http://h:1/x/", key="right")
    found = list(candidates(environment(tmp_path, NBGEN_URL="http://h:1/x/nbgen/")))
    assert found[0][1:3] == ("http://h:1/x/nbgen/", "right")


def test_the_kernels_own_server_comes_before_others(tmp_path: Path) -> None:
    write(tmp_path, "jpserver-77.json", url="http://mine/", token="t")
    write(tmp_path, "nbgen-4000005.json", url="http://other/", key="k")
    write(tmp_path, f"nbgen-{os.getppid()}.json", url="http://parent/", key="p")
    found = candidates(environment(tmp_path, JPY_PARENT_PID="77"))
    assert [place.url for place in found][:2] == ["http://mine/nbgen/", "http://parent/nbgen/"]


def test_hub_and_variables_are_candidates(tmp_path: Path) -> None:
    env = environment(
        tmp_path,
        JUPYTERHUB_SERVICE_URL="http://0.0.0.0:8888/user/a%40b/",
        JUPYTERHUB_API_TOKEN="h",
        JUPYTER_SERVER_URL="http://s/",
        JUPYTER_TOKEN="t",
    )
    assert [tuple(place) for place in candidates(env)] == [
        ("JupyterHub", "http://127.0.0.1:8888/user/a@b/nbgen/", "h", True, "", True),
        ("JUPYTER_SERVER_URL", "http://s/nbgen/", "t", False, "", True),
    ]


class Proxy(BaseHTTPRequestHandler):
    """Writes down what it is asked for."""

    seen: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.seen.append(self.path)
        self.send_error(503)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def seen_by_proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What goes through the proxy that the environment names."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        threading.Thread(target=proxy.serve_forever).start()
        for name in ("no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY", "HTTP_PROXY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.server_port}")
        monkeypatch.setattr(Proxy, "seen", [])
        yield Proxy.seen
        proxy.shutdown()


def test_no_proxy_sees_the_key_of_what_is_found(seen_by_proxy: list[str], tmp_path: Path) -> None:
    write(tmp_path, "nbgen-4000001.json", url="http://127.0.0.2:9/", key="k")
    write(tmp_path, "jpserver-4000001.json", url="http://127.0.0.2:9/", token="t")
    hub = {"JUPYTERHUB_SERVICE_URL": "http://127.0.0.2:9/user/a/", "JUPYTERHUB_API_TOKEN": "h"}
    with pytest.raises(ServerNotFound):
        find_server(environment(tmp_path, NBGEN_URL="http://127.0.0.2:9/nbgen/", **hub))
    assert seen_by_proxy == []


def test_what_a_person_names_is_asked_through_their_proxy(seen_by_proxy: list[str], tmp_path: Path) -> None:
    with pytest.raises(ServerNotFound, match="status 503"):
        find_server(environment(tmp_path, NBGEN_URL="http://far.example/", NBGEN_TOKEN="t"))
    assert seen_by_proxy == ["http://far.example/nbgen/api/v1/hello"]


def test_a_server_of_the_notebooks_folder_is_asked_first(tmp_path: Path) -> None:
    write(tmp_path, "jpserver-4000001.json", url="http://a/", root_dir="/data")
    write(tmp_path, "jpserver-4000002.json", url="http://b/", root_dir="/home/me")
    write(tmp_path, "jpserver-4000003.json", url="http://c/", root_dir="/home/m")
    found = candidates(environment(tmp_path, JPY_SESSION_NAME="/home/me/a.ipynb"))
    assert next(iter(found)).url == "http://b/nbgen/"


def test_the_first_that_answers_is_taken(server: PrivateServer, tmp_path: Path) -> None:
    (tmp_path / "nbgen-4000001.json").write_text("half a fi")
    write(tmp_path, "nbgen-4000002.json", url="http://127.0.0.1:9/", key="nobody")
    token = server.client._http.headers["Authorization"].removeprefix("Bearer ")
    write(tmp_path, "nbgen-4000003.json", url=server.url.removesuffix("nbgen/"), key=token)
    client = find_server(environment(tmp_path))
    assert client.url == server.url
    client.close()


def test_failure_says_what_was_tried(server: PrivateServer, tmp_path: Path) -> None:
    write(tmp_path, "nbgen-4000002.json", url="http://127.0.0.1:9/", key="k")
    write(tmp_path, "nbgen-4000003.json", url=server.url.removesuffix("nbgen/"), key="wrong")
    with pytest.raises(ServerNotFound) as caught:
        find_server(environment(tmp_path))
    words = str(caught.value)
    assert "nothing answers at http://127.0.0.1:9/" in words
    assert "nbgen-4000003.json" in words
    assert "nbgen.serve()" in words


@contextmanager
def encrypted(identity: Identity, folder: Path) -> Iterator[str]:
    """The address of a server that shows a certificate."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*identity.files(folder).values())
    with greeting(tls=tls) as url:
        yield f"{url}/"


SIGNER = Identity()


@pytest.mark.parametrize("identity", [Identity(), Identity(SIGNER), Identity(days_ago=100)])
def test_a_server_is_believed_that_shows_the_certificate_of_its_file(identity: Identity, tmp_path: Path) -> None:
    with encrypted(identity, tmp_path) as url:
        write(tmp_path, "nbgen-4000001.json", url=url, key="k", certificate=identity.pem)
        client = find_server(environment(tmp_path))
        assert client.url == url + "nbgen/"
        client.close()


@pytest.mark.parametrize("written", [{}, {"certificate": Identity(SIGNER).pem}])
def test_no_other_certificate_is_believed(written: dict[str, str], tmp_path: Path) -> None:
    with encrypted(Identity(SIGNER), tmp_path) as url:
        write(tmp_path, "nbgen-4000001.json", url=url, key="k", **written)
        with pytest.raises(ServerNotFound, match=r"does not trust \(self-signed certificate\); SSL_CERT_FILE"):
            find_server(environment(tmp_path))


def test_what_is_wrong_with_a_named_certificate_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with encrypted(identity := Identity(), tmp_path) as url:
        monkeypatch.setenv("SSL_CERT_FILE", identity.files(tmp_path)["certfile"])
        write(tmp_path, "nbgen-4000001.json", url=url, key="k")
        with pytest.raises(ServerNotFound, match=r"trust \(IP address mismatch, .+ '127\.0\.0\.1'\); SSL_CERT_FILE"):
            find_server(environment(tmp_path))


@pytest.mark.parametrize("base", ["/lab/", "/nbgen/", "/user/tree/", "/notebooks/lab/"])
def test_folders_of_a_base_url_may_be_named_as_pages_are(base: str, tmp_path: Path) -> None:
    with greeting(base) as url:
        root = f"{url}{base}nbgen/"
        write(tmp_path, "nbgen-4000001.json", url=url + base, key="k")
        for env in (
            {"NBGEN_URL": root},
            {"NBGEN_URL": url + base, "NBGEN_TOKEN": "t"},
            {"NBGEN_URL": f"{url}{base}lab/tree/lab/a.ipynb", "NBGEN_TOKEN": "t"},
            {"JUPYTERHUB_SERVICE_URL": url + base, "JUPYTERHUB_API_TOKEN": "h"},
            {},
        ):
            with closing(find_server(environment(tmp_path, **env))) as client:
                assert client.url == root


@pytest.mark.parametrize(("version", "differs"), [(nbgen.__version__, False), ("0.0.1", True)])
def test_a_server_of_another_version_is_used_and_named(version: str, differs: bool, tmp_path: Path) -> None:
    """Who upgrades in a notebook has the new one in the next kernel, and the old one in Jupyter."""
    said: list[str] = []
    with greeting(version=version) as url:
        env = environment(tmp_path, NBGEN_URL=url, NBGEN_TOKEN="t")
        with closing(find_server(env, said.append)) as client:
            assert client.url == f"{url}/nbgen/"
    words = f"this kernel has nbgen {nbgen.__version__} and its server, {url}/nbgen/, 0.0.1: restart the older"
    assert said == [words] * differs


def test_it_is_said_why_the_kernels_own_server_is_not_used(tmp_path: Path) -> None:
    said: list[str] = []
    own = environment(tmp_path, NBGEN_URL="http://127.0.0.1:9/")
    with pytest.raises(ServerNotFound):
        find_server(own, said.append)
    reason = "your nbgen server cannot be used: nothing answers at http://127.0.0.1:9/nbgen/"
    with greeting() as url:
        write(tmp_path, "nbgen-4000001.json", url=url, key="k")
        find_server(own, said.append).close()
        assert said == [reason, f"{reason}; the one at {url}/nbgen/ is in its place"]
        for usable in ({}, {"NBGEN_URL": f"{url}/nbgen/"}, {"NBGEN_URL": url, "NBGEN_TOKEN": "t"}):
            find_server(environment(tmp_path, **usable), said.append).close()
    assert len(said) == 2


def test_a_named_server_has_longer_to_say_hello_than_one_that_happens_to_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be far away, or busy for a moment: nobody is to be asked in its place."""
    monkeypatch.setattr(discovery, "HELLO_SECONDS", 0.1)
    with (
        greeting(after=0.3) as url,
        closing(find_server(environment(tmp_path, NBGEN_URL=url, NBGEN_TOKEN="t"))) as near,
    ):
        assert discovery.answers(near)
    with greeting(after=10) as url:
        write(tmp_path, "nbgen-4000001.json", url=url, key="k")
        with pytest.raises(ServerNotFound, match="did not answer in time"):
            find_server(environment(tmp_path))


def test_a_server_on_a_unix_socket_is_found(tmp_path: Path) -> None:
    path = tmp_path / "J.sock"
    url = f"http+unix://{quote(str(path), safe='')}/lab/"
    write(tmp_path, "nbgen-4000001.json", url=url, key="k")
    with greeting_on_socket(path, "/lab/"):
        for env in ({}, {"NBGEN_URL": f"{url}nbgen/"}, {"NBGEN_URL": url, "NBGEN_TOKEN": "t"}):
            with closing(find_server(environment(tmp_path, **env))) as client:
                assert client.url == f"{url}nbgen/"


def test_servers_that_have_ended_are_not_asked(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    here, gone = {"host": socket.gethostname(), "pid": os.getpid()}, {"host": socket.gethostname(), "pid": ended.pid}
    entries = {
        "nbgen-4000001": {"url": "http://127.0.0.1:1/", **here},
        "nbgen-4000002": {"url": "http://127.0.0.1:2/", **gone},
        "nbgen-4000003": {"url": "http://127.0.0.1:3/", **here, "host": "elsewhere"},
        "nbgen-4000004": {"url": "http://10.0.0.7:4/", **gone, "host": "elsewhere"},
        "nbgen-4000005": {"url": "http+unix://%2Ftmp%2Fj.sock/", **gone},
        "jpserver-4000001": {"url": "http://localhost:1/", "pid": os.getpid()},
        "jpserver-4000002": {"url": "http://localhost:2/", "pid": ended.pid},
        "jpserver-4000006": {"url": f"http://{socket.gethostname()}:6/", "pid": ended.pid},
    }
    for name, entry in entries.items():
        write(tmp_path, f"{name}.json", **entry)
    found = [candidate.source.removesuffix(".json") for candidate in candidates(environment(tmp_path))]
    assert found == ["nbgen-4000001", "nbgen-4000004", "jpserver-4000001"]
