"""SGLang's `/parse_function_call` and `/separate_reasoning`: an answer's text split as the model's template shows."""

from __future__ import annotations

from nbgen.messages import AnswerPart
from nbgen.protocols import sglang_parsing
from nbgen.server.generation_handler import ModelNeededHandler
from nbgen.server.question import ask_tokenizer
from nbgen.server.sglang_handlers import SglangHandler


class ParseCallsHandler(SglangHandler, ModelNeededHandler):
    """The calls of tools in a text, and the text without them. Without tools there are none."""

    async def post(self) -> None:
        parsing = await self.parsed(sglang_parsing.parse_calls)
        parts = [AnswerPart(content=parsing.request.text)]
        if parsing.request.tools:
            parts = (await ask_tokenizer(self.engine, parsing.request)).parts
        self.finish(sglang_parsing.calls_body(parsing, parts))


class SeparateThoughtsHandler(SglangHandler, ModelNeededHandler):
    """The thoughts in a text, and the text without them."""

    async def post(self) -> None:
        parsing = await self.parsed(sglang_parsing.parse_thoughts)
        self.finish(sglang_parsing.thoughts_body(parsing, (await ask_tokenizer(self.engine, parsing.request)).parts))


HANDLERS = [
    (r"parse_function_call", ParseCallsHandler),
    (r"separate_reasoning", SeparateThoughtsHandler),
]
