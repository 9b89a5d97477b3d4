"""The client of a private server: adds the end of the server's log to errors that refer to the log.

Nobody else knows where the log is, and it is deleted with the process. Knows the log's file and the shape of errors.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx

from nbgen.errors import NbgenError
from nbgen.notebook.client import Client, Event
from nbgen.notebook.connection import Call

LAST_LINES = 15
TOKEN = re.compile(r"token=[^\s&]+")


class PrivateClient(Client):
    """Talks to the server whose log is in a file that this process can read."""

    def __init__(self, url: str, token: str, log: Path) -> None:
        super().__init__(url, token)
        self._log = log

    def model(self) -> dict[str, Any]:
        """The model's state, the engine's pulse, and where the log is."""
        return {**super().model(), "log": str(self._log)}

    async def arun(self, body: dict[str, Any]) -> AsyncGenerator[Event, None]:
        """Like `Client.arun`, with the log's end in errors."""
        async with aclosing(super().arun(body)) as events:
            async for event in events:
                yield self._explained(event)

    def _events(self, call: Call) -> Iterator[Event]:
        for event in super()._events(call):
            yield self._explained(event)

    def _answer(self, call: Call, timeout: float | None = None) -> httpx.Response:
        try:
            return super()._answer(call, timeout)
        except NbgenError as error:
            error.message = self._with_log(error.message)
            error.args = (error.message,)
            raise

    def _explained(self, event: Event) -> Event:
        name, data = event
        if name != "error":
            return event
        return name, {**data, "error": {**data["error"], "message": self._with_log(data["error"]["message"])}}

    def _with_log(self, words: str) -> str:
        if "log says" in words or "log has" in words:
            return f"{words}: {self._log} ends with\n{last_words(self._log)}"
        return words


def last_words(log: Path) -> str:
    """The end of a log, without the token in the address that Jupyter prints; empty where the log has gone."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
    except OSError:
        return ""
    return TOKEN.sub("token=…", "\n".join(lines))
