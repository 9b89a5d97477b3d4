"""The methods of `inference.GRPCInferenceService`, over the same models as the HTTP routes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from functools import wraps
from typing import Any

import grpc
from google.protobuf import json_format
from tritonclient.grpc import service_pb2, service_pb2_grpc

from nbgen import __version__
from nbgen.errors import InternalError, InvalidRequest, NbgenError, NotFound, Unsupported
from nbgen.protocols import kserve_checks, kserve_grpc, kserve_metadata
from nbgen.protocols.inference import Inference, InferenceResponse
from nbgen.server.kserve_handlers import only_response, statistics, streams
from nbgen.server.served_model import ServedModel

CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.ALREADY_EXISTS,
    422: grpc.StatusCode.UNAVAILABLE,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
}
STREAM_ERRORS = "triton_grpc_error"


def service(app: Any, server: grpc.aio.Server) -> None:
    """Let the server answer for the extension's models."""
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Service(app), server)


def answered(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, with errors as gRPC's statuses."""

    @wraps(method)
    async def call(self: Service, request: Any, context: Any) -> Any:
        try:
            return await method(self, request)
        except NbgenError as error:
            await context.abort(CODES.get(error.status, grpc.StatusCode.INTERNAL), error.message)
        except Exception:  # a fault of our own tells nobody its words
            self.log.exception("Internal error in gRPC %s", method.__name__)
            await context.abort(grpc.StatusCode.INTERNAL, "internal error; the server's log has it")

    return call


class Service(service_pb2_grpc.GRPCInferenceServiceServicer):
    """What each method answers; contents equal those of the HTTP routes."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.log = app.log

    def _model(self, request: Any, *, name: str = "name", version: str = "version") -> ServedModel:
        found: ServedModel = self._app.models.serving(
            getattr(request, name), kserve_grpc.parse_version(getattr(request, version))
        )
        return found

    # --- descriptions

    @answered
    async def ServerLive(self, _: Any) -> Any:
        return service_pb2.ServerLiveResponse(live=True)

    @answered
    async def ServerReady(self, _: Any) -> Any:
        ready = all(model.state == "READY" for model in self._app.models if not model.unloaded)
        return service_pb2.ServerReadyResponse(ready=ready)

    @answered
    async def ModelReady(self, request: Any) -> Any:
        model = self._app.models.find(request.name, kserve_grpc.parse_version(request.version))
        return service_pb2.ModelReadyResponse(ready=model.state == "READY")

    @answered
    async def ServerMetadata(self, _: Any) -> Any:
        fields = kserve_metadata.server_metadata(self._app.triton_server_name, __version__)
        return _filled(service_pb2.ServerMetadataResponse(), fields)

    @answered
    async def ModelMetadata(self, request: Any) -> Any:
        fields = kserve_metadata.model_metadata(self._model(request).spec)
        return _filled(service_pb2.ModelMetadataResponse(), fields)

    @answered
    async def ModelConfig(self, request: Any) -> Any:
        model = self._model(request)
        fields = {"config": kserve_metadata.model_config(model.spec, model.device)}
        return _filled(service_pb2.ModelConfigResponse(), fields)

    @answered
    async def ModelStatistics(self, request: Any) -> Any:
        models = self._app.models
        try:
            found = [models.find(request.name, kserve_grpc.parse_version(request.version))] if request.name else models
        except NotFound as error:
            raise InvalidRequest(error.message) from None
        return _filled(service_pb2.ModelStatisticsResponse(), {"model_stats": [statistics(model) for model in found]})

    # --- repository

    @answered
    async def RepositoryIndex(self, request: Any) -> Any:
        _only_repository(request.repository_name)
        entries = [
            kserve_metadata.index_entry(model.spec, model.state, model.reason)
            for model in self._app.models
            if model.state == "READY" or not request.ready
        ]
        return _filled(service_pb2.RepositoryIndexResponse(), {"models": entries})

    @answered
    async def RepositoryModelLoad(self, request: Any) -> Any:
        _only_repository(request.repository_name)
        if request.parameters:
            raise InvalidRequest("failed to load: models are loaded as they are configured, without parameters")
        await asyncio.shield(self._app.models.load(request.model_name))
        return service_pb2.RepositoryModelLoadResponse()

    @answered
    async def RepositoryModelUnload(self, request: Any) -> Any:
        _only_repository(request.repository_name)
        await asyncio.shield(self._app.models.unload(request.model_name))
        return service_pb2.RepositoryModelUnloadResponse()

    # --- settings and shared memory

    @answered
    async def LogSettings(self, request: Any) -> Any:
        changes = {name: getattr(v, v.WhichOneof("parameter_choice")) for name, v in request.settings.items()}
        self._app.log_settings.update(changes)
        response = service_pb2.LogSettingsResponse()
        for name, value in self._app.log_settings.fields.items():
            kind = {bool: "bool_param", int: "uint32_param"}.get(type(value), "string_param")
            setattr(response.settings[name], kind, value)
        return response

    @answered
    async def TraceSetting(self, request: Any) -> Any:
        if request.model_name:
            self._app.models.find(request.model_name)
        changes = {name: _trace_value(name, list(value.value)) for name, value in request.settings.items()}
        self._app.trace_settings.update(changes, request.model_name)
        response = service_pb2.TraceSettingResponse()
        for name, value in self._app.trace_settings.of(request.model_name).items():
            response.settings[name].value.extend(value if isinstance(value, list) else [value])
        return response

    @answered
    async def SystemSharedMemoryStatus(self, request: Any) -> Any:
        _no_region("system", request.name)
        return service_pb2.SystemSharedMemoryStatusResponse()

    @answered
    async def CudaSharedMemoryStatus(self, request: Any) -> Any:
        _no_region("cuda", request.name)
        return service_pb2.CudaSharedMemoryStatusResponse()

    @answered
    async def SystemSharedMemoryRegister(self, _: Any) -> Any:
        raise _disabled()

    @answered
    async def CudaSharedMemoryRegister(self, _: Any) -> Any:
        raise _disabled()

    @answered
    async def SystemSharedMemoryUnregister(self, request: Any) -> Any:
        if request.name:
            raise _disabled()
        return service_pb2.SystemSharedMemoryUnregisterResponse()

    @answered
    async def CudaSharedMemoryUnregister(self, request: Any) -> Any:
        if request.name:
            raise _disabled()
        return service_pb2.CudaSharedMemoryUnregisterResponse()

    # --- inference

    @answered
    async def ModelInfer(self, request: Any) -> Any:
        model, inference = self._parsed(request)
        response = await only_response(model, inference)
        return kserve_grpc.fill(service_pb2.ModelInferResponse(), response, inference, model.spec)

    async def ModelStreamInfer(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        """Many requests at once: those of a decoupled model interleave, the others answer in order."""
        answers: asyncio.Queue[Any] = asyncio.Queue(maxsize=64)
        reading = asyncio.create_task(self._read(requests, answers))
        strict = dict(context.invocation_metadata() or ()).get(STREAM_ERRORS) == "true"
        try:
            while (answer := await answers.get()) is not None:
                message, error = answer
                if strict and error is not None:
                    await context.abort(CODES.get(error.status, grpc.StatusCode.INTERNAL), error.message)
                yield message
        finally:
            reading.cancel()

    async def _read(self, requests: Any, answers: asyncio.Queue[Any]) -> None:
        before: asyncio.Task[None] | None = None
        async with asyncio.TaskGroup() as group:
            async for request in requests:
                before = group.create_task(self._answer(request, answers, before))
        await answers.put(None)

    async def _answer(self, request: Any, answers: asyncio.Queue[Any], before: asyncio.Task[None] | None) -> None:
        """One request's messages. Errors found before the model runs never end the stream."""
        running = False
        try:
            model, inference = self._parsed(request)
            running = True
            if streams(model.spec, inference):
                async with aclosing(model.responses(inference)) as responses:
                    async for response in responses:
                        await answers.put((_message(response, inference, model), None))
                return
            response = await only_response(model, inference)
            if before is not None and not model.spec.decoupled:
                await asyncio.wait([before])
            await answers.put((_message(response, inference, model), None))
        except NbgenError as error:
            await answers.put((_failure(request.id, error), error if running else None))
        except Exception:  # a fault of our own tells nobody its words
            self.log.exception("Internal error in gRPC ModelStreamInfer")
            internal = InternalError("internal error; the server's log has it")
            await answers.put((_failure(request.id, internal), internal))

    def _parsed(self, request: Any) -> tuple[ServedModel, Inference]:
        model = self._model(request, name="model_name", version="model_version")
        return model, kserve_checks.checked(kserve_grpc.parse_infer(request), model.spec)


def _message(response: InferenceResponse, inference: Inference, model: ServedModel) -> Any:
    message = service_pb2.ModelStreamInferResponse()
    kserve_grpc.fill(message.infer_response, response, inference, model.spec)
    message.infer_response.parameters[kserve_grpc.FINAL].bool_param = response.final
    return message


def _failure(id: str, error: NbgenError) -> Any:
    message = service_pb2.ModelStreamInferResponse(error_message=error.message)
    message.infer_response.id = id
    message.infer_response.parameters[kserve_grpc.FINAL].bool_param = True
    return message


def _filled(message: Any, fields: dict[str, Any]) -> Any:
    return json_format.ParseDict(fields, message, ignore_unknown_fields=True)


def _trace_value(name: str, values: list[str]) -> Any:
    if not values:
        return None
    return values if name == "trace_level" else values[0]


def _only_repository(name: str) -> None:
    if name:
        raise Unsupported(f"a repository by name is not supported: '{name[:200]}'")


def _no_region(kind: str, name: str) -> None:
    if name:
        raise NotFound(f"Unable to find {kind} shared memory region: '{name[:200]}'")


def _disabled() -> Unsupported:
    return Unsupported("Client shared memory is disabled on this server; send tensors in the request")
