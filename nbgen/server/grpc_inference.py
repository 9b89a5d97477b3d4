"""Inference over gRPC: one request, or a stream of many at once.

Messages come and go as bytes: tensors are cut out of requests and appended to responses uncopied, in a worker thread if
they are large, since the generated protobuf classes would block the event loop. Knows no model.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import grpc
from tritonclient.grpc import service_pb2

from nbgen.errors import InternalError, NbgenError
from nbgen.protocols import kserve_checks, kserve_grpc, protobuf_wire
from nbgen.protocols.inference import Inference, InferenceResponse
from nbgen.server.grpc_errors import answered, code, parsed
from nbgen.server.kserve_handlers import only_response
from nbgen.server.off_loop import off_loop
from nbgen.server.served_model import ServedModel
from nbgen.tensor_spec import ModelSpec

if TYPE_CHECKING:
    from nbgen.server.app import NbgenApp

#: Requests of one stream that run or wait; more are read once these have ended.
MAX_IN_FLIGHT = 256
STREAM_ERRORS = "triton_grpc_error"
#: The field of a ModelStreamInferResponse that holds a response.
INFER_RESPONSE = 2


def handlers(app: NbgenApp) -> dict[str, grpc.RpcMethodHandler]:
    """The gRPC handlers of the two methods."""
    methods = Inferences(app)
    return {
        "ModelInfer": answered("ModelInfer", methods.infer, app.log),
        "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(methods.stream),
    }


Over = asyncio.Future[None]


def _over() -> Over:
    return asyncio.get_running_loop().create_future()


class Inferences:
    """Inferences of the extension's models."""

    def __init__(self, app: NbgenApp) -> None:
        self._app = app
        self.log = app.log

    async def infer(self, request: bytes) -> bytes:
        model, inference = await self._parsed(*await _split(request))
        response = await only_response(model, inference)
        return await off_loop(response.size, _encoded, response, inference, model.spec)

    async def stream(self, requests: Any, context: Any) -> AsyncIterator[bytes]:
        """Responses of decoupled models come as soon as they are there; those of other models come in request order."""
        answers: asyncio.Queue[Any] = asyncio.Queue(maxsize=64)
        reading = asyncio.create_task(self._read(requests, answers))
        strict = dict(context.invocation_metadata() or ()).get(STREAM_ERRORS) == "true"
        try:
            while (answer := await answers.get()) is not None:
                message, error = answer
                if strict and error is not None:
                    await context.abort(code(error), error.message)
                yield message
        finally:
            reading.cancel()

    async def _read(self, requests: Any, answers: asyncio.Queue[Any]) -> None:
        before = _over()
        before.set_result(None)
        places = asyncio.Semaphore(MAX_IN_FLIGHT)
        async with asyncio.TaskGroup() as group:
            async for request in requests:
                await places.acquire()
                over = _over()
                group.create_task(self._answer(request, answers, before, over)).add_done_callback(
                    lambda _: places.release()
                )
                before = over
        await answers.put(None)

    async def _answer(self, request: bytes, answers: asyncio.Queue[Any], before: Over, over: Over) -> None:
        """Queue one request's messages. Errors found before the model runs never end the stream.

        `before` is done once all earlier requests that answer in order have answered; `over` once this one has, too.
        """
        running, ordered, id = False, True, ""
        answer: tuple[bytes, NbgenError | None]
        try:
            message, contents = await _split(request)
            id = message.id
            model, inference = await self._parsed(message, contents)
            running, ordered = True, not model.spec.decoupled
            if not ordered:
                before.add_done_callback(lambda _: over.set_result(None))
                await _put_all(model, inference, answers)
                return
            answer = await _message(await only_response(model, inference), inference, model), None
        except NbgenError as error:
            answer = _failure(id, error), error if running else None
        except Exception:  # a bug of our own: its message goes to the log only
            self.log.exception("Internal error in gRPC ModelStreamInfer")
            internal = InternalError("internal error; the server's log has it")
            answer = _failure(id, internal), internal
        if ordered:
            await asyncio.wait([before])
        await answers.put(answer)
        if ordered:
            over.set_result(None)

    async def _parsed(self, request: Any, contents: list[memoryview]) -> tuple[ServedModel, Inference]:
        model = self._app.models.serving(request.model_name, request.model_version)
        size = request.ByteSize() + sum(map(len, contents))
        inference = await off_loop(size, kserve_grpc.parse_infer, request, contents)
        return model, kserve_checks.checked(inference, model.spec)


async def _split(request: bytes) -> tuple[Any, list[memoryview]]:
    """The message without its tensors, and these. Raises InvalidRequest for bytes that are no message."""
    rest, contents = await off_loop(len(request), protobuf_wire.split, request, kserve_grpc.RAW_INPUTS)
    return await off_loop(len(rest), parsed, service_pb2.ModelInferRequest, rest), contents


async def _put_all(model: ServedModel, inference: Inference, answers: asyncio.Queue[Any]) -> None:
    """Queue each response as soon as it is there."""
    async with aclosing(model.responses(inference)) as responses:
        async for response in responses:
            await answers.put((await _message(response, inference, model), None))


async def _message(response: InferenceResponse, inference: Inference, model: ServedModel) -> bytes:
    return await off_loop(response.size, _encoded, response, inference, model.spec, True)


def _encoded(response: InferenceResponse, inference: Inference, spec: ModelSpec, streamed: bool = False) -> bytes:
    """A ModelInferResponse; `streamed`, a ModelStreamInferResponse that holds it."""
    message = service_pb2.ModelInferResponse()
    contents = kserve_grpc.fill(message, response, inference, spec)
    if streamed:
        message.parameters[kserve_grpc.FINAL].bool_param = response.final
    pieces = protobuf_wire.appended(message.SerializeToString(), kserve_grpc.RAW_OUTPUTS, contents)
    head = [protobuf_wire.head(INFER_RESPONSE, sum(map(len, pieces)))] if streamed else []
    return b"".join([*head, *pieces])


def _failure(id: str, error: NbgenError) -> bytes:
    message = service_pb2.ModelStreamInferResponse(error_message=error.message)
    message.infer_response.id = id
    message.infer_response.parameters[kserve_grpc.FINAL].bool_param = True
    encoded: bytes = message.SerializeToString()
    return encoded
