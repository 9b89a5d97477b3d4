"""The client of an nbgen server: one method for each route of its own API.

Knows addresses and routes; nothing of notebooks, displays or how the server was found.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any, TypeVar
from urllib.parse import parse_qs, quote, urlsplit, urlunsplit

from nbgen.errors import InvalidRequest, NbgenError, ServerNotFound
from nbgen.notebook.connection import CONNECT_SECONDS, SILENCE_SECONDS, Call, Connection, parse_object

API = "api/v1/"
PAGES = ("nbgen", "lab", "tree", "notebooks")

#: An event of a run or a load: its name and its data.
Event = tuple[str, dict[str, Any]]

C = TypeVar("C", bound="Client")


class Client(Connection):
    """Talks to one nbgen server. `url` may be that of the Jupyter server, as the browser shows it."""

    def __init__(self, url: str, token: str = "", *, direct: bool = False, certificate: str = "") -> None:
        """Raises InvalidRequest for an invalid address or token."""
        url = address(url)
        super().__init__(api_root(url), token or token_in(url), direct=direct, certificate=certificate)

    def hello(self, timeout: float = CONNECT_SECONDS) -> dict[str, Any]:
        """Who answers: version, server_id, the model's name and state."""
        answer = self.fields(Call("GET", f"{API}hello"), timeout=timeout)
        if "server_id" not in answer:
            raise ServerNotFound(f"{self.url} answers, but not as nbgen does")
        return answer

    def model(self) -> dict[str, Any]:
        """The model's state, and the engine's pulse."""
        return self._known(Call("GET", f"{API}model"))

    def models(self) -> list[dict[str, Any]]:
        """The models that the server can be asked for, in OpenAI's shape."""
        return list(self._known(Call("GET", "v1/models")).get("data", []))

    def load(self, model: str | None = None, quantization: str | None = None) -> Iterator[Event]:
        """Load a model: `progress` events, then `ready`. Raises ModelError when it cannot be loaded."""
        wanted = {"model": model, "quantization": quantization}
        call = Call("POST", f"{API}model/load", {name: value for name, value in wanted.items() if value})
        return self._events(call)

    def unload(self) -> dict[str, Any]:
        """End the engine process; returns when its memory is free."""
        return self.fields(Call("POST", f"{API}model/unload", {}))

    def start_modules(self) -> None:
        """Have the server start its process for plain modules, if it has none; returns before that is ready."""
        self.json(Call("POST", f"{API}modules/start", {}))

    def load_module(self, name: str) -> None:
        """Let the server load a plain module of its repository, as its folder is now."""
        self.json(Call("POST", f"v2/repository/models/{quote(name, safe='')}/load", {}))

    def load_adapter(self, name: str, folder: str) -> dict[str, str]:
        """Load a LoRA adapter from a folder that the server sees. Returns all loaded adapters: names and folders."""
        call = Call("POST", "load_lora_adapter", {"lora_name": name, "lora_path": folder})
        return dict(self.fields(call)["loaded_adapters"])

    def unload_adapter(self, name: str) -> dict[str, str]:
        """Unload an adapter; returns the others when no request uses it any more."""
        return dict(self.fields(Call("POST", "unload_lora_adapter", {"lora_name": name}))["loaded_adapters"])

    def run(self, body: dict[str, Any]) -> Iterator[Event]:
        """Start a run and read its events. Closing the iterator aborts the run unless `attached` is false."""
        return self._events(Call("POST", f"{API}runs", body))

    async def arun(self, body: dict[str, Any]) -> AsyncGenerator[Event, None]:
        """Like `run`, awaited. With `stream` false the whole answer comes at once, in the same events."""
        call = Call("POST", f"{API}runs", body)
        if body.get("stream", True):
            async with aclosing(self.astream(call)) as events:
                async for event in events:
                    yield event.event, parse_object(event.data)
        else:
            for whole in snapshot_events(await self.afields(call)):
                yield whole

    def follow(self, run: str, start: int = 0) -> Iterator[Event]:
        """The events of an existing run, from number `start` on."""
        return self._events(Call("GET", f"{API}runs/{quote(run, safe=':')}/events?from={start}"))

    def snapshot(self, run: str) -> dict[str, Any]:
        """All of a run as it stands now."""
        return self._known(Call("GET", f"{API}runs/{quote(run, safe=':')}"))

    def cancel(self, run: str) -> dict[str, Any]:
        """Stop a run; one that has ended stays as it is."""
        return self._known(Call("POST", f"{API}runs/{quote(run, safe=':')}/cancel", {}))

    def cancel_all(self) -> None:
        """Stop every request of the server, whoever asked."""
        self._known(Call("POST", "abort_request", {"abort_all": True}))

    def chat(self, chat: str) -> dict[str, Any]:
        """The messages of a chat and its newest run. A new chat has neither."""
        return self._known(Call("GET", f"{API}chats/{quote(chat, safe=':')}"))

    def generate(self, body: dict[str, Any]) -> Any:
        """The answer of SGLang's `/generate`, which can hold log-probabilities; for a list of prompts, a list."""
        return self.json(Call("POST", "generate", body))

    def embeddings(self, body: dict[str, Any]) -> dict[str, Any]:
        """The answer of OpenAI's `/v1/embeddings`."""
        return self.fields(Call("POST", "v1/embeddings", body))

    def tokenize(self, body: dict[str, Any]) -> dict[str, Any]:
        """The answer of `/tokenize`: `tokens` and `count`."""
        return self.fields(Call("POST", "tokenize", body))

    def detokenize(self, body: dict[str, Any]) -> dict[str, Any]:
        """The answer of `/detokenize`: `text`."""
        return self.fields(Call("POST", "detokenize", body))

    def infer(self, model: str, body: dict[str, Any], rest: bytes = b"") -> tuple[dict[str, Any], bytes]:
        """The answer of KServe v2's `infer`. Request and answer may have binary tensors after their JSON."""
        return self.framed(Call("POST", f"v2/models/{quote(model, safe='')}/infer", body, rest))

    def _known(self, call: Call) -> dict[str, Any]:
        """Like `fields`, for calls that the server answers at once, whatever its engine is doing."""
        return self.fields(call, SILENCE_SECONDS)

    def _events(self, call: Call) -> Iterator[Event]:
        for event in self.stream(call):
            yield event.event, parse_object(event.data)


