"""JSON and event streams over HTTP with one server, blocking or awaited, and its errors in words.

What is sent and how answers are read is the same for both; only the few lines around httpx differ. Knows no
route and nothing of what the events mean.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import ssl
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass
from weakref import WeakKeyDictionary

import httpx

from nbgen import keepalive, sse
from nbgen.errors import (
    InvalidRequest,
    NbgenError,
    ServerNotFound,
    Unauthorized,
    Unavailable,
    from_status,
    no_character,
)
from nbgen.notebook.http_answers import aanswered, answered

T = TypeVar("T")

LOOPBACK = ("127.0.0.1", "localhost", "::1")
#: nbgen sends a comment every ten seconds into a stream, so a silent minute is a dead connection. Calls that the server
#: answers at once may take as long; other calls have no limit, as their answer comes as a whole.
SILENCE_SECONDS = 60.0
CONNECT_SECONDS = 5.0
LET_GO_SECONDS = 1.0
#: Every stream is a connection: one beyond httpx's own limit would wait for another to end.
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=20)
#: OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which Python has no name for.
NO_CHECK_TIME = 0x200000
#: What OpenSSL has against a certificate: Python 3.13 finds more than earlier ones, also in one of SSL_CERT_FILE.
DISTRUSTED = re.compile(r"CERTIFICATE_VERIFY_FAILED\W+certificate verify failed: (.+?)\.?(?: \(_ssl\.c:\d+\))?$")
#: The header of KServe's binary tensor data extension.
JSON_LENGTH = "Inference-Header-Content-Length"
BINARY = {"Content-Type": "application/octet-stream"}

#: How users give a token, in words.
TOKEN_GIVEN = (
    "nbgen.connect(url, token), %nbgen connect URL --token TOKEN, or either with the address as Jupyter prints it, "
    "…?token=…"
)


class NoAnswer(Unavailable):
    """Something listens there, but sent no HTTP response."""


class Call(NamedTuple):
    """One request; `path` is relative to the server's root. `rest` are KServe's binary tensors, sent after the JSON."""

    method: str
    path: str
    body: Any = None
    rest: bytes = b""

    def sent(self) -> dict[str, Any]:
        """The body as httpx takes it. Raises InvalidRequest for one that cannot be sent."""
        if self.body is None:
            return {}
        try:
            content = json.dumps(self.body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
        except UnicodeEncodeError as error:
            raise no_character(error) from None
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"the request cannot be sent as JSON: {error}") from None
        if self.rest:
            return {"content": content + self.rest, "headers": {**BINARY, JSON_LENGTH: str(len(content))}}
        return {"content": content, "headers": {"Content-Type": "application/json"}}


class Connection:
    """Talks to the server at `url`, which ends with a slash. `lost` says that the last call did not reach it.

    `headers` hold the `token`, which would let anybody else in, too. A `direct` connection uses no proxy.
    `certificate` is the one that the server has to show, as PEM; without it, one that this machine trusts.
    """

    #: Seconds without a byte after which a stream counts as dead; None: a server may be silent for any time.
    silence: float | None = SILENCE_SECONDS

    def __init__(self, url: str, token: str = "", *, direct: bool = False, certificate: str = "") -> None:
        """Raises InvalidRequest for a token that no header can have."""
        self.url = url
        self.certificate = certificate
        self.socket, base_url = split_socket(url)
        self.direct = direct or bool(self.socket) or urlsplit(url).hostname in LOOPBACK
        self.lost = False
        self.token = sendable(token)
        self.headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        self._settings = self._of_httpx(base_url)
        self._own, self._process = self._client(), os.getpid()
        self._kept: WeakKeyDictionary[asyncio.Task[Any], httpx.AsyncClient] = WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def __reduce__(self) -> Any:
        raise TypeError("a connection cannot be copied or pickled: in another process, nbgen.connect(url, token)")

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def json(self, call: Call, timeout: float | None = None) -> Any:
        """The JSON value that answers a call; {} if the answer is no JSON. Without a `timeout` it waits for any time.
        Raises the error that the server sends.
        """
        return parse_json(self._answer(call, timeout).content)

    def fields(self, call: Call, timeout: float | None = None) -> dict[str, Any]:
        """Like `json`, for calls that are answered by an object; {} for any other value."""
        return parse_object(self._answer(call, timeout).content)

    def framed(self, call: Call) -> tuple[dict[str, Any], bytes]:
        """Like `json`, for an answer that KServe's binary tensors may follow; returns both."""
        response = self._answer(call)
        length = int(response.headers.get(JSON_LENGTH, len(response.content)))
        return parse_object(response.content[:length]), response.content[length:]

    def _answer(self, call: Call, timeout: float | None = None) -> httpx.Response:
        sent = {**call.sent(), "timeout": patience(timeout)}
        with self._in_words(), answered(self._http, call.method, call.path, **sent) as response:
            response.read()
        self.lost = False
        if response.is_success:
            return response
        raise self._refusal(response.status_code, response.content)

    async def afields(self, call: Call) -> dict[str, Any]:
        """Like `fields`, awaited, without a time limit."""
        with self._in_words():
            sent = {**call.sent(), "timeout": patience(None)}
            async with self._async() as http, aanswered(http, call.method, call.path, **sent) as response:
                content = await response.aread()
        if response.is_success:
            return parse_object(content)
        raise self._refusal(response.status_code, content)

    def stream(self, call: Call) -> Iterator[sse.Event]:
        """The server-sent events that answer a call. Closing the iterator closes the connection."""
        decoder = sse.Decoder()
        with self._in_words(), answered(self._http, call.method, call.path, **call.sent()) as response:
            if not response.is_success:
                raise self._refusal(response.status_code, response.read())
            for chunk in response.iter_bytes():
                yield from decoder.feed(chunk)

    async def astream(self, call: Call) -> AsyncGenerator[sse.Event, None]:
        """Like `stream`, awaited."""
        decoder = sse.Decoder()
        with self._in_words():
            async with self._async() as http, aanswered(http, call.method, call.path, **call.sent()) as response:
                if not response.is_success:
                    raise self._refusal(response.status_code, await response.aread())
                async for chunk in response.aiter_bytes():
                    for event in decoder.feed(chunk):
                        yield event

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """A context in which awaited calls of this task share a connection. Each task has its own, as a search for a
        free one among many costs httpx more time than the calls themselves.
        """
        task = asyncio.current_task()
        assert task is not None
        async with self._async_client() as http:
            self._kept[task] = http
            try:
                yield
            finally:
                del self._kept[task]

    @asynccontextmanager
    async def _async(self) -> AsyncIterator[httpx.AsyncClient]:
        """The running task's client, or one for this call alone: an httpx client serves only the loop that made it."""
        task = asyncio.current_task()
        http = None if task is None else self._kept.get(task)
        if http is not None:
            yield http
            return
        async with self._async_client() as http:
            yield http

    @property
    def _http(self) -> httpx.Client:
        """This process's own client: on a parent's connections after a fork, each would read the other's answers."""
        if self._process != os.getpid():
            inherited, self._own, self._process = self._own, self._client(), os.getpid()
            if inherited.is_closed:
                self._own.close()
            _let_go(inherited)
        return self._own

    def _client(self) -> httpx.Client:
        return httpx.Client(transport=self._transport(httpx.HTTPTransport), **self._settings)

    def _async_client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=self._transport(httpx.AsyncHTTPTransport), **self._settings)

    def _transport(self, kind: Callable[..., T]) -> T | None:
        """A transport that notices a server gone without a word; None to have httpx use the environment's proxy."""
        if not self.direct and proxied(self.url):
            return None
        options = {"uds": self.socket} if self.socket else {"socket_options": keepalive.OPTIONS}
        return kind(verify=self._settings["verify"], trust_env=False, limits=LIMITS, **options)

    def _of_httpx(self, base_url: str) -> dict[str, Any]:
        return {
            "base_url": base_url,
            "headers": self.headers,
            "timeout": patience(self.silence),
            "limits": LIMITS,
            "trust_env": not self.direct,
            "verify": trust(self.certificate) if self.url.startswith("https:") else False,
        }

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        """Around a call: turns httpx's exceptions into nbgen's, also its RuntimeError for a closed client."""
        try:
            yield
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None
        except RuntimeError:
            if not self._http.is_closed:
                raise
            self.lost = True
            raise NoAnswer(f"the connection to {self.url} has been closed") from None

    def _refusal(self, status: int, body: bytes) -> NbgenError:
        if status == 401:  # a server's own words are about headers
            said = "refused the token" if self.token else "wants its token"
            return Unauthorized(f"{self.url} {said}: {TOKEN_GIVEN}")
        return error_of(status, body, self.url)

    def _unreachable(self, error: httpx.HTTPError) -> NbgenError:
        self.lost = True
        if distrusted := DISTRUSTED.search(str(error)):
            return ServerNotFound(
                f"{self.url} has a certificate that this machine does not trust ({distrusted[1]}); "
                "SSL_CERT_FILE in the environment names a file of those that it shall"
            )
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            meant = " with TLS: is it http:// there?" if "ssl" in str(error).lower() else ""
            return ServerNotFound(f"nothing answers at {self.url}{meant}")
        if isinstance(error, httpx.TimeoutException):
            return NoAnswer(f"{self.url} did not answer in time")
        return NoAnswer(f"the connection to {self.url} was lost")


