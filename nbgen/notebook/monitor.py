"""The monitor as a widget: a live view of the loaded model, its memory and its speed.

The browser asks the server itself where it can, also while the kernel is busy; else this kernel asks for it. Knows no
pixels.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import traitlets

from nbgen.errors import NbgenError
from nbgen.notebook import session
from nbgen.notebook.panel_code import STATIC
from nbgen.notebook.server_widget import ServerWidget
from nbgen.notebook.short_traceback import short_traceback
from nbgen.notebook.status import Status


class Monitor(ServerWidget):
    """Model, memory, KV cache, requests and tokens per second, with buttons to load, to unload and to stop all."""

    _esm = STATIC / "monitor.js"
    _css = STATIC / "monitor.css"

    interval_ms = traitlets.Int(1000, min=200, help="Time between two looks, in milliseconds.").tag(sync=True)

    def __init__(self, *, interval_ms: int = 1000, transport: str = "auto") -> None:
        server_id = session.default_client().hello()["server_id"]
        super().__init__(server_id=server_id, interval_ms=interval_ms, transport=transport)
        self.on_msg(lambda _, message, buffers: self._receive(message))

    def __repr__(self) -> str:
        try:
            client = session.default_client(start=False)
            return str(Status(client.url, client.model()))
        except NbgenError as error:
            return f"<monitor: {error}>"

    def _receive(self, message: dict[str, Any]) -> None:
        """Handle a request of the page. It may come on any thread, and must not block the next one."""
        asked = str(message.get("type"))
        work = {"look": self._look, "load": self._load, "unload": self._unload, "stop": self._stop}.get(asked)
        if work is not None:
            threading.Thread(target=self._answer, args=(asked, work), daemon=True).start()

    def _answer(self, asked: str, work: Callable[[], None]) -> None:
        try:
            work()
        except NbgenError as error:
            self.send({"type": "error", "asked": asked, "message": str(error)})

    def _look(self) -> None:
        self.send({"type": "model", "model": session.default_client(start=False).model()})

    def _load(self) -> None:
        for name, data in session.default_client().load():
            if name == "error":
                self.send({"type": "error", "asked": "load", "message": data["error"]["message"]})

    def _unload(self) -> None:
        session.default_client(start=False).unload()

    def _stop(self) -> None:
        session.default_client(start=False).cancel_all()


@short_traceback
def monitor(*, interval_ms: int = 1000, transport: str = "auto") -> Monitor:
    """A live view of the server: the model, its memory, the KV cache, requests, tokens per second."""
    return Monitor(interval_ms=interval_ms, transport=transport)
