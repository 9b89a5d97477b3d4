"""All methods of `inference.GRPCInferenceService` except inference, over the same models as the HTTP routes.

Knows neither ports nor what computes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf import json_format
from tritonclient.grpc import service_pb2

from nbgen import __version__
from nbgen.errors import InvalidRequest, NotFound, Unsupported
from nbgen.protocols import kserve_grpc, kserve_metadata
from nbgen.server import grpc_inference
from nbgen.server.base_handler import SMALL_BODY
from nbgen.server.grpc_errors import answered, parsed
from nbgen.server.kserve_handlers import index, statistics
from nbgen.server.served_model import ServedModel

if TYPE_CHECKING:
    from nbgen.server.app import NbgenApp

SERVICE = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]


def service(app: NbgenApp, server: grpc.aio.Server) -> None:
    """Let the server answer for the extension's models."""
    methods = Service(app)
    described = {
        each.name: answered(each.name, partial(_answer, method, getattr(service_pb2, each.input_type.name)), app.log)
        for each in SERVICE.methods
        if (method := getattr(methods, each.name, None)) is not None
    }
    methods_of_all = described | grpc_inference.handlers(app)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE.full_name, methods_of_all)])


async def _answer(method: Callable[[Any], Awaitable[Any]], kind: Any, request: bytes) -> bytes:
    """A method's answer. Messages are parsed here, since gRPC itself gives no reason for one that cannot be parsed."""
    if len(request) > SMALL_BODY:
        raise InvalidRequest(f"the message has {len(request)} bytes; at most {SMALL_BODY} without tensors")
    answer: bytes = (await method(parsed(kind, request))).SerializeToString()
    return answer


class Service:
    """What each method answers; contents equal those of the HTTP routes."""

    def __init__(self, app: NbgenApp) -> None:
        self._app = app

    def _model(self, request: Any) -> ServedModel:
        return self._app.models.serving(request.name, request.version)

    # --- descriptions

    async def ServerLive(self, _: Any) -> Any:
        return service_pb2.ServerLiveResponse(live=True)

    async def ServerReady(self, _: Any) -> Any:
        return service_pb2.ServerReadyResponse(ready=self._app.ready)

    async def ModelReady(self, request: Any) -> Any:
        model = self._app.models.find(request.name, request.version)
        return service_pb2.ModelReadyResponse(ready=model.state == "READY")

    async def ServerMetadata(self, _: Any) -> Any:
        fields = kserve_metadata.server_metadata(self._app.triton_server_name, __version__)
        return _filled(service_pb2.ServerMetadataResponse(), fields)

    async def ModelMetadata(self, request: Any) -> Any:
        fields = kserve_metadata.model_metadata(self._model(request).spec)
        return _filled(service_pb2.ModelMetadataResponse(), fields)

    async def ModelConfig(self, request: Any) -> Any:
        model = self._model(request)
        fields = {"config": kserve_metadata.model_config(model.spec, model.device)}
        return _filled(service_pb2.ModelConfigResponse(), fields)

    async def ModelStatistics(self, request: Any) -> Any:
        models = self._app.models
        try:
            found = [models.find(request.name, request.version)] if request.name else models
        except NotFound as error:
            raise InvalidRequest(error.message) from None
        return _filled(service_pb2.ModelStatisticsResponse(), {"model_stats": [statistics(model) for model in found]})

    # --- repository

    async def RepositoryIndex(self, request: Any) -> Any:
        kserve_metadata.check_repository(request.repository_name)
        entries = index(self._app.models, only_ready=request.ready)
        return _filled(service_pb2.RepositoryIndexResponse(), {"models": entries})

    async def RepositoryModelLoad(self, request: Any) -> Any:
        kserve_metadata.check_repository(request.repository_name)
        kserve_metadata.check_load(request.parameters)
        await asyncio.shield(self._app.models.load(request.model_name))
        return service_pb2.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(self, request: Any) -> Any:
        kserve_metadata.check_repository(request.repository_name)
        kserve_metadata.check_unload(
            {name: kserve_grpc.parameter_value(name, value) for name, value in request.parameters.items()}
        )
        await asyncio.shield(self._app.models.unload(request.model_name))
        return service_pb2.RepositoryModelUnloadResponse()

    # --- settings and shared memory

    async def LogSettings(self, request: Any) -> Any:
        changes = {name: kserve_grpc.parameter_value(name, value) for name, value in request.settings.items()}
        self._app.log_settings.update(changes)
        response = service_pb2.LogSettingsResponse()
        for name, value in self._app.log_settings.fields.items():
            kind = {bool: "bool_param", int: "uint32_param"}.get(type(value), "string_param")
            setattr(response.settings[name], kind, value)
        return response

    async def TraceSetting(self, request: Any) -> Any:
        if request.model_name:
            self._app.models.find(request.model_name)
        changes = {name: _trace_value(name, list(value.value)) for name, value in request.settings.items()}
        self._app.trace_settings.update(changes, request.model_name)
        response = service_pb2.TraceSettingResponse()
        for name, value in self._app.trace_settings.of(request.model_name).items():
            response.settings[name].value.extend(value if isinstance(value, list) else [value])
        return response

    async def SystemSharedMemoryStatus(self, request: Any) -> Any:
        _no_region("system", request.name)
        return service_pb2.SystemSharedMemoryStatusResponse()

    async def CudaSharedMemoryStatus(self, request: Any) -> Any:
        _no_region("cuda", request.name)
        return service_pb2.CudaSharedMemoryStatusResponse()

    async def SystemSharedMemoryRegister(self, _: Any) -> Any:
        raise _disabled()

    async def SystemSharedMemoryUnregister(self, request: Any) -> Any:
        if request.name:
            raise _disabled()
        return service_pb2.SystemSharedMemoryUnregisterResponse()

    # Their requests have the same fields, and their answers have none.
    CudaSharedMemoryRegister = SystemSharedMemoryRegister
    CudaSharedMemoryUnregister = SystemSharedMemoryUnregister


def _filled(message: Any, fields: dict[str, Any]) -> Any:
    return json_format.ParseDict(fields, message, ignore_unknown_fields=True)


def _trace_value(name: str, values: list[str]) -> Any:
    if name == "trace_level":
        return values or None
    if len(values) > 1:
        raise InvalidRequest(f"Unable to parse '{name[:80]}': expected one value, got {len(values)}")
    return values[0] if values else None


def _no_region(kind: str, name: str) -> None:
    if name:
        raise NotFound(f"Unable to find {kind} shared memory region: '{name[:200]}'")


def _disabled() -> Unsupported:
    return Unsupported("Client shared memory is disabled on this server; send tensors in the request")
