"""Fetches files from URLs that clients name, if the owner allows their hosts.

The one place where the server opens connections for a client. One parser reads the URL for both the check and the
connection, only addresses that were checked are connected to, and every redirect is checked like the first URL.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import urljoin, urlsplit

from tornado.httpclient import HTTPClientError, HTTPRequest, HTTPResponse
from tornado.httputil import HTTPHeaders
from tornado.iostream import StreamClosedError
from tornado.netutil import Resolver
from tornado.simple_httpclient import SimpleAsyncHTTPClient

from nbgen.errors import InvalidRequest
from nbgen.server.public_address import NOT_ALLOWED, PublicResolver

MAX_REDIRECTS = 3
CONNECT_SECONDS = 5.0
TOTAL_SECONDS = 10.0
MAX_HEADER_BYTES = 64 * 2**10
#: Files that are fetched at a time; others wait, which takes none of their own time.
FETCHES = 32
#: Most digits of a length that is quoted to the client.
MAX_DIGITS = 20
REDIRECTS = (301, 302, 303, 307, 308)
#: In the owner's list it stands for every host with a public address.
ANY_HOST = "*"
NO_ADDRESS = "that is no address of the form https://host/path"
ACCEPTED = "image/*, audio/*, video/*"


class Place(NamedTuple):
    """A parsed URL; `url` is rebuilt from its parsed parts."""

    host: str
    url: str


class MediaUrls:
    """Fetches from `hosts`. No error tells the client what answered, or whether anything did."""

    def __init__(self, hosts: Collection[str], resolver: Resolver | None = None) -> None:
        self._hosts = frozenset(host.lower() for host in hosts)
        self._resolver = resolver
        self._clients: dict[int, SimpleAsyncHTTPClient] = {}
        self._places = asyncio.Semaphore(FETCHES)

    def check(self, url: str, field: str) -> None:
        """Raise InvalidRequest for a URL that may not be fetched, without resolving its host."""
        if not self._hosts:
            raise InvalidRequest(
                f"`{field}`: files by URL are off here (the server's owner turns them on with --allow-media-host); "
                "send the file itself as base64 or as a data URL",
                field=field,
            )
        with _named(field):
            self._read(url)

    async def fetch(self, url: str, limit: int, field: str) -> bytes:
        """The file at `url`, of at most `limit` bytes. Raises InvalidRequest."""
        self.check(url, field)
        with _named(field):
            async with self._places, asyncio.timeout(TOTAL_SECONDS):
                return await self._follow(url, limit)

    def close(self) -> None:
        """Close the clients; a fetch that comes later, as while the server stops, opens a new one."""
        while self._clients:
            self._clients.popitem()[1].close()

    async def _follow(self, url: str, limit: int) -> bytes:
        for _ in range(MAX_REDIRECTS + 1):
            place = self._read(url)
            answer = await self._get(place.url, limit)
            if answer.code not in REDIRECTS:
                break
            url = _joined(place.url, answer.headers.get("Location", ""))
        else:
            raise InvalidRequest(f"that address leads elsewhere more than {MAX_REDIRECTS} times")
        if answer.code != 200 or not answer.body:
            raise InvalidRequest(_nothing(limit))
        return answer.body

    def _read(self, url: str) -> Place:
        place = read_url(url)
        if not {place.host, ANY_HOST} & self._hosts:
            raise InvalidRequest(NOT_ALLOWED)
        return place

    async def _get(self, url: str, limit: int) -> HTTPResponse:
        head: list[str] = []
        request = HTTPRequest(
            url,
            headers=HTTPHeaders({"Accept": ACCEPTED}),
            connect_timeout=CONNECT_SECONDS,
            request_timeout=TOTAL_SECONDS,
            follow_redirects=False,
            decompress_response=False,
            header_callback=head.append,
            user_agent="nbgen",
        )
        try:
            return await self._client(limit).fetch(request, raise_error=False)
        except (HTTPClientError, StreamClosedError, OSError, ValueError):
            if (size := _size(head)) > limit:
                words = f"the file at that address has {size} bytes; at most {limit} are fetched"
                raise InvalidRequest(words) from None
            raise InvalidRequest(_nothing(limit)) from None

    def _client(self, limit: int) -> SimpleAsyncHTTPClient:
        """Tornado's simple client, which uses no proxy of the environment and keeps no cookies."""
        if limit not in self._clients:
            self._clients[limit] = SimpleAsyncHTTPClient(
                force_instance=True,
                resolver=self._resolver or PublicResolver(),
                max_clients=2 * FETCHES,  # one that was given up takes a place until its own time is over
                max_buffer_size=limit + MAX_HEADER_BYTES,
                max_header_size=MAX_HEADER_BYTES,
                max_body_size=limit,
            )
        return self._clients[limit]


def _nothing(limit: int) -> str:
    return f"no file of at most {limit} bytes came from that address"


def _size(head: list[str]) -> int:
    """The Content-Length in the header lines of a 200 answer; 0 if there is none."""
    if len(head) < 2 or " 200 " not in head[0]:
        return 0
    length = HTTPHeaders.parse("".join(head[1:])).get("Content-Length", "")
    return int(length) if length.isdecimal() and len(length) < MAX_DIGITS else 0


@contextmanager
def _named(field: str) -> Iterator[None]:
    """Make errors name the field that they are about."""
    try:
        yield
    except InvalidRequest as error:
        raise InvalidRequest(f"`{field}`: {error.message}", field=field) from None
    except TimeoutError:
        words = f"`{field}`: nothing whole came from that address within {TOTAL_SECONDS:g} seconds"
        raise InvalidRequest(words, field=field) from None


def _joined(url: str, location: str) -> str:
    """The URL that a redirect leads to. Raises InvalidRequest."""
    try:
        return urljoin(url, location)
    except ValueError:
        raise InvalidRequest(NO_ADDRESS) from None


def read_url(url: str) -> Place:
    """Parse a URL. Raises InvalidRequest for one that two parsers could read differently."""
    if not all("!" <= character <= "~" for character in url) or "\\" in url:
        raise InvalidRequest("an address has plain ASCII without spaces or back slashes only; escape the rest with %")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise InvalidRequest(NO_ADDRESS) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise InvalidRequest("an address is http(s)://host/path, without a user or a password")
    if "%" in parts.netloc:
        raise InvalidRequest(NOT_ALLOWED)
    host = parts.hostname.rstrip(".")
    shown = f"[{host}]" if ":" in host else host
    netloc = shown if port is None else f"{shown}:{port}"
    return Place(host, f"{parts.scheme}://{netloc}{parts.path or '/'}" + (f"?{parts.query}" if parts.query else ""))


def is_host(name: str) -> bool:
    """Whether a URL's host can have this name."""
    shown = f"[{name}]" if ":" in name else name
    try:
        return "*" not in name and read_url(f"http://{shown}/").host == name.lower()
    except InvalidRequest:
        return False
