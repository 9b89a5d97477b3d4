"""`/v1/embeddings` and `/encode`: vectors of texts, in OpenAI's words and in SGLang's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from nbgen.errors import InternalError, InvalidRequest, Unavailable, renamed
from nbgen.messages import EmbedOutput, EmbedRequest, FinishReason, GenerateOutput, GenerateRequest
from nbgen.protocols import embeddings, openai_answer, sglang_answer
from nbgen.server.generation_handler import ModelNeededHandler
from nbgen.server.question import ask


class EmbeddingHandler(ModelNeededHandler):
    """Asks the engine for all vectors of a call at once; the first refusal answers the call."""

    async def embed(self, requests: Iterable[EmbedRequest | GenerateRequest]) -> list[EmbedOutput]:
        """Each request's vector, in order."""
        tasks = [asyncio.create_task(self._one(request)) for request in requests]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _one(self, request: EmbedRequest | GenerateRequest) -> EmbedOutput:
        answer = await ask(self.engine, request)
        match answer:
            case EmbedOutput():
                return answer
            case GenerateOutput(tensors=[pooled]):
                return EmbedOutput(rid=answer.rid, prompt_tokens=answer.prompt_tokens, data=pooled.data)
            case GenerateOutput(finish_reason=FinishReason(type="abort") as reason):
                raise Unavailable(reason.message or "the request was stopped")
        raise InternalError("the engine answered something else than a vector")


class EmbeddingsHandler(EmbeddingHandler):
    """OpenAI's. The model's name in it is not looked at: one model is served."""

    error_body = staticmethod(openai_answer.error_body)

    async def post(self) -> None:
        call = embeddings.parse_openai(self.body)
        try:
            outputs = await self.embed(call.requests)
        except InvalidRequest as error:
            raise renamed(error, {"input_ids": "input", "hidden_states": "pooling"}) from None
        self.finish(embeddings.openai_body(call, outputs, self.engine.config.model))


class EncodeHandler(EmbeddingHandler):
    """SGLang's."""

    error_body = staticmethod(sglang_answer.error_body)

    async def post(self) -> None:
        started, call = time.monotonic(), embeddings.parse_encode(self.body)
        outputs = await self.embed(call.requests)
        self.finish(embeddings.encode_body(call, outputs, time.monotonic() - started))

    async def put(self) -> None:
        await self.post()


HANDLERS = [
    (r"v1/embeddings", EmbeddingsHandler),
    (r"encode", EncodeHandler),
]
