"""A Jupyter server extension for measurements: nbgen's engine is replaced by a clock.

The last message of a request is "RATE COUNT": that many numbered tokens of seven digits come at that rate, in
paragraphs of a hundred. All the rest (runs, event streams, the panel) is nbgen as it stands.
"""

import asyncio
from typing import Any

from nbgen.messages import FinishReason, GenerateOutput, GenerateRequest, TokenLogprobs

DIGITS = 7
PARAGRAPH = 100
TICK = 0.004


class PacedEngine:
    """Takes the place of `EngineClient.submit` and `abort`."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def submit(self, request: GenerateRequest, listener: Any) -> None:
        """Begin to write."""
        text = request.messages[-1].content if request.messages else request.text or ""
        rate, count = map(int, text.split())
        write = self._write(request, listener, rate, count)
        self._tasks[request.rid] = asyncio.create_task(write)

    def abort(self, rid: str) -> None:
        """Stop at once."""
        if task := self._tasks.get(rid):
            task.cancel()

    async def _write(self, request: GenerateRequest, listener: Any, rate: int, count: int) -> None:
        rid = request.rid
        clock = asyncio.get_running_loop().time
        start, written, reason = clock(), 0, FinishReason(type="length", length=count)
        try:
            while written < count:
                due = min(count, 1 + int((clock() - start) * rate))
                for place in range(written, due):
                    listener.add(_token(request, token(place), place))
                written = due
                await asyncio.sleep(TICK)
        except asyncio.CancelledError:
            reason = FinishReason(type="abort")
        listener.add(GenerateOutput(rid=rid, completion_tokens=written, finish_reason=reason))
        self._tasks.pop(rid, None)


def token(place: int) -> str:
    """The text of the token at `place`, counted from 0."""
    return f"{place:0{DIGITS}d}" + ("\n\n" if place % PARAGRAPH == PARAGRAPH - 1 else " ")


def _token(request: GenerateRequest, text: str, place: int) -> GenerateOutput:
    logprobs = []
    if request.logprobs:
        top = [(-0.7 * (rank + 1), rank, text) for rank in range(request.logprobs.top)]
        logprobs = [TokenLogprobs((-(place % 5), 1, text), top)]
    return GenerateOutput(rid=request.rid, text=text, token_ids=[1], completion_tokens=place + 1, logprobs=logprobs)


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "benchmarks.paced"}]


def _load_jupyter_server_extension(server: Any) -> None:
    server.extension_manager.any_activity  # noqa: B018  extensions are there
    server.io_loop.call_later(0.5, _replace, server)


def _replace(server: Any) -> None:
    engine, paced = server.web_app.settings["nbgen"].engine, PacedEngine()
    engine.submit, engine.abort = paced.submit, paced.abort
