"""OpenAI's routes that make, fetch, stream again, cancel and delete responses, and count their tokens."""

from __future__ import annotations

from functools import partial

import msgspec

from nbgen.errors import NbgenError, NotFound
from nbgen.messages import GenerateRequest
from nbgen.protocols import responses
from nbgen.protocols.json_body import refuse_unsupported
from nbgen.protocols.openai import OF_TEMPLATES, UNSUPPORTED_STREAM_OPTIONS
from nbgen.protocols.responses_answer import item_page
from nbgen.protocols.responses_items import in_parts
from nbgen.protocols.responses_query import Page, Retrieval, parse_query
from nbgen.server.base_handler import KEEP_ALIVE_SECONDS, MEDIA_BODY, NbgenHandler
from nbgen.server.openai_handlers import CallHandler, OpenaiHandler
from nbgen.server.question import ask_tokenizer
from nbgen.server.responses import Response, Responses
from nbgen.server.runs import Run, ended
from nbgen.sse import KEEP_ALIVE


class KeptHandler(NbgenHandler):
    """Has access to the responses that this server keeps."""

    @property
    def kept(self) -> Responses:
        return self.app.responses

    @property
    def read_besides(self) -> int:
        """Bytes of all that is kept: even a short body may refer to much of it."""
        return self.kept.size


class ResponsesHandler(CallHandler, KeptHandler):
    """Makes a response. One in background goes on if its caller disconnects."""

    body_limit = MEDIA_BODY

    async def post(self) -> None:
        asked = self._asked = await self.parsed(partial(responses.parse_response, memory=self.kept))
        self.detached = bool(asked.body.background)
        (request,) = await self.ready(asked.call)
        if self.detached and not asked.call.stream:
            self.check_code(request)
            self.start(request)
            self.finish(msgspec.json.encode(self._response.body()))
        else:
            await self.generate([request], stream=asked.call.stream)

    def start(self, request: GenerateRequest) -> Run:
        body = self._asked.body
        asked, conversations = self._asked, self.kept.conversations
        of = conversations.claim(body.conversation_id, asked.said, asked.input) if body.conversation_id else None
        run = super().start(request)
        self._response = Response(self._asked, self.model_name(self._asked.call.model), run)
        self._rendered = self._response.answer()
        if body.kept:
            self.kept.add(self._response, run, asked.sizes)
        if of is not None:
            conversations.follow(of, self._response, run)
        return run

    def whole(self, runs: list[Run]) -> bytes:
        return msgspec.json.encode(self._response.body())

    def chunk(self, runs: list[Run]) -> bytes:
        return self._rendered.chunk(runs[0].outputs)

    def sign_of_life(self, runs: list[Run]) -> bytes:
        return KEEP_ALIVE

    def end(self, runs: list[Run], error: NbgenError | None) -> bytes:
        (run,) = runs
        return self._rendered.end(run.outputs, run.samples[0], self._response.in_its_words(error), run.ended_at)


class ResponseHandler(OpenaiHandler, KeptHandler):
    """Fetches a response's present state or its events, and deletes it."""

    async def get(self, id: str) -> None:
        response = self.kept.get(id)
        again = parse_query(self.request.query_arguments, Retrieval)
        refuse_unsupported({"include_obfuscation": again.include_obfuscation}, UNSUPPORTED_STREAM_OPTIONS)
        if again.stream:
            await self._follow(response, again.starting_after)
        else:
            self.finish(msgspec.json.encode(response.body()))

    async def post(self, id: str) -> None:
        """Answer 404, after which clients that try a newer route, such as compact, go on without it."""
        raise NotFound(f"there is no route POST /v1/responses/{id[:80]}")

    async def delete(self, id: str) -> None:
        response = self.kept.get(id)
        self.kept.delete(id)
        self.runs.abort(response.run_id)
        self.finish(msgspec.json.encode({"id": id, "object": "response", "deleted": True}))

    async def _follow(self, response: Response, after: int) -> None:
        run, answer, over = response.run_in_background("streamed again"), response.answer(after=after), False
        self.reader.watch(run.watchers)
        while not (over or self.reader.gone):
            over, error = run.ended is not None, response.in_its_words(run.error)
            told = run.outputs
            chunk = answer.end(told, run.samples[0], error, run.ended_at) if over else answer.chunk(told)
            if chunk:
                await self.write_event(chunk)
            if not (over or await self.reader.wait(KEEP_ALIVE_SECONDS)):
                await self.write_event(KEEP_ALIVE)
        self.end_events()


class CancelHandler(OpenaiHandler, KeptHandler):
    """Ends a response in background; one that has ended is not changed."""

    async def post(self, id: str) -> None:
        response = self.kept.get(id)
        run = response.run_in_background("cancelled: another ends when its caller leaves")
        self.runs.abort(run.id)
        await ended([run], self.reader)
        self.finish(msgspec.json.encode(response.body()))


class InputItemsHandler(OpenaiHandler, KeptHandler):
    """Lists the input items of a response, page by page."""

    async def get(self, id: str) -> None:
        page = parse_query(self.request.query_arguments, Page)
        self.finish(item_page([in_parts(item) for item in self.kept.get(id).input], page))

    head = get


class InputTokensHandler(CallHandler, KeptHandler):
    """How many tokens the prompt of a response would have."""

    names = OF_TEMPLATES | {"messages": "input"}

    async def post(self) -> None:
        request = await self.parsed(partial(responses.parse_count, memory=self.kept))
        answer = await ask_tokenizer(self.engine, request)
        tokens = sum(map(len, answer.token_ids))
        self.finish(msgspec.json.encode({"object": "response.input_tokens", "input_tokens": tokens}))


ID = r"([^/]+)"

HANDLERS = [
    (r"v1/responses", ResponsesHandler),
    (r"v1/responses/input_tokens", InputTokensHandler),
    (rf"v1/responses/{ID}", ResponseHandler),
    (rf"v1/responses/{ID}/cancel", CancelHandler),
    (rf"v1/responses/{ID}/input_items", InputItemsHandler),
]
