"""The HTTP client of nbgen's native API: one method a route, and errors with words for the person who called.

Knows addresses, headers, JSON and event streams; nothing of notebooks, displays or how the server was found.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit, urlunsplit

import httpx

from nbgen.errors import NbgenError, ServerNotFound, Unauthorized, Unavailable, from_status
from nbgen.sse import Decoder

LOOPBACK = ("127.0.0.1", "localhost", "::1")
#: The server sends a comment every ten seconds, so a silent minute is a dead connection.
SILENCE_SECONDS = 60.0
CONNECT_SECONDS = 5.0

Event = tuple[str, dict[str, Any]]


class Client:
    """Talks to one nbgen server. `url` may be that of the Jupyter server, as the browser shows it."""

    def __init__(self, url: str, token: str = "") -> None:
        self.url = api_root(url)
        self.lost = False
        self._http = httpx.Client(
            base_url=f"{self.url}api/v1/",
            headers=_headers(token or _token_in(url)),
            timeout=httpx.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS),
            trust_env=urlsplit(self.url).hostname not in LOOPBACK,
        )

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    def hello(self, timeout: float = CONNECT_SECONDS) -> dict[str, Any]:
        """Who answers: version, server_id, the model's name and state."""
        answer = self._json("GET", "hello", timeout=timeout)
        if "server_id" not in answer:
            raise ServerNotFound(f"{self.url} answers, but not as nbgen does")
        return answer

    def model(self) -> dict[str, Any]:
        """The model's state, and the engine's pulse."""
        return self._json("GET", "model")

    def load(self, model: str | None = None) -> Iterator[Event]:
        """Load a model: `progress` events, then `ready`. Raises ModelError when it cannot be loaded."""
        return self._stream("POST", "model/load", {"model": model} if model else {})

    def unload(self) -> dict[str, Any]:
        """End the engine process; returns when its memory is free."""
        return self._json("POST", "model/unload", {})

    def run(self, body: dict[str, Any]) -> Iterator[Event]:
        """Start a run and read its events. Closing the iterator aborts the run unless `attached` is false."""
        return self._stream("POST", "runs", body)

    def follow(self, run: str, start: int = 0) -> Iterator[Event]:
        """The events of a run that exists, from an offset."""
        return self._stream("GET", f"runs/{quote(run, safe='')}/events?from={start}")

    def snapshot(self, run: str) -> dict[str, Any]:
        """All of a run as it stands now."""
        return self._json("GET", f"runs/{quote(run, safe='')}")

    def cancel(self, run: str) -> dict[str, Any]:
        """Stop a run; one that has ended stays as it is."""
        return self._json("POST", f"runs/{quote(run, safe='')}/cancel", {})

    def chat(self, chat: str) -> dict[str, Any]:
        """The messages of a chat and its newest run. A new chat has neither."""
        return self._json("GET", f"chats/{quote(chat, safe='')}")

    def close(self) -> None:
        """Let go of the connections."""
        self._http.close()

    def _json(self, method: str, path: str, body: Any = None, timeout: float | None = None) -> dict[str, Any]:
        limits = httpx.USE_CLIENT_DEFAULT if timeout is None else httpx.Timeout(timeout)
        try:
            response = self._http.request(method, path, json=body, timeout=limits)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None
        self.lost = False
        if response.is_success:
            return parse_object(response.content)
        raise error_of(response.status_code, response.content, self.url)

    def _stream(self, method: str, path: str, body: Any = None) -> Iterator[Event]:
        decoder = Decoder()
        try:
            with self._http.stream(method, path, json=body) as response:
                if not response.is_success:
                    raise error_of(response.status_code, response.read(), self.url)
                for chunk in response.iter_bytes():
                    for event in decoder.feed(chunk):
                        yield event.event, parse_object(event.data)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None

    def _unreachable(self, error: httpx.HTTPError) -> NbgenError:
        self.lost = True
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return ServerNotFound(f"{self.url} has a certificate that this machine does not trust")
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return ServerNotFound(f"nothing answers at {self.url}")
        if isinstance(error, httpx.TimeoutException):
            return Unavailable(f"{self.url} did not answer in time")
        return Unavailable(f"the connection to {self.url} was lost")


def api_root(url: str) -> str:
    """nbgen's own root for whatever address a person has at hand: `…/lab?token=…`, `…/`, `…/nbgen/`."""
    parts = urlsplit(url)
    folders = [part for part in parts.path.split("/") if part]
    for page in ("nbgen", "lab", "tree", "notebooks"):
        if page in folders:
            folders = folders[: folders.index(page)]
    return urlunsplit((parts.scheme, parts.netloc, "/".join(["", *folders, "nbgen", ""]), "", ""))


def error_of(status: int, body: bytes, url: str) -> NbgenError:
    """The error in an answer: nbgen's own shape, Jupyter's, or none at all."""
    answer = parse_object(body)
    stated = answer.get("error")
    if isinstance(stated, dict):
        return from_status(status, str(stated.get("message", "")), stated.get("field"))
    if status in (401, 403):
        return Unauthorized(f"{url} refused the token; give the right one: nbgen.connect(url, token)")
    if status == 404:
        return ServerNotFound(f"there is a server at {url}, but the nbgen extension is not enabled in it")
    return from_status(status, str(answer.get("message") or f"{url} answered with status {status}"))


def parse_object(text: bytes | str) -> dict[str, Any]:
    """A JSON object; anything else reads as an empty one."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _headers(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


def _token_in(url: str) -> str:
    return parse_qs(urlsplit(url).query).get("token", [""])[0]
