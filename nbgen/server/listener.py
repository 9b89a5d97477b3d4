"""Who waits for the engine's answer to a request. Knows neither requests nor processes."""

from __future__ import annotations

from typing import Any, Protocol

from nbgen.errors import NbgenError


class Listener(Protocol):
    """Who asked: gets every output of its request (or its one answer), as they come, or the error that ends it."""

    def add(self, *outputs: Any) -> None: ...
    def fail(self, error: NbgenError) -> None: ...
