"""KServe v2 over gRPC on a port of its own: same models, same authentication, on the server's own event loop.

The messages are those of `tritonclient`, imported only where a port is configured. What is not about the wire is done
by the same code as for HTTP.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from logging import Logger
from typing import Any

import grpc

from nbgen.server.auth import bearer
from nbgen.server.grpc_service import service

#: gRPC's own limit of 4 MiB would cut logits and images.
MAX_MESSAGE = 2**31 - 1
HEALTH = "grpc.health.v1.Health"
#: HealthCheckResponse with status SERVING.
SERVING = b"\x08\x01"
GRACE_SECONDS = 1.0


class GrpcServer:
    """One listening port. `app` is the extension whose models are served."""

    def __init__(self, app: Any, secrets: Iterable[str], log: Logger) -> None:
        self.port = 0
        self._log = log
        options = [("grpc.max_receive_message_length", MAX_MESSAGE), ("grpc.max_send_message_length", MAX_MESSAGE)]
        secret_list = [secret for secret in secrets if secret]
        self._server = grpc.aio.server(interceptors=[Authentication(secret_list)], options=options)
        service(app, self._server)
        self._server.add_generic_rpc_handlers([_health()])

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises RuntimeError where the port is taken."""
        self.port = self._server.add_insecure_port(f"{host or '[::]'}:{port}")
        await self._server.start()
        self._log.info("gRPC listens on port %d", self.port)

    async def stop(self) -> None:
        """Take nothing new, and give what runs a moment."""
        await self._server.stop(GRACE_SECONDS)


class Authentication(grpc.aio.ServerInterceptor):
    """Denies every call that does not show one of the secrets; without any secret the server asks for none."""

    def __init__(self, secrets: list[str]) -> None:
        self._secrets = [secret.encode() for secret in secrets]

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        handler = await continuation(details)
        if handler is None or self._admits(dict(details.invocation_metadata or ())):
            return handler
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(
                _deny_stream, handler.request_deserializer, handler.response_serializer
            )
        return grpc.unary_unary_rpc_method_handler(_deny, handler.request_deserializer, handler.response_serializer)

    def _admits(self, metadata: dict[str, Any]) -> bool:
        shown = bearer(str(metadata.get("authorization", ""))).encode()
        matches = [hmac.compare_digest(shown, secret) for secret in self._secrets]
        return any(matches) or not self._secrets


async def _deny(_: Any, context: Any) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "send the server's token as metadata: authorization: Bearer …")


async def _deny_stream(requests: Any, context: Any) -> Any:
    await _deny(requests, context)
    yield


def _health() -> grpc.GenericRpcHandler:
    async def check(_: bytes, __: Any) -> bytes:
        return SERVING

    return grpc.method_handlers_generic_handler(HEALTH, {"Check": grpc.unary_unary_rpc_method_handler(check)})
