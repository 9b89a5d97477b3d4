"""URLs that clients name: only allowed hosts, only public addresses, and what was checked is what is connected to."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator
from typing import Any, ClassVar

import pytest
from tornado import web
from tornado.httpserver import HTTPServer
from tornado.iostream import StreamClosedError
from tornado.testing import bind_unused_port

from nbgen.errors import InvalidRequest
from nbgen.server import media_urls
from nbgen.server.media_urls import MediaUrls, read_url
from nbgen.server.off_loop import off_loop
from nbgen.server.public_address import NOT_ALLOWED, PublicResolver, is_public
from tests.conftest import PATIENCE

LIMIT = 2 * 2**20
INSIDE = [
    *("127.0.0.1", "127.9.9.9", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1"),
    *("224.0.0.1", "255.255.255.255", "240.0.0.1", "192.0.2.1", "198.18.0.1"),
    *(
        "::",
        "::1",
        "fe80::1",
        "fe80::1%eth0",
        "fc00::1",
        "fd12::1",
        "fec0::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:8.8.8.8",
    ),
    *("64:ff9b::7f00:1", "2002:7f00:1::", "2001:0:1::1", "::7f00:1", "nonsense", ""),
]


@pytest.mark.parametrize("address", INSIDE)
def test_an_address_that_leads_inside_is_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "93.184.216.34", "2606:4700::1111"])
def test_others_are(address: str) -> None:
    assert is_public(address)


SPELLINGS = [
    *("http://127.0.0.1/x.png", "http://2130706433/", "http://0x7f.1/", "http://0177.0.0.1/", "http://127.1/"),
    *("http://[::1]/", "http://[::ffff:127.0.0.1]/", "http://localhost/", "http://LOCALHOST./", "http://0/"),
]
BROKEN = [
    *("http://images.test\\@127.0.0.1/", "http://user:pw@images.test/", "http://images.test@127.0.0.1/"),
    *("http:// images.test/", "http://images.test/a b", "http://images.test/\t", "\thttp://images.test/"),
    *(
        "http://\uff11\uff12\uff17.0.0.1/",
        "http://images.test:99999/",
        "http://images.test:x/",
        "http://[::1/",
        "http://",
    ),
    *("http:///x.png", "http://images%2etest/", "ftp://images.test/", "gopher://images.test/", "//images.test/"),
]


class Knows(PublicResolver):
    """A resolver that knows the addresses of a few names, and counts who asks."""

    def initialize(self, names: dict[str, list[str]], **kwargs: Any) -> None:
        super().initialize(**kwargs)
        self.names, self.asked = names, []

    async def look_up(self, host: str, port: int) -> list[tuple[int, Any]]:
        self.asked.append(host)
        if host not in self.names:
            raise socket.gaierror
        return [(socket.AF_INET6 if ":" in ip else socket.AF_INET, (ip, port)) for ip in self.names[host]]


@pytest.mark.parametrize("url", SPELLINGS)
async def test_no_spelling_of_this_machine_is_connected_to_even_where_any_host_is_allowed(url: str) -> None:
    urls = MediaUrls(["*"])  # with the system's own resolver
    with pytest.raises(InvalidRequest, match=r"`image_data`: (that address is not allowed|no file of)"):
        await urls.fetch(url, LIMIT, "image_data")
    urls.close()


@pytest.mark.parametrize("url", BROKEN)
def test_a_url_that_could_be_read_in_two_ways_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest):
        read_url(url)


async def test_urls_are_off_unless_the_owner_names_hosts_and_other_hosts_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="--allow-media-host"):
        await MediaUrls([]).fetch("https://images.test/x.png", LIMIT, "image_data")
    resolver = Knows(names={})
    urls = MediaUrls(["Images.test"], resolver)
    for url in ("https://other.test/", "https://images.test.other.test/", "https://a.images.test/"):
        with pytest.raises(InvalidRequest, match="that address is not allowed"):
            await urls.fetch(url, LIMIT, "image_data")
    assert resolver.asked == []


@pytest.mark.parametrize("second", ["127.0.0.1", "169.254.169.254", "10.0.0.1", "::1"])
async def test_one_inner_address_among_public_ones_is_enough_to_refuse_a_name(second: str) -> None:
    urls = MediaUrls(["images.test"], Knows(names={"images.test": ["93.184.216.34", second]}))
    with pytest.raises(InvalidRequest, match="that address is not allowed"):
        await urls.fetch("http://images.test/x.png", LIMIT, "image_data")
    urls.close()


async def test_a_name_server_that_does_not_answer_delays_no_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers.wait() and [])
    asked = [asyncio.create_task(PublicResolver().resolve("images.test", 80)) for _ in range(64)]
    try:
        await asyncio.sleep(0)
        assert await asyncio.wait_for(off_loop(2**20, int), PATIENCE) == 0
    finally:
        answers.set()
    assert [str(error) for error in await asyncio.gather(*asked, return_exceptions=True)] == [NOT_ALLOWED] * 64


class Files(web.RequestHandler):
    """What a host may answer."""

    seen: ClassVar[list[dict[str, str]]] = []

    async def get(self, what: str) -> None:
        Files.seen.append(dict(self.request.headers))
        match what:
            case "image":
                self.write(b"an image")
            case "large":
                with contextlib.suppress(StreamClosedError):
                    for _ in range(30):
                        self.write(bytes(2**20))
                        await self.flush()
                self._finished = True
            case "larger":
                self.write(bytes(LIMIT + 1))
            case "announced":
                self.set_header("Content-Length", 50 * 2**20)
                with contextlib.suppress(StreamClosedError):
                    await self.flush()
                self._finished = True
            case "slow":
                await asyncio.sleep(30)
            case "late":
                await asyncio.sleep(0.3)
                self.write(b"an image")
            case "missing":
                raise web.HTTPError(404)
            case "gzip":
                self.set_header("Content-Encoding", "gzip")
                self.write(b"an image")
            case "again":
                self.redirect(f"{self.request.protocol}://{self.request.host}/again")
            case "malformed":
                self.redirect("//[x")
            case "near":
                self.redirect("/image")
            case _:
                self.redirect("http://" + what.replace("-", "/"))


@pytest.fixture
async def host(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[MediaUrls, Knows, str]]:
    """A host named images.test on this machine, which counts as public here."""
    Files.seen = []
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9/")
    web_server = HTTPServer(web.Application([(r"/(.*)", Files)]))
    listening, port = bind_unused_port()
    web_server.add_socket(listening)
    names = {"images.test": ["127.0.0.1"], "inside.test": ["10.0.0.1"], "also.test": ["127.0.0.1"]}
    resolver = Knows(names=names, permits=lambda address: address == "127.0.0.1")
    urls = MediaUrls(["images.test", "inside.test"], resolver)
    yield urls, resolver, f"http://images.test:{port}"
    urls.close()
    web_server.stop()
    await web_server.close_all_connections()


async def test_a_file_is_fetched_under_its_name_with_one_look_up_and_no_secrets(host) -> None:
    urls, resolver, base = host
    assert await urls.fetch(f"{base}/image", LIMIT, "image_data") == b"an image"
    assert resolver.asked == ["images.test"]
    (seen,) = Files.seen
    assert seen["Host"] == base.removeprefix("http://")
    assert not {"Cookie", "Authorization", "Referer"} & set(seen)
    assert await urls.fetch(f"{base}/near", LIMIT, "image_data") == b"an image"


async def test_who_comes_while_the_server_stops_is_served_on(host) -> None:
    urls, _, base = host
    for _ in "ab":
        assert await urls.fetch(f"{base}/image", LIMIT, "image_data") == b"an image"
        urls.close()


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("127.0.0.1", "that address is not allowed"),
        ("also.test-image", "that address is not allowed"),
        ("inside.test-image", "that address is not allowed"),
        ("again", "leads elsewhere more than 3 times"),
        ("malformed", "`image_data`: that is no address of the form"),
        ("missing", "no file of"),
        ("large", "no file of at most 2097152 bytes"),
        ("announced", "`image_data`: the file at that address has 52428800 bytes; at most 2097152 are fetched"),
    ],
)
async def test_every_hop_is_checked_and_what_comes_is_limited(host, path: str, words: str) -> None:
    urls, _, base = host
    with pytest.raises(InvalidRequest, match=words):
        await urls.fetch(f"{base}/{path}", LIMIT, "image_data")


async def test_a_larger_kind_of_file_may_be_larger(host) -> None:
    urls, _, base = host
    with pytest.raises(InvalidRequest, match=f"has {LIMIT + 1} bytes; at most {LIMIT}"):
        await urls.fetch(f"{base}/larger", LIMIT, "image_data")
    assert len(await urls.fetch(f"{base}/larger", 2 * LIMIT, "video_data")) == LIMIT + 1


async def test_time_is_limited_over_all_hops(host, monkeypatch: pytest.MonkeyPatch) -> None:
    urls, _, base = host
    monkeypatch.setattr(media_urls, "TOTAL_SECONDS", 0.3)
    with pytest.raises(InvalidRequest, match=r"nothing whole came|no file of"):
        await urls.fetch(f"{base}/slow", LIMIT, "image_data")


async def test_many_files_of_a_slow_host_wait_for_one_another(host, monkeypatch: pytest.MonkeyPatch) -> None:
    urls, _, base = host
    monkeypatch.setattr(media_urls, "CONNECT_SECONDS", 1.0)
    fetches = (urls.fetch(f"{base}/late", LIMIT, "image_data") for _ in range(100))
    assert set(await asyncio.gather(*fetches)) == {b"an image"}


async def test_a_compressed_answer_is_not_inflated(host) -> None:
    urls, _, base = host
    assert await urls.fetch(f"{base}/gzip", LIMIT, "image_data") == b"an image"
