"""Real servers: processes on free ports with folders of their own, asked over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
import openai
import psutil
import pytest

from nbgen.sse import Decoder, Event
from tests.conftest import PATIENCE, free_port, save_model, wait_for

if TYPE_CHECKING:
    from tests.engine.image_requests import Reference

TOKEN = "a-test-token"
#: Of an httpx client: certificates, which nobody here asks for, take it longer to read than a call takes.
CALLER: dict[str, Any] = {"timeout": PATIENCE, "verify": False}
#: What flags set, by its name in `/server_info`, and the options of Jupyter's that do.
SET_BY_FLAGS = {
    "incremental_streaming_output": "incremental_streaming_output",
    "allow_auto_truncate": "allow_auto_truncate",
    "enable_torch_compile": "compile",
    "enable_custom_logit_processor": "enable_custom_logit_processor",
}
BUSY = {"ignore_eos": True, "max_new_tokens": 15_000, "temperature": 0}


class Server:
    """One server process and a client of it. Only with `standby` a second engine process is kept ready."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        app: str = "nbgen",
        base: str = "/",
        token: str = TOKEN,
        standby: bool = False,
    ) -> None:
        self.port = free_port()
        self.folder = folder
        self.runtime = folder / "runtime"
        self.log = folder / "server.log"
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", app, f"--port={self.port}", "--ServerApp.port_retries=0", "--no-browser"]
        command += [f"--IdentityProvider.token={token}", f"--ServerApp.base_url={base}", "--allow-root", *arguments]
        command += [f"--NbgenApp.standby={standby}"]
        environment = os.environ | {
            "JUPYTER_CONFIG_DIR": str(folder / "config"),
            "JUPYTER_DATA_DIR": str(folder / "data"),
            "JUPYTER_RUNTIME_DIR": str(self.runtime),
            "JUPYTER_PLATFORM_DIRS": "0",
            "OMP_NUM_THREADS": "1",
        }
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log
            )
        self.root = f"http://127.0.0.1:{self.port}{base}"
        self._auth = {"Authorization": f"token {token}"} if token else {}
        self.http = httpx.Client(base_url=self.root + "nbgen/", headers=self._auth, **CALLER)
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise

    def _wait(self) -> None:
        def answers() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            with contextlib.suppress(httpx.TransportError):
                return self.http.get("health").status_code < 600
            return False

        wait_for(answers, "the server answers")

    @property
    def runtime_file(self) -> Path:
        return self.runtime / f"nbgen-{self.process.pid}.json"

    @property
    def key(self) -> str:
        return json.loads(self.runtime_file.read_bytes())["key"]

    def anonymous(self, **headers: str) -> httpx.Client:
        """A client that shows nothing but `headers`."""
        return httpx.Client(base_url=self.root + "nbgen/", headers=headers, **CALLER)

    def openai(self, key: str | None = None) -> openai.OpenAI:
        """OpenAI's own client; with its key where no other is given."""
        return openai.OpenAI(base_url=f"{self.root}nbgen/v1", api_key=key or self.key, max_retries=0)

    def model(self) -> dict[str, Any]:
        return self.http.get("api/v1/model").json()

    def generated(self) -> int:
        """Tokens that the engine has generated, as its last pulse says."""
        tokens: int = self.model()["status"]["generated_tokens"]
        return tokens

    def ready(self) -> Server:
        """This server, once a model is loaded."""
        if self.model()["state"] != "ready":
            events(self.http, "POST", "api/v1/model/load", json={})
        assert self.model()["state"] == "ready"
        return self

    def serving(self, folder: Path) -> Server:
        """This server, once this model is in the place of any other."""
        if self.model()["name"] != str(folder) or self.model()["state"] != "ready":
            last = events(self.http, "POST", "api/v1/model/load", json={"model": str(folder)})[-1]
            assert last.event == "ready", last.data
        return self

    def idle(self) -> None:
        """Wait until every request has ended and the engine, whose status is a pulse, has said so."""
        flushed = self.http.post("flush_cache", params={"timeout": PATIENCE / 2})
        assert flushed.status_code == 200, flushed.text
        wait_for(self._is_idle, f"the engine is idle: {self.model()}")

    @contextlib.contextmanager
    def asking(self, path: str, body: Any) -> Iterator[None]:
        """A caller who has asked, and hangs up at the end."""
        headers = {**self._auth, "Content-Type": "application/json"}
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)) as caller:
            caller.request("POST", f"{urlsplit(self.root).path}nbgen/{path}", json.dumps(body), headers)
            yield

    def left(self, path: str, body: Any) -> None:
        """Have a caller ask the engine, once it is idle, and hang up when it is at it."""
        self.idle()
        with self.asking(path, body):
            wait_for(lambda: not self._is_idle(), "the request runs")

    def _is_idle(self) -> bool:
        status = self.model()["status"]
        return bool(status) and not status["running"] and not status["waiting"]

    def engine(self) -> psutil.Process:
        return psutil.Process(self.model()["engine_pid"])

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End it and say how it ended."""
        self.http.close()
        if self.process.poll() is None:
            self.process.send_signal(number)
        assert self.process.stdin
        self.process.stdin.close()
        return self.process.wait(PATIENCE)


@contextlib.contextmanager
def slow_reader(server: Server, body: dict[str, Any], path: str = "generate") -> Iterator[socket.socket]:
    """A connection that asks, and takes a few kilobytes of what it is sent, as long as nobody reads."""
    raw = json.dumps(body).encode()
    head = f"POST /{path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: token {TOKEN}\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n"
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect(("127.0.0.1", server.port))
        reader.sendall(head.encode() + raw)
        yield reader


async def until(holds: Callable[[], Any]) -> None:
    """As `wait_for`, for what happens on the loop of who waits."""
    async with asyncio.timeout(PATIENCE):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def events(client: httpx.Client, method: str, path: str, **request: Any) -> list[Event]:
    """All events of a stream."""
    with client.stream(method, path, **request) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        decoder = Decoder()
        return [event for chunk in answer.iter_bytes() for event in decoder.feed(chunk)]


def first_events(answer: httpx.Response, count: int) -> list[Event]:
    """The first events of an open stream."""
    return events_until(answer, lambda found: len(found) >= count)


def events_until(answer: httpx.Response, enough: Callable[[list[Event]], bool]) -> list[Event]:
    """Those of an open stream up to where they are enough, and what came along with the last of them."""
    decoder, found = Decoder(), []
    for chunk in answer.iter_bytes():
        found += decoder.feed(chunk)
        if enough(found):
            return found
    raise AssertionError(f"the stream ended before: {found[-3:]}")


@pytest.fixture(scope="session")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with room for an answer of many seconds."""
    return save_model(tmp_path_factory.mktemp("models") / "long-llama", max_position_embeddings=16_384)


