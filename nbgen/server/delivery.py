"""Sends requests to a loaded engine: large ones in pieces, as fast as the engine reads.

Knows what the model takes besides text, and nothing of dialects or of how the engine lives.
"""

from __future__ import annotations

import asyncio

import msgspec

from nbgen.engine_state import ModelInfo
from nbgen.errors import InvalidRequest
from nbgen.frames import Request
from nbgen.messages import AbortRequest, GenerateRequest, TensorPiece
from nbgen.pieces import cut_request
from nbgen.server.engine_channel import EngineChannel


class Deliveries:
    """The requests whose pieces are still being sent."""

    def __init__(self) -> None:
        self._running: dict[str, tuple[Request, asyncio.Task[None]]] = {}

    def send(self, process: EngineChannel, request: Request) -> None:
        """Send the request at once, or in the background after its pieces."""
        pieces, rest = cut_request(request) if isinstance(request, GenerateRequest) else ([], request)
        if not pieces:
            process.send(rest)
            return
        self._running[request.rid] = request, asyncio.create_task(self._deliver(process, pieces, rest))

    def cancel(self, process: EngineChannel | None, rid: str) -> Request | None:
        """Stop sending the request of this id, if it is being sent, and have the engine drop its pieces; return it."""
        if rid not in self._running:
            return None
        request, task = self._running.pop(rid)
        task.cancel()
        if process is not None:
            process.send(AbortRequest(rid=rid))
        return request

    def lost(self) -> None:
        """The engine is gone: stop sending."""
        for _, task in self._running.values():
            task.cancel()
        self._running.clear()

    async def _deliver(self, process: EngineChannel, pieces: list[TensorPiece], rest: Request) -> None:
        for piece in pieces:
            process.send(piece)
            await process.drain()
        del self._running[rest.rid]
        process.send(rest)


def suited(request: Request, model: ModelInfo) -> Request:
    """The request without media that the model does not take. Raises InvalidRequest if they may not be left out."""
    if not isinstance(request, GenerateRequest):
        return request
    kept = [media for media in request.media if media.type in model.media]
    if len(kept) == len(request.media):
        return request
    if not request.media_optional:
        other = next(media.type for media in request.media if media.type not in model.media)
        takes = " and ".join(["text", *model.media])
        field = "media" if request.messages is None else "messages"
        raise InvalidRequest(f"{model.name} takes no {other}: only {takes}", field=field)
    return msgspec.structs.replace(request, media=kept)