def _let_go(inherited: httpx.Client) -> None:
    """Close a parent's connections on this side of a fork; the parent's own side stays as it is.

    A thread of the parent may have held their lock, which nobody here releases, so the closing has a time limit.
    """
    closing = threading.Thread(target=inherited.close, daemon=True)
    closing.start()
    closing.join(LET_GO_SECONDS)


def patience(seconds: float | None) -> httpx.Timeout:
    """At most so long without a byte; connecting has a shorter limit."""
    return httpx.Timeout(seconds, connect=min(seconds or CONNECT_SECONDS, CONNECT_SECONDS), write=SILENCE_SECONDS)


def proxied(url: str) -> bool:
    """Whether the environment names a proxy for this address and makes no exception for its host."""
    parts, proxies = urlsplit(url), getproxies()
    named = proxies.get(parts.scheme) or proxies.get("all")
    return bool(named) and not proxy_bypass(parts.netloc.rpartition("@")[2])


def sendable(token: str) -> str:
    """A token without the spaces around it. Raises InvalidRequest for one that no header can have."""
    if not isinstance(token, str) or not ((bare := token.strip()).isascii() and bare.isprintable()):
        raise InvalidRequest("a token is of letters, digits and signs of ASCII, which this one is not", field="token")
    return bare


def split_socket(url: str) -> tuple[str, str]:
    """The Unix socket in an address like `http+unix://%2Ftmp%2Fj.sock/` ("" for others), and the HTTP URL to ask."""
    parts = urlsplit(url)
    if parts.scheme != "http+unix":
        return "", url
    return unquote(parts.netloc), parts._replace(scheme="http", netloc="localhost").geturl()


