"""A server that is not nbgen, asked through its own dialect: SGLang, Triton, or anything that speaks OpenAI's API.

Has the methods of nbgen's client; what only nbgen has, they refuse. `open_client` finds out which kind answers.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from functools import partial
from queue import SimpleQueue
from typing import Any, NoReturn
from urllib.parse import quote, urlsplit, urlunsplit

from nbgen import sse
from nbgen.errors import InvalidRequest, NbgenError, NotFound, ServerNotFound, Unauthorized
from nbgen.notebook.backend import Backend, Reader
from nbgen.notebook.client import Client, Event, address, answering, api_roots, token_in
from nbgen.notebook.connection import CONNECT_SECONDS, SILENCE_SECONDS, Call, Connection, NoAnswer, sendable
from nbgen.notebook.openai_backend import OpenAIBackend
from nbgen.notebook.sglang_backend import SGLangBackend
from nbgen.notebook.task_thread import TaskThread
from nbgen.notebook.triton_backend import TritonBackend


class RemoteClient(Connection):
    """Runs on a server of another kind. `backend` is its dialect."""

    #: Such a server sends nothing while a request waits its turn, or while its model thinks.
    silence = None

    def __init__(self, url: str, token: str, backend: Backend) -> None:
        super().__init__(server_root(url), token)
        self.backend = backend
        #: The thread that reads each run, until the run ends or is cancelled.
        self._reading: dict[str, TaskThread] = {}

    def hello(self, timeout: float = CONNECT_SECONDS) -> dict[str, Any]:
        """The answer that nbgen would give."""
        return {"server_id": "", "model": {"name": self.backend.model, "state": "ready"}, "features": []}

    def model(self) -> dict[str, Any]:
        """The model's state, of which only the name is known."""
        return {"state": "ready", "name": self.backend.model, "error": None, "model": None, "status": None}

    def models(self) -> list[dict[str, Any]]:
        """The models that the server serves, in OpenAI's shape."""
        if isinstance(self.backend, TritonBackend):
            return [{"id": entry["name"], **entry} for entry in triton_models(self)]
        return list(self.fields(Call("GET", "v1/models"), SILENCE_SECONDS).get("data", []))

    def serving(self, model: str) -> RemoteClient:
        """The same server, asked for another of its models."""
        return RemoteClient(self.url, self.token, type(self.backend)(model))

    def run(self, body: dict[str, Any]) -> Iterator[Event]:
        """Like `Client.run`. A thread reads ahead, so a silent run can be stopped; the run ends with its reader."""
        run, reader = body.get("id") or uuid.uuid4().hex, self.backend.reader()
        came: SimpleQueue[Event | BaseException | None] = SimpleQueue()

        async def read() -> None:
            async with aclosing(self._translated(body, reader)) as events:
                async for event in events:
                    came.put(event)

        thread = self._reading[run] = TaskThread(read, came.put)
        try:
            thread.start()
            while isinstance(event := came.get(), tuple):
                yield event
            if event is not None:
                raise event
            if run not in self._reading:
                yield from reader.done("abort")
        finally:
            self._reading.pop(run, None)
            thread.cancel()

    def arun(self, body: dict[str, Any]) -> AsyncGenerator[Event, None]:
        """Like `run`, awaited."""
        return self._translated(body, self.backend.reader())

    def cancel(self, run: str) -> dict[str, Any]:
        """Stop a run that this client reads; any other has ended."""
        if (thread := self._reading.pop(run, None)) is not None:
            thread.cancel()
        return {"run": run}

    def follow(self, run: str, start: int = 0) -> Iterator[Event]:
        """A server of another kind keeps no runs."""
        raise NotFound(f"{self.url} keeps no answers: what had come is all there is")

    def generate(self, body: dict[str, Any]) -> Any:
        """SGLang's `/generate`, where there is one."""
        if not self._is_sglang:
            self._refuse("telling log-probabilities or hidden states")
        return self.json(Call("POST", "generate", body))

    def embeddings(self, body: dict[str, Any]) -> dict[str, Any]:
        """OpenAI's `/v1/embeddings`, where there is one."""
        if isinstance(self.backend, TritonBackend):
            self._refuse("embeddings")
        return self.fields(Call("POST", "v1/embeddings", {"model": self.backend.model, **body}))

    def tokenize(self, body: dict[str, Any]) -> dict[str, Any]:
        """SGLang's `/tokenize`, where there is one."""
        return self.fields(Call("POST", "tokenize", body)) if self._is_sglang else self._refuse("tokenize")

    def detokenize(self, body: dict[str, Any]) -> dict[str, Any]:
        """SGLang's `/detokenize`, where there is one."""
        return self.fields(Call("POST", "detokenize", body)) if self._is_sglang else self._refuse("detokenize")

    def infer(self, model: str, body: dict[str, Any], rest: bytes = b"") -> tuple[dict[str, Any], bytes]:
        """KServe v2's `infer`, where the server is a Triton."""
        if not isinstance(self.backend, TritonBackend):
            self._refuse("infer")
        return self.framed(Call("POST", f"v2/models/{quote(model, safe='')}/infer", body, rest))

    def load(self, model: str | None = None, quantization: str | None = None) -> Iterator[Event]:
        """Refused: its owner decides what it serves."""
        self._refuse("load")

    def unload(self) -> dict[str, Any]:
        """Refused, too."""
        self._refuse("unload")

    def cancel_all(self) -> None:
        """Refused, too: others ask it."""
        self._refuse("stopping all requests")

    def chat(self, chat: str) -> dict[str, Any]:
        """A server of another kind keeps no chats: each begins empty."""
        return {"chat": chat, "run": None, "messages": [], "turns": []}

    async def _translated(self, body: dict[str, Any], reader: Reader) -> AsyncGenerator[Event, None]:
        """The events of a run, translated into nbgen's."""
        self._check(body)
        yield "run", {"model": self.backend.model}
        async with aclosing(self.astream(self.backend.run(body))) as events:
            async for event in events:
                for translated in self._read(reader, event):
                    yield translated
        for translated in reader.end():
            yield translated

    def _read(self, reader: Reader, event: sse.Event) -> list[Event]:
        try:
            return reader.feed(event)
        except (AttributeError, LookupError, TypeError, ValueError):  # the reader expects the right shape
            words = f"{self.url} answers in another shape than a server of {self.backend.name}: {event.data:.80}"
            raise NbgenError(words) from None

    def _check(self, body: dict[str, Any]) -> None:
        if body.get("adapter"):
            self._refuse("adapter")
        if body.get("media"):
            self._refuse("complete=True with images, audio or videos")

    @property
    def _is_sglang(self) -> bool:
        return isinstance(self.backend, SGLangBackend)

    def _refuse(self, what: str) -> NoReturn:
        raise InvalidRequest(f"{what} needs an nbgen server; {self.url} speaks {self.backend.name}")


