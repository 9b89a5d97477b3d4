"""OpenAI's routes: completions, chat completions, models; and SGLang's scores, which have the same shape of errors."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from functools import cached_property

import msgspec

from nbgen.errors import InvalidRequest, NbgenError, NotFound, renamed
from nbgen.messages import GenerateRequest
from nbgen.protocols import openai, openai_answer, scores
from nbgen.protocols.openai import OF_TEMPLATES, Call
from nbgen.server.base_handler import MEDIA_BODY, NbgenHandler
from nbgen.server.generation_handler import GenerationHandler
from nbgen.server.runs import Run


class OpenaiHandler(NbgenHandler):
    """Errors in OpenAI's shape with the caller's field names, and a request id in a header of each answer."""

    error_body = staticmethod(openai_answer.error_body)
    #: The caller's names of the engine's options.
    names: Mapping[str, str] = {}

    def set_default_headers(self) -> None:
        super().set_default_headers()
        self.set_header("X-Request-Id", self._request_id)

    @cached_property
    def _request_id(self) -> str:
        return f"req_{secrets.token_hex(16)}"

    def as_ours(self, status: int, error: BaseException | None) -> NbgenError:
        ours = super().as_ours(status, error)
        return renamed(ours, self.names) if isinstance(ours, InvalidRequest) else ours

    def adapter(self, model: str) -> str | None:
        """The adapter that "adapter" or "base:adapter" names, if any. Raises InvalidRequest for an unknown adapter."""
        adapters, base = self.engine.adapters, self.engine.config.model
        if (name := adapters.named(model)) is None and model.startswith(f"{base}:"):
            adapters.check(model.removeprefix(f"{base}:"), field="model")
        return None if model == base else name

    def model_name(self, model: str) -> str:
        """The model name in the answer: the caller's name of an adapter, or the served model's."""
        return model if self.adapter(model) else self.engine.config.model


class CallHandler(OpenaiHandler, GenerationHandler):
    """A completion or a chat. One model is served, so `model` matters only if it names an adapter."""

    names: Mapping[str, str] = OF_TEMPLATES

    async def respond(self, call: Call) -> None:
        """Answer the call, whole or as a stream."""
        requests = self._cut(call, await self.ready(call))
        self._answer_to = openai_answer.Answer(call, self.model_name(call.model))
        await self.generate(requests, stream=call.stream)

    async def ready(self, call: Call) -> list[GenerateRequest]:
        """The call's requests with adapters and media. Raises an error for those that are missing or not allowed."""
        self.names, adapter = call.names, self.adapter(call.model)
        fit = self.app.server_options.truncate
        requests = [msgspec.structs.replace(r, adapter=adapter or r.adapter, fit=r.fit or fit) for r in call.requests]
        return await self.with_media(requests, call.media)

    def _cut(self, call: Call, requests: list[GenerateRequest]) -> list[GenerateRequest]:
        """The requests, to be cut to the context where the owner wants that: texts at their end, chats by old turns."""
        if not self.app.server_options.truncate:
            return requests
        return [msgspec.structs.replace(r, truncate=not call.chat, drop_oldest=call.chat) for r in requests]

    def whole(self, runs: list[Run]) -> bytes:
        return self._answer_to.whole([run.samples for run in runs])

    def chunk(self, runs: list[Run]) -> bytes:
        return self._answer_to.chunks([run.samples for run in runs])

    def sign_of_life(self, runs: list[Run]) -> bytes:
        return self._answer_to.empty_chunk([run.samples for run in runs])

    def end(self, runs: list[Run], error: NbgenError | None) -> bytes:
        return openai_answer.error_event(error) if error else self._answer_to.end([run.samples for run in runs])


class CompletionsHandler(CallHandler):
    """Continues a text or token ids."""

    async def post(self) -> None:
        await self.respond(await self.parsed(openai.parse_completion))


class ChatCompletionsHandler(CallHandler):
    """Answers a chat, through the model's own template."""

    body_limit = MEDIA_BODY

    async def post(self) -> None:
        await self.respond(await self.parsed(openai.parse_chat))

    def as_ours(self, status: int, error: BaseException | None) -> NbgenError:
        """Name an excessive limit by both of its names: SGLang's clients look for the newer, whichever they sent."""
        ours = super().as_ours(status, error)
        if not isinstance(ours, InvalidRequest) or ours.field != "max_tokens":
            return ours
        words = ours.message.replace("max_tokens is too", "max_tokens or max_completion_tokens is too", 1)
        return InvalidRequest(words, field=ours.field, code=ours.code)


class ScoreHandler(CallHandler):
    """The probabilities of tokens to come next, after a query with each of several items."""

    async def post(self) -> None:
        self._scoring = await self.parsed(scores.parse_score)
        await self.generate(await self.ready(self._scoring.call), stream=False)

    def whole(self, runs: list[Run]) -> bytes:
        samples = [run.samples[0] for run in runs]
        return scores.score_body(self._scoring, samples, self.model_name(self._scoring.call.model))


class CardsHandler(OpenaiHandler):
    """The model cards: the one model that is served, and its adapters."""

    _track_activity = False

    def cards(self) -> list[dict[str, object]]:
        """The model's entry and those of the loaded adapters."""
        loaded, since = self.engine.adapters.loaded, self.engine.loaded or self.app.started
        card = openai_answer.model_card(self.engine.config, self.engine.model, int(since))
        adapters = (
            {"id": name, "display_name": name, "root": loaded[name], "parent": card["id"]} for name in sorted(loaded)
        )
        return [card, *(card | adapter for adapter in adapters)]


class ModelsHandler(CardsHandler):
    """Lists all model cards."""

    async def get(self) -> None:
        cards = self.cards()
        page = {"has_more": False, "first_id": cards[0]["id"], "last_id": cards[-1]["id"]}  # all there are
        self.finish(msgspec.json.encode({"object": "list", "data": cards, **page}))

    head = get


class OneModelHandler(CardsHandler):
    """One model card by its name, which may hold slashes."""

    async def get(self, name: str) -> None:
        if (found := next((card for card in self.cards() if card["id"] == name), None)) is None:
            raise NotFound(f"there is no model {name[:200]!r} here, but {self.engine.config.model!r}", field="model")
        self.finish(msgspec.json.encode(found))

    head = get


HANDLERS = [
    (r"v1/completions", CompletionsHandler),
    (r"v1/chat/completions", ChatCompletionsHandler),
    (r"invocations", ChatCompletionsHandler),  # Amazon SageMaker's, beside /ping
    (r"v1/score", ScoreHandler),
    (r"v1/models", ModelsHandler),
    (r"v1/models/(.+?)", OneModelHandler),
]
