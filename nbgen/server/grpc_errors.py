"""Maps errors to gRPC statuses, in one place for every method."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from logging import Logger
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from nbgen.errors import InvalidRequest, NbgenError
from nbgen.protocols.inference import Cancelled

CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.ALREADY_EXISTS,
    422: grpc.StatusCode.UNAVAILABLE,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
}


def code(error: NbgenError) -> grpc.StatusCode:
    """The status of an error."""
    if isinstance(error, Cancelled):
        return grpc.StatusCode.CANCELLED
    return CODES.get(error.status, grpc.StatusCode.INTERNAL)


def parsed(kind: Any, written: bytes) -> Any:
    """Decode a message of this kind. Raises InvalidRequest for bytes that are none."""
    try:
        return kind.FromString(written)
    except DecodeError:
        raise InvalidRequest(f"the message is no {kind.DESCRIPTOR.name}") from None


def answered(name: str, method: Callable[[bytes], Awaitable[bytes]], log: Logger) -> grpc.RpcMethodHandler:
    """A gRPC handler for the method of this name, which reports errors as gRPC statuses."""

    async def call(request: bytes, context: Any) -> bytes | None:
        try:
            return await method(request)
        except NbgenError as error:
            await context.abort(code(error), error.message)
        except Exception:  # a bug of our own: its message goes to the log only
            log.exception("Internal error in gRPC %s", name)
            await context.abort(grpc.StatusCode.INTERNAL, "internal error; the server's log has it")
        return None

    return grpc.unary_unary_rpc_method_handler(call)