AnyClient = Client | RemoteClient


def open_client(url: str, token: str = "", kind: str = "auto", model: str | None = None) -> AnyClient:
    """A client of the server at `url`, of whatever kind; an address without a scheme means http.

    Raises ServerNotFound, Unauthorized, or InvalidRequest: for an invalid address or token, and for a `model` that a
    server of nbgen has not loaded.
    """
    if kind not in ("auto", *_OPENERS):
        raise InvalidRequest(f"a server's kind is auto, {', '.join(_OPENERS)}; got {kind!r}")
    url, tried = address(url), []
    token = sendable(token or token_in(url))
    for name in _OPENERS if kind == "auto" else (kind,):
        try:
            client = _OPENERS[name](url, token, model)
        except Unauthorized:
            raise
        except NoAnswer as error:
            raise ServerNotFound(f"{url} does not answer as a web server does: {error}") from None
        except NbgenError as error:
            tried.append(error)
            if str(error).startswith("nothing answers") or "certificate" in str(error):
                break
        else:
            return _of_model(client, model)
    if len(tried) == 1:
        raise tried[0]
    raise ServerNotFound(f"{url} answers, but neither as nbgen nor as SGLang, Triton or OpenAI's API")


def server_root(url: str) -> str:
    """The root above `/v1`, `/v2` or a page, with a slash at its end."""
    parts = urlsplit(url)
    folders = [part for part in parts.path.split("/") if part]
    for page in ("v1", "v2"):
        if page in folders:
            folders = folders[: folders.index(page)]
    return urlunsplit((parts.scheme, parts.netloc, "/".join(["", *folders, ""]), "", ""))


def triton_models(connection: Connection) -> list[dict[str, Any]]:
    """Triton's repository index: the models that are ready."""
    index = connection.json(Call("POST", "v2/repository/index", {"ready": True}), timeout=CONNECT_SECONDS)
    return [entry for entry in index if isinstance(entry, dict) and "name" in entry] if isinstance(index, list) else []


def _nbgen(url: str, token: str, model: str | None) -> Client:
    """A client of the first root that answers, of those that the address may mean."""
    errors: list[NbgenError] = []
    for root in api_roots(url):
        client = Client(root, token)
        try:
            return answering(client)
        except NbgenError as error:
            if client.lost:
                raise
            errors.append(error)
    raise next((error for error in reversed(errors) if isinstance(error, Unauthorized)), errors[-1])


def _of_model(client: AnyClient, model: str | None) -> AnyClient:
    """The client. Raises InvalidRequest for a `model` that an nbgen server has not loaded: it answers with its own."""
    if model and isinstance(client, Client) and model != (has := client.hello().get("model", {}).get("name")):
        client.close()
        raise InvalidRequest(
            f"{client.url} has {has!r} loaded: connect without model=, then nbgen.load(…)", field="model"
        )
    return client


def _of_sglang(connection: Connection) -> str | None:
    info = connection.fields(Call("GET", "get_model_info"), CONNECT_SECONDS)
    return info.get("served_model_name") or info.get("model_path")


def _of_triton(connection: Connection) -> str | None:
    server = connection.fields(Call("GET", "v2"), CONNECT_SECONDS)
    models = triton_models(connection) if server.get("extensions") is not None else []
    return models[0]["name"] if models else None


def _of_openai(connection: Connection) -> str | None:
    models = connection.fields(Call("GET", "v1/models"), CONNECT_SECONDS).get("data") or []
    return models[0].get("id") if models else None


def _remote(
    backend: Callable[[str], Backend],
    found: Callable[[Connection], str | None],
    url: str,
    token: str,
    model: str | None,
) -> RemoteClient:
    """A client of another kind of server, for `model`; None: for the one that `found` says is served there."""
    client = RemoteClient(url, token, backend(model or ""))
    try:
        served = found(client)
    except NbgenError:
        client.close()
        raise
    if not (served or model):
        client.close()
        raise ServerNotFound(f"{url} names no model that it serves")
    client.backend.model = model or served or ""
    return client


#: What opens a client, by the server's kind, in the order in which "auto" tries them.
_OPENERS: dict[str, Callable[[str, str, str | None], AnyClient]] = {
    "nbgen": _nbgen,
    "sglang": partial(_remote, SGLangBackend, _of_sglang),
    "triton": partial(_remote, TritonBackend, _of_triton),
    "openai": partial(_remote, OpenAIBackend, _of_openai),
}
