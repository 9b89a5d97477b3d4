"""The route table: all routes below nbgen's prefix and, where the server stands alone, at the root as well.

Knows no body and no answer: those are up to the handlers.
"""

from __future__ import annotations

from typing import Any

import msgspec

from nbgen import __version__
from nbgen.errors import NotFound
from nbgen.server import (
    adapter_handlers,
    anthropic_handlers,
    conversations_handlers,
    embedding_handlers,
    kserve_handlers,
    kserve_settings_handlers,
    model_handlers,
    openai_handlers,
    parsing_handlers,
    responses_handlers,
    run_handlers,
    sglang_handlers,
    tokenizer_handlers,
    triton_generate_handlers,
)
from nbgen.server.base_handler import NbgenHandler
from nbgen.server.kserve_handler import KserveHandler
from nbgen.server.sglang_handlers import SglangHandler

PREFIX = "nbgen/"


class PageHandler(NbgenHandler):
    """The list of all routes."""

    async def get(self) -> None:
        routes = [f"{self.base_url}{PREFIX}{pattern}" for pattern, _ in HANDLERS]
        self.finish(msgspec.json.encode({"name": "nbgen", "version": __version__, "routes": routes}))

    head = get


class RootHandler(SglangHandler):
    """The root of a server that stands alone: says that it runs, as SGLang's root does."""

    async def get(self) -> None:
        words = f"nbgen {__version__} is running; {self.base_url}{PREFIX} lists its routes"
        self.finish(msgspec.json.encode(words))

    head = get


class NotFoundHandler(NbgenHandler):
    """404 for any other path below the prefix, for every method and body; CORS preflights are answered."""

    def _check_body(self) -> None:
        if self.request.method != "OPTIONS":
            raise NotFound(self.words())

    def words(self) -> str:
        """The message of the 404."""
        return f"nbgen has no route {self.request.path[:200]!r}; {self.base_url}{PREFIX} lists all"


class OpenaiNotFoundHandler(openai_handlers.OpenaiHandler, NotFoundHandler):
    """404 in OpenAI's shape."""


class AnthropicNotFoundHandler(anthropic_handlers.AnthropicHandler, NotFoundHandler):
    """404 in Anthropic's shape."""


class KserveNotFoundHandler(NotFoundHandler, KserveHandler):
    """404 in Triton's shape."""


class SglangNotFoundHandler(SglangHandler, NotFoundHandler):
    """404 in SGLang's shape, at the root."""

    def words(self) -> str:
        return "Not Found"


HANDLERS: list[tuple[str, type[NbgenHandler]]] = [
    *sglang_handlers.HANDLERS,
    *tokenizer_handlers.HANDLERS,
    *parsing_handlers.HANDLERS,
    *openai_handlers.HANDLERS,
    *responses_handlers.HANDLERS,
    *conversations_handlers.HANDLERS,
    *anthropic_handlers.HANDLERS,
    *embedding_handlers.HANDLERS,
    *kserve_handlers.HANDLERS,
    *triton_generate_handlers.HANDLERS,
    *kserve_settings_handlers.HANDLERS,
    *model_handlers.HANDLERS,
    *adapter_handlers.HANDLERS,
    *run_handlers.HANDLERS,
]


def routes(*, standalone: bool) -> list[tuple[Any, ...]]:
    """Patterns below Jupyter's base URL, most specific first. Except for Triton's, a slash at the end is optional."""
    known = [(_with_slash(pattern), handler) for pattern, handler in HANDLERS]
    unknown = [("v2/.*", KserveNotFoundHandler), ("v1/messages/.*", AnthropicNotFoundHandler)]
    own = [*known, *unknown, ("v1/.*", OpenaiNotFoundHandler)]
    below = [(PREFIX + pattern, handler) for pattern, handler in own]
    alone = [("/?", RootHandler), *own] if standalone else []
    return [*below, ("nbgen/?", PageHandler), (PREFIX + ".*", NotFoundHandler), *alone]


def _with_slash(pattern: str) -> str:
    return pattern if pattern.startswith("v2") else pattern.removesuffix("/?") + "/?"
