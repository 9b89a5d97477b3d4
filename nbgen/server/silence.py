"""Notices an engine that says nothing although somebody waits for it. Knows neither processes nor requests."""

import asyncio
from collections.abc import Callable

SILENT_SECONDS = 30
#: Limit while the engine starts and loads, when a slow disk or network may keep it silent.
LOADING_SECONDS = 300


class Silence:
    """The time since the engine's last message, in ticks of our own loop: a pause of this process does not count."""

    def __init__(self) -> None:
        self._sounds = 0

    def broken(self) -> None:
        """Note that a message has come from the engine: the silence begins anew."""
        self._sounds += 1

    async def lasts(self, allowed: Callable[[], int | None]) -> int:
        """Return once the engine has been silent for `allowed()` seconds without a change of that; None is no limit."""
        silent, heard, before = 0, self._sounds, allowed()
        while before is None or silent < before:
            await asyncio.sleep(1)
            now = allowed()
            silent = silent + 1 if now == before and self._sounds == heard else 0
            heard, before = self._sounds, now
        return silent
