"""KServe v2 over gRPC on a port of its own: same models, same authentication, on the server's own event loop.

The message classes are those of `tritonclient`, imported only if a port is configured. All but the wire format is done
by the same code as for HTTP.
"""

from __future__ import annotations

import errno
import hmac
import socket
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from logging import Logger
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from nbgen.keepalive import COUNT, IDLE, INTERVAL
from nbgen.protocols.kserve import MAX_INPUT_BYTES
from nbgen.server.auth import bearer
from nbgen.server.grpc_service import service

if TYPE_CHECKING:
    from nbgen.server.app import NbgenApp

#: Limit of a message: one tensor, as large as HTTP takes in JSON, and the rest. HTTP's binary tensors may be larger.
MAX_RECEIVED = MAX_INPUT_BYTES + 2**20
#: Logits may be large.
MAX_SENT = 2**31 - 1
HEALTH = "grpc.health.v1.Health"
#: HealthCheckResponse with these statuses.
SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"
GRACE_SECONDS = 1.0
STREAM = socket.SOCK_STREAM
LOCALHOST = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
EVERYWHERE = ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::"))
#: Hosts that are more than one address.
ADDRESSES = {"localhost": LOCALHOST, "": EVERYWHERE, "::": EVERYWHERE}
#: How often a port is looked for that is free at both.
TRIES = 10
#: Time after which a connection without a call is closed.
IDLE_MILLISECONDS = 300_000


class GrpcServer:
    """One listening port. `app` is the extension whose models are served."""

    def __init__(self, app: NbgenApp, secrets: Iterable[str], log: Logger) -> None:
        self.port = 0
        self._log = log
        options = [
            ("grpc.max_receive_message_length", MAX_RECEIVED),
            ("grpc.max_send_message_length", MAX_SENT),
            ("grpc.so_reuseport", 0),
            ("grpc.max_connection_idle_ms", IDLE_MILLISECONDS),
            ("grpc.keepalive_time_ms", 1000 * IDLE),
            ("grpc.keepalive_timeout_ms", 1000 * COUNT * INTERVAL),
            ("grpc.http2.ping_timeout_ms", 1000 * COUNT * INTERVAL),
        ]
        secret_list = [secret for secret in secrets if secret]
        self._server = grpc.aio.server(interceptors=[Authentication(secret_list)], options=options)
        service(app, self._server)
        self._server.add_generic_rpc_handlers([_health(app)])

    async def start(self, host: str, port: int, tls: Mapping[str, Any] | None) -> None:
        """Listen, with the certificate in `tls` as HTTP does. Raises OSError, RuntimeError or ValueError."""
        if port:
            check_free(host, port)
        port = port or free_port(host)
        address = f"{f'[{host}]' if ':' in host else host or '[::]'}:{port}"
        if tls is None:
            self.port = self._server.add_insecure_port(address)
        else:
            self.port = self._server.add_secure_port(address, _credentials(tls))
        await self._server.start()
        self._log.info("gRPC listens on port %d", self.port)

    async def stop(self) -> None:
        """Refuse new calls, and give running ones GRACE_SECONDS to end."""
        await self._server.stop(GRACE_SECONDS)


class Authentication(grpc.aio.ServerInterceptor):
    """Denies every call that does not show one of the secrets; without any secret the server asks for none."""

    def __init__(self, secrets: list[str]) -> None:
        """The first is nbgen's key, and others are the server's tokens."""
        self._wanted = "the server's token" if len(secrets) > 1 else "nbgen's key"
        self._secrets = [secret.encode() for secret in secrets]

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        handler = await continuation(details)
        if handler is None or self._admits(dict(details.invocation_metadata or ())):
            return handler
        return grpc.stream_stream_rpc_method_handler(
            self._deny
        )  # also for unary calls: gRPC reads no request of a stream by itself

    def _admits(self, metadata: dict[str, Any]) -> bool:
        shown = bearer(str(metadata.get("authorization", ""))).encode()
        matches = [hmac.compare_digest(shown, secret) for secret in self._secrets]
        return any(matches) or not self._secrets

    async def _deny(self, _: Any, context: Any) -> None:
        words = f"send {self._wanted} as metadata: authorization: Bearer …"
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, words)


def free_port(host: str) -> int:
    """One that is free at both addresses of "localhost"; 0, any, if there is none, and for other hosts.

    gRPC by itself takes one that is free at the first, and listens at that alone where it is taken at the other.
    """
    for _ in range(TRIES if host == "localhost" else 0):
        with ExitStack() as held, suppress(OSError):
            port = 0
            for family, address in LOCALHOST:
                port = _bound(held.enter_context(socket.socket(family, STREAM)), address, port)
            return port
    return 0


def check_free(host: str, port: int) -> None:
    """Raise OSError if another program listens at one of the host's addresses.

    gRPC by itself listens at the other alone, and whoever connects to this one reaches that program.
    """
    for family, address in ADDRESSES.get(host, ()):
        if _is_taken(family, address, port):
            words = f"another program listens on port {port} at {address}"
            raise OSError(f"{words}: end it, or give another port (--NbgenApp.grpc_port)")


def _is_taken(family: int, address: str, port: int) -> bool:
    try:
        with socket.socket(family, STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of the past do not count
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind((address, port))
    except OSError as error:  # of another kind where IPv6 is switched off, or ports below 1024 are the system's
        return error.errno == errno.EADDRINUSE
    return False


def _bound(found: socket.socket, address: str, port: int) -> int:
    """The port to which a socket is bound. Raises OSError where it is taken."""
    try:
        found.bind((address, port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise
        return port  # IPv6 may be switched off
    return int(found.getsockname()[1])


def _credentials(tls: Mapping[str, Any]) -> grpc.ServerCredentials:
    """The certificate that HTTP shows; clients must show one if they must over HTTP."""
    if "certfile" not in tls:
        raise ValueError("with TLS it needs a certfile")
    certificate, key = (Path(tls.get(name) or tls["certfile"]).read_bytes() for name in ("certfile", "keyfile"))
    clients = Path(tls["ca_certs"]).read_bytes() if tls.get("ca_certs") else None
    return grpc.ssl_server_credentials([(key, certificate)], clients, clients is not None)


def _health(app: NbgenApp) -> grpc.GenericRpcHandler:
    async def check(_: bytes, __: Any) -> bytes:
        return SERVING if app.ready else NOT_SERVING

    return grpc.method_handlers_generic_handler(HEALTH, {"Check": grpc.unary_unary_rpc_method_handler(check)})
