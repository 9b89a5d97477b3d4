"""KServe v2 over HTTP: health, metadata, configuration, statistics, repository, inference.

Does not know the format of bodies (`kserve`, `kserve_answer`), nor what computes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import aclosing
from typing import Any

import msgspec

from nbgen import __version__
from nbgen.errors import InvalidRequest, NotFound, Unavailable, Unsupported
from nbgen.protocols import kserve, kserve_answer, kserve_checks, kserve_metadata
from nbgen.protocols.inference import Inference, InferenceResponse
from nbgen.protocols.kserve_answer import ENCODINGS, Answer
from nbgen.server.kserve_handler import KserveHandler, SmallHandler
from nbgen.server.off_loop import INLINE_BYTES, off_loop
from nbgen.server.served_model import ServedModel
from nbgen.tensor_spec import ModelSpec

COMPRESSED = ENCODINGS[1:]
#: Bytes of one inference, including binary tensors, to which the protocol's MAX_INPUT_BYTES does not apply.
INFER_BODY = 2**29


class DescribingHandler(SmallHandler):
    """A route that only describes something."""

    _track_activity = False

    def tell(self, fields: Any) -> None:
        self.finish(msgspec.json.encode(fields))


class ServerHandler(DescribingHandler):
    """The server's own metadata."""

    async def get(self) -> None:
        self.tell(kserve_metadata.server_metadata(self.app.triton_server_name, __version__))


class LiveHandler(DescribingHandler):
    """Whether this process answers. Triton's clients look at the status alone, KServe's at the body."""

    tells_health = True

    async def get(self) -> None:
        self.tell({"live": True})


class ReadyHandler(DescribingHandler):
    """Whether every model that is in service is ready."""

    tells_health = True

    async def get(self) -> None:
        if self.engine.closed:
            raise Unavailable("the server is stopping")
        self.set_status(200 if self.app.ready else 400)
        self.tell({"ready": self.app.ready})


class ModelHandler(DescribingHandler):
    """A model's metadata."""

    async def get(self, name: str, version: str = "") -> None:
        self.tell(kserve_metadata.model_metadata(self.models.serving(name, version).spec))


class ModelReadyHandler(DescribingHandler):
    """Whether a model takes requests now."""

    async def get(self, name: str, version: str = "") -> None:
        model = self.models.find(name, version)
        if model.state != "READY":
            raise InvalidRequest(f"model '{name[:200]}' is not ready: {model.state.lower()} {model.reason}".strip())
        self.finish()


class ConfigHandler(DescribingHandler):
    """A model's configuration."""

    async def get(self, name: str, version: str = "") -> None:
        model = self.models.serving(name, version)
        self.tell(kserve_metadata.model_config(model.spec, model.device))


class StatisticsHandler(DescribingHandler):
    """The statistics of all models, or of one. An unknown model is a 400 here."""

    async def get(self, name: str = "", version: str = "") -> None:
        try:
            models = [self.models.find(name, version)] if name else list(self.models)
        except NotFound as error:
            raise InvalidRequest(error.message) from None
        self.tell({"model_stats": [statistics(model) for model in models]})


def statistics(model: ServedModel) -> dict[str, Any]:
    """A model's entry in the statistics."""
    spec = model.spec
    return model.statistics.fields(spec.name, spec.version, decoupled=spec.decoupled)


class IndexHandler(DescribingHandler):
    """The models that this server is configured with, and the state of each."""

    async def post(self) -> None:
        self.tell(index(self.models, only_ready=kserve_metadata.parse_index(self.body)))


def index(models: Iterable[ServedModel], *, only_ready: bool) -> list[dict[str, str]]:
    """The entries of all models, or of those that are ready."""
    return [
        kserve_metadata.index_entry(model.spec, model.state, model.reason)
        for model in models
        if model.state == "READY" or not only_ready
    ]


class LoadHandler(SmallHandler):
    """Puts a model into service, by its configured name and as it is configured."""

    async def post(self, name: str) -> None:
        kserve_metadata.check_load(kserve_metadata.parse_parameters(self.body))
        await asyncio.shield(self.models.load(name))
        self.finish()


class UnloadHandler(SmallHandler):
    """Takes a model out of service; an unknown model is no error."""

    async def post(self, name: str) -> None:
        kserve_metadata.check_unload(kserve_metadata.parse_parameters(self.body))
        await asyncio.shield(self.models.unload(name))
        self.finish()


