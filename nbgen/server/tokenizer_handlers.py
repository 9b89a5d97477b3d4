"""`/tokenize`, `/detokenize` and `/tokenizer_info`: the model's own tokenizer over HTTP."""

from __future__ import annotations

import msgspec

from nbgen.protocols import sglang_tokens
from nbgen.protocols.openai import OF_TEMPLATES
from nbgen.server.base_handler import NbgenHandler
from nbgen.server.generation_handler import ModelNeededHandler
from nbgen.server.openai_handlers import OpenaiHandler
from nbgen.server.question import ask_tokenizer, started_model


class TokenizerHandler(OpenaiHandler, ModelNeededHandler):
    """Errors in OpenAI's shape, as SGLang has them for both routes."""

    names = OF_TEMPLATES


class TokenizeHandler(TokenizerHandler):
    """Token ids of texts, or of a chat through the model's template."""

    async def post(self) -> None:
        request, single = await self.parsed(sglang_tokens.parse_tokenize)
        answer = await ask_tokenizer(self.engine, request)
        model = self.engine.model
        context = model.context_length if model else 0
        self.finish(sglang_tokens.tokenized(answer, single, context))


class DetokenizeHandler(TokenizerHandler):
    """The text of token ids."""

    async def post(self) -> None:
        request, single = await self.parsed(sglang_tokens.parse_detokenize)
        self.finish(sglang_tokens.detokenized(await ask_tokenizer(self.engine, request), single))


class TokenizerInfoHandler(TokenizerHandler):
    """The tokenizer's class, special tokens and chat template, as vLLM tells them: lm-eval asks for these."""

    #: It may load the model.
    actions = {**NbgenHandler.actions, "GET": "write"}  # noqa: RUF012

    async def get(self) -> None:
        model = await started_model(self.engine)
        self.finish(msgspec.json.encode(model.tokenizer if model else {}))


HANDLERS = [
    (r"tokenize", TokenizeHandler),
    (r"v1/tokenize", TokenizeHandler),
    (r"detokenize", DetokenizeHandler),
    (r"v1/detokenize", DetokenizeHandler),
    (r"tokenizer_info", TokenizerInfoHandler),
]
