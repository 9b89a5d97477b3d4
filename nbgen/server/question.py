"""Asks the engine for a single answer and awaits it: a tokenization, a vector, a single token. Knows no dialect."""

from __future__ import annotations

import asyncio
import uuid

from nbgen.engine_state import ModelInfo
from nbgen.errors import NbgenError, Unavailable, anew
from nbgen.frames import Request
from nbgen.messages import EmbedOutput, GenerateOutput
from nbgen.server.engine_client import EngineClient
from nbgen.tokenizer_messages import TokenizerAnswer, TokenizeRequest

Answer = TokenizerAnswer | EmbedOutput | GenerateOutput


class Question:
    """Listens for the first answer."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def add(self, answer: Answer, *_: Answer) -> None:
        reason = answer.finish_reason if isinstance(answer, GenerateOutput) else None
        if reason is not None and (error := reason.as_error("the engine refused")) is not None:
            self.fail(error)
        elif not self.answer.done():
            self.answer.set_result(answer)

    def fail(self, error: NbgenError) -> None:
        if not self.answer.done():
            self.answer.set_exception(anew(error))


class Questions:
    """Those in flight, each with the id that its caller gave it, by which it may be aborted."""

    def __init__(self) -> None:
        self._open: dict[Question, str] = {}

    async def ask(self, engine: EngineClient, request: Request, id: str) -> Answer:
        """As the function `ask`; raises Unavailable, too, where the question is aborted."""
        self._open[question := Question()] = id
        try:
            return await _answer(engine, request, question)
        finally:
            del self._open[question]

    def abort(self, id: str | None = None) -> None:
        """End those of exactly this id; None: all."""
        for question, given in self._open.items():
            if id is None or given == id:
                question.fail(Unavailable("the request was aborted"))


async def ask_tokenizer(engine: EngineClient, request: Request) -> TokenizerAnswer:
    """The engine's answer to a request for its tokenizer."""
    answer = await ask(engine, request)
    assert isinstance(answer, TokenizerAnswer)
    return answer


async def started_model(engine: EngineClient) -> ModelInfo | None:
    """The model's properties, starting the engine if need be; None if the engine has stopped again."""
    if engine.model is None:
        await ask_tokenizer(engine, TokenizeRequest(rid=uuid.uuid4().hex))
    return engine.model


async def ask(engine: EngineClient, request: Request, seconds: float | None = None) -> Answer:
    """The engine's first answer, starting the engine if need be. Raises its refusal, or TimeoutError."""
    return await _answer(engine, request, Question(), seconds)


async def _answer(engine: EngineClient, request: Request, question: Question, seconds: float | None = None) -> Answer:
    engine.submit(request, question)
    try:
        return await asyncio.wait_for(question.answer, seconds)
    finally:
        engine.abort(request.rid)
        engine.forget(request.rid)