@pytest.fixture(scope="session")
def seeing_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model for images and videos, in a folder named after its family."""
    from tests.engine.multimodal import save

    return save(tmp_path_factory.mktemp("seeing") / "qwen2_5_vl", "qwen2_5_vl")


@pytest.fixture(scope="session")
def calling_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose template has calls and thoughts; `</think>` is one token."""
    from transformers import AutoTokenizer

    from tests.chat_templates import CALLS, THOUGHT, template

    folder = save_model(tmp_path_factory.mktemp("models") / "caller", vocab_size=300, max_position_embeddings=2048)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["</think>"])
    tokenizer.chat_template = template(CALLS["objects"], THOUGHT)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def calling_server(tmp_path_factory: pytest.TempPathFactory, calling_model: Path) -> Iterator[Server]:
    """That model's server."""
    server = Server(tmp_path_factory.mktemp("tools"), f"--model={calling_model}")
    yield server.ready()
    server.stop()


@pytest.fixture(scope="session")
def caller(calling_server: Server) -> Iterator[openai.OpenAI]:
    """OpenAI's own client of it."""
    with calling_server.openai() as client:
        yield client


@pytest.fixture(scope="session")
def seeing(tmp_path_factory: pytest.TempPathFactory, seeing_model: Path) -> Iterator[Server]:
    """That model's server, which reads files of its own folder."""
    server = Server(tmp_path_factory.mktemp("server"), f"--model={seeing_model}", "--dtype=float32", "--media-root=.")
    yield server.ready()
    server.stop()
    assert "Traceback" not in server.log.read_text()


@pytest.fixture(scope="session")
def reference(seeing_model: Path) -> Reference:
    """What transformers makes of that model's prompts."""
    from tests.engine.image_requests import Reference

    return Reference(seeing_model)


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of plain torch modules."""
    from tests.server.triton import save_repository

    return save_repository(tmp_path_factory.mktemp("repository"))


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, long_model: Path, repository: Path) -> Iterator[Server]:
    """nbgen standing alone, for tests that leave its engine as they found it."""
    modules = f"--NbgenApp.model_repository={repository}"
    options = (f"--model={long_model}", "--dtype=float32", modules, "--NbgenApp.grpc_port=0")
    server = Server(tmp_path_factory.mktemp("server"), *options)
    yield server.ready()
    server.stop()
    log = server.log.read_text()
    assert not any(word in log for word in ("Traceback", "Uncaught", "never retrieved", TOKEN)), log


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    """OpenAI's own client of it, or of a module's own `server`."""
    with server.openai() as client:
        yield client


@pytest.fixture(scope="session")
def jupyter(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Iterator[Server]:
    """nbgen inside a Jupyter server below a base URL, with no engine started."""
    arguments = (
        "--ServerApp.jpserver_extensions=nbgen=True",
        "--NbgenApp.model=/nonexistent/model",
        f"--NbgenApp.model_repository={repository}",
        "--NbgenApp.grpc_port=0",
        *(f"--NbgenApp.{name}=True" for name in SET_BY_FLAGS.values()),
    )
    server = Server(tmp_path_factory.mktemp("jupyter"), *arguments, app="jupyter_server", base="/user/x/")
    yield server
    server.stop()


@pytest.fixture(scope="session")
def changing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """nbgen standing alone, which loads one model after the other."""
    running = Server(tmp_path_factory.mktemp("changing"), "--NbgenApp.autoload=False", "--NbgenApp.dtype=float32")
    yield running
    running.stop()
