"""`/v1/embeddings` and `/encode`: vectors of texts, in OpenAI's words and in SGLang's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

from nbgen.errors import InternalError, Unavailable
from nbgen.messages import EmbedOutput, EmbedRequest, FinishReason, GenerateOutput, GenerateRequest
from nbgen.protocols import embeddings
from nbgen.server.generation_handler import ModelNeededHandler
from nbgen.server.off_loop import off_loop
from nbgen.server.openai_handlers import OpenaiHandler
from nbgen.server.question import ask
from nbgen.server.sglang_handlers import SglangHandler

EmbeddingRequest = EmbedRequest | GenerateRequest


class EmbeddingHandler(ModelNeededHandler):
    """Asks the engine for all vectors of a call at once; the first refusal answers the call. Whoever leaves ends it."""

    async def answer(self, requests: Iterable[EmbeddingRequest], body: Callable[[list[EmbedOutput]], bytes]) -> None:
        """Answer with the body made of each request's vector, in order."""
        tasks = [asyncio.create_task(self._one(request)) for request in requests]
        try:
            outputs = await asyncio.gather(*tasks)
            await self.write_whole(await off_loop(sum(len(output.data) for output in outputs), body, outputs))
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

    names = {"prompt": "input", "input_ids": "input", "hidden_states": "pooling"}  # noqa: RUF012

    async def post(self) -> None:
        call, model = await self.parsed(embeddings.parse_openai), self.engine.config.model
        await self.serve(self.answer(call.requests, lambda outputs: embeddings.openai_body(call, outputs, model)))


class EncodeHandler(SglangHandler, EmbeddingHandler):
    """SGLang's."""

    async def post(self) -> None:
        started, call = time.monotonic(), await self.parsed(embeddings.parse_encode)

        def body(outputs: list[EmbedOutput]) -> bytes:
            return embeddings.encode_body(call, outputs, time.monotonic() - started)

        await self.serve(self.answer(call.requests, body))

    put = post


HANDLERS = [
    (r"v1/embeddings", EmbeddingsHandler),
    (r"encode", EncodeHandler),
]
