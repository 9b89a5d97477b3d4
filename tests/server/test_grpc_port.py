"""gRPC's port by itself: where it listens, what it encrypts, and how much it reads of whom."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from tritonclient.grpc.aio import InferenceServerClient

from nbgen.server import grpc_server
from nbgen.server.app import NbgenApp
from nbgen.server.grpc_server import HEALTH, GrpcServer
from tests.certificates import Identity
from tests.conftest import PATIENCE

LOG = logging.getLogger("test")
CHECK, INFER = f"/{HEALTH}/Check", "/inference.GRPCInferenceService/ModelInfer"
TOKEN = (("authorization", "Bearer secret"),)


def extension(*, ready: bool = True) -> Any:
    """As much of the extension as the port asks."""
    return SimpleNamespace(log=LOG, ready=ready)


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


@asynccontextmanager
async def listening(
    host: str = "127.0.0.1", port: int = 0, tls: dict[str, str] | None = None, app: Any = None
) -> AsyncIterator[GrpcServer]:
    server = GrpcServer(app or extension(), ["secret"], LOG)
    await server.start(host, port, tls)
    try:
        yield server
    finally:
        await server.stop()


async def health(channel: grpc.aio.Channel) -> bytes:
    async with channel:
        return await channel.unary_unary(CHECK)(b"", metadata=TOKEN)


def test_a_port_of_localhost_is_free_at_both_of_its_addresses() -> None:
    assert [grpc_server.free_port(host) for host in ("127.0.0.1", "::1", "")] == [0, 0, 0]
    port = grpc_server.free_port("localhost")
    assert port
    for family, address in grpc_server.LOCALHOST[: 1 + has_ipv6()]:
        with socket.socket(family) as one:
            one.bind((address, port))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", ""])
async def test_it_listens_on_every_kind_of_address(host: str) -> None:
    if host == "::1" and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    async with listening(host) as server:
        address = f"[{host}]" if ":" in host else host or "127.0.0.1"
        assert await health(grpc.aio.insecure_channel(f"{address}:{server.port}")) == b"\x08\x01"


async def test_a_port_has_one_server() -> None:
    async with listening() as server:
        with pytest.raises(RuntimeError, match=f"127.0.0.1:{server.port}"):
            async with listening(port=server.port):
                pass


@pytest.mark.parametrize("taken", ["127.0.0.1", "::1", "0.0.0.0"])
@pytest.mark.parametrize("host", ["localhost", "", "::"])
async def test_a_port_that_is_taken_at_one_of_a_hosts_addresses_is_refused(host: str, taken: str) -> None:
    """Whoever connected to that one would reach another program."""
    if "::" in (taken[:2], host) and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    with socket.socket(socket.AF_INET6 if ":" in taken else socket.AF_INET) as other:
        other.bind((taken, 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(OSError, match=f"another program listens on port {port} at "):
            async with listening(host, port):
                pass


@pytest.mark.parametrize("host", ["localhost", ""])
async def test_a_port_of_several_addresses_is_had_again_after_connections_to_it(host: str) -> None:
    port = grpc_server.free_port("localhost")
    for _ in range(2):
        async with listening(host, port):
            for _, address in grpc_server.LOCALHOST[: 1 + has_ipv6()]:
                reader, writer = await asyncio.open_connection(address, port)
                assert await reader.read(1), "it is gRPC that listens there"
                writer.close()


async def test_where_http_is_encrypted_so_is_this(tmp_path: Path) -> None:
    tls = Identity().files(tmp_path)
    credentials = grpc.ssl_channel_credentials(Path(tls["certfile"]).read_bytes())  # noqa: ASYNC240
    async with listening(tls=tls) as server:
        address = f"localhost:{server.port}"
        assert await health(grpc.aio.secure_channel(address, credentials)) == b"\x08\x01"
        async with InferenceServerClient(address, ssl=True, root_certificates=tls["certfile"]) as client:
            assert await client.is_server_ready(headers=dict(TOKEN))
        with pytest.raises(grpc.RpcError):
            await health(grpc.aio.insecure_channel(address))
    for wrong in ({"ssl_version": 1}, {"certfile": str(tmp_path / "nothing")}):
        with pytest.raises((OSError, ValueError)):
            async with listening(tls=wrong):
                pass


async def test_health_is_that_of_the_models() -> None:
    async with listening(app=extension(ready=False)) as server:
        assert await health(grpc.aio.insecure_channel(f"127.0.0.1:{server.port}")) == b"\x08\x02"


async def test_a_message_over_the_limit_is_refused() -> None:
    options = [("grpc.max_send_message_length", -1)]
    async with listening() as server, grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options) as channel:
        with pytest.raises(grpc.RpcError) as failure:
            await channel.unary_unary(INFER)(bytes(70 * 2**20), metadata=TOKEN)
    assert failure.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_beside_a_socket_that_only_its_owner_may_open_it_is_off_without_a_token(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = NbgenApp(log=LOG)
    app.serverapp = SimpleNamespace(sock="nbgen.sock", identity_provider=SimpleNamespace(auth_enabled=False))
    await app._start_grpc(0)
    assert app._grpc is None
    assert "gRPC is off" in caplog.text


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One of HTTP/2's."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def literal(head: bytes, *texts: bytes) -> bytes:
    """A header that no table has."""
    return head + b"".join(bytes([len(text)]) + text for text in texts)


async def test_a_caller_that_is_gone_without_a_word_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("IDLE", "COUNT", "INTERVAL"):
        monkeypatch.setattr(grpc_server, name, 1)
    begin, path = (
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0),
        b"/inference.GRPCInferenceService/ModelStreamInfer",
    )
    headers = b"\x83\x86" + literal(b"\x04", path) + literal(b"\x01", b"a")  # POST over http
    headers += literal(b"\x0f\x10", b"application/grpc") + literal(b"\x00", b"te", b"trailers")
    headers += literal(b"\x0f\x08", b"Bearer secret")
    async with listening() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(begin + frame(1, 4, 1, headers))
        said = await asyncio.wait_for(reader.read(), PATIENCE)
        writer.close()
    assert frame(6, 0, 0, b"")[3:] in said, "it was asked for a sign, and gave none"
