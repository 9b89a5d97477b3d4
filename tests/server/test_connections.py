"""Connections that are too many, say nothing, or come when the system has no descriptors left."""

import asyncio
import contextlib
import logging
import os
import resource
import socket
from collections.abc import AsyncIterator

import pytest
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from nbgen.server import connections
from nbgen.server.connections import LimitedHTTPServer
from tests.conftest import PATIENCE

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


class Hello(RequestHandler):
    def get(self) -> None:
        self.finish("hello")


@contextlib.asynccontextmanager
async def listening(max_connections: int = 2) -> AsyncIterator[int]:
    """The port of such a server."""
    server = LimitedHTTPServer(
        Application([("/", Hello)]), max_connections=max_connections, log=logging.getLogger("test")
    )
    sockets = bind_sockets(0, "127.0.0.1")
    port = sockets[0].getsockname()[1]
    server.add_sockets(sockets)
    try:
        yield port
    finally:
        server.stop()
        await server.close_all_connections()


async def said(port: int, request: bytes = REQUEST) -> bytes:
    """All that the server says until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(PATIENCE):
        writer.write(request)
        try:
            return await reader.read()
        finally:
            writer.close()
            await writer.wait_closed()


async def test_one_connection_more_than_are_allowed_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    async with listening(max_connections=2) as port:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        for _ in range(3):
            refused = await said(port, b"")
            assert refused.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
            assert b"too many connections" in refused
        for _, writer in held:
            writer.close()
            await writer.wait_closed()
        async with asyncio.timeout(PATIENCE):
            while b"hello" not in await said(port):
                pass
    assert [record.message for record in caplog.records if "more are refused" in record.message] == [
        "There are 2 connections: more are refused"
    ]


async def test_who_sends_no_whole_body_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "BODY_SECONDS", 0.1)
    async with listening() as port:
        assert await said(port, b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nname=") == b""


async def test_there_are_no_more_than_descriptors_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "descriptors", lambda: connections.OWN_DESCRIPTORS + 1)
    async with listening(max_connections=512) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        assert b"too many connections" in await said(port, b"")
        writer.close()
        await writer.wait_closed()


async def test_who_sends_no_whole_header_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.1)
    async with listening() as port:
        assert await said(port, b"GET / HTTP/1.1\r\nHost:") == b""
        async with asyncio.timeout(PATIENCE):  # and so is who asks nothing more, in time or on a busy machine not
            while b"hello" not in await said(port, REQUEST.replace(b"close", b"keep-alive")):
                pass


async def test_without_descriptors_it_waits_without_spinning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "PAUSE_SECONDS", 0.2)
    tries: list[bool] = []
    accept = socket.socket.accept

    def counted(self: socket.socket) -> object:
        tries.append(True)
        return accept(self)

    monkeypatch.setattr(socket.socket, "accept", counted)
    async with listening() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(REQUEST)
        assert b"hello" in await reader.read()
        writer.close()
        await writer.wait_closed()
        waiting = socket.socket()
        waiting.setblocking(False)
        limits, highest = resource.getrlimit(resource.RLIMIT_NOFILE), os.open("/dev/null", os.O_RDONLY)
        tries.clear()
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest, limits[1]))
            await asyncio.get_running_loop().sock_connect(waiting, ("127.0.0.1", port))
            async with asyncio.timeout(PATIENCE):
                while len(tries) < 3:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            os.close(highest)
        waiting.send(REQUEST)
        async with asyncio.timeout(PATIENCE):
            assert b"hello" in await asyncio.get_running_loop().sock_recv(waiting, 4096)
        waiting.close()
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == ["No connection can be taken now: Too many open files"]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
