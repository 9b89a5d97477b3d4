"""Anthropic's routes: generate messages, and count their tokens."""

from __future__ import annotations

import msgspec

from nbgen.errors import NbgenError
from nbgen.protocols import anthropic_answer, anthropic_messages
from nbgen.server.base_handler import MEDIA_BODY
from nbgen.server.openai_handlers import CallHandler, OpenaiHandler
from nbgen.server.question import ask_tokenizer
from nbgen.server.runs import Run


class AnthropicHandler(OpenaiHandler):
    """Errors in Anthropic's shape, and the request id in the header where its clients look for it."""

    def set_default_headers(self) -> None:
        super().set_default_headers()
        self.set_header("Request-Id", self._request_id)

    def error_body(self, error: NbgenError) -> bytes:
        return anthropic_answer.error_body(error, self._request_id)


class MessagesHandler(AnthropicHandler, CallHandler):
    """A chat, answered with a message through the model's own template."""

    body_limit = MEDIA_BODY

    async def post(self) -> None:
        call, thoughts = await self.parsed(anthropic_messages.parse_message)
        (request,) = await self.ready(call)
        self._message = anthropic_answer.Answer(request, self.model_name(call.model), thoughts=thoughts)
        await self.generate([request], stream=call.stream)

    def whole(self, runs: list[Run]) -> bytes:
        return self._message.whole(runs[0].samples[0])

    def chunk(self, runs: list[Run]) -> bytes:
        return self._message.chunk(runs[0].samples[0])

    def sign_of_life(self, runs: list[Run]) -> bytes:
        return anthropic_answer.PING

    def end(self, runs: list[Run], error: NbgenError | None) -> bytes:
        if error is not None:
            return anthropic_answer.error_event(error, self._request_id)
        return self._message.end(runs[0].samples[0])


class CountTokensHandler(AnthropicHandler, CallHandler):
    """How many tokens the prompt of a message would have."""

    body_limit = MEDIA_BODY

    async def post(self) -> None:
        answer = await ask_tokenizer(self.engine, await self.parsed(anthropic_messages.parse_count))
        self.finish(msgspec.json.encode({"input_tokens": sum(map(len, answer.token_ids))}))


HANDLERS = [(r"v1/messages", MessagesHandler), (r"v1/messages/count_tokens", CountTokensHandler)]
