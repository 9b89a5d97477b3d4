"""gRPC's port by itself: where it listens, what it encrypts, and how much it reads of whom."""

from __future__ import annotations

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

from nbgen.server.app import NbgenApp
from nbgen.server.grpc_server import HEALTH, GrpcServer
from tests.certificates import Identity

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


async def test_where_http_is_encrypted_so_is_this(tmp_path: Path) -> None:
    tls = Identity().files(tmp_path)
    credentials = grpc.ssl_channel_credentials(Path(tls["certfile"]).read_bytes())  # noqa: ASYNC240
    async with listening(tls=tls) as server:
        assert await health(grpc.aio.secure_channel(f"localhost:{server.port}", credentials)) == b"\x08\x01"
        with pytest.raises(grpc.RpcError):
            await health(grpc.aio.insecure_channel(f"localhost:{server.port}"))
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
