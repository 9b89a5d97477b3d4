"""When an engine that nobody asks anything is stopped. The next request starts one, as it would the first."""

from __future__ import annotations

from logging import Logger

from tornado.ioloop import PeriodicCallback

from nbgen.server.engine_life import EngineLife

#: Between two looks, at most.
LOOK_SECONDS = 15.0


class IdleUnload:
    """Of one engine, after `seconds` without a request; None: never."""

    def __init__(self, engine: EngineLife, seconds: float | None, log: Logger) -> None:
        self._engine = engine
        self._seconds = seconds
        self._log = log
        self._looks: PeriodicCallback | None = None

    def start(self) -> None:
        """Begin to look. Needs a running event loop."""
        if self._seconds is not None:
            self._looks = PeriodicCallback(self.look, 1000 * min(LOOK_SECONDS, max(self._seconds / 4, 0.1)))
            self._looks.start()

    def stop(self) -> None:
        """Look no more."""
        if self._looks is not None:
            self._looks.stop()

    async def look(self) -> None:
        """Stop the engine if it is time for that. One that is paused or released is left to who did that."""
        idle = self._engine.idle_seconds
        if self._seconds is not None and idle is not None and idle >= self._seconds:
            self._log.info("The model is unloaded: nobody has asked it anything for %g seconds", self._seconds)
            await self._engine.stop(self._seconds)
