"""`/v1/embeddings` and `/encode`: vectors of texts, in OpenAI's words and in SGLang's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

from nbgen.errors import InternalError, InvalidRequest, Unavailable, renamed
from nbgen.messages import EmbedOutput, EmbedRequest, FinishReason, GenerateOutput, GenerateRequest
from nbgen.protocols import embeddings, sglang_answer
from nbgen.server.generation_handler import ModelNeededHandler
from nbgen.server.off_loop import off_loop
from nbgen.server.openai_handlers import OpenaiHandler
from nbgen.server.question import ask

EmbeddingRequest = EmbedRequest | GenerateRequest


class EmbeddingHandler(ModelNeededHandler):
    """Asks the engine for all vectors of a call at once; the first refusal answers the call. Whoever leaves ends it."""

    def initialize(self) -> None:
        super().initialize()
        self._vectors: asyncio.Future[list[EmbedOutput]] | None = None

    def on_connection_close(self) -> None:
        super().on_connection_close()
        if self._vectors is not None:
            self._vectors.cancel()

    async def answer(self, requests: Iterable[EmbeddingRequest], body: Callable[[list[EmbedOutput]], bytes]) -> None:
        """Answer with the body made of each request's vector, in order, unless the caller has left by then."""
        if self.reader.gone:
            return
        tasks = [asyncio.create_task(self._one(request)) for request in requests]
        self._vectors = asyncio.gather(*tasks)
        try:
            outputs = await self._vectors
            answer = await off_loop(sum(len(output.data) for output in outputs), body, outputs)
            if not self.reader.gone:
                self.finish(answer)
        except asyncio.CancelledError:
            if not self.reader.gone:
                raise
        finally:
            for task in tasks:
                task.cancel()

    async def _one(self, request: EmbeddingRequest) -> EmbedOutput:
        answer = await ask(self.engine, request)
        match answer:
            case EmbedOutput():
                return answer
            case GenerateOutput(tensors=[pooled]):
                return EmbedOutput(rid=answer.rid, prompt_tokens=answer.prompt_tokens, data=pooled.data)
            case GenerateOutput(finish_reason=FinishReason(type="abort") as reason):
                raise Unavailable(reason.message or "the request was stopped")
        raise InternalError("the engine answered something else than a vector")


class EmbeddingsHandler(OpenaiHandler, EmbeddingHandler):
    """OpenAI's. The model's name in it is not looked at: one model is served."""

    async def post(self) -> None:
        call = await self.parsed(embeddings.parse_openai)
        try:
            await self.answer(
                call.requests, lambda outputs: embeddings.openai_body(call, outputs, self.engine.config.model)
            )
        except InvalidRequest as error:
            raise renamed(error, {"prompt": "input", "input_ids": "input", "hidden_states": "pooling"}) from None


class EncodeHandler(EmbeddingHandler):
    """SGLang's."""

    error_body = staticmethod(sglang_answer.error_body)

    async def post(self) -> None:
        started, call = time.monotonic(), await self.parsed(embeddings.parse_encode)
        await self.answer(
            call.requests, lambda outputs: embeddings.encode_body(call, outputs, time.monotonic() - started)
        )

    put = post


HANDLERS = [
    (r"v1/embeddings", EmbeddingsHandler),
    (r"encode", EncodeHandler),
]
