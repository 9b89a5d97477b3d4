"""Connects to an engine that runs elsewhere, in the process that owns its model. Starts none."""

from __future__ import annotations

import asyncio
import contextlib
from logging import Logger

from nbgen.server.engine_channel import EngineChannel

#: An engine that has not closed its end after this time is given up.
CLOSE_SECONDS = 5.0


class AttachedEngine(EngineChannel):
    """One connection. Ending it is all that the server can do to the engine."""

    @classmethod
    async def connect(cls, path: str, log: Logger) -> AttachedEngine:
        """Connect to the socket `path`. Raises OSError where nobody listens."""
        engine = cls(log)
        await engine._open(path)
        return engine

    @property
    def pid(self) -> None:
        return None

    def close(self) -> None:
        """Ask the engine to free what it took; it then closes its end."""
        with contextlib.suppress(OSError, RuntimeError):
            self._writer.write_eof()
        asyncio.get_running_loop().call_later(CLOSE_SECONDS, self._writer.close)

    def kill(self) -> None:
        self._writer.transport.abort()

    async def end(self, patience: float) -> str:
        """The engine has closed its end, or was given up: there is nothing to wait for."""
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
        return "the connection to the kernel's engine ended"


class Attachment:
    """Gives `EngineClient` connections to such an engine; has the methods of `Standby`, which gives it processes."""

    def __init__(self, path: str, log: Logger) -> None:
        self._path = path
        self._log = log

    async def take(self) -> AttachedEngine:
        """A new connection. Raises OSError where nobody listens."""
        return await AttachedEngine.connect(self._path, self._log)

    def prepare(self) -> None:
        """There is nothing to prepare."""

    async def close(self) -> None:
        """There is nothing to close."""

    def kill(self) -> None:
        """There is nothing to kill."""