def trust(certificate: str) -> ssl.SSLContext:
    """Trust only this very certificate, whatever names and dates it has; without one, trust what browsers trust."""
    if not certificate:
        return httpx.create_ssl_context()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | NO_CHECK_TIME
    context.load_verify_locations(cadata=certificate)
    return context


def error_of(status: int, body: bytes, url: str) -> NbgenError:
    """The error in an answer: nbgen's own shape, OpenAI's, Triton's, Jupyter's, or none at all."""
    answer = parse_object(body)
    stated = answer.get("error")
    if isinstance(stated, dict):
        return from_status(status, str(stated.get("message", "")), stated.get("field") or stated.get("param"))
    if status == 403:
        return Unauthorized(f"{url} refused the token: {TOKEN_GIVEN}")
    if isinstance(stated, str):
        return from_status(status, stated)
    words = next(
        (answer[key] for key in ("message", "detail", "error_message") if isinstance(answer.get(key), str)), ""
    )
    if status == 404 and url.endswith("/nbgen/"):
        return ServerNotFound(f"there is a server at {url}, but the nbgen extension is not enabled in it")
    return from_status(status, words or f"{url} answered with status {status}")


def parse_object(text: bytes | str) -> dict[str, Any]:
    """The JSON object in a text; {} for anything else."""
    value = parse_json(text)
    return value if isinstance(value, dict) else {}


def parse_json(text: bytes | str) -> Any:
    """The JSON value in a text; {} if it is no JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return {}
