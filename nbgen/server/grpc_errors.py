"""Errors as gRPC's statuses, in one place for every method."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import grpc

from nbgen.errors import NbgenError

CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.ALREADY_EXISTS,
    422: grpc.StatusCode.UNAVAILABLE,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
}


def answered(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, with errors as gRPC's statuses."""

    @wraps(method)
    async def call(self: Any, request: Any, context: Any) -> Any:
        try:
            return await method(self, request)
        except NbgenError as error:
            await context.abort(CODES.get(error.status, grpc.StatusCode.INTERNAL), error.message)
        except Exception:  # a fault of our own tells nobody its words
            self.log.exception("Internal error in gRPC %s", method.__name__)
            await context.abort(grpc.StatusCode.INTERNAL, "internal error; the server's log has it")

    return call
