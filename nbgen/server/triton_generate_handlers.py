"""Triton's generate extension: one flat JSON object in; one object out, or a stream of events."""

from __future__ import annotations

from contextlib import aclosing

from nbgen import sse
from nbgen.errors import InvalidRequest, NbgenError
from nbgen.protocols import kserve_checks, triton_generate
from nbgen.protocols.inference import Inference, InferenceResponse
from nbgen.protocols.kserve import MAX_INPUT_BYTES
from nbgen.server.base_handler import RETRY_AFTER
from nbgen.server.kserve_handler import KserveHandler
from nbgen.server.kserve_handlers import MODEL
from nbgen.server.off_loop import off_loop
from nbgen.server.served_model import ServedModel


class GenerateHandler(KserveHandler):
    """Answers with the one response, or with an error if there are several or none."""

    body_limit = MAX_INPUT_BYTES

    async def post(self, name: str, version: str = "") -> None:
        model = self.models.serving(name, version)
        if self.request.headers.get("Content-Encoding", "identity").strip() not in ("", "identity"):
            raise InvalidRequest("Unsupported Content-Encoding, only identity is supported")
        spec = model.spec
        self._tell_load(model)
        inference = await self.parsed(lambda body: triton_generate.parse_generate(memoryview(body), spec))
        await self.serve(self.respond(model, kserve_checks.checked(inference, spec)))

    async def respond(self, model: ServedModel, inference: Inference) -> None:
        """Answer once."""
        found: InferenceResponse | None = None
        async with aclosing(model.responses(inference)) as responses:
            async for response in responses:
                if found is not None or response.pieces > 1:
                    raise triton_generate.not_one("several")
                found = response
        if found is None:
            raise triton_generate.not_one("none")
        await self.write_whole(await self._body_of(found, inference))

    def _tell_load(self, model: ServedModel) -> None:
        """Set ORCA's header for load balancers, if it is asked for and there is a KV cache."""
        wanted, status = self.request.headers.get("endpoint-load-metrics-format", ""), self.engine.status
        if not (wanted and model.spec.decoupled and status and status.blocks_total):
            return
        used = status.usage
        capacity = status.kv_tokens
        if (value := triton_generate.load_metrics(wanted, used, capacity)) is not None:
            self.set_header("endpoint-load-metrics", value)

    async def _body_of(self, response: InferenceResponse, inference: Inference) -> bytes:
        return await off_loop(response.size, triton_generate.response_body, response, inference.id)


class GenerateStreamHandler(GenerateHandler):
    """Sends an event for each response as soon as it is there, and nothing else: clients take any line for an event."""

    async def respond(self, model: ServedModel, inference: Inference) -> None:
        """Answer with events. A refusal before the first one is a plain error."""
        try:
            async with aclosing(model.responses(inference)) as responses:
                async for response in responses:
                    await self.write_event(sse.encode(await self._body_of(response, inference)))
                    if self.reader.gone:
                        return
        except NbgenError as error:
            await self._fail(error)
        self.end_events()

    async def _fail(self, error: NbgenError) -> None:
        if not self._headers_written:
            if error.status < 500:
                raise error
            self.set_status(error.status)
            if error.retryable:
                self.set_header("Retry-After", RETRY_AFTER)
        await self.write_event(triton_generate.error_event(error))


HANDLERS = [
    (rf"{MODEL}/generate", GenerateHandler),
    (rf"{MODEL}/generate_stream", GenerateStreamHandler),
]