class NamedRepositoryHandler(SmallHandler):
    """Refuses routes with a repository's name: there is one repository, without a name."""

    async def post(self, repository: str, *_: str) -> None:
        kserve_metadata.check_repository(repository)


class InferHandler(KserveHandler):
    """Tensors in, tensors out, in one response."""

    body_limit = INFER_BODY
    limit_words = f"exceeds the maximum allowed value of {INFER_BODY} bytes for a request with binary tensors"

    async def post(self, name: str, version: str = "") -> None:
        model = self.models.serving(name, version)
        spec = model.spec
        body = await self._plain_body()
        header = self.request.headers.get(kserve.LENGTH)
        parsed = await off_loop(_costly_bytes(header, body), kserve.parse_infer, body, header, spec)
        inference = kserve_checks.checked(parsed, spec)
        await self.serve(self._infer(model, spec, inference))

    async def _infer(self, model: ServedModel, spec: ModelSpec, inference: Inference) -> None:
        response = await only_response(model, inference)
        answer: Answer = await off_loop(response.size, kserve_answer.infer_answer, response, inference, spec)
        encoding = kserve_answer.accepted_encoding(self.request.headers.get("Accept-Encoding", ""))
        if answer.json_length is not None:
            self.set_header(kserve.LENGTH, str(answer.json_length))
        if encoding != "identity":
            self.set_header("Content-Encoding", encoding)
            answer = answer._replace(body=kserve_answer.compressed(answer.body, encoding))
        elif answer.json_length is not None and answer.size > INLINE_BYTES:
            self.set_header("Content-Length", str(answer.size))
        await self.send(answer.body, answer.size, answer.content_type)

    async def _plain_body(self) -> memoryview:
        encoding = self.request.headers.get("Content-Encoding", "").strip()
        body = memoryview(self._body)
        if encoding in ("", "identity"):
            return body
        if encoding not in COMPRESSED:
            raise Unsupported(f"Content-Encoding '{encoding[:80]}' is not supported; there are gzip and deflate")
        return await off_loop(len(body) * 8, kserve_answer.decompressed, body, kserve.MAX_INPUT_BYTES)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Add the encodings that are read, if the error was an unsupported one."""
        if isinstance(kwargs.get("exc_info", (None, None, None))[1], Unsupported):
            self.set_header("Accept-Encoding", ", ".join(COMPRESSED))
        super().write_error(status_code, **kwargs)


async def only_response(model: ServedModel, inference: Inference) -> InferenceResponse:
    """The one response of an inference. Raises InvalidRequest for an inference that asks for several."""
    found: InferenceResponse | None = None
    async with aclosing(model.responses(msgspec.structs.replace(inference, whole=True))) as responses:
        async for response in responses:
            found = response
    assert found is not None
    return found


def _costly_bytes(header: str | None, body: memoryview) -> int:
    """Bytes of a body that must be parsed, not just passed on: its JSON, and all if there may be a BYTES tensor."""
    if header is None or not header.isdecimal() or len(header) >= 12:
        return len(body)
    json = body[: int(header)]
    return len(body) if len(json) > INLINE_BYTES or b"BYTES" in bytes(json) else len(json)


MODEL = r"v2/models/([^/]+)(?:/versions/([0-9]+))?"
REPOSITORY_MODEL = r"v2/repository/models/([^/]+)"

HANDLERS = [
    (r"v2", ServerHandler),
    (r"v2/health/live", LiveHandler),
    (r"v2/health/ready", ReadyHandler),
    (r"v2/models/stats", StatisticsHandler),
    (MODEL, ModelHandler),
    (rf"{MODEL}/ready", ModelReadyHandler),
    (rf"{MODEL}/config", ConfigHandler),
    (rf"{MODEL}/stats", StatisticsHandler),
    (rf"{MODEL}/infer", InferHandler),
    (r"v2/repository/index", IndexHandler),
    (rf"{REPOSITORY_MODEL}/load", LoadHandler),
    (rf"{REPOSITORY_MODEL}/unload", UnloadHandler),
    (r"v2/repository/[^/]+/index", IndexHandler),
    (r"v2/repository/([^/]+)/models/([^/]+)/(?:load|unload)", NamedRepositoryHandler),
]
