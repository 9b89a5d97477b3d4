"""All routes, below nbgen's prefix and, where the server stands alone, at the root as well."""

from __future__ import annotations

from typing import Any

import msgspec

from nbgen import __version__
from nbgen.errors import NotFound
from nbgen.server import (
    adapter_handlers,
    embedding_handlers,
    kserve_handlers,
    kserve_settings_handlers,
    memory_handlers,
    model_handlers,
    openai_handlers,
    run_handlers,
    sglang_handlers,
    tokenizer_handlers,
    triton_generate_handlers,
)
from nbgen.server.base_handler import NbgenHandler

PREFIX = "nbgen/"


class PageHandler(NbgenHandler):
    """What answers where."""

    async def get(self) -> None:
        routes = [f"{self.base_url}{PREFIX}{pattern}" for pattern, _ in HANDLERS]
        self.finish(msgspec.json.encode({"name": "nbgen", "version": __version__, "routes": routes}))


class NotFoundHandler(NbgenHandler):
    """Every other path below the prefix, for every method."""

    async def get(self) -> None:
        raise NotFound(f"nbgen has no route {self.request.path[:200]!r}")

    head = post = put = patch = delete = get


HANDLERS: list[tuple[str, type[NbgenHandler]]] = [
    *sglang_handlers.HANDLERS,
    *tokenizer_handlers.HANDLERS,
    *openai_handlers.HANDLERS,
    *embedding_handlers.HANDLERS,
    *kserve_handlers.HANDLERS,
    *triton_generate_handlers.HANDLERS,
    *kserve_settings_handlers.HANDLERS,
    *kserve_handlers.LAST_HANDLERS,
    *model_handlers.HANDLERS,
    *memory_handlers.HANDLERS,
    *adapter_handlers.HANDLERS,
    *run_handlers.HANDLERS,
]


def routes(*, standalone: bool) -> list[tuple[Any, ...]]:
    """Patterns below Jupyter's base URL, most special first."""
    below = [(PREFIX + pattern, handler) for pattern, handler in HANDLERS]
    at_root = HANDLERS if standalone else []
    return [*below, ("nbgen/?", PageHandler), *at_root, (PREFIX + ".*", NotFoundHandler)]
