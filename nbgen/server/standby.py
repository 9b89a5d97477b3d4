"""An engine process that has imported everything and holds no model, so that the next start costs only the load.

It is started at a low priority once the present engine has been up for a moment. Knows nothing of requests.
"""

from __future__ import annotations

import asyncio
from logging import Logger

from nbgen.server import engine_child
from nbgen.server.engine_process import EngineProcess

#: Time after which the present engine is past its first request.
LATER_SECONDS = 5.0


class Standby:
    """Keeps one process ready if that is `wanted`. `take` spawns a process if none is ready."""

    def __init__(self, log: Logger, *, wanted: bool) -> None:
        self._log = log
        self._wanted = wanted
        self._process: EngineProcess | None = None
        self._making: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The waiting process's id while there is one."""
        return self._process.pid if self._process else None

    async def take(self) -> EngineProcess:
        """The standby process, or one begun early, or a fresh one. Raises OSError if none can be started."""
        self._stop_making()
        process, self._process = self._process, None
        if process is None and (child := engine_child.early()):
            process = await EngineProcess.adopt(child, self._log)
        if process is not None and not process.alive:
            await process.end(0)
            process = None
        return process or await EngineProcess.spawn(self._log)

    def prepare(self) -> None:
        """Start a process in the background, LATER_SECONDS from now."""
        if self._wanted and self._process is None and self._making is None:
            self._making = asyncio.create_task(self._make())

    async def close(self) -> None:
        """End the process, and make no other."""
        self._stop_making()
        process, self._process = self._process, None
        if process is not None:
            await process.end(0.5)

    def kill(self) -> None:
        """End the process at once, without the event loop."""
        if self._process is not None:
            self._process.kill()

    def _stop_making(self) -> None:
        if self._making is not None:
            self._making.cancel()
            self._making = None

    async def _make(self) -> None:
        await asyncio.sleep(LATER_SECONDS)
        try:
            self._process = await EngineProcess.spawn(self._log, gently=True)
        except OSError as error:
            self._log.info("No engine stands by: %s", error.strerror)
        except Exception:  # perhaps no thread or no memory is left; the next engine start tries again
            self._log.exception("No engine stands by")
        self._making = None
