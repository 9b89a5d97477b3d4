"""`/v1/embeddings`, `/encode`, `/v1/classify` and `/v1/rerank`: vectors, classes and ranks of texts in each dialect."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from nbgen.engine_state import ModelInfo
from nbgen.errors import InternalError, Unavailable
from nbgen.messages import EmbedOutput, EmbedRequest, FinishReason, GenerateOutput, GenerateRequest
from nbgen.protocols import embeddings, rerank
from nbgen.protocols.rerank import Scored
from nbgen.server.generation_handler import ModelNeededHandler
from nbgen.server.off_loop import off_loop
from nbgen.server.openai_handlers import OpenaiHandler
from nbgen.server.question import started_model
from nbgen.server.sglang_handlers import SglangHandler

EmbeddingRequest = EmbedRequest | GenerateRequest


class EmbeddingHandler(ModelNeededHandler):
    """Asks the engine for all vectors of a call at once. The first refusal answers the call; a disconnect ends it."""

    async def answer(
        self, requests: Sequence[EmbeddingRequest], body: Callable[[list[EmbedOutput]], bytes], ids: Sequence[str] = ()
    ) -> None:
        """Answer with the body made of each request's vector, in order. `ids`: the caller's, which abort them."""
        outputs = [_vector(answer) for answer in await self.ask_all(requests, ids)]
        await self.write_whole(await off_loop(sum(len(output.data) for output in outputs), body, outputs))

    async def ask_all(self, requests: Sequence[EmbeddingRequest], ids: Sequence[str] = ()) -> list[Scored]:
        """The engine's answer to each, in order. Raises the first refusal."""
        named = zip(requests, ids or [each.rid for each in requests], strict=True)
        tasks = [asyncio.create_task(self._one(request, id)) for request, id in named]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def model(self) -> ModelInfo:
        """The model's properties, which decide what to ask it. Starts the engine if need be."""
        if (model := await started_model(self.engine)) is None:
            raise Unavailable("the model was stopped meanwhile")
        return model

    async def _one(self, request: EmbeddingRequest, id: str) -> Scored:
        answer = await self.runs.questions.ask(self.engine, request, id)
        match answer:
            case GenerateOutput(finish_reason=FinishReason(type="abort") as reason):
                raise Unavailable(reason.message or "the request was stopped")
            case EmbedOutput() | GenerateOutput():
                return answer
        raise InternalError("the engine answered something else than was asked")


def _vector(answer: Scored) -> EmbedOutput:
    match answer:
        case EmbedOutput():
            return answer
        case GenerateOutput(tensors=[pooled]):
            return EmbedOutput(rid=answer.rid, prompt_tokens=answer.prompt_tokens, data=pooled.data)
    raise InternalError("the engine answered without a vector")


def _through(request: EmbeddingRequest, adapter: str | None) -> EmbeddingRequest:
    """The request through the adapter, if any. (An embedding model takes none, and a text model refuses the rest.)"""
    if adapter is None or isinstance(request, EmbedRequest):
        return request
    return msgspec.structs.replace(request, adapter=adapter)


class EmbeddingsHandler(OpenaiHandler, EmbeddingHandler):
    """OpenAI's embeddings. One model is served, so `model` matters only if it names an adapter."""

    names = {"prompt": "input", "input_ids": "input", "hidden_states": "pooling"}  # noqa: RUF012

    async def post(self) -> None:
        call = await self.parsed(embeddings.parse_openai)
        adapter = self.adapter(call.model)
        body = partial(embeddings.openai_body, call, model=self.model_name(call.model))
        await self.serve(self.answer([_through(each, adapter) for each in call.requests], body, call.ids))


class ClassesHandler(EmbeddingsHandler):
    """SGLang's and vLLM's `/v1/classify`: the most likely class of each text."""

    async def post(self) -> None:
        await self.serve(self._classify(await self.parsed(embeddings.parse_classify)))

    async def _classify(self, call: embeddings.Embedding) -> None:
        embeddings.check_classes(model := await self.model())
        await self.answer(call.requests, lambda outputs: embeddings.classify_body(outputs, model), call.ids)


class EncodeHandler(SglangHandler, EmbeddingHandler):
    """SGLang's `/encode`: embeddings."""

    async def post(self) -> None:
        started, call = time.monotonic(), await self.parsed(embeddings.parse_encode)

        def body(outputs: list[EmbedOutput]) -> bytes:
            return embeddings.encode_body(call, outputs, time.monotonic() - started)

        await self.serve(self.answer(call.requests, body, call.ids))

    put = post


class RerankHandler(OpenaiHandler, EmbeddingHandler):
    """SGLang's `/v1/rerank`: documents ordered by how well they answer a query."""

    names = rerank.NAMES

    async def post(self) -> None:
        await self.serve(self._rank(await self.parsed(rerank.parse_rerank)))

    put = post

    async def _rank(self, ranking: rerank.Ranking) -> None:
        outputs = await self.ask_all(rerank.requests(ranking, await self.model()))
        size = sum(len(chat[1].text) for chat in ranking.chats)
        await self.write_whole(await off_loop(size, self.ranked, ranking, outputs))

    def ranked(self, ranking: rerank.Ranking, outputs: list[Scored]) -> bytes:
        """The answer's body."""
        return rerank.sglang_body(ranking, outputs)


class JinaRerankHandler(RerankHandler):
    """Rerank in vLLM's shape, for Jina's and Cohere's clients."""

    def ranked(self, ranking: rerank.Ranking, outputs: list[Scored]) -> bytes:
        return rerank.jina_body(ranking, outputs, self.engine.config.model)


HANDLERS = [
    (r"v1/embeddings", EmbeddingsHandler),
    (r"encode", EncodeHandler),
    (r"classify", EncodeHandler),
    (r"v1/classify", ClassesHandler),
    (r"v1/rerank", RerankHandler),
    (r"rerank", JinaRerankHandler),
    (r"v2/rerank", JinaRerankHandler),
]