def snapshot_events(run: dict[str, Any]) -> list[Event]:
    """The events that a finished run would have sent to a reader who came late."""
    deltas: list[Event] = [("delta", {"text": text, "index": index}) for index, text in enumerate(run["texts"])]
    deltas[0][1].update({name: run[name] for name in ("reasoning", "tool_calls")})
    return [("run", {"model": run["model"]}), *deltas, ("error", run) if run["error"] else ("done", run)]


def answering(client: C, seconds: float = CONNECT_SECONDS) -> C:
    """Returns the client if its server answers `hello`; else closes the client and raises the error."""
    try:
        client.hello(timeout=seconds)
    except NbgenError:
        client.close()
        raise
    return client


def address(url: str) -> str:
    """An HTTP URL from an address as a person writes it. Raises InvalidRequest for an invalid one."""
    whole = url if not isinstance(url, str) or "://" in url else f"http://{url.strip()}"
    try:
        parts = urlsplit(whole)
        good = parts.scheme in ("http", "https", "http+unix") and parts.hostname and (parts.port or True)
    except (ValueError, TypeError, AttributeError):
        good = False
    if not good:
        raise InvalidRequest(f"a server's address is like http://127.0.0.1:8888/, got {url!r}", field="url")
    return whole


def api_root(url: str) -> str:
    """The root of nbgen's routes for an address as a person knows it: `…/lab?token=…`, `…/`, `…/nbgen/`."""
    roots = api_roots(url)
    return roots[1] if urlsplit(url).path.rstrip("/").endswith("/nbgen") else roots[-1]


def api_roots(url: str) -> list[str]:
    """All roots that it may mean, the longest first: folders of a server's base URL may be named like Jupyter's pages.

    A shorter root may belong to another server, so the longest one that answers is right.
    """
    folders = [part for part in urlsplit(url).path.split("/") if part]
    lengths = [len(folders), *(i for i in reversed(range(len(folders))) if folders[i] in PAGES)]
    return [_root(url, folders[:length]) for length in lengths]


def root_below(base: str) -> str:
    """The root of nbgen's routes on the Jupyter server with exactly this base URL."""
    return _root(base, [part for part in urlsplit(base).path.split("/") if part])


def _root(url: str, folders: list[str]) -> str:
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc, "/".join(["", *folders, "nbgen", ""]), "", ""))


def token_in(url: str) -> str:
    """The token of an address as Jupyter prints it, `…?token=…`."""
    return parse_qs(urlsplit(url).query).get("token", [""])[0]
