"""Stops an engine that has been idle for some time. The next request starts it again, as the first one did."""

from __future__ import annotations

from logging import Logger

from tornado.ioloop import PeriodicCallback

from nbgen.server.engine_life import EngineLife

#: Longest time between two checks.
LOOK_SECONDS = 15.0


class IdleUnload:
    """Stops an engine after `seconds` without a request; never if that is None."""

    def __init__(self, engine: EngineLife, seconds: float | None, log: Logger) -> None:
        self._engine = engine
        self._seconds = seconds
        self._log = log
        self._looks: PeriodicCallback | None = None

    def start(self) -> None:
        """Begin to check. Needs a running event loop."""
        if self._seconds is not None:
            self._looks = PeriodicCallback(self.look, 1000 * min(LOOK_SECONDS, max(self._seconds / 4, 0.1)))
            self._looks.start()

    def stop(self) -> None:
        """Stop checking."""
        if self._looks is not None:
            self._looks.stop()

    async def look(self) -> None:
        """Stop the engine if it has been idle long enough; one that is paused or released is never idle."""
        idle = self._engine.idle_seconds
        if self._seconds is not None and idle is not None and idle >= self._seconds:
            self._log.info("The model is unloaded: nobody has asked it anything for %g seconds", self._seconds)
            await self._engine.stop(self._seconds)
