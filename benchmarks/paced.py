"""A Jupyter server extension for measurements: nbgen's engine is replaced by a clock.

The last message of a request is "RATE COUNT": that many numbered tokens of eight characters come at that rate. All the
rest (runs, event streams, the panel) is nbgen as it stands.
"""

import asyncio
from typing import Any

from nbgen.messages import FinishReason, GenerateOutput, GenerateRequest

WIDTH = 8
TICK = 0.004


class PacedEngine:
    """Takes the place of `EngineClient.submit` and `abort`."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def submit(self, request: GenerateRequest, listener: Any) -> None:
        """Begin to write."""
        text = request.messages[-1].content if request.messages else request.text or ""
        rate, count = map(int, text.split())
        self._tasks[request.rid] = asyncio.create_task(self._write(request.rid, listener, rate, count))

    def abort(self, rid: str) -> None:
        """Stop at once."""
        if task := self._tasks.get(rid):
            task.cancel()

    async def _write(self, rid: str, listener: Any, rate: int, count: int) -> None:
        clock = asyncio.get_running_loop().time
        start, written, reason = clock(), 0, FinishReason(type="length", length=count)
        try:
            while written < count:
                due = min(count, 1 + int((clock() - start) * rate))
                for place in range(written, due):
                    text = f"{place:0{WIDTH - 1}d} "
                    listener.add(GenerateOutput(rid=rid, text=text, token_ids=[1], completion_tokens=place + 1))
                written = due
                await asyncio.sleep(TICK)
        except asyncio.CancelledError:
            reason = FinishReason(type="abort")
        listener.add(GenerateOutput(rid=rid, completion_tokens=written, finish_reason=reason))
        self._tasks.pop(rid, None)


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "benchmarks.paced"}]


def _load_jupyter_server_extension(server: Any) -> None:
    server.extension_manager.any_activity  # noqa: B018  extensions are there
    server.io_loop.call_later(0.5, _replace, server)


def _replace(server: Any) -> None:
    engine, paced = server.web_app.settings["nbgen"].engine, PacedEngine()
    engine.submit, engine.abort = paced.submit, paced.abort
