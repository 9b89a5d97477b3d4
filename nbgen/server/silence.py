"""Notices an engine that says nothing although somebody waits for it. Knows neither processes nor requests."""

import asyncio
from collections.abc import Callable

SILENT_SECONDS = 30


class Silence:
    """Counted in ticks of our own loop, so that a pause of this whole process is none."""

    def __init__(self) -> None:
        self._sounds = 0

    def broken(self) -> None:
        """The engine has said something."""
        self._sounds += 1

    async def lasts(self, awaited: Callable[[], bool]) -> None:
        """Return once nothing was said for SILENT_SECONDS, in all of which something was `awaited`."""
        silent, heard = 0, self._sounds
        while silent < SILENT_SECONDS:
            await asyncio.sleep(1)
            silent = silent + 1 if awaited() and self._sounds == heard else 0
            heard = self._sounds
